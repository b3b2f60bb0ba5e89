"""Drawing tools shared by the visual tasks: fonts, backgrounds, noise, and a contact sheet of many images.

Needs Pillow and matplotlib, whose fonts are the same on every machine. Import this module inside the function that draws, so
that text tasks do not need them. Import ``Image`` and ``ImageDraw`` from here: a missing package is then explained.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from numerate.checks import check_choice, choices

MISSING = "images need the packages Pillow and matplotlib: expected them installed; run pip install 'numerate[tasks]'."

try:
    from PIL import Image as Image
    from PIL import ImageChops, ImageFont
    from PIL import ImageDraw as ImageDraw
except ImportError as error:
    raise ModuleNotFoundError(MISSING) from error

if TYPE_CHECKING:
    from numpy.typing import NDArray

Colour = tuple[int, int, int]
Point = tuple[float, float]
Backdrop = Literal["plain", "gradient", "noise", "paper"]
FontFamily = Literal["sans", "serif", "mono"]

_FINER = 4  # supersampling of polygons in each direction
# Noise takes 256 values, one for each byte: several times as fast as exact noise, and the same to the eye.
_NORMAL = np.array([NormalDist().inv_cdf((k + 0.5) / 256) for k in range(256)], np.float32)
_NORMAL /= _NORMAL.std()


@lru_cache(maxsize=256)
def font(size: float, family: FontFamily = "sans", *, bold: bool = False, italic: bool = False) -> ImageFont.FreeTypeFont:
    """Return one of the DejaVu fonts that come with matplotlib, ``size`` pixels high; cached."""
    check_choice("family", family, choices(FontFamily))
    slant = "Italic" if family == "serif" else "Oblique"
    style = "Bold" * bold + slant * italic
    name = f"DejaVu{'SansMono' if family == 'mono' else family.title()}{'-' if style else ''}{style}.ttf"
    return ImageFont.truetype(_fonts() / name, size, layout_engine=ImageFont.Layout.BASIC)


def generator(seed: int) -> np.random.Generator:
    """Return a random generator for noise that is the same on every machine."""
    return np.random.Generator(np.random.PCG64(seed))


def background(kind: Backdrop, size: tuple[int, int], colour: Colour, other: Colour | None = None, seed: int = 0) -> Image.Image:
    """Return an RGB image of one colour, a gradient to ``other``, speckles, or paper with blotches and fibres.

    Examples:
        >>> background("plain", (4, 2), (250, 240, 230)).getpixel((3, 1))
        (250, 240, 230)
    """
    check_choice("kind", kind, choices(Backdrop))
    if kind == "plain":
        return Image.new("RGB", size, colour)
    rng, (width, height) = generator(seed), size
    if kind == "gradient":
        end = [0.75 * part for part in colour] if other is None else other
        angle = float(rng.uniform(0, 2 * np.pi))
        x, y = np.linspace(-1, 1, width, dtype=np.float32)[None, :], np.linspace(-1, 1, height, dtype=np.float32)[:, None]
        c, s = math.cos(angle), math.sin(angle)
        share = (x * c + y * s) / (abs(c) + abs(s)) / 2 + 0.5  # [height, width]
        return _image([a + (b - a) * share for a, b in zip(colour, end, strict=True)])
    texture = (9 if kind == "noise" else 2) * _normal(rng, (height, width))
    if kind == "paper":
        coarse = Image.fromarray(_normal(rng, (7, 7))).resize(size, Image.Resampling.BICUBIC)
        fibres = Image.fromarray(_normal(rng, (height, max(2, width // 6)))).resize(size, Image.Resampling.BILINEAR)
        texture += 4 * np.asarray(coarse) + 2.5 * np.asarray(fibres)
    return _image([part + texture for part in colour])


def fill(image: Image.Image, polygons: Sequence[Sequence[Point]], colour: tuple[int, ...] | str, opacity: float = 1.0) -> None:
    """Fill polygons with one colour; their edges are smooth, and where they overlap they count once."""
    xs, ys = zip(*(point for polygon in polygons for point in polygon), strict=True)
    left, top = math.floor(min(xs)) - 1, math.floor(min(ys)) - 1
    mask = Image.new("L", (_FINER * (math.ceil(max(xs)) + 1 - left), _FINER * (math.ceil(max(ys)) + 1 - top)))
    pen = ImageDraw.Draw(mask)
    for polygon in polygons:
        pen.polygon([(_FINER * (x - left) - 0.5, _FINER * (y - top) - 0.5) for x, y in polygon], round(255 * opacity))
    image.paste(colour, (left, top), mask.reduce(_FINER))


def add_noise(image: Image.Image, amount: float, seed: int) -> Image.Image:
    """Return the image with noise of standard deviation ``amount``, on the scale 0 to 255."""
    if amount == 0:
        return image
    levels = np.clip(np.rint(128 + amount * _NORMAL), 0, 255).astype(np.uint8).tobytes()
    noise = generator(seed).bytes(3 * image.width * image.height).translate(levels)
    return ImageChops.add(image.convert("RGB"), Image.frombytes("RGB", image.size, noise), 1, -128)


def contact_sheet(images: Sequence[Image.Image], labels: Sequence[str], *, columns: int = 4, side: int = 256) -> Image.Image:
    """Return one image with the given images in rows, each scaled to fit ``side``, with its label below.

    Args:
        images: images to show; those of a row are aligned at the bottom.
        labels: one per image; long ones are wrapped, line breaks are kept.
        columns: images per row.
        side: size of a cell in pixels; larger images are scaled down.
    """
    if len(images) != len(labels) or not images:
        raise ValueError(f"images and labels have {len(images)} and {len(labels)} entries: expected as many labels as images.")
    margin, face = side // 16, font(min(15, max(10, side // 17)))
    line = round(face.size * 1.35)
    letters = int(side / face.getlength("abcdefghijklmnopqrstuvwxyz ") * 27)
    texts = [[part for text in label.split("\n") for part in textwrap.wrap(text, letters) or [""]] for label in labels]
    shown = []
    for image in images:
        scale = min(1.0, side / image.width, side / image.height)
        shape = max(1, round(image.width * scale)), max(1, round(image.height * scale))
        shown.append(image.convert("RGB").resize(shape, Image.Resampling.LANCZOS))
    rows = [range(first, min(first + columns, len(images))) for first in range(0, len(images), columns)]
    heights = [max(shown[k].height for k in row) for row in rows]
    below = [max(len(texts[k]) for k in row) * line + margin // 2 for row in rows]
    sheet = Image.new(
        "RGB",
        (min(columns, len(images)) * (side + margin) + margin, sum(heights) + sum(below) + margin * (len(rows) + 1)),
        "white",
    )
    draw, top = ImageDraw.Draw(sheet), margin
    for row, height, under in zip(rows, heights, below, strict=True):
        for column, k in enumerate(row):
            left = margin + column * (side + margin)
            sheet.paste(shown[k], (left + (side - shown[k].width) // 2, top + height - shown[k].height))
            for number, text in enumerate(texts[k]):
                draw.text((left + side / 2, top + height + margin // 2 + number * line), text, "black", face, anchor="ma")
        top += height + under + margin
    return sheet


@lru_cache(maxsize=1)
def _fonts() -> Path:
    try:
        from matplotlib import get_data_path
    except ImportError as error:
        raise ModuleNotFoundError(MISSING) from error
    return Path(get_data_path()) / "fonts" / "ttf"


def _image(parts: Sequence[NDArray[np.floating[Any]]]) -> Image.Image:
    """Return the image of red, green and blue, ``[height, width]`` each, rounded and clipped."""
    return Image.merge("RGB", [Image.fromarray(np.clip(part + 0.5, 0, 255).astype(np.uint8)) for part in parts])


def _normal(rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float32]:
    return _NORMAL[np.frombuffer(rng.bytes(math.prod(shape)), np.uint8)].reshape(shape)
