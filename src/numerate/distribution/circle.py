"""CircularDistribution: a distribution over clock times or angles, where the scale wraps around.

P is the period and d(x, y) = min((x - y) mod P, (y - x) mod P) the distance around the circle. X is drawn from the
distribution, X' is an independent copy, y the truth, and H(t) the half circle that starts at t:

    median      the value m that minimizes E d(m, X)
    mean        the number x that minimizes E d(x, X)^2
    crps        E d(X, y) - E d(X, X') / 2 = integral over half a turn of (P(X in H(t)) - 1[y in H(t)])^2 dt

The interval is that of the line obtained by cutting the circle opposite the median. If all values and the truth lie within half
a turn, all of these equal their counterparts on a line. The mean is not the direction of the mean unit vector, which minimizes
another cost. The CRPS is proper but not strictly: it cannot distinguish, for example, different pairs of equally likely
opposite values.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from itertools import pairwise

import numpy as np

from numerate.distribution.decision_rules import REACH, Cost, best, decide
from numerate.distribution.exact import (
    EXACT,
    SHORT,
    TIE,
    Floats,
    Number,
    as_list,
    exact_number,
    label,
    offset,
    ratios,
    size,
    wrapped,
)
from numerate.distribution.moments import mean_of
from numerate.distribution.number_distribution import NumberDistribution
from numerate.distribution.shares import SHARES


@dataclass(frozen=True, repr=False)
class CircularDistribution:
    """A :class:`NumberDistribution` on a circle: decisions, intervals and scores that wrap around.

    A separate type, so that functions of a line, such as quantiles, cannot be applied to a circle by mistake. For these, such as
    ``numerate.calibration``, pass ``unrolled`` and ``unroll(truth)``.

    Args:
        distribution: the distribution. Values outside the scale are moved onto it by multiples of the period, and equal ones
            merged.
        period: the circumference: 720 for minutes on a 12-hour face, 360 for degrees.
        lowest: start of the scale: -180 for angles from -180 to below 180.

    Examples:
        >>> minutes = NumberDistribution([719, 1, 2, 300], [0.4, 0.2, 0.3, 0.1])
        >>> minutes.median, minutes.mean, minutes.interval(0.8), round(minutes.crps(0), 2)
        (Decimal('2'), Decimal('318.4'), (Decimal('1'), Decimal('719')), 143.18)
        >>> face = CircularDistribution(minutes, 720)
        >>> face.median, face.mean, face.interval(0.8), round(face.crps(0), 2)
        (Decimal('1'), Decimal('30.4'), (Decimal('719'), Decimal('2')), 3.66)
    """

    distribution: NumberDistribution
    """The distribution with values in ``[lowest, lowest + period)``, ``covered`` and the other shares of the mass."""

    period: Decimal
    lowest: Decimal

    def __init__(self, distribution: NumberDistribution, period: Number, lowest: Number = 0) -> None:
        if not isinstance(distribution, NumberDistribution):
            raise TypeError(f"distribution={distribution!r:.80} is a {type(distribution).__name__}: expected NumberDistribution.")
        turn, start = size("period", period), exact_number("lowest", lowest)
        if turn == 0:
            raise ValueError(f"period={period!r} is out of range: expected a number > 0, such as 360 for degrees.")
        placed = _moved(distribution, tuple(wrapped(value, start, turn) for value in distribution.values))
        for name, field in {"distribution": placed, "period": turn, "lowest": start}.items():
            object.__setattr__(self, name, field)

    @property
    def values(self) -> tuple[Decimal, ...]:
        """Sorted and distinct, on the scale; N of them."""
        return self.distribution.values

    @property
    def probabilities(self) -> Floats:
        """``[N]``, above 0, with the sum 1; read-only."""
        return self.distribution.probabilities

    @property
    def floats(self) -> Floats:
        """The values as floats ``[N]``."""
        return self.distribution.floats

    @property
    def median(self) -> Decimal:
        """The value with the smallest expected distance; of two neighbours the lower one, of others the first on the scale."""
        return self._on_scale(self.unrolled.median)

    @cached_property
    def mean(self) -> Decimal:
        """The number with the smallest expected squared distance, rounded as on a line; ties go to the closest to the median."""
        # Each cut of the circle gives a line; the mean of the line with the smallest variance is the answer. Moving the lowest k
        # values up by a turn changes the variance, in squared turns, by 2 sum p (v - mean) + C (1 - C), C their mass.
        values, p = self.unrolled.values, self.unrolled.probabilities
        places = ratios([offset(value, self.median, self.period) for value in values], self.period)
        below = np.concatenate([[0.0], p.cumsum()[:-1]])
        changes = 2 * np.concatenate([[0.0], (p * (places - places @ p)).cumsum()[:-1]]) + below * (1 - below)
        tied = np.flatnonzero(changes <= changes.min() + TIE)
        away = (places @ p + below[tied] + 0.5) % 1 - 0.5  # of the means from the median
        nearest = np.flatnonzero(np.abs(away) <= np.abs(away).min() + TIE)
        moved = int(tied[nearest[away[nearest].argmin()]])
        around = (*values[moved:], *(EXACT.add(value, self.period) for value in values[:moved]))
        return self._on_scale(mean_of(around, np.roll(p, -moved)))

    @cached_property
    def mode(self) -> Decimal:
        """The most likely value; ties go to the closest to the median, then to the one below it."""
        return best(self.values, self.probabilities, self.median, self.period)

    @cached_property
    def unrolled(self) -> NumberDistribution:
        """The distribution on a line: the circle cut opposite the median. Values may be outside the scale.

        Examples:
            >>> CircularDistribution(NumberDistribution([719, 0, 3], [1, 1, 1]), 720).unrolled.values
            (Decimal('-1'), Decimal('0'), Decimal('3'))
        """
        return _moved(self.distribution, tuple(self.unroll(value) for value in self.values))

    def unroll(self, x: Number) -> Decimal:
        """Return x on the line of ``unrolled``, at most half a period from the median.

        Examples:
            >>> CircularDistribution(NumberDistribution.point(1), 720).unroll(719)
            Decimal('-1')
        """
        return EXACT.add(self._middle, offset(exact_number("x", x), self._middle, self.period))

    def interval(self, level: float) -> tuple[Decimal, Decimal]:
        """Return start and end of the central interval, going up; the end is the smaller number if the interval wraps around.

        It is the interval of ``unrolled``: closed, with values as ends and at least ``level`` of the probability. It contains a
        number y if ``unroll(y)`` lies in ``unrolled.interval(level)``.

        Examples:
            >>> CircularDistribution(NumberDistribution.bell(0, width=2), 360).interval(0.9)
            (Decimal('357'), Decimal('3'))
        """
        low, high = self.unrolled.interval(level)
        return self._on_scale(low), self._on_scale(high)

    def crps(self, truth: Number) -> float:
        """Return the continuous ranked probability score with distances around the circle; lower is better.

        For a point mass it is the distance from the truth.

        Examples:
            >>> face = CircularDistribution(NumberDistribution([718, 2], [0.5, 0.5]), 720)
            >>> face.crps(0), face.crps(718), CircularDistribution(NumberDistribution.point(719), 720).crps(1)
            (1.0, 1.0, 2.0)
        """
        # t goes half a turn from the truth. H(t) loses the values ahead of the truth and gains those of the other half.
        start, half = exact_number("truth", truth), EXACT.divide(self.period, Decimal(2))
        knots = []
        for value, p in zip(self.values, self.probabilities.tolist(), strict=True):
            way = EXACT.subtract(wrapped(value, start, self.period), start)
            knots.append((EXACT.subtract(way, half), 0.0, p) if way >= half else (way, p, 0.0))
        knots.sort()
        lost, gained = (np.array([knot[i] for knot in knots]) for i in (1, 2))
        ahead = np.concatenate([lost[::-1].cumsum()[::-1], [0.0]])
        heights = ahead + np.concatenate([[0.0], gained.cumsum()])
        gaps = [EXACT.subtract(b, a) for a, b in pairwise([Decimal(0), *(knot[0] for knot in knots), half])]
        counted = [gap for gap, height in zip(gaps, heights.tolist(), strict=True) if height]
        scale = max(counted, default=Decimal(0))
        score = float(np.square(heights[heights != 0]) @ ratios(counted, scale))
        return float(SHORT.multiply(Decimal(score), scale))

    def trimmed(self, *, reach: int = REACH) -> CircularDistribution:
        """Return the distribution without the values that are outliers in ``unrolled``, with the same ``reach``.

        Examples:
            >>> CircularDistribution(NumberDistribution([718, 719, 1, 360], [0.3, 0.4, 0.29, 0.01]), 720).trimmed().values
            (Decimal('1'), Decimal('718'), Decimal('719'))
        """
        line = self.unrolled.trimmed(reach=reach)
        return self if line is self.unrolled else CircularDistribution(line, self.period, self.lowest)

    def decide(
        self,
        metric: str | Cost,
        *,
        tolerance: Number | None = None,
        candidates: Iterable[Number] | None = None,
        trim: bool = True,
    ) -> Decimal:
        """Return the number with the smallest expected cost, on the scale. Ties go to the value closest to the median.

        Args:
            metric: "median", "mean", "mode", "within", or a function ``cost(prediction, truth)`` of two floats on the scale.
                Relative errors are undefined on a circle.
            tolerance: for "within": the largest distance that counts as correct.
            candidates: for "within" and functions: the answers to choose from, by default the values.
            trim: ignore outliers (:meth:`trimmed`); False for the exact minimum of the expected cost.

        Examples:
            >>> face = CircularDistribution(NumberDistribution([715, 718, 3, 180], [0.3, 0.2, 0.2, 0.3]), 720)
            >>> [str(face.decide(metric)) for metric in ("median", "mean", "mode")]
            ['718', '52.7', '715']
            >>> face.decide("within", tolerance=5)
            Decimal('718')
        """
        if metric == "within" and tolerance is None:
            raise ValueError(
                "tolerance=None with metric='within': expected the largest distance that counts as correct, such as 5."
            )
        if candidates is not None:
            given = [exact_number("candidates", x) for x in as_list("candidates", candidates)]
            candidates = [wrapped(x, self.lowest, self.period) for x in given]
        return decide(self, metric, tolerance, None, None, candidates, self.period, trim=trim)

    def __len__(self) -> int:
        return len(self.values)

    def __repr__(self) -> str:
        covered = f", covered {self.distribution.covered:.3g}" if self.distribution.covered < 1 else ""
        low, high = map(label, self.interval(0.9))
        values = f"{len(self)} value{'s' * (len(self) > 1)} on a circle of {label(self.period)}"
        return f"CircularDistribution({values}: median {label(self.median)}, 90 % from {low} up to {high}{covered})"

    def _on_scale(self, x: Decimal) -> Decimal:
        return wrapped(x, self.lowest, self.period)

    @cached_property
    def _middle(self) -> Decimal:
        """The value with the smallest expected distance, up to 1e-11 turns; the first on the scale."""
        # In turns; the sums over the values of a half circle are differences of sums over two turns.
        places = ratios([EXACT.subtract(value, self.lowest) for value in self.values], self.period)
        line, masses = np.concatenate([places - 1, places, places + 1]), np.tile(self.probabilities, 3)
        mass, moment = (np.concatenate([[0.0], part.cumsum()]) for part in (masses, masses * line))
        count = len(places)
        here = np.arange(count, 2 * count)
        first = np.searchsorted(line, places - 0.5)
        last = first + count
        behind = places * (mass[here] - mass[first]) - (moment[here] - moment[first])
        ahead = moment[last] - moment[here] - places * (mass[last] - mass[here])
        costs = behind + ahead
        return self.values[int(np.flatnonzero(costs <= costs.min() + TIE)[0])]


def _moved(distribution: NumberDistribution, values: tuple[Decimal, ...]) -> NumberDistribution:
    """Return the distribution with other values and the same shares of the mass."""
    if values == distribution.values:
        return distribution
    return NumberDistribution(values, distribution.probabilities, **{name: getattr(distribution, name) for name in SHARES})
