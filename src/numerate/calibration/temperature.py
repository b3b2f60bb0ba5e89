"""Temperature scaling of distributions over numbers, fitted on validation data.

The probability of a value becomes p^(1/T), normalised: T above 1 flattens an overconfident distribution, T below 1 sharpens it.
Temperature adds no values, so it cannot fix a truth outside all values, and it does not change equally likely values, such as
distinct samples. It changes medians and means slightly, and guarantees no coverage; use conformal intervals for that.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal

import numpy as np

from numerate.calibration.frame import FAR, INNER, central, checked_rows, half_width, scale_of, typical_half
from numerate.distribution import NumberDistribution
from numerate.distribution.exact import EXACT, SHORT, Floats, Number, ratios

_COLDEST, _HOTTEST = 0.05, 20.0


def fit_temperature(distributions: Sequence[NumberDistribution], truths: Iterable[Number]) -> float:
    """Return the temperature T of :meth:`numerate.NumberDistribution.tempered` with the smallest mean CRPS on validation rows.

    The CRPS of a row is in units of its scale (half the width of its central 98 %, plus half the typical one), truncated ten
    scales from its median. It is a proper score, finite for truths outside all values, and robust to single rows. T is searched
    from 0.05 to 20, first on a grid, then between the neighbours of the best point. The result is 1 if the mean gain over T = 1
    is below its standard error.

    Examples:
        >>> answer = NumberDistribution([1, 2, 3, 4, 5], [0.04, 0.16, 0.6, 0.16, 0.04])
        >>> T = fit_temperature([answer] * 100, [1, 2, 2, 3, 3, 3, 3, 4, 4, 5] * 10)  # 60 % for a value that is right in 40 %
        >>> round(T, 1), answer.tempered(T).probabilities.round(2).tolist()
        (1.9, [0.1, 0.2, 0.4, 0.2, 0.1])
    """
    each = _tempered_crps(*checked_rows(distributions, truths))

    def score(log_temperature: float) -> float:
        return float(each(math.exp(log_temperature)).mean())

    grid = np.linspace(math.log(_COLDEST), math.log(_HOTTEST), 61)
    scores = [score(x) for x in grid.tolist()]
    best = int(np.argmin(scores))
    low, high = float(grid[max(best - 1, 0)]), float(grid[min(best + 1, len(grid) - 1)])
    golden = (math.sqrt(5) - 1) / 2
    left, right = high - golden * (high - low), low + golden * (high - low)
    at_left, at_right = score(left), score(right)
    while high - low > 1e-4:
        if at_left <= at_right:
            high, right, at_right = right, left, at_left
            left = high - golden * (high - low)
            at_left = score(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + golden * (high - low)
            at_right = score(right)
    _, found = min((at_left, left), (at_right, right), (scores[best], float(grid[best])))
    gains = each(1.0) - each(math.exp(found))
    return math.exp(found) if gains.mean() > max(gains.std() / math.sqrt(len(gains)), 1e-12) else 1.0


def _tempered_crps(rows: list[NumberDistribution], numbers: list[Decimal]) -> Callable[[float], Floats]:
    """Return the CRPS of each row as a function of the temperature. One array for all rows, truths as values without mass."""
    ends = [central(row, INNER) for row in rows]
    halves = [half_width(*pair) for pair in ends]
    typical = typical_half(sorted(half for half in halves if half))
    places, logs, above, starts = [], [], [], [0]
    for row, y, half in zip(rows, numbers, halves, strict=True):
        at = bisect_right(row.values, y)
        knots = (*row.values[:at], y, *row.values[at:])
        scale = scale_of(half, typical)
        unit = SHORT.divide(Decimal(scale.numerator), Decimal(scale.denominator))
        places.append(np.clip(ratios([EXACT.subtract(knot, row.median) for knot in knots], unit), -FAR, FAR))
        logs.append(np.insert(np.log(row.probabilities), at, -np.inf))
        above.append(np.arange(len(knots)) >= at)
        starts.append(starts[-1] + len(knots))
    gaps = np.concatenate([np.append(np.diff(place), 0.0) for place in places])
    masses, step = np.concatenate(logs), np.concatenate(above).astype(np.float64)
    first, counts = np.array(starts[:-1]), np.diff(starts)

    def each(temperature: float) -> Floats:
        warm = masses / temperature
        warm = np.exp(warm - np.repeat(np.maximum.reduceat(warm, first), counts))
        warm /= np.repeat(np.add.reduceat(warm, first), counts)
        sums = warm.cumsum() - np.repeat(np.arange(len(rows), dtype=np.float64), counts)  # each row adds 1
        scores: Floats = np.add.reduceat(np.square(sums - step) * gaps, first)
        return scores

    return each
