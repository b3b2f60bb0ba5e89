"""A comparison within a budget: chosen by measured speeds, kept in the folder, and ended in time."""

from __future__ import annotations

import json
import re
from concurrent.futures import Future
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from numerate.cli import app
from numerate.lab import compare
from numerate.lab.comparison.budget import Budget, Pace
from numerate.lab.comparison.budgeted import PLAN, BudgetedPlan, complete_seeds, measured, plan_in_budget
from numerate.lab.comparison.cells import cell_folder
from numerate.lab.comparison.executors import _jobs, run_local
from numerate.lab.comparison.plan import read_experiment
from numerate.lab.data.settings import make_task, task_key
from numerate.lab.files.records import write_json, write_jsonl
from numerate.lab.training.config import RunConfig

GRID = {"tasks": ["arithmetic"], "losses": ["ce", "smmd", "ntil"], "seeds": 4, "steps": 600, "eval_examples": 500}
FAST = Pace(0.5, 0.001, 0.0001)
SLOW = Pace(2.0, 0.1, 0.01)


@pytest.fixture
def clock_time(monkeypatch):
    """A time that only passes when a test says so."""
    fake = SimpleNamespace(now=1000.0)
    fake.monotonic = lambda: fake.now
    for module in ("budget", "budgeted"):
        monkeypatch.setattr(f"numerate.lab.comparison.{module}.time", fake)
    return fake


@pytest.fixture
def measure(monkeypatch):
    """Made-up speeds, which losses were measured, and what to do in each measurement."""
    seen = SimpleNamespace(pace=SLOW, losses=[], inside=lambda: None)

    def measured(config, pictures, limit):
        seen.losses.append(config.name)
        seen.inside()
        return seen.pace

    monkeypatch.setattr("numerate.lab.comparison.budgeted.measured", measured)
    return seen


def fitted(folder, seconds, given=(), trials=0, **changes):
    experiment = read_experiment({**GRID, **changes})
    tasks = {task_key(cell): make_task(cell) for cell in experiment.cells()}
    return plan_in_budget(Budget(seconds), experiment, tasks, folder, given=given, trials=trials, processes=2)


def chosen(plan):
    experiment = plan.experiment
    losses = list(dict.fromkeys(cell.name for cell in experiment.cells()))
    return losses, len(experiment.seeds), experiment.settings["steps"], experiment.settings["eval_examples"]


# The choice


def test_a_longer_time_has_more(tmp_path, measure):
    assert chosen(fitted(tmp_path, 100_000)) == (["ce", "smmd", "ntil"], 8, 600, 500)
    losses, seeds, steps, tests = chosen(fitted(tmp_path, 150))
    assert losses == ["ce", "smmd"]  # the last ones are left out first
    assert seeds == 3
    assert 300 <= steps < 400
    assert 200 <= tests < 250


@pytest.mark.parametrize(
    ("given", "at"), [("losses", 0), ("seeds", 1), ("steps", 2), ("eval_examples", 3)], ids=lambda value: str(value)
)
def test_what_is_given_is_not_changed(given, at, tmp_path, measure):
    everything = (["ce", "smmd", "ntil"], 4, 600, 500)
    choice = chosen(fitted(tmp_path, 500, [given]))
    assert choice[at] == everything[at]
    assert choice != everything
    forced = fitted(tmp_path, 150, [given, *({"losses", "seeds", "steps"} - {given})])  # does not fit: an answer comes anyway
    assert chosen(forced)[:3] == everything[:3]
    assert chosen(forced)[at] == everything[at]
    assert given == "eval_examples" or "This is a quick look: 20 test rows." in forced.text


def test_a_recommended_loss_is_kept(tmp_path, measure):
    table = {"tasks": ["regression"], "losses": ["emd", "ce", "smmd", "soft"], "baseline": "ce", "soft": {"relative": 0.1}}
    assert chosen(fitted(tmp_path, 300, **table))[0] == ["ce", "soft"]


def test_a_recommended_format_is_kept(tmp_path, measure):
    sums = {"losses": ["emd", "ce"], "formats": ["plain", "spaced", "padded"], "baseline": "ce"}
    assert chosen(fitted(tmp_path, 300, task_settings={"operations": "+"}, **sums))[0] == ["ce", "ce padded"]
    assert chosen(fitted(tmp_path, 300, **sums))[0] == ["emd", "ce"]


def test_soft_labels_may_be_left_out(tmp_path, measure):
    assert chosen(fitted(tmp_path, 300, losses=["ce", "smmd", "soft"], soft={"relative": 0.1}))[0] == ["ce", "smmd"]


def test_trials_take_time(tmp_path, measure):
    without, tuned = (chosen(fitted(tmp_path, 600, trials=trials)) for trials in (0, 3))
    assert (len(tuned[0]), *tuned[1:]) != (len(without[0]), *without[1:])
    assert tuned[2] <= without[2]


def test_what_is_left_out_is_said(tmp_path, measure):
    text = fitted(tmp_path, 100).text
    assert text.startswith("1 min 40 s, about ")
    assert "for runs and report. Left out: ntil, 1 of 4 seeds, " in text
    assert "steps are few" in text
    assert "Nothing is left out" in fitted(tmp_path, 100_000).text


def test_only_test_rows_that_exist_are_left_out(tmp_path, measure):
    file = tmp_path / "flats.csv"
    file.write_text("area,rent\n" + "".join(f"{area},{9 * area}\n" for area in range(100)))
    table = {"tasks": ["regression"], "data": str(file), "task_settings": {"target": "rent"}}
    plan = fitted(tmp_path, 100_000, **table)
    assert "Nothing is left out" in plan.text
    assert chosen(plan)[3] == make_task(plan.experiment.cells()[0]).count("interpolate") < 20


def test_losses_for_which_there_is_no_time_are_taken_for_slow_ones(tmp_path, measure, clock_time):
    def inside():
        clock_time.now += 40

    measure.inside = inside
    fitted(tmp_path, 300)
    assert measure.losses == ["ce"]  # a tenth of the budget is over


def test_the_same_budget_goes_on_with_the_same_plan(tmp_path, measure):
    before = fitted(tmp_path, 300)
    measure.pace = FAST
    measure.losses.clear()
    again = fitted(tmp_path, 300)
    assert chosen(again) == chosen(before)
    assert again.text == before.text
    assert measure.losses == []
    for seconds, changes in ((301, {}), (300, {"steps": 500})):  # another budget, another comparison
        assert chosen(fitted(tmp_path, seconds, **changes)) != chosen(before)
    assert measure.losses != []


# In time


def make_plan(seconds, seeds=4):
    experiment = read_experiment({**GRID, "losses": ["ce", "smmd"], "seeds": seeds, "steps": 10})
    return BudgetedPlan(Budget(seconds), experiment, (4, 5, 6, 7), "", "", 5.0), experiment.cells()


def finish(folder, cell):
    own = cell_folder(folder, cell)
    write_jsonl(own / "predictions.jsonl", [{"split": "interpolate", "measures": {"exact": 1.0}}])
    write_json(own / "result.json", {"headline": "exact", "cost": {"train_seconds": 10, "eval_seconds": 0}})


def test_runs_are_given_up_only_if_all_losses_have_finished_a_seed(tmp_path, clock_time):
    plan, cells = make_plan(30)
    clock_time.now += 100
    assert not plan.is_over(cells, tmp_path)
    for cell in (cells[0], cells[2]):  # the baseline with two seeds
        finish(tmp_path, cell)
    assert not plan.is_over(cells, tmp_path)
    finish(tmp_path, cells[1])
    assert plan.is_over(cells, tmp_path)
    assert complete_seeds(cells, tmp_path) == [0]
    clock_time.now -= 76
    assert not plan.is_over(cells, tmp_path)  # the report has its 5 s


@pytest.mark.parametrize(
    ("took", "at_a_time", "further"),
    [(20, 0.5, [4, 5, 6, 7]), (40, 0.5, [4, 5, 6, 7]), (60, 0.5, [4]), (80, 0.5, []), (40, 4, [4, 5, 6, 7]), (60, 4, [])],
)
def test_there_may_be_time_for_more_seeds(took, at_a_time, further, clock_time):
    """Four seeds took so long, with half a seed at a time, or all of them."""
    plan, _ = make_plan(100)
    clock_time.now += took
    assert list(plan.further(took, at_a_time)) == further  # until 90 s, and the report takes 5 s


@pytest.fixture
def runs(monkeypatch):
    """Runs that take no time, and what to do in each."""
    seen = SimpleNamespace(inside=lambda config, progress: None)

    def run(config, folder, *, progress, **_):
        seen.inside(config, progress)
        finish(folder.parents[1], config)

    monkeypatch.setattr("numerate.lab.comparison.cells.run", run)
    return seen


def test_a_run_is_given_up_between_two_steps(tmp_path, clock_time, runs):
    plan, cells = make_plan(45)

    def inside(config, progress):
        for step in range(1, 11):
            clock_time.now += 1 if config.seed == 0 else 3
            progress("train", step, 10, {})

    runs.inside = inside
    done = []
    report = {"on_done": lambda cell, error: done.append((cell.seed, cell.name, error))}
    run_local(cells, tmp_path, is_over=lambda: plan.is_over(cells, tmp_path), **report)
    assert done == [(0, "ce", None), (0, "smmd", None)]
    assert complete_seeds(cells, tmp_path) == [0]
    assert clock_time.now - 1000 <= 45


def test_processes_that_cannot_end_in_time_are_ended(tmp_path, clock_time, monkeypatch):
    plan, cells = make_plan(45)
    monkeypatch.setattr("numerate.lab.comparison.executors._POLL_SECONDS", 0.0)
    begun, ended, done = [], [], []

    class Pool:
        """Runs seed 0 at once, and hangs in the others."""

        def __init__(self):
            self._processes = {1: SimpleNamespace(terminate=lambda: ended.append("process"))}

        def submit(self, function, job, *_):
            begun.append((job[0].seed, job[0].name))
            future = Future()
            if job[0].seed == 0:
                finish(tmp_path, job[0])
                future.set_result([])
            clock_time.now += 11
            return future

        def shutdown(self, **_):
            ended.append("pool")

    report = {"on_done": lambda cell, error: done.append((cell.seed, cell.name, error))}
    run_local(cells, tmp_path, processes=2, pool=Pool(), is_over=lambda: plan.is_over(cells, tmp_path), **report)
    assert begun == [(0, "ce"), (0, "smmd"), (1, "ce"), (1, "smmd")]
    assert ended == ["process", "pool"]
    assert sorted(done) == [(0, "ce", None), (0, "smmd", None)]


def test_a_stack_within_a_budget_has_one_seed():
    cells = read_experiment(GRID).cells()
    jobs = _jobs(cells, 2, stacked=True, by_seed=True)
    assert [{cell.seed for cell in job} for job in jobs] == [{0}, {1}, {2}, {3}]
    assert all(sorted(cell.name for cell in job) == ["ce", "ntil", "smmd"] for job in jobs)


@pytest.mark.parametrize(("slower", "seeds"), [(1, [0, 1, 2, 3, 4, 5, 6, 7]), (8, [0, 1])])
def test_the_report_is_about_the_seeds_that_are_complete(slower, seeds, tmp_path, clock_time, runs, measure, monkeypatch):
    """More than planned, if there is time, or fewer; calling again runs nothing."""
    measure.pace = Pace(0.0, 0.4 / slower, 0.0)  # four times as slow as it is, or sixteen times as fast

    def inside(config, progress):
        clock_time.now += slower if config.seed else 1
        progress("train", 1, 1, {})

    runs.inside = inside
    reported = []
    path = tmp_path / "report.json"
    write_json(path, {"answers": [], "answer": "", "key_figures": [], "scores": []})

    def write_report(folder):
        reported.append(json.loads((folder / "experiment.json").read_text()))
        return path

    monkeypatch.setattr("numerate.lab.comparison.compare.write_report", write_report)
    settings = {"task": "arithmetic", "losses": ["ce", "smmd"], "steps": 10, "eval_examples": 10, "seeds": None}
    call = {**settings, "out": tmp_path, "processes": 1, "progress": False, "budget": 36}
    result = compare(**call)
    assert reported[-1]["config"]["seeds"] == seeds
    assert len(reported[-1]["cells"]) == 2 * len(seeds)
    assert [note for note in result.notes if "seeds, to keep the budget" in note] == result.notes
    assert bool(result.notes) == (slower > 1)
    runs.inside = lambda *_: pytest.fail("a settled comparison was run again")
    assert compare(**call).notes == result.notes
    assert reported[-1]["config"]["seeds"] == seeds


# For real


def test_a_comparison_within_forty_seconds(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    quick = ["--set", "batch_size=8", "--set", "train_examples=64", "--set", "eval_examples=6", "--set", "steps=3"]
    done = CliRunner().invoke(app, ["compare", "--task", "arithmetic", "--processes", "1", "--budget", "40s", *quick])
    assert done.exit_code == 0, done.output
    planned = re.search(r"  budget   40 s, about (\d+) s", done.output)
    assert planned is not None, done.output
    assert 0 < int(planned[1]) <= 40
    folder = tmp_path / "runs" / "arithmetic"
    plan = json.loads((folder / PLAN).read_text())
    described = json.loads((folder / "experiment.json").read_text())
    assert plan["seeds"] == described["config"]["seeds"]
    assert (plan["steps"], plan["tests"]) == (3, 6)
    assert {"ce", *plan["losses"]} == {run["label"] for run in json.loads((folder / "report.json").read_text())["scores"]}
    assert (folder / "report.html").is_file()


@pytest.mark.parametrize(("settings", "turns"), [({}, 1), ({"members": 3, "adapter": "lora"}, 3)])
def test_a_step_of_members_that_are_trained_in_turn_is_a_step_of_each(settings, turns, tmp_path, monkeypatch):
    now = [0.0]

    def fake(config, folder, pictures, progress):
        total = turns * config.steps
        for done in range(1, total + 1):
            now[0] += 2.0
            progress("train", done, total, {})
        now[0] += 12.0
        progress("evaluate", 4, 4, {})

    monkeypatch.setattr("numerate.lab.comparison.budgeted.run", fake)
    monkeypatch.setattr("numerate.lab.comparison.budgeted.time", SimpleNamespace(perf_counter=lambda: now[0]))
    pace = measured(RunConfig(decide=("median",), **settings), tmp_path)
    assert (pace.step, pace.answer, pace.begin) == (2.0 * turns, 3.0, 0.0)


def test_a_budget_is_not_for_a_cluster(tmp_path):
    with pytest.raises(ValueError, match="executor='ray' runs on others"):
        compare(task="arithmetic", budget="5m", executor="ray", out=tmp_path)
