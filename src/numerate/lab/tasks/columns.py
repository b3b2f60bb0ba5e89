"""Which columns of a table a question shows, and why others are left out."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from numerate.lab.tasks.files import BadData
from numerate.messages import nearest

LONG_TEXT = 1000
"""Characters of a column on average, above which it is left out: most rows would be longer than a training example may be."""

_LEAST_ROWS = 10  # below, equal or different values say nothing about a column
_INDEX = re.compile(r"(|unnamed: ?\d+|index|idx|#|nr|no|row|row_?names?|(.*[_ ])?(id|uuid))\.?", re.IGNORECASE)
_DATE = re.compile(r"(\d{4}([-/.])\d{1,2}\2\d{1,2}|\d{1,2}([-/.])\d{1,2}\3(\d{4}|\d\d))(?:[T ]\d{1,2}:\d\d.*)?")


def check_columns(names: Iterable[str], known: Iterable[Any]) -> None:
    """Raise ``BadData`` for the first name that is not among the ``known`` columns."""
    known = [str(name) for name in known]
    for name in names:
        if name not in known:
            raise BadData(f"has no column {name!r}", f"Columns here: {', '.join(known)}.{nearest(name, known)}")


def uninformative(rows: Sequence[Mapping[str, Any]], names: Iterable[str]) -> dict[str, str]:
    """Return the columns that tell a model nothing, or too much, each with the reason; none of a table of a few rows.

    Examples:
        >>> rows = [{"id": i, "unit": "cm", "size": i % 7} for i in range(20)]
        >>> uninformative(rows, ("id", "unit", "size"))
        {'id': 'another value in every row, by its name an index', 'unit': "'cm' in every row"}
    """
    found: dict[str, str] = {}
    if len(rows) < _LEAST_ROWS:
        return found
    names = list(names)
    for name in names:
        texts = [str(row[name]).strip() for row in rows if name in row]
        different, length = len({*texts}), sum(map(len, texts)) / max(len(texts), 1)
        if len(texts) < len(rows):  # that some rows lack it may tell something
            continue
        if different == 1:
            found[name] = f"{texts[0]!r:.30} in every row"
        elif different == len(texts) and _INDEX.fullmatch(name.strip()):
            found[name] = "another value in every row, by its name an index"
        elif length > LONG_TEXT:
            found[name] = f"{length:,.0f} characters on average"
    return {} if len(found) == len(names) else found


def shown_value(value: Any) -> str:
    """Return 84.0 as ``84``, a missing value as an empty text, other values unchanged."""
    if value is None or value != value:
        return ""
    return str(int(value)) if isinstance(value, float) and value.is_integer() and abs(value) < 1e15 else str(value).strip()


def left_out(
    rows: Sequence[Mapping[str, Any]], reasons: Mapping[str, str], columns: Sequence[str] | None
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the columns that questions do not show, each with its reason, and those of them that tell nothing.

    Args:
        rows: of the table.
        reasons: columns that are never shown.
        columns: those that were chosen; None: all that tell something.
    """
    names = list(dict.fromkeys(name for values in rows for name in values))
    if columns is not None:
        return {name: reasons.get(name, "not chosen") for name in names if name not in columns}, {}
    found = uninformative(rows, (name for name in names if name not in reasons))
    return {name: reason for name, reason in reasons.items() if name in names} | found, found


def is_date(value: Any) -> bool:
    """Return whether a cell is a date, with or without a time.

    Examples:
        >>> [is_date(text) for text in ("2024-04-10", "10.4.2024", "2024-04-10 12:30:00", "2024", "3-5")]
        [True, True, True, False, False]
    """
    return isinstance(value, str) and _DATE.fullmatch(value.strip()) is not None


def column_notes(target: str, shown: Sequence[str], left_out: Mapping[str, str], rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return messages about columns that were left out without being asked to, and about dates among those that are shown."""
    notes = []
    if left_out:
        listed = "; ".join(f"{name or '(no name)'} ({reason})" for name, reason in left_out.items())
        notes.append(f"{target} is asked from {', '.join(shown)}. Left out: {listed}. columns (--columns) chooses others.")
    for name in shown:
        dates = [row[name] for row in rows if is_date(row.get(name))]
        if dates and 2 * len(dates) > len(rows):
            notes.append(f"{name}: dates are shown as they are written, such as {dates[0]!r}.")
    return notes
