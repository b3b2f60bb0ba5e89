"""Plot of a number in each format, cut into tokens."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numerate.inspection import EXAMPLE_NUMBER, FormatTokens, Places, format_tokens
from numerate.plotting.figures import figure_for, save
from numerate.plotting.palette import colour

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_NAMES, _PLACES = 10.8, 3.8  # widths of the columns beside the tokens, in characters of a token
_CHARACTER, _EDGES, _GAP = 0.66, {True: 0.5, False: 0.14}, 0.14  # of a token with digits, or without
_ROW_INCHES, _INCHES = 0.27, 5.3  # narrow, to be read on a phone too
_TOKENS = {True: ("#dcebf3", colour("ink")), False: (colour("wash"), colour("grey"))}
_COLOURS: dict[Places, str] = {"fixed": colour("good"), "aligned": colour("c1"), "shifting": colour("bad")}


def plot_formats(tokenizers: Mapping[str, Any], path: str | Path, number: str = EXAMPLE_NUMBER) -> Path:
    """Plot the tokens of a number in every kind of format, and whether its places stay where they are.

    Args:
        tokenizers: of Hugging Face, by their titles.
        path: a ``.png``, ``.svg`` or ``.pdf`` file; its folder is created if missing.
        number: in ordinary notation.
    """
    Figure = figure_for(path)  # noqa: N806
    if not tokenizers:
        raise ValueError("tokenizers is empty: expected at least one, as {title: tokenizer}.")
    panels = {title: format_tokens(tokenizer, number) for title, tokenizer in tokenizers.items()}
    heights = [len(rows) + 1.6 for rows in panels.values()]
    width = _NAMES + _PLACES + max((sum(map(_width, row.tokens)) for rows in panels.values() for row in rows), default=0)
    figure = Figure(figsize=(_INCHES, _ROW_INCHES * sum(heights)))
    every_axes = figure.subplots(len(panels), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axes, (title, rows) in zip(every_axes, panels.items(), strict=True):
        axes.set_title(f"{number}, {title}", loc="left", fontsize="medium", fontweight="bold")
        axes.set_title("places of digits", loc="right", fontsize=8, color=colour("grey"))
        axes.set_xlim(0, width)
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.set_axis_off()
        for y, row in enumerate(rows):
            _draw(axes, y, row, width)
    return save(figure, path)


def _draw(axes: Axes, y: int, row: FormatTokens, width: float) -> None:
    from matplotlib.patches import FancyBboxPatch

    axes.text(0, y, row.kind, va="center", fontsize=9, color=colour("ink"))
    axes.text(width, y, row.places, va="center", ha="right", fontsize=9, color=_COLOURS[row.places])
    x = _NAMES
    for token in row.tokens:
        size, (face, ink) = _width(token) - _GAP, _TOKENS[_has_digits(token)]
        box = FancyBboxPatch((x, y - 0.38), size, 0.76, "round,pad=0,rounding_size=0.15", facecolor=face, linewidth=0.7)
        box.set_edgecolor(colour("edge"))
        axes.add_patch(box)
        axes.text(x + size / 2, y + 0.03, token, va="center", ha="center", fontsize=9, family="monospace", color=ink)
        x += size + _GAP


def _width(token: str) -> float:
    """Return the width of a token's box and of the gap after it."""
    return _CHARACTER * len(token) + _EDGES[_has_digits(token)] + _GAP


def _has_digits(token: str) -> bool:
    return any(character.isdigit() for character in token)
