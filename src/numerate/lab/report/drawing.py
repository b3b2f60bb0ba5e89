"""Shared parts of the figures: styles, panels, legends, and SVG that can be embedded in a page."""

from __future__ import annotations

import io
import math
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from numerate.lab.report.analysis import SPLIT_NAMES
from numerate.lab.report.tables import DataTable
from numerate.lab.report.wording import safe_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, GREY, PALE = "#1b1b1b", "#6b6b6b", "#d9d9d9"
WIDTH = 10.0  # inches of 72 points
_ACROSS = 3  # panels in a row

# Okabe and Ito's palette, safe for colour-blind readers, with a darker yellow. Markers and dashes make figures readable in grey.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#b0508c", "#56b4e9", "#c98a00", "#7a5230", "#6a51a3", "#4d7a1f", "#c2185b")
_MARKERS = "sD^voPXh*<>"
_DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1.5, 1.5)), (0, (6, 2, 1.5, 2)), (0, (3, 1.5)), (0, (8, 3)))

_SVG = "{http://www.w3.org/2000/svg}"
_LINK = "{http://www.w3.org/1999/xlink}href"
_DECIMALS = re.compile(r"(\d+\.\d{2})\d+")


@dataclass(frozen=True)
class PlotStyle:
    """Look of a loss, the same in every figure."""

    colour: str
    marker: str
    dash: Any
    width: float

    @property
    def line(self) -> dict[str, Any]:
        """Keyword arguments of a line."""
        return {"color": self.colour, "linestyle": self.dash, "linewidth": self.width}


Styles = Mapping[str, PlotStyle]


def styles(labels: Sequence[str], baselines: Sequence[str]) -> dict[str, PlotStyle]:
    """Return the style of each loss; baselines are black."""
    by_label = {label: PlotStyle(INK, "o", "-", 2.4) for label in labels if label in baselines}
    for i, label in enumerate(label for label in labels if label not in baselines):
        dash = _DASHES[(i + i // len(_DASHES)) % len(_DASHES)]
        by_label[label] = PlotStyle(_COLOURS[i % len(_COLOURS)], _MARKERS[i % len(_MARKERS)], dash, 1.7)
    return by_label


@contextmanager
def drawing() -> Iterator[None]:
    """Apply the report's matplotlib settings inside the context."""
    from matplotlib import rc_context

    settings: dict[Any, Any] = {
        **dict.fromkeys(("axes.edgecolor", "xtick.color", "ytick.color"), GREY),
        **dict.fromkeys(("axes.labelcolor", "text.color", "xtick.labelcolor", "ytick.labelcolor"), INK),
        **dict.fromkeys(("axes.labelsize", "font.size"), 10),
        **dict.fromkeys(("axes.spines.right", "axes.spines.top", "legend.frameon", "text.parse_math"), False),
        **dict.fromkeys(("axes.axisbelow", "axes.grid", "figure.constrained_layout.use"), True),
        "axes.titlelocation": "left",
        "axes.titlesize": 10.5,
        "axes.titleweight": "bold",
        "grid.color": PALE,
        "grid.linewidth": 0.6,
        "legend.fontsize": 9.5,
        "lines.markersize": 5.5,
        "path.simplify_threshold": 0.5,
        "svg.fonttype": "none",
        "svg.hashsalt": "numerate",
    }
    with rc_context(settings), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"Glyph .* missing from font")  # the browser has one
        yield


def panels(
    data: DataTable, height: float, by: str = "split", sharex: bool = False, sharey: bool = False
) -> tuple[Figure, list[tuple[Axes, str]]]:
    """Return a figure with one panel per value of the column ``by``, three in a row, and each panel with its value."""
    from matplotlib.figure import Figure

    names = data.distinct(by)
    columns = min(_ACROSS, len(names))
    lines = -(-len(names) // columns)
    figure = Figure(figsize=(WIDTH, height * lines))
    every = figure.subplots(lines, columns, sharex=sharex, sharey=sharey, squeeze=False).flatten()
    grid = every[: len(names)]
    for axes in every[len(names) :]:
        axes.remove()
    for axes, name in zip(grid, names, strict=True):
        axes.set_title(plain(SPLIT_NAMES.get(name, name.replace("/", ": ")), 60))
    return figure, list(zip(grid, names, strict=True))


def widen(axes: Axes) -> None:
    """Show at least -1 to 1 if all values are 0."""
    low, high = axes.get_xlim()
    if low > -0.06 and high < 0.06 and axes.dataLim.width < 1e-9:
        axes.set_xlim(-1, 1)


@dataclass(frozen=True)
class Span:
    """Interval in a panel, at ``y`` or, if upright, at ``x``."""

    axes: Axes
    at: float
    low: float
    high: float
    look: Mapping[str, Any]


def draw_spans(spans: Sequence[Span], upright: bool = False) -> None:
    """Draw intervals, below marks. One with an infinite end goes to the end of the axis, which it does not move."""
    for span in sorted(spans, key=lambda span: math.isinf(span.high - span.low)):
        ends, cut = (span.low, span.high), math.isinf(span.high - span.low)
        limits = span.axes.get_ylim() if upright else span.axes.get_xlim()
        if cut:
            ends = (max(span.low, limits[0]), min(span.high, limits[1]))
        points = ((span.at, span.at), ends)
        span.axes.plot(*(points if upright else points[::-1]), zorder=1.9, **span.look)
        if cut:
            (span.axes.set_ylim if upright else span.axes.set_xlim)(*limits)


def draw_infinite(axes: Axes, at: float, colour: str, face: str | None = None, upright: bool = False) -> None:
    """Draw an infinite score: an arrow at the end of the axis."""
    look: dict[str, Any] = {"color": colour, "markerfacecolor": face or colour, "markersize": 6.5, "clip_on": False}
    if upright:
        axes.plot([at], [1], "^", transform=axes.get_xaxis_transform(), **look)
    else:
        axes.plot([1], [at], ">", transform=axes.get_yaxis_transform(), **look)


def legend(figure: Figure, labels: Sequence[str], by_label: Styles, markers: bool = True, lines: bool = True) -> None:
    """Add a legend of the losses below the figure."""
    from matplotlib.lines import Line2D

    handles = []
    for label in labels:
        style = by_label[label]
        marker, dash = style.marker if markers else None, style.dash if lines and not markers else "none"
        handles.append(Line2D([], [], label=plain(label), marker=marker, **style.line | {"linestyle": dash}))
    figure.legend(handles=handles, loc="outside lower center", ncols=min(7, len(handles)), handlelength=2.8 if lines else 1)


def to_svg(figure: Figure, name: str, description: str) -> str:
    """Return the figure as an ``<svg>`` element with unique ids, without style sheet and fonts."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    root = ElementTree.fromstring(buffer.getvalue())
    for element in list(root.iter()):
        for child in list(element):
            if child.tag in (f"{_SVG}metadata", f"{_SVG}style") or child.tag.endswith("}RDF"):
                element.remove(child)
    used = {match for element in root.iter() for value in element.attrib.values() for match in re.findall(r"#([\w.-]+)", value)}
    for element in root.iter():
        element.tag = element.tag.removeprefix(_SVG)
        if (link := element.attrib.pop(_LINK, None)) is not None:
            element.set("href", f"#{name}-{link[1:]}")
        for key, value in list(element.attrib.items()):
            if key == "id":
                if value in used:
                    element.set("id", f"{name}-{value}")
                else:
                    del element.attrib["id"]
            elif key in ("d", "transform", "x", "y", "points"):
                element.set(key, " ".join(_DECIMALS.sub(r"\1", value).split()))
            elif "url(#" in value:
                element.set(key, value.replace("url(#", f"url(#{name}-"))
            elif key == "style":
                element.set("style", re.sub(r"font: ([\d.]+px) [^;]*", r"font-size: \1", value))
    width, height = (float(root.attrib.pop(side).removesuffix("pt")) for side in ("width", "height"))
    root.attrib.update({"viewBox": f"0 0 {width:g} {height:g}", "role": "img", "aria-label": safe_text(description, 1000)})
    root.attrib.update({"style": f"max-width: {width:g}pt", "stroke-linejoin": "round"})
    return ElementTree.tostring(root, encoding="unicode")


def plain(label: str, limit: int = 26) -> str:
    """Return a label for a figure: one line, short; an initial underscore does not hide it from the legend."""
    text = " ".join(safe_text(label, limit).split())
    return f"\u200b{text}" if text.startswith("_") else text


def split_name(split: str) -> str:
    """Return the name of a split in headings."""
    return SPLIT_NAMES.get(split, plain(split))
