"""Read rows and images of data files. Bad rows raise an error with file, line and remedy, or are skipped and counted."""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import json
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from numerate.checks import nearest
from numerate.lab.data.pictures import Picture

if TYPE_CHECKING:
    from PIL.Image import Image

ENCODINGS = ("utf-8", "cp1252", "latin-1", "utf-16", "cp1250", "cp1251", "shift_jis", "gb18030")
"""Some encodings of text files; Python knows more."""

_HEAD = 1 << 16  # bytes
_MARKS = (
    *((mark, "utf-32") for mark in (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)),  # the first begins like the first of UTF-16
    *((mark, "utf-16") for mark in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)),
)
_NO_TEXTS = (
    (b"PK\x03\x04", "a ZIP archive, such as an Excel workbook", "Name an Excel workbook .xlsx, or unpack the archive."),
    (b"\xd0\xcf\x11\xe0", "an Excel workbook from before 2007", "Save it as .xlsx or CSV."),
    (b"PAR1", "a Parquet file", "Name it .parquet."),
    (b"\x1f\x8b", "compressed", "Let its name end in .gz: table.csv.gz."),
    (b"%PDF", "a PDF file", "Copy the table into a spreadsheet, and save it as CSV."),
    (b"SQLite format 3", "an SQLite database", "Write the table as CSV first."),
)
_KEY = re.compile(r'"(?:[^"\\]|\\.)*"\s*:\s*')  # of a JSON object
_BETWEEN = re.compile(r"\s*(,?)\s*")  # two objects of a JSON list
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")  # half of a character that JSON writes as two, such as an emoji
_ASCII, _CP1252 = bytes(range(128)), bytes(code for code in range(128, 256) if code not in (0x81, 0x8D, 0x8F, 0x90, 0x9D))
_LONGEST = (1 << 31) - 1  # characters of a cell; the limit of the csv module is 131,072
_BROKEN = (EOFError, gzip.BadGzipFile, zlib.error)  # what a damaged .gz file raises
_AFTER = "\ufdd0"  # follows the last line of a table: a character that is never text
_UTF8 = re.compile(rb"[\xc3-\xdf][\x80-\xbf]|[\xe0-\xef][\x80-\xbf]{2}|[\xf0-\xf4][\x80-\xbf]{3}|\xc2[\xa0-\xbf]")


class RowNumber(int):
    """The number of a row, from 1, in a file whose lines do not correspond to rows."""


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
    encoding: str | None = None  # of text files; None: UTF-8
    sheet: str | None = None  # of Excel workbooks; None: the only one
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
        """Yield line numbers, from 1, and lines without their line ends: LF, CRLF or CR; ``.gz`` is unpacked."""
        try:
            with _opener(path)(path, "rb") as file:
                if self.encoding is not None:
                    with io.TextIOWrapper(file, self.encoding) as decoded:
                        for number, line in enumerate(decoded, 1):
                            yield number, line.removeprefix("\ufeff").rstrip("\n")
                    return
                for number, raw in enumerate((part for line in file for part in line.rstrip(b"\r\n").split(b"\r")), 1):
                    text = None
                    with self.row(path, number):
                        text = _decoded(raw)
                    if text is not None:
                        yield number, text.removeprefix("\ufeff")
        except UnicodeError as error:
            reason = f"cannot be read with encoding={self.encoding!r} ({error})"
            raise BadData(reason, f"Name another encoding (--encoding), such as {', '.join(ENCODINGS)}.", path) from None
        except FileNotFoundError:
            raise BadData("there is no such file", "Check the path, or download the dataset first.", path) from None
        except IsADirectoryError:
            raise BadData("is a folder", "Expected a file.", path) from None
        except _BROKEN as error:  # the lines before the break are kept
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

    def json_list(self, path: Path, *, numbered: bool = False) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield the objects of a JSON list with the line each starts at, or its number if the list is one line.

        With ``numbered``, the list may be an object of objects: ``{"1": {...}, "2": {...}}``. Objects before a syntax error are
        kept.
        """
        text = "\n".join(line for _, line in self.lines(path))
        begin = re.match(r"\s*([\[{])\s*", text)
        if begin is None or (begin[1] == "{" and not numbered):
            raise BadData("is not a JSON list", "Expected [{...}, {...}]; name a file with one object per line .jsonl.", path)
        decoder, close, position = json.JSONDecoder(), "]" if begin[1] == "[" else "}", begin.end()
        one_line, count, seen, line = "\n" not in text.strip(), 0, 0, 1
        while text[position : position + 1] != close:
            if close == "}" and (key := _KEY.match(text, position)):
                position = key.end()
            count, line, seen = count + 1, line + text.count("\n", seen, position), position
            if one_line:
                line = RowNumber(count)
            try:
                row, end = decoder.raw_decode(text, position)
            except (ValueError, RecursionError) as error:
                self._bad(f"broken JSON ({_reason(error)})", "The file may be truncated: download it again.", path, line)
                return
            with self.row(path, line):
                yield line, _checked(row, text[position:end])
            after = _BETWEEN.match(text, end)
            assert after is not None  # it may be empty
            position = after.end()
            if not after[1] and text[position : position + 1] != close:
                self._bad("broken JSON (the list does not end)", "The file may be truncated: download it again.", path, line)
                return
        if text[position + 1 :].strip():
            remedy = "Expected one list; name a file with one object per line .jsonl."
            self._bad(f"broken JSON (something follows the {close} at its end)", remedy, path, line)

    def table(self, path: Path) -> Iterator[tuple[int, dict[str, str]]]:
        """Yield the rows of a CSV or TSV file with a header line, each with the line that it begins in.

        Columns without a name at the end of the header, and empty cells beyond its last column, are left out.
        """
        cells = self._cells(path)
        line, header = next(((line, cells) for line, cells in cells if any(map(str.strip, cells))), (0, []))
        names = [name.strip() for name in header]
        if not names:
            raise BadData("is empty", "Expected a header line with the names of the columns.", path)
        while not names[-1]:
            names.pop()
        check_names(names, path, line)
        found = False
        for line, values in cells:
            if len(values) < len(names) and not any(map(str.strip, values)):
                continue
            found, row = True, None
            with self.row(path, line):
                if len(values) < len(names) or any(map(str.strip, values[len(names) :])):
                    raise BadData(
                        f"has {len(values)} values, but the header names {len(names)} columns",
                        "Quote values that contain the separator, name every column, or correct the row.",
                    )
                row = dict(zip(names, values, strict=False))
            if row is not None:
                yield line, row
        if not found:
            raise BadData(f"has a header ({', '.join(names):.80}) and no rows", "Expected a row per line below it.", path)

    def _cells(self, path: Path) -> Iterator[tuple[int, list[str]]]:
        """Yield the cells of each line of a CSV or TSV file that is not empty, with the line that they begin in."""
        begun: int | None = None

        def texts() -> Iterator[str]:
            nonlocal begun
            for number, text in self.lines(path):
                begun = begun or number
                yield f"{text}\n"
            yield _AFTER  # a cell that ends in it has swallowed all lines since its quotation mark

        reader = csv.reader(texts(), delimiter=_delimiter(path, self.encoding))
        while True:
            begun, limit = None, csv.field_size_limit(_LONGEST)
            try:
                values = next(reader)
            except csv.Error as error:
                raise BadData(f"cannot be read as a table ({error})", "Save it as CSV again.", path, begun) from None
            finally:
                csv.field_size_limit(limit)
            if values == [_AFTER]:
                return
            if values and values[-1].endswith(_AFTER):
                remedy = 'Close it, or write a quotation mark within quotes twice: "".'
                self._bad("a quotation mark that opens here is not closed", remedy, path, begun)
                return
            if values:
                yield begun or 0, values

    def _bad(self, problem: str, remedy: str, path: Path, line: int | None) -> None:
        bad = BadData(problem, remedy, path, line)
        if not self.skip_bad:
            raise bad from None
        self.skipped.append(bad)


def delimiter(path: Path, encoding: str | None = None) -> str:
    """Return the separator of a table, from its first line that is not empty."""
    return _delimiter(path, encoding or detected_encoding(path))


def _delimiter(path: Path, encoding: str | None) -> str:
    lines = RowReader(skip_bad=True, encoding=encoding).lines(path)
    header = re.sub('"[^"]*"', "", next((text for _, text in lines if text.strip()), ""))
    return "\t" if file_type(path) == ".tsv" else max("\t,;|" if "\t" in header else ",;|", key=header.count)


def check_names(names: Sequence[str], path: Path, line: int | None = None) -> None:
    """Raise ``BadData`` if two columns have the same name, or none."""
    for name, count in Counter(names).items():
        if count > 1:
            first, second = [at for at, other in enumerate(names, 1) if other == name][:2]
            what = f"are both named {name!r}" if name else "both have no name"
            raise BadData(f"columns {first} and {second} {what}", "Give each column its own name.", path, line)


def check_path(path: Path) -> None:
    """Raise ``BadData`` for a web address, which is not downloaded."""
    if re.match(r"[a-z][a-z0-9+]+:/", str(path), re.IGNORECASE):
        raise BadData("is a web address", "Download the file first, and name the file here.", path)


def check_encoding(name: str | None) -> None:
    """Raise unless an encoding is known to Python, or None."""
    try:
        known = name is None or codecs.lookup(name)._is_text_encoding
    except (LookupError, ValueError):
        known = False
    if not known:
        expected = f"expected the name of a text encoding, such as {', '.join(ENCODINGS)}"
        raise ValueError(f"encoding={name!r} is not known: {expected}.{nearest(str(name), ENCODINGS)}")


def detected_encoding(path: Path) -> str | None:
    """Return the encoding of a text file that is not in UTF-8; None if it is, or may be meant to be; raise if it is no text.

    UTF-16 and UTF-32 start with a byte order mark, or every other byte of their first lines is 0. A file that has bytes above 127
    and no character of UTF-8 among them is taken for cp1252, which Windows programs write in Western Europe.
    """
    try:
        with _opener(path)(path, "rb") as file:
            head = file.read(_HEAD)
            for mark, name in _MARKS:
                if head.startswith(mark):
                    return name
            if b"\0" in head:
                for name, zeros in (("utf-16-le", head[1::2]), ("utf-16-be", head[::2])):
                    if zeros.count(0) > 0.6 * len(zeros) and head.count(0) <= zeros.count(0) * 1.1:
                        return name
            for begin, what, remedy in _NO_TEXTS:
                if head.startswith(begin):
                    raise BadData(f"is {what}", remedy, path)
            if b"\0" in head:
                raise BadData("is not a text file", "Expected a table as text; save it as CSV, for example.", path)
            block, high = head, b""
            while block:
                if _UTF8.search(block):
                    return None
                high += block.translate(None, _ASCII + high)
                block = file.read(_HEAD)
            if high.translate(None, _CP1252):
                remedy = f"Name its encoding (--encoding), such as {', '.join(ENCODINGS)}."
                raise BadData("is neither UTF-8 nor cp1252", remedy, path)
            return "cp1252" if high else None
    except (OSError, *_BROKEN):  # reported where the rows are read
        pass
    return None


def is_utf8(path: Path) -> bool:
    """Whether a text file is in UTF-8; one that cannot be read counts as such."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        with _opener(path)(path, "rb") as file:
            while block := file.read(_HEAD):
                decoder.decode(block)
            decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return False
    except (OSError, *_BROKEN):  # reported where the rows are read
        pass
    return True


def file_type(path: Path) -> str:
    """Return the suffix of a file's name without ``.gz``, in lower case: ``.csv`` of ``Flats.CSV.gz``."""
    return (path.with_suffix("") if _is_gzip(path) else path).suffix.lower()


def data_name(data: str | Path) -> str:
    """Return the name of a file or folder without its type.

    Examples:
        >>> data_name("my/flats.csv.gz"), data_name("flats.2024.csv"), data_name("gsm8k/"), data_name("diamonds")
        ('flats', 'flats.2024', 'gsm8k', 'diamonds')
    """
    path = Path(data)
    return Path(path.stem if _is_gzip(path) else path.name).stem or path.resolve().name


def _is_gzip(path: Path) -> bool:
    return path.suffix.lower() == ".gz"


def _opener(path: Path) -> Callable[..., Any]:
    return gzip.open if _is_gzip(path) else open


def column(row: Mapping[str, Any], name: str) -> Any:
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


def open_image(path: Path) -> Image:
    """Return an image file in RGB."""
    with _opened(path) as image:
        return image.convert("RGB")


def photo(path: Path) -> Picture:
    """Return the picture of an image file, which is opened when it is needed."""
    return Picture(open_image, (path,))


def image_size(path: Path) -> tuple[int, int]:
    """Return width and height of an image file, of which only the header is read."""
    with _opened(path) as image:
        return image.size


@contextmanager
def _opened(path: Path) -> Iterator[Image]:
    from numerate.lab.data.drawing import Image

    try:
        with Image.open(path) as image:
            yield image
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise BadData(f"the image cannot be opened ({error})", "It may be damaged: download it again.", path) from None


def _decoded(raw: bytes) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadData(
            f"is not UTF-8 (byte 0x{raw[error.start]:02x} at column {error.start + 1})",
            "Save the file as UTF-8, for example with `iconv -f cp1252 -t utf8`; for a table, name its encoding (--encoding).",
        ) from None


def _object(text: str) -> dict[str, Any]:
    try:
        row = json.loads(text)
    except (ValueError, RecursionError) as error:
        remedy = "Name a file with a JSON list .json." if text.lstrip().startswith("[") else "The file may be truncated."
        raise BadData(f"broken JSON ({_reason(error)})", f"Expected one object per line. {remedy}") from None
    return _checked(row, text)


def _reason(error: Exception) -> str:
    """Return why a text is not JSON."""
    if isinstance(error, json.JSONDecodeError):
        return error.msg
    return "nested too deeply" if isinstance(error, RecursionError) else "a number with too many digits"


def json_kind(value: Any) -> str:
    """Return what a value of a JSON file is, in the words of JSON, such as ``a list`` or ``null``."""
    names = {bool: "a boolean", int: "a number", float: "a number", str: "a text", list: "a list", dict: "an object"}
    return "null" if value is None else names.get(type(value), f"of the type {type(value).__name__}")


def _checked(row: Any, text: str) -> dict[str, Any]:
    """Return an object that was read from a text, with ? for halves of characters, which no tokenizer takes; raise for others."""
    if not isinstance(row, dict):
        raise BadData(f"is {json_kind(row)}, not an object", 'Expected {"column": value, ...}.')
    if not _SURROGATE.search(text):
        return row
    replaced: dict[str, Any] = json.loads(json.dumps(row, ensure_ascii=False).encode(errors="replace"))
    return replaced
