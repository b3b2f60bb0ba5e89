"""Draw the figures of a report from their data tables."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from numerate.lab.decisions import GREEDY
from numerate.lab.report.analysis import IN_RANGE, OUT_OF_RANGE, Setup
from numerate.lab.report.decision_words import decision_title, title
from numerate.lab.report.decisions import Decisions
from numerate.lab.report.drawing import (
    GREY,
    INK,
    PALE,
    WIDTH,
    PlotStyle,
    Span,
    Styles,
    draw_infinite,
    draw_spans,
    legend,
    panels,
    plain,
    split_name,
    widen,
)
from numerate.lab.report.drawing import styles as plot_styles
from numerate.lab.report.series import ErrorScale, calibration_errors, error_scale, place_name
from numerate.lab.report.tables import DataTable
from numerate.lab.report.wording import EXAMPLES_WON, NO_NUMBER, Measure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MIN_TOKENS = 20  # per point of a calibration curve

_SHADES = ("#08476b", "#2f80ae", "#83b8d6", "#c9dfec", "#fbe7d2", "#ffffff")  # dark to light, also in grey


def differences(setup: Setup, data: DataTable, styles: Styles) -> Figure:
    """Draw the difference from the baseline with its interval, one row per loss; filled if significant."""
    data = DataTable(("panel", *data.columns), [(_panel(data, *row[:2]), *row) for row in data.rows])
    first = {row["loss"]: row["difference"] for row in data.where(panel=data.distinct("panel")[0])}
    labels = sorted(first, key=lambda label: first[label])
    figure, axes_by = panels(data, height=0.9 + 0.34 * len(labels), by="panel", sharex=True, sharey=True)
    measure = _gain_measure(setup)
    factor = measure.factor
    for axes, panel in axes_by:
        axes.axvline(0, color=INK, linewidth=1.2)
        for row in data.where(panel=panel):
            style, y = styles[row["loss"]], labels.index(row["loss"])
            low, middle, high = (factor * row[name] for name in ("low", "difference", "high"))
            axes.plot([low, high], [y, y], color=style.colour, linewidth=2, solid_capstyle="butt")
            face = "white" if row["better"] is None else style.colour
            axes.plot([middle], [y], style.marker, color=style.colour, markerfacecolor=face, markersize=7.5, markeredgewidth=1.6)
        _label_rows(axes, labels)
    widen(axes_by[0][0])
    baseline = plain(setup.baseline or "")
    text = f"examples closer than {baseline} minus farther"
    if not setup.headline.median:
        text = f"difference in {measure.title} from {baseline}"
    figure.supxlabel(text + _unit(measure), fontsize=10)
    return figure


def _panel(data: DataTable, split: str, decision: str) -> str:
    """Name of a panel: the split, with several decisions also the decision, and of one split the decision alone."""
    if len(data.distinct("decision")) == 1:
        return split_name(split)
    if len(data.distinct("split")) == 1:
        return decision_title(decision)
    return f"{split_name(split)}, {decision if decision == GREEDY else f'by {decision}'}"


def decisions(found: Decisions, data: DataTable) -> Figure:
    """Draw a row per loss with a mark per decision; greedy answers are black. Intervals are cut at the ends of the axis.

    A score that is infinite, because most answers hold no number, is an arrow at the right end.
    """
    from matplotlib.ticker import LogLocator, NullFormatter

    measure = found.measures[0]
    labels, names = data.distinct("loss")[::-1], data.distinct("decision")
    look = plot_styles(names, [GREEDY])
    figure, axes_by = panels(data, height=1.2 + len(labels) * (0.16 + 0.17 * len(names)), sharey=True)
    for axes, split in axes_by:
        rows, spans = data.where(split=split), list[Span]()
        for row in rows:
            style = look[row["decision"]]
            y = labels.index(row["loss"]) + 0.8 * ((len(names) - 1) / 2 - names.index(row["decision"])) / len(names)
            low, value, high = (measure.factor * row[name] for name in ("low", measure.name, "high"))
            if math.isinf(value):
                draw_infinite(axes, y, style.colour)
                continue
            spans.append(Span(axes, y, low, high, {"color": style.colour, "linewidth": 1.4}))
            axes.plot([value], [y], style.marker, color=style.colour, markersize=6.5)
        for border in range(1, len(labels)):
            axes.axhline(border - 0.5, color=PALE, linewidth=0.8)
        _label_rows(axes, labels)
        finite = [measure.factor * row[measure.name] for row in rows if not math.isinf(row[measure.name])]
        least, most = min(finite, default=0.0), max(finite, default=0.0)
        if 0 < 5 * least < most:
            axes.set_xscale("log")
            axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if most < 100 * least else (1.0,)))
            axes.xaxis.set_major_formatter("{x:g}")
            axes.xaxis.set_minor_formatter(NullFormatter())
            axes.set_xlim(least / 1.5, most * 1.5)
        elif most > least:
            axes.set_xlim(max(0, least - 0.6 * (most - least)), most + 0.6 * (most - least))
        elif not finite:
            axes.set_xticks([])
        draw_spans(spans)
        axes.set_xlabel(f"{title(measure)}{', %' if measure.percent else ''}")
    legend(figure, names, look, lines=False)
    return figure


def learning_curves(setup: Setup, data: DataTable, styles: Styles) -> Figure:
    """Draw one panel per curve: the mean over seeds, and a band from the lowest to the highest seed."""
    from matplotlib.ticker import LogLocator, NullFormatter

    figure, axes_by = panels(data, by="curve", height=3.4)
    for axes, name in axes_by:
        for label in setup.labels:
            rows = data.where(curve=name, loss=label)
            steps, means = [row["step"] for row in rows], [row["mean"] for row in rows]
            style = styles[label]
            low, high = ([row[end] for row in rows] for end in ("least", "most"))
            finite = [math.isfinite(mean) for mean in means]
            axes.fill_between(steps, low, high, where=finite, color=style.colour, alpha=0.1, linewidth=0)
            dot = style.marker if sum(finite) == 1 else None  # one point is no line
            axes.plot(steps, means, **style.line, marker=dot, zorder=3 if label == setup.baseline else 2)
        axes.set_xlabel("training step")
        drawn = data.where(curve=name)
        if not any(math.isfinite(row["mean"]) for row in drawn):
            axes.set(xticks=[], yticks=[])
            axes.text(0.5, 0.5, NO_NUMBER, ha="center", color=GREY, transform=axes.transAxes)
        least, most = (function([row[end] for row in drawn]) for end, function in (("least", min), ("most", max)))
        if name == "cross-entropy" and 0 < 4 * least < most:
            axes.set_yscale("log")
            axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
            axes.yaxis.set_major_formatter("{x:g}")
            axes.yaxis.set_minor_formatter(NullFormatter())
    legend(figure, setup.labels, styles, markers=False)
    return figure


def error_distribution(setup: Setup, data: DataTable) -> Figure:
    """Draw one bar per loss, divided by size of the error."""
    scale = _error_scale(setup)
    labels = setup.labels[::-1]
    figure, axes_by = panels(data, height=1.2 + 0.34 * len(labels), sharey=True)
    for axes, split in axes_by:
        for y, label in enumerate(labels):
            left = 0.0
            for row, shade in zip(data.where(split=split, loss=label), _SHADES, strict=True):
                width = 100 * row["share"]
                axes.barh(y, width, left=left, height=0.74, **_bar(shade))
                if width >= 7:
                    colour = "white" if shade in _SHADES[:2] else INK
                    axes.text(left + width / 2, y, f"{width:.0f}", ha="center", va="center", fontsize=8.5, color=colour)
                left += width
        _label_rows(axes, labels)
        axes.set_xlim(0, 100)
        axes.grid(visible=False)
        axes.set_xlabel(f"% of the answers, by {scale.measure.plain}")
    from matplotlib.patches import Patch

    handles = [Patch(label=name, **_bar(shade)) for name, shade in zip(scale.classes(), _SHADES, strict=True)]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))
    return figure


def tolerance(setup: Setup, data: DataTable, styles: Styles) -> Figure:
    """Draw the share of answers within a tolerance, which grows to the right."""
    scale = _error_scale(setup)
    figure, axes_by = panels(data, height=3.6, sharey=True)
    relative = scale.measure.name == "relative_error"
    for axes, split in axes_by:
        for label in setup.labels:
            rows = data.where(split=split, loss=label)
            x = [row[scale.measure.name] * (100 if relative else 1) for row in rows]
            axes.plot(x, [100 * row["share"] for row in rows], **styles[label].line, zorder=3 if label == setup.baseline else 2)
        if relative or scale.measure.name == "absolute_error":
            axes.set_xscale("log")
            axes.xaxis.set_major_formatter("{x:g}")
        if scale.higher_is_better:
            axes.invert_xaxis()
            axes.set_xlabel(f"required {scale.measure.plain}")
        else:
            unit = "%" if relative else scale.measure.unit
            axes.set_xlabel(f"tolerated {scale.measure.plain}" + (f", {unit}" if unit else ""))
    axes_by[0][0].set_ylim(bottom=0)
    axes_by[0][0].set_ylabel("% of the answers")
    legend(figure, setup.labels, styles, markers=False)
    return figure


def digit_places(setup: Setup, data: DataTable, styles: Styles) -> Figure:
    """Draw the share of wrong tokens by place, the largest place first."""
    labels = ("place of the token in the gold number", "% of the tokens wrong")
    return _dots(setup, data, styles, ("place", "wrong"), place_name, labels, 100)


def lengths(setup: Setup, data: DataTable, styles: Styles) -> Figure:
    """Draw the headline measure by length of the gold number."""
    headline = setup.headline
    labels = ("digits of the gold number before the decimal point", headline.heading)
    return _dots(setup, data, styles, ("digits", headline.name), str, labels, headline.factor)


def calibration(setup: Setup, data: DataTable, styles: Styles) -> Figure:
    """Draw one panel per loss: accuracy by confidence, with the baseline in grey behind it."""
    from matplotlib.figure import Figure

    splits, labels, gaps = data.distinct("split"), data.distinct("loss"), calibration_errors(data)
    columns = min(6, len(labels))
    splits = splits if len(labels) <= columns else splits[:1]  # several rows of panels per split would be too many
    lines = -(-len(labels) // columns)
    figure = Figure(figsize=(WIDTH * max(2, columns) / 6, 0.4 + 1.95 * lines * len(splits)))
    grid = figure.subplots(lines * len(splits), columns, sharex=True, sharey=True, squeeze=False)
    for axes in grid.flat:
        axes.set_axis_off()
    for block, split in enumerate(splits):
        for i, label in enumerate(labels):
            axes = grid[block * lines + i // columns, i % columns]
            axes.set_axis_on()
            axes.plot([0, 100], [0, 100], color=GREY, linewidth=0.9, linestyle=(0, (2, 2)))
            for name in dict.fromkeys([setup.baseline, label]):
                rows = [row for row in data.where(split=split, loss=name) if row["tokens"] >= MIN_TOKENS]
                style = styles[label] if name == label else PlotStyle("#a8a8a8", "", "-", 1.6)
                x, y = ([100 * row[key] for row in rows] for key in ("confidence", "right"))
                axes.plot(x, y, color=style.colour, linewidth=style.width, marker=style.marker or None, markersize=4)
            axes.set(xlim=(0, 100), ylim=(0, 100), xticks=[0, 50, 100], yticks=[0, 50, 100], aspect="equal")
            gap = gaps.get((split, label))
            title = f"{plain(label, 16)}\n" + ("" if gap is None else f"gap {100 * gap:.1f} points")
            axes.set_title(title, fontsize=9, fontweight="normal")
            if i % columns == 0:
                axes.set_ylabel(f"{split_name(split)},\n% right", fontsize=9)
            axes.tick_params(labelsize=8.5)
    figure.supxlabel("probability of the most likely token, %", fontsize=10)
    return figure


def ranges(setup: Setup, data: DataTable, styles: Styles) -> Figure:
    """Draw the headline measure in and out of range, one row per loss."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    labels, headline = setup.labels[::-1], setup.headline
    factor = headline.factor
    figure = Figure(figsize=(WIDTH, 0.95 + 0.4 * len(labels)))
    axes, spans = figure.subplots(), list[Span]()
    for y, label in enumerate(labels):
        style = styles[label]
        by_split = {row["split"]: row for row in data.where(loss=label)}
        both = [factor * by_split[split][headline.name] for split in (IN_RANGE, OUT_OF_RANGE) if split in by_split]
        if all(map(math.isfinite, both)):
            axes.plot(both, [y] * len(both), color=PALE, linewidth=5, solid_capstyle="butt", zorder=1)
        for split, row in by_split.items():
            shift = 0.11 if split == IN_RANGE else -0.11
            face = style.colour if split == IN_RANGE else "white"
            if math.isinf(row[headline.name]):
                draw_infinite(axes, y + shift, style.colour, face)
                continue
            look = {"color": style.colour, "linewidth": 1.4}
            spans.append(Span(axes, y + shift, factor * row["low"], factor * row["high"], look))
            x = [factor * row[headline.name]]
            axes.plot(x, [y + shift], style.marker, color=style.colour, markerfacecolor=face, markersize=7)
    _label_rows(axes, labels)
    axes.set_xlabel(headline.heading)
    if not spans:
        axes.set_xticks([])
    draw_spans(spans)
    widen(axes)
    handles = [
        Line2D([], [], color=GREY, marker="o", markerfacecolor=face, linestyle="-", label=text)
        for face, text in ((GREY, "in range"), ("white", "out of range"))
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=2)
    return figure


def gain_and_cost(setup: Setup, data: DataTable, styles: Styles) -> Figure:
    """Draw the difference in the headline measure by time per step; the baseline is where the lines cross."""
    from matplotlib.figure import Figure

    measure = _gain_measure(setup)
    factor = measure.factor
    figure = Figure(figsize=(WIDTH, 3.6))
    axes = figure.subplots()
    axes.axhline(0, color=INK, linewidth=1)
    axes.axvline(1, color=INK, linewidth=1)
    for row in data.where():
        style = styles[row["loss"]]
        x, y = row["time_ratio"], factor * row["difference"]
        axes.plot([x, x], [factor * row["low"], factor * row["high"]], color=style.colour, linewidth=1.6)
        axes.plot([row["time_ratio_low"], row["time_ratio_high"]], [y, y], color=style.colour, linewidth=1.6)
        axes.plot([x], [y], style.marker, color=style.colour, markersize=8)
    axes.set_xlabel(f"time per step relative to {plain(setup.baseline or '')}")
    axes.set_ylabel(("closer minus farther" if setup.headline.median else f"difference in {measure.title}") + _unit(measure))
    low, high = axes.get_xlim()
    axes.set_xlim(min(low, 0.97), max(high, 1.05))
    legend(figure, [row["loss"] for row in data.where()], styles)
    return figure


def _bar(shade: str) -> dict[str, Any]:
    return {"facecolor": shade, "edgecolor": "#8a8a8a", "linewidth": 0.5, "hatch": "////" if shade == _SHADES[-1] else None}


def _gain_measure(setup: Setup) -> Measure:
    """Measure of the difference from the baseline."""
    return EXAMPLES_WON if setup.headline.median else setup.headline


def _unit(measure: Measure) -> str:
    unit = "points" if measure.percent else measure.unit
    return f", {unit}" if unit else ""


def _label_rows(axes: Axes, labels: Sequence[str]) -> None:
    axes.set_yticks(range(len(labels)), [plain(label) for label in labels])
    axes.set_ylim(-0.6, len(labels) - 0.4)
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0)


def _error_scale(setup: Setup) -> ErrorScale:
    scale = error_scale(setup)
    assert scale is not None  # otherwise there is no data to draw
    return scale


def _dots(
    setup: Setup,
    data: DataTable,
    styles: Styles,
    columns: tuple[str, str],
    name: Callable[[int], str],
    axis_labels: tuple[str, str],
    factor: int,
) -> Figure:
    """Draw a point with its interval per loss, side by side in each class."""
    figure, axes_by = panels(data, height=3.6, sharey=True)
    by, value_name = columns
    step, spans = 0.72 / len(setup.labels), list[Span]()
    for axes, split in axes_by:
        classes = list(dict.fromkeys(row[by] for row in data.where(split=split)))
        for i, label in enumerate(setup.labels):
            rows = data.where(split=split, loss=label)
            x = [classes.index(row[by]) + step * (i - (len(setup.labels) - 1) / 2) for row in rows]
            low, middle, high = ([factor * row[key] for row in rows] for key in ("low", value_name, "high"))
            for at, value, least, most in zip(x, middle, low, high, strict=True):
                if math.isinf(value):
                    draw_infinite(axes, at, styles[label].colour, upright=True)
                    continue
                spans.append(Span(axes, at, least, most, {"color": styles[label].colour, "linewidth": 1.3}))
                axes.plot([at], [value], styles[label].marker, color=styles[label].colour, markersize=5, clip_on=False)
        for border in range(1, len(classes)):
            axes.axvline(border - 0.5, color=PALE, linewidth=0.8)
        axes.set_xticks(range(len(classes)), [name(value) for value in classes])
        axes.set_xlim(-0.5, len(classes) - 0.5)
        axes.tick_params(axis="x", length=0, pad=7)  # below points at 0
        axes.grid(axis="x", visible=False)
        axes.set_xlabel(axis_labels[0])
    if not spans:
        axes_by[0][0].set_yticks([])
    draw_spans(spans, upright=True)
    axes_by[0][0].set_ylabel(axis_labels[1])
    axes_by[0][0].set_ylim(bottom=0)
    legend(figure, setup.labels, styles, lines=False)
    return figure
