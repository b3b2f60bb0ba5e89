"""Run a function in a process of its own that need not import torch, transformers and the lab first: that takes eight seconds.

The processes are forked from a server (:mod:`multiprocessing.forkserver`), one for all tests of this process.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from multiprocessing import forkserver, get_context
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any
from unittest.mock import patch

IMPORTED = ["numerate.cli", "numerate.lab.comparison.compare", "transformers.models.llama.modeling_llama", "transformers.trainer"]


def start(function: Callable[..., object], *arguments: Any, output: Path, folder: Path | None = None) -> ForkServerProcess:
    """Start ``function(*arguments)`` in ``folder``; what it prints goes to ``output``."""
    forkserver.set_forkserver_preload(IMPORTED)
    with patch.dict(os.environ, HF_HUB_OFFLINE="1"):  # it is read at import
        forkserver.ensure_running()
    process = get_context("forkserver").Process(target=_run, args=(function, arguments, dict(os.environ), output, folder))
    process.start()
    return process


def finish(process: ForkServerProcess) -> int:
    """Return the exit code; the limit is for hangs alone."""
    process.join(600)
    if process.exitcode is None:
        process.kill()
        process.join()
        raise TimeoutError(f"process {process.pid} hangs")
    return process.exitcode


def wait_until(condition: Callable[[], object], process: ForkServerProcess | None = None) -> None:
    """Poll until a condition holds, while the process lives; the limit is for hangs alone."""
    for _ in range(60_000):
        if condition():
            return
        assert process is None or process.is_alive()
        time.sleep(0.01)
    raise TimeoutError("hangs")


def children_of(pid: int) -> list[int]:
    """Return the processes that a process started."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def alive(pid: int) -> bool:
    """Return whether a process runs; one that has ended and waits for its parent does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def _run(
    function: Callable[..., object], arguments: tuple[Any, ...], environment: dict[str, str], output: Path, folder: Path | None
) -> None:
    os.environ.clear()
    os.environ.update(environment)
    if folder is not None:
        os.chdir(folder)
    with output.open("w", encoding="utf-8") as file:
        for stream in (sys.stdout, sys.stderr):
            os.dup2(file.fileno(), stream.fileno())
    function(*arguments)
