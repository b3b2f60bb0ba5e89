"""Do two models, or two losses, differ? Tests on the same examples, and the correction for many of them.

a and b are measures of the same examples, ``[S, E]`` or, of one seed, ``[E]``; d = a - b. What a test answers depends on what
would be drawn anew, as :mod:`numerate.lab.stats.intervals` tells.

    paired_t             the p for which the interval of d at level 1 - p, over seeds or over both, ends at 0; b is the range of a
    paired_permutation   the share of the sign patterns for which |sum ±d| >= |sum d|
    wilcoxon             the same with the ranks of |d| in place of their sizes; above 50 examples, by its normal limit
    mcnemar              2 P(B >= max(k, n - k)), 1 at most: a and b differ on n examples, a is right on k, B ~ Binomial(n, 1/2)
    holm                 the i-th smallest of m p-values becomes the largest of min(1, (m + 1 - j) p_j), j = 1, .., i

Every p-value lies in (0, 1], stays the same when a and b change places, and is 1 where they are equal.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar, overload

import numpy as np
from scipy import optimize, stats  # type: ignore[import-untyped]

from numerate.checks import check_choice, check_number
from numerate.lab.stats.intervals import (
    BATCH,
    ROUNDING,
    Array,
    Errors,
    check_bounds,
    check_count,
    check_measure,
    check_over,
    half_width,
    reach_of,
    scale_of,
    standard_errors,
)

K = TypeVar("K")

LEAST_P = 1e-100  # p is never 0: smaller ones are given as this


@dataclass(frozen=True)
class PairedTest:
    """A p-value, and the name of the test that gave it."""

    name: str
    p_value: float


def paired_test(
    a: Any, b: Any, *, bounds: tuple[float, float] | None = None, resamples: int = 9_999, seed: int = 0
) -> PairedTest:
    """The test that fits the data, of the mean of a - b.

    - Two seeds or more: :func:`paired_t` over both. The question is whether a loss is better, not whether some of its models
      are, and only a test that sees the spread between seeds can tell. Tests on the examples alone call two equal losses
      different, at 0.05, in a fifth of the cases if the accuracies of their seeds spread by 1 point (1,319 examples), in half of
      them at 2.7 points; paired_t does in 6 % at most, and in 1.5 % at 0.01, in 1,728 scenarios (``scripts/false_alarms.py``).
    - One seed, 0 and 1: :func:`mcnemar`, which is exact. One seed, other values: :func:`paired_permutation`, which assumes no
      distribution. Both speak of these two models alone.
    - Never :func:`wilcoxon`: its p-value belongs to ranks, and not to the difference that stands beside it. Errors that can
      be infinite are compared by sign: ``compare(a, b, statistic="sign")``.

    Args:
        a: finite values, ``[E]`` or ``[S, E]``.
        b: of the same shape.
        bounds: see :func:`paired_t`.
        resamples: see :func:`paired_permutation`.
        seed: see :func:`paired_permutation`.

    Example:
        >>> paired_test([1, 1, 1, 1, 1, 1], [0, 0, 0, 0, 0, 1])
        PairedTest(name='mcnemar', p_value=0.0625)
    """
    first, second = check_pair(a, b)
    if len(first) > 1:
        return PairedTest("paired_t", paired_t(first, second, bounds=bounds))
    if np.isin((first, second), (0, 1)).all():
        return PairedTest("mcnemar", mcnemar(first, second))
    return PairedTest("paired_permutation", paired_permutation(first, second, resamples=resamples, seed=seed))


def paired_t(a: Any, b: Any, over: Literal["seeds", "both"] = "both", *, bounds: tuple[float, float] | None = None) -> float:
    """The test that belongs to the interval of a - b: p < 0.05 where the 95 % interval leaves out 0.

    Args:
        a: finite values, ``[S, E]`` with two seeds or more.
        b: of the same shape: the same examples, and for each seed its partner.
        over: what would be drawn anew; over seeds, it is the paired t-test of the seeds' means.
        bounds: of a and b; see :func:`mean_interval`.

    Example:
        >>> a, b = [[3, 2], [4, 3], [6, 4]], [[1, 1], [1, 1], [1, 1]]
        >>> round(paired_t(a, b, over="seeds"), 3), round(paired_t(a, b), 3)
        (0.067, 0.257)
    """
    check_choice("over", over, ("seeds", "both"))
    first, second = check_pair(a, b)
    check_over("a", first, over)
    differences, scale = difference_of(first, second)
    reach = reach_of(*check_bounds(bounds, a=first, b=second), first, second) / scale
    return p_value(float(differences.mean()), difference_errors(differences, over, reach))


def difference_errors(differences: Array, over: Literal["examples", "seeds", "both"], reach: float) -> Errors:
    """Standard errors of the mean of paired differences.

    Where neither seeds nor examples show any spread, they are what they would be had one of the S x E differences been 0.
    """
    errors = standard_errors(differences, over, reach)
    if errors.by_seed or errors.by_example:
        return errors
    # Had one of the differences been 0, the mean would have been S E - 1 times its error.
    return replace(errors, by_seed=abs(float(differences.mean())) / max(differences.size - 1, 1))


def p_value(mean: float, errors: Errors) -> float:
    """The p for which the interval at level 1 - p ends at 0."""
    if abs(mean) <= ROUNDING:
        return 1.0

    def excess(log_p: float) -> float:
        return half_width(math.exp(log_p), errors) - abs(mean)

    least = math.log(LEAST_P)
    return _probability(math.exp(optimize.brentq(excess, least, 0.0))) if excess(least) > 0 else LEAST_P


def paired_permutation(
    a: Any, b: Any, over: Literal["examples", "seeds"] = "examples", *, resamples: int = 9_999, seed: int = 0
) -> float:
    """The sign-flip test: were a and b alike, each paired difference could as well have had the other sign.

    Exact where all patterns can be counted (14 differences or fewer, or all of one size), else from random ones, to which the
    observed one is added. Equal pairs do not count. Over examples, it speaks of these models alone; over seeds, p is at least
    2 / 2^S, and so 5 seeds never come below 0.06.

    Args:
        a: finite values, ``[E]`` or ``[S, E]``.
        b: of the same shape.
        over: the pairs: examples, averaged over seeds, or seeds, averaged over examples.
        resamples: sign patterns to draw where they cannot all be counted.
        seed: of the draw.

    Example:
        >>> paired_permutation([1, 2, 4], [0, 0, 0])
        0.25
    """
    check_choice("over", over, ("examples", "seeds"))
    count, rng = check_count("resamples", resamples, least=99), np.random.default_rng(check_count("seed", seed, least=0))
    differences = _nonzero_differences(*check_pair(a, b), axis=0 if over == "examples" else 1)
    sizes = np.sort(np.abs(differences))
    if not sizes.size or sizes[-1] - sizes[0] <= ROUNDING * sizes[-1]:
        return _sign_test(differences)
    least = abs(math.fsum(differences)) - ROUNDING * math.fsum(sizes)
    bits = len(sizes) - 1  # the sign of the largest stays: turning all of them changes nothing
    if 2**bits <= count:
        signs = 1 - 2 * (np.arange(2**bits)[:, None] >> np.arange(bits) & 1)
        return float((np.abs(signs @ sizes[:-1] + sizes[-1]) >= least).mean())
    batch = max(1, BATCH // len(sizes))
    extreme = 0
    for done in range(0, count, batch):
        signs = 2.0 * rng.integers(0, 2, (min(batch, count - done), len(sizes)), dtype=np.int8) - 1
        extreme += int((np.abs(signs @ sizes) >= least).sum())
    return (extreme + 1) / (count + 1)


def wilcoxon(a: Any, b: Any) -> float:
    """Wilcoxon's signed-rank test on the examples, averaged over seeds: by ranks, so that infinite errors are welcome.

    Equal pairs are left out, two infinite ones among them; where no other is left, p is 1. It speaks of these models alone.

    Args:
        a: ``[E]`` or ``[S, E]``.
        b: of the same shape.

    Example:
        >>> wilcoxon([1, 2, 3, 4, 5, float("inf")], [0, 0, 0, 0, 0, 0])
        0.03125
    """
    differences = _nonzero_differences(*check_pair(a, b, finite=False), axis=0)
    if not differences.size:
        return 1.0
    signed_ranks = np.sign(differences) * stats.rankdata(np.abs(differences))  # finite: not every scipy takes inf and -inf
    return _probability(stats.wilcoxon(signed_ranks).pvalue)


def mcnemar(a: Any, b: Any) -> float:
    """McNemar's exact test, for right (1) and wrong (0) answers of two models to the same examples.

    Args:
        a: ``[E]`` of 0 and 1.
        b: likewise.

    Example:
        >>> mcnemar([1, 1, 1, 1, 1, 1, 0, 0], [0, 0, 0, 0, 0, 1, 0, 1])  # a alone is right 5 times, b alone once
        0.21875
    """
    first, second = check_pair(a, b)
    if len(first) > 1:
        raise ValueError(f"a has {len(first)} seeds: expected one. Pass one seed of each, or use paired_t.")
    for name, values in (("a", first), ("b", second)):
        odd = values[~np.isin(values, (0, 1))]
        if odd.size:
            raise ValueError(f"{name} holds {odd[0]:g}: expected 0 and 1 alone. For other measures, use paired_permutation.")
    return _sign_test((first - second)[0])


@overload
def holm(p_values: Mapping[K, float]) -> dict[K, float]: ...
@overload
def holm(p_values: Sequence[float]) -> list[float]: ...
def holm(p_values: Mapping[K, float] | Sequence[float]) -> dict[K, float] | list[float]:
    """Holm's correction: that any p-value is below 0.05 afterwards by mere chance has a probability of 0.05 at most.

    Args:
        p_values: a mapping to numbers in [0, 1], or a sequence of them. NaN raises: leave out what could not be tested.

    Returns:
        The corrected p-values, with the same keys or in the same order.

    Example:
        >>> holm({"smmd": 0.01, "emd": 0.04, "ntil": 0.03})
        {'smmd': 0.03, 'emd': 0.06, 'ntil': 0.06}
    """
    keyed: dict[Any, float] = dict(p_values if isinstance(p_values, Mapping) else enumerate(p_values))
    for key, p in keyed.items():
        if not 0 <= check_number(f"p_values[{key!r}]", p) <= 1:
            raise ValueError(f"p_values[{key!r}]={p!r} is out of range: expected a probability, from 0 to 1.")
    largest = 0.0
    adjusted = dict.fromkeys(keyed, largest)
    for rank, key in enumerate(sorted(keyed, key=lambda key: keyed[key])):
        largest = max(largest, min(1.0, (len(keyed) - rank) * float(keyed[key])))
        adjusted[key] = largest
    return adjusted if isinstance(p_values, Mapping) else list(adjusted.values())


def check_pair(a: Any, b: Any, *, finite: bool = True) -> tuple[Array, Array]:
    """Both as arrays ``[S, E]``, or an error that says why they cannot be compared."""
    first, second = check_measure("a", a), check_measure("b", b)
    if first.shape != second.shape:
        raise ValueError(
            f"a has shape {first.shape} and b {second.shape}, seeds x examples: expected the same examples in the same order, "
            "and as many seeds. Take those that both have."
        )
    for name, values in (("a", first), ("b", second)):
        if finite and np.isinf(values).any():
            raise ValueError(
                f'{name} holds inf, so it has no mean to compare: expected finite values. Use compare(..., statistic="sign"), '
                "or wilcoxon."
            )
    return first, second


def difference_of(a: Array, b: Array) -> tuple[Array, float]:
    """The difference over a power of two, and that power; exactly 0 where both are infinite or differ by rounding alone."""
    scale = scale_of(a, b)
    a, b = a / scale, b / scale
    gap = np.subtract(a, b, out=np.zeros_like(a), where=a != b)
    size = np.minimum(np.maximum(np.abs(a), np.abs(b)), 2.0)
    gap[np.abs(gap) <= ROUNDING * size] = 0.0
    return gap, scale


def _nonzero_differences(a: Array, b: Array, axis: int) -> Array:
    """Of the sums over an axis: means would give 0.6 - 0.4 and 0.2 - 0, which are no longer the same."""
    scale = scale_of(a, b)
    gap, _ = difference_of((a / scale).sum(axis), (b / scale).sum(axis))
    nonzero: Array = gap[gap != 0]
    return nonzero


def _sign_test(differences: Array) -> float:
    above, below = int((differences > 0).sum()), int((differences < 0).sum())
    return _probability(stats.binomtest(above, above + below).pvalue) if above + below else 1.0


def _probability(p: float) -> float:
    return min(max(float(p), LEAST_P), 1.0)
