r"""Extractors: parse the answer in a text; None if there is none.

    last_number      "That makes $1,200."                           1200
    number           "1,200"; no other text is allowed              1200
    rational         "2 1/2", "2½"; another name of last_number      5/2
    percent          "up by 45%, or 9 people"                       9/20
    clock            "2_55", "02:55", "14:55"                       175, in minutes after twelve
    box              "[10, 20, 110, 220]", "(10,20),(110,220)"      10, 20, 110, 220
    boxes            '[{"box": [10, 20, 110, 220], "text": "A"}]'   its regions
    gsm8k_strict     "so 7 * 6 = 42 #### 42"                        the text "42"
    gsm8k_flexible   "so the answer is $42."                        the text "42"
    final_answer     "Final answer: Kenya"                          the text "Kenya"
    text             " Kenya "                                      the text "Kenya"

The last candidate is the answer. If it has no value (``1/0``, ``2:75``, more than ``MAX_DIGITS`` digits), there is no answer;
earlier candidates are not used. No text raises an error.

``EXTRACTORS`` has them by name. Each has a version that increases whenever its result changes for any text: only compare scores
with the same extractor and version.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Any, NamedTuple

from numerate.answers.numerals import (
    COORDINATE,
    PLAIN,
    as_fraction,
    last_match,
    last_number,
    number,
    numeral_value,
    percent,
    rational,
)

Box = tuple[Fraction, Fraction, Fraction, Fraction]
"""A box: left, top, right and bottom."""


class Region(NamedTuple):
    """A position in an image and the text there."""

    corners: tuple[Fraction, ...]
    """x1, y1, x2, y2 of a box; x1, y1, .., x4, y4 of a quadrilateral; empty if neither could be read."""

    text: str | None = None


_TIME = re.compile(r"(?<!\d)(?<!\d[:_.])(\d{1,2})[:_](\d\d)(?:[:_](\d\d))?(?![:_]?\d)")

# The patterns of lm-evaluation-harness, GSM8K task, version 3.
_GSM8K_STRICT = re.compile(r"#### (\-?[0-9\.\,]+)")
_GSM8K_FLEXIBLE = re.compile(r"(-?[$0-9.,]{2,})|(-?[0-9]+)")
_GSM8K_IGNORED = re.compile(r",|\$")

_ANSWER = re.compile(r"([aA]nswer)\**:\**")
_MARKDOWN = re.compile(r"[*_\[\]()]")

_LIST = re.compile(r"\[(?=\s*[{\]])")
_FOUR = re.compile(r"(?<!,),,,(?!,)|(?<![,|]),\|,(?![,|])")  # in the result of _gap: four numbers in one row, or two points


def gsm8k_strict(text: str) -> str | None:
    """Return the answer after ``#### `` by the rule of lm-evaluation-harness; None if there is none.

    The first match counts. Commas, dollar signs and one final full stop are removed. The metric ``string_match`` compares texts,
    so that ``18.00`` is not ``18``; the metric ``exact`` compares numbers.

    Examples:
        >>> gsm8k_strict("9 * 200 = 1,800 #### 1,800."), gsm8k_strict("#### $18"), gsm8k_strict("1800")
        ('1800', None, None)
    """
    match = _GSM8K_STRICT.search(text)
    return None if match is None else _gsm8k(match[1])


def gsm8k_flexible(text: str) -> str | None:
    """Return the last number by the rule of lm-evaluation-harness; None if there is none. See :func:`gsm8k_strict`.

    The harness also matches stops and commas without digits (``...``), which score 0 there; here they are not an answer.

    Examples:
        >>> gsm8k_flexible("so the answer is $1,800."), gsm8k_flexible("It is 5..."), gsm8k_flexible("1/2")
        ('1800', '5..', '2')
        >>> gsm8k_flexible("Well, 5, perhaps ...")
    """
    match = last_match(_GSM8K_FLEXIBLE, text)
    return None if match is None else _gsm8k(match[0])


def clock_time(text: str) -> Fraction | None:
    """Return the last time of day of a text, in minutes after twelve on a 12-hour face (0 <= minutes < 720), or None.

    Examples:
        >>> clock_time("The clock shows 2_55."), clock_time("14:55"), clock_time("12:00:30")
        (Fraction(175, 1), Fraction(175, 1), Fraction(1, 2))
        >>> clock_time("2:75"), clock_time("5 to 3")
        (None, None)
    """
    match = last_match(_TIME, text.translate(PLAIN))
    if match is None:
        return None
    hour, minute, second = (int(part or 0) for part in match.groups())
    if hour > 23 or minute > 59 or second > 59:
        return None
    return Fraction(hour % 12 * 60 + minute) + Fraction(second, 60)


def box(text: str) -> Box | None:
    """Return the four numbers of the last box in a text, as written; None if there is none.

    A box is a sequence of exactly four numbers separated by commas or spaces, or two adjacent points.

    Examples:
        >>> [int(side) for side in box('{"bbox_2d": [10, 20, 110, 220], "label": "player 7"}')]
        [10, 20, 110, 220]
        >>> [int(side) for side in box("<box>(10,20),(110,220)</box>")]
        [10, 20, 110, 220]
        >>> box("[10, 20, 110]"), box("[1, 2, 3, 4, 5]")
        (None, None)
    """
    text = text.translate(PLAIN)
    numbers = list(COORDINATE.finditer(text))
    gaps = "".join(_gap(text[before.end() : number.start()]) for before, number in pairwise(numbers))
    match = last_match(_FOUR, gaps)
    if match is None:
        return None
    x1, y1, x2, y2 = (numeral_value(number[0]) for number in numbers[match.start() : match.end() + 1])
    return None if x1 is None or y1 is None or x2 is None or y2 is None else (x1, y1, x2, y2)


def boxes(text: str) -> tuple[Region, ...] | None:
    """Return the regions of the last JSON list in a text; None if there is none.

    Each entry is ``{"box": [x1, y1, x2, y2], "text": ...}`` or ``{"quad": [x1, y1, .., x4, y4], "text": ...}``. Any other entry
    is a region without corners, which is counted but never matched. The complete entries of a truncated list are used.

    Examples:
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
    """Return the region of a list entry: a region, ``{"box": .., "text": ..}`` or ``{"quad": ..}``; see :func:`boxes`.

    Examples:
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
    values, text = entry.get(name), entry.get("text")
    sides = [as_fraction(value) for value in values] if isinstance(values, Sequence) and len(values) == count else []
    corners = tuple(side for side in sides if side is not None)
    return Region(corners if len(corners) == count else (), text if isinstance(text, str) else None)


def final_answer(text: str) -> str | None:
    """Return the first line after the last ``answer:``, by lm-evaluation-harness' rule for charts; None if there is none.

    Examples:
        >>> final_answer("It is the tallest bar. **Final answer:** Kenya"), final_answer("Kenya")
        ('Kenya', None)
    """
    text = _ANSWER.sub(r"\1:", text)
    start = text.lower().rfind("answer:")
    lines = text[start + len("answer:") :].split("\n") if start >= 0 else []
    first = next((line.strip() for line in lines if line.strip()), "")
    return _MARKDOWN.sub("", first) or None


def whole_text(text: str) -> str | None:
    """Return the text without surrounding space; None if it is empty.

    Examples:
        >>> whole_text(" Not too much "), whole_text(" ")
        ('Not too much', None)
    """
    return text.strip() or None


@dataclass(frozen=True)
class Extractor:
    """A named, versioned function that parses the answer in a text.

    Examples:
        >>> EXTRACTORS["clock"]("It is 2:55."), EXTRACTORS["clock"]("no idea")
        (Fraction(175, 1), None)
    """

    name: str
    version: int
    """Increases whenever the result changes for any text."""

    function: Callable[[str], Any]
    description: str

    def __call__(self, text: str) -> Any:
        """Return the answer in ``text``; None if there is none."""
        return self.function(text)


EXTRACTORS: dict[str, Extractor] = {
    extractor.name: extractor
    for extractor in (
        Extractor("last_number", 3, last_number, "the last number"),
        Extractor("number", 2, number, "the whole text, if it is a number"),
        Extractor("rational", 3, rational, "the last number"),
        Extractor("percent", 3, percent, "the last percentage, 1 for 100%"),
        Extractor("gsm8k_strict", 1, gsm8k_strict, "the text after ####, lm-evaluation-harness' rule"),
        Extractor("gsm8k_flexible", 1, gsm8k_flexible, "the last number as text, lm-evaluation-harness' rule"),
        Extractor("clock", 1, clock_time, "the last time of day, in minutes after twelve"),
        Extractor("box", 2, box, "the last four numbers in a row, or two points"),
        Extractor("boxes", 1, boxes, "the last JSON list of boxes or quadrilaterals with text"),
        Extractor("final_answer", 1, final_answer, "the line after the last 'answer:', lm-evaluation-harness' rule"),
        Extractor("text", 1, whole_text, "the whole text"),
    )
}
"""All extractors by name."""


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
    """Return ``,`` if two numbers are in one sequence, ``|`` if the second one starts the next point, else a space."""
    marks = "".join(between.split())
    if marks == "," or (not marks and "\n" not in between):
        return ","
    return "|" if marks in ("),(", ")(", "],[", "][") else " "


_JSON = json.JSONDecoder(parse_int=numeral_value, parse_float=numeral_value)
