"""Losses x decisions: what deciding from the model's distribution changes, against greedy answers of the same weights.

Differences are paired by example and seed. Means are over the examples on which every decision of a loss has a finite score with
every seed: an answer without a number has an infinite error. Where a few answers decide a mean, such as one of ten digits, errors
are summarised by medians and compared by the share of examples closer minus the share farther. The statistics are those of
:mod:`numerate.lab.stats`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from numerate.answers.metrics import METRICS
from numerate.lab.decisions import FITTING, GREEDY, SAMPLED, Decided, ErrorSources, cost, error_sources
from numerate.lab.derailing import DERAILED
from numerate.lab.report.analysis import LEAST_SEEDS, LEVEL, SPLIT_NAMES, Setup, interval
from numerate.lab.report.contrasts import Contrast, contrasts, share_of_change
from numerate.lab.report.records import Floats
from numerate.lab.report.tables import DataTable
from numerate.lab.report.wording import EXAMPLES_WON, Measure, listed, measure, minus, p_text, plus, rounded, sentence
from numerate.lab.stats import Comparison, Interval, compare, corrected

_MEASURES = ("absolute_error", "relative_error")  # beside the headline
_FEW_ANSWERS = 10  # medians: a larger mean is that of a few answers
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
    median: float  # over all examples, or as in the interval
    greedy: float  # mean or median of the greedy answers
    comparison: Comparison | None
    alike: bool = False

    @property
    def unbounded(self) -> bool:
        """Whether a few answers can ruin the mean, so that mean and median are both displayed."""
        metric = METRICS.get(self.measure.name)
        return metric is not None and metric.summary == "median"

    @property
    def change(self) -> float | None:
        """Difference from greedy answers as a share of their score; None if that is 0."""
        return None if self.comparison is None else share_of_change(self.interval.estimate, self.greedy)

    @property
    def better(self) -> bool | None:
        """True or False if the difference from greedy answers is significant, else None."""
        if self.comparison is None or self.comparison.corrected_p is None or self.comparison.seeds < LEAST_SEEDS:
            return None
        if self.comparison.corrected_p >= 1 - LEVEL or self.measure.higher_is_better is None:
            return None
        return (self.comparison.difference.estimate > 0) == self.measure.higher_is_better


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
    chosen = [name for name in dict.fromkeys((*_MEASURES, setup.headline.name)) if name in names]
    every = [scores for parts in found.values() for part in parts for scores in part.measures.values()]
    if any(DERAILED in scores and scores[DERAILED].any() for scores in every):
        chosen.append(DERAILED)
    measures = tuple(_summarised(name, found) for name in chosen)
    rules = dict.fromkeys(rule for parts in found.values() for rule in parts[0].measures)
    scores: list[DecisionScore] = []
    for each in measures:
        mine = list(_scores(found, each))
        for rule in rules:
            scores += _corrected([score for score in mine if score.decision == rule])
    costs = [_cost(label, split, parts, chosen) for (label, split), parts in found.items()]
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
        values = {rule: np.stack([part.measures[rule][summary.name] for part in parts]) for rule in parts[0].measures}  # [S, E]
        kept = np.isfinite(np.stack([*values.values()])).all((0, 1))  # [E]
        if not kept.any():
            continue
        size = (len(parts), int(kept.sum()), int((~kept).sum()))
        for rule, scores in values.items():
            mine, greedy = scores[:, kept], values[GREEDY][:, kept]
            comparison = None
            if rule != GREEDY and mine.shape[1] > 1:
                bounds = summary.bounds(np.stack([mine, greedy]))
                comparison = compare(mine, greedy, "sign" if summary.median else "mean", LEVEL, bounds=bounds)
            own, theirs = interval(summary, mine), interval(summary, greedy).estimate
            middle = own.estimate if summary.median else float(np.median(scores))
            alike = bool(np.array_equal(mine, greedy))
            means = (float(mine.mean()), middle, theirs)
            yield DecisionScore(label, split, summary, rule, *size, own, *means, comparison, alike)


def _summarised(name: str, found: Mapping[tuple[str, str], list[Decided]]) -> Measure:
    """Return a measure with the mean as its summary; the median if a few answers decide a mean (above ten medians)."""
    columns = [
        np.concatenate([part.measures[rule][name] for part in parts])
        for parts in found.values()
        for rule in parts[0].measures
        if all(name in part.measures.get(rule, {}) for part in parts)
    ]
    finite = [column[np.isfinite(column)] for column in columns]
    ruined = any(len(column) and column.mean() > _FEW_ANSWERS * np.median(column) > 0 for column in finite)
    return measure(name) if ruined and measure(name).median else mean_measure(name)


def _corrected(scores: Sequence[DecisionScore]) -> list[DecisionScore]:
    """Correct the p-values of a measure and rule over losses and splits; comparisons without any difference do not count."""
    tested = {i: score.comparison for i, score in enumerate(scores) if score.comparison is not None and not score.alike}
    final = corrected(tested)
    for i, score in enumerate(scores):
        if score.comparison is not None and score.alike:
            final[i] = replace(score.comparison, corrected_p=1.0)
    return [replace(score, comparison=final.get(i)) for i, score in enumerate(scores)]


def _cost(label: str, split: str, parts: Sequence[Decided], names: Sequence[str]) -> DecisionCost:
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
    values = np.concatenate(columns)
    values = values[np.isfinite(values)]
    return float(values.mean()) if len(values) else None


# Words


def gain_text(summary: Measure, comparison: Comparison, change: float | None) -> str:
    """Return a difference with its share: ``−90.0 (−14.4 %)``; of medians ``−14.4 %, closer − farther +20.7 points``."""
    difference = comparison.difference.estimate
    if not summary.median:
        return summary.signed(difference) + (f" ({percent(change)})" if change is not None and not summary.percent else "")
    closer = EXAMPLES_WON.difference(difference if summary.higher_is_better else -difference)
    return f"{percent(change)}, closer − farther {closer}" if change is not None else f"closer − farther {closer}"


def range_text(summary: Measure, comparison: Comparison) -> str:
    """Return the interval of a difference."""
    low, high = comparison.difference.low, comparison.difference.high
    if not summary.median:
        return summary.signed_range(low, high)
    return EXAMPLES_WON.signed_range(low, high) if summary.higher_is_better else EXAMPLES_WON.signed_range(-high, -low)


def fitting_rule(rules: Sequence[str], name: str) -> str | None:
    """Return the rule that fits a measure, by any of its names; else the first one other than greedy."""
    best = FITTING.get(name)
    others = [rule for rule in rules if rule != GREEDY]
    return next((rule for rule in others if _SAME.get(rule, rule) == best), others[0] if others else None)


def mean_measure(name: str) -> Measure:
    """Look up a measure that is summarised by its mean."""
    return replace(measure(name), median=False)


def title(summary: Measure) -> str:
    """Return the name of a summary: ``mean absolute error``, ``median absolute error``; of an accuracy, its own."""
    if summary.median or summary.higher_is_better or summary.name == DERAILED:
        return summary.title
    return f"mean {summary.plain}"


def decision_title(rule: str) -> str:
    """Return the name of a decision's answers: ``greedy answers``, ``answers decided by median``."""
    return "greedy answers" if rule == GREEDY else f"answers decided by {rule}"


def decision_sentence(found: Decisions) -> str:
    """Return what the fitting rule changes on the first split; empty if nothing was compared."""
    summary, split = found.measures[0], found.splits()[0]
    rule = fitting_rule(found.decisions, summary.name)
    cells = {label: found.cell(label, split, summary, rule or "") for label in found.labels(split, summary)}
    pairs = []
    for label, score in cells.items():
        greedy = found.cell(label, split, summary, GREEDY)
        if score is None or greedy is None or score.comparison is None:
            continue
        change = "" if score.change is None else f" ({percent(score.change)}{_p(score)})"
        before, after = (summary.value(each.interval.estimate) for each in (greedy, score))
        pairs.append(f"{label} from {before} to {after}{change}")
    if not pairs:
        return ""
    place = f", {SPLIT_NAMES.get(split, split)}" if len(found.splits()) > 1 else ""
    return f"Answers decided by {rule} instead of greedily change the {title(summary)}{place}: {listed(pairs)}."


def _p(score: DecisionScore) -> str:
    comparison = score.comparison
    if comparison is None or comparison.corrected_p is None or comparison.seeds < LEAST_SEEDS:
        return ""
    p = p_text(comparison.corrected_p)
    return f", p {p}" if p.startswith("<") else f", p = {p}"


def source_sentence(sources: ErrorSources, low: float | None = None, high: float | None = None) -> str:
    """Say how much of an error is the decision and how much the model; ``low`` to ``high`` is an interval of the former.

    Example:
        >>> print(source_sentence(ErrorSources("absolute_error", "median", 90, 0, 357.0, 320.0, 330.0, 295.0)))
        Mean absolute error 357 with greedy answers, 320 with the median: 10 % of it is the decision, 90 % the model. With the \
median the model expects an error of 295: it is overconfident by 25.0.
    """
    summary = mean_measure(sources.measure)
    name = "Share of wrong answers" if summary.higher_is_better else f"Mean {summary.plain}"
    rule = f"the {sources.rule}" if sources.rule in ("median", "mode") else f"the rule {sources.rule}"
    lead = f"{name} {summary.value(sources.greedy)} with greedy answers, {summary.value(sources.decided)} with {rule}"
    share = sources.decision / sources.greedy if sources.greedy else 0.0
    ends = ""
    if low is not None and high is not None and sources.greedy:
        ends = minus(f" (95 % interval {100 * low / sources.greedy:.0f} to {100 * high / sources.greedy:.0f} %)")
    if share > 0:
        lead += f": {100 * share:.0f} % of it is the decision{ends}, {100 - round(100 * share)} % the model."
    elif share < 0:
        lead += f": greedy answers are better, by {-100 * share:.0f} %{ends}."
    else:
        lead += ": the decision changes nothing."
    gap = summary.difference(abs(sources.surprise)).removeprefix("+")
    kind = "as it should" if abs(sources.surprise) < 0.01 * sources.decided else None
    kind = kind or f"it is {'overconfident' if sources.surprise > 0 else 'underconfident'} by {gap}"
    return f"{lead} With {rule} the model expects an error of {summary.value(sources.spread)}: {kind}."


def summary_rows(part: Decided) -> Iterator[tuple[str, str, list[float]]]:
    """Yield measure, summary and its value for each decision: means, and for errors that can be infinite medians as well.

    The mean of such an error, and the root of the mean squared one, are over the examples where all decisions have a finite one.
    """
    for name in part.measures[GREEDY]:
        metric, columns = METRICS.get(name), np.stack([scores[name] for scores in part.measures.values()])  # [D, E]
        if metric is None or metric.summary == "mean":
            yield name, "mean", [float(value) for value in columns.mean(1)]
            continue
        yield name, "median", [float(value) for value in np.median(columns, axis=1)]
        finite = columns[:, np.isfinite(columns).all(0)]
        if finite.shape[1]:
            yield name, "mean", [float(value) for value in finite.mean(1)]
            if name == "absolute_error":
                yield "squared_error", "root mean", [float(value) for value in np.sqrt(np.square(finite).mean(1))]


def evaluation_sentences(part: Decided) -> Iterator[str]:
    """Yield what an evaluation says below its table: how much of each error is the decision, coverage, and time."""
    for name in (name for name in FITTING if name in part.expected):
        sources = error_sources(name, [part])
        if sources is None:
            continue
        greedy, decided = cost(name, part.measures[GREEDY][name]), part.expected[name][2]
        kept = np.isfinite(np.stack([greedy, *part.expected[name]])).all(0)
        low = high = None
        if kept.sum() > 1:
            difference = compare(greedy[kept], decided[kept]).difference
            low, high = difference.low, difference.high
        left = f" ({sources.left_out:,} of {sources.examples + sources.left_out:,} examples without a finite error left out.)"
        yield source_sentence(sources, low, high) + (left if sources.left_out else "")
    found = _cost("", "", [part], ())
    told = [f"the search found {100 * found.searched:.1f} % of the model's mass"]
    if found.coverage is not None:
        share = f"{100 * found.coverage:.1f} % of the examples"
        told.insert(0, f"the {100 * found.level:g} % interval holds the gold number in {share}")
    if found.calibrated is not None:
        told.insert(1, f"conformal intervals, fitted on the other half of the examples, in {100 * found.calibrated:.1f} %")
    told.append(f"per example it takes {rounded(found.search_ms)} ms, {found.ratio:.3g} × the time of a greedy answer")
    if found.samples_ms is not None:
        told.append(f"samples take {rounded(found.samples_ms)} ms")
    yield sentence("; ".join(told)) + "."


def percent(share: float) -> str:
    """Format a change: ``−10.3 %``."""
    return f"{plus(minus(f'{100 * share:.1f}'))} %"


# Data


def decisions_table(found: Sequence[tuple[Setup, Decisions]]) -> DataTable:
    """Return one row per setup, loss, split, measure and decision; this is ``report_decisions.csv``.

    ``mean`` is over ``examples`` examples; ``left_out`` have no finite score under some decision. ``low`` to ``high`` is the
    interval of the ``summary``: the mean or, where a few answers decide the mean, the median. ``difference`` is that from greedy
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
