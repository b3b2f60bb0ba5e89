"""Where numbers and times stand in a text, as patterns, and which of them are meant."""

from __future__ import annotations

import re

from numerate.marks import CLOSERS, CURRENCIES, DASHES

Span = tuple[int, int]

_DASH, _CURRENCY = re.escape(DASHES), re.escape(CURRENCIES)
_ENDED = rf"\w{re.escape(CLOSERS)}{_DASH}"  # a dash after one of these is a hyphen, a range or a subtraction
_JOINED = rf"[.:/{_DASH}]"  # joins the digits of dates, times, versions and phone numbers
_POWER = r"(?:[eE][-+]?[0-9]+)?"
_BEFORE = (
    rf"(?<![\w])(?<![0-9]{_JOINED})(?:(?<![{_ENDED}])(?<![{_ENDED}][{_CURRENCY}])[{_DASH}])?(?<!\w[{_DASH}])"  # and the sign
)
# The first lookahead follows from the second, and keeps the time linear in a run of digits.
_AFTER = rf"(?![0-9])(?!\w*[0-9])(?!{_JOINED}[0-9])(?!,[0-9]{{3}}(?![0-9,]))(?!(?:st|nd|rd|th)\b)"

NUMBER = re.compile(
    rf"{_BEFORE}(?:(?:[0-9]{{1,3}}(?:,[0-9]{{3}})+(?!,?[0-9])|[0-9]+)(?:\.[0-9]+)?|(?<![\w.])\.[0-9]+){_POWER}{_AFTER}"
)
"""A number that is a quantity. Digits that are joined to a word or to other digits are none: ``A380``, ``COVID-19``,
``2024-11-14``, ``14:55``, ``555-1234``, ``1.2.3``, ``5th``; units may follow: ``5kg``."""

SPACED_NUMBER = re.compile(rf"{_BEFORE}[0-9](?: [0-9])*(?: \. [0-9](?: [0-9])*)?{_AFTER}")
"""The same with spaces between the digits: ``1 2 . 5``."""

POWER_FIRST = re.compile(rf"{_BEFORE}[0-9]{{1,4}}:[{_DASH}]?[0-9]+{_AFTER}")
"""The same with the power of ten, of up to four digits, first: ``3:1234``."""

SPACED_POWER_FIRST = re.compile(rf"{_BEFORE}[0-9](?: [0-9]){{0,3}} : [{_DASH}]?[0-9](?: [0-9])*{_AFTER}")
"""Both: ``3 : 1 2 3 4``."""

CLOCK = re.compile(r"(?<![\w:.])([0-9]{1,2})([:_.hH])([0-9]{2})(?:(\2)([0-9]{2}))?(?![\w:]*[0-9])(?:(\s?)([AaPp]\.?[Mm]\b\.?))?")
"""A clock time: ``2_55``, ``14:55``, ``14:55:30``, ``2:55 PM``."""


def find_spans(text: str, pattern: re.Pattern[str], group: int = 0, keep: re.Pattern[str] | None = None) -> list[Span]:
    """Return where a pattern, or a group of it, matches; without matches that are empty or touch one of ``keep``."""
    kept = [] if keep is None else [match.span() for match in keep.finditer(text)]
    spans = (match.span(group) for match in pattern.finditer(text))
    return [(start, end) for start, end in spans if start < end and not any(start < b and end > a for a, b in kept)]
