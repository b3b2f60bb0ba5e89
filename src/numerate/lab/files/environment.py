"""The environment of a run, for its record: versions, machine, commit."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

import numerate

_PACKAGES = ("torch", "transformers", "accelerate", "peft", "trl", "datasets", "numpy", "scipy", "triton")


def environment() -> dict[str, Any]:
    """Return versions, machine, commit and command line."""
    cuda = torch.cuda.is_available()
    return {
        "numerate": numerate.__version__,
        "git": _git(Path(numerate.__file__).parent),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": torch.cuda.get_device_name() if cuda else "cpu",
        "devices": torch.cuda.device_count() if cuda else 1,
        "threads": torch.get_num_threads(),
        "cpus": os.cpu_count(),
        "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "packages": {name: installed for name in _PACKAGES if (installed := _version(name))},
    }


@cache  # reading the metadata of nine packages takes as long as some steps of a small model
def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _git(folder: Path) -> str | None:
    """Return the commit, marked ``-dirty`` if files differ from it; None outside a checkout."""
    command = ["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None
