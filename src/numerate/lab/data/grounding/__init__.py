"""The grounding task: find the box of the shape that an expression refers to.

    Find the circle. Answer with its bounding box [x1, y1, x2, y2]: ...       [0.217, 0.785, 0.440, 0.952]

``scenes`` has the shapes, the expressions and the drawing. Real data: RefCOCO, RefCOCO+ and
RefCOCOg (Yu et al., ECCV 2016, arXiv:1608.00272; Mao et al., CVPR 2016, arXiv:1511.02283).
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal, NamedTuple

from numerate.answers.extract import EXTRACTORS, Box
from numerate.checks import check_choice, choices
from numerate.lab.data.base import Example, Split, check_pair, check_whole
from numerate.lab.data.coordinates import Coordinates, CoordinateTask
from numerate.lab.data.grounding.scenes import Scene, random_scene, referents, render, words
from numerate.lab.data.pictures import Picture
from numerate.lab.data.row_reader import BadData, RowReader, column, existing, image_size, photo

BoxFormat = Literal["numbers", "thousandths", "locations"]
BoxWording = Literal["full", "bare"]

_LOCATIONS = re.compile(r"<loc(\d{4})>\s*<loc(\d{4})>\s*<loc(\d{4})>\s*<loc(\d{4})>")
_COORDINATES = {
    "numbers": Coordinates(re.compile(r"\d\.\d{3}"), side=1, highest=1),
    "thousandths": Coordinates(re.compile(r"\d+"), side=1000, highest=1000, integers=True),
    "locations": Coordinates(re.compile(r"(?<=<loc)\d{4}(?=>)"), side=1024, highest=1023),
}


class Referred(NamedTuple):
    """A row of a dataset: the path of an image, an expression, and the box ``x, y, w, h`` in pixels."""

    image: Path
    expression: str
    box: tuple[float, float, float, float]


@dataclass(frozen=True)
class Grounding(CoordinateTask):
    """Find the shape that an expression refers to: 'the small red circle to the left of the blue square'.

    Extrapolation has 1 to 6 more shapes than the largest training image, and each is smaller than any in training.

    Examples:
        >>> example = Grounding().examples("train", 1)[0]
        >>> example.prompt.split(". ")[0], example.answer
        ('Find the circle', '[0.217, 0.785, 0.440, 0.952]')
        >>> Grounding(form="locations").examples("train", 1)[0].answer
        '<loc0804><loc0222><loc0975><loc0451>'
    """

    objects: tuple[int, int] = (3, 8)  # the fewest and the most shapes in a training image, within 1 to 12
    # ``"numbers"`` answers ``[x1, y1, x2, y2]`` relative to width and height; ``"thousandths"`` the same as integers up to 1000,
    # as many models write them; ``"locations"`` answers ``<loc0123><loc0456><loc0234><loc0567>``: y1, x1, y2 and x2 in 1024ths,
    # as PaliGemma writes them.
    form: BoxFormat = "numbers"
    size: int = 448  # longer side of the image in pixels, 224 to 2048
    # ``"full"`` says how to answer: a sentence, or ``detect EXPRESSION`` with ``"locations"``; ``"bare"`` is the expression
    # alone, which costs small models less.
    wording: BoxWording = "full"

    name = "grounding"
    dataset = "RefCOCO, RefCOCO+ or RefCOCOg"
    reads_with = ("form", "wording")
    number_kind = "box"
    extractor = "box"
    measures = ("acc_50", "iou", "parsed")
    answer_is = "a box of four numbers"
    visual = True

    def __post_init__(self) -> None:
        check_choice("form", self.form, choices(BoxFormat))
        check_choice("wording", self.wording, choices(BoxWording))
        object.__setattr__(self, "objects", check_pair("objects", self.objects, 1, 12))
        check_whole("size", self.size, 224, 2048)

    def draw(self, rng: random.Random, split: Split) -> Scene:
        """Draw a scene; extrapolation has more and smaller shapes."""
        far = split == "extrapolate"
        objects = (self.objects[1] + 1, self.objects[1] + 6) if far else self.objects
        return random_scene(rng, self.size, objects, far=far)

    def make(self, spec: Scene | Referred) -> Example:
        """Return the box of a shape in a scene, which is drawn, or in an image of a dataset."""
        if isinstance(spec, Referred):
            picture, size = photo(spec.image), image_size(spec.image)
            expression, (left, top, wide, high) = spec.expression, spec.box
            pixels = left, top, left + wide, top + high
        else:
            picture, size, expression = Picture(render, (spec,)), (spec.width, spec.height), words(spec.expression)
            (target,) = referents(spec.expression, spec.shapes)
            pixels = spec.shapes[target].box
        shares = [min(1.0, max(0.0, pixel / side)) for pixel, side in zip(pixels, size * 2, strict=True)]
        meta = {"expression": expression, "box": pixels, "size": size}
        return Example(self._prompt(expression), self._answer(shares), picture, meta)

    @property
    def coordinates(self) -> Coordinates:
        """Shares of width and height, thousandths or 1024ths."""
        return _COORDINATES[self.form]

    def content(self, spec: Scene) -> Any:
        """Return the shapes and the expression; ignores the background."""
        return spec[:4]

    def read(self, text: str) -> Box | None:
        """Return the last box in a text as x1, y1, x2, y2 relative to width and height."""
        if self.form != "locations":
            box: Box | None = EXTRACTORS["box"](text)
            if box is None or self.form == "numbers":
                return box
            x1, y1, x2, y2 = (side / 1000 for side in box)
            return x1, y1, x2, y2
        boxes = _LOCATIONS.findall(text)
        if not boxes:
            return None
        y1, x1, y2, x2 = (Fraction(int(token), 1024) for token in boxes[-1])
        return x1, y1, x2, y2

    def outlines(self, text: str) -> list[Sequence[Fraction]]:
        """Return the box."""
        box = self.read(text)
        return [] if box is None else [box]

    def read_files(self, path: Path, reader: RowReader) -> Mapping[Split, Sequence[Referred]]:
        """Read RefCOCO as JSONL: ``val.jsonl``, ``testA.jsonl``, ... with the images beside them or in ``images/``.

        The columns are those of ``lmms-lab/RefCOCO`` on the Hub and of the original annotations: ``file_name`` (or ``image``, a
        path), ``answer`` (or ``sentences``, ``expressions``, ``sentence``, ``expression``: one text or several, one example
        per text), and ``bbox`` as x, y, width and height in pixels. ``COCO_train2014_000000581857_16.jpg`` is also found as
        ``COCO_train2014_000000581857.jpg``. The column ``split``, else the file name, marks the training rows; all others
        are ``interpolate``.
        """
        files = sorted([*path.glob("*.jsonl"), *path.glob("*.jsonl.gz")]) if path.is_dir() else [path]
        if not files:
            raise BadData("has no .jsonl files", "Expected for example val.jsonl, and the images it names.", path)
        rows: dict[Split, list[Referred]] = {"train": [], "interpolate": []}
        for file in files:
            for line, row in reader.jsonl(file):
                with reader.row(file, line):
                    split: Split = "train" if str(row.get("split", file.stem)).startswith("train") else "interpolate"
                    rows[split] += referred(row, file.parent)
        return rows

    def _prompt(self, expression: str) -> str:
        if self.wording == "bare":
            return expression
        if self.form == "locations":
            return f"detect {expression}"
        unit = "thousandths" if self.form == "thousandths" else "shares"
        with_decimals = "" if self.form == "thousandths" else ", with three decimals"
        return (
            f"Find {expression}. Answer with its bounding box [x1, y1, x2, y2]: {unit} of the picture's width and height"
            f"{with_decimals}."
        )

    def _answer(self, shares: Sequence[float]) -> str:
        if self.form == "numbers":
            return f"[{', '.join(f'{share:.3f}' for share in shares)}]"
        if self.form == "thousandths":
            return f"[{', '.join(str(round(1000 * share)) for share in shares)}]"
        x1, y1, x2, y2 = (min(1023, round(1024 * share)) for share in shares)
        return "".join(f"<loc{token:04d}>" for token in (y1, x1, y2, x2))


def referred(row: dict[str, Any], folder: Path) -> list[Referred]:
    """Read a row of RefCOCO: one example per expression."""
    texts = next((row[name] for name in ("answer", "sentences", "expressions", "sentence", "expression") if name in row), None)
    if texts is None:
        raise BadData("has no column with an expression", f"Expected answer, sentences or expression among {', '.join(row)}.")
    texts = [text["raw"] if isinstance(text, Mapping) else text for text in ([texts] if isinstance(texts, str) else texts)]
    if not texts or not all(isinstance(text, str) and text.strip() for text in texts):
        raise BadData(f"the expressions are {texts!r}", "Expected one text or several, none of them empty.")
    box = column(row, "bbox")
    numbers = isinstance(box, Sequence) and len(box) == 4 and all(type(side) in (int, float) for side in box)
    if not numbers or not (box[2] > 0 and box[3] > 0 and abs(sum(box)) < 1e9):
        raise BadData(f"bbox is {box!r}", "Expected x, y, width and height in pixels, the last two above 0.")
    left, top, wide, high = map(float, box)
    image = row.get("image")
    name = image.get("path") if isinstance(image, Mapping) else image
    path = _find_image(folder, str(name or column(row, "file_name")))
    return [Referred(path, text.strip(), (left, top, wide, high)) for text in texts]


def _find_image(folder: Path, name: str) -> Path:
    """Return the path of an image; COCO's file name lacks the annotation number at the end."""
    for candidate in (name, re.sub(r"_\d+(\.\w+)$", r"\1", name)):
        for place in (folder, folder / "images"):
            if (place / candidate).is_file():
                return place / candidate
    return existing(folder / name)
