"""Size of the errors: the classes in which errors are counted, and the figure of their shares."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from numerate.distribution.exact import Floats
from numerate.lab.report.analysis import Setup
from numerate.lab.report.figures.drawing import EDGE, INK, PAPER, FigurePlan, Styles, label_rows, named, panels
from numerate.lab.report.figures.svg import mark
from numerate.lab.report.tables import DataTable
from numerate.lab.wording.measures import Measure, measure
from numerate.plotting.palette import ON_SHADES, SHADES, colour

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SHADES = (*map(colour, SHADES), PAPER)  # dark to light, also in grey; the last is hatched
_STEPS = {
    "relative_error": (0.0, 0.01, 0.1, 1.0),
    "time_gap_circular": (0.0, 5.0, 15.0, 60.0),
    "time_gap": (0.0, 5.0, 15.0, 60.0),
    "iou": (0.9, 0.75, 0.5, 0.25),
    "absolute_error": (0.0, 1.0, 10.0, 100.0),
}


@dataclass(frozen=True)
class ErrorScale:
    """Measure of the size of an error, and the limits of its classes."""

    measure: Measure
    steps: tuple[float, ...]  # limits of the classes, best first

    @property
    def higher_is_better(self) -> bool:
        """True for an overlap (IoU), False for an error."""
        return self.measure.higher_is_better is True

    def classes(self) -> tuple[str, ...]:
        """Return the names of the classes, best first; the last is ``no answer``."""
        names = ["exact" if step == 0 else f"{'≥' if self.higher_is_better else '≤'} {self._text(step)}" for step in self.steps]
        return (*names, f"{'<' if self.higher_is_better else '>'} {self._text(self.steps[-1])}", "no answer")

    def class_of(self, values: Floats) -> NDArray[np.int64]:
        """Return the position in :meth:`classes` of each value, ignoring ``no answer``."""
        within = [values >= step if self.higher_is_better else values <= step for step in self.steps]
        found: NDArray[np.int64] = np.argmax(np.stack([*within, np.ones_like(values, bool)]), axis=0)
        return found

    def _text(self, step: float) -> str:
        """Format a limit: ``10 %``, ``5 min``."""
        if self.measure.name == "relative_error":
            return f"{100 * step:g} %"
        return f"{step:,g}{' ' + self.measure.unit if self.measure.unit else ''}"


def error_scale(setup: Setup) -> ErrorScale | None:
    """Return the error scale of the task's metrics; None if none gives the size of an error."""
    names = {metric.name for split in setup.splits for metric in setup.measures(split)}
    return next((ErrorScale(measure(name), steps) for name, steps in _STEPS.items() if name in names), None)


def error_sizes(setup: Setup, styles: Styles) -> FigurePlan:
    """Share of answers by size of the error."""
    scale, rows = error_scale(setup), list[tuple[Any, ...]]()
    name, classes = ("", ()) if scale is None else (scale.measure.name, scale.classes())
    for split in (split for split in setup.splits if name in setup.examples(split).measures):
        assert scale is not None
        for label in setup.labels:
            cells = [setup.cells[label][seed] for seed in sorted(setup.cells[label])]
            answered = np.array([[answer is not None for answer in cell.splits[split].answers] for cell in cells])
            found = np.where(answered, scale.class_of(setup.values(label, split, name)), len(scale.steps) + 1)
            rows += [(split, label, each, float((found == i).mean())) for i, each in enumerate(classes)]

    def draw(data: DataTable) -> Figure:
        """One bar per loss, divided by size of the error."""
        from matplotlib.patches import Patch

        labels = setup.labels[::-1]
        figure, axes_by = panels(data, height=1.2 + 0.34 * len(labels), sharey=True)
        for axes, split in axes_by:
            for y, label in enumerate(labels):
                left = 0.0
                for row, shade in zip(data.where(split=split, loss=label), _SHADES, strict=True):
                    width = 100 * row["share"]
                    if width > 0:
                        gid = mark(label, f"{named(data, row, row[name])}: {width:.1f} %")
                        axes.barh(y, width, left=left, height=0.74, **_bar(shade), gid=gid)
                    if width >= 7:
                        look: dict[str, Any] = {"fontsize": 8.5, "color": _text_on(shade), "gid": mark(label)}
                        axes.text(left + width / 2, y, f"{width:.0f}", ha="center", va="center", **look)
                    left += width
            label_rows(axes, labels)
            axes.set_xlim(0, 100)
            axes.grid(visible=False)
            axes.set_xlabel(f"% of the answers, by {measure(name).plain}")
        handles = [Patch(label=each, **_bar(shade)) for each, shade in zip(classes, _SHADES, strict=True)]
        figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))
        return figure

    return FigurePlan(
        "errors",
        "Size of the errors",
        "Answers of each loss, over all seeds, by size of the error, in %. Darker is better; hatched means no answer.",
        "no metric gives the size of an error",
        DataTable(("split", "loss", name, "share"), rows),
        draw,
    )


def _bar(shade: str) -> dict[str, Any]:
    return {"facecolor": shade, "edgecolor": EDGE, "linewidth": 0.5, "hatch": "////" if shade == _SHADES[-1] else None}


def _text_on(shade: str) -> str:
    """Return the colour of text on a bar."""
    return INK if shade == PAPER else colour([*ON_SHADES][shade not in _SHADES[:2]])
