"""Problems of plane geometry: numbers with known relations, the figure they belong to, and what is asked for."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

from numerate.lab.tasks.math_vision.figures import Figure, Point

Numbers = tuple[int, ...]


@dataclass(frozen=True)
class Draw:
    """Draws the numbers of a problem.

    In the range of training, lengths are up to ``largest`` and angles are multiples of 5 degrees. Beyond it (``far``), lengths
    are from there up to four times as long, and no angle is a multiple of 5.
    """

    rng: random.Random
    largest: int
    far: bool

    def length(self, least: int = 2) -> int:
        """A length."""
        return self.rng.randint(self.largest + 1, 4 * self.largest) if self.far else self.rng.randint(least, self.largest)

    def angle(self, low: int, high: int) -> int:
        """An angle in degrees."""
        return self.rng.choice([a for a in range(low, high + 1) if (a % 5 == 0) != self.far])

    def fits(self, *angles: int) -> bool:
        """Whether angles that follow from others are of the range, too."""
        return all((angle % 5 == 0) != self.far for angle in angles)

    def triple(self) -> Numbers:
        """The sides of a right triangle that is not too thin, the longest one last."""
        low, high = (self.largest + 1, 6 * self.largest) if self.far else (3, self.largest)
        return self.rng.choice(_triples(low, high))

    def pick(self, count: int) -> int:
        """Which of several things is asked for."""
        return self.rng.randrange(count)


class Problem(NamedTuple):
    """A figure, what is asked for, and its value."""

    figure: Figure
    question: str
    answer: Fraction


class Family(NamedTuple):
    """A kind of problem: how its numbers are drawn, what they make, and how far the figure may be turned, in degrees."""

    draw: Callable[[Draw], Numbers]
    build: Callable[[Numbers, str], Problem]
    turn: int


@lru_cache(maxsize=16)
def _triples(low: int, high: int) -> list[Numbers]:
    found: list[Numbers] = []
    for m in range(2, math.isqrt(high) + 1):
        for n in range(1, m):
            if (m - n) % 2 and math.gcd(m, n) == 1:
                a, b, c = sorted((m * m - n * n, 2 * m * n, m * m + n * n))
                found += [(k * a, k * b, k * c) for k in range(1, high // c + 1) if k * a >= low and 3 * a > b]
    return found or [(3, 4, 5)]


def apex(base: float, left: float, right: float) -> Point:
    """The corner of a triangle over the line from (0, 0) to (base, 0), by the angles there; y grows downwards."""
    side = base * math.sin(math.radians(right)) / math.sin(math.radians(left + right))
    return side * math.cos(math.radians(left)), -side * math.sin(math.radians(left))


def shown(values: Sequence[int], asked: int, unit: str = "") -> list[str]:
    """Labels of values, with an x for the one that is asked for."""
    return [f"{'x' if k == asked else value}{unit}" for k, value in enumerate(values)]


def ring(corners: Sequence[Point]) -> list[tuple[Point, Point]]:
    """The sides of a polygon."""
    return list(zip(corners, [*corners[1:], corners[0]], strict=True))


def named(names: str, *points: Point) -> dict[str, Point]:
    """Points by the names they get."""
    return dict(zip(names, points, strict=False))
