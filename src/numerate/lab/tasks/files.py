"""Read rows of data files that people made: what is wrong is said with file, line and remedy, or skipped and counted."""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


class BadData(ValueError):  # noqa: N818 - what it is, as `raise BadData(...)` says
    """A row, or a file, that cannot be read: what is wrong with it, and what to do."""

    def __init__(self, problem: str, remedy: str, path: Path | None = None, line: int | None = None) -> None:
        super().__init__(problem, remedy, path, line)
        self.problem, self.remedy, self.path, self.line = problem, remedy, path, line

    def __str__(self) -> str:
        place = "" if self.path is None else f"{self.path}: " if self.line is None else f"{self.path}, line {self.line}: "
        return f"{place}{self.problem}. {self.remedy}"


@dataclass
class Reader:
    """Reads files row by row. With ``skip_bad``, rows that cannot be read are left out and kept in ``skipped``.

    Example:
        >>> reader = Reader(skip_bad=True)
        >>> for line, text in enumerate(["1", "two"], 1):
        ...     with reader.row(Path("numbers.txt"), line):
        ...         if not text.isdigit():
        ...             raise BadData(f"{text!r} is no number", "Write digits.")
        >>> str(reader.skipped[0])
        "numbers.txt, line 2: 'two' is no number. Write digits."
    """

    skip_bad: bool = False
    skipped: list[BadData] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @contextmanager
    def row(self, path: Path, line: int | None) -> Iterator[None]:
        """What goes wrong within belongs to this row."""
        try:
            yield
        except BadData as bad:
            self._bad(bad.problem, bad.remedy, path, line)
        except (KeyError, TypeError, ValueError, ArithmeticError) as error:
            what = f"column {error} is missing" if isinstance(error, KeyError) else str(error)
            self._bad(what, "Correct or remove the row, or leave such rows out with skip_bad=True (--skip-bad).", path, line)

    def lines(self, path: Path) -> Iterator[tuple[int, str]]:
        """Lines of a text file, from 1, without their ends; ``.gz`` is unpacked."""
        opened = gzip.open if path.suffix == ".gz" else open
        try:
            with opened(path, "rb") as file:
                for number, raw in enumerate(file, 1):
                    text = None
                    with self.row(path, number):
                        text = _decoded(raw)
                    if text is not None:
                        yield number, text.removeprefix("\ufeff").rstrip("\r\n")
        except FileNotFoundError:
            raise BadData("there is no such file", "Check the path, or download the dataset first.", path) from None
        except (EOFError, gzip.BadGzipFile) as error:  # the lines before it were good
            self._bad(f"the compressed file is broken ({error})", "Download it again.", path, None)

    def jsonl(self, path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
        """Objects of a file with one JSON object a line; empty lines are passed over."""
        for number, text in self.lines(path):
            row: Any = None
            if not text.strip():
                continue
            with self.row(path, number):
                row = _object(text)
            if row is not None:
                yield number, row

    def json_list(self, path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
        """Objects of a file that is one JSON list, with the line each begins at. Those before a break are not lost."""
        text = "\n".join(line for _, line in self.lines(path))
        decoder, at = json.JSONDecoder(), _skip(text, 0)
        if text[at : at + 1] != "[":
            raise BadData("is not a JSON list", "Expected [{...}, {...}]; for one object a line, name it .jsonl.", path)
        at = _skip(text, at + 1)
        while text[at : at + 1] != "]":
            line = text.count("\n", 0, at) + 1
            try:
                row, end = decoder.raw_decode(text, at)
            except (json.JSONDecodeError, RecursionError) as error:
                reason = getattr(error, "msg", "nested too deeply")
                self._bad(f"broken JSON ({reason})", "The file may be truncated: download it again.", path, line)
                return
            with self.row(path, line):
                if not isinstance(row, dict):
                    raise BadData(f"a {type(row).__name__} stands where an object belongs", 'Expected {"column": value, ...}.')
                yield line, row
            at = _skip(text, end)
            if text[at : at + 1] == ",":
                at = _skip(text, at + 1)
            elif text[at : at + 1] != "]":
                line = text.count("\n", 0, at) + 1
                self._bad("broken JSON (the list does not end)", "The file may be truncated: download it again.", path, line)
                return

    def table(self, path: Path) -> Iterator[tuple[int, dict[str, str]]]:
        """Rows of a CSV or TSV file with a header line."""
        lines = list(self.lines(path))
        if not lines:
            raise BadData("is empty", "Expected a header line with the names of the columns.", path)
        reader = csv.reader((f"{text}\n" for _, text in lines), delimiter=_delimiter(path, lines[0][1]))
        header = next(reader)
        if len(set(header)) != len(header):
            raise BadData(f"the header names a column twice: {', '.join(header)}", "Give each column a name of its own.", path, 1)
        for values in reader:
            line = lines[min(reader.line_num, len(lines)) - 1][0]
            if not values:
                continue
            row: dict[str, str] | None = None
            with self.row(path, line):
                if len(values) != len(header):
                    raise BadData(
                        f"{len(values)} values stand where the header names {len(header)} columns",
                        "Quote values that hold the separator, or mend the row.",
                    )
                row = dict(zip(header, values, strict=True))
            if row is not None:
                yield line, row

    def _bad(self, problem: str, remedy: str, path: Path, line: int | None) -> None:
        bad = BadData(problem, remedy, path, line)
        if not self.skip_bad:
            raise bad from None
        self.skipped.append(bad)


def delimiter(path: Path) -> str:
    """The separator of a table, by the first of its lines that can be read."""
    return _delimiter(path, next(Reader(skip_bad=True).lines(path), (0, ""))[1])


def _delimiter(path: Path, header: str) -> str:
    return "\t" if path.suffix == ".tsv" or ("\t" in header and "," not in header) else max(",;|", key=header.count)


def column(row: dict[str, Any], name: str) -> Any:
    """A column of a row, or an error that lists what there is."""
    if name not in row:
        raise BadData(f"column {name!r} is missing", f"Columns here: {', '.join(map(str, row)) or 'none'}.")
    return row[name]


def existing(path: Path) -> Path:
    """A path that a row names, if something is there."""
    if not path.is_file():
        raise BadData(f"the image {path} is missing", "Put the image there, or correct its name in the row.")
    return path


def _decoded(raw: bytes) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadData(
            f"is not UTF-8 (byte 0x{raw[error.start]:02x} at column {error.start + 1})",
            "Save the file as UTF-8, for instance with `iconv -f latin1 -t utf8`.",
        ) from None


def _object(text: str) -> dict[str, Any]:
    try:
        row = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise BadData(
            f"broken JSON ({getattr(error, 'msg', 'nested too deeply')})",
            "Expected one object a line; the file may be truncated.",
        ) from None
    if not isinstance(row, dict):
        raise BadData(f"a {type(row).__name__} stands where an object belongs", 'Expected {"column": value, ...}.')
    return row


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in " \t\n\r":
        at += 1
    return at
