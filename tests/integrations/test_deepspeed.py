"""DeepSpeed in a Trainer on two processes: the weights and logs of a step are those of one process, or of autograd.

Run by `torchrun`, this file is one of the processes.
"""

from __future__ import annotations

import functools
import gc
import sys
import tempfile
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("accelerate")
pytest.importorskip("transformers")
from tests.integrations.trainers import cases
from tests.integrations.trainers.cases import Case
from tests.integrations.trainers.launch import torchrun
from torch import Tensor

from numerate.integrations.transformers import attach

pytestmark = [pytest.mark.launch, pytest.mark.skipif(not find_spec("deepspeed"), reason="needs deepspeed")]

RATE = 100.0  # so that the rounding of weights does not show
TOLERANCE = 2e-5  # float32: DeepSpeed refuses float64
# The router of mixtral adds a loss of its own.
ZERO = [
    Case("llama", "ntil", "numeric", dtype="float32"),
    Case("llama_tied", "smmd", "tokens", dtype="float32"),
    Case("llama", "ntil", "numeric", dtype="float32", fields="both"),
    Case("mixtral", "smmd", "numeric", dtype="float32"),
]
ULYSSES = [
    Case("llama", "ntil", "numeric", padded=False, dtype="float32"),
    Case("llama", "smmd", "tokens", padded=False, dtype="float32"),
    Case("llama", "number", "numeric", padded=False, dtype="float32", fields="weights"),
]
RUNS = {"zero 2": ZERO, "zero 3": ZERO, "ulysses 2": ULYSSES, "ulysses 3": ULYSSES}


def config(stage: int) -> dict[str, Any]:
    auto = ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    zero = {"stage": stage, "reduce_bucket_size": 1000, "stage3_param_persistence_threshold": 0}
    return {"zero_optimization": zero, "gradient_clipping": 0.0, **dict.fromkeys(auto, "auto")}


def weights(model: torch.nn.Module) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def with_positions(rows: list[dict[str, Any]]) -> dict[str, Tensor]:
    """Add what Ulysses needs to a batch."""
    batch = cases.collate(rows)
    return batch | {"position_ids": torch.arange(batch["input_ids"].shape[1]).expand(len(rows), -1).contiguous()}


def trained(case: Case, accumulation: int = 1, **settings: Any) -> tuple[dict[str, Tensor], dict[str, float]]:
    """Return how far a step moved the weights by its rate, which is the gradient, and the logs of an evaluation and the step."""
    with tempfile.TemporaryDirectory() as folder:
        rate = {"learning_rate": RATE, "lr_scheduler_type": "constant"}
        args = cases.arguments(folder, accumulation, eval_on_start=True, **rate, **settings)
        model = cases.build(case.model, torch.float32)
        before = weights(model)
        trainer = cases.trainer_for(model, case.rows, args, eval_dataset=case.rows[:-1])
        trainer.data_collator = with_positions
        attach(trainer, case.objective)
        trainer.train()
        gathered: Any = nullcontext()
        if settings.get("deepspeed", config(0))["zero_optimization"]["stage"] == 3:
            import deepspeed

            gathered = deepspeed.zero.GatheredParameters(list(model.parameters()))
        with gathered:
            moved = {name: (before[name] - weight) / RATE for name, weight in weights(model).items()}
    logs = {name: value for entry in trainer.state.log_history for name, value in entry.items()}
    return moved, {name: value for name, value in logs.items() if name.removeprefix("eval_").split("/")[0] in ("loss", "numeric")}


def on_two_processes(kind: str, stage: int) -> dict[Any, Any]:
    if kind == "zero":
        return {(str(case), k): trained(case, k, deepspeed=config(stage)) for case in ZERO for k in (1, 2)}
    from accelerate import ParallelismConfig
    from accelerate.utils import DeepSpeedSequenceParallelConfig
    from deepspeed.runtime.sequence_parallel import parallel_state_sp
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    parallel_state_sp.initialize_sequence_parallel = functools.cache(parallel_state_sp.initialize_sequence_parallel)
    found, own = {}, ALL_ATTENTION_FUNCTIONS["sdpa"]
    for case in ULYSSES:
        for k in (2, 4):  # each process loads a micro-batch of which both compute a part
            ALL_ATTENTION_FUNCTIONS["sdpa"] = own  # DeepSpeed replaces it
            handler = DeepSpeedSequenceParallelConfig(sp_seq_length_is_variable=True, sp_attn_implementation="sdpa")
            settings = {"parallelism_config": ParallelismConfig(sp_size=2, sp_handler=handler), "deepspeed": config(stage)}
            found[str(case), k] = trained(case, k, per_device_train_batch_size=8 // k, **settings)
    return found


@pytest.mark.parametrize("run", RUNS)
def test_deepspeed(run: str, tmp_path: Path) -> None:
    kind, stage = run.split()
    torchrun(__file__, tmp_path / "found.pt", kind, stage)
    found = torch.load(tmp_path / "found.pt")
    assert len(found) == 2 * len(RUNS[run])
    for (name, accumulation), (moved, logs) in found.items():
        case = Case.parse(name)
        assert cases.difference(moved, cases.reference(case)) < TOLERANCE, (name, accumulation)
        expected = trained(case)[1]
        if kind == "ulysses":
            del expected["numeric/overrun"]  # of whole sequences
        assert logs == pytest.approx(expected, rel=TOLERANCE), (name, accumulation)


def main(path: str, kind: str, stage: str) -> None:
    import deepspeed

    deepspeed.init_distributed("gloo")  # accelerate does so on GPUs
    gc.freeze()
    found = on_two_processes(kind, int(stage))
    if torch.distributed.get_rank() == 0:
        torch.save(found, path)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
