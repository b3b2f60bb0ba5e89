"""Losses x members: what deciding from the pool of more members changes, against one member of the same runs, and what it costs.

A run is one observation, whatever its members: intervals and p-values are over seeds and test examples. The members of a run
share its seed and its training rows, so they are not independent of each other. Differences are paired by example and seed.
P-values are corrected by Holm's method over the losses, numbers of members and splits of a rule.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from numerate.lab.evaluation.decisions import GREEDY, SAMPLED
from numerate.lab.evaluation.error_sources import pooled, rule_and_members
from numerate.lab.evaluation.missing import finite_mean
from numerate.lab.report.analysis import Score, Setup, compared, holm_corrected, score_of
from numerate.lab.report.answer import in_split
from numerate.lab.report.decisions import Decisions, fitting_rule
from numerate.lab.stats import LEAST_SEEDS
from numerate.lab.wording.decisions import change_text
from numerate.lab.wording.measures import Measure
from numerate.lab.wording.text import MOST_NAMED, counted, listed, p_equation


@dataclass(frozen=True)
class PoolScore:
    """The pool of the first members of each run of a loss on a split."""

    label: str
    split: str
    members: int  # how many decide
    scores: Mapping[str, Score]  # by rule; with more than one member, compared with one of the same runs
    crps: float | None  # mean over runs and examples; None if there is none
    coverage: float | None  # share of gold numbers in the interval, without calibration
    train_seconds: float | None  # of these members, the median over seeds
    answer_ms: float | None  # likewise, to find the distribution of a row
    parameters: float | None  # of all of them together; None if they are not known


@dataclass(frozen=True)
class MemberScores:
    """Everything the report says about the members of a setup's runs."""

    pools: Sequence[PoolScore]  # by loss, split and number of members
    measure: Measure  # the metric of the scores
    rules: tuple[str, ...]  # decisions, the fitting one first
    # Share of the spread of the largest pool that is disagreement between its members, by loss and split.
    disagreement: Mapping[tuple[str, str], float]

    @property
    def most(self) -> int:
        """The most members of a run."""
        return max(pool.members for pool in self.pools)

    def of(self, split: str) -> list[PoolScore]:
        """Return the pools on a split."""
        return [pool for pool in self.pools if pool.split == split]

    def pool(self, label: str, split: str, members: int) -> PoolScore | None:
        """Return one of the pools; None if the runs of the loss have no such pool."""
        key = (label, split, members)
        return next((pool for pool in self.pools if (pool.label, pool.split, pool.members) == key), None)

    @property
    def tested(self) -> bool:
        """Whether there are enough seeds for a test."""
        return any(score.tested for pool in self.pools for score in pool.scores.values())

    def columns(self) -> list[tuple[str, str]]:
        """Return the name and heading of each fact that is known."""
        headings = {"crps": "CRPS", "coverage": "Gold in interval", "train_seconds": "Training, s"}
        headings |= {"answer_ms": "ms per row", "parameters": "Parameters"}
        return [(name, text) for name, text in headings.items() if any(getattr(pool, name) is not None for pool in self.pools)]


def members(setup: Setup, decided: Decisions | None) -> MemberScores | None:
    """Compare pools of members with one member, by the first metric of the decisions; None if all runs have one member."""
    sizes = {label: known for label in setup.labels if (known := setup.sizes(label))}
    if decided is None or not sizes:
        return None
    measure = decided.measures[0]
    rules = [rule for rule in setup.decisions() if rule not in (GREEDY, SAMPLED) and rule_and_members(rule)[1] == 1]
    fitting = fitting_rule(rules, measure.name)
    rules = [*(rule for rule in rules if rule == fitting), *(rule for rule in rules if rule != fitting)]
    places = [(label, split) for split in setup.splits for label in sizes]
    scores: dict[tuple[tuple[str, str], int, str], Score] = {}
    for rule in rules:
        own = [(place, score) for place in places for score in _scores(setup, measure, *place, rule, sizes[place[0]]).items()]
        tested = holm_corrected([score for _, (_, score) in own])
        scores |= {(place, size, rule): found for (place, (size, _)), found in zip(own, tested, strict=True)}
    pools = [
        PoolScore(*place, size, {rule: scores[place, size, rule] for rule in rules}, *_facts(setup, *place, size))
        for place in places
        for size in sizes[place[0]]
    ]
    apart = {place: share for place in places if (share := _apart(setup, *place)) is not None}
    return MemberScores(pools, measure, tuple(rules), apart)


def _scores(setup: Setup, measure: Measure, label: str, split: str, rule: str, sizes: Sequence[int]) -> dict[int, Score]:
    """Return the score of each pool of a loss, over the examples on which all have a finite one, compared with one member."""
    values = {size: setup.values(label, split, measure.name, pooled(rule, size), filled=not measure.median) for size in sizes}
    finite = np.isfinite(np.stack([*values.values()])).all((0, 1))
    if measure.median or not finite.any():
        finite = np.ones_like(finite)
    scores = {}
    for size, own in values.items():
        mine = own[:, finite]  # each run is a row, whatever its members
        score = score_of(setup, label, split, measure, pooled(rule, size), mine)
        scores[size] = score if size == sizes[0] else compared(score, mine, values[sizes[0]][:, finite])
    return scores


def _facts(setup: Setup, label: str, split: str, size: int) -> tuple[float | None, ...]:
    """Return CRPS, coverage and cost of a pool; a part of the members has its part of the time."""
    runs = [*setup.cells[label].values()]
    parts = [part for run in runs if (part := run.splits[split].decided) is not None]
    share = size / setup.sizes(label)[-1]
    costs = [[run.cost.get(name) for run in runs] for name in ("train_seconds", "parameters", "trained_parameters")]
    seconds, parameters, trained = (None if None in own else median(x for x in own if x is not None) for own in costs)
    found = [np.concatenate([getattr(part.pools[size], name) for part in parts]) for name in ("crps", "covers")]
    search = median(float(np.median(part.seconds["search"])) for part in parts)
    return (
        *map(finite_mean, found),
        None if seconds is None else share * seconds,
        1000 * share * search,
        None if parameters is None or trained is None else parameters + (size - 1) * trained,  # adapters share their base
    )


def _apart(setup: Setup, label: str, split: str) -> float | None:
    """Return the share of the spread of a loss's largest pools that is disagreement, over all runs and examples."""
    parts = [part for run in setup.cells[label].values() if (part := run.splits[split].decided) is not None]
    between, within = (np.concatenate([getattr(part, name) for part in parts]) for name in ("disagreement", "within"))
    known = np.isfinite(between) & np.isfinite(within)
    total = float((between + within)[known].sum())
    return float(between[known].sum()) / total if total > 0 else None


def which_is_which(setup: Setup) -> str:
    """Return a sentence on what seeds are and what members are."""
    sizes = sorted({known[-1] for label in setup.labels if (known := setup.sizes(label))})
    if not sizes:
        return ""
    most = str(sizes[0]) if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"
    return (
        f"Seeds are independent runs, over which intervals and p-values are computed ({counted(len(setup.seeds), 'seed')}); the "
        f"{most} members of a run share its training rows and decide together, so a run counts once, however many members it has."
    )


def member_sentence(setup: Setup, found: MemberScores) -> str:
    """Return what the largest pool of each loss changes, on the first split, with the rule that fits."""
    rule, split, measure = found.rules[0], setup.splits[0], found.measure
    changes = []
    for label in dict.fromkeys(pool.label for pool in found.pools):
        last = max((one for one in found.of(split) if one.label == label), key=lambda one: one.members)
        one, score = found.pool(label, split, 1), last.scores[rule]
        if one is None or score.comparison is None:
            continue
        tested = score.comparison
        change = change_text(measure, score.change, tested.difference.estimate)
        p = f", {p_equation(tested.final_p)}" if tested.seeds >= LEAST_SEEDS and setup.judged else ""
        ends = [measure.value(each.interval.estimate) for each in (one.scores[rule], score)]
        pools = "" if last.members == found.most else f" with {last.members}"
        changes.append(f"{label}{pools} from {ends[0]} to {ends[1]}" + (f" ({change}{p})" if change else ""))
    if not changes:
        return ""
    return (
        f"Deciding by {rule} from the pool of {found.most} members instead of from one changes the {measure.summary}"
        f"{in_split(setup, split, ', ')}: {listed(changes, MOST_NAMED)}."
    )


def disagreement_sentence(setup: Setup, found: MemberScores) -> str:
    """Return how much of the spread of the largest pools is disagreement between members, on the first split."""
    shares = [
        f"{100 * share:.0f} % for {label}" for (label, split), share in found.disagreement.items() if split == setup.splits[0]
    ]
    if not shares:
        return ""
    return (
        "Disagreement between members makes up this share of the spread of their pool: "
        f"{listed(shares, MOST_NAMED)}; the rest is what each member is unsure of by itself."
    )


def member_rows(setup: Setup, found: MemberScores) -> list[dict[str, Any]]:
    """Return the pools as plain data: one row per loss, split, number of members and rule."""
    rows = []
    for pool in found.pools:
        for rule, score in pool.scores.items():
            tested, gain = score.comparison, score.gain
            row: dict[str, Any] = {"setup": setup.title, "loss": pool.label, "split": pool.split, "members": pool.members}
            row |= {"decision": rule, "measure": score.measure.name, "seeds": score.seeds, "examples": score.examples}
            row |= dict(zip(("value", "low", "high"), score.interval.numbers, strict=True))
            names = ("difference", "difference_low", "difference_high")
            row |= dict(zip(names, (None,) * 3 if gain is None else gain.numbers, strict=True))
            row |= {"change": score.change, "p": None, "p_holm": None, "better": score.better}
            row |= {} if tested is None else {"p": tested.p_value, "p_holm": tested.corrected_p}
            row |= {name: getattr(pool, name) for name in ("crps", "coverage", "train_seconds", "answer_ms", "parameters")}
            largest = pool.members == setup.sizes(pool.label)[-1]
            rows.append(row | {"disagreement": found.disagreement.get((pool.label, pool.split)) if largest else None})
    return rows
