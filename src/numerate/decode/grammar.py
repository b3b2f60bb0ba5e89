r"""Grammars: which texts are answers, and which characters may follow a prefix of one.

:class:`NumberGrammar` has the numbers of a given form and range, :class:`TextGrammar` the short texts of given characters.

A number is ``-? whole (. decimals)?``. A prefix is allowed if and only if some number of the grammar begins with it. With at most
``d`` decimals, every value is an integer once multiplied by 10^d. The numbers with ``L`` whole digits that begin with a prefix of
``m`` digits, worth ``p`` as an integer, are then the integers of one interval, ``[p, p + 1) · 10^r`` with ``r = L + d - m``. So a
prefix is allowed where this interval meets ``[lowest, highest] · 10^d`` for some ``L``: a few comparisons of exact integers.
"""

from __future__ import annotations

import re
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
"""The most whole digits, and the most decimals, that a grammar may have."""

_PREFIX = re.compile(r"(-?)([0-9,]*)(\.?)([0-9]*)")
_DIGIT = re.compile(r"[0-9]")


@dataclass(frozen=True)
class NumberGrammar:
    """The form and range of a number's text: optional minus, whole digits, optional point with decimals.

    A point has a digit on both sides.

    Args:
        sign: whether a minus may come first.
        digits: least and most whole digits, or one number for both.
        decimals: least and most digits after the point, or one number for both; 0 decimals have no point.
        lowest: least value, or None. An int, float, Decimal, Fraction or text; a float is the decimal number that it prints as.
        highest: greatest value, or None; like ``lowest``.
        thousands: whether whole digits are written in groups of three (``1,000``). True: they must be, False: they must not be,
            None: they may be.
        leading_zeros: whether a whole part of several digits may begin with 0 (``007``).
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
                f"{self!r} holds no number: expected at least one between lowest={self.lowest} and highest={self.highest} "
                f"with digits={self.digits} and decimals={self.decimals}, negative only with sign=True; allow more of them."
            )

    @cached_property
    def alphabet(self) -> str:
        """Characters that occur in the grammar's numbers."""
        point = "." if self._most_decimals else ""
        comma = "," if any("," in form for form in self._forms) else ""
        return ("-" if self.allows("-") else "") + "0123456789" + point + comma

    @cached_property
    def max_length(self) -> int:
        """Characters of the longest text that the form allows, whatever the range."""
        return self.sign + max(map(len, self._forms)) + (1 + self._most_decimals if self._most_decimals else 0)

    def allows(self, prefix: str) -> bool:
        """Return whether a number of the grammar begins with ``prefix``, or is it."""
        return self.state(prefix) is not None

    def following(self, prefix: str) -> str:
        """Return the characters that may follow ``prefix``."""
        return "".join(character for character in self.alphabet if self.allows(prefix + character))

    def accepts(self, text: str) -> bool:
        """Return whether ``text`` is a complete number of the grammar."""
        match = _PREFIX.fullmatch(text)
        if match is None or not self.allows(text):
            return False
        minus, whole, _, decimals = match.groups()
        low, high = self._magnitudes[bool(minus)]
        fits = _DIGIT.sub("0", whole) in self._forms and len(decimals) >= (1 if match[3] else 0)
        return fits and len(decimals) >= self._least_decimals and low <= self._interval(whole, decimals)[0] <= high

    def complete(self, text: str) -> str | None:
        """Return the longest prefix of ``text`` that is a number of the grammar; None if there is none.

        Examples:
            >>> grammar = NumberGrammar(thousands=None)
            >>> grammar.complete("1,200."), grammar.complete("1,20"), grammar.complete("-")
            ('1,200', '1', None)
        """
        return next((text[:end] for end in range(len(text), 0, -1) if self.accepts(text[:end])), None)

    def value(self, text: str) -> Decimal:
        """Return the value of a number of the grammar."""
        return Decimal(text.replace(",", ""))

    def belongs(self, character: str) -> bool:
        """Return whether a character that follows a number is part of it, even where the grammar forbids it: a digit."""
        return character in "0123456789"

    def state(self, prefix: str) -> Hashable | None:
        """Return a key that is equal only for prefixes with the same continuations; None if no number begins with ``prefix``.

        There are few keys: inside the range only the number of digits counts, and at its borders the prefix itself.
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
        fitting, inside = list[str](), True
        for form in self._forms:
            total = form.count("0")
            if not (shape == form if point else form.startswith(shape)) or (self._zero_first(whole) and total > 1):
                continue
            least, most = self._interval(whole, decimals, total)
            if max(least, low) <= min(most, high):
                fitting.append(form)
                inside = inside and low <= least and most <= high
        if not fitting:
            return None
        return (shape, point, len(decimals), *fitting) if inside else prefix

    def _zero_first(self, whole: str) -> bool:
        return whole.startswith("0") and not self.leading_zeros

    def _starts(self, negative: bool) -> bool:
        """Return whether some number of this sign is in range."""
        low, high = self._magnitudes[negative]
        intervals = (self._interval("", "", form.count("0")) for form in self._forms)
        return any(max(least, low) <= min(most, high) for least, most in intervals)

    def _interval(self, whole: str, decimals: str, total: int | None = None) -> tuple[int, int]:
        """Return the least and greatest magnitude, times 10^d, of numbers with ``total`` whole digits that begin so."""
        written = whole.replace(",", "")
        total = len(written) if total is None else total
        unit = 10 ** (total - len(written) + self._most_decimals - len(decimals))
        if not written:  # a first digit of 0 is for numbers of one digit
            return (0 if self.leading_zeros or total == 1 else unit // 10), unit - 1
        least = int(written + decimals) * unit
        return least, least + unit - 1

    @cached_property
    def _forms(self) -> tuple[str, ...]:
        """Whole parts of every length with 0 for each digit: ``0``, ``00``, ``000``, ``0,000``."""
        least, most = _span("digits", self.digits, least=1)
        lengths = range(least, most + 1)
        plain = ["0" * length for length in lengths] if not self.thousands else []
        grouped = [_DIGIT.sub("0", f"{10 ** (length - 1):,}") for length in lengths] if self.thousands is not False else []
        return tuple(dict.fromkeys([*plain, *grouped]))

    @cached_property
    def _least_decimals(self) -> int:
        return _span("decimals", self.decimals, least=0)[0]

    @cached_property
    def _most_decimals(self) -> int:
        return _span("decimals", self.decimals, least=0)[1]

    @cached_property
    def _magnitudes(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Least and greatest magnitude, times 10^d, of the numbers from 0 on, and of the negative ones."""
        scale = 10**self._most_decimals
        limit = 10 ** max(form.count("0") for form in self._forms) * scale
        lowest, highest = _exact("lowest", self.lowest), _exact("highest", self.highest)
        low = -limit if lowest is None else ceil(lowest * scale)
        high = limit if highest is None else floor(highest * scale)
        return (max(0, low), high), (max(0 if self.negative_zero else 1, -high), -low)


@dataclass(frozen=True)
class TextGrammar:
    """Short answers made of given characters, such as the time ``2_55``, and the number that each stands for.

    Args:
        characters: the characters of an answer.
        read: a function from the text to its number, or to None; :func:`numerate.answers.clock_time` and the like.
        most: the most characters of an answer.

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
        """Characters that occur in answers."""
        return self.characters

    @property
    def max_length(self) -> int:
        """Characters of the longest answer."""
        return self.most

    def state(self, prefix: str) -> Hashable | None:
        """Return a key that is equal only for prefixes with the same continuations; None if no answer begins with ``prefix``."""
        return len(prefix) if len(prefix) <= self.most and set(prefix) <= {*self.characters} else None

    def complete(self, text: str) -> str | None:
        """Return ``text``: whether it is an answer is for :meth:`value` to say. None for an empty text."""
        return text or None

    def value(self, text: str) -> Any:
        """Return the number that ``text`` stands for; None if there is none."""
        return self.read(text)

    def belongs(self, character: str) -> bool:
        """Return whether a character that follows an answer is part of it."""
        return character in self.characters


Grammar = NumberGrammar | TextGrammar


def check_grammar(grammar: Any) -> Grammar:
    """Return the grammar of a search, :data:`ANY_NUMBER` for None; raise unless it is one."""
    if grammar is None:
        return ANY_NUMBER
    if not isinstance(grammar, NumberGrammar | TextGrammar):
        raise TypeError(f"grammar is a {type(grammar).__name__}: expected a NumberGrammar or a TextGrammar.")
    return grammar


def _span(name: str, value: Any, least: int) -> tuple[int, int]:
    """Return ``(least, most)`` as two integers; one number stands for both."""
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
    """Return a bound as a fraction. Floats have the value that they print."""
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
        f"{name}={value!r} is no bound ({problem}): expected a finite number, as int, float, Decimal, Fraction or text, "
        "or None for no bound."
    )


ANY_NUMBER = NumberGrammar(thousands=None, leading_zeros=True, negative_zero=True)
"""The default grammar of a search: plain numbers of any range, with or without commas between groups of three digits."""
