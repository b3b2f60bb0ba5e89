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
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from numerate.distribution.exact import exact_number
from numerate.lab.evaluation.decisions import FITTING, GREEDY, cost, on_line, on_period, recorded_distribution
from numerate.lab.evaluation.missing import FALLBACK

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class ErrorSources:
    """Where the error of greedy answers comes from: means over ``examples``, as costs. The module has the formula.

    Attributes:
        measure: the metric of the error.
        rule: the rule that minimises it in expectation.
        examples: examples with finite costs.
        left_out: examples without.
        greedy: cost of the greedy answers.
        decided: cost of the answers that the rule decides.
        expected_greedy: what the model expects the greedy answers to cost.
        expected_decided: what it expects the decided ones to cost, the least possible.
    """

    measure: str
    rule: str
    examples: int
    left_out: int
    greedy: float
    decided: float
    expected_greedy: float
    expected_decided: float

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


@dataclass(frozen=True)
class Decided:
    """What the records of one split say about decisions: E examples, missing values infinite.

    Attributes:
        level: of the interval.
        measures: by decision, greedy first, then by metric: ``[E]``.
        fallback: by metric: ``[E]``, what an answer without a number has in a mean (:mod:`numerate.lab.evaluation.missing`).
        expected: by metric of ``FITTING``: ``[3, E]``, the expected cost of the greedy answer, that of the decided one, and the
            cost that the decided one has.
        covers: ``[E]``, whether the gold number lies in the interval.
        calibrated_covers: ``[E]``, whether it lies in a conformal interval that is fitted on the other half of the examples.
        crps: ``[E]``
        covered: ``[E]``, the share of the model's mass that the search found.
        seconds: ``[E]`` for ``"greedy"``, ``"search"`` and, where a run has samples, ``"samples"``.
    """

    level: float
    measures: Mapping[str, Mapping[str, Floats]]
    fallback: Mapping[str, Floats]
    expected: Mapping[str, Floats]
    covers: Floats
    calibrated_covers: Floats
    crps: Floats
    covered: Floats
    seconds: Mapping[str, Floats]

    @property
    def rules(self) -> tuple[str, ...]:
        """The decisions other than greedy."""
        return tuple(self.measures)[1:]

    def for_mean(self, rule: str, name: str) -> Floats:
        """Return a metric ``[E]`` of a decision with that of the fallback where it is infinite."""
        own = self.measures[rule][name]
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


def read_decisions(records: Sequence[Mapping[str, Any]]) -> Decided | None:
    """Return the decisions in the records of one split; None if the first record has none.

    Raises:
        KeyError, TypeError or ValueError: a record lacks something that the first one has.
    """
    first = records[0]
    if not first.get("decisions"):
        return None
    rules = tuple(first["decisions"])
    measures = {GREEDY: [record["measures"] for record in records]}
    measures |= {rule: [record["decisions"][rule]["measures"] for record in records] for rule in rules}
    names = tuple(first["decisions"][rules[0]]["measures"])
    kinds = (GREEDY, "decided", "cost")
    return Decided(
        level=float(first["level"]),
        measures={rule: {name: _column(row[name] for row in rows) for name in names} for rule, rows in measures.items()},
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
    )


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


def _column(values: Iterable[Any]) -> Floats:
    return np.array([math.inf if value is None else float(value) for value in values])
