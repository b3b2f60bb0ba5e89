"""What a run may meet: kills between two files, damaged files, full and read-only disks, clocks that jump, too little memory.

``test_kills.py`` kills whole commands; here is each fault that kills at random moments have found, by itself.
"""

from __future__ import annotations

import errno
import gc
import json
import os
import platform
import random
import re
import shutil
import signal
import subprocess
import sys
import time
import weakref
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, nullcontext
from multiprocessing import get_context
from pathlib import Path

import pytest
import torch
import transformers.models.llama.modeling_llama
import transformers.trainer  # noqa: F401 -- before `short_collections`, which leaves out what is imported
from tests import apart
from tests.lab.comparison.test_compare import QUICK, compare_quick, records

import numerate
from numerate.cli import app
from numerate.lab.comparison.cells import cell_folder, is_finished, run_cells
from numerate.lab.comparison.executors import run_local
from numerate.lab.comparison.plan import read_experiment
from numerate.lab.data.picture_store import PICTURES
from numerate.lab.files.progress import NOTE
from numerate.lab.files.records import TEMPORARY, TRAINED, clear, locked, read_jsonl, read_state, write_json, write_state
from numerate.lab.prediction.predict import predict
from numerate.lab.prediction.train import train
from numerate.lab.training.config import RunConfig
from numerate.lab.training.run import run
from numerate.lab.training.stacked import run_stack
from numerate.lab.training.validation import Validation

SMALL = {"task_settings": QUICK["task_settings"], "batch_size": 4, "train_examples": 24, "eval_examples": 2, "log_every": 1}
ROWS = [{"area": 20 + i, "price": 100 + 7 * i % 90} for i in range(80)]
TABLE = {"data": ROWS, "target": "price", "steps": 2, "batch_size": 4, "eval_examples": 2}


def config(**settings):
    return RunConfig(**SMALL | {"loss": "smmd", "steps": 5, "save_every": 2} | settings)


class Stopped(BaseException):
    """A kill, as far as a test in one process can have one: nothing handles it."""


def stop_at(step, act=lambda: None):
    def progress(stage, done, total, figures):
        if (stage, done) == ("train", step):
            act()
            raise Stopped

    return progress


def outcome(folder):
    curve = [{name: value for name, value in point.items() if name != "seconds"} for point in read_jsonl(folder / "curve.jsonl")]
    return read_jsonl(folder / "predictions.jsonl"), curve


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    run(config(), folder)
    return outcome(folder)


# Kills between two files


def test_a_checkpoint_that_was_being_written_is_not_resumed_from(whole, tmp_path):
    with pytest.raises(Stopped):
        run(config(), tmp_path, progress=stop_at(4))
    written = tmp_path / "checkpoints" / "checkpoint-2"
    half = shutil.copytree(written, tmp_path / "checkpoints" / "checkpoint-4")
    (half / "whole").unlink()
    (half / "model.safetensors").write_bytes(b"half")
    seen = []
    run(config(), tmp_path, progress=lambda stage, done, *_: seen.append(done) if stage == "train" else None)
    assert seen == [3, 4, 5]
    assert outcome(tmp_path) == whole
    assert not (tmp_path / "checkpoints").exists()


def test_the_best_weights_belong_to_their_checkpoint(tmp_path, monkeypatch):
    """A process that is killed between a checkpoint and its best weights goes on from the checkpoint before."""
    best = config(validate_every=1, keep_best=True, choose_by="absolute_error", keep_model=True)
    run(best, tmp_path / "whole")
    save, saved = Validation.save, []

    def stop_second(self, file):
        saved.append(file)
        if len(saved) == 2:
            raise Stopped
        save(self, file)

    monkeypatch.setattr(Validation, "save", stop_second)
    with pytest.raises(Stopped):
        run(best, tmp_path / "killed")
    seen = []
    run(best, tmp_path / "killed", progress=lambda stage, done, *_: seen.append(done) if stage == "train" else None)
    assert seen == [3, 4, 5]
    assert outcome(tmp_path / "killed") == outcome(tmp_path / "whole")
    weights = [(tmp_path / name / "model" / "model.safetensors").read_bytes() for name in ("killed", "whole")]
    assert weights[0] == weights[1]


def test_a_run_that_was_killed_after_its_result_is_completed(tmp_path, monkeypatch):
    """Intervals are fitted, and nothing temporary is left."""
    from numerate.lab.prediction.train import keep_calibration

    def killed(*_, **__):
        raise Stopped

    monkeypatch.setattr("numerate.lab.prediction.train.keep_calibration", killed)
    with pytest.raises(Stopped):
        train(**TABLE, out=tmp_path, resume=True)
    monkeypatch.setattr("numerate.lab.prediction.train.keep_calibration", keep_calibration)
    (tmp_path / "checkpoints" / "checkpoint-2").mkdir(parents=True)
    assert not (tmp_path / "model" / "calibration.json").exists()
    assert not train(**TABLE, out=tmp_path, resume=True).new
    assert json.loads((tmp_path / "model" / "calibration.json").read_text())["target"] == "price"
    assert not (tmp_path / "checkpoints").exists()


def test_starting_over_that_was_killed_can_be_resumed(tmp_path, monkeypatch):
    settings = SMALL | {"steps": 3, "save_every": 1, "out": tmp_path}
    with pytest.raises(Stopped):
        train(**settings, progress=stop_at(3))

    def killed(path, **_):
        raise Stopped

    with monkeypatch.context() as patched:
        patched.setattr("shutil.rmtree", killed)
        with pytest.raises(Stopped):
            train(**settings, overwrite=True)
    assert train(**settings, resume=True).new


def test_a_cell_that_was_killed_while_it_saved_its_model_is_run_again(tmp_path):
    """What it left is a folder, not a file."""
    (cell,) = read_experiment(QUICK | {"losses": ["ce"], "seeds": 1, "keep_model": True, **SMALL, "steps": 1}).cells()
    left = cell_folder(tmp_path, cell) / ".model.part"
    left.mkdir(parents=True)
    (left / "model.safetensors").write_bytes(b"half")
    run_cells([cell], tmp_path)
    assert is_finished(tmp_path, cell)
    assert not left.exists()


def test_temporary_files_of_processes_that_are_gone(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    gone, other = (f".result.json.{host}.{process.pid}.part" for host in (platform.node(), "elsewhere"))
    mine, foreign = f".result.json.{platform.node()}.{os.getpid()}.part", ".notes.part"
    for folder in (tmp_path / "model", tmp_path):  # a calibration is written beside the weights
        folder.mkdir(exist_ok=True)
        for name in (gone, other, mine, foreign):
            (folder / name).touch()
    clear(tmp_path)
    for folder in (tmp_path / "model", tmp_path):
        assert {path.name for path in folder.iterdir() if path.is_file()} == {other, mine, foreign}


def test_what_a_finished_cell_left_is_removed(tmp_path, monkeypatch):
    assert {TRAINED, NOTE, PICTURES} < set(TEMPORARY)
    monkeypatch.setattr("numerate.lab.comparison.compare.write_report", lambda folder: folder)
    monkeypatch.setattr("numerate.lab.comparison.compare._result", lambda *_: None)
    settings = {"losses": ["ce"], "seeds": 1, **SMALL, "steps": 1}
    compare_quick(tmp_path, **settings)
    (cell,) = (tmp_path / "cells").iterdir()
    before = {path.name for path in cell.iterdir()}
    (cell / "checkpoints").mkdir()
    for name in (TRAINED, NOTE):
        (cell / name).touch()
    compare_quick(tmp_path, **settings)
    assert {path.name for path in cell.iterdir()} == before


# Damaged files


@pytest.mark.parametrize("file", ["model.safetensors", "optimizer.pt", "rng_state.pth", "trainer_state.json"])
def test_a_damaged_checkpoint_is_named(file, tmp_path):
    with pytest.raises(Stopped):
        run(config(), tmp_path, progress=stop_at(3))
    checkpoint = tmp_path / "checkpoints" / "checkpoint-2"
    content = (checkpoint / file).read_bytes()
    (checkpoint / file).write_bytes(content[: len(content) // 2])
    with pytest.raises(ValueError, match=r"checkpoint-2 cannot be read \(.+\): delete .*checkpoints to train from the start"):
        run(config(), tmp_path)
    assert not (tmp_path / "result.json").exists()


def test_a_damaged_checkpoint_of_a_stack_is_named(tmp_path):
    configs, folders = [config(seed=0), config(seed=1)], [tmp_path / "a", tmp_path / "b"]
    with pytest.raises(Stopped):
        run_stack(configs, folders, progress=stop_at(3))
    (file,) = (tmp_path / "a" / "checkpoints").iterdir()
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(ValueError, match=rf"{file.name} is damaged \(.+\): delete it"):
        run_stack(configs, folders)
    file.unlink()
    run_stack(configs, folders)


def test_damaged_weights_are_named_and_pickles_are_not_run(tmp_path):
    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "evil"),)

    write_state(tmp_path / "good.pt", {"weights": torch.ones(2), "best": [-float("inf")]})
    assert read_state(tmp_path / "good.pt")["weights"].tolist() == [1, 1]
    torch.save(Evil(), tmp_path / "evil.pt")
    (tmp_path / "noise.pt").write_bytes(random.Random(0).randbytes(5000))
    (tmp_path / "empty.pt").touch()
    for name in ("evil", "noise", "empty"):
        with pytest.raises(ValueError, match=rf"{name}\.pt is damaged \(.+\): delete it, and what it holds is computed again"):
            read_state(tmp_path / f"{name}.pt")
    assert not (tmp_path / "evil").exists()
    with pytest.raises(FileNotFoundError):
        read_state(tmp_path / "nothing.pt")


def test_damaged_weights_of_a_run_are_named(tmp_path):
    train(**TABLE, out=tmp_path)
    file = tmp_path / "model" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"model is damaged \(.+\): train again, or restore the files"):
        predict(tmp_path, [{"area": 30}], tmp_path / "new.csv")


@pytest.mark.parametrize("content", [b'{"a": 1}\n{"a"', b'{"a": 1}\n\xff\xfe\n', b'{"a": 1}\n\n'])
def test_a_truncated_file_of_records_is_named(content, tmp_path):
    (tmp_path / "predictions.jsonl").write_bytes(content)
    with pytest.raises(ValueError, match=r"predictions\.jsonl, line 2: not JSON\. Delete the folder and run it again"):
        read_jsonl(tmp_path / "predictions.jsonl")


def test_truncated_records_of_a_finished_run(tmp_path):
    settings = SMALL | {"steps": 1, "out": tmp_path}
    train(**settings)
    file = tmp_path / "predictions.jsonl"
    file.write_text(file.read_text()[:-20])
    with pytest.raises(ValueError, match=r"predictions\.jsonl, line 4: not JSON"):
        train(**settings, resume=True)
    assert train(**settings, overwrite=True).new


def test_a_curve_with_a_damaged_line_is_resumed(whole, tmp_path):
    """Points after the checkpoint are logged again; the line that was being written is not kept."""
    with pytest.raises(Stopped):
        run(config(), tmp_path, progress=stop_at(3))
    with (tmp_path / "curve.jsonl").open("ab") as file:
        file.write(b'{"step": 9, "loss": 1}\n{"st\xff')
    run(config(), tmp_path)
    assert outcome(tmp_path) == whole


# Disks


@contextmanager
def mounted(folder, *options):
    """A small file system of its own, if this user may mount one."""
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", ",".join(options), "tmpfs", str(folder)], capture_output=True, check=False
    )
    if done.returncode:
        pytest.skip(f"this user cannot mount a tmpfs: {done.stderr.decode().strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def command(arguments):
    sys.argv = ["numerate", *arguments]
    app(prog_name="numerate")


QUICKLY = [part for name in ("steps=2", "batch_size=4", "train_examples=24", "eval_examples=2") for part in ("--set", name)]


def ended(arguments, output):
    """Return the exit code of a command and what it printed, in one line."""
    code = apart.finish(apart.start(command, arguments, output=output))
    return code, " ".join(output.read_text().split())


@pytest.mark.launch
def test_a_full_disk(tmp_path):
    """A tmpfs that has room for the first files of a run: one line, nothing that looks finished; with room, it goes on."""
    arguments = ["train", "--resume", *QUICKLY, "--out"]
    with mounted(tmp_path / "small", "size=64k") as disk:
        code, printed = ended([*arguments, str(disk / "run")], tmp_path / "output.txt")
        assert code == 1
        assert f"no space left on the disk of {disk / 'run'}" in printed
        assert "Traceback" not in printed
        assert (disk / "run" / "config.json").is_file()
        assert not (disk / "run" / "result.json").exists()
        assert not (disk / "run" / "model").exists()
        subprocess.run(["mount", "-o", "remount,size=64m", str(disk)], check=True)
        code, printed = ended([*arguments, str(disk / "run")], tmp_path / "output.txt")
        assert code == 0, printed
        assert (disk / "run" / "result.json").is_file()
        assert not [path for path in (disk / "run").rglob(".*") if path.name != ".lock"]


@pytest.mark.launch
@pytest.mark.parametrize("name", ["train", "compare"])
def test_a_read_only_disk(name, tmp_path):
    """Root may write to any folder of a disk, but not to a disk that is mounted read-only."""
    arguments = [name, "--loss", "ce", *QUICKLY, "--out"]
    with mounted(tmp_path / "fixed", "ro") as disk:
        code, printed = ended([*arguments, str(disk / "run")], tmp_path / "output.txt")
    assert code == 1
    assert printed.endswith("cannot be written to (Read-only file system): name another folder with --out.")
    assert "Traceback" not in printed


# Signals, and two at once


SHORT = {name: SMALL[name] for name in ("batch_size", "eval_examples")}


def compare_apart(folder, steps, seeds):
    compare_quick(folder, steps=steps, seeds=seeds, **SHORT)


def cells_apart(steps, seeds):
    return read_experiment(QUICK | SHORT | {"steps": steps, "seeds": seeds}).cells()


@pytest.mark.launch
def test_two_comparisons_in_one_folder_at_once(tmp_path):
    """Both end well; the records are those of one."""
    grid, outputs = tmp_path / "grid", [tmp_path / "first.txt", tmp_path / "second.txt"]
    processes = [apart.start(compare_apart, grid, 3, 1, output=output) for output in outputs]
    assert [apart.finish(process) for process in processes] == [0, 0], [output.read_text() for output in outputs]
    run_local(cells_apart(3, 1), tmp_path / "alone", on_done=lambda cell, error: None)
    assert records(grid) == records(tmp_path / "alone")
    data = json.loads((grid / "report.json").read_text())
    assert {score["label"] for score in data["scores"]} == {"ce", "smmd"}
    assert data["unfinished"] == []
    assert not list(grid.rglob("*.part"))


def test_two_trainings_in_one_folder_at_once(tmp_path):
    """The second is refused, and harms nothing, not even with overwrite; later it may begin."""
    quick = {"steps": 2, "train_examples": 8, "eval_examples": 2, "out": tmp_path}
    with locked(tmp_path, wait=False) as mine:
        assert mine
        (tmp_path / "config.json").write_text("of the first")
        for options in ({}, {"overwrite": True}, {"resume": True}):
            with pytest.raises(ValueError, match=r"is in use by another process that trains there: .* --out"):
                train(**quick, **options)
        assert (tmp_path / "config.json").read_text() == "of the first"
    assert train(**quick).new


@pytest.mark.parametrize(("number", "works"), [(errno.ENOLCK, True), (errno.EOPNOTSUPP, True), (errno.EIO, False)])
def test_a_disk_without_locks(number, works, tmp_path, monkeypatch):
    def refuse(file, how):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("fcntl.flock", refuse)
    with nullcontext() if works else pytest.raises(OSError, match="Input/output error"), locked(tmp_path, wait=False) as free:
        assert free


# Clocks


def test_a_clock_that_jumps_changes_nothing(whole, tmp_path, monkeypatch):
    """An hour forwards or backwards whenever somebody looks; checkpoints are told by their step, not by their age."""
    rng, true = random.Random(0), time.time

    def jumping():
        return true() + rng.choice([-3600, 0, 3600])

    monkeypatch.setattr("time.time", jumping)
    checkpoints = tmp_path / "checkpoints"

    def age():
        os.utime(checkpoints / "checkpoint-2", (0, true() + 3600))  # as if it were written in the future

    def progress(stage, done, total, figures):
        if (stage, done) == ("train", 3):
            age()
        if (stage, done) == ("train", 5):
            raise Stopped

    with pytest.raises(Stopped):
        run(config(), tmp_path, progress=progress)
    assert [path.name for path in checkpoints.iterdir()] == ["checkpoint-4"]
    run(config(), tmp_path)
    assert outcome(tmp_path) == whole


def test_no_time_is_measured_by_a_clock_that_can_be_set():
    """Budgets, estimates and costs take time.monotonic or time.perf_counter."""
    sources = list(Path(numerate.__file__).parent.rglob("*.py"))
    assert any("time.monotonic()" in source.read_text(encoding="utf-8") for source in sources)
    found = [source for source in sources if re.search(r"\btime\.time\b|from time import", source.read_text(encoding="utf-8"))]
    assert found == []


# Memory


def test_a_run_without_memory_fails_alone_and_the_report_lists_it(tmp_path, monkeypatch):
    held, alive = [], []

    class Activations:
        pass

    def short_of_memory(config, folder, **settings):
        gc.collect()
        alive.append([one() is not None for one in held])
        if config.name == "smmd" and config.seed == 0:
            large = Activations()
            held.append(weakref.ref(large))
            raise torch.OutOfMemoryError("out of memory: tried to allocate 20 GiB")
        return run(config, folder, **settings)

    monkeypatch.setattr("numerate.lab.comparison.cells.run", short_of_memory)
    reported = (
        r"1 of 4 runs failed, the first 'smmd' with seed 0: out of memory: tried to allocate 20 GiB\. Finished runs are kept, "
    )
    with pytest.raises(RuntimeError, match=reported + r"with a report in .*report\.html that lists the others: call again"):
        compare_quick(tmp_path, **SMALL | {"steps": 1})
    assert alive == [[], [], [False], [False]]  # what the failed run held is free before the next one begins
    data = json.loads((tmp_path / "report.json").read_text())
    missing = [cell.hash for cell in read_experiment(QUICK | SMALL | {"steps": 1}).cells() if not is_finished(tmp_path, cell)]
    assert [one["folder"] for one in data["unfinished"]] == missing
    assert len(missing) == 1
    assert missing[0] in (tmp_path / "report.html").read_text()


def test_a_stack_without_memory_is_freed_before_its_halves(tmp_path, monkeypatch):
    held, alive = [], []

    class Activations:
        pass

    def too_large(configs, folders, **options):
        gc.collect()
        alive.append([one() is not None for one in held])
        if len(configs) > 2:
            large = Activations()
            held.append(weakref.ref(large))
            raise torch.OutOfMemoryError("out of memory")
        for folder in folders:
            write_json(folder / "result.json", {})

    monkeypatch.setattr("numerate.lab.comparison.cells.run_stack", too_large)
    cells = [config(seed=seed) for seed in range(4)]
    done = []
    run_local(cells, tmp_path, stacked=True, on_done=lambda cell, error: done.append(error))
    assert done == [None] * 4
    assert alive == [[], [False], [False]]


@pytest.mark.launch
def test_a_killed_process_takes_only_its_own_run_with_it(tmp_path, monkeypatch):
    """As by the kernel when memory runs out. The runs beside it and after it are done; the killed one is tried once more."""
    cells = read_experiment({**QUICK, "losses": ["ce", "smmd", "emd"], "seeds": 2}).cells()
    bad, trace = cells[1], tmp_path / "trace"

    def killed(configs, folder, **_):
        (cell,) = configs
        if cell == bad:
            with trace.open("a") as file:
                file.write("x")
            os.kill(os.getpid(), signal.SIGKILL)
        write_json(cell_folder(folder, cell) / "result.json", {})
        return []

    @contextmanager
    def forked(cells, processes):
        with ProcessPoolExecutor(processes, mp_context=get_context("fork")) as pool:
            yield pool

    monkeypatch.setattr("numerate.lab.comparison.executors.run_cells", killed)
    monkeypatch.setattr("numerate.lab.comparison.executors.worker_pool", forked)
    failed = {}
    run_local(cells, tmp_path, processes=2, on_done=lambda cell, error: failed.update({cell.hash: str(error or "")}))
    assert failed.pop(bad.hash).startswith("its process was killed: often because memory ran out")
    assert failed == {cell.hash: "" for cell in cells if cell != bad}
    assert trace.read_text() == "xx"
    assert not Path(cell_folder(tmp_path, bad) / "result.json").exists()
