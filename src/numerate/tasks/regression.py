"""Regression in text: a row of a table, or a short series, to a number. A file of your own works as it is.

    numerate task regression --data my.csv --target price

A CSV, TSV or JSONL file with a ``target`` column becomes questions such as ``area: 84, rooms: 3. price?``. A JSONL file with
columns ``prompt`` and ``answer``, and perhaps ``image`` (a path), is taken as it stands.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

from numerate.checks import check_choice, choices, nearest
from numerate.evaluation.extract import EXTRACTORS
from numerate.tasks.base import Example, Split, Task, content_hash
from numerate.tasks.files import BadData, Reader, existing

Kind = Literal["table", "series"]

_NEAR: tuple[Split, ...] = ("train", "interpolate")
_BLANK = ("", "-", "na", "n/a", "nan", "null", "none")


@dataclass(frozen=True)
class Row:
    """A question, its answer, and where its picture lies."""

    prompt: str
    answer: str
    image: Path | None = None


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

    Example:
        >>> task = Regression()
        >>> task.examples("train", 1)[0].prompt
        'area: 51 m2, rooms: 2, floor: 8, year: 1975. rent?'
    """

    kind: Kind = "table"
    target: str | None = None
    columns: tuple[str, ...] | None = None
    extrapolate: float = 0.0

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

    def read_row(self, row: dict[str, Any]) -> list[Row]:
        """As a row of a file."""
        return [self._row(row, Path())]

    def read_files(self, path: Path, reader: Reader) -> Mapping[Split, Sequence[Row]]:
        """A CSV, TSV or JSONL file; rows without an answer, which most tables have, are left out and counted.

        A column ``split`` (train, test, interpolate, extrapolate) is heeded, else a hash decides.
        """
        if path.suffix not in (".csv", ".tsv", ".jsonl"):
            raise BadData(f"is a {path.suffix or 'nameless'} file", "Expected .csv, .tsv or .jsonl.", path)
        rows: dict[Split, list[tuple[Row, Fraction]]] = {"train": [], "interpolate": [], "extrapolate": []}
        for line, values in reader.jsonl(path) if path.suffix == ".jsonl" else reader.table(path):
            with reader.row(path, line):
                row = self._row(values, path.parent)
                if row.answer.lower() in _BLANK:
                    reader.skipped.append(BadData("there is no answer", "Fill it in, if it is known.", path, line))
                    continue
                number = EXTRACTORS["last_number"](row.answer)
                if number is None:
                    remedy = "Name another target, correct the row, or leave such rows out with skip_bad=True (--skip-bad)."
                    raise BadData(f"the answer {row.answer!r:.60} holds no number", remedy)
                rows[_split(values, self.content(row))].append((row, number))
        largest = sorted((abs(number) for _, number in rows["train"] + rows["interpolate"]), reverse=True)
        cut = int(len(largest) * self.extrapolate)
        if cut:
            for split in _NEAR:
                rows["extrapolate"] += [pair for pair in rows[split] if abs(pair[1]) >= largest[cut - 1]]
                rows[split] = [pair for pair in rows[split] if abs(pair[1]) < largest[cut - 1]]
        return {split: [row for row, _ in found] for split, found in rows.items()}

    def _row(self, values: Mapping[str, Any], folder: Path) -> Row:
        image = existing(folder / str(values["image"])) if values.get("image") else None
        if self.target is None:
            if "prompt" not in values or "answer" not in values:
                raise BadData(
                    f"has columns {', '.join(map(str, values))} and neither prompt and answer nor a target",
                    "Name the column to predict: target='...' (--target).",
                )
            return Row(str(values["prompt"]), str(values["answer"]), image)
        for name in (self.target, *(self.columns or ())):
            if name not in values:
                known = [str(key) for key in values]
                raise BadData(f"has no column {name!r}", f"Columns here: {', '.join(known)}.{nearest(name, known)}")
        shown = self.columns or tuple(key for key in values if key not in (self.target, "split", "image"))
        described = ", ".join(f"{key}: {_shown(values[key])}" for key in shown)
        return Row(f"{described}. {self.target}?", _shown(values[self.target]), image)


def _shown(value: Any) -> str:
    """As a person would write it: 84, not 84.0."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() and abs(value) < 1e15 else str(value).strip()


def _split(values: Mapping[str, Any], content: Any) -> Split:
    named = str(values.get("split") or "").lower()
    if named in ("train", "interpolate", "extrapolate"):
        return named  # type: ignore[return-value]
    if named in ("test", "val", "valid", "validation", "dev"):
        return "interpolate"
    if named:
        raise BadData(f"split {named!r} is not known", "Expected train, interpolate, extrapolate or test.")
    return "interpolate" if content_hash(content) % 5 == 0 else "train"


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
