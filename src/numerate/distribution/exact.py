"""Exact numbers: any number as a Decimal in canonical form, and the arithmetic of distributions over them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from decimal import MAX_EMAX, MIN_EMIN, ROUND_HALF_EVEN, Context, Decimal
from fractions import Fraction
from numbers import Rational, Real
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Number = int | float | Decimal | Fraction | str

MAX_DIGITS = 10_000
"""Limit on the digits of a value and on its power of ten."""

_MOST_WHOLE = 10**MAX_DIGITS

NUMERAL = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d{1,9})?", re.ASCII)
# Sums and products of two values are exact in the first context; the second is for results that become floats.
EXACT = Context(prec=5 * MAX_DIGITS, Emax=MAX_EMAX, Emin=MIN_EMIN, rounding=ROUND_HALF_EVEN)
SHORT = Context(prec=50, Emax=MAX_EMAX, Emin=MIN_EMIN, rounding=ROUND_HALF_EVEN)
TIE = 1e-11  # rounding error allowed in sums of probabilities


def as_list(name: str, entries: Iterable[Any]) -> list[Any]:
    """Return the entries as a list; raise for a string or a single number."""
    if isinstance(entries, str) or not isinstance(entries, Iterable):
        raise TypeError(
            f"{name}={entries!r:.80} is a {type(entries).__name__}: expected a list; use [{name}] for a single entry."
        )
    return [*entries]


def exact_number(name: str, value: Any) -> Decimal:
    """Return the exact value of a number in canonical form; a fraction such as 1/3 to 28 digits. Raise for anything else."""
    number: Decimal | None = None
    if isinstance(value, Decimal):  # before the abstract types, which are slower to check
        number = value if value.is_finite() else None
    elif isinstance(value, str):
        number = Decimal(value.strip()) if NUMERAL.fullmatch(value.strip()) else None
    elif isinstance(value, bool):
        pass
    elif isinstance(value, Rational):  # includes Integral
        top, bottom = int(value.numerator), int(value.denominator)
        if max(abs(top), bottom) > _MOST_WHOLE:
            raise ValueError(  # the conversion would take hours for ten million digits
                f"{name}=<{type(value).__name__}> has too many digits: expected at most {MAX_DIGITS:,} digits."
            )
        ends = pow(10, bottom.bit_length(), bottom) == 0
        context = EXACT if ends else Context(prec=28, Emax=MAX_EMAX, Emin=MIN_EMIN)
        number = Decimal(top) if bottom == 1 else context.divide(Decimal(top), Decimal(bottom))
    elif isinstance(value, Real):
        number = Decimal(str(value)) if math.isfinite(value) else None
    if number is None:
        kind = ValueError if isinstance(value, float | np.floating | Decimal | str) else TypeError
        raise kind(
            f"{name}={value!r:.80} is not a finite number: expected int, float, Decimal, Fraction, or text such as '84.50'; use "
            ".tolist() for a tensor, and numerate.answers to read numbers from sentences."
        )
    # str is much faster than as_tuple, and at least as long as the digits.
    long = len(str(number)) > MAX_DIGITS and len(number.as_tuple().digits) > MAX_DIGITS
    if number and (long or abs(number.adjusted()) > MAX_DIGITS):
        raise ValueError(
            f"{name}={label(number)} has too many digits: expected at most {MAX_DIGITS:,} digits, and powers of ten up to that."
        )
    return canonical(number)


def canonical(number: Decimal) -> Decimal:
    """Return the number without trailing zeros after the point, positive exponent, or minus sign before 0."""
    short = EXACT.normalize(number) if number else Decimal(0)
    return short.quantize(Decimal(1), context=EXACT) if "E+" in str(short) else short


def written_decimals(given: Any, value: Decimal) -> int:
    """Return the number of decimals a label is written with; those of its value unless it is a string or Decimal."""
    written = Decimal(given.strip()) if isinstance(given, str) else given if isinstance(given, Decimal) else value
    return max(-int(written.as_tuple().exponent), 0)


def size(name: str, value: Any) -> Decimal:
    """Return a number >= 0 exactly, or raise."""
    size = exact_number(name, value)
    if size < 0:
        raise ValueError(f"{name}={value!r:.80} is out of range: expected a number >= 0.")
    return size


def offset(x: Decimal, origin: Decimal, period: Decimal | None) -> Decimal:
    """Return x - origin or, on a circle, the signed distance from ``origin`` to x; half a turn is positive."""
    if period is None:
        return EXACT.subtract(x, origin)
    beyond = EXACT.subtract(wrapped(x, origin, period), origin)
    return EXACT.subtract(beyond, period) if EXACT.add(beyond, beyond) > period else beyond


def wrapped(x: Decimal, lowest: Decimal, period: Decimal) -> Decimal:
    """Return x modulo ``period``, in ``[lowest, lowest + period)``."""
    rest = EXACT.remainder(EXACT.subtract(x, lowest), period)  # with the sign of x - lowest
    return canonical(EXACT.add(lowest, EXACT.add(rest, period) if rest < 0 else rest))


def is_nan(value: Any) -> bool:
    """Whether a number is NaN."""
    return value.is_nan() if isinstance(value, Decimal) else isinstance(value, Real) and value != value


def check_masses(name: str, masses: npt.ArrayLike, count: int, unit: str) -> Floats:
    """Return the masses divided by the largest one; raise unless there is one per unit, all finite, not all 0."""
    try:
        array = np.array(masses, dtype=np.float64)
    except (TypeError, ValueError):
        raise TypeError(f"{name}={masses!r:.80} are not numbers: expected one number >= 0 per {unit}.") from None
    if array.shape != (count,) or count == 0:
        raise ValueError(f"{name} has shape {array.shape} for {count} {unit}s: expected one for each, and at least one {unit}.")
    wrong = ~((array >= 0) & (array < np.inf))
    if wrong.any():
        raise ValueError(f"{name} contains {array[wrong][0]:g}: expected finite numbers >= 0; leave out each {unit} without one.")
    if not array.any():
        raise ValueError(f"{name} are all 0: expected at least one number above 0.")
    scaled: Floats = array / array.max()
    return scaled


def first_reached(cumulative: Floats, share: float) -> int:
    """Return the first index whose cumulative sum is at least ``share``, up to rounding, or the last index."""
    if share == 1:
        return len(cumulative) - 1
    return int(np.searchsorted(cumulative[:-1], share - TIE * min(share, 1 - share), side="left"))


def ratios(numbers: Sequence[Decimal], scale: Decimal) -> Floats:
    """Return ``numbers / scale`` as floats; 0 if the scale is 0."""
    return np.array([float(SHORT.divide(number, scale)) if scale else 0.0 for number in numbers])


def label(value: Decimal) -> str:
    """Return the value as a short text: beyond 20 characters, the first and last digits and their number."""
    text = str(value)
    return text if len(text) <= 20 else f"{text[:7]}…{text[-6:]} ({len(value.as_tuple().digits)} digits)"
