"""Calibration diagnostics: the position of each truth in its distribution, and the coverage of intervals."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Protocol

import numpy as np

from numerate.calibration.frame import check_level, checked_rows
from numerate.distribution import NumberDistribution
from numerate.distribution.exact import Floats, Number, as_list


class _Intervals(Protocol):
    def interval(self, distribution: NumberDistribution, level: float) -> tuple[Decimal, Decimal]: ...


def pit(distributions: Sequence[NumberDistribution], truths: Iterable[Number], *, seed: int = 0) -> Floats:
    """Return the randomised probability integral transform ``[n]``: P(X < y) plus a uniform random fraction of P(X = y).

    0 and 1 for truths outside the range of values. Uniform for a calibrated model; many near 0 and 1 mean overconfidence, many
    near 1/2 underconfidence, and more below 1/2 than above that the answers are too high.

    Examples:
        >>> pit([NumberDistribution([1, 2, 3, 4], [1, 1, 1, 1])] * 3, [0, 2.5, 9]).tolist()
        [0.0, 0.5, 1.0]
    """
    rows, numbers = checked_rows(distributions, truths)
    drawn = np.random.default_rng(seed).random(len(rows))
    positions = np.empty(len(rows))
    for i, (distribution, y) in enumerate(zip(rows, numbers, strict=True)):
        upto = distribution.cdf(y)
        at = bisect_left(distribution.values, y)
        mass = distribution.probabilities[at] if at < len(distribution) and distribution.values[at] == y else 0.0
        positions[i] = upto - (1 - drawn[i]) * mass
    clipped: Floats = np.clip(positions, 0.0, 1.0)
    return clipped


def coverage(
    distributions: Sequence[NumberDistribution],
    truths: Iterable[Number],
    levels: Iterable[float],
    calibrated: _Intervals | None = None,
) -> Floats:
    """Return the share of truths inside the interval of each level.

    The intervals are the model's, :meth:`numerate.NumberDistribution.interval`, or those of ``calibrated``, which must not be
    fitted on these rows. Interval ends are values, so that intervals have more than their level of the probability, and the
    coverage of a calibrated model with few values is above the levels. :func:`pit` has no such bias.

    Examples:
        >>> coverage([NumberDistribution.bell(50, width=10)] * 4, [40, 55, 60, 90], [0.5, 0.9]).tolist()
        [0.25, 0.75]
    """
    rows, numbers = checked_rows(distributions, truths)
    chosen = [check_level("levels", level) for level in as_list("levels", levels)]
    shares = np.zeros(len(chosen))
    for i, level in enumerate(chosen):
        ends = (row.interval(level) if calibrated is None else calibrated.interval(row, level) for row in rows)
        shares[i] = sum(low <= y <= high for (low, high), y in zip(ends, numbers, strict=True)) / len(rows)
    return shares
