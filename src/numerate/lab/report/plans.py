"""List the figures of a report, each with its title, caption and data."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from numerate.lab.evaluation.decisions import GREEDY
from numerate.lab.report import alternatives, figures, predicted, series
from numerate.lab.report.analysis import RunCost, Score, Setup
from numerate.lab.report.decision_words import title
from numerate.lab.report.decisions import Decisions
from numerate.lab.report.drawing import Styles, split_name
from numerate.lab.report.tables import DataTable
from numerate.lab.report.wording import Measure, sentence

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class FigurePlan:
    """Figure that is drawn if there is data for it."""

    name: str
    title: str
    caption: str
    missing: str  # why there is no data
    data: DataTable | None
    draw: Callable[[DataTable], Figure]
    values: Callable[[DataTable], str]  # the values in words, for the alternative text


def plans(
    setup: Setup, headline: Sequence[Score], costs: Sequence[RunCost], styles: Styles, decided: Decisions | None = None
) -> Iterator[FigurePlan]:
    """Yield the figures of a setup, in the order of the page."""
    yield from _comparisons(setup, headline, styles)
    if decided is not None:
        yield _decisions(decided)
    yield from _predicted(setup, styles)
    yield from _error_sizes(setup, styles)
    yield from _numbers(setup, styles)
    yield from _training(setup, [score for score in headline if score.decision == GREEDY], costs, styles)


def _comparisons(setup: Setup, headline: Sequence[Score], styles: Styles) -> Iterator[FigurePlan]:
    """The headline measure: difference from the baseline, in and out of range."""
    base, name = setup.baseline, setup.headline.title
    greedy = [score for score in headline if score.decision == GREEDY]
    difference, better = f"the difference in {name} between a loss and {base}", {None: "", True: "right", False: "left"}
    direction = better[setup.headline.higher_is_better]
    if setup.headline.median:
        direction = "right"
        difference = f"the share of examples on which a loss is closer to the gold answer than {base} minus the share farther"
    yield FigurePlan(
        "differences",
        f"Difference from {base}",
        f"Each point is {difference}, with its 95 % interval. {f'Further {direction} is better. ' if direction else ''}Filled "
        "points are significant after Holm's correction. Intervals are not corrected: that of an open point can exclude 0.",
        "there is nothing to compare with",
        series.differences(headline),
        lambda data: figures.differences(setup, data, styles),
        lambda data: alternatives.by_keys(data, ("split", "decision", "loss"), alternatives.gains(series.gain_measure(setup))),
    )
    ranges = series.ranges(greedy)
    yield FigurePlan(
        "ranges",
        "In and out of range",
        f"{sentence(name)} of each loss on examples in the range of the training data (filled) and outside it (open), with 95 % "
        f"intervals. The grey bar connects the two.{_beyond(ranges, setup.headline.name)}",
        "the task was not evaluated out of range",
        ranges,
        lambda data: figures.ranges(setup, data, styles),
        lambda data: _scores_by(data, ("split", "loss"), setup.headline),
    )


def _decisions(found: Decisions) -> FigurePlan:
    """The first measure of decisions, by loss and decision."""
    name = title(found.measures[0])
    direction = {None: "", True: " Higher is better.", False: " Lower is better."}[found.measures[0].higher_is_better]
    data = series.decisions(found)
    beyond = _beyond(data, found.measures[0].name)
    return FigurePlan(
        "decisions",
        "Losses and decisions",
        f"{sentence(name)} of each loss with greedy answers and with answers that a rule decides from the model's distribution; "
        f"same weights, same examples. Lines are 95 % intervals, cut at the ends of the axis.{beyond}{direction}",
        "no decision has a score",
        data,
        lambda data: figures.decisions(found, data),
        lambda data: _scores_by(data, ("split", "loss", "decision"), found.measures[0]),
    )


def _predicted(setup: Setup, styles: Styles) -> Iterator[FigurePlan]:
    """Predicted against actual numbers, and their differences."""
    points, missing = predicted.points(setup), "the answers are not one number each"
    what, ends, chosen = "The greedy answers", "", ""
    if points is not None:
        shown, total = len(points.distinct("index")), len(setup.examples(setup.splits[0]).index)
        chosen = f"{shown} of {total:,}" if shown < total else f"All {total:,}"
        chosen += f" examples {split_name(setup.splits[0])} with seed {points.rows[0][2]}, the same for each loss."
    level = next((part.level for part in (setup.examples(split).decided for split in setup.splits) if part is not None), None)
    if points is not None and level is not None and any(row[-1] is not None for row in points.rows):
        what, ends = "The medians of the model's distributions", f", with {100 * level:g} % intervals"
    yield FigurePlan(
        "predictions",
        "Predicted against actual",
        f"{what} by actual number{ends}. {chosen} On the dotted line the two agree."
        + (" A point at the upper or lower edge lies beyond it." if points is not None and predicted.is_cut(points) else ""),
        missing,
        points,
        lambda data: predicted.draw_points(data, styles),
        predicted.points_text,
    )
    yield FigurePlan(
        "residuals",
        "Residuals",
        "Predicted minus actual number of all greedy answers, over all seeds, by size of the actual number. Points are medians, "
        "lines the middle half of the answers. Above 0 answers are too large, below 0 too small. Outputs without a number are "
        "left out.",
        missing,
        predicted.residuals(setup),
        lambda data: predicted.draw_residuals(setup, data, styles),
        alternatives.residuals,
    )


def _scores_by(data: DataTable, keys: Sequence[str], measure: Measure) -> str:
    return alternatives.by_keys(data, keys, alternatives.estimates(measure, measure.name))


def _beyond(data: DataTable | None, name: str) -> str:
    """Explain arrows, if a score is infinite."""
    return " An arrow is an infinite score: too many answers hold no number." if _is_infinite(data, name) else ""


def _is_infinite(data: DataTable | None, name: str) -> bool:
    return data is not None and any(math.isinf(row[name]) for row in data.where())


def _error_sizes(setup: Setup, styles: Styles) -> Iterator[FigurePlan]:
    """How large the errors are."""
    scale, missing = series.error_scale(setup), "no measure gives the size of an error"
    tolerance = (
        "Share of answers whose error is at most the tolerance on the horizontal axis. Higher is better. Lines that differ only "
        "on the right differ in the size of their errors, not in the share of exact answers."
    )
    if scale is not None and scale.higher_is_better:
        tolerance = f"Share of answers that reach the required {scale.measure.plain}, which falls to the right. Higher is better."
    yield FigurePlan(
        "errors",
        "Size of the errors",
        "Answers of each loss, over all seeds, by size of the error, in %. Darker is better; hatched means no answer.",
        missing,
        series.error_distribution(setup),
        lambda data: figures.error_distribution(setup, data),
        lambda data: alternatives.shares(data, data.columns[2]),
    )
    yield FigurePlan(
        "tolerance",
        "Accuracy by tolerance",
        tolerance,
        missing,
        series.tolerance(setup),
        lambda data: figures.tolerance(setup, data, styles),
        lambda data: "" if scale is None else alternatives.tolerances(data, scale),
    )


def _numbers(setup: Setup, styles: Styles) -> Iterator[FigurePlan]:
    """Scores by digit place, length and confidence."""
    direction = {None: "", True: " Higher is better.", False: " Lower is better."}[setup.headline.higher_is_better]
    yield FigurePlan(
        "places",
        "Errors by digit place",
        "Share of the gold answers' numeric tokens that the model predicts wrong, given all tokens before them, by place of the "
        "token, with 95 % intervals. Lower is better; an error in a place further left is larger.",
        "the records contain no digits",
        series.digit_places(setup),
        lambda data: figures.digit_places(setup, data, styles),
        alternatives.places,
    )
    lengths = series.lengths(setup)
    beyond = _beyond(lengths, setup.headline.name)
    yield FigurePlan(
        "lengths",
        "Scores by length of the number",
        f"{sentence(setup.headline.title)} by length of the gold number, with 95 % intervals.{beyond}{direction}",
        "the gold answers are not plain numbers of different lengths",
        lengths,
        lambda data: figures.lengths(setup, data, styles),
        lambda data: _scores_by(data, ("split", "digits", "loss"), setup.headline),
    )
    yield FigurePlan(
        "calibration",
        "Calibration",
        "How often the most likely numeric token is right, by its probability among numeric tokens; tokens of all seeds. On the "
        "dotted line the two agree; below it the model is overconfident. The gap is the mean distance from that line."
        + (f" The grey line is {setup.baseline}." if setup.baseline is not None else ""),
        "the records contain no digits",
        series.calibration(setup),
        lambda data: figures.calibration(setup, data, styles),
        alternatives.gaps,
    )


def _has_soft_labels(setup: Setup) -> bool:
    return any(run.config.get("soft") for run in setup.runs())


def _training(setup: Setup, headline: Sequence[Score], costs: Sequence[RunCost], styles: Styles) -> Iterator[FigurePlan]:
    """Learning curves and cost."""
    base, split = setup.baseline, setup.splits[0]
    gain = f"Difference from {base} in {setup.headline.title}"
    if setup.headline.median:
        gain = f"Share of examples closer to the gold answer than {base} minus share farther"
    curves = series.learning_curves(setup)
    validated = curves is not None and any(name.startswith("validation/") for name in curves.distinct("curve"))
    overrun = ""
    if curves is not None and series.OVERRUN in curves.distinct("curve"):
        overrun = (
            " Overrun is the probability of more digits where the label's number ends: 0 is right, and near 1 numbers do not end."
        )
    yield FigurePlan(
        "curves",
        "Learning curves",
        "Cross-entropy during training, without the numeric term, so that losses can be compared. Lines are means over seeds, "
        "bands span the lowest to the highest seed. Lower is better, but cross-entropy ignores how far off a wrong number is."
        + (" Validation: greedy answers to examples that are not trained on." if validated else "")
        + (" A line has a gap where too many answers of a seed hold no number." if _is_infinite(curves, "mean") else "")
        + (" With soft labels it stays above the entropy of the labels." if _has_soft_labels(setup) else "")
        + overrun,
        "no curve was recorded",
        curves,
        lambda data: figures.learning_curves(setup, data, styles),
        alternatives.last_points,
    )
    yield FigurePlan(
        "cost",
        "Gain and cost",
        f"{gain} ({split_name(split)}), by time per step relative to {base}, which is where the black lines cross. "
        "Vertical bars are 95 % intervals; horizontal bars span the fastest to the slowest seed.",
        "there is no time to compare with",
        series.gain_and_cost(headline, costs, split),
        lambda data: figures.gain_and_cost(setup, data, styles),
        lambda data: alternatives.by_keys(data, ("loss",), alternatives.gains_and_times(series.gain_measure(setup))),
    )
