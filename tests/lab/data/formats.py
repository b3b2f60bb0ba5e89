"""Write rows in each format that can be read, and break such files; tests over all formats use it.

A reader without a writer here fails ``test_every_reader_is_tested``.
"""

from __future__ import annotations

import csv
import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from numerate.lab.data import Task
from numerate.lab.data.row_reader import BadData

Rows = list[dict[str, Any]]


def _table(delimiter: str) -> Callable[[Path, Rows], None]:
    def write(path: Path, rows: Rows) -> None:
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(rows[0]), delimiter=delimiter)
            writer.writeheader()
            writer.writerows([{name: "" if value is None else value for name, value in row.items()} for row in rows])

    return write


def _lines(path: Path, rows: Rows) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def _list(path: Path, rows: Rows) -> None:
    path.write_text(json.dumps(rows, indent=1), encoding="utf-8")


def _parquet(path: Path, rows: Rows) -> None:
    import pyarrow
    from pyarrow import parquet

    parquet.write_table(pyarrow.Table.from_pylist(rows), path)


def _gzipped(path: Path, rows: Rows) -> None:
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def _workbook(path: Path, rows: Rows) -> None:
    import openpyxl

    names = list(dict.fromkeys(name for row in rows for name in row))
    book = openpyxl.Workbook()
    for values in (names, *([row.get(name) for name in names] for row in rows)):
        book.active.append(values)
        for cell in book.active[book.active.max_row]:  # a text that begins with = is no formula
            cell.data_type = "s" if isinstance(cell.value, str) else cell.data_type
    book.save(path)


def assert_named_or_skipped(kind: type[Task], path: Path, message: str, good: int) -> BadData:
    """One bad row of a file is an error that matches ``message``, or is skipped; ``good`` rows are left. Returns the error."""
    with pytest.raises(BadData, match=message) as caught:
        kind.from_files(path)
    task = kind.from_files(path, skip_bad=True)
    assert sum(task.count(split) or 0 for split in task.splits) == good
    (skipped,) = task.skipped
    assert re.search(message, str(skipped))
    return caught.value


WRITERS: dict[str, Callable[[Path, Rows], None]] = {
    "t.csv": _table(","),
    "t.tsv": _table("\t"),
    "t.jsonl": _lines,
    "t.ndjson": _lines,
    "t.json": _list,
    "lines.json": _lines,
    "t.parquet": _parquet,
    "t.jsonl.gz": _gzipped,
    "t.xlsx": _workbook,
    "t.xlsm": _workbook,
}
NESTED = tuple(name for name in WRITERS if not name.endswith(("csv", "tsv", "xlsx", "xlsm")))
"""Files whose values may be lists, as in chats."""


def said(question: str, answer: str) -> Rows:
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


CHATS: dict[str, Callable[[str, str], dict[str, Any]]] = {
    "messages": lambda question, answer: {"messages": said(question, answer)},
    "parts": lambda question, answer: {
        "messages": [
            {"role": role["role"], "content": [{"type": "text", "text": role["content"]}]} for role in said(question, answer)
        ]
    },
    "conversation": lambda question, answer: {"prompt": said(question, answer)[:1], "completion": said(question, answer)[1:]},
    "completion": lambda question, answer: {"prompt": question, "completion": answer},
    "answer": lambda question, answer: {"prompt": question, "answer": answer},
}
"""A question and its answer in each of TRL's formats, and in ours."""

BROKEN: dict[str, tuple[str, str, str]] = {
    "list, truncated": ("t.json", '[{"area": 1, "rent": 2},\n{"area": 2, "re', "line 2: broken JSON"),
    "list, many digits": (
        "t.json",
        '[{"area": 1, "rent": 2},\n{"rent": ' + "9" * 5000 + "}]",
        "line 2: broken JSON (a number with too",
    ),
    "list as lines": (
        "t.jsonl",
        '[\n{"area": 1, "rent": 2}\n]',
        "line 1: broken JSON (Expecting value). Expected one object per line. Name",
    ),
    "lines, many digits": ("t.jsonl", '{"rent": ' + "9" * 5000 + "}", "line 1: broken JSON (a number with too many digits)"),
    "list, not of objects": ("t.json", '[{"area": 1, "rent": 2},\n[3, 4]]', "line 2: is a list, not an object"),
    "list, missing key": ("t.json", '[{"area": 1, "rent": 2},\n{"area": 2}]', "line 2: has no column 'rent'"),
    "list in one line": ("t.json", '[{"area": 1, "rent": 2}, {"area": 2}]', "row 2: has no column 'rent'"),
    "list in one line, truncated": ("t.json", '[{"area": 1, "rent": 2}, {"area": 2, "re', "row 2: broken JSON"),
    "list without an end": (
        "t.json",
        '[{"area": 1, "rent": 2},\n{"area": 2, "rent": 3}',
        "line 2: broken JSON (the list does not end)",
    ),
    "list after a list": (
        "t.json",
        '[{"area": 1, "rent": 2}]\n[{"area": 2, "rent": 3}]',
        "line 1: broken JSON (something follows the ] at its end)",
    ),
    "list, empty": ("t.json", "[]", "has no rows that could be read"),
    "an object": ("t.json", '{"area": {"0": 1}, "rent": {"0": 2}}', "is not a list of rows"),
    "an object over lines": ("t.json", '{\n "data": [1]\n}', "is not a list of rows"),
    "a number": ("t.json", "17", "is not a list of rows"),
    "json, empty": ("t.json", "", "has no rows that could be read"),
    "lines, truncated": ("t.jsonl", '{"area": 1, "rent": 2}\n{"area": 2, "re', "line 2: broken JSON"),
    "lines, not objects": ("t.jsonl", '{"area": 1, "rent": 2}\n[1]', "line 2: is a list, not an object"),
    "lines, missing key": ("t.jsonl", '{"area": 1, "rent": 2}\n{"area": 2}', "line 2: has no column 'rent'"),
    "lines, empty": ("t.jsonl", "", "has no rows that could be read"),
    "ndjson, truncated": ("t.ndjson", '{"area": 1, "rent": 2}\n{"area": 2, "re', "line 2: broken JSON"),
    "csv, too many values": ("t.csv", "area,rent\n1,2\n2,3,4\n", "line 3: has 3 values"),
    "csv, missing key": ("t.csv", "area,price\n1,2\n", "line 2: has no column 'rent'"),
    "csv, empty": ("t.csv", "", "is empty"),
    "tsv, empty": ("t.tsv", "", "is empty"),
    "tsv, wrong type": ("t.tsv", "area\trent\n1\t2\n2\tcheap\n", "line 3: the answer 'cheap' contains no number"),
    "parquet, not one": ("t.parquet", "area,rent\n1,2\n", "is not a readable Parquet file"),
    "parquet, empty": ("t.parquet", "", "is not a readable Parquet file"),
    "xlsx, not one": ("t.xlsx", "area,rent\n1,2\n", "is not a readable Excel workbook"),
    "xlsm, empty": ("t.xlsm", "", "is not a readable Excel workbook"),
    "csv, no rows": ("t.csv", "area,rent\n", "has a header (area, rent) and no rows"),
}
"""A file of a table with the target ``rent`` that cannot be read, and what the error says."""

BROKEN_CHATS: dict[str, tuple[Any, str]] = {
    "text": ({"messages": "6 * 7?"}, "messages is a text. Expected a list of messages"),
    "empty": ({"messages": []}, "messages is empty"),
    "no role": ({"messages": [{"content": "6 * 7?"}]}, "which is not a message"),
    "role": ({"messages": [{"role": "human", "content": "6 * 7?"}]}, "has the role 'human'. Expected one of system"),
    "no content": ({"messages": [{"role": "user"}]}, "which is not a message"),
    "no text": ({"messages": [{"role": "user", "content": None}]}, "content is null, not a text"),
    "tools": (
        {"messages": [{"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f"}}]}]},
        "messages has tool calls, which are not read",
    ),
    "content": ({"messages": [{"role": "user", "content": 42}]}, "content is a number, not a text"),
    "a picture": (
        {"messages": [{"role": "user", "content": [{"type": "image", "image": "x.png"}]}]},
        "content has a part of type 'image'. Expected texts; for pictures",
    ),
    "answer alone": ({"messages": [{"role": "assistant", "content": "42"}]}, "before the answer is of the role 'none'"),
    "completion": ({"prompt": "6 * 7?", "completion": said("a", "b")}, "the completion has the roles user, assistant"),
    "words": ({"prompt": "6 * 7?", "completion": "many"}, "the answer 'many' contains no number"),
    "no answer": ({"prompt": "6 * 7?"}, "but not prompt and answer, and no target is set"),
    "text alone": ({"text": "6 * 7 = 42"}, "Chats have the column messages, or prompt and completion"),
}
"""A row with a question that cannot be read, and what the error says."""
