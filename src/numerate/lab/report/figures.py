"""Draw the figures of a report from their data tables."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from numerate.lab.evaluation.decisions import GREEDY
from numerate.lab.evaluation.missing import NO_NUMBER
from numerate.lab.report.analysis import IN_RANGE, OUT_OF_RANGE, Setup
from numerate.lab.report.decision_words import decision_title, title
from numerate.lab.report.decisions import Decisions
from numerate.lab.report.dots import dots
from numerate.lab.report.drawing import (
    EDGE,
    GREY,
    INK,
    PALE,
    PAPER,
    WIDTH,
    PlotStyle,
    Span,
    Styles,
    draw_infinite,
    draw_spans,
    label_rows,
    legend,
    panels,
    plain,
    split_name,
    widen,
)
from numerate.lab.report.drawing import styles as plot_styles
from numerate.lab.report.palette import ON_SHADES, SHADES, colour
from numerate.lab.report.series import ErrorScale, calibration_errors, error_scale, gain_measure, place_name
from numerate.lab.report.svg import mark
from numerate.lab.report.tables import DataTable
from numerate.lab.report.wording import Measure, rounded, times

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MIN_TOKENS = 20  # per point of a calibration curve

_SHADES = (*map(colour, SHADES), PAPER)  # dark to light, also in grey; the last is hatched


def differences(setup: Setup, data: DataTable, styles: Styles) -> Figure:
    """Draw the difference from the baseline with its interval, one row per loss; filled if significant."""
    data = DataTable(("panel", *data.columns), [(_panel(data, *row[:2]), *row) for row in data.rows])
    first = {row["loss"]: row["difference"] for row in data.where(panel=data.distinct("panel")[0])}
    labels = sorted(first, key=lambda label: first[label])
    figure, axes_by = panels(data, height=0.9 + 0.34 * len(labels), by="panel", sharex=True, sharey=True)
    measure = gain_measure(setup)
    factor = measure.factor
    for axes, panel in axes_by:
        axes.axvline(0, color=INK, linewidth=1.2)
        for row in data.where(panel=panel):
            style, y = styles[row["loss"]], labels.index(row["loss"])
            low, middle, high = (factor * row[name] for name in ("low", "difference", "high"))
            gid = mark(
                row["loss"], f"{row['loss']}, {panel}: {measure.difference(row['difference'])}{_range(measure, row, True)}"
            )
            axes.plot([low, high], [y, y], color=style.colour, linewidth=2, solid_capstyle="butt", gid=gid)
            look: dict[str, Any] = {
                "color": style.colour,
                "markerfacecolor": PAPER if row["better"] is None else style.colour,
                "gid": gid,
            }
            axes.plot([middle], [y], style.marker, markersize=7.5, markeredgewidth=1.6, **look)
        label_rows(axes, labels)
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
            said = f"{measure.value(row[measure.name])}{_range(measure, row)}"
            drawn: dict[str, Any] = {"color": style.colour, "gid": mark(row["loss"], f"{row['loss']}, {row['decision']}: {said}")}
            if math.isinf(value):
                draw_infinite(axes, y, drawn)
                continue
            spans.append(Span(axes, y, low, high, drawn | {"linewidth": 1.4}))
            axes.plot([value], [y], style.marker, markersize=6.5, clip_on=False, **drawn)  # whole on the axis, as at 0 %
        for border in range(1, len(labels)):
            axes.axhline(border - 0.5, color=PALE, linewidth=0.8)
        label_rows(axes, labels)
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
            last = [f"{rounded(row['mean']) if finite[-1] else NO_NUMBER} at step {row['step']:,g}" for row in rows[-1:]]
            gid = mark(label, ", ".join([label, *last]))
            look: dict[str, Any] = {"color": style.colour, "alpha": 0.1, "linewidth": 0, "gid": mark(label)}
            axes.fill_between(steps, low, high, where=finite, **look)
            dot = style.marker if sum(finite) == 1 else None  # one point is no line
            axes.plot(steps, means, **style.line, marker=dot, zorder=3 if label == setup.baseline else 2, gid=gid)
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
                if width > 0:
                    gid = mark(label, f"{label}, {row[scale.measure.name]}: {width:.1f} %")
                    axes.barh(y, width, left=left, height=0.74, **_bar(shade), gid=gid)
                if width >= 7:
                    look: dict[str, Any] = {"fontsize": 8.5, "color": _text_on(shade), "gid": mark(label)}
                    axes.text(left + width / 2, y, f"{width:.0f}", ha="center", va="center", **look)
                left += width
        label_rows(axes, labels)
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
            shown = [row for row in rows if row[scale.measure.name] in scale.steps]
            tip = ", ".join([label, *(f"{scale.limit(row[scale.measure.name])}: {100 * row['share']:.1f} %" for row in shown)])
            look: dict[str, Any] = {**styles[label].line, "zorder": 3 if label == setup.baseline else 2, "gid": mark(label, tip)}
            axes.plot(x, [100 * row["share"] for row in rows], **look)
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

    def said(row: Mapping[str, Any]) -> str:
        return f"{place_name(row['place'])}: " + "{:.1f} % ({:.1f} to {:.1f})".format(
            *(100 * row[key] for key in ("wrong", "low", "high"))
        )

    return dots(setup, data, styles, ("place", "wrong"), place_name, labels, said, 100)


def lengths(setup: Setup, data: DataTable, styles: Styles) -> Figure:
    """Draw the headline measure by length of the gold number."""
    headline = setup.headline
    labels = ("digits of the gold number before the decimal point", headline.heading)

    def said(row: Mapping[str, Any]) -> str:
        return f"{row['digits']} digits: {headline.value(row[headline.name])}{_range(headline, row)}"

    return dots(setup, data, styles, ("digits", headline.name), str, labels, said, headline.factor)


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
            axes.set_gid(mark(label))
            axes.plot([0, 100], [0, 100], color=GREY, linewidth=0.9, linestyle=(0, (2, 2)))
            for name in dict.fromkeys([setup.baseline, label]):
                rows = [row for row in data.where(split=split, loss=name) if row["tokens"] >= MIN_TOKENS]
                style = styles[label] if name == label else PlotStyle(EDGE, "", "-", 1.6)
                x, y = ([100 * row[key] for row in rows] for key in ("confidence", "right"))
                said = [
                    f"{name}: {b:.0f} % right at {a:.0f} %, {row['tokens']:,} tokens"
                    for a, b, row in zip(x, y, rows, strict=True)
                ]
                look: dict[str, Any] = {
                    "color": style.colour,
                    "linewidth": style.width,
                    "marker": style.marker or None,
                    "markersize": 4,
                }
                axes.plot(x, y, **look, gid=mark(None, *said) if style.marker else None)
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
            axes.plot(both, [y] * len(both), color=PALE, linewidth=5, solid_capstyle="butt", zorder=1, gid=mark(label))
        for split, row in by_split.items():
            shift = 0.11 if split == IN_RANGE else -0.11
            said = f"{headline.value(row[headline.name])}{_range(headline, row)}"
            look: dict[str, Any] = {"color": style.colour, "gid": mark(label, f"{label}, {split_name(split)}: {said}")}
            point = look | {"markerfacecolor": style.colour if split == IN_RANGE else PAPER}
            if math.isinf(row[headline.name]):
                draw_infinite(axes, y + shift, point)
                continue
            spans.append(Span(axes, y + shift, factor * row["low"], factor * row["high"], look | {"linewidth": 1.4}))
            axes.plot([factor * row[headline.name]], [y + shift], style.marker, markersize=7, **point)
    label_rows(axes, labels)
    axes.set_xlabel(headline.heading)
    if not spans:
        axes.set_xticks([])
    draw_spans(spans)
    widen(axes)
    handles = [
        Line2D([], [], color=GREY, marker="o", markerfacecolor=face, linestyle="-", label=text)
        for face, text in ((GREY, "in range"), (PAPER, "out of range"))
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=2)
    return figure


def gain_and_cost(setup: Setup, data: DataTable, styles: Styles) -> Figure:
    """Draw the difference in the headline measure by time per step; the baseline is where the lines cross."""
    from matplotlib.figure import Figure

    measure = gain_measure(setup)
    factor = measure.factor
    figure = Figure(figsize=(WIDTH, 3.6))
    axes = figure.subplots()
    axes.axhline(0, color=INK, linewidth=1)
    axes.axvline(1, color=INK, linewidth=1)
    for row in data.where():
        style = styles[row["loss"]]
        x, y = row["time_ratio"], factor * row["difference"]
        tip = f"{row['loss']}: {measure.difference(row['difference'])}{_range(measure, row, True)}, {times(x)} the time"
        look: dict[str, Any] = {"color": style.colour, "gid": mark(row["loss"], tip)}
        axes.plot([x, x], [factor * row["low"], factor * row["high"]], linewidth=1.6, **look)
        axes.plot([row["time_ratio_low"], row["time_ratio_high"]], [y, y], linewidth=1.6, **look)
        axes.plot([x], [y], style.marker, markersize=8, **look)
    axes.set_xlabel(f"time per step relative to {plain(setup.baseline or '')}")
    axes.set_ylabel(("closer minus farther" if setup.headline.median else f"difference in {measure.title}") + _unit(measure))
    low, high = axes.get_xlim()
    axes.set_xlim(min(low, 0.97), max(high, 1.05))
    legend(figure, [row["loss"] for row in data.where()], styles)
    return figure


def _bar(shade: str) -> dict[str, Any]:
    return {"facecolor": shade, "edgecolor": EDGE, "linewidth": 0.5, "hatch": "////" if shade == _SHADES[-1] else None}


def _text_on(shade: str) -> str:
    """Return the colour of text on a bar."""
    return INK if shade == PAPER else colour([*ON_SHADES][shade not in _SHADES[:2]])


def _range(measure: Measure, row: Mapping[str, Any], signed: bool = False) -> str:
    """Return the interval of a row in brackets."""
    low, high = row["low"], row["high"]
    return f" ({measure.signed_range(low, high) if signed else measure.range(low, high)})"


def _unit(measure: Measure) -> str:
    unit = "points" if measure.percent else measure.unit
    return f", {unit}" if unit else ""


def _error_scale(setup: Setup) -> ErrorScale:
    scale = error_scale(setup)
    assert scale is not None  # otherwise there is no data to draw
    return scale
