"""Draw a point with its interval per loss, side by side in each class of examples or tokens."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from numerate.lab.report.analysis import Setup
from numerate.lab.report.drawing import INK, PALE, Span, Styles, draw_infinite, draw_spans, legend, panels
from numerate.lab.report.svg import mark
from numerate.lab.report.tables import DataTable

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def dots(
    setup: Setup,
    data: DataTable,
    styles: Styles,
    columns: tuple[str, str],
    name: Callable[[Any], str],
    axis_labels: tuple[str, str],
    said: Callable[[Mapping[str, Any]], str],
    factor: int = 1,
    signed: bool = False,
) -> Figure:
    """Draw the column ``columns[1]`` by the classes of ``columns[0]``, with ``low`` to ``high``, one panel per split.

    ``said`` returns a row in words, for hovering. ``signed`` values have a line at 0 and, in each panel, a vertical axis of their
    own.
    """
    figure, axes_by = panels(data, height=3.6, sharey=not signed)
    by, value_name = columns
    step, spans = 0.72 / len(setup.labels), list[Span]()
    for axes, split in axes_by:
        classes = list(dict.fromkeys(row[by] for row in data.where(split=split)))
        for i, label in enumerate(setup.labels):
            for row in data.where(split=split, loss=label):
                at = classes.index(row[by]) + step * (i - (len(setup.labels) - 1) / 2)
                least, value, most = (factor * row[key] for key in ("low", value_name, "high"))
                look: dict[str, Any] = {"color": styles[label].colour, "gid": mark(label, f"{label}, {said(row)}")}
                if math.isinf(value):
                    draw_infinite(axes, at, look, upright=True)
                    continue
                spans.append(Span(axes, at, least, most, look | {"linewidth": 1.3}))
                axes.plot([at], [value], styles[label].marker, markersize=5, clip_on=signed, **look)
        for border in range(1, len(classes)):
            axes.axvline(border - 0.5, color=PALE, linewidth=0.8)
        if signed:
            axes.axhline(0, color=INK, linewidth=1)
        axes.set_xticks(range(len(classes)), [name(value) for value in classes])
        axes.set_xlim(-0.5, len(classes) - 0.5)
        axes.tick_params(axis="x", length=0, pad=7)  # below points at 0
        axes.grid(axis="x", visible=False)
        axes.set_xlabel(axis_labels[0])
    if not spans:
        axes_by[0][0].set_yticks([])
    draw_spans(spans, upright=True)
    axes_by[0][0].set_ylabel(axis_labels[1])
    if not signed:
        axes_by[0][0].set_ylim(bottom=0)
    legend(figure, setup.labels, styles, lines=False)
    return figure
