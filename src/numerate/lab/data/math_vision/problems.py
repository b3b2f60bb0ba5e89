"""Geometry problems: kinds of problem that draw their numbers, and build a figure, a question and its answer from them."""

from __future__ import annotations

import math
import random
from cmath import rect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from math import radians, sin
from typing import NamedTuple

from numerate.lab.data.math_vision.figures import Figure, Mark

ProblemNumbers = tuple[int, ...]


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

    def lengths(self, least: int, *others: tuple[int, float, float]) -> ProblemNumbers:
        """Draw lengths of at least ``least``; ``others`` have their own least, and two shares of the first to lie between."""
        while True:
            first, *rest = self.length(least), *(self.length(own) for own, _, _ in others)
            if all(low * first < length < high * first for length, (_, low, high) in zip(rest, others, strict=True)):
                return first, *rest

    def angle(self, low: int, high: int) -> int:
        """Draw an angle in degrees."""
        return self.rng.choice([angle for angle in range(low, high + 1) if self.fits(angle)])

    def angles(self, low: int, high: int, third: Callable[[int, int], int], least: int, most: int) -> ProblemNumbers:
        """Draw two angles until the third is in the range too; and which of the three is asked for."""
        while True:
            a, b = self.angle(low, high), self.angle(low, high)
            if least <= third(a, b) <= most and self.fits(third(a, b)):
                return a, b, third(a, b), self.pick(3)

    def fits(self, angle: int) -> bool:
        """Return whether an angle is in the range."""
        return (angle % 5 == 0) != self.far

    def triple(self) -> ProblemNumbers:
        """Draw the sides of a right triangle that is not too thin, hypotenuse last; and which of them is asked for."""
        low, high = (self.largest + 1, 6 * self.largest) if self.far else (3, self.largest)
        return *self.rng.choice(_triples(low, high)), self.pick(3)

    def doubled(self, value: int) -> ProblemNumbers:
        """Return a number and its double, and draw which of them is asked for."""
        return value, 2 * value, self.pick(2)

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


def _apex(left: float, right: float) -> complex:
    """Return the third corner of a triangle on the line from 0 to 1, given its angles there."""
    return rect(sin(radians(right)) / sin(radians(left + right)), -radians(left))


def _shown(values: Sequence[int], asked: int, unit: str = "") -> list[str]:
    """Return the labels of values, with an x for the one that is asked for."""
    return [f"{'x' if k == asked else value}{unit}" for k, value in enumerate(values)]


def _named(names: str, *points: complex) -> Figure:
    return [Mark("point", (point,), name) for name, point in zip(names, points, strict=False)]


def _labelled(start: complex, end: complex, text: str, *, dashed: bool = False) -> Figure:
    """Return a line with its length."""
    return [Mark("dashed" if dashed else "line", (start, end)), Mark("side", (start, end), text)]


def _polygon(
    names: str, corners: Sequence[complex], sides: Sequence[str] = (), angles: Sequence[str] = (), squares: Sequence[int] = ()
) -> Figure:
    """Return a filled polygon.

    ``sides`` are labels of the side after each corner, ``angles`` those of the angle at each; ``squares`` are the right angles.
    """
    ring = list(pairwise([*corners, corners[0]]))
    wedges = [(corner, corners[k - 1], corners[(k + 1) % len(corners)]) for k, corner in enumerate(corners)]
    return [
        Mark("fill", tuple(corners)),
        *_named(names, *corners),
        *(Mark("line", side) for side in ring),
        *(Mark("side", side, text) for side, text in zip(ring, sides, strict=False) if text),
        *(Mark("angle", wedge, text) for wedge, text in zip(wedges, angles, strict=False) if text),
        *(Mark("square", wedges[k]) for k in squares),
    ]


def _height(foot: float, high: int) -> Figure:
    """Return the dashed height of a figure from its base, with its length."""
    top = foot - high * 1j
    return [*_labelled(foot, top, str(high), dashed=True), Mark("square", (foot, foot + high, top))]


def _find_x(figure: Figure, x: int, given: str = "") -> Problem:
    return Problem(figure, f"{given}Find x.", Fraction(x))


def _right_triangle(numbers: ProblemNumbers, names: str) -> Problem:
    a, b, _, asked = numbers
    short, long, slant = _shown(numbers[:3], asked)
    return _find_x(_polygon(names, [0, b, -a * 1j], [long, slant, short], squares=[0]), numbers[asked])


def _rectangle_corners(wide: int, high: int) -> list[complex]:
    return [0, wide, wide - high * 1j, -high * 1j]


def _diagonal(numbers: ProblemNumbers, names: str) -> Problem:
    a, b, _, asked = numbers
    short, long, slant = _shown(numbers[:3], asked)
    figure = _polygon(names, _rectangle_corners(b, a), [long, short], squares=[1]) + _labelled(0, b - a * 1j, slant)
    return _find_x(figure, numbers[asked], f"{names[:4]} is a rectangle. ")


def _rectangle(numbers: ProblemNumbers, names: str) -> Problem:
    wide, high, asked = numbers
    figure = _polygon(names, _rectangle_corners(wide, high), [str(wide), str(high)], squares=range(4))
    what, value = (("area", wide * high), ("perimeter", 2 * (wide + high)))[asked]
    return Problem(figure, f"Find the {what} of the rectangle {names[:4]}.", Fraction(value))


def _diameter(numbers: ProblemNumbers, names: str) -> Problem:
    radius, whole, asked = numbers
    line = _labelled(0 if asked else -1, 1, str(radius if asked else whole)) + _named(names, *((1,) if asked else (-1, 1)))
    question = f"O is the center of the circle. Find its {('radius', 'diameter')[asked]}."
    return Problem([Mark("circle", (0, 1)), *_named("O", 0), *line], question, Fraction(numbers[asked]))


def _triangle_area(numbers: ProblemNumbers, names: str) -> Problem:
    base, high, place = numbers
    foot = base * place / 10
    figure = _polygon(names, [0, base, foot - high * 1j], [str(base)]) + _height(foot, high)
    return Problem(figure, f"Find the area of the triangle {names[:3]}.", Fraction(base * high, 2))


def _trapezoid(numbers: ProblemNumbers, names: str) -> Problem:
    low, high, tall, place = numbers
    start = (low - high) * place / 10
    corners = [0, low, start + high - tall * 1j, start - tall * 1j]
    figure = _polygon(names, corners, [str(low), "", str(high)]) + _height(start + high / 2, tall)
    figure += [Mark("arrow", (corners[0], corners[1])), Mark("arrow", (corners[3], corners[2]))]
    return Problem(figure, f"Find the area of the trapezoid {names[:4]}.", Fraction((low + high) * tall, 2))


def _perimeter(numbers: ProblemNumbers, names: str) -> Problem:
    a, b, c = numbers
    x = (b * b + c * c - a * a) / (2 * c)
    figure = _polygon(names, [0, c, x - math.sqrt(b * b - x * x) * 1j], [str(c), str(a), str(b)])
    return Problem(figure, f"Find the perimeter of the triangle {names[:3]}.", Fraction(sum(numbers)))


def _midline(numbers: ProblemNumbers, names: str) -> Problem:
    _, _, asked, *angles = numbers
    top = _apex(*angles)
    one, two = top / 2, (1 + top) / 2
    short, long = _shown(numbers[:2], asked)
    figure = _polygon(names, [0, 1, top], [long]) + _named(names[3:], one, two) + _labelled(one, two, short)
    equal = (0, one, "|"), (one, top, "|"), (1, two, "||"), (two, top, "||")
    return _find_x(figure + [Mark("tick", (start, end), text) for start, end, text in equal], numbers[asked])


def _triangle_angles(numbers: ProblemNumbers, names: str) -> Problem:
    a, b, _, asked = numbers
    return _find_x(_polygon(names, [0, 1, _apex(a, b)], angles=_shown(numbers[:3], asked, "°")), numbers[asked])


def _isosceles(numbers: ProblemNumbers, names: str) -> Problem:
    base, _, asked = numbers
    top = _apex(base, base)
    figure = _polygon(names, [0, 1, top], angles=["", *_shown(numbers[:2], asked, "°")])
    return _find_x(figure + [Mark("tick", (end, top), "|") for end in (0, 1)], numbers[asked])


def _exterior(numbers: ProblemNumbers, names: str) -> Problem:
    a, b, _, asked = numbers
    top, end = _apex(b, 180 - a - b), 1.6
    at_top, at_left, outside = _shown(numbers[:3], asked, "°")
    figure = _polygon(names, [0, 1, top], angles=[at_left, "", at_top]) + _named(names[3:], end)
    return _find_x([*figure, Mark("line", (1, end)), Mark("angle", (1, end, top), outside)], numbers[asked])


def _parallel(numbers: ProblemNumbers, names: str) -> Problem:
    slope, *places = numbers
    values = [slope, 180 - slope, slope, 180 - slope]
    along = rect(1, -radians(slope))
    figure: Figure = []
    for sign, place, text in zip((1, -1), places, (f"{values[places[0]]}°", "x°"), strict=True):
        at = sign * along / 2 / sin(radians(slope))
        ends = [at + 1.2, at + 0.75 * along, at - 1.2, at - 0.75 * along]
        figure += [Mark("line", (ends[2], ends[0])), Mark("line", (ends[1], ends[3])), Mark("arrow", (ends[2], ends[0]))]
        figure.append(Mark("angle", (at, ends[place], ends[(place + 1) % 4]), text))
    return _find_x(figure, values[places[1]], "The two lines with arrows are parallel. ")


def _inscribed(numbers: ProblemNumbers, names: str) -> Problem:
    half, _, asked, place = numbers
    one, two, top = (rect(1, radians(turn)) for turn in (90 + half, 90 - half, place - 90))
    small, large = _shown(numbers[:2], asked, "°")
    figure = [*_named(names, one, two, top), *_named("O", 0), Mark("circle", (0, 1))]
    for corner, text in ((top, small), (0, large)):
        figure += [Mark("line", (corner, one)), Mark("line", (corner, two)), Mark("angle", (corner, one, two), text)]
    return _find_x(figure, numbers[asked], "O is the center of the circle. ")


def _draw_perimeter(draw: Draw) -> ProblemNumbers:
    while True:
        a, b, c = sorted(draw.length(4) for _ in range(3))
        if a + b > 1.15 * c and a > 0.4 * c:
            return a, b, c


FAMILIES: dict[str, ProblemFamily] = {
    "right_triangle": ProblemFamily(Draw.triple, _right_triangle, 180),
    "diagonal": ProblemFamily(Draw.triple, _diagonal, 25),
    "rectangle": ProblemFamily(lambda draw: (*draw.lengths(2, (2, 0.35, 0.95)), draw.pick(2)), _rectangle, 25),
    "diameter": ProblemFamily(lambda draw: draw.doubled(draw.length(part=2)), _diameter, 180),
    "triangle_area": ProblemFamily(lambda draw: (*draw.lengths(3, (3, 0.45, 1.1)), draw.rng.randint(3, 7)), _triangle_area, 25),
    "trapezoid": ProblemFamily(
        lambda draw: (*draw.lengths(4, (3, 0.45, 0.8), (3, 0.4, 0.8)), draw.rng.randint(2, 8)), _trapezoid, 25
    ),
    "perimeter": ProblemFamily(_draw_perimeter, _perimeter, 180),
    "midline": ProblemFamily(
        lambda draw: (*draw.doubled(draw.length(part=2)), draw.rng.randint(45, 70), draw.rng.randint(45, 70)), _midline, 180
    ),
    "triangle_angles": ProblemFamily(lambda draw: draw.angles(30, 110, lambda a, b: 180 - a - b, 30, 180), _triangle_angles, 180),
    "isosceles": ProblemFamily(lambda draw: (base := draw.angle(30, 72), 180 - 2 * base, draw.pick(2)), _isosceles, 180),
    "exterior_angle": ProblemFamily(lambda draw: draw.angles(30, 95, lambda a, b: a + b, 0, 140), _exterior, 30),
    "parallel_lines": ProblemFamily(
        lambda draw: (draw.rng.choice([draw.angle(42, 78), draw.angle(102, 138)]), draw.pick(4), draw.pick(4)), _parallel, 30
    ),
    "inscribed_angle": ProblemFamily(
        lambda draw: (*draw.doubled(draw.angle(26, 72)), draw.rng.randint(-25, 25)), _inscribed, 180
    ),
}
