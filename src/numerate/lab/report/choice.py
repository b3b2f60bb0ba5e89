"""Choose the pair of loss and decision that the first screen of a report compares with the baseline.

``before`` is the baseline with greedy answers. ``after`` is the pair that :func:`numerate.recommended` names, which no score
chose. If it was not run, or if another pair is significantly better than the baseline and it is not, ``after`` is the best of all
pairs, and the page says so. P-values are corrected by Holm's method over all pairs, whichever is shown.

The metric is the mean absolute error where the headline is an error without an upper limit, unless a few answers dominate it;
otherwise the headline. All of this is about the first split.
"""

from __future__ import annotations

import numpy as np

from numerate.distribution.exact import Floats
from numerate.lab.evaluation.decisions import GREEDY
from numerate.lab.evaluation.error_sources import rule_and_members
from numerate.lab.report.analysis import Score, Setup, against, few_decide, finite, holm_corrected, score_of
from numerate.lab.report.recommended import RecommendationCheck
from numerate.lab.wording.measures import Measure, mean_measure

ERROR = "absolute_error"


class ShownPair:
    """The pairs of a setup by one metric, and the one that is shown."""

    def __init__(self, setup: Setup, advice: RecommendationCheck | None, measure: Measure, *, filled: bool) -> None:
        self.setup, self.advice, self.measure, self.filled = setup, advice, measure, filled
        self.split = setup.splits[0]
        every = [self._score(label, rule) for label in setup.labels for rule in self._rules(label)]
        base = (str(setup.baseline), GREEDY)
        self.before = next((score for score in every if key(score) == base), None)  # the baseline with greedy answers
        self.others = [score for score in every if score is not self.before]
        if self.before is not None:
            self.others = holm_corrected([against(setup, score, *base, filled=filled) for score in self.others])
        self.pairs = ([] if self.before is None else [self.before]) + self.others
        wanted = None if advice is None else advice.pair
        self.recommended = next((score for score in self.others if key(score) == wanted), None)
        self.after, self.best_of_all = self._after()  # what is compared with it, and whether it was chosen by its score

    def _rules(self, label: str) -> list[str]:
        """Return the decisions of a loss; of a head those from pools alone, since its answers are medians already."""
        rules = self.setup.decisions(label)
        return [rule for rule in rules if rule == GREEDY or not self.setup.predicts(label) or rule_and_members(rule)[1] > 1]

    def _score(self, label: str, rule: str) -> Score:
        return score_of(self.setup, label, self.split, self.measure, rule, self._values(label, rule))

    def _values(self, label: str, rule: str) -> Floats:
        return self.setup.values(label, self.split, self.measure.name, rule, filled=self.filled)

    def _after(self) -> tuple[Score | None, bool]:
        sign = -1 if self.measure.higher_is_better else 1
        ranked = sorted(self.others, key=lambda score: (self.silent(score), sign * score.interval.estimate))
        won = [score for score in ranked if better(score) and not self.silent(score)]
        if self.recommended is not None and (self.recommended in won or not won):
            return self.recommended, False
        return next(iter(won or ranked), None), True

    def silent(self, score: Score) -> bool:
        """Whether most outputs held no number: an infinite error, whatever it counts as in a mean."""
        values = self.setup.values(score.label, self.split, self.measure.name, score.decision)
        return bool(np.isinf(values).mean() >= 0.5)

    @property
    def outscored(self) -> bool:
        """Whether a pair scores better than the one shown, without being significantly better than ``before``."""
        if self.after is None:
            return False
        sign = -1 if self.measure.higher_is_better else 1
        mine = sign * self.after.interval.estimate
        return any(sign * score.interval.estimate < mine for score in self.others if not self.silent(score))

    @property
    def alike(self) -> bool:
        """Whether no pair differs from another on any example."""
        return bool(self.others) and all(score.alike for score in self.others)

    @property
    def fits(self) -> bool:
        """Whether the means of both pairs exist, and a few answers dominate neither."""
        shown = [self._values(*key(score)) for score in (self.before, self.after) if score is not None]
        return all(np.isfinite(values).all() and not few_decide(values) for values in shown)

    @property
    def explodes(self) -> bool:
        """Whether a few answers of ``after`` dominate its mean absolute error, and none of ``before``."""
        if not self.setup.headline.unbounded or self.filled:
            return False
        name = ERROR if ERROR in self.setup.examples(self.split).measures else self.measure.name
        found = []
        for score in (self.before, self.after):
            assert score is not None
            found.append(few_decide(finite(self.setup.values(score.label, self.split, name, score.decision, filled=True))))
        return found == [False, True]


def choose(setup: Setup, advice: RecommendationCheck | None) -> ShownPair:
    """Return the pairs of a setup by the metric that fits, and the one that is shown."""
    if setup.headline.unbounded and all(ERROR in run.splits[setup.splits[0]].measures for run in setup.runs()):
        by_mean = ShownPair(setup, advice, mean_measure(ERROR), filled=True)
        if by_mean.fits:
            return by_mean
    return ShownPair(setup, advice, setup.headline, filled=False)


def better(score: Score) -> bool | None:
    """Return whether a pair is significantly better or worse, where the difference of the scores shown agrees with the test."""
    way, change = score.better, score.change
    if way is None or score.by_sign or not change:
        return way
    return way if (change > 0) == (way is (score.measure.higher_is_better is True)) else None


def key(score: Score) -> tuple[str, str]:
    """Return loss and decision."""
    return score.label, score.decision
