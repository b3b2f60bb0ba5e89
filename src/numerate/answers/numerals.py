r"""Numbers in text, read exactly: signs, thousands commas, fractions, powers of ten, in any script's digits.

Numbers are :class:`~fractions.Fraction`, so that ``0.1``, ``1/3`` and a number of a thousand digits keep the value that was
written. No text raises an error, and the time is linear in the length of the text.
"""

from __future__ import annotations

import re
import unicodedata
from collections import deque
from decimal import Decimal
from fractions import Fraction
from numbers import Rational, Real

from numerate.marks import CLOSERS, CURRENCIES, DASHES

MAX_DIGITS = 10_000
"""A numeral with more digits, or with a larger power of ten, has no value."""

_INVISIBLE = "\u00ad\u061c\u200b\u200c\u200d\u200e\u200f\u2060\ufeff\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
PLAIN = str.maketrans(
    dict.fromkeys(DASHES, "-")
    | {"＋": "+", "．": ".", "，": ",", "／": "/", "：": ":", "＿": "_", "（": "(", "）": ")", "［": "[", "］": "]"}
    | {"\u066b": ".", "\u066c": ","}  # the Arabic decimal and thousands marks
    | dict.fromkeys(_INVISIBLE)
)

_EXPONENT = r"(?:[eE][-+]?\d+)?"
_ENDED = rf"\w{re.escape(CLOSERS)}"  # after one of these, no number begins with a sign or a point
_DECIMAL = rf"(?:\d+(?:\.\d+)?|(?<![{_ENDED}.])\.\d+){_EXPONENT}"
_NUMERAL = rf"(?:\d{{1,3}}(?:,\d{{3}})+(?!\d)(?:\.\d+)?{_EXPONENT}|{_DECIMAL})"
# After a letter, a digit, a closing mark or a dash, or one of these and a currency, a dash is a hyphen, range or subtraction.
_SIGN = rf"(?<![-{_ENDED}])(?<![-{_ENDED}][{CURRENCIES}])[-+]"

_CURRENCY = rf"(?:\\?[{CURRENCIES}])?"
_NUMBER = re.compile(rf"({_SIGN}{_CURRENCY})?({_NUMERAL}(?:/[-+]?{_NUMERAL})*)")
_WHOLE = re.compile(rf"{_CURRENCY}{_NUMBER.pattern}\.?")
_PERCENT = re.compile(r"\s?\\?(?:[%٪％﹪]|per\s?cent\b)", re.IGNORECASE)
COORDINATE = re.compile(rf"(?:{_SIGN})?{_DECIMAL}")
_FRAC = re.compile(r"(-?)\\[dt]?frac\{([^{}]*)\}\{([^{}]*)\}")
_POWER = re.compile(r"(?<=\d)\s*(?:×|\*|\\times|\\cdot)\s*10\s*\^\s*\{?([-+]?\d+)\}?")
_GROUPING = re.compile(r"\{,\}|,\\!")

_VULGAR = "¼½¾⅐⅑⅒⅓⅔⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞↉"
_BEFORE_VULGAR = re.compile(rf"(?<=\d)(?=[{_VULGAR}])")
_FRACTIONS = str.maketrans({mark: unicodedata.normalize("NFKC", mark).replace("⁄", "/") for mark in _VULGAR} | {"⁄": "/"})
_MIXED = re.compile(r"(?<![\w.,/])(\d{1,9})\s{1,2}(\d{1,9})/(\d{1,9})(?![./,]?\d)")


def last_number(text: str) -> Fraction | None:
    r"""Return the last number of a text, exactly; None if there is none.

    It may have a sign, thousands commas, a point, a power of ten (``1.5e-3``, ``1.5 × 10^-3``) and a denominator
    (``-3/4``, ``\frac{3}{4}``), in any script's digits. Units are ignored: ``50%`` is 50, and ``$5`` is 5.

    Examples:
        >>> last_number("Half of 2,400 is $1,200.")
        Fraction(1200, 1)
        >>> last_number("x = −3/4"), last_number("about 1.5e-3"), last_number("pages 3-5")
        (Fraction(-3, 4), Fraction(3, 2000), Fraction(5, 1))
        >>> last_number("no idea"), last_number("1/0")
        (None, None)
    """
    match = last_match(_NUMBER, _plain(text))
    return None if match is None else _match_value(match)


def number(text: str) -> Fraction | None:
    """Return the number that makes up the whole text, as :func:`last_number` reads it; None for any other text.

    Spaces, a currency sign before the number and a full stop after it are allowed.

    Examples:
        >>> number(" $1,200. "), number("-3/4")
        (Fraction(1200, 1), Fraction(-3, 4))
        >>> number("12 apples"), number("14/11/2024"), number("")
        (None, None, None)
    """
    match = _WHOLE.fullmatch(_plain(text).strip())
    return None if match is None or match[2].count("/") > 1 else _match_value(match)


def rational(text: str) -> Fraction | None:
    """Return the last number of a text like :func:`last_number`, reading also mixed numbers and one-character fractions.

    Examples:
        >>> rational("It takes 2 1/2 hours."), rational("-1½"), rational("x = 7/2")
        (Fraction(5, 2), Fraction(-3, 2), Fraction(7, 2))
    """
    text = _BEFORE_VULGAR.sub(" ", text).translate(_FRACTIONS)
    return last_number(_MIXED.sub(_improper, text))


def percent(text: str) -> Fraction | None:
    """Return the last percentage of a text, 1 for ``100%``; None if no number is followed by ``%`` or ``percent``.

    Examples:
        >>> percent("It rose by 45%, that is by 9 people."), percent("-0.5 percent")
        (Fraction(9, 20), Fraction(-1, 200))
        >>> percent("45")
    """
    text = _plain(text)
    percentages = deque((match for match in _NUMBER.finditer(text) if _PERCENT.match(text, match.end())), maxlen=1)
    value = _match_value(percentages[0]) if percentages else None
    return None if value is None else value / 100


def as_fraction(value: object) -> Fraction | None:
    """Convert a number of any type; floats have the value of their repr (0.1 is 1/10). None if not a finite number.

    Examples:
        >>> as_fraction(0.1), as_fraction(7), as_fraction(float("nan")), as_fraction("7")
        (Fraction(1, 10), Fraction(7, 1), None, None)
    """
    if isinstance(value, Fraction):
        return value
    if isinstance(value, bool):
        return None
    if isinstance(value, Rational):
        return Fraction(int(value.numerator), int(value.denominator))
    return last_number(str(value)) if isinstance(value, Real | Decimal) else None


def number_of(answer: object) -> Fraction | None:
    """Return the number that an answer is, as text or as a number of any type; None for anything else.

    Examples:
        >>> number_of("42"), number_of(0.1), number_of("5.."), number_of((1, 2))
        (Fraction(42, 1), Fraction(1, 10), None, None)
    """
    return number(answer) if isinstance(answer, str) else as_fraction(answer)


def last_match(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    """Return the last match of ``pattern`` in ``text``."""
    matches = deque(pattern.finditer(text), maxlen=1)
    return matches[0] if matches else None


def _plain(text: str) -> str:
    r"""Rewrite numbers in plain ASCII notation: ``−\frac{1}{2}`` as ``-1/2``, ``2 × 10^3`` as ``2e3``."""
    text = _GROUPING.sub(",", text.translate(PLAIN))
    return _POWER.sub(r"e\1", _FRAC.sub(r" \1\2/\3", text))


def _match_value(match: re.Match[str]) -> Fraction | None:
    sign, numerals = match.groups(default="")
    parts = f"{sign[:1]}{numerals}".split("/")
    if len(parts) != 2:  # one numeral, or a date such as 14/11/2024
        return numeral_value(parts[-1])
    top, bottom = map(numeral_value, parts)
    return top / bottom if top is not None and bottom else None


def _improper(match: re.Match[str]) -> str:
    """Rewrite ``2 1/2`` as ``5/2``; ``2 3/2`` and ``2 0/0`` stay two numbers."""
    whole, top, bottom = map(int, match.groups())
    return f"{whole * bottom + top}/{bottom}" if top < bottom else match[0]


def numeral_value(numeral: str) -> Fraction | None:
    """Return the value of ``-1,200.5e-3``; via Decimal, as ``int`` and ``Fraction`` refuse more than 4,300 digits."""
    mantissa, _, exponent = numeral.replace(",", "").lower().partition("e")
    digits = mantissa.strip("+-").replace(".", "")
    if len(digits) > MAX_DIGITS or Decimal(exponent or 0).copy_abs() > MAX_DIGITS:
        return None
    return Fraction(Decimal(f"{mantissa}e{exponent or 0}"))
