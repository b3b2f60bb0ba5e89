"""Soft targets and token weights: from logits, fused and compiled, equal to the plain formula in float64."""

from __future__ import annotations

import gc
import math
from itertools import product
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import numerate as nm
from numerate.targets.soft_targets import SOFT_FIELDS, SoftTargets

V, H, B, T = 41, 16, 3, 24
VOCAB = nm.NumericVocab.from_texts({**{str(d): d for d in range(10)}, ".": 10, "-": 11}, vocab_size=V)
LOSSES = [None, "smmd", "number"]  # none, of tokens, of numbers: a loss does not see soft targets
DEVICES = [pytest.param("cpu"), pytest.param("cuda", marks=pytest.mark.gpu)]


def batch(seed: int = 0, dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    """Aligned labels with ignored ones, and soft targets at numeric and other positions, in any order and with padding."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 14, (B, T), generator=generator)
    labels[torch.rand((B, T), generator=generator) < 0.2] = -100
    entries: list[list[tuple[int, int, float]]] = []
    for row in labels.tolist():
        own = []
        for position in torch.randperm(T, generator=generator)[: T // 2].tolist():
            others = [token for token in torch.randperm(16, generator=generator)[:4].tolist() if token != row[position]]
            tokens = [max(row[position], 0), *others]
            share = torch.rand(len(tokens), generator=generator, dtype=torch.float64)
            own += [(position, token, p) for token, p in zip(tokens, (share / share.sum()).tolist(), strict=True)]
        entries.append(own)
    size = max(map(len, entries)) + 2
    padded = [[*own, *[(-1, 0, 0.0)] * (size - len(own))] for own in entries]
    positions, tokens = (torch.tensor([[entry[i] for entry in own] for own in padded]) for i in range(2))
    shares = torch.tensor([[entry[2] for entry in own] for own in padded], dtype=torch.float64)
    return {
        "labels": labels,
        "hidden": torch.randn((B, T, H), generator=generator, dtype=torch.float64).to(dtype),
        "weight": (torch.randn((V, H), generator=generator, dtype=torch.float64) / 2).to(dtype),
        "bias": torch.randn(V, generator=generator, dtype=torch.float64).to(dtype),
        "token_weights": torch.rand((B, T), generator=generator),
        "soft": SoftTargets(positions, tokens, shares),  # type: ignore[dict-item]
    }


def dense(soft: SoftTargets, labels: Tensor) -> Tensor:
    """The target of every position, ``[B, T, V]``."""
    q = F.one_hot(labels.clamp_min(0), V).double()
    for b in range(labels.shape[0]):
        for position in {*soft.positions[b].tolist()} - {-1}:
            q[b, position] = 0
        for position, token, p in zip(soft.positions[b].tolist(), soft.token_ids[b].tolist(), soft.probabilities[b], strict=True):
            if position >= 0:
                q[b, position, token] += float(p)
    return q


def plain(objective: nm.NumericObjective, logits: Tensor, labels: Tensor, soft: SoftTargets, weights: Tensor | None) -> Tensor:
    """The objective as its formula."""
    eps = objective.label_smoothing
    q = (1 - eps) * dense(soft, labels) + eps / V
    counts = (labels != -100).double() * (1 if weights is None else weights.double())
    ce = (-(q * logits.log_softmax(-1)).sum(-1) * counts).sum() / counts.sum()
    if objective.numeric_loss.name == "none":
        return ce
    numeric: Tensor = objective.numeric_loss(logits, labels)
    return ce + objective.weight * numeric


def objective_of(loss: str | None, **settings: Any) -> nm.NumericObjective:
    return nm.NumericObjective(None if loss is None else nm.LOSSES[loss](VOCAB), **settings)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("loss", LOSSES)
def test_from_logits(loss: str | None, smoothing: float, weighted: bool) -> None:
    data = batch()
    weights = data["token_weights"] if weighted else None
    objective = objective_of(loss, label_smoothing=smoothing)
    logits = (data["hidden"] @ data["weight"].T).requires_grad_()
    expected = plain(objective, logits, data["labels"], data["soft"], weights)  # type: ignore[arg-type]
    (grad,) = torch.autograd.grad(expected, logits)
    out = objective(logits, data["labels"], soft=data["soft"], token_weights=weights)
    (found,) = torch.autograd.grad(out.loss, logits)
    torch.testing.assert_close(out.loss, expected, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(found, grad, rtol=1e-9, atol=1e-12)


HEADS = {"plain": {}, "bias": {"bias": True}, "cap": {"softcap": 5.0, "logit_scale": 0.7}}


@pytest.mark.parametrize(("smoothing", "chunked"), [(0.0, False), (0.1, True)])
@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("loss", LOSSES)
def test_fused_equals_logits(loss: str | None, smoothing: float, head: str, chunked: bool) -> None:
    data = batch(1)
    settings: dict[str, Any] = dict(HEADS[head])
    objective = objective_of(loss, label_smoothing=smoothing)
    hidden, weight = data["hidden"].requires_grad_(), data["weight"].requires_grad_()
    bias = data["bias"].requires_grad_() if settings.pop("bias", False) else None
    inputs = [hidden, weight, *([] if bias is None else [bias])]
    given_ = {"soft": data["soft"], "token_weights": data["token_weights"]}
    logits = hidden @ weight.T if bias is None else hidden @ weight.T + bias
    if settings:
        logits = 5.0 * torch.tanh(0.7 * logits / 5.0)
    expected = objective(logits, data["labels"], **given_)
    grads = torch.autograd.grad(expected.loss, inputs)
    rows = 20 if chunked else B * T
    out = objective.fused(
        hidden, weight, data["labels"], bias, **given_, **settings, impl="torch", max_logits_mib=rows * V * 8 / 2**20
    )
    torch.testing.assert_close(out.loss, expected.loss, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(out.num_items.double(), expected.num_items.double())
    for found, grad in zip(torch.autograd.grad(out.loss, inputs), grads, strict=True):
        torch.testing.assert_close(found, grad, rtol=1e-8, atol=1e-11)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("loss", LOSSES)
def test_every_dtype(loss: str | None, dtype: torch.dtype, device: str) -> None:
    """Value and gradients of logits and fused lie within the rounding of the dtype of those in float64."""
    data, objective = batch(2), objective_of(loss).to(device)
    hidden, weight = (data[name].to(device, dtype).requires_grad_() for name in ("hidden", "weight"))
    exact = [tensor.detach().double().requires_grad_() for tensor in (hidden, weight)]
    labels, soft, weights = data["labels"].to(device), data["soft"], data["token_weights"].to(device)
    reference = objective_of(loss).to(device)(exact[0] @ exact[1].T, labels, soft=soft, token_weights=weights)
    grads = torch.autograd.grad(reference.loss, exact)
    logits = objective(hidden @ weight.T, labels, soft=soft, token_weights=weights)
    fused = objective.fused(hidden, weight, labels, soft=soft, token_weights=weights)
    tolerance = {torch.float32: 1e-5, torch.bfloat16: 0.04, torch.float16: 0.01}[dtype]
    for out in (logits, fused):
        torch.testing.assert_close(out.loss.double(), reference.loss, rtol=tolerance, atol=tolerance)
        for found, grad in zip(torch.autograd.grad(out.loss, (hidden, weight)), grads, strict=True):
            assert float((found.double() - grad).norm() / grad.norm()) < tolerance


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("loss", LOSSES)
def test_targets_at_the_label_change_no_bit(loss: str | None, device: str) -> None:
    data, objective = batch(3, torch.float32), objective_of(loss).to(device)
    labels = data["labels"].to(device)
    valid = [[t for t, label in enumerate(row) if label >= 0][:5] for row in data["labels"].tolist()]
    positions = torch.tensor(valid)
    soft = SoftTargets(positions, data["labels"].gather(1, positions), torch.ones(positions.shape))
    hidden, weight = (data[name].to(device).requires_grad_() for name in ("hidden", "weight"))
    results = []
    for given_ in ({}, {"soft": soft}, {"soft": soft, "token_weights": torch.ones((B, T), device=device)}):
        for out in (objective(hidden @ weight.T, labels, **given_), objective.fused(hidden, weight, labels, **given_)):
            results.append([out.loss, *torch.autograd.grad(out.loss, (hidden, weight))])
    for others in (results[2:4], results[4:6]):
        for first, second in zip(results[:2], others, strict=True):
            assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_shifted() -> None:
    data, objective = batch(4), objective_of("smmd")
    logits, soft = data["hidden"] @ data["weight"].T, data["soft"]
    raw = F.pad(data["labels"], (1, 0), value=5)[:, :-1]
    moved = SoftTargets(torch.where(soft.positions >= 0, soft.positions + 1, -1), soft.token_ids, soft.probabilities)  # type: ignore[attr-defined]
    kept = moved.positions < T
    moved = SoftTargets(torch.where(kept, moved.positions, -1), moved.token_ids, moved.probabilities)
    aligned = data["labels"].clone()
    aligned[:, -1] = -100
    options = {"token_weights": F.pad(data["token_weights"], (1, 0), value=9.0)[:, :-1]}
    found = objective(logits, raw, soft=moved, shift=True, **options)
    expected = objective(logits, aligned, soft=soft, token_weights=data["token_weights"])
    torch.testing.assert_close(found.loss, expected.loss)
    torch.testing.assert_close(found.num_items, expected.num_items)
    assert objective.count(raw, shift=True, **options)[0] == expected.num_items


def test_compiled() -> None:
    data = batch(5)
    for loss in (None, "number"):
        objective = objective_of(loss, label_smoothing=0.1)
        logits = (data["hidden"] @ data["weight"].T).requires_grad_()
        given_ = {"soft": data["soft"], "token_weights": data["token_weights"]}
        eager = objective(logits, data["labels"], **given_).loss
        compiled = torch.compile(objective, backend="eager", fullgraph=True)(logits, data["labels"], **given_).loss
        torch.testing.assert_close(compiled, eager)
        torch.testing.assert_close(torch.autograd.grad(compiled, logits), torch.autograd.grad(eager, logits))


@pytest.mark.parametrize(("outside", "ignore_index"), [("ignore", -100), ("penalize", V - 1)])
@pytest.mark.parametrize("loss", nm.LOSSES)
def test_the_formula_for_compilers(loss: str, outside: Any, ignore_index: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a compiler, and with everything that may be asked for: as from one buffer, whatever stands in ignored rows."""
    data = batch(7)
    labels, weights = torch.where(data["labels"] < 0, ignore_index, data["labels"]), data["token_weights"]
    weights[:, ::3] = 0
    logits = torch.where((labels == ignore_index)[..., None], torch.nan, data["hidden"] @ data["weight"].T).requires_grad_()
    objective = nm.NumericObjective(nm.LOSSES[loss](VOCAB, outside=outside, ignore_index=ignore_index), label_smoothing=0.1)
    outputs = []
    for compiling in (False, True):
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda compiling=compiling: compiling)
        out = objective(logits, labels, soft=data["soft"], token_weights=weights, with_mass=True, with_overrun=True)
        outputs.append((*vars(out).values(), *torch.autograd.grad(out.loss, logits)))
    assert not any(figure is None or bool(figure.isnan().any()) for figure in outputs[0])
    torch.testing.assert_close(outputs[1], outputs[0])


@given(st.integers(0, 10**6))
def test_any_split_gives_the_same_gradient(seed: int) -> None:
    data, objective = batch(seed), objective_of("smmd")
    soft = data["soft"]
    hidden, weight = data["hidden"].requires_grad_(), data["weight"].requires_grad_()
    whole = objective.fused(hidden, weight, data["labels"], soft=soft, token_weights=data["token_weights"])
    counts = {"num_items": whole.num_items, "num_units": whole.num_units}
    parts = [
        objective.fused(
            *(hidden[b : b + 1], weight, data["labels"][b : b + 1]),
            soft=SoftTargets(*(getattr(soft, name)[b : b + 1] for name in ("positions", "token_ids", "probabilities"))),
            token_weights=data["token_weights"][b : b + 1],
            **counts,
        ).loss
        for b in range(B)
    ]
    torch.testing.assert_close(torch.stack(parts).sum(), whole.loss)
    torch.testing.assert_close(torch.autograd.grad(torch.stack(parts).sum(), weight), torch.autograd.grad(whole.loss, weight))


def test_a_masked_token_with_weight_costs_infinitely_much() -> None:
    soft = SoftTargets(torch.tensor([[0, 0]]), torch.tensor([[3, 4]]), torch.tensor([[0.5, 0.5]]))
    for masked in (3, 4):
        logits = torch.zeros(1, 1, V)
        logits[0, 0, masked] = -torch.inf
        assert nm.NumericObjective(None)(logits, torch.tensor([[3]]), soft=soft).loss == torch.inf
    logits = torch.zeros(1, 1, V)
    logits[0, 0, 5] = -torch.inf
    other = SoftTargets(torch.tensor([[0]]), torch.tensor([[4]]), torch.ones(1, 1))
    for label, own in product((3, 5), (soft, other)):  # a label without weight costs nothing
        loss = nm.NumericObjective(None)(logits, torch.tensor([[label]]), soft=own).loss
        assert float(loss) == pytest.approx(math.log(V - 1))


def test_no_labels_at_all() -> None:
    objective, hidden, weight = nm.NumericObjective(None), torch.randn(1, 4, H, requires_grad=True), torch.randn(V, H)
    labels, soft = torch.full((1, 4), -100), SoftTargets(torch.tensor([[1]]), torch.tensor([[2]]), torch.ones(1, 1))
    for out in (objective(hidden @ weight.T, labels, soft=soft), objective.fused(hidden, weight, labels, soft=soft)):
        (grad,) = torch.autograd.grad(out.loss, hidden)
        assert out.loss == 0
        assert not grad.any()


def test_cross_entropy_alone() -> None:
    data, objective = batch(6, torch.float32), nm.NumericObjective(None, weight=0.3)
    logits = data["hidden"] @ data["weight"].T
    out = objective(logits, data["labels"], with_mass=True)
    torch.testing.assert_close(out.loss, F.cross_entropy(logits.flatten(0, 1), data["labels"].flatten()))
    assert out.numeric == out.num_units == out.mass == 0
    assert "NoLoss" in repr(objective)


ENTRIES = {"positions": torch.tensor([[0, 0]]), "token_ids": torch.tensor([[1, 2]]), "probabilities": torch.tensor([[0.5, 0.5]])}


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"positions": torch.tensor([[0, 9]])}, ValueError, r"soft.positions holds 9: expected an index below 4"),
        (
            {"positions": torch.tensor([0, 0])},
            ValueError,
            r"soft.positions has shape \(2,\) and labels \(1, 4\): expected \[1, E\], E",
        ),
        ({"positions": torch.tensor([[0.0, 0.0]])}, TypeError, "soft.positions has dtype torch.float32: expected integers"),
        ({"token_ids": torch.tensor([[1, V]])}, ValueError, rf"soft.token_ids holds {V}: expected token ids in \[0, {V}\)"),
        ({"token_ids": [[1, 2]]}, TypeError, "soft.token_ids is a list: expected a torch tensor"),
        ({"probabilities": torch.tensor([[0.5, 0.2]])}, ValueError, "sum to 0.7: expected 1"),
        ({"probabilities": torch.tensor([[1.5, -0.5]])}, ValueError, "negative or infinite number or NaN"),
        ({"probabilities": torch.tensor([[torch.nan, 0.5]])}, ValueError, "negative or infinite number or NaN"),
    ],
)
def test_bad_entries(change: dict[str, Any], error: type[Exception], message: str) -> None:
    labels, hidden, weight = torch.tensor([[1, 2, 3, 4]]), torch.randn(1, 4, H), torch.randn(V, H)
    soft = SoftTargets(**ENTRIES | change)
    with pytest.raises(error, match=message):
        nm.NumericObjective(None)(hidden @ weight.T, labels, soft=soft)
    with pytest.raises(error, match=message):
        nm.NumericObjective(None).fused(hidden, weight, labels, soft=soft)


def test_bad_arguments() -> None:
    labels, logits = torch.tensor([[1, 2]]), torch.zeros(1, 2, V)
    objective = nm.NumericObjective(None)
    with pytest.raises(TypeError, match="soft is a dict: expected SoftTargets"):
        objective(logits, labels, soft=ENTRIES)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="token_weights contains -1: expected finite weights >= 0"):
        objective(logits, labels, token_weights=torch.tensor([[1.0, -1.0]]))
    with pytest.raises(ValueError, match="token_weights has shape"):
        objective(logits, labels, token_weights=torch.ones(2))


def test_fields_of_a_batch() -> None:
    fields = dict(zip(SOFT_FIELDS, ENTRIES.values(), strict=True))
    found = SoftTargets.from_batch({"labels": 1, **fields})
    assert found is not None
    assert found.token_ids is ENTRIES["token_ids"]
    assert SoftTargets.from_batch({"labels": 1}) is None
    with pytest.raises(ValueError, match="the batch has soft_positions: expected all of"):
        SoftTargets.from_batch({"soft_positions": 1})


@pytest.mark.parametrize("with_soft", [False, True], ids=["hard", "soft"])
@pytest.mark.parametrize("fused", [False, True], ids=["logits", "fused"])
def test_nothing_is_kept_after_the_backward_pass(fused, with_soft):
    """Tensors are freed when the output is: a reference cycle would keep gigabytes until Python collects it."""
    found = batch()
    objectives = {name: nm.NumericObjective(None if name is None else nm.LOSSES[name](VOCAB)) for name in [None, *nm.LOSSES]}
    hidden, weight = found["hidden"].requires_grad_(), found["weight"].requires_grad_()
    soft = found["soft"] if with_soft else None
    gc.collect()
    gc.disable()
    try:
        before = {id(thing) for thing in gc.get_objects() if issubclass(type(thing), Tensor)}
        for objective in objectives.values():
            if fused:
                objective.fused(hidden, weight, found["labels"], soft=soft).loss.backward()
            else:
                objective(hidden @ weight.T, found["labels"], soft=soft).loss.backward()
        hidden.grad = weight.grad = None
        kept = [thing for thing in gc.get_objects() if issubclass(type(thing), Tensor) and id(thing) not in before]
    finally:
        gc.enable()
    assert not [tuple(thing.shape) for thing in kept if thing.numel() >= B * T]


def test_a_token_that_is_given_twice_counts_twice():
    found = batch()
    soft = found["soft"]
    halves = SoftTargets(*(torch.cat([part, part], 1) for part in (soft.positions, soft.token_ids, soft.probabilities / 2)))
    objective = nm.NumericObjective(None, vocab=VOCAB)
    for own in (soft, halves):
        hidden, weight = found["hidden"].detach().requires_grad_(), found["weight"].detach().requires_grad_()
        out = objective.fused(hidden, weight, found["labels"], soft=own).loss
        out.backward()
        if own is soft:
            expected = out.detach(), hidden.grad, weight.grad
    for value, other in zip((out.detach(), hidden.grad, weight.grad), expected, strict=True):
        torch.testing.assert_close(value, other)
