"""Data tables of a report, and their CSV files."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from numerate.lab.files.csv_lines import csv_line

_MAX_CHARACTERS = 2000  # of one field


@dataclass(frozen=True)
class DataTable:
    """Named columns and rows, such as the data of a figure."""

    columns: tuple[str, ...]
    rows: Sequence[tuple[Any, ...]]

    def where(self, **values: Any) -> list[dict[str, Any]]:
        """Return the rows with these values, as dictionaries."""
        rows = (dict(zip(self.columns, row, strict=True)) for row in self.rows)
        return [row for row in rows if all(row[name] == value for name, value in values.items())]

    def distinct(self, column: str) -> list[Any]:
        """Return the values of a column without repetitions, in order."""
        position = self.columns.index(column)
        return list(dict.fromkeys(row[position] for row in self.rows))


def to_csv(table: DataTable) -> str:
    """Return the table as CSV with a header line. None becomes an empty field, infinity ``inf``."""
    lines = [csv_line(map(_field, row)) for row in (table.columns, *table.rows)]
    return "".join(lines).encode("utf-8", "replace").decode("utf-8")


def csv_address(table: DataTable) -> str:
    """Return the CSV as a ``data:`` URL, so that the page offers it for download without a network."""
    return f"data:text/csv;charset=utf-8;base64,{base64.b64encode(to_csv(table).encode()).decode()}"


def _field(value: Any) -> Any:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, str):
        return value[:_MAX_CHARACTERS].replace("\0", "\u2400")
    return value
