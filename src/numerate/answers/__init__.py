"""From the text of an answer to its value, and from the value to a score.

    >>> from numerate.answers import EXTRACTORS, METRICS
    >>> guess = EXTRACTORS["last_number"]("It is about 15.")
    >>> METRICS["absolute_error"](gold=12, guess=guess), METRICS["within_10"](gold=12, guess=guess)
    (3.0, 0.0)

``EXTRACTORS`` read answers, ``METRICS`` score them one by one, ``DISTRIBUTION_METRICS`` score probabilities and samples, and
``rmse`` and ``r_squared`` all answers together.
"""

from numerate.answers.boxes import RegionCounts, count_regions, giou, iou, pool_regions
from numerate.answers.chartqa import relaxed_accuracy
from numerate.answers.distributions import (
    DISTRIBUTION_METRICS,
    DistributionMetric,
    brier,
    calibration_error,
    crps,
    entropy,
    interval_coverage,
    nll,
    number_distribution,
    numeric_mass,
    numeric_probabilities,
    sample_crps,
)
from numerate.answers.extract import (
    EXTRACTORS,
    Box,
    Extractor,
    Region,
    clock_time,
)
from numerate.answers.metrics import METRICS, Metric, tolerance_curve
from numerate.answers.numerals import as_fraction, last_number, number, percent, rational
from numerate.answers.overall import r_squared, rmse
from numerate.checks import public_dir

__all__ = [
    "DISTRIBUTION_METRICS",
    "EXTRACTORS",
    "METRICS",
    "Box",
    "DistributionMetric",
    "Extractor",
    "Metric",
    "Region",
    "RegionCounts",
    "as_fraction",
    "brier",
    "calibration_error",
    "clock_time",
    "count_regions",
    "crps",
    "entropy",
    "giou",
    "interval_coverage",
    "iou",
    "last_number",
    "nll",
    "number",
    "number_distribution",
    "numeric_mass",
    "numeric_probabilities",
    "percent",
    "pool_regions",
    "r_squared",
    "rational",
    "relaxed_accuracy",
    "rmse",
    "sample_crps",
    "tolerance_curve",
]
__dir__ = public_dir(globals())
