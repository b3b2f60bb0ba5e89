"""The figures, as SVG to stand inside a page: one colour, marker and dash for each loss throughout, so that they read in grey."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from numerate.lab.report.analysis import IN_RANGE, OUT_OF_RANGE, SPLIT_NAMES, Setup
from numerate.lab.report.series import Spread, Table, place_name, spread
from numerate.lab.report.wording import EXAMPLES_WON, shown

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, GREY, PALE = "#1b1b1b", "#6b6b6b", "#d9d9d9"
WIDTH = 10.0  # inches, of 72 points
FEW_TOKENS = 20  # of a point of a calibration curve, for less of which it is not drawn

# Okabe and Ito's colours, which the colour-blind can tell apart; the yellow, which paper swallows, darkened.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#b0508c", "#56b4e9", "#c98a00", "#7a5230", "#6a51a3", "#4d7a1f", "#c2185b")
_MARKERS = "sD^voPXh*<>"
_DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1.5, 1.5)), (0, (6, 2, 1.5, 2)), (0, (3, 1.5)), (0, (8, 3)))
_SHADES = ("#08476b", "#2f80ae", "#83b8d6", "#c9dfec", "#fbe7d2", "#ffffff")  # ever lighter, also in grey

_SVG = "{http://www.w3.org/2000/svg}"
_LINK = "{http://www.w3.org/1999/xlink}href"


@dataclass(frozen=True)
class Style:
    """How a loss looks in every figure."""

    colour: str
    marker: str
    dash: Any
    width: float

    @property
    def line(self) -> dict[str, Any]:
        """Of a line."""
        return {"color": self.colour, "linestyle": self.dash, "linewidth": self.width}


def styles(labels: Sequence[str], baselines: Sequence[str]) -> dict[str, Style]:
    """One for each loss; the baseline is black."""
    found = {label: Style(INK, "o", "-", 2.4) for label in labels if label in baselines}
    for at, label in enumerate(label for label in labels if label not in baselines):
        found[label] = Style(
            _COLOURS[at % len(_COLOURS)], _MARKERS[at % len(_MARKERS)], _DASHES[(at + at // len(_DASHES)) % len(_DASHES)], 1.7
        )
    return found


@contextmanager
def drawing() -> Iterator[None]:
    """Matplotlib's settings for everything below; its own are left as they were."""
    from matplotlib import rc_context

    settings: dict[Any, Any] = {
        "axes.edgecolor": GREY,
        "axes.grid": True,
        "axes.labelcolor": INK,
        "axes.labelsize": 10,
        "axes.spines.right": False,
        "axes.spines.top": False,
        "axes.titlelocation": "left",
        "axes.titlesize": 10.5,
        "axes.titleweight": "bold",
        "axes.axisbelow": True,
        "figure.constrained_layout.use": True,
        "font.size": 10,
        "grid.color": PALE,
        "grid.linewidth": 0.6,
        "legend.fontsize": 9.5,
        "legend.frameon": False,
        "lines.markersize": 5.5,
        "path.simplify_threshold": 0.5,
        "svg.fonttype": "none",
        "svg.hashsalt": "numerate",
        "text.color": INK,
        "text.parse_math": False,
        "xtick.color": GREY,
        "xtick.labelcolor": INK,
        "ytick.color": GREY,
        "ytick.labelcolor": INK,
    }
    with rc_context(settings), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"Glyph .* missing from font")  # the reader's browser has it
        yield


def differences(setup: Setup, data: Table, looks: Mapping[str, Style], by_sign: bool) -> Figure:
    """Difference from the baseline with its interval, a row for each loss; filled where it is beyond noise."""
    first = {row["loss"]: row["difference"] for row in data.where(split=data.distinct("split")[0])}
    labels = sorted(first, key=lambda label: first[label])
    figure, panels = _panels(data, height=0.9 + 0.34 * len(labels), sharex=True, sharey=True)
    shown_in = EXAMPLES_WON if by_sign else setup.headline
    factor = shown_in.factor
    for axes, split in panels:
        axes.axvline(0, color=INK, linewidth=1.2)
        for row in data.where(split=split):
            look, y = looks[row["loss"]], labels.index(row["loss"])
            low, middle, high = (factor * row[name] for name in ("low", "difference", "high"))
            axes.plot([low, high], [y, y], color=look.colour, linewidth=2, solid_capstyle="butt")
            face = "white" if row["better"] is None else look.colour
            axes.plot([middle], [y], look.marker, color=look.colour, markerfacecolor=face, markersize=7.5, markeredgewidth=1.6)
        axes.set_yticks(range(len(labels)), [plain(label) for label in labels])
        axes.set_ylim(-0.6, len(labels) - 0.4)
        axes.grid(axis="y", visible=False)
        axes.tick_params(axis="y", length=0)
    _wide_enough(panels[0][0])
    baseline = plain(setup.baseline or "")
    unit = "points" if shown_in.percent else shown_in.unit
    text = f"examples nearer than {baseline}, less those farther" if by_sign else f"{shown_in.title}, less {baseline}'s"
    text += f", {unit}" if unit else ""
    figure.supxlabel(text, fontsize=10)
    return figure


def learning_curves(setup: Setup, data: Table, looks: Mapping[str, Style]) -> Figure:
    """A panel for each curve; the mean over seeds, and a band from the least to the most."""
    from matplotlib.ticker import LogLocator, NullFormatter

    names = data.distinct("curve")
    figure, panels = _panels(data, by="curve", height=3.4, titles={name: name.replace("/", ": ") for name in names})
    for axes, name in panels:
        for label in setup.labels:
            rows = data.where(curve=name, loss=label)
            steps, means = [row["step"] for row in rows], [row["mean"] for row in rows]
            look = looks[label]
            axes.fill_between(
                steps, [row["least"] for row in rows], [row["most"] for row in rows], color=look.colour, alpha=0.1, linewidth=0
            )
            axes.plot(steps, means, **look.line, zorder=3 if label == setup.baseline else 2)
        axes.set_xlabel("training step")
    least, most = (found([row[end] for row in data.where()]) for end, found in (("least", min), ("most", max)))
    if names == ["cross-entropy"] and 0 < 4 * least < most:
        axis = panels[0][0].yaxis
        panels[0][0].set_yscale("log")
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter(NullFormatter())
    _legend(figure, setup.labels, looks, markers=False)
    return figure


def error_distribution(setup: Setup, data: Table) -> Figure:
    """A bar for each loss, divided by how far off the answers are."""
    how = _spread(setup)
    labels = setup.labels[::-1]
    figure, panels = _panels(data, height=1.2 + 0.34 * len(labels), sharey=True)
    for axes, split in panels:
        for y, label in enumerate(labels):
            left = 0.0
            for row, shade in zip(data.where(split=split, loss=label), _SHADES, strict=True):
                width = 100 * row["share"]
                axes.barh(y, width, left=left, height=0.74, **_bar(shade))
                if width >= 7:
                    colour = "white" if shade in _SHADES[:2] else INK
                    axes.text(left + width / 2, y, f"{width:.0f}", ha="center", va="center", fontsize=8.5, color=colour)
                left += width
        axes.set_yticks(range(len(labels)), [plain(label) for label in labels])
        axes.set_xlim(0, 100)
        axes.grid(visible=False)
        axes.tick_params(axis="y", length=0)
        axes.set_xlabel(f"% of the answers, by {how.measure.plain}")
    from matplotlib.patches import Patch

    handles = [Patch(label=name, **_bar(shade)) for name, shade in zip(how.classes(), _SHADES, strict=True)]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))
    return figure


def tolerance(setup: Setup, data: Table, looks: Mapping[str, Style]) -> Figure:
    """The share of answers within a tolerance, which grows to the right."""
    how = _spread(setup)
    figure, panels = _panels(data, height=3.6, sharey=True)
    relative = how.measure.name == "relative_error"
    for axes, split in panels:
        for label in setup.labels:
            rows = data.where(split=split, loss=label)
            x = [row[how.measure.name] * (100 if relative else 1) for row in rows]
            axes.plot(x, [100 * row["share"] for row in rows], **looks[label].line, zorder=3 if label == setup.baseline else 2)
        if relative or how.measure.name == "absolute_error":
            axes.set_xscale("log")
            axes.xaxis.set_major_formatter("{x:g}")
        if how.higher_is_better:
            axes.invert_xaxis()
            axes.set_xlabel(f"{how.measure.plain} asked for")
        else:
            unit = "%" if relative else how.measure.unit
            axes.set_xlabel(f"{how.measure.plain} let pass" + (f", {unit}" if unit else ""))
    panels[0][0].set_ylim(bottom=0)
    panels[0][0].set_ylabel("% of the answers within it")
    _legend(figure, setup.labels, looks, markers=False)
    return figure


def digit_places(setup: Setup, data: Table, looks: Mapping[str, Style]) -> Figure:
    """Wrong tokens by place, the largest place first, as one writes."""
    return _dots(
        setup,
        data,
        looks,
        ("place", "wrong"),
        place_name,
        ("place of the token in the gold number", "% of the tokens wrong"),
        100,
    )


def lengths(setup: Setup, data: Table, looks: Mapping[str, Style]) -> Figure:
    """The headline by the length of the gold number."""
    headline = setup.headline
    labels = ("digits of the gold number before its point", headline.heading)
    return _dots(setup, data, looks, ("digits", headline.name), str, labels, headline.factor)


def calibration(setup: Setup, data: Table, looks: Mapping[str, Style], errors: Mapping[tuple[str, str], float]) -> Figure:
    """A panel for each loss: how often it was right, by how sure it was; the baseline in grey behind it."""
    from matplotlib.figure import Figure

    splits, labels = data.distinct("split"), data.distinct("loss")
    columns = min(6, len(labels))
    splits = splits if len(labels) <= columns else splits[:1]  # a page would not hold them
    lines = -(-len(labels) // columns)
    figure = Figure(figsize=(WIDTH * max(2, columns) / 6, 0.4 + 1.95 * lines * len(splits)))
    grid = figure.subplots(lines * len(splits), columns, sharex=True, sharey=True, squeeze=False)
    for axes in grid.flat:
        axes.set_axis_off()
    for block, split in enumerate(splits):
        for at, label in enumerate(labels):
            axes = grid[block * lines + at // columns, at % columns]
            axes.set_axis_on()
            axes.plot([0, 100], [0, 100], color=GREY, linewidth=0.9, linestyle=(0, (2, 2)))
            for name in dict.fromkeys([setup.baseline, label]):
                rows = [row for row in data.where(split=split, loss=name) if row["tokens"] >= FEW_TOKENS]
                look = looks[label] if name == label else Style("#a8a8a8", "", "-", 1.6)
                x, y = ([100 * row[key] for row in rows] for key in ("confidence", "right"))
                axes.plot(x, y, color=look.colour, linewidth=look.width, marker=look.marker or None, markersize=4)
            axes.set(xlim=(0, 100), ylim=(0, 100), xticks=[0, 50, 100], yticks=[0, 50, 100], aspect="equal")
            gap = errors.get((split, label))
            axes.set_title(
                f"{plain(label, 16)}\n" + ("" if gap is None else f"gap {100 * gap:.1f} points"), fontsize=9, fontweight="normal"
            )
            if at % columns == 0:
                axes.set_ylabel(f"{split_name(split)},\n% right", fontsize=9)
            axes.tick_params(labelsize=8.5)
    figure.supxlabel("how sure the model was, %", fontsize=10)
    return figure


def ranges(setup: Setup, data: Table, looks: Mapping[str, Style]) -> Figure:
    """In range, out of range, and the fall between them, a row for each loss."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    labels, headline = setup.labels[::-1], setup.headline
    factor = headline.factor
    figure = Figure(figsize=(WIDTH, 0.95 + 0.4 * len(labels)))
    axes = figure.subplots()
    for y, label in enumerate(labels):
        look = looks[label]
        found = {row["split"]: row for row in data.where(loss=label)}
        ends = [factor * found[split][headline.name] for split in (IN_RANGE, OUT_OF_RANGE) if split in found]
        axes.plot(ends, [y] * len(ends), color=PALE, linewidth=5, solid_capstyle="butt", zorder=1)
        for split, row in found.items():
            shift = 0.11 if split == IN_RANGE else -0.11
            face = look.colour if split == IN_RANGE else "white"
            axes.plot([factor * row["low"], factor * row["high"]], [y + shift] * 2, color=look.colour, linewidth=1.4)
            axes.plot(
                [factor * row[headline.name]], [y + shift], look.marker, color=look.colour, markerfacecolor=face, markersize=7
            )
    axes.set_yticks(range(len(labels)), [plain(label) for label in labels])
    axes.set_ylim(-0.6, len(labels) - 0.4)
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel(headline.heading)
    _wide_enough(axes)
    handles = [
        Line2D([], [], color=GREY, marker="o", markerfacecolor=face, linestyle="-", label=text)
        for face, text in ((GREY, "in range"), ("white", "out of range"))
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=2)
    return figure


def gain_and_cost(setup: Setup, data: Table, looks: Mapping[str, Style], by_sign: bool) -> Figure:
    """Time per step to the right, difference in the headline upwards; the baseline is where the lines cross."""
    from matplotlib.figure import Figure

    shown_in = EXAMPLES_WON if by_sign else setup.headline
    factor, unit = shown_in.factor, "points" if shown_in.percent else shown_in.unit
    figure = Figure(figsize=(WIDTH, 3.6))
    axes = figure.subplots()
    axes.axhline(0, color=INK, linewidth=1)
    axes.axvline(1, color=INK, linewidth=1)
    for row in data.where():
        look = looks[row["loss"]]
        x, y = row["time_ratio"], factor * row["difference"]
        axes.plot([x, x], [factor * row["low"], factor * row["high"]], color=look.colour, linewidth=1.6)
        axes.plot([row["time_ratio_low"], row["time_ratio_high"]], [y, y], color=look.colour, linewidth=1.6)
        axes.plot([x], [y], look.marker, color=look.colour, markersize=8)
    axes.set_xlabel(f"time per step, of {plain(setup.baseline or '')}'s")
    text = "nearer less farther" if by_sign else f"difference in {shown_in.title}"
    axes.set_ylabel(f"{text}, {unit}" if unit else text)
    low, high = axes.get_xlim()
    axes.set_xlim(min(low, 0.97), max(high, 1.05))
    _legend(figure, [row["loss"] for row in data.where()], looks)
    return figure


def to_svg(figure: Figure, name: str, description: str) -> str:
    """The figure as an ``<svg>`` element for a page: ids of its own, no style sheet, no fonts of its own."""
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
                element.set(key, " ".join(_ROUNDED.sub(r"\1", value).split()))
            elif "url(#" in value:
                element.set(key, value.replace("url(#", f"url(#{name}-"))
            elif key == "style":
                element.set("style", re.sub(r"font: ([\d.]+px) [^;]*", r"font-size: \1", value))
    width, height = (float(root.attrib.pop(side).removesuffix("pt")) for side in ("width", "height"))
    root.attrib.update({"viewBox": f"0 0 {width:g} {height:g}", "role": "img", "aria-label": shown(description, 1000)})
    root.attrib.update({"style": f"max-width: {width:g}pt", "stroke-linejoin": "round"})
    return ElementTree.tostring(root, encoding="unicode")


_ROUNDED = re.compile(r"(\d+\.\d{2})\d+")


def plain(label: str, limit: int = 26) -> str:
    """A label in a figure: on one line, short, and never hidden from the legend by an underscore."""
    text = " ".join(shown(label, limit).split())
    return f"\u200b{text}" if text.startswith("_") else text


def split_name(split: str) -> str:
    """In headings."""
    return SPLIT_NAMES.get(split, plain(split))


def _bar(shade: str) -> dict[str, Any]:
    return {"facecolor": shade, "edgecolor": "#8a8a8a", "linewidth": 0.5, "hatch": "////" if shade == _SHADES[-1] else None}


def _spread(setup: Setup) -> Spread:
    how = spread(setup)
    assert how is not None  # or there would be no data to draw
    return how


def _panels(
    data: Table,
    height: float,
    by: str = "split",
    sharex: bool = False,
    sharey: bool = False,
    titles: Mapping[str, str] | None = None,
) -> tuple[Figure, list[tuple[Axes, str]]]:
    from matplotlib.figure import Figure

    names = data.distinct(by)
    figure = Figure(figsize=(WIDTH, height))
    grid = figure.subplots(1, len(names), sharex=sharex, sharey=sharey, squeeze=False)[0]
    for axes, name in zip(grid, names, strict=True):
        axes.set_title(plain((titles or {}).get(name, split_name(name)), 60))
    return figure, list(zip(grid, names, strict=True))


def _wide_enough(axes: Axes) -> None:
    """No zooming in on what is all alike."""
    low, high = axes.get_xlim()
    if low > -0.06 and high < 0.06 and axes.dataLim.width < 1e-9:
        axes.set_xlim(-1, 1)


def _dots(
    setup: Setup,
    data: Table,
    looks: Mapping[str, Style],
    columns: tuple[str, str],
    name: Callable[[int], str],
    axis_labels: tuple[str, str],
    factor: int,
) -> Figure:
    """A point with its interval for each loss, side by side in each class."""
    figure, panels = _panels(data, height=3.6, sharey=True)
    by, value = columns
    step = 0.72 / len(setup.labels)
    for axes, split in panels:
        classes = list(dict.fromkeys(row[by] for row in data.where(split=split)))
        for at, label in enumerate(setup.labels):
            rows = data.where(split=split, loss=label)
            x = [classes.index(row[by]) + step * (at - (len(setup.labels) - 1) / 2) for row in rows]
            low, middle, high = ([factor * row[key] for row in rows] for key in ("low", value, "high"))
            axes.vlines(x, low, high, color=looks[label].colour, linewidth=1.3)
            axes.plot(x, middle, looks[label].marker, color=looks[label].colour, markersize=5, clip_on=False)
        for border in range(1, len(classes)):
            axes.axvline(border - 0.5, color=PALE, linewidth=0.8)
        axes.set_xticks(range(len(classes)), [name(at) for at in classes])
        axes.tick_params(axis="x", length=0)
        axes.grid(axis="x", visible=False)
        axes.set_xlabel(axis_labels[0])
    panels[0][0].set_ylabel(axis_labels[1])
    panels[0][0].set_ylim(bottom=0)
    _legend(figure, setup.labels, looks, lines=False)
    return figure


def _legend(figure: Figure, labels: Sequence[str], looks: Mapping[str, Style], markers: bool = True, lines: bool = True) -> None:
    from matplotlib.lines import Line2D

    handles = [
        Line2D(
            [],
            [],
            label=plain(label),
            marker=looks[label].marker if markers else None,
            color=looks[label].colour,
            linestyle=looks[label].dash if lines and not markers else "none",
            linewidth=looks[label].width,
        )
        for label in labels
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=min(7, len(handles)), handlelength=2.8 if lines else 1)
