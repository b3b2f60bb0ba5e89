"""The page that a chart is drawn on. It knows how wide texts are, and remembers where they stand."""

from __future__ import annotations

from collections.abc import Sequence

from numerate.lab.data.drawing import FontFamily, Image, ImageDraw, ImageFont, fill, font, text_mask
from numerate.lab.data.plane import Point

WIDTH = 560  # units that make up the width of a page; its lengths and font sizes are in units

_LEAST = 7.0  # pixels of the smallest font that can be read
_DIGIT = 0.73  # height of a digit, relative to the font size

Rectangle = tuple[float, float, float, float]  # left, top, right, bottom


class Page:
    """A picture, ``size`` pixels wide and ``flat`` times as high, that starts as blank paper."""

    def __init__(self, size: int, flat: float, paper: str, family: FontFamily) -> None:
        self.image = Image.new("RGB", (size, round(size * flat)), paper)
        self.height = WIDTH * flat  # in units
        self.texts: list[tuple[str, Rectangle]] = []  # each with its box in pixels
        self._scale, self._paper, self._family = size / WIDTH, paper, family

    def length(self, text: str, size: float) -> float:
        """Return how long a text is."""
        return self._font(size).getlength(text) / self._scale

    def box(self, corner: Point, opposite: Point, colour: str, *, rule: bool = False) -> None:
        """Fill a rectangle, whose edges are sharp; a ``rule`` is a thin line."""
        (x0, x1), (y0, y1) = (sorted(round(self._scale * end) for end in ends) for ends in zip(corner, opposite, strict=True))
        wide = max(1, round(self._scale)) if rule else 0
        self.image.paste(colour, (x0, y0, x1 + wide, y1 + wide))

    def fill(self, polygons: Sequence[Sequence[Point]], colour: str) -> None:
        """Fill polygons; their edges are smooth."""
        fill(self.image, [[(self._scale * x, self._scale * y) for x, y in polygon] for polygon in polygons], colour)

    def text(
        self, text: str, at: Point, size: float, anchor: str, *, up: bool = False, colour: str = "#000000", clear: bool = False
    ) -> None:
        """Write a line of text, to the right or ``up``; ``clear`` first wipes what is below it, such as grid lines.

        ``anchor`` is the point of the text that is ``at``: its left end, middle or right end (``l``, ``m``, ``r``), and there its
        baseline or the middle of its digits (``s``, ``m``).
        """
        face, side = self._font(size), f"{anchor[0]}s"
        low = face.size * _DIGIT / 2 if anchor[1] == "m" else 0.0  # from ``at`` to the baseline
        x, y = round(self._scale * at[0] + low * up), round(self._scale * at[1] + low * (not up))
        left, top, right, bottom = face.getbbox(text, anchor=side)
        box = (x + top, y - right, x + bottom, y - left) if up else (x + left, y + top, x + right, y + bottom)
        self.texts.append((text, box))
        if clear:
            self.image.paste(self._paper, (round(box[0]) - 1, round(box[1]) - 1, round(box[2]) + 1, round(box[3]) + 1))
        if up:
            mask = text_mask(text, face).transpose(Image.Transpose.ROTATE_90)
            self.image.paste(colour, (round(box[0]) - 1, round(box[1]) - 1), mask)
        else:
            ImageDraw.Draw(self.image).text((x, y), text, colour, face, side)

    def _font(self, size: float) -> ImageFont.FreeTypeFont:
        return font(max(_LEAST, self._scale * size), self._family)
