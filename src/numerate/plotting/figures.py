"""Shared by all plots: file formats, colours, axes style, and saving."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from numerate.checks import check_choice
from numerate.choices import FORMATS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#1f6f8b", "#d1495b")


def figure_for(path: str | Path) -> type[Figure]:
    """Return matplotlib's Figure; raise if ``path`` has another suffix or matplotlib is not installed."""
    check_choice("path.suffix", Path(path).suffix, FORMATS)
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ModuleNotFoundError(
            f"path={str(path)!r} needs matplotlib, which is not installed: run pip install 'numerate[report]'."
        ) from error
    return Figure


def unframed(axes: Axes) -> None:
    """Add a faint grid, and remove the top and right spines."""
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def save(figure: Figure, path: str | Path) -> Path:
    """Save a figure with constrained layout, create its folder if missing, and return the path."""
    figure.set_layout_engine("constrained", w_pad=0.12, h_pad=0.12)
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    return path
