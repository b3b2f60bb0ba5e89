"""Losses x decisions: what deciding from the model's distribution changes, against greedy answers of the same weights.

Differences are paired by example and seed. Means are over the examples on which every decision of a loss has a finite score with
every seed; an answer without a number counts as :mod:`numerate.lab.evaluation.missing` says. The mean of an error without an
upper limit is that of a typical run, the median over seeds, as in :mod:`numerate.lab.report.levels`. Where a few answers dominate
the mean of a run, such as one of ten digits, errors are summarised by medians and compared by the share of examples closer minus
the share farther. The statistics are those of :mod:`numerate.lab.stats`.

Each loss is compared with the baseline as well, both with the same decision: over the examples on which both have a finite score
with every seed. P-values are corrected by Holm's method over the losses and splits of a metric and decision.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from numerate.lab.evaluation.decisions import FITTING, GREEDY
from numerate.lab.evaluation.derailing import DERAILED
from numerate.lab.evaluation.error_sources import Decided, ErrorSources, error_sources
from numerate.lab.report.analysis import Score, Setup, compared, estimate, few_decide, finite, holm_corrected, interval
from numerate.lab.wording.decisions import Worth
from numerate.lab.wording.measures import Measure, mean_measure, measure

_MEASURES = ("absolute_error", "relative_error", "time_gap_circular")  # beside the headline
_SAME = {"absolute": "median", "absolute_error": "median", "squared": "mean", "exact": "mode", "relative_error": "relative"}

_Found = Mapping[tuple[str, str], Sequence[Decided]]  # the decisions of each seed, by loss and split


@dataclass(frozen=True)
class DecisionScore(Score):
    """Mean or median of a metric for a loss and a decision, compared with greedy answers."""

    left_out: int = 0  # examples without a finite score
    mean: float = 0.0
    median: float = 0.0  # over all examples, averaged over seeds
    contrast: Score | None = None  # the same compared with the baseline, both with the same decision


@dataclass(frozen=True)
class DecisionCost:
    """What the distributions of a loss are worth on a split, and where its errors come from, by metric."""

    label: str
    split: str
    worth: Worth
    sources: Mapping[str, ErrorSources]


@dataclass(frozen=True)
class Decisions:
    """Everything the report says about the decisions of a setup."""

    scores: Sequence[DecisionScore]
    costs: Sequence[DecisionCost]
    decisions: tuple[str, ...]  # greedy first
    measures: tuple[Measure, ...]  # the first is drawn

    def cell(self, label: str, split: str, measure: Measure, decision: str) -> DecisionScore | None:
        """Return one of the scores; None if it was not computed."""
        key = (label, split, measure, decision)
        return next((s for s in self.scores if (s.label, s.split, s.measure, s.decision) == key), None)

    def labels(self, split: str, measure: Measure) -> list[str]:
        """Return the losses with scores."""
        return list(dict.fromkeys(s.label for s in self.scores if (s.split, s.measure) == (split, measure)))

    def left_out(self, measure: Measure) -> bool:
        """Return whether examples are left out of the means of a metric."""
        return any(score.left_out for score in self.scores if score.measure == measure)

    def splits(self) -> list[str]:
        """Return the splits with decisions."""
        return list(dict.fromkeys(found.split for found in self.costs))

    def cost(self, label: str, split: str) -> DecisionCost:
        """Return the cost of a loss on a split."""
        return next(found for found in self.costs if (found.label, found.split) == (label, split))

    @property
    def parted(self) -> Measure | None:
        """The metric whose error is taken apart into its sources; None if there is none."""
        return next((m for m in self.measures if not m.median and any(m.name in cost.sources for cost in self.costs)), None)

    @property
    def tested(self) -> bool:
        """Whether there are enough seeds for a test."""
        return any(score.tested for score in self.scores)


def decisions(setup: Setup) -> Decisions | None:
    """Compare the decisions of each loss with its greedy answers and with the baseline; None if no run has decisions."""
    found = {
        (label, split): known
        for split in setup.splits
        for label, cells in setup.cells.items()
        if len(known := [part for cell in cells.values() if (part := cell.splits[split].decided) is not None]) == len(cells)
    }
    if not found:
        return None
    names = list(dict.fromkeys(name for parts in found.values() for name in parts[0].measures[GREEDY]))
    exact = setup.headline.higher_is_better  # then nearly right is not what is asked for first
    order = (setup.headline.name, *_MEASURES) if exact else (*_MEASURES, setup.headline.name)
    chosen = [name for name in dict.fromkeys(order) if name in names]
    every = [scores for parts in found.values() for part in parts for scores in part.measures.values()]
    if any(DERAILED in scores and scores[DERAILED].any() for scores in every):
        chosen.append(DERAILED)
    measures = tuple(replace(_summarised(setup, name, found), undefined=setup.measure(name).undefined) for name in chosen)
    rules = tuple(dict.fromkeys(rule for parts in found.values() for rule in parts[0].measures))
    scores: list[DecisionScore] = []
    for each in measures:
        rows = [score for place in found for score in _scores(setup, found, each, *place)]
        for rule in rules:
            mine = holm_corrected([score for score in rows if score.decision == rule])
            others = holm_corrected([_contrast(setup, found, score) for score in mine])
            pairs = zip(mine, others, strict=True)
            scores += [replace(score, contrast=None if other.comparison is None else other) for score, other in pairs]
    costs = []
    for (label, split), parts in found.items():
        sources = {name: error_sources(name, parts) for name in chosen if name in parts[0].expected}
        finite = {name: own for name, own in sources.items() if own is not None}
        costs.append(DecisionCost(label, split, Worth.of(parts), finite))
    return Decisions(scores, costs, rules, measures)


def _has(found: _Found, label: str, split: str, rule: str, name: str) -> bool:
    return all(name in part.measures.get(rule, {}) for part in found[label, split])


def _scores(setup: Setup, found: _Found, summary: Measure, label: str, split: str) -> Iterator[DecisionScore]:
    """Yield the scores of a loss on a split by decision, over the same examples, compared with greedy answers."""
    name, rules = (
        summary.name,
        [rule for rule in found[label, split][0].measures if _has(found, label, split, rule, summary.name)],
    )
    if GREEDY not in rules:
        return
    plain, filled = (
        {rule: setup.values(label, split, name, rule, filled=own) for rule in rules}  # [S, E]
        for own in (False, True)
    )
    known = np.isfinite(np.stack([*filled.values()])).all((0, 1))  # [E]
    if not known.any():  # then no example is left out: the decisions without numbers have an infinite mean
        known = np.ones_like(known)
    kept = np.ones_like(known) if summary.median else known  # missing answers do not make a median infinite
    values = {rule: own[:, kept] for rule, own in (plain if summary.median else filled).items()}
    for rule, mine in values.items():
        score = DecisionScore(
            label,
            split,
            summary,
            rule,
            seeds=len(mine),
            examples=mine.shape[1],
            interval=interval(summary, mine),
            judged=setup.judged,
            left_out=int((~kept).sum()),
            mean=estimate(mean_measure(name), filled[rule][:, known]),
            median=float(np.median(plain[rule], axis=1).mean()),
        )
        yield score if rule == GREEDY else compared(score, mine, values[GREEDY])


def _contrast(setup: Setup, found: _Found, score: DecisionScore) -> Score:
    """Return a score compared with the baseline instead, without a comparison if there is none."""
    split, rule, name, none = score.split, score.decision, score.measure.name, replace(score, comparison=None)
    base = (str(setup.baseline), split)
    if score.label not in setup.others() or base not in found or not _has(found, *base, rule, name):
        return none
    seeds = sorted(setup.cells[score.label].keys() & setup.cells[base[0]].keys())
    if not seeds:
        return none
    filled = not score.measure.median
    values = [setup.values(label, split, name, rule, seeds=seeds, filled=filled) for label in (score.label, base[0])]
    both = np.stack(values)  # [2, S, E]
    both = both[:, :, np.isfinite(both).all((0, 1))] if filled else both
    if both.shape[2] < 2:
        return none
    own = replace(score.interval, estimate=estimate(score.measure, both[0]))
    return compared(replace(none, interval=own), *both)


def _summarised(setup: Setup, name: str, found: _Found) -> Measure:
    """Return a metric with the mean as its summary; the median if a few answers dominate the mean of some run."""
    ruined = False
    for place, parts in found.items():
        for rule in (rule for rule in parts[0].measures if _has(found, *place, rule, name)):
            ruined = ruined or few_decide(finite(setup.values(*place, name, rule, filled=True)))
    return measure(name) if ruined and measure(name).median else mean_measure(name)


def same_rule(rules: Sequence[str], name: str | None) -> str | None:
    """Return the rule of this name, or of another name for the same; None if there is none."""
    return next((rule for rule in rules if _SAME.get(rule, rule) == name), None)


def fitting_rule(rules: Sequence[str], name: str) -> str | None:
    """Return the rule that fits a metric, by any of its names; else the first one other than greedy."""
    others = [rule for rule in rules if rule != GREEDY]
    return same_rule(others, FITTING.get(name)) or (others[0] if others else None)
