"""Error against the number of members: a line per loss, a panel per decision and split, and lines for baselines."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from numerate.lab.report.figures.drawing import (
    GREY,
    PAPER,
    FigurePlan,
    Styles,
    arrows_said,
    direction,
    draw_infinite,
    legend,
    panels,
    plain,
)
from numerate.lab.report.figures.svg import mark
from numerate.lab.report.member_scores import MemberScores
from numerate.lab.report.tables import DataTable
from numerate.lab.wording.text import counted, sentence, split_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_APART = 0.035  # between losses, as a share of a doubling of the members
_REACH = 0.3  # of the span of scores and intervals: a baseline farther away is named in the caption alone


def by_members(found: MemberScores, styles: Styles, baselines: Mapping[str, float]) -> FigurePlan:
    """Score of each loss by number of members, with its interval; ``baselines`` are figures of the first split."""
    measure = found.measure
    rows: list[tuple[Any, ...]] = []
    for pool in found.pools:
        for rule, score in pool.scores.items():
            p = None if score.comparison is None else score.comparison.corrected_p
            rows.append((pool.split, rule, pool.label, pool.members, *score.interval.numbers, p, score.better))
    rows = [(_panel(found, row[0], row[1]), *row) for row in rows]
    columns = ("panel", "split", "decision", "loss", "members", measure.name, "low", "high", "p_holm", "better")
    table = DataTable(columns, rows)
    drawn = [value for row in rows for value in row[5:8] if math.isfinite(value)] or [0.0]  # scores and the ends of intervals
    reach = _REACH * (max(drawn) - min(drawn) or max(drawn))
    near = {name: value for name, value in baselines.items() if min(drawn) - reach <= value <= max(drawn) + reach}
    far = [f"{name} {measure.value(value)}" for name, value in baselines.items() if name not in near]
    told = " Dashed: baselines, fitted to the same rows." if near else ""
    told += f" Baselines beyond the axis: {', '.join(far)}." if far else ""
    return FigurePlan(
        "members",
        "Score by number of members",
        f"{sentence(measure.summary)} of answers that are decided from the pool of the first members of each run, with 95 % "
        f"intervals over seeds and examples (not paired). Filled: significantly different from one member.{told}"
        f"{arrows_said(table, measure.name)}{direction(measure)}",
        "no run has several members",
        table,
        lambda data: _draw(data, found, styles, near),
    )


def _panel(found: MemberScores, split: str, rule: str) -> str:
    places = [split_name(split)] if len({pool.split for pool in found.pools}) > 1 else []
    return ", ".join([*places, f"by {rule}"])


def _draw(data: DataTable, found: MemberScores, styles: Styles, baselines: Mapping[str, float]) -> Figure:
    measure, labels = found.measure, data.distinct("loss")
    figure, axes_by = panels(data, height=4.2, by="panel", sharey=True, across=2)
    sizes = sorted(data.distinct("members"))
    for at, (axes, panel) in enumerate(axes_by):
        for place, label in enumerate(labels):
            shift = 2 ** (_APART * (place - (len(labels) - 1) / 2))  # beside each other
            rows, style = data.where(panel=panel, loss=label), styles[label]
            x, y = [row["members"] * shift for row in rows], [measure.factor * row[measure.name] for row in rows]
            drawn = [math.isfinite(value) for value in y]
            line = [value if known else math.nan for value, known in zip(y, drawn, strict=True)]
            axes.plot(x, line, **style.line, zorder=2, gid=mark(label))
            for row, across, value in zip(rows, x, y, strict=True):
                said = measure.estimate(row[measure.name], row["low"], row["high"])
                tip = f"{label}, {counted(row['members'], 'member')}, {panel}: {said}"
                look: dict[str, Any] = {"color": style.colour, "gid": mark(label, tip)}
                if not math.isfinite(value):
                    draw_infinite(axes, across, look, upright=True)
                    continue
                ends = [measure.factor * row[end] for end in ("low", "high")]
                if all(map(math.isfinite, ends)):
                    axes.plot([across, across], ends, linewidth=1.3, solid_capstyle="butt", zorder=2, **look)
                look["markerfacecolor"] = PAPER if row["better"] is None else style.colour
                axes.plot([across], [value], style.marker, markersize=6.5, markeredgewidth=1.4, zorder=3, **look)
        axes.set_xscale("log", base=2)
        axes.set_xticks(sizes, [str(size) for size in sizes])
        axes.set_xticks([], minor=True)
        axes.set_xlim(sizes[0] / 2**0.35, sizes[-1] * 2**0.35)
        axes.set_xlabel("members")
        if data.where(panel=panel)[0]["split"] == found.pools[0].split:
            _baselines(axes, baselines, found, named=at == 0)
    unit = "%" if measure.percent else measure.unit
    axes_by[0][0].set_ylabel(f"{measure.summary}{f', {unit}' if unit else ''}")
    legend(figure, labels, styles)
    return figure


def _baselines(axes: Axes, baselines: Mapping[str, float], found: MemberScores, *, named: bool) -> None:
    """Draw a dashed line per baseline, in one panel with its name on it."""
    for name, value in baselines.items():
        text = f"{name} {found.measure.value(value)}"
        height = found.measure.factor * value
        axes.axhline(height, color=GREY, linewidth=1.3, linestyle=(0, (4, 3)), gid=mark(None, text), zorder=1)
        if named:
            look: dict[str, Any] = {"fontsize": 9, "color": GREY, "ha": "right", "va": "bottom"}
            axes.annotate(plain(text, 40), (1, height), (-3, 1), ("axes fraction", "data"), "offset points", **look)
