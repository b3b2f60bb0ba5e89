"""Data of every format through every command that reads it: preview, training, prediction, comparison; and model cards."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
from pathlib import Path

import pytest
from tests.lab.data.formats import CHATS, NESTED, WRITERS
from typer.testing import CliRunner

from numerate.cli import app
from numerate.lab.comparison.compare import compare
from numerate.lab.comparison.plan import comparison_settings
from numerate.lab.data import Regression
from numerate.lab.data.readers import default_task
from numerate.lab.prediction.predict import predict
from numerate.lab.prediction.train import train
from numerate.lab.training.config import SOFT, RunConfig, checked
from numerate.lab.training.model_card import model_card

pandas = pytest.importorskip("pandas")
FLATS = [{"id": i, "area": 20 + i, "city": "XY"[i % 2], "rent": 30 + i % 7} for i in range(30)]
QUICK = {"steps": 1, "batch_size": 4, "eval_examples": 2, "train_examples": 8}
SET = [text for name, value in QUICK.items() if name != "steps" for text in ("--set", f"{name}={value}")]


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Call a command in an empty folder; return what it printed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    def call(*arguments: object, fails: bool = False) -> str:
        done = CliRunner().invoke(app, [str(one) for one in arguments])
        assert (done.exit_code != 0) is fails, done.output
        return done.output

    return call


def predictions(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return [*csv.DictReader(file)]


# Every format, every command


@pytest.mark.parametrize("name", WRITERS)
def test_a_table(name, run):
    WRITERS[name](Path(name), FLATS)
    shown = run("task", "regression", "--data", name, "--target", "rent")
    assert re.search(r"area: \d+, city: [XY]\. rent\?", shown)
    assert "Not shown: rent (what is asked), id (another value in every row, by its name an index)." in shown
    told = run("train", "--data", name, "--target", "rent", "--steps", 1, *SET, "--out", "r")
    assert " for training, 2 for the test" in told
    assert "predict new rows with: numerate predict r --data new.csv" in told
    assert json.loads(Path("r/model/numerate.json").read_text())["columns"] == ["area", "city"]
    shutil.move("r/model", "moved")
    WRITERS[name](Path(f"new-{name}"), [{"city": "X", "area": 99}, {"city": "Y", "area": 98}])
    Path(name).unlink()
    run("predict", "moved", "--data", f"new-{name}", "--width", 1, "--out", "out.csv")
    assert [(row["area"], row["problem"]) for row in predictions(Path("out.csv"))] == [("99", ""), ("98", "")]


@pytest.mark.parametrize("chat", CHATS)
def test_chats(chat, run):
    """Without a task or a target: the file tells."""
    name = NESTED[[*CHATS].index(chat) % len(NESTED)]
    WRITERS[name](Path(name), [CHATS[chat](f"{i} + 1?", str(i + 1)) for i in range(30)])
    assert " + 1? " in run("task", "regression", "--data", name)
    run("train", "--data", name, "--steps", 1, *SET, "--out", "r")
    assert json.loads(Path("r/config.json").read_text())["task"] == "regression"
    told = run("predict", "r", "--data", name, "--width", 1, "--limit", 2, "--calibrate", "none", "--out", "out.csv")
    assert "2 rows with a known answer" in told
    assert all(not row["problem"] for row in predictions(Path("out.csv")))
    WRITERS["t.json"](Path("new.json"), [{"messages": [{"role": "user", "content": "7 + 1?"}]}, {"prompt": "8 + 1?"}])
    told = run("predict", "r", "--data", "new.json", "--width", 1, "--explain", 2)  # which have no answer
    assert "7 + 1?" in told
    assert "8 + 1?" in told


def test_chats_with_worked_answers_train_as_word_problems(run):
    WRITERS["t.jsonl"](Path("t.jsonl"), [CHATS["messages"](f"{i} + 1?", f"{i} + 1 = {i + 1}\n#### {i + 1}") for i in range(30)])
    run("train", "--data", "t.jsonl", "--steps", 1, *SET, "--out", "r")
    assert json.loads(Path("r/config.json").read_text())["task"] == default_task("t.jsonl") == "word_problems"
    assert "```python" not in Path("r/model/README.md").read_text()  # whose answers are not one number


def test_columns_on_the_command_line(run, monkeypatch):
    asked: list[dict] = []
    WRITERS["t.csv"](Path("t.csv"), FLATS)
    with monkeypatch.context() as patched:
        patched.setattr("numerate.lab.comparison.compare.compare", lambda *_, **settings: asked.append(settings) or 1 / 0)
        run("compare", "--data", "t.csv", "--target", "rent", "--without", "city", "--set", "wording=bare", fails=True)
    assert asked[0]["target"] == "rent"
    assert asked[0]["task_settings"] == {"without": ("city",), "wording": "bare"}
    run("train", "--data", "t.csv", "--target", "rent", "--columns", "city, area", "--steps", 1, *SET, "--out", "r")
    assert json.loads(Path("r/model/numerate.json").read_text())["columns"] == ["city", "area"]
    for command in (("train",), ("compare",), ("task", "regression")):
        for option in ("--columns", "--without"):
            told = run(*command, "--data", "t.csv", "--target", "rent", option, "aera", fails=True)
            assert "has no column 'aera'" in told
            assert "Did you mean 'area'?" in told


# Rows from Python


def test_a_frame(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    frame = pandas.DataFrame(FLATS)
    trained = train(data=frame, target="rent", without=["city"], out="r", **QUICK)
    assert trained.new
    assert "relative_error" in trained.figures["interpolate"]
    data = Path(json.loads(Path("r/config.json").read_text())["data"])
    assert data.parent == Path("r")
    assert len(data.read_text().splitlines()) == 30
    assert not train(data=frame, target="rent", without=["city"], out="r", resume=True, **QUICK).new
    with pytest.raises(ValueError, match="with other settings .data is "):
        train(data=frame.assign(rent=1 + frame["rent"]), target="rent", without=["city"], out="r", resume=True, **QUICK)
    result = predict(trained.folder, frame.head(3).drop(columns="rent"), "p/out.csv", width=1)
    assert [row["area"] for row in predictions(result.path)] == ["20", "21", "22"]
    assert {file.suffix for file in Path("p").iterdir()} == {".csv", ".json", ".jsonl"}


def test_a_comparison_of_a_frame_continues(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    frame = pandas.DataFrame(FLATS)
    settings = {"losses": ["ce"], "seeds": 1, "model": "tiny", "processes": 1, "progress": False, **QUICK}
    first = compare(data=frame, target="rent", **settings)
    data = [json.loads(file.read_text())["data"] for file in first.path.parent.rglob("config.json")]
    assert [Path(own).is_file() for own in data] == [True]
    written = {file: file.stat().st_mtime_ns for file in first.path.parent.rglob("result.json")}
    again = compare(data=frame, target="rent", **settings)
    assert again.path == first.path
    assert {file: file.stat().st_mtime_ns for file in again.path.parent.rglob("result.json")} == written
    assert len(written) == 1


# Model cards


def card_of(folder: Path) -> tuple[str, object]:
    from huggingface_hub import ModelCard

    text = (folder / "README.md").read_text(encoding="utf-8")
    return text, ModelCard(text, ignore_metadata_errors=False).data


def snippet(text: str) -> str:
    (code,) = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return code


@pytest.mark.parametrize("adapter", ["none", "lora"])
def test_the_card_of_a_table(adapter, tmp_path, monkeypatch, capsys):
    """Its code runs as it stands, where the folder was moved and the data are gone."""
    monkeypatch.chdir(tmp_path)
    WRITERS["t.csv"](Path("my flats.csv"), [{**row, 'Größe, "m²"': i % 3} for i, row in enumerate(FLATS)])
    trained = train(data="my flats.csv", target="rent", loss="emd", decide=["median"], adapter=adapter, out="r", **QUICK)
    shutil.move(trained.model, "elsewhere")
    shutil.rmtree("r")
    Path("my flats.csv").unlink()
    text, data = card_of(Path("elsewhere"))
    assert data.tags == ["numerate", "regression", "emd"]
    assert {result.metric_type for result in data.eval_results} <= {"relative_error", "exact", "parsed", "absolute_error"}
    assert {result.dataset_name for result in data.eval_results} == {"my flats.csv"}
    assert "cross-entropy + 0.3 x `emd`" in text
    assert '`rent` is predicted from `area`, `city`, `Größe, "m²"`. The rows are those of my flats.csv.' in text
    assert "Columns that are not shown: `id` (another value in every row, by its name an index)." in text
    assert "| relative_error (median) |" in text
    assert "decided from its distribution over numbers: median" in text
    assert str(tmp_path) not in text
    os.chdir("elsewhere")
    space: dict[str, object] = {}
    exec(snippet(text), space)
    assert space["result"].rows == 1
    assert not space["result"].problems
    (question,) = re.findall(r"^```text\n(.*?)\n```", text, re.MULTILINE | re.DOTALL)
    assert space["result"].explained[0].prompt == question
    assert "prediction,low,high" in capsys.readouterr().out
    exec(snippet(text), space)  # files beside the weights do not change them


@pytest.mark.parametrize("task", ["arithmetic", "clock"])
def test_the_card_of_a_generated_task(task, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    trained = train(task=task, model="tiny-vlm" if task == "clock" else "tiny", out="r", **QUICK)
    text, data = card_of(trained.model)
    assert f"generated by the task `{task}`" in text
    assert data.base_model is None  # which is not on the Hub
    if task == "clock":
        assert "```python" not in text
        assert data.pipeline_tag == "image-text-to-text"
        return
    shutil.move(trained.model, "elsewhere")
    os.chdir("elsewhere")
    space: dict[str, object] = {}
    exec(snippet(text), space)
    assert space["result"].rows == 1


def test_a_model_in_the_working_folder(tmp_path, monkeypatch):
    """A dot is the folder of the weights, in the run or on its own."""
    monkeypatch.chdir(tmp_path)
    WRITERS["t.csv"](Path("t.csv"), FLATS)
    trained = train(data="t.csv", target="rent", out="r", **QUICK)
    inside = predict(trained.model, FLATS[:2], "a/out.csv", width=2, calibrate="none")
    monkeypatch.chdir(trained.model)
    dot = predict(".", FLATS[:2], "b/out.csv", width=2, calibrate="none")
    assert predictions(dot.path) == predictions(tmp_path / inside.path)


def short_card(folder: Path, **settings: object) -> tuple[str, object]:
    """The card of a run with these settings, of which one figure is no number."""
    used = checked(RunConfig, {"task": "regression", **settings}).used
    measures = {"relative_error": None, "exact": 0.25}
    records = [{"split": "interpolate", "prompt": "1, 2, ...?", "gold": "3", "measures": measures}]
    (folder / "README.md").write_text(model_card(used, records, Regression()), encoding="utf-8")
    return card_of(folder)


@pytest.mark.parametrize(
    ("model", "base"),
    [
        ("smollm2", "HuggingFaceTB/SmolLM2-135M-Instruct"),
        ("someone/some-model", "someone/some-model"),
        ("a/b/c", None),
        ("tiny", None),
    ],
)
def test_the_base_model_is_a_name_of_the_hub(model, base, tmp_path):
    """And a figure that is no number is not in the metadata."""
    text, data = short_card(tmp_path, model=model, loss="emd")
    assert data.base_model == base
    assert [(result.metric_type, result.metric_value) for result in data.eval_results] == [("exact", 0.25)]
    assert "| relative_error (median) | no number |" in text


@pytest.mark.parametrize(
    ("loss", "more"), [("ce", {}), ("emd", {}), *((soft, {}) for soft in SOFT), ("emd", {"soft": {"relative": 0.1}})]
)
def test_the_card_names_the_loss_as_the_command_line_does(loss, more, tmp_path):
    text, data = short_card(tmp_path, loss=loss, **more)
    assert data.tags == ["numerate", "regression", loss, *more]
    assert f"- loss: `{loss}`\n" in text
    assert ("on soft labels" in text) == (loss in SOFT or bool(more))


def test_bars_of_transformers_are_not_shown_among_ours(run, capfd):
    """Neither while weights and checkpoints are written nor while they are read; other code keeps its bars."""
    from transformers.utils import logging

    WRITERS["t.csv"](Path("t.csv"), FLATS)
    quick = ("--data", "t.csv", "--target", "rent", *SET, "--set", "save_every=1", "--out", "r")
    logging.enable_progress_bar()
    shown = [run("train", "--steps", 1, *quick), run("eval", "r"), capfd.readouterr().err]
    for text in shown:
        assert "it/s" not in text
        assert "shards" not in text
        assert "weights" not in text
    assert logging.is_progress_bar_enabled()


@pytest.mark.parametrize(("answer", "task"), [("{}", "regression"), ("so\n#### {}", "word_problems")])
def test_the_task_of_a_comparison_is_that_of_the_file(answer, task, tmp_path):
    WRITERS["t.json"](tmp_path / "t.json", [CHATS["completion"](f"{i} + 1?", answer.format(i + 1)) for i in range(30)])
    assert comparison_settings(None, None, tmp_path / "t.json")["tasks"] == [task]
    assert comparison_settings(None, None, tmp_path / "t.json", "answer")["tasks"] == ["regression"]
    assert comparison_settings(None, None, tmp_path / "t.json", settings={"tasks": ["clock"]})["tasks"] == ["clock"]
