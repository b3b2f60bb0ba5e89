"""Tools for geometry problems: draw their numbers, build their figures."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

from numerate.lab.data.math_vision.figures import Figure, Point

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

    def length(self, least: int = 2) -> int:
        """Draw a length."""
        return self.rng.randint(self.largest + 1, 4 * self.largest) if self.far else self.rng.randint(least, self.largest)

    def angle(self, low: int, high: int) -> int:
        """Draw an angle in degrees."""
        return self.rng.choice([a for a in range(low, high + 1) if (a % 5 == 0) != self.far])

    def fits(self, *angles: int) -> bool:
        """Return whether derived angles are in the range, too."""
        return all((angle % 5 == 0) != self.far for angle in angles)

    def triple(self) -> ProblemNumbers:
        """Draw the sides of a right triangle that is not too thin, hypotenuse last."""
        low, high = (self.largest + 1, 6 * self.largest) if self.far else (3, self.largest)
        return self.rng.choice(_triples(low, high))

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


def apex(base: float, left: float, right: float) -> Point:
    """Return the third corner of a triangle on the line from (0, 0) to (base, 0), given its angles there; y points down."""
    side = base * math.sin(math.radians(right)) / math.sin(math.radians(left + right))
    return side * math.cos(math.radians(left)), -side * math.sin(math.radians(left))


def shown(values: Sequence[int], asked: int, unit: str = "") -> list[str]:
    """Return the labels of values, with an x for the one that is asked for."""
    return [f"{'x' if k == asked else value}{unit}" for k, value in enumerate(values)]


def ring(corners: Sequence[Point]) -> list[tuple[Point, Point]]:
    """Return the sides of a polygon."""
    return list(zip(corners, [*corners[1:], corners[0]], strict=True))


def named(names: str, *points: Point) -> dict[str, Point]:
    """Return the points by their names."""
    return dict(zip(names, points, strict=False))
