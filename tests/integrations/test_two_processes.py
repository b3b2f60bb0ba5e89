"""One launch of two processes for all integrations: each step equals that of one process.

Run by `torchrun`, this file is one of the two processes; the first writes the results. A module's part is its
`on_two_processes`, which trains, and `check_two_processes`, which compares the results with one process.
"""

from __future__ import annotations

import gc
import sys
import warnings
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest
import torch
import torch.distributed as dist
from tests.integrations.trainers.launch import torchrun

NEEDS = {"test_distributed": "transformers", "test_loop": "lightning"}
NEEDS |= {"test_lightning": "lightning", "test_trl": "trl", "test_attach": "trl", "test_attach_loops": "trl"}


def modules() -> dict[str, ModuleType]:
    present = [name for name, package in NEEDS.items() if find_spec(package) and find_spec("accelerate")]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {name: import_module(f"tests.integrations.{name}") for name in present}


@pytest.mark.launch
def test_two_processes(tmp_path: Path) -> None:
    parts = modules()
    if not parts:
        pytest.skip("needs accelerate")
    torchrun(__file__, tmp_path / "results.pt")
    results = torch.load(tmp_path / "results.pt")
    assert results.keys() == parts.keys()
    for name, part in parts.items():
        part.check_two_processes(results[name])


def main(path: str) -> None:
    dist.init_process_group("gloo")
    parts = modules()
    gc.freeze()  # a training begins with a garbage collection, which takes longer than the training itself
    results = {name: part.on_two_processes() for name, part in parts.items()}
    if dist.get_rank() == 0:
        torch.save(results, path)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
