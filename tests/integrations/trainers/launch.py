"""Start test programs on several processes."""

from __future__ import annotations

import os
import runpy
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tests.apart import start, wait_until

ROOT = Path(__file__).parents[3]


def launch(*launcher: Any) -> None:
    """Run a module, such as a launcher and its program; raise with its output if it fails."""
    path = os.pathsep.join(["src", ".", *filter(None, [os.environ.get("PYTHONPATH")])])
    settings = {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", *map(str, launcher)]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | settings, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]


def torchrun(*program: Any, processes: int = 2) -> None:
    """Run a program on several processes as torchrun does, forked: each would import torch and transformers for eight seconds."""
    with socket.create_server(("localhost", 0)) as free:
        port = free.getsockname()[1]
    shared = {"MASTER_ADDR": "localhost", "MASTER_PORT": port, "WORLD_SIZE": processes, "LOCAL_WORLD_SIZE": processes}
    running = []
    with tempfile.TemporaryDirectory() as folder:
        outputs = [Path(folder) / f"{rank}.txt" for rank in range(processes)]
        try:
            for rank, output in enumerate(outputs):
                own = shared | {"RANK": rank, "LOCAL_RANK": rank, "CUDA_VISIBLE_DEVICES": ""}
                with patch.dict(os.environ, {name: str(value) for name, value in own.items()}):
                    running.append(start(_run, [*map(str, program)], output=output, folder=ROOT))
            wait_until(lambda: any(one.exitcode for one in running) or all(one.exitcode == 0 for one in running))
        finally:
            for one in running:
                one.kill()
                one.join()
        printed = "".join(f"process {rank}:\n{output.read_text()[-6000:]}" for rank, output in enumerate(outputs))
        assert not any(one.exitcode for one in running), printed


def _run(program: list[str]) -> None:
    sys.argv = program
    runpy.run_path(program[0], run_name="__main__")
