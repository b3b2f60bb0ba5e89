"""Where numbers and times stand in a text, as patterns."""

from __future__ import annotations

import re

from numerate.marks import CLOSERS, CURRENCIES, DASHES

_DASH, _CURRENCY = re.escape(DASHES), re.escape(CURRENCIES)
_ENDED = rf"\w{re.escape(CLOSERS)}{_DASH}"  # a dash after one of these is a hyphen, a range or a subtraction
_JOINED = rf"[.:/{_DASH}]"  # joins the digits of dates, times, versions and phone numbers
_POWER = r"(?:[eE][-+]?[0-9]+)?"

NUMBER = re.compile(
    rf"(?<![\w])(?<![0-9]{_JOINED})(?:(?<![{_ENDED}])(?<![{_ENDED}][{_CURRENCY}])[{_DASH}])?(?<!\w[{_DASH}])"
    rf"(?:(?:[0-9]{{1,3}}(?:,[0-9]{{3}})+(?!,?[0-9])|[0-9]+)(?:\.[0-9]+)?|(?<![\w.])\.[0-9]+){_POWER}"
    rf"(?!\w*[0-9])(?!{_JOINED}[0-9])(?!,[0-9]{{3}}(?![0-9,]))(?!(?:st|nd|rd|th)\b)"
)
"""A number that is a quantity. Digits that are joined to a word or to other digits are none: ``A380``, ``COVID-19``,
``2024-11-14``, ``14:55``, ``555-1234``, ``1.2.3``, ``5th``; units may follow: ``5kg``."""

CLOCK = re.compile(r"(?<![\w:.])([0-9]{1,2})([:_.hH])([0-9]{2})(?:(\2)([0-9]{2}))?(?![\w:]*[0-9])(?:(\s?)([AaPp]\.?[Mm]\b\.?))?")
"""A clock time: ``2_55``, ``14:55``, ``14:55:30``, ``2:55 PM``."""
