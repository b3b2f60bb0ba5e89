"""research/schedule.py on small runs: the order, trials before runs, what is skipped or waits, failures, kills, and the time."""

from __future__ import annotations

import json
import os
import signal
import sys
import tarfile
import time
from multiprocessing import get_context
from pathlib import Path

import pandas as pd
import pytest
import torch

CONFIG = """
name: small_sums
model: tiny
losses: [ce, emd]
seeds: 2
steps: 2
batch_size: 4
train_examples: 20
eval_examples: 3
eval_splits: [interpolate]
"""


@pytest.fixture
def schedule(script, tmp_path, monkeypatch):
    """A working folder with a schedule of one comparison."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(script, "HERE", tmp_path)
    script.kept_runs.cache_clear()
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "small_sums.yaml").write_text(CONFIG)

    def write(*entries: dict) -> list:
        file = tmp_path / "schedule.yaml"
        file.write_text(json.dumps([{"config": "small_sums", "seconds": 1, **entry} for entry in entries]))
        return script.read_schedule(file)

    return write


@pytest.fixture
def begun(script, monkeypatch):
    """Runs that were begun, which end at once with a result, or without one if their name is in ``failing``."""
    seen, failing = [], set()

    class Ended:
        exitcode = 0

    def begin(entry, cells):
        for cell in cells:
            seen.append((cell.name, cell.seed, cell.learning_rate, cell.validation))
            folder = script.cell_folder(entry.folder, cell)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "config.json").write_text(cell.model_dump_json())
            if cell.name in failing:
                folder.with_suffix(".log").write_text("Traceback\nMemoryError: full")
            else:
                (folder / "result.json").write_text(json.dumps({"headline": "exact"}))
                record = {"measures": {"exact": cell.learning_rate}, "gold": "1", "split": "interpolate"}
                (folder / "predictions.jsonl").write_text(json.dumps(record) + "\n")
        groups.append(len(cells))
        return script.Job(entry, cells, Ended(), 0.0)

    groups = []
    monkeypatch.setattr(script, "begin", begin)
    return seen, failing, groups


def do(script, entries, **limits):
    return script.work(entries, **{"seconds": 60, "gib": 100, "processes": 2, "poll": 0.0} | limits)


def test_trials_come_first_and_choose_the_rate(script, schedule, begun, capsys):
    entries = schedule({"rates": [1e-3, 4e-3, 2e-3]})
    assert do(script, entries) == []
    trials, runs = begun[0][:3], begun[0][3:]
    assert trials == [("ce", 1000, rate, True) for rate in (1e-3, 4e-3, 2e-3)]
    assert runs == [(name, seed, 4e-3, False) for seed in (0, 1) for name in ("ce", "emd")]
    script.finish(entries)
    assert "small_sums: 4 of 4 runs finished, 4 of them here; 0 trials left" in capsys.readouterr().out
    do(script, schedule({"rates": [1e-3, 4e-3, 2e-3]}))
    assert len(begun[0]) == 7  # nothing is run again


def test_each_loss_may_have_its_own_rate(script, schedule, begun, monkeypatch):
    best = {"ce": 1e-3, "emd": 4e-3}
    monkeypatch.setattr(script, "validation_score", lambda folder, trial: -abs(trial.learning_rate - best[trial.name]))
    do(script, schedule({"rates": [1e-3, 4e-3], "each": True, "seeds": 1}))
    assert [each[:3] for each in begun[0][4:]] == [("ce", 0, 1e-3), ("emd", 0, 4e-3)]


def test_each_format_has_a_rate_for_all_its_losses(script, schedule, begun, monkeypatch):
    best = {"ce": 1e-3, "ce padded": 4e-3}
    monkeypatch.setattr(script, "validation_score", lambda folder, trial: -abs(trial.learning_rate - best[trial.name]))
    (entry,) = schedule({"rates": [1e-3, 4e-3], "seeds": 1, "set": {"formats": ["plain", "padded"]}})
    minutes, line = script.planned(entry, gib=30, processes=14)
    assert line == "small_sums (tiny): 4 trials, 4 runs of 2 steps: ce, ce padded, emd, emd padded"
    assert minutes == pytest.approx(8 / 3 / 60)  # eight runs of a second and 10 GiB
    do(script, [entry])
    assert [each[:3] for each in begun[0][4:]] == [
        *(("ce", 0, 1e-3), ("ce padded", 0, 4e-3), ("emd", 0, 1e-3), ("emd padded", 0, 4e-3))
    ]


def test_runs_of_a_stack_are_one_process(script, schedule, begun):
    entries = schedule({"rates": [1e-3, 4e-3, 2e-3], "stack": 8, "set": {"formats": ["plain", "padded"]}})
    assert do(script, entries, processes=1) == []
    assert begun[2] == [3, 3, 4, 4]  # the trials of each format, then its two losses with two seeds
    assert script.Job(entries[0], entries[0].cells[:3], None, 0.0).title == "small_sums tiny ce seed 0 and 2 more"


def test_trials_of_a_pool_have_one_member(script, schedule, begun):
    (entry,) = schedule({"rates": [1e-3, 4e-3], "set": {"members": 8}})
    assert {trial.members for trial in entry.trials} == {1}
    do(script, [entry])
    assert {cell.members for cell in entry.cells} == {8}


def test_entries_are_chosen_by_name(script, schedule, capsys):
    schedule({"name": "pools_a"}, {"name": "sums"}, {"name": "pools_b"})
    script.main(["schedule.yaml", "--plan", "--only", "pools_*"])
    assert [line.split(": ", 1)[1].split()[0] for line in capsys.readouterr().out.splitlines()] == ["pools_a", "pools_b"]
    with pytest.raises(SystemExit):
        script.main(["schedule.yaml", "--only", "pool"])


def test_entries_are_chosen_by_name_and_model(script, schedule, capsys):
    schedule({"name": "sizes_a", "models": ["qwen", "smollm"]}, {"name": "sizes_b", "models": ["qwen"]}, {"name": "sizes_c"})
    script.main(["schedule.yaml", "--plan", "--only", "sizes_c:tiny", "--only", "*_[ab]:q*"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(": ")[1] for line in lines] == ["sizes_a (qwen)", "sizes_b (qwen)", "sizes_c (tiny)"]


def test_memory_and_time_limit_what_begins(script, schedule, begun):
    do(script, schedule({"seconds": 1000, "name": "long"}, {"gib": 200, "name": "large"}))
    assert begun[0] == []
    do(script, schedule({"gib": 60}), processes=14)
    assert len(begun[0]) == 4


def test_an_entry_waits_for_its_model(script, schedule, begun, monkeypatch, capsys):
    entries = schedule({"models": ["later"], "labels": ["ce"]}, {"models": ["never"]}, {"name": "other", "labels": ["emd"]})
    polls = []

    def sleep(seconds):
        polls.append([name for name, *_ in begun[0]])
        if len(polls) == 4:
            Path("later").mkdir()
        monkeypatch.setattr(script.time, "monotonic", lambda: 10.0 * len(polls))

    monkeypatch.setattr(script.time, "monotonic", lambda: 0.0)
    monkeypatch.setattr(script.time, "sleep", sleep)
    failures = do(script, entries, seconds=95)
    assert polls == [["emd"] * 2] * 4 + [["emd"] * 2 + ["ce"] * 2] * 6  # until nothing that comes could end in time
    assert failures == ["small_sums (never): not run, its model is not there"]
    assert capsys.readouterr().out.startswith("models that are not there yet: later, never\n")


def test_a_missing_model_of_finished_runs_is_not_waited_for(script, schedule, begun):
    Path("gone").mkdir()
    assert do(script, schedule({"models": ["gone"]})) == []
    Path("gone").rmdir()
    assert do(script, schedule({"models": ["gone"]})) == []


def test_the_disk_is_asked_again_only_when_a_job_has_ended(script, schedule, begun, monkeypatch):
    asked, sleeps, left = [], [], script.Entry.left.fget
    monkeypatch.setattr(script.Entry, "left", property(lambda entry: (asked.append(entry.name), left(entry))[1]))
    finished = script.begin
    process = type("Process", (), {"exitcode": property(lambda self: 0 if len(sleeps) % 100 == 0 else None)})

    def begin(entry, cells):
        job = finished(entry, cells)
        job.process = process()
        return job

    monkeypatch.setattr(script, "begin", begin)
    monkeypatch.setattr(script.time, "sleep", sleeps.append)
    entries = schedule({"name": "a", "seeds": 1}, {"name": "b", "seeds": 1})
    assert do(script, entries, processes=3) == []
    assert len(sleeps) == 200
    assert asked == ["a", "b", "a", "b", "b"]  # the last: of its second run


@pytest.mark.parametrize("kind", ["scores.csv.xz", "pools.csv"])
def test_kept_runs_are_skipped_and_lend_their_rate(script, schedule, begun, tmp_path, kind):
    lines = ["model,label,seed,learning_rate,exact", *(f"tiny,{label},0,0.007,1" for label in ("ce", "emd"))]
    (tmp_path / "scores").mkdir()
    pd.DataFrame([line.split(",") for line in lines[1:]], columns=lines[0].split(",")).to_csv(
        tmp_path / "scores" / f"small_sums_{kind}", index=False
    )
    do(script, schedule({"rates": [1e-3, 4e-3]}))
    assert begun[0] == [("ce", 1, 0.007, False), ("emd", 1, 0.007, False)]


def test_a_failure_is_told_and_its_seed_not_listed(script, schedule, begun, capsys):
    begun[1].add("emd")
    entries = schedule({"seeds": 1}, {"labels": ["ce"], "name": "other"})
    (failure,) = do(script, entries)
    assert failure.startswith("small_sums tiny emd seed 0: failed after ")
    assert failure.endswith(" s: MemoryError: full")
    script.finish(entries)
    assert "small_sums: 1 of 2 runs finished, 0 of them here" in capsys.readouterr().out
    assert not Path("runs/small_sums/experiment.json").exists()
    assert json.loads(Path("runs/other/experiment.json").read_text())["cells"]


def test_the_schedule_of_the_project_can_be_read(script, monkeypatch, capsys, tmp_path):
    """Every entry names a configuration that is there, and losses and formats that suit it."""
    script.kept_runs.cache_clear()
    monkeypatch.chdir(tmp_path)
    script.main([str(script.HERE / "schedule.yaml"), "--plan"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 20
    assert not [line for line in lines if " 0 runs" in line]
    assert sum("padded" in line for line in lines) > 5
    assert [line.split(": ", 1)[1].split("_")[0] for line in lines[:10]] == ["sizes"] * 10  # gain against model size leads


forks = pytest.mark.skipif(sys.platform != "linux", reason="runs are forked")
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")  # by OpenBLAS's threads


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def wait_for(condition) -> None:
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.fixture
def stuck(script, monkeypatch):
    """Runs that start a process, write its id and theirs into the file ``pids``, and do not end."""

    def run_cells(cells, folder):
        worker = get_context("fork").Process(target=signal.pause, daemon=True)
        worker.start()
        Path("part").write_text(f"{os.getpid()} {worker.pid}")
        Path("part").rename("pids")
        signal.pause()

    def pids():
        return [int(pid) for pid in Path("pids").read_text().split()]

    monkeypatch.setattr(script, "run_cells", run_cells)
    yield pids
    for pid in filter(is_alive, pids()):
        os.kill(pid, signal.SIGKILL)


@forks
@pytest.mark.launch
def test_a_run_that_fails_has_a_log_and_the_others_go_on(script, schedule, monkeypatch, capsys):
    def run_cells(cells, folder):
        sys.stdout.write("one\n")
        os.write(2, b"two\n")
        if cells[0].name == "ce":
            raise MemoryError("full")
        os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr(script, "run_cells", run_cells)
    entries = schedule({"seeds": 1})
    failures = do(script, entries, poll=0.02)
    assert sorted(line.split(": ", 1)[1] for line in failures) == ["failed after 0 s: MemoryError: full", "failed after 0 s: two"]
    assert capsys.readouterr().out.splitlines() == failures
    (log,) = [path.read_text() for path in Path("runs/small_sums/cells").glob("*.log") if "full" in path.read_text()]
    assert log.startswith("one\ntwo\n")
    assert "Traceback" in log


@forks
@pytest.mark.launch
def test_a_run_out_of_time_is_killed_with_its_workers(script, schedule, stuck, capsys):
    begun = time.monotonic()
    assert do(script, schedule({"seeds": 1, "labels": ["ce"]}), seconds=2, poll=0.02) == []
    assert time.monotonic() - begun < 10
    assert capsys.readouterr().out == "small_sums tiny ce seed 0: given up, out of time\n"
    wait_for(lambda: not any(map(is_alive, stuck())))


@forks
@pytest.mark.launch
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_runs_end_with_the_schedule(script, schedule, stuck, number):
    entries = schedule({"seeds": 1, "labels": ["ce"]}, {"seeds": 1, "labels": ["ce"], "name": "other"})
    process = get_context("fork").Process(target=do, args=(script, entries), kwargs={"poll": 0.02})
    process.start()
    wait_for(Path("pids").exists)
    assert all(map(is_alive, stuck()))
    os.kill(process.pid, number)
    process.join(5)
    process.kill()
    assert process.exitcode
    wait_for(lambda: not any(map(is_alive, stuck())))


@forks
@pytest.mark.launch
def test_real_runs_are_packed_and_continue_elsewhere(script, schedule, tmp_path, monkeypatch):
    monkeypatch.delenv("PYTORCH_NVML_BASED_CUDA_CHECK", raising=False)  # set by the script; this restores it
    schedule({"seeds": 1, "labels": ["ce"], "rates": [1e-3]})
    script.main(["schedule.yaml", "--minutes", "5", "--processes", "1", "--pack", "kept.tar.xz"])
    assert not torch.cuda.is_initialized()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    with tarfile.open("kept.tar.xz") as archive:
        names = archive.getnames()
        archive.extractall(elsewhere, filter="data")
    assert sum(name.endswith("result.json") for name in names) == 2  # a trial and a run
    assert not any(name.endswith(".log") for name in names)
    records = [(elsewhere / name).read_text(encoding="utf-8") for name in names if name.endswith("predictions.jsonl")]
    assert len(records) == 2
    assert not any('"prompt"' in record for record in records)
    kept = []
    for folder in (Path.cwd(), elsewhere):
        (comparison,) = (folder / "runs").iterdir()
        sys.modules["keep"].main(["scores", str(comparison), "--out", str(folder)])
        kept += [file.read_bytes() for file in folder.glob("*_scores.csv.xz")]
    assert kept[0] == kept[1]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(elsewhere)
        assert [entry.left for entry in schedule({"seeds": 1, "labels": ["ce"], "rates": [1e-3]})] == [[]]
