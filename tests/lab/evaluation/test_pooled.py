"""The record of several members: what their pool decides, what smaller pools do, and how much the members disagree."""

from __future__ import annotations

import math

import pytest

from numerate.distribution import CircularDistribution, NumberDistribution, pool, spread
from numerate.lab.data import TASKS, Example
from numerate.lab.evaluation.decisions import decision_record, every_decision, recorded_distribution
from numerate.lab.evaluation.evaluate import Evaluation, enter
from numerate.lab.evaluation.pooled import pooled_record
from numerate.lab.models.loading import load_encoder

ONE, OTHER = NumberDistribution([1, 2, 8], [3, 1, 1]), NumberDistribution([2, 9], [1, 1], covered=0.75, no_number=0.25)
EXAMPLE = Example("q", "2")
POOLED = ("decisions", "median", "interval", "level", "covers", "crps")


def record(*found, task="arithmetic", rules=("mode", "median"), example=EXAMPLE):
    return pooled_record(TASKS[task](), example, "2", found, rules, 0.9)


def test_one_member_has_the_record_of_one_model():
    assert record(ONE) == decision_record(TASKS["arithmetic"](), EXAMPLE, "2", ONE, ("mode", "median"), 0.9)


def test_pools_of_the_first_members():
    members = [ONE, OTHER, NumberDistribution.point(9), NumberDistribution.point(9), ONE]
    kept = record(*members)
    assert [*kept["pools"]] == ["1", "2", "4"]
    for count, own in kept["pools"].items():
        alone = record(pool(members[: int(count)]))
        assert own == {name: alone[name] for name in POOLED}
    assert kept["pools"]["1"] == {name: record(ONE)[name] for name in POOLED}
    assert kept["decisions"] == record(pool(members))["decisions"]
    assert (kept["members"]["within"], kept["members"]["disagreement"]) == tuple(spread(members))
    assert record(ONE, ONE)["members"]["disagreement"] == 0


def test_a_member_without_a_number_counts_as_such():
    kept = record(ONE, None)
    found = recorded_distribution(kept)
    assert (found.no_number, found.covered) == (pytest.approx(0.5), pytest.approx(0.5))
    assert kept["decisions"] == record(ONE)["decisions"]
    assert kept["members"] == {"disagreement": 0.0, "within": pytest.approx(spread([ONE]).within)}
    nothing = record(None, None)
    assert nothing["members"] == {"disagreement": None, "within": None}
    assert nothing["pools"]["1"]["decisions"]["mode"]["answer"] is None


def test_worked_solutions_are_decided_by_the_number_in_which_most_samples_end():
    samples = [NumberDistribution.from_samples([3, 3, 5]), NumberDistribution.from_samples([5, 5, 4])]
    kept = record(*samples, task="word_problems", rules=("mode",), example=Example("q", "#### 5"))
    answers = [kept["pools"]["1"]["decisions"]["mode"], kept["decisions"]["mode"]]
    assert [TASKS["word_problems"]().read(one["answer"]) for one in answers] == ["3", "5"]


def test_members_disagree_on_a_circle():
    early, late = NumberDistribution.point(5), NumberDistribution.point(715)  # minutes, on a face of 720
    kept = record(early, late, task="clock", example=Example("q", "12_00"))
    assert kept["members"]["disagreement"] == spread([CircularDistribution(one, 720) for one in (early, late)]).between
    assert kept["members"]["disagreement"] < spread([early, late]).between / 10
    assert kept["decisions"]["median"]["answer"] in ("11_55", "12_05")  # and not half past six, as on a line


def test_decisions_of_smaller_pools_are_marked_and_filled_like_the_others():
    task = TASKS["arithmetic"]()
    kept = record(None, NumberDistribution.point(12345)) | {"split": "interpolate", "index": 0, "answer": "2", "output": "2"}
    kept |= {"gold": "2", "measures": task.score(EXAMPLE, "2")}
    evaluation = Evaluation({}, label_digits={"integer": 2, "total": 2}, fallback="7")
    enter(kept, EXAMPLE, task, evaluation, load_encoder("tiny").pictures)
    assert [decided["measures"]["derailed"] for decided in every_decision(kept)] == [1.0, 1.0, 0.0, 0.0]
    assert kept["fallback"]["absolute_error"] == 5
    assert math.isinf(kept["pools"]["1"]["decisions"]["mode"]["measures"]["absolute_error"])
