"""List the figures of a report, each with its title, caption and data."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from numerate.lab.report import figures, predicted, series
from numerate.lab.report.analysis import Score, Setup
from numerate.lab.report.decisions import Decisions
from numerate.lab.report.drawing import Styles
from numerate.lab.report.tables import DataTable
from numerate.lab.wording.text import listed, sentence, split_name

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_DIRECTIONS = {None: "", True: " Higher is better.", False: " Lower is better."}
_NO_DIGITS = "the records contain no digits"


@dataclass(frozen=True)
class FigurePlan:
    """Figure that is drawn if there is data for it."""

    name: str
    title: str
    caption: str
    missing: str  # why there is no data
    data: DataTable | None
    draw: Callable[[DataTable], Figure]
    svg: str = ""  # once it is drawn


def plans(setup: Setup, headline: Sequence[Score], styles: Styles, decided: Decisions | None = None) -> Iterator[FigurePlan]:
    """Yield the figures of a setup, in the order of the page."""
    yield _differences(setup, headline, styles)
    if decided is not None:
        yield _decisions(decided)
    yield _predicted(setup, styles)
    yield FigurePlan(
        "errors",
        "Size of the errors",
        "Answers of each loss, over all seeds, by size of the error, in %. Darker is better; hatched means no answer.",
        "no measure gives the size of an error",
        series.error_distribution(setup),
        lambda data: figures.error_distribution(setup, data),
    )
    yield from _numbers(setup, styles)
    yield _curves(setup, styles)


def _differences(setup: Setup, headline: Sequence[Score], styles: Styles) -> FigurePlan:
    base, name = setup.baseline, setup.headline.title
    difference, better = f"the difference in {name} between a loss and {base}", {None: "", True: "right", False: "left"}
    direction = better[setup.gain_measure.higher_is_better]
    if setup.headline.median:
        difference = f"the share of examples on which a loss is closer to the gold answer than {base} minus the share farther"
    return FigurePlan(
        "differences",
        f"Difference from {base}",
        f"Each point is {difference}, with its 95 % interval. {f'Further {direction} is better. ' if direction else ''}Filled "
        "points are significant after Holm's correction. Intervals are not corrected: that of an open point can exclude 0.",
        "there is nothing to compare with",
        series.differences(headline),
        lambda data: figures.differences(setup, data, styles),
    )


def _decisions(found: Decisions) -> FigurePlan:
    """The first measure of decisions, by loss and decision."""
    first, data = found.measures[0], series.decisions(found)
    return FigurePlan(
        "decisions",
        "Losses and decisions",
        f"{sentence(first.summary)} of each loss with greedy answers and with answers that a rule decides from the model's "
        "distribution; same weights, same examples. Lines are 95 % intervals, cut at the ends of the axis."
        f"{_beyond(data, first.name)}{_DIRECTIONS[first.higher_is_better]}",
        "no decision has a score",
        data,
        lambda data: figures.decisions(found, data),
    )


def _predicted(setup: Setup, styles: Styles) -> FigurePlan:
    points = predicted.points(setup)
    what, ends, chosen = "The greedy answers", "", ""
    if points is not None:
        shown, total = len(points.distinct("index")), len(setup.examples(setup.splits[0]).index)
        chosen = f"{shown} of {total:,}" if shown < total else f"All {total:,}"
        chosen += f" examples {split_name(setup.splits[0])} with seed {points.rows[0][2]}, the same for each loss."
    decided = setup.examples(setup.splits[0]).decided
    if points is not None and decided is not None and any(row[-1] is not None for row in points.rows):
        what, ends = "The medians of the model's distributions", f", with {100 * decided.level:g} % intervals"
    return FigurePlan(
        "predictions",
        "Predicted against actual",
        f"{what} by actual number{ends}. {chosen} On the dotted line the two agree."
        + (" A point at the upper or lower edge lies beyond it." if points is not None and predicted.is_cut(points) else ""),
        "the answers are not one number each",
        points,
        lambda data: predicted.draw_points(data, styles),
    )


def _beyond(data: DataTable | None, name: str) -> str:
    """Explain arrows, if a score is infinite."""
    return " An arrow is an infinite score: too many answers hold no number." if _is_infinite(data, name) else ""


def _is_infinite(data: DataTable | None, name: str) -> bool:
    return data is not None and any(math.isinf(row[name]) for row in data.where())


def _numbers(setup: Setup, styles: Styles) -> Iterator[FigurePlan]:
    """Scores by digit place, length and confidence."""
    headline = setup.headline
    yield FigurePlan(
        "places",
        "Errors by digit place",
        "Share of the gold answers' numeric tokens that the model predicts wrong, given all tokens before them, by place of the "
        "token, with 95 % intervals. Lower is better; an error in a place further left is larger.",
        _NO_DIGITS,
        series.digit_places(setup),
        lambda data: figures.digit_places(setup, data, styles),
    )
    lengths = series.lengths(setup)
    yield FigurePlan(
        "lengths",
        "Scores by length of the number",
        f"{sentence(headline.title)} by length of the gold number, with 95 % intervals.{_beyond(lengths, headline.name)}"
        f"{_DIRECTIONS[headline.higher_is_better]}",
        "the gold answers are not plain numbers of different lengths",
        lengths,
        lambda data: figures.lengths(setup, data, styles),
    )
    calibration = series.calibration(setup)
    by_split = {} if calibration is None else series.calibration_errors(calibration)
    gaps = [
        f"{split_name(split)} {listed([f'{label} {100 * gap:.1f}' for label, gap in own.items()])}"
        for split, own in by_split.items()
    ]
    yield FigurePlan(
        "calibration",
        "Calibration",
        "How often the most likely numeric token is right, by its probability among numeric tokens; tokens of all seeds. On the "
        f"dotted line the two agree; below it the model is overconfident. Mean distance from it, in points: {'; '.join(gaps)}.",
        _NO_DIGITS,
        calibration,
        lambda data: figures.calibration(setup, data, styles),
    )


def _curves(setup: Setup, styles: Styles) -> FigurePlan:
    curves = series.learning_curves(setup)
    names = curves.distinct("curve") if curves is not None else []
    notes = {
        " Validation: greedy answers to examples that are not trained on.": any(name.startswith("validation/") for name in names),
        " A line has a gap where too many answers of a seed hold no number.": _is_infinite(curves, "mean"),
        " With soft labels it stays above the entropy of the labels.": any(run.config.get("soft") for run in setup.runs()),
        " Overrun is the probability of more digits where the label's number ends: 0 is right, and near 1 numbers do not end.": (
            series.OVERRUN in names
        ),
    }
    return FigurePlan(
        "curves",
        "Learning curves",
        "Cross-entropy during training, without the numeric term, so that losses can be compared. Lines are means over seeds, "
        "bands span the lowest to the highest seed. Lower is better, but cross-entropy ignores how far off a wrong number is."
        + "".join(note for note, said in notes.items() if said),
        "no curve was recorded",
        curves,
        lambda data: figures.learning_curves(setup, data, styles),
    )
