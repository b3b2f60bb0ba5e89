"""Losses x decisions: what deciding from the model's distribution changes, against greedy answers of the same weights.

Differences are paired by example and seed. Means are over the examples on which every decision of a loss has a finite score with
every seed; an answer without a number counts as :mod:`numerate.lab.evaluation.missing` says. The mean of an error without an
upper limit is that of a typical run, the median over seeds, as in :mod:`numerate.lab.report.levels`. Where a few answers decide
the mean of a run, such as one of ten digits, errors are summarised by medians and compared by the share of examples closer minus
the share farther. The statistics are those of :mod:`numerate.lab.stats`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean
from typing import Any

import numpy as np

from numerate.lab.evaluation.decisions import FITTING, GREEDY, SAMPLED
from numerate.lab.evaluation.derailing import DERAILED
from numerate.lab.evaluation.error_sources import Decided, ErrorSources, error_sources
from numerate.lab.report.analysis import LEAST_SEEDS, LEVEL, Setup, few_decide, interval, verdict
from numerate.lab.report.contrasts import Contrast, contrasts, share_of_change
from numerate.lab.report.records import Floats
from numerate.lab.report.tables import DataTable
from numerate.lab.report.wording import Measure, measure
from numerate.lab.stats import Comparison, Interval, compare, corrected

_MEASURES = ("absolute_error", "relative_error", "time_gap_circular")  # beside the headline
_SAME = {"absolute": "median", "absolute_error": "median", "squared": "mean", "exact": "mode", "relative_error": "relative"}


@dataclass(frozen=True)
class DecisionScore:
    """Mean or median of a measure for a loss and a decision, and the paired difference from greedy answers."""

    label: str
    split: str
    measure: Measure
    decision: str
    seeds: int
    examples: int
    left_out: int  # examples without a finite score
    interval: Interval  # of the mean or, if that is the summary of the measure, the median
    mean: float
    median: float  # over all examples, averaged over seeds
    greedy: float  # mean or median of the greedy answers
    comparison: Comparison | None
    alike: bool = False
    judged: bool = True  # see Setup

    @property
    def gap(self) -> float:
        """Score minus that of the greedy answers, as both are displayed."""
        return self.interval.estimate - self.greedy

    @property
    def change(self) -> float | None:
        """Difference from greedy answers as a share of their score; None if that is 0."""
        return None if self.comparison is None else share_of_change(self.interval.estimate, self.greedy)

    @property
    def better(self) -> bool | None:
        """The :func:`verdict` on the difference from greedy answers."""
        return verdict(self.comparison, self.measure, judged=self.judged)


@dataclass(frozen=True)
class DecisionCost:
    """What the distributions of a loss are worth, and what they cost: over all seeds and examples of a split."""

    label: str
    split: str
    level: float  # of the interval
    coverage: float | None  # share of gold numbers in it
    calibrated: float | None  # likewise, of conformal intervals, fitted on the other half of the examples
    crps: float | None
    searched: float  # share of the model's mass that was found
    greedy_ms: float  # per example
    search_ms: float
    samples_ms: float | None
    ratio: float  # of search to greedy; the search is in addition
    sources: Mapping[str, ErrorSources]  # by measure


@dataclass(frozen=True)
class Decisions:
    """Everything the report says about the decisions of a setup."""

    scores: Sequence[DecisionScore]
    costs: Sequence[DecisionCost]
    decisions: tuple[str, ...]  # greedy first
    measures: tuple[Measure, ...]  # the first is drawn
    contrasts: Sequence[Contrast]  # with the baseline

    def contrast(self, label: str, split: str, measure: Measure, decision: str) -> Contrast | None:
        """Return the difference from the baseline with the same decision; None if it was not computed."""
        key = (label, split, measure, decision)
        return next((c for c in self.contrasts if (c.label, c.split, c.measure, c.decision) == key), None)

    def cell(self, label: str, split: str, measure: Measure, decision: str) -> DecisionScore | None:
        """Return one of the scores; None if it was not computed."""
        key = (label, split, measure, decision)
        return next((s for s in self.scores if (s.label, s.split, s.measure, s.decision) == key), None)

    def labels(self, split: str, measure: Measure) -> list[str]:
        """Return the losses with scores."""
        return list(dict.fromkeys(s.label for s in self.scores if (s.split, s.measure) == (split, measure)))

    def left_out(self, measure: Measure) -> bool:
        """Return whether examples are left out of the means of a measure."""
        return any(score.left_out for score in self.scores if score.measure == measure)

    def splits(self) -> list[str]:
        """Return the splits with decisions."""
        return list(dict.fromkeys(found.split for found in self.costs))

    def cost(self, label: str, split: str) -> DecisionCost:
        """Return the cost of a loss on a split."""
        return next(found for found in self.costs if (found.label, found.split) == (label, split))

    @property
    def parted(self) -> Measure | None:
        """The measure whose error is taken apart into its sources; None if there is none."""
        return next((m for m in self.measures if not m.median and any(m.name in cost.sources for cost in self.costs)), None)

    @property
    def tested(self) -> bool:
        """Whether there are enough seeds for a test."""
        return any(score.comparison is not None and score.comparison.seeds >= LEAST_SEEDS for score in self.scores)


def decisions(setup: Setup) -> Decisions | None:
    """Compare the decisions of each loss with its greedy answers; None if no run has decisions."""
    found = {
        (label, split): parts
        for split in setup.splits
        for label in setup.labels
        if (parts := _decided(setup, label, split)) is not None
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
    measures = tuple(replace(_summarised(name, found), undefined=setup.measure(name).undefined) for name in chosen)
    rules = dict.fromkeys(rule for parts in found.values() for rule in parts[0].measures)
    scores: list[DecisionScore] = []
    for each in measures:
        mine = [replace(score, judged=setup.judged) for score in _scores(found, each)]
        for rule in rules:
            scores += _corrected([score for score in mine if score.decision == rule])
    costs = [decision_cost(label, split, parts, chosen) for (label, split), parts in found.items()]
    return Decisions(scores, costs, tuple(rules), measures, contrasts(setup, found, measures))


def _decided(setup: Setup, label: str, split: str) -> list[Decided] | None:
    """Return the decisions of each seed; None if a seed has none."""
    parts = [cell.splits[split].decided for cell in setup.cells[label].values()]
    known = [part for part in parts if part is not None]
    return known if known and len(known) == len(parts) else None


def _scores(found: Mapping[tuple[str, str], list[Decided]], summary: Measure) -> Iterator[DecisionScore]:
    for (label, split), parts in found.items():
        if not all(summary.name in part.measures[GREEDY] for part in parts):
            continue
        means = {rule: np.stack([part.for_mean(rule, summary.name) for part in parts]) for rule in parts[0].measures}  # [S, E]
        finite = np.isfinite(np.stack([*means.values()])).all((0, 1))  # [E]
        if not finite.any():  # then no example is left out: the decisions without numbers have an infinite mean
            finite = np.ones_like(finite)
        values, kept = means, finite
        if summary.median:  # which missing answers do not make infinite
            values = {rule: np.stack([part.measures[rule][summary.name] for part in parts]) for rule in means}
            kept = np.ones_like(finite)
        size = (len(parts), int(kept.sum()), int((~kept).sum()))
        for rule, scores in values.items():
            mine, greedy = scores[:, kept], values[GREEDY][:, kept]
            comparison = None
            comparable = summary.median or bool(np.isfinite([mine, greedy]).all())
            if rule != GREEDY and mine.shape[1] > 1 and comparable:
                bounds = summary.bounds(np.stack([mine, greedy]))
                comparison = compare(mine, greedy, "sign" if summary.median else "mean", LEVEL, bounds=bounds)
            own, theirs = interval(summary, mine), interval(summary, greedy).estimate
            middle = float(np.median([part.measures[rule][summary.name] for part in parts], axis=1).mean())
            alike = bool(np.array_equal(mine, greedy))
            mean = interval(mean_measure(summary.name), means[rule][:, finite]).estimate
            yield DecisionScore(label, split, summary, rule, *size, own, mean, middle, theirs, comparison, alike)


def _summarised(name: str, found: Mapping[tuple[str, str], list[Decided]]) -> Measure:
    """Return a measure with the mean as its summary; the median if a few answers decide the mean of some run."""
    columns = [
        np.stack([part.for_mean(rule, name) for part in parts])  # [S, E]
        for parts in found.values()
        for rule in parts[0].measures
        if all(name in part.measures.get(rule, {}) for part in parts)
    ]
    finite = [column[:, np.isfinite(column).all(0)] for column in columns]
    ruined = any(column.size and few_decide(column) for column in finite)
    return measure(name) if ruined and measure(name).median else mean_measure(name)


def _corrected(scores: Sequence[DecisionScore]) -> list[DecisionScore]:
    """Correct the p-values of a measure and rule over losses and splits; comparisons without any difference do not count."""
    tested = {i: score.comparison for i, score in enumerate(scores) if score.comparison is not None and not score.alike}
    final = corrected(tested)
    for i, score in enumerate(scores):
        if score.comparison is not None and score.alike:
            final[i] = replace(score.comparison, corrected_p=1.0)
    return [replace(score, comparison=final.get(i)) for i, score in enumerate(scores)]


def decision_cost(label: str, split: str, parts: Sequence[Decided], names: Sequence[str]) -> DecisionCost:
    """Return times, coverage and sources of error of the decisions of each seed, ``parts``, for the measures ``names``."""
    sources = {name: error_sources(name, parts) for name in names if name in parts[0].expected}
    ms = {name: 1000 * float(np.median([part.seconds[name] for part in parts])) for name in parts[0].seconds}
    return DecisionCost(
        label=label,
        split=split,
        level=parts[0].level,
        coverage=_mean([part.covers for part in parts]),
        calibrated=_mean([part.calibrated_covers for part in parts]),
        crps=_mean([part.crps for part in parts]),
        searched=_mean([part.covered for part in parts]) or 0.0,
        greedy_ms=ms["greedy"],
        search_ms=ms["search"],
        samples_ms=ms.get("samples"),
        ratio=ms["search"] / ms["greedy"] if ms["greedy"] else 0.0,
        sources={name: found for name, found in sources.items() if found is not None},
    )


def _mean(columns: Sequence[Floats]) -> float | None:
    """Return the mean of the examples that have a value, averaged over seeds."""
    known = [float(finite.mean()) for column in columns if len(finite := column[np.isfinite(column)])]
    return fmean(known) if known else None


def same_rule(rules: Sequence[str], name: str | None) -> str | None:
    """Return the rule of this name, or of another name for the same; None if there is none."""
    return next((rule for rule in rules if _SAME.get(rule, rule) == name), None)


def fitting_rule(rules: Sequence[str], name: str) -> str | None:
    """Return the rule that fits a measure, by any of its names; else the first one other than greedy."""
    others = [rule for rule in rules if rule != GREEDY]
    return same_rule(others, FITTING.get(name)) or (others[0] if others else None)


def mean_measure(name: str) -> Measure:
    """Look up a measure that is summarised by its mean."""
    return replace(measure(name), median=False)


def decisions_table(found: Sequence[tuple[Setup, Decisions]]) -> DataTable:
    """Return one row per setup, loss, split, measure and decision; this is ``report_decisions.csv``.

    ``mean`` is over ``examples`` examples, that of an error without an upper limit in a typical run (the median over seeds);
    ``left_out`` have no finite score under some decision. ``low`` to ``high`` is the interval of the ``summary``: the mean or,
    where a few answers decide the mean of a run, the median. ``difference`` is that from greedy
    answers of the same weights: of means or, with medians, the share of examples with a larger score minus that with a smaller
    one. ``change`` is that of the summary, as a share of the greedy one.
    ``seconds`` are per example, for the search those beyond greedy decoding. ``coverage`` is that of the interval of ``level``,
    ``calibrated_coverage`` that of conformal intervals, fitted on the other half of the examples.
    ``against`` is the difference from ``baseline`` with the same decision, ``against_change`` its share of the baseline's score.
    ``helps`` is True or False if that is significantly better or worse, else None.
    """
    columns = (
        *("task", "model", "setup", "label", "split", "measure", "decision", "seeds", "examples", "left_out"),
        *("summary", "mean", "low", "high", "median"),
        *("difference", "difference_low", "difference_high", "change", "p", "p_holm", "better"),
        *("seconds", "level", "coverage", "calibrated_coverage", "crps", "searched"),
        *("baseline", "against", "against_low", "against_high", "against_change", "against_p", "against_p_holm", "helps"),
    )
    rows = []
    for setup, mine in found:
        for score in mine.scores:
            found_by = mine.cost(score.label, score.split)
            name = (setup.task, setup.model, setup.title, score.label, score.split, score.measure.name, score.decision)
            size = (score.seeds, score.examples, score.left_out)
            summary = "median" if score.measure.median else "mean"
            value = (summary, score.mean, score.interval.low, score.interval.high, score.median)
            difference: tuple[Any, ...] = (None,) * 7
            if (compared := score.comparison) is not None:
                ends = (compared.difference.estimate, compared.difference.low, compared.difference.high)
                difference = (*ends, score.change, compared.p_value, compared.corrected_p, score.better)
            times = {GREEDY: found_by.greedy_ms, SAMPLED: found_by.samples_ms}
            seconds = (times.get(score.decision) or found_by.search_ms) / 1000
            worth = (found_by.level, found_by.coverage, found_by.calibrated, found_by.crps, found_by.searched)
            against: tuple[Any, ...] = (None,) * 7
            if (other := mine.contrast(score.label, score.split, score.measure, score.decision)) is not None:
                compared = other.comparison
                ends = (compared.difference.estimate, compared.difference.low, compared.difference.high)
                against = (*ends, other.change, compared.p_value, compared.corrected_p, other.better)
            rows.append((*name, *size, *value, *difference, seconds, *worth, setup.baseline, *against))
    return DataTable(columns, rows)


def sources_rows(setup: Setup, found: Decisions) -> list[dict[str, Any]]:
    """Return where the error of each loss comes from, as plain data."""
    return [
        {
            "setup": setup.title,
            "label": worth.label,
            "split": worth.split,
            **asdict(sources),
            **{part: getattr(sources, part) for part in ("decision", "spread", "surprise")},
        }
        for worth in found.costs
        for sources in worth.sources.values()
    ]
