"""Backgrounds of the pictures of clocks, shapes and words."""

from __future__ import annotations

from typing import Literal, NamedTuple

Colour = tuple[int, int, int]


class Background(NamedTuple):
    """One colour, a gradient from it to ``other``, or speckles of it; ``other`` is the same colour unless it is a gradient."""

    kind: Literal["plain", "gradient", "noise"]
    colour: Colour
    other: Colour

    @property
    def dark(self) -> bool:
        """Whether light colours stand out on it, and dark ones do not."""
        return sum(self.colour) < 384


BACKGROUNDS = (
    Background("plain", (250, 250, 248), (250, 250, 248)),
    Background("plain", (226, 222, 212), (226, 222, 212)),
    Background("gradient", (246, 240, 228), (214, 222, 232)),
    Background("gradient", (190, 206, 216), (228, 234, 236)),
    Background("gradient", (206, 216, 194), (234, 226, 208)),
    Background("noise", (228, 228, 226), (228, 228, 226)),
    Background("noise", (226, 214, 190), (226, 214, 190)),
    Background("plain", (44, 50, 62), (44, 50, 62)),
    Background("gradient", (34, 40, 56), (70, 72, 84)),
    Background("gradient", (58, 92, 78), (36, 60, 52)),
    Background("noise", (72, 76, 80), (72, 76, 80)),
)
