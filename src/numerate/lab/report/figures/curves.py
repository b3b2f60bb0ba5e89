"""Learning curves: cross-entropy, overrun and validation scores by training step."""

from __future__ import annotations

import math
from collections.abc import Mapping, Set
from typing import TYPE_CHECKING, Any

import numpy as np

from numerate.lab.evaluation.missing import NO_NUMBER
from numerate.lab.report.analysis import Setup
from numerate.lab.report.figures.drawing import GREY, FigurePlan, Styles, few_ticks, is_infinite, legend, panels
from numerate.lab.report.figures.svg import mark
from numerate.lab.report.tables import DataTable
from numerate.lab.wording.text import rounded

if TYPE_CHECKING:
    from matplotlib.figure import Figure

POINTS = 120  # per curve
OVERRUN = "overrun"  # the curve of ``numeric/overrun``


def learning_curves(setup: Setup, styles: Styles) -> FigurePlan:
    """Cross-entropy without the numeric term, overrun, and validation scores, by step: mean, lowest and highest seed.

    Validation scores are those of the headline metric, exact answers and the absolute error.
    """
    rows: list[tuple[Any, ...]] = []
    scores = {f"validation/{name}" for name in (setup.headline.name, "exact", "absolute_error")}
    for label in setup.labels:
        curves: dict[str, dict[int, list[float]]] = {}
        for cell in setup.cells[label].values():
            # A resumed run logs some steps twice: the later value replaces the earlier one.
            followed = ((point, _followed(point, scores)) for point in cell.curve)
            points = {(name, int(point["step"])): value for point, own in followed for name, value in own.items()}
            for (name, step), value in points.items():
                curves.setdefault(name, {}).setdefault(step, []).append(value)
        for name, steps in curves.items():
            logged = sorted(steps)
            drawn = np.linspace(0, len(logged) - 1, min(POINTS, len(logged)))
            for step in sorted({logged[round(position)] for position in drawn}):
                rows.append((name, label, step, float(np.mean(steps[step])), min(steps[step]), max(steps[step])))
    table = DataTable(("curve", "loss", "step", "mean", "least", "most"), rows)
    names = table.distinct("curve")
    notes = {
        " Validation: greedy answers to examples that are not trained on.": any(name.startswith("validation/") for name in names),
        " A line has a gap where too many answers of a seed hold no number.": is_infinite(table, "mean"),
        " With soft labels it stays above the entropy of the labels.": any(run.config.get("soft") for run in setup.runs()),
        " Overrun is the probability of more digits where the label's number ends: 0 is right, and near 1 numbers do not end.": (
            OVERRUN in names
        ),
    }

    def draw(data: DataTable) -> Figure:
        """One panel per curve: the mean over seeds, and a band from the lowest to the highest seed."""
        figure, axes_by = panels(data, by="curve", height=3.4)
        for axes, name in axes_by:
            drawn = data.where(curve=name)
            for label in setup.labels:
                rows = [row for row in drawn if row["loss"] == label]
                steps, means, low, high = ([row[key] for row in rows] for key in ("step", "mean", "least", "most"))
                style, finite = styles[label], [math.isfinite(mean) for mean in means]
                last = [f"{rounded(row['mean']) if finite[-1] else NO_NUMBER} at step {row['step']:,g}" for row in rows[-1:]]
                look: dict[str, Any] = {"color": style.colour, "alpha": 0.1, "linewidth": 0, "gid": mark(label)}
                axes.fill_between(steps, low, high, where=finite, **look)
                dot = style.marker if sum(finite) == 1 else None  # one point is no line
                gid = mark(label, ", ".join([label, name, *last]))
                axes.plot(steps, means, **style.line, marker=dot, zorder=3 if label == setup.baseline else 2, gid=gid)
            axes.set_xlabel("training step")
            if not any(math.isfinite(row["mean"]) for row in drawn):
                axes.set(xticks=[], yticks=[])
                axes.text(0.5, 0.5, NO_NUMBER, ha="center", color=GREY, transform=axes.transAxes)
            least, most = min(row["least"] for row in drawn), max(row["most"] for row in drawn)
            if name == "cross-entropy" and 0 < 4 * least < most:
                few_ticks(axes, "y", least, most)
        legend(figure, setup.labels, styles, markers=False)
        return figure

    return FigurePlan(
        "curves",
        "Learning curves",
        "Cross-entropy during training, without the numeric term, so that losses can be compared. Lines are means over seeds, "
        "bands span the lowest to the highest seed. Lower is better, but cross-entropy ignores how far off a wrong number is."
        + "".join(note for note, said in notes.items() if said),
        "no curve was recorded",
        table,
        draw,
    )


def _followed(point: Mapping[str, float], scores: Set[str]) -> dict[str, float]:
    """Select the values of a logged step that are drawn."""
    curves = {"cross-entropy": point.get("loss/cross_entropy", point.get("loss")), OVERRUN: point.get("numeric/overrun")}
    curves |= {name: value for name, value in point.items() if name in scores}
    return {name: value for name, value in curves.items() if value is not None}
