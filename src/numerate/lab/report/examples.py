"""Examples on which losses differ: a few, chosen by a rule that does not know who wins."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from numerate.lab.report.analysis import Score, Setup
from numerate.lab.report.records import Floats
from numerate.lab.report.series import Table, spread

SHOWN = 12  # of a setup
COLUMNS = 6  # losses, the baseline among them
PIXELS = 132  # of the longer side of a picture
_MOST_PIXELS = 64_000_000

Mark = Literal["right", "wrong", "nearer", "farther", "same"]


@dataclass(frozen=True)
class Given:
    """What one loss's model said."""

    label: str
    output: str
    mark: Mark
    value: float


@dataclass(frozen=True)
class Example:
    """A question, its picture, and what each said."""

    split: str
    index: int
    prompt: str
    gold: str
    image: str | None  # as a data: address
    given: tuple[Given, ...]


@dataclass(frozen=True)
class Differing:
    """The examples that are shown, and how many there were to choose from."""

    seed: int
    labels: tuple[str, ...]
    examples: tuple[Example, ...]
    counts: tuple[tuple[str, int, int, int, int], ...]  # split, examples, those that differ, some loss better, some loss worse
    binary: bool


def differing(setup: Setup, scores: Sequence[Score], limit: int = SHOWN) -> Differing | None:
    """Examples that one loss answers better than another, with the same seed; None if there is no such seed or example."""
    common = set.intersection(*(set(cells) for cells in setup.cells.values()))
    if not common or len(setup.labels) < 2:
        return None
    seed, labels = min(common), _columns(setup, scores)
    binary = all(
        set(np.unique(setup.scores(label, split, setup.headline.name))) <= {0, 1} for label in labels for split in setup.splits
    )
    counts, examples = [], []
    for at, split in enumerate(setup.splits):
        quality = np.stack([_quality(setup, label, split, seed) for label in labels])  # [L, E], more is better
        better, worse = (quality[1:] > quality[0]).any(0), (quality[1:] < quality[0]).any(0)
        differ = better | worse
        counts.append((split, len(differ), int(differ.sum()), int(better.sum()), int(worse.sum())))
        share = limit // len(setup.splits) + (at < limit % len(setup.splits))
        for index in _chosen(split, better, worse, share):
            examples.append(_example(setup, split, index, seed, labels, quality[:, index], binary))
    return Differing(seed, labels, tuple(examples), tuple(counts), binary) if examples else None


def examples_table(found: Differing) -> Table:
    """The same, as data."""
    columns = ("split", "index", "prompt", "gold", "loss", "output", "headline", "mark")
    rows = [
        (example.split, example.index, example.prompt, example.gold, given.label, given.output, given.value, given.mark)
        for example in found.examples
        for given in example.given
    ]
    return Table(columns, rows)


def _columns(setup: Setup, scores: Sequence[Score]) -> tuple[str, ...]:
    """The baseline, or the first, and the losses that score best."""
    here = {score.label: score.interval.estimate for score in scores if score.split == setup.splits[0]}
    sign = -1 if setup.headline.higher_is_better else 1
    first, *others = setup.labels
    return (first, *sorted(others, key=lambda label: (sign * here[label], label))[: COLUMNS - 1])


def _quality(setup: Setup, label: str, split: str, seed: int) -> Floats:
    """The headline so that more is better; an error in the steps in which it is shown, for no two errors are ever alike."""
    values: Floats = setup.scores(label, split, setup.headline.name, [seed])[0]
    how = spread(setup)
    if how is not None and how.measure.name == setup.headline.name:
        values = how.class_of(values).astype(float)
        return -values
    return -values if setup.headline.higher_is_better is False else values


def _chosen(split: str, better: NDArray[np.bool_], worse: NDArray[np.bool_], limit: int) -> list[int]:
    """As many of either kind as their share, and one at least; which of them, a hash decides."""

    def order(index: int) -> bytes:
        return blake2b(f"{split}/{index}".encode(), digest_size=8).digest()

    gained, lost = (sorted(np.flatnonzero(kind).tolist(), key=order) for kind in (better & ~worse, worse))
    total = len(gained) + len(lost)
    if total <= limit:
        return sorted([*gained, *lost])
    few = min(max(1, round(limit * len(lost) / total)), limit - 1) if gained and lost and limit > 1 else limit if lost else 0
    return sorted([*gained[: limit - few], *lost[:few]])


def _example(setup: Setup, split: str, at: int, seed: int, labels: Sequence[str], quality: Floats, binary: bool) -> Example:
    given = []
    for label, value in zip(labels, quality.tolist(), strict=True):
        cell = setup.cells[label][seed]
        gap = value - float(quality[0])
        mark: Mark = ("right" if value == 1 else "wrong") if binary else "nearer" if gap > 0 else "farther" if gap < 0 else "same"
        score = float(cell.splits[split].measures[setup.headline.name][at])
        given.append(Given(label, cell.splits[split].outputs[at], mark, score))
    asked = setup.examples(split)
    image = None
    for cell in (setup.cells[label][seed] for label in labels):
        if image is None and (path := cell.splits[split].images[at]) is not None:
            image = _picture(cell.folder, path)
    return Example(split, asked.index[at], asked.prompts[at], asked.golds[at], image, tuple(given))


def _picture(folder: Path, path: str) -> str | None:
    """A small copy as a data: address; None if it is not there, lies outside of the run, or is no picture."""
    from PIL import Image, UnidentifiedImageError

    run = folder.parent.parent.resolve()
    places = [(base / path).resolve() for base in (folder, run)]
    found = next((place for place in places if place.is_relative_to(run) and place.is_file()), None)
    if found is None:
        return None
    try:
        with Image.open(found) as opened:
            if opened.width * opened.height > _MOST_PIXELS:
                return None
            small = opened.convert("RGB")
            small.thumbnail((PIXELS * 2, PIXELS * 2))  # twice, for dense screens
    except (OSError, ValueError, SyntaxError, UnidentifiedImageError, Image.DecompressionBombError):
        return None
    written = {}
    for kind, settings in (("jpeg", {"quality": 80}), ("png", {"optimize": True})):
        buffer = io.BytesIO()
        small.save(buffer, kind, **settings)
        written[kind] = buffer.getvalue()
    kind = min(written, key=lambda name: len(written[name]))
    return f"data:image/{kind};base64,{base64.b64encode(written[kind]).decode()}"
