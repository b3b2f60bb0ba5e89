"""Decisions of clock times on the face: records, expected costs, coverage and rules around twelve o'clock."""

from __future__ import annotations

import json
import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from numerate.answers.metrics import FACE, METRICS
from numerate.distribution import CircularDistribution, NumberDistribution
from numerate.distribution.decision_rules import CIRCLE_RULE_NAMES
from numerate.lab.data import TASKS, Clock
from numerate.lab.data.base import Example
from numerate.lab.evaluation.decisions import (
    FITTING,
    SAMPLED,
    check_decisions,
    cost,
    decision_record,
    expected_cost,
    recorded_distribution,
)
from numerate.lab.evaluation.error_sources import error_sources, read_decisions
from numerate.lab.evaluation.evaluate import _spread
from numerate.lab.training.config import RULES
from numerate.lab.wording.decisions import evaluation_sentences

CIRCULAR = [name for name, task in TASKS.items() if task.period is not None]
AROUND_TWELVE = NumberDistribution([717, 719, 1, 4, 300], [0.2, 0.2, 0.25, 0.25, 0.1], covered=0.9, no_number=0.1)


def record_of(gold, output, found=AROUND_TWELVE, rules=("median", "mean", "mode"), level=0.7, samples=None):
    return decision_record(Clock(), Example("?", gold), output, found, rules, level, samples)


def test_samples_are_scored_around_twelve():
    example = Example("?", "12_01")
    near = _spread(Clock(), example, ["11_59", "12_03"])
    assert near == {"sample_parsed": 1.0, "sample_crps": pytest.approx(1.0)}  # both are 2 off, and 4 apart
    assert _spread(Clock(), example, ["11_59", "noon"]) == {"sample_parsed": 0.5, "sample_crps": math.inf}


def test_a_record_around_twelve():
    """On a line, the median is 4, the mean twenty past five, and the interval nearly the whole face."""
    record = record_of("11_58", "12_04")
    decided = {rule: one["answer"] for rule, one in record["decisions"].items()}
    assert decided == {"median": "12_01", "mean": "12_30", "mode": "12_01"}
    assert record["decisions"]["median"]["measures"]["time_gap_circular"] == 3
    assert (record["truth"], record["median"], record["interval"]) == ("718", "1", ["717", "4"])
    assert record["covers"] is True
    assert record["crps"] == pytest.approx(CircularDistribution(AROUND_TWELVE, FACE).crps(718))
    assert record["crps"] < 5 < AROUND_TWELVE.crps(718)
    assert record["expected"]["time_gap_circular"] == {
        "greedy": pytest.approx(0.2 * 7 + 0.2 * 5 + 0.25 * 3 + 0.1 * 296),
        "decided": pytest.approx(0.2 * 4 + 0.2 * 2 + 0.25 * 3 + 0.1 * 299),
        "cost": 3,
    }
    assert record["expected"]["clock_accuracy"] == {"greedy": pytest.approx(0.75), "decided": pytest.approx(0.75), "cost": 1}
    saved = json.loads(json.dumps(record))
    assert recorded_distribution(saved) == AROUND_TWELVE
    assert saved["distribution"]["period"] == FACE


@pytest.mark.parametrize(
    ("gold", "covers"), [("11_57", True), ("12_00", True), ("12_04", True), ("12_05", False), ("6_00", False)]
)
def test_an_interval_that_wraps_around(gold, covers):
    record = record_of(gold, "12_00")
    assert record["interval"] == ["717", "4"]
    assert record["covers"] is covers


@pytest.mark.parametrize("hour", range(1, 13))
def test_every_hour_is_decided_alike(hour):
    """12_xx are the first minutes of the circle; turning the face turns answers, costs and intervals."""
    on_face = NumberDistribution([(value + 60 * hour) % FACE for value in AROUND_TWELVE.values], AROUND_TWELVE.probabilities)
    record, first = record_of(f"{hour}_02", f"{hour}_30", on_face), record_of("12_02", "12_30")
    for rule, minute in (("median", "01"), ("mean", "30"), ("mode", "01")):
        assert record["decisions"][rule]["answer"] == f"{hour}_{minute}"
        measures = [one["decisions"][rule]["measures"]["time_gap_circular"] for one in (record, first)]
        assert measures[0] == measures[1]
    assert [(int(end) - 60 * hour) % FACE for end in record["interval"]] == [717, 4]
    assert record["covers"] is first["covers"] is True
    assert record["crps"] == pytest.approx(first["crps"])
    for measure in record["expected"]:
        assert record["expected"][measure] == pytest.approx(first["expected"][measure])


@given(
    st.lists(st.tuples(st.integers(0, 719), st.integers(1, 9)), min_size=1, max_size=6),
    st.integers(0, 719),
    st.sampled_from([measure for measure in Clock.measures if measure in FITTING]),
)
def test_expected_costs_are_those_of_the_metric(pairs, said, measure):
    found = CircularDistribution(NumberDistribution.from_pairs(pairs), FACE)
    weighted = [*zip(found.values, found.probabilities, strict=True)]
    brute = [sum(cost(measure, METRICS[measure](value, x)) * p for value, p in weighted) for x in (said, *range(FACE))]
    assert expected_cost(found, measure, Fraction(said)) == pytest.approx(brute[0], abs=1e-9)
    assert expected_cost(found, measure, Fraction(found.decide(FITTING[measure]))) == pytest.approx(min(brute), abs=1e-9)


def test_the_time_gap_has_a_fitting_rule():
    assert {measure for measure in Clock.measures if measure in FITTING} == {"clock_accuracy", "time_gap_circular"}


def test_the_median_of_samples_goes_around():
    record = record_of("12_00", "12_00", samples=["11_58", "11_59", "12_01", "no idea", "12_05", "12_02"])
    assert record["decisions"][SAMPLED]["answer"] == "12_01"


@pytest.mark.parametrize("name", CIRCULAR)
@pytest.mark.parametrize("rule", RULES)
def test_rules_without_a_meaning_are_refused_before_training(name, rule):
    task = TASKS[name]()
    if rule in CIRCLE_RULE_NAMES:
        check_decisions((rule,), task)
        assert task.written(CircularDistribution(AROUND_TWELVE, task.period).decide(rule))
    else:
        with pytest.raises(ValueError, match=rf"decide={rule} does not fit: .*{name}.* circle.*Expected one of .*median"):
            check_decisions(("median", rule), task)


def test_coverage_and_calibration_across_twelve():
    """The times are within an hour of twelve, on both sides."""
    task, rng = Clock(), np.random.default_rng(0)
    records = []
    for center, off in zip(rng.integers(-60, 60, 400).tolist(), rng.normal(0, 12, 400).round().astype(int).tolist(), strict=True):
        bell = NumberDistribution.bell(center, width=4)
        found = CircularDistribution(bell, FACE).distribution  # as a search finds it: minutes after twelve
        gold = task.written(Decimal(center + off))
        record = decision_record(task, Example("?", gold), gold, found, ("median",), 0.8)
        records.append(
            record | {"measures": record["decisions"]["median"]["measures"], "seconds": {"greedy": 1.0, "search": 2.0}}
        )
        assert record["decisions"]["median"]["measures"]["time_gap_circular"] == abs(off)
    part = read_decisions(records)
    assert part.covers.mean() < 0.5
    assert part.calibrated_covers.mean() == pytest.approx(0.8, abs=0.06)
    assert np.isinf(read_decisions(records[:7]).calibrated_covers).all()  # 0.8 needs four rows of each half
    sources = error_sources("time_gap_circular", [part])
    assert (sources.rule, sources.left_out) == ("median", 0)
    assert sources.decided == pytest.approx(np.mean([record["expected"]["time_gap_circular"]["cost"] for record in records]))
    assert sources.spread == pytest.approx(3.2, abs=0.1)  # the mean distance of the model's bell
    told = [*evaluation_sentences(part)]
    assert told[0].startswith("Mean time gap on the clock face")
    assert "overconfident" in told[0]
