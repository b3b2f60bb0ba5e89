"""Grounding: coloured shapes on a background, an expression that picks one of them, and the box around that one.

Real data: RefCOCO, RefCOCO+ and RefCOCOg (Yu et al., ECCV 2016, arXiv:1608.00272; Mao et al., CVPR 2016, arXiv:1511.02283).
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from numerate.answers.extract import EXTRACTORS, Box
from numerate.lab.tasks.base import Example, Split, Task
from numerate.lab.tasks.files import BadData, Reader, column, existing
from numerate.lab.tasks.grounding.scenes import (
    BACKDROPS,
    COLOURS,
    DARK,
    KINDS,
    Expression,
    Phrase,
    Scene,
    Shape,
    referents,
    render,
    words,
)
from numerate.messages import check_choice, choices

if TYPE_CHECKING:
    from PIL.Image import Image

Form = Literal["numbers", "locations"]

# Radii as shares of the picture's shorter side, of small shapes and of large ones: in training, and beyond it.
RADII = ((0.060, 0.078), (0.105, 0.135))
FAR_RADII = ((0.024, 0.029), (0.036, 0.042))

_LOCATIONS = re.compile(r"<loc(\d{4})>\s*<loc(\d{4})>\s*<loc(\d{4})>\s*<loc(\d{4})>")


class Referred(NamedTuple):
    """A row of a dataset: a picture (or where it lies), an expression, and the box ``x, y, w, h`` in pixels."""

    image: Path | Image
    expression: str
    box: tuple[float, float, float, float]


@dataclass(frozen=True)
class Grounding(Task):
    """Where is the shape that an expression means: 'the small red circle to the left of the blue square'.

    Extrapolation has 1 to 6 shapes more than training has at most, and each is smaller than any of training.

    Args:
        objects: the fewest and the most shapes of a training picture, within 3 to 12.
        form: ``"numbers"`` answers ``[x1, y1, x2, y2]`` as shares of width and height; ``"locations"`` answers
            ``<loc0123><loc0456><loc0234><loc0567>``, which are y1, x1, y2 and x2 in 1024ths, as PaliGemma writes them.
        size: of the picture's longer side, in pixels.

    Example:
        >>> example = Grounding().examples("train", 1)[0]
        >>> example.prompt.split(". ")[0], example.answer
        ('Find the pink shape', '[0.332, 0.492, 0.576, 0.656]')
        >>> Grounding(form="locations").examples("train", 1)[0].answer
        '<loc0504><loc0340><loc0671><loc0590>'
    """

    objects: tuple[int, int] = (3, 8)
    form: Form = "numbers"
    size: int = 448

    name = "grounding"
    extractor = "box"
    measures = ("acc_50", "iou", "parsed")
    visual = True

    def __post_init__(self) -> None:
        check_choice("form", self.form, choices(Form))
        object.__setattr__(self, "objects", checked_range("objects", self.objects, 3, 12))
        if not isinstance(self.size, int) or not 224 <= self.size <= 2048:
            raise ValueError(f"size={self.size!r} is out of range: expected 224 to 2048 pixels.")

    def draw(self, rng: random.Random, split: Split) -> Scene:
        """Shapes apart from each other, and an expression that only one of them fits, by any way of reading it."""
        far = split == "extrapolate"
        fewest, most = (self.objects[1] + 1, self.objects[1] + 6) if far else self.objects
        form = rng.choice(("plain", "beside", "beside", "outermost", "ranked", "sized"))
        while True:
            width, height = (round(self.size * share) for share in rng.choice(((1, 1), (1, 0.75), (0.75, 1))))
            backdrop = rng.randrange(len(BACKDROPS))
            shapes = _placed(rng, width, height, rng.randint(fewest, most), FAR_RADII if far else RADII, backdrop)
            expression = _expression(rng, form, shapes) if shapes else None
            if expression is not None:
                return Scene(width, height, shapes, expression, backdrop, rng.getrandbits(32))

    def make(self, spec: Scene | Referred) -> Example:
        """The picture, and the box of the shape that is meant."""
        if isinstance(spec, Referred):
            from numerate.lab.tasks.drawing import open_image

            image = open_image(spec.image)
            expression, (left, top, wide, high) = spec.expression, spec.box
            pixels = left, top, left + wide, top + high
        else:
            image, expression = render(spec), words(spec.expression)
            (target,) = referents(spec.expression, spec.shapes)
            pixels = spec.shapes[target].box
        sides = (image.width, image.height) * 2
        shares = [min(1.0, max(0.0, at / side)) for at, side in zip(pixels, sides, strict=True)]
        meta = {"expression": expression, "box": pixels, "size": image.size}
        return Example(self._prompt(expression), self._answer(shares), image, meta)

    def content(self, spec: Scene) -> Any:
        """The shapes and the expression; not the background."""
        return spec[:4]

    def read(self, text: str) -> Box | None:
        """The last box of a text as shares of width and height: x1, y1, x2, y2."""
        if self.form == "numbers":
            box: Box | None = EXTRACTORS["box"](text)
            return box
        found = _LOCATIONS.findall(text)
        if not found:
            return None
        y1, x1, y2, x2 = (Fraction(int(token), 1024) for token in found[-1])
        return x1, y1, x2, y2

    def read_row(self, row: dict[str, Any]) -> list[Referred]:
        """See :func:`referred`."""
        return referred(row, Path())

    def read_files(self, path: Path, reader: Reader) -> Mapping[Split, Sequence[Referred]]:
        """RefCOCO as one object a line: ``val.jsonl``, ``testA.jsonl``, ... and the images beside them or in ``images/``.

        The columns are those of ``lmms-lab/RefCOCO`` on the Hub and of the original annotations: ``file_name`` (or ``image``, a
        path), ``answer`` (or ``sentences``, ``expressions``, ``sentence``, ``expression``: one text or several, each
        of which becomes an example), and ``bbox`` as x, y, width and height in pixels. ``COCO_train2014_000000581857_16.jpg``
        is found as ``COCO_train2014_000000581857.jpg``, too. The column ``split`` or else the file's name says which rows
        are for training; all others are ``interpolate``.
        """
        files = sorted([*path.glob("*.jsonl"), *path.glob("*.jsonl.gz")]) if path.is_dir() else [path]
        if not files:
            raise BadData("no .jsonl files are here", "Expected for instance val.jsonl, and the images it names.", path)
        rows: dict[Split, list[Referred]] = {"train": [], "interpolate": []}
        for file in files:
            for line, row in reader.jsonl(file):
                with reader.row(file, line):
                    split: Split = "train" if str(row.get("split", file.stem)).startswith("train") else "interpolate"
                    rows[split] += referred(row, file.parent)
        return rows

    def _prompt(self, expression: str) -> str:
        if self.form == "locations":
            return f"detect {expression}"
        return (
            f"Find {expression}. Answer with its bounding box [x1, y1, x2, y2]: shares of the picture's width and height, "
            "with three decimals."
        )

    def _answer(self, shares: Sequence[float]) -> str:
        if self.form == "numbers":
            return f"[{', '.join(f'{share:.3f}' for share in shares)}]"
        x1, y1, x2, y2 = (min(1023, round(1024 * share)) for share in shares)
        return "".join(f"<loc{token:04d}>" for token in (y1, x1, y2, x2))


def checked_range(name: str, value: Any, low: int, high: int) -> tuple[int, int]:
    """A pair of whole numbers, the fewest and the most of something; a list, as files of settings have it, will do."""
    pair = isinstance(value, (list, tuple)) and len(value) == 2 and all(type(number) is int for number in value)
    if not pair or not low <= value[0] <= value[1] <= high:
        raise ValueError(f"{name}={value!r} is out of range: expected (fewest, most) within {low} to {high}.")
    return value[0], value[1]


def referred(row: Mapping[str, Any], folder: Path) -> list[Referred]:
    """The examples of one row of RefCOCO, one for each of its expressions; ``image`` may be a picture itself."""
    texts = next((row[name] for name in ("answer", "sentences", "expressions", "sentence", "expression") if name in row), None)
    if texts is None:
        raise BadData("no column has an expression", f"Expected answer, sentences or expression among {', '.join(row)}.")
    texts = [text["raw"] if isinstance(text, Mapping) else text for text in ([texts] if isinstance(texts, str) else texts)]
    if not texts or not all(isinstance(text, str) and text.strip() for text in texts):
        raise BadData(f"the expressions are {texts!r}", "Expected one text or several, none of them empty.")
    box = column(dict(row), "bbox")
    numbers = isinstance(box, Sequence) and len(box) == 4 and all(type(side) in (int, float) for side in box)
    if not numbers or not (box[2] > 0 and box[3] > 0 and abs(sum(box)) < 1e9):
        raise BadData(f"bbox is {box!r}", "Expected x, y, width and height in pixels, the last two above 0.")
    left, top, wide, high = map(float, box)
    image = row.get("image")
    if image is None or isinstance(image, str | Mapping):
        name = image.get("path") if isinstance(image, Mapping) else image
        image = _found(folder, str(name or column(dict(row), "file_name")))
    return [Referred(image, text.strip(), (left, top, wide, high)) for text in texts]


def _found(folder: Path, name: str) -> Path:
    """An image of the folder; COCO's own name for it is the one without the number of the annotation."""
    for candidate in (name, re.sub(r"_\d+(\.\w+)$", r"\1", name)):
        for place in (folder, folder / "images"):
            if (place / candidate).is_file():
                return place / candidate
    return existing(folder / name)


def _placed(
    rng: random.Random, width: int, height: int, count: int, radii: tuple[tuple[float, float], ...], backdrop: int
) -> tuple[Shape, ...]:
    """Shapes of few kinds and colours, so that many are alike in part; none if they do not fit."""
    side = min(width, height)
    kinds = rng.sample(sorted(KINDS), rng.randint(2, 4))
    colours = rng.sample(sorted(set(COLOURS) - (DARK if BACKDROPS[backdrop].dark else set())), rng.randint(2, 4))
    shapes: list[Shape] = []
    for _ in range(count):
        size = rng.choice(("small", "large"))
        radius = round(side * rng.uniform(*radii[size == "large"]), 1)
        shape = Shape(rng.choice(kinds), rng.choice(colours), size, 0.0, 0.0, radius, rng.randint(-12, 12))
        for _ in range(50):
            x, y = rng.uniform(radius, width - radius), rng.uniform(radius, height - radius)
            moved = shape._replace(x=round(x, 1), y=round(y, 1))
            left, top, right, bottom = moved.box
            inside = left > 5 and top > 5 and right < width - 5 and bottom < height - 5
            if inside and all(moved.apart(other, 6) for other in shapes):
                shapes.append(moved)
                break
        else:
            return ()
    return tuple(shapes)


def _expression(rng: random.Random, form: str, shapes: tuple[Shape, ...]) -> Expression | None:
    """An expression that means exactly one of the shapes and says no more than is needed, or None where few tries find none."""
    for _ in range(20):
        target, anchor = rng.sample(shapes, 2)
        expression = _candidate(rng, form, target, anchor)
        like = sum(expression.target.fits(shape) for shape in shapes)
        telling = like > expression.rank if expression.relation else like == 1
        sized = [phrase for phrase in (expression.target, expression.anchor) if phrase is not None and phrase.size is not None]
        telling = telling and all(_contrasts(phrase, shapes) for phrase in sized)
        if telling and len(referents(expression, shapes)) == len(referents(expression, shapes, loose=True)) == 1:
            return expression
    return None


def _contrasts(phrase: Phrase, shapes: Sequence[Shape]) -> bool:
    """Whether there is a shape of which all but the size that is said is true."""
    return any(phrase._replace(size=None).fits(shape) and not phrase.fits(shape) for shape in shapes)


def _candidate(rng: random.Random, form: str, target: Shape, anchor: Shape) -> Expression:
    phrase = _phrase(rng, target)
    if form == "beside":
        relation = rng.choice(("left", "right", "above", "below"))
        return Expression(phrase, relation, anchor=_phrase(rng, anchor)._replace(kind=anchor.kind))
    if form == "outermost":
        return Expression(phrase, rng.choice(("leftmost", "rightmost", "topmost", "bottommost")))
    if form == "ranked":
        return Expression(phrase, rng.choice(("leftmost", "rightmost", "topmost", "bottommost")), rank=rng.randint(2, 3))
    if form == "sized":
        return Expression(phrase._replace(kind=target.kind, size=None), rng.choice(("largest", "smallest")))
    return Expression(phrase)


def _phrase(rng: random.Random, shape: Shape) -> Phrase:
    """Some of what can be said of a shape, and at least one thing."""
    said = rng.choice(((1, 1, 1), (1, 1, 0), (1, 1, 0), (1, 0, 0), (1, 0, 1), (0, 1, 0), (0, 1, 1)))
    kind, colour, size = (
        value if tell else None for value, tell in zip((shape.kind, shape.colour, shape.size), said, strict=True)
    )
    return Phrase(kind, colour, size)
