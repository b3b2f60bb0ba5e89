"""Is one loss better than another? :func:`compare` answers with a difference, its interval, a p-value and an effect size.

scores[loss] is the measure of a loss, ``[S, E]``: S seeds, each scored on the same E examples.

    from numerate.lab import stats

    rows = stats.corrected({name: stats.compare(scores[name], scores["ce"]) for name in ("smmd", "emd", "ntil")})
    print(rows["smmd"].summary(scale=100, unit="points"))  # +2.1 points (95 % interval 0.4 to 3.8), p = 0.012 after correction

With d_s the mean difference of seed s, and t(n) the quantile of the t distribution with n degrees of freedom:

    effect_size    J mean(d_s) / spread,   spread² = max(var(d_s), r / E), r the variance that neither seeds nor examples explain,
                   J = G(n / 2) / (sqrt(n / 2) G((n - 1) / 2)),   n = S - 1,   G the gamma function
    seeds_needed   the least S with P(T > t(S-1)) >= power, T noncentral t around sqrt(S) difference / spread

The intervals are from :mod:`numerate.lab.stats.intervals`, the tests from :mod:`numerate.lab.stats.paired`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

import numpy as np
from scipy import optimize, special  # type: ignore[import-untyped]
from scipy.stats import nct  # type: ignore[import-untyped]

from numerate.checks import check_choice, check_number, choices
from numerate.lab.stats.intervals import (
    ROUNDING,
    Array,
    Interval,
    check_bounds,
    check_count,
    check_level,
    check_over,
    half_width,
    mean_interval,
    median_interval,
    reach_of,
)
from numerate.lab.stats.paired import (
    PairedTest,
    check_pair,
    difference_errors,
    difference_of,
    holm,
    mcnemar,
    p_value,
    paired_permutation,
    paired_t,
    paired_test,
    wilcoxon,
)

__all__ = [
    "Comparison",
    "Interval",
    "PairedTest",
    "compare",
    "corrected",
    "detectable_difference",
    "effect_size",
    "holm",
    "mcnemar",
    "mean_interval",
    "median_interval",
    "paired_permutation",
    "paired_t",
    "paired_test",
    "seeds_needed",
    "wilcoxon",
]

Statistic = Literal["mean", "sign"]
K = TypeVar("K")

MOST_SEEDS = 2**20

_FEW_SEEDS = {
    1: "; one seed each: true of these two models, not of their losses",
    2: "; two seeds each: too few to tell, run five or more",
}


@dataclass(frozen=True)
class Comparison:
    """What :func:`compare` found.

    ``effect`` and ``spread`` are those of :func:`effect_size` and :func:`seeds_needed`; None where there are too few seeds.
    """

    difference: Interval
    p_value: float
    test: str
    effect: float | None
    spread: float | None
    seeds: int
    examples: int
    corrected_p: float | None = None

    def summary(self, scale: float = 1.0, unit: str = "") -> str:
        """One sentence; for an accuracy, ``scale=100`` and ``unit="points"``."""
        estimate, low, high = (scale * x for x in (self.difference.estimate, self.difference.low, self.difference.high))
        half = (high - low) / 2
        digits = max(0, 1 - math.floor(math.log10(half))) if 0 < half < math.inf else 1  # two that mean something
        p, correction = (self.p_value, "") if self.corrected_p is None else (self.corrected_p, " after correction")
        return (
            f"{estimate:+z.{digits}f}{' ' if unit else ''}{unit} ({100 * self.difference.level:g} % interval "
            f"{low:z.{digits}f} to {high:z.{digits}f}), {f'p = {p:.2g}' if p >= 0.001 else 'p < 0.001'}{correction}"
            f"{_FEW_SEEDS.get(self.seeds, '')}"
        )


def compare(
    a: Any,
    b: Any,
    statistic: Statistic = "mean",
    level: float = 0.95,
    *,
    bounds: tuple[float, float] | None = None,
    resamples: int = 9_999,
    seed: int = 0,
) -> Comparison:
    """The difference between a and b: its interval, its p-value by :func:`paired_test`, and its size.

    p is below ``1 - level`` where the interval leaves out 0. With one seed, test and interval are made apart, and where they
    disagree, the interval ends at 0.

    Args:
        a: ``[E]`` or ``[S, E]``.
        b: of the same shape: the same examples, and for each seed its partner.
        statistic: ``"mean"``, the mean of a - b; or ``"sign"``, the share of the examples on which a is larger less the
            share on which it is smaller: for errors, which may be infinite or have heavy tails.
        level: of the interval, which is over both, or over examples where there is one seed.
        bounds: the least and the largest value that a and b can have; see :func:`mean_interval`.
        resamples: see :func:`mean_interval`.
        seed: see :func:`mean_interval`.

    Example:
        >>> smmd = [[1, 1, 1, 0, 1], [1, 1, 1, 1, 0], [1, 1, 0, 1, 1]]
        >>> ce = [[0, 1, 0, 0, 1], [1, 0, 0, 1, 0], [0, 1, 0, 1, 1]]
        >>> compare(smmd, ce).summary(scale=100, unit="points")
        '+33 points (95 % interval -35 to 100), p = 0.19'
    """
    check_choice("statistic", statistic, choices(Statistic))
    first, second = check_pair(a, b, finite=statistic == "mean")
    level, over = check_level(level), check_over("a", first, None)
    low, high = check_bounds(bounds, a=first, b=second)
    differences, scale = difference_of(first, second)
    reach, most = reach_of(low, high, first, second) / scale, (high - low) / scale
    if statistic == "sign":
        differences, scale, reach, most = np.sign(differences), 1.0, 1.0, 1.0
        first, second = differences, np.zeros_like(differences)
    seeds, examples = differences.shape
    mean, errors = float(differences.mean()), difference_errors(differences, over, reach)
    if seeds > 1:
        test = PairedTest("paired_t", p_value(mean, errors))
    else:
        test = paired_test(first, second, resamples=resamples, seed=seed)
    if seeds > 1 or reach:
        half = half_width(1 - level, errors)
        interval = Interval(mean, mean - half, mean + half, level, over)
    else:
        interval = mean_interval(differences, level, resamples=resamples, seed=seed)
    interval = replace(interval, low=max(interval.low, -most), high=min(interval.high, most))
    if (test.p_value < 1 - level) == (interval.low <= 0 <= interval.high):
        interval = replace(interval, low=0.0) if mean > 0 else replace(interval, high=0.0)
    ends = {end: scale * getattr(interval, end) for end in ("estimate", "low", "high")}
    return Comparison(
        difference=replace(interval, **ends),
        p_value=test.p_value,
        test=test.name,
        effect=_effect(differences) if seeds > 2 else None,
        spread=scale * _spread(differences) if seeds > 1 else None,
        seeds=seeds,
        examples=examples,
    )


def corrected(comparisons: Mapping[K, Comparison]) -> dict[K, Comparison]:
    """The same comparisons, each with its p-value after :func:`holm`: pass all that are looked at together.

    Example:
        >>> one = compare([1, 1, 1, 1, 1, 1], [0, 0, 0, 0, 0, 0])
        >>> [c.corrected_p for c in corrected({"smmd": one, "emd": one}).values()]
        [0.0625, 0.0625]
    """
    p_values = holm({key: comparison.p_value for key, comparison in comparisons.items()})
    return {key: replace(comparison, corrected_p=p_values[key]) for key, comparison in comparisons.items()}


def effect_size(a: Any, b: Any) -> float:
    """The difference between a and b, in units of its spread between seeds (Hedges' g of the paired differences).

    At 1, one seed in six goes the other way. The spread is at least what single answers make of it: seeds whose means happen to
    be equal give no infinite effect. Without any spread it is 0 where a and b are equal, else infinite. Three seeds are the
    least, for with two it has no expectation that could be corrected.

    Args:
        a: finite values, ``[S, E]`` with three seeds or more.
        b: of the same shape: the same examples, and for each seed its partner.

    Example:
        >>> round(effect_size([[3], [4], [5]], [[1], [1], [1]]), 3)  # 3 / 1, less the correction
        1.693
    """
    first, second = check_pair(a, b)
    if len(first) < 3:
        raise ValueError(f"a has {len(first)} seeds: an effect size needs three or more. Train more, or report the difference.")
    return _effect(difference_of(first, second)[0])


def seeds_needed(difference: float, spread: float, power: float = 0.8, level: float = 0.95) -> int:
    """The number of seeds with which ``paired_t(..., over="seeds")`` sees a difference: at least 2.

    More seeds do not make up for few examples: over both, what the examples add to the interval stays.

    Args:
        difference: the true one.
        spread: the standard deviation of the paired difference between seeds, such as ``Comparison.spread``.
        power: the probability of seeing it, with the right sign.
        level: of the interval that must leave out 0.

    Example:
        >>> seeds_needed(difference=0.02, spread=0.01)
        5
    """
    difference, spread = abs(check_number("difference", difference)), check_number("spread", spread, least=0)
    _check_power(power, level)
    if spread == 0 and difference > 0:
        return 2

    def enough(seeds: int) -> bool:
        return difference > 0 and _power(difference / spread, seeds, level) >= power

    if not enough(MOST_SEEDS):
        raise ValueError(
            f"difference={difference!r} is too small for spread={spread!r}: {MOST_SEEDS:,} seeds would not show it. Expected "
            "the least difference that matters."
        )
    few, many = 1, MOST_SEEDS
    while many - few > 1:
        middle = (few + many) // 2
        few, many = (few, middle) if enough(middle) else (middle, many)
    return many


def detectable_difference(spread: float, seeds: int, power: float = 0.8, level: float = 0.95) -> float:
    """The least true difference that ``seeds`` seeds see: the inverse of :func:`seeds_needed`.

    Args:
        spread: see :func:`seeds_needed`.
        seeds: their number, at least 2.
        power: see :func:`seeds_needed`.
        level: see :func:`seeds_needed`.

    Example:
        >>> [round(detectable_difference(spread=0.01, seeds=seeds), 3) for seeds in (2, 3, 5, 10)]
        [0.115, 0.033, 0.017, 0.01]
    """
    spread, seeds = check_number("spread", spread, least=0), check_count("seeds", seeds, least=2)
    _check_power(power, level)
    most = 1.0
    while _power(most, seeds, level) < power:
        most *= 2
    return spread * float(optimize.brentq(lambda ratio: _power(ratio, seeds, level) - power, 0.0, most))


def _spread(differences: Array) -> float:
    """Between seeds: the standard deviation of their means, and at least what single answers make of it."""
    by_seed, by_example = differences.mean(1, keepdims=True), differences.mean(0)  # [S, 1], [E]
    seeds, examples = differences.shape
    rest = differences - by_seed - by_example + differences.mean()
    spread = max(float(by_seed.std(ddof=1)), math.sqrt((rest**2).sum() / (seeds - 1) / max(examples - 1, 1) / examples))
    return spread if spread > ROUNDING else 0.0


def _effect(differences: Array) -> float:
    mean, spread = float(differences.mean()), _spread(differences)
    if not spread:
        return math.copysign(math.inf, mean) if abs(mean) > ROUNDING else 0.0
    half = (len(differences) - 1) / 2
    return float(special.poch(half - 0.5, 0.5)) / math.sqrt(half) * mean / spread


def _power(ratio: float, seeds: int, level: float) -> float:
    """Of the two-sided paired t-test at ``1 - level``, for a true difference of ``ratio`` spreads, with the right sign."""
    degrees, centre = seeds - 1, math.sqrt(seeds) * ratio
    critical = -float(special.stdtrit(degrees, (1 - level) / 2))
    if centre > 1e4:  # where the series of the noncentral t may not converge, the normal part of T no longer counts
        return float(special.chdtr(degrees, degrees * (centre / critical) ** 2)) if centre < 1e100 else 1.0
    with np.errstate(all="ignore"):
        return float(nct.sf(critical, degrees, centre))


def _check_power(power: float, level: float) -> None:
    check_level(level)
    if not 0.5 <= check_number("power", power) < 1:
        raise ValueError(f"power={power!r}: expected a probability from 0.5 to below 1, such as 0.8.")
