"""Pools against brute force, their spread, and fitted weights against scipy."""

from __future__ import annotations

from decimal import Decimal
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

from numerate.calibration import fit_pool_weights
from numerate.distribution import CircularDistribution, NumberDistribution, pool, spread

ND = NumberDistribution
MASSES = st.floats(0.01, 1)
LINES = st.lists(st.tuples(st.decimals(-50, 50, places=1), MASSES), min_size=1, max_size=5).map(ND.from_pairs)
WIDTHS = (0.6, 1.0, 3.0, 6.0)
MEMBERS = st.lists(st.tuples(LINES, MASSES, st.floats(0.1, 1)), min_size=1, max_size=4)


def _covering(line: ND, covered: float) -> ND:
    return ND(line.values, line.probabilities, covered=covered)


def _distance(x: float, y: float, period: float | None) -> float:
    away = abs(x - y)
    return away if period is None else min(away, period - away)


@pytest.mark.parametrize("period", [None, 101])
@given(members=MEMBERS)
def test_pool_and_spread_against_brute_force(period: int | None, members: list[tuple[ND, float, float]]) -> None:
    lines = [_covering(line, covered) for line, _, covered in members]
    weights = [weight for _, weight, _ in members]
    parts: list[Any] = lines if period is None else [CircularDistribution(line, period, -50) for line in lines]
    joint: dict[Decimal, float] = {}
    for part, line, weight in zip(parts, lines, weights, strict=True):
        for value, p in zip(part.values, part.probabilities.tolist(), strict=True):
            joint[value] = joint.get(value, 0.0) + weight * line.covered * p
    total = sum(joint.values())
    pooled = pool(parts, weights)
    assert type(pooled) is type(parts[0])
    assert dict(zip(pooled.values, pooled.probabilities.tolist(), strict=True)) == pytest.approx(
        {value: mass / total for value, mass in joint.items()}
    )

    def expected_crps(part: Any) -> float:
        pairs = list(zip(part.floats.tolist(), part.probabilities.tolist(), strict=True))
        return sum(p * q * _distance(x, y, period) for (x, p), (y, q) in product(pairs, pairs)) / 2

    found = spread(parts, weights)
    shares = np.array(weights) * [line.covered for line in lines]
    within = float(shares / shares.sum() @ [expected_crps(part) for part in parts])
    assert found.within == pytest.approx(within, abs=1e-9)
    assert found.total == pytest.approx(expected_crps(pooled), abs=1e-9)
    assert found.between >= 0


@given(members=MEMBERS)
def test_quantiles_are_averaged(members: list[tuple[ND, float, float]]) -> None:
    lines, weights = [line for line, _, _ in members], np.array([weight for _, weight, _ in members])
    pooled = pool(lines, weights, average="quantiles")
    for level in np.linspace(0.013, 0.987, 23).tolist():  # not at a step of a quantile function
        steps = [abs(line.cdf(value) - level) for line in [*lines, pooled] for value in line.values]
        if min(steps) > 1e-6:
            expected = weights / weights.sum() @ [float(line.quantile(level)) for line in lines]
            assert float(pooled.quantile(level)) == pytest.approx(expected, abs=1e-9)


def test_equal_members_change_nothing() -> None:
    price = ND.bell("84.50", width=1)
    for average in ("probabilities", "quantiles"):
        pooled = pool([price] * 3, average=average)
        assert pooled.values == price.values
        np.testing.assert_allclose(pooled.probabilities, price.probabilities, atol=1e-10)
    assert spread([price] * 3).between == pytest.approx(0, abs=1e-12)
    assert spread([ND.point(5)]) == (0, 0)


def test_shares_of_members_are_pooled() -> None:
    members = [ND([1], [1], covered=0.8, no_number=0.2), ND([2], [1], covered=0.4, more_digits=0.6)]
    for average in ("probabilities", "quantiles"):
        found = pool(members, average=average)
        assert (found.covered, found.no_number, found.more_digits) == pytest.approx((0.6, 0.1, 0.3))
    assert pool(members).probabilities.tolist() == pytest.approx([2 / 3, 1 / 3])
    assert pool(members, average="quantiles").values == (Decimal("1.333333333333333"),)


def test_a_tiny_mass_far_away_adds_little() -> None:
    member = ND([10, 11, 10**9], [0.5, 0.4999999, 1e-7])
    assert member.std > 1e5
    assert spread([member]).within < 101


@pytest.mark.parametrize("period", [None, 60])
@pytest.mark.parametrize("covered", [1.0, 0.5])
def test_weights_equal_those_of_scipy(period: int | None, covered: float) -> None:
    rng = np.random.default_rng(0)
    truths = rng.integers(20, 40, size=60)
    lines = [
        [
            _covering(ND.bell(truth + round(rng.normal(0, width)), width=max(1, width)), covered if width == WIDTHS[0] else 1)
            for width in WIDTHS
        ]
        for truth in truths.tolist()
    ]
    rows = lines if period is None else [[CircularDistribution(line, period) for line in row] for row in lines]
    found = fit_pool_weights(rows, truths)
    assert found.sum() == pytest.approx(1)
    assert found.min() >= 0

    grid = np.arange(-60, 121)
    masses = np.zeros((60, 4, len(grid)))  # what each member covers of each number
    for row, member in product(range(60), range(4)):
        line = lines[row][member]
        masses[row, member, line.floats.astype(int) + 60] = line.covered * line.probabilities
    apart = np.abs(grid[:, None] - grid)
    halves = [float(np.subtract(*ND.mixed(row).interval(0.98)[::-1])) / 2 for row in lines]
    scales = np.array(halves) + sorted(halves)[29] / 2
    if period is not None:
        apart, scales = np.minimum(apart % period, -apart % period), np.full(60, period)

    def score(weights: Any) -> float:
        p = np.einsum("i,rik->rk", weights, masses)
        p /= p.sum(axis=1, keepdims=True)
        crps = np.einsum("rk,rk->r", p, apart[truths + 60]) - np.einsum("rk,kl,rl->r", p, apart, p) / 2
        return float((crps / scales).mean())

    simplex = {"type": "eq", "fun": lambda weights: weights.sum() - 1}
    best = minimize(score, np.full(4, 1 / 4), method="SLSQP", bounds=[(0, 1)] * 4, constraints=simplex, options={"ftol": 1e-12})
    assert score(found) == pytest.approx(best.fun, rel=1e-6)
    np.testing.assert_allclose(found, best.x, atol=2e-3)
    assert score(found) < 0.95 * score(np.full(4, 1 / 4))


def test_weights_are_equal_where_fitted_ones_are_not_better() -> None:
    rng = np.random.default_rng(1)
    truths = rng.normal(50, 5, size=200).round().tolist()
    rows = [[ND.bell(round(truth + noise), width=2) for noise in rng.normal(0, 2, size=3)] for truth in truths]
    assert fit_pool_weights(rows[:9], truths[:9]).tolist() == [1 / 3] * 3
    assert np.abs(fit_pool_weights(rows, truths) - 1 / 3).max() < 0.1
    assert fit_pool_weights([row[:1] for row in rows], truths).tolist() == [1.0]


def test_one_far_truth_does_not_decide() -> None:
    good, bad = ND.bell(10, width=1), ND.bell(14, width=1)
    found = fit_pool_weights([[good, bad]] * 40, [9, 10, 10, 11] * 9 + [10, 10, 10, 10**9])
    assert found[0] > 0.9


def test_refusals() -> None:
    face = CircularDistribution(ND.point(1), 12)
    cases: list[tuple[type[Exception], Any, str]] = [
        (ValueError, lambda: pool([]), "at least one distribution"),
        (TypeError, lambda: pool([ND.point(1), 2]), "distributions contains 2"),
        (TypeError, lambda: pool(ND.point(1)), "expected a list"),
        (ValueError, lambda: pool([ND.point(1), face]), "a circle of 12 from 0, a line"),
        (ValueError, lambda: pool([face, CircularDistribution(ND.point(1), 24)]), "expected all on a line, or all on the same"),
        (ValueError, lambda: pool([face], average="quantiles"), "undefined on a circle"),
        (ValueError, lambda: pool([ND.point(1)], average="median"), "average='median'"),
        (ValueError, lambda: spread([]), "at least one distribution"),
        (ValueError, lambda: pool([ND.point(1)], [1, 2]), r"weights has shape \(2,\) for 1 distributions"),
        (ValueError, lambda: fit_pool_weights([[ND.point(1)]], [1, 2]), "members has 1 rows with 1 distributions"),
        (ValueError, lambda: fit_pool_weights([[ND.point(1)], [ND.point(1)] * 2], [1, 2]), "with 1, 2 distributions"),
        (ValueError, lambda: fit_pool_weights([], []), "members has 0 rows with no distributions"),
    ]
    for kind, call, message in cases:
        with pytest.raises(kind, match=message):
            call()
