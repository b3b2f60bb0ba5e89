"""Read the rows of a data file in any of its formats, and keep rows that are passed from Python as a file.

    .csv  .tsv          a header line, then a row per line
    .jsonl  .ndjson     an object per line
    .json               a list of objects, or an object per line
    .parquet            needs the package pyarrow
    .xlsx  .xlsm        a sheet of an Excel workbook whose first row names the columns; needs the package openpyxl

Text files may be compressed: ``my.csv.gz``. They are UTF-8; tables may also be UTF-16 or cp1252, which is detected.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from datetime import date, datetime
from hashlib import blake2b
from importlib import import_module
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any

from numerate.answers.extract import EXTRACTORS
from numerate.checks import nearest, one_line
from numerate.lab.data.chats import as_question
from numerate.lab.data.row_reader import BadData, RowNumber, RowReader, check_names, check_path, detected_encoding, file_type
from numerate.lab.data.tables import table_file
from numerate.lab.files.records import write_text

NumberedRows = Iterator[tuple[int, dict[str, Any]]]  # each with its line, or its number where lines are not rows

_LOOKED_AT = 20  # rows by which the task that reads a file is chosen


def read_rows(path: Path, reader: RowReader) -> NumberedRows:
    """Yield the rows of a file, each with its line; raise if its type has no reader, or a row cannot be read."""
    check_path(path)
    if path.is_dir():
        inside = sorted(file.name for file in path.iterdir() if file_type(file) in READERS)
        listed = f": it has {', '.join(inside[:5])}{', ..' if len(inside) > 5 else ''}" if inside else ""
        raise BadData("is a folder", f"Name one file in it{listed}.", path)
    kind = file_type(path)
    if kind in OLD:
        raise BadData(f"is {OLD[kind]}, which is not read", "Save it as .xlsx or .csv.", path)
    if kind not in READERS:
        *kinds, last = READERS
        raise BadData(f"has the file type {kind or '(none)'}", f"Expected {', '.join(kinds)} or {last}.", path)
    if not path.exists():
        raise BadData("there is no such file", "Check the path, or download the dataset first.", path)
    if kind in TEXTS and reader.encoding is None and (found := detected_encoding(path)) is not None:
        if kind in (".csv", ".tsv") or found != "cp1252":  # JSON is in UTF-8, and a single wrong byte is reported with its line
            reader = replace(reader, encoding=found)  # with the same lists of notes and skipped rows
        if reader.encoding == "cp1252":
            reader.notes.append(f"{path.name} is not UTF-8 and is read as cp1252; encoding (--encoding) names another encoding.")
    return READERS[kind](reader, path)


def _json(reader: RowReader, path: Path) -> NumberedRows:
    lines = RowReader(skip_bad=True, encoding=reader.encoding).lines(path)
    begin = next((text.strip() for _, text in lines if text.strip()), "")
    if begin.startswith("["):
        return reader.json_list(path)
    try:
        first = json.loads(begin or "{}")
    except json.JSONDecodeError:  # an object over several lines
        first = None
    if not isinstance(first, dict) or (first and all(isinstance(value, dict) for value in first.values())):
        raise BadData("is not a list of rows", 'Expected [{...}, {...}]; pandas writes it with to_json(orient="records").', path)
    return reader.jsonl(path)


def _parquet(reader: RowReader, path: Path) -> NumberedRows:
    pyarrow = _package("pyarrow", "a Parquet file", "pyarrow", path)
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path) as file:
            names = file.schema_arrow.names
            check_names(names, path)
            number = 0
            for batch in file.iter_batches(batch_size=4096):
                columns = [_values(pyarrow, column) for column in batch.columns]
                for values in zip(*columns, strict=True):
                    number += 1
                    yield RowNumber(number), dict(zip(names, values, strict=True))
    except (pyarrow.ArrowException, OSError) as error:
        reason = " ".join(str(error).split())[:120]
        raise BadData(f"is not a readable Parquet file ({reason})", "It may be truncated: write it again.", path) from None


def _excel(reader: RowReader, path: Path) -> NumberedRows:
    openpyxl = _package("openpyxl", "an Excel workbook", "'numerate[excel]'", path)
    try:
        book = openpyxl.load_workbook(path, read_only=True, data_only=True)
    except Exception as error:  # zipfile, XML and openpyxl have errors of many classes
        raise BadData(f"is not a readable Excel workbook ({one_line(error):.120})", "Save it again, or as CSV.", path) from None
    with closing(book):
        rows = _sheet(book, reader.sheet, path).iter_rows(values_only=True)
        filled = ((number, row) for number, row in enumerate(rows, 1) if any(value is not None for value in row))
        first, header = next(filled, (0, ()))
        names = ["" if name is None else str(_plain(name)).strip() for name in header]
        names = names[: len(names) - next((n for n, name in enumerate(reversed(names)) if name), 0)]  # formatted cells beside it
        check_names(names, path, RowNumber(first))
        number = first
        for number, row in filled:
            yield RowNumber(number), dict(zip(names, map(_plain, row), strict=False))
        if number == first:
            raise BadData("has no rows below its first one, which names the columns", "Expected a row per number.", path)


def _package(name: str, kind: str, install: str, path: Path) -> Any:
    try:
        return import_module(name)
    except ImportError:
        remedy = f"Run pip install {install}, or save the table as CSV."
        raise BadData(f"is {kind}, which needs the package {name}", remedy, path) from None


def _sheet(book: Any, name: str | None, path: Path) -> Any:
    """Return the sheet of a name, or the only one that has cells."""
    if name is not None:
        if name not in book.sheetnames:
            listed = f"Sheets here: {', '.join(book.sheetnames)}.{nearest(name, book.sheetnames)}"
            raise BadData(f"has no sheet {name!r}", listed, path)
        return book[name]
    filled = [sheet for sheet in book.worksheets if any(value is not None for row in sheet.values for value in row)]
    if len(filled) != 1:
        what = "is empty" if not filled else f"has several sheets: {', '.join(sheet.title for sheet in filled)}"
        remedy = "Expected one with a table." if not filled else "Name one: sheet='...' (--sheet)."
        raise BadData(what, remedy, path)
    return filled[0]


def _values(pyarrow: ModuleType, column: Any) -> list[Any]:
    """Return a column as plain values; nanoseconds are cut, and float32 has the digits that it prints."""
    if pyarrow.types.is_timestamp(column.type):
        column = column.cast(pyarrow.timestamp("us", column.type.tz), safe=False)
    if pyarrow.types.is_float16(column.type) or pyarrow.types.is_float32(column.type):
        shown = column.to_numpy(zero_copy_only=False)
        return [None if value is None else float(str(own)) for value, own in zip(column.to_pylist(), shown, strict=True)]
    return [_plain(value) for value in column.to_pylist()]


READERS: dict[str, Callable[[RowReader, Path], NumberedRows]] = {
    ".csv": RowReader.table,
    ".tsv": RowReader.table,
    ".jsonl": RowReader.jsonl,
    ".ndjson": RowReader.jsonl,
    ".json": _json,
    ".parquet": _parquet,
    ".xlsx": _excel,
    ".xlsm": _excel,
}
"""The reader of each file type."""

TEXTS = (".csv", ".tsv", ".jsonl", ".ndjson", ".json")
OLD = {".xls": "an Excel workbook from before 2007", ".xlsb": "a binary Excel workbook", ".ods": "an OpenDocument table"}
"""File types that spreadsheet programs can save as others."""


def default_task(data: str | Path) -> str:
    """Return the task that reads a file: ``word_problems`` if every answer ends in ``#### 42``, else ``regression``.

    Examples:
        >>> default_task("diamonds")
        'regression'
    """
    try:
        path = table_file(Path(data))
        files = [path] if path.is_file() else sorted([*path.glob("*.jsonl"), *path.glob("*.json")])[:1]
        rows = [row for file in files for _, row in islice(read_rows(file, RowReader()), _LOOKED_AT)]
        return "word_problems" if rows and all(map(_is_worked, rows)) else "regression"
    except BadData:  # raised again, with the place, where the task reads the file
        return "regression"


def _is_worked(row: Mapping[str, Any]) -> bool:
    """Whether a row is a question with a worked answer, as in GSM8K, or one of SVAMP."""
    if {"Body", "Question", "Equation", "Answer"} <= row.keys():
        return True
    answer = as_question(row).get("answer")
    return isinstance(answer, str) and "\n#### " in f"\n{answer}" and EXTRACTORS["gsm8k_strict"](answer) is not None


# Rows from Python


def data_file(data: Any, folder: Path) -> str:
    r"""Return the path of data: as it is, or of a file in ``folder`` that has the rows of a frame.

    The name of the file has a hash of its content: the same rows are written once, and other rows never replace them.

    Args:
        data: a path; or a pandas frame, whose index is left out; or mappings, one per row, such as a list of dicts or a dataset.
        folder: for a frame.

    Examples:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     file = Path(data_file([{"area": 84, "rent": 970.5}], Path(folder)))
        ...     file.name, file.read_text()
        ('frame-4f4e61ee8f95.jsonl', '{"area": 84, "rent": 970.5}\n')
    """
    if isinstance(data, str | Path):
        return str(data)
    lines = [json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n" for row in _records(data)]
    if not lines:
        raise ValueError("data has no rows: expected at least one.")
    content = "".join(lines)
    path = folder / f"frame-{blake2b(content.encode(), digest_size=6).hexdigest()}.jsonl"
    if not path.is_file():
        write_text(path, content)
    return str(path)


def _records(data: Any) -> Iterator[dict[str, Any]]:
    names = getattr(data, "columns", None)
    if names is not None and hasattr(data, "itertuples"):  # a pandas frame
        named = [str(name) for name in names]
        check_names(named, Path("data"))
        columns = [_series(data.iloc[:, at]) for at in range(len(named))]
        yield from (dict(zip(named, values, strict=True)) for values in zip(*columns, strict=True))
        return
    rows: Iterable[Any] = data if isinstance(data, Iterable) and not isinstance(data, Mapping) else [None]
    for number, row in enumerate(rows, 1):
        if not isinstance(row, Mapping):
            what = "data" if row is None and not isinstance(data, list) else f"row {number} of data"
            kind = type(data if what == "data" else row).__name__
            raise TypeError(f"{what} is a {kind}: expected a path, a pandas frame, or a list of dicts, one per row.")
        yield {str(name): _plain(value) for name, value in row.items()}


def _series(series: Any) -> list[Any]:
    """Return a column of a pandas frame as plain values; float32 has the digits that it prints."""
    kind = getattr(series.dtype, "numpy_dtype", series.dtype)
    short = getattr(kind, "kind", "") == "f" and kind.itemsize < 8
    values = series.to_numpy(kind, na_value=float("nan")) if short else series
    return [_plain(value) if known else None for value, known in zip(values, series.notna(), strict=True)]


def _plain(value: Any) -> Any:
    """Return a value as JSON has it: dates as ``2024-04-10``, with the time unless it is midnight; other objects as text."""
    if value is None or isinstance(value, str | bool | int):
        return value
    if hasattr(value, "tolist") and hasattr(value, "dtype"):  # of numpy; float32 has the digits that it prints
        value = float(str(value)) if value.dtype.kind == "f" and not value.shape else value.tolist()
    if isinstance(value, float):
        return value if value - value == 0 else None if value != value else str(value)
    if isinstance(value, datetime):
        return value.isoformat(sep=" ").removesuffix(" 00:00:00") if value == value else None
    if isinstance(value, Mapping):
        return {str(name): _plain(own) for name, own in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(own) for own in value]
    return value if isinstance(value, str | bool | int) else value.isoformat() if isinstance(value, date) else str(value)
