"""Tensor parallelism in a Trainer: a step of a model that transformers shards over two processes is that of one process.

Run by `torchrun`, this file is one of them.
"""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist

pytest.importorskip("accelerate")
pytest.importorskip("transformers")
from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import DistributedType
from tests.integrations.trainers import cases
from tests.integrations.trainers.cases import EXAMPLES, Case, Outcome
from tests.integrations.trainers.launch import torchrun
from transformers import LlamaForCausalLM

CASES = [
    Case("llama", "number", "numeric"),
    Case("llama", "smmd", "tokens"),
    Case("llama", "ntil", "numeric", fields="both"),
]


def as_on_gpus(begin: Any) -> Any:
    """Make accelerate train with tensor parallelism on CPUs, which it refuses."""

    def init(self: AcceleratorState, *args: Any, **kwargs: Any) -> None:
        begin(self, *args, **kwargs)
        self.distributed_type = PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU

    return init


@mock.patch.object(AcceleratorState, "__init__", as_on_gpus(AcceleratorState.__init__))
def on_two_processes(folder: Path) -> dict[Any, Any]:
    found = {}
    cases.build("llama").save_pretrained(folder)
    dist.barrier()
    for case in CASES:
        for k in (1, 2):
            AcceleratorState._reset_state(True)
            model = LlamaForCausalLM.from_pretrained(folder, tp_plan="auto", dtype=torch.float64).train()
            batches = {"per_device_train_batch_size": EXAMPLES // k, "per_device_eval_batch_size": EXAMPLES // 2}
            found[str(case), k] = vars(cases.run(case, k, model, **batches))
    return found


@pytest.mark.launch
def test_tensor_parallelism(tmp_path: Path) -> None:
    torchrun(__file__, tmp_path / "found.pt")
    found = {key: Outcome(**outcome) for key, outcome in torch.load(tmp_path / "found.pt").items()}
    assert len(found) == 2 * len(CASES)
    for (name, k), outcome in found.items():
        case = Case.parse(name)
        assert cases.difference(outcome.grads, cases.reference(case)) < 1e-12, (name, k)
        alone = cases.run(case)
        for ours, expected in ((outcome.logs, alone.logs), (outcome.evaluation, alone.evaluation)):
            parts = {part: value for part, value in expected.items() if "numeric" in part or part.endswith(("loss", "entropy"))}
            assert {part: ours.get(part) for part in parts} == pytest.approx(parts, rel=1e-6), (name, k)


def main(path: str) -> None:
    gc.freeze()
    dist.init_process_group("gloo")
    found = on_two_processes(Path(path).parent / "llama")
    if dist.get_rank() == 0:
        torch.save(found, path)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
