"""Read rows and images of data files. Bad rows raise an error with file, line and remedy, or are skipped and counted."""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from PIL.Image import Image


class RowNumber(int):
    """The number of a row, from 1, in a file whose lines do not tell rows apart."""


class BadData(ValueError):  # noqa: N818 - reads well as `raise BadData(...)`
    """A row or file that cannot be read: the problem and its remedy."""

    def __init__(self, problem: str, remedy: str, path: Path | None = None, line: int | None = None) -> None:
        super().__init__(problem, remedy, path, line)
        self.problem, self.remedy, self.path, self.line = problem, remedy, path, line

    def __str__(self) -> str:
        if self.path is None:
            return f"{self.problem}. {self.remedy}"
        unit = "row" if isinstance(self.line, RowNumber) else "line"
        place = self.path if self.line is None else f"{self.path}, {unit} {self.line}"
        return f"{place}: {self.problem}. {self.remedy}"


@dataclass
class RowReader:
    """Read files row by row. With ``skip_bad``, rows that cannot be read are skipped and listed in ``skipped``.

    Examples:
        >>> reader = RowReader(skip_bad=True)
        >>> for line, text in enumerate(["1", "two"], 1):
        ...     with reader.row(Path("numbers.txt"), line):
        ...         if not text.isdigit():
        ...             raise BadData(f"{text!r} is not a number", "Write digits.")
        >>> str(reader.skipped[0])
        "numbers.txt, line 2: 'two' is not a number. Write digits."
    """

    skip_bad: bool = False
    skipped: list[BadData] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @contextmanager
    def row(self, path: Path, line: int | None) -> Iterator[None]:
        """Attribute errors raised in the body to this row: raise them with file and line, or skip the row."""
        try:
            yield
        except BadData as bad:
            self._bad(bad.problem, bad.remedy, path, line)
        except (KeyError, TypeError, ValueError, ArithmeticError) as error:
            problem = f"column {error} is missing" if isinstance(error, KeyError) else str(error)
            self._bad(problem, "Correct or remove the row, or skip such rows with skip_bad=True (--skip-bad).", path, line)

    def lines(self, path: Path) -> Iterator[tuple[int, str]]:
        """Yield line numbers, from 1, and lines without their line ends; ``.gz`` is unpacked."""
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
        except IsADirectoryError:
            raise BadData("is a folder", "Expected a file.", path) from None
        except (EOFError, gzip.BadGzipFile) as error:  # the lines before the break are kept
            self._bad(f"the compressed file is broken ({error})", "Download it again.", path, None)

    def jsonl(self, path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield the objects of a file with one JSON object per line; empty lines are skipped."""
        for number, text in self.lines(path):
            row: Any = None
            if not text.strip():
                continue
            with self.row(path, number):
                row = _object(text)
            if row is not None:
                yield number, row

    def json_list(self, path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield the objects of a JSON list with the line each starts at, or its number if the list is one line.

        Objects before a syntax error are kept.
        """
        text = "\n".join(line for _, line in self.lines(path))
        decoder, position = json.JSONDecoder(), _skip_space(text, 0)
        if text[position : position + 1] != "[":
            raise BadData("is not a JSON list", "Expected [{...}, {...}]; name a file with one object per line .jsonl.", path)
        position = _skip_space(text, position + 1)
        one_line, count, seen, line = "\n" not in text.strip(), 0, 0, 1
        while text[position : position + 1] != "]":
            count, line, seen = count + 1, line + text.count("\n", seen, position), position
            if one_line:
                line = RowNumber(count)
            try:
                row, end = decoder.raw_decode(text, position)
            except (json.JSONDecodeError, RecursionError) as error:
                reason = getattr(error, "msg", "nested too deeply")
                self._bad(f"broken JSON ({reason})", "The file may be truncated: download it again.", path, line)
                return
            with self.row(path, line):
                yield line, _checked(row)
            position = _skip_space(text, end)
            if text[position : position + 1] == ",":
                position = _skip_space(text, position + 1)
            elif text[position : position + 1] != "]":
                self._bad("broken JSON (the list does not end)", "The file may be truncated: download it again.", path, line)
                return

    def table(self, path: Path) -> Iterator[tuple[int, dict[str, str]]]:
        """Yield the rows of a CSV or TSV file with a header line."""
        line = 0  # the one that was read last

        def texts() -> Iterator[str]:
            nonlocal line
            for number, text in self.lines(path):
                line = number
                yield f"{text}\n"

        pulled = texts()
        first = next(pulled, None)
        if first is None:
            raise BadData("is empty", "Expected a header line with the names of the columns.", path)
        reader = csv.reader(chain((first,), pulled), delimiter=_delimiter(path, first))
        header = next(reader)
        if len(set(header)) != len(header):
            raise BadData(f"the header names a column twice: {', '.join(header)}", "Give each column its own name.", path, 1)
        for values in reader:
            if not values:
                continue
            row: dict[str, str] | None = None
            with self.row(path, line):
                if len(values) != len(header):
                    raise BadData(
                        f"has {len(values)} values, but the header names {len(header)} columns",
                        "Quote values that contain the separator, or correct the row.",
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
    """Return the separator of a table, from its first readable line."""
    return _delimiter(path, next(RowReader(skip_bad=True).lines(path), (0, ""))[1])


def file_type(path: Path) -> str:
    """Return the suffix of a file's name without ``.gz``: ``.csv`` of ``flats.csv.gz``."""
    return path.with_suffix("").suffix if path.suffix == ".gz" else path.suffix


def data_name(data: str | Path) -> str:
    """Return the name of a file or folder without its type.

    Examples:
        >>> data_name("my/flats.csv.gz"), data_name("flats.2024.csv"), data_name("gsm8k/"), data_name("diamonds")
        ('flats', 'flats.2024', 'gsm8k', 'diamonds')
    """
    path = Path(data)
    return path.name.removesuffix(".gz").removesuffix(file_type(path)) or path.resolve().name


def _delimiter(path: Path, header: str) -> str:
    return "\t" if file_type(path) == ".tsv" or ("\t" in header and "," not in header) else max(",;|", key=header.count)


def column(row: dict[str, Any], name: str) -> Any:
    """Return a column of a row; raise ``BadData`` that lists the columns if it is missing."""
    if name not in row:
        raise BadData(f"column {name!r} is missing", f"Columns here: {', '.join(map(str, row)) or 'none'}.")
    return row[name]


def named_split(values: Mapping[str, Any]) -> Literal["train", "interpolate", "extrapolate"] | None:
    """Return the split that the column ``split`` of a row names; None if it has none."""
    named = str(values.get("split") or "").lower()
    if named in ("train", "interpolate", "extrapolate"):
        return named  # type: ignore[return-value]
    if named in ("test", "val", "valid", "validation", "dev"):
        return "interpolate"
    if named:
        raise BadData(f"split {named!r} is not known", "Expected train, interpolate, extrapolate or test.")
    return None


def existing(path: Path) -> Path:
    """Return the path of an image that a row names; raise ``BadData`` if there is no such file."""
    try:
        there = path.is_file()
    except OSError:  # a name that is too long
        there = False
    if not there:
        raise BadData(f"the image {path!s:.300} is missing", "Put the image there, or correct its name in the row.")
    return path


def open_image(source: Path | Image) -> Image:
    """Return an image file, or an image that is already open, in RGB."""
    with _opened(source) as image:
        return image.convert("RGB")


def image_size(source: Path | Image) -> tuple[int, int]:
    """Return width and height of an image file, of which only the beginning is read, or of an open image."""
    with _opened(source) as image:
        return image.size


@contextmanager
def _opened(source: Path | Image) -> Iterator[Image]:
    from numerate.lab.tasks.drawing import Image

    if isinstance(source, Image.Image):
        yield source
        return
    try:
        with Image.open(source) as image:
            yield image
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise BadData(f"the image cannot be opened ({error})", "It may be damaged: download it again.", source) from None


def _decoded(raw: bytes) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadData(
            f"is not UTF-8 (byte 0x{raw[error.start]:02x} at column {error.start + 1})",
            "Save the file as UTF-8, for example with `iconv -f latin1 -t utf8`.",
        ) from None


def _object(text: str) -> dict[str, Any]:
    try:
        return _checked(json.loads(text))
    except (json.JSONDecodeError, RecursionError) as error:
        raise BadData(
            f"broken JSON ({getattr(error, 'msg', 'nested too deeply')})",
            "Expected one object per line; the file may be truncated.",
        ) from None


def _checked(row: Any) -> dict[str, Any]:
    if not isinstance(row, dict):
        raise BadData(f"is a {type(row).__name__}, not an object", 'Expected {"column": value, ...}.')
    return row


def _skip_space(text: str, position: int) -> int:
    while position < len(text) and text[position] in " \t\n\r":
        position += 1
    return position
