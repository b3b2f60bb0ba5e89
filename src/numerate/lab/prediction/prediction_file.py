"""The file of predictions: the rows of a table with what was predicted, written in whole batches.

    predictions.csv.part    while predicting; renamed to predictions.csv at the end
    predictions.csv.json    settings, the rows and bytes that are done, and the figures at the end

The second file is replaced after each batch. After an interruption, the first one is cut to the bytes that it names.
"""

from __future__ import annotations

import csv
import io
import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

from numerate.lab.files.csv_lines import csv_line
from numerate.lab.files.records import check_writable, naming_full_disk, remove_parts, write_json

NAMES: tuple[str, ...] = ("prediction", "low", "high", "covered", "no_number", "problem")
"""The columns that are added. If the table has one of these names, all of them end in ``_2``, or in the next free number."""

DISAGREEMENT, UNUSUAL = "disagreement", "unusual"
"""Further columns of a pool: how far its members disagree, and whether that is more than usual."""

SUFFIXES = (".csv", ".tsv", ".jsonl")
"""File types that predictions are written as."""

OTHER = "other reasons, see the column problem"
_MOST_PROBLEMS = 50  # different ones that are counted apart

Ends = tuple[Decimal | None, Decimal | None, Decimal | None]


@dataclass(frozen=True)
class Prediction:
    """The prediction for a row: a number, its interval and the masses, or a problem."""

    value: Decimal | None = None
    low: Decimal | None = None
    high: Decimal | None = None
    covered: float | None = None
    no_number: float | None = None
    problem: str = ""
    disagreement: float | None = None
    unusual: bool | None = None

    @property
    def texts(self) -> dict[str, str]:
        """The cells by column; numbers without rounding and without a power of ten, disagreement with six digits."""
        numbers = ["" if number is None else f"{number:f}" for number in (self.value, self.low, self.high)]
        shares = ["" if share is None else f"{Decimal(f'{share:.6f}').normalize():f}" for share in (self.covered, self.no_number)]
        away = "" if self.disagreement is None else f"{Decimal(f'{self.disagreement:.6g}').normalize():f}"
        unusual = "" if self.unusual is None else str(self.unusual).lower()
        cells = dict(zip(NAMES, [*numbers, *shares, self.problem], strict=True))
        return cells | {DISAGREEMENT: away, UNUSUAL: unusual}


@dataclass
class PredictionFile:
    """Predictions that are appended to a file."""

    path: Path  # CSV, TSV or JSONL
    columns: Sequence[str]  # names of the table's columns, which are kept
    delimiter: str = ","  # of a CSV file
    added: Sequence[str] = NAMES  # columns of predictions that are written
    rows: int = 0
    size: int = 0
    problems: Counter[str] = field(default_factory=Counter)
    unusual: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.path.suffix not in SUFFIXES:
            raise ValueError(
                f"out={str(self.path)!r} has an unknown file type: expected a name that ends in {', '.join(SUFFIXES)}."
            )
        self.names = added_names(self.columns, self.added)
        self.part = self.path.with_name(f"{self.path.name}.part")
        self.record = self.path.with_name(f"{self.path.name}.json")
        self.delimiter = "\t" if self.path.suffix == ".tsv" else self.delimiter

    def claim(self, settings: Mapping[str, Any], *, overwrite: bool = False) -> None:
        """Read the progress of an earlier call; raise if the file was made with other settings, or by another program."""
        check_writable(self.path.parent)
        remove_parts(self.path.parent)
        self.settings = settings
        ways = "name another file with --out, or replace it with --overwrite"
        if overwrite:
            for file in (self.record, self.path, self.part):
                file.unlink(missing_ok=True)
        if not self.record.is_file():
            if self.path.exists():
                raise ValueError(f"{self.path} exists, and {self.record.name}, which records how it was made, does not: {ways}.")
            return
        try:
            saved = json.loads(self.record.read_text(encoding="utf-8"))
            there, rows, size, problems = (saved[name] for name in ("settings", "rows", "bytes", "problems"))
            changed = [name for name in {**settings, **there} if there.get(name) != settings.get(name)]
        except (ValueError, KeyError, TypeError):
            raise ValueError(f"{self.record} cannot be read: {ways}.") from None
        if changed:
            listed = ", ".join(f"{name} is {there.get(name)!r} there and {settings.get(name)!r} here" for name in changed)
            raise ValueError(f"{self.path} holds predictions with other settings ({listed}): {ways}.")
        content = self.path if self.path.exists() else self.part
        found = content.stat().st_size if content.exists() else 0
        if found < size or (content == self.path and found > size):
            raise ValueError(f"{content} was changed after it was written ({found:,} bytes, not {size:,}): {ways}.")
        self.rows, self.size, self.problems, self.unusual = rows, size, Counter(problems), saved.get(UNUSUAL, 0)

    def append(self, rows: Sequence[Mapping[str, Any]], predictions: Sequence[Prediction]) -> None:
        """Write a batch to the disk, then the record of it."""
        if self.path.exists():  # finished with a lower limit
            self.path.replace(self.part)
        lines = io.StringIO(newline="")
        if self.path.suffix == ".jsonl":
            for values, prediction in zip(rows, predictions, strict=True):
                lines.write(_json_line(values, dict(zip(self.names, self._texts(prediction), strict=True))))
        else:
            if not self.size:
                lines.write(csv_line([*self.columns, *self.names], self.delimiter))
            for values, prediction in zip(rows, predictions, strict=True):
                cells = [*(_cell(values.get(name)) for name in self.columns), *self._texts(prediction)]
                lines.write(csv_line(cells, self.delimiter))
        content = lines.getvalue().encode()
        self._check_part()
        with naming_full_disk(self.path.parent), self.part.open("r+b" if self.part.exists() else "wb") as file:
            file.truncate(self.size)  # what an interrupted call wrote beyond its record
            file.seek(self.size)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        self.rows, self.size = self.rows + len(rows), self.size + len(content)
        for problem in (prediction.problem for prediction in predictions if prediction.problem):
            self.problems[problem if problem in self.problems or len(self.problems) < _MOST_PROBLEMS else OTHER] += 1
        self.unusual += sum(prediction.unusual is True for prediction in predictions)
        self._save()

    def finish(self, figures: Mapping[str, Any]) -> None:
        """Give the file its name, and record the figures."""
        if not self.path.exists():
            self._check_part()
            with self.part.open("r+b") as file:
                file.truncate(self.size)
            self.part.replace(self.path)
        self._save(finished=True, figures=figures)

    def read(self) -> Iterator[Ends]:
        """Yield prediction, low and high of each row that is written."""
        names = self.names[:3]
        content = self.path if self.path.exists() else self.part
        with content.open(encoding="utf-8", newline="") as file:
            rows: Iterator[dict[str, Any]]
            if self.path.suffix == ".jsonl":
                rows = (json.loads(line, parse_float=Decimal, parse_int=Decimal) for line in file)
            else:
                rows = csv.DictReader(file, delimiter=self.delimiter)
            for row in rows:
                value, low, high = (None if row[name] in ("", None) else Decimal(row[name]) for name in names)
                yield value, low, high

    def _texts(self, prediction: Prediction) -> list[str]:
        texts = prediction.texts
        return [texts[name] for name in self.added]

    def _check_part(self) -> None:
        """Raise if bytes that this call wrote are missing: those after them would be at the wrong place."""
        found = self.part.stat().st_size if self.part.exists() else 0
        if found < self.size:
            raise ValueError(
                f"{self.part} was cut to {found:,} of {self.size:,} bytes while this call wrote to it: is another call "
                "predicting to the same file? Wait for it and call again, or name another file with --out."
            )

    def _save(self, **more: Any) -> None:
        done = {"rows": self.rows, "bytes": self.size, "problems": dict(self.problems)}
        done |= {UNUSUAL: self.unusual} if UNUSUAL in self.added else {}
        with naming_full_disk(self.path.parent):
            write_json(self.record, {"settings": self.settings, **done, **more})


def added_names(columns: Sequence[str], added: Sequence[str] = NAMES) -> tuple[str, ...]:
    """Return names for the added columns that are not in ``columns``.

    Examples:
        >>> added_names(["area", "low"])[:3]
        ('prediction_2', 'low_2', 'high_2')
    """
    number, names = 1, tuple(added)
    while {*names} & {*columns}:
        number += 1
        names = tuple(f"{name}_{number}" for name in added)
    return names


def _json_line(values: Mapping[str, Any], added: Mapping[str, str]) -> str:
    """Return an object with the exact digits of numbers, which json.dumps would round; an empty text is null."""
    problem = [*added][-1]
    texts = {name: json.dumps(text) if name == problem and text else text or "null" for name, text in added.items()}
    pairs = [*((name, json.dumps(value, ensure_ascii=False)) for name, value in values.items()), *texts.items()]
    return "{" + ", ".join(f"{json.dumps(name, ensure_ascii=False)}: {text}" for name, text in pairs) + "}\n"


def _cell(value: Any) -> str:
    """Return a value of a JSON object as a cell of a table."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
