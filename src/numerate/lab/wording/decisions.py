"""Decisions as text: their names, what they change, where the errors come from, and how good the distributions are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from numerate.answers.metrics import METRICS
from numerate.distribution.exact import Floats
from numerate.lab.evaluation.decisions import FITTING, GREEDY, SAMPLED, cost
from numerate.lab.evaluation.error_sources import Decided, ErrorSources, error_sources, rule_and_members
from numerate.lab.evaluation.missing import finite_mean
from numerate.lab.stats import compare
from numerate.lab.stats.intervals import scale_of
from numerate.lab.wording.measures import Measure, mean_measure
from numerate.lab.wording.text import minus, percent, rounded, sentence


def decision_title(rule: str) -> str:
    """Return the name of a decision's answers: ``greedy answers``, ``answers decided by median``."""
    return "greedy answers" if rule == GREEDY else f"answers decided by {rule}"


def decision_noun(rule: str) -> str:
    """Return a decision as a noun: ``the median``, ``the rule within``, ``greedy answers``."""
    if rule == GREEDY:
        return "greedy answers"
    return f"the {rule}" if rule_and_members(rule)[0] in ("median", "mean", "mode", SAMPLED) else f"the rule {rule}"


def pair(loss: str, decision: str) -> str:
    """Return the name of a loss with a decision: ``soft decided by median``, ``ce with greedy answers``."""
    return f"{loss} with greedy answers" if decision == GREEDY else f"{loss} decided by {decision}"


def change_text(summary: Measure, change: float | None, difference: float | None) -> str:
    """Return a change from greedy answers: ``−54.5 %``, of an accuracy ``+1.2 points``; empty if there is none."""
    if summary.higher_is_better and difference is not None:
        return summary.difference(difference)
    return "" if change is None else percent(change)


@dataclass(frozen=True)
class Worth:
    """What distributions are worth, and what they cost: over all runs and examples of a split."""

    level: float  # of the interval
    coverage: float | None  # share of gold numbers in it
    calibrated: float | None  # likewise, of conformal intervals, fitted on the other half of the examples
    crps: float | None
    searched: float  # share of the model's mass that was found
    greedy_ms: float  # per example
    search_ms: float
    samples_ms: float | None

    @property
    def ratio(self) -> float:
        """Time of the search, which is in addition, to that of a greedy answer."""
        return self.search_ms / self.greedy_ms if self.greedy_ms else 0.0

    @classmethod
    def of(cls, parts: Sequence[Decided]) -> Worth:
        """Return the worth of the distributions of several runs."""

        def mean(columns: Sequence[Floats]) -> float | None:  # of the examples that have a value, averaged over runs
            known = [value for column in columns if (value := finite_mean(column)) is not None]
            return fmean(known) if known else None

        names = ("covers", "calibrated_covers", "crps", "covered")
        coverage, calibrated, crps, searched = (mean([getattr(part, name) for part in parts]) for name in names)
        ms = {name: 1000 * float(np.median([part.seconds[name] for part in parts])) for name in parts[0].seconds}
        times = (ms["greedy"], ms["search"], ms.get("samples"))
        return cls(parts[0].level, coverage, calibrated, crps, searched or 0.0, *times)


def source_sentence(sources: ErrorSources, low: float | None = None, high: float | None = None) -> str:
    """Say how much of an error is the decision and how much the model; ``low`` to ``high`` is an interval of the former.

    Examples:
        >>> print(source_sentence(ErrorSources("absolute_error", "median", 90, 0, 357.0, 320.0, 330.0, 295.0)))
        Mean absolute error 357 with greedy answers, 320 with the median: 10 % of it is the decision, 90 % the model. With the \
median the model expects an error of 295: it is overconfident by 25.0.
    """
    summary = mean_measure(sources.measure)
    name = "Share of wrong answers" if summary.higher_is_better else f"Mean {summary.plain}"
    rule = decision_noun(sources.rule)
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
    """Yield metric, summary and its value for each decision: means, and for errors that can be infinite medians as well.

    The mean of such an error, and the root of the mean squared one, are over the examples where all decisions have a finite one.
    """
    for name in part.measures[GREEDY]:
        metric, columns = METRICS.get(name), np.stack([scores[name] for scores in part.measures.values()])  # [D, E]
        if metric is None or metric.summary == "mean":
            yield name, "mean", columns.mean(1).tolist()
            continue
        yield name, "median", np.median(columns, axis=1).tolist()
        averaged = np.stack([part.for_mean(rule, name) for rule in part.measures])
        finite = averaged[:, np.isfinite(averaged).all(0)]
        if finite.shape[1]:
            yield name, "mean", [float(row.mean()) for row in finite]
            if name == "absolute_error":
                scale = scale_of(finite)
                yield "squared_error", "root mean", (scale * np.sqrt(np.square(finite / scale).mean(1))).tolist()


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
    found = Worth.of([part])
    told = []
    if found.coverage is not None:
        share = f"{100 * found.coverage:.1f} % of the examples"
        told.append(f"the {100 * found.level:g} % interval contains the gold number in {share}")
    if found.calibrated is not None:
        told.append(f"conformal intervals, fitted on the other half of the examples, in {100 * found.calibrated:.1f} %")
    told.append(f"the distributions cover {100 * found.searched:.1f} % of the model's mass")
    told.append(f"per example they take {rounded(found.search_ms)} ms, {found.ratio:.3g} × the time of a greedy answer")
    if found.samples_ms is not None:
        told.append(f"samples take {rounded(found.samples_ms)} ms")
    yield sentence("; ".join(told)) + "."
