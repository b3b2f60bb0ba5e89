"""Context parallelism in a Trainer, also times data parallelism: a step on four processes is that of one.

Ulysses is in test_deepspeed.py. Run by `torchrun`, this file is one of them.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

pytest.importorskip("accelerate")
pytest.importorskip("transformers")
from accelerate import ParallelismConfig
from accelerate.state import AcceleratorState
from tests.integrations.trainers import cases
from tests.integrations.trainers.cases import EXAMPLES, Case, Outcome
from tests.integrations.trainers.launch import torchrun
from torch import Tensor, nn
from torch.distributed.nn.functional import all_reduce
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from numerate.objective import CutSequence

CASES = [
    Case("llama", "ntil", "numeric", padded=False),
    Case("llama", "smmd", "tokens", padded=False),
    Case("llama", "number", "numeric", padded=False, fields="both"),
]
PARTS = {"loss", "loss/cross_entropy", "loss/numeric", "numeric/share", "numeric/mass"}
FSDP2 = {"fsdp_version": 2, "auto_wrap_policy": "TRANSFORMER_BASED_WRAP", "reshard_after_forward": True}


@contextmanager
def ring_attention(size: int) -> Iterator[None]:
    """Attention of parts of sequences, of whose keys and values each process gets those of the others; torch's needs a GPU."""
    members = [list(range(first, first + size)) for first in range(0, dist.get_world_size(), size)]
    group, _ = dist.new_subgroups_by_enumeration(members)
    cut = CutSequence(group, "zigzag")

    def whole(part: Tensor) -> Tensor:
        slots = [part if rank == cut.rank else torch.zeros_like(part) for rank in range(size)]
        return all_reduce(torch.cat(slots, 2), group=group)

    def attend(module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Any, scaling: float, **_: Any) -> tuple[Tensor, None]:
        positions = cut.positions(q.shape[2])
        k, v = whole(k), whole(v)
        hidden = positions[cut.rank, :, None] < positions.flatten()
        scores = (q @ k.mT * scaling).masked_fill(hidden, -torch.inf)
        return (scores.softmax(-1) @ v).transpose(1, 2).contiguous(), None

    before = ALL_ATTENTION_FUNCTIONS["sdpa"]
    ALL_ATTENTION_FUNCTIONS["sdpa"] = attend
    try:
        yield
    finally:
        ALL_ATTENTION_FUNCTIONS["sdpa"] = before


def on_four_processes() -> dict[Any, Any]:
    cases.allow_fsdp_on_cpu()
    found = {}
    for size in (2, 4):
        AcceleratorState._reset_state(True)
        shares = 4 // size  # processes with different rows
        config = ParallelismConfig(cp_size=size, dp_shard_size=shares)
        with ring_attention(size):
            for case in CASES:
                for k in (1, 2):
                    batches = {"per_device_train_batch_size": EXAMPLES // k // shares, "per_device_eval_batch_size": 4 // shares}
                    settings = {"parallelism_config": config, "fsdp": "full_shard", "fsdp_config": FSDP2, **batches}
                    found[str(case), size, k] = vars(cases.run(case, k, **settings))
    return found


@pytest.mark.launch
def test_context_parallelism(tmp_path: Path) -> None:
    torchrun(__file__, tmp_path / "found.pt", processes=4)
    found = {key: Outcome(**outcome) for key, outcome in torch.load(tmp_path / "found.pt").items()}
    assert len(found) == 4 * len(CASES)
    for (name, *key), outcome in found.items():
        case = Case.parse(name)
        assert cases.difference(outcome.grads, cases.reference(case)) < 1e-12, (name, key)
        alone = cases.run(case)
        for ours, expected in ((outcome.logs, alone.logs), (outcome.evaluation, alone.evaluation)):
            parts = {part: value for part, value in expected.items() if part.removeprefix("eval_") in PARTS}
            assert {part: ours.get(part) for part in parts} == pytest.approx(parts, rel=1e-6), (name, key)


def main(path: str) -> None:
    gc.freeze()
    dist.init_process_group("gloo")
    found = on_four_processes()
    if dist.get_rank() == 0:
        torch.save(found, path)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
