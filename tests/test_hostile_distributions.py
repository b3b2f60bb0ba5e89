"""Hostile distributions and targets, masses that cannot be and 400 digits: one that adds up, or a clear error."""

from __future__ import annotations

import math
import random
from collections import Counter
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from tests.samples import refused

from numerate import NumberDistribution
from numerate.targets import TokenTrie

CASES = 2000
ODD_VALUES: list[Any] = [
    *(0, -0.0, "-0", "007", "1e9000", "1e-9000", "9" * 400, "-" + "9" * 400, "0." + "0" * 400 + "1", 10**5000, 5e-324, 1.7e308),
    *(Fraction(1, 3), Fraction(1, 10**400 + 1), Decimal("1E+400"), np.float32(0.1), np.int64(7), "1e5", " 12 "),
]
WRONG_VALUES: list[Any] = [
    *(math.nan, math.inf, "nan", "1_0", "٣", "\ud800", "\0", "", "1e10001", "9" * 10_001, 1 << 10**6, Decimal("sNaN")),
    *(True, None, [1], 1j, b"12", "1" * 10**6, Fraction(1, 2**40_000)),
]
ODD_MASSES = [0.0, 5e-324, 1e-320, 1e308, 1.7e308, 1.0, 1e-9]
WRONG_MASSES: list[Any] = [math.nan, math.inf, -1.0, -5e-324, "x", None, 1j]


def drawn(index: int) -> tuple[list[Any], list[Any], bool]:
    """Values, their masses, and whether they must be refused."""
    rng = random.Random(index)
    size = rng.choice((0, 1, 2, 5, 30))
    values = [rng.choice((rng.choice(ODD_VALUES), rng.randrange(-5, 5), rng.uniform(-1, 1))) for _ in range(size)]
    masses = [rng.choice((rng.choice(ODD_MASSES), rng.random(), 3.0)) for _ in range(size)]
    wrong = size == 0 or not any(masses)
    fault = rng.random()
    if size and fault < 0.15:
        values[rng.randrange(size)], wrong = rng.choice(WRONG_VALUES), True
    elif size and fault < 0.3:
        masses[rng.randrange(size)], wrong = rng.choice(WRONG_MASSES), True
    elif fault < 0.35:
        masses, wrong = [*masses, 1.0], True
    return values, masses, wrong


def test_two_thousand_distributions() -> None:
    outcomes: Counter[str] = Counter()
    for index in range(CASES):
        values, masses, wrong = drawn(index)
        try:
            found = NumberDistribution(values, masses)
        except (ValueError, TypeError) as error:
            outcomes["refused"] += 1
            if not wrong or "expected" not in str(error) or len(str(error)) > 500:
                pytest.fail(f"case {index}: {error!r:.300}")
            continue
        assert not wrong, index
        outcomes["made"] += 1
        check_distribution(found, index)
    assert min(outcomes["refused"], outcomes["made"]) > CASES / 5


def check_distribution(found: NumberDistribution, index: int) -> None:
    p = found.probabilities
    assert np.isfinite(p).all(), index
    assert (p > 0).all(), index
    assert math.isclose(p.sum(), 1, rel_tol=1e-9), index
    assert list(found.values) == sorted(set(found.values)), index
    low, high = found.values[0], found.values[-1]
    for answer in (found.median, found.mean, found.mode, *found.interval(0.9), found.decide("relative"), found.quantile(0.0)):
        assert low <= answer <= high, index
    assert found.crps(found.median) >= 0, index
    assert found.variance >= 0, index
    assert len(repr(found)) < 300, index
    assert len(found.to_text()) < 5000, index
    for temperature in (1e-320, 1e-3, 1e300):
        assert math.isclose(found.tempered(temperature).probabilities.sum(), 1, rel_tol=1e-9), index


@pytest.mark.parametrize("value", [1 << 10**7, -(1 << 10**7), Fraction(1, 1 << 10**7)], ids=["int", "negative", "fraction"])
def test_a_number_of_millions_of_digits_is_refused_before_it_is_converted(value: Any) -> None:
    refused(ValueError, ["values", "too many digits", "10,000"], lambda: NumberDistribution([value], [1.0]))


@pytest.mark.parametrize(
    ("sequences", "masses", "parts"),
    [
        ([], [], ["at least one"]),
        ([[1], [2]], [math.nan, 1.0], ["nan", "expected"]),
        ([[1], [2]], [-1.0, 1.0], ["-1", "expected"]),
        ([[1], [2]], [0.0, 0.0], ["are all 0"]),
        ([[-1], [2]], [1.0, 1.0], ["token id outside", "expected"]),
        ([[1 << 40], [2]], [1.0, 1.0], ["token id outside", "expected"]),
        ([[1] * 10**6, *([2, i] for i in range(10_000))], np.ones(10_001), ["10,001 answers", "1,000,000 tokens", "narrower"]),
    ],
    ids=range(7),
)
def test_trees_of_tokens_that_cannot_be(sequences: Any, masses: Any, parts: list[str]) -> None:
    refused(ValueError, parts, lambda: TokenTrie(sequences, masses))
