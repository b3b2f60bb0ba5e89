"""Ways to spread a model or its batches over processes, on two of them: the gradient is that of one process, or it is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from tests.integrations.test_loop import BATCH_SIZE, TEXTS, build, collate, examples, loader_of, objective_of, whole
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.utils.data import DistributedSampler

from numerate.integrations.loop import Step, Steps
from numerate.labels import IGNORE_INDEX, shift_left

ROWS = 8
LOSSES = ("smmd", "ntil")  # one of tokens, one of numbers


def gradients(model: nn.Module) -> list[Tensor]:
    return [whole(parameter.grad) for parameter in model.parameters() if parameter.grad is not None]


def one_process(loss: str) -> list[Tensor]:
    """Return the gradients of all rows as one batch."""
    model, batch = build(), collate(examples(ROWS))
    objective_of(loss, "numeric")(model(batch["input_ids"]), batch["labels"], shift=True).loss.backward()
    return gradients(model)


def difference(ours: list[Tensor], theirs: list[Tensor]) -> float:
    """Return the largest difference of two gradients, by the largest entry of the second."""
    return max(float((mine - its).abs().max() / its.abs().max()) for mine, its in zip(ours, theirs, strict=True))


def refusal(call: Callable[[], object]) -> str:
    """Return why a call is refused; empty if it is not."""
    try:
        call()
    except (NotImplementedError, RuntimeError, TypeError, ValueError) as error:
        return str(error)
    return ""


# Data parallelism: FSDP2 that divides gradients by other numbers than processes, and a head that it shards alone.


def fsdp2(factors: tuple[float | None, float | None], kind: type[nn.Sequential] = nn.Sequential) -> nn.Sequential:
    from torch.distributed.fsdp import fully_shard

    model = kind(*build())
    for module, factor in zip((model[1], model), factors, strict=True):
        fully_shard(module)
        if factor is not None:
            module.set_gradient_divide_factor(factor)
    return model


def by_logits(step: Step, model: nn.Sequential, batch: dict[str, Tensor]) -> Any:
    return step.objective(model(batch["input_ids"]))


class Headless(nn.Sequential):
    """A model whose forward leaves the head to the loss."""

    def forward(self, given: Tensor) -> Any:
        return self[0](given)


def by_head_alone(step: Step, model: nn.Sequential, batch: dict[str, Tensor], *, unshard: bool = True) -> Any:
    hidden = model(batch["input_ids"])
    if unshard:
        model[1].unshard()  # type: ignore[operator]
    return step.fused(hidden, model[1].weight, model[1].bias)


def trained(model: nn.Sequential, loss: str, forward: Callable[..., Any] = by_logits) -> list[Tensor]:
    rows = examples(ROWS)
    loader = loader_of(rows, sampler=DistributedSampler(rows, shuffle=False))
    for step in Steps(loader, model, objective_of(loss, "numeric"), accumulate=ROWS):
        for batch in step:
            forward(step, model, batch).loss.backward()
    return gradients(model)


def of_fsdp2() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for loss in LOSSES:
        truth = one_process(loss)
        for factors in ((None, None), (1.0, 1.0), (3.0, 3.0), (2.0, None)):
            found[f"fsdp2 {factors} {loss}"] = difference(trained(fsdp2(factors), loss), truth)
        found[f"fused head {loss}"] = difference(trained(fsdp2((None, None), Headless), loss, by_head_alone), truth)
    found["other factors"] = refusal(lambda: trained(fsdp2((1.0, None)), "smmd"))
    sharded = lambda *given: by_head_alone(*given, unshard=False)  # noqa: E731
    found["sharded head"] = refusal(lambda: trained(fsdp2((None, None), Headless), "smmd", sharded))
    return found


# Tensor parallelism: each process has a part of the vocabulary.


def of_tensor_parallelism() -> dict[str, Any]:
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    mesh, batch = init_device_mesh("cpu", (2,)), collate(examples(ROWS))
    found: dict[str, Any] = {}

    def logits_of(**layout: Any) -> tuple[nn.Module, Tensor]:
        model = parallelize_module(build(), mesh, {"1": ColwiseParallel(**layout)})
        return model, model(batch["input_ids"])

    for loss in LOSSES:
        objective, truth = objective_of(loss, "numeric"), one_process(loss)
        model, logits = logits_of(output_layouts=Replicate())
        objective(logits, batch["labels"], shift=True).loss.backward()
        found[f"gathered logits {loss}"] = difference(gradients(model), truth)
        model, logits = logits_of(output_layouts=Shard(-1), use_local_output=False)
        objective(logits, batch["labels"], shift=True).loss.backward()
        found[f"DTensor {loss}"] = difference(gradients(model), truth)
        found[f"in a step {loss}"] = refusal(lambda: in_a_step(loss, logits.detach(), batch))  # noqa: B023
        model, logits = logits_of(output_layouts=Shard(-1), use_local_output=False)
        objective(logits.full_tensor(), batch["labels"], shift=True).loss.backward()
        found[f"full_tensor {loss}"] = difference(gradients(model), truth)
        model, logits = logits_of(output_layouts=Shard(-1))
        found[f"shard {loss}"] = refusal(lambda: objective(logits, batch["labels"].clamp_max(7), shift=True))  # noqa: B023
    return found


def in_a_step(loss: str, logits: Tensor, batch: dict[str, Tensor]) -> None:
    """Steps count over all processes, of which those of tensor parallelism share their batches."""
    for step in Steps([batch], ddp(), objective_of(loss, "numeric")):
        for _ in step:
            step.objective(logits)


# Context parallelism: each process has a part of each row.


def ddp() -> nn.Module:
    return nn.parallel.DistributedDataParallel(build())


def aligned_batch() -> dict[str, Tensor]:
    """Return rows of 8 positions whose first digits are on both sides of the cut in the middle."""
    ids = torch.tensor([[13, 1, 2, 12, 4, 5, 6, 7, 13], [12, 12, 1, 2, 3, 4, 12, 9, 12]])
    positions = torch.arange(8).expand(2, -1)
    return {"input_ids": ids[:, :-1].clone(), "labels": ids[:, 1:].clone(), "position_ids": positions.clone()}


def of_context_parallelism() -> dict[str, Any]:
    from torch.distributed.tensor.experimental import context_parallel

    mesh, found = init_device_mesh("cpu", (2,)), dict[str, Any]()

    def inside(shift: bool) -> None:
        model, batch = ddp(), aligned_batch()
        del batch["position_ids"]
        for step in Steps([batch], model, objective_of("smmd", "numeric"), shift=shift):
            for given in step:
                buffers = [given["input_ids"], given["labels"]]
                with context_parallel(mesh, buffers=buffers, buffer_seq_dims=[1, 1]):
                    step.objective(model(given["input_ids"])).loss.backward()

    def cut(loss: str, start: int) -> list[Tensor]:
        model = ddp()
        batch = {name: value[:, start : start + 4] for name, value in aligned_batch().items()}
        for step in Steps([batch], model, objective_of(loss, "numeric"), shift=False):
            for given in step:
                step.objective(model(given["input_ids"])).loss.backward()
        return gradients(model)

    for shift in (False, True):
        found[f"context_parallel {shift}"] = refusal(lambda: inside(shift))  # noqa: B023
    model, batch = build(), aligned_batch()
    objective_of("smmd", "numeric")(model(batch["input_ids"]), batch["labels"]).loss.backward()
    found["cut rows smmd"] = difference(cut("smmd", 4 * dist.get_rank()), gradients(model))
    found["cut numbers"] = refusal(lambda: cut("ntil", 4))  # on both: a process that goes on would wait for the other
    return found


# Pipeline parallelism: each process has some layers; the last one computes the loss of each micro-batch.


def of_pipelines() -> dict[str, Any]:
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    rank, batch, found = dist.get_rank(), collate(examples(ROWS)), dict[str, Any]()
    labels = shift_left(batch["labels"], IGNORE_INDEX)
    for loss in LOSSES:
        objective, truth = objective_of(loss, "numeric"), one_process(loss)
        items, units = objective.count(labels)
        for counts in ({"num_items": items, "num_units": units}, {}):
            model = build()

            def micro_batch_loss(logits: Tensor, targets: Tensor) -> Tensor:
                return objective(logits, targets, **counts).loss  # noqa: B023

            stage = PipelineStage(model[rank], rank, 2, torch.device("cpu"))
            schedule = Schedule1F1B(stage, n_microbatches=ROWS // BATCH_SIZE, loss_fn=micro_batch_loss, scale_grads=not counts)
            schedule.step(*([batch["input_ids"]] if rank == 0 else []), **({"target": labels} if rank else {}))
            own = truth[:1] if rank == 0 else truth[1:]
            far = torch.tensor(difference(gradients(model), own))
            dist.all_reduce(far, dist.ReduceOp.MAX)
            found[f"pipeline {'counted' if counts else 'default'} {loss}"] = float(far)
    return found


PARTS = (of_fsdp2, of_tensor_parallelism, of_context_parallelism, of_pipelines)
REFUSED = {
    "other factors": "divide gradients by 1, 2: expected one divisor",
    "sharded head": "expected a plain tensor [V, H]; with FSDP2, call lm_head.unshard() before reading lm_head.weight",
    "in a step smmd": "logits is a DTensor",
    "in a step ntil": "use logits.full_tensor()",
    "shard smmd": f"logits has V={len(TEXTS) // 2 + 1}, but the NumericVocab needs",
    "shard ntil": "ColwiseParallel(output_layouts=Replicate())",
    "context_parallel False": "changed in place after their step was counted, and now have shape (2, 4)",
    "context_parallel True": "logits has shape (2, 4, 16) and labels (2, 8)",
    "cut numbers": "a row begins with a number at position 4 of its document",
}


def on_two_processes() -> dict[str, Any]:
    return {name: value for part in PARTS for name, value in part().items()}


def check_two_processes(found: dict[str, Any]) -> None:
    for name, message in REFUSED.items():
        assert message in found.pop(name), name
    mistaken = {name for name in found if name.startswith("pipeline default")}
    assert len(mistaken) == len(LOSSES)
    assert all(found.pop(name) > 0.01 for name in mistaken)  # what the page on many GPUs warns of
    assert len(found) == 19
    assert {name: error for name, error in found.items() if not error < 1e-12} == {}
