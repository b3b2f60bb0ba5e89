"""Draw geometric figures to scale: lines, circles and angles, with labels that touch nothing."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from numerate.lab.data.backgrounds import Colour
from numerate.lab.data.plane import Point

if TYPE_CHECKING:
    from PIL.Image import Image

Line = tuple[Point, Point]
Move = Callable[[Point], Point]


@dataclass
class Figure:
    """The elements of a figure, in its own coordinates.

    Attributes:
        points: points by their labels.
        lines: solid lines; ``dashed`` are dashed ones.
        circles: centre and radius.
        sides: label at the middle of a line: from, to, text.
        angles: arc with a label: corner, from, to, text. The angle is below 180°.
        squares: right angles: corner, and a point on either side.
        ticks: marks of equal length, with their number; ``arrows`` mark parallels.
        fill: corners of the filled polygon.
    """

    points: dict[str, Point] = field(default_factory=dict)
    lines: list[Line] = field(default_factory=list)
    dashed: list[Line] = field(default_factory=list)
    circles: list[tuple[Point, float]] = field(default_factory=list)
    sides: list[tuple[Point, Point, str]] = field(default_factory=list)
    angles: list[tuple[Point, Point, Point, str]] = field(default_factory=list)
    squares: list[tuple[Point, Point, Point]] = field(default_factory=list)
    ticks: list[tuple[Point, Point, int]] = field(default_factory=list)
    arrows: list[Line] = field(default_factory=list)
    fill: list[Point] = field(default_factory=list)


class Label(NamedTuple):
    """A text with its centre and size in pixels."""

    text: str
    x: float
    y: float
    wide: float
    high: float
    name: bool  # whether it names a point

    def hits(self, other: Label) -> bool:
        """Return whether two labels touch."""
        apart_x, apart_y = abs(self.x - other.x), abs(self.y - other.y)
        return apart_x < (self.wide + other.wide) / 2 + 3 and apart_y < (self.high + other.high) / 2 + 3

    def crossed(self, line: Line, gap: float = 3.0) -> bool:
        """Return whether a line runs through the label, or closer to it than ``gap``."""
        (x1, y1), (x2, y2) = line
        first, last = 0.0, 1.0
        for start, step, middle, half in (
            (x1, x2 - x1, self.x, self.wide / 2 + gap),
            (y1, y2 - y1, self.y, self.high / 2 + gap),
        ):
            if abs(step) < 1e-9:
                if abs(start - middle) >= half:
                    return False
                continue
            ends = sorted(((middle - half - start) / step, (middle + half - start) / step))
            first, last = max(first, ends[0]), min(last, ends[1])
        return first < last


class Layout(NamedTuple):
    """A figure in pixels. ``clear``: no label touches another, a line, or the border."""

    width: int
    height: int
    figure: Figure
    strokes: list[Line]  # all lines, as straight pieces
    labels: list[Label]
    clear: bool


class FigureStyle(NamedTuple):
    """Colours of paper, lines, labels, the unknown and the fill; and whether labels use a serif font."""

    paper: Colour
    ink: Colour
    text: Colour
    asked: Colour
    fill: Colour
    serif: bool


STYLES = (
    FigureStyle((255, 255, 255), (30, 32, 36), (30, 32, 36), (196, 30, 40), (236, 241, 248), False),
    FigureStyle((255, 255, 255), (24, 74, 140), (30, 32, 36), (196, 30, 40), (226, 238, 250), True),
    FigureStyle((252, 249, 240), (60, 48, 40), (60, 48, 40), (176, 44, 24), (246, 234, 208), True),
    FigureStyle((244, 247, 250), (20, 92, 92), (34, 44, 52), (190, 60, 20), (214, 236, 232), False),
    FigureStyle((255, 255, 255), (30, 32, 36), (30, 32, 36), (30, 32, 36), (255, 255, 255), True),
    FigureStyle((250, 248, 252), (92, 52, 128), (40, 36, 48), (180, 30, 90), (236, 226, 246), False),
)


def turned(figure: Figure, degrees: float, mirror: bool) -> Figure:
    """Return the figure rotated and, if ``mirror``, mirrored."""
    c, s = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    sign = -1 if mirror else 1
    return _mapped(figure, lambda p: (sign * (c * p[0] - s * p[1]), s * p[0] + c * p[1]), 1.0)


def laid_out(figure: Figure, size: int) -> Layout:
    """Scale the figure to an image and place its labels."""
    marks = [*figure.points.values(), *(end for line in [*figure.lines, *figure.dashed] for end in line)]
    for (x, y), radius in figure.circles:
        marks += [(x - radius, y - radius), (x + radius, y + radius)]
    xs, ys = zip(*marks, strict=True)
    margin = size / 8
    wide, high = max(xs) - min(xs), max(ys) - min(ys)
    scale = min((size - 2 * margin) / wide, (0.85 * size - 2 * margin) / max(high, 1e-9))
    width, height = size, max(round(high * scale + 2 * margin), size // 2)
    dx, dy = width / 2 - scale * (max(xs) + min(xs)) / 2, height / 2 - scale * (max(ys) + min(ys)) / 2
    figure = _mapped(figure, lambda p: (scale * p[0] + dx, scale * p[1] + dy), scale)
    strokes = list(_strokes(figure, size))
    labels: list[Label] = []
    clear = True
    for text, name, places in _candidates(figure, size, (width / 2, height / 2)):
        wide, high = _room(text, size)
        fitting = (Label(text, x, y, wide, high, name) for x, y in places)
        best = next((label for label in fitting if _free(label, labels, strokes, width, height)), None)
        clear = clear and best is not None
        labels.append(best or Label(text, *places[0], wide, high, name))
    return Layout(width, height, figure, strokes, labels, clear)


def render(layout: Layout, style: FigureStyle) -> Image:
    """Return the image of a figure."""
    from numerate.lab.data.drawing import Image, ImageDraw, fill, font

    fine, size = 4, layout.width
    image = Image.new("RGB", (layout.width, layout.height), style.paper)
    if layout.figure.fill:
        fill(image, [layout.figure.fill], style.fill)
    ink = Image.new("L", (fine * layout.width, fine * layout.height))
    pen, pen_width = ImageDraw.Draw(ink), max(4, round(fine * size / 200))
    dots = [(point, fine * size / 130) for point in layout.figure.points.values()]
    for line in layout.strokes:
        pen.line([(fine * x, fine * y) for x, y in line], 255, pen_width)
        dots += [(end, pen_width / 2 - 0.5) for end in line]
    for (x, y), radius in dots:
        pen.ellipse((fine * x - radius, fine * y - radius, fine * x + radius, fine * y + radius), 255)
    image.paste(style.ink, mask=ink.reduce(fine))
    pen = ImageDraw.Draw(image)
    for label in layout.labels:
        unknown = label.text.startswith("x")
        face = font(round(size / 21), "serif" if style.serif or unknown or label.name else "sans", italic=unknown or label.name)
        left, top, right, bottom = face.getbbox(label.text)
        corner = label.x - (left + right) / 2, label.y - (top + bottom) / 2
        pen.text(corner, label.text, style.asked if unknown else style.text, face)
    return image


def _mapped(figure: Figure, move: Move, scale: float) -> Figure:
    return Figure(
        {name: move(point) for name, point in figure.points.items()},
        [(move(a), move(b)) for a, b in figure.lines],
        [(move(a), move(b)) for a, b in figure.dashed],
        [(move(middle), scale * radius) for middle, radius in figure.circles],
        [(move(a), move(b), text) for a, b, text in figure.sides],
        [(move(a), move(b), move(c), text) for a, b, c, text in figure.angles],
        [(move(a), move(b), move(c)) for a, b, c in figure.squares],
        [(move(a), move(b), count) for a, b, count in figure.ticks],
        [(move(a), move(b)) for a, b in figure.arrows],
        [move(point) for point in figure.fill],
    )


def _room(text: str, size: int) -> tuple[float, float]:
    """Return an upper bound of width and height of a label in either font; the same on every machine."""
    em = size / 21
    if text.isupper():
        return em * (1.12 if text in "MW" else 0.98), em * (1.0 if text in "JQ" else 0.82)
    return em * sum(0.48 if c == "°" else 0.66 for c in text), em * (0.6 if text == "x" else 0.8)


def _free(label: Label, others: Sequence[Label], strokes: Sequence[Line], width: int, height: int) -> bool:
    inside_x = label.wide / 2 + 4 < label.x < width - label.wide / 2 - 4
    inside_y = label.high / 2 + 4 < label.y < height - label.high / 2 - 4
    return inside_x and inside_y and not any(map(label.hits, others)) and not any(map(label.crossed, strokes))


def _strokes(figure: Figure, size: int) -> Iterator[Line]:
    yield from figure.lines
    for start, end in figure.dashed:
        pieces = max(3, round(math.dist(start, end) / size * 40)) | 1
        for k in range(0, pieces, 2):
            yield _between(start, end, k / pieces), _between(start, end, (k + 1) / pieces)
    for (x, y), radius in figure.circles:
        yield from _arc((x, y), radius, 0.0, 2 * math.pi, 90)
    for corner, one, two, _ in figure.angles:
        yield from _arc(corner, _arc_radius(corner, one, two, size), *_opening(corner, one, two), 20)
    for corner, one, two in figure.squares:
        side = min(size / 26, 0.3 * math.dist(corner, one), 0.3 * math.dist(corner, two))
        a, b = (_between(corner, end, side / math.dist(corner, end)) for end in (one, two))
        tip = a[0] + b[0] - corner[0], a[1] + b[1] - corner[1]
        yield a, tip
        yield tip, b
    for start, end, count in figure.ticks:
        (ux, uy), half = _unit(start, end), size / 60
        for k in range(count):
            x, y = _between(start, end, 0.5 + (k - (count - 1) / 2) * size / 70 / math.dist(start, end))
            yield (x - half * uy, y + half * ux), (x + half * uy, y - half * ux)
    for start, end in figure.arrows:
        (x, y), (ux, uy) = _between(start, end, 0.9), _unit(start, end)
        back = size / 45
        for sign in (-1, 1):
            yield (x, y), (x - back * ux - sign * back * 0.6 * uy, y - back * uy + sign * back * 0.6 * ux)


def _candidates(figure: Figure, size: int, middle: Point) -> Iterator[tuple[str, bool, list[Point]]]:
    """Yield each label with its possible positions, best first; labels with the least choice come first."""
    for corner, one, two, text in figure.angles:
        start, turn = _opening(corner, one, two)
        nearest = _arc_radius(corner, one, two, size) + size / 40
        rays = [start + turn * share for share in (0.5, 0.42, 0.58, 0.34, 0.66)]
        yield text, False, [_at(corner, ray, nearest + size / 100 * step) for step in range(22) for ray in rays]
    for start_point, end_point, text in figure.sides:
        wide, high = _room(text, size)
        ux, uy = _unit(start_point, end_point)
        across = (abs(uy) * wide + abs(ux) * high) / 2 + size / 75
        places = []
        for share in (0.5, 0.46, 0.54, 0.42, 0.58, 0.36, 0.64, 0.28, 0.72):
            x, y = _between(start_point, end_point, share)
            for sign in (-1, 1):
                out = sign * ((x - middle[0]) * -uy + (y - middle[1]) * ux) < 0
                for more in range(4):
                    away = sign * (across + more * size / 100)
                    places.append((abs(share - 0.5) * 4 + more * 0.1 + 0.5 * out, (x - away * uy, y + away * ux)))
        yield text, False, [place for _, place in sorted(places)]
    for text, point in figure.points.items():
        outwards = math.atan2(point[1] - middle[1], point[0] - middle[0])
        turns = sorted((2 * math.pi * k / 24 for k in range(24)), key=lambda angle: min(angle, 2 * math.pi - angle))
        yield text, True, [_at(point, outwards + turn, size * away) for away in (0.042, 0.05, 0.06) for turn in turns]


def _opening(corner: Point, one: Point, two: Point) -> tuple[float, float]:
    """Return start and extent of an angle in radians; the extent is in [-π, π)."""
    start, end = (math.atan2(point[1] - corner[1], point[0] - corner[0]) for point in (one, two))
    return start, (end - start + math.pi) % (2 * math.pi) - math.pi


def _arc_radius(corner: Point, one: Point, two: Point, size: int) -> float:
    _, turn = _opening(corner, one, two)
    return min(size / (12 if abs(turn) < 0.8 else 16), 0.42 * math.dist(corner, one), 0.42 * math.dist(corner, two))


def _arc(middle: Point, radius: float, start: float, turn: float, pieces: int) -> Iterator[Line]:
    for k in range(pieces):
        yield _at(middle, start + turn * k / pieces, radius), _at(middle, start + turn * (k + 1) / pieces, radius)


def _at(middle: Point, angle: float, away: float) -> Point:
    return middle[0] + away * math.cos(angle), middle[1] + away * math.sin(angle)


def _between(start: Point, end: Point, share: float) -> Point:
    return start[0] + share * (end[0] - start[0]), start[1] + share * (end[1] - start[1])


def _unit(start: Point, end: Point) -> Point:
    length = math.dist(start, end)
    return (end[0] - start[0]) / length, (end[1] - start[1]) / length
