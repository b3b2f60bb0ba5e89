"""From the text of an answer to its value, and from the value to a score.

    >>> from numerate.answers import EXTRACTORS, METRICS
    >>> guess = EXTRACTORS["last_number"]("It is about 15.")
    >>> METRICS["absolute_error"](gold=12, guess=guess), METRICS["within_10"](gold=12, guess=guess)
    (3.0, 0.0)

``EXTRACTORS`` parse answers, ``METRICS`` score single answers, ``rmse``, ``r_squared``, ``pearson`` and ``spearman`` score all
answers, and ``number_distribution`` turns sampled answers into a distribution. ``in_format`` reads answers whose numbers are
spaced, reversed or written in another format.
"""

from numerate.answers.boxes import RegionCounts, count_regions, giou, iou
from numerate.answers.chartqa import relaxed_accuracy
from numerate.answers.extract import (
    EXTRACTORS,
    Box,
    Extractor,
    Region,
    clock_time,
)
from numerate.answers.formatted import in_format
from numerate.answers.metrics import METRICS, Metric
from numerate.answers.numerals import as_fraction, last_number, number, percent, rational
from numerate.answers.overall import pearson, r_squared, rmse, spearman
from numerate.answers.sampled import number_distribution
from numerate.checks import public_dir

__all__ = [
    "EXTRACTORS",
    "METRICS",
    "Box",
    "Extractor",
    "Metric",
    "Region",
    "RegionCounts",
    "as_fraction",
    "clock_time",
    "count_regions",
    "giou",
    "in_format",
    "iou",
    "last_number",
    "number",
    "number_distribution",
    "pearson",
    "percent",
    "r_squared",
    "rational",
    "relaxed_accuracy",
    "rmse",
    "spearman",
]
__dir__ = public_dir(globals())
