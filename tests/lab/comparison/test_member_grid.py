"""Members as a dimension of a comparison: one trained run for all pools, its label, plans, budgets and tuning."""

from __future__ import annotations

import json

import pytest

from numerate.choices import loss_names
from numerate.lab.comparison.announcement import Setting, announcement
from numerate.lab.comparison.budget import Choice, GridWork, Kind, Pace
from numerate.lab.comparison.cells import tuning_trials
from numerate.lab.comparison.compare import compare
from numerate.lab.comparison.plan import Experiment, comparison_settings, planned, read_experiment
from numerate.lab.evaluation.decisions import pool_sizes
from numerate.lab.training.config import HEADS, SOFT

SUMS = {"difficulty": 1, "longest": 1, "operations": "+", "signed": False, "wording": "bare"}
EVERY = ("ce", *loss_names(), *SOFT, *HEADS)


def cells(**values):
    return [(cell.name, cell.members) for cell in read_experiment(values).of_one_seed()]


def test_each_run_is_trained_once_with_the_most_members():
    assert cells(losses=["ce", "soft"], members=8) == [("ce", 8), ("soft", 8)]
    assert cells(losses=["ce", "soft"], members=[1, 2, 8, 8]) == [("ce", 8), ("soft", 8)]
    assert cells(losses=["soft"], members=4) == [("ce", 4), ("soft", 4)]  # the baseline too
    assert cells(losses=["ce", "soft"], settings={"members": 4}) == [("ce", 4), ("soft", 4)]
    own = ["ce", "soft", {"loss": "soft", "members": 4}]
    assert cells(losses=own) == [("ce", 1), ("soft", 4)]
    assert cells(losses=own, members=8) == [("ce", 8), ("soft", 8)]
    assert cells(losses=["ce", "emd"], formats=["plain", "padded"], members=2) == [
        *(("ce", 2), ("ce padded", 2), ("emd", 2), ("emd padded", 2))
    ]


def test_seeds_and_members_are_apart():
    """Eight members of three seeds are three runs with three hashes, not 24."""
    experiment = read_experiment({"losses": ["ce"], "members": 8, "seeds": 3})
    assert [(cell.seed, cell.members) for cell in experiment.cells()] == [(0, 8), (1, 8), (2, 8)]
    assert len({cell.hash for cell in experiment.cells()}) == 3


def test_an_experiment_with_members_is_read_again_as_it_is():
    experiment = read_experiment({"losses": ["ce", {"loss": "soft", "members": 4}], "members": [1, 2], "seeds": 2})
    again = Experiment(**experiment.model_dump(mode="json"))
    assert [cell.hash for cell in again.cells()] == [cell.hash for cell in experiment.cells()]
    assert again.members == (1, 2)


def test_runs_with_one_member_are_those_of_older_experiments():
    now = read_experiment({"losses": ["ce", "soft"], "members": 1})
    old = read_experiment({"losses": ["ce", "soft"]}).model_dump(mode="json")
    del old["members"]
    assert [cell.hash for cell in now.cells()] == [cell.hash for cell in Experiment(**old).cells()]
    assert all("members" not in cell.used for cell in now.cells())


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"members": [3, 8]}, "members=3 is not among the pools of a run with 8: expected some of 1, 2, 4, 8"),
        ({"members": 0}, "greater than or equal to 1"),
        ({"members": []}, "at least 1 item"),
        ({"members": "many"}, "members='many'"),
        ({"losses": ["ce", "emd", {"loss": "emd", "label": "eight", "members": 8}]}, "expected 'eight' alone"),
        ({"losses": [{"loss": "ce", "label": "pool", "members": 8}]}, "expected 'pool' alone, with baseline='pool'"),
    ],
)
def test_refusals_of_members(values, said):
    with pytest.raises(ValueError, match=said):
        cells(**values)


@pytest.mark.parametrize("loss", EVERY)
def test_every_loss_is_planned_with_members(loss, tmp_path):
    """A head predicts its number, and has one member."""
    settings = (
        {"losses": ["ce", loss], "members": 2, "soft": {"width": 1}} if loss in SOFT else {"losses": ["ce", loss], "members": 2}
    )
    target = {"task_settings": {"target": "logSolubility", "wording": "bare"}, "data": "esol", "tasks": ["regression"]}
    plan = planned(None, None, None, None, {**settings, **target}, out=tmp_path, gpu=lambda: False)
    found = {cell.name: (cell.members, cell.decide) for cell in plan.experiment.of_one_seed()}
    assert found == {"ce": (2, ("median",)), loss: (1 if loss in HEADS else 2, ("median",))}
    for trials in tuning_trials(plan.experiment, 2).values():
        assert [(trial.members, trial.decide) for trial in trials] == [(1, ()), (1, ())]


def test_pools_have_a_decision():
    """Greedy answers cannot be pooled: without a rule, nothing would be compared."""
    sums = {"tasks": ["arithmetic"], "members": 8}
    assert comparison_settings(None, None, settings=sums)["decide"] == ["mode"]
    assert comparison_settings(None, None, settings={**sums, "decide": ["median"]})["decide"] == ["median"]
    own = {"tasks": ["clock"], "losses": ["ce", {"loss": "emd", "members": 2}]}
    assert comparison_settings(None, None, settings=own)["decide"] == ["mode"]
    assert "decide" not in comparison_settings(None, None, settings={**sums, "members": 1})


def test_time_of_members():
    """A tuning trial has one member, whatever the runs have."""
    pace, choice = Pace(8.0, 0.8, 0.08), Choice(1, 3, 10, 100)
    one, eight = (GridWork(["ce"], [Kind("ce", pace, (100,), members)], trials=4) for members in (1, 8))
    assert one.seconds(choice) - eight.seconds(choice) == pytest.approx(4 * 24 * (1 - 1 / 8))


def test_the_announcement_counts_members(tmp_path):
    experiment = read_experiment(
        {"losses": ["ce", "soft"], "members": 8, "seeds": 2, "task_settings": SUMS, "soft": {"width": 1}}
    )
    (told,) = [line for line in announcement(experiment, experiment.cells(), [], Setting(tmp_path, "ray", 1)) if " runs " in line]
    assert "4 (2 losses x 2 seeds), 8 members each" in told


def test_pool_sizes():
    for members in range(1, 20):
        sizes = pool_sizes(members)
        assert sizes[-1] == members
        assert sizes == sorted({*sizes})
    assert json.dumps(pool_sizes(16)) == "[1, 2, 4, 8, 16]"


@pytest.mark.parametrize("executor", ["stacked", "local"])
def test_a_comparison_of_members(executor, tmp_path):
    """Two seeds of two members are two runs, whose records have the pool of one; an interrupted comparison goes on."""
    options = {"executor": executor, "processes": 1, "progress": False, "out": tmp_path, "seeds": 2, "task_settings": SUMS}
    options |= {"steps": 2, "batch_size": 4, "train_examples": 30, "eval_examples": 4, "eval_splits": ["interpolate"]}
    first = compare(task="arithmetic", losses=["ce"], members=2, **options)
    results = sorted(tmp_path.glob("cells/*/result.json"))
    assert len(results) == 2
    rows = [(row["members"], row["seeds"], row["decision"]) for row in first.data["members"]]
    assert rows == [(1, 2, "mode"), (2, 2, "mode")]
    assert {row["decision"] for row in first.table} == {"greedy", "mode", "mode of 2 members"}
    before = results[1].stat().st_mtime_ns
    results[0].unlink()  # as if it had been killed
    again = compare(task="arithmetic", losses=["ce"], members=[1, 2], **options)
    assert sorted(tmp_path.glob("cells/*/result.json")) == results
    assert results[1].stat().st_mtime_ns == before
    assert [row["value"] for row in again.data["members"]] == [row["value"] for row in first.data["members"]]
