"""The contract of every loss in the registry: it equals its reference, and behaves at the edges."""

from __future__ import annotations

import copy
import inspect
import math
import pickle
import random
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

import pytest
import torch
from tests.reference import REFERENCES
from tests.samples import (
    BATCHES,
    DIGITS,
    MARKS,
    TEXTS,
    TOLERANCE,
    VOCABS,
    certain,
    encode,
    encode_batch,
    grad_of,
    random_logits,
    refused,
    relative,
)
from torch import Tensor

import numerate as nm
from numerate.losses.logit_rows import rest_of_rows

NAMES = list(nm.LOSSES)
REDUCTIONS = ["mean", "sum", "none"]
NUMBER_LEVEL = [name for name, loss in nm.LOSSES.items() if loss.level == "number"]
every_loss = pytest.mark.parametrize("name", NAMES)
outsides = pytest.mark.parametrize("outside", ["ignore", "penalize"])

# What is tried of each loss besides its defaults.
SETTINGS: dict[str, list[dict[str, Any]]] = {
    "smmd": [
        *({"sigma": 1.0}, {"sigma": (0.5, 2.0, 4.0)}, {"alpha": 0.7}, {"squash": None}, {"squash": 3.0}),
        *({"terms": "mmd", "outside": "penalize"}, {"terms": "smooth"}, {"kernel": "laplacian"}, {"kernel": "energy"}),
        *({"variant": "repaired"}, {"variant": "repaired", "outside": "penalize", "places": "linear"}),
        *({"ablation": "random", "seed": 7}, {"ablation": "shuffled"}),
    ],
    "emd": [{"squash": 5.0}, {"places": "del"}, {"ablation": "shuffled"}, {"ablation": "equal"}],
    "ntil": [
        *({"sigma": 0.0}, {"alpha": 1.0, "beta": 0.0, "emd_weight": 0.0}, {"alpha": 0.0, "beta": 1.0, "tau": 2.0}),
        *({"numbers": "runs"}, {"average": "sequence"}, {"average": "sequence", "numbers": "runs", "outside": "penalize"}),
    ],
    "ntl_was": [{"squash": 5.0}, {"reweigh": True}, {"numbers": "runs", "places": "exponential"}],
    "ntl_mse": [{"numbers": "runs", "places": "linear"}],
    "ntl_number": [{"numbers": "runs"}, {"numbers": "runs", "reweigh": True}],
    "gaussian_ce": [{"sigma": 2.5}],
    "dist2": [{"tau": 4.0, "places": "linear"}],
    "neighbour_smoothing": [
        {"spread": "binomial"},
        {"spread": "poisson"},
        {"spread": "uniform", "outside": "ignore"},
        {"eta": 0.3},
    ],
    "raft": [{"outside": "zero"}, {"outside": "zero", "places": "del"}],
    "digit_entropy": [
        *({"places": "del", "outside": "penalize"}, {"variant": "released"}, {"variant": "released", "places": "linear"}),
    ],
    "number": [{"beta": 0.5}, {"lowest": 0.1, "frequencies": 12}],
}


def every_setting() -> list[Any]:
    cases = []
    for name in NAMES:
        common: list[dict[str, Any]] = [{"outside": "ignore"}, {"outside": "penalize"}]
        if name not in NUMBER_LEVEL:
            common += [{"places": "exponential"}, {"places": "linear", "outside": "penalize"}]
        for settings in [*common, *SETTINGS.get(name, [])]:
            cases.append(pytest.param(name, settings, id="-".join([name, *(f"{k}={v}" for k, v in settings.items())])))
    return cases


def writes_its_gradient(loss: nm.NumericLoss) -> bool:
    """Whether the gradient is another computation than autograd's."""
    labels = BATCHES["marks"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nm.NumericLoss, "value_and_grad", lambda *_: None)
        targets = loss.targets(labels)
        return loss.value_and_grad(*loss.select(random_logits(labels, VOCABS["marks"]), targets), targets) is not None


def written_gradients() -> list[Any]:
    return [case for case in every_setting() if writes_its_gradient(nm.LOSSES[case.values[0]](VOCABS["marks"], **case.values[1]))]


# It equals its reference


def test_reference_and_loss_have_the_same_names_and_settings() -> None:
    assert list(REFERENCES) == NAMES
    for name, reference in REFERENCES.items():
        theirs = inspect.signature(reference).parameters
        for setting, default in nm.LOSSES[name].settings().items():
            if setting not in nm.NumericLoss.settings() and setting != "kind":
                assert theirs[setting].default == default, (name, setting)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@every_loss
def test_equals_its_reference(name: str, dtype: torch.dtype) -> None:
    """No farther from the truth than the naive computation at that dtype, value and gradient."""
    tolerance, labels = TOLERANCE[dtype], BATCHES["marks"]
    logits = random_logits(labels, VOCABS["marks"], dtype).requires_grad_()
    costs = nm.LOSSES[name](VOCABS["marks"])(logits, labels, reduction="none")
    assert costs.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert costs.shape == labels.shape
    upstream = torch.linspace(0.5, 1.5, labels.numel(), dtype=torch.float64).reshape(labels.shape)
    value = (costs * upstream).sum()

    def reference(arithmetic: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
        wide = logits.detach().to(arithmetic).requires_grad_()
        each = REFERENCES[name](wide, labels, VOCABS["marks"], dtype=arithmetic).per_position
        total = (each * upstream).sum()
        return each, total, grad_of(total, wide)

    (truth, true_value, true_grad), (_, rough_value, rough_grad) = reference(torch.float64), reference(dtype)
    assert relative(costs - truth, truth) <= tolerance.value
    value_bound = min(relative(rough_value - true_value, true_value), 1e-5) + tolerance.value
    assert relative(value - true_value, true_value) <= value_bound
    grad = grad_of(value, logits)
    assert grad.dtype == dtype
    assert relative(grad - true_grad, true_grad) <= relative(rough_grad - true_grad, true_grad) + tolerance.grad
    # Wherever there is a gradient, rounding is relative to each entry.
    assert torch.allclose(grad.double(), true_grad, rtol=20 * tolerance.grad, atol=float(true_grad.abs().max()) * tolerance.grad)


@pytest.mark.parametrize("vocab", ["signs", "ratings"])
@pytest.mark.parametrize(("name", "settings"), every_setting())
def test_every_setting_equals_its_reference(name: str, settings: dict[str, Any], vocab: str) -> None:
    """Without and with weights and the positions of packed documents."""
    labels = BATCHES[vocab]
    logits, loss = random_logits(labels, VOCABS[vocab]).requires_grad_(), nm.LOSSES[name](VOCABS[vocab], **settings)
    weights = torch.rand(labels.shape, generator=torch.Generator().manual_seed(1))
    positions = (torch.arange(labels.numel()) % 5).view_as(labels)
    for given in ({}, {"position_weights": weights, "position_ids": positions}):
        truth = REFERENCES[name](logits, labels, VOCABS[vocab], **settings, **given)
        costs = loss(logits, labels, reduction="none", **given)
        torch.testing.assert_close(costs, truth.per_position, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(float(loss.count(labels, **given)), truth.num_units)
        true_grad = grad_of(truth.mean, logits)
        assert relative(grad_of(loss(logits, labels, **given), logits) - true_grad, true_grad) <= TOLERANCE[torch.float64].grad


@pytest.mark.parametrize("vocab", ["marks", "chunks"])
@pytest.mark.parametrize(
    ("name", "settings"),
    [("ntil", {}), ("ntil", {"numbers": "runs"}), ("ntl_number", {}), ("number", {}), ("emd", {"places": "exponential"})],
    ids=str,
)
def test_long_numbers_equal_the_reference(name: str, settings: dict[str, Any], vocab: str) -> None:
    """Digits so deep that place weights are bounded, and that the number loss leaves out as less than a millionth."""
    labels = torch.tensor(encode("-123456789123456789.25", TEXTS[vocab]))
    logits = random_logits(labels, VOCABS[vocab])
    truth = REFERENCES[name](logits, labels, VOCABS[vocab], **settings).mean
    rtol = 1e-6 if name == "number" else 1e-12
    torch.testing.assert_close(nm.LOSSES[name](VOCABS[vocab], **settings)(logits, labels), truth, rtol=rtol, atol=0)


@every_loss
def test_thousands_reach_every_loss(name: str) -> None:
    """``1,000`` is one number or two: to number-level losses, and to all others through the places of its digits."""
    vocab, labels = VOCABS["marks"], torch.tensor([encode("-12,345 1,000", MARKS)])
    logits = random_logits(labels, vocab)
    places: dict[str, Any] = {} if name in NUMBER_LEVEL else {"places": "exponential"}
    costs = [nm.LOSSES[name](vocab, thousands=thousands, **places)(logits, labels) for thousands in (False, True)]
    assert not torch.equal(*costs)
    torch.testing.assert_close(costs[0], nm.LOSSES[name](vocab, **places)(logits, labels), rtol=0, atol=0)
    truth = REFERENCES[name](logits, labels, vocab, thousands=True, **places).mean
    torch.testing.assert_close(costs[1], truth, rtol=1e-9, atol=0)
    with pytest.raises(ValueError, match="thousands='yes'.*expected one of False, True"):
        nm.LOSSES[name](vocab, thousands="yes")


@pytest.mark.parametrize("settings", [{}, {"outside": "penalize"}], ids=str)
@every_loss
def test_gradcheck(name: str, settings: dict[str, Any]) -> None:
    """The gradient is the derivative; of NTIL only the EMD part, since the rest is straight-through on purpose."""
    settings = settings | ({"alpha": 0, "beta": 0} if name == "ntil" else {})
    loss, labels = nm.LOSSES[name](VOCABS["marks"], **settings), torch.tensor(encode("-1.5", MARKS))
    logits = random_logits(labels, VOCABS["marks"], padding=0).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: loss(x, labels, reduction="none"), (logits,), fast_mode=True)


@pytest.mark.parametrize(("weighted", "compact"), [(True, False), (False, True)])
@pytest.mark.parametrize("vocab", ["signs", "ratings"])
@pytest.mark.parametrize(("name", "settings"), written_gradients())
def test_a_gradient_written_out_is_that_of_autograd(
    name: str, settings: dict[str, Any], vocab: str, weighted: bool, compact: bool
) -> None:
    loss = nm.LOSSES[name](VOCABS[vocab], **settings)
    labels = BATCHES[vocab]
    weights = torch.rand(labels.shape, generator=torch.Generator().manual_seed(1)) if weighted else None
    targets = loss.targets(labels, position_weights=weights, compact=compact)
    z, lse = loss.select(random_logits(labels, VOCABS[vocab], torch.float64), targets)
    expected = nm.NumericLoss.value_and_grad(loss, z, lse, targets)
    for ours, theirs in zip(loss.value_and_grad(z, lse, targets), expected, strict=True):
        assert (ours is None) == (theirs is None)
        if ours is not None and theirs is not None:
            torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("weighted", [True, False])
@every_loss
def test_padding_rows_change_nothing(name: str, weighted: bool) -> None:
    loss, labels = nm.LOSSES[name](VOCABS["chunks"], outside="ignore"), BATCHES["chunks"]
    weights = torch.rand(labels.shape, generator=torch.Generator().manual_seed(1)) if weighted else None
    targets = loss.targets(labels, position_weights=weights, compact=True)
    z, _ = loss.select(random_logits(labels, VOCABS["chunks"], torch.float64), targets)
    total, dz, _ = loss.value_and_grad(z, None, targets)
    rows = targets.slots
    counted = targets if targets.mask is not None else replace(targets, mask=torch.ones(rows, dtype=torch.bool))
    padded = counted.unpacked(counted.packed(rows + 7))
    assert padded.slots == rows + 7
    padded_total, padded_dz, _ = loss.value_and_grad(torch.cat([z, z[:1].expand(7, -1)]), None, padded)
    torch.testing.assert_close(padded_total, total, rtol=1e-12, atol=0)
    torch.testing.assert_close(padded_dz[:rows], dz, rtol=1e-12, atol=1e-15)
    assert not padded_dz[rows:].any()


def test_losses_that_write_their_gradient_are_found() -> None:
    assert {case.values[0] for case in written_gradients()} == {
        name for name, loss in nm.LOSSES.items() if "number_gradient" in vars(loss) or "value_and_grad" in vars(loss)
    }


# Raw labels of a causal model


@pytest.mark.parametrize("given", [(), ("position_weights", "position_ids")], ids=str)
@every_loss
def test_shift_equals_the_aligned_call(name: str, given: tuple[str, ...]) -> None:
    """``shift=True`` takes labels, weights and position ids of the input tokens; the first one is nowhere predicted."""
    vocab, labels = VOCABS["marks"], encode_batch(["-12.55 7", "3712.5", "3.456 80"], MARKS)
    positions = torch.tensor([[0, 1, 2, 0, 1, 2, 3, 0], [0, 1, 2, 3, 4, 5, 0, 1], [3, 4, 5, 6, 7, 8, 0, 1]])
    weights = torch.rand(labels.shape, generator=torch.Generator().manual_seed(1))
    raw = {key: value for key, value in (("position_weights", weights), ("position_ids", positions)) if key in given}
    aligned = {key: value[:, 1:] for key, value in raw.items()}
    logits, loss = random_logits(labels, vocab).requires_grad_(), nm.LOSSES[name](vocab)
    value, expected = loss(logits, labels, shift=True, **raw), loss(logits[:, :-1], labels[:, 1:], **aligned)
    torch.testing.assert_close(value, expected, rtol=1e-12, atol=0)
    torch.testing.assert_close(grad_of(value, logits), grad_of(expected, logits), rtol=1e-12, atol=0)
    torch.testing.assert_close(loss.count(labels, shift=True, **raw), loss.count(labels[:, 1:], **aligned), rtol=0, atol=0)
    costs = loss(logits, labels, shift=True, reduction="none", **raw)
    torch.testing.assert_close(costs[:, :-1], loss(logits[:, :-1], labels[:, 1:], reduction="none", **aligned))
    assert not costs[:, -1].any()
    assert not torch.equal(value, loss(logits, labels, **raw))
    with pytest.raises(TypeError, match="position_weights is a list.*torch.as_tensor"):
        loss(logits, labels, shift=True, position_weights=weights.tolist())
    with pytest.raises(ValueError, match="shift='yes'.*expected one of False, True"):
        loss(logits, labels, shift="yes")


# Values that are known


ALL_CHUNKS = {f"{value:0{width}d}": 0 for width in (1, 2, 3) for value in range(10**width)} | {".": 0, "-": 0, "e": 0}
ALL_CHUNKS = {text: token_id for token_id, text in enumerate(ALL_CHUNKS)}


@cache
def many_numbers() -> tuple[nm.NumericVocab, Tensor]:
    """Return labels of many numbers, cut at random into tokens of one to three digits: many roundings of their places."""
    draw = random.Random(0)

    def digits(most: int) -> str:
        return "".join(draw.choices("0123456789", k=draw.randint(1, most)))

    texts = ["00.86914", *(f"{digits(14)}{draw.choice(['', f'.{digits(18)}'])}" for _ in range(100))]
    texts = [f"{draw.choice(['', '-'])}{text}{draw.choice(['', 'e-12'])}" for text in texts]
    ids: list[int] = []
    for text in texts:
        while text:
            size = next(n for n in draw.sample((1, 2, 3), 3) if text[:n] in ALL_CHUNKS)
            ids, text = [*ids, ALL_CHUNKS[text[:size]]], text[size:]
        ids.append(-100)
    return nm.NumericVocab.from_texts(ALL_CHUNKS, vocab_size=len(ALL_CHUNKS)), torch.tensor(ids)


def assert_free(loss: nm.NumericLoss, logits: Tensor, labels: Tensor) -> None:
    """Check that value and gradient are zero, by autograd and written out."""
    logits.requires_grad_()
    cost = loss(logits, labels, reduction="none")
    targets = loss.targets(labels)
    z, rest = (None if part is None else part.detach() for part in loss.select(logits, targets))
    for grad in (grad_of(cost.sum(), logits), loss.value_and_grad(z, rest, targets)[1]):
        assert float(grad.abs().max()) == 0
    # The number loss does not read digits more than ten places down; the label's φ has them.
    assert float(cost.detach().abs().max()) <= (1e-12 if loss.name == "number" else 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16], ids=str)
@every_loss
def test_certain_and_right_at_many_numbers(name: str, dtype: torch.dtype) -> None:
    """It costs nothing exactly where ``zero_when_certain`` says so: label and prediction are rounded alike, at all places."""
    vocab, labels = many_numbers()
    loss, logits = nm.LOSSES[name](vocab), certain(labels, vocab.vocab_size, dtype, logit=2000.0)
    if loss.zero_when_certain:
        assert_free(loss, logits, labels)
    else:
        assert float(loss(logits, labels, reduction="none").max()) > 1


@pytest.mark.parametrize("parts", [{"alpha": 1.0, "beta": 1.0}, {"alpha": 1.0, "beta": 0.0}, {"alpha": 0.0, "beta": 1.0}])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_right_guess_of_ntil_has_no_error_of_the_number(parts: dict[str, float], dtype: torch.dtype) -> None:
    """Only the likeliest token counts, however likely the others are."""
    vocab, labels = many_numbers()
    logits = certain(labels, vocab.vocab_size, dtype, logit=0.1)
    assert_free(nm.NTILLoss(vocab, emd_weight=0.0, **parts), logits, labels)


@pytest.mark.parametrize("vocab", ["signs", "ratings"])
@every_loss
def test_never_negative(name: str, vocab: str) -> None:
    labels = BATCHES[vocab]
    for outside in ("ignore", "penalize"):
        loss = nm.LOSSES[name](VOCABS[vocab], outside=outside)
        for seed, sharpness in product(range(5), (0.1, 1.0, 10.0)):
            logits = sharpness * random_logits(labels, VOCABS[vocab], seed=seed)
            assert float(loss(logits, labels, reduction="none").min()) >= -1e-12


def test_one_score_under_four_names() -> None:
    """On a unit grid CRPS, squared EMD and half the energy MMD are one; EMD and NTL-WAS are one everywhere."""
    vocab, labels = VOCABS["digits"], BATCHES["digits"]
    logits = random_logits(labels, vocab)
    crps = nm.losses.CRPSLoss(vocab)(logits, labels)
    torch.testing.assert_close(nm.losses.SquaredEMDLoss(vocab)(logits, labels), crps)
    energy = nm.SMMDLoss(vocab, kernel="energy", terms="mmd", squash=None)(logits, labels)
    torch.testing.assert_close(energy * 9 / 2, crps)
    torch.testing.assert_close(nm.EMDLoss(vocab)(logits, labels), nm.NTLLoss(vocab, kind="was")(logits, labels))


def test_functions_that_no_class_calls() -> None:
    """Public functions by hand: the classes compute these two in another form."""
    logits, target, values = torch.tensor([[0.0, 0.0, -40.0]]), torch.tensor([2]), torch.tensor([10.0, 20.0, 40.0])
    torch.testing.assert_close(nm.losses.crps_loss(logits, target, values), torch.tensor([0.25 * 10 + 20]))
    emd, guess, value = torch.tensor([2.0, 0.0]), torch.tensor([12.0, 4.0]), torch.tensor([10.0, 5.0])
    found = nm.losses.ntil_loss(emd, guess, value, torch.zeros(2))
    torch.testing.assert_close(found, torch.tensor([2 + 0.2 * 2 / 12 + 0.2 * math.log(1.2), 0.2 / 5 + 0.2 * math.log(1.25)]))
    found = nm.losses.ntil_loss(emd, guess, value, torch.ones(2), alpha=0.5, beta=0.0, emd_weight=3.0)
    torch.testing.assert_close(found, torch.tensor([6 + 0.5 * 2 / 13, 0.5 / 6]))


# Strictly proper or not

UNTRUE = 1e-9


def expected_cost(loss: nm.NumericLoss, logits: Tensor, q: Tensor) -> Tensor:
    """Cost of one prediction ``[V]`` when single digits are drawn from ``q [10]``."""
    labels = VOCABS["digits"].token_ids[:, None]  # each digit a number of its own
    return loss(logits.expand(10, 1, -1), labels, position_weights=q[:, None], reduction="sum")


def logits_of(p: Tensor) -> Tensor:
    return torch.cat([p.new_full((1,), -300.0), p.log(), p.new_full((1,), -300.0)])


@every_loss
def test_strictly_proper_where_it_says_so(name: str) -> None:
    """Only the truth has the lowest expected cost; for the others, some other prediction does as well or better."""
    loss = nm.LOSSES[name](VOCABS["digits"])
    generator = torch.Generator().manual_seed(5)
    for _ in range(4):
        q = torch.rand(10, generator=generator, dtype=torch.float64) + 0.05
        q = q / q.sum()
        truth = logits_of(q).requires_grad_()
        cost = expected_cost(loss, truth, q)
        slope, lowest = grad_of(cost, truth), float(cost.detach())
        others = [torch.rand(10, generator=generator, dtype=torch.float64) + 0.01 for _ in range(20)]
        near = [q * torch.exp(0.05 * torch.randn(10, generator=generator, dtype=torch.float64)) for _ in range(20)]
        if loss.strictly_proper:
            assert float(slope.abs().max()) < UNTRUE
            for other in others + near:
                assert float(expected_cost(loss, logits_of(other / other.sum()), q)) > lowest + UNTRUE
        else:
            spread = q.clone()
            spread[[2, 3, 4]] += torch.tensor([0.01, -0.02, 0.01], dtype=torch.float64)  # the mean stays
            rivals = [logits_of(spread)]
            if float(slope.abs().max()) > UNTRUE:
                rivals.append((truth - 0.01 * slope).detach())
            assert min(float(expected_cost(loss, rival, q)) for rival in rivals) <= lowest + 1e-12


# What does not count, does not count


@every_loss
def test_ignored_positions_change_nothing(name: str) -> None:
    vocab, labels = VOCABS["marks"], BATCHES["marks"].clone()
    labels[0, 3] = labels[2, 2] = -100  # one in the midst of a number
    ignored = labels == -100
    loss = nm.LOSSES[name](vocab)
    logits = random_logits(labels, vocab)
    value = loss(logits, labels)
    for fill in (7.0, float("inf"), float("nan")):
        other = torch.where(ignored[..., None], fill, logits).requires_grad_()
        again = loss(other, labels)
        assert torch.equal(again, value)
        grad = grad_of(again, other)
        assert bool((grad[ignored] == 0).all())
        assert bool(grad.isfinite().all())
        assert float(grad.abs().sum()) > 0


@every_loss
def test_another_ignore_index(name: str) -> None:
    """A token id can be the ignored one; then -100 is an error."""
    vocab, labels = VOCABS["digits"], BATCHES["digits"]
    logits, loss = random_logits(labels, vocab), nm.LOSSES[name](vocab)
    seven = labels == 8
    expected = loss(logits, torch.where(seven, -100, labels))
    assert torch.equal(nm.LOSSES[name](vocab, ignore_index=8)(logits, torch.where(labels == -100, 8, labels)), expected)
    with pytest.raises(ValueError, match=r"labels contains -100"):
        nm.LOSSES[name](vocab, ignore_index=8)(logits, labels)


def uncompacted(loss: nm.NumericLoss, logits: Tensor, labels: Tensor) -> Tensor:
    """The sum as a GPU and ``torch.compile`` compute it: over all rows, masked."""
    targets = loss.targets(labels, compact=False)
    return loss.per_row(*loss.select(logits, targets), targets).sum()


@outsides
@every_loss
def test_masked_rows_equal_chosen_rows(name: str, outside: str) -> None:
    """The path of GPUs and of ``torch.compile`` gives what the CPU's gives."""
    loss, labels = nm.LOSSES[name](VOCABS["chunks"], outside=outside), BATCHES["chunks"]
    logits = random_logits(labels, VOCABS["chunks"]).requires_grad_()
    chosen, masked = loss(logits, labels, reduction="sum"), uncompacted(loss, logits, labels)
    torch.testing.assert_close(masked, chosen)
    torch.testing.assert_close(grad_of(masked, logits), grad_of(chosen, logits))


@outsides
@every_loss
def test_a_batch_without_numbers(name: str, outside: str) -> None:
    """A zero that autograd knows, whether the labels are text or ignored."""
    vocab = VOCABS["marks"]
    loss = nm.LOSSES[name](vocab, outside=outside)
    for labels, reduction in product((torch.full((2, 3), -100), encode_batch(["x.-", ")(x"], MARKS)), REDUCTIONS):
        logits = random_logits(labels, vocab, torch.bfloat16).requires_grad_()
        value = loss(logits, labels, reduction=reduction)
        assert bool((value == 0).all())
        assert bool((grad_of(value.sum(), logits) == 0).all())


@pytest.mark.parametrize(("name", "settings"), every_setting())
def test_a_batch_without_positions(name: str, settings: dict[str, Any]) -> None:
    """The same for no rows or no columns of labels, as the last shard of an uneven split has; as a GPU reads it too."""
    vocab = VOCABS["signs"]
    loss = nm.LOSSES[name](vocab, **settings)
    for shape in [(0, 5), (0,), (2, 0, 4)]:
        labels = torch.zeros(shape, dtype=torch.int64)
        logits = random_logits(labels, vocab).requires_grad_()
        for reduction in REDUCTIONS:
            value = loss(logits, labels, reduction=reduction)
            assert value.shape == (shape if reduction == "none" else ())
            assert grad_of(value.sum(), logits).shape == logits.shape
            assert float(value.detach().sum()) == 0
        targets = loss.targets(labels, compact=False)
        z, rest = (None if part is None else part.detach() for part in loss.select(logits, targets))
        total, dz, _ = loss.value_and_grad(z, rest, targets)
        assert (float(total), dz.shape) == (0, z.shape)


@outsides
@every_loss
def test_padded_vocabulary(name: str, outside: str) -> None:
    """Columns beyond the vocabulary change nothing where mass outside is ignored, or where they are -inf."""
    vocab, labels = VOCABS["marks"], BATCHES["marks"]
    loss = nm.LOSSES[name](vocab, outside=outside)
    narrow = random_logits(labels, vocab, padding=0)
    padding = (
        torch.randn(*labels.shape, 45, dtype=torch.float64)
        if outside == "ignore"
        else torch.full((*labels.shape, 45), -torch.inf)
    )
    padded = torch.cat([narrow, padding], -1).requires_grad_()
    value = loss(padded, labels)
    torch.testing.assert_close(value, loss(narrow, labels), rtol=1e-12, atol=0)
    grad = grad_of(value, padded)
    assert bool((grad[..., vocab.vocab_size :] == 0).all())
    beyond = torch.where(labels == encode("x", MARKS)[0], vocab.vocab_size + 3, labels)  # a padded id counts as text
    torch.testing.assert_close(loss(padded, beyond), value, rtol=1e-12, atol=0)


@every_loss
def test_a_shard_of_the_vocabulary(name: str) -> None:
    """It may hold all numeric tokens, but its log-sum-exp is another: refused, as logits and as a head."""
    vocab = nm.NumericVocab.from_values(dict(enumerate(range(10))), vocab_size=81)
    objective, labels = nm.NumericObjective(nm.LOSSES[name](vocab)), torch.zeros(1, 4, dtype=torch.int64)
    for columns in (42, 11):  # the larger of two shards of a padded vocabulary, and one of eight
        parts = [f"V={columns}", "whole vocabulary", "tensor parallelism", "vocab_size=V"]
        logits = torch.zeros(1, 4, columns)
        refused(ValueError, ["logits", *parts], lambda: objective.numeric_loss(logits, labels))  # noqa: B023
        refused(ValueError, ["logits", *parts], lambda: objective(logits, labels))  # noqa: B023
        head = torch.zeros(1, 4, 3), torch.zeros(columns, 3)
        refused(ValueError, ["head_weight", *parts], lambda: objective.fused(*head, labels))  # noqa: B023


@outsides
@every_loss
def test_the_callers_tensors_are_left_alone(name: str, outside: str) -> None:
    vocab, labels = VOCABS["marks"], BATCHES["marks"].clone()
    logits = random_logits(labels, vocab, torch.bfloat16).requires_grad_()
    weights, position_ids = torch.rand(labels.shape), torch.arange(labels.shape[1]).expand_as(labels).clone()
    given = [logits, labels, weights, position_ids]
    before = [tensor.detach().clone() for tensor in given]
    versions = [tensor._version for tensor in given]
    nm.LOSSES[name](vocab, outside=outside)(logits, labels, position_weights=weights, position_ids=position_ids).backward()
    assert [tensor._version for tensor in given] == versions
    assert all(torch.equal(tensor, old) for tensor, old in zip(given, before, strict=True))


# Reductions and weights


@outsides
@every_loss
def test_reductions_agree(name: str, outside: str) -> None:
    vocab, labels = VOCABS["chunks"], BATCHES["chunks"]
    logits, loss = random_logits(labels, vocab), nm.LOSSES[name](vocab, outside=outside)
    costs, total = loss(logits, labels, reduction="none"), loss(logits, labels, reduction="sum")
    assert costs.shape == labels.shape
    torch.testing.assert_close(costs.sum(), total)
    torch.testing.assert_close(loss(logits, labels), total / loss.count(labels))
    assert bool((costs[VOCABS["chunks"].index_of(labels) < 0] == 0).all())
    # ``-12.5``, ``7``, ``3``, ``5``, ``0.98``, ``41`` have 11 digits.
    assert int(nm.LOSSES[name](VOCABS["marks"]).count(BATCHES["marks"])) == (6 if name in NUMBER_LEVEL else 11)


@every_loss
def test_order_and_shape_of_the_batch(name: str) -> None:
    """``[T]``, ``[B, T]`` and ``[A, B, T]`` are one batch; its order is irrelevant, and so are earlier batches."""
    vocab, labels = VOCABS["chunks"], BATCHES["chunks"]
    logits, loss, order = random_logits(labels, vocab), nm.LOSSES[name](vocab), [2, 0, 1]
    costs = loss(logits, labels, reduction="none")
    torch.testing.assert_close(loss(logits[order], labels[order], reduction="none"), costs[order], rtol=1e-12, atol=1e-15)
    assert torch.equal(loss(logits[:, None], labels[:, None], reduction="none"), costs[:, None])
    for row in range(3):
        torch.testing.assert_close(loss(logits[row], labels[row], reduction="none"), costs[row], rtol=1e-12, atol=1e-15)
    assert torch.equal(loss(logits, labels, reduction="none"), costs)


# Mass outside the numeric tokens


@every_loss
def test_text_costs_more_than_the_worst_number(name: str) -> None:
    """That is what ``outside="penalize"`` promises; with a softmax over the whole vocabulary it costs as much."""
    vocab, loss = VOCABS["marks"], nm.LOSSES[name](VOCABS["marks"], outside="penalize")
    for label, guess in [("0", "9"), ("9", "0"), ("999", "000"), ("100", "999"), ("-99.9", "099.9")]:
        labels = torch.tensor(encode(label, MARKS))
        digits = torch.tensor(encode(guess, MARKS))
        text = torch.zeros_like(labels)
        wrong = float(loss(certain(digits, vocab.vocab_size), labels))
        less = 1e-9 if loss.costs_outside else 0.0
        assert float(loss(certain(text, vocab.vocab_size), labels)) > wrong - less, (label, guess)


# Places


@every_loss
def test_places_weigh_what_they_say(name: str) -> None:
    """A setting that is taken has an effect: leading digits weigh more."""
    if name in NUMBER_LEVEL:
        refused((TypeError, ValueError), ["places='linear'"], lambda: nm.LOSSES[name](VOCABS["digits"], places="linear"))
        return
    vocab, labels = VOCABS["digits"], encode_batch(["x123"], DIGITS)
    logits = random_logits(labels, vocab)
    uniform = nm.LOSSES[name](vocab, places="uniform")(logits, labels, reduction="none")[0, 1:]
    linear = nm.LOSSES[name](vocab, places="linear")(logits, labels, reduction="none")[0, 1:]
    powers = nm.LOSSES[name](vocab, places="exponential", place_sigma=1.0)(logits, labels, reduction="none")[0, 1:]
    torch.testing.assert_close(linear, uniform * torch.tensor([1.5, 1.0, 0.5]).double())
    torch.testing.assert_close(powers, uniform * torch.tensor([4.0, 2.0, 1.0]).double())
    by_place = nm.LOSSES[name](vocab, places="del")(logits, labels, reduction="none")[0, 1:]
    torch.testing.assert_close(by_place, uniform * torch.tensor([6.0, 4.0, 2.0]).double())


# As a module


@pytest.mark.parametrize(
    ("name", "settings"),
    [*((n, {}) for n in NAMES), ("emd", {"outside": "penalize", "places": "linear"}), ("digit_entropy", {"variant": "released"})],
)
def test_compiles_to_one_graph(name: str, settings: dict[str, Any]) -> None:
    torch._dynamo.reset()
    vocab, labels = VOCABS["marks"], BATCHES["marks"]
    loss = nm.LOSSES[name](vocab, **settings)
    logits = random_logits(labels, vocab, torch.float32).requires_grad_()
    value = torch.compile(loss, fullgraph=True, backend="eager")(logits, labels)
    plain = loss(logits, labels)
    torch.testing.assert_close(value, plain)
    torch.testing.assert_close(grad_of(value, logits), grad_of(plain, logits), rtol=1e-4, atol=1e-6)


@every_loss
def test_copying_moving_and_autocast_change_nothing(name: str) -> None:
    """``.to(torch.bfloat16)`` of a model that holds the loss leaves grams and values wide."""
    vocab, labels = VOCABS["chunks"], BATCHES["chunks"]
    logits, loss = random_logits(labels, vocab, torch.float32), nm.LOSSES[name](vocab, outside="penalize")
    dtypes, value = {key: buffer.dtype for key, buffer in loss.named_buffers()}, loss(logits, labels)
    for other in (copy.deepcopy(loss), pickle.loads(pickle.dumps(loss))):
        assert torch.equal(other(logits, labels), value)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(loss(logits, labels), value)
    for move in (torch.nn.Module.bfloat16, torch.nn.Module.half, torch.nn.Module.double):
        holder = move(torch.nn.ModuleList([loss]))
        assert {key: buffer.dtype for key, buffer in holder[0].named_buffers()} == dtypes
        assert torch.equal(holder[0](logits, labels), value)


@every_loss
def test_buffers(name: str) -> None:
    """They move with the model, stay out of checkpoints, and DistributedDataParallel can send them: no 16-bit integers."""
    loss = nm.LOSSES[name](VOCABS["chunks"])
    known = {torch.bool, torch.uint8, torch.int32, torch.int64, torch.float32, torch.float64}
    assert {torch.int64} <= {buffer.dtype for buffer in loss.buffers()} <= known
    assert len(loss.state_dict()) == len(list(loss.parameters())) == 0
    assert {buffer.device.type for buffer in loss.to("meta").buffers()} == {"meta"}


@every_loss
def test_one_numeric_token(name: str) -> None:
    """The smallest vocabulary there is: no distance, no spread, and still no NaN."""
    vocab = nm.NumericVocab.from_values({1: 3.0}, vocab_size=3)
    for outside in ("ignore", "penalize"):
        logits = torch.randn(1, 4, 3, dtype=torch.float64).requires_grad_()
        value = nm.LOSSES[name](vocab, outside=outside)(logits, torch.tensor([[1, 0, 1, -100]]))
        assert bool(value.isfinite())
        assert bool(grad_of(value, logits).isfinite().all())


@pytest.mark.parametrize(("dtype", "rows"), [(torch.bfloat16, None), (torch.float16, [3, 0, 1]), (torch.bfloat16, [])], ids=str)
def test_the_rest_of_long_rows(dtype: torch.dtype, rows: list[int] | None) -> None:
    """Rows so long that they are processed in chunks, without two of their columns."""
    flat = torch.randn(4, 1 << 21, generator=torch.Generator().manual_seed(0)).to(dtype).requires_grad_()
    wide = flat.detach().double().requires_grad_()
    index = None if rows is None else torch.tensor(rows, dtype=torch.long)
    value = rest_of_rows(flat, index, torch.tensor([2, 7]))
    truth = torch.cat([wide[:, :2], wide[:, 3:7], wide[:, 8:]], -1).logsumexp(-1)
    truth = truth if index is None else truth[index]
    torch.testing.assert_close(value.double(), truth, rtol=1e-6, atol=0)
    factor = torch.arange(1.0, 1.0 + len(value))
    grad, true_grad = grad_of((value * factor).sum(), flat), grad_of((truth * factor).sum(), wide)
    if rows == []:
        assert not bool(grad.any())
        return
    assert relative(grad - true_grad, true_grad) < TOLERANCE[dtype].grad


# Bad input: an error names the argument, its value, what was expected, and the way out


LOGITS, LABELS = torch.zeros(2, 3, 19), torch.zeros(2, 3).long()


@pytest.mark.parametrize(
    ("logits", "labels", "error", "parts"),
    [
        (LOGITS, torch.zeros(2, 4).long(), ValueError, ["(2, 3, 19)", "(2, 4)", "expected", "aligned"]),
        (LOGITS[0], LABELS, ValueError, ["(3, 19)", "(2, 3)", "expected"]),
        (LOGITS, LABELS.float(), TypeError, ["labels", "float32", "expected", "labels.long()"]),
        (LOGITS, LABELS.bool(), TypeError, ["labels", "bool", "expected"]),
        (LOGITS.long(), LABELS, TypeError, ["logits", "int64", "expected", ".logits"]),
        (LOGITS, LABELS + 19, ValueError, ["labels", "19", "expected", "ignore_index=-100"]),
        (LOGITS, LABELS - 1, ValueError, ["labels", "-1", "expected", "ignore_index=-100"]),
        (LOGITS[..., :9], LABELS, ValueError, ["V=9", "expected", "tokenizer"]),
        (LOGITS[0, 0], torch.tensor(3), ValueError, ["labels", "()", "expected"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
@pytest.mark.parametrize("name", ["emd", "number"])
def test_bad_tensors(name: str, logits: Any, labels: Any, error: type[Exception], parts: list[str]) -> None:
    refused(error, parts, lambda: nm.LOSSES[name](VOCABS["marks"])(logits, labels))


@pytest.mark.parametrize("name", ["emd", "number"])
def test_bad_calls(name: str) -> None:
    loss = nm.LOSSES[name](VOCABS["marks"])
    refused(ValueError, ["reduction='avg'", "'mean', 'sum', 'none'"], lambda: loss(LOGITS, LABELS, reduction="avg"))
    shapes = ["(3,)", "(2, 3)", "expected"]
    refused(ValueError, ["position_weights", *shapes], lambda: loss(LOGITS, LABELS, position_weights=torch.ones(3)))
    refused(ValueError, ["position_weights", *shapes], lambda: loss.count(LABELS, position_weights=torch.ones(3)))
    refused(ValueError, ["position_ids", *shapes], lambda: loss(LOGITS, LABELS, position_ids=torch.ones(3).long()))


@every_loss
def test_bad_settings(name: str) -> None:
    cls, vocab = nm.LOSSES[name], VOCABS["marks"]
    refused(TypeError, ["vocab", "dict", "expected a NumericVocab", "from_tokenizer"], lambda: cls({"1": 2}))
    for build in (cls, getattr(cls, "released", cls)):
        parts = ["outsid='ignore'", "expected one of", "Did you mean 'outside'?"]
        refused(TypeError, parts, lambda build=build: build(vocab, outsid="ignore"))
    refused(ValueError, ["outside='drop'", "'ignore', 'penalize'"], lambda: cls(vocab, outside="drop"))
    if name not in NUMBER_LEVEL:
        parts = ["places='linar'", "'uniform', 'exponential', 'linear'", "Did you mean 'linear'?"]
        refused(ValueError, parts, lambda: cls(vocab, places="linar"))
        refused(ValueError, ["place_sigma=-1", "expected", "> -1"], lambda: cls(vocab, place_sigma=-1))


@pytest.mark.parametrize(
    ("name", "settings", "parts"),
    [
        ("smmd", {"sigma": (2.0, -1.0)}, ["sigma=-1.0", "expected", "> 0"]),
        ("smmd", {"alpha": -0.1}, ["alpha=-0.1", "expected", ">= 0"]),
        ("smmd", {"terms": "mdd"}, ["terms='mdd'", "'smmd', 'mmd', 'smooth'", "Did you mean 'mmd'?"]),
        ("smmd", {"kernel": "gausian"}, ["kernel='gausian'", "'gaussian', 'laplacian', 'energy'", "Did you mean 'gaussian'?"]),
        ("smmd", {"variant": "fixed"}, ["variant='fixed'", "'paper', 'released', 'repaired'"]),
        ("smmd", {"ablation": "none"}, ["ablation='none'", "None, 'random', 'shuffled'"]),
        *((name, {"squash": 1.0}, ["squash=1.0", "expected", "> 1", "None turns it off"]) for name in ("smmd", "emd", "ntl_was")),
        ("smmd", {"squash": "none"}, ["squash='none'", "expected", "'auto'"]),
        ("smmd", {"kernel": torch.eye(4)}, ["kernel", "(4, 4)", "[10, 10]"]),
        ("smmd", {"kernel": torch.eye(10).roll(1, 0)}, ["kernel", "not symmetric", "expected", "(K + K.T) / 2"]),
        ("smmd", {"kernel": -torch.eye(10)}, ["kernel", "not positive semi-definite", "-1", "expected"]),
        ("smmd", {"kernel": torch.full((10, 10), torch.nan)}, ["kernel", "NaN", "expected"]),
        ("emd", {"ablation": "random"}, ["ablation='random'", "'shuffled'", "'equal'"]),
        ("ntil", {"tau": 0}, ["tau=0", "expected", ">= 1e-06"]),
        ("ntil", {"beta": 1e30}, ["beta=1e+30", "<= 1e+06"]),
        ("ntil", {"noise": -1}, ["noise=-1", "expected", ">= 0"]),
        ("ntil", {"numbers": "ints"}, ["numbers='ints'", "'values', 'runs'"]),
        ("ntil", {"average": "batch"}, ["average='batch'", "'number', 'sequence'"]),
        ("ntl_was", {"kind": "wass"}, ["kind='wass'", "'was', 'mse', 'mae', 'huber', 'number'", "Did you mean 'was'?"]),
        ("ntl_mse", {"kind": "mae"}, ["kind='mae'", "NTLMSELoss", "expected", "NTLLoss(vocab, kind='mae')"]),
        ("ntl_number", {"digit_level": "yes"}, ["digit_level='yes'", "expected", "True, False"]),
        ("ntl_mse", {"squash": 9.0}, ["squash=9.0", "kind='mse'", "expected"]),
        ("ntl_was", {"reweigh": True, "outside": "ignore"}, ["reweigh=True", "outside='ignore'", "expected"]),
        ("neighbour_smoothing", {"eta": 1.5}, ["eta=1.5", "expected", "[0, 1]"]),
        ("neighbour_smoothing", {"spread": "gauss"}, ["spread='gauss'", "'triangular', 'binomial', 'poisson', 'uniform'"]),
        ("raft", {"outside": "none"}, ["outside='none'", "'ignore', 'penalize', 'zero'"]),
        ("digit_entropy", {"outside": "zero"}, ["outside='zero'", "'ignore', 'penalize'"]),
        ("number", {"frequencies": 4.5}, ["frequencies=4.5", "expected", ">= 1"]),
    ],
)
def test_bad_setting(name: str, settings: dict[str, Any], parts: list[str]) -> None:
    """What test_arguments.py does not try: choices, which are listed, and limits of a setting's own."""
    refused(ValueError, parts, lambda: nm.LOSSES[name](VOCABS["marks"], **settings))


def test_ntil_refuses_values_below_zero() -> None:
    vocab = nm.NumericVocab.from_values({1: -1.0, 2: 0.0}, vocab_size=3)
    refused(ValueError, ["vocab", "below 0", "expected"], lambda: nm.NTILLoss(vocab))


def test_unwritten_methods_and_foreign_targets() -> None:
    """Without its one method a loss raises; a number-level loss names the way out for targets that hold no numbers."""
    vocab, labels = VOCABS["marks"], BATCHES["marks"]
    logits, token_level = random_logits(labels, vocab), nm.EMDLoss(vocab)
    for base in (nm.NumericLoss, nm.losses.NumberLevelLoss):
        with pytest.raises(NotImplementedError):
            base(vocab)(logits, labels)
    targets = token_level.targets(labels)
    with pytest.raises(TypeError, match=r"targets have no numbers: expected .* loss.targets"):
        nm.NumberLoss(vocab).per_row(*token_level.select(logits, targets), targets)


def test_the_name_of_ntl_follows_its_kind() -> None:
    for kind in ("was", "mse", "mae", "huber", "number"):
        loss = nm.NTLLoss(VOCABS["marks"], kind=kind)
        assert loss.name == f"ntl_{kind}" == nm.NTLLoss(VOCABS["marks"], kind).name
        assert type(loss) is nm.LOSSES[loss.name] is type(loss)(VOCABS["marks"], kind=kind).__class__
        assert loss.level == ("number" if kind == "number" else "token")
        assert copy.deepcopy(loss).name == loss.name


@outsides
@every_loss
def test_bad_logits_are_not_hidden(name: str, outside: str) -> None:
    """A NaN or an infinite score at a digit that counts makes the loss NaN."""
    vocab, labels = VOCABS["marks"], BATCHES["marks"]
    logits, loss = random_logits(labels, vocab), nm.LOSSES[name](vocab, outside=outside)
    for bad in (float("nan"), float("inf")):
        logits[0, 2, 4] = bad
        assert all(bool(loss(logits, labels, reduction=reduction).isnan().any()) for reduction in REDUCTIONS)


@every_loss
def test_forbidden_tokens_keep_the_gradient_finite(name: str) -> None:
    """Scores of -inf, as a mask of forbidden tokens sets them, are no error."""
    vocab, labels = VOCABS["marks"], encode_batch(["12.5", "x7", "40"], MARKS)
    logits = random_logits(labels, vocab)
    logits[..., encode("-)", MARKS)] = -torch.inf
    logits[..., vocab.minus_ids] = -torch.inf
    for outside in ("ignore", "penalize"):
        given = logits.clone().requires_grad_()
        value = nm.LOSSES[name](vocab, outside=outside)(given, labels)
        assert bool(value.isfinite())
        assert bool(grad_of(value, given).isfinite().all())
