"""The launcher of the tests on several processes: a process that fails is reported, and the others do not wait for it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.integrations.trainers.launch import torchrun

PROGRAM = """
import torch.distributed as dist
dist.init_process_group("gloo")
assert dist.get_world_size() == 2
if dist.get_rank() == 1:
    raise ValueError("broken on one process")
dist.barrier()
"""


@pytest.mark.launch
def test_a_process_that_fails(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    with pytest.raises(AssertionError, match=r"process 1:\n(.|\n)*ValueError: broken on one process"):
        torchrun(tmp_path / "program.py")
