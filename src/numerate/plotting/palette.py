"""Colours of the page and its figures, in a light and a dark scheme.

The page has them as CSS variables. Figures are drawn in the light scheme, and :func:`variables` replaces each colour by its
variable, so that a figure follows the reader's scheme.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

BACKGROUNDS: Mapping[str, tuple[str, str]] = {  # text and swatches stand on these
    "paper": ("#ffffff", "#16181c"),
    "wash": ("#f5f5f3", "#1f2227"),
    "base": ("#fafafa", "#1a1d21"),
    "right": ("#e6f3ec", "#15332a"),
    "wrong": ("#fbeae4", "#41261d"),
}
TEXTS: Mapping[str, tuple[str, str]] = {
    "ink": ("#1b1b1b", "#ececec"),
    "grey": ("#595959", "#b0b4ba"),
    "good": ("#00663d", "#63d69f"),
    "bad": ("#a32900", "#ff9d7d"),
    "link": ("#00558a", "#82c4ff"),
}
# Okabe and Ito's palette, safe for colour-blind readers, darker where white would be too near. Markers and dashes differ as well.
LOSSES: Mapping[str, tuple[str, str]] = {
    "c1": ("#0072b2", "#4fb0f0"),
    "c2": ("#d55e00", "#ff8a3d"),
    "c3": ("#008c66", "#2fc79a"),
    "c4": ("#b0508c", "#e58cc3"),
    "c5": ("#1893ad", "#66d9ea"),
    "c6": ("#a87400", "#e0b040"),
    "c7": ("#7a5230", "#c79a78"),
    "c8": ("#6a51a3", "#a99be6"),
    "c9": ("#4d7a1f", "#93c458"),
    "c10": ("#c2185b", "#f4719f"),
}
GRAPHICS: Mapping[str, tuple[str, str]] = {**LOSSES, "edge": ("#858585", "#8f939a")}
SHADES: Mapping[str, tuple[str, str]] = {  # sizes of errors, dark to light in both schemes; "edge" borders them
    f"e{number}": (colour, colour) for number, colour in enumerate(("#08476b", "#2a6f9a", "#83b8d6", "#c9dfec", "#fbe7d2"), 1)
}
ON_SHADES: Mapping[str, tuple[str, str]] = {"on-dark": ("#fefefe", "#fefefe"), "on-light": ("#1c1c1c", "#1c1c1c")}
LINES: Mapping[str, tuple[str, str]] = {"pale": ("#d9d9d9", "#3a3e45")}  # separators and grids, which carry no information

ALL = {**BACKGROUNDS, **TEXTS, **GRAPHICS, **SHADES, **ON_SHADES, **LINES}

_VARIABLES = {light: f"var(--{name})" for name, (light, _) in ALL.items()}
_COLOUR = re.compile(r"#[0-9a-f]{6}\b")


def colour(name: str) -> str:
    """Return a colour in the light scheme, for drawing."""
    return ALL[name][0]


def css(dark: bool = False) -> str:
    """Return the declarations of the variables in one scheme."""
    return " ".join(f"--{name}: {both[dark]};" for name, both in ALL.items())


def variables(style: str) -> str:
    """Replace the colours of the light scheme by their variables. Raise KeyError for a colour that is not in the palette."""
    return _COLOUR.sub(lambda found: _VARIABLES[found[0]], style)
