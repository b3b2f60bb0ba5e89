"""DeepSpeed in a Trainer on two processes: the weights and logs of a step are those of one process, or of autograd.

Run by `torchrun`, this file is one of the processes.
"""

from __future__ import annotations

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
CASES = [
    Case("llama", "ntil", "numeric", dtype="float32"),
    Case("llama_tied", "smmd", "tokens", dtype="float32"),
    Case("llama", "ntil", "numeric", dtype="float32", fields="both"),
    Case("mixtral", "smmd", "numeric", dtype="float32"),
]


def weights(model: torch.nn.Module) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def trained(case: Case, accumulation: int, stage: int | None) -> tuple[dict[str, Tensor], dict[str, float]]:
    """Return how far a step moved the weights by its rate, which is the gradient, and its logs."""
    zero = {"stage": stage, "reduce_bucket_size": 1000, "stage3_param_persistence_threshold": 0}
    config = {"zero_optimization": zero, "gradient_clipping": 0.0, "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto"}
    with tempfile.TemporaryDirectory() as folder:
        settings: dict[str, Any] = {} if stage is None else {"deepspeed": config}
        arguments = {"learning_rate": RATE, "lr_scheduler_type": "constant"}
        args = cases.arguments(folder, accumulation, **arguments, **settings)
        model = cases.build(case.model, torch.float32)
        before = weights(model)
        trainer = cases.trainer_for(model, case.rows, args)
        attach(trainer, case.objective)
        trainer.train()
        gathered: Any = nullcontext()
        if stage == 3:
            import deepspeed

            gathered = deepspeed.zero.GatheredParameters(list(model.parameters()))
        with gathered:
            moved = {name: (before[name] - weight) / RATE for name, weight in weights(model).items()}
    logs = next(logs for logs in trainer.state.log_history if "loss" in logs)
    return moved, {name: logs[name] for name in logs if name.startswith(("loss", "numeric"))}


@pytest.mark.parametrize("stage", [2, 3])
def test_zero(stage: int, tmp_path: Path) -> None:
    torchrun(__file__, tmp_path / "found.pt", stage)
    found = torch.load(tmp_path / "found.pt")
    assert len(found) == 2 * len(CASES)
    for (name, accumulation), (moved, logs) in found.items():
        case = Case.parse(name)
        assert cases.difference(moved, cases.reference(case)) < TOLERANCE, (name, accumulation)
        assert logs == pytest.approx(trained(case, 1, None)[1], rel=TOLERANCE), (name, accumulation)


def main(path: str, stage: str) -> None:
    gc.freeze()
    found = {(str(case), k): trained(case, k, int(stage)) for case in CASES for k in (1, 2)}
    if torch.distributed.get_rank() == 0:
        torch.save(found, path)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
