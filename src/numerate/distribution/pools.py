r"""Pools: the distributions of several models, or of several prompts, as one; and how much they disagree.

Member i has the distribution function F_i and, after its coverage is counted, the weight u_i; F = sum u_i F_i is the linear pool.
The spread of the pool is the CRPS that it expects of itself, which is half the mean distance of two draws:

    spread      integral of F (1 - F)  =  within + between
    within      sum u_i integral of F_i (1 - F_i)       what the members are unsure of themselves
    between     sum u_i integral of (F_i - F)^2         what they disagree on

All are in the unit of the values. A tiny mass far away, which would decide a variance, adds little. On a circle, F(t) is the
probability of the half circle that starts at t, and the integral is over half a turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from itertools import pairwise
from typing import Literal, NamedTuple, TypeVar, cast

import numpy as np
import numpy.typing as npt

from numerate.checks import check_choice, choices
from numerate.distribution.circle import CircularDistribution
from numerate.distribution.exact import EXACT, SHORT, TIE, Floats, as_list, check_masses, ratios
from numerate.distribution.moments import mean_of
from numerate.distribution.number_distribution import NumberDistribution
from numerate.distribution.shares import SHARES

Average = Literal["probabilities", "quantiles"]
Distribution = TypeVar("Distribution", bound=NumberDistribution | CircularDistribution)


class Spread(NamedTuple):
    """How far the numbers of a pool are apart, in the unit of the values, by its two causes."""

    within: float
    """What the members are unsure of themselves."""

    between: float
    """What they disagree on; 0 if they are equal."""

    @property
    def total(self) -> float:
        """The CRPS that the pool expects of itself: half the mean distance of two draws from it."""
        return self.within + self.between


def pool(
    distributions: Sequence[Distribution], weights: npt.ArrayLike | None = None, *, average: Average = "probabilities"
) -> Distribution:
    """Return one distribution for several of the same question: of models, adapters, checkpoints or prompts.

    Args:
        distributions: at least one; all linear, or all on the same circle.
        weights: one finite number >= 0 per distribution; equal by default. :func:`numerate.calibration.fit_pool_weights` fits
            them.
        average: ``"probabilities"``: the linear pool, which is :meth:`NumberDistribution.mixed`: as wide as the members and their
            disagreement. ``"quantiles"``: the mean of the members' quantiles, as wide as a typical member; not on a circle.

    Examples:
        >>> members = [NumberDistribution([9, 11], [1, 1]), NumberDistribution([11, 13], [1, 1])]
        >>> pool(members)
        NumberDistribution(3 values 9..13: median 11, 90 % in 9..13)
        >>> pool(members, average="quantiles")
        NumberDistribution(2 values 10..12: median 10, 90 % in 10..12)
    """
    check_choice("average", average, choices(Average))
    parts = checked_members(distributions)
    lines, circle = lines_of(parts), _circle(parts[0]) if parts else None
    if average == "quantiles" and circle is not None:
        raise ValueError("average='quantiles' is undefined on a circle: expected average='probabilities'.")
    mixture = NumberDistribution.mixed(lines, weights)
    if average == "quantiles":
        mixture = _mean_quantiles(lines, votes(parts, weights), mixture)
    return cast("Distribution", mixture if circle is None else CircularDistribution(mixture, *circle))


def spread(distributions: Sequence[Distribution], weights: npt.ArrayLike | None = None) -> Spread:
    """Return how far the linear pool of these distributions is spread, and how much of that is disagreement.

    Examples:
        >>> spread([NumberDistribution([9, 11], [1, 1]), NumberDistribution([9, 11], [1, 1])])
        Spread(within=0.5, between=0.0)
        >>> spread([NumberDistribution.point(10), NumberDistribution.point(20)])
        Spread(within=0.0, between=2.5)
    """
    parts = checked_members(distributions)
    u = votes(parts, weights)
    heights, gaps, unit = steps(parts)
    within = float(u @ ((heights * (1 - heights)) @ gaps))
    between = float(u @ (np.square(heights - u @ heights) @ gaps))
    return Spread(*(float(SHORT.multiply(Decimal(share), unit)) for share in (within, between)))


def votes(parts: Sequence[NumberDistribution | CircularDistribution], weights: npt.ArrayLike | None) -> Floats:
    """Return the probability of each member in the linear pool ``[M]``: its weight times what it covers, normalised."""
    given = np.ones(len(parts)) if weights is None else weights
    covered = np.array([line.covered for line in lines_of(parts)])
    shares = check_masses("weights", given, len(parts), "distribution") * covered
    normalised: Floats = shares / shares.sum()
    return normalised


def steps(
    parts: Sequence[NumberDistribution | CircularDistribution], window: tuple[Decimal, Decimal] | None = None
) -> tuple[Floats, Floats, Decimal]:
    """Return the distribution functions ``[M, K]``, the K lengths on which they are constant, and the unit of these lengths.

    On a circle, the functions are the probabilities of the half circle from t, on half a turn; on a line, only what lies in
    ``window`` has a length.
    """
    circle = _circle(parts[0])
    if circle is not None:
        period, lowest = circle
        places = [ratios([EXACT.subtract(value, lowest) for value in part.values], period) for part in parts]
        starts = np.unique(np.concatenate(places) % 0.5)
        ends = np.append(starts[1:], starts[0] + 0.5)
        middles = (starts + ends) / 2
        turns = [(place, np.append(0.0, part.probabilities.cumsum())) for place, part in zip(places, parts, strict=True)]
        halves = [_before(middles + 0.5, *turn) - _before(middles, *turn) for turn in turns]
        return np.array(halves), ends - starts, period
    knots = sorted({value for part in parts for value in part.values})
    at, masses = {value: k for k, value in enumerate(knots)}, np.zeros((len(parts), len(knots)))
    for row, part in zip(masses, parts, strict=True):
        row[[at[value] for value in part.values]] = part.probabilities
    if window is not None:
        knots = [min(max(knot, window[0]), window[1]) for knot in knots]
    unit = EXACT.subtract(knots[-1], knots[0])
    return masses.cumsum(axis=1)[:, :-1], ratios([EXACT.subtract(b, a) for a, b in pairwise(knots)], unit), unit


def lines_of(parts: Sequence[NumberDistribution | CircularDistribution]) -> list[NumberDistribution]:
    """Return the distributions without their circles."""
    return [part.distribution if isinstance(part, CircularDistribution) else part for part in parts]


def checked_members(distributions: Sequence[Distribution]) -> list[Distribution]:
    """Return the distributions as a list; raise unless all are linear, or all on the same circle."""
    parts: list[Distribution] = as_list("distributions", distributions)
    for part in parts:
        if not isinstance(part, NumberDistribution | CircularDistribution):
            raise TypeError(f"distributions contains {part!r:.80}: expected NumberDistribution, or CircularDistribution.")
    if len(kinds := {_circle(part) for part in parts}) > 1:
        listed = ", ".join(sorted("a line" if kind is None else f"a circle of {kind[0]} from {kind[1]}" for kind in kinds))
        raise ValueError(f"distributions are on {listed}: expected all on a line, or all on the same circle.")
    return parts


def _circle(part: NumberDistribution | CircularDistribution) -> tuple[Decimal, Decimal] | None:
    """Return period and start of the scale; None on a line."""
    return (part.period, part.lowest) if isinstance(part, CircularDistribution) else None


def _before(places: Floats, values: Floats, sums: Floats) -> Floats:
    """Return the mass on the values up to each place, in turns; each turn adds 1."""
    turns: Floats = np.floor(places)
    return turns + sums[np.searchsorted(values, places - turns, side="right")]


def _mean_quantiles(lines: Sequence[NumberDistribution], u: Floats, mixture: NumberDistribution) -> NumberDistribution:
    """Return the distribution whose quantiles are the weighted means of those of the members."""
    levels = np.unique(np.concatenate([[0.0], *(np.minimum(line.probabilities.cumsum(), 1.0) for line in lines)]))
    levels = np.append(levels[:-1][np.diff(levels) > TIE], 1.0)
    values = []
    for level in ((levels[:-1] + levels[1:]) / 2).tolist():
        pairs = sorted(zip((line.quantile(level) for line in lines), u.tolist(), strict=True))
        values.append(mean_of([value for value, _ in pairs], np.array([vote for _, vote in pairs])))
    return NumberDistribution(values, np.diff(levels), **{name: getattr(mixture, name) for name in SHARES})
