"""Predicted against actual numbers, for tasks whose answer is one number: the data of two figures, and how they are drawn."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from numerate.answers import last_number
from numerate.lab.report.analysis import Setup
from numerate.lab.report.dots import dots
from numerate.lab.report.drawing import EDGE, GREY, Styles, panels
from numerate.lab.report.records import Floats, Predictions
from numerate.lab.report.series import plain_number
from numerate.lab.report.svg import mark
from numerate.lab.report.tables import DataTable
from numerate.lab.report.wording import minus, plus, rounded

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_POINTS, LEAST_POINTS = 50, 20  # per loss
_ALL_POINTS = 200
_GROUPS = 4  # of actual numbers
_WIDE = 20  # ratio of the largest to the smallest number from which an axis is logarithmic
_MOSTLY = 0.9  # share of gold answers that must be numbers


def points(setup: Setup) -> DataTable | None:
    """Actual and predicted number of some examples in the first split, with one seed, chosen by a fixed rule.

    The prediction is the median of the model's distribution, with its interval, or without decisions the greedy answer. It is
    None if the output held no number.
    """
    split, actual = setup.splits[0], _actual(setup, setup.splits[0])
    common = set.intersection(*(set(cells) for cells in setup.cells.values()))
    if actual is None or not common:
        return None
    seed = min(common)
    parts = {label: cells[seed].splits[split] for label, cells in setup.cells.items()}
    decided = all(part.medians for part in parts.values())
    known = sorted(np.flatnonzero(np.isfinite(actual)).tolist(), key=lambda at: blake2b(f"{split}/{at}".encode()).digest())
    chosen = sorted(known[: max(LEAST_POINTS, min(MOST_POINTS, _ALL_POINTS // len(parts)))])
    rows: list[tuple[Any, ...]] = []
    for label, part in parts.items():
        for at in chosen:
            ends = part.intervals[at] if decided else None
            low, high = (None, None) if ends is None else map(_number, ends)
            said = _number(part.medians[at] if decided else part.answers[at])
            rows.append((split, label, seed, part.index[at], float(actual[at]), said, low, high))
    if all(row[5] is None for row in rows):
        return None
    return DataTable(("split", "loss", "seed", "index", "actual", "predicted", "low", "high"), rows)


def residuals(setup: Setup) -> DataTable | None:
    """Predicted minus actual number of all greedy answers of all seeds, by size of the actual number: median and quartiles."""
    rows: list[tuple[Any, ...]] = []
    for split in setup.splits:
        actual = _actual(setup, split)
        if actual is None:
            continue
        ends = np.unique(np.nanquantile(actual, np.linspace(0, 1, _GROUPS + 1)))
        for low, high in pairwise(ends) if len(ends) > 1 else [(ends[0], ends[0])]:
            inside = (actual >= low) & (actual < high if high < ends[-1] else actual <= high)
            for label, cells in setup.cells.items():
                predicted = np.stack([_predicted(cell.splits[split]) for cell in cells.values()])[:, inside]
                found = (predicted - actual[inside])[np.isfinite(predicted)]
                if len(found):
                    quartiles = map(float, np.quantile(found, (0.5, 0.25, 0.75)))
                    rows.append((split, label, float(low), float(high), *quartiles, len(found), predicted.size - len(found)))
    columns = ("split", "loss", "actual_from", "actual_to", "residual", "low", "high", "answers", "no_number")
    return DataTable(columns, rows) if rows else None


def draw_points(data: DataTable, styles: Styles) -> Figure:
    """Draw one panel per loss: predicted by actual numbers, with intervals. What lies beyond the axes is at their edge."""
    columns = 4 if len(data.distinct("loss")) in (4, 7, 8) else 3
    figure, axes_by = panels(data, by="loss", height=9.6 / columns, sharey=True, across=columns)
    least, most, logarithmic = _limits(data)
    for axes, label in axes_by:
        rows = [row for row in data.where(loss=label) if row["predicted"] is not None]
        missing = len(data.where(loss=label)) - len(rows)
        axes.set_gid(mark(label))
        axes.set_title(f"{axes.get_title(loc='left')}{f', {missing} without a number' if missing else ''}")
        axes.plot([least, most], [least, most], color=GREY, linewidth=0.9, linestyle=(0, (2, 2)))
        _scale(axes, least, most, logarithmic)
        if not rows:  # a line of marks without marks would take the whole figure
            continue
        style = styles[label]
        x = [row["actual"] for row in rows]
        between = [row for row in rows if row["low"] is not None and row["high"] is not None]
        across = [x for row in between for x in (row["actual"], row["actual"], math.nan)]
        ends = [y for row in between for y in (*np.clip([row["low"], row["high"]], least, most), math.nan)]
        if between:
            axes.plot(across, ends, color=EDGE, linewidth=0.8, zorder=1.9)
        inside = np.clip([row["predicted"] for row in rows], least, most)
        look: dict[str, Any] = {"color": style.colour, "markersize": 4, "linestyle": "none", "clip_on": False}
        axes.plot(x, inside, marker=style.marker, gid=mark(None, *map(_said, rows)), **look)
    figure.supxlabel("actual", fontsize=10)
    figure.supylabel("predicted", fontsize=10)
    return figure


def draw_residuals(setup: Setup, data: DataTable, styles: Styles) -> Figure:
    """Draw the middle half of the residuals of each loss, by size of the actual number."""
    named = DataTable((*data.columns, "actual"), [(*row, (row[2], row[3])) for row in data.rows])

    def said(row: Mapping[str, Any]) -> str:
        return f"actual {group_text(row['actual'])}: {residual_text(row)}"

    labels = ("actual number", "predicted minus actual")
    return dots(setup, named, styles, ("actual", "residual"), lambda ends: group_text(ends, "\n"), labels, said, signed=True)


def is_cut(data: DataTable) -> bool:
    """Return whether a prediction lies beyond the axes."""
    least, most, _ = _limits(data)
    return any(row["predicted"] is not None and not least <= row["predicted"] <= most for row in data.where())


def points_text(data: DataTable) -> str:
    """Return what the points show, in words: range, median error and how many intervals hold the actual number."""
    said = []
    actual = [row["actual"] for row in data.where(loss=data.distinct("loss")[0])]
    for label in data.distinct("loss"):
        rows = [row for row in data.where(loss=label) if row["predicted"] is not None]
        if not rows:
            said.append(f"{label} no number")
            continue
        errors = [abs(row["predicted"] - row["actual"]) for row in rows]
        values = [row["predicted"] for row in rows]
        middle = _short(float(np.median(errors)))
        text = f"{label} predicted {_short(min(values))} to {_short(max(values))}, median absolute error {middle}"
        ends = [row for row in rows if row["low"] is not None and row["high"] is not None]
        if ends:
            held = sum(row["low"] <= row["actual"] <= row["high"] for row in ends)
            text += f", {held} of {len(ends)} intervals hold the actual number"
        said.append(text)
    return f"{len(actual)} examples with actual numbers {_short(min(actual))} to {_short(max(actual))}: {'; '.join(said)}."


def group_text(ends: Sequence[float], gap: str = " ") -> str:
    """Return a range of actual numbers: ``326 to 950``."""
    return f"{_short(ends[0])}{gap}to {_short(ends[1])}"


def residual_text(row: Mapping[str, Any]) -> str:
    """Return median and middle half of the residuals of a row."""
    middle, low, high = (plus(_short(row[key])) for key in ("residual", "low", "high"))
    return f"{middle} ({low} to {high})"


def _actual(setup: Setup, split: str) -> Floats | None:
    """Return the gold numbers ``[E]``, NaN where there is none; None if too few gold answers are plain numbers."""
    golds = [plain_number(gold) for gold in setup.examples(split).golds]
    found = np.array([math.nan if gold is None or (value := _float(gold)) is None else value for gold in golds])
    return found if np.isfinite(found).mean() >= _MOSTLY else None


def _predicted(part: Predictions) -> Floats:
    return np.array([math.nan if (value := _number(answer)) is None else value for answer in part.answers])


def _number(text: str | None) -> float | None:
    found = None if text is None else last_number(text)
    return None if found is None else _float(found)


def _float(number: Any) -> float | None:
    try:
        return float(number)
    except OverflowError:
        return None


def _limits(data: DataTable) -> tuple[float, float, bool]:
    """Return the ends of both axes, and whether they are logarithmic: the actual numbers and most of the predicted ones."""
    actual = np.array([row["actual"] for row in data.where()])
    predicted = np.array([row["predicted"] for row in data.where() if row["predicted"] is not None])
    logarithmic = bool(actual.min() > 0 and actual.max() >= _WIDE * actual.min())
    if logarithmic:
        actual, predicted = np.log10(actual), np.log10(predicted[predicted > 0])
    low, high = float(actual.min()), float(actual.max())
    room = (high - low) or abs(high) or 1.0
    if len(predicted):
        least, most = map(float, np.quantile(predicted, (0.02, 0.98)))
        low, high = max(min(low, least), low - room / 2), min(max(high, most), high + room / 2)
    low, high = low - 0.04 * room, high + 0.04 * room
    return (10**low, 10**high, True) if logarithmic else (low, high, False)


def _scale(axes: Axes, least: float, most: float, logarithmic: bool) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

    axes.grid(visible=False)  # intervals are lines as well
    if logarithmic:
        axes.set(xscale="log", yscale="log")
    for axis in (axes.xaxis, axes.yaxis):
        few = (1.0, 3.0) if most < 1000 * least else (1.0,)
        axis.set_major_locator(LogLocator(subs=few) if logarithmic else MaxNLocator(4))
        axis.set_major_formatter(FuncFormatter(lambda value, _: minus(f"{value:,.6g}")))
        axis.set_minor_formatter(NullFormatter())
    axes.set(xlim=(least, most), ylim=(least, most))


def _said(row: Mapping[str, Any]) -> str:
    ends = "" if row["low"] is None or row["high"] is None else f" ({_short(row['low'])} to {_short(row['high'])})"
    return f"{row['loss']}, no. {row['index']}: actual {_short(row['actual'])}, predicted {_short(row['predicted'])}{ends}"


def _short(value: float) -> str:
    """Whole numbers as they are, others with three digits."""
    return minus(f"{value:,.0f}" if float(value).is_integer() and abs(value) < 1e9 else rounded(value))
