"""Convert table cells to numbers. A column is read as a whole; cells that are not one number are rejected.

    70,35 €   1.234,56   1 234,5       a decimal comma, if the column has one; the answer is 70.35, 1234.56, 1234.5
    1,234.50  12,34,567  1'234.50      thousands marks
    (76.00)   −5   -$5   $-5           negative
    3.5k   2M   1.2bn   3 Mio. €       3500, 2000000, 1200000000, 3000000
    12 %   € 70   84 m2                units are removed: 12, 70, 84; one unit for the whole column
    1e-5   ½   2½                      0.00001, 0.5, 2.5

Rejected: dates, times and several numbers, for which the error says what to do instead; ranges, fractions (3/4 may be a date),
texts, 1_000, infinity, booleans.

``1,234`` and ``1.234`` can be read as 1234 or with a decimal mark: other cells of the column decide. If none does, the point is
the decimal mark, except in a file with semicolons: there both are likely, and the column is rejected. ``decimal`` overrides.
"""

from __future__ import annotations

import calendar
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, localcontext
from fractions import Fraction
from statistics import mean, median
from typing import Any, Literal

from numerate.answers.extract import EXTRACTORS
from numerate.answers.numerals import MAX_DIGITS
from numerate.lab.data.row_reader import BadData

DecimalMark = Literal[".", ","]

BLANK = frozenset(("", "-", "–", "—", "?", "na", "n/a", "n.a.", "#n/a", "<na>", "nan", "null", "none"))

_DATE = re.compile(r"(\d{4}([-/.])\d{1,2}\2\d{1,2}|\d{1,2}([-/.])\d{1,2}\3(\d{4}|\d\d))(?:[T ]\d{1,2}:\d\d.*)?")
_MANY_ZEROS, _FEW_OF_A_SIGN = 0.25, 0.02  # shares of the answers
_REMEDY = "Write one number, optionally with a unit, choose another target, or skip such rows with skip_bad=True (--skip-bad)."
_NO_DATE = (
    "Add a column with a number that is computed from it, such as the days since a fixed date, choose another target, or skip "
    "such rows with skip_bad=True (--skip-bad)."
)
_NO_TIME = (
    "Add a column with a number that is computed from it, such as the minutes since midnight or of a duration ({minutes}), "
    "choose another target, or skip such rows with skip_bad=True (--skip-bad). Pictures of clocks are for the task 'clock'."
)
_NOT_SEVERAL = (
    "Give each number a column of its own, and train a model for each (--target). If they are several people's ratings of one "
    "thing, set average='mean' (--set average=mean). skip_bad=True (--skip-bad) skips such rows."
)
_TIME = re.compile(r"(\d{1,2})[:h]([0-5]\d)(?::[0-5]\d(?:\.\d+)?)?(?: ?(?P<half>[ap])\.?m\.?| ?uhr| ?h)?", re.IGNORECASE)
_SEVERAL = re.compile(r"[-+]?\d+(?:[.,]\d+)?(?:(?:[;|x×, ])[-+]?\d+(?:[.,]\d+)?)+")
_PLAIN = str.maketrans(
    dict.fromkeys("\u2010\u2011\u2012\u2013\u2212\ufe63\uff0d", "-")
    | dict.fromkeys("\u00a0\u2007\u2008\u2009\u200a\u202f", " ")
    | {"’": "'", "＋": "+"}
)
_INVISIBLE = re.compile("[\u200b\u200c\u200d\u200e\u200f\u2060\ufeff]")
_NUMERAL_RUN = re.compile(r"[-+]?\d(?:[\d.,:'’_/–-]|[ \u00a0\u2009\u202f](?=\d{3}\b)|(?<=\d)(?:[kKM]|bn)\b)*")
_ZEROS = 15  # numbers that would need more zeros are written with a power of ten: 1e30

_CURRENCIES = (
    "AUD BRL CAD CHF CNY CZK DKK EUR GBP HKD HUF IDR ILS INR JPY KRW MXN NOK NZD PLN RON RUB SEK SGD THB TRY TWD UAH USD ZAR"
)
_MONEY = rf"(?:(?:US|A|C|R|NZ|HK|S)?[$€£¥₹₽₩₺₴₪฿¢]|{_CURRENCIES.replace(' ', '|')}|Rs\.?|Fr\.?|kr\.?|zł|Kč)"
_DIGITS = r"\d[\d.,' ]*\d|\d\.?|[.,]\d+"
_WORD = r"[^\W\d_]+"
_UNIT = rf"{_WORD}(?:[/·*^]{_WORD})*[.²³]?(?:\^?-?[23])?(?:/{_WORD}[23²³]?)?|[%‰°′″][CF]?|(?:sq|cu|fl|per)\.?\ {_WORD}|{_MONEY}"
_CELL = re.compile(
    rf"""(?P<sign>[-+])?\ ?(?P<open>\()?(?P<money>{_MONEY})?\ ?(?P<inner_open>\()?(?P<inner>[-+])?
    (?P<digits>{_DIGITS})?(?P<vulgar>[¼½¾⅕⅖⅗⅘⅛⅜⅝⅞⅒])?(?P<power>[eE][-+]?\d+)?
    (?P<gap>\ ?)(?P<scale>(?:k|K|M|B|bn|m|mn|mio|mrd|tsd|thousand|millions?|billions?|trillions?)\.?(?![^\W\d_]))?
    \ ?(?P<unit>{_UNIT})?(?P<close>\))?""",
    re.VERBOSE | re.IGNORECASE,
)
_SCALES = {"k": 3, "tsd": 3, "thousand": 3, "m": 6, "mn": 6, "mio": 6, "million": 6, "b": 9, "bn": 9, "mrd": 9, "billion": 9} | {
    "trillion": 12
}
_MONTHS = {name.lower() for name in (*calendar.month_name, *calendar.month_abbr) if name}
_NO_UNITS = {*_MONTHS, "am", "pm", "a.m.", "p.m.", "uhr", "st", "nd", "rd", "th", "e"}


@dataclass(frozen=True)
class TableCell:
    """A parsed cell: its number under either decimal mark, None where it is not a number under that mark."""

    text: str
    numbers: Mapping[DecimalMark, Decimal | None]
    unit: str = ""

    @property
    def mark(self) -> DecimalMark | None:
        """The only decimal mark that gives a number; None if both do."""
        point, comma = self.numbers["."], self.numbers[","]
        return "," if point is None else "." if comma is None else None

    @property
    def ambiguous(self) -> bool:
        """Whether the two marks give different numbers."""
        return self.mark is None and self.numbers["."] != self.numbers[","]


def is_blank(value: Any) -> bool:
    """Return whether a cell is empty or a placeholder such as ``n/a``."""
    return value is None or value != value or (isinstance(value, str) and value.strip().lower() in BLANK)


def is_date(value: Any) -> bool:
    """Return whether a cell is a date, with or without a time.

    Examples:
        >>> [is_date(text) for text in ("2024-04-10", "10.4.2024", "2024-04-10 12:30:00", "2024", "3-5")]
        [True, True, True, False, False]
    """
    return isinstance(value, str) and _DATE.fullmatch(value.strip()) is not None


def read_cell(value: Any) -> TableCell:
    """Parse a cell; raise ``BadData`` unless it is one number, optionally with a unit.

    Examples:
        >>> read_cell("70,35 €").numbers[","], read_cell("(76.00)").numbers["."], read_cell("3.5k").numbers["."]
        (Decimal('70.35'), Decimal('-76.00'), Decimal('3.5E+3'))
        >>> read_cell("2024-04-10")
        Traceback (most recent call last):
        ...
        numerate.lab.data.row_reader.BadData: the answer '2024-04-10' is a date. Add a column with a number that is ...
    """
    if isinstance(value, list | tuple) and len(value) > 1:
        raise BadData(f"the answer {value!r:.60} looks like several numbers", _NOT_SEVERAL)
    if isinstance(value, bool) or not isinstance(value, str | int | float | Decimal):
        raise _rejected(value, f"is a {type(value).__name__}, not a number")
    number: Decimal | None
    if not isinstance(value, str):
        number = Decimal(repr(value)) if isinstance(value, float) else Decimal(value)
        if not _in_range(number):
            raise _rejected(value, "is not finite in float64")
        whole = isinstance(value, float) and value.is_integer() and abs(value) < 1e15
        return TableCell(str(value), dict.fromkeys((".", ","), Decimal(int(value)) if whole else number))
    text = _INVISIBLE.sub("", value).translate(_PLAIN).strip()
    if is_date(text):
        raise BadData(f"the answer {value!r:.60} is a date", _NO_DATE)
    match = _CELL.fullmatch(" ".join(text.removeprefix("'").split())) if len(text) <= MAX_DIGITS else None
    if match is None or not (match["digits"] or match["vulgar"]):
        raise _no_number(value, text)
    negative = _is_negative(match, value)
    exponent, unit = _scale(match, value)
    numbers: dict[DecimalMark, Decimal | None] = {}
    marks: tuple[DecimalMark, DecimalMark] = (".", ",")
    with localcontext() as context:
        context.prec = MAX_DIGITS
        for mark in marks:
            number = _numeral(match["digits"], mark) if match["digits"] else Decimal(0)
            if number is not None and match["vulgar"]:
                number = number + Decimal(str(unicodedata.numeric(match["vulgar"]))) if number == int(number) else None
            numbers[mark] = None if number is None else (-number if negative and number else number).scaleb(exponent)
    if numbers["."] is None and numbers[","] is None:
        raise _no_number(value, text)
    if not all(parsed is None or _in_range(parsed) for parsed in numbers.values()):
        raise _rejected(value, "is not finite in float64")
    return TableCell(value.strip(), numbers, unit)


def is_number(text: str) -> bool:
    """Return whether a cell is one number, with or without a unit."""
    try:
        read_cell(text)
    except BadData:
        return False
    return True


def plain_answer(value: Any) -> str:
    """Return the answer of a single cell with a decimal point."""
    return answer_text(number_of(read_cell(value), ".", ""))


def read_ratings(value: Any) -> tuple[Decimal, ...]:
    """Return several people's numbers: a list of cells, or a text such as ``[1, 2, 2]``; blank ones are left out.

    Examples:
        >>> [str(rating) for rating in read_ratings("[2, -1.5, 2]")]
        ['2', '-1.5', '2']
    """
    if isinstance(value, str):
        value = re.split(r"[,;\s]+", value.strip().removeprefix("[").removesuffix("]").strip())
    cells = [read_cell(cell) for cell in (value if isinstance(value, Sequence) else [value]) if not is_blank(cell)]
    if not cells:
        raise _rejected(value, "has no rating")
    return tuple(number_of(cell, ".", "") for cell in cells)


def average(numbers: Sequence[Decimal], kind: Literal["mean", "median"], decimals: int) -> Decimal:
    """Return the mean or median of numbers, rounded half to even.

    Examples:
        >>> average([Decimal(1), Decimal(2), Decimal(2)], "mean", 1)
        Decimal('1.7')
    """
    exact = (mean if kind == "mean" else median)(map(Fraction, numbers))
    return Decimal(round(exact * 10**decimals)).scaleb(-decimals)


def decimal_mark(cells: Sequence[tuple[str, TableCell]], name: str, *, semicolons: bool = False) -> DecimalMark:
    """Return the decimal mark of a column, given all its cells with their places, such as ``line 3``."""
    deciding: dict[DecimalMark | None, tuple[str, str]] = {}
    for place, cell in cells:
        deciding.setdefault(cell.mark, (place, cell.text))
    remedy = 'set decimal="," or decimal="." (--set decimal=,).'
    if "." in deciding and "," in deciding:
        (point, with_point), (comma, with_comma) = deciding["."], deciding[","]
        raise BadData(
            f"column {name!r} mixes decimal marks: {with_comma!r} ({comma}) has a comma, {with_point!r} ({point}) a point",
            f"Use one of them throughout, or {remedy}",
        )
    if "," in deciding or "." in deciding:
        return "," if "," in deciding else "."
    unclear = next(((place, cell) for place, cell in cells if cell.ambiguous), None)
    if unclear is not None and semicolons:
        place, cell = unclear
        raise BadData(
            f"column {name!r} can be read in two ways: {cell.text!r} ({place}) is {answer_text(cell.numbers['.'])} with a "
            f"decimal point and {answer_text(cell.numbers[','])} with a decimal comma, and no other cell decides",
            remedy.capitalize(),
        )
    return "."


def usual_unit(cells: Sequence[TableCell]) -> str:
    """Return the most common unit of the cells; empty if they have none."""
    return Counter(cell.unit for cell in cells).most_common(1)[0][0] if cells else ""


def number_of(cell: TableCell, mark: DecimalMark, unit: str) -> Decimal:
    """Return the number of a cell in a column with this decimal mark and unit; raise ``BadData`` if it does not fit."""
    number = cell.numbers[mark]
    if number is None:
        raise _rejected(cell.text, f"is not a number with the decimal mark {mark!r}")
    if cell.unit != unit:
        has = f"in {cell.unit!r}" if cell.unit else "without a unit"
        others = f"in {unit!r}" if unit else "without a unit"
        raise _rejected(cell.text, f"is {has}, but the other rows are {others}")
    return number


def answer_text(number: Decimal | None) -> str:
    """Return a number as plain text with its decimals kept; very large or small numbers get a power of ten.

    Examples:
        >>> [answer_text(Decimal(text)) for text in ("70.50", "1E-5", "6.02E23", "1E+30", "-0.0", "3.5E3")]
        ['70.50', '0.00001', '6.02e23', '1e30', '0.0', '3500']
    """
    assert number is not None
    sign, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int)
    if max(exponent, -exponent - len(digits)) <= _ZEROS:
        return f"{number if number else abs(number):f}"
    written = "".join(map(str, digits)).rstrip("0") or "0"
    mantissa = written[0] + (f".{written[1:]}" if written[1:] else "")
    return f"{'-' if sign else ''}{mantissa}e{exponent + len(digits) - 1}"


def last_number(text: str) -> Fraction:
    """Return the last number of a worked answer; raise if another notation would give another number."""
    remedy = "Write numbers as 1234.5, correct the row, or skip such rows with skip_bad=True (--skip-bad)."
    number: Fraction | None = EXTRACTORS["last_number"](text)
    if number is None:
        raise BadData(f"the answer {text!r:.60} contains no number", remedy)
    last = _NUMERAL_RUN.findall(text)[-1].rstrip(".,:'’-/_ ")
    if EXTRACTORS["number"](last) is None:
        raise BadData(f"the answer {text!r:.60} ends with {last!r:.40}, which is not one number", remedy)
    return number


def rewriting_notes(
    name: str, rewritten: Sequence[tuple[str, str]], cells: Sequence[TableCell], mark: str | None
) -> Iterator[str]:
    """Yield messages about rewritten answers and about an ambiguous decimal mark."""
    if rewritten:
        text, answer = next((pair for pair in rewritten if pair[0].lstrip("+") != pair[1]), rewritten[0])
        yield f"{name}: {len(rewritten):,} of {len(cells):,} answers were rewritten, such as {text!r} as {answer}."
    unclear = next((cell for cell in cells if cell.ambiguous), None)
    if mark == "." and unclear is not None and all(cell.mark is None for cell in cells):
        point, comma = answer_text(unclear.numbers["."]), answer_text(unclear.numbers[","])
        yield f"{name}: {unclear.text!r} is read as {point}, with a decimal point; decimal=',' reads it as {comma}."


def absolute_note(name: str, numbers: Sequence[Fraction]) -> str:
    """Return a message if many answers are 0 or of either sign, so that a relative error says little; else an empty one."""
    zeros, judge = sum(not number for number in numbers), "the absolute error is the main metric."
    if zeros and zeros >= _MANY_ZEROS * len(numbers):
        return f"{name}: {zeros:,} of {len(numbers):,} answers are 0, which have no relative error: {judge}"
    positive = sum(number.numerator > 0 for number in numbers)
    negative = len(numbers) - positive - zeros
    if min(positive, negative) <= _FEW_OF_A_SIGN * len(numbers):
        return ""
    return f"{name}: {negative:,} answers are below 0 and {positive:,} above, where a relative error says little: {judge}"


def _rejected(value: Any, why: str) -> BadData:
    return BadData(f"the answer {value!r:.60} {why}", _REMEDY)


def _no_number(value: str, text: str) -> BadData:
    """Return the error for a text that is not one number: a time, several numbers, or something else."""
    if (time := _TIME.fullmatch(text)) is not None:
        hour = int(time[1]) % 12 + 12 * (time["half"] in "pP") if time["half"] else int(time[1])
        return BadData(f"the answer {value!r:.60} is a time", _NO_TIME.format(minutes=60 * hour + int(time[2])))
    if _SEVERAL.fullmatch(re.sub(r"\s*([;|x×]|,(?= ))\s*", r"\1", text.strip("[](){}"))):
        return BadData(f"the answer {value!r:.60} looks like several numbers", _NOT_SEVERAL)
    return _rejected(value, "is not one number" if any(map(str.isdecimal, text)) else "contains no number")


def _in_range(number: Decimal) -> bool:
    return number.is_finite() and abs(float(number)) != float("inf") and (not number or float(number) != 0)


def _is_negative(match: re.Match[str], value: str) -> bool:
    """Return whether the cell has a minus sign or accounting brackets; raise if it has both."""
    brackets = [name for name in ("open", "inner_open") if match[name]]
    signs = [match[name] for name in ("sign", "inner") if match[name]]
    if len(brackets) != (1 if match["close"] else 0) or len(brackets) + len(signs) > 1:
        raise _rejected(value, "is not one number")
    return bool(brackets) or "-" in signs


def _scale(match: re.Match[str], value: str) -> tuple[int, str]:
    """Return power of ten and unit: ``3.5k`` is 3500, ``300 K`` is in kelvin, ``5 m`` in metres, ``$5m`` is 5 million."""
    money, scale, unit = match["money"] or "", (match["scale"] or ""), match["unit"] or ""
    power = int(match["power"][1:]) if match["power"] else 0
    if abs(power) > MAX_DIGITS:
        raise _rejected(value, "is not finite in float64")
    word = scale.rstrip(".")
    is_money = bool(money) or re.fullmatch(_MONEY, unit) is not None
    if (word == "m" and not is_money) or (word == "K" and match["gap"]) or word == "b":
        unit, word = f"{word} {unit}".strip(), ""
    if money and unit:
        raise _rejected(value, "has two units")
    if unit.lower().rstrip(".") in _NO_UNITS:
        raise _rejected(value, "is not one number")
    if unit in ("G", "T") and not match["gap"]:
        raise _rejected(value, f"may be in {unit} or a multiple")
    return power + (_SCALES[word.lower().removesuffix("s")] if word else 0), unit or money


def _numeral(text: str, mark: DecimalMark) -> Decimal | None:
    """Return the value of digits with thousands marks and this decimal mark; None if they do not follow that notation."""
    whole, point, rest = text.partition(mark)
    if point and rest and not rest.isdecimal():
        return None
    groups = re.split("[.,' ]", whole) if whole else ["0"]
    used = {letter for letter in whole if not letter.isdecimal()}
    if len(used) > 1 or mark in used or not all(group.isdecimal() for group in groups):
        return None
    if len(groups) > 1:
        first, *middle, last = groups
        thousands = len(first) <= 3 and all(len(group) == 3 for group in middle)
        indian = used == {","} and len(first) <= 2 and bool(middle) and all(len(group) == 2 for group in middle)
        if first.startswith("0") or len(last) != 3 or not (thousands or indian):
            return None
    digits = "".join(groups).lstrip("0") or "0"
    return Decimal(f"{digits}.{rest}" if rest else digits)
