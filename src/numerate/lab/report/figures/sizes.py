"""Effect by model size: what each loss and decision gains over the baseline with greedy answers, by number of parameters."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from numerate.lab.evaluation.decisions import FITTING, GREEDY
from numerate.lab.report.analysis import DATA_KEYS, Score, Setup, against, holm_corrected
from numerate.lab.report.decisions import fitting_rule, same_rule
from numerate.lab.report.figures.drawing import INK, PAPER, WIDTH, FigurePlan, PlotStyle, Styles, panels, plain
from numerate.lab.report.figures.drawing import styles as plot_styles
from numerate.lab.report.figures.svg import mark
from numerate.lab.report.tables import DataTable
from numerate.lab.wording.decisions import pair
from numerate.lab.wording.text import MOST_NAMED, listed, split_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_LOSSES = 6  # beside the baseline
Levers = Sequence[tuple[str, str]]  # pairs of loss and decision
_LETTER = 0.085  # inches, of a tick label
_MARGIN = 0.12  # of the axis, beside the smallest and the largest model


def by_size(found: Iterable[tuple[Setup, Sequence[Score]]], styles: Styles) -> Iterator[FigurePlan]:
    """Yield a figure for each task and data that were run with models of at least two sizes; ``found`` are headline scores."""
    groups: dict[str, list[tuple[Setup, Sequence[Score]]]] = {}
    for setup, headline in found:
        if setup.baseline is not None and _parameters(setup):
            key = json.dumps([setup.first.config.get(name) for name in DATA_KEYS], sort_keys=True)
            groups.setdefault(key, []).append((setup, headline))
    for same in groups.values():
        same.sort(key=lambda each: _parameters(each[0]))
        setups = [setup for setup, _ in same]
        levers = _levers(setups)
        data = _compared(same, levers)
        if len(data.distinct("parameters")) > 1:
            yield _figure(setups, levers, data, styles)


def _parameters(setup: Setup) -> int:
    return int(setup.first.cost.get("parameters", 0))


def _figure(setups: Sequence[Setup], levers: Levers, data: DataTable, styles: Styles) -> FigurePlan:
    first = setups[0]
    measure, plain_base = first.gain_measure, pair(str(first.baseline), GREEDY)
    what = f"the difference in {first.headline.title} between a loss and decision and {plain_base} of the same model"
    if first.headline.median:
        what = f"the share of examples on which a loss and decision is closer to the gold answer than {plain_base} of the same "
        what += "model minus the share farther"
    better = f"{'Higher' if measure.higher_is_better else 'Lower'} is better; 0 is {plain_base}."
    few = f" Of the losses, the {MOST_LOSSES} best are drawn." if len(first.others()) > MOST_LOSSES else ""
    return FigurePlan(
        "sizes",
        f"Effect by model size: {first.title.replace(f' ({first.model})', '')}",
        f"Each point is {what}, by number of parameters (on a logarithmic axis), with its 95 % interval. {better} Filled points "
        f"are significant after Holm's correction for all points.{few} {_said(setups, data, levers)}",
        "",
        data,
        lambda data: _draw(first, data, levers, styles),
    )


def _levers(setups: Sequence[Setup]) -> Levers:
    """Return the pairs to draw: the baseline with each decision, and each other loss with the one that fits the headline.

    The decision is not chosen by its score, which would make the best of several look better than it is.
    """
    first, *rest = setups
    rules = [rule for rule in first.decisions(first.baseline) if all(rule in other.decisions(other.baseline) for other in rest)]
    name = first.headline.name
    exact = first.headline.higher_is_better  # then another rule than the fitting one is no substitute
    fitting = (same_rule(rules, FITTING.get(name)) if exact else fitting_rule(rules, name)) or GREEDY
    losses = [label for label in setups[-1].others() if any(label in other.others() for other in setups[:-1])]
    return [(str(first.baseline), rule) for rule in rules if rule != GREEDY] + [(loss, fitting) for loss in losses[:MOST_LOSSES]]


def _compared(found: Sequence[tuple[Setup, Sequence[Score]]], levers: Levers) -> DataTable:
    """Return every pair of every model compared with the baseline and greedy answers, with corrected p-values."""
    every = [(setup, score) for setup, headline in found for score in headline if (score.label, score.decision) in levers]
    tested = holm_corrected([against(setup, score, str(setup.baseline), GREEDY) for setup, score in every])
    rows = [
        (
            *(score.split, setup.model, _parameters(setup), score.label, score.decision),
            *(*score.gain.numbers, score.comparison.corrected_p, score.better),
        )
        for (setup, _), score in zip(every, tested, strict=True)
        if score.gain is not None and score.comparison is not None
    ]
    columns = ("split", "model", "parameters", "loss", "decision", "difference", "low", "high", "p_holm", "better")
    return DataTable(columns, rows)


def _said(setups: Sequence[Setup], data: DataTable, levers: Levers) -> str:
    """Return what the smallest and the largest model gain, in the first split."""
    measure, ends, told = setups[0].gain_measure, (setups[0], setups[-1]), []
    for label, decision in levers:
        rows = [data.where(split=setups[0].splits[0], model=end.model, loss=label, decision=decision) for end in ends]
        if all(rows):
            small, large = (measure.difference(row[0]["difference"]) for row in rows)
            told.append(f"{pair(label, decision)} from {small.removesuffix(' points')} to {large}")
    if not told:
        return ""
    place = f", {split_name(setups[0].splits[0])}" if len(setups[0].splits) > 1 else ""
    names = " to ".join(f"{_name(end.model)} ({_parameters(end):,} parameters)" for end in ends)
    return f"From {names}{place}: {listed(told, MOST_NAMED)}. Whether an effect changes with size is not tested."


def _name(model: str) -> str:
    """Return the name of a model without its folder or its owner."""
    return plain(PurePath(model.replace("\\", "/")).name or model)


def _draw(setup: Setup, data: DataTable, levers: Levers, styles: Styles) -> Figure:
    """Draw a line per loss and decision over the number of parameters, and a line at 0, the baseline with greedy answers."""
    from matplotlib.lines import Line2D

    measure, look = setup.gain_measure, _styles(setup, levers, styles)
    figure, axes_by = panels(data, height=4.4, sharey=True)
    sizes = {row["parameters"]: "" for row in data.where()}
    for size in sizes:
        models = dict.fromkeys(_name(row["model"]) for row in data.where(parameters=size))
        sizes[size] = f"{', '.join(models)}\n{_short(size)}"
    span = math.log10(max(sizes) / min(sizes))
    for axes, split in axes_by:
        axes.axhline(0, color=INK, linewidth=1.2)
        for at, (label, decision) in enumerate(levers):
            rows, style = data.where(split=split, loss=label, decision=decision), look[label, decision]
            shift = 10 ** (0.014 * span * len(axes_by) * (at - (len(levers) - 1) / 2))  # beside each other
            x, y = [shift * row["parameters"] for row in rows], [measure.factor * row["difference"] for row in rows]
            if not rows:
                continue
            axes.plot(x, y, **style.line, zorder=2, gid=mark(label))
            for row, across, middle in zip(rows, x, y, strict=True):
                gain = f"{measure.difference(row['difference'])} ({measure.signed_range(row['low'], row['high'])})"
                place = f", {split_name(split)}" if len(axes_by) > 1 else ""
                tip = f"{pair(label, decision)}, {_name(row['model'])}, {row['parameters']:,} parameters{place}: {gain}"
                drawn: dict[str, Any] = {"color": style.colour, "gid": mark(label, tip)}
                ends = [measure.factor * row[end] for end in ("low", "high")]
                axes.plot([across, across], ends, linewidth=1.3, solid_capstyle="butt", zorder=2, **drawn)
                drawn["markerfacecolor"] = PAPER if row["better"] is None else style.colour
                axes.plot([across], [middle], style.marker, markersize=6.5, markeredgewidth=1.4, zorder=3, **drawn)
        axes.set_xscale("log")
        axes.set_xlim(min(sizes) / 10 ** (_MARGIN * span), max(sizes) * 10 ** (_MARGIN * span))
        _label_sizes(axes, sizes, 0.7 * WIDTH / len(axes_by))  # less what long labels take beside the axes
    unit = "points" if measure.percent else measure.unit
    text = f"examples closer than {plain(str(setup.baseline))}, greedy,\nminus farther"
    if not setup.headline.median:
        text = f"difference in {measure.title}\nfrom {plain(str(setup.baseline))}, greedy"
    axes_by[0][0].set_ylabel(f"{text}{f', {unit}' if unit else ''}")
    handles = [Line2D([], [], label=plain(pair(*lever), 44), marker=look[lever].marker, **look[lever].line) for lever in levers]
    legend = figure.legend(handles=handles, loc="outside lower center", ncols=3, handlelength=2.8)
    for handle, written, (label, _) in zip(legend.legend_handles, legend.texts, levers, strict=True):
        for artist in filter(None, (handle, written)):
            artist.set_gid(mark(label))
    return figure


def _styles(setup: Setup, levers: Levers, styles: Styles) -> dict[tuple[str, str], PlotStyle]:
    """Return the style of each pair: that of the loss, and for decisions of the baseline black with lines of their own."""
    own = plot_styles([decision for label, decision in levers if label == setup.baseline], [])
    return {
        (label, decision): (
            styles[label]
            if label != setup.baseline
            else PlotStyle(INK, own[decision].marker, own[decision].dash, styles[label].width)
        )
        for label, decision in levers
    }


def _label_sizes(axes: Axes, sizes: Mapping[int, str], width: float) -> None:
    """Write the names of models below the axis; one that would touch its neighbour goes a line lower."""
    ends: list[float] = []  # in inches: where the last label of each line ends
    low, high = map(math.log10, axes.get_xlim())
    texts = []
    for size, text in sizes.items():
        middle = width * (math.log10(size) - low) / (high - low)
        half = _LETTER * max(map(len, text.splitlines())) / 2
        line = next((line for line, end in enumerate(ends) if end < middle - half), len(ends))
        ends[line:] = [middle + half + _LETTER, *ends[line + 1 :]]
        texts.append("\n" * (2 * line) + text)
    axes.set_xticks([*sizes], texts, fontsize=9)
    axes.set_xticks([], minor=True)


def _short(number: int) -> str:
    """Format a number of parameters: ``79 k``, ``135 M``, ``1.7 B``."""
    for unit, letter in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if number >= unit:
            return f"{number / unit:.3g} {letter}"
    return str(number)
