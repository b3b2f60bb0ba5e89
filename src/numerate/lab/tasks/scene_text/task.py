"""Scene text: words on walls and signs, turned and seen from the side; where each of them is, and what it says.

Real data: ICDAR 2015 (Karatzas et al., ICDAR 2015), Total-Text (Ch'ng and Chan, ICDAR 2017, arXiv:1710.10400) and SCUT-CTW1500
(Liu et al., arXiv:1712.02170).
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

from numerate.answers.boxes import DONT_CARE
from numerate.answers.extract import Region
from numerate.answers.metrics import METRICS
from numerate.lab.tasks.base import Example, Split, Task
from numerate.lab.tasks.files import Reader
from numerate.lab.tasks.grounding.task import checked_range
from numerate.lab.tasks.scene_text.files import Photo, photos, smallest_rectangle
from numerate.lab.tasks.scene_text.signs import (
    GROUNDS,
    WORDS,
    Look,
    Point,
    Wall,
    Word,
    apart,
    aspect,
    drawn_look,
    grown,
    moved,
    placed,
    plate_of,
    render,
)
from numerate.messages import check_choice, choices

Form = Literal["boxes", "quads"]


@dataclass(frozen=True)
class SceneText(Task):
    """Every word of a picture with its place, as one JSON list in reading order: rows from the top, each from the left.

    Coordinates are shares of the picture's width and height, with three decimals. A box goes around the ink of a word; a
    quadrilateral has its four corners, clockwise from where the word begins at its top.

    Extrapolation has 1 to 4 words more than training has at most, and all of them are turned further than any of training.

    Args:
        words: the fewest and the most words of a training picture, within 1 to 6.
        angle: the most that a word of training is turned either way, in degrees, 0 to 45; in extrapolation, it is turned by
            2 to 30 degrees more.
        form: ``"boxes"`` gives ``{"box": [x1, y1, x2, y2], "text": "EXIT"}``; ``"quads"`` gives
            ``{"quad": [x1, y1, x2, y2, x3, y3, x4, y4], "text": "EXIT"}``.
        size: of the picture's longer side, in pixels.

    Example:
        >>> SceneText(words=(1, 1)).examples("train", 1)[0].answer
        '[{"box": [0.657, 0.456, 0.883, 0.545], "text": "BUS"}]'
    """

    words: tuple[int, int] = (2, 5)
    angle: int = 20
    form: Form = "boxes"
    size: int = 448

    name = "scene_text"
    extractor = "boxes"
    measures = ("hmean", "precision", "recall", "spotting_hmean", "parsed")
    visual = True

    def __post_init__(self) -> None:
        check_choice("form", self.form, choices(Form))
        object.__setattr__(self, "words", checked_range("words", self.words, 1, 6))
        for name, low, high, unit in (("angle", 0, 45, "degrees"), ("size", 224, 2048, "pixels")):
            value = getattr(self, name)
            if not isinstance(value, int) or not low <= value <= high:
                raise ValueError(f"{name}={value!r} is out of range: expected {low} to {high} {unit}.")

    def draw(self, rng: random.Random, split: Split) -> Wall:
        """Words apart from each other, in colours that stand out from what is behind them."""
        far = split == "extrapolate"
        fewest, most = (self.words[1] + 1, self.words[1] + 4) if far else self.words
        angles = (self.angle + 2, self.angle + 30) if far else (0, self.angle)
        while True:
            width, height = (round(self.size * share) for share in rng.choice(((1, 1), (1, 0.75), (0.75, 1))))
            ground = rng.randrange(len(GROUNDS))
            words = _placed(rng, width, height, rng.randint(fewest, most), angles, ground)
            if words:
                order = reading_order([word.quad for word, _ in words])
                ordered, looks = zip(*(words[k] for k in order), strict=True)
                return Wall(width, height, ordered, looks, ground, rng.getrandbits(32))

    def make(self, spec: Wall | Photo) -> Example:
        """The picture, and its words in reading order."""
        if isinstance(spec, Photo):
            from numerate.lab.tasks.drawing import open_image

            image, words, unreadable = open_image(spec.image), spec.words, spec.unreadable
        else:
            image, words, unreadable = render(spec), tuple((word.quad, word.text) for word in spec.words), ()
        entries = [(self._corners(polygon, image.size), text) for polygon, text in words]
        entries = [entries[k] for k in reading_order([polygon for polygon, _ in words])]
        key = "box" if self.form == "boxes" else "quad"
        listed = [
            f'{{"{key}": [{", ".join(numbers)}], "text": {json.dumps(text, ensure_ascii=False)}}}' for numbers, text in entries
        ]
        ignored = tuple(tuple(self._corners(polygon, image.size)) for polygon in unreadable)
        return Example(self._prompt(), f"[{', '.join(listed)}]", image, {"unreadable": ignored})

    def content(self, spec: Wall) -> Any:
        """The words and where they are; not their looks."""
        return spec[:3]

    def score(self, example: Example, output: str) -> dict[str, float]:
        """Every measure of an output; words that are unreadable in the picture need not be found, and may be."""
        ignored = [Region(tuple(map(Fraction, corners)), DONT_CARE) for corners in example.meta.get("unreadable", ())]
        gold, guess = [*(self.read(example.answer) or ()), *ignored], self.read(output)
        return {name: METRICS[name](gold, guess) for name in self.measures}

    def read_files(self, path: Path, reader: Reader) -> Mapping[Split, Sequence[Photo]]:
        """The folder of ICDAR 2015, Total-Text or CTW1500, images and annotations below it as they were unpacked.

        ICDAR 2015: ``gt_img_1.txt`` for ``img_1.jpg``. Total-Text: ``poly_gt_img11.txt`` for ``img11.jpg``. CTW1500: ``0001.xml``
        for ``0001.jpg`` and ``0001001.txt`` for ``1001.jpg``. Pictures below a folder with "train" in its name are for training;
        all others are ``interpolate``. Words marked unreadable (``###``, ``#``) are not in the answer. A polygon of more
        than four corners gives the smallest rectangle around it, turned as fits best, or its box.
        """
        rows: dict[Split, list[Photo]] = {"train": [], "interpolate": []}
        for split, photo in photos(path, reader):
            rows[split].append(photo)
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
        return [f"{min(1.0, max(0.0, at / side)):.3f}" for point in polygon for at, side in zip(point, size, strict=True)]


def reading_order(polygons: Sequence[Sequence[Point]]) -> list[int]:
    """Rows from the top, each from the left. A row has those whose middle is about as high as that of its highest one.

    Example:
        >>> box = [(0, 0), (9, 0), (9, 4), (0, 4)]
        >>> reading_order([[(x + dx, y + dy) for x, y in box] for dx, dy in ((0, 20), (30, 0), (10, 2))])
        [2, 1, 0]
    """
    tops, feet = ([pick(y for _, y in polygon) for polygon in polygons] for pick in (min, max))
    sides = [min(x for x, _ in polygon) for polygon in polygons]
    highs, middles = [b - a for a, b in zip(tops, feet, strict=True)], [(a + b) / 2 for a, b in zip(tops, feet, strict=True)]
    rest = sorted(range(len(polygons)), key=lambda k: (middles[k], sides[k]))
    order: list[int] = []
    while rest:
        first = rest[0]
        row = [k for k in rest if middles[k] - middles[first] <= 0.6 * max(highs[k], highs[first])]
        order += sorted(row, key=lambda k: sides[k])
        rest = [k for k in rest if k not in row]
    return order


def _placed(
    rng: random.Random, width: int, height: int, count: int, angles: tuple[float, float], ground: int
) -> list[tuple[Word, Look]]:
    """Words with room around each; none if they do not fit."""
    words: list[tuple[Word, Look]] = []
    rooms: list[Sequence[Point]] = []
    side = min(width, height)
    crowd = min(1.0, (5 / count) ** 0.5)
    for _ in range(count):
        look = drawn_look(rng, ground)
        text = _text(rng, [word.text for word, _ in words])
        wide = aspect(text, look)
        high = min(side * rng.uniform(0.07, 0.14), 0.6 * side / wide) * crowd
        angle = rng.choice((-1, 1)) * rng.uniform(*angles)
        lean = rng.uniform(-0.16, 0.16), rng.uniform(-0.25, 0.25)
        for attempt in range(60):  # smaller, if it does not fit
            scale = high * (1 - attempt / 100)
            quad = placed(scale, scale * wide, angle, *lean)
            room = grown(plate_of(quad), 0.04, 0.1) if look.plate else grown(quad, 0.06, 0.2)
            x, y = (_somewhere(rng, [point[axis] for point in room], (width, height)[axis]) for axis in (0, 1))
            room = moved(room, x, y)
            if all(apart(room, other) for other in rooms):
                words.append((Word(text, moved(quad, x, y)), look))
                rooms.append(room)
                break
        else:
            return []
    return words


def _somewhere(rng: random.Random, reach: Sequence[float], side: int) -> float:
    """How far to move what reaches so far, that it lies within a side of the picture."""
    return rng.uniform(4 - min(reach), side - 4 - max(reach))


def _text(rng: random.Random, taken: Sequence[str]) -> str:
    """A word or, one time in four, something with a number, that is not there yet."""
    while True:
        form = rng.choice(("{}", "{}", "{}%", "{}m", "No.{}", "{}.50", "{}:30"))
        number = rng.randint(1, 23) if ":" in form else rng.randint(2, 999) if form == "{}" else rng.randint(2, 90)
        text = rng.choice(WORDS) if rng.random() < 0.75 else form.format(number)
        if text not in taken:
            return text
