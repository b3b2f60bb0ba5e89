"""Draw a chart: bars, lines and pies in many styles."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from math import ceil, cos, radians, sin
from typing import TYPE_CHECKING, Any

from numerate.lab.tasks.charts.topics import ChartKind, ChartTable, NumberFormat

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from PIL.Image import Image

PALETTES: tuple[tuple[str, ...], ...] = (
    ("#4e79a7", "#f28e2b", "#59a14f", "#e15759", "#76b7b2", "#edc948", "#b07aa1", "#ff9da7", "#9c755f", "#bab0ac"),
    ("#2876dd", "#0f283e", "#b4b9c1", "#a4231d", "#72a530", "#f3a712", "#5e4b8b", "#1aa6a6", "#d46a92", "#7a5c3e"),
    ("#436983", "#bf8b2e", "#949d48", "#a55a26", "#a4abb4", "#6d4c7d", "#3f8f7d", "#d0a98f", "#7d1f3a", "#c9b037"),
    ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#c9bb1d", "#777777", "#7a3e9d", "#8c6d31"),
    ("#264653", "#2a9d8f", "#e9c46a", "#f4a261", "#e76f51", "#8ab17d", "#6d597a", "#b56576", "#89b0ae", "#c8b6a6"),
    ("#5b8ff9", "#5ad8a6", "#5d7092", "#f6bd16", "#e8684a", "#6dc8ec", "#9270ca", "#ff9d4d", "#269a99", "#ff99c3"),
)
PAPER = ("#ffffff", "#ffffff", "#ffffff", "#fbf7ef", "#f5f7fa")
MARKERS = ("o", "s", "D", "^", "")
SOURCES = ("", "", "Source: national statistics office", "Source: own survey", "Source: annual report")

_INCHES = 5.6  # width of the figure; font sizes are chosen for it
_ROOM = 4.7  # inches for all categories, without a legend on the side


@dataclass(frozen=True)
class ChartLook:
    """The appearance of a chart; does not affect question or answer."""

    palette: int
    first: int  # first colour of the palette
    varied: bool  # each bar has its own colour
    paper: int
    serif: bool
    bold: bool
    left: bool  # title at the left, not centred
    grid: str  # line style; may be empty if values are printed
    frame: str
    width: float  # of bars
    marker: int
    hole: bool  # in a pie
    below: bool  # legend below the axes, not beside them
    source: int
    flat: float  # height / width of the image


@dataclass(frozen=True)
class Chart:
    """A chart and a question about it. ``tick`` and ``top``, of the value axis, are in the table's units."""

    kind: ChartKind
    table: ChartTable
    tick: int
    top: int
    labels: bool  # values are printed
    look: ChartLook
    question: str
    answer: str


def random_chart_look(rng: random.Random) -> ChartLook:
    """Draw an appearance."""
    return ChartLook(
        palette=rng.randrange(len(PALETTES)),
        first=rng.randrange(4),
        varied=rng.random() < 0.25,
        paper=rng.randrange(len(PAPER)),
        serif=rng.random() < 0.2,
        bold=rng.random() < 0.5,
        left=rng.random() < 0.4,
        grid=rng.choice(("-", "--", ":", "")),
        frame=rng.choice(("all", "open", "base")),
        width=rng.choice((0.5, 0.6, 0.7, 0.8)),
        marker=rng.randrange(len(MARKERS)),
        hole=rng.random() < 0.3,
        below=rng.random() < 0.5,
        source=rng.randrange(len(SOURCES)),
        flat=rng.choice((0.66, 0.75, 0.8)),
    )


def chart_image(chart: Chart, size: int) -> Image:
    """Return the image of a chart, ``size`` pixels wide."""
    from numerate.lab.tasks import drawing

    try:
        from matplotlib import style
    except ImportError as error:
        raise ModuleNotFoundError(drawing.MISSING) from error

    with style.context("default"):  # ignore the user's matplotlibrc
        figure, pixels = chart_figure(chart, size), BytesIO()
        figure.savefig(pixels, format="rgba")
    return drawing.Image.frombytes("RGBA", figure.canvas.get_width_height(), pixels.getvalue()).convert("RGB")


def chart_figure(chart: Chart, size: int) -> Figure:
    """Return the chart as a matplotlib figure that is laid out but not rendered."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    look, topic = chart.look, chart.table.topic
    family = "DejaVu Serif" if look.serif else "DejaVu Sans"
    with rc_context({"font.family": family, "font.size": 9, "axes.axisbelow": True, "axes.unicode_minus": False}):
        layout = ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.1)
        figure = Figure((_INCHES, _INCHES * look.flat), size / _INCHES, facecolor=PAPER[look.paper], layout=layout)
        axes = figure.add_subplot(facecolor=PAPER[look.paper])
        weight = "bold" if look.bold else "normal"
        axes.set_title(topic.title, loc="left" if look.left else "center", y=1, fontsize=11.5, fontweight=weight, pad=10)
        draw = {"bar": _draw_bars, "barh": _draw_bars, "grouped": _draw_bars, "line": _draw_lines, "pie": _draw_pie}
        draw[chart.kind](figure, axes, chart)
        if len(chart.table.series) > 1:
            handles, names = axes.get_legend_handles_labels()
            _draw_legend(figure, handles, names, look.below)
        elif SOURCES[look.source] and chart.kind != "pie":
            figure.supxlabel(SOURCES[look.source], x=0.98, ha="right", fontsize=7, color="#666666")
    return figure


def written(value: float, form: NumberFormat, decimals: int = 0) -> str:
    """Return a number as it is printed in a chart.

    Example:
        >>> written(1250, "thousands"), written(1250, "dollars"), written(4.5, "percent", 1)
        ('1,250', '$1,250', '4.5%')
    """
    digits = f"{value:.{decimals}f}" if form == "plain" else f"{value:,.{decimals}f}"
    return f"${digits}" if form == "dollars" else f"{digits}%" if form == "percent" else digits


def _colours(chart: Chart) -> list[str]:
    palette = PALETTES[chart.look.palette]
    return [palette[(chart.look.first + k) % len(palette)] for k in range(len(palette))]


def _slot(chart: Chart) -> float:
    """Return the inches per category along the axis."""
    beside = len(chart.table.series) > 1 and not chart.look.below
    return (_ROOM - 0.9 * beside) / len(chart.table.categories)


def _texts(chart: Chart, row: int) -> list[str]:
    topic = chart.table.topic
    return [written(value / 10**topic.decimals, topic.form, topic.decimals) for value in chart.table.values[row]]


def _draw_bars(figure: Figure, axes: Axes, chart: Chart) -> None:
    table, colours, across = chart.table, _colours(chart), chart.kind == "barh"
    scale, n, rows = 10**table.topic.decimals, len(table.categories), len(table.series)
    wide = (chart.look.width if rows == 1 else 0.82) / rows
    longest = max(len(text) for row in range(rows) for text in _texts(chart, row))
    upright = chart.labels and not across and longest * (0.073 if rows == 1 else 0.064) > _slot(chart) * wide
    for row, values in enumerate(table.values):
        places = [k + (row - (rows - 1) / 2) * wide for k in range(n)]
        paint = colours[:n] if chart.look.varied and rows == 1 else colours[row]
        lengths, draw = [value / scale for value in values], axes.barh if across else axes.bar
        bars = draw(places, lengths, wide, color=paint, label=table.series[row])
        if chart.labels:
            axes.bar_label(bars, _texts(chart, row), padding=2, fontsize=8 if rows == 1 else 7, rotation=90 if upright else 0)
    if across:
        axes.invert_yaxis()
    _draw_axes(axes, chart, 1.13 if upright else 1.06)


def _draw_lines(figure: Figure, axes: Axes, chart: Chart) -> None:
    table, colours = chart.table, _colours(chart)
    scale = 10**table.topic.decimals
    for row, values in enumerate(table.values):
        heights, marker = [value / scale for value in values], MARKERS[chart.look.marker] or "."
        axes.plot(heights, color=colours[row], marker=marker, markersize=5, linewidth=1.8, label=table.series[row], clip_on=False)
        if chart.labels:
            for k, text in enumerate(_texts(chart, row)):  # on the side away from the line
                around = heights[max(0, k - 1)] + heights[min(len(heights) - 1, k + 1)]
                above = 2 * heights[k] >= around or values[k] < chart.top // 5
                side: dict[str, Any] = {"xytext": (0, 5), "va": "bottom"} if above else {"xytext": (0, -5), "va": "top"}
                axes.annotate(text, (k, heights[k]), textcoords="offset points", ha="center", fontsize=8, **side)
    axes.margins(x=0.06)
    _draw_axes(axes, chart, 1.06)


def _draw_axes(axes: Axes, chart: Chart, room: float) -> None:
    """Draw the value axis with its grid, the category axis and the frame; ``room`` leaves space for printed values."""
    table, look, across = chart.table, chart.look, chart.kind == "barh"
    topic, scale = table.topic, 10**table.topic.decimals
    values, names = (axes.xaxis, axes.yaxis) if across else (axes.yaxis, axes.xaxis)
    ticks = [tick / scale for tick in range(0, chart.top + 1, chart.tick)]
    places = 0 if chart.tick % scale == 0 else topic.decimals
    values.set_ticks(ticks, [written(tick, topic.form, places) for tick in ticks], fontsize=8)
    (axes.set_xlim if across else axes.set_ylim)(0, chart.top / scale * (room if chart.labels else 1))
    (axes.set_xlabel if across else axes.set_ylabel)(topic.axis, fontsize=8.5)
    slanted = not across and max(map(len, table.categories)) * 0.085 > _slot(chart)
    turn: dict[str, Any] = {"rotation": 35, "ha": "right", "rotation_mode": "anchor"} if slanted else {}
    names.set_ticks(range(len(table.categories)), table.categories, fontsize=8.5, **turn)
    names.set_tick_params(length=0, pad=5)
    values.set_tick_params(length=0 if look.frame == "base" else 3)
    if look.grid or not chart.labels:
        values.grid(True, linestyle=look.grid or "-", linewidth=0.7, color="#c9ccd1")
    hidden = {"all": (), "open": ("top", "right"), "base": ("top", "right", "bottom" if across else "left")}[look.frame]
    for side, spine in axes.spines.items():
        spine.set_visible(side not in hidden)
        spine.set_color("#8a8f98")


def _draw_pie(figure: Figure, axes: Axes, chart: Chart) -> None:
    """Draw slices with their values: percentages inside, amounts beside. Names stand beside few slices, else in a legend."""
    from matplotlib.patches import Wedge

    table, look, colours = chart.table, chart.look, _colours(chart)
    values, total = table.values[0], sum(table.values[0])
    inside = table.topic.form == "percent"
    named = inside and len(values) <= 5
    slices, before = [], 0
    for k, text in enumerate(_texts(chart, 0)):
        start, end = 90 - 360 * (before + values[k]) / total, 90 - 360 * before / total  # clockwise from the top
        before += values[k]
        slices.append(
            Wedge((0, 0), 1, start, end, width=0.6 if look.hole else 1.0, facecolor=colours[k], edgecolor="white", lw=1.2)
        )
        axes.add_patch(slices[-1])
        x, y = cos(radians((start + end) / 2)), sin(radians((start + end) / 2))
        side = "left" if x > 0.15 else "right" if x < -0.15 else "center"
        if inside:
            ink = "white" if _dark(colours[k]) else "black"
            axes.text(0.72 * x, 0.72 * y, text, ha="center", va="center", fontsize=8.5, color=ink)
        if named or not inside:
            axes.text(1.07 * x, 1.1 * y, table.categories[k] if inside else text, ha=side, va="center", fontsize=8.5)
    reach = 1.05 if inside and not named else 1.3
    axes.set(xlim=(-reach, reach), ylim=(-1.12, 1.12), aspect="equal")
    axes.set_axis_off()
    if not named:
        _draw_legend(figure, slices, table.categories, look.below)


def _draw_legend(figure: Figure, handles: Sequence[Artist], names: Sequence[str], below: bool) -> None:
    """Draw the legend outside the axes, where it hides nothing."""
    figure.legend(
        handles,
        names,
        loc="outside lower center" if below else "outside right center",
        ncols=ceil(len(names) / ceil(len(names) / 4)) if below else 1,
        frameon=False,
        fontsize=8.5,
    )


def _dark(colour: str) -> bool:
    """Return whether white text is more readable on the colour than black."""
    red, green, blue = (int(colour[k : k + 2], 16) for k in (1, 3, 5))
    return 0.299 * red + 0.587 * green + 0.114 * blue < 150
