"""Plan an experiment: how many seeds show a difference, and which difference a number of seeds shows.

seeds_needed is the smallest S with P(T > t(S-1)) >= power, where t(n) is the quantile of the t distribution with n degrees of
freedom and T is noncentral t around sqrt(S) difference / spread.
"""

from __future__ import annotations

import math

import numpy as np
from scipy import optimize, special  # type: ignore[import-untyped]
from scipy.stats import nct  # type: ignore[import-untyped]

from numerate.checks import check_number
from numerate.lab.stats.intervals import check_count, check_level

MOST_SEEDS = 2**20


def seeds_needed(difference: float, spread: float, power: float = 0.8, level: float = 0.95) -> int:
    """Return the number of seeds, at least 2, with which ``paired_t(..., over="seeds")`` detects a difference.

    :func:`compare` tests over seeds and examples, which is stricter: it detects the difference less often than ``power`` says,
    the more so the fewer examples there are. More seeds do not make up for few examples: their share of the interval stays.

    Args:
        difference: True difference.
        spread: Standard deviation of the paired difference between seeds, such as ``Comparison.spread``.
        power: Probability of detecting the difference, with the right sign.
        level: Confidence level of the interval that must exclude 0.

    Examples:
        >>> seeds_needed(difference=0.02, spread=0.01)
        5
    """
    difference, spread = abs(check_number("difference", difference)), check_number("spread", spread, least=0)
    _check_power(power, level)
    if spread == 0 and difference > 0:
        return 2

    def enough(seeds: int) -> bool:
        return difference > 0 and _power(difference / spread, seeds, level) >= power

    if not enough(MOST_SEEDS):
        raise ValueError(
            f"difference={difference!r} is too small for spread={spread!r}: {MOST_SEEDS:,} seeds would not show it. Pass "
            "the smallest difference that matters."
        )
    few, many = 1, MOST_SEEDS
    while many - few > 1:
        middle = (few + many) // 2
        few, many = (few, middle) if enough(middle) else (middle, many)
    return many


def detectable_difference(spread: float, seeds: int, power: float = 0.8, level: float = 0.95) -> float:
    """Return the smallest true difference that ``seeds`` seeds, at least 2, detect: the inverse of :func:`seeds_needed`.

    Like that, it is for ``paired_t(..., over="seeds")``; :func:`compare` detects a difference of this size less often.

    Examples:
        >>> [round(detectable_difference(spread=0.01, seeds=seeds), 3) for seeds in (2, 3, 5, 10)]
        [0.115, 0.033, 0.017, 0.01]
    """
    spread, seeds = check_number("spread", spread, least=0), check_count("seeds", seeds, least=2)
    _check_power(power, level)
    most = 1.0
    while _power(most, seeds, level) < power:
        most *= 2
    return spread * float(optimize.brentq(lambda ratio: _power(ratio, seeds, level) - power, 0.0, most))


def _power(ratio: float, seeds: int, level: float) -> float:
    """Return the power of the two-sided paired t-test at ``1 - level`` for a true difference of ``ratio`` spreads."""
    degrees, centre = seeds - 1, math.sqrt(seeds) * ratio
    critical = -float(special.stdtrit(degrees, (1 - level) / 2))
    if centre > 1e4:  # scipy's series may not converge; T's normal part is negligible here
        return float(special.chdtr(degrees, degrees * (centre / critical) ** 2)) if centre < 1e100 else 1.0
    with np.errstate(all="ignore"):
        return float(nct.sf(critical, degrees, centre))


def _check_power(power: float, level: float) -> None:
    check_level(level)
    if not 0.5 <= check_number("power", power) < 1:
        raise ValueError(f"power={power!r}: expected a probability from 0.5 to below 1, such as 0.8.")
