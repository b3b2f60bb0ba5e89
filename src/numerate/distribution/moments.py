"""Mean, variance and CRPS of values and their probabilities. Differences are exact, results limited by floats."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from decimal import Decimal, localcontext
from itertools import pairwise

import numpy as np

from numerate.distribution.exact import EXACT, SHORT, Floats, canonical, ratios


def mean_of(values: Sequence[Decimal], probabilities: Floats) -> Decimal:
    """Return the mean, rounded to 15 digits relative to the range."""
    low, high = values[0], values[-1]
    if low == high:
        return low
    with localcontext(EXACT):
        weights = [Decimal(p) for p in probabilities.tolist()]
        moment = sum((weight * (value - low) for weight, value in zip(weights, values, strict=True)), Decimal(0))
        exact = low + SHORT.divide(moment, sum(weights, Decimal(0)))
        mean = exact.quantize(Decimal((0, (1,), (high - low).adjusted() - 15)))
    return canonical(min(max(mean, low), high))


def variance_of(values: Sequence[Decimal], probabilities: Floats, mean: Decimal) -> tuple[float, Decimal]:
    """Return the variance in units of the squared range, and the range."""
    scale = EXACT.subtract(values[-1], values[0])
    away = ratios([EXACT.subtract(value, mean) for value in values], scale)
    return float(np.square(away) @ probabilities), scale


def crps_of(values: Sequence[Decimal], probabilities: Floats, cumulative: Floats, truth: Decimal) -> float:
    """Return the integral of (F(x) - 1[x >= truth])^2; infinite beyond the range of a float."""
    below = bisect_left(values, truth)
    knots = (*values[:below], truth, *values[below:])
    # F^2 below the truth, (1 - F)^2 above it, on each of the N gaps between knots.
    tails = probabilities[::-1].cumsum()[::-1]
    heights = np.concatenate([cumulative[:below], tails[below:]])
    gaps = [EXACT.subtract(b, a) for a, b in pairwise(knots)]
    scale = max(gaps)
    score = float(np.square(heights) @ ratios(gaps, scale))
    return float(SHORT.multiply(Decimal(score), scale))
