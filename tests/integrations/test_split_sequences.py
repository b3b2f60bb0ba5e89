"""Context parallelism in a Trainer, also times data parallelism: a step on four processes is that of one.

Ulysses is in test_deepspeed.py. Run by `torchrun`, this file is one of them.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from importlib.util import find_spec
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
from tests.integrations.trainers.soft import with_fields
from torch import Tensor, nn
from torch.distributed.nn.functional import all_reduce
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from numerate.objective import CutSequence

CASES = [
    Case("llama", "ntil", "numeric", padded=False),
    Case("llama", "smmd", "tokens", padded=False),
    Case("llama", "number", "numeric", padded=False, fields="both"),
]
SFT_CASES = [("number", ""), ("ntil", "both"), ("gaussian_ce", "")]
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


def sft_step(
    loss: str, fields: str, folder: Path, attention: Any = nullcontext, **settings: Any
) -> tuple[dict[str, Tensor], dict[str, float]]:
    """Return the gradients and logs of a step of TRL's SFTTrainer, whose evaluations are not cut."""
    from datasets import Dataset
    from tests.integrations.test_trl import build, trainer

    rows = with_fields(cases.dataset("llama", padded=False), fields)
    data = Dataset.from_list([{name: value.tolist() for name, value in row.items()} for row in rows])
    made, collect = trainer(folder, build(), loss, accumulation=2, data=data, **settings)
    with attention():
        made.train()
    logs = next(logs for logs in made.state.log_history if "loss" in logs)
    return collect.grads, {**logs, **made.evaluate(data)}


def sft_on_four_processes(folder: Path) -> dict[Any, Any]:
    found = {}
    settings: dict[str, Any] = {"fsdp": "full_shard", "fsdp_config": FSDP2, "per_device_train_batch_size": EXAMPLES // 4}
    settings["per_device_eval_batch_size"] = EXAMPLES // 2
    for case in SFT_CASES:
        AcceleratorState._reset_state(True)
        config = ParallelismConfig(cp_size=2, dp_shard_size=2)
        found[case] = sft_step(*case, folder, partial(ring_attention, 2), parallelism_config=config, **settings)
    return found


@pytest.mark.launch
def test_context_parallelism(tmp_path: Path) -> None:
    torchrun(__file__, tmp_path / "found.pt", processes=4)
    outcomes, of_sft = torch.load(tmp_path / "found.pt")
    for case, (grads, logs) in of_sft.items():
        expected_grads, expected = sft_step(*case, tmp_path)
        assert cases.difference(grads, expected_grads) < 1e-5, case
        parts = {part: value for part, value in expected.items() if part.removeprefix("eval_") in PARTS}
        # TRL's eval_loss is a mean over processes, whatever their label tokens.
        assert {part: logs.get(part) for part in parts} == pytest.approx(parts, rel=5e-5), case
    found = {key: Outcome(**outcome) for key, outcome in outcomes.items()}
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
    cases.allow_fsdp_on_cpu()
    of_sft = sft_on_four_processes(Path(path).parent) if find_spec("trl") else {}
    found = on_four_processes(), of_sft
    if dist.get_rank() == 0:
        torch.save(found, path)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
