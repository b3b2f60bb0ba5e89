"""The data behind each figure, as a table: what is drawn is what can be downloaded, and nothing else.

A function takes a setup and gives its table, or None where the records do not hold what it shows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from numerate.answers import last_number
from numerate.lab.report.analysis import OUT_OF_RANGE, Cost, Score, Setup, interval
from numerate.lab.report.records import Digits, Floats
from numerate.lab.report.wording import Measure, measure

POINTS = 120  # of a learning curve
BINS = 10  # of confidence
_RESAMPLES = 499  # of the many intervals of a figure, where there is one seed
_FEW = 10  # examples or tokens of a class, for less of which it is left out
_PLAIN_NUMBER = re.compile(r"[-+−]?[\d,]*\.?\d+(?:[eE][-+]?\d+)?(?:/\d+)?")


# To be cut at 0 and 1 as an accuracy is.
_WRONG = Measure("wrong", True, False, True, "", "")


@dataclass(frozen=True)
class Table:
    """Rows of a figure's data."""

    columns: tuple[str, ...]
    rows: Sequence[tuple[Any, ...]]

    def where(self, **values: Any) -> list[dict[str, Any]]:
        """Rows with these values, by column."""
        rows = (dict(zip(self.columns, row, strict=True)) for row in self.rows)
        return [row for row in rows if all(row[name] == value for name, value in values.items())]

    def distinct(self, column: str) -> list[Any]:
        """Values of a column, in order."""
        at = self.columns.index(column)
        return list(dict.fromkeys(row[at] for row in self.rows))


@dataclass(frozen=True)
class Spread:
    """The measure that says how far off an answer is, and the steps in which that is shown."""

    measure: Measure
    steps: tuple[float, ...]  # of the classes; the first is right
    tolerances: tuple[float, ...]

    @property
    def higher_is_better(self) -> bool:
        """As an overlap is; an error is not."""
        return self.measure.higher_is_better is True

    def classes(self) -> tuple[str, ...]:
        """From right to wrong, and no answer."""
        sign = "≥" if self.higher_is_better else "≤"
        names = ["exact" if step == 0 else f"{sign} {self.text(step)}" for step in self.steps]
        return (*names, f"{'<' if self.higher_is_better else '>'} {self.text(self.steps[-1])}", "no answer")

    def class_of(self, values: Floats) -> NDArray[np.int64]:
        """The position among :meth:`classes`, but for no answer."""
        within = [values >= step if self.higher_is_better else values <= step for step in self.steps]
        found: NDArray[np.int64] = np.argmax(np.stack([*within, np.ones_like(values, bool)]), axis=0)
        return found

    def text(self, step: float) -> str:
        """``10 %``, ``5 min``."""
        if self.measure.name == "relative_error":
            return f"{100 * step:g} %"
        return f"{step:,g}{' ' + self.measure.unit if self.measure.unit else ''}"


_DECADES = tuple(float(x) for x in np.round(np.logspace(-3, 0, 31), 6))
_SPREADS = (
    ("relative_error", (0.0, 0.01, 0.1, 1.0), _DECADES),
    ("time_gap_circular", (0.0, 5.0, 15.0, 60.0), tuple(range(0, 121, 5))),
    ("time_gap", (0.0, 5.0, 15.0, 60.0), tuple(range(0, 121, 5))),
    ("iou", (0.9, 0.75, 0.5, 0.25), tuple(x / 20 for x in range(1, 20))),
    ("absolute_error", (0.0, 1.0, 10.0, 100.0), tuple(1000 * x for x in _DECADES)),
)


def spread(setup: Setup) -> Spread | None:
    """How far off an answer is, for this task; None if no measure says so."""
    names = {shown.name for split in setup.splits for shown in setup.measures(split)}
    return next((Spread(measure(name), steps, levels) for name, steps, levels in _SPREADS if name in names), None)


def differences(scores: Sequence[Score]) -> Table | None:
    """By how much each loss differs from the baseline."""
    rows = [
        (
            score.split,
            score.label,
            score.gain.estimate,
            score.gain.low,
            score.gain.high,
            score.comparison.corrected_p,
            score.better,
        )
        for score in scores
        if score.comparison is not None and score.gain is not None
    ]
    return _table(("split", "loss", "difference", "low", "high", "p_holm", "better"), rows)


def learning_curves(setup: Setup) -> Table | None:
    """Cross-entropy by step, the numeric term left out, and what was measured on the way: mean, least and most over seeds."""
    rows: list[tuple[Any, ...]] = []
    for label in setup.labels:
        found: dict[str, dict[int, list[float]]] = {}
        for cell in setup.cells[label].values():
            # A run that went on from a checkpoint has some steps twice: the later one counts.
            points = {(name, int(point["step"])): value for point in cell.curve for name, value in _followed(point).items()}
            for (name, step), value in points.items():
                found.setdefault(name, {}).setdefault(step, []).append(value)
        for name, steps in found.items():
            every = sorted(steps)
            for step in sorted({every[round(at)] for at in np.linspace(0, len(every) - 1, min(POINTS, len(every)))}):
                rows.append((name, label, step, float(np.mean(steps[step])), min(steps[step]), max(steps[step])))
    return _table(("curve", "loss", "step", "mean", "least", "most"), rows)


def error_distribution(setup: Setup) -> Table | None:
    """The share of answers by how far off they are."""
    how = spread(setup)
    if how is None:
        return None
    rows: list[tuple[Any, ...]] = []
    for split, label, values, answered in _errors(setup, how):
        classes = np.where(answered, how.class_of(values), len(how.steps) + 1)
        rows += [(split, label, name, float((classes == at).mean())) for at, name in enumerate(how.classes())]
    return _table(("split", "loss", how.measure.name, "share"), rows)


def tolerance(setup: Setup) -> Table | None:
    """The share of answers that are right if so much is let pass."""
    how = spread(setup)
    if how is None:
        return None
    rows: list[tuple[Any, ...]] = []
    for split, label, values, _ in _errors(setup, how):
        for level in how.tolerances:
            within = values >= level if how.higher_is_better else values <= level
            rows.append((split, label, level, float(within.mean())))
    return _table(("split", "loss", how.measure.name, "share"), rows)


def digit_places(setup: Setup) -> Table | None:
    """The share of the gold answers' numeric tokens that the model, given those before, would have got wrong."""
    rows: list[tuple[Any, ...]] = []
    for split in setup.splits:
        every = {label: _digits(setup, label, split) for label in setup.labels}
        if not all(every.values()):
            continue
        counts = np.unique_counts(every[setup.labels[0]][0].place)
        for place, count in sorted(zip(counts.values.tolist(), counts.counts.tolist(), strict=True), reverse=True):
            if count < _FEW:
                continue
            for label, digits in every.items():
                found = interval(_WRONG, np.stack([~one.right[one.place == place] for one in digits]).astype(float), _RESAMPLES)
                rows.append((split, label, place, found.estimate, found.low, found.high, count))
    return _table(("split", "loss", "place", "wrong", "low", "high", "tokens"), rows)


def lengths(setup: Setup) -> Table | None:
    """The headline by the number of digits that the gold number has before its point."""
    rows: list[tuple[Any, ...]] = []
    for split in setup.splits:
        sizes = [_length(gold) for gold in setup.examples(split).golds]
        known = np.array([size for size in sizes if size is not None])
        if len(known) < 0.9 * len(sizes) or len(set(known.tolist())) < 2:
            continue
        at = np.array([-99 if size is None else size for size in sizes])
        for size in sorted(set(known.tolist())):
            if (count := int((at == size).sum())) < _FEW:
                continue
            for label in setup.labels:
                found = interval(setup.headline, setup.scores(label, split, setup.headline.name)[:, at == size], _RESAMPLES)
                rows.append((split, label, size, found.estimate, found.low, found.high, count))
    return _table(("split", "loss", "digits", setup.headline.name, "low", "high", "examples"), rows)


def calibration(setup: Setup) -> Table | None:
    """How often the likeliest numeric token is right, by how likely the model holds it; tokens of all seeds together."""
    rows: list[tuple[Any, ...]] = []
    for split in setup.splits:
        for label in setup.labels:
            digits = _digits(setup, label, split)
            if not digits:
                continue
            confidence = np.concatenate([one.top / one.mass for one in digits])
            right = np.concatenate([one.right for one in digits])
            known = np.isfinite(confidence)
            confidence, right = confidence[known].clip(0, 1), right[known]
            bins = np.minimum((confidence * BINS).astype(int), BINS - 1)
            for bin_ in range(BINS):
                if (here := bins == bin_).any():
                    rows.append(
                        (split, label, bin_ / BINS, float(confidence[here].mean()), float(right[here].mean()), int(here.sum()))
                    )
    return _table(("split", "loss", "from", "confidence", "right", "tokens"), rows)


def calibration_errors(data: Table) -> dict[tuple[str, str], float]:
    """The mean gap between confidence and how often it is right, by split and loss."""
    found = {}
    for split in data.distinct("split"):
        for label in data.distinct("loss"):
            if rows := data.where(split=split, loss=label):
                total = sum(row["tokens"] for row in rows)
                found[split, label] = sum(row["tokens"] * abs(row["confidence"] - row["right"]) for row in rows) / total
    return found


def ranges(scores: Sequence[Score]) -> Table | None:
    """The headline in and out of the range that was trained on."""
    splits = {score.split for score in scores}
    if OUT_OF_RANGE not in splits or len(splits) < 2:
        return None
    rows = [(score.split, score.label, score.interval.estimate, score.interval.low, score.interval.high) for score in scores]
    return _table(("split", "loss", scores[0].measure.name, "low", "high"), rows)


def gain_and_cost(scores: Sequence[Score], costs: Sequence[Cost], split: str) -> Table | None:
    """What a loss brings, and what it costs."""
    by_label = {cost.label: cost for cost in costs}
    rows = []
    for score in scores:
        cost = by_label[score.label]
        if score.split == split and score.gain is not None and cost.time_ratio is not None:
            gain = score.gain
            rows.append(
                (score.label, cost.time_ratio, cost.time_ratio_low, cost.time_ratio_high, gain.estimate, gain.low, gain.high)
            )
    columns = ("loss", "time_ratio", "time_ratio_low", "time_ratio_high", "difference", "low", "high")
    return _table(columns, rows)


def _followed(point: Mapping[str, float]) -> dict[str, float]:
    """What of a point of a learning curve is shown."""
    found = {name: value for name, value in point.items() if name.startswith("validation/")}
    cross_entropy = point.get("loss/cross_entropy", point.get("loss"))
    return found if cross_entropy is None else {"cross-entropy": cross_entropy, **found}


def _table(columns: tuple[str, ...], rows: Sequence[tuple[Any, ...]]) -> Table | None:
    return Table(columns, rows) if rows else None


def _errors(setup: Setup, how: Spread) -> Iterator[tuple[str, str, Floats, NDArray[np.bool_]]]:
    """Split, loss, how far off ``[S, E]``, and whether there was an answer ``[S, E]``."""
    for split in setup.splits:
        if how.measure.name not in setup.examples(split).measures:
            continue
        for label in setup.labels:
            cells = [setup.cells[label][seed] for seed in sorted(setup.cells[label])]
            answered = np.array([[answer is not None for answer in cell.splits[split].answers] for cell in cells])
            yield split, label, setup.scores(label, split, how.measure.name), answered


def _digits(setup: Setup, label: str, split: str) -> list[Digits]:
    """Of every seed that has them; none if they are not the same digits."""
    found = [cell.splits[split].digits for cell in setup.cells[label].values()]
    known = [digits for digits in found if digits is not None]
    same = len(known) == len(found) and all(np.array_equal(digits.place, known[0].place) for digits in known)
    return known if same else []


def _length(gold: str) -> int | None:
    """Its digits before the point; at least one."""
    if not _PLAIN_NUMBER.fullmatch(gold.strip()):
        return None
    number = last_number(gold)
    if number is None:
        return None
    return len(str(abs(number.numerator) // number.denominator))


def place_name(place: int) -> str:
    """``tens``, ``10⁵``."""
    names = {0: "ones", 1: "tens", 2: "hundreds", 3: "thousands", -1: "tenths", -2: "hundredths", -3: "thousandths"}
    return names.get(place, "10" + str(place).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")))
