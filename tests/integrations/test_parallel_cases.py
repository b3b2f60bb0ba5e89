"""Ways to spread a model or its batches over processes, on two of them: loss and gradient are those of one, or it is refused.

The truth is cross-entropy and the reference of the numeric loss, by autograd. Run by `torchrun`, this file is one of the
processes. Elsewhere: DeepSpeed with ``attach`` in test_deepspeed.py, context and tensor parallelism in a Trainer in
test_split_sequences.py and test_tensor_parallel.py, torchtitan's head and chunks in test_torchtitan.py, every loss and kind of
shard in tests/objective.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F

pytest.importorskip("accelerate")
pytest.importorskip("transformers")
from tests.integrations.test_loop import (
    BATCH_SIZE,
    TEXTS,
    VOCAB,
    WEIGHT,
    build,
    collate,
    examples,
    loader_of,
    objective_of,
    whole,
)
from tests.integrations.trainers import cases
from tests.integrations.trainers.launch import torchrun
from tests.reference import REFERENCES
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.utils.data import DistributedSampler

from numerate.integrations.counts import count_step
from numerate.integrations.loop import Step, Steps
from numerate.integrations.transformers import compute_loss_func
from numerate.labels import IGNORE_INDEX, shift_left
from numerate.objective import CutSequence

ROWS = 8
LOSSES = ("smmd", "ntil")  # one of tokens, one of numbers
EXACT = 1e-12


def gradients(model: nn.Module) -> list[Tensor]:
    return [whole(parameter.grad) for parameter in model.parameters() if parameter.grad is not None]


def one_process(loss: str, batch: dict[str, Tensor] | None = None) -> list[Tensor]:
    """Return the loss of all rows, or of a batch with aligned labels, and its gradients, from the formulas."""
    model = build()
    if batch is None:
        batch = collate(examples(ROWS))
        batch["labels"] = shift_left(batch["labels"], IGNORE_INDEX)
    logits, labels = model(batch["input_ids"]), batch["labels"]
    value = F.cross_entropy(logits.flatten(0, 1), labels.flatten()) + WEIGHT * REFERENCES[loss](logits, labels, VOCAB).mean
    value.backward()
    return [value.detach(), *gradients(model)]


def difference(ours: list[Tensor], theirs: list[Tensor]) -> float:
    """Return the largest difference of two losses and gradients, by the largest entry of the second, on all processes."""
    far = max(float((mine - its).abs().max() / its.abs().max()) for mine, its in zip(ours, theirs, strict=True))
    return float(total(torch.tensor(far), dist.ReduceOp.MAX))


def total(value: Tensor, op: Any = dist.ReduceOp.SUM) -> Tensor:
    value = value.detach().clone()
    dist.all_reduce(value, op)
    return value


def refusal(call: Callable[[], object]) -> str:
    """Return why a call is refused; empty if it is not."""
    try:
        call()
    except (NotImplementedError, RuntimeError, TypeError, ValueError) as error:
        return str(error)
    return ""


def backward(model: nn.Module, out: Any) -> list[Tensor]:
    """Return the loss of an output, which all processes share, and its gradients."""
    out.loss.backward()
    return [out.loss.detach(), *gradients(model)]


# Data parallelism: FSDP2 that divides gradients by other numbers than processes, and a head that it shards alone.


def fsdp2(factors: tuple[float | None, float | None], kind: type[nn.Sequential] = nn.Sequential) -> nn.Sequential:
    from torch.distributed.fsdp import fully_shard

    model = kind(*build())
    for module, factor in zip((model[1], model), factors, strict=True):
        fully_shard(module)
        if factor is not None:
            module.set_gradient_divide_factor(factor)
    return model


def by_logits(step: Step, model: nn.Module, batch: dict[str, Tensor]) -> Any:
    return step.objective(model(batch["input_ids"]))


class Headless(nn.Sequential):
    """A model whose forward leaves the head to the loss."""

    def forward(self, given: Tensor) -> Any:
        return self[0](given)


def by_head_alone(step: Step, model: Any, batch: dict[str, Tensor], weight: Callable[[Any], Any] | None = None) -> Any:
    hidden = model(batch["input_ids"])
    if weight is not None:
        return step.fused(hidden, weight(model[1].weight), model[1].bias)
    model[1].unshard()
    return step.fused(hidden, model[1].weight, model[1].bias)


def trained(model: nn.Module, loss: str, forward: Callable[..., Any] = by_logits) -> list[Tensor]:
    """Return the loss of a step of ``Steps`` on all rows, and its gradients."""
    rows, value = examples(ROWS), torch.zeros((), dtype=torch.float64)
    loader = loader_of(rows, sampler=DistributedSampler(rows, shuffle=False))
    for step in Steps(loader, model, objective_of(loss, "numeric"), accumulate=ROWS):
        for batch in step:
            out = forward(step, model, batch)
            out.loss.backward()
            value += out.cross_entropy + WEIGHT * out.numeric
    return [total(value), *gradients(model)]


FACTORS = ((None, None), (1.0, 1.0), (3.0, 3.0), (2.0, None))


def fsdp2_with_a_divide_factor_in_steps() -> dict[str, Any]:
    exact = {(loss, f): difference(trained(fsdp2(f), loss), one_process(loss)) for loss in LOSSES for f in FACTORS}
    return {"exact": exact, "other factors": refusal(lambda: trained(fsdp2((1.0, None)), "smmd"))}


def fused_with_a_head_that_fsdp2_shards_alone() -> dict[str, Any]:
    model = lambda: fsdp2((None, None), Headless)  # noqa: E731
    exact = {loss: difference(trained(model(), loss, by_head_alone), one_process(loss)) for loss in LOSSES}
    sharded = lambda *given: by_head_alone(*given, weight=lambda weight: weight)  # noqa: E731
    gathered = lambda *given: by_head_alone(*given, weight=lambda weight: weight.full_tensor())  # noqa: E731
    refused = {"sharded": refusal(lambda: trained(model(), "smmd", sharded))}
    return {"exact": exact, **refused, "full_tensor": refusal(lambda: trained(model(), "smmd", gathered))}


# Tensor parallelism: each process has a part of the vocabulary, or of the positions.


def ddp() -> nn.Module:
    return nn.parallel.DistributedDataParallel(build())


def columns(**layout: Any) -> tuple[Any, Tensor]:
    """Return a model whose head is split over the vocabulary, and its logits of all rows."""
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    model = parallelize_module(build(), init_device_mesh("cpu", (2,)), {"1": ColwiseParallel(**layout)})
    return model, model(collate(examples(ROWS))["input_ids"])


def dtensor_logits_or_weight() -> dict[str, Any]:
    from torch.distributed.tensor import DTensor, Replicate, Shard
    from torch.distributed.tensor.parallel import loss_parallel

    mesh, batch, exact = init_device_mesh("cpu", (2,)), collate(examples(ROWS)), dict[Any, float]()
    for loss in LOSSES:
        objective, truth = objective_of(loss, "numeric"), one_process(loss)
        for name, layout in {
            "gathered": Replicate(),
            "full_tensor": Shard(-1),
            "DTensor": Shard(-1),
            "loss_parallel": Shard(-1),
        }.items():
            model, logits = columns(output_layouts=layout, use_local_output=name == "gathered")
            with loss_parallel() if name == "loss_parallel" else nullcontext():
                given: Any = logits.full_tensor() if name == "full_tensor" else logits
                exact[name, loss] = difference(backward(model, objective(given, batch["labels"], shift=True)), truth)
        for name in ("whole hidden states", "hidden states of a part of the sequences"):
            model, _ = columns()
            hidden = model[0](batch["input_ids"])
            if name != "whole hidden states":  # as sequence parallelism leaves them; one row fills up
                hidden = DTensor.from_local(hidden, mesh, [Replicate()]).redistribute(mesh, [Shard(1)])
            out = objective.fused(hidden, model[1].weight, batch["labels"], model[1].bias, shift=True)
            exact[name, loss] = difference(backward(model, out), truth)
    _, logits = columns(output_layouts=Shard(1), use_local_output=False)
    _, sharded = columns(output_layouts=Shard(-1), use_local_output=False)
    return {
        "exact": exact,
        "positions": refusal(lambda: objective_of("smmd", "numeric")(logits, batch["labels"], shift=True)),
        "in a step": refusal(lambda: in_a_step(sharded.detach(), batch)),
    }


def in_a_step(logits: Tensor, batch: dict[str, Tensor]) -> None:
    """Steps count over all processes, of which those of tensor parallelism share their batches."""
    for step in Steps([batch], ddp(), objective_of("smmd", "numeric")):
        for _ in step:
            step.objective(logits)


def a_local_shard_of_the_vocabulary() -> dict[str, Any]:
    from torch.distributed.tensor import Shard

    labels, exact, refused = collate(examples(ROWS))["labels"], dict[str, float](), dict[str, str]()
    for loss in LOSSES:
        objective = objective_of(loss, "numeric")
        model, logits = columns(output_layouts=Shard(-1))
        # All numeric tokens of these labels are on the first process.
        refused[loss] = refusal(lambda: objective(logits, labels.clamp_max(7), shift=True))  # noqa: B023
        out = objective(logits, labels, shift=True, group=dist.group.WORLD)
        exact[loss] = difference(backward(model, out), one_process(loss))
    return {"exact": exact, "refused": refused}


# Context parallelism: each process has a part of each row.


def aligned_batch() -> dict[str, Tensor]:
    """Return rows of 8 positions whose numbers are on both sides of the cuts."""
    ids = torch.tensor([[13, 1, 2, 12, 4, 5, 6, 7, 13], [12, 12, 1, 2, 3, 4, 12, 9, 12]])
    positions = torch.arange(8).expand(2, -1)
    return {"input_ids": ids[:, :-1].clone(), "labels": ids[:, 1:].clone(), "position_ids": positions.clone()}


def by_parts(loss: str, batch: dict[str, Tensor], cut: CutSequence) -> list[Tensor]:
    """Return the loss of parts of rows in a loop without ``Steps``, one row at a time, and its gradients."""
    model, objective, value = ddp(), objective_of(loss, "numeric"), torch.zeros((), dtype=torch.float64)
    rows = [{name: field[[i]] for name, field in batch.items()} for i in range(len(batch["labels"]))]
    num_items, num_units = count_step(objective, rows, shift=False, cut=cut)
    for row in rows:
        options: Any = {"num_items": num_items, "num_units": num_units, "cut": cut}
        out = objective(model(row["input_ids"]), row["labels"], **options)
        (out.loss * cut.count).backward()  # DDP averages
        value += out.loss.detach()
    return [total(value), *gradients(model)]


def context_parallel_in_steps() -> dict[str, Any]:
    from torch.distributed.tensor.experimental import context_parallel

    mesh = init_device_mesh("cpu", (2,))

    def cut(batch: dict[str, Tensor]) -> Any:
        return context_parallel(mesh, buffers=[batch["input_ids"], batch["labels"]], buffer_seq_dims=[1, 1])

    def inside(shift: bool) -> None:
        model, batch = ddp(), aligned_batch()
        del batch["position_ids"]
        for step in Steps([batch], model, objective_of("smmd", "numeric"), shift=shift):
            for given in step:
                with cut(given):
                    step.objective(model(given["input_ids"])).loss.backward()

    exact = {}
    for loss in LOSSES:
        batch = aligned_batch()
        with cut(batch):
            ours = by_parts(loss, batch, CutSequence(mesh, "zigzag"))
        exact[loss] = difference(ours, one_process(loss, aligned_batch()))
    return {"exact": exact, **{f"shift={shift}": refusal(lambda: inside(shift)) for shift in (False, True)}}  # noqa: B023


def rows_cut_before_the_loader() -> dict[str, Any]:
    def part(start: int) -> dict[str, Tensor]:
        return {name: value[:, start : start + 4] for name, value in aligned_batch().items()}

    def in_steps(loss: str, start: int) -> list[Tensor]:
        model, value = ddp(), torch.zeros((), dtype=torch.float64)
        for step in Steps([part(start)], model, objective_of(loss, "numeric"), shift=False):
            for given in step:
                out = step.objective(model(given["input_ids"]))
                out.loss.backward()
                value += out.cross_entropy + WEIGHT * out.numeric
        return [total(value), *gradients(model)]

    own = 4 * dist.get_rank()
    truths = {loss: one_process(loss, aligned_batch()) for loss in LOSSES}
    exact = {loss: difference(by_parts(loss, part(own), CutSequence(dist.group.WORLD)), truths[loss]) for loss in LOSSES}
    exact["smmd in Steps"] = difference(in_steps("smmd", own), truths["smmd"])
    # On both: a process that goes on would wait for the other.
    return {"exact": exact, "ntil in Steps": refusal(lambda: in_steps("ntil", 4))}


# Pipeline parallelism: each process has some layers; the last one computes the loss of each micro-batch.


def pipeline_1f1b() -> dict[str, Any]:
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    rank, batch, found = dist.get_rank(), collate(examples(ROWS)), dict[Any, float]()
    labels = shift_left(batch["labels"], IGNORE_INDEX)
    for loss in LOSSES:
        objective, truth = objective_of(loss, "numeric"), one_process(loss)[1:]
        items, units = objective.count(labels)
        for counts in ({"num_items": items, "num_units": units}, {}):
            model = build()

            def micro_batch_loss(logits: Tensor, targets: Tensor) -> Tensor:
                return objective(logits, targets, **counts).loss  # noqa: B023

            stage = PipelineStage(model[rank], rank, 2, torch.device("cpu"))
            schedule = Schedule1F1B(stage, n_microbatches=ROWS // BATCH_SIZE, loss_fn=micro_batch_loss, scale_grads=not counts)
            schedule.step(*([batch["input_ids"]] if rank == 0 else []), **({"target": labels} if rank else {}))
            found[loss, bool(counts)] = difference(gradients(model), truth[:1] if rank == 0 else truth[1:])
    return {"exact": {loss: found[loss, True] for loss in LOSSES}, "default": {loss: found[loss, False] for loss in LOSSES}}


# The Trainer's own hook


def compute_loss_func_with_numeric_normalisation() -> dict[str, Any]:
    def step(case: cases.Case, average: bool) -> dict[str, Tensor]:
        collect = cases.Collect()
        with tempfile.TemporaryDirectory() as folder:
            args = cases.arguments(folder, 2, average_tokens_across_devices=average)
            func = compute_loss_func(case.objective, shift=True)
            trainer = cases.trainer_for(cases.build("llama"), case.rows, args, compute_loss_func=func, callbacks=[collect])
            trainer.train()
        return collect.grads

    by_tokens = cases.Case("llama", "ntil", "tokens")
    exact = cases.difference(step(by_tokens, average=True), cases.reference(by_tokens))
    numeric = {average: refusal(lambda: step(cases.Case("llama", "ntil", "numeric"), average)) for average in (True, False)}  # noqa: B023
    return {"exact": {"tokens": exact}, "numeric": numeric}


CASES = (
    fsdp2_with_a_divide_factor_in_steps,
    fused_with_a_head_that_fsdp2_shards_alone,
    dtensor_logits_or_weight,
    a_local_shard_of_the_vocabulary,
    context_parallel_in_steps,
    rows_cut_before_the_loader,
    pipeline_1f1b,
    compute_loss_func_with_numeric_normalisation,
)


# The tests

pytestmark = pytest.mark.launch


@pytest.fixture(scope="module")
def on_two_processes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path = tmp_path_factory.mktemp("cases") / "found.pt"
    torchrun(__file__, path)
    found: dict[str, Any] = torch.load(path)
    return found


@pytest.fixture
def found(on_two_processes: dict[str, Any], request: pytest.FixtureRequest) -> dict[str, Any]:
    """What the function of the test's name found; what is meant to be exact is."""
    result: dict[str, Any] = on_two_processes[request.node.name.removeprefix("test_")]
    errors = result.pop("exact")
    assert errors
    assert {name: error for name, error in errors.items() if not error < EXACT} == {}
    return result


def test_fsdp2_with_a_divide_factor_in_steps(found: dict[str, Any]) -> None:
    assert "divide gradients by 1, 2: expected one divisor" in found["other factors"]


def test_fused_with_a_head_that_fsdp2_shards_alone(found: dict[str, Any]) -> None:
    remedy = "call lm_head.unshard() before reading lm_head.weight"
    assert f"expected a plain tensor [V, H]; with FSDP2, {remedy}" in found["sharded"]
    assert remedy in found["full_tensor"]


def test_dtensor_logits_or_weight(found: dict[str, Any]) -> None:
    assert "expected Shard(2), the vocabulary dimension" in found["positions"]
    assert "logits is a DTensor" in found["in a step"]
    assert "use logits.full_tensor()" in found["in a step"]


def test_a_local_shard_of_the_vocabulary(found: dict[str, Any]) -> None:
    for message in found["refused"].values():
        assert f"logits has V={len(TEXTS) // 2 + 1}, but the NumericVocab needs" in message
        assert "ColwiseParallel(output_layouts=Replicate())" in message


def test_context_parallel_in_steps(found: dict[str, Any]) -> None:
    for shift in (False, True):
        assert "changed in place after their step was counted, and now have shape (2, 4)" in found[f"shift={shift}"]
        assert "use objective(logits, labels, cut=CutSequence(group, 'zigzag'))" in found[f"shift={shift}"]


def test_rows_cut_before_the_loader(found: dict[str, Any]) -> None:
    assert "a row begins with a number at position 4 of its document" in found["ntil in Steps"]
    assert "use objective(logits, labels, cut=CutSequence(group))" in found["ntil in Steps"]


def test_pipeline_1f1b(found: dict[str, Any]) -> None:
    """Without counts it is far off, of which the page on many GPUs warns."""
    assert len(found["default"]) == len(LOSSES)
    assert all(error > 0.01 for error in found["default"].values())


def test_compute_loss_func_with_numeric_normalisation(found: dict[str, Any]) -> None:
    """Also if the Trainer passes the tokens of one process, as if they were the step's."""
    for message in found["numeric"].values():
        assert "2 processes share a step" in message
        assert "normalize='tokens'" in message


def main(path: str) -> None:
    dist.init_process_group("gloo")
    found = {case.__name__: case() for case in CASES}
    if dist.get_rank() == 0:
        torch.save(found, path)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
