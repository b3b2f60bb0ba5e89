"""Cells of CSV files that a spreadsheet would run as a formula.

A text cell that begins with ``=``, ``+``, ``-``, ``@``, a tab or a line break gets an apostrophe in front, with which
spreadsheets show it as text. Numbers stay as they are, and so do signs alone. Files of JSON lines keep every text.
"""

from __future__ import annotations

import re

_BEGINS = (*"=+-@\t\r\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")  # the last four: full-width = + - @
_NUMBER = re.compile(r"[+-]?[\d.,'\u2019_\s$€£¥%]+(?:e[+-]?\d+)?|[+-]?(?:inf|infinity|nan)", re.IGNORECASE)


def without_formula(text: str) -> str:
    """Return the text, with an apostrophe in front if it begins like a formula.

    Example:
        >>> [without_formula(text) for text in ("=1+1", "@SUM(A1)", "-3.5", "-3,5 %", "+", "a=b")]
        ["'=1+1", "'@SUM(A1)", '-3.5', '-3,5 %', '+', 'a=b']
    """
    if not text.startswith(_BEGINS) or not any(map(str.isalnum, text)):
        return text
    return text if _NUMBER.fullmatch(text.strip()) else f"'{text}"
