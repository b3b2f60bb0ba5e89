"""Geometry problems about lengths and areas."""

from __future__ import annotations

import math
from fractions import Fraction

from numerate.lab.data.math_vision.figures import Figure, Point
from numerate.lab.data.math_vision.geometry import Draw, Problem, ProblemFamily, ProblemNumbers, apex, named, ring, shown


def _draw_right(draw: Draw) -> ProblemNumbers:
    return *draw.triple(), draw.pick(3)


def _right(numbers: ProblemNumbers, names: str) -> Problem:
    a, b, _, asked = numbers
    corners = (0.0, 0.0), (float(b), 0.0), (0.0, -float(a))
    short, long, slant = shown(numbers[:3], asked)
    sides = [(corners[0], corners[2], short), (corners[0], corners[1], long), (corners[1], corners[2], slant)]
    figure = Figure(named(names, *corners), ring(corners), sides=sides, squares=[corners], fill=list(corners))
    return Problem(figure, "Find x.", Fraction(numbers[asked]))


def _draw_diameter(draw: Draw) -> ProblemNumbers:
    radius = draw.length() if draw.far else draw.rng.randint(2, draw.largest // 2)
    return radius, 2 * radius, draw.pick(2)


def _diameter(numbers: ProblemNumbers, names: str) -> Problem:
    radius, whole, asked = numbers
    middle, right, left = (0.0, 0.0), (1.0, 0.0), (-1.0, 0.0)
    line = (left, right, str(whole)) if asked == 0 else (middle, right, str(radius))
    points = {"O": middle, **(named(names, left, right) if asked == 0 else named(names, right))}
    figure = Figure(points, [line[:2]], circles=[(middle, 1.0)], sides=[line])
    return Problem(figure, f"O is the center of the circle. Find its {('radius', 'diameter')[asked]}.", Fraction(numbers[asked]))


def _tangent(numbers: ProblemNumbers, names: str) -> Problem:
    a, b, _, asked = numbers
    middle, touch, far = (0.0, 0.0), (0.0, -float(a)), (float(b), -float(a))
    radius, along, slant = shown(numbers[:3], asked)
    sides = [(middle, touch, radius), (touch, far, along), (middle, far, slant)]
    figure = Figure({"O": middle, **named(names, touch, far)}, [s[:2] for s in sides], circles=[(middle, float(a))], sides=sides)
    figure.squares.append((touch, middle, far))
    return Problem(figure, f"{names[1]}{names[0]} is tangent to the circle with center O. Find x.", Fraction(numbers[asked]))


def _draw_rectangle(draw: Draw) -> ProblemNumbers:
    while True:
        wide, high = draw.length(), draw.length()
        if 0.35 * wide < high < 0.95 * wide:
            return wide, high, draw.pick(2)


def _box(wide: float, high: float) -> tuple[Point, Point, Point, Point]:
    return (0.0, 0.0), (wide, 0.0), (wide, -high), (0.0, -high)


def _rectangle(numbers: ProblemNumbers, names: str) -> Problem:
    wide, high, asked = numbers
    corners = _box(wide, high)
    sides = [(corners[0], corners[1], str(wide)), (corners[1], corners[2], str(high))]
    squares = [(corners[k], corners[k - 1], corners[k - 3]) for k in range(4)]
    figure = Figure(named(names, *corners), ring(corners), sides=sides, squares=squares, fill=list(corners))
    value = (wide * high, 2 * (wide + high))[asked]
    return Problem(figure, f"Find the {('area', 'perimeter')[asked]} of the rectangle {names[:4]}.", Fraction(value))


def _diagonal(numbers: ProblemNumbers, names: str) -> Problem:
    a, b, _, asked = numbers
    corners = _box(b, a)
    short, long, slant = shown(numbers[:3], asked)
    sides = [(corners[1], corners[2], short), (corners[0], corners[1], long), (corners[0], corners[2], slant)]
    figure = Figure(named(names, *corners), [*ring(corners), (corners[0], corners[2])], sides=sides, fill=list(corners))
    figure.squares.append((corners[1], corners[0], corners[2]))
    return Problem(figure, f"{names[:4]} is a rectangle. Find x.", Fraction(numbers[asked]))


def _draw_triangle_area(draw: Draw) -> ProblemNumbers:
    while True:
        base, high = draw.length(3), draw.length(3)
        if 0.45 * base < high < 1.1 * base:
            return base, high, draw.rng.randint(3, 7)


def _triangle_area(numbers: ProblemNumbers, names: str) -> Problem:
    base, high, place = numbers
    left, right, foot, top = (0.0, 0.0), (float(base), 0.0), (base * place / 10, 0.0), (base * place / 10, -float(high))
    figure = Figure(named(names, left, right, top), ring((left, right, top)), [(foot, top)], fill=[left, right, top])
    figure.sides += [(left, right, str(base)), (foot, top, str(high))]
    figure.squares.append((foot, right, top))
    return Problem(figure, f"Find the area of the triangle {names[:3]}.", Fraction(base * high, 2))


def _draw_trapezoid(draw: Draw) -> ProblemNumbers:
    while True:
        low, high, tall = draw.length(4), draw.length(3), draw.length(3)
        if 0.45 * low < high < 0.8 * low and 0.4 * low < tall < 0.8 * low:
            return low, high, tall, draw.rng.randint(2, 8)


def _trapezoid(numbers: ProblemNumbers, names: str) -> Problem:
    low, high, tall, place = numbers
    start = (low - high) * place / 10
    corners = (0.0, 0.0), (float(low), 0.0), (start + high, -float(tall)), (start, -float(tall))
    x = start + 0.5 * high
    figure = Figure(named(names, *corners), ring(corners), [((x, 0.0), (x, -float(tall)))], fill=list(corners))
    figure.sides += [
        ((x, 0.0), (x, -float(tall)), str(tall)),
        (corners[0], corners[1], str(low)),
        (corners[2], corners[3], str(high)),
    ]
    figure.squares.append(((x, 0.0), corners[1], (x, -float(tall))))
    figure.arrows += [(corners[0], corners[1]), (corners[3], corners[2])]
    return Problem(figure, f"Find the area of the trapezoid {names[:4]}.", Fraction((low + high) * tall, 2))


def _draw_segment(draw: Draw) -> ProblemNumbers:
    while True:
        a, b = draw.length(), draw.length()
        if 0.4 * b < a < 2.5 * b and (draw.far or a + b <= draw.largest):
            return a, b, a + b, draw.pick(3)


def _segment(numbers: ProblemNumbers, names: str) -> Problem:
    a, _, whole, asked = numbers
    points = (0.0, 0.0), (float(a), 0.0), (float(whole), 0.0)
    drop = 0.16 * whole
    brace = [((x, 0.5 * drop), (x, 1.15 * drop)) for x in (0.0, float(whole))]
    under = (0.0, drop), (float(whole), drop)
    first, second, all_of_it = shown(numbers[:3], asked)
    figure = Figure(named(names, *points), [(points[0], points[2]), under, *brace])
    figure.sides += [(points[0], points[1], first), (points[1], points[2], second), (*under, all_of_it)]
    return Problem(figure, "Find x.", Fraction(numbers[asked]))


def _draw_perimeter(draw: Draw) -> ProblemNumbers:
    while True:
        a, b, c = sorted(draw.length(4) for _ in range(3))
        if a + b > 1.15 * c and a > 0.4 * c:
            return a, b, c


def _perimeter(numbers: ProblemNumbers, names: str) -> Problem:
    a, b, c = numbers
    x = (b * b + c * c - a * a) / (2 * c)
    corners = (0.0, 0.0), (float(c), 0.0), (x, -math.sqrt(b * b - x * x))
    figure = Figure(named(names, *corners), ring(corners), fill=list(corners))
    figure.sides += [(corners[0], corners[1], str(c)), (corners[1], corners[2], str(a)), (corners[2], corners[0], str(b))]
    return Problem(figure, f"Find the perimeter of the triangle {names[:3]}.", Fraction(sum(numbers)))


def _draw_midline(draw: Draw) -> ProblemNumbers:
    half = draw.length() if draw.far else draw.rng.randint(2, draw.largest // 2)
    return half, 2 * half, draw.pick(2), draw.rng.randint(45, 70), draw.rng.randint(45, 70)


def _midline(numbers: ProblemNumbers, names: str) -> Problem:
    _, _, asked, left_angle, right_angle = numbers
    left, right, top = (0.0, 0.0), (1.0, 0.0), apex(1, left_angle, right_angle)
    one, two = ((top[0] / 2, top[1] / 2), ((1 + top[0]) / 2, top[1] / 2))
    short, long = shown(numbers[:2], asked)
    figure = Figure(named(names, top, left, right, one, two), [*ring((left, right, top)), (one, two)], fill=[left, right, top])
    figure.sides += [(one, two, short), (left, right, long)]
    figure.ticks += [(left, one, 1), (one, top, 1), (right, two, 2), (two, top, 2)]
    return Problem(figure, "Find x.", Fraction(numbers[asked]))


LENGTHS: dict[str, ProblemFamily] = {
    "right_triangle": ProblemFamily(_draw_right, _right, 180),
    "tangent": ProblemFamily(_draw_right, _tangent, 180),
    "diagonal": ProblemFamily(_draw_right, _diagonal, 25),
    "diameter": ProblemFamily(_draw_diameter, _diameter, 180),
    "rectangle": ProblemFamily(_draw_rectangle, _rectangle, 25),
    "triangle_area": ProblemFamily(_draw_triangle_area, _triangle_area, 25),
    "trapezoid": ProblemFamily(_draw_trapezoid, _trapezoid, 25),
    "perimeter": ProblemFamily(_draw_perimeter, _perimeter, 180),
    "midline": ProblemFamily(_draw_midline, _midline, 180),
    "segment": ProblemFamily(_draw_segment, _segment, 20),
}
