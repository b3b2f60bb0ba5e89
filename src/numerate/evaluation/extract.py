r"""Read the answer out of a text: a number, a time, a box; None where the text holds no answer.

    last_number   "That makes $1,200."                           1200
    clock_time    "2_55", "02:55", "14:55"                       175, in minutes after twelve
    box           "[10, 20, 110, 220]", "(10,20),(110,220)"      10, 20, 110, 220

Of several candidates the last is the answer. Where that one has no value (``1/0``, ``2:75``, more than ``MAX_DIGITS``
digits), there is no answer: what stands before it is not taken instead.

Any text is safe: nothing raises, and the time grows with the length of the text alone. Numbers are of type
:class:`~fractions.Fraction`, so that ``0.1``, ``1/3`` and a number of a thousand digits are what was written.
"""

from __future__ import annotations

import re
from collections import deque
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise

MAX_DIGITS = 10_000
"""A numeral with more digits, or a larger power of ten, has no value."""

Box = tuple[Fraction, Fraction, Fraction, Fraction]

_INVISIBLE = "\u00ad\u061c\u200b\u200c\u200d\u200e\u200f\u2060\ufeff\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
_PLAIN = str.maketrans(
    dict.fromkeys("\u2010\u2011\u2012\u2013\u2212\ufe63\uff0d", "-")
    | {"＋": "+", "．": ".", "，": ",", "／": "/", "：": ":", "＿": "_", "（": "(", "）": ")", "［": "[", "］": "]"}
    | {"\u066b": ".", "\u066c": ","}  # the Arabic decimal and thousands marks
    | dict.fromkeys(_INVISIBLE)
)

_EXPONENT = r"(?:[eE][-+]?\d+)?"
_DECIMAL = rf"(?:\d+(?:\.\d+)?|(?<![\w.])\.\d+){_EXPONENT}"
_NUMERAL = rf"(?:\d{{1,3}}(?:,\d{{3}})+(?!\d)(?:\.\d+)?{_EXPONENT}|{_DECIMAL})"
# After a letter, a digit, a closing bracket or a dash, a dash is a hyphen, a range or a subtraction.
_SIGN = r"(?<![-\w)\]}])[-+]"

_NUMBER = re.compile(rf"({_SIGN}(?:\\?[$€£¥])?)?({_NUMERAL}(?:/[-+]?{_NUMERAL})*)")
_COORDINATE = re.compile(rf"(?:{_SIGN})?{_DECIMAL}")
_TIME = re.compile(r"(?<!\d)(?<!\d[:_.])(\d{1,2})[:_](\d\d)(?:[:_](\d\d))?(?![:_]?\d)")

_FRAC = re.compile(r"(-?)\\[dt]?frac\{([^{}]*)\}\{([^{}]*)\}")
_POWER = re.compile(r"(?<=\d)\s*(?:×|\*|\\times|\\cdot)\s*10\s*\^\s*\{?([-+]?\d+)\}?")
_GROUPING = re.compile(r"\{,\}|,\\!")

_FOUR = re.compile(r"(?<!,),,,(?!,)|(?<![,|]),\|,(?![,|])")  # of the gaps between numbers: one row, or two points


def last_number(text: str) -> Fraction | None:
    r"""The last number of a text, exactly; None if there is none.

    It may have a sign, thousands commas, a point, a power of ten (``1.5e-3``, ``1.5 × 10^-3``) and a denominator
    (``-3/4``, ``\frac{3}{4}``), in any script's digits. Units are not read: ``50%`` is 50, and ``$5`` is 5.

    Example:
        >>> last_number("Half of 2,400 is $1,200.")
        Fraction(1200, 1)
        >>> last_number("x = −3/4"), last_number("about 1.5e-3"), last_number("pages 3-5")
        (Fraction(-3, 4), Fraction(3, 2000), Fraction(5, 1))
        >>> last_number("no idea"), last_number("1/0")
        (None, None)
    """
    text = _GROUPING.sub(",", text.translate(_PLAIN))
    text = _POWER.sub(r"e\1", _FRAC.sub(r" \1\2/\3", text))
    match = _last(_NUMBER, text)
    if match is None:
        return None
    sign, numerals = match.groups(default="")
    parts = f"{sign[:1]}{numerals}".split("/")
    if len(parts) != 2:  # one numeral, or a date such as 14/11/2024
        return _value(parts[-1])
    top, bottom = map(_value, parts)
    return top / bottom if top is not None and bottom else None


def clock_time(text: str) -> Fraction | None:
    """The last time of day of a text, in minutes after twelve on a 12-hour face, from 0 up to 720; None if there is none.

    Example:
        >>> clock_time("The clock shows 2_55."), clock_time("14:55"), clock_time("12:00:30")
        (Fraction(175, 1), Fraction(175, 1), Fraction(1, 2))
        >>> clock_time("2:75"), clock_time("5 to 3")
        (None, None)
    """
    match = _last(_TIME, text.translate(_PLAIN))
    if match is None:
        return None
    hour, minute, second = (int(part or 0) for part in match.groups())
    if hour > 23 or minute > 59 or second > 59:
        return None
    return Fraction(hour % 12 * 60 + minute) + Fraction(second, 60)


def box(text: str) -> Box | None:
    """The last box of a text, its four numbers as written; None if there is none.

    A box is a row of exactly four numbers with commas or spaces between them, or two points next to each other.

    Example:
        >>> [int(side) for side in box('{"bbox_2d": [10, 20, 110, 220], "label": "player 7"}')]
        [10, 20, 110, 220]
        >>> [int(side) for side in box("<box>(10,20),(110,220)</box>")]
        [10, 20, 110, 220]
        >>> box("[10, 20, 110]"), box("[1, 2, 3, 4, 5]")
        (None, None)
    """
    text = text.translate(_PLAIN)
    numbers = list(_COORDINATE.finditer(text))
    gaps = "".join(_gap(text[before.end() : number.start()]) for before, number in pairwise(numbers))
    match = _last(_FOUR, gaps)
    if match is None:
        return None
    x1, y1, x2, y2 = (_value(number[0]) for number in numbers[match.start() : match.end() + 1])
    return None if x1 is None or y1 is None or x2 is None or y2 is None else (x1, y1, x2, y2)


def _last(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    matches = deque(pattern.finditer(text), maxlen=1)
    return matches[0] if matches else None


def _gap(between: str) -> str:
    """``,`` where two numbers stand in one row, ``|`` where the next point starts, else a space."""
    marks = "".join(between.split())
    if marks == "," or (not marks and "\n" not in between):
        return ","
    return "|" if marks in ("),(", ")(", "],[", "][") else " "


def _value(numeral: str) -> Fraction | None:
    """What ``-1,200.5e-3`` is worth; ``int`` and ``Fraction`` would refuse more than 4,300 digits."""
    mantissa, _, exponent = numeral.replace(",", "").lower().partition("e")
    digits = mantissa.strip("+-").replace(".", "")
    if len(digits) > MAX_DIGITS or Decimal(exponent or 0).copy_abs() > MAX_DIGITS:
        return None
    return Fraction(Decimal(f"{mantissa}e{exponent or 0}"))
