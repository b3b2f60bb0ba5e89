"""Tables as CSV, and CSV as an address that a page can offer for download without a network."""

from __future__ import annotations

import base64
import csv
import io
from typing import Any

from numerate.lab.report.series import Table

_LONGEST = 2000  # characters of a cell


def to_csv(table: Table) -> str:
    """With a header line; nothing for what is not known, ``inf`` for what is infinite."""
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow([_cell(name) for name in table.columns])
    writer.writerows([_cell(value) for value in row] for row in table.rows)
    return buffer.getvalue().encode("utf-8", "replace").decode("utf-8")


def csv_address(table: Table) -> str:
    """A ``data:`` address of the table."""
    return f"data:text/csv;charset=utf-8;base64,{base64.b64encode(to_csv(table).encode()).decode()}"


def _cell(value: Any) -> Any:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, str):
        text = value[:_LONGEST].replace("\0", "\u2400")
        # A spreadsheet would compute what begins like a formula.
        return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r") and not _is_number(text) else text
    return value


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
