r"""How well boxes and quadrilaterals fit: intersection over union, and precision and recall of text found in an image.

With I, U the areas of intersection and union of two shapes, and m the pairs of a one-to-one matching:

    iou          I / U
    precision    m / d                        d the regions given, without those in a don't-care region
    recall       m / g                        g the gold regions, without the don't-care regions
    hmean        2 m / (d + g)                the harmonic mean of the two

A gold region and a given one may be matched if their IoU is at least 0.5 and, for ``read=True``, their texts agree but
for case and outer space. Of all one-to-one matchings the largest counts, so that the order of the regions does not
matter. (The scripts of the ICDAR contests take pairs in the order of the files, and ask for more than 0.5; the two
differ only where regions overlap one another, or at 0.5 itself.)

Gold regions with the text ``###`` are unreadable: don't care. They need not be found, and a region given that is left
over and lies by more than half in one of them is not counted.

Two boxes are compared exactly. Quadrilaterals need shapely; one whose sides cross has the area that its sides enclose.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from numerate.answers.extract import Region

DONT_CARE = "###"

Corners = Sequence[Fraction]
Point = tuple[Fraction, Fraction]


def iou(first: Corners, second: Corners) -> float:
    """Intersection over union of two shapes: boxes of two opposite corners, or quadrilaterals of four.

    A shape without area overlaps with its equal alone.

    Example:
        >>> iou([0, 0, 10, 10], [5, 0, 15, 10]) == 1 / 3
        True
        >>> iou([0, 0, 10, 10], [10, 10, 0, 0]), iou([0, 0, 10, 10], [20, 0, 30, 10])
        (1.0, 0.0)
        >>> iou([0, 0, 10, 10], [0, 0, 10, 0, 10, 10, 0, 10])
        1.0
    """
    a, b = _points(first), _points(second)
    if a == b:
        return float(bool(a))
    area_a, area_b, shared = _areas(a, b)
    union = area_a + area_b - shared
    return min(float(shared / union), 1.0) if union else 0.0


@dataclass(frozen=True)
class RegionCounts:
    """How many regions of one image, or of many, were matched. Counts of images are added, ratios are not averaged.

    Example:
        >>> counts = RegionCounts(matched=1, gold=2, given=1) + RegionCounts(matched=0, gold=0, given=1)
        >>> counts.precision, counts.recall, counts.hmean
        (0.5, 0.5, 0.5)
    """

    matched: int = 0
    gold: int = 0
    given: int = 0

    def __add__(self, other: RegionCounts) -> RegionCounts:
        """The counts of both."""
        return RegionCounts(self.matched + other.matched, self.gold + other.gold, self.given + other.given)

    @property
    def precision(self) -> float:
        """The share of the regions given that are right; where none was given, 1 if there was none to find, else 0."""
        return self.matched / self.given if self.given else float(not self.gold)

    @property
    def recall(self) -> float:
        """The share of the gold regions that were found; 1 if there was none to find."""
        return self.matched / self.gold if self.gold else 1.0

    @property
    def hmean(self) -> float:
        """The harmonic mean of precision and recall."""
        return 2 * self.matched / (self.gold + self.given) if self.gold + self.given else 1.0


def count_regions(gold: Sequence[Region], given: Sequence[Region], *, read: bool = False, threshold: float = 0.5) -> RegionCounts:
    """Match the regions given for one image with its gold regions, one to one.

    Args:
        gold: the regions of the image; those with the text ``###`` are don't care.
        given: the regions of the answer.
        read: whether the texts must agree too (end-to-end); else only the places count (detection).
        threshold: the least IoU of a match.

    Example:
        >>> gold = [Region((0, 0, 10, 10), "EXIT"), Region((20, 0, 30, 10), "###")]
        >>> given = [Region((0, 0, 10, 9), "exit"), Region((21, 1, 29, 9), "?"), Region((50, 0, 60, 10), "7")]
        >>> count_regions(gold, given, read=True)
        RegionCounts(matched=1, gold=1, given=2)
    """
    wanted = [region for region in gold if region.text != DONT_CARE]
    blurred = [_points(region.corners) for region in gold if region.text == DONT_CARE]
    ignorable = [any(_inside(_points(region.corners), blur) for blur in blurred) for region in given]
    fits = [[_fits(target, region, read, threshold) for region in given] for target in wanted]
    matched = _largest_matching(fits, ignorable)
    counted = sum(number in matched or not ignored for number, ignored in enumerate(ignorable))
    return RegionCounts(len(matched), len(wanted), counted)


def pool_regions(
    golds: Iterable[Sequence[Region]], answers: Iterable[Sequence[Region] | None], *, read: bool = False, threshold: float = 0.5
) -> RegionCounts:
    """The counts of many images; an image without an answer (None) has its gold regions to find, and none was given.

    Example:
        >>> gold = [Region((0, 0, 10, 10), "EXIT")]
        >>> pool_regions([gold, gold], [gold, None]).recall
        0.5
    """
    pairs = zip(golds, answers, strict=True)
    counts = (count_regions(gold, given or (), read=read, threshold=threshold) for gold, given in pairs)
    return sum(counts, start=RegionCounts())


def _fits(gold: Region, given: Region, read: bool, threshold: float) -> bool:
    if read and (gold.text is None or given.text is None or _folded(gold.text) != _folded(given.text)):
        return False
    return iou(gold.corners, given.corners) >= threshold


def _folded(text: str) -> str:
    return text.strip().casefold()


def _largest_matching(fits: list[list[bool]], ignorable: list[bool]) -> set[int]:
    """The regions given that are matched, as many as can be; of several such sets, one with the fewest ignorable ones."""
    if not any(map(any, fits)):
        return set()
    from scipy.optimize import linear_sum_assignment  # type: ignore[import-not-found,import-untyped,unused-ignore]

    allowed = np.array(fits)  # [G, D]
    # Where a match is worth what the region given is, the matching worth most is also one of the largest.
    worth = allowed * (2 - np.array(ignorable, int))
    rows, columns = linear_sum_assignment(worth, maximize=True)
    return set(columns[allowed[rows, columns]].tolist())


def _inside(shape: list[Point], blur: list[Point]) -> bool:
    """Whether more than half of a shape lies in a don't-care region."""
    area, _, shared = _areas(shape, blur)
    return bool(shared * 2 > area)


def _points(corners: Corners) -> list[Point]:
    """The corners of a shape in order; those of a box from its lower left one on, whichever two it was given by."""
    points = list(zip(corners[0::2], corners[1::2], strict=True))
    return _rectangle(points) if len(points) == 2 else points


def _bounds(points: list[Point]) -> tuple[Point, Point]:
    xs, ys = zip(*points, strict=True)
    return (min(xs), min(ys)), (max(xs), max(ys))


def _rectangle(points: list[Point]) -> list[Point]:
    (x1, y1), (x2, y2) = _bounds(points)
    return [(x1, y1), (x2, y1), (x2, y2), (x1, y2)]


def _areas(first: list[Point], second: list[Point]) -> tuple[Any, Any, Any]:
    """The areas of two shapes and of their intersection, in a unit of their own; 1, 1, 0 where they lie apart."""
    if not first or not second:
        return 1, 1, 0
    (ax1, ay1), (ax2, ay2) = _bounds(first)
    (bx1, by1), (bx2, by2) = _bounds(second)
    width, height = min(ax2, bx2) - max(ax1, bx1), min(ay2, by2) - max(ay1, by1)
    if width <= 0 or height <= 0:
        return 1, 1, 0
    if first == _rectangle(first) and second == _rectangle(second):
        return Fraction((ax2 - ax1) * (ay2 - ay1)), Fraction((bx2 - bx1) * (by2 - by1)), Fraction(width * height)
    return _polygon_areas(first, second)


def _polygon_areas(first: list[Point], second: list[Point]) -> tuple[float, float, float]:
    try:
        from shapely import Polygon, make_valid  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError as error:
        raise ImportError(
            "shapely is not installed: quadrilaterals cannot be compared without it. Use pip install shapely, or give boxes "
            "[x1, y1, x2, y2]."
        ) from error
    (left, low), (right, high) = _bounds(first + second)
    # Ratios of areas do not change when the axes are scaled, and a float holds the result whatever the coordinates.
    a, b = (
        make_valid(Polygon([(float((x - left) / (right - left)), float((y - low) / (high - low))) for x, y in points]))
        for points in (first, second)
    )
    return a.area, b.area, a.intersection(b).area
