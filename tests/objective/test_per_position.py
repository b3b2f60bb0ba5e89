"""The objective per position: any weighing of positions has the gradient of the formula, and their sum is the objective."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from tests.objective.sharded import LABELS, VOCAB, OneOfThreads, Threads, options, plain_shards, tensors, thread_shard_of

from numerate import LOSSES, NumericObjective
from numerate.integrations.counts import count_step

LOGITS = tensors(torch.float64)["logits"]


@pytest.mark.parametrize("option", options())
@pytest.mark.parametrize("name", [*LOSSES, None])
def test_the_sum_is_the_objective(name: str | None, option: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On one device, and on shards."""
    of_loss, settings, call, _ = options()[option]
    objective = NumericObjective(None if name is None else LOSSES[name](VOCAB, **of_loss), weight=0.7, **settings)
    logits = LOGITS.clone().requires_grad_()
    out = objective(logits, LABELS, **call)
    (truth,) = torch.autograd.grad(out.loss, logits)
    losses = objective.per_position(logits, LABELS, **call)
    assert losses.shape == LABELS.shape
    assert torch.isclose(losses.sum() / out.num_items, out.loss, rtol=1e-12)
    (found,) = torch.autograd.grad(losses.sum() / out.num_items, logits)
    assert torch.allclose(found, truth, rtol=1e-9, atol=1e-14)

    monkeypatch.setattr("numerate.objective.placements.shard_of", thread_shard_of)
    group = Threads(2)

    def on_shard(rank: int) -> None:
        shards = plain_shards("uneven", rank, 2, OneOfThreads(group, rank))
        shard = shards.cut(LOGITS, 2).requires_grad_()
        values = objective.per_position(shard, LABELS, **call, **shards.arguments)
        assert torch.allclose(values, losses, rtol=1e-12, atol=1e-14)
        (grad,) = torch.autograd.grad(values.sum() / out.num_items, shard)
        assert torch.allclose(grad, shards.cut(truth, 2), rtol=1e-9, atol=1e-14)

    if option != "matched":  # its factor is that of the sum
        group.run(on_shard)


@pytest.mark.parametrize("outside", ["ignore", "penalize"])
@pytest.mark.parametrize("name", LOSSES)
def test_positions_may_have_any_factor(name: str, outside: str) -> None:
    """As a loss mask of the framework; positions of a number too, whose cost is at its first digit."""
    loss = LOSSES[name](VOCAB, outside=outside)
    objective = NumericObjective(loss, weight=0.7)
    factors = torch.rand(LABELS.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(2)).round(decimals=1)
    logits = LOGITS.clone().requires_grad_()
    items, units = objective.count(LABELS)
    ce = F.cross_entropy(logits.flatten(0, 1), LABELS.flatten(), reduction="none").view(LABELS.shape)
    formula = ce + 0.7 * (items.double() / units) * loss(logits, LABELS, reduction="none")
    losses = objective.per_position(logits, LABELS)
    assert torch.allclose(losses, formula, rtol=1e-10)
    truth, found = (torch.autograd.grad((values * factors).sum(), logits)[0] for values in (formula, losses))
    assert torch.allclose(found, truth, rtol=1e-8, atol=1e-12)
    assert not losses[LABELS == -100].any()


def test_shifted_labels_move_to_where_they_are_predicted() -> None:
    objective = NumericObjective(LOSSES["number"](VOCAB))
    raw = objective.per_position(LOGITS, LABELS, shift=True)
    aligned = objective.per_position(LOGITS[:, :-1], LABELS[:, 1:])
    assert torch.allclose(raw[:, :-1], aligned)
    assert not raw[:, -1].any()


def test_a_second_backward_and_no_gradient() -> None:
    objective, logits = NumericObjective(LOSSES["smmd"](VOCAB)), LOGITS.clone().requires_grad_()
    losses = objective.per_position(logits, LABELS)
    (first,) = torch.autograd.grad(losses.sum(), logits, retain_graph=True)
    first = first.clone()
    assert torch.equal(torch.autograd.grad(losses.sum(), logits)[0], first)
    with torch.no_grad():
        assert not objective.per_position(logits, LABELS).requires_grad
    nothing = objective.per_position(logits, torch.full_like(LABELS, -100))
    assert not nothing.any()
    assert not torch.autograd.grad(nothing.sum(), logits)[0].any()


@pytest.mark.parametrize("name", ["smmd", "number"])
def test_a_step_of_micro_batches(name: str) -> None:
    """A framework that divides the sum of a step by its label tokens computes the objective of the whole batch."""
    objective = NumericObjective(LOSSES[name](VOCAB))
    batches = [{"labels": row[None]} for row in LABELS]
    items, units = count_step(objective, batches)
    whole = objective(LOGITS, LABELS, shift=True)
    assert (items, units) == (whole.num_items, whole.num_units)
    counts = {"num_items": items, "num_units": units}
    sums = [objective.per_position(LOGITS[[i]], LABELS[[i]], shift=True, **counts).sum() for i in range(len(LABELS))]
    assert torch.isclose(sum(sums) / items, whole.loss, rtol=1e-12)


def test_what_cannot_be_counted() -> None:
    with pytest.raises(ValueError, match="batches is empty"):
        count_step(NumericObjective(None), [])
    with pytest.raises(TypeError, match="expected a NumericObjective"):
        count_step(LOSSES["smmd"](VOCAB), [{"labels": LABELS}])
