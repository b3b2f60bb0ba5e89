"""research/schedule.py on small runs: the order, trials before runs, what is skipped, failures, and the time."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pandas as pd
import pytest

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
        def poll(self):
            return 0

        def kill(self):
            pass

        wait = kill

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


def test_memory_and_time_limit_what_begins(script, schedule, begun):
    do(script, schedule({"seconds": 1000, "name": "long"}, {"gib": 200, "name": "large"}))
    assert begun[0] == []
    do(script, schedule({"gib": 60}), processes=14)
    assert len(begun[0]) == 4


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


@pytest.mark.launch
def test_real_runs_are_packed_and_continue_elsewhere(script, schedule, tmp_path):
    schedule({"seeds": 1, "labels": ["ce"], "rates": [1e-3]})
    script.main(["schedule.yaml", "--minutes", "5", "--processes", "1", "--pack", "kept.tar.xz"])
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    with tarfile.open("kept.tar.xz") as archive:
        names = archive.getnames()
        archive.extractall(elsewhere, filter="data")
    assert sum(name.endswith("result.json") for name in names) == 2  # a trial and a run
    assert not any(name.endswith((".settings.json", ".log")) for name in names)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(elsewhere)
        assert [entry.left for entry in schedule({"seeds": 1, "labels": ["ce"], "rates": [1e-3]})] == [[]]
