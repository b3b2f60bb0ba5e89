"""Start test programs on several processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]


def launch(*launcher: Any) -> None:
    """Run a module, such as a launcher and its program; raise with its output if it fails."""
    path = os.pathsep.join(["src", ".", *filter(None, [os.environ.get("PYTHONPATH")])])
    settings = {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", *map(str, launcher)]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | settings, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]


def torchrun(*program: Any, processes: int = 2) -> None:
    """Run a program on several processes."""
    launch("torch.distributed.run", "--standalone", "--nproc-per-node", processes, *program)
