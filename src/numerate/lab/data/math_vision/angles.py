"""Geometry problems about angles."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from fractions import Fraction

from numerate.lab.data.math_vision.figures import Figure, Point
from numerate.lab.data.math_vision.geometry import Draw, Problem, ProblemFamily, ProblemNumbers, apex, named, ring, shown


def _three_angles(draw: Draw, low: int, high: int) -> ProblemNumbers:
    """Draw three angles that add up to 180 degrees, and which one is asked for."""
    while True:
        a, b = draw.angle(low, high), draw.angle(low, high)
        if 180 - a - b >= low and draw.fits(180 - a - b):
            return a, b, 180 - a - b, draw.pick(3)


def _angles(numbers: ProblemNumbers, names: str) -> Problem:
    a, b, _, asked = numbers
    corners = (0.0, 0.0), (1.0, 0.0), apex(1, a, b)
    texts = shown(numbers[:3], asked, "°")
    angles = [(corners[k], corners[k - 1], corners[k - 2], texts[k]) for k in range(3)]
    figure = Figure(named(names, *corners), ring(corners), angles=angles, fill=list(corners))
    return Problem(figure, "Find x.", Fraction(numbers[asked]))


def _draw_isosceles(draw: Draw) -> ProblemNumbers:
    base = draw.angle(30, 72)
    return base, 180 - 2 * base, draw.pick(2)


def _isosceles(numbers: ProblemNumbers, names: str) -> Problem:
    base, _, asked = numbers
    left, right, top = (0.0, 0.0), (1.0, 0.0), apex(1, base, base)
    at_base, at_top = shown(numbers[:2], asked, "°")
    angles = [(right, left, top, at_base), (top, left, right, at_top)]
    ticks = [(left, top, 1), (right, top, 1)]
    figure = Figure(named(names, left, right, top), ring((left, right, top)), angles=angles, ticks=ticks, fill=[left, right, top])
    return Problem(figure, "Find x.", Fraction(numbers[asked]))


def _draw_exterior(draw: Draw) -> ProblemNumbers:
    while True:
        a, b = draw.angle(30, 95), draw.angle(30, 95)
        if a + b <= 140 and draw.fits(a + b):
            return a, b, a + b, draw.pick(3)


def _exterior(numbers: ProblemNumbers, names: str) -> Problem:
    a, b, _, asked = numbers
    left, right, end = (0.0, 0.0), (1.0, 0.0), (1.6, 0.0)
    top = apex(1, b, 180 - a - b)
    at_top, at_left, outside = shown(numbers[:3], asked, "°")
    angles = [(top, left, right, at_top), (left, right, top, at_left), (right, end, top, outside)]
    figure = Figure(
        named(names, top, left, right, end), [(left, end), (left, top), (top, right)], angles=angles, fill=[left, right, top]
    )
    return Problem(figure, "Find x.", Fraction(numbers[asked]))


def _draw_parallel(draw: Draw) -> ProblemNumbers:
    angle = draw.rng.choice([draw.angle(42, 78), draw.angle(102, 138)])
    return angle, draw.pick(4), draw.pick(4)


def _rays(middle: Point, slope: int, along: float, across: float) -> list[Point]:
    """Return the ends of two crossing lines: right, up the slope, left, and down the slope."""
    x, y = middle
    dx, dy = across * math.cos(math.radians(slope)), -across * math.sin(math.radians(slope))
    return [(x + along, y), (x + dx, y + dy), (x - along, y), (x - dx, y - dy)]


def _parallel(numbers: ProblemNumbers, names: str) -> Problem:
    slope, given, asked = numbers
    reach = 0.5 / math.sin(math.radians(slope))
    high, low = (reach * math.cos(math.radians(slope)), -0.5), (-reach * math.cos(math.radians(slope)), 0.5)
    over, under = _rays(high, slope, 1.2, 0.75), _rays(low, slope, 1.2, 0.75)
    values = [slope, 180 - slope, slope, 180 - slope]
    angles = [(high, over[given], over[(given + 1) % 4], f"{values[given]}°"), (low, under[asked], under[(asked + 1) % 4], "x°")]
    parallels = [(over[2], over[0]), (under[2], under[0])]
    figure = Figure(lines=[*parallels, (over[1], under[3])], angles=angles, arrows=parallels)
    return Problem(figure, "The two lines with arrows are parallel. Find x.", Fraction(values[asked]))


def _draw_crossing(draw: Draw) -> ProblemNumbers:
    return draw.rng.choice([draw.angle(32, 80), draw.angle(100, 148)]), draw.pick(4), draw.pick(3) + 1


def _crossing(numbers: ProblemNumbers, names: str) -> Problem:
    slope, given, further = numbers
    ends, asked = _rays((0.0, 0.0), slope, 1.0, 1.0), (given + further) % 4
    values = [slope, 180 - slope, slope, 180 - slope]
    middle = (0.0, 0.0)
    angles = [
        (middle, ends[given], ends[(given + 1) % 4], f"{values[given]}°"),
        (middle, ends[asked], ends[(asked + 1) % 4], "x°"),
    ]
    figure = Figure(named(names, *ends), [(ends[0], ends[2]), (ends[1], ends[3])], angles=angles)
    return Problem(figure, "Find x.", Fraction(values[asked]))


def _straight(numbers: ProblemNumbers, names: str) -> Problem:
    a, b, _, asked = numbers
    ends = [(math.cos(math.radians(turn)), -math.sin(math.radians(turn))) for turn in (0, a, a + b, 180)]
    texts, middle = shown(numbers[:3], asked, "°"), (0.0, 0.0)
    angles = [(middle, ends[k], ends[k + 1], texts[k]) for k in range(3)]
    lines = [(ends[0], ends[3]), (middle, ends[1]), (middle, ends[2])]
    figure = Figure(named(names, *ends, middle), lines, angles=angles)
    return Problem(figure, f"{names[3]}{names[0]} is a straight line. Find x.", Fraction(numbers[asked]))


def _draw_inscribed(draw: Draw) -> ProblemNumbers:
    angle = draw.angle(26, 72)
    return angle, 2 * angle, draw.pick(2), draw.rng.randint(-25, 25)


def _inscribed(numbers: ProblemNumbers, names: str) -> Problem:
    half, _, asked, place = numbers
    on = [(math.cos(math.radians(turn)), math.sin(math.radians(turn))) for turn in (90 + half, 90 - half, 270 + place)]
    middle = (0.0, 0.0)
    small, large = shown(numbers[:2], asked, "°")
    angles = [(on[2], on[0], on[1], small), (middle, on[0], on[1], large)]
    lines = [(middle, on[0]), (middle, on[1]), (on[2], on[0]), (on[2], on[1])]
    figure = Figure({**named(names, *on), "O": middle}, lines, circles=[(middle, 1.0)], angles=angles)
    return Problem(figure, "O is the center of the circle. Find x.", Fraction(numbers[asked]))


def _draw_polygon(draw: Draw) -> ProblemNumbers:
    while True:
        count = draw.rng.choice((4, 4, 5))
        angles = [draw.angle(55, 140) for _ in range(count - 1)]
        last = (count - 2) * 180 - sum(angles)
        shape = draw.rng.randrange(100)
        if 55 <= last <= 140 and draw.fits(last) and _closed((*angles, last), shape):
            return *angles, last, draw.pick(count), shape


def _closed(angles: Sequence[int], shape: int) -> list[Point]:
    """Return the corners of a polygon with these angles and sides of similar length; empty if there is none."""
    rng, count = random.Random(shape), len(angles)
    lengths = [rng.uniform(0.8, 1.3) for _ in range(count - 2)]
    turns = [sum(180 - angle for angle in angles[1 : k + 1]) for k in range(count)]
    steps = [(math.cos(math.radians(turn)), math.sin(math.radians(turn))) for turn in turns]
    x, y = (sum(length * step[axis] for length, step in zip(lengths, steps, strict=False)) for axis in (0, 1))
    (ax, ay), (bx, by) = steps[-2:]
    area = ax * by - ay * bx
    lengths += [(by * -x - bx * -y) / area, (ax * -y - ay * -x) / area] if abs(area) > 0.1 else [0, 0]
    if not 0.6 < min(lengths) <= max(lengths) < 1.8:
        return []
    corners = [(0.0, 0.0)]
    for length, (dx, dy) in zip(lengths[:-1], steps, strict=False):
        corners.append((corners[-1][0] + length * dx, corners[-1][1] + length * dy))
    return corners


def _polygon(numbers: ProblemNumbers, names: str) -> Problem:
    *values, asked, shape = numbers
    corners = _closed(values, shape)
    texts = shown(values, asked, "°")
    angles = [(corners[k], corners[k - 1], corners[(k + 1) % len(corners)], texts[k]) for k in range(len(corners))]
    figure = Figure(named(names, *corners), ring(corners), angles=angles, fill=corners)
    return Problem(figure, "Find x.", Fraction(values[asked]))


ANGLES: dict[str, ProblemFamily] = {
    "triangle_angles": ProblemFamily(lambda draw: _three_angles(draw, 30, 110), _angles, 180),
    "isosceles": ProblemFamily(_draw_isosceles, _isosceles, 180),
    "exterior_angle": ProblemFamily(_draw_exterior, _exterior, 30),
    "parallel_lines": ProblemFamily(_draw_parallel, _parallel, 30),
    "crossing_lines": ProblemFamily(_draw_crossing, _crossing, 180),
    "straight_line": ProblemFamily(lambda draw: _three_angles(draw, 28, 120), _straight, 25),
    "inscribed_angle": ProblemFamily(_draw_inscribed, _inscribed, 180),
    "polygon_angles": ProblemFamily(_draw_polygon, _polygon, 180),
}
