"""The frame of a distribution: its central 98 %, its half width, and the scale of distances beyond it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from decimal import Decimal
from fractions import Fraction

from numerate.checks import check_number
from numerate.distribution import NumberDistribution
from numerate.distribution.exact import Number, as_list, exact_number, first_reached

INNER = 0.98

FAR = 10
"""Distance from the median, in scales, at which the CRPS of a row is truncated when settings are fitted."""


def checked_rows(
    distributions: Sequence[NumberDistribution], truths: Iterable[Number]
) -> tuple[list[NumberDistribution], list[Decimal]]:
    """Return distributions and exact truths as lists; raise unless there is one truth per distribution, and at least one."""
    rows = as_list("distributions", distributions)
    for row in rows:
        check_distribution("distributions", row)
    numbers = [exact_number("truths", truth) for truth in as_list("truths", truths)]
    if len(rows) != len(numbers) or not rows:
        raise ValueError(
            f"distributions has {len(rows)} entries and truths {len(numbers)}: expected one truth for each, and at least one."
        )
    return rows, numbers


def check_distribution(name: str, row: object) -> None:
    """Raise unless ``row`` is a NumberDistribution."""
    if not isinstance(row, NumberDistribution):
        raise TypeError(f"{name} contains {row!r:.80}: expected NumberDistribution; use NumberDistribution.point for a number.")


def check_level(name: str, level: float) -> float:
    """Return the level; raise unless it is above 0 and below 1."""
    number = check_number(name, level, above=0, most=1)
    if number == 1:
        raise ValueError(f"{name}={level!r} is out of range: expected a number below 1; no finite interval has a coverage of 1.")
    return number


def central(distribution: NumberDistribution, level: float) -> tuple[Decimal, Decimal]:
    """Return the lowest value v with P(X <= v) >= (1 - level) / 2 and the highest with P(X >= v) at least that.

    Equals :meth:`numerate.NumberDistribution.interval` except for ties: if a tail is exactly (1 - level) / 2, this interval has
    one more value, so that it contains every number whose position is in its range, including those between two values.
    """
    tail = (1 - level) / 2
    above = distribution.probabilities[::-1].cumsum()
    return distribution.quantile(tail), distribution.values[len(distribution) - 1 - first_reached(above, tail)]


def half_width(low: Decimal, high: Decimal) -> Fraction:
    """Return half the distance between two numbers, exactly."""
    return (Fraction(high) - Fraction(low)) / 2


def typical_half(halves: Sequence[Fraction], new: Fraction | None = None) -> Fraction:
    """Return the lower median of sorted half widths, including ``new`` unless it is 0; 2 if there are none."""
    count = len(halves) + bool(new)
    if not count:
        return Fraction(2)
    middle = (count - 1) // 2
    if not new:
        return halves[middle]
    at = bisect_left(halves, new)
    return halves[middle] if middle < at else new if middle == at else halves[middle - 1]


def scale_of(half: Fraction, typical: Fraction) -> Fraction:
    """Return the unit of distances beyond the central 98 %, a positive number."""
    return half + typical / 2
