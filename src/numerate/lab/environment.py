"""What a run was made with: versions, machine, state of the source."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

_PACKAGES = ("torch", "transformers", "accelerate", "peft", "trl", "datasets", "numpy", "scipy", "triton")


def is_first_process() -> bool:
    """Whether this is the process that writes and prints: the only one, or the first that a launcher started."""
    return os.environ.get("RANK", "0") == "0"


def environment() -> dict[str, Any]:
    """For the record beside a result."""
    import numerate

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
        "command": " ".join(Path(part).name if i == 0 else part for i, part in enumerate(sys.argv)),
        "packages": {name: found for name in _PACKAGES if (found := _version(name))},
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _git(folder: Path) -> str | None:
    """The commit, and whether files differ from it; None outside a checkout."""
    try:
        ask = ["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=12"]
        done = subprocess.run(ask, capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None
