r"""Overlap of boxes and quadrilaterals, and precision and recall of text regions in an image.

With I, U the areas of intersection and union of two shapes, H the area of the smallest box around both, and m the number of
pairs of a one-to-one matching:

    iou          I / U
    giou         (I / U + U / H) / 2          boxes only
    precision    m / d                        d the number of predicted regions, without those in a don't-care region
    recall       m / g                        g the number of gold regions, without the don't-care regions
    hmean        2 m / (d + g)                the harmonic mean of the two

A gold region and a prediction can be matched if their IoU is at least 0.5 and, with ``read=True``, their texts are equal,
ignoring case and surrounding space. The maximum one-to-one matching is used, so that the order of the regions does not matter.
(The scripts of the ICDAR contests match greedily in file order and require more than 0.5; results differ only if regions overlap
each other, or at exactly 0.5.)

Gold regions with the text ``###`` are unreadable (don't care). They are optional, and an unmatched prediction with more than
half of its area in one of them is ignored.

Boxes are compared exactly. Quadrilaterals need shapely; the area of a self-intersecting one is the area it encloses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from numerate.answers.extract import Region

DONT_CARE = "###"

Corners = Sequence[Fraction]
Corner = tuple[Fraction, Fraction]


def iou(first: Corners, second: Corners) -> float:
    """Return the intersection over union of two shapes: boxes (two opposite corners) or quadrilaterals (four corners).

    A shape without area overlaps only with an equal shape.

    Examples:
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


def giou(first: Corners, second: Corners) -> float:
    """Return the generalized IoU of two boxes (Rezatofighi et al. 2019), scaled from [-1, 1] to [0, 1].

    Examples:
        >>> giou([0, 0, 10, 10], [10, 0, 20, 10]), giou([0, 0, 10, 10], [30, 0, 40, 10])
        (0.5, 0.25)
    """
    a, b = _points(first), _points(second)
    if a == b:
        return 1.0
    area_a, area_b, shared = _areas(a, b)
    union = area_a + area_b - shared
    (left, low), (right, high) = _bounds(a + b)
    hull = (right - left) * (high - low)
    return float(((shared / union if union else 0) + union / hull) / 2) if hull else 0.0


@dataclass(frozen=True)
class RegionCounts:
    """Counts of matched regions in one or more images. Add the counts of images instead of averaging their ratios.

    Examples:
        >>> counts = RegionCounts(matched=1, gold=2, predicted=1) + RegionCounts(matched=0, gold=0, predicted=1)
        >>> counts.precision, counts.recall, counts.hmean
        (0.5, 0.5, 0.5)
    """

    matched: int = 0
    gold: int = 0
    predicted: int = 0

    def __add__(self, other: RegionCounts) -> RegionCounts:
        """Return the sum of the counts."""
        return RegionCounts(self.matched + other.matched, self.gold + other.gold, self.predicted + other.predicted)

    @property
    def precision(self) -> float:
        """The share of the predicted regions that are correct; without predictions, 1 if there are no gold regions, else 0."""
        return self.matched / self.predicted if self.predicted else float(not self.gold)

    @property
    def recall(self) -> float:
        """The share of the gold regions that were found; 1 if there are none."""
        return self.matched / self.gold if self.gold else 1.0

    @property
    def hmean(self) -> float:
        """The harmonic mean of precision and recall."""
        return 2 * self.matched / (self.gold + self.predicted) if self.gold + self.predicted else 1.0


def count_regions(
    gold: Sequence[Region], predicted: Sequence[Region], *, read: bool = False, threshold: float = 0.5
) -> RegionCounts:
    """Match the predicted regions of one image with its gold regions, one to one.

    Args:
        gold: the regions of the image; those with the text ``###`` are don't care.
        predicted: the predicted regions.
        read: whether the texts must match (end-to-end), or only the positions (detection).
        threshold: minimum IoU of a match.

    Examples:
        >>> gold = [Region((0, 0, 10, 10), "EXIT"), Region((20, 0, 30, 10), "###")]
        >>> predicted = [Region((0, 0, 10, 9), "exit"), Region((21, 1, 29, 9), "?"), Region((50, 0, 60, 10), "7")]
        >>> count_regions(gold, predicted, read=True)
        RegionCounts(matched=1, gold=1, predicted=2)
    """
    targets = [region for region in gold if region.text != DONT_CARE]
    unreadable = [_points(region.corners) for region in gold if region.text == DONT_CARE]
    ignorable = [any(_inside(_points(region.corners), other) for other in unreadable) for region in predicted]
    fits = [[_fits(target, region, read, threshold) for region in predicted] for target in targets]
    matched = _largest_matching(fits, ignorable)
    counted = sum(number in matched or not ignored for number, ignored in enumerate(ignorable))
    return RegionCounts(len(matched), len(targets), counted)


def _fits(gold: Region, predicted: Region, read: bool, threshold: float) -> bool:
    if read and (gold.text is None or predicted.text is None or _folded(gold.text) != _folded(predicted.text)):
        return False
    return iou(gold.corners, predicted.corners) >= threshold


def _folded(text: str) -> str:
    return text.strip().casefold()


def _largest_matching(fits: list[list[bool]], ignorable: list[bool]) -> set[int]:
    """Return the matched predictions of a maximum matching with as few ignorable predictions as possible."""
    if not any(map(any, fits)):
        return set()
    from scipy.optimize import linear_sum_assignment  # type: ignore[import-not-found,import-untyped,unused-ignore]

    allowed = np.array(fits)  # [G, D]
    # With score 2 per match and 1 per ignorable match, the matching with the highest score is a maximum matching.
    scores = allowed * (2 - np.array(ignorable, int))
    rows, columns = linear_sum_assignment(scores, maximize=True)
    return set(columns[allowed[rows, columns]].tolist())


def _inside(shape: list[Corner], region: list[Corner]) -> bool:
    """Whether more than half of a shape is inside a don't-care region."""
    area, _, shared = _areas(shape, region)
    return bool(shared * 2 > area)


def _points(corners: Corners) -> list[Corner]:
    """Return the corners of a shape in order; a box starts at the smallest x and y."""
    points = list(zip(corners[0::2], corners[1::2], strict=True))
    return _rectangle(points) if len(points) == 2 else points


def _bounds(points: list[Corner]) -> tuple[Corner, Corner]:
    xs, ys = zip(*points, strict=True)
    return (min(xs), min(ys)), (max(xs), max(ys))


def _rectangle(points: list[Corner]) -> list[Corner]:
    (x1, y1), (x2, y2) = _bounds(points)
    return [(x1, y1), (x2, y1), (x2, y2), (x1, y2)]


def _areas(first: list[Corner], second: list[Corner]) -> tuple[Any, Any, Any]:
    """Return the areas of two shapes and of their intersection, up to a common factor; 1, 1, 0 if either is missing."""
    if not first or not second:
        return 1, 1, 0
    (ax1, ay1), (ax2, ay2) = _bounds(first)
    (bx1, by1), (bx2, by2) = _bounds(second)
    zero = Fraction(0)
    width, height = max(zero, min(ax2, bx2) - max(ax1, bx1)), max(zero, min(ay2, by2) - max(ay1, by1))
    if first == _rectangle(first) and second == _rectangle(second):
        return Fraction((ax2 - ax1) * (ay2 - ay1)), Fraction((bx2 - bx1) * (by2 - by1)), Fraction(width * height)
    return _polygon_areas(first, second) if width and height else (1, 1, 0)


def _polygon_areas(first: list[Corner], second: list[Corner]) -> tuple[float, float, float]:
    try:
        from shapely import Polygon, make_valid  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError as error:
        raise ImportError(
            "shapely is not installed: expected it for quadrilaterals. Run pip install shapely, or use boxes [x1, y1, x2, y2]."
        ) from error
    (left, low), (right, high) = _bounds(first + second)
    # Scaling the axes to [0, 1] keeps ratios of areas, and coordinates of any size become floats.
    a, b = (
        make_valid(Polygon([(float((x - left) / (right - left)), float((y - low) / (high - low))) for x, y in points]))
        for points in (first, second)
    )
    return a.area, b.area, a.intersection(b).area
