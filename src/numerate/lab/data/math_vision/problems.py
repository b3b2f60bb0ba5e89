"""Geometry problems: kinds of problem that draw their numbers, and build a figure, a question and its answer from them."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from numerate.lab.data.math_vision.figures import Figure
from numerate.lab.data.plane import Point, around

ProblemNumbers = tuple[int, ...]
_MIDDLE: Point = (0.0, 0.0)


@dataclass(frozen=True)
class Draw:
    """A random source for the numbers of a problem.

    In the training range, lengths are up to ``largest`` and angles are multiples of 5 degrees. Outside it (``far``), lengths
    are above ``largest``, up to four times as long, and no angle is a multiple of 5.
    """

    rng: random.Random
    largest: int
    far: bool

    def length(self, least: int = 2, part: int = 1) -> int:
        """Draw a length, in training at most ``1 / part`` of the largest."""
        low, high = (self.largest + 1, 4 * self.largest) if self.far else (least, self.largest // part)
        return self.rng.randint(low, high)

    def angle(self, low: int, high: int) -> int:
        """Draw an angle in degrees."""
        return self.rng.choice([angle for angle in range(low, high + 1) if self.fits(angle)])

    def fits(self, angle: int) -> bool:
        """Return whether an angle is in the range."""
        return (angle % 5 == 0) != self.far

    def triple(self) -> ProblemNumbers:
        """Draw the sides of a right triangle that is not too thin, hypotenuse last; and which of them is asked for."""
        low, high = (self.largest + 1, 6 * self.largest) if self.far else (3, self.largest)
        return *self.rng.choice(_triples(low, high)), self.pick(3)

    def pick(self, count: int) -> int:
        """Draw which of ``count`` quantities is asked for."""
        return self.rng.randrange(count)


class Problem(NamedTuple):
    """A figure, the question and its answer."""

    figure: Figure
    question: str
    answer: Fraction


class ProblemFamily(NamedTuple):
    """A kind of problem: draws its numbers, builds the problem from them; ``turn`` is the largest rotation in degrees."""

    draw: Callable[[Draw], ProblemNumbers]
    build: Callable[[ProblemNumbers, str], Problem]
    turn: int


@lru_cache(maxsize=16)
def _triples(low: int, high: int) -> list[ProblemNumbers]:
    triples: list[ProblemNumbers] = []
    for m in range(2, math.isqrt(high) + 1):
        for n in range(1, m):
            if (m - n) % 2 and math.gcd(m, n) == 1:
                a, b, c = sorted((m * m - n * n, 2 * m * n, m * m + n * n))
                triples += [(k * a, k * b, k * c) for k in range(1, high // c + 1) if k * a >= low and 3 * a > b]
    return triples or [(3, 4, 5)]


def _apex(left: float, right: float) -> Point:
    """Return the third corner of a triangle on the line from (0, 0) to (1, 0), given its angles there."""
    return around(_MIDDLE, math.sin(math.radians(right)) / math.sin(math.radians(left + right)), 90 - left)


def _shown(values: Sequence[int], asked: int, unit: str = "") -> list[str]:
    """Return the labels of values, with an x for the one that is asked for."""
    return [f"{'x' if k == asked else value}{unit}" for k, value in enumerate(values)]


def _named(names: str, *points: Point) -> dict[str, Point]:
    return dict(zip(names, points, strict=False))


def _polygon(
    names: str, corners: Sequence[Point], sides: Sequence[str] = (), angles: Sequence[str] = (), squares: Sequence[int] = ()
) -> Figure:
    """Return a filled polygon.

    Args:
        names: of its corners.
        corners: in order.
        sides: label of the side after each corner; empty for none.
        angles: label of the angle at each corner; empty for none.
        squares: corners with a right angle.
    """
    ring = list(pairwise([*corners, corners[0]]))
    wedges = [(corner, corners[k - 1], corners[(k + 1) % len(corners)]) for k, corner in enumerate(corners)]
    return Figure(
        _named(names, *corners),
        ring,
        sides=[(*side, text) for side, text in zip(ring, sides, strict=False) if text],
        angles=[(*wedge, text) for wedge, text in zip(wedges, angles, strict=False) if text],
        squares=[wedges[k] for k in squares],
        fill=list(corners),
    )


def _right_triangle(numbers: ProblemNumbers, names: str) -> Problem:
    a, b, _, asked = numbers
    short, long, slant = _shown(numbers[:3], asked)
    figure = _polygon(names, [_MIDDLE, (float(b), 0.0), (0.0, -float(a))], [long, slant, short], squares=[0])
    return Problem(figure, "Find x.", Fraction(numbers[asked]))


def _rectangle_corners(wide: float, high: float) -> list[Point]:
    return [_MIDDLE, (wide, 0.0), (wide, -high), (0.0, -high)]


def _diagonal(numbers: ProblemNumbers, names: str) -> Problem:
    a, b, _, asked = numbers
    corners = _rectangle_corners(b, a)
    short, long, slant = _shown(numbers[:3], asked)
    figure = _polygon(names, corners, [long, short], squares=[1])
    figure.lines.append((corners[0], corners[2]))
    figure.sides.append((corners[0], corners[2], slant))
    return Problem(figure, f"{names[:4]} is a rectangle. Find x.", Fraction(numbers[asked]))


def _draw_rectangle(draw: Draw) -> ProblemNumbers:
    while True:
        wide, high = draw.length(), draw.length()
        if 0.35 * wide < high < 0.95 * wide:
            return wide, high, draw.pick(2)


def _rectangle(numbers: ProblemNumbers, names: str) -> Problem:
    wide, high, asked = numbers
    figure = _polygon(names, _rectangle_corners(wide, high), [str(wide), str(high)], squares=range(4))
    value = (wide * high, 2 * (wide + high))[asked]
    return Problem(figure, f"Find the {('area', 'perimeter')[asked]} of the rectangle {names[:4]}.", Fraction(value))


def _draw_diameter(draw: Draw) -> ProblemNumbers:
    radius = draw.length(part=2)
    return radius, 2 * radius, draw.pick(2)


def _diameter(numbers: ProblemNumbers, names: str) -> Problem:
    radius, whole, asked = numbers
    right, left = (1.0, 0.0), (-1.0, 0.0)
    line = (left, right, str(whole)) if asked == 0 else (_MIDDLE, right, str(radius))
    points = {"O": _MIDDLE, **(_named(names, left, right) if asked == 0 else _named(names, right))}
    figure = Figure(points, [line[:2]], circles=[(_MIDDLE, 1.0)], sides=[line])
    return Problem(figure, f"O is the center of the circle. Find its {('radius', 'diameter')[asked]}.", Fraction(numbers[asked]))


def _with_height(figure: Figure, foot: Point, high: int) -> Figure:
    """Return the figure with a dashed height from its base, and the height's length beside it."""
    top = foot[0], -float(high)
    figure.dashed.append((foot, top))
    figure.sides.append((foot, top, str(high)))
    figure.squares.append((foot, (foot[0] + high, 0.0), top))
    return figure


def _draw_triangle_area(draw: Draw) -> ProblemNumbers:
    while True:
        base, high = draw.length(3), draw.length(3)
        if 0.45 * base < high < 1.1 * base:
            return base, high, draw.rng.randint(3, 7)


def _triangle_area(numbers: ProblemNumbers, names: str) -> Problem:
    base, high, place = numbers
    foot = base * place / 10, 0.0
    figure = _polygon(names, [_MIDDLE, (float(base), 0.0), (foot[0], -float(high))], [str(base)])
    answer = Fraction(base * high, 2)
    return Problem(_with_height(figure, foot, high), f"Find the area of the triangle {names[:3]}.", answer)


def _draw_trapezoid(draw: Draw) -> ProblemNumbers:
    while True:
        low, high, tall = draw.length(4), draw.length(3), draw.length(3)
        if 0.45 * low < high < 0.8 * low and 0.4 * low < tall < 0.8 * low:
            return low, high, tall, draw.rng.randint(2, 8)


def _trapezoid(numbers: ProblemNumbers, names: str) -> Problem:
    low, high, tall, place = numbers
    start = (low - high) * place / 10
    corners = [_MIDDLE, (float(low), 0.0), (start + high, -float(tall)), (start, -float(tall))]
    figure = _polygon(names, corners, [str(low), "", str(high)])
    figure.arrows += [(corners[0], corners[1]), (corners[3], corners[2])]
    answer = Fraction((low + high) * tall, 2)
    return Problem(_with_height(figure, (start + high / 2, 0.0), tall), f"Find the area of the trapezoid {names[:4]}.", answer)


def _draw_perimeter(draw: Draw) -> ProblemNumbers:
    while True:
        a, b, c = sorted(draw.length(4) for _ in range(3))
        if a + b > 1.15 * c and a > 0.4 * c:
            return a, b, c


def _perimeter(numbers: ProblemNumbers, names: str) -> Problem:
    a, b, c = numbers
    x = (b * b + c * c - a * a) / (2 * c)
    figure = _polygon(names, [_MIDDLE, (float(c), 0.0), (x, -math.sqrt(b * b - x * x))], [str(c), str(a), str(b)])
    return Problem(figure, f"Find the perimeter of the triangle {names[:3]}.", Fraction(sum(numbers)))


def _draw_midline(draw: Draw) -> ProblemNumbers:
    half = draw.length(part=2)
    return half, 2 * half, draw.pick(2), draw.rng.randint(45, 70), draw.rng.randint(45, 70)


def _midline(numbers: ProblemNumbers, names: str) -> Problem:
    _, _, asked, *angles = numbers
    left, right, top = _MIDDLE, (1.0, 0.0), _apex(*angles)
    one, two = (top[0] / 2, top[1] / 2), ((1 + top[0]) / 2, top[1] / 2)
    short, long = _shown(numbers[:2], asked)
    figure = _polygon(names, [left, right, top], [long])
    figure.points.update(_named(names[3:], one, two))
    figure.lines.append((one, two))
    figure.sides.append((one, two, short))
    figure.ticks += [(left, one, 1), (one, top, 1), (right, two, 2), (two, top, 2)]
    return Problem(figure, "Find x.", Fraction(numbers[asked]))


def _draw_triangle_angles(draw: Draw) -> ProblemNumbers:
    while True:
        a, b = draw.angle(30, 110), draw.angle(30, 110)
        if 180 - a - b >= 30 and draw.fits(180 - a - b):
            return a, b, 180 - a - b, draw.pick(3)


def _triangle_angles(numbers: ProblemNumbers, names: str) -> Problem:
    a, b, _, asked = numbers
    figure = _polygon(names, [_MIDDLE, (1.0, 0.0), _apex(a, b)], angles=_shown(numbers[:3], asked, "°"))
    return Problem(figure, "Find x.", Fraction(numbers[asked]))


def _draw_isosceles(draw: Draw) -> ProblemNumbers:
    base = draw.angle(30, 72)
    return base, 180 - 2 * base, draw.pick(2)


def _isosceles(numbers: ProblemNumbers, names: str) -> Problem:
    base, _, asked = numbers
    corners = [_MIDDLE, (1.0, 0.0), _apex(base, base)]
    figure = _polygon(names, corners, angles=["", *_shown(numbers[:2], asked, "°")])
    figure.ticks += [(corners[0], corners[2], 1), (corners[1], corners[2], 1)]
    return Problem(figure, "Find x.", Fraction(numbers[asked]))


def _draw_exterior(draw: Draw) -> ProblemNumbers:
    while True:
        a, b = draw.angle(30, 95), draw.angle(30, 95)
        if a + b <= 140 and draw.fits(a + b):
            return a, b, a + b, draw.pick(3)


def _exterior(numbers: ProblemNumbers, names: str) -> Problem:
    a, b, _, asked = numbers
    corners, end = [_MIDDLE, (1.0, 0.0), _apex(b, 180 - a - b)], (1.6, 0.0)
    at_top, at_left, outside = _shown(numbers[:3], asked, "°")
    figure = _polygon(names, corners, angles=[at_left, "", at_top])
    figure.points.update(_named(names[3:], end))
    figure.lines.append((corners[1], end))
    figure.angles.append((corners[1], end, corners[2], outside))
    return Problem(figure, "Find x.", Fraction(numbers[asked]))


def _draw_parallel(draw: Draw) -> ProblemNumbers:
    return draw.rng.choice([draw.angle(42, 78), draw.angle(102, 138)]), draw.pick(4), draw.pick(4)


def _parallel(numbers: ProblemNumbers, names: str) -> Problem:
    slope, *places = numbers
    values = [slope, 180 - slope, slope, 180 - slope]
    crossings = [around(_MIDDLE, sign * 0.5 / math.sin(math.radians(slope)), 90 - slope) for sign in (1, -1)]
    figure = Figure()
    for (x, y), place, text in zip(crossings, places, (f"{values[places[0]]}°", "x°"), strict=True):
        ends = [(x + 1.2, y), around((x, y), 0.75, 90 - slope), (x - 1.2, y), around((x, y), -0.75, 90 - slope)]
        figure.lines += [(ends[2], ends[0]), (ends[1], ends[3])]
        figure.arrows.append((ends[2], ends[0]))
        figure.angles.append(((x, y), ends[place], ends[(place + 1) % 4], text))
    return Problem(figure, "The two lines with arrows are parallel. Find x.", Fraction(values[places[1]]))


def _draw_inscribed(draw: Draw) -> ProblemNumbers:
    angle = draw.angle(26, 72)
    return angle, 2 * angle, draw.pick(2), draw.rng.randint(-25, 25)


def _inscribed(numbers: ProblemNumbers, names: str) -> Problem:
    half, _, asked, place = numbers
    one, two, top = (around(_MIDDLE, 1, turn) for turn in (180 + half, 180 - half, place))
    small, large = _shown(numbers[:2], asked, "°")
    lines = [(_MIDDLE, one), (_MIDDLE, two), (top, one), (top, two)]
    figure = Figure({**_named(names, one, two, top), "O": _MIDDLE}, lines, circles=[(_MIDDLE, 1.0)])
    figure.angles += [(top, one, two, small), (_MIDDLE, one, two, large)]
    return Problem(figure, "O is the center of the circle. Find x.", Fraction(numbers[asked]))


FAMILIES: dict[str, ProblemFamily] = {
    "right_triangle": ProblemFamily(Draw.triple, _right_triangle, 180),
    "diagonal": ProblemFamily(Draw.triple, _diagonal, 25),
    "rectangle": ProblemFamily(_draw_rectangle, _rectangle, 25),
    "diameter": ProblemFamily(_draw_diameter, _diameter, 180),
    "triangle_area": ProblemFamily(_draw_triangle_area, _triangle_area, 25),
    "trapezoid": ProblemFamily(_draw_trapezoid, _trapezoid, 25),
    "perimeter": ProblemFamily(_draw_perimeter, _perimeter, 180),
    "midline": ProblemFamily(_draw_midline, _midline, 180),
    "triangle_angles": ProblemFamily(_draw_triangle_angles, _triangle_angles, 180),
    "isosceles": ProblemFamily(_draw_isosceles, _isosceles, 180),
    "exterior_angle": ProblemFamily(_draw_exterior, _exterior, 30),
    "parallel_lines": ProblemFamily(_draw_parallel, _parallel, 30),
    "inscribed_angle": ProblemFamily(_draw_inscribed, _inscribed, 180),
}
