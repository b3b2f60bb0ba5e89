"""Predicted against actual numbers, for tasks whose answer is one number: the data of the figure, and how it is drawn."""

from __future__ import annotations

import math
from collections.abc import Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import numpy as np

from numerate.distribution.exact import Floats
from numerate.lab.report.analysis import Setup
from numerate.lab.report.figures.drawing import EDGE, GREY, FigurePlan, Row, Styles, few_ticks, panels
from numerate.lab.report.figures.svg import mark
from numerate.lab.report.records import numbers_in, plain_number
from numerate.lab.report.tables import DataTable
from numerate.lab.wording.text import minus, rounded, split_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_POINTS, LEAST_POINTS = 50, 20  # per loss
_ALL_POINTS = 200
_WIDE = 20  # ratio of the largest to the smallest number from which an axis is logarithmic
_MOSTLY = 0.9  # share of gold answers that must be numbers


def predictions(setup: Setup, styles: Styles) -> FigurePlan:
    """Actual and predicted number of some examples in the first split, with one seed, chosen by a fixed rule.

    The prediction is the median of the model's distribution, with its interval, or without decisions the greedy answer. It is
    None if the output held no number.
    """
    split = setup.splits[0]
    data = DataTable(("split", "loss", "seed", "index", "actual", "predicted", "low", "high"), _points(setup, split))
    shown, total = len(data.distinct("index")), len(setup.examples(split).index)
    seed = ", ".join(map(str, data.distinct("seed")))
    what, ends, decided = "The greedy answers", "", setup.examples(split).decided
    if decided is not None and any(high is not None for high in data.distinct("high")):
        what, ends = "The medians of the model's distributions", f", with {100 * decided.level:g} % intervals"
    return FigurePlan(
        "predictions",
        "Predicted against actual",
        f"{what} by actual number{ends}. {f'{shown} of {total:,}' if shown < total else f'All {total:,}'} examples "
        f"{split_name(split)} with seed {seed}, the same for each loss. On the dotted line the two agree."
        + (" A point at the upper or lower edge lies beyond it." if data.rows and _is_cut(data) else ""),
        "the answers are not one number each",
        data,
        lambda data: _draw(data, styles),
    )


def _points(setup: Setup, split: str) -> list[tuple[Any, ...]]:
    """Return the rows of the table; none if the answers are not one number each, or no output held a number."""
    actual, common = _actual(setup, split), set.intersection(*(set(cells) for cells in setup.cells.values()))
    if actual is None or not common:
        return []
    seed = min(common)
    parts = {label: cells[seed].splits[split] for label, cells in setup.cells.items()}
    decided = all(part.medians for part in parts.values())
    known = sorted(np.flatnonzero(np.isfinite(actual)).tolist(), key=lambda at: blake2b(f"{split}/{at}".encode()).digest())
    chosen = sorted(known[: max(LEAST_POINTS, min(MOST_POINTS, _ALL_POINTS // len(parts)))])
    rows: list[tuple[Any, ...]] = []
    for label, part in parts.items():
        for at in chosen:
            ends = (decided and part.intervals[at]) or (None, None)
            said = numbers_in([part.medians[at] if decided else part.answers[at], *ends])
            numbers = (float(number) if math.isfinite(number) else None for number in said)
            rows.append((split, label, seed, part.index[at], float(actual[at]), *numbers))
    return rows if any(row[5] is not None for row in rows) else []


def _draw(data: DataTable, styles: Styles) -> Figure:
    """Draw one panel per loss: predicted by actual numbers, with intervals. What lies beyond the axes is at their edge."""
    columns = 4 if len(data.distinct("loss")) in (4, 7, 8) else 3
    figure, axes_by = panels(data, by="loss", height=9.6 / columns, sharey=True, across=columns)
    least, most, logarithmic = _limits(data)
    for axes, label in axes_by:
        rows = [row for row in data.where(loss=label) if row["predicted"] is not None]
        missing = len(data.where(loss=label)) - len(rows)
        axes.set_gid(mark(label))
        title = axes.set_title(f"{axes.get_title(loc='left')}{f', {missing} without a number' if missing else ''}")
        title.set_gid(mark(label, _summary(label, rows)))
        axes.plot([least, most], [least, most], color=GREY, linewidth=0.9, linestyle=(0, (2, 2)))
        _scale(axes, least, most, logarithmic)
        if not rows:  # a line of marks without marks would take the whole figure
            continue
        between = [row for row in rows if _has_interval(row)]
        across = [x for row in between for x in (row["actual"], row["actual"], math.nan)]
        ends = [y for row in between for y in (*np.clip([row["low"], row["high"]], least, most), math.nan)]
        if between:
            axes.plot(across, ends, color=EDGE, linewidth=0.8, zorder=1.9)
        inside = np.clip([row["predicted"] for row in rows], least, most)
        look: dict[str, Any] = {"color": styles[label].colour, "markersize": 4, "linestyle": "none", "clip_on": False}
        look["gid"] = mark(None, *map(_said, rows))
        axes.plot([row["actual"] for row in rows], inside, marker=styles[label].marker, **look)
    figure.supxlabel("actual", fontsize=10)
    figure.supylabel("predicted", fontsize=10)
    return figure


def _is_cut(data: DataTable) -> bool:
    """Return whether a prediction lies beyond the axes."""
    least, most, _ = _limits(data)
    return any(row["predicted"] is not None and not least <= row["predicted"] <= most for row in data.where())


def _summary(label: str, rows: Sequence[Row]) -> str:
    """Return what the points of a loss show: range, median error and how many intervals hold the actual number."""
    if not rows:
        return f"{label}: no number"
    middle = float(np.median([abs(row["predicted"] - row["actual"]) for row in rows]))
    values, ends = [row["predicted"] for row in rows], [row for row in rows if _has_interval(row)]
    text = f"{label}: {_short(min(values))} to {_short(max(values))}, median absolute error {_short(middle)}"
    held = sum(row["low"] <= row["actual"] <= row["high"] for row in ends)
    return f"{text}, {held} of {len(ends)} intervals hold the actual number" if ends else text


def _has_interval(row: Row) -> bool:
    return row["low"] is not None and row["high"] is not None


def _actual(setup: Setup, split: str) -> Floats | None:
    """Return the gold numbers ``[E]``, NaN where there is none; None if too few gold answers are plain numbers."""
    found = numbers_in([gold if plain_number(gold) is not None else None for gold in setup.examples(split).golds])
    found[np.isinf(found)] = np.nan
    return found if np.isfinite(found).mean() >= _MOSTLY else None


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
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axes.grid(visible=False)  # intervals are lines as well
    for which, axis in (("x", axes.xaxis), ("y", axes.yaxis)):
        if logarithmic:
            few_ticks(axes, which, least, most)
        else:
            axis.set_major_locator(MaxNLocator(4))
        axis.set_major_formatter(FuncFormatter(lambda value, _: minus(f"{value:,.6g}")))
    axes.set(xlim=(least, most), ylim=(least, most))


def _said(row: Row) -> str:
    ends = f" ({_short(row['low'])} to {_short(row['high'])})" if _has_interval(row) else ""
    return f"{row['loss']}, no. {row['index']}: actual {_short(row['actual'])}, predicted {_short(row['predicted'])}{ends}"


def _short(value: float) -> str:
    """Integers as they are, others with three digits."""
    return minus(f"{value:,.0f}" if float(value).is_integer() and abs(value) < 1e9 else rounded(value))
