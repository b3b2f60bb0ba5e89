"""Decisions in words: what they change, where the errors come from, and how good the distributions are."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from numerate.answers.metrics import METRICS
from numerate.lab.evaluation.decisions import FITTING, GREEDY, cost
from numerate.lab.evaluation.derailing import DERAILED
from numerate.lab.evaluation.error_sources import Decided, ErrorSources, error_sources
from numerate.lab.report.analysis import LEAST_SEEDS, SPLIT_NAMES
from numerate.lab.report.contrasts import Contrast
from numerate.lab.report.decisions import Decisions, DecisionScore, decision_cost, fitting_rule, mean_measure
from numerate.lab.report.wording import (
    EXAMPLES_WON,
    MOST_NAMED,
    Measure,
    listed,
    minus,
    p_equation,
    plus,
    rounded,
    sentence,
)
from numerate.lab.stats import Comparison, compare
from numerate.lab.stats.intervals import scale_of


def gain_text(found: DecisionScore | Contrast) -> str:
    """Return a difference with its share: ``−90.0 (−14.4 %)``; of medians ``−14.4 %, closer − farther +20.7 points``."""
    summary, change, comparison = found.measure, found.change, found.comparison
    assert comparison is not None
    if not summary.median:
        return summary.signed(found.gap) + (f" ({percent(change)})" if change is not None and not summary.percent else "")
    difference = comparison.difference.estimate
    closer = EXAMPLES_WON.difference(difference if summary.higher_is_better else -difference)
    return f"{percent(change)}, closer − farther {closer}" if change is not None else f"closer − farther {closer}"


def change_text(summary: Measure, change: float | None, difference: float | None) -> str:
    """Return a change from greedy answers: ``−54.5 %``, of an accuracy ``+1.2 points``; empty if there is none."""
    if summary.higher_is_better and difference is not None:
        return summary.difference(difference)
    return "" if change is None else percent(change)


def range_text(summary: Measure, comparison: Comparison) -> str:
    """Return the interval of a difference."""
    low, high = comparison.difference.low, comparison.difference.high
    if not summary.median:
        return summary.signed_range(low, high)
    return EXAMPLES_WON.signed_range(low, high) if summary.higher_is_better else EXAMPLES_WON.signed_range(-high, -low)


def title(summary: Measure) -> str:
    """Return the name of a summary: ``mean absolute error``, ``median absolute error``; of an accuracy, its own."""
    if summary.median or summary.higher_is_better or summary.name == DERAILED:
        return summary.title
    return f"mean {summary.plain}"


def decision_title(rule: str) -> str:
    """Return the name of a decision's answers: ``greedy answers``, ``answers decided by median``."""
    return "greedy answers" if rule == GREEDY else f"answers decided by {rule}"


def pair(loss: str, decision: str) -> str:
    """Return the name of a loss with a decision: ``soft decided by median``, ``ce with greedy answers``."""
    return f"{loss} with greedy answers" if decision == GREEDY else f"{loss} decided by {decision}"


def decision_sentence(found: Decisions) -> str:
    """Return what the fitting rule changes on the first split; empty if nothing was compared."""
    summary, split = found.measures[0], found.splits()[0]
    rule = fitting_rule(found.decisions, summary.name)
    cells = {label: found.cell(label, split, summary, rule or "") for label in found.labels(split, summary)}
    pairs = []
    for label, score in cells.items():
        greedy = found.cell(label, split, summary, GREEDY)
        if score is None or greedy is None or score.examples < 2:
            continue
        difference = None if score.comparison is None else score.comparison.difference.estimate
        change = change_text(summary, score.change, difference)
        before, after = (summary.value(each.interval.estimate) for each in (greedy, score))
        if {before, after} != {summary.infinite}:
            pairs.append(f"{label} from {before} to {after}" + (f" ({change}{_p(score)})" if change else ""))
    if not pairs:
        return ""
    place = f", {SPLIT_NAMES.get(split, split)}" if len(found.splits()) > 1 else ""
    return f"Answers decided by {rule} instead of greedily change the {title(summary)}{place}: {listed(pairs, MOST_NAMED)}."


def _p(score: DecisionScore) -> str:
    comparison = score.comparison
    if comparison is None or comparison.corrected_p is None or comparison.seeds < LEAST_SEEDS:
        return ""
    return f", {p_equation(comparison.corrected_p)}"


def source_sentence(sources: ErrorSources, low: float | None = None, high: float | None = None) -> str:
    """Say how much of an error is the decision and how much the model; ``low`` to ``high`` is an interval of the former.

    Examples:
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
        averaged = np.stack([part.for_mean(rule, name) for rule in part.measures])
        finite = averaged[:, np.isfinite(averaged).all(0)]
        if finite.shape[1]:
            yield name, "mean", [float(value) for value in finite.mean(1)]
            if name == "absolute_error":
                scale = scale_of(finite)
                roots = scale * np.sqrt(np.square(finite / scale).mean(1))
                yield "squared_error", "root mean", [float(value) for value in roots]


def evaluation_sentences(part: Decided) -> Iterator[str]:
    """Yield what an evaluation says below its table: how much of each error is the decision, coverage, and time."""
    for name in (name for name in FITTING if name in part.expected):
        sources = error_sources(name, [part])
        if sources is None:
            continue
        greedy, decided = cost(name, part.for_mean(GREEDY, name)), part.expected[name][2]
        kept = np.isfinite(np.stack([greedy, *part.expected[name]])).all(0)
        low = high = None
        if kept.sum() > 1:
            difference = compare(greedy[kept], decided[kept]).difference
            low, high = difference.low, difference.high
        left = f" ({sources.left_out:,} of {sources.examples + sources.left_out:,} examples without a finite error left out.)"
        yield source_sentence(sources, low, high) + (left if sources.left_out else "")
    found = decision_cost("", "", [part], ())
    told = [f"the distributions cover {100 * found.searched:.1f} % of the model's mass"]
    if found.coverage is not None:
        share = f"{100 * found.coverage:.1f} % of the examples"
        told.insert(0, f"the {100 * found.level:g} % interval holds the gold number in {share}")
    if found.calibrated is not None:
        told.insert(1, f"conformal intervals, fitted on the other half of the examples, in {100 * found.calibrated:.1f} %")
    told.append(f"per example they take {rounded(found.search_ms)} ms, {found.ratio:.3g} × the time of a greedy answer")
    if found.samples_ms is not None:
        told.append(f"samples take {rounded(found.samples_ms)} ms")
    yield sentence("; ".join(told)) + "."


def percent(share: float) -> str:
    """Format a change: ``−10.3 %``, ``+2,946 %``."""
    text = f"{100 * share:.1f}" if abs(share) < 10 else rounded(100 * share)
    return f"{plus(minus(text))} %"
