"""CircularDistribution: hand-worked times, brute force in fractions, rotation, and the line as a special case."""

from __future__ import annotations

import copy
import pickle
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.samples import refused

import numerate as nm
from numerate.answers.metrics import FACE

ND, Circle = nm.NumberDistribution, nm.distribution.CircularDistribution
RULES = ("median", "mean", "mode")
numbers = st.one_of(st.integers(-40, 40).map(Decimal), st.decimals(-500, 500, places=2))
periods = st.sampled_from([Decimal(12), Decimal(7), Decimal("360"), Decimal(FACE), Decimal("2.5")])


@st.composite
def distributions(draw: st.DrawFn, values: st.SearchStrategy[Any] = numbers) -> ND:
    support = draw(st.lists(values, min_size=1, max_size=8, unique=True))
    masses = st.one_of(st.integers(1, 5).map(float), st.floats(1e-6, 1.0))
    return ND(support, [draw(masses) for _ in support])


def gap(x: Fraction, y: Fraction, period: Fraction) -> Fraction:
    return min((x - y) % period, (y - x) % period)


def pairs(d: Any) -> list[tuple[Fraction, Fraction]]:
    masses = [Fraction(p) for p in d.probabilities.tolist()]
    return [(Fraction(v), p / sum(masses)) for v, p in zip(d.values, masses, strict=True)]


def expected(circle: Any, x: Any, power: int = 1) -> Fraction:
    return sum((p * gap(Fraction(x), y, Fraction(circle.period)) ** power for y, p in pairs(circle)), Fraction(0))


def shifted(d: ND, by: Decimal) -> ND:
    return ND([value + by for value in d.values], d.probabilities)


# Times by hand: minutes after twelve


def test_times_around_twelve() -> None:
    """The line answers half past three, and an interval of the whole day."""
    times = ND([718, 719, 0, 1, 2], [0.1, 0.2, 0.4, 0.2, 0.1])
    face = Circle(times, FACE)
    assert (times.mean, times.interval(0.8)) == (Decimal("216"), (0, 719))
    assert (face.median, face.mean, face.mode, face.interval(0.8), face.interval(0.3)) == (0, 0, 0, (719, 1), (0, 0))
    assert face.unrolled.values == (-2, -1, 0, 1, 2)
    assert face.crps(720) == face.crps(0) == pytest.approx(2 * (0.01 + 0.09))
    opposite = Circle(ND([0, 360], [0.5, 0.5]), FACE)  # every answer is as good as any other: the first on the scale
    assert (opposite.median, opposite.mode, opposite.interval(0.9)) == (0, 0, (0, 360))
    assert [opposite.crps(y) for y in (0, 90, 360, 719)] == [90.0] * 4
    huge = 10**400
    circle = Circle(ND([huge - 1, 1, 2], [0.3, 0.4, 0.3]), huge)
    assert (circle.median, circle.mean, circle.interval(0.9)) == (1, Decimal("0.7"), (huge - 1, 2))


def test_a_far_value_is_near_around_the_circle() -> None:
    face = Circle(ND([700, 10, 20], [0.4, 0.3, 0.3]), FACE)
    assert (face.median, face.interval(0.4), face.interval(0.5)) == (10, (700, 10), (700, 20))
    assert face.mean == 1  # -20, 10 and 20
    assert face.decide("within", tolerance=30) == 10
    assert face.decide("within", tolerance=30, candidates=[715, 350]) == 715
    assert face.decide("within", tolerance=360, candidates=[5, 300]) == 5  # all is within half a turn: the nearest to the median
    assert face.decide(lambda x, y: min((x - y) % 720, (y - x) % 720)) == face.median


def test_the_scale_may_begin_anywhere() -> None:
    compass = Circle(ND([170, -170, 180, -180], [0.4, 0.2, 0.2, 0.2]), 360, lowest=-180)
    assert compass.values == (-180, -170, 170)
    assert compass.probabilities.tolist() == pytest.approx([0.4, 0.2, 0.4])
    assert (compass.median, compass.mean, compass.interval(0.9)) == (-180, 178, (170, -170))
    assert (compass.unroll(170), compass.unroll(530), compass.unroll(0)) == (-190, -190, 0)
    assert compass.decide(lambda x, y: abs(x), candidates=[350, 20]) == -10


@pytest.mark.parametrize("by", range(12))
def test_of_two_means_the_one_below_the_median_is_taken(by: int) -> None:
    """Both sides of the circle are alike, and the answer turns with it."""
    circle = Circle(ND([by, by + 1, by + 11, by + 5, by + 7], [1] * 5), 12)
    assert circle.median == by
    assert expected(circle, by + Fraction("2.4"), 2) == pytest.approx(expected(circle, by + Fraction("9.6"), 2))
    assert (circle.mean - by) % 12 in (Decimal("9.6"), Decimal("-2.4"))


def test_immutable_equal_and_picklable() -> None:
    face = Circle(ND([719, 1], [1, 2]), FACE)
    same = Circle(ND([-1, 721], [1, 2]), "720.0")
    parts = {"covered": 0.7, "drawn": 0.1, "no_number": 0.2, "more_digits": 0.1}
    partly = Circle(ND([721, 1, 719], [1, 1, 2], **parts), FACE)
    assert all({name: getattr(one, name) for name in parts} == parts for one in (partly.distribution, partly.unrolled))
    assert repr(partly) == "CircularDistribution(2 values on a circle of 720: median 719, 90 % from 719 up to 1, covered 0.7)"
    assert face == same == pickle.loads(pickle.dumps(face)) == copy.deepcopy(face)
    assert hash(face) == hash(same)
    assert face != Circle(ND([719, 1], [1, 2]), 1440)
    with pytest.raises(AttributeError):
        face.period = 3


# Brute force


@settings(max_examples=80)
@given(distributions(), periods)
def test_decisions_are_the_best_of_all_numbers(d: ND, period: Decimal) -> None:
    """No value, no opposite of a value and nothing between them costs less."""
    circle = Circle(d, period)
    turn = Fraction(period)
    kinks = sorted({Fraction(v) % turn for v in circle.values} | {(Fraction(v) + turn / 2) % turn for v in circle.values})
    others = [*kinks, *((a + b) / 2 for a, b in pairwise(kinks))]
    slack = Fraction(1, 10**10) * turn
    assert circle.median in circle.values
    assert expected(circle, circle.median) <= min(expected(circle, x) for x in others) + slack
    # Between two kinks the squared cost is a parabola with its lowest point at the mean of one cut.
    lowest = []
    for x in others:
        cut = [(x - turn / 2 + (v - x + turn / 2) % turn, p) for v, p in pairs(circle)]
        lowest.append(sum(p * v for v, p in cut))
    assert expected(circle, circle.mean, 2) <= min(expected(circle, x, 2) for x in (*others, *lowest)) + slack * turn
    assert circle.probabilities[circle.values.index(circle.mode)] >= circle.probabilities.max() * (1 - 1e-9)


@given(distributions(), periods, st.sampled_from(["0", "0.5", "1", "3", "30", "200"]))
def test_within_is_the_best_of_all_values(d: ND, period: Decimal, tolerance: str) -> None:
    circle = Circle(d, period)
    reach = Fraction(tolerance)
    held = {x: sum(p for y, p in pairs(circle) if gap(Fraction(x), y, Fraction(period)) <= reach) for x in circle.values}
    assert float(max(held.values()) - held[circle.decide("within", tolerance=tolerance, trim=False)]) <= 1e-9


@settings(max_examples=80)
@given(distributions(), periods, numbers)
def test_crps_is_its_double_sum(d: ND, period: Decimal, truth: Decimal) -> None:
    circle = Circle(d, period)
    spread = sum(p * expected(circle, x) for x, p in pairs(circle)) / 2
    score = circle.crps(truth)
    assert score >= 0
    assert score == pytest.approx(float(expected(circle, truth) - spread), rel=1e-9, abs=1e-12 * float(period))


@given(distributions(), periods, st.floats(0.01, 1.0))
def test_interval_holds_its_level_around_the_median(d: ND, period: Decimal, level: float) -> None:
    circle = Circle(d, period)
    low, high = map(Fraction, circle.interval(level))
    length, turn = (high - low) % Fraction(period), Fraction(period)
    inside = [p for v, p in pairs(circle) if (v - low) % turn <= length]
    assert low in circle.values
    assert high in circle.values
    assert float(sum(inside)) >= level - 1e-9
    assert (Fraction(circle.median) - low) % turn <= length
    ends = circle.unrolled.interval(level)
    assert {v for v in circle.values if ends[0] <= circle.unroll(v) <= ends[1]} == {
        v for v in circle.values if (Fraction(v) - low) % turn <= length
    }


# Laws


@settings(max_examples=80)
@given(distributions(), periods, numbers, numbers, st.sampled_from([0, -180, "0.5"]))
def test_rotation_rotates_the_answers(d: ND, period: Decimal, by: Decimal, truth: Decimal, lowest: Any) -> None:
    one, other = Circle(d, period), Circle(shifted(d, by), period, lowest)
    turn = Fraction(period)
    assert other.crps(truth + by) == pytest.approx(one.crps(truth), rel=1e-9, abs=1e-12 * float(period))
    assert expected(other, other.median) == pytest.approx(expected(one, one.median), rel=1e-9, abs=1e-9 * float(period))
    costs = [expected(one, x) for x in one.values]
    median = Fraction(one.median)
    # Symmetric values have several medians, and no rule that does not look at the scale can choose among them.
    assume(all(cost > min(costs) + turn / 10**9 or x == one.median for x, cost in zip(one.values, costs, strict=True)))
    for mine, theirs in [(one.median, other.median), *zip(one.interval(0.8), other.interval(0.8), strict=True)]:
        assert (Fraction(mine) + Fraction(by) - Fraction(theirs)) % turn == 0
    assert Fraction(one.unroll(truth)) - median == Fraction(other.unroll(truth + by)) - Fraction(other.median)
    for rule in RULES:
        away = (Fraction(one.decide(rule)) + Fraction(by) - Fraction(other.decide(rule))) % turn
        assert float(min(away, turn - away)) <= 1e-9 * float(turn), rule


@given(distributions(), numbers, st.decimals("0.01", 900, places=2), st.floats(0.01, 1.0))
def test_a_long_period_is_a_line(d: ND, truth: Decimal, more: Decimal, level: float) -> None:
    ends = (*d.values, truth)
    lowest = min(ends)
    circle = Circle(d, 2 * (max(ends) - lowest) + more, lowest)
    assert circle.values == d.values
    assert circle.unrolled.values == d.values or len(d) == 1
    assert [circle.decide(rule) for rule in RULES] == [d.decide(rule) for rule in RULES]
    assert circle.decide("within", tolerance=3) == d.decide("within", tolerance=3)
    assert circle.interval(level) == d.interval(level)
    assert circle.unroll(truth) == truth
    assert circle.crps(truth) == pytest.approx(d.crps(truth), rel=1e-9, abs=1e-12)


# Errors


@pytest.mark.parametrize(
    ("call", "kind", "parts"),
    [
        (lambda d: Circle(d, 0), ValueError, ["period=0", "> 0"]),
        (lambda d: Circle(d, -360), ValueError, ["period=-360"]),
        (lambda d: Circle(d, "x"), ValueError, ["period='x'"]),
        (lambda d: Circle(d, 360, None), TypeError, ["lowest=None"]),
        (lambda d: Circle([1, 2], 360), TypeError, ["NumberDistribution"]),
        (lambda d: Circle(d, 360).decide("relative"), ValueError, ["metric='relative'", "median"]),
        (lambda d: Circle(d, 360).decide("within_5"), ValueError, ["metric='within_5'"]),
        (lambda d: Circle(d, 360).decide("within"), ValueError, ["tolerance=None"]),
        (lambda d: Circle(d, 360).decide("mode", candidates=[1]), ValueError, ["candidates"]),
        (lambda d: Circle(d, 360).crps("x"), ValueError, ["truth='x'"]),
        (lambda d: Circle(d, 360).interval(0), ValueError, ["level=0"]),
    ],
)
def test_what_is_refused(call: Any, kind: type[Exception], parts: list[str]) -> None:
    refused(kind, [*parts, "expected"], lambda: call(ND([1, 2], [0.5, 0.5])))
