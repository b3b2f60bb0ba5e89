"""The scene_text task: find all words in an image, each with its position and text.

    Find all words. Answer with a JSON list of {"box": [x1, y1, x2, y2], "text": ...} in reading order; ...
    [{"box": [0.315, 0.041, 0.937, 0.170], "text": "PIZZA"}]

``signs`` has the drawing; ``annotations`` reads the datasets: ICDAR 2015 (Karatzas et al.,
ICDAR 2015), Total-Text (Ch'ng and Chan, ICDAR 2017, arXiv:1710.10400) and SCUT-CTW1500 (Liu et al., arXiv:1712.02170).
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

from numerate.answers.boxes import DONT_CARE
from numerate.answers.extract import Region
from numerate.answers.metrics import METRICS
from numerate.checks import check_choice, choices
from numerate.lab.data.base import Example, Split, check_pair, check_whole
from numerate.lab.data.coordinates import Coordinates, CoordinateTask
from numerate.lab.data.pictures import Picture
from numerate.lab.data.plane import Point
from numerate.lab.data.row_reader import RowReader, image_size, photo
from numerate.lab.data.scene_text.annotations import TextPhoto, photos, smallest_rectangle
from numerate.lab.data.scene_text.signs import Wall, random_wall, reading_order, render

RegionFormat = Literal["boxes", "quads"]

# What follows tells coordinates from numbers in the text of a sign, where a quotation mark is escaped.
_COORDINATES = Coordinates(re.compile(r'\d\.\d{3}(?=(?:, \d\.\d{3})*\], "text": ")'), side=1, highest=1)


@dataclass(frozen=True)
class SceneText(CoordinateTask):
    """Find every word in an image; the answer is one JSON list in reading order: rows from the top, each from the left.

    Coordinates are relative to the image's width and height, with three decimals. A box encloses the ink of a word; a
    quadrilateral has its four corners, clockwise from the top of the first letter.

    Extrapolation has 1 to 4 more words than the largest training image, and all are rotated further than any in training.

    Examples:
        >>> SceneText(words=(1, 1)).examples("train", 1)[0].answer
        '[{"box": [0.315, 0.041, 0.937, 0.170], "text": "PIZZA"}]'
    """

    words: tuple[int, int] = (2, 5)  # the fewest and the most words in a training image, within 1 to 6
    # The largest rotation of a training word in either direction, in degrees, 0 to 45; extrapolation adds 2 to 30 degrees.
    angle: int = 20
    # ``"boxes"`` gives ``{"box": [x1, y1, x2, y2], "text": "EXIT"}``; ``"quads"`` gives ``{"quad": [x1, y1, x2, y2, x3, y3, x4,
    # y4], "text": "EXIT"}``.
    form: RegionFormat = "boxes"
    size: int = 448  # longer side of the image in pixels, 224 to 2048

    name = "scene_text"
    dataset = "ICDAR2015, Total-Text or CTW1500"
    reads_with = ("form",)
    number_kind = "box"
    extractor = "boxes"
    measures = ("hmean", "precision", "recall", "spotting_hmean", "parsed")
    answer_is = "a list of boxes and texts"
    visual = True

    def __post_init__(self) -> None:
        check_choice("form", self.form, choices(RegionFormat))
        object.__setattr__(self, "words", check_pair("words", self.words, 1, 6))
        check_whole("angle", self.angle, 0, 45)
        check_whole("size", self.size, 224, 2048)

    def draw(self, rng: random.Random, split: Split) -> Wall:
        """Draw a wall with words; extrapolation has more words and larger rotations."""
        if split == "extrapolate":
            return random_wall(rng, self.size, (self.words[1] + 1, self.words[1] + 4), (self.angle + 2, self.angle + 30))
        return random_wall(rng, self.size, self.words, (0, self.angle))

    def make(self, spec: Wall | TextPhoto) -> Example:
        """Return the words of a wall, which is drawn, or of a photo of a dataset, in reading order."""
        if isinstance(spec, TextPhoto):
            picture, size = photo(spec.image), image_size(spec.image)
            words, unreadable = spec.words, spec.unreadable
        else:
            picture, size = Picture(render, (spec,)), (spec.width, spec.height)
            words, unreadable = tuple((word.quad, word.text) for word in spec.words), ()
        entries = [(self._corners(polygon, size), text) for polygon, text in words]
        entries = [entries[k] for k in reading_order([polygon for polygon, _ in words])]
        key = "box" if self.form == "boxes" else "quad"
        texts = [json.dumps(text, ensure_ascii=False) for _, text in entries]
        listed = [f'{{"{key}": [{", ".join(at)}], "text": {text}}}' for (at, _), text in zip(entries, texts, strict=True)]
        ignored = tuple(tuple(self._corners(polygon, size)) for polygon in unreadable)
        return Example(self._prompt(), f"[{', '.join(listed)}]", picture, {"unreadable": ignored})

    @property
    def coordinates(self) -> Coordinates:
        """Shares of width and height."""
        return _COORDINATES

    def content(self, spec: Wall) -> Any:
        """Return the words and their positions; ignores their appearance."""
        return spec[:3]

    def score(self, example: Example, output: str) -> dict[str, float]:
        """Return every metric of an output; unreadable words count neither when found nor when missed."""
        ignored = [Region(tuple(map(Fraction, corners)), DONT_CARE) for corners in example.meta.get("unreadable", ())]
        gold, guess = [*(self.read(example.answer) or ()), *ignored], self.read(output)
        return {name: METRICS[name](gold, guess) for name in self.measures}

    def outlines(self, text: str) -> list[Sequence[Fraction]]:
        """Return the regions that could be read."""
        return [region.corners for region in self.read(text) or () if region.corners]

    def read_files(self, path: Path, reader: RowReader) -> Mapping[Split, Sequence[TextPhoto]]:
        """Read the unpacked folder of ICDAR 2015, Total-Text or CTW1500, with images and annotations anywhere below it.

        ICDAR 2015: ``gt_img_1.txt`` for ``img_1.jpg``. Total-Text: ``poly_gt_img11.txt`` for ``img11.jpg``. CTW1500: ``0001.xml``
        for ``0001.jpg`` and ``0001001.txt`` for ``1001.jpg``. Images below a folder with "train" in its name are ``train``;
        all others are ``interpolate``. Words marked unreadable (``###``, ``#``) are not in the answer. A polygon with more
        than four corners becomes the smallest rotated rectangle around it, or its box.
        """
        rows: dict[Split, list[TextPhoto]] = {"train": [], "interpolate": []}
        for split, annotated in photos(path, reader):
            rows[split].append(annotated)
        return rows

    def _prompt(self) -> str:
        place = '"box": [x1, y1, x2, y2]' if self.form == "boxes" else '"quad": [x1, y1, x2, y2, x3, y3, x4, y4]'
        return (
            f'Find all words. Answer with a JSON list of {{{place}, "text": ...}} in reading order; coordinates are shares of '
            "the picture's width and height, with three decimals."
        )

    def _corners(self, polygon: Sequence[Point], size: tuple[int, int]) -> list[str]:
        if self.form == "boxes":
            xs, ys = zip(*polygon, strict=True)
            polygon = (min(xs), min(ys)), (max(xs), max(ys))
        elif len(polygon) != 4:
            polygon = smallest_rectangle(polygon)
        return [f"{min(1.0, max(0.0, pixel / side)):.3f}" for point in polygon for pixel, side in zip(point, size, strict=True)]
