"""Which figures a report has, and what stands below each: how to read it, in a sentence or two."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from numerate.lab.report import figures, series
from numerate.lab.report.analysis import Cost, Score, Setup
from numerate.lab.report.figures import Style, split_name
from numerate.lab.report.series import Table
from numerate.lab.report.wording import sentence

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Plan:
    """A figure that can be drawn if there is data for it."""

    name: str
    title: str
    caption: str
    missing: str  # what is not there, if there is no data
    data: Table | None
    draw: Callable[[Table], Figure]


def plans(setup: Setup, headline: Sequence[Score], costs: Sequence[Cost], looks: Mapping[str, Style]) -> Iterator[Plan]:
    """The figures of one setup."""
    base, name, by_sign = setup.baseline, setup.headline.title, setup.headline.median
    how = series.spread(setup)
    direction = setup.headline.higher_is_better
    aside = "" if direction is None else "Further right is better." if direction else "Further left is better."
    upright = "" if direction is None else "Higher is better." if direction else "Lower is better."

    difference = f"its {name}, less {base}'s, with the 95 % interval. {aside}"
    if by_sign:
        difference = (
            f"the share of the examples on which it is nearer than {base} less that on which it is farther, with the 95 % "
            "interval. Further right is better."
        )
    yield Plan(
        "differences",
        f"Difference from {base}",
        f"Each point is a loss: {difference} Filled points are beyond noise after Holm's correction; an open one can be chance, "
        "even where its line stays clear of 0.",
        "there is nothing to compare with",
        series.differences(headline),
        lambda data: figures.differences(setup, data, looks, by_sign),
    )
    yield Plan(
        "ranges",
        "In and out of range",
        f"{sentence(name)} of each loss on examples like those of training (filled) and beyond their range (open), with 95 % "
        "intervals; the grey bar is what lies between them.",
        "the task was not evaluated out of range",
        series.ranges(headline),
        lambda data: figures.ranges(setup, data, looks),
    )
    yield Plan(
        "errors",
        "How far off the answers are",
        "Each bar is all answers of a loss, all seeds together, by how far off they are: the darker the better, "
        "and hatched is no answer at all. The figures are % of the answers.",
        "no measure says how far off an answer is",
        series.error_distribution(setup),
        lambda data: figures.error_distribution(setup, data),
    )
    passing = (
        "How many answers count as right if so much error is let pass. The higher the line, the better; lines that part only "
    )
    passing += "on the right differ in how far off their wrong answers are."
    if how is not None and how.higher_is_better:
        passing = (
            "How many answers reach what is asked for, which is less and less to the right. The higher the line, the better."
        )
    yield Plan(
        "tolerance",
        "Accuracy against tolerance",
        passing,
        "no measure says how far off an answer is",
        series.tolerance(setup),
        lambda data: figures.tolerance(setup, data, looks),
    )
    yield Plan(
        "places",
        "Errors by place",
        "How many numeric tokens of the gold answers the model gets wrong when it is given all before them, by the place of the "
        "token, with 95 % intervals. Lower is better, and a place further left weighs more.",
        "the records hold no digits",
        series.digit_places(setup),
        lambda data: figures.digit_places(setup, data, looks),
    )
    yield Plan(
        "lengths",
        "By length of the number",
        f"{sentence(name)} by the length of the gold number, with 95 % intervals. {upright}".rstrip(),
        "the gold answers are not plain numbers of different lengths",
        series.lengths(setup),
        lambda data: figures.lengths(setup, data, looks),
    )
    yield Plan(
        "calibration",
        "Calibration",
        "How often the likeliest numeric token is right, by how sure the model was of it; tokens of all seeds together. On the "
        "dotted line both agree, below it the model is too sure. The gap is the mean distance from that line."
        + (f" Grey is {base}." if base is not None else ""),
        "the records hold no digits",
        series.calibration(setup),
        lambda data: figures.calibration(setup, data, looks, series.calibration_errors(data)),
    )
    yield Plan(
        "curves",
        "Learning curves",
        "Cross-entropy while training, without the numeric term, so that losses can be compared: the line is the mean of the "
        "seeds, the band goes from the lowest to the highest. Lower is better, but it does not tell near from far.",
        "no curve was recorded",
        series.learning_curves(setup),
        lambda data: figures.learning_curves(setup, data, looks),
    )
    yield Plan(
        "cost",
        "Gain against cost",
        f"Up is {'more examples won' if by_sign else f'more {name}'} ({split_name(setup.splits[0])}), right is more time per "
        f"step; {base} is where the lines cross. Vertical lines are 95 % intervals, horizontal ones go from the fastest "
        "to the slowest seed.",
        "there is no time to compare with",
        series.gain_and_cost(headline, costs, setup.splits[0]),
        lambda data: figures.gain_and_cost(setup, data, looks, by_sign),
    )
