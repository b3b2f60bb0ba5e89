"""Formats as a dimension of a comparison: the grid, its labels, older experiments, and a comparison of all of it."""

from __future__ import annotations

import json

import pytest

from numerate.lab.comparison.compare import compare
from numerate.lab.comparison.plan import Experiment, comparison_settings, read_experiment
from numerate.lab.files.records import read_jsonl
from numerate.lab.training.run import run
from numerate.lab.training.stacked import run_stack, stacks

SUMS = {"difficulty": 1, "longest": 1, "operations": "+", "signed": False, "wording": "bare"}
QUICK = {
    "task_settings": SUMS,
    "steps": 2,
    "batch_size": 4,
    "train_examples": 30,
    "eval_examples": 4,
    "eval_splits": ["interpolate"],
}


def names(**values):
    return [cell.name for cell in read_experiment(values).of_one_seed()]


def test_each_loss_is_run_in_each_format():
    assert names(losses=["ce", "soft"], formats=["plain", "padded"]) == ["ce", "ce padded", "soft", "soft padded"]
    assert names(losses=["ce"], format="reversed+padded") == ["ce", "ce padded+reversed"]  # the baseline in plain text is added
    assert names(losses=["ce", "soft"], formats=["padded"], baseline="ce padded") == ["ce padded", "soft padded"]
    assert names(losses=["ce", {"loss": "emd", "label": "equal"}], formats=["plain", "spaced"]) == [
        *("ce", "ce spaced", "equal", "equal spaced")
    ]
    own = [{"loss": "ce", "format": "plain"}, "emd", {"loss": "ntil", "format": "padded:3"}]
    assert names(losses=own, formats=["padded"]) == ["ce", "emd padded", "ntil padded:3"]
    assert names(losses=["ce", "scalar_head"], formats=["plain", "padded"]) == ["ce", "ce padded", "scalar_head"]
    assert names(losses=["ce"], formats=["padded", "padded:3", "padded"]) == ["ce", "ce padded", "ce padded:3"]
    assert names(losses=["ce"], settings={"format": "spaced"}) == ["ce", "ce spaced"]


def test_an_experiment_is_read_again_as_it_is():
    experiment = read_experiment({"losses": ["ce", "soft"], "formats": ["plain", "padded"], **QUICK})
    again = Experiment(**experiment.model_dump(mode="json"))
    assert [cell.hash for cell in again.cells()] == [cell.hash for cell in experiment.cells()]


def test_an_older_experiment_has_the_same_runs():
    old = read_experiment({"losses": ["ce", "soft"], **QUICK}).model_dump(mode="json")
    now = read_experiment({"losses": ["ce", "soft"], "format": "plain", **QUICK})
    assert [cell.hash for cell in now.cells()] == [cell.hash for cell in Experiment(**old).cells()]
    del old["formats"]
    assert [cell.hash for cell in now.cells()] == [cell.hash for cell in Experiment(**old).cells()]
    assert all("format" not in loss for loss in now.losses)


def test_refusals():
    with pytest.raises(ValueError, match="format='paded' is not known"):
        names(formats=["paded"])
    with pytest.raises(ValueError, match="format='padded' is set for a task: expected it in `formats`"):
        names(tasks=[{"task": "clock", "format": "padded"}])
    with pytest.raises(ValueError, match="format='padded' and formats=.* are both set"):
        names(format="padded", formats=["plain"])
    values = comparison_settings(None, None, settings={"format": "padded", "tasks": ["arithmetic"]})
    assert values["formats"] == ["padded"]


def test_a_stack_has_one_format(tmp_path):
    """Runs of one format are a stack; its answers are those of the runs by themselves."""
    settings = {**QUICK, "steps": 30, "learning_rate": 0.01, "decide": ["mode"]}
    cells = read_experiment({"losses": ["ce", "emd"], "formats": ["plain", "padded+reversed"], "seeds": 2, **settings}).cells()
    groups = stacks(cells, 16)
    assert [{cell.format for cell in group} for group in groups] == [{"plain"}, {"padded+reversed"}]
    group = groups[1]
    run_stack(group, [tmp_path / cell.hash for cell in group])
    for cell in group[::3]:
        run(cell, tmp_path / "alone" / cell.hash)
        mine, theirs = (read_jsonl(folder / cell.hash / "predictions.jsonl") for folder in (tmp_path, tmp_path / "alone"))
        assert [(one["output"], one["decisions"]["mode"]["answer"]) for one in mine] == [
            (one["output"], one["decisions"]["mode"]["answer"]) for one in theirs
        ]


@pytest.mark.parametrize("executor", ["stacked", "local"])
def test_a_comparison_of_formats(executor, tmp_path):
    options = {
        "executor": executor,
        "processes": 1,
        "progress": False,
        "out": tmp_path,
        "seeds": 2,
        "soft": {"width": 1},
        **QUICK,
    }
    first = compare(task="arithmetic", losses=["ce", "soft"], **options)
    before = {path.parent.name: path.stat().st_mtime_ns for path in tmp_path.glob("cells/*/result.json")}
    assert {row["loss"] for row in first.table} == {"ce", "soft"}
    more = compare(task="arithmetic", losses=["ce", "soft"], format=["plain", "padded"], **options)
    assert {row["loss"] for row in more.table} == {"ce", "ce padded", "soft", "soft padded"}
    assert {path.parent.name: path.stat().st_mtime_ns for path in tmp_path.glob("cells/*/result.json")}.items() >= before.items()
    assert len([*tmp_path.glob("cells/*")]) == 8  # those of plain text are not run again
    kept = json.loads((tmp_path / "experiment.json").read_text())
    assert kept["config"]["formats"] == ["plain", "padded"]
    page = (tmp_path / "report.html").read_text()
    assert "soft padded" in page
