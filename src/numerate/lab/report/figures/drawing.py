"""Shared parts of the figures: plans, styles, panels, rows of losses, points with intervals and legends."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from numerate.lab.report.figures.svg import mark
from numerate.lab.report.tables import DataTable
from numerate.lab.wording.measures import Measure
from numerate.lab.wording.text import SPLIT_NAMES, safe_text, split_name
from numerate.plotting.palette import LOSSES, colour

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, GREY, PALE, PAPER, EDGE = (colour(name) for name in ("ink", "grey", "pale", "paper", "edge"))
Row = Mapping[str, Any]
WIDTH = 10.0  # inches of 72 points
LEAST_COUNT = 10  # examples or tokens; smaller groups are left out
RESAMPLES = 499  # per interval, with one seed
_ACROSS = 3  # panels in a row

_COLOURS = tuple(map(colour, LOSSES))
_MARKERS = "sD^voPXh*<>"
_DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1.5, 1.5)), (0, (6, 2, 1.5, 2)), (0, (3, 1.5)), (0, (8, 3)))


@dataclass(frozen=True)
class FigurePlan:
    """Figure that is drawn if there is data for it."""

    name: str
    title: str
    caption: str
    missing: str  # why there is no data
    data: DataTable  # all that the figure shows
    draw: Callable[..., Figure]  # of the data and, if there is a narrow drawing, the width in inches
    svg: str = ""  # once it is drawn
    narrow: str = ""  # the same for a narrow screen


@dataclass(frozen=True)
class PlotStyle:
    """Look of a loss, the same in every figure."""

    colour: str
    marker: str
    dash: Any
    width: float

    @property
    def line(self) -> dict[str, Any]:
        """Keyword arguments of a line."""
        return {"color": self.colour, "linestyle": self.dash, "linewidth": self.width}


Styles = Mapping[str, PlotStyle]


def styles(labels: Sequence[str], baselines: Sequence[str]) -> dict[str, PlotStyle]:
    """Return the style of each loss; baselines are black."""
    by_label = {label: PlotStyle(INK, "o", "-", 2.4) for label in labels if label in baselines}
    for i, label in enumerate(label for label in labels if label not in baselines):
        dash = _DASHES[(i + i // len(_DASHES)) % len(_DASHES)]
        by_label[label] = PlotStyle(_COLOURS[i % len(_COLOURS)], _MARKERS[i % len(_MARKERS)], dash, 1.7)
    return by_label


@contextmanager
def drawing() -> Iterator[None]:
    """Apply the report's matplotlib settings inside the context."""
    from matplotlib import rc_context

    settings: dict[Any, Any] = {
        **dict.fromkeys(("axes.edgecolor", "xtick.color", "ytick.color"), GREY),
        **dict.fromkeys(("axes.labelcolor", "text.color", "xtick.labelcolor", "ytick.labelcolor"), INK),
        **dict.fromkeys(("axes.labelsize", "font.size"), 10),
        **dict.fromkeys(("axes.spines.right", "axes.spines.top", "legend.frameon", "text.parse_math"), False),
        **dict.fromkeys(("axes.axisbelow", "axes.grid", "figure.constrained_layout.use"), True),
        "axes.titlelocation": "left",
        "axes.titlesize": 10.5,
        "axes.titleweight": "bold",
        "grid.color": PALE,
        "grid.linewidth": 0.6,
        "legend.fontsize": 9.5,
        "lines.markersize": 5.5,
        "path.simplify_threshold": 0.5,
        "svg.fonttype": "none",
        "svg.hashsalt": "numerate",
    }
    with rc_context(settings), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"Glyph .* missing from font")  # the browser has one
        yield


def panels(
    data: DataTable, height: float, by: str = "split", sharex: bool = False, sharey: bool = False, across: int = _ACROSS
) -> tuple[Figure, list[tuple[Axes, str]]]:
    """Return a figure with one panel per value of the column ``by``, ``across`` in a row, and each panel with its value."""
    from matplotlib.figure import Figure

    names = data.distinct(by)
    columns = min(across, len(names))
    lines = -(-len(names) // columns)
    figure = Figure(figsize=(WIDTH, height * lines))
    every = figure.subplots(lines, columns, sharex=sharex, sharey=sharey, squeeze=False).flatten()
    grid = every[: len(names)]
    for axes in every[len(names) :]:
        axes.remove()
    for axes, name in zip(grid, names, strict=True):
        axes.set_title(plain(SPLIT_NAMES.get(name, name.replace("/", ": ")), 60))
    return figure, list(zip(grid, names, strict=True))


@dataclass(frozen=True)
class Span:
    """Interval in a panel, at ``y`` or, if upright, at ``x``."""

    axes: Axes
    at: float
    low: float
    high: float
    look: Mapping[str, Any]


def draw_spans(spans: Sequence[Span], upright: bool = False) -> None:
    """Draw intervals, below marks. One with an infinite end goes to the end of the axis, which it does not move."""
    for span in sorted(spans, key=lambda span: math.isinf(span.high - span.low)):
        ends, cut = (span.low, span.high), math.isinf(span.high - span.low)
        limits = span.axes.get_ylim() if upright else span.axes.get_xlim()
        if cut:
            ends = (max(span.low, limits[0]), min(span.high, limits[1]))
        points = ((span.at, span.at), ends)
        span.axes.plot(*(points if upright else points[::-1]), zorder=1.9, **span.look)
        if cut:
            (span.axes.set_ylim if upright else span.axes.set_xlim)(*limits)


def draw_infinite(axes: Axes, at: float, look: Mapping[str, Any], upright: bool = False) -> None:
    """Draw an infinite score: an arrow at the end of the axis."""
    look = {"markersize": 6.5, "clip_on": False, **look}
    if upright:
        axes.plot([at], [1], "^", transform=axes.get_xaxis_transform(), **look)
    else:
        axes.plot([1], [at], ">", transform=axes.get_yaxis_transform(), **look)


def legend(figure: Figure, labels: Sequence[str], by_label: Styles, markers: bool = True, lines: bool = True) -> None:
    """Add a legend of the losses below the figure."""
    from matplotlib.lines import Line2D

    handles = []
    for label in labels:
        style = by_label[label]
        marker, dash = style.marker if markers else None, style.dash if lines and not markers else "none"
        handles.append(Line2D([], [], label=plain(label), marker=marker, **style.line | {"linestyle": dash}))
    width = 2.8 if lines else 1
    drawn = figure.legend(handles=handles, loc="outside lower center", ncols=min(7, len(handles)), handlelength=width)
    for handle, text, label in zip(drawn.legend_handles, drawn.texts, labels, strict=True):
        for artist in filter(None, (handle, text)):
            artist.set_gid(mark(label))


def label_rows(axes: Axes, labels: Sequence[str]) -> None:
    """Write the names of losses on the vertical axis, one per row."""
    axes.set_yticks(range(len(labels)), [plain(label) for label in labels])
    axes.set_ylim(-0.6, len(labels) - 0.4)
    for text, label in zip(axes.get_yticklabels(), labels, strict=False):  # none in a panel beside the first
        text.set_gid(mark(label))
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0)


def direction(measure: Measure) -> str:
    """Return the end of a caption: which scores are better."""
    return f" {'Higher' if measure.higher_is_better else 'Lower'} is better."


def arrows_said(data: DataTable, column: str) -> str:
    """Explain arrows in a caption, if a score is infinite."""
    return " An arrow is an infinite score: too many answers hold no number." if is_infinite(data, column) else ""


def is_infinite(data: DataTable, column: str) -> bool:
    """Return whether a column has an infinite value."""
    return any(map(math.isinf, data.distinct(column)))


def plain(label: str, limit: int = 26) -> str:
    """Return a label for a figure: one line, short; an initial underscore does not hide it from the legend."""
    text = " ".join(safe_text(label, limit).split())
    return f"\u200b{text}" if text.startswith("_") else text


def named(data: DataTable, row: Row, *more: str) -> str:
    """Return what a mark shows: the loss, more about it, and the split if there are several."""
    place = [split_name(row["split"])] if len(data.distinct("split")) > 1 else []
    return ", ".join([row["loss"], *more, *place])


def dots(
    labels: Sequence[str],
    data: DataTable,  # with the columns ``split``, ``loss``, ``low`` and ``high``
    styles: Styles,
    columns: tuple[str, str],  # of the classes, and of the values
    axis_labels: tuple[str, str],
    said: Callable[[Row], tuple[str, str]],  # returns the class of a row as text, and its value
    factor: int = 1,  # from a value to what is drawn
) -> Figure:
    """Draw a point with its interval per loss, side by side in each class of examples or tokens, one panel per split."""
    figure, axes_by = panels(data, height=3.6, sharey=True)
    by, value_name = columns
    step, spans = 0.72 / len(labels), list[Span]()
    for axes, split in axes_by:
        classes = {row[by]: said(row)[0] for row in data.where(split=split)}
        for row in data.where(split=split):
            label, (name, text) = row["loss"], said(row)
            at = [*classes].index(row[by]) + step * (labels.index(label) - (len(labels) - 1) / 2)
            least, value, most = (factor * row[key] for key in ("low", value_name, "high"))
            look: dict[str, Any] = {"color": styles[label].colour, "gid": mark(label, f"{named(data, row, name)}: {text}")}
            if math.isinf(value):
                draw_infinite(axes, at, look, upright=True)
                continue
            spans.append(Span(axes, at, least, most, look | {"linewidth": 1.3}))
            axes.plot([at], [value], styles[label].marker, markersize=5, clip_on=False, **look)
        for border in range(1, len(classes)):
            axes.axvline(border - 0.5, color=PALE, linewidth=0.8)
        axes.set_xticks(range(len(classes)), [*classes.values()])
        axes.set_xlim(-0.5, len(classes) - 0.5)
        axes.tick_params(axis="x", length=0, pad=7)  # below points at 0
        axes.grid(axis="x", visible=False)
        axes.set_xlabel(axis_labels[0])
    if not spans:
        axes_by[0][0].set_yticks([])
    draw_spans(spans, upright=True)
    axes_by[0][0].set_ylabel(axis_labels[1])
    axes_by[0][0].set_ylim(bottom=0)
    legend(figure, labels, styles, lines=False)
    return figure


def few_ticks(axes: Axes, which: str, least: float, most: float) -> None:
    """Make an axis logarithmic, with plain numbers at a few ticks."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axis = axes.xaxis if which == "x" else axes.yaxis
    (axes.set_xscale if which == "x" else axes.set_yscale)("log")
    subs = (1.0, 2.0, 5.0) if most < 30 * least else (1.0, 3.0) if most < 1000 * least else (1.0,)
    axis.set_major_locator(LogLocator(subs=subs))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(NullFormatter())
