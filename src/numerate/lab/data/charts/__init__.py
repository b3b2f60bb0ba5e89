"""The charts task: answer a question about a bar, line or pie chart with a number.

    What is the rainfall in Feb in Porto? Answer with a number.       15

``topics`` has the subjects, ``questions`` the questions, ``figure`` the drawing, ``page`` the paper with its texts.
Real data: ChartQA (Masry et al., Findings of ACL 2022, arXiv:2203.10244).
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import Any

from numerate.answers.extract import final_answer, whole_text
from numerate.answers.metrics import METRICS
from numerate.answers.numerals import number
from numerate.lab.data.base import Example, Split, Task, check_whole
from numerate.lab.data.charts.figure import Chart, chart_image, random_chart_look
from numerate.lab.data.charts.questions import ask
from numerate.lab.data.charts.topics import TOPICS, ChartKind, ChartTable, Names, Topic
from numerate.lab.data.pictures import Picture
from numerate.lab.data.row_reader import BadData, RowReader, column, existing, photo

_SPLITS: Mapping[str, Split] = {"train": "train", "val": "interpolate", "test": "interpolate"}
_MORE = 4  # most categories that extrapolation adds


@dataclass(frozen=True)
class Charts(Task):
    """Answer a question about a bar, line or pie chart with a number: a value, a difference, a sum, a ratio, a count.

    Values are printed in the chart, or lie on a grid line or halfway between two. Answers are plain numbers without ``%``,
    ``$`` or thousands commas, and have at most two decimals.

    Training and interpolation have at most ``categories`` categories and values up to ``largest``. Extrapolation has one to
    four more categories, and only values above ``largest``.

    Examples:
        >>> example = Charts().examples("train", 1)[0]
        >>> example.prompt, example.answer
        ('What is the rainfall in Feb in Porto? Answer with a number.', '15')
    """

    size: int = 560  # width of the image in pixels, 320 to 4096; its height is smaller
    categories: int = 6  # the most categories in a training chart, 3 to 6
    largest: int = 1000  # the largest value in training, 100 to 100,000

    name = "charts"
    dataset = "ChartQA"
    number_kind = "chart"
    measures = ("relaxed_accuracy", "exact", "parsed", "relative_error")
    visual = True

    def __post_init__(self) -> None:
        for name, low, high in (("size", 320, 4096), ("categories", 3, 6), ("largest", 100, 100_000)):
            check_whole(name, getattr(self, name), low, high)

    def draw(self, rng: random.Random, split: Split) -> Chart:
        """Draw a chart of random values and a question about it."""
        outside = split == "extrapolate"
        n = rng.randint(self.categories + 1, self.categories + _MORE) if outside else rng.randint(3, self.categories)
        fitting = [topic for topic in TOPICS if len(topic.categories.names) >= n and topic.tops[0] <= self.largest]
        topic = rng.choice([topic for topic in fitting if topic.large or not outside])
        kind = rng.choice(topic.kinds)
        names = topic.series.names
        rows = {"grouped": rng.randint(2, len(names) or 2), "line": rng.randint(1, len(names) or 1)}.get(kind, 1)
        series = tuple(names[k] for k in sorted(rng.sample(range(len(names)), rows))) if rows > 1 else ("",)
        labels = kind == "pie" or ((rows == 1 if kind == "line" else n * rows <= 16) and rng.random() < 0.5)
        tick, top = self._axis(rng, topic, outside, labels)
        least = self.largest * 10**topic.decimals + 1 if outside else top // 12 + 1
        values = _parts(rng, n, labels) if topic.whole else _values(rng, kind, n, len(series), (least, tick, top), labels)
        if topic.whole:
            tick, top = 10, (max(values[0]) // 10 + 1) * 10
        table = ChartTable(topic, _sample(rng, topic.categories, n), series, values)
        question, answer = ask(rng, table, tick)
        return Chart(kind, table, tick, top, labels, random_chart_look(rng), question, answer)

    def _axis(self, rng: random.Random, topic: Topic, outside: bool, labels: bool) -> tuple[int, int]:
        """Draw step and end of the axis, in units of the last decimal. Without printed values the step is even."""
        scale = 10**topic.decimals
        low, high = (4 * self.largest, 10 * self.largest) if outside else (topic.tops[0], min(topic.tops[1], self.largest))
        steps = [digit * 10**power for power in range(7) for digit in (1, 2, 5)]
        choices = [(step, step * k) for step in steps for k in range(4, 9) if labels or step % 2 == 0]
        return rng.choice([(step, top) for step, top in choices if low * scale <= top <= high * scale])

    def content(self, spec: Chart) -> Any:
        """Return the numbers and the question; ignores the look."""
        table = spec.table
        return table.topic.title, table.categories, table.series, table.values, spec.question

    def make(self, spec: Chart) -> Example:
        """Return a question about a chart, which is drawn."""
        table = spec.table
        meta = {"kind": spec.kind, "categories": table.categories, "series": table.series, "labels": spec.labels}
        return Example(f"{spec.question} Answer with a number.", spec.answer, Picture(chart_image, (spec, self.size)), meta)

    def score(self, example: Example, output: str) -> dict[str, float]:
        """Return every metric. If the gold answer is not a number, ``exact`` compares texts, and the error is 0 or infinite."""
        gold, said = example.answer, final_answer(output) or whole_text(output)
        gold_number = number(gold.removesuffix("%"))
        if gold_number is None:
            same = METRICS["relaxed_accuracy"](gold, said)
            exact, parsed = METRICS["string_match"](gold, said), METRICS["parsed"](gold, said)
            return {"relaxed_accuracy": same, "exact": exact, "parsed": parsed, "relative_error": 0.0 if same else inf}
        guess = self.read(output)
        only_number = said is not None and number(said.rstrip(" .%")) is not None  # then "62%" may mean 0.62
        relaxed = METRICS["relaxed_accuracy"](gold, said if only_number else guess)
        return {"relaxed_accuracy": relaxed} | {name: METRICS[name](gold_number, guess) for name in self.measures[1:]}

    def read_files(self, path: Path, reader: RowReader) -> Mapping[Split, Sequence[Example]]:
        """Read ChartQA: a folder with ``train/``, ``val/`` and ``test/``, one of those folders, or one of their JSON files.

        Each folder has ``{split}_human.json`` and ``{split}_augmented.json``, lists of objects with ``imgname``, ``query`` and
        ``label``, and the images in ``png/``. ``val`` and ``test`` become ``interpolate``.
        """
        rows: dict[Split, list[Example]] = {"train": [], "interpolate": []}
        names = [(name, split, kind) for name, split in _SPLITS.items() for kind in ("human", "augmented")]
        files = [(folder / f"{name}_{kind}.json", split) for name, split, kind in names for folder in (path, path / name)]
        files = [(file, split) for file, split in files if file.is_file()]
        if path.suffix == ".json":
            files = [(path, _SPLITS.get(path.stem.partition("_")[0], "interpolate"))]
        if not files:
            raise BadData(
                "is not the ChartQA dataset",
                "Expected a folder with val_human.json, val_augmented.json and png/, or with train/, val/ and test/ that do.",
                path,
            )
        for file, split in files:
            for line, row in reader.json_list(file):
                with reader.row(file, line):
                    rows[split].append(_question(row, file.parent))
        return rows


def _question(row: dict[str, Any], folder: Path) -> Example:
    """Read a row of ChartQA: ``query``, ``label``, and the name of the image in ``imgname``."""
    query, label = column(row, "query"), column(row, "label")
    for name, value in (("query", query), ("label", label)):
        if not isinstance(value, str | int | float) or not str(value).strip():
            raise BadData(f"{name} is {value!r}", "Expected a text that is not empty.")
    image = existing(folder / "png" / str(column(row, "imgname")))
    prompt = f"{str(query).strip()} Answer with a number, a word or a short phrase."
    return Example(prompt, str(label).strip(), photo(image), {"image": str(image)})


def _sample(rng: random.Random, names: Names, n: int) -> tuple[str, ...]:
    """Draw ``n`` of the names; consecutive ones if they are ordered."""
    if names.ordered:
        start = rng.randint(0, len(names.names) - n)
        return names.names[start : start + n]
    return tuple(rng.sample(names.names, n))


def _parts(rng: random.Random, n: int, labels: bool) -> tuple[tuple[int, ...], ...]:
    """Draw percentages that add up to 100, none below five; multiples of five if they are read off a grid."""
    unit, least = (1, 4) if labels else (5, 0)
    rest = 100 // unit - n * least
    cuts = [0, *sorted(rng.sample(range(1, rest), n - 1)), rest]
    return (tuple((end - start + least) * unit for start, end in pairwise(cuts)),)


def _values(
    rng: random.Random, kind: ChartKind, n: int, rows: int, axis: tuple[int, int, int], labels: bool
) -> tuple[tuple[int, ...], ...]:
    """Draw values within an axis; on the grid if they are not printed. A line rises or falls by at most a third per step."""
    least, tick, top = axis
    unit = 1 if labels else tick // 2
    low, high = -(-least // unit), top * 19 // (20 * unit)
    if kind == "pie":
        low = max(low, high * 2 // 5)  # no slice is tiny
    reach = max(1, (high - low) // 3) if kind == "line" else high
    table: list[list[int]] = []  # [categories][series]
    last = [rng.randint(low, high) for _ in range(rows)]
    while len(table) < n:
        row = [rng.randint(max(low, value - reach), min(high, value + reach)) for value in last]
        if len(set(row)) == rows:  # no line hides another
            table.append(row)
            last = row
        elif not table:
            last = [rng.randint(low, high) for _ in range(rows)]
    return tuple(tuple(value * unit for value in row) for row in zip(*table, strict=True))
