"""Statistics for metrics ``[S, E]``: S seeds, each scored on the same E examples. Is one loss better than another?

    from numerate.lab import stats

    # scores[name] is the accuracy of a loss per seed and example, [S, E]
    rows = stats.corrected({name: stats.compare(scores[name], scores["ce"]) for name in ("smmd", "emd", "ntil")})
    print(rows["smmd"].summary(scale=100, unit="points"))  # +2.1 points (95 % interval 0.4 to 3.8), p = 0.012 after correction
    stats.seeds_needed(difference=0.01, spread=rows["smmd"].spread)

``docs/statistics.md`` explains the method and how often it is wrong.
"""

from __future__ import annotations

from numerate.lab.stats.comparison import LEAST_SEEDS, Comparison, compare, corrected, holm
from numerate.lab.stats.intervals import Interval, mean_interval, median_interval
from numerate.lab.stats.paired import paired_permutation, paired_t
from numerate.lab.stats.power import detectable_difference, seeds_needed

__all__ = [
    "LEAST_SEEDS",
    "Comparison",
    "Interval",
    "compare",
    "corrected",
    "detectable_difference",
    "holm",
    "mean_interval",
    "median_interval",
    "paired_permutation",
    "paired_t",
    "seeds_needed",
]
