"""Paired tests: do two models, or two losses, differ on the same examples?

a and b are metrics of the same examples, ``[S, E]`` or, with one seed, ``[E]``; d = a - b. The question that a test answers
depends on what is resampled, as :mod:`numerate.lab.stats.intervals` explains.

    paired_t             the p for which the interval of d at level 1 - p, over seeds or over both, ends at 0
    paired_permutation   the share of the sign patterns for which |sum ±d| >= |sum d|; for right and wrong answers, which differ
                         on n examples, with a right on k, McNemar's exact test: 2 P(B >= max(k, n - k)), B ~ Binomial(n, 1/2)

With two seeds or more, only a test that uses the spread between seeds can say whether a loss is better, not only whether these
models are. Tests on examples alone call two equal losses different, at 0.05, in 20 % of cases if the seeds' accuracies have a
spread of 1 point (1,319 examples), and in 50 % at 2.7 points. paired_t does so in at most 6 %, and in 1.5 % at 0.01, in 1,728
scenarios (docs/statistics.md).

Every p-value lies in (0, 1], is the same when a and b are swapped, and is 1 where they are equal.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from scipy import optimize, stats  # type: ignore[import-untyped]

from numerate.checks import check_choice
from numerate.lab.stats.intervals import (
    BATCH,
    ROUNDING,
    Array,
    Errors,
    check_bounds,
    check_measure,
    check_over,
    half_width,
    reach_of,
    resampling,
    scale_of,
    standard_errors,
)

LEAST_P = 1e-100  # lower limit of every p-value, so that none is 0


def paired_t(a: Any, b: Any, over: Literal["seeds", "both"] = "both", *, bounds: tuple[float, float] | None = None) -> float:
    """Return the p-value that belongs to the interval of a - b: p < 0.05 where the 95 % interval excludes 0.

    Args:
        a: Finite values, ``[S, E]`` with two seeds or more.
        b: Same shape: the same examples, and the same seeds in the same order.
        over: What is resampled. ``"seeds"`` is the paired t-test of the seeds' means.
        bounds: Smallest and largest possible value of a and b; see :func:`mean_interval`.

    Examples:
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
    """Compute the standard errors of the mean of paired differences.

    Without any spread between seeds or examples, use the error that results if one of the S x E differences is set to 0.
    """
    errors = standard_errors(differences, over, reach)
    if errors.by_seed or errors.by_example:
        return errors
    # With one difference set to 0, the mean is S E - 1 times its standard error.
    return replace(errors, by_seed=abs(float(differences.mean())) / max(differences.size - 1, 1))


def p_value(mean: float, errors: Errors) -> float:
    """Return the p for which the interval at level 1 - p ends at 0."""
    if abs(mean) <= ROUNDING:
        return 1.0

    def excess(log_p: float) -> float:
        return half_width(math.exp(log_p), errors) - abs(mean)

    least = math.log(LEAST_P)
    return _probability(math.exp(optimize.brentq(excess, least, 0.0))) if excess(least) > 0 else LEAST_P


def paired_permutation(a: Any, b: Any, *, resamples: int = 9_999, seed: int = 0) -> float:
    """Run the sign-flip test on examples: if two models do not differ, each paired difference has either sign.

    Exact where all sign patterns can be enumerated (14 differences or fewer, or all of one size); else from random patterns
    plus the observed one. Equal pairs are ignored. It compares models, not losses.

    It assumes that differences are symmetric about 0 if a and b do not differ, not only that their mean is 0. If one of them is a
    little better on most examples and fails on a few, it gives false alarms: at 0.05 in 12 to 57 % of simulations with 20
    examples, of which 10 to 2 % fail. Compare medians then, with ``compare(a, b, statistic="sign")``.

    Args:
        a: Finite values, ``[E]``.
        b: Same shape.
        resamples: Number of random sign patterns where they cannot all be enumerated.
        seed: Random seed of the patterns.

    Examples:
        >>> paired_permutation([1, 2, 4], [0, 0, 0]), paired_permutation([1, 1, 1, 1, 1, 1], [0, 0, 0, 0, 0, 1])
        (0.25, 0.0625)
    """
    count, rng = resampling(resamples, seed)
    first, second = check_pair(a, b)
    if len(first) > 1:
        raise ValueError(f"a has {len(first)} seeds: expected one. Pass one seed of each, or use paired_t.")
    differences = difference_of(first, second)[0][0]
    differences = differences[differences != 0]
    sizes = np.sort(np.abs(differences))
    if not sizes.size or sizes[-1] - sizes[0] <= ROUNDING * sizes[-1]:
        above = int((differences > 0).sum())
        return _probability(stats.binomtest(above, sizes.size).pvalue) if sizes.size else 1.0
    least = abs(math.fsum(differences)) - ROUNDING * math.fsum(sizes)
    bits = len(sizes) - 1  # the largest keeps its sign: flipping all signs gives the same |sum|
    if 2**bits <= count:
        signs = 1 - 2 * (np.arange(2**bits)[:, None] >> np.arange(bits) & 1)
        return float((np.abs(signs @ sizes[:-1] + sizes[-1]) >= least).mean())
    batch = max(1, BATCH // len(sizes))
    extreme = 0
    for done in range(0, count, batch):
        signs = 2.0 * rng.integers(0, 2, (min(batch, count - done), len(sizes)), dtype=np.int8) - 1
        extreme += int((np.abs(signs @ sizes) >= least).sum())
    return (extreme + 1) / (count + 1)


def check_pair(a: Any, b: Any, *, finite: bool = True) -> tuple[Array, Array]:
    """Return both as arrays ``[S, E]``; raise if they cannot be compared."""
    first, second = check_measure("a", a), check_measure("b", b)
    if first.shape != second.shape:
        raise ValueError(
            f"a has shape {first.shape} and b {second.shape}, seeds x examples: expected the same examples in the same order, "
            "and the same number of seeds. Select those that both have."
        )
    for name, values in (("a", first), ("b", second)):
        if finite and np.isinf(values).any():
            raise ValueError(
                f'{name} holds inf, so it has no mean to compare: expected finite values. Use compare(..., statistic="sign").'
            )
    return first, second


def difference_of(a: Array, b: Array) -> tuple[Array, float]:
    """Return (a - b) / scale and the scale, a power of two. The difference is 0 where both are inf or differ only by rounding."""
    scale = scale_of(a, b)
    a, b = a / scale, b / scale
    gap = np.subtract(a, b, out=np.zeros_like(a), where=a != b)
    size = np.minimum(np.maximum(np.abs(a), np.abs(b)), 2.0)
    gap[np.abs(gap) <= ROUNDING * size] = 0.0
    return gap, scale


def _probability(p: float) -> float:
    return min(max(float(p), LEAST_P), 1.0)
