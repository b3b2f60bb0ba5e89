"""Values and logits that float32 cannot represent, or only coarsely: rejected, or exact. scripts/fuzz.py found these faults."""

from __future__ import annotations

import sys
from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from test_losses import NAMES, every_loss
from tests.samples import SIGNS, TOLERANCE, VOCABS, encode, encode_batch, grad_of, random_logits, refused, relative

import numerate as nm
from numerate.losses.logit_rows import reads_freely


def vocab_of(*values: float) -> nm.NumericVocab:
    return nm.NumericVocab.from_values(dict(enumerate(values)), vocab_size=len(values) + 2)


RANGES = [
    (0.0, 1.0, 1e300),
    (-1e300, 1e-300, 1e300),
    (1e25, 2e25, 3e25),
    (1e-25, 2e-25, 3e-25),
    (1e-300, 2e-300, 3e-300),
    (0.0, 5e-324, 1e-323),
]


@every_loss
def test_a_range_is_refused_or_learned_from(name: str) -> None:
    """Never NaN, and never a cost of 0 where values differ."""
    for values, outside in product(RANGES, ("ignore", "penalize")):
        build = partial(nm.LOSSES[name], vocab_of(*values), outside=outside)
        try:
            loss = build()
        except ValueError:
            refused(ValueError, ["expected"], build)
            continue
        for dtype in TOLERANCE:
            logits = torch.tensor([[0.5, 0.2, -0.4, 0.1, 0.0]], dtype=dtype, requires_grad=True)
            value = loss(logits, torch.tensor([1]))
            assert bool(value.isfinite())
            assert bool(value > 0)
            if max(values) < torch.finfo(dtype).max:  # float16 has no gradient of 1e25
                assert bool(grad_of(value, logits).isfinite().all())


def test_what_is_refused_is_named() -> None:
    refused(ValueError, ["EMDLoss", "0..1e+300", "expected 1e-30 to 1e+30", "unit"], lambda: nm.EMDLoss(vocab_of(0.0, 1e300)))
    refused(ValueError, ["RAFTLoss", "1e-100", "expected"], lambda: nm.losses.RAFTLoss(vocab_of(0.0, 1e-100)))
    refused(ValueError, ["NTLMSELoss", "expected"], lambda: nm.losses.NTLMSELoss(vocab_of(0.0, 5e-324)))  # its square is 0


def test_too_many_tokens_are_refused_before_memory_is_taken() -> None:
    many = nm.NumericVocab.from_values({i: float(i) for i in range(20_001)}, vocab_size=20_001)
    for name in NAMES:
        refused(ValueError, ["20,001", "at most 20,000", "restrict"], lambda name=name: nm.LOSSES[name](many))


@every_loss
def test_a_common_offset_does_not_cost_digits(name: str) -> None:
    """float32 rounds 1,700,000,001 and 1,700,000,002 to the same number; only their distance matters."""
    loss = nm.LOSSES[name](vocab_of(*(1.7e9 + i for i in range(8))), outside="ignore")
    logits = torch.randn(6, 10, generator=torch.Generator().manual_seed(3))
    labels = torch.tensor([0, 3, 7, 4, 1, 5])
    value, truth = loss(logits, labels), loss(logits.double(), labels)
    # What a relative error of 1e-9 costs is rounding error, and nearly nothing.
    assert float(value.detach()) == pytest.approx(float(truth), rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("at", [1e4, 65504.0, -65504.0])
def test_cross_entropy_of_large_logits_is_exact(at: float, smoothing: float) -> None:
    """A common offset changes nothing; rounding the log-sum-exp of 65,504 to float32 costs 0.002."""
    logits = torch.full((4, 17), at, requires_grad=True)
    labels = torch.tensor([1, 2, 3, -100])
    objective = nm.NumericObjective(nm.EMDLoss(VOCABS["digits"]), weight=0.0, label_smoothing=smoothing)
    value = objective(logits, labels).loss
    expected = F.cross_entropy(logits, labels, label_smoothing=smoothing)
    assert float(value.detach()) == pytest.approx(float(expected.detach()), rel=1e-6)
    assert torch.allclose(grad_of(value, logits), grad_of(expected, logits), rtol=1e-5, atol=1e-8)
    with torch.no_grad():
        assert float(objective(logits, labels).loss) == pytest.approx(float(expected.detach()), rel=1e-6)


def test_soft_targets_of_large_logits_are_exact() -> None:
    soft = nm.targets.SoftTargets(torch.tensor([[0, 0]]), torch.tensor([[3, 4]]), torch.tensor([[0.75, 0.25]]))
    objective = nm.NumericObjective(None)
    shifted = [objective(torch.full((1, 1, 12), at), torch.tensor([[3]]), soft=soft).loss for at in (0.0, 65504.0)]
    assert float(shifted[0]) == pytest.approx(float(shifted[1]), rel=1e-6)


@pytest.mark.parametrize("gradient", ["compiled", "eager"])
def test_a_nan_in_an_ignored_row_reaches_no_gradient(gradient: str) -> None:
    objective: Any = nm.NumericObjective(nm.EMDLoss(VOCABS["digits"]))
    if gradient == "compiled":
        torch._dynamo.reset()
        objective = torch.compile(objective, fullgraph=True, backend="eager")
    logits = torch.zeros(3, 12)
    logits[1] = torch.nan
    logits.requires_grad_()
    value = objective(logits, torch.tensor([4, -100, 2])).loss
    assert bool(value.isfinite())
    grad = grad_of(value, logits)
    assert bool(grad.isfinite().all())
    assert not grad[1].any()


def test_match_ce_of_a_huge_cross_entropy_without_numbers() -> None:
    logits = torch.zeros(1, 12)
    logits[0, 5] = torch.finfo(torch.float32).max
    logits.requires_grad_()
    value = nm.NumericObjective(nm.EMDLoss(VOCABS["digits"]), scale="match_ce")(logits, torch.tensor([0])).loss
    assert float(value.detach()) == pytest.approx(torch.finfo(torch.float32).max)
    assert bool(grad_of(value, logits).isfinite().all())


@pytest.mark.parametrize("numbers", ["values", "runs"])
def test_ntil_of_logits_at_the_limit(numbers: Any) -> None:
    """Dividing by tau = 0.1 would overflow."""
    labels = torch.tensor(encode("12", SIGNS))
    logits = torch.zeros(len(labels), VOCABS["signs"].vocab_size).scatter(1, labels[:, None], torch.finfo(torch.float32).max)
    logits.requires_grad_()
    value = nm.NTILLoss(VOCABS["signs"], numbers=numbers)(logits, labels)
    assert bool(value == 0)
    assert bool(grad_of(value, logits).isfinite().all())


@pytest.mark.parametrize("text", ["2e12", "-1.5e-7", "123456789012345", "0.123456789012345"])
def test_digits_that_the_number_loss_does_not_read_have_no_gradient(text: str) -> None:
    """Powers of ten, and digits far below the leading one: the written-out gradient is that of autograd."""
    texts = {character: i for i, character in enumerate("0123456789.-e")}
    vocab = nm.NumericVocab.from_texts(texts, vocab_size=13)
    loss, labels = nm.NumberLoss(vocab), torch.tensor([texts[character] for character in text])
    targets = loss.targets(labels)
    z, _ = loss.select(random_logits(labels, vocab), targets)
    value, dz, _ = loss.value_and_grad(z, None, targets)
    true_value, true_dz, _ = nm.NumericLoss.value_and_grad(loss, z, None, targets)
    torch.testing.assert_close(value, true_value, rtol=1e-10, atol=0)
    torch.testing.assert_close(dz, true_dz, rtol=1e-9, atol=1e-12)


def test_repaired_smmd_of_a_wide_range_needs_no_matrix_for_each_sigma(monkeypatch: pytest.MonkeyPatch) -> None:
    """300 sigmas: a stack of their matrices would have 300 times the memory."""
    monkeypatch.setattr(torch, "stack", lambda *_, **__: pytest.fail("stacked"))
    loss = nm.SMMDLoss(vocab_of(0.0, 1.0, 1e300), variant="repaired")
    assert len(loss.sigma) == 300  # type: ignore[arg-type]


@pytest.fixture(params=["unread", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A GPU, or a CPU that does what a GPU does: masks, because reading labels would mean waiting."""
    if request.param == "cuda":
        return "cuda"
    for module in [module for module in sys.modules.values() if vars(module).get("reads_freely") is reads_freely]:
        monkeypatch.setattr(module, "reads_freely", lambda tensor: False)
    return "cpu"


@pytest.mark.parametrize("outside", ["ignore", "penalize"])
@every_loss
def test_rows_without_a_label_hold_anything_on_a_gpu(name: str, outside: str, device: str) -> None:
    """And the gradient is that of the plain formula."""
    objective = nm.NumericObjective(nm.LOSSES[name](VOCABS["signs"], outside=outside), label_smoothing=0.1).to(device)
    labels = encode_batch(["12.5", "x3x7"], SIGNS)
    labels[0, 0] = labels[1, 2:] = -100
    logits = random_logits(labels, VOCABS["signs"], torch.float32)
    parts = []
    for anything in (0.0, torch.nan, torch.inf):
        given = torch.where((labels == -100)[..., None], anything, logits).to(device).requires_grad_()
        value = objective(given, labels.to(device)).loss
        parts.append((value.detach(), grad_of(value, given)))
    (value, grad), *others = parts
    given = logits.where(labels[..., None] != -100, 0.0).to(device).requires_grad_()
    cross_entropy = F.cross_entropy(given.flatten(0, 1), labels.flatten().to(device), label_smoothing=0.1)
    expected = grad_of(cross_entropy + objective.weight * objective.numeric_loss(given, labels.to(device)), given)
    assert relative(grad - expected, expected) < 1e-5
    assert bool(grad[labels != -100].any())
    assert not grad[labels == -100].any()
    for other, its_grad in others:
        assert torch.equal(other, value)
        assert torch.equal(its_grad, grad)


@pytest.mark.parametrize("outside", ["ignore", "penalize"])
@every_loss
def test_the_gradient_of_a_nan_stays_in_its_sequence_on_a_gpu(name: str, outside: str, device: str) -> None:
    """Rows of no number are computed from those of the first one, which is NaN here, and blanked."""
    objective = nm.NumericObjective(nm.LOSSES[name](VOCABS["signs"], outside=outside)).to(device)
    labels = encode_batch(["12.5", "x3x7"], SIGNS).to(device)
    logits = random_logits(labels.cpu(), VOCABS["signs"], torch.float32).to(device)
    logits[0] = torch.nan
    grad = grad_of(objective(logits.requires_grad_(), labels).loss, logits)
    assert bool(grad[0].isnan().any())
    assert bool(grad[1].isfinite().all())
    assert bool(grad[1].any())


@pytest.mark.parametrize(("smallest", "same"), [(1e-310, 1.0), (5e-324, 0.5)])
def test_the_unit_of_values_does_not_matter(smallest: float, same: float, device: str) -> None:
    """Not where 1 / unit, by which a GPU may multiply, is infinite, nor where 10 ** -324, the leading place of 1e-323, is 0."""
    logits = torch.tensor([[0.5, 0.2, -0.4, 0.1, 0.0]])
    small, usual = (nm.NumberLoss(vocab_of(0.0, unit, 2 * unit)).to(device) for unit in (smallest, same))
    for label in range(3):
        given = logits.to(device), torch.tensor([label], device=device)
        assert float(small(*given)) == pytest.approx(float(usual(*given)), rel=1e-4)


def test_digit_entropy_of_tied_large_logits() -> None:
    """Its gradient is a difference of costs of 10,000, which float32 represents to 0.001."""
    loss = nm.LOSSES["digit_entropy"](vocab_of(*range(15)), outside="ignore")
    logits = torch.full((1, 17), -1e4)
    logits[0, [0, 4, 6, 8, 9, 10]] = 1e4
    grads = []
    for dtype in (torch.float32, torch.float64):
        given = logits.to(dtype).requires_grad_()
        grads.append(grad_of(1000 * loss(given, torch.tensor([3])), given).double())
    torch.testing.assert_close(*grads, rtol=1e-6, atol=1e-6)
