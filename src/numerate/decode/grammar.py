r"""Grammars: which texts are answers, and which characters may follow a prefix of one.

:class:`NumberGrammar` accepts numbers of a given format and range, :class:`TextGrammar` short texts of given characters.

A number is ``-? whole (. decimals)?``. A prefix is allowed if and only if some number of the grammar starts with it. With at most
``d`` decimals, every value times 10^d is an integer. The numbers with ``L`` integer digits that start with a prefix of ``m``
digits, with value ``p`` as an integer, are the integers of one interval, ``[p, p + 1) · 10^r`` with ``r = L + d - m``. The prefix
is allowed if this interval intersects ``[lowest, highest] · 10^d`` for some ``L``: a few comparisons of exact integers.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from functools import cached_property
from math import ceil, floor
from numbers import Rational, Real
from typing import Any

from numerate.checks import check_integer, one_line

MOST_DIGITS = 1000
"""Limit on the integer digits and on the decimals of a grammar."""

_PREFIX = re.compile(r"(-?)([0-9,]*)(\.?)([0-9]*)")
_DIGIT = re.compile(r"[0-9]")


class Grammar(ABC):
    """Which texts are answers, and which characters may follow a prefix of one."""

    @property
    @abstractmethod
    def alphabet(self) -> str:
        """Characters of answers."""

    @property
    @abstractmethod
    def max_length(self) -> int:
        """Length of the longest answer, regardless of the range."""

    @property
    def joint(self) -> str:
        """The character between the digits of an answer, after which one more digit would still be part of it."""
        return ""

    @abstractmethod
    def state(self, prefix: str) -> Hashable | None:
        """Return a key that is equal only for prefixes with the same continuations; None if no answer starts with ``prefix``."""

    @abstractmethod
    def accepts(self, text: str) -> bool:
        """Whether ``text`` is a complete answer."""

    @abstractmethod
    def value(self, text: str) -> Any:
        """Return the number of an answer; None if it has none."""

    def write(self, text: str) -> str:
        """Return how a number in ordinary notation is written."""
        return text

    def count_decimals(self, text: str) -> int:
        """Return how many decimals an answer is written with."""
        return len(text.partition(".")[2])

    def allows(self, prefix: str) -> bool:
        """Whether an answer starts with ``prefix``, or equals it."""
        return self.state(prefix) is not None

    def following(self, prefix: str) -> str:
        """Return the characters that may follow ``prefix``."""
        return "".join(character for character in self.alphabet if self.allows(prefix + character))

    def complete(self, text: str) -> str | None:
        """Return the longest prefix of ``text`` that is an answer; None if there is none.

        Examples:
            >>> grammar = NumberGrammar(thousands=None)
            >>> grammar.complete("1,200."), grammar.complete("1,20"), grammar.complete("-")
            ('1,200', '1', None)
        """
        return next((text[:end] for end in range(len(text), 0, -1) if self.accepts(text[:end])), None)

    def belongs(self, character: str) -> bool:
        """Whether a character after an answer is part of it even if the grammar forbids it: a digit of a number."""
        return character in "0123456789"


@dataclass(frozen=True)
class NumberGrammar(Grammar):
    """Format and range of a number as text: optional minus sign, integer digits, optional point with decimals.

    A point has a digit on both sides.

    Args:
        sign: whether a minus sign is allowed.
        digits: minimum and maximum number of integer digits, or one number for both.
        decimals: minimum and maximum number of decimals, or one number for both; 0 decimals: no point.
        lowest: smallest value, or None. An int, float, Decimal, Fraction or text; a float has the value of its repr.
        highest: largest value, or None; like ``lowest``.
        thousands: thousands commas (``1,000``): True: required, False: forbidden, None: optional.
        leading_zeros: whether an integer part of several digits may start with 0 (``007``).
        negative_zero: whether zero may have a sign (``-0``, ``-0.0``).

    Examples:
        >>> grammar = NumberGrammar(decimals=(0, 1), lowest=-1, highest=24)
        >>> grammar.following(""), grammar.following("2"), grammar.following("24"), grammar.following("-0")
        ('-0123456789', '01234.', '.', '.')
        >>> grammar.accepts("23.9"), grammar.accepts("24.1"), grammar.allows("24."), grammar.allows("25")
        (True, False, True, False)
    """

    sign: bool = True
    digits: int | tuple[int, int] = (1, 12)
    decimals: int | tuple[int, int] = (0, 6)
    lowest: Any = None
    highest: Any = None
    thousands: bool | None = False
    leading_zeros: bool = False
    negative_zero: bool = False

    def __post_init__(self) -> None:
        for name in ("sign", "thousands", "leading_zeros", "negative_zero"):
            if not isinstance(value := getattr(self, name), bool) and not (name == "thousands" and value is None):
                raise TypeError(f"{name}={value!r} is a {type(value).__name__}: expected True or False.")
        object.__setattr__(self, "digits", _span("digits", self.digits, least=1))
        object.__setattr__(self, "decimals", _span("decimals", self.decimals, least=0))
        if self.state("") is None:
            raise ValueError(
                f"{self!r} contains no number: expected at least one between lowest={self.lowest} and highest={self.highest} "
                f"with digits={self.digits} and decimals={self.decimals}, negative only with sign=True; allow more of them."
            )

    @cached_property
    def alphabet(self) -> str:
        """Characters of the grammar's numbers."""
        point = "." if self._most_decimals else ""
        comma = "," if any("," in form for form in self._forms) else ""
        return ("-" if self.allows("-") else "") + "0123456789" + point + comma

    @cached_property
    def max_length(self) -> int:
        """Length of the longest text of this format, regardless of the range."""
        return self.sign + max(map(len, self._forms)) + (1 + self._most_decimals if self._most_decimals else 0)

    def accepts(self, text: str) -> bool:
        """Whether ``text`` is a complete number of the grammar."""
        match = _PREFIX.fullmatch(text)
        if match is None or not self.allows(text):
            return False
        minus, whole, _, decimals = match.groups()
        low, high = self._magnitudes[bool(minus)]
        fits = _DIGIT.sub("0", whole) in self._forms and len(decimals) >= (1 if match[3] else 0)
        return fits and len(decimals) >= self._least_decimals and low <= self._interval(whole, decimals)[0] <= high

    def value(self, text: str) -> Decimal:
        """Return the value of a number of the grammar."""
        return Decimal(text.replace(",", ""))

    def state(self, prefix: str) -> Hashable | None:
        """Return a key that is equal only for prefixes with the same continuations; None if no number starts with ``prefix``.

        There are few keys: the number of digits inside the range, and the prefix itself at its borders.
        """
        if prefix == "":
            return prefix if self._starts(False) or (self.sign and self._starts(True)) else None
        match = _PREFIX.fullmatch(prefix)
        if match is None or (match[1] and not self.sign):
            return None
        minus, whole, point, decimals = match.groups()
        if len(decimals) > self._most_decimals or (point and not (whole and self._most_decimals)):
            return None
        low, high = self._magnitudes[bool(minus)]
        shape = _DIGIT.sub("0", whole)
        alone = whole.startswith("0") and not self.leading_zeros  # no digit follows
        fitting, inside = list[str](), True
        for form in self._forms:
            total = form.count("0")
            if not (shape == form if point else form.startswith(shape)) or (alone and total > 1):
                continue
            least, most = self._interval(whole, decimals, total)
            if max(least, low) <= min(most, high):
                fitting.append(form)
                inside = inside and low <= least and most <= high
        if not fitting:
            return None
        return (shape, point, len(decimals), *fitting) if inside else prefix

    def _starts(self, negative: bool) -> bool:
        """Whether some number of this sign is in range."""
        low, high = self._magnitudes[negative]
        intervals = (self._interval("", "", form.count("0")) for form in self._forms)
        return any(max(least, low) <= min(most, high) for least, most in intervals)

    def _interval(self, whole: str, decimals: str, total: int | None = None) -> tuple[int, int]:
        """Return the smallest and largest magnitude, times 10^d, of numbers with ``total`` integer digits and this prefix."""
        written = whole.replace(",", "")
        total = len(written) if total is None else total
        unit = 10 ** (total - len(written) + self._most_decimals - len(decimals))
        if not written:  # a leading 0 is only allowed in numbers of one digit
            return (0 if self.leading_zeros or total == 1 else unit // 10), unit - 1
        least = int(written + decimals) * unit
        return least, least + unit - 1

    @cached_property
    def _forms(self) -> tuple[str, ...]:
        """Integer parts of every length with 0 for each digit: ``0``, ``00``, ``000``, ``0,000``."""
        least, most = self.spans[0]
        lengths = range(least, most + 1)
        plain = ["0" * length for length in lengths] if not self.thousands else []
        grouped = [_DIGIT.sub("0", f"{10 ** (length - 1):,}") for length in lengths] if self.thousands is not False else []
        return tuple(dict.fromkeys([*plain, *grouped]))

    @property
    def spans(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Fewest and most integer digits, and decimals."""
        return _span("digits", self.digits, least=1), _span("decimals", self.decimals, least=0)

    @cached_property
    def _least_decimals(self) -> int:
        return self.spans[1][0]

    @cached_property
    def _most_decimals(self) -> int:
        return self.spans[1][1]

    @cached_property
    def _magnitudes(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Smallest and largest magnitude, times 10^d, of the nonnegative and of the negative numbers."""
        most = max(form.count("0") for form in self._forms)
        return self.magnitudes(False, most, self._most_decimals), self.magnitudes(True, most, self._most_decimals)

    def magnitudes(self, negative: bool, digits: int, decimals: int) -> tuple[int, int]:
        """Return the smallest and largest magnitude in range, times 10^decimals, of numbers with up to this many digits."""
        scale = 10**decimals
        limit = 10**digits * scale
        lowest, highest = _exact("lowest", self.lowest), _exact("highest", self.highest)
        low = -limit if lowest is None else ceil(lowest * scale)
        high = limit if highest is None else floor(highest * scale)
        return (max(0 if self.negative_zero else 1, -high), -low) if negative else (max(0, low), high)


@dataclass(frozen=True)
class TextGrammar(Grammar):
    """Short answers of given characters, such as the time ``2_55``, and their numbers.

    Args:
        characters: the characters of an answer.
        read: a function from a text to its number or None, such as :func:`numerate.answers.clock_time`.
        most: maximum length of an answer.

    Examples:
        >>> from numerate.answers import clock_time
        >>> clock = TextGrammar("0123456789_", clock_time, most=5)
        >>> clock.value("2_55"), clock.value("2_"), clock.state("2h")
        (Fraction(175, 1), None, None)
    """

    characters: str
    read: Callable[[str], Any]
    most: int = 16

    def __post_init__(self) -> None:
        if not isinstance(self.characters, str) or not self.characters.strip():
            raise ValueError(f"characters={self.characters!r}: expected the characters of an answer, such as '0123456789_'.")
        if not callable(self.read):
            raise TypeError(f"read={self.read!r} is a {type(self.read).__name__}: expected a function from text to a number.")
        expected = f"an integer from 1 to {MOST_DIGITS}"
        object.__setattr__(self, "most", check_integer("most", self.most, expected, least=1, most=MOST_DIGITS))

    @property
    def alphabet(self) -> str:
        """Characters of answers."""
        return self.characters

    @property
    def max_length(self) -> int:
        """Length of the longest answer."""
        return self.most

    def state(self, prefix: str) -> Hashable | None:
        """Return a key that is equal only for prefixes with the same continuations; None if no answer starts with ``prefix``."""
        return len(prefix) if len(prefix) <= self.most and set(prefix) <= {*self.characters} else None

    def accepts(self, text: str) -> bool:
        """Whether ``text`` is not empty; :meth:`value` decides whether it is an answer."""
        return text != "" and self.allows(text)

    def complete(self, text: str) -> str | None:
        """Return ``text``, None if it is empty."""
        return text or None

    def value(self, text: str) -> Any:
        """Return the number of ``text``; None if it has none."""
        return self.read(text)

    def belongs(self, character: str) -> bool:
        """Whether a character after an answer is part of it."""
        return character in self.characters


def _span(name: str, value: Any, least: int) -> tuple[int, int]:
    """Return ``(least, most)`` as two integers; one number is used for both."""
    pair = value if isinstance(value, tuple | list) else (value, value)
    try:
        low, high = (check_integer(name, count, "a number of digits", least=least, most=MOST_DIGITS) for count in pair)
        if low <= high:
            return low, high
    except ValueError:
        pass
    raise ValueError(
        f"{name}={value!r} is not a number of digits: expected (least, most) with {least} <= least <= most <= {MOST_DIGITS}, "
        "or one integer for both."
    )


def _exact(name: str, value: Any) -> Fraction | None:
    """Return a bound as a fraction. Floats have the value of their repr."""
    if value is None:
        return None
    problem = "it is not a number"
    kinds = () if isinstance(value, bool) else (str, Decimal, Real)
    try:
        if kinds and isinstance(value, Rational):
            return Fraction(int(value.numerator), int(value.denominator))
        if isinstance(value, kinds):
            number = Decimal(str(value))
            if number.is_finite() and abs(number.adjusted()) <= 10 * MOST_DIGITS:
                return Fraction(number)
            problem = "it is not finite or too large"
    except InvalidOperation as error:
        problem = one_line(error)
    raise ValueError(
        f"{name}={value!r} is not a bound ({problem}): expected a finite number, as int, float, Decimal, Fraction or text, "
        "or None for no bound."
    )


ANY_NUMBER = NumberGrammar(thousands=None, leading_zeros=True, negative_zero=True)
"""The default grammar of a search: plain numbers of any range, with or without commas between groups of three digits."""
