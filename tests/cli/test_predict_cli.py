"""``numerate predict``: what it prints, and how it ends."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from typer.testing import CliRunner

from numerate.cli import app
from numerate.lab.training.config import RunConfig, checked
from numerate.lab.training.run import run as train

ROWS = [f"{20 + i},{i % 4},{30 + i % 7}" for i in range(30)]
QUICK = {"task": "regression", "keep_model": True, "steps": 30, "batch_size": 16, "eval_examples": 2, "learning_rate": 0.01}


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("table")
    (folder / "flats.csv").write_text("\n".join(["area,rooms,rent", *ROWS]))
    settings = {"data": str(folder / "flats.csv"), "task_settings": {"target": "rent"}}
    train(checked(RunConfig, {**QUICK, **settings}), folder / "run")
    return folder / "run"


@pytest.fixture
def run(model, monkeypatch, tmp_path):
    """Call ``numerate predict`` for a file of these lines, in a terminal of 80 columns."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")

    def call(lines: list[str], *arguments: object):
        Path("new.csv").write_text("\n".join(lines))
        return CliRunner().invoke(app, ["predict", str(model), "--data", "new.csv", *map(str, arguments)])

    return call


def test_predictions_without_the_target(run):
    done = run(["rooms,id,area", "1,a,25", "2,b,40"])
    assert done.exit_code == 0, done.output
    assert "predict: 2 of 2 in " in done.output
    assert "2 rows in " in done.output
    assert "predictions in predictions.csv" in done.output
    with Path("predictions.csv").open(newline="") as file:
        rows = [*csv.DictReader(file)]
    assert [row["id"] for row in rows] == ["a", "b"]
    assert all(float(row["low"]) <= float(row["prediction"]) <= float(row["high"]) for row in rows)


def test_explained_rows_fit_a_terminal(run):
    done = run(
        ["rooms,area,rent,note", "1,25,33,x", "2,40,1234.5,y", "3,41,,z"], "--explain", 2, "--decide", "mean", "--interval", 0.8
    )
    assert done.exit_code == 0, done.output
    lines = done.output.splitlines()
    assert max(map(len, lines)) <= 80
    assert [line for line in lines if line.startswith("row ")] == ["row 1", "row 2"]
    assert "  area: 25, rooms: 1. rent?" in lines
    decided = [line for line in lines if line.startswith("  prediction ")]
    assert len(decided) == 2
    assert "(mean), 80 % in " in decided[0]
    assert decided[0].endswith(", truth 33")
    assert decided[1].endswith(", truth 1234.5")
    assert any("█" in line and " %  " in line for line in lines)
    assert not any(line.endswith(" ") for line in lines if line.startswith("  "))


def test_what_intervals_are_calibrated_on(run):
    lines = ["area,rooms", "25,1"]
    assert "intervals are the model's own" in run(lines).output
    assert "test rows of the training table" in run(lines, "--out", "a.csv", "--interval", 0.5).output
    assert "intervals are the model's own" in run(lines, "--out", "b.csv", "--interval", 0.5, "--calibrate", "none").output
    Path("known.csv").write_text("\n".join(["area,rooms,rent", *ROWS]))
    assert "intervals are calibrated on 30 rows of known.csv" in run(lines, "--out", "c.csv", "--calibrate", "known.csv").output


def test_continuing_and_refusing(run):
    lines = ["area,rooms", "25,1", "26,2", "27,3"]
    assert run(lines, "--limit", 2).exit_code == 0
    assert "continuing: 2 of 3 rows are done" in run(lines).output
    again = run(lines)
    assert again.exit_code == 0
    assert "already finished: 3 of 3 rows are done" in again.output
    other = run(lines, "--decide", "mode")
    assert other.exit_code == 1
    assert "decide is 'median' there and 'mode' here" in other.stderr
    assert other.stdout == ""
    assert run(lines, "--decide", "mode", "--overwrite").exit_code == 0


def test_ctrl_c_reports_progress(run, monkeypatch):
    from numerate.lab.prediction.prediction_file import PredictionFile

    append = PredictionFile.append

    def interrupted(self, rows, predictions):
        if self.rows:
            raise KeyboardInterrupt
        append(self, rows, predictions)

    monkeypatch.setattr(PredictionFile, "append", interrupted)
    lines = ["area,rooms", "25,1", "26,2", "27,3"]
    done = run(lines, "--batch-size", 1)
    assert done.exit_code in (1, 130)
    assert "stopped after 1 of 3 rows; rerun the command to continue" in done.output


def test_problems_are_counted(run, monkeypatch):
    monkeypatch.setattr("numerate.lab.prediction.answering.ANSWER_TOKENS", 980)
    long = "1" * 30
    done = run(["area,rooms", "25,1", f"26,{long}", f"27,{long}"], "--explain", 3)
    assert done.exit_code == 0, done.output
    assert "2 rows without a prediction: the question has more tokens than the model takes" in done.output
    monkeypatch.setattr("numerate.lab.prediction.answering.ANSWER_TOKENS", 1020)
    none = run(["area,rooms", "25,1"], "--out", "none.csv")
    assert none.exit_code == 1
    assert "no row has a prediction" in none.stderr
