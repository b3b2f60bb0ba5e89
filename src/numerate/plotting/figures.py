"""What all pictures share: file formats, colours, a plain look, and how they are saved."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from numerate.checks import check_choice
from numerate.choices import FORMATS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#1f6f8b", "#d1495b")


def figure_for(path: Path) -> type[Figure]:
    """Return matplotlib's Figure; raise if ``path`` is not a picture file or matplotlib is missing."""
    check_choice("path.suffix", path.suffix, FORMATS)
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ModuleNotFoundError(
            f"path={str(path)!r} is a picture: expected the package matplotlib; run pip install 'numerate[report]'."
        ) from error
    return Figure


def unframed(axes: Axes) -> None:
    """Give axes a faint grid and no frame at the top and on the right."""
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def save(figure: Figure, path: Path) -> Path:
    """Save a figure without overlaps, in a folder that is made if need be, and return the path."""
    figure.set_layout_engine("constrained", w_pad=0.12, h_pad=0.12)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    return path
