"""Scenes of coloured shapes, expressions that refer to one of them, and their images."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from numerate.lab.data.backgrounds import BACKGROUNDS, Colour
from numerate.lab.data.plane import Point, regular, turned

if TYPE_CHECKING:
    from PIL.Image import Image

COLOURS: dict[str, Colour] = {
    "red": (214, 45, 48),
    "orange": (243, 138, 28),
    "yellow": (248, 210, 48),
    "green": (44, 158, 75),
    "blue": (38, 102, 214),
    "purple": (132, 66, 186),
    "pink": (245, 135, 185),
    "brown": (128, 82, 48),
    "black": (42, 42, 46),
}
DARK = {"black", "brown", "purple", "blue", "green"}  # hard to see on a dark background

# Radii relative to the shorter side, of small and of large shapes: in training, and in extrapolation.
RADII = ((0.060, 0.078), (0.105, 0.135))
FAR_RADII = ((0.024, 0.029), (0.036, 0.042))

_STAR = (point for a, (x, y) in zip(regular(5), regular(5, 36), strict=True) for point in (a, (0.45 * x, 0.45 * y)))
_ARM = ((0.34, -0.94), (0.34, -0.34), (0.94, -0.34))  # a quarter of a cross
KINDS: dict[str, Sequence[Point]] = {  # outlines around (0, 0), of about the same size
    "circle": turned(regular(96), 0, 0.9),
    "square": turned(regular(4, 45), 0, 1.1),
    "triangle": turned(regular(3), 0, 1.1, (0, 0.2)),
    "diamond": [(0.8 * x, 1.08 * y) for x, y in regular(4)],
    "hexagon": regular(6),
    "star": turned([*_STAR], 0, 1.08, (0, 0.08)),
    "cross": [point for turn in (0, 90, 180, 270) for point in turned(_ARM, turn)],
}


class Shape(NamedTuple):
    """A shape: its appearance, its centre and radius in pixels, and its rotation in degrees."""

    kind: str
    colour: str
    size: str
    x: float
    y: float
    radius: float
    turn: int

    def outline(self, share: float = 1.0) -> list[Point]:
        """Return its corners in the image, scaled by ``share`` around the centre."""
        return [(self.x + share * x, self.y + share * y) for x, y in _outline(self.kind, self.turn, self.radius)]

    @property
    def box(self) -> tuple[float, float, float, float]:
        """Left, top, right and bottom in pixels."""
        left, top, right, bottom = _reach(self.kind, self.turn, self.radius)
        return self.x + left, self.y + top, self.x + right, self.y + bottom

    def apart(self, other: Shape, gap: float) -> bool:
        """Return whether the boxes of two shapes are at least ``gap`` apart."""
        a, b = self.box, other.box
        return a[2] + gap < b[0] or b[2] + gap < a[0] or a[3] + gap < b[1] or b[3] + gap < a[1]


@lru_cache(maxsize=4096)
def _outline(kind: str, turn: int, radius: float) -> list[Point]:
    return turned(KINDS[kind], turn, radius)


@lru_cache(maxsize=4096)
def _reach(kind: str, turn: int, radius: float) -> tuple[float, float, float, float]:
    xs, ys = zip(*_outline(kind, turn, radius), strict=True)
    return min(xs), min(ys), max(xs), max(ys)


class Phrase(NamedTuple):
    """A description of a shape; None for a property that is not mentioned."""

    kind: str | None = None
    colour: str | None = None
    size: str | None = None

    def fits(self, shape: Shape) -> bool:
        """Return whether the shape has all mentioned properties."""
        looks = self.kind in (None, shape.kind) and self.colour in (None, shape.colour)
        return looks and self.size in (None, shape.size)


class Expression(NamedTuple):
    """A phrase, and the relation that singles out one of the shapes it fits.

    ``relation`` is empty; ``largest`` or ``smallest``; or a direction (``left``, ``right``, ``above``, ``below``), in which the
    shape lies from ``anchor`` or, without one, is the ``rank``-th of a row.
    """

    target: Phrase
    relation: str = ""
    anchor: Phrase | None = None
    rank: int = 1


class Scene(NamedTuple):
    """Everything in an image: its size, the shapes, the expression, the background and the seed of its noise."""

    width: int
    height: int
    shapes: tuple[Shape, ...]
    expression: Expression
    ground: int
    seed: int


# Axis of a direction, and whether smaller coordinates come first.
_SIDES = {"left": (0, True), "above": (1, True), "right": (0, False), "below": (1, False)}
_EDGES = {"left": "left", "above": "top", "right": "right", "below": "bottom"}


def words(expression: Expression) -> str:
    """Return the expression in English.

    Examples:
        >>> words(Expression(Phrase("circle", "red", "small"), "left", Phrase("square", "blue")))
        'the small red circle to the left of the blue square'
        >>> words(Expression(Phrase("star"), "left")), words(Expression(Phrase("star"), "above", rank=2))
        ('the leftmost star', 'the second star from the top')
    """
    target, relation, anchor, rank = expression
    said = " ".join(word for word in (target.size, target.colour, target.kind or "shape") if word)
    if anchor is not None:
        between = f"to the {relation} of" if relation in ("left", "right") else relation
        return f"the {said} {between} {words(Expression(anchor))}"
    if rank > 1:
        return f"the {('second', 'third')[rank - 2]} {said} from the {_EDGES[relation]}"
    relation = f"{_EDGES[relation]}most" if relation in _EDGES else relation
    return " ".join(word for word in ("the", relation, said) if word)


def referents(expression: Expression, shapes: Sequence[Shape], *, loose: bool = False) -> list[int]:
    """Return the indices of the shapes that the expression refers to.

    Strict reading: a shape is left of another if all of it is; shapes in a row are ordered by both edges and the centre.
    Loose reading: the centre need only lie left of the other shape's right edge; shapes in a row are ordered by their centres.
    An expression is clear if both readings give the same single shape.
    """
    target, relation, anchor, rank = expression
    fitting = [k for k, shape in enumerate(shapes) if target.fits(shape)]
    if not relation:
        return fitting
    if anchor is not None:
        anchors = [shape for shape in shapes if anchor.fits(shape)]
        if len(anchors) != 1:
            return []
        return [k for k in fitting if shapes[k] != anchors[0] and _beside(shapes[k], anchors[0], relation, loose)]
    if relation in ("largest", "smallest"):
        order = sorted(fitting, key=lambda k: shapes[k].radius, reverse=relation == "largest")
        sizes = [shapes[k].radius for k in order]
        clear = len(sizes) < 2 or max(sizes[:2]) > 1.2 * min(sizes[:2])
        return order[:1] if clear or loose else order
    order = sorted(fitting, key=lambda k: _middle(shapes[k], relation))
    if loose:
        return order[rank - 1 : rank]
    apart = all(_ahead(shapes[a], shapes[b], relation) for a, b in pairwise(order))
    return order[rank - 1 : rank] if apart else []


def _middle(shape: Shape, direction: str) -> float:
    axis, upwards = _SIDES[direction]
    return (shape.x, shape.y)[axis] * (1 if upwards else -1)


def _beside(shape: Shape, anchor: Shape, direction: str, loose: bool) -> bool:
    axis, upwards = _SIDES[direction]
    if loose:
        middle = (shape.x, shape.y)[axis]
        return middle < anchor.box[axis + 2] if upwards else middle > anchor.box[axis]
    return shape.box[axis + 2] <= anchor.box[axis] if upwards else shape.box[axis] >= anchor.box[axis + 2]


def _ahead(first: Shape, second: Shape, direction: str) -> bool:
    """Return whether ``first`` comes clearly before ``second``, by both edges and by the centre."""
    axis, upwards = _SIDES[direction]
    sign = 1 if upwards else -1
    gaps = [sign * (second.box[side] - first.box[side]) for side in (axis, axis + 2)]
    return min(*gaps, _middle(second, direction) - _middle(first, direction)) > 6 + (first.radius + second.radius) / 4


def random_scene(rng: random.Random, size: int, objects: tuple[int, int], *, far: bool) -> Scene:
    """Draw shapes that do not touch, and an expression that fits exactly one of them under every reading."""
    form = rng.choice(("plain", "beside", "beside", "ordered", "ordered", "sized") if objects[1] > 1 else ("plain",))
    while True:
        width, height = (round(size * share) for share in rng.choice(((1, 1), (1, 0.75), (0.75, 1))))
        ground = rng.randrange(len(BACKGROUNDS))
        shapes = _random_shapes(rng, width, height, rng.randint(*objects), FAR_RADII if far else RADII, ground)
        expression = _random_expression(rng, form, shapes) if shapes else None
        if expression is not None:
            return Scene(width, height, shapes, expression, ground, rng.getrandbits(32))


def _random_shapes(
    rng: random.Random, width: int, height: int, count: int, radii: tuple[tuple[float, float], ...], ground: int
) -> tuple[Shape, ...]:
    """Draw shapes of few kinds and colours, so that many share a property; empty if they do not fit."""
    side = min(width, height)
    kinds = rng.sample(sorted(KINDS), rng.randint(2, 4))
    colours = rng.sample(sorted(set(COLOURS) - (DARK if BACKGROUNDS[ground].dark else set())), rng.randint(2, 4))
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


def _random_expression(rng: random.Random, form: str, shapes: tuple[Shape, ...]) -> Expression | None:
    """Draw an expression that fits exactly one shape and has no redundant words; None if twenty tries fail."""
    for _ in range(20):
        target, anchor = rng.sample(shapes, 2) if len(shapes) > 1 else shapes * 2
        expression = _candidate(rng, form, target, anchor)
        like = sum(expression.target.fits(shape) for shape in shapes)
        needed = like > expression.rank if expression.relation else like == 1
        sized = [phrase for phrase in (expression.target, expression.anchor) if phrase is not None and phrase.size is not None]
        needed = needed and all(_contrasts(phrase, shapes) for phrase in sized)
        if needed and len(referents(expression, shapes)) == len(referents(expression, shapes, loose=True)) == 1:
            return expression
    return None


def _contrasts(phrase: Phrase, shapes: Sequence[Shape]) -> bool:
    """Return whether some shape fits the phrase in everything except its size."""
    return any(phrase._replace(size=None).fits(shape) and not phrase.fits(shape) for shape in shapes)


def _candidate(rng: random.Random, form: str, target: Shape, anchor: Shape) -> Expression:
    phrase = _phrase(rng, target)
    if form == "beside":
        return Expression(phrase, rng.choice(tuple(_SIDES)), anchor=_phrase(rng, anchor)._replace(kind=anchor.kind))
    if form == "ordered":
        return Expression(phrase, rng.choice(tuple(_SIDES)), rank=rng.choice((1, 1, 2, 3)))
    if form == "sized":
        return Expression(phrase._replace(kind=target.kind, size=None), rng.choice(("largest", "smallest")))
    return Expression(phrase)


def _phrase(rng: random.Random, shape: Shape) -> Phrase:
    """Draw a description of the shape with at least one property."""
    kind, colour, size = rng.choice(((1, 1, 1), (1, 1, 0), (1, 1, 0), (1, 0, 0), (1, 0, 1), (0, 1, 0), (0, 1, 1)))
    return Phrase(shape.kind if kind else None, shape.colour if colour else None, shape.size if size else None)


def render(scene: Scene) -> Image:
    """Return the image of a scene."""
    from numerate.lab.data.drawing import add_noise, background, fill

    image = background(BACKGROUNDS[scene.ground], (scene.width, scene.height), scene.seed)
    for shape in scene.shapes:
        colour = COLOURS[shape.colour]
        fill(image, [shape.outline()], tuple(round(0.72 * part) for part in colour))
        fill(image, [shape.outline(1 - min(0.12, 2.2 / shape.radius))], colour)
    return add_noise(image, 2.0, scene.seed + 1)
