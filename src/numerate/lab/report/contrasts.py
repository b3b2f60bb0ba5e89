"""Each loss against the baseline with the same decision: does it help if both answer greedily, and if both give the median?

Differences are paired by example and seed; those of means over the examples on which both have a finite score with every seed.
P-values are corrected by Holm's method over the losses and splits of a measure and decision.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from numerate.lab.evaluation.error_sources import Decided
from numerate.lab.report.analysis import LEVEL, Setup, interval, verdict
from numerate.lab.report.wording import Measure
from numerate.lab.stats import Comparison, compare, corrected


@dataclass(frozen=True)
class Contrast:
    """Difference of a loss from the baseline, both with the same decision."""

    label: str
    split: str
    measure: Measure
    decision: str
    value: float  # mean (of a typical run, without an upper limit), or median if that is the summary of the measure
    base: float  # that of the baseline
    comparison: Comparison
    alike: bool  # whether every example of every seed has the baseline's score
    judged: bool = True  # see Setup

    @property
    def gap(self) -> float:
        """Score minus the baseline's, as both are displayed."""
        return self.value - self.base

    @property
    def change(self) -> float | None:
        """Difference as a share of the baseline's score; None if that is 0."""
        return share_of_change(self.value, self.base)

    @property
    def better(self) -> bool | None:
        """The :func:`verdict` on the difference from the baseline."""
        return verdict(self.comparison, self.measure, judged=self.judged)


def share_of_change(value: float, base: float) -> float | None:
    """Return the difference from ``base`` as its share; None if that is 0, or if one of the three is infinite."""
    share = (value - base) / base if base and math.isfinite(base) and math.isfinite(value) else math.inf
    return share if math.isfinite(share) else None


def contrasts(setup: Setup, found: Mapping[tuple[str, str], Sequence[Decided]], measures: Sequence[Measure]) -> list[Contrast]:
    """Compare each loss with the baseline, decision by decision; ``found`` are the decisions of each seed by loss and split."""
    result: list[Contrast] = []
    every = [contrast for summary in measures for contrast in _contrasts(setup, found, summary)]
    for summary, rule in dict.fromkeys((contrast.measure, contrast.decision) for contrast in every):
        mine = [contrast for contrast in every if (contrast.measure, contrast.decision) == (summary, rule)]
        final = corrected({i: contrast.comparison for i, contrast in enumerate(mine) if not contrast.alike})
        same = {i: replace(contrast.comparison, corrected_p=1.0) for i, contrast in enumerate(mine) if contrast.alike}
        result += [replace(contrast, comparison=(final | same)[i]) for i, contrast in enumerate(mine)]
    return result


def _contrasts(setup: Setup, found: Mapping[tuple[str, str], Sequence[Decided]], summary: Measure) -> Iterator[Contrast]:
    for (label, split), parts in found.items():
        if label not in setup.rivals() or (str(setup.baseline), split) not in found:
            continue
        base = dict(zip(setup.cells[str(setup.baseline)], found[str(setup.baseline), split], strict=True))
        pairs = [(part, base[seed]) for seed, part in zip(setup.cells[label], parts, strict=True) if seed in base]
        for rule in parts[0].measures:
            if not pairs or not all(summary.name in part.measures.get(rule, {}) for pair in pairs for part in pair):
                continue
            if summary.median:
                both = np.stack([[part.measures[rule][summary.name] for part in pair] for pair in pairs], axis=1)  # [2, S, E]
            else:
                both = np.stack([[part.for_mean(rule, summary.name) for part in pair] for pair in pairs], axis=1)
                both = both[:, :, np.isfinite(both).all((0, 1))]
            if both.shape[2] < 2:
                continue
            mine, theirs = both
            comparison = compare(mine, theirs, "sign" if summary.median else "mean", LEVEL, bounds=summary.bounds(both))
            value, base_value = (interval(summary, scores).estimate for scores in both)
            alike = np.array_equal(mine, theirs)
            yield Contrast(label, split, summary, rule, value, base_value, comparison, alike, setup.judged)
