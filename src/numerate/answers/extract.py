r"""Read the answer out of a text: a number, a time, a box; None where the text holds no answer.

    last_number      "That makes $1,200."                           1200
    number           "1,200"; nothing else may stand there          1200
    rational         "2 1/2", "2½"                                  5/2
    percent          "up by 45%, or 9 people"                       9/20
    clock_time       "2_55", "02:55", "14:55"                       175, in minutes after twelve
    box              "[10, 20, 110, 220]", "(10,20),(110,220)"      10, 20, 110, 220
    boxes            '[{"box": [10, 20, 110, 220], "text": "A"}]'   its regions
    gsm8k_strict     "so 7 * 6 = 42 #### 42"                        the text "42"
    gsm8k_flexible   "so the answer is $42."                        the text "42"
    final_answer     "Final answer: Kenya"                          the text "Kenya"
    whole_text       " Kenya "                                      the text "Kenya"

Of several candidates the last is the answer. Where that one has no value (``1/0``, ``2:75``, more than ``MAX_DIGITS``
digits), there is no answer: what stands before it is not taken instead.

Any text is safe: nothing raises, and the time grows with the length of the text alone. Numbers are of type
:class:`~fractions.Fraction`, so that ``0.1``, ``1/3`` and a number of a thousand digits are what was written.

``EXTRACTORS`` has them by name, each with a version that is raised when the result changes for any text: scores are
comparable where extractor and version are the same.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise
from numbers import Rational, Real
from typing import Any, NamedTuple

from numerate.marks import CLOSERS, CURRENCIES, DASHES

MAX_DIGITS = 10_000
"""A numeral with more digits, or a larger power of ten, has no value."""

Box = tuple[Fraction, Fraction, Fraction, Fraction]


class Region(NamedTuple):
    """A place in an image and the text that stands there."""

    corners: tuple[Fraction, ...]
    """x1, y1, x2, y2 of a box; x1, y1, .., x4, y4 of a quadrilateral; empty where neither could be read."""

    text: str | None = None


_INVISIBLE = "\u00ad\u061c\u200b\u200c\u200d\u200e\u200f\u2060\ufeff\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
_PLAIN = str.maketrans(
    dict.fromkeys(DASHES, "-")
    | {"＋": "+", "．": ".", "，": ",", "／": "/", "：": ":", "＿": "_", "（": "(", "）": ")", "［": "[", "］": "]"}
    | {"\u066b": ".", "\u066c": ","}  # the Arabic decimal and thousands marks
    | dict.fromkeys(_INVISIBLE)
)

_EXPONENT = r"(?:[eE][-+]?\d+)?"
_ENDED = rf"\w{re.escape(CLOSERS)}"  # behind one of these, no number begins
_DECIMAL = rf"(?:\d+(?:\.\d+)?|(?<![{_ENDED}.])\.\d+){_EXPONENT}"
_NUMERAL = rf"(?:\d{{1,3}}(?:,\d{{3}})+(?!\d)(?:\.\d+)?{_EXPONENT}|{_DECIMAL})"
# After a letter, a digit, a closing bracket or a dash, or one of them and a currency, a dash is a hyphen, a range or a
# subtraction.
_SIGN = rf"(?<![-{_ENDED}])(?<![-{_ENDED}][{CURRENCIES}])[-+]"

_CURRENCY = rf"(?:\\?[{CURRENCIES}])?"
_NUMBER = re.compile(rf"({_SIGN}{_CURRENCY})?({_NUMERAL}(?:/[-+]?{_NUMERAL})*)")
_WHOLE = re.compile(rf"{_CURRENCY}{_NUMBER.pattern}\.?")
_PERCENT = re.compile(r"\s?\\?(?:[%٪％﹪]|per\s?cent\b)", re.IGNORECASE)
_COORDINATE = re.compile(rf"(?:{_SIGN})?{_DECIMAL}")
_TIME = re.compile(r"(?<!\d)(?<!\d[:_.])(\d{1,2})[:_](\d\d)(?:[:_](\d\d))?(?![:_]?\d)")

_FRAC = re.compile(r"(-?)\\[dt]?frac\{([^{}]*)\}\{([^{}]*)\}")
_POWER = re.compile(r"(?<=\d)\s*(?:×|\*|\\times|\\cdot)\s*10\s*\^\s*\{?([-+]?\d+)\}?")
_GROUPING = re.compile(r"\{,\}|,\\!")

_VULGAR = "¼½¾⅐⅑⅒⅓⅔⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞↉"
_BEFORE_VULGAR = re.compile(rf"(?<=\d)(?=[{_VULGAR}])")
_FRACTIONS = str.maketrans({mark: unicodedata.normalize("NFKC", mark).replace("⁄", "/") for mark in _VULGAR} | {"⁄": "/"})
_MIXED = re.compile(r"(?<![\w.,/])(\d{1,9})\s{1,2}(\d{1,9})/(\d{1,9})(?![./,]?\d)")

# The patterns of lm-evaluation-harness, its GSM8K task in version 3.
_GSM8K_STRICT = re.compile(r"#### (\-?[0-9\.\,]+)")
_GSM8K_FLEXIBLE = re.compile(r"(-?[$0-9.,]{2,})|(-?[0-9]+)")
_GSM8K_IGNORED = re.compile(r",|\$")

_ANSWER = re.compile(r"([aA]nswer)\**:\**")
_MARKDOWN = re.compile(r"[*_\[\]()]")

_LIST = re.compile(r"\[(?=\s*[{\]])")
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
    match = _last(_NUMBER, _plain(text))
    return None if match is None else _worth(match)


def number(text: str) -> Fraction | None:
    """The number that a text is, as :func:`last_number` reads it; None if anything else stands there.

    Spaces, a currency sign before and a full stop after the number may stand.

    Example:
        >>> number(" $1,200. "), number("-3/4")
        (Fraction(1200, 1), Fraction(-3, 4))
        >>> number("12 apples"), number("14/11/2024"), number("")
        (None, None, None)
    """
    match = _WHOLE.fullmatch(_plain(text).strip())
    return None if match is None or match[2].count("/") > 1 else _worth(match)


def rational(text: str) -> Fraction | None:
    """The last number of a text, as :func:`last_number`; mixed numbers and fractions of one character are read too.

    Example:
        >>> rational("It takes 2 1/2 hours."), rational("-1½"), rational("x = 7/2")
        (Fraction(5, 2), Fraction(-3, 2), Fraction(7, 2))
    """
    text = _BEFORE_VULGAR.sub(" ", text).translate(_FRACTIONS)
    return last_number(_MIXED.sub(_improper, text))


def percent(text: str) -> Fraction | None:
    """The last percentage of a text, 1 for ``100%``; None if no number has a percent sign (or ``percent``) after it.

    Example:
        >>> percent("It rose by 45%, that is by 9 people."), percent("-0.5 percent")
        (Fraction(9, 20), Fraction(-1, 200))
        >>> percent("45")
    """
    text = _plain(text)
    last = deque((match for match in _NUMBER.finditer(text) if _PERCENT.match(text, match.end())), maxlen=1)
    value = _worth(last[0]) if last else None
    return None if value is None else value / 100


def gsm8k_strict(text: str) -> str | None:
    """The answer after ``#### `` by the rule of lm-evaluation-harness; None if there is none.

    The first match counts. Commas, dollar signs and one full stop at the end are left out; what remains is compared as
    text, so that ``18.00`` is not ``18`` (metric ``string_match``). As a number (``exact``) it is.

    Example:
        >>> gsm8k_strict("9 * 200 = 1,800 #### 1,800."), gsm8k_strict("#### $18"), gsm8k_strict("1800")
        ('1800', None, None)
    """
    match = _GSM8K_STRICT.search(text)
    return None if match is None else _gsm8k(match[1])


def gsm8k_flexible(text: str) -> str | None:
    """The last number by the rule of lm-evaluation-harness; None if there is none. See :func:`gsm8k_strict`.

    Its pattern also takes stops and commas alone for a number (``...``). They score nothing there; here, they are no
    answer.

    Example:
        >>> gsm8k_flexible("so the answer is $1,800."), gsm8k_flexible("It is 5..."), gsm8k_flexible("1/2")
        ('1800', '5..', '2')
        >>> gsm8k_flexible("Well, 5, perhaps ...")
    """
    match = _last(_GSM8K_FLEXIBLE, text)
    return None if match is None else _gsm8k(match[0])


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


def boxes(text: str) -> tuple[Region, ...] | None:
    """The regions of the last JSON list of a text; None if there is none.

    Each entry is ``{"box": [x1, y1, x2, y2], "text": ...}`` or ``{"quad": [x1, y1, .., x4, y4], "text": ...}``. Any other
    entry is a region without corners, which matches nothing but counts. Of a list that was cut short, the complete
    entries count.

    Example:
        >>> (region,) = boxes('[{"box": [1, 2, 30.5, 40], "text": "EXIT"}]')
        >>> [float(side) for side in region.corners], region.text
        ([1.0, 2.0, 30.5, 40.0], 'EXIT')
        >>> boxes("[]"), boxes("EXIT")
        ((), None)
        >>> len(boxes('[{"box": [1, 2, 3, 4]}, {"box": [5, 6'))
        1
    """
    entries, position = None, 0
    while match := _LIST.search(text, position):
        try:
            entries, position = _JSON.raw_decode(text, match.start())
        except (ValueError, RecursionError):
            return _cut_short(text[match.start() :])
    return None if entries is None else tuple(region(entry) for entry in entries)


def region(entry: object) -> Region:
    """A region from an entry of a list: a region, ``{"box": .., "text": ..}`` or ``{"quad": ..}``; see :func:`boxes`.

    Example:
        >>> region({"box": [1, 2, 3, 4], "text": "A"}) == Region((1, 2, 3, 4), "A")
        True
        >>> region({"box": [1, 2, 3]})
        Region(corners=(), text=None)
    """
    if isinstance(entry, Region):
        entry = {"quad" if len(entry.corners) == 8 else "box": entry.corners, "text": entry.text}
    if not isinstance(entry, Mapping):
        return Region(())
    name, count = ("quad", 8) if "quad" in entry else ("box", 4)
    given, text = entry.get(name), entry.get("text")
    sides = [as_fraction(side) for side in given] if isinstance(given, Sequence) and len(given) == count else []
    corners = tuple(side for side in sides if side is not None)
    return Region(corners if len(corners) == count else (), text if isinstance(text, str) else None)


def final_answer(text: str) -> str | None:
    """The first line of text after the last ``answer:``, by the rule of lm-evaluation-harness for charts; None if there is none.

    Example:
        >>> final_answer("It is the tallest bar. **Final answer:** Kenya"), final_answer("Kenya")
        ('Kenya', None)
    """
    text = _ANSWER.sub(r"\1:", text)
    start = text.lower().rfind("answer:")
    lines = text[start + len("answer:") :].split("\n") if start >= 0 else []
    first = next((line.strip() for line in lines if line.strip()), "")
    return _MARKDOWN.sub("", first) or None


def whole_text(text: str) -> str | None:
    """The text itself, without the space around it; None if nothing is left.

    Example:
        >>> whole_text(" Not too much "), whole_text(" ")
        ('Not too much', None)
    """
    return text.strip() or None


def as_fraction(value: object) -> Fraction | None:
    """A number of any type as what it prints: the float 0.1 is 1/10. None for what is no finite number.

    Example:
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


@dataclass(frozen=True)
class Extractor:
    """A named way to read the answer out of a text.

    Example:
        >>> EXTRACTORS["clock"]("It is 2:55."), EXTRACTORS["clock"]("no idea")
        (Fraction(175, 1), None)
    """

    name: str
    version: int
    """Raised when the result changes for any text."""

    function: Callable[[str], Any]
    description: str

    def __call__(self, text: str) -> Any:
        """The answer that the text gives; None for none."""
        return self.function(text)


EXTRACTORS: dict[str, Extractor] = {
    extractor.name: extractor
    for extractor in (
        Extractor("last_number", 2, last_number, "the last number"),
        Extractor("number", 1, number, "the number that the whole text is"),
        Extractor("rational", 2, rational, "the last number, mixed numbers such as 2 1/2 and ½ too"),
        Extractor("percent", 2, percent, "the last percentage, 1 for 100%"),
        Extractor("gsm8k_strict", 1, gsm8k_strict, "the text after ####, lm-evaluation-harness' rule"),
        Extractor("gsm8k_flexible", 1, gsm8k_flexible, "the last number as text, lm-evaluation-harness' rule"),
        Extractor("clock", 1, clock_time, "the last time of day, in minutes after twelve"),
        Extractor("box", 2, box, "the last four numbers in a row, or two points"),
        Extractor("boxes", 1, boxes, "the last JSON list of boxes or quadrilaterals with text"),
        Extractor("final_answer", 1, final_answer, "the line after the last 'answer:', lm-evaluation-harness' rule"),
        Extractor("text", 1, whole_text, "the whole text"),
    )
}


def _last(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    matches = deque(pattern.finditer(text), maxlen=1)
    return matches[0] if matches else None


def _plain(text: str) -> str:
    r"""The same numbers in plain signs: ``−\frac{1}{2}`` is ``-1/2``, ``2 × 10^3`` is ``2e3``."""
    text = _GROUPING.sub(",", text.translate(_PLAIN))
    return _POWER.sub(r"e\1", _FRAC.sub(r" \1\2/\3", text))


def _worth(match: re.Match[str]) -> Fraction | None:
    sign, numerals = match.groups(default="")
    parts = f"{sign[:1]}{numerals}".split("/")
    if len(parts) != 2:  # one numeral, or a date such as 14/11/2024
        return _value(parts[-1])
    top, bottom = map(_value, parts)
    return top / bottom if top is not None and bottom else None


def _improper(match: re.Match[str]) -> str:
    """``5/2`` for ``2 1/2``; ``2 3/2`` and ``2 0/0`` are two numbers."""
    whole, top, bottom = map(int, match.groups())
    return f"{whole * bottom + top}/{bottom}" if top < bottom else match[0]


def _gsm8k(answer: str) -> str | None:
    answer = _GSM8K_IGNORED.sub("", answer).removesuffix(".")
    return answer if any(map(str.isdecimal, answer)) else None


def _cut_short(text: str) -> tuple[Region, ...] | None:
    try:
        entries, _ = _JSON.raw_decode(f"{text[: text.rfind('}') + 1]}]")
    except (ValueError, RecursionError):
        return None
    return tuple(region(entry) for entry in entries)


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


_JSON = json.JSONDecoder(parse_int=_value, parse_float=_value, parse_constant=lambda _: None)
