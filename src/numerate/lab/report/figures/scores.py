"""Scores by loss: their differences from the baseline, with each decision, and by length of the number."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from numerate.lab.evaluation.decisions import GREEDY
from numerate.lab.report.analysis import Score, Setup, interval
from numerate.lab.report.decisions import Decisions
from numerate.lab.report.figures.drawing import (
    INK,
    LEAST_COUNT,
    PALE,
    PAPER,
    RESAMPLES,
    FigurePlan,
    Row,
    Span,
    Styles,
    arrows_said,
    direction,
    dots,
    draw_infinite,
    draw_spans,
    few_ticks,
    label_rows,
    legend,
    named,
    panels,
    plain,
)
from numerate.lab.report.figures.drawing import styles as plot_styles
from numerate.lab.report.figures.svg import mark
from numerate.lab.report.records import plain_number
from numerate.lab.report.tables import DataTable
from numerate.lab.wording.decisions import decision_title
from numerate.lab.wording.text import sentence, split_name

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def differences(setup: Setup, scores: Sequence[Score], styles: Styles) -> FigurePlan:
    """Difference of each loss from the baseline, with interval and corrected p-value."""
    base, name, measure = setup.baseline, setup.headline.title, setup.gain_measure
    rows = [
        (score.split, score.decision, score.label, *score.gain.numbers, score.comparison.corrected_p, score.better)
        for score in scores
        if score.comparison is not None and score.gain is not None
    ]

    def draw(data: DataTable) -> Figure:
        """One row per loss; filled if significant."""
        data = DataTable(("panel", *data.columns), [(_panel(data, *row[:2]), *row) for row in data.rows])
        first = {row["loss"]: row["difference"] for row in data.where(panel=data.distinct("panel")[0])}
        labels = sorted(first, key=lambda label: first[label])
        figure, axes_by = panels(data, height=0.9 + 0.34 * len(labels), by="panel", sharex=True, sharey=True)
        for axes, panel in axes_by:
            axes.axvline(0, color=INK, linewidth=1.2)
            for row in data.where(panel=panel):
                style, y = styles[row["loss"]], labels.index(row["loss"])
                low, middle, high = (measure.factor * row[name] for name in ("low", "difference", "high"))
                said = f"{measure.difference(row['difference'])} ({measure.signed_range(row['low'], row['high'])})"
                look: dict[str, Any] = {"color": style.colour, "gid": mark(row["loss"], f"{row['loss']}, {panel}: {said}")}
                axes.plot([low, high], [y, y], linewidth=2, solid_capstyle="butt", **look)
                look["markerfacecolor"] = PAPER if row["better"] is None else style.colour
                axes.plot([middle], [y], style.marker, markersize=7.5, markeredgewidth=1.6, **look)
            label_rows(axes, labels)
        if axes_by[0][0].dataLim.width < 1e-9:  # all differences are 0
            axes_by[0][0].set_xlim(-1, 1)
        unit = "points" if measure.percent else measure.unit
        text = f"examples closer than {plain(base or '')} minus farther"
        if not setup.headline.median:
            text = f"difference in {measure.title} from {plain(base or '')}"
        figure.supxlabel(f"{text}{f', {unit}' if unit else ''}", fontsize=10)
        return figure

    difference, way = f"the difference in {name} between a loss and {base}", "right" if measure.higher_is_better else "left"
    if setup.headline.median:
        difference = f"the share of examples on which a loss is closer to the gold answer than {base} minus the share farther"
    return FigurePlan(
        "differences",
        f"Difference from {base}",
        f"Each point is {difference}, with its 95 % interval. Further {way} is better. Filled points are significant after "
        "Holm's correction. Intervals are not corrected: that of an open point can exclude 0.",
        "there is nothing to compare with",
        DataTable(("split", "decision", "loss", "difference", "low", "high", "p_holm", "better"), rows),
        draw,
    )


def _panel(data: DataTable, split: str, decision: str) -> str:
    """Name of a panel: the split, with several decisions also the decision, and of one split the decision alone."""
    if len(data.distinct("decision")) == 1:
        return split_name(split)
    if len(data.distinct("split")) == 1:
        return decision_title(decision) if len(data.distinct("decision")) == 2 or decision == GREEDY else f"by {decision}"
    return f"{split_name(split)}, {decision if decision == GREEDY else f'by {decision}'}"


def by_decision(found: Decisions) -> FigurePlan:
    """First metric of decisions by loss and decision, with its interval."""
    measure = found.measures[0]
    rows = [(s.split, s.label, s.decision, *s.interval.numbers, s.better) for s in found.scores if s.measure == measure]
    table = DataTable(("split", "loss", "decision", measure.name, "low", "high", "better"), rows)

    def draw(data: DataTable) -> Figure:
        """A row per loss with a mark per decision; greedy answers are black. Intervals are cut at the ends of the axis.

        A score that is infinite, because most answers hold no number, is an arrow at the right end.
        """
        labels, names = data.distinct("loss")[::-1], data.distinct("decision")
        look = plot_styles(names, [GREEDY])
        figure, axes_by = panels(data, height=1.2 + len(labels) * (0.16 + 0.17 * len(names)), sharey=True)
        for axes, split in axes_by:
            rows, spans = data.where(split=split), list[Span]()
            for row in rows:
                style = look[row["decision"]]
                y = labels.index(row["loss"]) + 0.8 * ((len(names) - 1) / 2 - names.index(row["decision"])) / len(names)
                low, value, high = (measure.factor * row[name] for name in ("low", measure.name, "high"))
                said = measure.estimate(row[measure.name], row["low"], row["high"])
                tip = f"{named(data, row, row['decision'])}: {said}"
                drawn: dict[str, Any] = {"color": style.colour, "gid": mark(row["loss"], tip)}
                if math.isinf(value):
                    draw_infinite(axes, y, drawn)
                    continue
                spans.append(Span(axes, y, low, high, drawn | {"linewidth": 1.4}))
                axes.plot([value], [y], style.marker, markersize=6.5, clip_on=False, **drawn)  # whole on the axis, as at 0 %
            for border in range(1, len(labels)):
                axes.axhline(border - 0.5, color=PALE, linewidth=0.8)
            label_rows(axes, labels)
            finite = [measure.factor * row[measure.name] for row in rows if not math.isinf(row[measure.name])]
            least, most = min(finite, default=0.0), max(finite, default=0.0)
            if 0 < 5 * least < most:
                few_ticks(axes, "x", least, most)
                axes.set_xlim(least / 1.5, most * 1.5)
            elif most > least:
                axes.set_xlim(max(0, least - 0.6 * (most - least)), most + 0.6 * (most - least))
            elif not finite:
                axes.set_xticks([])
            draw_spans(spans)
            axes.set_xlabel(f"{measure.summary}{', %' if measure.percent else ''}")
        legend(figure, names, look, lines=False)
        return figure

    return FigurePlan(
        "decisions",
        "Losses and decisions",
        f"{sentence(measure.summary)} of each loss with greedy answers and with answers that a rule decides from the model's "
        "distribution; same weights, same examples. Lines are 95 % intervals, cut at the ends of the axis."
        f"{arrows_said(table, measure.name)}{direction(measure)}",
        "no decision has a score",
        table,
        draw,
    )


def by_length(setup: Setup, styles: Styles) -> FigurePlan:
    """Headline metric by number of digits of the gold number before the decimal point."""
    headline, rows = setup.headline, list[tuple[Any, ...]]()
    for split in setup.splits:
        sizes = [_length(gold) for gold in setup.examples(split).golds]
        known = [size for size in sizes if size is not None]
        if len(known) < 0.9 * len(sizes):
            continue
        counts = {size: count for size in sorted(set(known)) if (count := known.count(size)) >= LEAST_COUNT}
        for size, count in counts.items() if len(counts) > 1 else ():
            mask = np.array([other == size for other in sizes])
            for label in setup.labels:
                scores = setup.values(label, split, headline.name)[:, mask]
                rows.append((split, label, size, *interval(headline, scores, RESAMPLES).numbers, count))
    table = DataTable(("split", "loss", "digits", headline.name, "low", "high", "examples"), rows)

    def said(row: Row) -> tuple[str, str]:
        return f"{row['digits']} digits", headline.estimate(row[headline.name], row["low"], row["high"])

    labels = ("length of the gold number before the decimal point", headline.heading)
    return FigurePlan(
        "lengths",
        "Scores by length of the number",
        f"{sentence(headline.title)} by length of the gold number, with 95 % intervals.{arrows_said(table, headline.name)}"
        f"{direction(headline)}",
        "the gold answers are not plain numbers of different lengths",
        table,
        lambda data: dots(setup.labels, data, styles, ("digits", headline.name), labels, said, headline.factor),
    )


def _length(gold: str) -> int | None:
    """Return the number of digits before the decimal point, at least one; None if ``gold`` is not a plain number."""
    number = plain_number(gold)
    return None if number is None else len(str(abs(number.numerator) // number.denominator))
