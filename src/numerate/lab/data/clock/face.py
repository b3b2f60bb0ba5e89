"""Draw an analogue clock: faces, numerals and hands of many kinds, all rotated by one angle."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import cos, pi, radians, sin
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from PIL.Image import Image, Resampling
    from PIL.ImageDraw import ImageDraw

    from numerate.lab.data.drawing import Backdrop, Colour, FontFamily

Point = tuple[float, float]

_FINER = 3  # supersampling: pixels drawn per pixel of the image, in each direction
_CIRCLE = tuple((cos(pi * k / 12), sin(pi * k / 12)) for k in range(24))


class Palette(NamedTuple):
    """Colours of a clock that contrast with each other."""

    face: Colour
    ink: Colour  # of numerals and ticks
    rim: Colour
    hour: Colour
    minute: Colour
    second: Colour


PALETTES: tuple[Palette, ...] = (
    Palette((252, 252, 249), (26, 26, 30), (34, 34, 38), (26, 26, 30), (26, 26, 30), (204, 34, 40)),
    Palette((252, 252, 249), (60, 64, 72), (200, 204, 210), (30, 62, 122), (30, 62, 122), (232, 92, 44)),
    Palette((246, 236, 212), (70, 46, 28), (116, 72, 40), (44, 28, 18), (44, 28, 18), (168, 44, 34)),
    Palette((30, 32, 36), (238, 238, 234), (172, 178, 186), (246, 246, 242), (246, 246, 242), (244, 128, 44)),
    Palette((26, 42, 76), (230, 220, 192), (196, 162, 98), (240, 230, 204), (240, 230, 204), (232, 96, 74)),
    Palette((216, 236, 228), (30, 70, 62), (44, 112, 98), (22, 54, 48), (22, 54, 48), (222, 86, 66)),
    Palette((250, 226, 226), (104, 40, 62), (198, 104, 122), (88, 28, 54), (88, 28, 54), (34, 116, 138)),
    Palette((250, 222, 122), (48, 46, 52), (56, 54, 60), (40, 38, 44), (40, 38, 44), (190, 42, 42)),
    Palette((228, 232, 236), (44, 52, 62), (132, 140, 150), (24, 30, 38), (24, 30, 38), (18, 110, 192)),
    Palette((200, 158, 108), (58, 34, 16), (94, 56, 28), (44, 24, 12), (44, 24, 12), (250, 242, 224)),
    Palette((36, 74, 56), (240, 232, 206), (198, 168, 98), (246, 238, 214), (246, 238, 214), (240, 176, 66)),
    Palette((250, 250, 246), (40, 44, 52), (38, 120, 178), (40, 44, 52), (200, 48, 52), (90, 96, 104)),
    Palette((236, 242, 248), (36, 58, 92), (70, 104, 150), (36, 58, 92), (52, 120, 190), (224, 92, 50)),
    Palette((128, 38, 44), (248, 236, 220), (214, 184, 132), (250, 242, 230), (250, 242, 230), (240, 190, 90)),
)
WALLS: tuple[tuple[Colour, Colour], ...] = (  # a colour, and the end of its gradient
    ((244, 243, 240), (212, 214, 218)),
    ((226, 220, 208), (190, 178, 160)),
    ((188, 206, 214), (140, 166, 182)),
    ((206, 216, 194), (160, 178, 150)),
    ((236, 214, 200), (206, 172, 158)),
    ((150, 160, 172), (104, 114, 130)),
    ((98, 116, 130), (62, 76, 92)),
    ((214, 204, 222), (172, 160, 190)),
    ((240, 226, 180), (214, 190, 134)),
    ((172, 136, 110), (128, 96, 76)),
)
NUMERALS = ("arabic", "roman", "four", "ticks")
ROMAN = ("XII", "I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX", "X", "XI")
TICKS = ("lines", "bars", "dots", "hours")
SHAPES = ("round", "round", "round", "square", "octagon")


@dataclass(frozen=True)
class Face:
    """Everything that determines the image of a clock. Lengths are relative to the radius of the dial."""

    hour: int
    minute: int
    second: int | None
    tilt: float  # of the whole clock, in degrees, clockwise
    numerals: str
    roman: bool
    radial: bool  # numerals are rotated so that their feet point to the centre
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
    wall: int
    backdrop: Backdrop
    shadow: bool
    grain: float
    seed: int  # of the backdrop and the noise


def random_face(rng: random.Random, hour: int, minute: int, *, rotation: float, second_hand: float) -> Face:
    """Draw a clock that shows the given time; everything else is random."""

    def between(low: float, high: float) -> float:
        return round(rng.uniform(low, high), 3)

    numerals = rng.choices(NUMERALS, (5, 3, 2, 2))[0]
    roman = numerals == "roman" or (numerals == "four" and rng.random() < 0.35)
    tilt, shape = between(-rotation, rotation), rng.choice(SHAPES)
    # The corners of a tilted square reach further out than a circle.
    reach = 1 if shape == "round" else max(abs(x) for x, _ in _outline(shape, tilt, (0, 0), 1))
    radius = min(between(0.36, 0.46), round(0.48 / reach, 3))
    room = 0.485 - radius * reach
    return Face(
        hour=hour,
        minute=minute,
        second=rng.randrange(60) if rng.random() < second_hand else None,
        tilt=tilt,
        numerals=numerals,
        roman=roman,
        radial=roman and rng.random() < 0.6,
        family="serif" if rng.random() < (0.75 if roman else 0.25) else "sans",
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
        wall=rng.randrange(len(WALLS)),
        backdrop=rng.choice(("plain", "gradient", "noise", "paper")),
        shadow=rng.random() < 0.6,
        grain=rng.choice((0.0, 0.0, 3.0, 6.0)),
        seed=rng.getrandbits(32),
    )


def clock_image(face: Face, size: int) -> Image:
    """Return the image of a clock, ``size`` x ``size`` pixels."""
    from numerate.lab.data import drawing

    colours, (wall, shade) = PALETTES[face.palette], WALLS[face.wall]
    picture = drawing.background(face.backdrop, (size, size), wall, shade, face.seed)
    centre = (face.centre[0] * size * _FINER, face.centre[1] * size * _FINER)
    outer = face.radius * size * _FINER
    if face.shadow:
        outline = [(x / _FINER, y / _FINER) for x, y in _outline(face.shape, face.tilt, centre, outer * 1.01)]
        picture = _shadowed(picture, outline, outer / _FINER)
    picture = picture.resize((size * _FINER, size * _FINER), drawing.Image.Resampling.NEAREST)
    draw = drawing.ImageDraw.Draw(picture)
    inner = outer * (1 - face.rim)
    draw.polygon(_outline(face.shape, face.tilt, centre, outer), colours.rim)
    middle = outer * (1 - face.rim * 0.55)
    draw.polygon(_outline(face.shape, face.tilt, centre, middle), _mixed(colours.rim, (255, 255, 255), 0.22))
    draw.polygon(_outline(face.shape, face.tilt, centre, inner), colours.face)
    _draw_ticks(draw, face, centre, inner)
    _draw_numerals(picture, face, centre, inner)
    _draw_hands(draw, face, centre, inner)
    return drawing.add_noise(picture.reduce(_FINER), face.grain, face.seed + 1)


# The dial


def _outline(shape: str, tilt: float, centre: Point, radius: float) -> list[Point]:
    """Return the outline of the clock; a square has the height of the circle and rounded corners."""
    return _turned(_upright(shape), centre, radius, tilt)


@lru_cache(maxsize=len(SHAPES))
def _upright(shape: str) -> list[Point]:
    """Return the outline of a clock of radius 1 around (0, 0)."""
    if shape == "octagon":
        return [_along(0.98 / cos(pi / 8), 22.5 + 45 * k) for k in range(8)]
    power = 2 if shape == "round" else 9
    return [_along(_superellipse(1.5 * k, power), 1.5 * k) for k in range(240)]


def _superellipse(degrees: float, power: int) -> float:
    """Return the radius of the curve |x|^power + |y|^power = 1 in a direction."""
    x, y = abs(sin(radians(degrees))), abs(cos(radians(degrees)))
    return float((x**power + y**power) ** (-1 / power))


def _draw_ticks(draw: ImageDraw, face: Face, centre: Point, radius: float) -> None:
    ink = PALETTES[face.palette].ink
    edge, marked = 0.95, face.numerals == "ticks"
    for minute in range(60):
        turn, on_hour = face.tilt + 6 * minute, minute % 5 == 0
        if not on_hour and face.ticks == "hours":
            continue
        if face.ticks == "dots":
            size = (0.026 if marked else 0.018) if on_hour else 0.008
            draw.polygon(_disc(_at(centre, radius * (edge - 0.02), turn), radius * size), ink)
            continue
        long, wide = (0.14 if marked else 0.07, 0.03 if face.ticks == "bars" else 0.016) if on_hour else (0.035, 0.008)
        corners = [(-wide / 2, edge), (wide / 2, edge), (wide / 2, edge - long), (-wide / 2, edge - long)]
        draw.polygon(_turned(corners, centre, radius, turn), ink)
    if marked:  # a wedge marks twelve
        draw.polygon(_turned([(-0.07, edge - 0.16), (0.07, edge - 0.16), (0, edge - 0.3)], centre, radius, face.tilt), ink)


def _draw_numerals(picture: Image, face: Face, centre: Point, radius: float) -> None:
    if face.numerals == "ticks":
        return
    ink = PALETTES[face.palette].ink
    height = round(radius * (0.2 if face.roman else 0.27 if face.numerals == "four" else 0.24))
    if face.numerals == "roman":  # keep VIII from touching its neighbours
        widest = _text("VIII", height, face.family, face.bold).width / radius
        height = round(height * min(1, (0.32 if face.radial else 0.36) / widest))
    for hour in range(0, 12, 3 if face.numerals == "four" else 1):
        text = ROMAN[hour] if face.roman else str(hour or 12)
        mask = _text(text, height, face.family, face.bold)
        turn = face.tilt + (30 * hour if face.radial else 0)
        if turn:
            mask = mask.rotate(-turn, _bicubic(), expand=True)
        x, y = _at(centre, radius * 0.71, face.tilt + 30 * hour)
        picture.paste(ink, (round(x - mask.width / 2), round(y - mask.height / 2)), mask)


@lru_cache(maxsize=512)
def _text(text: str, height: int, family: FontFamily, bold: bool) -> Image:
    """Return the ink of a text as a mask, cropped to its letters."""
    from numerate.lab.data import drawing

    letters = drawing.font(height, family, bold=bold)
    left, top, right, bottom = (round(side) for side in letters.getbbox(text))
    mask = drawing.Image.new("L", (right - left + 2, bottom - top + 2))
    drawing.ImageDraw.Draw(mask).text((1 - left, 1 - top), text, 255, letters)
    return mask


# The hands


def _symmetric(right: list[Point], long: float) -> list[Point]:
    """Return the outline of a hand from its right half."""
    return [*right, (0, long), *((-x, y) for x, y in reversed(right))]


def _baton(wide: float, long: float, tail: float) -> list[Point]:
    half = wide / 2
    return [(-half, -tail), (half, -tail), (half, long), (-half, long)]


def _taper(wide: float, long: float, tail: float) -> list[Point]:
    return [(-wide * 0.7, -tail), (wide * 0.7, -tail), (wide * 0.15, long), (-wide * 0.15, long)]


def _dauphine(wide: float, long: float, tail: float) -> list[Point]:
    return [(0, -tail - 0.05), (wide * 0.85, long * 0.2), (0, long), (-wide * 0.85, long * 0.2)]


def _leaf(wide: float, long: float, tail: float) -> list[Point]:
    right = [(wide * (0.18 + 0.6 * sin(pi * (k / 16) ** 0.9)), long * k / 16) for k in range(16)]
    return _symmetric([(wide * 0.2, -tail), *right], long)


def _sword(wide: float, long: float, tail: float) -> list[Point]:
    return _symmetric([(wide * 0.3, -tail), (wide * 0.75, long * 0.72)], long)


def _arrow(wide: float, long: float, tail: float) -> list[Point]:
    return _symmetric([(wide * 0.3, -tail), (wide * 0.3, long * 0.72), (wide * 1.2, long * 0.72)], long)


def _spade(wide: float, long: float, tail: float) -> list[Point]:
    bulge = [(wide * (0.3 + 0.9 * sin(pi * k / 10) ** 1.5), long * (0.6 + 0.22 * k / 10)) for k in range(11)]
    return _symmetric([(wide * 0.35, -tail), *bulge], long)


HANDS: dict[str, Callable[[float, float, float], list[Point]]] = {
    hand.__name__.removeprefix("_"): hand for hand in (_baton, _taper, _dauphine, _leaf, _sword, _arrow, _spade)
}


def _draw_hands(draw: ImageDraw, face: Face, centre: Point, radius: float) -> None:
    """Draw the hands. The hour hand moves with the minutes; the minute hand points exactly at its minute."""
    colours, shape = PALETTES[face.palette], HANDS[face.hands]
    hour_turn = face.tilt + 30 * (face.hour % 12) + face.minute / 2
    hour = shape(face.width * 1.35, face.hour_length, face.tail), hour_turn, colours.hour
    minute = shape(face.width, face.minute_length, face.tail), face.tilt + 6 * face.minute, colours.minute
    if face.shadow:
        dark, away = _mixed(colours.face, (0, 0, 0), 0.16), radius * 0.02
        for points, turn, _ in (hour, minute):
            draw.polygon(_turned(points, (centre[0] + away, centre[1] + away * 1.5), radius, turn), dark)
    edge = _mixed(colours.face, colours.hour, 0.25)
    for points, turn, colour in (hour, minute):  # a thin edge separates hands that overlap
        draw.polygon(_turned(points, centre, radius, turn), colour, edge, max(1, round(radius * 0.006)))
    cap = face.width * 0.95
    draw.polygon(_disc(centre, radius * cap), colours.minute)
    if face.second is not None:
        points = [(-0.009, -0.22), (0.009, -0.22), (0.006, 0.88), (-0.006, 0.88)]
        turn = face.tilt + 6 * face.second
        draw.polygon(_turned(points, centre, radius, turn), colours.second)
        draw.polygon(_disc(_at(centre, radius * -0.2, turn), radius * 0.03), colours.second)
        draw.polygon(_disc(centre, radius * 0.04), colours.second)
    draw.polygon(_disc(centre, radius * 0.016), colours.face)


# Geometry: degrees are clockwise from twelve; in the image x points right and y down; along a hand y points up


def _along(distance: float, degrees: float) -> Point:
    return distance * sin(radians(degrees)), distance * cos(radians(degrees))


def _at(centre: Point, distance: float, degrees: float) -> Point:
    x, y = _along(distance, degrees)
    return centre[0] + x, centre[1] - y


def _turned(points: Sequence[Point], centre: Point, scale: float, degrees: float) -> list[Point]:
    s, c = scale * sin(radians(degrees)), scale * cos(radians(degrees))
    return [(centre[0] + x * c + y * s, centre[1] + x * s - y * c) for x, y in points]


def _disc(centre: Point, radius: float) -> list[Point]:
    return [(centre[0] + radius * x, centre[1] + radius * y) for x, y in _CIRCLE]


def _mixed(colour: Colour, other: Colour, share: float) -> Colour:
    red, green, blue = (round(a + (b - a) * share) for a, b in zip(colour, other, strict=True))
    return red, green, blue


def _bicubic() -> Resampling:
    from numerate.lab.data import drawing

    return drawing.Image.Resampling.BICUBIC


def _shadowed(picture: Image, outline: Sequence[Point], radius: float) -> Image:
    """Return the wall with a soft shadow of the clock; computed at low resolution, since it is soft."""
    from PIL import ImageFilter

    from numerate.lab.data import drawing

    small = 4
    mask = drawing.Image.new("L", (picture.width // small, picture.height // small))
    away = radius * 0.05
    drawing.ImageDraw.Draw(mask).polygon([((x + away) / small, (y + 1.8 * away) / small) for x, y in outline], 110)
    mask = mask.filter(ImageFilter.GaussianBlur(radius * 0.05 / small)).resize(picture.size, _bicubic())
    return drawing.Image.composite(drawing.Image.new("RGB", picture.size, (24, 22, 26)), picture, mask)
