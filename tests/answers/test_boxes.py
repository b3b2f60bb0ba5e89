"""Intersection over union, and one-to-one matching of regions, against shapes with known areas and all matchings."""

from __future__ import annotations

import builtins
import random
from fractions import Fraction
from itertools import permutations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from numerate.answers.boxes import RegionCounts, count_regions, iou
from numerate.answers.extract import Region

SIDES = st.integers(-6, 6).map(Fraction)
BOXES = st.tuples(SIDES, SIDES, SIDES, SIDES)
QUADS = st.tuples(*[SIDES] * 8)
SHAPES = BOXES | QUADS
REGIONS = st.lists(st.builds(Region, BOXES | st.just(()), st.sampled_from(["a", "A", "b", "###", None])), max_size=5)
DIAMOND = [5, 0, 10, 5, 5, 10, 0, 5]


def quad(x1: Any, y1: Any, x2: Any, y2: Any) -> list[Any]:
    return [x1, y1, x2, y1, x2, y2, x1, y2]


def at(x: int, text: str | None = "", width: int = 10) -> Region:
    return Region((Fraction(x), Fraction(0), Fraction(x + width), Fraction(10)), text)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ([0, 0, 10, 10], [0, 0, 10, 10], 1),
        ([0, 0, 10, 10], [10, 0, 0, 10], 1),
        ([0, 0, 10, 10], [5, 0, 15, 10], 1 / 3),
        ([0, 0, 10, 10], [5, 5, 15, 15], 1 / 7),
        ([0, 0, 10, 10], [10, 0, 20, 10], 0),
        ([3, 4, 3, 4], [3, 4, 3, 4], 1),
        ([3, 4, 3, 9], [3, 4, 3, 5], 0),
        ([0, 0, 10, 10], [3, 4, 3, 4], 0),
        ([0, 0, 10, 10], [], 0),
        ([], [], 0),
        ([0, 0, 10, 10], quad(5, 0, 15, 10), 1 / 3),
        (quad(0, 0, 10, 10), quad(0, 0, 10, 5), 0.5),
        ([0, 0, 10, 10], DIAMOND, 0.5),
        (DIAMOND, DIAMOND[2:] + DIAMOND[:2], 1),
        (DIAMOND, [0, 5, 5, 10, 10, 5, 5, 0], 1),
        (DIAMOND, [5, 0, 10, 5, 5, 5, 0, 5], 0.5),
        ([0, 0, 10, 10], [0, 0, 10, 0, 10, 10, 10, 10], 0.5),
        ([0, 0, 10, 10], [0, 0, 10, 10, 10, 0, 0, 10], 0.5),
        ([0, 0, 10, 10], [0, 0, 5, 5, 10, 10, 0, 0], 0),
        ([0, 0, 10**400, 10**400], [0, 0, 10**400, 10**400 // 2], 0.5),
        ([5 * 10**400, 0, 10**401, 5 * 10**400, 5 * 10**400, 10**401, 0, 5 * 10**400], [0, 0, 10**401, 10**401], 0.5),
        ([Fraction(side, 10**400) for side in DIAMOND], [0, 0, Fraction(1, 10**399), Fraction(1, 10**399)], 0.5),
    ],
)
def test_iou(first: list[Any], second: list[Any], expected: float) -> None:
    assert iou(first, second) == pytest.approx(expected, rel=1e-12)
    assert iou(second, first) == pytest.approx(expected, rel=1e-12)


def test_iou_of_boxes_is_exact() -> None:
    assert iou([0, 0, 3, Fraction(1, 3)], [0, 0, 3, Fraction(2, 3)]) == 0.5
    assert iou([0, 0, 10**9, 10**9], [0, 0, 10**9, 10**9 - 1]) == 1 - 1e-9


@settings(max_examples=150)
@given(SHAPES, SHAPES)
def test_iou_of_any_shapes(first: tuple[Fraction, ...], second: tuple[Fraction, ...]) -> None:
    value = iou(first, second)
    assert 0 <= value <= 1
    assert iou(second, first) == pytest.approx(value, abs=1e-12)
    assert iou(first, first) == 1.0
    moved = [[3 * side - 100 for side in shape] for shape in (first, second)]
    assert iou(*moved) == pytest.approx(value, abs=1e-9)


def test_quadrilaterals_without_shapely(monkeypatch: pytest.MonkeyPatch) -> None:
    original = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name == "shapely":
            raise ImportError(name)
        return original(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    assert iou([0, 0, 10, 10], quad(0, 0, 10, 5)) == 0.5
    with pytest.raises(ImportError, match="shapely is not installed: .* pip install shapely, or use boxes"):
        iou([0, 0, 10, 10], DIAMOND)


@pytest.mark.parametrize(
    ("gold", "predicted", "places", "texts"),
    [
        ([], [], (0, 0, 0), (0, 0, 0)),
        ([], [at(0, "a")], (0, 0, 1), (0, 0, 1)),
        ([at(0, "Exit")], [at(1, " EXIT ")], (1, 1, 1), (1, 1, 1)),
        ([at(0, "Exit")], [at(1, "Exits")], (1, 1, 1), (0, 1, 1)),
        ([at(0, "a")], [at(0, None)], (1, 1, 1), (0, 1, 1)),
        ([at(0, "a")], [Region((), "a")], (0, 1, 1), (0, 1, 1)),
        # 5 of 15, 10 of 20, and a little less than 10 of 20
        ([at(0, "a")], [at(5, "a")], (0, 1, 1), (0, 1, 1)),
        ([at(0, "a", 20)], [at(0, "a", 10)], (1, 1, 1), (1, 1, 1)),
        ([at(0, "a", 2001)], [at(0, "a", 1000)], (0, 1, 1), (0, 1, 1)),
        # found twice, and two for one
        ([at(0, "a")], [at(0, "a"), at(1, "a")], (1, 1, 2), (1, 1, 2)),
        ([at(0, "a"), at(1, "a")], [at(0, "a")], (1, 2, 1), (1, 2, 1)),
        # greedy in this order would give the first gold region the second one's only match
        ([at(0, "a", 20), at(4, "a", 20)], [at(2, "a", 20), at(-5, "a", 20)], (2, 2, 2), (2, 2, 2)),
        # don't care: covered by more than half, by half, found or not, and beside a gold region
        ([at(0, "###")], [at(4, "x")], (0, 0, 0), (0, 0, 0)),
        ([at(0, "###")], [at(5, "x")], (0, 0, 1), (0, 0, 1)),
        ([at(0, "a"), at(0, "###")], [at(0, "a"), at(1, "x")], (1, 1, 1), (1, 1, 1)),
        ([at(0, "a"), at(-5, "###", 10)], [at(-1, "a"), at(1, "a")], (1, 1, 1), (1, 1, 1)),
        ([at(0, "a"), at(-5, "###", 10)], [at(-1, "a")], (1, 1, 1), (1, 1, 1)),
        ([at(0, "a")], [at(0, "###")], (1, 1, 1), (0, 1, 1)),
    ],
)
def test_counts(gold: list[Region], predicted: list[Region], places: tuple[int, ...], texts: tuple[int, ...]) -> None:
    assert count_regions(gold, predicted) == RegionCounts(*places)
    assert count_regions(gold, predicted, read=True) == RegionCounts(*texts)


def test_the_preferred_match_leaves_what_is_not_counted() -> None:
    # Both fit the gold region; the first lies in the don't-care region too, and is not counted if left over.
    gold, predicted = [at(0, "a"), at(-7, "###", 12)], [at(-1, "a"), at(1, "a")]
    for order in (predicted, predicted[::-1]):
        assert count_regions(gold, order) == RegionCounts(1, 1, 1)


def test_quadrilaterals_are_matched() -> None:
    diamond = Region(tuple(map(Fraction, DIAMOND)), "a")
    bow = Region(tuple(map(Fraction, (0, 0, 10, 10, 10, 0, 0, 10))), "a")
    assert count_regions([diamond], [at(0, "a")], read=True, threshold=0.49) == RegionCounts(1, 1, 1)
    assert count_regions([diamond, bow], [bow, diamond], read=True) == RegionCounts(2, 2, 2)
    assert count_regions([diamond._replace(text="###")], [at(4, "a", 2)]) == RegionCounts(0, 0, 0)


@pytest.mark.parametrize(
    ("counts", "shares"),
    [
        (RegionCounts(2, 4, 3), [2 / 3, 0.5, 4 / 7]),
        (RegionCounts(0, 0, 0), [1, 1, 1]),
        (RegionCounts(0, 0, 2), [0, 1, 0]),
        (RegionCounts(0, 2, 0), [0, 0, 0]),
    ],
)
def test_shares(counts: RegionCounts, shares: list[float]) -> None:
    assert [counts.precision, counts.recall, counts.hmean] == pytest.approx(shares)


def test_images_are_pooled_by_their_counts() -> None:
    images = [([at(0, "a")], [at(0, "a")]), ([at(0, "a"), at(20, "b"), at(40, "c")], [at(0, "x")]), ([at(0, "a")], [])]
    for read, matched in ((False, 2), (True, 1)):
        counts = [count_regions(*image, read=read) for image in images]
        assert sum(counts, start=RegionCounts()) == RegionCounts(matched, 5, 2)


def _all_matchings(gold: list[Region], predicted: list[Region], read: bool) -> int:
    """The largest one-to-one matching, by trying all of them."""
    gold = [region for region in gold if region.text != "###"]
    few, many = sorted([gold, predicted], key=len)

    def fits(a: Region, b: Region) -> bool:
        same = a.text is not None and b.text is not None and a.text.lower() == b.text.lower()
        return iou(a.corners, b.corners) >= 0.5 and (same or not read)

    return max(sum(map(fits, few, chosen)) for chosen in permutations(many, len(few)))


@pytest.mark.parametrize("read", [False, True])
@given(gold=REGIONS, predicted=REGIONS, seed=st.integers(0, 99))
def test_the_largest_matching_in_any_order(read: bool, gold: list[Region], predicted: list[Region], seed: int) -> None:
    counts = count_regions(gold, predicted, read=read)
    assert counts.matched == _all_matchings(gold, predicted, read)
    assert counts.matched <= min(counts.gold, counts.predicted)
    assert counts.predicted <= len(predicted)
    mixed = [random.Random(seed).sample(regions, len(regions)) for regions in (gold, predicted)]
    assert count_regions(*mixed, read=read) == counts
