"""Read the annotations of ICDAR 2015, Total-Text and CTW1500."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

from numerate.lab.data.base import Split
from numerate.lab.data.plane import Point
from numerate.lab.data.row_reader import BadData, RowReader

Polygon = tuple[Point, ...]

_IMAGES = {".jpg", ".jpeg", ".png", ".gif", ".bmp"}
_NOT_READ = {"###", "#"}  # marks of unreadable words
_TOTAL_TEXT = re.compile(
    r"x:\s*\[\[(?P<x>[-\d\s]*)\]\],\s*y:\s*\[\[(?P<y>[-\d\s]*)\]\],\s*ornt:\s*\[.*?\],\s*transcriptions:\s*(?P<texts>\[.*\])\s*",
    re.DOTALL,
)


class TextPhoto(NamedTuple):
    """The path of an image, its words with polygons in pixels, and the polygons of unreadable words."""

    image: Path
    words: tuple[tuple[Polygon, str], ...]
    unreadable: tuple[Polygon, ...] = ()


def photos(path: Path, reader: RowReader) -> Iterator[tuple[Split, TextPhoto]]:
    """Yield every annotated image below a folder; with ``skip_bad``, an image with one bad line is skipped entirely."""
    if not path.is_dir():
        raise BadData("is not a folder", "Expected the folder with the images and their annotations.", path)
    files = sorted(file for file in path.rglob("*") if file.is_file())
    images: dict[str, list[Path]] = {}
    for file in files:
        if file.suffix.lower() in _IMAGES:
            images.setdefault(_key(file), []).append(file)
    named = re.compile(r"(poly_)?gt_img_?\d+|\d+")
    annotations = [file for file in files if file.suffix in (".txt", ".xml") and named.fullmatch(file.stem)]
    if not annotations:
        expected = "Expected gt_img_1.txt (ICDAR 2015), poly_gt_img11.txt (Total-Text), or 0001.xml and 0001001.txt (CTW1500)."
        raise BadData("has no annotations", expected, path)
    for file in annotations:
        before = len(reader.skipped)
        regions = list(_xml(file, reader) if file.suffix == ".xml" else _txt(file, reader))
        if len(reader.skipped) > before:
            continue
        with reader.row(file, None):
            image = _image_of(file, images, path)
            words = tuple((polygon, text) for polygon, text in regions if text not in _NOT_READ)
            unreadable = tuple(polygon for polygon, text in regions if text in _NOT_READ)
            yield ("train" if _part(file, path) == "train" else "interpolate"), TextPhoto(image, words, unreadable)


def smallest_rectangle(polygon: Sequence[Point]) -> Polygon:
    """Return the corners of the smallest rectangle around a polygon, clockwise from the top of the first letter.

    The first half of the polygon's points is the upper edge of the text, in reading direction.

    Examples:
        >>> arch = [(0, 2), (4, 0), (8, 2), (8, 4), (4, 2), (0, 4)]
        >>> smallest_rectangle(arch)
        ((0.0, 0.0), (8.0, 0.0), (8.0, 4.0), (0.0, 4.0))
    """
    import shapely  # type: ignore[import-not-found,import-untyped,unused-ignore]

    rectangle = shapely.normalize(shapely.oriented_envelope(shapely.MultiPoint(polygon)))  # counter-clockwise where y goes down
    ring = [(x, y) for x, y in (shapely.get_coordinates(rectangle)[::-1].round(6) + 0.0).tolist()]
    if len(ring) < 5:  # all points on a line
        return ring[0], ring[-1], ring[-1], ring[0]
    corners = ring[:4]  # the first corner is also the last
    (x1, y1), (x2, y2) = polygon[0], polygon[max(1, len(polygon) // 2 - 1)]
    sides = pairwise([*corners, corners[0]])
    onwards = [((b[0] - a[0]) * (x2 - x1) + (b[1] - a[1]) * (y2 - y1)) / (math.dist(a, b) or 1) for a, b in sides]
    start = onwards.index(max(onwards))
    return tuple(corners[start:] + corners[:start])


def _txt(file: Path, reader: RowReader) -> Iterator[tuple[Polygon, str]]:
    """Yield the words of a text file; a record of Total-Text may continue on the next line."""
    records: list[tuple[int, str]] = []
    for line, text in reader.lines(file):
        if records and records[-1][1].lstrip().startswith("x:") and not text.lstrip().startswith("x:"):
            records[-1] = records[-1][0], f"{records[-1][1]}\n{text}"
        elif text.strip():
            records.append((line, text))
    for line, record in records:
        with reader.row(file, line):
            yield _total_text(record) if record.lstrip().startswith("x:") else _row(record)


def _row(record: str) -> tuple[Polygon, str]:
    """``x1,y1,..,x4,y4,text`` of ICDAR 2015, where the text may have commas, or ``x1,y1,..,x14,y14,####text`` of CTW1500."""
    numbers, marked, text = record.partition(",####")
    parts = numbers.split(",")
    if not marked:
        if len(parts) < 9:
            raise BadData(f"{record!r} has {len(parts)} values", "Expected x1,y1,x2,y2,x3,y3,x4,y4 and the text.")
        parts, text = parts[:8], ",".join(parts[8:])
    return _polygon(parts), text.strip()


def _total_text(record: str) -> tuple[Polygon, str]:
    match = _TOTAL_TEXT.fullmatch(record.strip())
    if match is None:
        expected = "Expected x: [[..]], y: [[..]], ornt: [u'c'], transcriptions: [u'..']."
        raise BadData(f"{record!r} is not a record of Total-Text", expected)
    xs, ys = match["x"].split(), match["y"].split()
    if len(xs) != len(ys):
        raise BadData(f"there are {len(xs)} x and {len(ys)} y", "Expected as many of each.")
    try:
        texts = ast.literal_eval(match["texts"])
    except (SyntaxError, ValueError):
        raise BadData(f"the transcription {match['texts']!r} cannot be read", "Expected a list such as [u'the'].") from None
    return _polygon([part for pair in zip(xs, ys, strict=True) for part in pair]), ",".join(map(str, texts)).strip() or "#"


def _xml(file: Path, reader: RowReader) -> Iterator[tuple[Polygon, str]]:
    """Yield the words of a training file of CTW1500."""
    with reader.row(file, None):
        try:
            root = ElementTree.parse(file).getroot()
        except ElementTree.ParseError as error:
            raise BadData(f"broken XML ({error})", "The file may be truncated: download it again.") from None
        for box in root.iter("box"):
            text, points = box.findtext("label"), box.findtext("segs")
            if points is None:
                raise BadData("a box has no segs", "Expected <segs>x1,y1,..,x14,y14</segs>.")
            yield _polygon(points.strip().split(",")), (text or "#").strip()


def _polygon(numbers: Sequence[str]) -> Polygon:
    if len(numbers) < 6 or len(numbers) % 2:
        raise BadData(f"a polygon has {len(numbers)} numbers", "Expected x and y of three or more points.")
    values = [float(number) for number in numbers]
    if not all(map(math.isfinite, values)):
        raise BadData(f"a polygon has the numbers {', '.join(numbers)}", "Expected finite ones.")
    return tuple(zip(values[0::2], values[1::2], strict=True))


def _key(file: Path) -> str:
    """Return the key that an image shares with its annotation: ``img_1``, ``img11``, or a number."""
    name = file.stem.removeprefix("poly_").removeprefix("gt_")
    return str(int(name)) if name.isdecimal() else name.lower()


def _part(file: Path, root: Path) -> str:
    """Return ``train`` or ``test`` if a folder name below ``root`` contains it, else an empty string."""
    folders = "/".join([root.name, *file.relative_to(root).parts[:-1]]).lower()
    return "train" if "train" in folders else "test" if "test" in folders else ""


def _image_of(file: Path, images: dict[str, list[Path]], root: Path) -> Path:
    candidates = images.get(_key(file), [])
    if len(candidates) > 1:  # img_1 of training and img_1 of test
        candidates = [image for image in candidates if _part(image, root) == _part(file, root)]
    if len(candidates) != 1:
        problem = "has no image" if not candidates else f"may belong to {' or '.join(map(str, candidates))}"
        expected = "Expected one image of the same name, for example img_1.jpg for gt_img_1.txt."
        raise BadData(f"the annotation {problem}", expected)
    return candidates[0]
