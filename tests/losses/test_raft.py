"""RAFT's squared error of the mean: by hand, and far from the digits."""

from __future__ import annotations

import pytest
import torch
from tests.reference import raft_reference
from tests.samples import random_logits

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
