"""Predictions for the rows of a table: the questions of the training, files that can be continued, bad rows, figures."""

from __future__ import annotations

import csv
import json
import math
import os
import re
import shutil
import time
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests import apart
from typer.testing import CliRunner

from numerate.cli import app
from numerate.decode import distribution
from numerate.decode.grammar import ANY_NUMBER
from numerate.lab.data.regression import Regression
from numerate.lab.data.row_reader import BadData
from numerate.lab.models.encoding import collate, encode
from numerate.lab.models.loading import PIXELS
from numerate.lab.models.questions import Questions, Table, filled
from numerate.lab.prediction.answering import RULES, Answering, Source, find_source, parse_rule
from numerate.lab.prediction.calibration import CALIBRATION, MOST_HELD_OUT, find_known
from numerate.lab.prediction.predict import OWN_INTERVALS, predict, score
from numerate.lab.prediction.prediction_file import NAMES, Prediction, PredictionFile, added_names
from numerate.lab.prediction.train import train
from numerate.lab.training.config import RunConfig, checked
from numerate.lab.training.run import run

COLUMNS = ("area", "rooms", "city")
ROWS = [{"area": 20 + i, "rooms": i % 4, "city": "XY"[i % 2], "rent": 30 + i % 7} for i in range(30)]
QUICK = {"task": "regression", "keep_model": True, "steps": 30, "batch_size": 16, "eval_examples": 2, "learning_rate": 0.01}


def write_csv(path: Path, rows: list[dict], names: tuple[str, ...] | None = None, delimiter: str = ",") -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, names or tuple(rows[0]), extrasaction="ignore", delimiter=delimiter)
        writer.writeheader()
        writer.writerows(rows)
    return path


def write_jsonl(path: Path, rows: list[dict]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def read(path: Path) -> list[dict]:
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text().splitlines()]
    with path.open(newline="") as file:
        return [*csv.DictReader(file, delimiter="\t" if path.suffix == ".tsv" else ",")]


def trained_on(folder: Path, data: Path, **settings) -> Path:
    run(checked(RunConfig, {**QUICK, "data": str(data), **settings}), folder / "run")
    return folder / "run"


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    """A model of a small table; shared, so tests write elsewhere."""
    folder = tmp_path_factory.mktemp("table")
    return trained_on(folder, write_csv(folder / "flats.csv", ROWS), task_settings={"target": "rent"})


@pytest.fixture
def new(tmp_path) -> Path:
    """New rows without the target, in another order, with another column."""
    rows = [{"id": f"n{i}", **row} for i, row in enumerate(ROWS[:10])]
    return write_csv(tmp_path / "new.csv", rows, ("id", "city", "rooms", "area"))


# The questions are those of the training


def assert_asked_as_in_training(folder: Path, data: Path, rows: list[dict], **settings) -> None:
    """The same texts and the same tokens as the training examples of the same rows."""
    answering = Answering(find_source(str(folder)), "median", lambda found: found.interval(0.9))
    task = Regression.from_files(data, **settings)
    examples = {example.prompt: example for split in task.splits for example in task.examples(split)}
    assert len(examples) == len(rows)
    for row in rows:
        asked = answering.source.questions.ask(row, data.parent)
        example = examples.pop(asked.prompt)
        trained = encode(answering.loaded, [example])[0]
        new = answering._encoded(asked)[0]
        assert new["input_ids"] == trained["input_ids"][: trained["labels"].count(-100)]
        if example.picture is not None:
            assert torch.equal(new[PIXELS], trained[PIXELS])


def test_questions_of_a_table(model):
    shuffled = [
        {"new": 1, "city": row["city"], "split": "test", "rooms": str(row["rooms"]), "area": str(row["area"])} for row in ROWS
    ]
    assert_asked_as_in_training(model, model.parent / "flats.csv", shuffled, target="rent")


def test_questions_with_settings(tmp_path):
    data = tmp_path / "flats.csv"
    data.write_text("area;rooms;note;rent\n" + "".join(f"{i},5;{i % 3};x;{i % 9},50 €\n" for i in range(20)))
    settings = {"target": "rent", "columns": ["rooms", "area"], "decimal": ","}
    folder = trained_on(tmp_path, data, task_settings=settings, steps=1)
    assert find_source(str(folder)).questions.task.decimal == ","
    rows = [{"area": f"{i},5", "rooms": f"{i % 3}"} for i in range(20)]
    assert_asked_as_in_training(folder, data, rows, **settings)


def test_questions_of_json_rows_that_lack_columns(tmp_path):
    rows = [
        {"area": 20.0 + i, "garden": i, "rooms": None, "rent": 40} if i % 2 else {"area": 20.5 + i, "rooms": "", "rent": 50}
        for i in range(20)
    ]
    data = write_jsonl(tmp_path / "flats.jsonl", rows)
    folder = trained_on(tmp_path, data, task_settings={"target": "rent"}, steps=1)
    questions = find_source(str(folder)).questions
    assert questions.task.columns == ("area", "rooms", "garden")
    assert questions.optional == ("garden",)
    prompts = [
        questions.ask(row, tmp_path).prompt for row in ({"rooms": None, "area": 21.0, "garden": 1}, {"rooms": "", "area": 20.5})
    ]
    assert prompts == ["area: 21, rooms: , garden: 1. rent?", "area: 20.5, rooms: . rent?"]
    with pytest.raises(BadData, match="has no column 'rooms'"):
        questions.ask({"area": 1}, tmp_path)


def test_questions_of_a_file_with_prompts_and_images(tmp_path):
    from PIL import Image

    rows = []
    for i in range(10):
        Image.new("RGB", (20, 20), (25 * i, 0, 0)).save(tmp_path / f"{i}.png")
        rows.append({"prompt": f"How red? {i}:", "answer": str(i), "image": f"{i}.png"})
    data = write_jsonl(tmp_path / "red.jsonl", rows)
    folder = trained_on(tmp_path, data, model="tiny-vlm", steps=1, batch_size=2)
    asked = [{"image": row["image"], "prompt": row["prompt"]} for row in rows]
    assert_asked_as_in_training(folder, data, asked)
    asked[1]["image"] = "nowhere.png"
    out = predict(folder, write_jsonl(tmp_path / "new.jsonl", asked[:3]), tmp_path / "out.jsonl", width=1).path
    problems = [row["problem"] for row in read(out)]
    assert problems[::2] == [None, None]
    assert "nowhere.png is missing" in problems[1]


def test_a_model_folder_of_its_own(model, new, tmp_path):
    """The folder with the weights: where it is, or copied to another place."""
    copied = tmp_path / "copied"
    os.system(f"cp -r {model / 'model'} {copied}")
    results = [read(predict(name, new, tmp_path / f"{i}.csv").path) for i, name in enumerate((model, model / "model", copied))]
    assert results[0] == results[1] == results[2]


def test_a_run_that_did_not_keep_its_questions(model, tmp_path):
    old = tmp_path / "old"
    os.system(f"cp -r {model} {old}")
    (old / "model" / "numerate.json").unlink()
    assert find_source(str(old)).questions.task.columns == find_source(str(model)).questions.task.columns == COLUMNS


def test_an_adapter(tmp_path):
    data = write_csv(tmp_path / "flats.csv", ROWS)
    folder = trained_on(tmp_path, data, task_settings={"target": "rent"}, steps=1, adapter="lora")
    assert not predict(folder, data, tmp_path / "out.csv", limit=1, width=1).problems


# Predictions


def test_predictions_come_from_the_model_s_distribution(model, new, tmp_path):
    seen = []
    result = predict(
        model,
        new,
        tmp_path / "out.csv",
        batch_size=4,
        interval=0.5,
        calibrate="none",
        progress=lambda *update: seen.append(update[:3]),
    )
    rows = read(result.path)
    assert [*rows[0]] == ["id", "city", "rooms", "area", *NAMES]
    assert [row["id"] for row in rows] == [f"n{i}" for i in range(10)]
    assert seen == [("predict", done, 10) for done in (0, 4, 8, 10)]
    assert (result.rows, result.new_rows, result.problems, result.figures) == (10, 10, {}, {})
    source = find_source(str(model))
    low, high = map(Fraction, source.questions.answers)  # a tenth of the smallest label, and ten times the largest
    assert (10 * low, high / 10) == (min(labels := [Fraction(row["rent"]) for row in ROWS]), max(labels))
    loaded, grammar = source.load(), replace(ANY_NUMBER, lowest=low, highest=high)
    prompts = [f"area: {row['area']}, rooms: {row['rooms']}, city: {row['city']}. rent?\n" for row in rows]
    for row, found in zip(rows, distribution(loaded.model, prompts, loaded.tokenizer, grammar=grammar), strict=True):
        assert low <= found.values[0] <= found.values[-1] <= high
        assert row["prediction"] == f"{found.median:f}"
        assert (row["low"], row["high"]) == tuple(f"{end:f}" for end in found.interval(0.5))
        assert float(row["covered"]) == pytest.approx(found.covered, abs=2e-6)
        assert float(row["no_number"]) == pytest.approx(found.no_number, abs=2e-6)
        assert row["problem"] == ""
    assert not (tmp_path / "out.csv.part").exists()


@pytest.mark.parametrize("rule", [*RULES, "within:2", "within:5%"])
def test_every_rule(rule, model, new, tmp_path):
    result = predict(model, new, tmp_path / "out.csv", decide=rule, explain=3, limit=3)
    assert not result.problems
    for one in result.explained:
        assert one.distribution is not None
        if rule != "greedy":
            metric, tolerance = parse_rule(rule)
            assert one.prediction.value == one.distribution.decide(metric, **tolerance)
        assert one.prediction.texts["prediction"] == read(result.path)[one.row]["prediction"]


def test_greedy_is_what_generate_writes(model, new, tmp_path):
    answering = Answering(find_source(str(model)), "greedy", lambda found: found.interval(0.9))
    rows = [answering.source.questions.ask(row, tmp_path) for row in ROWS[:4]]
    batch = collate(answering.loaded.encode([(row.prompt, None) for row in rows]), pad=answering.loaded.pad, left=True)
    ids = answering.loaded.model.generate(**batch, do_sample=False, max_new_tokens=8)[:, batch["input_ids"].shape[1] :]
    texts = [text.strip() for text in answering.loaded.tokenizer.batch_decode(ids, skip_special_tokens=True)]
    assert [str(prediction.value) for _, prediction in answering.predict(rows)] == texts


@pytest.mark.parametrize("rule", ["medain", "within", "within:", "within:x", "within:-1", "median:2", ""])
def test_a_wrong_rule_is_found_before_anything_is_read(rule, tmp_path):
    with pytest.raises(ValueError, match=r"decide="):
        predict("nowhere", tmp_path / "nothing.csv", decide=rule)


def test_the_nearest_rule():
    with pytest.raises(ValueError, match="Did you mean 'median'"):
        parse_rule("medain")


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl"])
def test_files_in_and_out(suffix, model, tmp_path):
    values = [{"area": 21, "rooms": 1, "city": 'X, Y\t"Z"\nü', "more": [1, {"a": None}], "low": 0.1}, {**ROWS[1], "low": None}]
    data = write_jsonl(tmp_path / "new.jsonl", values)
    rows = read(predict(model, data, tmp_path / f"out{suffix}").path)
    added = [f"{name}_2" for name in NAMES]  # the table has a column low
    assert [*rows[0]][-6:] == added
    assert rows[0]["city"] == values[0]["city"]
    if suffix == ".jsonl":
        assert rows[0]["more"] == values[0]["more"]
        assert isinstance(rows[0]["prediction_2"], int)
        assert rows[0]["problem_2"] is None
    else:
        assert json.loads(rows[0]["more"]) == values[0]["more"]
        assert (rows[0]["low"], rows[1]["low"], rows[1]["more"]) == ("0.1", "", "")


def test_a_table_with_semicolons_keeps_them(model, tmp_path):
    data = write_csv(tmp_path / "new.csv", ROWS[:2], delimiter=";")
    assert predict(model, data, tmp_path / "out.csv").path.read_text().startswith("area;rooms;city;rent;prediction;")


def test_numbers_are_written_exactly(tmp_path):
    huge = Decimal("1" + "0" * 40 + ".1")
    sure = Prediction(Decimal("0.1") + Decimal("0.2"), Decimal("1E-9"), huge, 1.0, 1e-7)
    for suffix in (".csv", ".jsonl"):
        file = PredictionFile(tmp_path / f"out{suffix}", ["a"])
        file.claim({})
        file.append([{"a": "1"}, {"a": "2"}], [sure, Prediction(problem='no "number"')])
        file.finish({})
        assert [*file.read()] == [(Decimal("0.3"), Decimal("0.000000001"), huge), (None, None, None)]
    assert [*read(tmp_path / "out.csv")[0].values()] == ["1", "0.3", "0.000000001", str(huge), "1", "0", ""]
    assert '"prediction": 0.3, "low": 0.000000001, ' in (tmp_path / "out.jsonl").read_text()


@given(st.lists(st.sampled_from([*NAMES, *(f"{name}_2" for name in NAMES), "area"]), unique=True))
def test_added_names_are_new(columns):
    assert not {*added_names(columns)} & {*columns}


# Interruptions


class Interrupted(Exception):  # noqa: N818
    pass


def interrupt_at(rows: int):
    def stop(stage, done, total, figures):
        if done >= rows:
            raise Interrupted

    return stop


@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
def test_the_same_call_continues(suffix, model, new, tmp_path):
    """A torn line is removed; the bytes are those of a call without an interruption."""
    whole = predict(model, new, tmp_path / f"whole{suffix}", batch_size=3).path.read_bytes()
    out, said, seen = tmp_path / f"out{suffix}", [], []
    with pytest.raises(Interrupted):
        predict(model, new, out, batch_size=3, progress=interrupt_at(6))
    assert not out.exists()
    with (tmp_path / f"out{suffix}.part").open("ab") as file:
        file.write(b'n6,X,"torn')
    result = predict(model, new, out, batch_size=3, say=said.append, explain=2, progress=lambda *update: seen.append(update[1]))
    assert out.read_bytes() == whole
    assert said == ["continuing: 6 of 10 rows are done", OWN_INTERVALS]
    assert seen == [6, 9, 10]
    assert result.new_rows == 4
    assert [one.row for one in result.explained] == [0, 1]  # rows of the first call are explained too
    assert str(result.explained[1].prediction.value) == str(read(out)[1]["prediction"])
    again = predict(model, new, out, batch_size=3, say=said.append, progress=lambda *_: pytest.fail("nothing is left"))
    assert said[-1] == "already finished: 10 of 10 rows are done"
    assert again.new_rows == 0
    assert out.read_bytes() == whole


def test_two_calls_that_write_to_one_file(tmp_path):
    """The one that is ahead stops, rather than to leave a hole; the other one writes all rows."""
    rows, predictions = [{"area": 1}, {"area": 2}], [Prediction(Decimal(7)), Prediction(Decimal(8))]
    first, second = (PredictionFile(tmp_path / "out.csv", ["area"]) for _ in range(2))
    for file in (first, second):
        file.claim({})
    first.append(rows, predictions)
    first.append(rows, predictions)
    second.append(rows, predictions)
    with pytest.raises(ValueError, match=r"was cut to \d+ of \d+ bytes .* is another call predicting to the same file\?"):
        first.append(rows, predictions)
    with pytest.raises(ValueError, match="is another call predicting to the same file"):
        first.finish({})
    second.append(rows, predictions)
    second.finish({})
    assert [row["prediction"] for row in read(tmp_path / "out.csv")] == ["7", "8", "7", "8"]


def call_numerate(arguments):
    app(arguments)


@pytest.mark.launch
def test_continuing_after_a_kill(model, tmp_path):
    data = write_csv(tmp_path / "new.csv", ROWS * 8, COLUMNS)
    out = tmp_path / "out.csv"
    call = ["predict", str(model), "--data", str(data), "--batch-size", "4", "--out", str(out)]
    process = apart.start(call_numerate, call, output=tmp_path / "output.txt")
    while not (tmp_path / "out.csv.json").exists():
        assert process.is_alive()
        time.sleep(0.01)
    process.kill()
    process.join()
    assert not out.exists()
    done = CliRunner().invoke(app, call)
    assert done.exit_code == 0, done.output
    assert "of 240 rows are done" in done.output
    assert out.read_bytes() == predict(model, data, tmp_path / "whole.csv", batch_size=4).path.read_bytes()


def test_a_higher_limit_goes_on(model, new, tmp_path):
    whole = predict(model, new, tmp_path / "whole.csv").path.read_bytes()
    out = tmp_path / "out.csv"
    assert len(read(predict(model, new, out, limit=4).path)) == 4
    assert predict(model, new, out).new_rows == 6
    assert out.read_bytes() == whole
    assert predict(model, new, out, limit=2).new_rows == 0
    assert out.read_bytes() == whole


def test_other_predictions_are_not_touched(model, new, tmp_path):
    out = predict(model, new, tmp_path / "out.csv", limit=2).path
    before = out.read_bytes()
    others = [({"decide": "mean"}, "decide is 'median' there and 'mean' here"), ({"interval": 0.8}, "interval is 0.9 there")]
    for settings, message in others:
        with pytest.raises(ValueError, match=f"out.csv holds predictions with other settings .{message}"):
            predict(model, new, out, **settings)
    new.write_text(new.read_text() + "n11,X,1,40\n")
    with pytest.raises(ValueError, match="other settings .data is"):
        predict(model, new, out)
    assert out.read_bytes() == before
    assert len(read(predict(model, new, out, overwrite=True, limit=3).path)) == 3
    out.write_text(out.read_text() + "edited")
    with pytest.raises(ValueError, match=r"out.csv was changed after it was written .* --overwrite"):
        predict(model, new, out)
    own = write_csv(tmp_path / "own.csv", ROWS[:1])
    with pytest.raises(ValueError, match=r"own.csv exists, and own.csv.json, which records how it was made, does not"):
        predict(model, new, own)
    with pytest.raises(ValueError, match="is the file with the data"):
        predict(model, new, new, overwrite=True)
    with pytest.raises(ValueError, match=r"expected a name that ends in .csv, .tsv, .jsonl"):
        predict(model, new, tmp_path / "out.xlsx")


@pytest.mark.parametrize("record", ['{"settings": [], "rows": 0, "bytes": 0, "problems": {}}', "[]", "{}", "{"])
def test_a_record_that_says_nothing(tmp_path, record):
    (tmp_path / "out.csv.json").write_text(record)
    with pytest.raises(ValueError, match=r"out\.csv\.json cannot be read: name another file with --out"):
        PredictionFile(tmp_path / "out.csv", ["area"]).claim({"data": "x"})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"format": "spaced"}, r"format is \{'kind': 'spaced'.*\} there and None here"),
        ({"encoding": "latin-1"}, "encoding is 'latin-1' there and None here"),
    ],
)
def test_settings_that_are_left_out_are_other_settings(new, tmp_path, settings, message):
    out = predict("tiny", new, tmp_path / "out.csv", target="rent", width=2, limit=2, **settings).path
    with pytest.raises(ValueError, match=f"other settings .{message}"):
        predict("tiny", new, out, target="rent", width=2)
    assert predict("tiny", new, out, target="rent", width=2, limit=3, **settings).new_rows == 1


def test_weights_that_changed(model, new, tmp_path):
    copied = tmp_path / "run"
    os.system(f"cp -rp {model} {copied}")
    predict(copied, new, tmp_path / "out.csv", limit=1)
    os.utime(copied / "model" / "config.json", (1, 1))
    with pytest.raises(ValueError, match="weights is"):
        predict(copied, new, tmp_path / "out.csv")


# Bad rows


def test_a_missing_column_is_found_before_the_model_is_loaded(model, tmp_path, monkeypatch):
    monkeypatch.setattr("numerate.lab.prediction.answering.Source.load", lambda *_: pytest.fail("loaded"))
    data = write_csv(tmp_path / "new.csv", [{"areas": 1, "rooms": 2, "city": "X"}])
    with pytest.raises(BadData, match=r"new.csv: has no column 'area'. Columns here: areas, rooms, city. Did you mean 'areas'"):
        predict(model, data, tmp_path / "out.csv")
    with pytest.raises(ValueError, match=r"target='price' does not belong to model=.*trained to predict 'rent'"):
        predict(model, data, target="price")
    with pytest.raises(ValueError, match=r"prompt='{area}' does not belong"):
        predict(model, data, prompt="{area}")
    (tmp_path / "new.csv").write_text("area,rooms,city\n")
    with pytest.raises(BadData, match=r"has a header \(area, rooms, city\) and no rows"):
        predict(model, data, tmp_path / "out.csv")
    assert not (tmp_path / "out.csv.json").exists()


def test_bad_rows_have_a_reason(tmp_path):
    """One ends within a number, one lacks a column, one is empty; a long text is cut."""
    rows = [{"q": "ends in 12"}, {"q": "1 ="}, {"q": "x" * 1100}, {"p": 1}, {"q": ""}]
    rows = rows[1:2] + rows
    result = predict("tiny", write_jsonl(tmp_path / "bad.jsonl", rows), tmp_path / "bad.csv", prompt="{q}", width=1)
    bad = read(result.path)
    assert [row["prediction"] == "" for row in bad] == [False, True, False, False, True, True]
    assert "ends with '2', within a number" in bad[1]["problem"]
    assert "Long texts are cut in 1 row, such as row 4, to fit into the model's context." in result.notes
    assert "has no column 'q', which the prompt names" in bad[4]["problem"]
    assert bad[5]["problem"] == "the question is empty"
    assert sum(result.problems.values()) == 3


def test_a_prompt_that_is_too_long_has_a_reason(tmp_path):
    rows = [{"prompt": "1 ="}, {"prompt": "x" * 1100}]
    result = predict("tiny", write_jsonl(tmp_path / "long.jsonl", rows), tmp_path / "long.csv", width=1)
    assert [row["prediction"] == "" for row in read(result.path)] == [False, True]
    assert "more tokens than the model takes, 1,024" in read(result.path)[1]["problem"]


def test_a_row_that_fails_does_not_change_the_others(model, tmp_path, monkeypatch):
    rows = [{**row, "city": "X"} for row in ROWS[:9]]
    good = read(predict(model, write_csv(tmp_path / "good.csv", rows), tmp_path / "good_out.csv").path)
    for bad in (2, 7):
        rows[bad]["city"] = "Z"
    letter = find_source(str(model)).load().tokens(["Z"])[0][0]

    def fail(model, inputs, *arguments, **options):
        if (inputs["input_ids"] == letter).any():
            raise ValueError("inputs[3]: NaN")
        return distribution(model, inputs, *arguments, **options)

    monkeypatch.setattr("numerate.decode.model.distribution", fail)
    result = predict(model, write_csv(tmp_path / "bad.csv", rows), tmp_path / "bad_out.csv")
    assert sum(result.problems.values()) == 2
    for index, (row, other) in enumerate(zip(read(result.path), good, strict=True)):
        expected = ("", "", "") if index in (2, 7) else (other["prediction"], other["low"], other["high"])
        assert (row["prediction"], row["low"], row["high"]) == expected


def test_a_model_without_numbers_is_an_error(tmp_path, monkeypatch):
    data = write_csv(tmp_path / "new.csv", [{"q": "1"}, {"q": "2"}])
    with pytest.raises(ValueError, match=r"none of the first 2 rows has a prediction: ends with '1'"):
        predict("tiny", data, tmp_path / "out.csv", prompt="{q}")


def test_rows_that_cannot_be_read(model, tmp_path):
    data = tmp_path / "new.csv"
    data.write_text("area,rooms,city\n30,1,X\n31,2\n32,3,Y\n")
    with pytest.raises(BadData, match="line 3: has 2 values, but the header names 3 columns"):
        predict(model, data, tmp_path / "out.csv")
    result = predict(model, data, tmp_path / "out.csv", skip_bad=True)
    assert [row["area"] for row in read(result.path)] == ["30", "32"]
    assert "Skipped rows that cannot be read: 1; the first: " in result.notes[0]


def test_many_problems_are_counted_together(tmp_path):
    file = PredictionFile(tmp_path / "out.csv", [])
    file.append([{}] * 80, [Prediction(problem=f"p{i}") for i in range(80)])
    assert sum(file.problems.values()) == 80
    assert len(file.problems) == 51


# Other models


def test_a_model_without_training(tmp_path):
    """The columns of the file are shown; a column of the target's name is the truth."""
    data = write_csv(tmp_path / "new.csv", ROWS[:2])
    result = predict("tiny", data, tmp_path / "out.csv", target="rent", width=2, explain=1)
    assert result.explained[0].prompt == "area: 20, rooms: 0, city: X. rent?"
    assert result.figures["rows"] == 2
    with pytest.raises(
        BadData, match=r"has the columns area, rooms, city, rent, but not prompt, and it is not known what to ask"
    ):
        predict("tiny", data, tmp_path / "other.csv")


def test_prompts_in_a_column(tmp_path):
    data = write_jsonl(tmp_path / "new.jsonl", [{"prompt": "1+1=", "answer": "It is 2."}])
    result = predict("tiny", data, tmp_path / "out.csv", width=1, explain=1)
    assert result.explained[0].prompt == "1+1="
    assert result.explained[0].truth == 2


def test_a_prompt_of_your_own_is_used_unchanged():
    source = find_source("tiny", prompt="{a} + {b} =")
    answering = Answering(source, "median", lambda found: found.interval(0.9), width=1)
    row = source.questions.ask({"a": 1.0, "b": "2"}, Path())
    assert answering.loaded.tokenizer.decode(answering._encoded(row)[0]["input_ids"]) == "1 + 2 ="
    answering.loaded.chat = True
    answering.loaded.tokenizer.chat_template = "<{{ messages[0].content }}>"
    assert answering.loaded.tokenizer.decode(answering._encoded(row)[0]["input_ids"]) == "<1 + 2 =>"


@given(st.text(), st.text())
def test_braces_in_templates(text, value):
    escaped = text.replace("{", "{{").replace("}", "}}")
    assert filled(f"{escaped}{{a b}}", {"a b": value}) == text + value.strip()


@pytest.mark.parametrize("template", ["{", "}", "{a", "a}", "{}", "{b}"])
def test_wrong_templates(template):
    with pytest.raises(BadData):
        filled(template, {"a": 1})


def test_what_is_no_model(tmp_path):
    with pytest.raises(ValueError, match="holds no trained model"):
        find_source(str(tmp_path))
    (tmp_path / "model").mkdir()
    (tmp_path / "config.json").write_text(json.dumps({"task": "clock"}))
    with pytest.raises(ValueError, match="task='clock', whose answers are not one number"):
        find_source(str(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps({"task": "arithmetic"}))
    assert find_source(str(tmp_path)).questions == Questions(Regression())
    (tmp_path / "model" / "numerate.json").write_text("{}")
    with pytest.raises(ValueError, match="does not say how the model was asked"):
        find_source(str(tmp_path))


def test_pictures_for_a_model_that_does_not_see(model, tmp_path):
    """A column that the training did not have is ignored; another model would have to see."""
    from PIL import Image

    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    data = write_csv(tmp_path / "new.csv", [{**ROWS[0], "image": "a.png"}])
    assert not predict(model, data, tmp_path / "out.csv").problems
    with pytest.raises(ValueError, match="model='tiny' does not accept pictures"):
        predict("tiny", data, tmp_path / "other.csv", target="rent")


# Known answers


def test_known_answers_are_compared(model, tmp_path):
    rows = [{**row, "rent": rent} for row, rent in zip(ROWS, ["31,50 €", "", "n/a", "1.032,00 €", "cheap"], strict=False)]
    data = write_csv(tmp_path / "new.csv", rows)
    result = predict(model, data, tmp_path / "out.csv", explain=5)
    assert [one.truth for one in result.explained] == [Fraction(63, 2), None, None, 1032, None]
    first, last = (read(result.path)[i] for i in (0, 3))
    errors = [abs(float(first["prediction"]) - 31.5), abs(float(last["prediction"]) - 1032)]
    assert result.figures["mae"] == pytest.approx(sum(errors) / 2)
    assert result.figures["rmse"] == pytest.approx(math.hypot(*errors) / math.sqrt(2))
    assert (result.figures["rows"], result.figures["missing"]) == (2, 0)
    assert json.loads((tmp_path / "out.csv.json").read_text())["figures"] == pytest.approx(dict(result.figures))


def test_answers_that_cannot_be_compared(model, tmp_path):
    rows = [{**row, "rent": rent} for row, rent in zip(ROWS, ["31,50", "31.50"], strict=False)]
    result = predict(model, write_csv(tmp_path / "new.csv", rows), tmp_path / "out.csv")
    assert result.figures == {}
    assert "mixes decimal marks" in result.notes[0]


def test_a_warning_for_the_rows_of_the_training(model, tmp_path):
    result = predict(model, model.parent / "flats.csv", tmp_path / "out.csv", limit=2)
    assert "that the model was trained on" in result.notes[0]


def test_figures():
    d = [Decimal(n) for n in range(100)]
    truths = [Fraction(10), None, Fraction(20), Fraction(30), Fraction(40)]
    ends = [(d[11], d[10], d[12]), (d[1], d[1], d[1]), (d[18], d[21], d[30]), (None, d[29], d[31]), (None, None, None)]
    figures = score(truths, ends)
    assert figures["mae"] == 1.5
    assert figures["rmse"] == pytest.approx(math.sqrt(2.5))
    assert figures["median_relative_error"] == pytest.approx(0.1)
    assert figures["r2"] == pytest.approx(1 - 5 / 50)
    assert figures["coverage"] == 0.5  # 10 and 30 of 10, 20, 30, 40: no interval is a miss
    assert (figures["rows"], figures["missing"]) == (4, 2)
    assert "mae" not in score([Fraction(1)], [(None, None, None)])
    assert "r2" not in score([Fraction(1)], [(d[1], d[1], d[1])])
    assert score([None], [(d[1], d[1], d[1])]) == {}


@pytest.mark.parametrize("power", [-300, -100, 100, 300])
def test_figures_of_numbers_whose_squares_are_beyond_floats(power):
    truths, answers = ([Decimal(n).scaleb(power) for n in numbers] for numbers in ((10, 20, 30, 40), (11, 18, 30, 40)))
    figures = score([Fraction(truth) for truth in truths], [(answer, answer, answer) for answer in answers])
    assert figures["rmse"] == pytest.approx(math.sqrt(1.25) * float(f"1e{power}"), abs=0)
    assert figures["r2"] == pytest.approx(1 - 5 / 500)


# Calibration


@pytest.fixture
def fitted(monkeypatch) -> dict:
    """What conformal calibration is given and returns."""
    from numerate.calibration import conformal

    seen = {}

    def keep(distributions, truths, level, *, lowest):
        fit = conformal(distributions, truths, level, lowest=lowest)
        seen.update(distributions=distributions, truths=truths, level=level, lowest=lowest, fit=fit)
        return seen["fit"]

    monkeypatch.setattr("numerate.calibration.conformal", keep)
    return seen


def test_calibration_by_a_file(model, new, tmp_path, fitted):
    known = write_csv(
        tmp_path / "known.csv", [{**row, "rent": 900 + i} for i, row in enumerate(ROWS[:9])] + [{**ROWS[5], "rent": ""}]
    )
    said = []
    result = predict(model, new, tmp_path / "out.csv", calibrate=known, interval=0.8, batch_size=2, explain=2, say=said.append)
    assert said == [f"intervals are calibrated on 9 rows of {known}"]
    assert fitted["truths"] == [900 + i for i in range(9)]
    assert (fitted["level"], fitted["lowest"]) == (0.8, 0)
    assert all(float(row["high"]) > 900 for row in read(result.path))  # as far off as the known rows
    for one in result.explained:
        assert (one.prediction.low, one.prediction.high) == fitted["fit"].interval(one.distribution)
    answering = Answering(find_source(str(model)), "median", lambda found: found.interval(0.9))
    asked = [answering.source.questions.ask(row, tmp_path) for row in ROWS[:9]]
    assert [one.median for one in fitted["distributions"]] == [one.median for one in answering.search(asked)]
    write_csv(known, [{**row, "rent": i - 4} for i, row in enumerate(ROWS[:9])])
    predict(model, new, tmp_path / "negative.csv", calibrate=known, interval=0.8, limit=1)
    assert fitted["lowest"] is None
    with pytest.raises(ValueError, match="calibrate is"):
        predict(model, new, tmp_path / "out.csv", interval=0.8, calibrate="none")
    unknown = write_csv(tmp_path / "unknown.csv", ROWS, COLUMNS)
    with pytest.raises(ValueError, match="has no row with a known 'rent'"):
        predict(model, new, tmp_path / "other.csv", calibrate=unknown)


@pytest.mark.parametrize("own", ["utf-8", "cp1250"])
def test_known_rows_that_are_not_utf8_have_the_encoding_of_the_rows_to_predict(model, tmp_path, own):
    known = tmp_path / "known.csv"
    known.write_text("area,rooms,city,rent\n50,2,Łódź,900\n", encoding=own)
    found = find_known(find_source(str(model)), str(known), 0.8, encoding="cp1250")
    assert "Łódź" in found.rows[0].prompt


@pytest.mark.parametrize("calibrate", ["auto", "held-out"])
def test_calibration_by_the_rows_kept_for_the_test(calibrate, model, new, tmp_path, fitted):
    said = []
    predict(model, new, tmp_path / "out.csv", calibrate=calibrate, limit=1, interval=0.6, say=said.append)
    task = Regression.from_files(model.parent / "flats.csv", target="rent")
    assert sorted(fitted["truths"]) == sorted(Fraction(row.answer) for row in task.rows["interpolate"])
    assert "test rows of the training table" in said[0]


def test_calibration_without_rows(model, new, tmp_path, monkeypatch):
    """What is asked for is an error; by default the intervals are the model's own, and that is said."""
    for settings, message in [
        ({"interval": 0.95}, "rows, and interval=0.95 needs 19"),
        ({"model": "tiny", "target": "rent"}, "calibrate='held-out' needs the run of a table"),
    ]:
        name, said = settings.pop("model", model), []
        with pytest.raises(ValueError, match=message):
            predict(name, new, tmp_path / "out.csv", calibrate="held-out", limit=1, width=1, **settings)
        predict(name, new, tmp_path / f"{len(message)}.csv", limit=1, width=1, say=said.append, **settings)
        assert said == [OWN_INTERVALS]
    (model.parent / "flats.csv").rename(model.parent / "away.csv")
    with pytest.raises(ValueError, match="needs the table of the training, and .*flats.csv is not here"):
        predict(model, new, tmp_path / "out.csv", calibrate="held-out")
    (model.parent / "away.csv").rename(model.parent / "flats.csv")


def test_few_of_many_rows_are_enough_to_calibrate(tmp_path):
    from numerate.lab.prediction.calibration import _held_out_rows

    data = write_csv(tmp_path / "many.csv", [{"a": i, "b": i} for i in range(3000)])
    config = checked(RunConfig, {"task": "regression", "data": str(data), "task_settings": {"target": "b"}})
    known = _held_out_rows(Source("many", Questions(Regression(target="b")), config), 0.9)
    assert len(known.rows) == len(known.truths) == MOST_HELD_OUT
    assert [row.answer for row in known.rows] == [str(truth) for truth in known.truths]
    assert max(known.truths) > 2000  # from the whole table


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """A run as `numerate train` leaves it, on a table with enough test rows."""
    folder = tmp_path_factory.mktemp("calibrated")
    data = write_csv(folder / "flats.csv", [{"area": 20 + i, "rooms": i % 4, "rent": 30 + i % 7} for i in range(100)])
    settings = {name: value for name, value in QUICK.items() if name != "task"}
    return train(data=str(data), target="rent", out=folder / "run", **settings).folder


def test_a_moved_model_keeps_its_calibration(trained, tmp_path):
    """Without the table: the intervals are those that the test rows give where the table is at hand."""
    new = write_csv(tmp_path / "new.csv", [{"area": 20 + i, "rooms": 1} for i in range(5)])
    moved = shutil.copytree(trained / "model", tmp_path / "elsewhere" / "moved")
    at_hand = Path(shutil.copytree(trained, tmp_path / "run"))
    (at_hand / "model" / CALIBRATION).unlink()
    said: list[str] = []
    for level in (0.5, 0.9):
        kept = predict(moved, new, tmp_path / f"a{level}.csv", interval=level, say=said.append)
        fresh = predict(at_hand, new, tmp_path / f"b{level}.csv", interval=level, say=said.append)
        assert read(kept.path) == read(fresh.path)
    own = predict(moved, new, tmp_path / "c.csv", interval=0.5, calibrate="none")
    assert read(own.path) != read(tmp_path / "a0.5.csv")
    assert len({*said}) == 1
    assert re.fullmatch(r"intervals are calibrated on \d\d test rows of the training table", said[0])
    held_out = predict(moved, new, tmp_path / "held.csv", calibrate="held-out")
    assert read(held_out.path) == read(tmp_path / "a0.9.csv")


def test_what_is_kept_of_a_calibration(trained):
    """Little, and no row of the table."""
    kept = trained / "model" / CALIBRATION
    assert kept.stat().st_size < 20_000
    assert {*json.loads(kept.read_text())} == {
        *("target", "table", "width", "level", "lowest", "highest", "inner", "outer", "halves")
    }


def test_a_kept_calibration_of_something_else_is_not_used(trained, tmp_path):
    moved = Path(shutil.copytree(trained / "model", tmp_path / "moved"))
    new = write_csv(tmp_path / "new.csv", [{"area": 20, "rooms": 1}])
    for number, settings in enumerate(({"width": 2}, {"interval": 0.99})):
        said: list[str] = []
        predict(moved, new, tmp_path / f"{number}.csv", say=said.append, **settings)
        assert said == [OWN_INTERVALS]
    (moved / CALIBRATION).write_text('{"level": 0.9}')
    with pytest.raises(ValueError, match=r"calibration.json does not say how intervals were calibrated"):
        predict(moved, new, tmp_path / "out.csv")
    assert predict(moved, new, tmp_path / "out.csv", calibrate="none").rows == 1


# Memory


def test_rows_are_read_in_batches(tmp_path):
    data = write_csv(tmp_path / "new.csv", [{"a": i} for i in range(1000)])
    table = Table.scan(data, Questions(Regression(target="b")))
    assert table.rows == 1000
    batches = [(first, [row["a"] for row in rows]) for first, rows in table.batches(990, 1000, 4)]
    assert batches == [(990, ["990", "991", "992", "993"]), (994, ["994", "995", "996", "997"]), (998, ["998", "999"])]


@pytest.mark.parametrize(("finished", "message"), [(False, "is not finished.*--resume"), (True, "holds no trained model")])
def test_a_run_without_weights_is_no_model(finished, message, tmp_path):
    (tmp_path / "config.json").write_text(RunConfig().model_dump_json())
    for name in ("environment.json", "result.json")[: 1 + finished]:
        (tmp_path / name).write_text("{}")
    with pytest.raises(ValueError, match=message):
        find_source(str(tmp_path))
