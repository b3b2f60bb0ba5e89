"""Compare two losses on the same examples: the difference, its interval, a p-value and an effect size.

With d_s the mean difference of seed s, the effect size is Hedges' g of the paired differences:

    g = J mean(d_s) / spread,   spread² = max(var(d_s), r / E), r the variance that neither seeds nor examples explain,
    J = G(n / 2) / (sqrt(n / 2) G((n - 1) / 2)),   n = S - 1,   G the gamma function

By Holm's correction, the i-th smallest of m p-values becomes the largest of min(1, (m + 1 - j) p_j), j = 1, .., i.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

import numpy as np
from scipy import special  # type: ignore[import-untyped]

from numerate.checks import check_choice, check_number, choices
from numerate.lab.stats.intervals import (
    ROUNDING,
    Array,
    Interval,
    check_bounds,
    check_level,
    check_over,
    half_width,
    mean_interval,
    reach_of,
)
from numerate.lab.stats.paired import check_pair, difference_errors, difference_of, p_value, paired_permutation

Statistic = Literal["mean", "sign"]
K = TypeVar("K")

LEAST_SEEDS = 3  # for a verdict: with two, one degree of freedom shows only the largest differences

_FEW_SEEDS = {
    1: "; one seed each: this compares two models, not two losses",
    2: "; two seeds each: too few for a conclusion, run five or more",
}


@dataclass(frozen=True)
class Comparison:
    """Result of :func:`compare`.

    ``effect`` is Hedges' g (None below three seeds). ``spread`` is the standard deviation of the difference
    between seeds, and ``example_error`` the standard error that the seeds share because they share examples, as
    :func:`seeds_needed` takes them (None with one seed).
    """

    difference: Interval
    p_value: float
    test: str
    effect: float | None
    spread: float | None
    example_error: float | None
    seeds: int
    examples: int
    corrected_p: float | None = None

    @property
    def final_p(self) -> float:
        """The p-value, corrected if it was."""
        return self.p_value if self.corrected_p is None else self.corrected_p

    def summary(self, scale: float = 1.0, unit: str = "") -> str:
        """Return the result as a sentence. For an accuracy, pass ``scale=100`` and ``unit="points"``."""
        estimate, low, high = (scale * x for x in (self.difference.estimate, self.difference.low, self.difference.high))
        half = (high - low) / 2
        digits = max(0, 1 - math.floor(math.log10(half))) if 0 < half < math.inf else 1  # two significant digits
        p, correction = self.final_p, "" if self.corrected_p is None else " after correction"
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
    """Compute the difference between a and b, its interval, its p-value and its effect size.

    The test is :func:`paired_t` over seeds and examples or, with one seed, :func:`paired_permutation`, which compares two models
    and not two losses.
    p is below ``1 - level`` exactly where the interval excludes 0. With one seed, test and interval are computed separately;
    where they disagree, the interval is cut at 0.

    Args:
        a: ``[E]`` or ``[S, E]``.
        b: Same shape: the same examples, and the same seeds in the same order.
        statistic: ``"mean"``, the mean of a - b; or ``"sign"``, the share of examples where a is larger minus the share where
            it is smaller. Use ``"sign"`` for errors that can be infinite or have heavy tails.
        level: Confidence level of the interval, which is over seeds and examples, or over examples alone with one seed.
        bounds: Smallest and largest possible value of a and b; see :func:`mean_interval`.
        resamples: Number of bootstrap resamples, with one seed.
        seed: Random seed of the resampling.

    Examples:
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
    p = p_value(mean, errors) if seeds > 1 else paired_permutation(first, second, resamples=resamples, seed=seed)
    if seeds > 1 or reach:
        half = half_width(1 - level, errors)
        interval = Interval(mean, mean - half, mean + half, level, over)
    else:
        interval = mean_interval(differences, level, resamples=resamples, seed=seed)
    interval = replace(interval, low=max(interval.low, -most), high=min(interval.high, most))
    if (p < 1 - level) == (interval.low <= 0 <= interval.high):
        interval = replace(interval, low=0.0) if mean > 0 else replace(interval, high=0.0)
    ends = {end: scale * getattr(interval, end) for end in ("estimate", "low", "high")}
    return Comparison(
        difference=replace(interval, **ends),
        p_value=p,
        test="paired_t" if seeds > 1 else "paired_permutation",
        effect=_effect(differences) if seeds > 2 else None,
        spread=scale * _spread(differences) if seeds > 1 else None,
        example_error=scale * errors.by_example if seeds > 1 else None,
        seeds=seeds,
        examples=examples,
    )


def _spread(differences: Array) -> float:
    """Return the standard deviation of the seeds' means, but at least the noise of single answers."""
    by_seed, by_example = differences.mean(1, keepdims=True), differences.mean(0)  # [S, 1], [E]
    seeds, examples = differences.shape
    rest = differences - by_seed - by_example + differences.mean()
    spread = max(float(by_seed.std(ddof=1)), math.sqrt((rest**2).sum() / (seeds - 1) / max(examples - 1, 1) / examples))
    return spread if spread > ROUNDING else 0.0


def _effect(differences: Array) -> float:
    """Return the mean divided by its spread, for three seeds or more: with two, the expectation is infinite.

    At 1, about one seed in six shows the opposite sign. Without any spread it is 0 where there is no difference, else infinite.
    """
    mean, spread = float(differences.mean()), _spread(differences)
    if not spread:
        return math.copysign(math.inf, mean) if abs(mean) > ROUNDING else 0.0
    half = (len(differences) - 1) / 2
    return float(special.poch(half - 0.5, 0.5)) / math.sqrt(half) * mean / spread


def holm(p_values: Mapping[K, float]) -> dict[K, float]:
    """Apply Holm's correction: if no difference is real, any corrected p-value is below 0.05 with probability at most 0.05.

    Args:
        p_values: Numbers in [0, 1]. NaN raises: leave out comparisons that could not be tested.

    Returns:
        The corrected p-values, with the same keys.

    Examples:
        >>> holm({"smmd": 0.01, "emd": 0.04, "ntil": 0.03})
        {'smmd': 0.03, 'emd': 0.06, 'ntil': 0.06}
    """
    for key, p in p_values.items():
        if not 0 <= check_number(f"p_values[{key!r}]", p) <= 1:
            raise ValueError(f"p_values[{key!r}]={p!r} is out of range: expected a probability, from 0 to 1.")
    largest = 0.0
    adjusted = dict.fromkeys(p_values, largest)
    for rank, key in enumerate(sorted(p_values, key=lambda key: p_values[key])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * float(p_values[key])))
        adjusted[key] = largest
    return adjusted


def corrected(comparisons: Mapping[K, Comparison]) -> dict[K, Comparison]:
    """Return the comparisons with ``corrected_p`` set by :func:`holm`. Pass all comparisons that are reported together.

    Examples:
        >>> from numerate.lab.stats import compare
        >>> result = compare([1, 1, 1, 1, 1, 1], [0, 0, 0, 0, 0, 0])
        >>> [c.corrected_p for c in corrected({"smmd": result, "emd": result}).values()]
        [0.0625, 0.0625]
    """
    p_values = holm({key: comparison.p_value for key, comparison in comparisons.items()})
    return {key: replace(comparison, corrected_p=p_values[key]) for key, comparison in comparisons.items()}
