"""Draw geometric figures to scale: lines, circles and angles, with labels that touch nothing.

Points are complex numbers: the real part goes to the right, the imaginary part down.
"""

from __future__ import annotations

from cmath import phase, pi, rect
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise, product
from math import radians
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from numerate.lab.data.backgrounds import Colour

if TYPE_CHECKING:
    from PIL.Image import Image

Line = tuple[complex, complex]


class Mark(NamedTuple):
    """One element of a figure.

    A ``line``, a ``dashed`` line, a ``side`` (the label of a line) or an ``arrow`` (it marks parallels) has two points; a
    ``tick`` (it marks equal lengths) has as many strokes as ``text``; a ``circle`` has its centre and a point on it. An ``angle``
    below 180° and a right angle, ``square``, have the corner and a point on either side. ``fill`` has the corners of a polygon.
    """

    kind: Literal["point", "line", "dashed", "circle", "side", "angle", "square", "tick", "arrow", "fill"]
    points: tuple[complex, ...]
    text: str = ""


Figure = list[Mark]
_LABELLED = ("angle", "side", "point")  # those with the least choice of a place come first


class Label(NamedTuple):
    """A text with its centre and size in pixels."""

    text: str
    at: complex
    wide: float
    high: float
    name: bool  # whether it names a point

    def touches(self, at: complex, wide: float = 0.0, high: float = 0.0, gap: float = 3.0) -> bool:
        """Return whether a box around ``at``, or this point, is closer than ``gap``."""
        away = self.at - at
        return abs(away.real) < (self.wide + wide) / 2 + gap and abs(away.imag) < (self.high + high) / 2 + gap


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


def moved(figure: Figure, move: Callable[[complex], complex]) -> Figure:
    """Return the figure with every point moved."""
    return [mark._replace(points=tuple(map(move, mark.points))) for mark in figure]


def turned(figure: Figure, degrees: float, mirror: bool) -> Figure:
    """Return the figure rotated and, if ``mirror``, mirrored."""
    turn = rect(1, radians(degrees))
    return moved(figure, lambda point: -(point * turn).conjugate() if mirror else point * turn)


def laid_out(figure: Figure, size: int) -> Layout:
    """Scale the figure to an image and place its labels."""
    ends = [point for mark in figure if mark.kind in ("point", "line", "dashed") for point in mark.points]
    circles = [mark.points for mark in figure if mark.kind == "circle"]
    ends += [centre + sign * abs(rim - centre) * (1 + 1j) for centre, rim in circles for sign in (-1, 1)]
    low, high = (complex(pick(p.real for p in ends), pick(p.imag for p in ends)) for pick in (min, max))
    extent, margin = high - low, size / 8
    scale = min((size - 2 * margin) / extent.real, (0.85 * size - 2 * margin) / max(extent.imag, 1e-9))
    height = max(round(extent.imag * scale + 2 * margin), size // 2)
    middle = complex(size, height) / 2
    figure = moved(figure, lambda point: middle + scale * (point - (low + high) / 2))
    strokes = [line for mark in figure for line in _strokes(mark, size)]
    ink = np.concatenate([np.linspace(start, end, int(abs(end - start)) + 2) for start, end in strokes])  # a point per pixel
    labels: list[Label] = []
    clear = True
    for mark in sorted((mark for mark in figure if mark.kind in _LABELLED), key=lambda mark: _LABELLED.index(mark.kind)):
        room = _room(mark.text, size)
        places = [Label(mark.text, at, *room, mark.kind == "point") for at in _places(mark, room, size, middle)]
        best = next((label for label in places if _is_free(label, ink, labels, middle)), None)
        clear = clear and best is not None
        labels.append(best or places[0])
    return Layout(size, height, figure, strokes, labels, clear)


def render(layout: Layout, style: FigureStyle) -> Image:
    """Return the image of a figure."""
    from numerate.lab.data.drawing import Image, ImageDraw, font

    fine, size = 4, layout.width  # everything but the labels is drawn four times as large
    image = Image.new("RGB", (fine * size, fine * layout.height), style.paper)
    pen, thick = ImageDraw.Draw(image), max(4, round(fine * size / 200))
    for mark in layout.figure:
        if mark.kind == "fill":
            pen.polygon([(fine * point.real, fine * point.imag) for point in mark.points], style.fill)
    dots = [(mark.points[0], fine * size / 130) for mark in layout.figure if mark.kind == "point"]
    for line in layout.strokes:
        pen.line([(fine * end.real, fine * end.imag) for end in line], style.ink, thick)
        dots += [(end, thick / 2 - 0.5) for end in line]  # round ends
    for at, radius in dots:
        x, y = fine * at.real, fine * at.imag
        pen.ellipse((x - radius, y - radius, x + radius, y + radius), style.ink)
    image = image.reduce(fine)
    pen = ImageDraw.Draw(image)
    for label in layout.labels:
        unknown = label.text.startswith("x")
        face = font(round(size / 21), "serif" if style.serif or unknown or label.name else "sans", italic=unknown or label.name)
        left, top, right, bottom = face.getbbox(label.text)
        corner = label.at.real - (left + right) / 2, label.at.imag - (top + bottom) / 2
        pen.text(corner, label.text, style.asked if unknown else style.text, face)
    return image


def _room(text: str, size: int) -> tuple[float, float]:
    """Return an upper bound of width and height of a label in either font; the same on every machine."""
    em = size / 21
    if text.isupper():
        return em * (1.12 if text in "MW" else 0.98), em * (1.0 if text in "JQ" else 0.82)
    return em * sum(0.48 if c == "°" else 0.66 for c in text), em * (0.6 if text == "x" else 0.8)


def _is_free(label: Label, ink: np.ndarray, others: Sequence[Label], middle: complex) -> bool:
    off, half_wide, half_high = label.at - middle, label.wide / 2, label.high / 2
    if abs(off.real) + half_wide + 4 > middle.real or abs(off.imag) + half_high + 4 > middle.imag:
        return False
    if any(label.touches(other.at, other.wide, other.high) for other in others):
        return False
    away = ink - label.at
    return not ((abs(away.real) < half_wide + 3) & (abs(away.imag) < half_high + 3)).any()


def _strokes(mark: Mark, size: int) -> Iterator[Line]:
    """Yield the straight pieces that a mark is drawn with."""
    if mark.kind in ("point", "side", "fill"):
        return
    start, end = mark.points[:2]
    whole, along = end - start, (end - start) / abs(end - start)
    if mark.kind == "line":
        yield start, end
    elif mark.kind == "dashed":
        pieces = max(3, round(abs(whole) / size * 40)) | 1
        yield from ((start + whole * k / pieces, start + whole * (k + 1) / pieces) for k in range(0, pieces, 2))
    elif mark.kind == "circle":
        yield from pairwise(start + whole * rect(1, 2 * pi * k / 90) for k in range(91))
    elif mark.kind == "angle":
        turn = _opening(mark)
        yield from pairwise(start + _arc_radius(mark, size) * along * rect(1, turn * k / 20) for k in range(21))
    elif mark.kind == "square":
        sides = [point - start for point in mark.points[1:]]
        one, two = (min(size / 26, *(0.3 * abs(other) for other in sides)) * side / abs(side) for side in sides)
        yield from pairwise((start + one, start + one + two, start + two))
    elif mark.kind == "tick":
        for k in range(count := len(mark.text)):
            at, across = start + whole / 2 + (k - (count - 1) / 2) * size / 70 * along, along * 1j * size / 60
            yield at - across, at + across
    else:  # arrow
        yield from ((start + 0.9 * whole, start + 0.9 * whole - along * (1 + sign * 0.6j) * size / 45) for sign in (-1, 1))


def _places(mark: Mark, room: tuple[float, float], size: int, middle: complex) -> list[complex]:
    """Return the possible positions of a label, best first."""
    if mark.kind == "point":
        (point,) = mark.points
        turns = [phase(point - middle) + radians(15 * k) for k in sorted(range(-11, 13), key=abs)]
        return [point + rect(size * away, turn) for away in (0.042, 0.05, 0.06) for turn in turns]
    start, end = mark.points[:2]
    along = (end - start) / abs(end - start)
    if mark.kind == "angle":
        rays = [along * rect(1, _opening(mark) * share) for share in (0.5, 0.42, 0.58, 0.34, 0.66)]
        nearest = _arc_radius(mark, size) + size / 40
        return [start + (nearest + size / 100 * step) * ray for step in range(22) for ray in rays]
    across = (abs(along.imag) * room[0] + abs(along.real) * room[1]) / 2 + size / 75
    places = []
    for share, sign, more in product((0.5, 0.46, 0.54, 0.42, 0.58, 0.36, 0.64, 0.28, 0.72), (-1, 1), range(4)):
        at, out = start + share * (end - start), sign * along * 1j
        inwards = ((at - middle) * out.conjugate()).real < 0
        places.append((abs(share - 0.5) * 4 + more * 0.1 + 0.5 * inwards, at + out * (across + more * size / 100)))
    return [place for _, place in sorted(places, key=lambda place: place[0])]


def _opening(angle: Mark) -> float:
    """Return the extent of an angle in radians, below π on either side."""
    corner, one, two = angle.points
    return phase((two - corner) / (one - corner))


def _arc_radius(angle: Mark, size: int) -> float:
    corner, *ends = angle.points
    return min(size / (12 if abs(_opening(angle)) < 0.8 else 16), *(0.42 * abs(end - corner) for end in ends))
