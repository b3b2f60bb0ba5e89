"""Draw the figures of a report from their data tables."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from numerate.lab.evaluation.decisions import GREEDY
from numerate.lab.evaluation.missing import NO_NUMBER
from numerate.lab.report.analysis import Setup
from numerate.lab.report.decisions import Decisions
from numerate.lab.report.drawing import (
    EDGE,
    GREY,
    INK,
    PALE,
    PAPER,
    Row,
    Span,
    Styles,
    dots,
    draw_infinite,
    draw_spans,
    few_ticks,
    label_rows,
    legend,
    named,
    panels,
    plain,
)
from numerate.lab.report.drawing import styles as plot_styles
from numerate.lab.report.series import error_scale, place_name
from numerate.lab.report.svg import mark
from numerate.lab.report.tables import DataTable
from numerate.lab.wording.decisions import decision_title
from numerate.lab.wording.text import rounded, split_name
from numerate.plotting.palette import ON_SHADES, SHADES, colour

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
    measure = setup.gain_measure
    for axes, panel in axes_by:
        axes.axvline(0, color=INK, linewidth=1.2)
        for row in data.where(panel=panel):
            style, y = styles[row["loss"]], labels.index(row["loss"])
            low, middle, high = (measure.factor * row[name] for name in ("low", "difference", "high"))
            said = f"{measure.difference(row['difference'])} ({measure.signed_range(row['low'], row['high'])})"
            look: dict[str, Any] = {"color": style.colour, "gid": mark(row["loss"], f"{row['loss']}, {panel}: {said}")}
            axes.plot([low, high], [y, y], linewidth=2, solid_capstyle="butt", **look)
            look["markerfacecolor"] = PAPER if row["better"] is None else style.colour
            axes.plot([middle], [y], style.marker, markersize=7.5, markeredgewidth=1.6, **look)
        label_rows(axes, labels)
    if axes_by[0][0].dataLim.width < 1e-9:  # all differences are 0
        axes_by[0][0].set_xlim(-1, 1)
    baseline, unit = plain(setup.baseline or ""), "points" if measure.percent else measure.unit
    text = f"examples closer than {baseline} minus farther"
    if not setup.headline.median:
        text = f"difference in {measure.title} from {baseline}"
    figure.supxlabel(f"{text}{f', {unit}' if unit else ''}", fontsize=10)
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
            said = f"{measure.value(row[measure.name])} ({measure.range(row['low'], row['high'])})"
            tip = f"{named(data, row, row['decision'])}: {said}"
            drawn: dict[str, Any] = {"color": style.colour, "gid": mark(row["loss"], tip)}
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
            few_ticks(axes, "x", least, most)
            axes.set_xlim(least / 1.5, most * 1.5)
        elif most > least:
            axes.set_xlim(max(0, least - 0.6 * (most - least)), most + 0.6 * (most - least))
        elif not finite:
            axes.set_xticks([])
        draw_spans(spans)
        axes.set_xlabel(f"{measure.summary}{', %' if measure.percent else ''}")
    legend(figure, names, look, lines=False)
    return figure


def learning_curves(setup: Setup, data: DataTable, styles: Styles) -> Figure:
    """Draw one panel per curve: the mean over seeds, and a band from the lowest to the highest seed."""
    figure, axes_by = panels(data, by="curve", height=3.4)
    for axes, name in axes_by:
        drawn = data.where(curve=name)
        for label in setup.labels:
            rows = [row for row in drawn if row["loss"] == label]
            steps, means, low, high = ([row[key] for row in rows] for key in ("step", "mean", "least", "most"))
            style, finite = styles[label], [math.isfinite(mean) for mean in means]
            last = [f"{rounded(row['mean']) if finite[-1] else NO_NUMBER} at step {row['step']:,g}" for row in rows[-1:]]
            look: dict[str, Any] = {"color": style.colour, "alpha": 0.1, "linewidth": 0, "gid": mark(label)}
            axes.fill_between(steps, low, high, where=finite, **look)
            dot = style.marker if sum(finite) == 1 else None  # one point is no line
            gid = mark(label, ", ".join([label, name, *last]))
            axes.plot(steps, means, **style.line, marker=dot, zorder=3 if label == setup.baseline else 2, gid=gid)
        axes.set_xlabel("training step")
        if not any(math.isfinite(row["mean"]) for row in drawn):
            axes.set(xticks=[], yticks=[])
            axes.text(0.5, 0.5, NO_NUMBER, ha="center", color=GREY, transform=axes.transAxes)
        least, most = min(row["least"] for row in drawn), max(row["most"] for row in drawn)
        if name == "cross-entropy" and 0 < 4 * least < most:
            few_ticks(axes, "y", least, most)
    legend(figure, setup.labels, styles, markers=False)
    return figure


def error_distribution(setup: Setup, data: DataTable) -> Figure:
    """Draw one bar per loss, divided by size of the error."""
    from matplotlib.patches import Patch

    scale, labels = error_scale(setup), setup.labels[::-1]
    assert scale is not None  # otherwise there is no data to draw
    figure, axes_by = panels(data, height=1.2 + 0.34 * len(labels), sharey=True)
    for axes, split in axes_by:
        for y, label in enumerate(labels):
            left = 0.0
            for row, shade in zip(data.where(split=split, loss=label), _SHADES, strict=True):
                width = 100 * row["share"]
                if width > 0:
                    gid = mark(label, f"{named(data, row, row[scale.measure.name])}: {width:.1f} %")
                    axes.barh(y, width, left=left, height=0.74, **_bar(shade), gid=gid)
                if width >= 7:
                    look: dict[str, Any] = {"fontsize": 8.5, "color": _text_on(shade), "gid": mark(label)}
                    axes.text(left + width / 2, y, f"{width:.0f}", ha="center", va="center", **look)
                left += width
        label_rows(axes, labels)
        axes.set_xlim(0, 100)
        axes.grid(visible=False)
        axes.set_xlabel(f"% of the answers, by {scale.measure.plain}")
    handles = [Patch(label=name, **_bar(shade)) for name, shade in zip(scale.classes(), _SHADES, strict=True)]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))
    return figure


def digit_places(setup: Setup, data: DataTable, styles: Styles) -> Figure:
    """Draw the share of wrong tokens by place, the largest place first."""

    def said(row: Row) -> tuple[str, str]:
        wrong, low, high = (100 * row[key] for key in ("wrong", "low", "high"))
        return place_name(row["place"]), f"{wrong:.1f} % ({low:.1f} to {high:.1f})"

    labels = ("place of the token in the gold number", "% of the tokens wrong")
    return dots(setup.labels, data, styles, ("place", "wrong"), labels, said, 100)


def lengths(setup: Setup, data: DataTable, styles: Styles) -> Figure:
    """Draw the headline measure by length of the gold number."""
    headline = setup.headline

    def said(row: Row) -> tuple[str, str]:
        return f"{row['digits']} digits", f"{headline.value(row[headline.name])} ({headline.range(row['low'], row['high'])})"

    labels = ("length of the gold number before the decimal point", headline.heading)
    return dots(setup.labels, data, styles, ("digits", headline.name), labels, said, headline.factor)


def calibration(setup: Setup, data: DataTable, styles: Styles) -> Figure:
    """Draw accuracy by confidence, one line per loss."""
    figure, axes_by = panels(data, height=3.8)
    for axes, split in axes_by:
        axes.plot([0, 100], [0, 100], color=GREY, linewidth=0.9, linestyle=(0, (2, 2)))
        for label in setup.labels:
            rows = [row for row in data.where(split=split, loss=label) if row["tokens"] >= MIN_TOKENS]
            if not rows:  # a line of marks without marks would take the whole figure
                continue
            x, y = ([100 * row[key] for row in rows] for key in ("confidence", "right"))
            texts = [f"{b:.0f} % right at {a:.0f} %, {row['tokens']:,} tokens" for a, b, row in zip(x, y, rows, strict=True)]
            tips = [f"{named(data, row)}: {text}" for row, text in zip(rows, texts, strict=True)]
            look: dict[str, Any] = {**styles[label].line, "marker": styles[label].marker, "markersize": 4, "clip_on": False}
            axes.plot(x, y, **look, zorder=3 if label == setup.baseline else 2, gid=mark(label, *tips))
        axes.set(xlim=(0, 100), ylim=(0, 100))
        axes.set_xlabel("probability of the most likely token, %")
    axes_by[0][0].set_ylabel("% of the tokens right")
    legend(figure, setup.labels, styles)
    return figure


def _bar(shade: str) -> dict[str, Any]:
    return {"facecolor": shade, "edgecolor": EDGE, "linewidth": 0.5, "hatch": "////" if shade == _SHADES[-1] else None}


def _text_on(shade: str) -> str:
    """Return the colour of text on a bar."""
    return INK if shade == PAPER else colour([*ON_SHADES][shade not in _SHADES[:2]])
