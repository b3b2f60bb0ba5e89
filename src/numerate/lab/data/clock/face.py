"""Draw an analogue clock: dials, numerals and hands of several kinds, all rotated by one angle."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import cos, pi, radians, sin
from typing import TYPE_CHECKING, Any, NamedTuple

from numerate.lab.data.backgrounds import BACKGROUNDS, Colour
from numerate.lab.data.plane import Point, around, regular, turned

if TYPE_CHECKING:
    from PIL.Image import Image

    from numerate.lab.data.drawing import FontFamily

_CIRCLE = regular(32)
_FINER = 3  # supersampling: pixels drawn per pixel of the image, in each direction


class Palette(NamedTuple):
    """Colours of a clock that contrast with each other."""

    dial: Colour
    ink: Colour  # of numerals and ticks
    rim: Colour
    hands: Colour
    second: Colour


PALETTES = (
    Palette((252, 252, 249), (26, 26, 30), (34, 34, 38), (26, 26, 30), (204, 34, 40)),
    Palette((236, 242, 248), (36, 58, 92), (70, 104, 150), (30, 62, 122), (232, 92, 44)),
    Palette((246, 236, 212), (70, 46, 28), (116, 72, 40), (44, 28, 18), (168, 44, 34)),
    Palette((30, 32, 36), (238, 238, 234), (172, 178, 186), (246, 246, 242), (244, 128, 44)),
    Palette((26, 42, 76), (230, 220, 192), (196, 162, 98), (240, 230, 204), (232, 96, 74)),
    Palette((216, 236, 228), (30, 70, 62), (44, 112, 98), (22, 54, 48), (222, 86, 66)),
    Palette((250, 222, 122), (48, 46, 52), (56, 54, 60), (40, 38, 44), (190, 42, 42)),
    Palette((128, 38, 44), (248, 236, 220), (214, 184, 132), (250, 242, 230), (240, 190, 90)),
)
NUMERALS = ("arabic", "roman", "four", "ticks")
ROMAN = ("XII", "I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX", "X", "XI")
TICKS = ("lines", "dots", "hours")


def _rounded_square(degrees: float) -> Point:
    """Return the point of the curve |x|^9 + |y|^9 = 1 in a direction."""
    far = abs(sin(radians(degrees))) ** 9 + abs(cos(radians(degrees))) ** 9
    return around((0, 0), far ** (-1 / 9), degrees)


SHAPES: dict[str, list[Point]] = {  # of radius 1
    "round": regular(240),
    "square": [_rounded_square(1.5 * k) for k in range(240)],
    "octagon": turned(regular(8, 22.5), 0, 0.98 / cos(pi / 8)),
}
HANDS: dict[str, tuple[Point, ...]] = {  # right half, from tail to tip: shares of the width, and of the length
    "baton": ((0.5, 0), (0.5, 1)),
    "taper": ((0.7, 0), (0.15, 1)),
    "dauphine": ((0, 0), (0.85, 0.2), (0, 1)),
    "sword": ((0.3, 0), (0.75, 0.72), (0, 1)),
    "arrow": ((0.3, 0), (0.3, 0.72), (1.2, 0.72), (0, 1)),
}


@dataclass(frozen=True)
class Face:
    """Everything that determines the image of a clock. Lengths are relative to the radius of the dial."""

    hour: int
    minute: int
    second: int | None
    tilt: float  # of the clock, in degrees, clockwise
    numerals: str
    family: FontFamily
    bold: bool
    ticks: str
    shape: str
    rim: float
    palette: int
    hands: str
    hour_length: float
    minute_length: float
    width: float
    tail: float
    radius: float  # of the clock with its rim, relative to the side of the image
    centre: Point  # relative to the side
    ground: int
    seed: int  # of the background and the noise


def random_face(rng: random.Random, hour: int, minute: int, *, rotation: float, second_hand: float) -> Face:
    """Draw a clock that shows the given time; everything else is random."""

    def between(low: float, high: float) -> float:
        return round(rng.uniform(low, high), 3)

    tilt, shape = between(-rotation, rotation), rng.choice(("round", "round", "round", "square", "octagon"))
    # The corners of a tilted square reach further out than a circle.
    reach = max(abs(x) for x, _ in turned(SHAPES[shape], tilt))
    radius = min(between(0.36, 0.46), round(0.48 / reach, 3))
    room = 0.485 - radius * reach
    return Face(
        hour=hour,
        minute=minute,
        second=rng.randrange(60) if rng.random() < second_hand else None,
        tilt=tilt,
        numerals=rng.choices(NUMERALS, (5, 3, 2, 2))[0],
        family=rng.choice(("sans", "serif")),
        bold=rng.random() < 0.4,
        ticks=rng.choice(TICKS),
        shape=shape,
        rim=between(0.03, 0.11),
        palette=rng.randrange(len(PALETTES)),
        hands=rng.choice(tuple(HANDS)),
        hour_length=between(0.48, 0.58),
        minute_length=between(0.76, 0.9),
        width=between(0.045, 0.08),
        tail=between(0.0, 0.16),
        radius=radius,
        centre=(0.5 + between(-room, room), 0.5 + between(-room, room)),
        ground=rng.randrange(len(BACKGROUNDS)),
        seed=rng.getrandbits(32),
    )


def clock_image(face: Face, size: int) -> Image:
    """Return the image of a clock, ``size`` x ``size`` pixels."""
    from numerate.lab.data.drawing import Image, ImageDraw, add_noise, background

    side, colours = size * _FINER, PALETTES[face.palette]
    picture = background(BACKGROUNDS[face.ground], (size, size), face.seed).resize((side, side), Image.Resampling.NEAREST)
    pen, centre = ImageDraw.Draw(picture), (face.centre[0] * side, face.centre[1] * side)
    outer, radius = face.radius * side, face.radius * side * (1 - face.rim)

    def fill(corners: Sequence[Point], colour: Colour, turn: float = 0.0, scale: float = radius, **edge: Any) -> None:
        pen.polygon(turned(corners, face.tilt + turn, scale, centre), colour, **edge)

    fill(SHAPES[face.shape], colours.rim, scale=outer)
    fill(SHAPES[face.shape], colours.dial)
    alone = face.numerals == "ticks"
    for minute in range(0, 60, 5 if face.ticks == "hours" else 1):
        on_hour = minute % 5 == 0
        long, half = (0.14 if alone else 0.07, 0.01) if on_hour else (0.035, 0.004)
        if face.ticks == "dots":
            fill(_disc(0.024 if on_hour else 0.008, -0.93), colours.ink, 6 * minute)
        else:
            fill(_bar(half, half, -0.95, long - 0.95), colours.ink, 6 * minute)
    if alone:  # a wedge marks twelve
        fill(_bar(0.07, 0, -0.79, -0.65), colours.ink)
    height = round(radius * {"arabic": 0.24, "roman": 0.15, "four": 0.27, "ticks": 0}[face.numerals])
    for hour in range(0, 12 if height else 0, 3 if face.numerals == "four" else 1):
        text = ROMAN[hour] if face.numerals == "roman" else str(hour or 12)
        mask = _text(text, height, face.family, face.bold, face.tilt)
        x, y = around(centre, 0.71 * radius, face.tilt + 30 * hour)
        picture.paste(colours.ink, (round(x - mask.width / 2), round(y - mask.height / 2)), mask)
    # The hour hand moves with the minutes; the minute hand points exactly at its minute.
    hour_hand = face.hour_length, face.width * 1.35, 30 * (face.hour % 12) + face.minute / 2
    for long, wide, turn in (hour_hand, (face.minute_length, face.width, 6.0 * face.minute)):
        right = [(wide * x, -long * y if y else face.tail) for x, y in HANDS[face.hands]]
        outline = [*right, *((-x, y) for x, y in reversed(right))]
        # A thin edge separates hands that overlap.
        fill(outline, colours.hands, turn, outline=colours.dial, width=max(1, round(radius * 0.006)))
    fill(_disc(face.width * 0.95), colours.hands)
    if face.second is not None:
        for part in (_bar(0.009, 0.006, 0.2, -0.88), _disc(0.03, 0.2), _disc(0.04)):
            fill(part, colours.second, 6 * face.second)
    return add_noise(picture.reduce(_FINER), 2.0, face.seed + 1)


@lru_cache(maxsize=512)
def _text(text: str, height: int, family: FontFamily, bold: bool, turn: float) -> Image:
    """Return the ink of a text as a mask, turned clockwise."""
    from numerate.lab.data.drawing import Image, font, text_mask

    return text_mask(text, font(height, family, bold=bold)).rotate(-turn, Image.Resampling.BICUBIC, expand=True)


def _bar(half: float, other_half: float, start: float, end: float) -> list[Point]:
    """Return a bar along the vertical axis, with half its width at either end."""
    return [(-half, start), (half, start), (other_half, end), (-other_half, end)]


def _disc(radius: float, y: float = 0.0) -> list[Point]:
    return turned(_CIRCLE, 0, radius, (0, y))
