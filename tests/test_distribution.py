"""NumberDistribution: hand-worked cases, laws, and every decision against brute force in fractions."""

from __future__ import annotations

import copy
import math
import pickle
import time
from collections import Counter
from dataclasses import FrozenInstanceError
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.samples import refused

import numerate as nm
from numerate.answers import METRICS, number_distribution
from numerate.answers.numerals import MAX_DIGITS as MAX_DIGITS_OF_ANSWERS
from numerate.distribution import MAX_DIGITS

ND = nm.NumberDistribution
HUGE = 10**400
decimals = st.one_of(
    st.integers(-30, 30).map(Decimal),
    st.decimals(-1000, 1000, places=2),
    st.builds(lambda n, e: Decimal(n).scaleb(e), st.integers(-999, 999), st.integers(-320, 320)),
)


@st.composite
def distributions(draw: st.DrawFn, values: st.SearchStrategy[Any] = decimals) -> ND:
    support = draw(st.lists(values, min_size=1, max_size=8, unique=True))
    masses = st.one_of(st.integers(1, 5).map(float), st.floats(1e-9, 1.0))
    return ND(support, [draw(masses) for _ in support])


def exact(distribution: ND) -> list[tuple[Fraction, Fraction]]:
    """Values and probabilities as fractions; the probabilities have the sum 1."""
    masses = [Fraction(p) for p in distribution.probabilities.tolist()]
    return [(Fraction(v), p / sum(masses)) for v, p in zip(distribution.values, masses, strict=True)]


def strings(*values: Decimal) -> list[str]:
    return [str(value) for value in values]


# Construction


def test_values_are_sorted_merged_and_exact() -> None:
    d = ND([3, "0.30", 0.1 + 0.2, Decimal("3.00"), 7], [0.1, 0.2, 0.3, 0.4, 0.0])
    assert strings(*d.values) == ["0.3", "0.30000000000000004", "3"]
    assert d.probabilities.tolist() == pytest.approx([0.2, 0.3, 0.5], abs=1e-15)
    assert len(d) == 3


@pytest.mark.parametrize(
    ("given", "value"),
    [
        (0.1, "0.1"),
        (np.float32(0.1), "0.1"),
        (np.int64(-7), "-7"),
        (-0.0, "0"),
        (1e22, "1" + 22 * "0"),
        (" +1.50e2 ", "150"),
        (Fraction(1, 8), "0.125"),
        (Fraction(1, 3), "0." + 28 * "3"),
        (Fraction(HUGE, 4), "25" + 398 * "0"),
        (HUGE + 1, str(HUGE + 1)),
        ("1e-400", "1E-400"),
    ],
)
def test_one_spelling_per_value(given: Any, value: str) -> None:
    assert str(ND.point(given).values[0]) == value
    assert ND.point(given) == ND.point(value)


def test_limits_are_those_of_the_answers() -> None:
    assert MAX_DIGITS == MAX_DIGITS_OF_ANSWERS
    assert ND.point(10**MAX_DIGITS - 1).values[0] + 0 > 1
    for many in (10 ** (MAX_DIGITS + 1), "1e999999999", "1e-999999999", "0." + "1" * (MAX_DIGITS + 1)):
        refused(ValueError, ["value=", "too many digits", "expected at most 10,000"], lambda: ND.point(many))  # noqa: B023


@pytest.mark.parametrize(
    ("values", "masses", "parts"),
    [
        ([], [], ["probabilities has shape (0,)", "at least one value"]),
        ([1, 2], [1.0], ["probabilities has shape (1,) for 2 values"]),
        ([1], 1.0, ["probabilities has shape ()"]),
        ([1, 2], [0.5, math.nan], ["probabilities contains nan", "expected finite numbers >= 0"]),
        ([1, 2], [0.5, -0.1], ["probabilities contains -0.1"]),
        ([1, 2], [0.5, math.inf], ["probabilities contains inf"]),
        ([1, 2], [0.0, 0.0], ["probabilities are all 0", "above 0"]),
        ([1, 2], ["a", "b"], ["probabilities=", "expected one number >= 0 per value"]),
        ([1, 2], [[1], [2, 3]], ["probabilities="]),
        *(([1, text], [1, 1], ["values=", "expected int, float, Decimal"]) for text in ("", "1_000", "1,000", "٣", math.nan)),
        *(([1, one], [1, 1], ["values=", "expected int", ".tolist()"]) for one in (None, np.True_, 1j, torch.tensor(1.0))),
    ],
)
def test_values_and_probabilities_that_cannot_be(values: Any, masses: Any, parts: list[str]) -> None:
    refused((TypeError, ValueError), parts, lambda: ND(values, masses))


@pytest.mark.parametrize("scale", [5e-324, 1e-300, 1.0, 1.7e308])
def test_probabilities_of_any_scale(scale: float) -> None:
    assert ND([1, 2, 3], [scale, scale, 0]).probabilities.tolist() == [0.5, 0.5]


def test_shares_of_the_mass() -> None:
    d = ND([1], [0.3], covered=0.5, more_digits=0.2, no_number=0.1)
    assert d.not_searched == pytest.approx(0.2, abs=1e-15)
    assert ND([1], [1.0]).not_searched == 0
    assert ND([1], [1.0], covered=0.9, no_number=0.1).not_searched == 0
    assert ND([1], [1.0], covered=0.5, not_searched=0.1).not_searched == 0.1
    assert ND([1], [1.0], covered=1 + 5e-7).covered == 1
    parts = ["covered=0.9, more_digits=0.2 add up to 1.1", "expected at most 1"]
    refused(ValueError, parts, lambda: ND([1], [1.0], covered=0.9, more_digits=0.2))
    refused(ValueError, ["covered=0"], lambda: ND([1], [1.0], covered=0))


def test_the_drawn_share() -> None:
    assert ND([1], [1.0]).drawn == 0
    assert ND([1], [1.0], covered=0.5, drawn=0.2).drawn == 0.2
    assert ND([1], [1.0], covered=0.5, drawn=0.5 + 5e-7).drawn == 0.5
    refused(ValueError, ["drawn=0.6 is more than covered=0.5", "expected"], lambda: ND([1], [1.0], covered=0.5, drawn=0.6))
    part = ND([1], [1.0], covered=0.5, drawn=0.2)
    assert part != ND([1], [1.0], covered=0.5)
    assert hash(part) != hash(ND([1], [1.0], covered=0.5))
    assert part.not_searched == 0.5  # the drawn mass is covered, and counted once
    assert ND.mixed([part, ND.point(1)], [1, 3]).drawn == pytest.approx(0.05)
    assert ND.from_pairs([(1, 1.0)], drawn=0.25).drawn == 0.25


@pytest.mark.parametrize("name", ["covered", "drawn", "more_digits", "no_number", "not_searched"])
@pytest.mark.parametrize("wrong", [-0.1, 1.1, math.nan, math.inf, "x"])
def test_shares_that_cannot_be(name: str, wrong: Any) -> None:
    refused((TypeError, ValueError), [f"{name}={wrong!r}", "expected"], lambda: ND([1], [1.0], **{name: wrong}))


def test_immutable_equal_hashable_and_picklable() -> None:
    masses = np.array([0.25, 0.75])
    d = ND([1, 2], masses, covered=0.5)
    masses[0] = 9
    assert d.probabilities.tolist() == [0.25, 0.75]
    with pytest.raises(FrozenInstanceError):
        d.covered = 1.0  # type: ignore[misc]
    for array in (d.probabilities, d.floats, copy.deepcopy(d).probabilities, pickle.loads(pickle.dumps(d)).probabilities):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
    for same in (ND([2, 1], [3, 1], covered=0.5), copy.deepcopy(d), pickle.loads(pickle.dumps(d))):
        assert same == d
        assert hash(same) == hash(d)
    for other in (ND([1, 2], [0.25, 0.75]), ND([1, 2], [0.5, 0.5], covered=0.5), ND([1, 3], [0.25, 0.75], covered=0.5), "d"):
        assert other != d


def test_from_pairs() -> None:
    d = ND.from_pairs([(12, 0.2), (15, 0.6), ("12.0", 0.1)], covered=0.9, no_number=0.1)
    assert strings(*d.values) == ["12", "15"]
    assert d.probabilities.tolist() == pytest.approx([1 / 3, 2 / 3], abs=1e-15)
    assert (d.covered, d.no_number, d.not_searched) == (0.9, 0.1, 0)
    assert ND.from_pairs(np.array([[1, 0.25], [2, 0.75]])) == ND.from_pairs({1: 0.25, 2: 0.75}.items()) == ND([1, 2], [1, 3])
    for wrong in ([3, 4], ["12"], [(1, 2, 3)]):
        refused(ValueError, ["pairs contains", "expected (value, probability)", "from_samples"], lambda: ND.from_pairs(wrong))  # type: ignore[arg-type] # noqa: B023


def test_from_samples() -> None:
    d = ND.from_samples(np.array([1.0, 2.0, 2.0, math.nan]))
    assert (strings(*d.values), d.covered, d.no_number, d.not_searched) == (["1", "2"], 0.75, 0.25, 0)
    assert d.drawn == 0.75
    assert d.probabilities.tolist() == pytest.approx([1 / 3, 2 / 3])
    assert ND.from_samples([None, Decimal("NaN"), "7"]).no_number == 2 / 3
    for none in ([], [None, math.nan]):
        refused(ValueError, [f"samples has {len(none)} entries but no number", "expected"], lambda: ND.from_samples(none))  # noqa: B023
    refused(ValueError, ["inf"], lambda: ND.from_samples([1.0, math.inf]))


def test_from_sampled_texts() -> None:
    d = number_distribution(["It is 1,200.", "1200.0", "no idea", "x = 1/3"])
    assert strings(*d.values) == ["0." + 28 * "3", "1200"]
    assert (d.median, d.covered, d.no_number) == (1200, 0.75, 0.25)
    assert number_distribution(["10 of 30"], extractor=lambda text: int(text[:2])) == ND([10], [1.0], drawn=1)
    worked = ["2 + 3 = 5\n#### 5", "It is 6...", "perhaps 5", "no idea"]  # GSM8K's rule reads "6..", which is no number
    assert number_distribution(worked, extractor="gsm8k_flexible") == ND([5], [1.0], covered=0.5, drawn=0.5, no_number=0.5)
    assert number_distribution(worked, extractor="gsm8k_strict") == ND([5], [1.0], covered=0.25, drawn=0.25, no_number=0.75)
    assert number_distribution(["5% of 30"], extractor="percent") == ND(["0.05"], [1.0], drawn=1)
    refused(ValueError, ["extractor='lst_number'", "'last_number'"], lambda: number_distribution(["1"], extractor="lst_number"))
    refused(TypeError, ["texts='12' is a string"], lambda: number_distribution("12"))


def test_mixed() -> None:
    d = ND.mixed([ND.point(1), ND([1, 2], [0.5, 0.5], covered=0.5, no_number=0.25)], [1, 3])
    assert d.probabilities.tolist() == pytest.approx([0.7, 0.3])  # masses 1/4 + 3/16 and 3/16
    assert (d.covered, d.no_number, d.not_searched) == (0.625, 0.1875, 0.1875)
    assert ND.mixed([ND.point(1), ND.point(2)]) == ND([1, 2], [0.5, 0.5])
    refused(ValueError, ["weights has shape (1,) for 2 distributions"], lambda: ND.mixed([ND.point(1), ND.point(2)], [1]))
    refused(ValueError, ["weights", "at least one distribution"], lambda: ND.mixed([]))
    refused(ValueError, ["weights contains -1"], lambda: ND.mixed([ND.point(1), ND.point(2)], [1, -1]))


@pytest.mark.parametrize(
    ("call", "parts"),
    [
        (lambda d: ND("12", [1, 1]), ["values='12' is a str", "[values]"]),
        (lambda d: ND.from_samples("12"), ["samples='12' is a str"]),
        (lambda d: ND.from_pairs(5), ["pairs=5"]),
        (lambda d: ND.mixed([d, 2]), ["distributions contains 2", "point"]),
        (lambda d: ND.mixed(ND.point(1)), ["distributions=NumberDistribution(1 value 1)", "a list"]),
        (lambda d: d.sample(1, "a"), ["seed='a'", "Generator"]),
        (lambda d: d.sample(1, None), ["seed=None"]),
        (lambda d: d.sample(1, True), ["seed=True"]),
        (lambda d: d.sample(True, seed=0), ["n=True"]),
        (lambda d: d.cdf(np.array([1, 2])), ["x=array([1, 2])"]),
        (lambda d: d.sample(-1, seed=0), ["n=-1", "integer >= 0"]),
        (lambda d: d.decide("medain"), ["metric='medain'", "Did you mean 'median'?"]),
        (lambda d: d.decide(["a"]), ["metric=['a']"]),
        (lambda d: d.decide("within"), ["tolerance=None and relative_tolerance=None", "exactly one"]),
        (lambda d: d.decide("within", tolerance=1, relative_tolerance=1), ["exactly one"]),
        (lambda d: d.decide("within", tolerance=-1), ["tolerance=-1", ">= 0"]),
        (lambda d: d.decide("within", tolerance=1, candidates=5), ["candidates=5"]),
        (lambda d: d.decide("within", tolerance=1, candidates=[]), ["candidates is empty"]),
        (lambda d: d.decide("within_5", tolerance=1), ["metric='within_5'", "metric='within'"]),
        (lambda d: d.decide("median", tolerance=1), ["tolerance=1 does not apply to metric='median'", "'within'"]),
        (lambda d: d.decide("median", candidates=[1]), ["candidates=[1]"]),
        (lambda d: d.decide("relative", floor=-1), ["floor=-1"]),
        (lambda d: d.decide(lambda x, y: math.nan), ["metric(1, 1) is nan"]),
        (lambda d: d.quantile(-0.1), ["q=-0.1", ">= 0"]),
        (lambda d: d.quantile(1.1), ["q=1.1", "<= 1"]),
        (lambda d: d.quantile(math.nan), ["q=nan"]),
        (lambda d: d.interval(0), ["level=0", "> 0"]),
        (lambda d: d.interval(1.1), ["level=1.1", "<= 1"]),
        (lambda d: d.cdf(math.nan), ["x=nan"]),
        (lambda d: d.crps(math.inf), ["truth=inf"]),
        (lambda d: d.to_text(rows=0), ["rows=0"]),
        (lambda d: d.to_text(width=0), ["width=0"]),
    ],
)
def test_arguments_that_cannot_be(call: Any, parts: list[str]) -> None:
    refused((TypeError, ValueError), [*parts, "expected"], lambda: call(ND([1, 2], [0.5, 0.5])))


# Summaries


def test_a_point() -> None:
    d = ND.point("0.3")
    assert {d.mode, d.median, d.mean, d.quantile(0), d.quantile(1), *d.interval(0.5)} == {Decimal("0.3")}
    assert (d.variance, d.std, d.crps("0.3"), d.crps(0.1)) == (0, 0, 0, 0.2)
    for metric in ("median", "mean", "relative", "mode", "within_1", lambda x, y: (x - y) ** 2):
        assert d.decide(metric) == Decimal("0.3")


def test_huge_and_tiny_values() -> None:
    far, huge = ND([0, 10**200], [0.5, 0.5]), ND([HUGE, HUGE + 2], [0.5, 0.5])
    assert (far.std, far.variance) == (pytest.approx(0.5e200), math.inf)
    assert (huge.std, huge.crps(HUGE), ND([0, HUGE], [0.5, 0.5]).std, ND.point(HUGE).crps(0)) == (1, 0.5, math.inf, math.inf)
    assert ND(["0", "2e-100"], [0.5, 0.5]).variance == pytest.approx(1e-200)
    assert ND(["1e-200", "3e-200"], [0.5, 0.5]).crps("1e-200") == pytest.approx(0.5e-200)
    assert ND(["1e-300", "1e300"], [0.001, 0.999]).decide("relative", trim=False) == Decimal("1e-300")
    assert ND([HUGE, 3 * HUGE], [0.3, 0.7]).decide("relative") == HUGE  # 0.3 / 1 > 0.7 / 3
    assert ND([HUGE, 3 * HUGE], [0.2, 0.8]).decide("relative") == 3 * HUGE
    # The nearest to the median is found where distances have more digits than Python's Decimals keep.
    d = ND([-HUGE - 1, 0, HUGE], [0.4, 0.2, 0.4])
    assert (d.median, d.mode, d.cdf(HUGE), d.cdf(HUGE - 1)) == (0, HUGE, 1, pytest.approx(0.6))
    assert d.decide("within", tolerance=HUGE, candidates=[-HUGE - 1, HUGE]) == HUGE
    assert ND.bell(HUGE + 7, width=1, shape="uniform").values == (HUGE + 6, HUGE + 7, HUGE + 8)
    assert (ND.bell(HUGE, relative=0.05).median, len(ND.bell(HUGE, relative=0.05))) == (HUGE, 501)
    assert ND.bell("1e-300", width="1e-300", shape="uniform").values == (0, Decimal("1e-300"), Decimal("2e-300"))
    lines = ND(range(long := int("7" * 400), long + 100), [1] * 100).to_text(rows=5).splitlines()
    assert len(lines) in (5, 6)
    assert "…777780 (400 digits) to 7777777…777800 (400 digits)  20.0 %" in lines[1]


def test_a_case_by_hand() -> None:
    d = ND([1, 2, 4, 8], [0.4, 0.1, 0.2, 0.3])
    assert strings(d.mode, d.median, d.mean) == ["1", "2", "3.8"]
    assert d.variance == pytest.approx(0.4 * 1 + 0.1 * 4 + 0.2 * 16 + 0.3 * 64 - 3.8**2)
    assert d.std == pytest.approx(math.sqrt(d.variance))
    assert [d.cdf(x) for x in (0.99, 1, 3, 8, np.float32(np.inf), -math.inf)] == pytest.approx([0, 0.4, 0.5, 1, 1, 0])
    assert d.crps(2) == pytest.approx(0.4**2 * 1 + 0.5**2 * 2 + 0.3**2 * 4)
    assert d.crps(10) == pytest.approx(0.4**2 * 1 + 0.5**2 * 2 + 0.7**2 * 4 + 2)
    assert d.floats.tolist() == [1, 2, 4, 8]


def test_ties() -> None:
    assert ND([1, 2, 3, 4], [1, 1, 1, 1]).median == 2  # the lower of the middle two
    assert ND([1, 2, 3, 4], [1, 1, 1, 1]).mode == 2  # nearest to the median
    assert ND([1, 5, 9], [0.4, 0.2, 0.4]).mode == 1  # equally near: the lower
    assert ND(range(10), [0.1] * 10).median == 4  # although five times 0.1 need not add up to 0.5


@pytest.mark.parametrize("count", [2, 3, 6, 7, 10, 49, 100, 1000])
def test_quantiles_of_equal_masses_are_not_moved_by_rounding(count: int) -> None:
    d = ND(range(1, count + 1), [0.1] * count)
    assert [d.quantile(k / count) for k in range(1, count + 1)] == [*range(1, count + 1)]


def test_mean_is_exact_in_decimals() -> None:
    assert str(ND(["0.1", "0.2"], [0.5, 0.5]).mean) == "0.15"
    assert str(ND(["0.1", "0.2"], [0.3, 0.7]).mean) == "0.17"
    assert str(ND([1, 2, 3], [1, 1, 1]).mean) == "2"
    assert str(ND(["0.1", "0.2", "0.3"], [1, 1, 1]).mean) == "0.2"
    assert ND([HUGE, HUGE + 1], [0.5, 0.5]).mean == Decimal(str(HUGE) + ".5")
    assert ND([-HUGE, HUGE], [0.5, 0.5]).mean == 0
    assert str(ND(["1e-400", "3e-400"], [0.5, 0.5]).mean) == "2E-400"


@given(distributions())
def test_mean_against_fractions(d: ND) -> None:
    truth = sum((v * p for v, p in exact(d)), Fraction(0))
    span = Fraction(d.values[-1]) - Fraction(d.values[0])
    assert abs(Fraction(d.mean) - truth) <= span * Fraction(1, 10**15)
    assert d.values[0] <= d.mean <= d.values[-1]
    mirrored = ND([v.copy_negate() for v in d.values], d.probabilities)
    assert abs(Fraction(mirrored.mean) + Fraction(d.mean)) <= span * Fraction(2, 10**15)


@given(distributions(st.integers(-50, 50)))
def test_variance_against_fractions(d: ND) -> None:
    mean = sum((v * p for v, p in exact(d)), Fraction(0))
    assert d.variance == pytest.approx(float(sum((v - mean) ** 2 * p for v, p in exact(d))), rel=1e-9, abs=1e-12)


@given(distributions(), st.floats(0, 1))
def test_quantile_and_cdf(d: ND, q: float) -> None:
    """The quantile is the lowest value whose cumulative probability reaches q."""
    value = d.quantile(q)
    assert value in d.values
    assert d.cdf(value) >= q - 1e-11
    lower = [v for v in d.values if v < value]
    assert not lower or d.cdf(lower[-1]) < q
    sums = np.cumsum([float(p) for _, p in exact(d)])
    assert [d.cdf(v) for v in d.values] == pytest.approx(sums.tolist(), abs=1e-12)
    assert [d.quantile(d.cdf(v)) for v in d.values] == [*d.values]


@given(distributions(), st.floats(0.01, 1.0))
def test_interval_holds_its_level(d: ND, level: float) -> None:
    low, high = d.interval(level)
    assert low in d.values
    assert high in d.values
    inside, below, above = (
        sum(p for v, p in zip(d.values, d.probabilities, strict=True) if test(v))
        for test in (lambda v: low <= v <= high, lambda v: v < low, lambda v: v > high)
    )
    assert inside >= level - 1e-10
    assert max(below, above) <= (1 - level) / 2 + 1e-10
    mirrored = ND([v.copy_negate() for v in d.values], d.probabilities)
    assert mirrored.interval(level) == (high.copy_negate(), low.copy_negate())


def test_the_whole_interval() -> None:
    """Quantiles of 0 and 1 are the ends, however the sum of the probabilities is rounded."""
    for count in range(1, 200):
        assert ND(range(count), [0.1] * count).interval(1) == (0, count - 1)
    d = ND([1, 2, 3], [1e-30, 1, 1e-30])
    assert (d.quantile(0), d.quantile(1), d.interval(1), d.interval(0.999)) == (1, 3, (1, 3), (2, 2))


def test_sampling_frequencies() -> None:
    d = ND([1, 2, "2.5", HUGE], [0.1, 0.2, 0.3, 0.4])
    drawn = d.sample(20_000, seed=0)
    counts = Counter(drawn)
    observed = [counts[value] for value in d.values]
    assert scipy.stats.chisquare(observed, 20_000 * d.probabilities).pvalue > 0.001
    assert drawn == d.sample(20_000, seed=0) != d.sample(20_000, seed=1)
    rng = np.random.default_rng(0)
    assert d.sample(5, rng) + d.sample(5, rng) == drawn[:10]
    assert d.sample(0, seed=0) == []


def crps_by_definition(d: ND, y: Fraction) -> Fraction:
    pairs = exact(d)
    spread = sum((p * q * abs(v - w) for v, p in pairs for w, q in pairs), Fraction(0))
    return sum((p * abs(v - y) for v, p in pairs), Fraction(0)) - spread / 2


@given(distributions(), decimals)
def test_crps_is_its_double_sum(d: ND, truth: Decimal) -> None:
    expected = crps_by_definition(d, Fraction(truth))
    if expected > 10**300:
        assert d.crps(truth) == math.inf or math.isclose(d.crps(truth), expected, rel_tol=1e-9)
    else:
        assert d.crps(truth) == pytest.approx(float(expected), rel=1e-9, abs=1e-300)


# Decisions


def expected_cost(d: ND, cost: Any, x: Decimal) -> Fraction | float:
    return sum(p * cost(Fraction(x), y) for y, p in exact(d))


def is_best(d: ND, decision: Decimal, cost: Any, candidates: Any = ()) -> bool:
    """Whether no value, no candidate and nothing between neighbouring values costs less than the decision."""
    between = [(Fraction(a) + Fraction(b)) / 2 for a, b in zip(d.values, d.values[1:], strict=False)]
    mine = expected_cost(d, cost, decision)
    return all(float(mine - expected_cost(d, cost, x)) <= 1e-9 * float(mine) for x in (*d.values, *between, *candidates))


moderate = st.one_of(
    st.integers(-30, 30).map(Decimal), st.decimals("-99", "99", places=2), st.sampled_from([Decimal("1e-9"), Decimal("1e12")])
)


@settings(max_examples=60)
@given(distributions(moderate))
def test_each_rule_is_the_best_of_all_values(d: ND) -> None:
    assert is_best(d, d.decide("median"), lambda x, y: abs(x - y))
    assert is_best(d, d.decide("mean", trim=False), lambda x, y: (x - y) ** 2)
    assert is_best(d, d.decide("median"), lambda x, y: METRICS["log10_error"](y, x))
    assert min(d.probabilities[d.values.index(d.decide("mode", trim=False))] - d.probabilities) >= -1e-9


@given(distributions(moderate), st.decimals("0.01", 10, places=2))
def test_relative_with_a_floor_is_the_best_of_all_values(d: ND, floor: Decimal) -> None:
    assert is_best(d, d.decide("relative", floor=floor, trim=False), lambda x, y: abs(x - y) / max(abs(y), Fraction(floor)))


@given(distributions(moderate), st.sampled_from(["0", "0.5", "1", "7", "30"]))
def test_within_is_the_best_of_all_values(d: ND, tolerance: str) -> None:
    reaches = {"tolerance": lambda y: Fraction(tolerance), "relative_tolerance": lambda y: Fraction(tolerance) * abs(y)}
    for keyword, reach in reaches.items():
        decision = d.decide("within", trim=False, **{keyword: tolerance})
        held = {x: sum(p for y, p in exact(d) if abs(Fraction(x) - y) <= reach(y)) for x in d.values}
        assert float(max(held.values()) - held[decision]) <= 1e-9


@settings(max_examples=40)
@given(distributions(moderate))
def test_metrics_of_the_answers_agree(d: ND) -> None:
    """The decision for a metric of ``METRICS`` has the best mean score of all values."""
    rules = {"exact": "mode", "absolute_error": "median", "log10_error": "median"}
    for name in (*rules, "within_1", "within_5", "within_10"):
        metric = METRICS[name]
        sign = -1 if metric.higher_is_better else 1
        mean = {x: sign * sum(float(p) * metric(y, x) for y, p in exact(d)) for x in d.values}
        assert mean[d.decide(rules.get(name, name), trim=False)] <= min(mean.values()) + 1e-9 * abs(min(mean.values())), name


@given(distributions(moderate))
def test_a_cost_of_your_own(d: ND) -> None:
    def pinball(x: float, y: float) -> float:
        return max(0.9 * (y - x), 0.1 * (x - y))

    decision = d.decide(pinball, trim=False)
    costs = {x: sum(float(p) * pinball(float(x), float(y)) for y, p in exact(d)) for x in d.values}
    assert costs[decision] <= min(costs.values()) * (1 + 1e-9) + 1e-12
    assert d.decide(lambda x, y: abs(x - y), trim=False) == d.median or abs(d.cdf(d.median) - 0.5) < 1e-9


def test_decisions_by_hand() -> None:
    d = ND([1, 10, 11, 100], [0.4, 0.15, 0.2, 0.25])
    assert strings(*map(d.decide, ("median", "mean", "relative", "mode"))) == ["10", "29.1", "1", "1"]
    assert d.decide("within", tolerance=0) == 1
    assert d.decide("within", tolerance="0.999") == 1
    assert d.decide("within", tolerance=9) == 10  # 1, 10 and 11 lie within 9 of it
    assert d.decide("within", relative_tolerance=0.1) == 1
    assert d.decide("within", relative_tolerance=0.9) == 10  # nine tenths of 100, of 11 and of itself, but not of 1
    assert d.decide("within", tolerance=1, candidates=[10.5, 50]) == Decimal("10.5")
    assert d.decide(lambda x, y: abs(x - y), candidates=[7, 50]) == 7
    assert d.decide(lambda x, y: math.inf) == 10  # all alike: the median
    assert d.decide(lambda x, y: -x * y) == 100


def test_within_compares_decimals() -> None:
    """In floats, 0.3 - 0.2 is less than 0.1, and 0.4 - 0.3 is more."""
    d = ND(["0.2", "0.3", "0.4", "5"], [0.2, 0.2, 0.2, 0.4])
    assert d.decide("within", tolerance=0.1) == Decimal("0.3")
    huge = ND([HUGE, HUGE + 1, HUGE + 2, 5], [0.2, 0.2, 0.2, 0.4])
    assert huge.decide("within", tolerance=1) == HUGE + 1


def test_relative_error_of_zero() -> None:
    assert ND([0, 10, 20], [0.01, 0.59, 0.4]).decide("relative") == 10  # a little mass at 0 does not decide
    assert ND([0, 10, 20], [0.49, 0.3, 0.21]).decide("relative") == 10
    assert ND([0, 10, 20], [0.5, 0.3, 0.2]).decide("relative") == 0  # any other answer has an infinite median error
    assert ND.point(0).decide("relative") == 0
    d = ND([0, 10, 20], [0.05, 0.55, 0.4])
    assert (d.decide("relative", floor=1), d.decide("relative", floor="0.1", trim=False)) == (10, 0)
    assert ND([-1, 0, 1], [0.3, 0.4, 0.3]).decide("relative", floor=0) == -1


# Bells


@pytest.mark.parametrize(
    ("shape", "density"),
    [("gaussian", scipy.stats.norm.pdf), ("laplace", scipy.stats.laplace.pdf), ("uniform", scipy.stats.uniform(-1, 2).pdf)],
)
@pytest.mark.parametrize(("center", "decimals"), [("84.50", None), (84.5, 2), ("84.503", 2), (-7, 1), (0, 1)])
def test_bells_have_the_density_of_their_shape(shape: Any, density: Any, center: Any, decimals: Any) -> None:
    d = ND.bell(center, width=0.3, shape=shape, decimals=decimals, at_most=10**4)
    expected = density((d.floats - float(center)) / 0.3)
    edge = np.isclose(np.abs(d.floats - float(center)), 0.3)  # rounding decides which side of the edge a float is on
    keep = ~edge if shape == "uniform" else np.full(len(d), True)
    assert d.probabilities[keep] / d.probabilities[keep].sum() == pytest.approx(expected[keep] / expected[keep].sum(), abs=1e-12)


def test_bells_by_hand() -> None:
    d = ND.bell("84.50", width="0.02", shape="uniform")
    assert strings(*d.values) == ["84.48", "84.49", "84.5", "84.51", "84.52"]
    assert d.probabilities.tolist() == pytest.approx([0.2] * 5)
    assert strings(*ND.bell(84.0, width=1, shape="uniform").values) == ["83", "84", "85"]
    assert strings(*ND.bell(1200, width=100, shape="uniform", decimals=-2).values) == ["1100", "1200", "1300"]
    assert strings(*ND.bell("1.2e3", width=1, shape="uniform").values) == ["1199", "1200", "1201"]
    assert strings(*ND.bell(3, width=2, shape="uniform", lowest="1.5", highest=4).values) == ["2", "3", "4"]
    assert ND.bell(-200, relative=0.01, shape="uniform").interval(1) == (-202, -198)
    ratio = ND.bell(10, width=2).probabilities
    assert ratio[len(ratio) // 2 + 1] / ratio[len(ratio) // 2] == pytest.approx(math.exp(-1 / 8))


def test_bells_of_no_width_are_points() -> None:
    for shape in ("gaussian", "laplace", "uniform"):
        assert ND.bell("84.5", width=0, shape=shape) == ND.point("84.5")
        assert ND.bell(0, relative=0.05, shape=shape) == ND.point(0)
        assert ND.bell(84, width=1e-9, shape=shape) == ND.point(84)
        assert ND.bell("84.4", width=0.01, decimals=0, shape=shape) == ND.point(84)  # no value in the bell: the nearest
    assert ND.bell("84.5", width=0, decimals=0) == ND.point(84)  # half to even


def test_truncated_strata() -> None:
    assert ND.bell(10, width=5, shape="uniform", at_most=11).probabilities.tolist() == pytest.approx([1 / 11] * 11)
    assert len(ND.bell(10, width=5, shape="uniform", at_most=10)) <= 10
    d = ND.bell(1000, relative=0.5, lowest=900, highest=1200, at_most=101)
    assert (d.values[0] >= 900, d.values[-1] <= 1200, len(d)) == (True, True, 101)
    curve = scipy.stats.truncnorm(-0.2, 0.4, 1000, 500)
    assert [float(d.quantile(q)) for q in (0.1, 0.5, 0.9)] == pytest.approx(curve.ppf([0.1, 0.5, 0.9]), abs=3)


@pytest.mark.parametrize(
    ("chosen", "parts"),
    [
        ({}, ["width=None and relative=None", "exactly one"]),
        ({"width": 1, "relative": 1}, ["exactly one"]),
        ({"width": -1}, ["width=-1", ">= 0"]),
        ({"relative": math.nan}, ["relative=nan"]),
        ({"width": 1, "shape": "gausian"}, ["shape='gausian'", "Did you mean 'gaussian'?"]),
        ({"width": 1, "decimals": 1.5}, ["decimals=1.5"]),
        ({"width": 1, "at_most": 0}, ["at_most=0"]),
        ({"width": 1, "lowest": 200}, ["lowest=200", "exclude all values", "center=84"]),
        ({"width": 1, "lowest": 85, "highest": 83}, ["lowest=85 and highest=83"]),
        ({"width": 0, "highest": 83}, ["highest=83"]),
        ({"width": "0.1", "decimals": -2, "highest": 99}, ["highest=99"]),
    ],
)
def test_bells_that_cannot_be(chosen: Any, parts: list[str]) -> None:
    refused(ValueError, [*parts, "expected"], lambda: ND.bell(84, **chosen))


# Text


def test_repr_is_short() -> None:
    assert repr(ND.point("0.30")) == "NumberDistribution(1 value 0.3)"
    assert repr(ND([1, 2], [0.25, 0.75], covered=0.5)) == (
        "NumberDistribution(2 values 1..2: median 2, 90 % in 1..2, covered 0.5)"
    )
    assert repr(ND([1], [1], covered=0.5)) == "NumberDistribution(1 value 1, covered 0.5)"
    assert len(repr(ND([HUGE + 1, -HUGE], [0.5, 0.5]))) < 250
    assert "1000000…000001 (401 digits)" in repr(ND([HUGE + 1, -HUGE], [0.5, 0.5]))


def test_bars_of_few_values() -> None:
    text = ND([12, 15, 150], [0.25, 0.5, 0.25], covered=0.9, more_digits=0.04, no_number=0.01).to_text(width=8)
    assert text.splitlines() == [
        " 12  25.0 %  ████",
        " 15  50.0 %  ████████",
        "150  25.0 %  ████",
        "covered 90.0 %, more digits 4.0 %, no number 1.0 %, not searched 5.0 %",
    ]
    drawn = ND([12], [1], covered=0.9, drawn=0.25, no_number=0.1).to_text()
    assert drawn.endswith("\ncovered 90.0 % (drawn 25.0 %), no number 10.0 %")
    assert ND.from_samples([12]).to_text(width=1) == "12  100.0 %  █\ncovered 100.0 % (drawn 100.0 %)"
    assert ND.point(12).to_text(width=1) == "12  100.0 %  █"


def test_bars_of_many_values() -> None:
    lines = ND(range(100), [1] * 100).to_text(rows=5, width=10).splitlines()
    assert lines == [f"{low:>2} to {low + 20:<2}".rjust(9) + "  20.0 %  ██████████" for low in range(0, 100, 20)]
    far = ND.mixed([ND.bell("0.50", width=0.1), ND.point(-(10**9)), ND.point(HUGE)], [0.99, 0.005, 0.005]).to_text()
    assert far.splitlines()[0].lstrip().startswith("below")
    assert far.splitlines()[-1].lstrip().startswith("from")
    assert len(far.splitlines()) <= 13
    sure = ND([5, 95], [0.995, 0.005]).to_text(rows=1, width=4)  # the central 98 % are one value
    assert sure.splitlines() == ["5 to 6  99.5 %  ████", "from 6   0.5 %"]
    lattice = ND.bell("0.5", relative=0.2).to_text(rows=10).splitlines()  # 13 values, 0.1 apart: no range is finer
    assert [line.split()[0] for line in lattice[1:-1]] == ["0.3", "0.4", "0.5", "0.6", "0.7"]
    assert ND([5, 6], [1, 1e-9]).to_text(width=4).splitlines() == ["5  100.0 %  ████", "6    0.0 %"]


@given(distributions(), st.integers(1, 12))
def test_bars_hold_all_mass(d: ND, rows: int) -> None:
    lines = d.to_text(rows=rows, width=10).splitlines()
    shares = [float(line.partition(" %")[0].split()[-1]) for line in lines]
    assert sum(shares) == pytest.approx(100, abs=0.06 * len(lines))
    assert len(lines) <= rows + 3
    assert sum("█" * 10 in line for line in lines) >= 1


# Cost


def test_time_grows_with_the_number_of_values() -> None:
    """Ten times the values take far less than a hundred times as long."""

    def seconds(count: int) -> float:
        start = time.process_time()
        d = ND([Decimal(k).scaleb(-2) for k in range(count, 0, -1)], np.arange(1, count + 1))
        assert d.mode == d.values[0]
        assert d.mean < d.decide("within", tolerance=1) * 100
        assert d.crps(3) + d.std + float(d.decide("relative")) > 0
        assert len(d.to_text()) > 0
        return time.process_time() - start

    seconds(100)
    small, large = min(seconds(1000) for _ in range(3)), min(seconds(10_000) for _ in range(2))
    assert large / small < 40
