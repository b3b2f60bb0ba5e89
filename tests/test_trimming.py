"""Specks of probability far from the rest of a distribution do not move a decision away from it."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from numerate.distribution import CircularDistribution, NumberDistribution
from numerate.distribution.decision_rules import CIRCLE_RULE_NAMES, RULE_NAMES

SPECK = st.floats(1e-4, 1e-2)
# One at most of each kind: at most 3 % lie below the main mass, and 2 % above.
PLACES = ("0", "0.001", "1", "-1", "-1e9", "1e9", "1e30")
OPTIONS: dict[str, dict[str, Any]] = {"within": {"tolerance": 2}}


def off(cost: str, answer: Decimal, main: NumberDistribution) -> float:
    """Return the expected cost of an answer if the truth is drawn from the main mass."""
    away = np.abs(main.floats - float(answer))
    if cost == "relative":
        away = away / np.abs(main.floats)
    return float(away @ main.probabilities)


def with_specks(main: NumberDistribution, specks: dict[str, float]) -> NumberDistribution:
    rest = 1 - sum(specks.values())
    return NumberDistribution([*main.values, *specks], [*(main.probabilities * rest), *specks.values()])


@example(  # a few specks near each other, and a broad bell
    center=1500,
    relative="0.05",
    shape="laplace",
    below=dict.fromkeys(PLACES[:4], 0.0078125),
    above={},
)
@example(center=1000, relative="0.3", shape="uniform", below={"1": 0.01}, above={"1e9": 0.01})
@settings(max_examples=40)
@given(
    center=st.integers(20, 10**6),
    relative=st.sampled_from(["0", "0.001", "0.05", "0.3"]),
    shape=st.sampled_from(["gaussian", "laplace", "uniform"]),
    below=st.dictionaries(st.sampled_from(PLACES[:5]), SPECK, max_size=4),
    above=st.dictionaries(st.sampled_from(PLACES[5:]), SPECK, max_size=2),
)
def test_no_decision_is_ruined_by_specks(
    center: int, relative: str, shape: Any, below: dict[str, float], above: dict[str, float]
) -> None:
    main = NumberDistribution.bell(center, relative=relative, shape=shape, lowest=1, at_most=101)
    found = with_specks(main, below | above)
    assert found.decide("median") == found.median
    assert main.values[0] <= found.decide("relative") <= main.values[-1]
    for rule in RULE_NAMES:
        answer = found.decide(rule, **OPTIONS.get(rule, {}))
        for cost in ("absolute", "relative"):
            assert off(cost, answer, main) <= 10 * off(cost, found.median, main), rule


@settings(max_examples=40)
@given(
    center=st.integers(0, 719),
    width=st.sampled_from([0, 1, 5, 20]),
    specks=st.dictionaries(st.integers(0, 719), SPECK, max_size=4),
)
def test_no_decision_on_a_circle_is_ruined_by_specks(center: int, width: int, specks: dict[int, float]) -> None:
    main = NumberDistribution.bell(center, width=width)
    found = CircularDistribution(with_specks(main, {str(place): p for place, p in specks.items()}), 720)

    def gap(x: Decimal) -> float:
        away = np.abs(main.floats - float(x)) % 720
        return float(np.minimum(away, 720 - away) @ main.probabilities)

    for rule in CIRCLE_RULE_NAMES:
        assert gap(found.decide(rule, **OPTIONS.get(rule, {}))) <= 10 * gap(found.median), rule


@pytest.mark.parametrize("metric", ["relative", "mean"])
def test_exact_decisions_can_be_asked_for(metric: str) -> None:
    found = with_specks(NumberDistribution.bell(10_000, relative=0.05), {"1": 0.01, "1e9": 0.01})
    exact = found.decide(metric, trim=False)
    assert exact == (1 if metric == "relative" else found.mean)
    assert abs(found.decide(metric) - 10_000) < 100
    assert found.mean > 10**6  # properties are exact


def test_trimming_is_visible_and_leaves_ordinary_distributions_alone() -> None:
    found = with_specks(NumberDistribution.bell(10_000, relative=0.05), {"1": 0.01})
    kept = found.trimmed()
    assert (round(kept.covered, 9), round(kept.not_searched, 9)) == (0.99, 0.01)
    drawn = NumberDistribution.from_samples([10] * 50 + [11] * 48 + [10**9] * 2).trimmed()
    assert drawn.drawn == drawn.covered == pytest.approx(0.98)
    for plain in (
        NumberDistribution.bell(100, width=10),
        NumberDistribution.bell(100, width=30, shape="uniform"),
        NumberDistribution([1, 10, 11, 100], [0.4, 0.15, 0.2, 0.25]),
        NumberDistribution([10, 1000], [0.94, 0.06]),
        NumberDistribution.from_samples([1, 2, 10**9]),
    ):
        assert plain.trimmed() is plain
    face = CircularDistribution(NumberDistribution([715, 3, 360], [0.5, 0.44, 0.06]), 720)
    assert face.trimmed() is face


def test_small_values_are_stray_for_a_relative_error_alone() -> None:
    found = NumberDistribution([1, 20, 60], [0.049, 0.5, 0.451])
    assert found.trimmed() is found
    assert found.trimmed(relative=True).values == (20, 60)
    assert (found.decide("relative"), found.decide("relative", trim=False)) == (20, 1)
