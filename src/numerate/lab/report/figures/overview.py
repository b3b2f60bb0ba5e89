"""The picture of the first screen: the score of each loss and decision with its interval, and lines for baselines."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from numerate.lab.evaluation.decisions import GREEDY
from numerate.lab.report.analysis import Score, Setup
from numerate.lab.report.choice import better, key
from numerate.lab.report.figures.drawing import (
    GREY,
    INK,
    PALE,
    PAPER,
    WIDTH,
    FigurePlan,
    Row,
    Span,
    arrows_said,
    direction,
    draw_infinite,
    draw_spans,
    label_rows,
    plain,
)
from numerate.lab.report.figures.drawing import styles as plot_styles
from numerate.lab.report.figures.svg import mark
from numerate.lab.report.summary import Summary
from numerate.lab.report.tables import DataTable
from numerate.lab.wording.decisions import pair
from numerate.lab.wording.text import percent, sentence, split_name
from numerate.plotting.palette import colour

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NARROW = 4.0  # inches of 72 points: a phone
_MOST_LOSSES = 6
_MOST_DECISIONS = 4
_FAR = 2.5  # times the spread of the scores near the two pairs: beyond it, an arrow
_LETTER = 0.078  # inches, of a small label


def overview(setup: Setup, summary: Summary) -> FigurePlan:
    """Scores of the losses and decisions on the first split; those of the answer's two pairs are written beside their points."""
    measure, labels, rules = summary.measure, _labels(setup, summary), _rules(setup, summary)
    shown = [score for score in summary.pairs if score.label in labels and score.decision in rules]
    ends = {key(score): role for score, role in ((summary.before, "before"), (summary.after, "after")) if score is not None}
    rows: list[tuple[Any, ...]] = [
        (score.label, score.decision, *score.interval.numbers, _p(score), better(score), ends.get(key(score), ""))
        for label in labels
        for score in shown
        if score.label == label
    ]
    rows += [(name, None, value, None, None, None, None, "baseline") for name, value in summary.baselines.items()]
    table = DataTable(("loss", "decision", measure.name, "low", "high", "p_holm", "better", "role"), rows)
    left = len(setup.labels) - len(labels)
    few = f" The best {len(labels)} of {len(setup.labels)} losses are drawn." if left else ""
    tested = summary.verdict != "untested" and summary.before is not None
    filled = f" Filled: significantly different from {pair(*key(summary.before))}." if tested and summary.before else ""
    place = f", {split_name(setup.splits[0])}" if len(setup.splits) > 1 else ""
    lines = " Dashed: baselines, fitted to the same rows." if summary.baselines else ""
    return FigurePlan(
        "overview",
        "Score of each loss and decision",
        f"{sentence(measure.summary)}{place}, with 95 % intervals (not paired).{filled}{lines}{few}"
        f"{arrows_said(table, measure.name)}{direction(measure)}",
        "nothing was scored",
        table,
        lambda data, width=WIDTH: _draw(data, summary, width),
    )


def _p(score: Score) -> float | None:
    return None if score.comparison is None else score.comparison.corrected_p


def _labels(setup: Setup, summary: Summary) -> list[str]:
    """Return the losses that are drawn: the baseline, that of the answer, and the best of the others."""
    sign = 1 if summary.measure.higher_is_better else -1
    ranked = sorted(summary.pairs, key=lambda score: -sign * score.interval.estimate)
    first = [score.label for score in (summary.before, summary.after) if score is not None]
    return [*dict.fromkeys([*first, *(score.label for score in ranked)])][:_MOST_LOSSES]


def _rules(setup: Setup, summary: Summary) -> list[str]:
    first = [GREEDY, *([] if summary.after is None else [summary.after.decision])]
    return [*dict.fromkeys([*first, *setup.decisions()])][:_MOST_DECISIONS]


def _draw(data: DataTable, summary: Summary, width: float) -> Figure:
    """Draw a row per loss with a point per decision."""
    from matplotlib.figure import Figure

    measure = summary.measure
    scores = [row for row in data.where() if row["role"] != "baseline"]
    labels = [*dict.fromkeys(row["loss"] for row in scores)][::-1]
    names = [*dict.fromkeys(row["decision"] for row in scores)]
    look = plot_styles(names, [GREEDY])
    lines = len(labels) * (1 + len(names))
    figure = Figure(figsize=(width, 1.15 + min(0.22 * lines, max(2.8, 0.15 * lines))))
    axes = figure.subplots()
    low, high = _range(data, measure.name, measure.factor)
    axes.set_xlim(low, high)
    spans = []
    for row in scores:
        y = labels.index(row["loss"]) + 0.75 * ((len(names) - 1) / 2 - names.index(row["decision"])) / len(names)
        value, said = measure.factor * row[measure.name], measure.estimate(row[measure.name], row["low"], row["high"])
        tip = f"{pair(row['loss'], row['decision'])}: {said}"
        drawn: dict[str, Any] = {"color": look[row["decision"]].colour, "gid": mark(row["loss"], tip)}
        if not value <= high:
            draw_infinite(axes, y, drawn)
            continue
        spans.append(Span(axes, y, max(low, measure.factor * row["low"]), min(high, measure.factor * row["high"]), drawn))
        drawn["markerfacecolor"] = PAPER if row["better"] is None and row["role"] != "before" else drawn["color"]
        big = 9 if row["role"] else 6.5
        axes.plot([value], [y], look[row["decision"]].marker, markersize=big, markeredgewidth=1.5, clip_on=False, **drawn)
        if row["role"]:
            _value(axes, y, row, summary, left=row[measure.name] <= min(s[measure.name] for s in scores if s["role"]))
    for border in range(1, len(labels)):
        axes.axhline(border - 0.5, color=PALE, linewidth=0.8)
    label_rows(axes, labels)
    draw_spans(spans)
    _baselines(axes, data.where(role="baseline"), summary, width)
    axes.set_xlabel(f"{measure.summary}{', %' if measure.percent else f', {measure.unit}' if measure.unit else ''}")
    _legend(figure, names, look, 2 if width < WIDTH and max(map(len, names)) > 8 else 4)
    return figure


def _value(axes: Axes, y: float, row: Row, summary: Summary, *, left: bool) -> None:
    """Write a score beside its interval; on the left only where there is room for it."""
    measure, (start, end) = summary.measure, axes.get_xlim()
    low, high = (measure.factor * row[side] for side in ("low", "high"))
    text, figure = measure.value(row[measure.name]), axes.figure.get_figure(root=True)
    assert figure is not None
    room = 0.8 * figure.get_figwidth() * (low - start) / (end - start)
    left = left and room > 1.2 * _LETTER * len(text) + 0.15
    at, shift, side = (low, -7, "right") if left else (min(high, end), 7, "left")
    at = min(max(at, start), end)
    axes.annotate(text, (at, y), (shift, 0), textcoords="offset points", ha=side, va="center", weight="bold", color=INK)


def _range(data: DataTable, name: str, factor: int) -> tuple[float, float]:
    """Return the ends of the axis: all scores and baselines that are not far from those of the two pairs."""
    finite = [row for row in data.where() if math.isfinite(row[name])]
    near = [factor * row[name] for row in finite if row["role"] in ("before", "after")] or [factor * row[name] for row in finite]
    if not near:
        return 0.0, 1.0
    middle, reach = sum(near) / len(near), max(max(near) - min(near), 0.2 * max(map(abs, near)))
    kept = [factor * row[name] for row in finite if abs(factor * row[name] - middle) <= _FAR * reach]
    ends = [factor * row[end] for row in finite for end in ("low", "high") if row["role"] in ("before", "after")]
    kept += [end for end in ends if abs(end - middle) <= _FAR * reach]
    margin = 0.12 * (max(kept) - min(kept)) or 0.1 * max(map(abs, kept)) or 1.0
    low = min(kept) - margin
    return (max(0.0, low) if min(kept) >= 0 else low), max(kept) + margin


def _baselines(axes: Axes, rows: Sequence[Row], summary: Summary, width: float) -> None:
    """Draw a dashed line per baseline, with its name above the panel; one beyond the axis is an arrow at its end."""
    measure, (low, high) = summary.measure, axes.get_xlim()
    ends: list[float] = []  # where the last name of each line of text ends, in inches
    inner = 0.8 * width
    for row in sorted(rows, key=lambda row: row[measure.name]):
        value = measure.factor * row[measure.name]
        text = f"{row['loss']} {measure.value(row[measure.name])}"
        inside = low <= value <= high
        if inside:
            axes.axvline(value, color=GREY, linewidth=1.3, linestyle=(0, (4, 3)), gid=mark(None, text), zorder=1)
        else:
            text = f"{text} →" if value > high else f"← {text}"
        half = _LETTER * len(text) / 2
        middle = inner * (min(max(value, low), high) - low) / (high - low)
        middle = min(max(middle, half), inner - half)
        line = next((at for at, end in enumerate(ends) if end < middle - half), len(ends))
        ends[line:] = [middle + half + _LETTER, *ends[line + 1 :]]
        axes.annotate(
            text,
            (low + (high - low) * middle / inner, 1),
            (0, 4 + 12 * line),
            xycoords=("data", "axes fraction"),
            textcoords="offset points",
            ha="center",
            fontsize=9,
            color=GREY,
        )


def _legend(figure: Figure, names: Sequence[str], look: Any, columns: int) -> None:
    from matplotlib.lines import Line2D

    if len(names) < 2:
        return
    handles = [
        Line2D([], [], label=plain(name), marker=look[name].marker, linestyle="none", color=look[name].colour) for name in names
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=columns, handlelength=1, columnspacing=1.4)


def overall(found: Sequence[tuple[Setup, Summary]], titles: Sequence[str]) -> FigurePlan:
    """Change of the score of each setup's pair, as a share of the baseline's with greedy answers."""
    rows = []
    for title, (setup, summary) in zip(titles, found, strict=True):
        after, before = summary.after, summary.before
        if after is None or before is None or after.change is None:
            continue
        ends: tuple[float | None, float | None] = (None, None)
        if after.comparison is not None and not after.by_sign:
            ends = (after.comparison.difference.low / after.base, after.comparison.difference.high / after.base)
        good = after.change == 0 or (after.change > 0) == (summary.measure.higher_is_better is True)
        rows.append((title, setup.model, pair(*key(after)), summary.measure.summary, after.change, *ends, better(after), good))
    table = DataTable(("setup", "model", "pair", "measure", "change", "low", "high", "better", "ahead"), rows)
    return FigurePlan(
        "overall",
        "Change by task and model",
        "Change of the score from the baseline with greedy answers, as a share of it, with its 95 % interval where scores are "
        "means. Filled points are significant after Holm's correction for the pairs of a task. Green is better.",
        "there is nothing to compare",
        table,
        lambda data, width=WIDTH: _draw_overall(data, width),
    )


def _draw_overall(data: DataTable, width: float) -> Figure:
    from matplotlib.figure import Figure

    rows = data.where()[::-1]
    figure = Figure(figsize=(width, 0.8 + 0.34 * len(rows)))
    axes = figure.subplots()
    axes.axvline(0, color=INK, linewidth=1.2)
    spans = []
    for y, row in enumerate(rows):
        tip = f"{row['setup']}, {row['pair']}: {row['measure']} {percent(row['change'])}"
        look: dict[str, Any] = {"color": colour("good" if row["ahead"] else "bad"), "gid": mark(None, tip)}
        if row["low"] is not None:
            spans.append(Span(axes, y, 100 * row["low"], 100 * row["high"], look | {"linewidth": 1.6}))
        face = PAPER if row["better"] is None else look["color"]
        axes.plot([100 * row["change"]], [y], "o", markersize=7.5, markeredgewidth=1.6, markerfacecolor=face, **look)
    draw_spans(spans)
    axes.set_yticks(range(len(rows)), [plain(row["setup"], 40 if width == WIDTH else 22) for row in rows])
    axes.set_ylim(-0.6, len(rows) - 0.4)
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("change of the score, %")
    return figure
