"""Lines of CSV files, in which no text is a formula for a spreadsheet.

A text cell that begins with ``=``, ``+``, ``-``, ``@``, a tab or a line break gets an apostrophe in front, with which
spreadsheets show it as text. Numbers stay as they are, and so do signs alone. Files of JSON lines keep every text.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable
from typing import Any

_BEGINS = (*"=+-@\t\r\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")  # the last four: full-width = + - @
_NUMBER = re.compile(r"[+-]?[\d.,'\u2019_\s$€£¥%]+(?:e[+-]?\d+)?|[+-]?(?:inf|infinity|nan)", re.IGNORECASE)


def without_formula(text: str) -> str:
    """Return the text, with an apostrophe in front if it begins like a formula.

    Examples:
        >>> [without_formula(text) for text in ("=1+1", "@SUM(A1)", "-3.5", "-3,5 %", "+", "a=b")]
        ["'=1+1", "'@SUM(A1)", '-3.5', '-3,5 %', '+', 'a=b']
    """
    if not text.startswith(_BEGINS) or not any(map(str.isalnum, text)):
        return text
    return text if _NUMBER.fullmatch(text.strip()) else f"'{text}"


def csv_line(cells: Iterable[Any], delimiter: str = ",") -> str:
    r"""Return the cells as a line of a file, whose texts are no formulas and may hold line breaks of any kind.

    Examples:
        >>> csv_line(["=1+1", "a\rb", -3.5, None])
        '\'=1+1,"a\rb",-3.5,\n'
    """
    line = io.StringIO(newline="")
    writer = csv.writer(line, delimiter=delimiter, lineterminator="\r\n")  # with \n alone a \r in a cell would not be quoted
    writer.writerow([without_formula(cell) if isinstance(cell, str) else cell for cell in cells])
    return line.getvalue().removesuffix("\r\n") + "\n"
