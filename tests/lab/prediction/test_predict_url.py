"""``predict(url=...)`` of any server with OpenAI's API: searched distributions, rows with problems, and servers that fail."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.decode.stand_in import DIGITS, StandIn, Toy, serving
from typer.testing import CliRunner

from numerate.cli import app
from numerate.decode import connection, served_distribution
from numerate.decode.server import CompletionServer
from numerate.lab.data.regression import Row
from numerate.lab.prediction.answering import draw_seed
from numerate.lab.prediction.predict import predict

HOW: dict[str, Any] = {"prompt": "x{area}=", "width": 2}


@pytest.fixture
def other(monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    monkeypatch.setattr(connection, "LONGEST_PAUSE", 0.01)
    with serving(Toy(DIGITS), "other") as server:
        yield server


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    file = tmp_path / "rows.csv"
    file.write_text("area\n" + "".join(f"{i}\n" for i in (0, 1, 2, 3, 10, 11)))
    return file


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_rows_have_searched_distributions(other, rows, tmp_path):
    result = predict("toy", rows, tmp_path / "out.jsonl", url=other.url, batch_size=4, explain=1, **HOW)
    prompts = [f"x{area}=" for area in (0, 1, 2, 3, 10, 11)]
    found = served_distribution(
        CompletionServer(other.url, "toy"), prompts, width=2, seed=[draw_seed(Row(prompt, "")) for prompt in prompts]
    )
    assert [row["prediction"] for row in read(result.path)] == [float(one.median) for one in found]
    assert [(row["low"], row["high"]) for row in read(result.path)] == [tuple(map(float, one.interval(0.9))) for one in found]
    assert not result.problems
    assert result.explained[0].prompt == "x0="


@pytest.mark.parametrize("chat", [False, True])
def test_questions_end_as_those_of_local_models(other, rows, tmp_path, chat):
    """Questions about a table are asked before a new line; chats have messages."""
    other.toy = Toy([*DIGITS, "area: 0. x?", "\n"])
    predict("toy", rows, tmp_path / "out.jsonl", url=other.url, limit=1, target="x", chat=chat, width=1)
    first = other.asked[0]
    assert (first["messages"][0]["content"] if chat else first["prompt"]) == ("area: 0. x?" if chat else "area: 0. x?\n")


def test_a_refused_row_does_not_stop_the_others(other, rows, tmp_path):
    good = read(predict("toy", rows, tmp_path / "good.jsonl", url=other.url, **HOW).path)

    def refuse(handler: Any) -> bool:
        bad = other.asked[-1]["prompt"].startswith(("x2=", "x10="))
        return bad and handler.send(400, {"error": {"message": "the prompt is too long"}})

    other.turns.extend([refuse] * 1000)
    result = predict("toy", rows, tmp_path / "bad.jsonl", url=other.url, **HOW)
    assert result.problems == {"the prompt is too long": 2}
    for index, (row, expected) in enumerate(zip(read(result.path), good, strict=True)):
        assert row["prediction"] == (None if index in (2, 4) else expected["prediction"])


def test_a_question_that_ends_within_a_number(other, rows, tmp_path):
    rows.write_text("q\nx=\nx1\n")
    result = predict("toy", rows, tmp_path / "out.jsonl", url=other.url, prompt="{q}", width=2)
    (problem,) = result.problems
    assert problem.startswith("ends with 'x1', within a number")


def test_no_number_after_one_row(other, rows, tmp_path):
    def none(handler: Any) -> bool:
        listed = {"choices": [{"index": 0, "text": "no", "logprobs": {"top_logprobs": [{"x": 0.0}]}}]}
        return bool(other.asked[-1]["prompt"] == "x3=" and handler.send(200, listed))

    other.turns.extend([none] * 1000)
    result = predict("toy", rows, tmp_path / "out.jsonl", url=other.url, **HOW)
    (problem,) = result.problems
    assert problem.startswith("no number was found (no number 1,")
    assert [row["prediction"] is None for row in read(result.path)] == [False, False, False, True, False, False]


LISTED = {"choices": [{"index": 0, "text": "1", "logprobs": {"top_logprobs": [{"1": 5.0}]}}]}


@pytest.mark.parametrize(
    "garbage", [b"", b"<html>", b"{}", b"\xff", b'{"a":' * 5000, b'{"choices": []}', b'{"choices": [{"logprobs": null}]}', LISTED]
)
def test_garbage_stops_and_the_same_call_continues(other, rows, tmp_path, garbage):
    out = tmp_path / "out.jsonl"

    def later(handler: Any) -> bool:
        return bool(other.asked[-1]["prompt"].startswith("x10") and handler.send(200, garbage))

    other.turns.extend([later] * 1000)
    with pytest.raises(ValueError, match="expected"):
        predict("toy", rows, out, url=other.url, batch_size=2, **HOW)
    other.turns.clear()
    other.asked.clear()
    assert predict("toy", rows, out, url=other.url, batch_size=2, **HOW).new_rows == 2
    assert all(body["prompt"].startswith(("x10", "x11")) for body in other.asked)


@pytest.mark.parametrize(("status", "times"), [(401, 1), (404, 1), (500, 5)])
def test_refusals(other, rows, tmp_path, status, times):
    other.turns.extend([lambda handler: handler.send(status, {"error": "no"})] * 1000)
    with pytest.raises(ConnectionError, match=f"returned status {status}"):
        predict("toy", rows, tmp_path / "out.jsonl", url=other.url, concurrency=1, **HOW)
    assert len(other.asked) == times  # passing errors are asked again


def test_a_killed_server(rows, tmp_path):
    with StandIn(Toy(DIGITS), "other") as gone:
        pass
    with pytest.raises(ConnectionError, match="was not reached"):
        predict("toy", rows, tmp_path / "out.jsonl", url=gone.url, **HOW)
    assert not [*tmp_path.glob("out*")]


def test_a_slow_server(other, rows, tmp_path):
    going = threading.Event()
    other.turns.append(lambda handler: not going.wait(60))
    with pytest.raises(TimeoutError, match=r"within timeout=0\.2 seconds"):
        predict("toy", rows, tmp_path / "out.jsonl", url=other.url, timeout=0.2, **HOW)
    going.set()


def test_a_key_is_sent_and_never_shown(other, rows, tmp_path, monkeypatch):
    monkeypatch.setenv("OTHER_KEY", "secret")
    other.turns.extend([lambda handler: handler.send(400, {"error": "secret is no key"})] * 1000)
    with pytest.raises(ValueError, match=r"none of the first 6 rows has a prediction: \*\*\* is no key"):
        predict("toy", rows, tmp_path / "out.jsonl", url=other.url, api_key_variable="OTHER_KEY", **HOW)
    assert {*other.keys} == {"Bearer secret"}


def test_pictures_are_not_sent(other, tmp_path):
    file = tmp_path / "rows.jsonl"
    (tmp_path / "a.png").touch()
    file.write_text(json.dumps({"area": 1, "image": "a.png"}) + "\n")
    with pytest.raises(ValueError, match="cannot be asked about pictures"):
        predict("toy", file, tmp_path / "out.jsonl", url=other.url, **HOW)
    assert not other.asked


def test_the_command(other, rows, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["predict", "toy", "--data", str(rows), "--prompt", "x{area}=", "--width", "2"]
    done = CliRunner().invoke(app, [*words, "--url", other.url, "--concurrency", "2"])
    assert done.exit_code == 0, done.output
    assert "predict: 6 of 6 in " in done.output
    for more, message in (
        (["--chat"], "--chat has no effect without --url"),
        (["--url", other.url, "--trust-remote-code"], "--trust-remote-code has no effect with --url"),
        (["--url", "localhost"], "base_url='localhost' is not the URL of a server"),
    ):
        done = CliRunner().invoke(app, [*words, *more])
        assert done.exit_code == 1
        assert message in done.stderr
