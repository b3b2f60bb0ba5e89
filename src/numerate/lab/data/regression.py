"""The regression task: predict a number from a table row or a short series, generated or from your own file.

    numerate task regression --data my.csv --target price

A table (:mod:`numerate.lab.data.readers` has the formats) with a ``target`` column becomes questions such as
``area: 84, rooms: 3. price?``. It may be one that comes with the package (:mod:`numerate.lab.data.tables`). Other columns are
shown unchanged, except uninformative ones (:mod:`numerate.lab.data.columns`). The target is rewritten as a plain number,
``70,35 €`` as ``70.35`` (:mod:`numerate.lab.data.cells`).

A file with the columns ``prompt``, ``answer`` and optionally ``image`` (a path), or in one of TRL's formats
(:mod:`numerate.lab.data.chats`), is used unchanged, except for answers such as ``70,35 €``, which would be misread. Several
people's ratings of one thing, in one cell or several columns, become an answer that is their mean or median; training on soft
labels uses all of them.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from numerate.answers.extract import EXTRACTORS
from numerate.checks import check_choice, choices
from numerate.lab.data.base import Example, Split, Task, check_whole, content_hash
from numerate.lab.data.cells import (
    DecimalMark,
    TableCell,
    absolute_note,
    answer_text,
    average,
    decimal_mark,
    is_blank,
    last_number,
    number_of,
    read_cell,
    read_ratings,
    rewriting_notes,
    usual_unit,
)
from numerate.lab.data.chats import as_question, has_turns, turns_notes
from numerate.lab.data.columns import check_columns, column_notes, left_out, shown_value
from numerate.lab.data.question import Question
from numerate.lab.data.readers import read_rows
from numerate.lab.data.row_reader import (
    BadData,
    RowReader,
    check_encoding,
    delimiter,
    existing,
    file_type,
    named_split,
    photo,
)
from numerate.lab.data.tables import table_file

if TYPE_CHECKING:
    from numerate.targets import AnswerDistribution

RegressionKind = Literal["table", "series"]
Average = Literal["mean", "median"]
RowWording = Literal["names", "bare"]

LEAST_ROWS = 10
"""The fewest different rows for which a table is split into training and test rows."""

MISSING = "?"
"""A missing value in a question of bare values."""

_NEAR: tuple[Split, ...] = ("train", "interpolate")
_Answer = TableCell | str | tuple[Decimal, ...]  # a cell of the column, a text that ends with a number, or several ratings


@dataclass(frozen=True)
class Row:
    """A question, its answer, the path of its image, the ratings whose average the answer is, and the cells that it shows."""

    prompt: str
    answer: str
    image: Path | None = None
    ratings: tuple[Decimal, ...] = ()
    cells: Mapping[str, Any] = field(default_factory=dict, compare=False)  # by column, as in the file; prompts have none


@dataclass(frozen=True)
class _UnreadRow:
    """A row whose answer is not converted yet."""

    line: int
    split: Split | None
    row: Row
    answer: _Answer


@dataclass(frozen=True)
class Regression(Task):
    """Predict a number from a text, a table row or a series.

    A generated ``"table"`` row describes a flat whose rent is a fixed linear function of size, rooms, floor and year. A
    ``"series"`` is a line or curve to continue by one value. Extrapolation has larger flats, and series with larger steps.

    Examples:
        >>> task = Regression()
        >>> task.examples("train", 1)[0].prompt
        'area: 51 m2, rooms: 2, floor: 8, year: 1975. rent?'
    """

    kind: RegressionKind = "table"  # what to generate, ``"table"`` or ``"series"``
    target: str | None = None  # files only: the column to predict. None: the file has columns ``prompt`` and ``answer``.
    columns: tuple[str, ...] | None = None  # files only: the columns to predict from. None: all other informative columns.
    extrapolate: float = 0.0  # files only: the share of rows with the largest targets that is kept for extrapolation, in [0, 0.5)
    # Files only: the decimal mark of the target, ``"."`` or ``","``. None: detected, see ``numerate.lab.data.cells``.
    decimal: DecimalMark | None = None
    # Files only: ``"mean"`` or ``"median"`` of several ratings, which cells of the target hold (``[1, 2, 2]``).
    average: Average | None = None
    # Files only: the columns with one person's ratings each; ``target`` is then only what is asked.
    raters: tuple[str, ...] | None = None
    decimals: int | None = None  # files only: of the average. None: one more than the ratings have.
    # Files only: ``"names"`` asks ``area: 84, rooms: 3. price?``; ``"bare"`` shows the values alone, ``84 3``, which are fewer
    # tokens to train on; a missing value is ``?``.
    wording: RowWording = "names"
    without: tuple[str, ...] | None = None  # files only: columns to leave out
    # Files only: of a text file, such as ``"cp1250"``. None: UTF-8, UTF-16 or cp1252, whichever it is.
    encoding: str | None = None
    sheet: str | None = None  # files only: of an Excel workbook. None: the only one.

    left_out: ClassVar[Mapping[str, str]] = {}
    """Columns of the file that questions do not show, each with the reason."""

    name = "regression"
    generates_with = ("kind",)
    reads_with = (
        *("target", "columns", "without", "encoding", "sheet", "wording"),
        *("extrapolate", "decimal", "average", "raters", "decimals"),
    )
    number_kind = "table"
    measures = (
        *("relative_error", "exact", "parsed", "absolute_error", "log10_error", "smape"),
        *("within_1", "within_5", "within_10"),
    )

    def __post_init__(self) -> None:
        for name, kind in (("kind", RegressionKind), ("wording", RowWording), ("decimal", DecimalMark), ("average", Average)):
            if (value := getattr(self, name)) is not None:
                check_choice(name, value, choices(kind))
        check_encoding(self.encoding)
        for name in ("columns", "raters", "without"):
            if isinstance(value := getattr(self, name), str):
                raise TypeError(f"{name}={value!r} is one string: expected several names, such as ('area', 'rooms').")
        for name in ("wording", "columns", "without", "average", "raters"):
            if self.target is None and (value := getattr(self, name)) and value != "names":
                raise ValueError(f"{name}={value!r} needs a target: expected the column of a table to predict (--target price).")
        if not 0 <= self.extrapolate < 0.5:
            raise ValueError(f"extrapolate={self.extrapolate!r} is out of range: expected a share in [0, 0.5).")
        if self.columns and self.without:
            raise ValueError(f"columns={self.columns!r} and without={self.without!r} are both set: expected one of them.")
        if self.target is not None and self.target in (self.columns or ()):
            raise ValueError(f"columns={self.columns!r} has the target {self.target!r}: leave it out, it is what is asked.")
        if self.is_rated:  # ratings may be 0, or of either sign
            object.__setattr__(self, "number_kind", "raters")
            self._judge_by_absolute_error()
        if self.decimals is not None:
            check_whole("decimals", self.decimals, 0, 15)
            if not self.is_rated:
                raise ValueError(f"decimals={self.decimals} is for averages of ratings: expected average='mean' or 'median' too.")

    def _judge_by_absolute_error(self) -> None:
        first = "absolute_error"
        object.__setattr__(self, "measures", (first, *(name for name in self.measures if name != first)))

    @property
    def is_rated(self) -> bool:
        """Whether an answer is the average of several ratings."""
        return self.average is not None or bool(self.raters)

    def draw(self, rng: random.Random, split: Split) -> Row:
        """Draw a question and its answer."""
        return (_flat if self.kind == "table" else _series)(rng, split == "extrapolate")

    def make(self, spec: Row) -> Example:
        """Return the question, with its image if there is one."""
        meta = {name: value for name in ("ratings", "cells") if (value := getattr(spec, name))}
        return Example(spec.prompt, spec.answer, None if spec.image is None else photo(spec.image), meta)

    def content(self, spec: Row) -> Any:
        """Return question, answer and the name of the image."""
        return spec.prompt, spec.answer, None if spec.image is None else spec.image.name

    @property
    def soft_width(self) -> Mapping[str, float]:
        """Five per cent; ratings have no width."""
        return {} if self.is_rated else super().soft_width

    def soft_target(self, **settings: Any) -> Callable[[Example], AnswerDistribution]:
        """Return a bell around the answer if a width is set, else the ratings, with the answer's decimals."""
        if not self.is_rated or settings.get("width") is not None or settings.get("relative") is not None:
            return super().soft_target(**settings)
        from numerate.targets import Ratings

        for name in ("lowest", "highest", "step"):
            if settings.get(name) is not None:
                raise ValueError(f"targets are several people's ratings, for which {name} has no meaning unless a width is set")

        def target(example: Example) -> AnswerDistribution:
            decimals = len(example.answer.partition(".")[2])
            return Ratings(decimals=decimals)(example.meta["ratings"]).with_hard(example.answer, settings["hard"])

        return target

    def read_files(self, path: Path, reader: RowReader) -> Mapping[Split, Sequence[Row]]:
        """Read a file in one of the formats of ``READERS``, or a table of the package by its name.

        Rows without an answer, which most tables have, are skipped and counted.

        A column ``split`` (train, test, interpolate, extrapolate) assigns the rows; without it, a hash does. A table with
        fewer than ``LEAST_ROWS`` rows is not split.
        """
        path = table_file(path)
        reader.encoding, reader.sheet = self.encoding, self.sheet
        rows_read: list[tuple[int, dict[str, Any]]] = []
        for line, values in read_rows(path, reader):
            if not rows_read and not reader.skip_bad:  # a wrong name is reported before errors in later rows
                with reader.row(path, line):
                    self._row(values, path.parent)
            rows_read.append((line, values))
        if self.target is not None:
            self._choose_columns([values for _, values in rows_read], reader, path)
        semicolons = file_type(path) == ".csv" and delimiter(path, self.encoding) == ";"
        answered = list(self._answered(path, rows_read, reader, semicolons=semicolons))
        if not self.is_rated and (note := absolute_note(self.target or "answer", [number for *_, number in answered])):
            self._judge_by_absolute_error()
            reader.notes.append(note)
        tested = _test_marks({content_hash(self.content(row)) for _, row, _ in answered})
        rows: dict[Split, list[tuple[Row, Fraction]]] = {"train": [], "interpolate": [], "extrapolate": []}
        for unread, row, number in answered:
            by_hash: Split = "interpolate" if content_hash(self.content(row)) in tested else "train"
            rows[unread.split or by_hash].append((row, number))
        count = sum(len(rows[split]) for split in _NEAR)
        if cut := int(count * self.extrapolate):
            least = sorted((abs(number) for split in _NEAR for _, number in rows[split]), reverse=True)[cut - 1]
            for split in _NEAR:
                rows["extrapolate"] += [pair for pair in rows[split] if abs(pair[1]) >= least]
                rows[split] = [pair for pair in rows[split] if abs(pair[1]) < least]
        return {split: [row for row, _ in pairs] for split, pairs in rows.items()}

    def _choose_columns(self, rows: Sequence[Mapping[str, Any]], reader: RowReader, path: Path) -> None:
        """Note which columns are left out, and why; check the names of those that the settings leave out."""
        names = list(dict.fromkeys(name for values in rows for name in values))
        with RowReader().row(path, None):
            check_columns(self.without or (), names)
        reasons = dict.fromkeys(self.raters or (), "a rating") | {"split": "assigns the rows", "image": "the picture"}
        reasons |= dict.fromkeys(self.without or (), "chosen to be left out") | {str(self.target): "what is asked"}
        hidden, found = left_out([row for row in rows if not is_blank(self.raw_answer(row))], reasons, self.columns)
        object.__setattr__(self, "left_out", hidden)
        reader.notes += column_notes(str(self.target), [*(self.columns or self.shown(names))], found, rows)

    def _answered(
        self, path: Path, rows: Iterable[tuple[int, dict[str, Any]]], reader: RowReader, *, semicolons: bool
    ) -> Iterator[tuple[_UnreadRow, Row, Fraction]]:
        """Read the answers as one column; yield each row with its plain answer and that answer's number."""
        unread_rows: list[_UnreadRow] = []
        longer: list[bool] = []
        for line, values in rows:
            with reader.row(path, line):
                value, row = self._row(values, path.parent)
                if is_blank(value):
                    reader.skipped.append(BadData("has no answer", "Fill it in, if it is known.", path, line))
                    continue
                unread_rows.append(_UnreadRow(line, named_split(values), row, self._read_answer(value)))
                longer.append(self.target is None and has_turns(values))
        reader.notes += turns_notes(longer)
        name = self.target or "answer"
        try:
            mark, unit = self._notation([(f"line {unread.line}", unread.answer) for unread in unread_rows], semicolons)
        except BadData as bad:
            raise BadData(bad.problem, bad.remedy, path) from None
        rewritten: list[tuple[str, str]] = []
        rated = [unread.answer for unread in unread_rows if isinstance(unread.answer, tuple)]
        decimals = _decimals(rated) + 1 if self.decimals is None else self.decimals
        for unread in unread_rows:
            with reader.row(path, unread.line):
                read = unread.answer
                number = self._number(read, mark, unit, decimals)
                text = answer_text(number) if isinstance(number, Decimal) else str(read)
                if isinstance(read, TableCell):
                    if self.target is None and EXTRACTORS["last_number"](read.text) == number:
                        text = read.text
                    rewritten += [(read.text, text)] if read.text != text else []
                ratings = read if isinstance(read, tuple) else ()
                yield unread, replace(unread.row, answer=text, ratings=ratings), Fraction(number)
        if rated:
            fewest, most = min(map(len, rated)), max(map(len, rated))
            count = f"{fewest}" if fewest == most else f"{fewest} to {most}"
            places = f"{decimals} decimal{'' if decimals == 1 else 's'}"
            reader.notes.append(f"{name}: each answer is the {self.average or 'mean'} of {count} ratings, with {places}.")
        cells = [unread.answer for unread in unread_rows if isinstance(unread.answer, TableCell)]
        reader.notes += rewriting_notes(name, rewritten, cells, None if self.decimal else mark)

    def _notation(self, answers: Iterable[tuple[str, _Answer | None]], semicolons: bool) -> tuple[DecimalMark, str]:
        """Return decimal mark and unit of a column, given its answers with their places."""
        cells = [(place, answer) for place, answer in answers if isinstance(answer, TableCell)]
        mark = self.decimal or decimal_mark(cells, self.target or "answer", semicolons=semicolons)
        return mark, usual_unit([cell for _, cell in cells])

    def _number(self, answer: _Answer, mark: DecimalMark, unit: str, decimals: int) -> Decimal | Fraction:
        if isinstance(answer, tuple):
            return average(answer, self.average or "mean", decimals)
        if isinstance(answer, str):
            return last_number(answer)
        return number_of(answer, mark, unit if self.target else answer.unit)

    def _read_answer(self, value: Any) -> _Answer:
        """Parse a cell, or ratings; without a target column, also accept a text that ends with a number."""
        if self.is_rated:
            return read_ratings(value)
        try:
            return read_cell(value)
        except BadData:
            if self.target is not None or not isinstance(value, str):
                raise
            last_number(value)
            return value.strip()

    def _row(self, values: Mapping[str, Any], folder: Path) -> tuple[Any, Row]:
        """Return the raw answer and the question."""
        values = values if self.target is not None else as_question(values)
        if self.target is None and ("prompt" not in values or "answer" not in values):
            raise BadData(
                f"has the columns {', '.join(map(str, values))}, but not prompt and answer, and no target is set",
                "Name the column to predict: target='...' (--target). Chats have the column messages, or prompt and completion.",
            )
        check_columns(self.raters or ("answer" if self.target is None else self.target,), values)
        return self.raw_answer(values), self.ask(values, folder)

    def raw_answer(self, values: Mapping[str, Any]) -> Any:
        """Return the cell of the answer, or those of all raters; None if it is missing, or no rater has a number."""
        if self.target is None:
            return as_question(values).get("answer")
        if not self.raters:
            return values.get(self.target)
        cells = [values[name] for name in self.raters if not is_blank(values.get(name))]
        return cells or None

    def ask(self, values: Mapping[str, Any], folder: Path) -> Row:
        """Return the question about a row, in which the answer may be missing; images are relative to ``folder``.

        Examples:
            >>> Regression(target="price", columns=("rooms", "area")).ask({"area": 84.0, "rooms": 3, "id": 7}, Path()).prompt
            'rooms: 3, area: 84. price?'
            >>> Regression(target="price", wording="bare").ask({"rooms": 3, "area": 84.0}, Path()).prompt
            '3 84'
            >>> Regression(target="price", wording="bare").ask({"rooms": None, "area": 84.0}, Path()).prompt
            '? 84'
        """
        image = existing(folder / str(values["image"])) if values.get("image") else None
        if self.target is None:
            values = as_question(values)
            check_columns(("prompt",), values)
            return Row(str(values["prompt"]), "", image)
        check_columns(self.columns or (), values)
        shown = self.columns or self.shown(values)
        own = {name: values[name] for name in shown}
        if self.wording == "bare":
            # Without a placeholder for a missing value, those after it would seem to be one column further to the left.
            cells = [(" " if at else "", shown_value(value) or MISSING) for at, value in enumerate(own.values())]
            return Row(Question.of(cells), "", image, cells=own)
        named = [(f"{', ' if at else ''}{key}: ", shown_value(value)) for at, (key, value) in enumerate(own.items())]
        return Row(Question.of(named, f". {self.target}?"), "", image, cells=own)

    def shown(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return the columns that questions show if ``columns`` is not set."""
        never = {self.target, *(self.raters or ()), *(self.without or ()), "split", "image"}
        return tuple(name for name in names if name not in never and name not in self.left_out)

    def asked_columns(self, path: Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the columns that the questions about a file show, and those of them that some rows lack."""
        if self.target is None or self.columns:
            return tuple(self.columns or ()), ()
        counts: Counter[str] = Counter()
        total = 0
        for _, values in read_rows(table_file(path), RowReader(True, self.encoding, self.sheet)):
            if not is_blank(self.raw_answer(values)):
                counts.update(self.shown(values))
                total += 1
        return tuple(counts), tuple(name for name, count in counts.items() if count < total)

    def numbers(self, answers: Iterable[Any], *, semicolons: bool = False) -> list[Fraction | None]:
        """Read the known answers of new rows as one column; None where a cell is empty or not one number."""
        read: list[_Answer | None] = []
        for value in answers:
            try:
                read.append(None if is_blank(value) else self._read_answer(value))
            except BadData:
                read.append(None)
        mark, unit = self._notation([(f"row {row}", answer) for row, answer in enumerate(read, 1)], semicolons)
        numbers: list[Fraction | None] = []
        for answer in read:
            try:
                numbers.append(None if answer is None else Fraction(self._number(answer, mark, unit, 15)))
            except BadData:
                numbers.append(None)
        return numbers


def _decimals(rated: Iterable[Sequence[Decimal]]) -> int:
    """Return the most decimals of any rating."""
    exponents = (rating.as_tuple().exponent for ratings in rated for rating in ratings)
    return max((-exponent for exponent in exponents if isinstance(exponent, int) and exponent < 0), default=0)


def _test_marks(marks: set[int]) -> set[int]:
    """Return the hashes of the test rows: about every fifth, and at least two; none if the table is too small."""
    if len(marks) < LEAST_ROWS:
        return set()
    tested = {mark for mark in marks if mark % 5 == 0}
    return tested if len(tested) >= 2 else tested | set(sorted(marks)[:2])


def _flat(rng: random.Random, far: bool) -> Row:
    area = rng.randint(121, 240) if far else rng.randint(18, 120)
    rooms = max(1, round(area / 28) + rng.randint(-1, 1))
    floor, year = rng.randint(0, 9), rng.randrange(1950, 2025, 5)
    rent = 9 * area + 35 * rooms + 6 * floor + 2 * (year - 1950) + 120
    cells = {"area": area, "rooms": rooms, "floor": floor, "year": year}
    return Row(f"area: {area} m2, rooms: {rooms}, floor: {floor}, year: {year}. rent?", str(rent), cells=cells)


def _series(rng: random.Random, far: bool) -> Row:
    first, bend = rng.randint(-99, 99), rng.choice((0, 0, 1, 2, -1))
    step = rng.choice((-1, 1)) * (rng.randint(26, 99) if far else rng.randint(1, 25))
    values = [first + step * k + bend * k * (k - 1) // 2 for k in range(rng.randint(5, 8))]
    return Row(f"{', '.join(map(str, values[:-1]))}, ...?", str(values[-1]))
