"""Regression in text: a row of a table, or a short series, to a number. A file of your own works as it is.

    numerate task regression --data my.csv --target price

A CSV, TSV or JSONL file with a ``target`` column becomes questions such as ``area: 84, rooms: 3. price?``. Other columns are
shown as they are; the target becomes a plain number, ``70,35 €`` the answer ``70.35`` (:mod:`numerate.lab.tasks.cells`). A file
with columns ``prompt`` and ``answer``, and perhaps ``image`` (a path), is taken as it stands, but for answers such as
``70,35 €``, which would be misread.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

from numerate.answers.extract import EXTRACTORS
from numerate.lab.tasks.base import Example, Located, Split, Task, content_hash
from numerate.lab.tasks.cells import Cell, Mark, answer_text, decimal_mark, is_blank, number_of, read_cell, usual_unit
from numerate.lab.tasks.files import BadData, Reader, delimiter, existing
from numerate.messages import check_choice, choices, nearest

Kind = Literal["table", "series"]

LEAST_ROWS = 10
"""A table needs this many different rows to be split into some to train and some to test on."""

_NEAR: tuple[Split, ...] = ("train", "interpolate")
_NUMERAL_RUN = re.compile(r"[-+]?\d(?:[\d.,:'’_/–-]|[ \u00a0\u2009\u202f](?=\d{3}\b)|(?<=\d)(?:[kKM]|bn)\b)*")


@dataclass(frozen=True)
class Row:
    """A question, its answer, and where its picture lies."""

    prompt: str
    answer: str
    image: Path | None = None


@dataclass(frozen=True)
class _Found:
    """A row of a file before its answer is settled: a cell of the column, or a text that ends with a number."""

    place: Path
    line: int
    split: Split | None
    row: Row
    answer: Cell | str

    @property
    def where(self) -> str:
        return f"line {self.line}"


@dataclass(frozen=True)
class Regression(Task):
    """A number to be told from other numbers.

    Generated, a ``"table"`` row is a flat for rent, whose price follows from its size, rooms, floor and year by a rule that is
    the same for all; a ``"series"`` is a line or a curve to be continued by one value. Extrapolation has larger flats, and
    series with larger steps.

    Args:
        kind: of what is generated.
        target: of files, the column to be told. None: they have columns ``prompt`` and ``answer``.
        columns: of files, the columns to tell it from; None: all others.
        extrapolate: of files, the share of rows with the largest targets to keep apart for extrapolation.
        decimal: of files, the decimal mark of the target, ``"."`` or ``","``. None: the column decides, see
            :mod:`numerate.lab.tasks.cells`.

    Example:
        >>> task = Regression()
        >>> task.examples("train", 1)[0].prompt
        'area: 51 m2, rooms: 2, floor: 8, year: 1975. rent?'
    """

    kind: Kind = "table"
    target: str | None = None
    columns: tuple[str, ...] | None = None
    extrapolate: float = 0.0
    decimal: Mark | None = None

    name = "regression"
    extractor = "last_number"
    measures = (
        "relative_error",
        "exact",
        "parsed",
        "absolute_error",
        "log10_error",
        "smape",
        "within_1",
        "within_5",
        "within_10",
    )

    def __post_init__(self) -> None:
        check_choice("kind", self.kind, choices(Kind))
        if not 0 <= self.extrapolate < 0.5:
            raise ValueError(f"extrapolate={self.extrapolate!r} is out of range: expected a share in [0, 0.5).")
        if self.decimal is not None:
            check_choice("decimal", self.decimal, choices(Mark))
        if isinstance(self.columns, str):
            raise TypeError(f"columns={self.columns!r} is one text: expected several names, such as ('area', 'rooms').")

    def draw(self, rng: random.Random, split: Split) -> Row:
        """A question and its answer."""
        return (_flat if self.kind == "table" else _series)(rng, split == "extrapolate")

    def make(self, spec: Row) -> Example:
        """Open the picture, if there is one."""
        image = None
        if spec.image is not None:
            from PIL import Image

            image = Image.open(spec.image).convert("RGB")
        return Example(spec.prompt, spec.answer, image)

    def content(self, spec: Row) -> Any:
        """The text, and the picture's name."""
        return spec.prompt, spec.answer, None if spec.image is None else spec.image.name

    def read_rows(self, rows: Iterable[Located], reader: Reader) -> Iterator[tuple[Path, Row]]:
        """As rows of a file."""
        yield from ((found.place, row) for found, row, _ in self._answered(rows, reader))

    def read_files(self, path: Path, reader: Reader) -> Mapping[Split, Sequence[Row]]:
        """A CSV, TSV or JSONL file; rows without an answer, which most tables have, are left out and counted.

        A column ``split`` (train, test, interpolate, extrapolate) is heeded, else a hash decides. A table of fewer than
        ``LEAST_ROWS`` rows is not split.
        """
        if path.suffix not in (".csv", ".tsv", ".jsonl"):
            raise BadData(f"is a {path.suffix or 'nameless'} file", "Expected .csv, .tsv or .jsonl.", path)
        lines = reader.jsonl(path) if path.suffix == ".jsonl" else reader.table(path)
        semicolons = path.suffix == ".csv" and delimiter(path) == ";"
        found = list(self._answered(((path, line, values) for line, values in lines), reader, semicolons=semicolons))
        tested = _test_marks({content_hash(self.content(row)) for _, row, _ in found})
        rows: dict[Split, list[tuple[Row, Fraction]]] = {"train": [], "interpolate": [], "extrapolate": []}
        for cell, row, number in found:
            by_hash: Split = "interpolate" if content_hash(self.content(row)) in tested else "train"
            rows[cell.split or by_hash].append((row, number))
        largest = sorted((abs(number) for _, number in rows["train"] + rows["interpolate"]), reverse=True)
        cut = int(len(largest) * self.extrapolate)
        if cut:
            for split in _NEAR:
                rows["extrapolate"] += [pair for pair in rows[split] if abs(pair[1]) >= largest[cut - 1]]
                rows[split] = [pair for pair in rows[split] if abs(pair[1]) < largest[cut - 1]]
        return {split: [row for row, _ in pairs] for split, pairs in rows.items()}

    def _answered(
        self, rows: Iterable[Located], reader: Reader, *, semicolons: bool = False
    ) -> Iterator[tuple[_Found, Row, Fraction]]:
        """Questions with their answers as they are to be written, and the numbers of these, read as one column."""
        found: list[_Found] = []
        for place, line, values in rows:
            with reader.row(place, line):
                given, row = self._row(values, place.parent)
                if is_blank(given):
                    reader.skipped.append(BadData("there is no answer", "Fill it in, if it is known.", place, line))
                    continue
                found.append(_Found(place, line, _named_split(values), row, self._read(given)))
        cells = [(one.where, one.answer) for one in found if isinstance(one.answer, Cell)]
        name = self.target or "answer"
        try:
            mark = self.decimal or decimal_mark(cells, name, semicolons=semicolons)
        except BadData as bad:
            raise BadData(bad.problem, bad.remedy, found[0].place) from None
        unit = usual_unit([cell for _, cell in cells])
        rewritten: list[tuple[str, str]] = []
        for one in found:
            with reader.row(one.place, one.line):
                if isinstance(one.answer, str):
                    yield one, replace(one.row, answer=one.answer), _last_number(one.answer)
                    continue
                number = number_of(one.answer, mark, unit if self.target else one.answer.unit)
                as_it_is = self.target is None and EXTRACTORS["last_number"](one.answer.text) == number
                answer = one.answer.text if as_it_is else answer_text(number)
                rewritten += [(one.answer.text, answer)] if one.answer.text != answer else []
                yield one, replace(one.row, answer=answer), Fraction(number)
        reader.notes += _notes(name, rewritten, [cell for _, cell in cells], None if self.decimal else mark)

    def _read(self, given: Any) -> Cell | str:
        """A cell; a text whose last number counts, where prompts and answers are given."""
        try:
            return read_cell(given)
        except BadData:
            if self.target is not None or not isinstance(given, str):
                raise
            _last_number(given)
            return given.strip()

    def _row(self, values: Mapping[str, Any], folder: Path) -> tuple[Any, Row]:
        """The answer as it was given, and the question."""
        image = existing(folder / str(values["image"])) if values.get("image") else None
        if self.target is None:
            if "prompt" not in values or "answer" not in values:
                raise BadData(
                    f"has columns {', '.join(map(str, values))} and neither prompt and answer nor a target",
                    "Name the column to predict: target='...' (--target).",
                )
            return values["answer"], Row(str(values["prompt"]), "", image)
        for name in (self.target, *(self.columns or ())):
            if name not in values:
                known = [str(key) for key in values]
                raise BadData(f"has no column {name!r}", f"Columns here: {', '.join(known)}.{nearest(name, known)}")
        shown = self.columns or tuple(key for key in values if key not in (self.target, "split", "image"))
        described = ", ".join(f"{key}: {_shown(values[key])}" for key in shown)
        return values[self.target], Row(f"{described}. {self.target}?", "", image)


def _last_number(text: str) -> Fraction:
    """The number that a worked answer ends with; refused where another notation would make it another number."""
    remedy = "Write numbers as 1234.5, correct the row, or leave such rows out with skip_bad=True (--skip-bad)."
    number: Fraction | None = EXTRACTORS["last_number"](text)
    if number is None:
        raise BadData(f"the answer {text!r:.60} holds no number", remedy)
    last = _NUMERAL_RUN.findall(text)[-1].rstrip(".,:'’-/_ ")
    if EXTRACTORS["number"](last) is None:
        raise BadData(f"the answer {text!r:.60} ends with {last!r:.40}, which is not one number", remedy)
    return number


def _notes(name: str, rewritten: Sequence[tuple[str, str]], cells: Sequence[Cell], mark: str | None) -> Iterator[str]:
    """What a user would want to know of how a column was read."""
    if rewritten:
        text, answer = next((pair for pair in rewritten if pair[0].lstrip("+") != pair[1]), rewritten[0])
        yield f"{name}: {len(rewritten):,} of {len(cells):,} answers are written in another way, such as {text!r} as {answer}."
    unclear = next((cell for cell in cells if cell.ambiguous), None)
    if mark == "." and unclear is not None and all(cell.mark is None for cell in cells):
        point, comma = answer_text(unclear.numbers["."]), answer_text(unclear.numbers[","])
        yield f"{name}: {unclear.text!r} is read as {point}, with a decimal point; decimal=',' reads it as {comma}."


def _test_marks(marks: set[int]) -> set[int]:
    """The hashes of the rows to test on: about every fifth, and at least two; none of a table that is too small."""
    if len(marks) < LEAST_ROWS:
        return set()
    tested = {mark for mark in marks if mark % 5 == 0}
    return tested if len(tested) >= 2 else tested | set(sorted(marks)[:2])


def _shown(value: Any) -> str:
    """As a person would write it: 84, not 84.0."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() and abs(value) < 1e15 else str(value).strip()


def _named_split(values: Mapping[str, Any]) -> Split | None:
    named = str(values.get("split") or "").lower()
    if named in ("train", "interpolate", "extrapolate"):
        return named  # type: ignore[return-value]
    if named in ("test", "val", "valid", "validation", "dev"):
        return "interpolate"
    if named:
        raise BadData(f"split {named!r} is not known", "Expected train, interpolate, extrapolate or test.")
    return None


def _flat(rng: random.Random, far: bool) -> Row:
    area = rng.randint(121, 240) if far else rng.randint(18, 120)
    rooms = max(1, round(area / 28) + rng.randint(-1, 1))
    floor, year = rng.randint(0, 9), rng.randrange(1950, 2025, 5)
    rent = 9 * area + 35 * rooms + 6 * floor + 2 * (year - 1950) + 120
    return Row(f"area: {area} m2, rooms: {rooms}, floor: {floor}, year: {year}. rent?", str(rent))


def _series(rng: random.Random, far: bool) -> Row:
    first, bend = rng.randint(-99, 99), rng.choice((0, 0, 1, 2, -1))
    step = rng.choice((-1, 1)) * (rng.randint(26, 99) if far else rng.randint(1, 25))
    values = [first + step * k + bend * k * (k - 1) // 2 for k in range(rng.randint(5, 8))]
    return Row(f"{', '.join(map(str, values[:-1]))}, ...?", str(values[-1]))
