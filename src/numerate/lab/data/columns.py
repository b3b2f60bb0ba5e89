"""Which columns of a table a question shows, and why others are left out."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from numerate.checks import nearest
from numerate.lab.data.cells import is_blank, is_date, is_number
from numerate.lab.data.row_reader import BadData

_LEAST_ROWS = 10  # below, equal or different values say nothing about a column
_INDEX = re.compile(  # in a few languages; in German and Swedish also at the end of a word: Kundennummer, löpnr
    r"(|unnamed: ?\d+|index|idx|#|row|row_?names?|(.*[\W_])?(id|uuid|guid|no|nr|num|number|num[eé]ro|número|n[°º]|№|номер)"
    r"|.*(nummer|nr|[a-z](?-i:I)[dD]))\.?",
    re.IGNORECASE,
)
_NEARLY_ALL = 0.95  # share of the rows
_MOST_PREFIXES = 3  # of the codes of a column: O-100001, O-100002, ..
_CODE = re.compile(r"[^\W\d_][\w./#-]*\d[\w./#-]*|#\d+|0\d+|(?=[^A-Z]*[A-Z])\d[\dA-Z./#-]{5,}|[\da-f-]{8,}")
_MEASURED = re.compile(r".*\d[.,]\d.*")
_PERIOD = re.compile(r"\D*(?:\d{1,2}\D+)?(?:19|20)\d\d(?:\D+\d{1,2})?\D*")  # 2024Q1, Jan-2024, 2024-W05


def check_columns(names: Iterable[str], known: Iterable[Any]) -> None:
    """Raise ``BadData`` for the first name that is not among the ``known`` columns."""
    known = [str(name) for name in known]
    for name in names:
        if name not in known:
            raise BadData(f"has no column {name!r}", f"Columns here: {', '.join(known) or 'none'}.{nearest(name, known)}")


def uninformative(rows: Sequence[Mapping[str, Any]], names: Iterable[str]) -> dict[str, str]:
    """Return the columns that are uninformative or identify a row, each with the reason; none if the table has only a few rows.

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
        different = len({*texts})
        if len(texts) < len(rows):  # missing cells may be informative
            continue
        if different == 1:
            found[name] = f"{texts[0]!r:.30} in every row"
        elif different == len(texts) and _INDEX.fullmatch(name.strip()):
            found[name] = "another value in every row, by its name an index"
        elif are_codes(texts):
            found[name] = f"codes that differ from row to row, such as {texts[0]!r:.30}"
    return {} if len(found) == len(names) else found


def are_codes(texts: Iterable[str]) -> bool:
    """Return whether cells have the form of codes that identify rows: no words, no numbers with or without a unit, no dates.

    Examples:
        >>> [are_codes([form.format(100 + i, i) for i in range(20)]) for form in ("O-{}", "{}", "{} m2", "Alley {}")]
        [True, False, False, False]
    """
    filled = [text for text in texts if not is_blank(text)]
    if not filled or len({*filled}) < _NEARLY_ALL * len(filled):
        return False
    codes = [text for text in filled if _CODE.fullmatch(text) and not _MEASURED.fullmatch(text) and not is_date(text)]
    codes = [text for text in codes if text[0] in "0#" or not is_number(text)]
    if len(codes) < _NEARLY_ALL * len(filled) or all(map(_PERIOD.fullmatch, codes)):
        return False
    forms = Counter(re.sub(r"\d", "9", text) for text in codes)  # names of products vary more than the codes of one system
    prefixes = Counter(re.sub(r"\d+", "9", text) for text in codes)
    letters = Counter(re.sub(r"[^\W\d_]", "A", form) for form in forms.elements())
    same_form, times = letters.most_common(1)[0]
    common = sum(count for _, count in prefixes.most_common(_MOST_PREFIXES))
    hexadecimal = all(re.fullmatch(r"[\da-fA-F-]{8,}", text) for text in codes)
    return hexadecimal or max(common, times if len(same_form) > 5 else 0) >= _NEARLY_ALL * len(codes)


def shown_value(value: Any) -> str:
    """Return 84.0 as ``84``, a missing value as an empty text, other values unchanged."""
    if value is None or value != value:
        return ""
    return str(int(value)) if isinstance(value, float) and value.is_integer() and abs(value) < 1e15 else str(value).strip()


def left_out(
    rows: Sequence[Mapping[str, Any]], reasons: Mapping[str, str], columns: Sequence[str] | None
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the columns that questions do not show, each with its reason, and those of them that are uninformative.

    ``reasons`` are those of columns that are never shown; without ``columns`` that were chosen, all informative ones are.
    """
    names = list(dict.fromkeys(name for values in rows for name in values))
    if columns is not None:
        return {name: reasons.get(name, "not chosen") for name in names if name not in columns}, {}
    found = uninformative(rows, (name for name in names if name not in reasons))
    return {name: reason for name, reason in reasons.items() if name in names} | found, found


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
