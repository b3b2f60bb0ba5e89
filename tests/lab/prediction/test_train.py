"""What ``numerate train`` says: the plan, lines without a terminal, a budget of time, and how good the model of a table is."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from numerate.cli import app
from numerate.lab.comparison.budget import Pace
from numerate.lab.data.settings import make_task
from numerate.lab.evaluation.missing import FALLBACK
from numerate.lab.files.progress import LINE_SECONDS, GridProgress, RunProgress
from numerate.lab.files.records import read_jsonl
from numerate.lab.prediction.train import train
from numerate.lab.training.kept_runs import trained_config

EASY = {"difficulty": 1, "operations": "+-", "wording": "bare"}
QUICK = {"batch_size": 8, "train_examples": 64, "eval_examples": 6}


# Lines without a terminal


@pytest.fixture
def clock(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr("numerate.lab.files.progress.time.monotonic", lambda: now[0])
    return now


def test_without_a_terminal_lines_are_sparse_and_have_the_time_left(clock):
    text = io.StringIO()
    with RunProgress(Console(file=text)) as progress:
        for step in range(1, 301):  # two a second
            clock[0] += 0.5
            progress("train", step, 300, {"loss": 2.0})
    lines = text.getvalue().splitlines()
    assert lines[0] == "train: 9 of 300, about 2 min left, loss 2.000"  # 291 steps of half a second
    assert lines[1] == "train: 129 of 300, about 1 min 30 s left, loss 2.000"
    assert lines[-1] == "train: 300 of 300 in 2 min 30 s, loss 2.000"
    assert len(lines) == 2 + 150 // LINE_SECONDS


@pytest.mark.parametrize("display", [RunProgress, GridProgress])
def test_on_a_terminal_there_are_bars_instead(display, clock):
    text = io.StringIO()
    with display(Console(file=text, force_terminal=True)) as progress:
        for step in range(1, 101):
            clock[0] += 10
            progress("train", step, 100, {})
    assert "of 100" not in text.getvalue()
    assert "100/100" in text.getvalue()


def test_a_slow_first_step_has_no_estimate(clock):
    text = io.StringIO()
    with RunProgress(Console(file=text)) as progress:
        progress("evaluate", 0, 9, {})
        clock[0] += 100
        progress("evaluate", 0, 9, {})
    assert text.getvalue() == "evaluate: 0 of 9\n"


def test_the_plan_comes_before_the_steps(tmp_path):
    flags = [f"--set={name}={json.dumps(value)}" for name, value in {**QUICK, "task_settings": EASY}.items()]
    done = CliRunner().invoke(app, ["train", "--loss", "smmd", "--steps", "4", *flags, "--out", str(tmp_path / "a")])
    assert done.exit_code == 0, done.output
    lines = [" ".join(line.split()) for line in done.output.splitlines()]
    assert lines[0] == "Training smmd on arithmetic, seed 0."
    assert lines[1] == "steps 4 of 8 rows: 0.5 passes over the training rows"
    assert "rows 64 for training, 6 for the test, 6 out of range (generated)" in lines
    assert lines.index(next(line for line in lines if line.startswith("train: 4 of 4 in"))) > 4


# A budget


@pytest.fixture
def paced(monkeypatch):
    """A machine on which a run takes 2 s, a step 0.1 s and a test row 0.01 s; nothing is trained."""
    seen = []

    def stop(config, folder, **_):
        seen.append(config)
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(json.dumps(config.used))
        (folder / "checkpoints").mkdir(exist_ok=True)
        return {}

    monkeypatch.setattr("numerate.lab.comparison.budgeted.measured", lambda *_: Pace(2.0, 0.1, 0.01))
    monkeypatch.setattr("numerate.lab.training.run.run", stop)
    return seen


def test_a_budget_chooses_the_steps_that_fit(paced, tmp_path):
    chosen = []
    for index, seconds in enumerate((30, 60, 120, 300, 10_000)):
        train(out=tmp_path / str(index), task="arithmetic", budget=seconds)
        chosen.append(paced[-1].steps)
        needed = 2 + 0.1 * chosen[-1] + 0.01 * 400 + 10
        assert needed <= 0.9 * seconds
    assert chosen == sorted(set(chosen))
    assert chosen[-1] == 10 * 20_000 // 64  # passes over the training rows
    assert chosen[0] >= 20


def test_a_run_with_a_budget_is_resumed_with_its_steps(paced, tmp_path):
    train(out=tmp_path / "a", task="arithmetic", budget="1m")
    train(out=tmp_path / "a", task="arithmetic", budget="5m", resume=True)
    assert paced[0] == paced[1]
    assert paced[0].steps != 600


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"budget": "10s"}, r"budget='10s' is too short"),
        ({"budget": "1m", "steps": 5}, "steps=5 and budget, which chooses the steps, are both set: leave out one"),
        ({"budget": "5 apples"}, "budget='5 apples' is not a time: expected"),
    ],
)
def test_budgets_that_are_refused(settings, message, paced, tmp_path):
    with pytest.raises(ValueError, match=message):
        train(out=tmp_path / "a", task="arithmetic", **settings)
    assert not paced


def test_a_slow_machine_gets_a_short_run_and_is_told(paced, tmp_path, monkeypatch):
    def announce(config, folder, *, task, on_task, **_):
        paced.append(config)
        on_task(task)
        return {}

    monkeypatch.setattr("numerate.lab.comparison.budgeted.measured", lambda *_: Pace(2.0, 5.0, 0.01))
    monkeypatch.setattr("numerate.lab.training.run.run", announce)
    said = []
    train(out=tmp_path / "a", task="arithmetic", budget="30s", say=said.append)
    assert paced[0].steps == 10
    assert "10 steps are few: expect a weak model. That is longer than the budget" in " ".join(" ".join(said).split())


# How good the model of a table is


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    file = tmp_path_factory.mktemp("table") / "flats.csv"
    rows = [(area, rooms) for area in range(20, 80) for rooms in (1, 2)]
    file.write_text("area,rooms,rent\n" + "".join(f"{area},{rooms},{9 * area + 50 * rooms}\n" for area, rooms in rows))
    return file


def test_the_model_of_a_table_is_shown_by_the_decision_of_predict_beside_a_constant(table, tmp_path):
    folder = tmp_path / "run"
    call = ["train", "--data", str(table), "--target", "rent", "--steps", "4", "--set", "eval_examples=12", "--out", str(folder)]
    done = CliRunner().invoke(app, call)
    assert done.exit_code == 0, done.output
    for name in ("greedy", "median", "constant", "MAE", "R²"):
        assert name in done.output
    records = read_jsonl(folder / "predictions.jsonl")
    golds = np.array([float(record["gold"]) for record in records])
    result = train(data=table, target="rent", steps=4, eval_examples=12, out=folder, resume=True)
    levels = {row["decision"] or row["name"]: row for row in result.levels}
    assert [*levels][:3] == ["greedy", "median", "constant"]
    known = [float(example.answer) for example in make_task(trained_config(folder)).examples("train")]
    counted = {
        "greedy": [record["measures"]["absolute_error"] for record in records],
        "median": [record["decisions"]["median"]["measures"]["absolute_error"] for record in records],
        "constant": np.abs(golds - np.median(known)),
    }
    filled = [(record.get(FALLBACK) or {}).get("absolute_error") for record in records]
    for name, errors in counted.items():
        errors = np.array([other if error is None else error for error, other in zip(errors, filled, strict=True)])
        assert levels[name]["mae"] == pytest.approx(errors.mean())
        assert levels[name]["r2"] == pytest.approx(1 - (errors**2).sum() / ((golds - golds.mean()) ** 2).sum())
    assert (folder / "baselines.json").is_file()
    again = CliRunner().invoke(app, [*call, "--overwrite"])
    assert again.exit_code == 0


def test_answers_of_several_words_have_no_such_table(tmp_path):
    file = tmp_path / "words.csv"
    file.write_text("prompt,answer\n" + "".join(f"{area} m2?,small: then {area}\n" for area in range(20, 60)))
    result = train(data=file, steps=1, out=tmp_path / "run", eval_examples=4, task="regression")
    assert "decisions" not in read_jsonl(tmp_path / "run" / "predictions.jsonl")[0]
    assert {row["decision"] for row in result.levels} <= {"greedy", None}
