"""The figures of a report. Each is in one place: its data, which the page offers as CSV, its caption, and how it is drawn.

scores      differences from the baseline, decisions, scores by length of the number
predicted   predicted against actual numbers
errors      size of the errors
tokens      errors by digit place, calibration
curves      learning curves
members     scores by number of members
sizes       effect by model size, over several setups
drawing     what they share: styles, panels, points with intervals, legends
svg         a matplotlib figure becomes an element of the page
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from numerate.lab.report.analysis import Score, Setup
from numerate.lab.report.decisions import Decisions
from numerate.lab.report.figures.curves import learning_curves
from numerate.lab.report.figures.drawing import FigurePlan, Styles
from numerate.lab.report.figures.errors import error_sizes
from numerate.lab.report.figures.predicted import predictions
from numerate.lab.report.figures.scores import by_decision, by_length, differences
from numerate.lab.report.figures.tokens import by_place, calibration


def figures(setup: Setup, headline: Sequence[Score], styles: Styles, decided: Decisions | None = None) -> Iterator[FigurePlan]:
    """Yield the figures of a setup, in the order of the page."""
    yield differences(setup, headline, styles)
    if decided is not None:
        yield by_decision(decided)
    for figure in (predictions, error_sizes, by_place, by_length, calibration, learning_curves):
        yield figure(setup, styles)
