"""Calibration: the coverage promise on random exchangeable rows, intervals against brute force, temperatures that are known."""

from __future__ import annotations

import json
import math
import pickle
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.samples import refused

import numerate as nm
from numerate.calibration import Conformal, conformal, coverage, fit_temperature, pit
from numerate.calibration.frame import central

ND = nm.NumberDistribution
Rows = tuple[list[ND], list[Any]]
HUGE = 10**400


# Exchangeable rows: a model's answers and truths, from a generator


def bells(rng: np.random.Generator, n: int, sure: float = 1.0, bias: float = 0.0, decimals: int = 3, values: int = 61) -> Rows:
    """Bells of very different widths around very different centers; the truth has ``sure`` times the width."""
    answers, truths = [], []
    for center, width in zip(rng.uniform(-50, 50, n), np.exp(rng.normal(0, 1, n)), strict=True):
        answers.append(ND.bell(round(center, decimals), width=round(width, decimals), at_most=values))
        truths.append(round(center + width * (sure * rng.standard_normal() + bias), decimals))
    return answers, truths


def ratings(rng: np.random.Generator, n: int) -> Rows:
    """Few values, many ties, and a model that knows the probabilities."""
    masses = rng.dirichlet(np.ones(5), n)
    return [ND(range(1, 6), p) for p in masses], [int(rng.choice(5, p=p)) + 1 for p in masses]


def certain(rng: np.random.Generator, n: int) -> Rows:
    """Points: half of them right, the others wrong by about 10."""
    centers = rng.integers(0, 1000, n)
    wrong = rng.random(n) < 0.5
    return [ND.point(c) for c in centers.tolist()], np.where(wrong, centers + rng.normal(0, 10, n).round(4), centers).tolist()


def derailed(rng: np.random.Generator, n: int) -> Rows:
    """Bells with a little mass on a number of 400 digits."""
    answers, truths = bells(rng, n, sure=2, decimals=1)
    return [ND.mixed([answer, ND.point(HUGE)], [0.995, 0.005]) for answer in answers], truths


SOURCES: dict[str, Callable[[np.random.Generator, int], Rows]] = {
    "calibrated": bells,
    "too narrow": lambda rng, n: bells(rng, n, sure=3),
    "too wide": lambda rng, n: bells(rng, n, sure=0.3),
    "biased": lambda rng, n: bells(rng, n, bias=2),
    "ratings": ratings,
    "certain": certain,
    "derailed": derailed,
}
CONTINUOUS = ("calibrated", "too narrow", "too wide", "biased")  # next to no ties


def holds(interval: tuple[Decimal, Decimal], truth: Any) -> bool:
    return interval[0] <= Decimal(str(truth)) <= interval[1]


def mean_coverage(source: str, rows: int, level: float, fits: int, tests: int = 10) -> tuple[float, float]:
    """Mean coverage over many fits and its standard error. Rows drawn from a pool without replacement are exchangeable."""
    rng = np.random.default_rng(0)
    pool = [*zip(*SOURCES[source](rng, 200), strict=True)]
    shares = []
    for seed in range(fits):
        drawn = [pool[i] for i in rng.permutation(200)[: rows + tests]]
        calibrated = conformal(*zip(*drawn[:rows], strict=True), level, seed=seed)
        shares.append(np.mean([holds(calibrated.interval(answer), truth) for answer, truth in drawn[rows:]]))
    return float(np.mean(shares)), float(np.std(shares) / math.sqrt(fits))


class TestThePromise:
    @pytest.mark.parametrize("source", SOURCES)
    def test_mean_coverage(self, source: str):
        """With 20 rows and a level of 0.8 the promise is 17/21 exactly, where nothing ties: one rank more or less is 5 % off."""
        mean, error = mean_coverage(source, rows=20, level=0.8, fits=200)
        assert error < 0.013
        assert mean >= 17 / 21 - 3 * error
        if source in CONTINUOUS:
            assert mean <= 17 / 21 + 3 * error + 0.005  # a little for rounding

    def test_far_tails_play_no_part(self):
        rng = np.random.default_rng(4)
        answers, truths = derailed(rng, 200)
        for level in (0.5, 0.9, 0.97):
            calibrated = conformal(answers, truths, level)
            assert all(high < 1000 for _, high in map(calibrated.interval, answers[:20]))

    def test_certain_rows_do_not_narrow_the_others(self):
        """Nine of ten rows are certain and right, which alone is 90 %; the tenth keeps the interval of its model."""
        rng = np.random.default_rng(5)
        bell = ND.bell(100, width=10)
        answers = [bell if i % 10 == 0 else ND.point(7) for i in range(1000)]
        truths = [bell.sample(1, rng)[0] if i % 10 == 0 else 7 for i in range(1000)]
        low, high = conformal(answers, truths, 0.9).interval(bell)
        assert bell.interval(0.85)[0] >= low >= bell.interval(0.95)[0]
        assert bell.interval(0.85)[1] <= high <= bell.interval(0.95)[1]


# Intervals


hundredths = st.integers(-9000, 9000).map(lambda number: Decimal(number).scaleb(-2))
rows_strategy = st.lists(
    st.tuples(
        st.lists(st.tuples(st.integers(-20, 20), st.sampled_from([0.005, 1.0, 2.0])), min_size=1, max_size=4),
        st.one_of(st.integers(-60, 60).map(Decimal), hundredths),
    ),
    min_size=2,
    max_size=9,
)
patient = settings(suppress_health_check=[HealthCheck.too_slow])  # of a busy machine


def brute_score(distribution: ND, truth: Decimal, u: float, halves: list[Fraction]) -> Fraction:
    """The score of the module's text, with the typical half width of all rows, the new one too."""
    pairs = [*zip(distribution.values, map(Fraction, distribution.probabilities.tolist()), strict=True)]
    below, at = (sum((p for v, p in pairs if test(v)), Fraction(0)) for test in (lambda v: v < truth, lambda v: v == truth))
    low = min(v for v, _ in pairs if sum(p for w, p in pairs if w <= v) >= Fraction(1, 100) * (1 - Fraction(1, 10**10)))
    high = max(v for v, _ in pairs if sum(p for w, p in pairs if w >= v) >= Fraction(1, 100) * (1 - Fraction(1, 10**10)))
    if low <= truth <= high:
        return min(abs(2 * (below + Fraction(u) * at) - 1), Fraction(98, 100))
    half = Fraction(high - low) / 2
    positive = sorted(h for h in halves if h)
    typical = positive[(len(positive) - 1) // 2] if positive else Fraction(2)
    return Fraction(98, 100) + max(Fraction(low) - Fraction(truth), Fraction(truth) - Fraction(high)) / (half + typical / 2)


def half(distribution: ND) -> Fraction:
    low, high = central(distribution, 0.98)
    return Fraction(high - low) / 2


class TestIntervals:
    @given(rows_strategy, hundredths, st.sampled_from([0.2, 0.3, 0.5, 0.6, 2 / 3]))
    @settings(patient, max_examples=200)
    def test_every_number_whose_score_is_small_enough_is_inside(self, drawn: Any, number: Decimal, level: float):
        """The definition of split conformal prediction, tried on one number: its score is at most that of the rank."""
        answers = [ND.from_pairs(pairs) for pairs, _ in drawn]
        truths = [truth for _, truth in drawn]
        new, rows = answers.pop(), len(answers)
        truths.pop()
        rank = math.ceil((rows + 1) * Fraction(str(level)))
        if rank > rows:
            refused(ValueError, [f"level={level:g} with {rows}"], lambda: conformal(answers, truths, level))
            return
        calibrated = conformal(answers, truths, level, seed=3)
        draws = np.random.default_rng(3).random(rows).tolist()
        halves = [half(d) for d in (*answers, new)]
        scores = sorted(brute_score(d, y, u, halves) for d, y, u in zip(answers, truths, draws, strict=True))
        low, high = calibrated.interval(new)
        least = min(brute_score(new, number, u, halves) for u in (0.0, 0.5, 1.0, *draws))
        if least <= scores[rank - 1] - Fraction(1, 10**9):
            assert low <= number <= high
        # And it is no wider than that, but for rounding outward to integers.
        if not low - 1 < number < high + 1:
            assert least > scores[rank - 1] - Fraction(1, 10**9)

    @given(rows_strategy.filter(lambda rows: len(rows) >= 5))
    @patient
    def test_a_higher_level_contains_a_lower_one(self, drawn: Any):
        answers, truths = [ND.from_pairs(pairs) for pairs, _ in drawn], [truth for _, truth in drawn]
        calibrated = conformal(answers, truths, 0.5)
        levels = [0.05, 0.2, 0.4, 0.5, 0.6, 0.7, 0.8]
        for answer in answers:
            ends = [calibrated.interval(answer, level) for level in levels]
            assert [low for low, _ in ends] == sorted((low for low, _ in ends), reverse=True)
            assert [high for _, high in ends] == sorted(high for _, high in ends)
            assert calibrated.interval(answer) == ends[3]
            assert calibrated.interval(answer, 0.7) == conformal(answers, truths, 0.7).interval(answer)

    def test_by_hand(self):
        """The central 98 % is 10 to 12, its half width 1, the scale 1.5; the largest of nine scores is a truth 3 beyond it."""
        answer = ND([10, 11, 12], [1, 2, 1])
        calibrated = conformal([answer] * 9, [11] * 8 + [15], 0.9)
        assert calibrated.interval(answer) == (7, 15)
        assert calibrated.interval(ND([100, 104], [1, 1])) == (100 - 5, 104 + 5)  # scale 2 + 1/2, stretched by 3 / 1.5
        assert calibrated.interval(ND.point("0.50")) == (Decimal("-0.5"), Decimal("1.5"))  # 1/2 scale
        assert calibrated.interval(answer, 0.1)[0] == 11
        assert repr(calibrated) == "Conformal(90 % from 9 rows: the model's 98 % intervals, extended by 200 % of their scale)"

    def test_rounded_outward_to_the_decimals_of_the_values(self):
        answer = ND(["0.10", "0.25"], [1, 1])
        calibrated = conformal([answer] * 9, ["0.3333"] * 9, 0.9)
        assert strings(calibrated.interval(answer)) == ["0.01", "0.34"]
        whole = ND.bell(3000, width=100)
        ends = conformal([whole] * 9, ["4102.99"] * 9).interval(whole)
        assert all(end == end.to_integral_value() for end in ends)
        assert ends[1] == 4103
        # A value with many decimals in the far tail does not count.
        assert strings(calibrated.interval(ND.from_pairs([(1, 1.0), (2, 1.0), ("3.14159", 1e-6)]))) == ["0", "3"]

    def test_a_truth_between_two_values_with_a_tie(self):
        """Its position is exactly that of the rank: the interval reaches to the value below."""
        answer = ND(range(10), [1] * 10)
        calibrated = conformal([answer] * 9, [0.5] * 9, 0.9)
        assert calibrated.interval(answer) == (0, 9)
        assert coverage([answer], [0.5], [0.9], calibrated).tolist() == [1]

    def test_bounds(self):
        answers, truths = [ND.point(5), ND.point(50)] * 10, [0, 100] * 10
        calibrated = conformal(answers, truths, 0.9, lowest=0, highest="100")
        assert (calibrated.lowest, calibrated.highest) == (0, 100)
        assert calibrated.interval(ND.point(5)) == (0, 55)
        assert calibrated.interval(ND.point(90)) == (40, 100)
        assert calibrated.interval(ND.point(-70)) == (0, 0)
        assert calibrated.interval(ND.point(170)) == (100, 100)
        refused(ValueError, ["truths contains 100", "highest=99"], lambda: conformal(answers, truths, 0.9, highest=99))
        refused(ValueError, ["truths contains 0", "lowest=1"], lambda: conformal(answers, truths, 0.9, lowest=1))

    def test_long_numbers(self):
        answers = [ND([HUGE + i, HUGE + i + 4], [1, 1]) for i in range(9)]
        calibrated = conformal(answers, [HUGE + i - 2 for i in range(9)])
        assert calibrated.interval(ND([HUGE, HUGE + 4], [1, 1])) == (HUGE - 2, HUGE + 6)
        mixed = conformal([*answers, ND.point("1e-400")], [*(HUGE for _ in range(9)), 1])
        assert all(end.is_finite() for end in mixed.interval(ND.point("0.25")))
        assert repr(mixed)

    def test_kept_as_json(self):
        answers, truths = bells(np.random.default_rng(0), 50)
        for fit in (
            conformal(answers, truths, 0.5, lowest=min(truths), highest=max(truths)),
            conformal([ND.point("0.1")] * 9, [HUGE + i for i in range(9)]),
            conformal([ND.point("1e-400")] * 9, range(9)),
        ):
            kept = Conformal.from_dict(json.loads(json.dumps(fit.to_dict())))
            assert kept == fit == pickle.loads(pickle.dumps(fit))
            assert kept.interval(answers[0], 0.8) == fit.interval(answers[0], 0.8)


# Positions and coverage


class TestPositions:
    def test_by_hand(self):
        answer = ND([1, 2, 3, 4], [1, 2, 3, 4])
        assert pit([answer] * 5, [0, 1.5, 2.5, 3.5, 9]) == pytest.approx([0, 0.1, 0.3, 0.6, 1])
        assert pit([answer], [3], seed=1)[0] == pytest.approx(0.3 + 0.3 * np.random.default_rng(1).random())

    def test_coverage_by_hand(self):
        answer = ND(range(1, 21), [1] * 20)
        truths = [1, 2, 10, 19.5, 30]
        assert coverage([answer] * 5, truths, [0.9, 0.1, 0.999]).tolist() == [0.4, 0.2, 0.8]


# Temperature


class TestTemperature:
    def test_tempered(self):
        d = ND([1, 2, 3], [0.1, 0.3, 0.6], covered=0.8, drawn=0.2, no_number=0.1)
        assert d.tempered(1) == d
        flat = d.tempered(2)
        assert flat.probabilities == pytest.approx(np.sqrt([0.1, 0.3, 0.6]) / np.sqrt([0.1, 0.3, 0.6]).sum())
        assert (flat.values, flat.covered, flat.drawn, flat.no_number) == (d.values, 0.8, 0.2, 0.1)
        assert flat.not_searched == pytest.approx(0.1)
        assert d.tempered(1e9).probabilities == pytest.approx([1 / 3] * 3)
        assert strings(d.tempered(1e-9).values) == ["3"]
        assert d.tempered(2).tempered(0.5).probabilities == pytest.approx(d.probabilities)
        for wrong in (0, -1, math.nan, math.inf, "1"):
            refused((TypeError, ValueError), ["temperature=", "expected"], lambda: d.tempered(wrong))  # noqa: B023

    @pytest.mark.parametrize("truth", [0.4, 0.7, 1.0, 1.6, 3.0])
    def test_a_known_temperature_is_found(self, truth: float):
        rng = np.random.default_rng(0)
        shape = np.exp(-np.linspace(-2, 5, 41).clip(0) - np.linspace(2, -5, 41).clip(0) * 2)  # steeper on the left
        answers = [ND((c * np.linspace(0.6, 1.4, 41)).round(4), shape) for c in np.exp(rng.normal(5, 2, 800))]
        truths = [answer.tempered(truth).sample(1, rng)[0] for answer in answers]
        assert fit_temperature(answers, truths) == pytest.approx(truth, rel=0.12)

    def test_the_best_of_all_temperatures(self):
        """The mean CRPS of the class, of rows of the same scale, is nowhere lower."""
        rng = np.random.default_rng(1)
        answers = [ND.bell(c, width=4) for c in rng.integers(0, 100, 150).tolist()]
        truths = [d.median + round(8 * rng.standard_normal()) for d in answers]

        def score(t: float) -> float:
            return float(np.mean([d.tempered(t).crps(y) for d, y in zip(answers, truths, strict=True)]))

        best = fit_temperature(answers, truths)
        assert 2 < best < 8
        assert all(score(best) <= score(best * factor) + 1e-9 for factor in (0.25, 0.8, 0.98, 1.02, 1.25, 4))
        assert score(best) < score(1)

    def test_nothing_helps(self):
        samples = [ND.from_samples([1, 2, 3]), ND.from_samples([4, 6, 5])]
        assert fit_temperature(samples, [9, 0]) == 1
        assert fit_temperature([ND.point(5)] * 3, [5, 7, 9]) == 1
        assert fit_temperature([ND([1, 3], [1, 1])] * 2, [1, 3]) == 1

    def test_a_gain_within_the_noise_does_not_count(self):
        """The same shares of truths: ten rows are too few to tell, a hundred are enough."""
        answer = ND([1, 2, 3, 4, 5], [0.04, 0.16, 0.6, 0.16, 0.04])
        truths = [1, 2, 2, 3, 3, 3, 3, 4, 4, 5]
        assert fit_temperature([answer] * 10, truths) == 1
        assert fit_temperature([answer] * 100, truths * 10) == pytest.approx(1.9, abs=0.05)

    def test_one_row_does_not_decide(self):
        """A derailed answer, or a truth far outside of all values, moves the temperature little."""
        rng = np.random.default_rng(0)
        answers = [ND.bell(c, width=4) for c in rng.integers(0, 100, 300).tolist()]
        truths = [d.median + round(6 * rng.standard_normal()) for d in answers]
        usual = fit_temperature(answers, truths)
        assert usual == pytest.approx(2.25, abs=0.5)
        for answer, truth in [(ND([1, HUGE], [0.5, 0.5]), 1), (ND.bell(5, width=1), HUGE), (ND([5, 6], [1, 1e-9]), -(10**30))]:
            assert fit_temperature([*answers, answer], [*truths, truth]) == pytest.approx(usual, rel=0.05)

    def test_the_ends_of_the_range(self):
        wide = ND([0, 1, 2], [1, 1.001, 1])
        assert fit_temperature([wide] * 5, [1] * 5) == pytest.approx(0.05, rel=1e-3)
        assert fit_temperature([ND([0, 1, 2], [1, 50, 1])] * 2, [0, 2]) == pytest.approx(20, rel=1e-3)


# Bad input


def strings(values: Any) -> list[str]:
    return [str(value) for value in values]


class TestBadInput:
    @pytest.mark.parametrize("call", [conformal, pit, fit_temperature, lambda d, y: coverage(d, y, [0.5])])
    @pytest.mark.parametrize(
        ("answers", "truths", "parts"),
        [
            ([], [], ["distributions has 0 entries", "at least one"]),
            ([ND.point(1)], [1, 2], ["distributions has 1 entries and truths 2", "one truth for each"]),
            ([ND.point(1)], [math.nan], ["truths=nan", "finite"]),
            ([ND.point(1)], 1, ["truths=1 is a int", "[truths]"]),
            ([1], [1], ["distributions contains 1", "point"]),
            (ND.point(1), [1], ["distributions=NumberDistribution(1 value 1)"]),
        ],
    )
    def test_rows(self, call: Any, answers: Any, truths: Any, parts: list[str]):
        refused((TypeError, ValueError), [*parts, "expected"], lambda: call(answers, truths))

    @pytest.mark.parametrize("level", [0, 1, -0.5, 1.5, math.nan, "0.9", None])
    def test_levels(self, level: Any):
        answers = [ND.point(1)] * 20
        calibrated = conformal(answers, [1] * 20)
        refused((TypeError, ValueError), [f"level={level!r}", "expected"], lambda: conformal(answers, [1] * 20, level))
        refused((TypeError, ValueError), [f"levels={level!r}", "expected"], lambda: coverage(answers, [1] * 20, [0.5, level]))
        if level is not None:
            refused((TypeError, ValueError), [f"level={level!r}"], lambda: calibrated.interval(answers[0], level))
        refused(TypeError, ["distribution contains 12", "point"], lambda: calibrated.interval(12))  # type: ignore[arg-type]

    @pytest.mark.parametrize(("level", "least"), [(0.9, 9), (0.95, 19), (0.99, 99), (0.5, 1), (2 / 3, 2), (0.9999, 9999)])
    def test_too_few_rows(self, level: float, least: int):
        parts = [f"level={level:g} with {least - 1:,} validation rows", f"at least {least:,} rows", "Use more rows, or level="]
        if least > 1:
            few = [ND.point(1)] * (least - 1)
            refused(ValueError, parts, lambda: conformal(few, [1] * len(few), level))
            advised = math.floor(10_000 * (least - 1) / least) / 10_000
            assert conformal(few, [1] * len(few), advised).rows == least - 1
        calibrated = conformal([ND.point(1)] * least, [1] * least, level)
        assert calibrated.interval(ND.point(1)) == (1, 1)
        if least < 9:
            refused(ValueError, ["level=0.9 with"], lambda: calibrated.interval(ND.point(1), 0.9))

    def test_truths_of_all_kinds(self):
        answers = [ND.point("84.5")] * 5
        assert pit(answers, ["84.60", 84.6, Decimal("84.6"), Fraction(423, 5), np.float32(84.6)]).tolist() == [1] * 5
        found = conformal(answers, np.array([84.5, 84.6, 84.4, 84.5, 84.5]), 0.8).interval(answers[0])
        assert strings(found) == ["84.4", "84.6"]
