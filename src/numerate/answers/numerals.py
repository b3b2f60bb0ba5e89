r"""Exact parsing of numbers in text: signs, thousands separators, fractions and powers, in the digits of any script.

Numbers are :class:`~fractions.Fraction`, so that ``0.1``, ``1/3`` and numbers of a thousand digits are exact. No text raises an
error, and parsing takes linear time. ``docs/numbers.md`` has a table of notations.

A text is first rewritten in plain notation: ``1.5 × 10³`` as ``1.5e3``, ``2\frac{1}{2}`` as ``5/2``, ``1 000`` as ``1000``,
``1.234,56`` as ``1234.56``. In a number with both marks, the last one is the decimal mark; a mark that occurs twice is a
thousands separator. ``decimal`` resolves a single mark: ``1,234`` is 1234 with a decimal point, and 1.234 with a decimal comma.
"""

from __future__ import annotations

import re
import unicodedata
from collections import deque
from decimal import Decimal
from fractions import Fraction
from functools import partial
from math import log10
from numbers import Rational, Real
from typing import Literal

from numerate.checks import check_choice, choices
from numerate.marks import CLOSERS, CURRENCIES, DASHES

MAX_DIGITS = 10_000
"""Limit on the digits of a numeral and on its power of ten; beyond it, the numeral has no value."""

DecimalMark = Literal[".", ","]

_INVISIBLE = "\u00ad\u061c\u200b\u200c\u200d\u200e\u200f\u2060\ufeff\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
PLAIN = str.maketrans(
    dict.fromkeys(DASHES, "-")
    | {"＋": "+", "．": ".", "，": ",", "／": "/", "：": ":", "＿": "_", "（": "(", "）": ")", "［": "[", "］": "]"}
    | {"\u066b": ".", "\u066c": ","}  # the Arabic decimal and thousands separators
    | dict.fromkeys(_INVISIBLE)
)
_OTHER_MARK = str.maketrans(".,", ",.")

_EXPONENT = r"(?:[eE][-+]?\d+)?"
_ENDED = rf"\w{re.escape(CLOSERS)}"  # after one of these, a number does not start with a sign or a point
_DECIMAL = rf"(?:\d+(?:\.\d+)?|(?<![{_ENDED}.])\.\d+){_EXPONENT}"
_GROUPED = r"(?!0,)(?:\d{1,3}(?:,\d{3})+|(?<!\d,)\d{1,2}(?:,\d{2})+,\d{3})(?!\d)(?:\.\d+)?"  # 1,234,567 or 12,34,567
_NUMERAL = rf"(?:{_GROUPED}{_EXPONENT}|{_DECIMAL})(?:\^(?:[-+]?\d+{_EXPONENT}|\?))?"
# After a letter, a digit, a closing mark or a dash, or one of these and a currency, a dash is a hyphen, range or subtraction.
_MONEY = f"{CURRENCIES}₹₽₩₺₴₪₫₱₦฿¢＄￥￡￦"
_SIGN = rf"(?<![-{_ENDED}])(?<![-{_ENDED}][{_MONEY}])[-+]"

_CURRENCY = rf"(?:\\?[{_MONEY}])?"
_NUMBER = re.compile(rf"({_SIGN}{_CURRENCY})?({_NUMERAL}(?:/[-+]?{_NUMERAL})*)")
_WHOLE = re.compile(rf"{_CURRENCY}{_NUMBER.pattern}\.?")
_SIMPLE = re.compile(r"[-+]?[0-9]+(?:\.[0-9]+)?")
_PERCENT = re.compile(r"\s?\\?(?:[%٪％﹪]|per\s?cent\b)", re.IGNORECASE)
COORDINATE = re.compile(rf"(?:{_SIGN})?{_DECIMAL}")

# Two dashes, one of them not a hyphen: -3–-5 is a range that ends at -5. In LaTeX, 3--5 is a range that ends at 5.
_TO_NEGATIVE = re.compile(rf"(?<=[\d{re.escape(CLOSERS)}])(?:[\u2012\u2013\u2212][-\u2212]|-\u2212)(?={_CURRENCY}\.?\d)")
_FRAC = re.compile(r"(-?)\\[dtc]?frac\s?(?:\{([^{}]*)\}|(\d))\s?(?:\{([^{}]*)\}|(\d))")
_VULGAR = re.compile(r"(\d?)([¼½¾⅐⅑⅒⅓⅔⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞↉]|[⁰¹²³⁴-⁹]+⁄[₀-₉]+)")
_MIXED = re.compile(r"(?<![\w.,/])(\d{1,9})\s{1,2}(\d{1,9})/(\d{1,9})(?![./,]?\d)")
_SUPERSCRIPT = re.compile(r"[⁺⁻]?[⁰¹²³⁴-⁹]+")
_INTEGER = re.compile(r"[-+]?\d+")
_POWER = re.compile(r"(\d\s*)?(?:\^|(?<=\d)\*\*(?=[-+]?\d))\s*(?:\{([^{}]*)\}|\(([^()]*)\)|([-+]?\d+(?:\.\d+)?))")
_UNIT_POWER = re.compile(r"((?:(?<=\d)|(?<=\d\s)|(?<=[/·⋅*]))(?:[kcdhmnµμ]?m|in|ft|yd|mi|s))[23](?!\w|[.,]\d)")
_TIMES_TEN = re.compile(r"(?<=\d)\s*(?:[×xX*·⋅∙]|\\times|\\cdot)\s*10\^([-+]?\d+)")
_COMMA = re.compile(r"\{,\}|,\\!")
_THIN = re.compile(r"(?<=\d)\\[,;: ](?=\d{3})")
_SEPARATED = re.compile(
    r"(?<![\d.,:/_])(\d{1,3}(?:([ \u00a0\u2007\u2009\u202f'’_])\d{3}(?:\2\d{3})*))(?!\d)([.,]\d+(?![.,]?\d))?"
)
_CONTINENTAL = re.compile(r"(?<![\d.,])(?!0\.)\d{1,3}(?:(?:\.\d{3})+,\d+|(?:\.\d{3}){2,})(?![.,]?\d)")


def last_number(text: str, *, decimal: DecimalMark = ".") -> Fraction | None:
    r"""Return the last number of a text, exactly; None if there is none.

    It may have a sign, thousands separators, a decimal mark, a power (``1.5e-3``, ``1.5 × 10^-3``, ``10⁵``) and a denominator
    (``-3/4``, ``\frac{3}{4}``, ``2½``), in the digits of any script. Units and their powers are ignored: ``50%`` is 50, ``$5`` is
    5, and ``9.81 m/s^2`` is 9.81.

    Args:
        text: any text.
        decimal: decimal mark of ambiguous texts: ``1,234`` is 1234 by default and 1.234 with ``","``; ``3,14`` is two numbers by
            default. With ``","``, points and plain spaces are thousands separators.

    Examples:
        >>> last_number("Half of 2,400 is $1,200.")
        Fraction(1200, 1)
        >>> last_number("x = −3/4"), last_number("about 1.5 × 10³"), last_number("pages 3-5")
        (Fraction(-3, 4), Fraction(1500, 1), Fraction(5, 1))
        >>> last_number("1.234,50 €"), last_number("3,14"), last_number("3,14", decimal=",")
        (Fraction(2469, 2), Fraction(14, 1), Fraction(157, 50))
        >>> last_number("no idea"), last_number("1/0")
        (None, None)
    """
    if decimal == "." and (simple := _SIMPLE.fullmatch(text.strip())):  # most labels and answers: twenty times as fast
        return numeral_value(simple[0])
    match = last_match(_NUMBER, _plain(text, decimal))
    return None if match is None else _match_value(match)


def number(text: str, *, decimal: DecimalMark = ".") -> Fraction | None:
    """Return the number if it is the entire text, parsed as by :func:`last_number`; else None.

    Surrounding spaces, a currency sign before the number and a full stop after it are allowed.

    Examples:
        >>> number(" $1,200. "), number("-3/4"), number("3,14", decimal=",")
        (Fraction(1200, 1), Fraction(-3, 4), Fraction(157, 50))
        >>> number("12 apples"), number("14/11/2024"), number("3,14"), number("")
        (None, None, None, None)
    """
    plain = _plain(text, decimal).strip()
    match = _WHOLE.fullmatch(plain.removesuffix(",") if decimal == "," else plain)
    return None if match is None or match[2].count("/") > 1 else _match_value(match)


def rational(text: str, *, decimal: DecimalMark = ".") -> Fraction | None:
    """Return the last number of a text; an alias of :func:`last_number`, which also supports mixed numbers.

    Examples:
        >>> rational("It takes 2 1/2 hours."), rational("-1½"), rational("x = 7/2")
        (Fraction(5, 2), Fraction(-3, 2), Fraction(7, 2))
    """
    return last_number(text, decimal=decimal)


def percent(text: str, *, decimal: DecimalMark = ".") -> Fraction | None:
    """Return the last percentage of a text, 1 for ``100%``; None if no number is followed by ``%`` or ``percent``.

    Examples:
        >>> percent("It rose by 45%, that is by 9 people."), percent("-0.5 percent")
        (Fraction(9, 20), Fraction(-1, 200))
        >>> percent("45")
    """
    text = _plain(text, decimal)
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
    """Return the number of an answer that is a text or a number of any type; None for anything else.

    Examples:
        >>> number_of("42"), number_of(0.1), number_of("5.."), number_of((1, 2))
        (Fraction(42, 1), Fraction(1, 10), None, None)
    """
    return number(answer) if isinstance(answer, str) else as_fraction(answer)


def last_match(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    """Return the last match of ``pattern`` in ``text``."""
    matches = deque(pattern.finditer(text), maxlen=1)
    return matches[0] if matches else None


def _plain(text: str, decimal: DecimalMark) -> str:
    r"""Rewrite numbers in plain ASCII notation: ``−\frac{1}{2}`` as ``-1/2``, ``2 × 10³`` as ``2e3``, ``1 000`` as ``1000``."""
    check_choice("decimal", decimal, choices(DecimalMark))
    if not text.isascii():
        text = _VULGAR.sub(_with_slash, _TO_NEGATIVE.sub(" -", text).translate(PLAIN)).replace("⁄", "/")
        text = _SUPERSCRIPT.sub(lambda match: f"^{unicodedata.normalize('NFKC', match[0])}".replace("−", "-"), text)
    text = _THIN.sub("\u2009", _COMMA.sub(",", text))
    text = _TIMES_TEN.sub(r"e\1", _UNIT_POWER.sub(r"\1", _POWER.sub(_power, text)))
    text = _FRAC.sub(lambda m: f"{m[1] or ' '}{m[2] or m[3] or ''}/{m[4] or m[5] or ''}", text)
    text = text.translate(_OTHER_MARK) if decimal == "," else text
    text = _SEPARATED.sub(partial(_joined, spaces=decimal == ","), text)
    text = _CONTINENTAL.sub(lambda match: match[0].replace(".", "").replace(",", "."), text)
    return _MIXED.sub(_improper, text)


def _with_slash(match: re.Match[str]) -> str:
    """Rewrite ``½`` as ``1⁄2``, and ``2½`` as ``2 1⁄2``."""
    return f"{match[1]}{' ' * bool(match[1])}{unicodedata.normalize('NFKC', match[2])}"


def _power(match: re.Match[str]) -> str:
    """Rewrite ``10^{-5}`` as ``10^-5`` and ``2^{1/2}``, which is irrational, as ``2^?``; remove the digits of ``m^2``."""
    base, exponent = (match[1] or "").strip(), (match[2] or match[3] or match[4] or "").strip()
    if not any(map(str.isdecimal, exponent)):
        return match[0]
    return f"{base}^{exponent if _INTEGER.fullmatch(exponent) else '?'}" if base else "^"


def _joined(match: re.Match[str], spaces: bool) -> str:
    """Rewrite ``1'000,5`` as ``1000.5``. A plain space joins digits only before a 0, which starts no number, or if ``spaces``."""
    numeral, mark, decimals = match.groups(default="")
    if mark == " " and not spaces and " 0" not in numeral:
        return match[0]
    return numeral.replace(mark, "") + decimals.replace(",", ".")


def _improper(match: re.Match[str]) -> str:
    """Rewrite ``2 1/2`` as ``5/2``; ``2 3/2`` and ``2 0/0`` stay two numbers."""
    whole, top, bottom = map(int, match.groups())
    return f"{whole * bottom + top}/{bottom}" if top < bottom else match[0]


def _match_value(match: re.Match[str]) -> Fraction | None:
    sign, numerals = match.groups(default="")
    parts = f"{sign[:1]}{numerals}".split("/")
    if len(parts) != 2:  # one numeral, or a date such as 14/11/2024
        return _power_value(parts[-1])
    top, bottom = map(_power_value, parts)
    return top / bottom if top is not None and bottom else None


def _power_value(numeral: str) -> Fraction | None:
    """Return the value of ``-2^10`` or ``2^10e3``, or of a numeral without a power; None if it has too many digits."""
    mantissa, _, power = numeral.partition("^")
    base, (exponent, _, tens) = numeral_value(mantissa), power.lower().partition("e")
    if base is None or not power:
        return base
    scale = numeral_value(f"1e{tens or 0}")
    if scale is None or exponent == "?" or len(exponent) > len(str(-MAX_DIGITS)) or (not base and int(exponent) < 0):
        return None
    if log10(max(abs(base.numerator), base.denominator)) * abs(int(exponent)) > MAX_DIGITS:
        return None
    value = abs(base) ** int(exponent) * scale
    return -value if mantissa.startswith("-") else value


def numeral_value(numeral: str) -> Fraction | None:
    """Return the value of ``-1,200.5e-3``; via Decimal, since ``int`` and ``Fraction`` reject more than 4,300 digits."""
    mantissa, _, exponent = numeral.replace(",", "").lower().partition("e")
    digits = mantissa.strip("+-").replace(".", "")
    if len(digits) > MAX_DIGITS or Decimal(exponent or 0).copy_abs() > MAX_DIGITS:
        return None
    return Fraction(Decimal(f"{mantissa}e{exponent or 0}"))
