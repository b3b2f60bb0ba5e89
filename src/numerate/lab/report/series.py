"""Compute the data of each figure as a table. The figure draws exactly what the table holds, and the page offers it as CSV.

Each function returns None if the records do not contain the data it needs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from numerate.answers import last_number
from numerate.distribution.exact import Floats
from numerate.lab.report.analysis import Score, Setup, interval
from numerate.lab.report.decisions import Decisions
from numerate.lab.report.records import Digits
from numerate.lab.report.tables import DataTable
from numerate.lab.stats import Interval
from numerate.lab.wording.measures import Measure, measure

POINTS = 120  # per learning curve
OVERRUN = "overrun"  # the learning curve of ``numeric/overrun``
BINS = 10  # of confidence
_RESAMPLES = 499  # per interval, with one seed
_MIN_COUNT = 10  # examples or tokens; smaller groups are left out
_PLAIN_NUMBER = re.compile(r"[-+−]?[\d,]*\.?\d+(?:[eE][-+]?\d+)?(?:/\d+)?")

_WRONG = Measure("wrong", True, False, True, "", "")


@dataclass(frozen=True)
class ErrorScale:
    """Measure of the size of an error, and the limits of its classes."""

    measure: Measure
    steps: tuple[float, ...]  # limits of the classes, best first

    @property
    def higher_is_better(self) -> bool:
        """True for an overlap (IoU), False for an error."""
        return self.measure.higher_is_better is True

    def classes(self) -> tuple[str, ...]:
        """Return the names of the classes, best first; the last is ``no answer``."""
        names = ["exact" if step == 0 else f"{'≥' if self.higher_is_better else '≤'} {self.text(step)}" for step in self.steps]
        return (*names, f"{'<' if self.higher_is_better else '>'} {self.text(self.steps[-1])}", "no answer")

    def class_of(self, values: Floats) -> NDArray[np.int64]:
        """Return the position in :meth:`classes` of each value, ignoring ``no answer``."""
        within = [values >= step if self.higher_is_better else values <= step for step in self.steps]
        found: NDArray[np.int64] = np.argmax(np.stack([*within, np.ones_like(values, bool)]), axis=0)
        return found

    def text(self, step: float) -> str:
        """Format a limit: ``10 %``, ``5 min``."""
        if self.measure.name == "relative_error":
            return f"{100 * step:g} %"
        return f"{step:,g}{' ' + self.measure.unit if self.measure.unit else ''}"


_ERROR_SCALES = {
    "relative_error": (0.0, 0.01, 0.1, 1.0),
    "time_gap_circular": (0.0, 5.0, 15.0, 60.0),
    "time_gap": (0.0, 5.0, 15.0, 60.0),
    "iou": (0.9, 0.75, 0.5, 0.25),
    "absolute_error": (0.0, 1.0, 10.0, 100.0),
}


def error_scale(setup: Setup) -> ErrorScale | None:
    """Return the error scale of the task's measures; None if no measure gives the size of an error."""
    names = {metric.name for split in setup.splits for metric in setup.measures(split)}
    return next((ErrorScale(measure(name), steps) for name, steps in _ERROR_SCALES.items() if name in names), None)


def differences(scores: Sequence[Score]) -> DataTable | None:
    """Difference of each loss from the baseline, with interval and corrected p-value."""
    rows = [
        (score.split, score.decision, score.label, *_ends(score.gain), score.comparison.corrected_p, score.better)
        for score in scores
        if score.comparison is not None and score.gain is not None
    ]
    return _table(("split", "decision", "loss", "difference", "low", "high", "p_holm", "better"), rows)


def decisions(found: Decisions) -> DataTable | None:
    """First measure of decisions by loss and decision, with its interval."""
    first = found.measures[0]
    rows = [(s.split, s.label, s.decision, *_ends(s.interval), s.better) for s in found.scores if s.measure == first]
    return _table(("split", "loss", "decision", first.name, "low", "high", "better"), rows)


def learning_curves(setup: Setup) -> DataTable | None:
    """Cross-entropy without the numeric term, overrun, and validation scores, by step: mean, lowest and highest seed.

    Validation scores are those of the headline measure, exact answers and the absolute error.
    """
    rows: list[tuple[Any, ...]] = []
    scores = {f"validation/{name}" for name in (setup.headline.name, "exact", "absolute_error")}
    for label in setup.labels:
        curves: dict[str, dict[int, list[float]]] = {}
        for cell in setup.cells[label].values():
            # A resumed run logs some steps twice: the later value replaces the earlier one.
            followed = ((point, _followed(point, scores)) for point in cell.curve)
            points = {(name, int(point["step"])): value for point, own in followed for name, value in own.items()}
            for (name, step), value in points.items():
                curves.setdefault(name, {}).setdefault(step, []).append(value)
        for name, steps in curves.items():
            logged = sorted(steps)
            drawn = np.linspace(0, len(logged) - 1, min(POINTS, len(logged)))
            for step in sorted({logged[round(position)] for position in drawn}):
                rows.append((name, label, step, float(np.mean(steps[step])), min(steps[step]), max(steps[step])))
    return _table(("curve", "loss", "step", "mean", "least", "most"), rows)


def error_distribution(setup: Setup) -> DataTable | None:
    """Share of answers by size of the error."""
    scale = error_scale(setup)
    if scale is None:
        return None
    rows: list[tuple[Any, ...]] = []
    name, classes = scale.measure.name, scale.classes()
    for split in (split for split in setup.splits if name in setup.examples(split).measures):
        for label in setup.labels:
            cells = [setup.cells[label][seed] for seed in sorted(setup.cells[label])]
            answered = np.array([[answer is not None for answer in cell.splits[split].answers] for cell in cells])
            found = np.where(answered, scale.class_of(setup.values(label, split, name)), len(scale.steps) + 1)
            rows += [(split, label, each, float((found == i).mean())) for i, each in enumerate(classes)]
    return _table(("split", "loss", name, "share"), rows)


def digit_places(setup: Setup) -> DataTable | None:
    """Share of numeric tokens of the gold answers that the model predicts wrong given the tokens before, by place."""
    rows: list[tuple[Any, ...]] = []
    for split in setup.splits:
        by_label = {label: _digits(setup, label, split) for label in setup.labels}
        if not all(by_label.values()):
            continue
        counts = np.unique_counts(by_label[setup.labels[0]][0].place)
        for place, count in sorted(zip(counts.values.tolist(), counts.counts.tolist(), strict=True), reverse=True):
            if count < _MIN_COUNT:
                continue
            for label, digits in by_label.items():
                wrong = np.stack([~seed.right[seed.place == place] for seed in digits]).astype(float)  # [S, tokens]
                rows.append((split, label, place, *_ends(interval(_WRONG, wrong, _RESAMPLES)), count))
    return _table(("split", "loss", "place", "wrong", "low", "high", "tokens"), rows)


def lengths(setup: Setup) -> DataTable | None:
    """Headline measure by number of digits of the gold number before the decimal point."""
    rows: list[tuple[Any, ...]] = []
    for split in setup.splits:
        sizes = [_length(gold) for gold in setup.examples(split).golds]
        known = np.array([size for size in sizes if size is not None])
        if len(known) < 0.9 * len(sizes):
            continue
        counts = {size: sizes.count(size) for size in sorted(set(known.tolist()))}
        counts = {size: count for size, count in counts.items() if count >= _MIN_COUNT}
        for size, count in counts.items() if len(counts) > 1 else ():
            mask = np.array([other == size for other in sizes])
            for label in setup.labels:
                scores = setup.values(label, split, setup.headline.name)[:, mask]
                rows.append((split, label, size, *_ends(interval(setup.headline, scores, _RESAMPLES)), count))
    return _table(("split", "loss", "digits", setup.headline.name, "low", "high", "examples"), rows)


def calibration(setup: Setup) -> DataTable | None:
    """How often the most likely numeric token is right, by its probability; tokens of all seeds together."""
    rows: list[tuple[Any, ...]] = []
    for split in setup.splits:
        for label in setup.labels:
            digits = _digits(setup, label, split)
            if not digits:
                continue
            top, mass = (np.concatenate([getattr(seed, name) for seed in digits]) for name in ("top", "mass"))
            confidence = np.divide(top, mass, out=np.full_like(top, np.nan), where=mass > 0)
            right = np.concatenate([seed.right for seed in digits])
            known = np.isfinite(confidence)
            confidence, right = confidence[known].clip(0, 1), right[known]
            bins = np.minimum((confidence * BINS).astype(int), BINS - 1)
            for bin_ in range(BINS):
                if (mask := bins == bin_).any():
                    means = (float(values[mask].mean()) for values in (confidence, right))
                    rows.append((split, label, bin_ / BINS, *means, int(mask.sum())))
    return _table(("split", "loss", "from", "confidence", "right", "tokens"), rows)


def calibration_errors(data: DataTable) -> dict[str, dict[str, float]]:
    """Mean distance between confidence and accuracy (expected calibration error), by split and loss."""
    gaps: dict[str, dict[str, float]] = {}
    for split, label in dict.fromkeys((row[0], row[1]) for row in data.rows):
        rows = data.where(split=split, loss=label)
        total = sum(row["tokens"] for row in rows)
        off = sum(row["tokens"] * abs(row["confidence"] - row["right"]) for row in rows)
        gaps.setdefault(split, {})[label] = off / total
    return gaps


def _followed(point: Mapping[str, float], scores: Set[str]) -> dict[str, float]:
    """Select the values of a logged step that are drawn."""
    curves = {"cross-entropy": point.get("loss/cross_entropy", point.get("loss")), OVERRUN: point.get("numeric/overrun")}
    curves |= {name: value for name, value in point.items() if name in scores}
    return {name: value for name, value in curves.items() if value is not None}


def _ends(interval: Interval) -> tuple[float, float, float]:
    return interval.estimate, interval.low, interval.high


def _table(columns: tuple[str, ...], rows: Sequence[tuple[Any, ...]]) -> DataTable | None:
    return DataTable(columns, rows) if rows else None


def _digits(setup: Setup, label: str, split: str) -> list[Digits]:
    """Return the digits of every seed; empty if a seed has none or other digits."""
    by_seed = [cell.splits[split].digits for cell in setup.cells[label].values()]
    known = [digits for digits in by_seed if digits is not None]
    same = len(known) == len(by_seed) and all(np.array_equal(digits.place, known[0].place) for digits in known)
    return known if same else []


def _length(gold: str) -> int | None:
    """Return the number of digits before the decimal point, at least one; None if ``gold`` is not a plain number."""
    number = plain_number(gold)
    return None if number is None else len(str(abs(number.numerator) // number.denominator))


def plain_number(text: str) -> Fraction | None:
    """Return the number if the text is one and nothing else, else None."""
    return last_number(text) if _PLAIN_NUMBER.fullmatch(text.strip()) else None


def place_name(place: int) -> str:
    """Format a place: ``tens``, ``10⁵``."""
    names = {0: "ones", 1: "tens", 2: "hundreds", 3: "thousands", -1: "tenths", -2: "hundredths", -3: "thousandths"}
    return names.get(place, "10" + str(place).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")))
