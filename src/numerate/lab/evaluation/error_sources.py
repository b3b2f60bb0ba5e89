r"""Read what was decided: the decisions of a run's records as arrays, and how much of an error is the decision.

With g the greedy answer, d the decision that fits a metric, y the gold number, P the model's distribution and L the cost, the
mean over examples is

    L(g, y) = L(g, y) - L(d, y)  +  E L(d, Y)  +  L(d, y) - E L(d, Y)        Y drawn from P
              decision              spread        surprise

    decision    what the same weights lose by a greedy answer; negative where greedy answers are better
    spread      the error that the model expects of its best answer: it gives several numbers some probability
    surprise    the error beyond that: above 0 for an overconfident or biased model, below 0 for an underconfident one

Decision is the share that another way to decode removes; spread and surprise are the model's. L is an error, or 1 - accuracy.
The expected relative error leaves the value 0 out, as ``decide("relative")`` does. Examples without a finite error are left out.

A run with several members has pools: its distributions are those of all members, its greedy answers those of the first. Deciding
from a pool is one more decision, ``median of 8 members`` beside ``median``, which is that of the first member alone.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from numerate.distribution.exact import exact_number
from numerate.lab.evaluation.decisions import (
    FITTING,
    GREEDY,
    SAMPLED,
    cost,
    on_line,
    on_period,
    pool_sizes,
    recorded_distribution,
)
from numerate.lab.evaluation.missing import FALLBACK

Floats = NDArray[np.float64]

_SPREAD = ("within", "disagreement")  # of the members of a record


@dataclass(frozen=True)
class ErrorSources:
    """Where the error of greedy answers comes from: means over ``examples``, as costs. The module has the formula."""

    measure: str  # the metric of the error
    rule: str  # the rule that minimises it in expectation
    examples: int  # examples with finite costs
    left_out: int  # examples without
    greedy: float  # cost of the greedy answers
    decided: float  # cost of the answers that the rule decides
    expected_greedy: float  # what the model expects the greedy answers to cost
    expected_decided: float  # what it expects the decided ones to cost, the least possible

    @property
    def decision(self) -> float:
        """Cost that the decision removes."""
        return self.greedy - self.decided

    @property
    def spread(self) -> float:
        """Cost that the model expects of its best answers."""
        return self.expected_decided

    @property
    def surprise(self) -> float:
        """Cost of the best answers beyond what the model expects."""
        return self.decided - self.expected_decided


_POOLED = re.compile(r"(.+) of (\d+) members")


def pooled(rule: str, members: int) -> str:
    """Return the name of a decision from a pool; that of one member is the rule's.

    Examples:
        >>> pooled("median", 8), pooled("median", 1)
        ('median of 8 members', 'median')
    """
    return rule if members == 1 else f"{rule} of {members} members"


def rule_and_members(decision: str) -> tuple[str, int]:
    """Return the rule of a decision, and the number of members from whose pool it decides.

    Examples:
        >>> rule_and_members("median of 8 members"), rule_and_members("greedy")
        (('median', 8), ('greedy', 1))
    """
    found = _POOLED.fullmatch(decision)
    return (decision, 1) if found is None else (found[1], int(found[2]))


@dataclass(frozen=True)
class Pool:
    """The pool of the first members of a run: E examples, missing values infinite."""

    measures: Mapping[str, Mapping[str, Floats]]  # by rule, then by metric: [E]
    covers: Floats  # [E], whether the gold number lies in the interval
    crps: Floats  # [E]


@dataclass(frozen=True)
class Decided:
    """What the records of one split say about decisions: E examples, missing values infinite."""

    level: float  # of the interval
    measures: Mapping[str, Mapping[str, Floats]]  # by decision, greedy first, then by metric: [E]
    fallback: Mapping[str, Floats]  # by metric: [E], what an answer without a number has in a mean
    # By metric of ``FITTING``, [3, E]: the expected cost of the greedy answer, that of the decided one, and the cost that it has.
    expected: Mapping[str, Floats]
    covers: Floats  # [E], whether the gold number lies in the interval
    calibrated_covers: Floats  # [E], whether it lies in a conformal interval that is fitted on the other half of the examples
    crps: Floats  # [E]
    covered: Floats  # [E], the share of the model's mass that the search found
    seconds: Mapping[str, Floats]  # [E] for ``"greedy"``, ``"search"`` and, where a run has samples, ``"samples"``
    # By number of members; empty for a run with one. Those that are compared with everything are in ``measures`` too.
    pools: Mapping[int, Pool] = field(default_factory=dict)
    # Of a pool's spread (``numerate.distribution.spread``), [E]: what each member is unsure of, and what they disagree on.
    within: Floats = field(default_factory=lambda: np.zeros(0))
    disagreement: Floats = field(default_factory=lambda: np.zeros(0))

    @property
    def rules(self) -> tuple[str, ...]:
        """The decisions other than greedy."""
        return tuple(self.measures)[1:]

    def by(self, decision: str) -> Mapping[str, Floats]:
        """Return the metrics of a decision, from a pool of any size too."""
        if decision in self.measures:
            return self.measures[decision]
        rule, members = rule_and_members(decision)
        return self.pools[members].measures[rule]

    def covered_by(self, decision: str) -> Floats:
        """Return whether the gold number lies in the interval of the distribution that a decision is taken from, ``[E]``."""
        pool = self.pools.get(rule_and_members(decision)[1])
        return self.covers if pool is None else pool.covers

    def for_mean(self, rule: str, name: str) -> Floats:
        """Return a metric ``[E]`` of a decision with that of the fallback where it is infinite."""
        own = self.by(rule)[name]
        return np.where(np.isinf(own), self.fallback[name], own)


def error_sources(measure: str, parts: Sequence[Decided]) -> ErrorSources | None:
    """Return where the error of greedy answers comes from, over the examples of all parts; None if none has finite costs."""
    greedy = np.concatenate([cost(measure, part.for_mean(GREEDY, measure)) for part in parts])
    expected_greedy, expected_decided, decided = np.concatenate([part.expected[measure] for part in parts], axis=1)
    columns = np.stack([greedy, decided, expected_greedy, expected_decided])  # [4, E]
    kept = np.isfinite(columns).all(0)
    if not kept.any():
        return None
    means = [float(mean) for mean in columns[:, kept].mean(1)]
    return ErrorSources(measure, FITTING[measure], int(kept.sum()), int((~kept).sum()), *means)


def read_decisions(records: Sequence[Mapping[str, Any]], members: int = 1, compared: Collection[int] = ()) -> Decided | None:
    """Return the decisions in the records of one split; None if the first record has none.

    Args:
        records: of a run.
        members: of the run. With several, pools of fewer are told apart: decisions of one member have the names of the rules.
        compared: sizes of pools whose decisions are ``measures`` too, beside those of one member and of all.

    Raises:
        KeyError, TypeError or ValueError: a record lacks something that the first one has.
    """
    first = records[0]
    if not first.get("decisions"):
        return None
    sizes = pool_sizes(members) if members > 1 else []
    every = [recorded_decisions(record, members) for record in records]
    left_out = {*sizes[1:-1]} - {*compared}
    shown = [decision for decision in every[0] if rule_and_members(decision)[1] not in left_out]
    measures = {GREEDY: [record["measures"] for record in records]}
    measures |= {decision: [own[decision]["measures"] for own in every] for decision in shown}
    names = tuple(every[0][shown[0]]["measures"])
    kinds = (GREEDY, "decided", "cost")
    return Decided(
        level=float(first["level"]),
        measures={rule: _columns(rows, names) for rule, rows in measures.items()},
        fallback={name: _column((record.get(FALLBACK) or {}).get(name) for record in records) for name in names},
        expected={
            name: np.stack([_column(record["expected"].get(name, {}).get(kind) for record in records) for kind in kinds])
            for name in names
            if name in FITTING
        },
        covers=_column(record["covers"] for record in records),
        calibrated_covers=_column(_calibrated_covers(records)),
        crps=_column(record["crps"] for record in records),
        covered=_column((record["distribution"] or {"covered": 0.0})["covered"] for record in records),
        seconds={part: _column(record["seconds"][part] for record in records) for part in first["seconds"]},
        pools={size: _pool([_of_pool(record, size, members) for record in records], names) for size in sizes},
        **{part: _column(record["members"][part] for record in records) for part in _SPREAD if sizes},
    )


def recorded_decisions(record: Mapping[str, Any], members: int = 1) -> dict[str, Mapping[str, Any]]:
    """Return what each decision of a record said and scored: those of one member, then those of pools, the smallest first.

    In a run with several members, the ``decisions`` of a record are those of the pool of all, which has no samples.
    """
    found: dict[str, Mapping[str, Any]] = dict(record["decisions"])
    for size in pool_sizes(members) if members > 1 else ():
        rules = _of_pool(record, size, members)["decisions"]
        found |= {pooled(rule, size): own for rule, own in rules.items() if rule != SAMPLED}
    return found


def _of_pool(record: Mapping[str, Any], size: int, members: int) -> Mapping[str, Any]:
    part: Mapping[str, Any] = record if size == members else record["pools"][str(size)]
    return part


def _pool(parts: Sequence[Mapping[str, Any]], names: Sequence[str]) -> Pool:
    rules = [rule for rule in parts[0]["decisions"] if rule != SAMPLED]
    measures = {rule: _columns([part["decisions"][rule]["measures"] for part in parts], names) for rule in rules}
    return Pool(measures, *(_column(part[name] for part in parts) for name in ("covers", "crps")))


def _calibrated_covers(records: Sequence[Mapping[str, Any]]) -> list[bool | None]:
    """Return whether conformal intervals hold the gold numbers, each half of the examples with a fit on the other half."""
    from numerate.calibration import conformal

    level = float(records[0]["level"])
    covers: list[bool | None] = [None] * len(records)
    known = [index for index, record in enumerate(records) if record["distribution"] and record.get("truth") is not None]
    halves = known[::2], known[1::2]
    if len(halves[1]) * (1 - level) < level:
        return covers
    lines = {}
    for index in known:
        record, found = records[index], recorded_distribution(records[index])
        assert found is not None
        lines[index] = on_line(on_period(found, record["distribution"].get("period")), exact_number("truth", record["truth"]))
    for fitted, tested in (halves, halves[::-1]):
        calibrated = conformal([lines[index][0] for index in fitted], [lines[index][1] for index in fitted], level)
        for index in tested:
            one, truth = lines[index]
            low, high = calibrated.interval(one)
            covers[index] = low <= truth <= high
    return covers


def _columns(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> dict[str, Floats]:
    return {name: _column(row[name] for row in rows) for name in names}


def _column(values: Iterable[Any]) -> Floats:
    return np.array([math.inf if value is None else float(value) for value in values])
