"""Points of a picture: x to the right, y down, angles in degrees, clockwise from the top."""

from __future__ import annotations

from collections.abc import Sequence
from math import cos, radians, sin

Point = tuple[float, float]


def around(centre: Point, distance: float, degrees: float) -> Point:
    """Return the point at a distance from another, in a direction."""
    return centre[0] + distance * sin(radians(degrees)), centre[1] - distance * cos(radians(degrees))


def regular(corners: int, turn: float = 0.0) -> list[Point]:
    """Return the corners of a regular polygon around (0, 0); the first is ``turn`` degrees from the top, at distance 1."""
    return [around((0, 0), 1, turn + 360 * k / corners) for k in range(corners)]


def turned(points: Sequence[Point], degrees: float, scale: float = 1.0, centre: Point = (0.0, 0.0)) -> list[Point]:
    """Return points that were around (0, 0) rotated, scaled and moved around another centre."""
    c, s = scale * cos(radians(degrees)), scale * sin(radians(degrees))
    return [(centre[0] + c * x - s * y, centre[1] + s * x + c * y) for x, y in points]


def apart(first: Sequence[Point], second: Sequence[Point]) -> bool:
    """Return whether two convex polygons do not touch: a side of one separates them."""
    for polygon, other in ((first, second), (second, first)):
        for k, (x, y) in enumerate(polygon):
            dx, dy = polygon[k - 1][0] - x, polygon[k - 1][1] - y
            mine, theirs = ([dx * (q - y) - dy * (p - x) for p, q in points] for points in (polygon, other))
            if min(theirs) > max(mine) or max(theirs) < min(mine):
                return True
    return False
