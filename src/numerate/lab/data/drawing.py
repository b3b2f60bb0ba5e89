"""What the visual tasks draw with: fonts, backgrounds, noise, and a contact sheet of many images.

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
from typing import Literal

import numpy as np

from numerate.checks import check_choice, choices
from numerate.lab.data.backgrounds import Background
from numerate.lab.data.plane import Point

MISSING = "images need the packages Pillow and matplotlib: expected them installed; run pip install 'numerate[tasks]'."

try:
    from PIL import Image as Image
    from PIL import ImageChops
    from PIL import ImageDraw as ImageDraw
    from PIL import ImageFont as ImageFont
except ImportError as error:
    raise ModuleNotFoundError(MISSING) from error

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


def background(ground: Background, size: tuple[int, int], seed: int = 0) -> Image.Image:
    """Return an RGB image of a background; the seed decides its speckles, or the direction of its gradient.

    Examples:
        >>> background(Background("plain", (250, 240, 230), (250, 240, 230)), (4, 2)).getpixel((3, 1))
        (250, 240, 230)
    """
    image = Image.new("RGB", size, ground.colour)
    if ground.kind == "plain":
        return image
    if ground.kind == "noise":
        return add_noise(image, 9, seed)
    angle = _generator(seed).uniform(0, 2 * math.pi)
    across, down = math.cos(angle), math.sin(angle)
    x, y = np.linspace(-across, across, size[0])[None, :], np.linspace(-down, down, size[1])[:, None]
    share = ((x + y) / (abs(across) + abs(down)) + 1) / 2  # [height, width], from 0 to 1
    image.paste(ground.other, mask=Image.fromarray(np.rint(255 * share).astype(np.uint8)))
    return image


def fill(image: Image.Image, polygons: Sequence[Sequence[Point]], colour: tuple[int, ...] | str) -> None:
    """Fill polygons with one colour; their edges are smooth, and where they overlap they count once."""
    xs, ys = zip(*(point for polygon in polygons for point in polygon), strict=True)
    left, top = math.floor(min(xs)) - 1, math.floor(min(ys)) - 1
    mask = Image.new("L", (_FINER * (math.ceil(max(xs)) + 1 - left), _FINER * (math.ceil(max(ys)) + 1 - top)))
    pen = ImageDraw.Draw(mask)
    for polygon in polygons:
        pen.polygon([(_FINER * (x - left) - 0.5, _FINER * (y - top) - 0.5) for x, y in polygon], 255)
    image.paste(colour, (left, top), mask.reduce(_FINER))


def text_mask(text: str, face: ImageFont.FreeTypeFont) -> Image.Image:
    """Return the ink of a text as a mask, with a margin of one pixel."""
    left, top, right, bottom = face.getbbox(text)
    mask = Image.new("L", (math.ceil(right - left) + 2, math.ceil(bottom - top) + 2))
    ImageDraw.Draw(mask).text((1 - left, 1 - top), text, 255, face)
    return mask


def add_noise(image: Image.Image, amount: float, seed: int) -> Image.Image:
    """Return an RGB image with noise of standard deviation ``amount``, on the scale 0 to 255."""
    levels = np.clip(np.rint(128 + amount * _NORMAL), 0, 255).astype(np.uint8).tobytes()
    noise = _generator(seed).bytes(3 * image.width * image.height).translate(levels)
    return ImageChops.add(image, Image.frombytes("RGB", image.size, noise), 1, -128)


def contact_sheet(images: Sequence[Image.Image], labels: Sequence[str]) -> Image.Image:
    """Return one image with the given images in rows of four, large ones scaled down, each with its label below."""
    side, margin, face = 256, 16, font(15)
    letters = int(side / face.getlength("abcdefghijklmnopqrstuvwxyz ") * 27)
    texts = ["\n".join(textwrap.fill(line, letters) for line in label.split("\n")) for label in labels]
    shown = [image.convert("RGB") for image in images]
    for picture in shown:
        picture.thumbnail((side, side), Image.Resampling.LANCZOS)
    columns, high = min(4, len(images)), max(picture.height for picture in shown)
    lowest = max(ImageDraw.Draw(shown[0]).multiline_textbbox((0, 0), text, face)[3] for text in texts)
    row, column = high + math.ceil(lowest) + 2 * margin, side + margin
    sheet = Image.new("RGB", (columns * column + margin, -(-len(images) // columns) * row + margin), "white")
    pen = ImageDraw.Draw(sheet)
    for k, (picture, text) in enumerate(zip(shown, texts, strict=True)):
        left, bottom = margin + k % columns * column, margin + k // columns * row + high
        sheet.paste(picture, (left + (side - picture.width) // 2, bottom - picture.height))
        pen.multiline_text((left + side / 2, bottom + margin // 2), text, "black", face, anchor="ma", align="center")
    return sheet


@lru_cache(maxsize=1)
def _fonts() -> Path:
    try:
        from matplotlib import get_data_path
    except ImportError as error:
        raise ModuleNotFoundError(MISSING) from error
    return Path(get_data_path()) / "fonts" / "ttf"


def _generator(seed: int) -> np.random.Generator:
    """Return a random generator that is the same on every machine."""
    return np.random.Generator(np.random.PCG64(seed))
