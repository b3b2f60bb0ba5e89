"""The page that a chart is drawn on. It knows how wide texts are, and remembers where they stand."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, cos, radians, sin

from numerate.lab.data.drawing import FontFamily, Image, ImageDraw, fill, font
from numerate.lab.data.plane import Point

WIDTH = 560  # units that make up the width of a page; its lengths and font sizes are in units

_LEAST = 7.0  # pixels of the smallest font
_DIGIT = 0.73  # height of a digit, relative to the font size
_FINER = 3  # supersampling of slanted texts


class Page:
    """A picture, ``size`` pixels wide and ``flat`` times as high, that starts as blank paper.

    Attributes:
        image: what is drawn so far.
        height: in units.
        texts: each text with the corners of its box in pixels, clockwise from the top of its first letter.
    """

    def __init__(self, size: int, flat: float, paper: str, family: FontFamily) -> None:
        self.image = Image.new("RGB", (size, round(size * flat)), paper)
        self.height = WIDTH * flat
        self.texts: list[tuple[str, list[Point]]] = []
        self._scale, self._paper, self._family = size / WIDTH, paper, family

    def length(self, text: str, size: float) -> float:
        """Return how long a text is."""
        return font(self._letters(size), self._family).getlength(text) / self._scale

    def box(self, corner: Point, opposite: Point, colour: str) -> None:
        """Fill a rectangle; its edges are sharp."""
        (x0, y0), (x1, y1) = self._pixel(corner), self._pixel(opposite)
        self.image.paste(colour, (min(x0, x1), min(y0, y1), max(x0, x1), max(y0, y1)))

    def rule(self, start: Point, end: Point, colour: str) -> None:
        """Draw a thin line, to the right or downwards."""
        wide = max(1, round(self._scale))
        (x0, y0), (x1, y1) = self._pixel(start), self._pixel(end)
        self.image.paste(colour, (x0, y0, x1 + wide, y1 + wide))

    def fill(self, polygons: Sequence[Sequence[Point]], colour: str) -> None:
        """Fill polygons; their edges are smooth."""
        fill(self.image, [[(self._scale * x, self._scale * y) for x, y in polygon] for polygon in polygons], colour)

    def text(
        self, text: str, at: Point, size: float, anchor: str, *, turn: int = 0, colour: str = "#000000", clear: bool = False
    ) -> None:
        """Write a text.

        Args:
            text: one line.
            at: where it stands.
            size: of the font.
            anchor: the point of the text that is ``at``: its left end, middle or right end (``l``, ``m``, ``r``), and there
                its baseline or the middle of its digits (``s``, ``m``).
            turn: rotation around ``at`` in degrees, counter-clockwise.
            colour: of the letters.
            clear: first wipe what is below the text, such as grid lines.
        """
        c, s = cos(radians(turn)), sin(radians(turn))
        finer = _FINER if turn % 90 else 1
        low = self._letters(size) * _DIGIT / 2 if anchor[1] == "m" else 0  # from ``at`` to the baseline
        x, y = round(self._scale * at[0] + s * low), round(self._scale * at[1] + c * low)
        letters = font(self._letters(size) * finer, self._family)
        left, top, right, bottom = letters.getbbox(text, anchor=anchor[0] + "s")
        box = (left, top), (right, top), (right, bottom), (left, bottom)
        corners = [(x + (c * u + s * v) / finer, y + (c * v - s * u) / finer) for u, v in box]
        self.texts.append((text, corners))
        xs, ys = zip(*corners, strict=True)
        if clear:
            self.image.paste(self._paper, (round(min(xs)) - 1, round(min(ys)) - 1, round(max(xs)) + 1, round(max(ys)) + 1))
        if not turn:
            ImageDraw.Draw(self.image).text((x, y), text, colour, letters, anchor[0] + "s")
            return
        mask = Image.new("L", (ceil(right - left), ceil(bottom - top)))
        ImageDraw.Draw(mask).text((-left, -top), text, 255, letters, anchor[0] + "s")
        mask = mask.rotate(turn, Image.Resampling.BICUBIC, expand=True).reduce(finer)
        corner = round((min(xs) + max(xs) - mask.width) / 2), round((min(ys) + max(ys) - mask.height) / 2)
        self.image.paste(colour, corner, mask)

    def _letters(self, size: float) -> float:
        """Return a font size in pixels; smaller ones than the least could not be read."""
        return max(_LEAST, self._scale * size)

    def _pixel(self, point: Point) -> tuple[int, int]:
        return round(self._scale * point[0]), round(self._scale * point[1])
