"""RAFT's squared error of the mean: by hand, and against NTL-MSE."""

from __future__ import annotations

import pytest
import torch
from tests.reference import raft_reference
from tests.samples import BATCHES, VOCABS, certain, random_logits

import numerate as nm

RATINGS = nm.NumericVocab.from_values({rating: float(rating) for rating in range(1, 6)}, vocab_size=7)


@pytest.mark.parametrize(
    ("mass", "label", "cost"),
    [
        ({2: 0.5, 4: 0.5}, 3, 0.0),  # blind to spread
        ({2: 0.25, 4: 0.25, 6: 0.5}, 3, 2.25),  # half on text: the mean is 1.5
        ({3: 1.0}, 5, 4.0),
        ({6: 1.0}, 5, 25.0),
        ({6: 1.0}, 1, 1.0),
    ],
)
def test_by_hand(mass: dict[int, float], label: int, cost: float) -> None:
    logits = torch.full((1, 7), -60.0, dtype=torch.float64)
    for token, p in mass.items():
        logits[0, token] = torch.tensor(p, dtype=torch.float64).log()
    assert float(nm.losses.RAFTLoss(RATINGS)(logits, torch.tensor([label]))) == pytest.approx(cost, abs=1e-12)


@pytest.mark.parametrize("vocab", ["marks", "chunks", "ratings"])
def test_renormalised_it_is_ntl_mse(vocab: str) -> None:
    labels = BATCHES[vocab]
    logits = random_logits(labels, VOCABS[vocab])
    ours, theirs = (loss(VOCABS[vocab], outside="ignore")(logits, labels) for loss in (nm.losses.RAFTLoss, nm.losses.NTLMSELoss))
    torch.testing.assert_close(ours, theirs)
    assert not torch.allclose(nm.losses.RAFTLoss(VOCABS[vocab])(logits, labels), theirs)


@pytest.mark.parametrize("scale", ["fixed", "match_ce"])
def test_the_paper_s_form_in_the_objective(scale: str) -> None:
    """From logits and fused: mass on text has its gradient there, too."""
    vocab, labels = VOCABS["marks"], BATCHES["marks"]
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(*labels.shape, 8, generator=generator, dtype=torch.float64).requires_grad_()
    head = torch.randn(vocab.vocab_size, 8, generator=generator, dtype=torch.float64).requires_grad_()
    objective = nm.NumericObjective(nm.losses.RAFTLoss(vocab), weight=0.7, scale=scale)  # type: ignore[arg-type]
    logits = hidden @ head.T
    numeric, ce = (
        objective.numeric_loss(logits, labels),
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()),
    )
    factor = 0.7 if scale == "fixed" else 0.7 * (ce / (numeric + 1e-10)).detach()
    expected = torch.autograd.grad(ce + factor * numeric, (hidden, head), retain_graph=True)
    for out in (objective(logits, labels), objective.fused(hidden, head, labels)):
        torch.testing.assert_close(out.loss, ce + factor * numeric)
        torch.testing.assert_close(torch.autograd.grad(out.loss, (hidden, head), retain_graph=True), expected)


def test_it_replaces_cross_entropy_where_token_weights_are_0() -> None:
    vocab, labels = VOCABS["marks"], BATCHES["marks"]
    logits, loss = random_logits(labels, vocab), nm.losses.RAFTLoss(vocab)
    text = (vocab.index_of(labels) < 0).double()
    out = nm.NumericObjective(loss, weight=1.0)(logits, labels, token_weights=text)
    only_text = torch.where(text > 0, labels, -100)
    cross_entropy = torch.nn.functional.cross_entropy(logits.flatten(0, 1), only_text.flatten())
    torch.testing.assert_close(out.loss, cross_entropy + loss(logits, labels))


def test_a_longer_number_is_one_regression_per_token() -> None:
    vocab = VOCABS["digits"]
    label, guess = torch.tensor([2, 3]), torch.tensor([2, 10])  # 12, and 19
    assert nm.losses.RAFTLoss(vocab)(certain(guess, 12), label, reduction="none").tolist() == pytest.approx([0, 49])


def test_extreme_mass_on_text_is_exact_in_float32() -> None:
    labels = torch.tensor([[5, 3, 1]])
    for lead in (-100.0, -12.0, 0.0, 12.0, 100.0):
        logits = random_logits(labels, RATINGS, torch.float32, padding=0)
        logits[..., [0, 6]] += lead
        truth = raft_reference(logits, labels, RATINGS).mean
        torch.testing.assert_close(nm.losses.RAFTLoss(RATINGS)(logits, labels).double(), truth, rtol=2e-6, atol=0)


def test_advice() -> None:
    assert nm.losses.RAFTLoss.advice(RATINGS)[0] == "fair"
    assert nm.losses.RAFTLoss.advice(nm.NumericVocab.from_texts({str(n): n for n in range(100)}, vocab_size=100)) == (
        "poor",
        "squared distances reach 9,801",
    )
