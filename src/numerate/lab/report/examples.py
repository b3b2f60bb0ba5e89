"""Select a few examples on which losses differ, by a rule that does not depend on which loss is better."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from hashlib import blake2b
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from numerate.distribution.exact import Floats
from numerate.lab.report.analysis import Score, Setup
from numerate.lab.report.figures.errors import error_scale
from numerate.lab.report.tables import DataTable

MAX_EXAMPLES = 12  # per setup
COLUMNS = 6  # losses, including the baseline
PIXELS = 132  # longer side of a picture
_MAX_PIXELS = 64_000_000  # larger images are not opened
_MAX_OUTLINES = 20  # of an answer

Mark = Literal["right", "wrong", "closer", "farther", "same"]


@dataclass(frozen=True)
class ExampleAnswer:
    """Output of the model of one loss."""

    label: str
    output: str
    mark: Mark
    value: float
    score: str  # the value as text


class Outline(NamedTuple):
    """A place in the picture that an answer names."""

    label: str | None  # of the loss; None: the gold answer
    points: str  # of a polygon in a picture of 1 x 1


@dataclass(frozen=True)
class ExampleRow:
    """Question, image, and the answers of the losses."""

    split: str
    index: int
    prompt: str
    gold: str
    image: str | None  # as a data: URL
    answers: tuple[ExampleAnswer, ...]
    outlines: tuple[Outline, ...]  # in the picture


@dataclass(frozen=True)
class DifferingExamples:
    """Selected examples, and how many there are."""

    seed: int
    labels: tuple[str, ...]
    examples: tuple[ExampleRow, ...]
    counts: tuple[tuple[str, int, int, int, int], ...]  # split, examples, differing, a loss better, a loss worse
    binary: bool

    @property
    def outlined(self) -> bool:
        """Whether answers are shown in the pictures."""
        return any(example.outlines for example in self.examples)


def differing(setup: Setup, scores: Sequence[Score], limit: int = MAX_EXAMPLES) -> DifferingExamples | None:
    """Select examples that a loss scores better or worse than the baseline with the same seed; None if there are none."""
    common = set.intersection(*(set(cells) for cells in setup.cells.values()))
    if not common or len(setup.labels) < 2:
        return None
    seed, labels = min(common), _columns(setup, scores)
    binary = all(
        set(np.unique(setup.values(label, split, setup.headline.name))) <= {0, 1} for label in labels for split in setup.splits
    )
    counts, examples = [], []
    for i, split in enumerate(setup.splits):
        quality = np.stack([_quality(setup, label, split, seed) for label in labels])  # [L, E], higher is better
        better, worse = (quality[1:] > quality[0]).any(0), (quality[1:] < quality[0]).any(0)
        differ = better | worse
        counts.append((split, len(differ), int(differ.sum()), int(better.sum()), int(worse.sum())))
        share = limit // len(setup.splits) + (i < limit % len(setup.splits))
        for index in _chosen(split, better, worse, share):
            examples.append(_example(setup, split, index, seed, labels, quality[:, index], binary))
    return DifferingExamples(seed, labels, tuple(examples), tuple(counts), binary) if examples else None


def examples_table(selected: DifferingExamples) -> DataTable:
    """Return the selected examples as a table."""
    columns = ("split", "index", "prompt", "gold", "loss", "output", "headline", "mark")
    rows = [
        (example.split, example.index, example.prompt, example.gold, answer.label, answer.output, answer.value, answer.mark)
        for example in selected.examples
        for answer in example.answers
    ]
    return DataTable(columns, rows)


def _columns(setup: Setup, scores: Sequence[Score]) -> tuple[str, ...]:
    """Return the baseline, or the first loss, and the losses with the best scores."""
    estimates = {score.label: score.interval.estimate for score in scores if score.split == setup.splits[0]}
    sign = -1 if setup.headline.higher_is_better else 1
    first, *others = setup.labels
    return (first, *sorted(others, key=lambda label: (sign * estimates[label], label))[: COLUMNS - 1])


def _quality(setup: Setup, label: str, split: str, seed: int) -> Floats:
    """Return the headline with the sign such that higher is better; errors as classes, since no two errors are exactly equal."""
    values: Floats = setup.values(label, split, setup.headline.name, seeds=[seed])[0]
    scale = error_scale(setup)
    if scale is not None and scale.measure.name == setup.headline.name:
        return -scale.class_of(values).astype(float)
    return -values if setup.headline.higher_is_better is False else values


def _chosen(split: str, better: NDArray[np.bool_], worse: NDArray[np.bool_], limit: int) -> list[int]:
    """Select gained and lost examples in proportion to their numbers, at least one of each, ordered by a hash."""

    def order(index: int) -> bytes:
        return blake2b(f"{split}/{index}".encode(), digest_size=8).digest()

    gained, lost = (sorted(np.flatnonzero(kind).tolist(), key=order) for kind in (better & ~worse, worse))
    total = len(gained) + len(lost)
    if total <= limit:
        return sorted([*gained, *lost])
    few = min(max(1, round(limit * len(lost) / total)), limit - 1) if gained and lost and limit > 1 else limit if lost else 0
    return sorted([*gained[: limit - few], *lost[:few]])


def _example(
    setup: Setup, split: str, position: int, seed: int, labels: Sequence[str], quality: Floats, binary: bool
) -> ExampleRow:
    answers = []
    for label, value in zip(labels, quality.tolist(), strict=True):
        part = setup.cells[label][seed].splits[split]
        gap = value - float(quality[0])
        mark: Mark = ("right" if value == 1 else "wrong") if binary else "closer" if gap > 0 else "farther" if gap < 0 else "same"
        score = float(part.measures[setup.headline.name][position])
        beyond = math.isinf(score) and part.answers[position] is not None  # relative to a gold answer of 0, or too large
        text = "∞" if beyond else setup.headline.value(score)
        answers.append(ExampleAnswer(label, part.outputs[position], mark, score, text))
    questions = setup.examples(split)
    image = None
    for cell in (setup.cells[label][seed] for label in labels):
        if image is None and (path := cell.splits[split].images[position]) is not None:
            image = _thumbnail(cell.folder, path)
    gold = questions.golds[position]
    shown = () if image is None else _outlines(setup, {answer.label: answer.output for answer in answers} | {None: gold})
    return ExampleRow(split, questions.index[position], questions.prompts[position], gold, image, tuple(answers), shown)


def _outlines(setup: Setup, texts: Mapping[str | None, str]) -> tuple[Outline, ...]:
    """Return the places that outputs and gold answer name, in the order in which they are drawn; of each a few at most."""
    task = setup.known_task()
    if task is None:
        return ()
    return tuple(
        Outline(label, _polygon(corners)) for label, text in texts.items() for corners in task.outlines(text)[:_MAX_OUTLINES]
    )


def _polygon(corners: Sequence[Fraction]) -> str:
    """Return the points of a box or a quadrilateral; those far outside of the picture as near as makes no difference."""
    if len(corners) == 4:
        x1, y1, x2, y2 = corners
        corners = (x1, y1, x2, y1, x2, y2, x1, y2)
    sides = [f"{float(min(max(side, Fraction(-1)), Fraction(2))):.4g}" for side in corners]
    return " ".join(f"{x},{y}" for x, y in zip(sides[::2], sides[1::2], strict=True))


def _thumbnail(folder: Path, path: str) -> str | None:
    """Return a small copy as a data: URL; None if the file is missing, outside of the experiment, or not an image."""
    from PIL import Image, UnidentifiedImageError

    root = folder.parent.parent.resolve()
    candidates = [(base / path).resolve() for base in (folder, root)]
    file = next((candidate for candidate in candidates if candidate.is_relative_to(root) and candidate.is_file()), None)
    if file is None:
        return None
    try:
        with Image.open(file) as opened:
            if opened.width * opened.height > _MAX_PIXELS:
                return None
            small = opened.convert("RGB")
            small.thumbnail((PIXELS * 2, PIXELS * 2))  # twice the size, for high-resolution screens
    except (OSError, ValueError, SyntaxError, UnidentifiedImageError, Image.DecompressionBombError):
        return None
    written = {}
    for kind, settings in (("jpeg", {"quality": 80}), ("png", {"optimize": True})):
        buffer = io.BytesIO()
        small.save(buffer, kind, **settings)
        written[kind] = buffer.getvalue()
    kind = min(written, key=lambda name: len(written[name]))
    return f"data:image/{kind};base64,{base64.b64encode(written[kind]).decode()}"
