"""Digit Entropy Loss: by hand, and equal to the published code, whose values and gradients are in ``data/del_values.json``."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.reference import digit_entropy_reference
from tests.samples import CHUNKS, MARKS, SIGNS, VOCABS, encode, encode_batch, grad_of, random_logits
from torch import Tensor

import numerate as nm

DATA = json.loads((Path(__file__).parents[1] / "data" / "del_values.json").read_text())
VOCAB = nm.NumericVocab.from_texts(DATA["vocab"], vocab_size=DATA["vocab_size"])
PUBLISHED_WEIGHT = 0.01
every_case = pytest.mark.parametrize("case", DATA["cases"], ids=[case["name"] for case in DATA["cases"]])


def inputs(case: dict[str, Any]) -> tuple[Tensor, Tensor]:
    logits = torch.tensor(case["logits"], dtype=torch.float64).reshape(case["shape"])
    return logits.requires_grad_(), torch.tensor(case["labels"])


def check(case: dict[str, Any], value: Tensor, logits: Tensor) -> None:
    """Value and gradient, within the rounding of the published code.

    The value is the difference of two float32 numbers below 8: total and cross-entropy. Gradients have nine decimals.
    """
    assert float(value.detach()) == pytest.approx(case["loss"], abs=5e-7)
    grad = grad_of(value, logits)
    expected = torch.tensor(case["grad_numeric"], dtype=torch.float64).reshape(*logits.shape[:-1], 10)
    torch.testing.assert_close(grad[..., VOCAB.token_ids], expected, rtol=0, atol=1e-5 * float(expected.abs().max()) + 5e-10)
    assert float(grad.norm()) == pytest.approx(case["grad_norm"], rel=1e-5)


@every_case
def test_value_and_gradient_of_the_published_code(case: dict[str, Any]) -> None:
    """Of the loss, of its reference, and in the objective with the published weight."""
    logits, labels = inputs(case)
    loss = nm.losses.DigitEntropyLoss.released(VOCAB)
    check(case, PUBLISHED_WEIGHT * loss(logits, labels), logits)
    check(case, PUBLISHED_WEIGHT * digit_entropy_reference(logits, labels, VOCAB, variant="released").mean, logits)
    out = nm.NumericObjective(loss, weight=PUBLISHED_WEIGHT)(logits, labels)
    check(case, out.loss - torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()), logits)


@pytest.mark.parametrize("name", ["integers", "decimals", "long", "text only"])
def test_the_default_is_the_published_code_on_plain_numbers(name: str) -> None:
    case = next(case for case in DATA["cases"] if case["name"] == name)
    logits, labels = inputs(case)
    check(case, PUBLISHED_WEIGHT * nm.losses.DigitEntropyLoss(VOCAB)(logits, labels), logits)


def weights(text: str, loss: nm.losses.DigitEntropyLoss, texts: dict[str, int]) -> list[float]:
    """Weight of each digit: the cost of equal logits by that of one digit."""
    labels = torch.tensor(encode(text, texts))
    costs = loss(torch.zeros(len(labels), len(texts)).double(), labels, reduction="none")
    return (costs[loss.vocab.index_of(labels) >= 0] / (math.log(2) / 10)).tolist()


@pytest.mark.parametrize(
    ("text", "ours", "published"),
    [
        ("123", [6, 4, 2], [6, 4, 2]),
        ("12.34", [4, 2, 1.02**-2, 1.02**-3], [4, 2, 1.02**-2, 1.02**-3]),
        ("(-7)", [2], [2]),
        ("1x23", [2, 4, 2], [2, 4, 2]),
        (".34", [1.02**-2, 1.02**-3], [4, 2]),  # a point that begins a number is not seen
        ("12.", [4, 2], [4, 2]),
        ("1.2.3", [2, 1.02**-2, 2], [2, 1.02**-2, 1.02**-4]),  # the second point takes a place
        ("1_23", [2, 4, 2], [6, 4, 2]),  # an ignored label between two numbers
        ("1 23", [2, 4, 2], [2, 4, 2]),
    ],
)
def test_weights_of_the_places(text: str, ours: list[float], published: list[float]) -> None:
    vocab = VOCABS["marks"]
    assert weights(text, nm.losses.DigitEntropyLoss(vocab), MARKS) == pytest.approx(ours)
    assert weights(text, nm.losses.DigitEntropyLoss.released(vocab), MARKS) == pytest.approx(published)


def test_multi_digit_tokens_and_powers_of_ten() -> None:
    """A token has the weight of its last digit; a power of ten is an integer of its own, and moves no other place."""
    found = weights("12345.678", nm.losses.DigitEntropyLoss(VOCABS["chunks"]), CHUNKS)
    assert found == pytest.approx([6, 2, 1.02**-4])  # 123 | 45 . 678
    found = weights("1.5e-12", nm.losses.DigitEntropyLoss(VOCABS["signs"]), SIGNS)
    assert found == pytest.approx([2, 1.02**-2, 2])  # 1 . 5 e- 12


def test_by_hand() -> None:
    """Two digits: 1/10 of p_0 log(1 + e^z0) + p_1 log(1 + e^-z1), times 2 for units."""
    vocab = nm.NumericVocab.from_texts({"0": 0, "1": 1}, vocab_size=3)
    z0, z1 = 0.3, -1.2
    p1 = math.exp(z1) / (math.exp(z0) + math.exp(z1))
    expected = 2 / 10 * ((1 - p1) * math.log1p(math.exp(z0)) + p1 * math.log1p(math.exp(-z1)))
    logits = torch.tensor([[z0, z1, 0.7]], dtype=torch.float64)
    assert float(nm.losses.DigitEntropyLoss(vocab)(logits, torch.tensor([1]))) == pytest.approx(expected)
    with_text = math.exp(0.7) / (math.exp(z0) + math.exp(z1) + math.exp(0.7))
    expected = (1 - with_text) * expected + 2 / 10 * with_text * math.log1p(math.exp(0.7))
    assert float(nm.losses.DigitEntropyLoss(vocab, outside="penalize")(logits, torch.tensor([1]))) == pytest.approx(expected)


@settings(max_examples=60, deadline=None)
@given(lines=st.lists(st.text("0123456789.x-_ ", min_size=1, max_size=9), min_size=1, max_size=3))
def test_any_labels_are_joined_as_the_reference_joins_them(lines: list[str]) -> None:
    vocab, labels = VOCABS["marks"], encode_batch(lines, MARKS)
    logits, loss = random_logits(labels, vocab), nm.losses.DigitEntropyLoss.released(vocab)
    truth = digit_entropy_reference(logits, labels, vocab, variant="released")
    torch.testing.assert_close(loss(logits, labels, reduction="none"), truth.per_position, rtol=1e-9, atol=1e-12)
    targets = loss.targets(labels, compact=False)
    torch.testing.assert_close(loss.per_row(*loss.select(logits, targets), targets).sum(), truth.sum, rtol=1e-9, atol=1e-12)
    assert float(loss.count(labels)) == truth.num_units
