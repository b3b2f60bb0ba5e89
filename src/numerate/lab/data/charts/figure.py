"""Draw a chart: bars, lines and pies in several styles."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, dist, radians, sin
from typing import TYPE_CHECKING, NamedTuple

from numerate.lab.data.charts.topics import ChartKind, ChartTable, NumberFormat
from numerate.lab.data.plane import Point, around, regular, turned

if TYPE_CHECKING:
    from PIL.Image import Image

    from numerate.lab.data.charts.page import Page

PALETTES: tuple[tuple[str, ...], ...] = (
    ("#4e79a7", "#f28e2b", "#59a14f", "#e15759", "#76b7b2", "#edc948", "#b07aa1", "#ff9da7", "#9c755f", "#bab0ac"),
    ("#2876dd", "#0f283e", "#b4b9c1", "#a4231d", "#72a530", "#f3a712", "#5e4b8b", "#1aa6a6", "#d46a92", "#7a5c3e"),
    ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#c9bb1d", "#777777", "#7a3e9d", "#8c6d31"),
    ("#264653", "#2a9d8f", "#e9c46a", "#f4a261", "#e76f51", "#8ab17d", "#6d597a", "#b56576", "#89b0ae", "#c8b6a6"),
)
PAPER = ("#ffffff", "#ffffff", "#fbf7ef", "#f5f7fa")


@dataclass(frozen=True)
class ChartLook:
    """The appearance of a chart; does not affect question or answer."""

    palette: int
    first: int  # first colour of the palette
    paper: int
    serif: bool
    grid: bool  # drawn all the same if values are not printed
    frame: bool  # around the plot, not only at its axes
    width: float  # of bars
    hole: bool  # in a pie
    below: bool  # legend below the axes, not beside them
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
        paper=rng.randrange(len(PAPER)),
        serif=rng.random() < 0.2,
        grid=rng.random() < 0.7,
        frame=rng.random() < 0.4,
        width=rng.choice((0.5, 0.6, 0.7, 0.8)),
        hole=rng.random() < 0.3,
        below=rng.random() < 0.5,
        flat=rng.choice((0.66, 0.75, 0.8)),
    )


class _Room(NamedTuple):
    """A rectangle of the page."""

    left: float
    top: float
    right: float
    bottom: float


class _Axes(NamedTuple):
    """A plot: ``shares`` of one side, where categories stand, and values from 0 to ``limit`` along the other."""

    plot: _Room
    across: bool
    shares: list[float]
    step: float  # share per category
    limit: float
    names_up: bool  # names of categories are written upwards
    values_up: bool  # printed values are
    letters: float  # font size of printed values
    digits: float  # font size at the value axis

    def at(self, share: float, value: float) -> Point:
        """Return the point of a value."""
        left, top, right, bottom = self.plot
        if self.across:
            return left + value / self.limit * (right - left), top + share * (bottom - top)
        return left + share * (right - left), bottom - value / self.limit * (bottom - top)


def chart_image(chart: Chart, size: int) -> Image:
    """Return the image of a chart, ``size`` pixels wide."""
    return chart_page(chart, size).image


def chart_page(chart: Chart, size: int) -> Page:
    """Return the page with a chart, ``size`` pixels wide: its image, and the places of its texts."""
    from numerate.lab.data.charts.page import WIDTH, Page

    look, table = chart.look, chart.table
    page = Page(size, look.flat, PAPER[look.paper], "serif" if look.serif else "sans")
    room = _Room(10, 40, WIDTH - 12, page.height - 10)
    if len(table.series) > 1:
        room = _draw_legend(page, chart, table.series, room)
    plot = {"line": _draw_lines, "pie": _draw_pie}.get(chart.kind, _draw_bars)(page, chart, room)
    page.text(table.topic.title, ((plot.left + plot.right) / 2, 26), 16, "ms")
    return page


def written(value: float, form: NumberFormat, decimals: int = 0) -> str:
    """Return a number as it is printed in a chart.

    Examples:
        >>> written(1250, "thousands"), written(1250, "dollars"), written(4.5, "percent", 1)
        ('1,250', '$1,250', '4.5%')
    """
    digits = f"{value:.{decimals}f}" if form == "plain" else f"{value:,.{decimals}f}"
    return f"${digits}" if form == "dollars" else f"{digits}%" if form == "percent" else digits


def _colours(chart: Chart) -> list[str]:
    palette = PALETTES[chart.look.palette]
    return [palette[(chart.look.first + k) % len(palette)] for k in range(len(palette))]


def _texts(chart: Chart, row: int) -> list[str]:
    topic = chart.table.topic
    return [written(value / 10**topic.decimals, topic.form, topic.decimals) for value in chart.table.values[row]]


def _draw_bars(page: Page, chart: Chart, room: _Room) -> _Room:
    colours, rows = _colours(chart), len(chart.table.series)
    group = chart.look.width if rows == 1 else 0.82
    axes = _draw_axes(page, chart, room, group)
    for row, values in enumerate(chart.table.values):
        for k, text in enumerate(_texts(chart, row)):
            first, last = (axes.shares[k] + ((row + edge) / rows - 0.5) * group * axes.step for edge in (0, 1))
            page.box(axes.at(first, 0), axes.at(last, values[k]), colours[row])
            x, y = axes.at((first + last) / 2, values[k])
            if chart.labels:
                end, anchor = ((x + 4, y), "lm") if axes.across else ((x, y - 4), "lm" if axes.values_up else "ms")
                page.text(text, end, axes.letters, anchor, up=axes.values_up, clear=True)
    return axes.plot


def _draw_lines(page: Page, chart: Chart, room: _Room) -> _Room:
    axes, colours = _draw_axes(page, chart, room, 0), _colours(chart)
    for row, values in enumerate(chart.table.values):
        points = [axes.at(share, value) for share, value in zip(axes.shares, values, strict=True)]
        page.fill([*_stroke(points, 2.5), *map(_disc, points)], colours[row])
        for k, text in enumerate(_texts(chart, row) if chart.labels else ()):  # on the side away from the line
            above = 2 * values[k] >= values[max(0, k - 1)] + values[min(len(values) - 1, k + 1)] or values[k] < chart.top // 5
            x, y = points[k]
            away, anchor = (-8, "lm") if axes.values_up else (-12 if above else 12, "mm")
            page.text(text, (x, y + away), axes.letters, anchor, up=axes.values_up, clear=True)
    return axes.plot


def _laid_out(page: Page, chart: Chart, room: _Room, group: float, marks: Sequence[str]) -> _Axes:
    """Lay out the plot so that all texts have space. ``group``: share of a category that its bars take."""
    table, across = chart.table, chart.kind == "barh"
    n, (left, top, right, bottom) = len(table.categories), room
    pad = (0.05 if group else 0.1 if chart.labels else 0.06) * (n - 1 + group)
    step = 1 / (n - 1 + group + 2 * pad)
    shares = [(k + group / 2 + pad) * step for k in range(n)]
    names = [page.length(name, 12) for name in table.categories]
    letters = 11 if len(table.series) == 1 else 10
    widest = max(page.length(text, letters) for row in range(len(table.series)) for text in _texts(chart, row))
    names_up = values_up = False
    if across:
        left, right, bottom = left + max(names) + 8, right - page.length(marks[-1], 11) / 2, bottom - 38
    else:
        left += 28 + max(page.length(mark, 11) for mark in marks)
        names_up = max(names) + 6 > step * (right - left)
        right -= 0 if names_up else max(0, names[-1] / 2 - shares[0] * (right - left))
        bottom -= 9 + max(names) if names_up else 21
        values_up = widest + 2 > step * (right - left) * (group or 1) / len(table.series)
    length, space = right - left if across else bottom - top, 12 + (widest if across or values_up else 10)
    peak = max(map(max, table.values)) * length / (length - space)
    limit = max(chart.top, peak) if chart.labels else chart.top
    digits = 11 * min(1, length * chart.tick / limit / (page.length(marks[-1], 11) + 4)) if across else 11
    return _Axes(_Room(left, top, right, bottom), across, shares, step, limit, names_up, values_up, letters, digits)


def _draw_axes(page: Page, chart: Chart, room: _Room, group: float) -> _Axes:
    """Draw the value axis with its grid, the category axis and the frame."""
    topic, look, scale = chart.table.topic, chart.look, 10**chart.table.topic.decimals
    ticks = range(0, chart.top + 1, chart.tick)
    marks = [written(tick / scale, topic.form, 0 if chart.tick % scale == 0 else topic.decimals) for tick in ticks]
    axes = _laid_out(page, chart, room, group, marks)
    (left, top, right, bottom), across = axes.plot, axes.across
    crowded = across and axes.at(0, chart.tick)[0] - left < page.length(marks[-1], axes.digits) + 2
    for k, (tick, mark) in enumerate(zip(ticks, marks, strict=True)):
        x, y = axes.at(0, tick)
        if tick and (look.grid or not chart.labels):
            page.box((x, y), (x, bottom) if across else (right, y), "#c9ccd1", rule=True)
        page.box(*(((x, bottom), (x, bottom + 4)) if across else ((left - 5, y), (left - 1, y))), "#8a8f98", rule=True)
        if not crowded or k % 2 == 0:
            page.text(mark, (x, bottom + 13) if across else (left - 8, y), axes.digits, "mm" if across else "rm")
    for share, name in zip(axes.shares, chart.table.categories, strict=True):
        x, y = axes.at(share, 0)
        if across:
            page.text(name, (left - 8, y), 12, "rm")
        else:
            page.text(name, (x, y + 7) if axes.names_up else (x, y + 19), 12, "rm" if axes.names_up else "ms", up=axes.names_up)
    if across:
        page.text(topic.axis, ((left + right) / 2, bottom + 35), 12, "ms")
    else:
        page.text(topic.axis, (room.left + 10, (top + bottom) / 2), 12, "ms", up=True)
    corners = (left - 1, top), (left - 1, bottom), (right, bottom), (right, top), (left - 1, top)  # bars begin beside the frame
    for start, end in pairwise(corners if look.frame else corners[:3]):
        page.box(start, end, "#8a8f98", rule=True)
    return axes


def _draw_pie(page: Page, chart: Chart, room: _Room) -> _Room:
    """Draw slices with their values: percentages inside, amounts beside. Names stand beside few slices, else in a legend."""
    table, look, colours = chart.table, chart.look, _colours(chart)
    values, turns, texts = table.values[0], [0.0], _texts(chart, 0)
    inside = table.topic.form == "percent"
    named = inside and len(values) <= 5
    if not named:
        room = _draw_legend(page, chart, table.categories, room)
    for value in values:  # clockwise from the top
        turns.append(turns[-1] + 360 * value / sum(values))
    outside = table.categories if named else () if inside else texts
    middles = [(a + b) / 2 for a, b in pairwise(turns)]
    centre = (room.left + room.right) / 2, (room.top + room.bottom) / 2
    radius = (room.bottom - room.top) / 2 - (18 if outside else 4)
    for text, turn in zip(outside, middles, strict=False):
        across = abs(sin(radians(turn)))
        radius = min(radius, (centre[0] - room.left - page.length(text, 12)) / max(across, 0.15) - 9)
    for k, (start, end) in enumerate(pairwise(turns)):
        pieces = ceil((end - start) / 3)
        arc = [around(centre, radius, start + (end - start) * piece / pieces) for piece in range(pieces + 1)]
        page.fill([[centre, *arc]], colours[k])
    page.fill([quad for turn in turns[1:] for quad in _stroke([centre, around(centre, radius + 1, turn)], 2)], "#ffffff")
    if look.hole:
        page.fill([_disc(centre, 0.4 * radius)], PAPER[look.paper])
    for k, turn in enumerate(middles):
        if inside:
            ink = "#ffffff" if _dark(colours[k]) else "#000000"
            page.text(texts[k], around(centre, 0.72 * radius, turn), 12, "mm", colour=ink)
        if outside:
            x, y = around(centre, radius + 9, turn)
            anchor = "lm" if x > centre[0] + 0.15 * radius else "rm" if x < centre[0] - 0.15 * radius else "mm"
            page.text(outside[k], (x, y + (y - centre[1]) / radius * 3), 12, anchor)
    return room


def _draw_legend(page: Page, chart: Chart, names: Sequence[str], room: _Room) -> _Room:
    """Draw the legend below the plot or beside it; return the room that it leaves."""
    below, high, colours = chart.look.below, 18, _colours(chart)
    columns = ceil(len(names) / ceil(len(names) / 4)) if below else 1
    rows = ceil(len(names) / columns)
    wide = [32 + max(page.length(name, 12) for name in names[k::columns]) for k in range(columns)]
    total = sum(wide) + 22 * (columns - 1)
    left = (room.left + room.right - total) / 2 if below else room.right - total
    top = room.bottom - rows * high if below else (page.height - rows * high) / 2
    for k, name in enumerate(names):
        x, y = left + sum(wide[: k % columns]) + 22 * (k % columns), top + (k // columns + 0.5) * high
        if chart.kind == "line":
            page.fill([*_stroke([(x, y), (x + 23, y)], 2.5), _disc((x + 11.5, y))], colours[k])
        else:
            page.box((x, y - 4), (x + 23, y + 4), colours[k])
        page.text(name, (x + 32, y), 12, "lm")
    return room._replace(bottom=top - 10) if below else room._replace(right=left - 18)


def _disc(centre: Point, radius: float = 4.0) -> list[Point]:
    return turned(regular(60), 0, radius, centre)


def _stroke(points: Sequence[Point], wide: float) -> list[list[Point]]:
    """Return a line as rectangles, one for each of its pieces."""
    quads = []
    for (x0, y0), (x1, y1) in pairwise(points):
        far = wide / 2 / dist((x0, y0), (x1, y1))
        dx, dy = far * (y1 - y0), far * (x0 - x1)
        quads.append([(x0 + dx, y0 + dy), (x1 + dx, y1 + dy), (x1 - dx, y1 - dy), (x0 - dx, y0 - dy)])
    return quads


def _dark(colour: str) -> bool:
    """Return whether white text is more readable on the colour than black."""
    red, green, blue = (int(colour[k : k + 2], 16) for k in (1, 3, 5))
    return 0.299 * red + 0.587 * green + 0.114 * blue < 150
