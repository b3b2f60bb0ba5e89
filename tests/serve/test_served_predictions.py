"""``predict(url=...)`` of ``numerate serve``: the file that predict writes where the model is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.serve.serving import QUICK, Ready, listened, train

from numerate.lab.prediction.predict import predict
from numerate.lab.training.config import RunConfig, checked
from numerate.lab.training.run import run
from numerate.serve.models import local_model
from numerate.serve.server import Limits, NumberApi

ROWS = [{"area": 20 + i % 61, "rooms": i % 5, "rent": 30 + i % 7} for i in range(24)]


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(f"{json.dumps(row)}\n" for row in ROWS))
    return file


def written(path: Path) -> list[dict[str, Any]]:
    """The rows of a file; shares are rounded otherwise in other batches."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [
        {
            name: pytest.approx(value, abs=2e-6) if name in ("covered", "no_number", "disagreement") else value
            for name, value in line.items()
        }
        for line in lines
    ]


def test_the_file_is_that_of_the_model_itself(table_run, rows, tmp_path):
    """Intervals are calibrated as at the server, at any level and for any rule; the first rows are explained."""
    said: list[str] = []
    with listened(NumberApi(local_model(table_run, decide="mean", interval=0.5), Limits())) as url:
        for number, how in enumerate(({}, {"decide": "mode", "interval": 0.8}, {"calibrate": "none"}, {"calibrate": rows})):
            here = predict(table_run, rows, tmp_path / f"here{number}.jsonl", batch_size=7, explain=2, say=said.append, **how)
            there = predict(
                "run", rows, tmp_path / f"there{number}.jsonl", batch_size=7, explain=2, url=url, say=said.append, **how
            )
            assert written(there.path) == written(here.path)
            assert there.figures == pytest.approx(here.figures)
            assert [one.prompt for one in there.explained] == [one.prompt for one in here.explained]
            assert there.explained[1].distribution.values == here.explained[1].distribution.values
            assert there.explained[1].distribution.covered == pytest.approx(here.explained[1].distribution.covered)
    assert said[:2] == [
        "intervals are calibrated on 25 test rows of the training table",
        "intervals are calibrated on 25 rows at the server",
    ]


def test_members(rows, tmp_path):
    pool = train(tmp_path, members=2, decide=("median",), steps=10)
    here = predict(pool, rows, tmp_path / "here.jsonl", calibrate=rows)
    with listened(NumberApi(local_model(pool, calibrate=rows), Limits())) as url:
        there = predict("run", rows, tmp_path / "there.jsonl", url=url)
    assert written(there.path) == written(here.path)
    assert {"disagreement", "unusual"} <= written(there.path)[0].keys()
    assert there.unusual == here.unusual


def test_long_texts_are_cut_as_in_the_training(tmp_path):
    texts = [{"area": 20 + i % 50, "text": "river house " * (1 + i % 5), "rent": 30 + i % 7} for i in range(60)]
    data, long = tmp_path / "flats.jsonl", tmp_path / "long.jsonl"
    data.write_text("".join(f"{json.dumps(row)}\n" for row in texts))
    long.write_text("".join(f"{json.dumps({'area': area, 'text': 'house river ' * 40})}\n" for area in range(20, 24)))
    settings = {**QUICK, "data": str(data), "task_settings": {"target": "rent"}, "max_length": 128}
    run(checked(RunConfig, settings), folder := tmp_path / "run")
    here = predict(folder, long, tmp_path / "here.jsonl", calibrate="none")
    with listened(NumberApi(local_model(folder, calibrate="none"), Limits())) as url:
        there = predict("run", long, tmp_path / "there.jsonl", calibrate="none", url=url)
    assert here.notes == ["Long texts are cut in 4 rows, such as row 1, as in training."]
    assert written(there.path) == written(here.path)


def test_a_prompt_template(tmp_path, rows):
    template = "A flat of {area} m2 costs"
    here = predict("tiny", rows, tmp_path / "here.jsonl", prompt=template, limit=5)
    with listened(NumberApi(local_model("tiny"), Limits())) as url:
        there = predict("tiny", rows, tmp_path / "there.jsonl", prompt=template, limit=5, url=url)
    assert written(there.path) == written(here.path)


def test_the_target_of_an_untrained_model_is_that_of_the_server(tmp_path, rows):
    """A prompt is asked unchanged: without the new line, or the message, that ends a question about a column."""
    here = predict("tiny", rows, tmp_path / "here.jsonl", target="rent", limit=5)
    with listened(NumberApi(local_model("tiny", target="rent"), Limits())) as url:
        there = predict("tiny", rows, tmp_path / "there.jsonl", target="rent", limit=5, url=url)
    assert written(there.path) == written(here.path)
    with (
        listened(NumberApi(local_model("tiny"), Limits())) as url,
        pytest.raises(ValueError, match=r"prompt is not given, and .* start the server with --target\.$"),
    ):
        predict("tiny", rows, tmp_path / "other.jsonl", target="rent", limit=5, url=url)


def test_the_same_call_continues(table_run, rows, tmp_path):
    """A server that ends is an error that leaves the rows so far; a file of other weights is left as it is."""

    def stop(stage: str, done: int, *others: Any) -> None:
        if done >= 8:
            raise KeyboardInterrupt

    api = NumberApi(local_model(table_run), Limits())
    with listened(api) as url:
        whole = predict("run", rows, tmp_path / "whole.jsonl", url=url).path.read_bytes()
        with pytest.raises(KeyboardInterrupt):
            predict("run", rows, out := tmp_path / "out.jsonl", url=url, batch_size=8, progress=stop)
        asked = api.batcher.asked
        assert predict("run", rows, out, url=url, batch_size=8).new_rows == 16
        assert api.batcher.asked == asked + 16
        assert out.read_bytes() == whole
    with pytest.raises(ConnectionError, match="was not reached"):
        predict("run", rows, out, url=url)


def test_what_does_not_fit_the_server(table_run, rows, tmp_path):
    with listened(NumberApi(local_model(table_run), Limits(prompt=20))) as url:
        for how, message in (
            ({"model": "other"}, "model='other' is not served at .*: expected 'run'"),
            ({"target": "price"}, "target='price' does not belong to model='run'.*asks with target='rent'"),
            ({"prompt": "a {area}"}, "prompt='a {area}' does not belong to model='run'"),
            ({"format": "spaced"}, "format='spaced' has no effect on"),
            ({"chat": True}, "chat=True has no effect on"),
            ({"decide": "greedy"}, "decide='greedy' needs no distribution"),
            ({}, "none of the first 24 rows has a prediction: the question has .* characters: expected at most 20"),
        ):
            with pytest.raises(ValueError, match=message):
                predict(**{"model": "run", "data": rows, "out": tmp_path / "out.jsonl", "url": url, **how})


@pytest.mark.parametrize("card", [{}, {"questions": 1}, {"questions": {}}, {"questions": {"target": 1}, "members": "x"}])
def test_a_card_that_says_nothing(card, rows, tmp_path, monkeypatch):
    monkeypatch.setattr("numerate.serve.server.ServedModel.card", card)
    with listened(Ready().api()) as url, pytest.raises(ValueError, match="does not say how model='ready' is asked"):
        predict("ready", rows, tmp_path / "out.jsonl", url=url)


@pytest.mark.parametrize("calibration", [{}, {"table": "x", "outer": [["1/0", "1"]]}, {"level": 0.9, "lowest": "x"}])
def test_a_calibration_that_says_nothing(calibration, rows, tmp_path, monkeypatch):
    api = Ready().api()
    monkeypatch.setattr("numerate.serve.server.ServedModel.card", {**api.model.card, "calibration": calibration})
    with listened(api) as url, pytest.raises(ValueError, match="does not say how intervals were calibrated"):
        predict("ready", rows, tmp_path / "out.jsonl", url=url)
