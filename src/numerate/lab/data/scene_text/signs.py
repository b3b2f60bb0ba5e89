"""Walls with words on them: position and appearance of each word, and the drawing."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from numerate.lab.data.backgrounds import BACKGROUNDS, Colour
from numerate.lab.data.plane import Point, apart, turned

if TYPE_CHECKING:
    from PIL.Image import Image

    from numerate.lab.data.drawing import FontFamily

Quad = tuple[Point, ...]  # four corners, clockwise from the top of the first letter

_SIGNS = """
EXIT OPEN CLOSED CAFE PARKING HOTEL BAKERY TAXI STATION MUSEUM BANK PHARMACY MARKET LIBRARY POLICE TICKETS SALE ENTRANCE PUSH
PULL STOP WAY GARDEN CINEMA BOOKS COFFEE PIZZA GALLERY BUS METRO PLATFORM Welcome Restaurant Flowers Fresh Bread Music Theatre
Office Reception Toilets Lift Stairs Floor Bridge Harbour Street Avenue Square North South East West coffee today special
house wine garden daily menu lunch organic vintage shoes repair keys bicycle ice cream tea
"""
WORDS = tuple(_SIGNS.split())


class Word(NamedTuple):
    """A word and its four corners in pixels."""

    text: str
    quad: Quad


class WordLook(NamedTuple):
    """The appearance of a word: font, colour, and the colour of the plate behind it, if any."""

    family: FontFamily
    bold: bool
    ink: Colour
    plate: Colour | None


class Wall(NamedTuple):
    """Everything in an image: its size, the words, their looks, the background and the seed of its noise."""

    width: int
    height: int
    words: tuple[Word, ...]
    looks: tuple[WordLook, ...]
    ground: int
    seed: int


COLOURS: tuple[Colour, ...] = (  # of letters, and of plates
    (24, 26, 30), (250, 250, 246), (168, 28, 34), (20, 62, 130), (18, 92, 58), (250, 212, 72), (96, 40, 100), (252, 186, 128),
)  # fmt: skip


def random_word_look(rng: random.Random, ground: int) -> WordLook:
    """Draw a look whose ink contrasts with the background."""
    families: tuple[FontFamily, ...] = ("sans", "sans", "serif", "mono")
    wall = BACKGROUNDS[ground][1:3]
    plate = rng.choice(_visible(wall, 1.3)) if rng.random() < 0.4 else None
    ink = rng.choice(_visible((plate,) if plate else wall, 4))
    return WordLook(rng.choice(families), rng.random() < 0.6, ink, plate)


def _visible(behind: Sequence[Colour], least: float) -> list[Colour]:
    """Return the colours that contrast with all that is behind them."""
    return [colour for colour in COLOURS if min(contrast(colour, other) for other in behind) >= least]


def contrast(colour: Colour, other: Colour) -> float:
    """Return the WCAG contrast ratio of two colours, from 1 (none) to 21."""
    light, dark = sorted((_luminance(colour), _luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def _luminance(colour: Colour) -> float:
    linear = [part / 255 / 12.92 if part <= 10 else ((part / 255 + 0.055) / 1.055) ** 2.4 for part in colour]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def aspect(text: str, look: WordLook) -> float:
    """Estimate the ratio of width to height of a word from its letters."""
    if look.family == "mono":
        wide = 0.6 * len(text)
    else:
        wide = sum(0.33 if c in "iljIt.,'1r" else 0.92 if c in "mwMW" else 0.7 if c.isupper() else 0.6 for c in text)
        wide *= 1.1 if look.bold else 1.0
    high = 0.55 if all(c in "acegmnopqrsuvwxyz" for c in text) else 0.74
    return wide / (high + (0.2 if any(c in "gjpqy,;" for c in text) else 0.0))


def placed(high: float, wide: float, angle: float, taper: float, shear: float) -> Quad:
    """Return the corners of a word around (0, 0), rotated by an angle in degrees and distorted by perspective.

    ``taper`` makes one end higher than the other; ``shear`` slants the word.
    """
    corners = [
        (u * wide / 2 - v * shear * high / 2, v * high / 2 * (1 + u * taper)) for u, v in ((-1, -1), (1, -1), (1, 1), (-1, 1))
    ]
    return tuple(turned(corners, angle))


def moved(quad: Quad, x: float, y: float) -> Quad:
    """Return the shifted quadrilateral, rounded to tenths of a pixel."""
    return tuple((round(px + x, 1), round(py + y, 1)) for px, py in quad)


def grown(quad: Quad, along: float, across: float) -> Quad:
    """Return a larger quadrilateral; the margins are relative to its length and its height."""
    (ax, ay), (bx, by), (cx, cy), (dx, dy) = quad

    def at(u: float, v: float) -> Point:
        a, b, c, d = (1 - u) * (1 - v), u * (1 - v), u * v, (1 - u) * v
        return a * ax + b * bx + c * cx + d * dx, a * ay + b * by + c * cy + d * dy

    return at(-along, -across), at(1 + along, -across), at(1 + along, 1 + across), at(-along, 1 + across)


def reading_order(polygons: Sequence[Sequence[Point]]) -> list[int]:
    """Return indices in reading order: rows from the top, each from the left. A row has polygons of about the same height.

    Examples:
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


def random_wall(rng: random.Random, size: int, count: tuple[int, int], angles: tuple[float, float]) -> Wall:
    """Draw a wall with words that do not touch, in reading order, in colours that contrast with the background."""
    while True:
        width, height = (round(size * share) for share in rng.choice(((1, 1), (1, 0.75), (0.75, 1))))
        ground = rng.randrange(len(BACKGROUNDS))
        words = _random_words(rng, width, height, rng.randint(*count), angles, ground)
        if words:
            ordered, looks = zip(*(words[k] for k in reading_order([word.quad for word, _ in words])), strict=True)
            return Wall(width, height, ordered, looks, ground, rng.getrandbits(32))


def _random_words(
    rng: random.Random, width: int, height: int, count: int, angles: tuple[float, float], ground: int
) -> list[tuple[Word, WordLook]]:
    """Draw words with space around each; empty if they do not fit."""
    words: list[tuple[Word, WordLook]] = []
    rooms: list[Sequence[Point]] = []
    side = min(width, height)
    crowd = min(1.0, (5 / count) ** 0.5)
    for _ in range(count):
        look = random_word_look(rng, ground)
        text = _text(rng, [word.text for word, _ in words])
        wide = aspect(text, look)
        high = min(side * rng.uniform(0.07, 0.14), 0.6 * side / wide) * crowd
        angle = rng.choice((-1, 1)) * rng.uniform(*angles)
        lean = rng.uniform(-0.16, 0.16), rng.uniform(-0.25, 0.25)
        for attempt in range(60):  # smaller each time
            scale = high * (1 - attempt / 100)
            quad = placed(scale, scale * wide, angle, *lean)
            room = grown(plate_of(quad), 0.04, 0.1) if look.plate else grown(quad, 0.06, 0.2)
            x, y = (_shift(rng, [point[axis] for point in room], (width, height)[axis]) for axis in (0, 1))
            room = moved(room, x, y)
            if all(apart(room, other) for other in rooms):
                words.append((Word(text, moved(quad, x, y)), look))
                rooms.append(room)
                break
        else:
            return []
    return words


def _shift(rng: random.Random, coordinates: Sequence[float], side: int) -> float:
    """Draw a shift that keeps all coordinates within a side of the image."""
    return rng.uniform(4 - min(coordinates), side - 4 - max(coordinates))


def _text(rng: random.Random, taken: Sequence[str]) -> str:
    """Draw a word or, one time in four, a number with its sign or unit; never one that is taken."""
    while True:
        form = rng.choice(("{}", "{}", "{}%", "{}m", "No.{}", "{}.50", "{}:30"))
        number = rng.randint(1, 23) if ":" in form else rng.randint(2, 999) if form == "{}" else rng.randint(2, 90)
        text = rng.choice(WORDS) if rng.random() < 0.75 else form.format(number)
        if text not in taken:
            return text


def render(wall: Wall) -> Image:
    """Return the image of a wall with words."""
    from numerate.lab.data.drawing import add_noise, background, fill

    image = background(BACKGROUNDS[wall.ground], (wall.width, wall.height), wall.seed)
    for word, look in zip(wall.words, wall.looks, strict=True):
        if look.plate is not None:
            fill(image, [plate_of(word.quad)], tuple(round(0.8 * part) for part in look.plate))
            fill(image, [grown(word.quad, 0.08, 0.26)], look.plate)
        _write(image, word, look)
    return add_noise(image, 3.0, wall.seed + 1)


def plate_of(quad: Quad) -> Quad:
    """Return the corners of the plate behind a word."""
    return grown(quad, 0.1, 0.34)


def _write(image: Image, word: Word, look: WordLook) -> None:
    """Draw a word so that its ink touches all four sides of its quadrilateral."""
    from numerate.lab.data.drawing import Image as Images
    from numerate.lab.data.drawing import font, text_mask

    xs, ys = zip(*word.quad, strict=True)
    left, top, right, bottom = math.floor(min(xs)) - 1, math.floor(min(ys)) - 1, math.ceil(max(xs)) + 1, math.ceil(max(ys)) + 1
    high = max(math.dist(word.quad[0], word.quad[3]), math.dist(word.quad[1], word.quad[2]))
    face = font(max(24, round(2 * high / 0.74)), look.family, bold=look.bold)
    flat = text_mask(word.text, face)
    flat = flat.crop(flat.point(lambda level: 255 * (level > 127)).getbbox())
    corners = ((0, 0), (flat.width, 0), (flat.width, flat.height), (0, flat.height))
    size = 2 * (right - left), 2 * (bottom - top)
    mapping = _homography([(2 * (x - left), 2 * (y - top)) for x, y in word.quad], corners)
    mask = flat.transform(size, Images.Transform.PERSPECTIVE, mapping, Images.Resampling.BILINEAR)
    image.paste(look.ink, (left, top), mask.reduce(2))


def _homography(source: Sequence[Point], target: Sequence[Point]) -> list[float]:
    """Return the eight coefficients of the projective map from four points to four others."""
    import numpy as np

    rows, values = [], []
    for (x, y), (u, v) in zip(source, target, strict=True):
        rows += [(x, y, 1, 0, 0, 0, -u * x, -u * y), (0, 0, 0, x, y, 1, -v * x, -v * y)]
        values += [u, v]
    return [float(number) for number in np.linalg.solve(np.array(rows, float), np.array(values, float))]
