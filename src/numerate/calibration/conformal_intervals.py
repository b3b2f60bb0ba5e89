r"""Conformal intervals: calibrated intervals with guaranteed coverage.

Split conformal prediction. Each distribution has nested intervals, and the score of a row identifies the first of them that
contains its truth:

    truth                               score              interval of that score
    inside the central 98 %             |2u - 1|           the model's own central interval of that level
    d outside the central 98 %          0.98 + d / scale   the central 98 %, extended by d on both sides

u is the position of the truth in the distribution, P(X < y) plus a uniform random fraction of P(X = y), and scale is half the
width of the central 98 % plus half of the typical one (the median over all rows with a nonzero width). With n rows, the interval
of the ceil((n + 1) level)-th smallest score contains a new truth with a probability of at least ``level``, and of at most
``level`` + 1 / (n + 1) without ties and rounding: for any model and any truths, as long as the new row and the validation rows
are exchangeable (drawn from the same source, in any order). This coverage is marginal, not per kind of example.

- The first kind of score follows the model: intervals are wide where the model is uncertain, skewed where it is skewed, and
  unchanged if it is already calibrated.
- The second kind is for truths without probability under the model or the search. It ignores the tails outside the central 98 %,
  so that a derailed value of 400 digits does not widen an interval. The typical width gives intervals to a model that is certain
  of wrong values, and limits those of uncertain rows. It depends on the distributions only and includes the new one, so that the
  guarantee is exact.
- The random fraction is needed for certain and correct answers: without it, a model that is certain of most rows would have
  intervals of a single value on the others.

References: Vovk, Gammerman and Shafer (2005), Algorithmic Learning in a Random World; Romano, Patterson and Candes (2019),
Conformalized Quantile Regression; Chernozhukov, Wuthrich and Zhu (2021), Distributional conformal prediction.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import cached_property
from math import ceil, floor
from typing import TYPE_CHECKING, Any

from numerate.calibration.frame import (
    INNER,
    central,
    check_distribution,
    check_level,
    checked_rows,
    half_width,
    scale_of,
    typical_half,
)
from numerate.calibration.positions import pit
from numerate.distribution import NumberDistribution
from numerate.distribution.exact import EXACT, Number, canonical, exact_number, label

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass(frozen=True, repr=False)
class Conformal:
    """Intervals with guaranteed coverage, fitted by :func:`conformal`.

    Examples:
        >>> answers = [NumberDistribution.bell(1000 + 7 * i, width=20) for i in range(99)]
        >>> truths = [1000 + 7 * i + (37 * i) % 99 - 49 for i in range(99)]  # up to 49 away: the model is overconfident
        >>> calibrated = conformal(answers, truths, 0.9)
        >>> answers[0].interval(0.9), calibrated.interval(answers[0]), calibrated.interval(answers[0], level=0.5)
        ((Decimal('967'), Decimal('1033')), (Decimal('955'), Decimal('1045')), (Decimal('975'), Decimal('1025')))
        >>> calibrated
        Conformal(90 % from 99 rows: the model's 97.4 % intervals)
    """

    level: float
    """Default coverage."""

    lowest: Decimal | None
    highest: Decimal | None
    _inner: tuple[float, ...]  # sorted scores of truths inside the central 98 %
    _outer: tuple[tuple[Fraction, Fraction], ...]  # distance of the others from it, and half its width
    _halves: tuple[Fraction, ...]  # half widths of the central 98 % above 0, sorted

    @property
    def rows(self) -> int:
        """The number n of validation rows."""
        return len(self._inner) + len(self._outer)

    def interval(self, distribution: NumberDistribution, level: float | None = None) -> tuple[Decimal, Decimal]:
        """Return both ends of the closed interval.

        Up to the central 98 % of the distribution, both ends are values. Beyond, they are rounded outward to the decimals of the
        values there. Intervals of higher levels contain those of lower levels.

        Args:
            distribution: the distribution for a new example.
            level: coverage between 0 and 1, if other than the fitted one.
        """
        check_distribution("distribution", distribution)
        rank = conformal_rank(self.level if level is None else check_level("level", level), self.rows)
        if rank <= len(self._inner):
            low, high = central(distribution, self._inner[rank - 1])
        else:
            low, high = central(distribution, INNER)
            half = half_width(low, high)
            typical = typical_half(self._halves, half)
            reach = self._stretches(typical)[rank - len(self._inner) - 1] * scale_of(half, typical)
            low, high = _stretched(distribution, low, high, reach)
        if self.lowest is not None:
            low, high = max(low, self.lowest), max(high, self.lowest)
        if self.highest is not None:
            low, high = min(low, self.highest), min(high, self.highest)
        return low, high

    def to_dict(self) -> dict[str, Any]:
        """Return the fit as JSON-compatible values, without the validation rows; the inverse is :meth:`from_dict`.

        Examples:
            >>> fit = conformal([NumberDistribution([10, 11, 12], [0.25, 0.5, 0.25])] * 12, range(6, 18), 0.9)
            >>> Conformal.from_dict(fit.to_dict()) == fit
            True
        """
        ends = {"lowest": self.lowest, "highest": self.highest}
        return {
            "level": self.level,
            **{name: None if end is None else str(end) for name, end in ends.items()},
            "inner": list(self._inner),
            "outer": [[str(distance), str(half)] for distance, half in self._outer],
            "halves": [str(half) for half in self._halves],
        }

    @classmethod
    def from_dict(cls, kept: Mapping[str, Any]) -> Self:
        """Inverse of :meth:`to_dict`."""
        lowest, highest = (None if kept[name] is None else Decimal(kept[name]) for name in ("lowest", "highest"))
        outer = tuple((Fraction(distance), Fraction(half)) for distance, half in kept["outer"])
        return cls(kept["level"], lowest, highest, tuple(kept["inner"]), outer, tuple(map(Fraction, kept["halves"])))

    def __repr__(self) -> str:
        rank = conformal_rank(self.level, self.rows)
        if rank <= len(self._inner):
            which = f"the model's {100 * self._inner[rank - 1]:.3g} % intervals"
        else:
            stretch = self._stretches(typical_half(self._halves))[rank - len(self._inner) - 1]
            which = f"the model's 98 % intervals, extended by {100 * float(stretch):.3g} % of their scale"
        return f"Conformal({100 * self.level:.4g} % from {self.rows:,} rows: {which})"

    def _stretches(self, typical: Fraction) -> list[Fraction]:
        """Return the sorted scores beyond the central 98 %; cached, since typical half widths rarely differ."""
        if typical not in self._cache:
            self._cache[typical] = sorted(distance / scale_of(half, typical) for distance, half in self._outer)
        return self._cache[typical]

    @cached_property
    def _cache(self) -> dict[Fraction, list[Fraction]]:
        return {}


def conformal(
    distributions: Sequence[NumberDistribution],
    truths: Iterable[Number],
    level: float = 0.9,
    *,
    lowest: Number | None = None,
    highest: Number | None = None,
    seed: int = 0,
) -> Conformal:
    """Fit intervals that contain the truth of a new example with a probability of at least ``level``.

    Use rows that the model was not trained on, from the same source as new examples; the formula is at the top of this module.
    With 100 rows and a level of 90 %, the coverage of a particular fit is between 84 and 95 % with a probability of 95 %; with
    1,000 rows, between 88 and 92 %. Its mean over fits is 90 %.

    Args:
        distributions: the model's distributions for n validation rows.
        truths: their true numbers, as texts such as ``"84.50"``, ints, floats, Decimals or Fractions.
        level: coverage between 0 and 1. Needs at least level / (1 - level) rows, 9 for 0.9 and 99 for 0.99, since with fewer no
            finite interval can guarantee it.
        lowest: the smallest possible truth, such as 0 for a price. Intervals are clipped.
        highest: the largest possible truth.
        seed: seed of the random part of the scores.

    Examples:
        >>> answers = [NumberDistribution([10, 11, 12], [0.25, 0.5, 0.25])] * 12
        >>> conformal(answers, [10, 11, 11, 12, 9, 11, 11, 12, 10, 11, 10, 12], 0.9).interval(answers[0])
        (Decimal('9'), Decimal('13'))
    """
    rows, numbers = checked_rows(distributions, truths)
    least = None if lowest is None else exact_number("lowest", lowest)
    most = None if highest is None else exact_number("highest", highest)
    for number in numbers:
        if (least is not None and number < least) or (most is not None and number > most):
            raise ValueError(
                f"truths contains {label(number)}, outside of lowest={lowest!r:.40} and highest={highest!r:.40}: expected bounds "
                "that include every truth. Widen them."
            )
    level = check_level("level", level)
    conformal_rank(level, len(rows))
    inner: list[float] = []
    outer: list[tuple[Fraction, Fraction]] = []
    halves: list[Fraction] = []
    for distribution, y, u in zip(rows, numbers, pit(rows, numbers, seed=seed).tolist(), strict=True):
        low, high = central(distribution, INNER)
        half = half_width(low, high)
        if half:
            halves.append(half)
        if low <= y <= high:
            inner.append(min(abs(2 * u - 1), INNER))
        else:
            outer.append((max(Fraction(low) - Fraction(y), Fraction(y) - Fraction(high)), half))
    return Conformal(level, least, most, tuple(sorted(inner)), tuple(outer), tuple(sorted(halves)))


def conformal_rank(level: float, rows: int) -> int:
    """Return ceil((n + 1) level), the rank of the score for this coverage; raise if there are too few rows."""
    share = Fraction(str(level))
    rank = ceil((rows + 1) * share)
    if rank > rows:
        raise ValueError(
            f"level={level:g} with {rows:,} validation rows: expected at least {ceil(share / (1 - share)):,} rows: no finite "
            f"interval can guarantee it with fewer. Use more rows, or level={floor(10_000 * rows / (rows + 1)) / 10_000:g}."
        )
    return rank


def _stretched(distribution: NumberDistribution, low: Decimal, high: Decimal, reach: Fraction) -> tuple[Decimal, Decimal]:
    """Return low - reach and high + reach, rounded outward to the decimals of the values from low to high."""
    inside = distribution.values[bisect_left(distribution.values, low) : bisect_right(distribution.values, high)]
    finest = min(int(value.as_tuple().exponent) for value in inside)
    step = Fraction(10) ** finest
    with localcontext(EXACT):
        ends = floor((Fraction(low) - reach) / step), ceil((Fraction(high) + reach) / step)
        return canonical(Decimal(ends[0]).scaleb(finest)), canonical(Decimal(ends[1]).scaleb(finest))
