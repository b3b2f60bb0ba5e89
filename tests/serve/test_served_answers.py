"""What a client gets: the numbers of ``numerate predict``, in OpenAI's format, whole and streamed."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from tests.serve.serving import client_of, train

from numerate.lab.prediction.answering import find_source
from numerate.lab.prediction.predict import predict
from numerate.serve.models import local_model
from numerate.serve.server import Limits, NumberApi

ROWS = [{"area": 20 + i % 61, "rooms": i % 5} for i in range(200)]


def predicted(model: Path | str, rows: list[dict[str, Any]], folder: Path, **how: Any) -> list[dict[str, Any]]:
    """What ``numerate predict`` writes for rows."""
    (folder / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    path = predict(model, folder / "rows.jsonl", folder / "out.jsonl", overwrite=True, **how).path
    return [json.loads(line, parse_int=Decimal, parse_float=Decimal) for line in path.read_text().splitlines()]


def asked(client: Any, path: str = "/v1/completions", **body: Any) -> dict[str, Any]:
    answer = client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = json.loads(answer.text, parse_int=Decimal, parse_float=Decimal)
    return found


def same(text: str, number: Decimal, decide: str = "median") -> bool:
    """Whether a text is a number; sums over all values, as in a mean, are rounded otherwise in other batches."""
    return float(text) == pytest.approx(float(number), rel=1e-6) if decide == "mean" else Decimal(text) == number


@pytest.mark.parametrize("how", [{}, {"decide": "mean", "interval": 0.8}, {"decide": "greedy", "calibrate": "none"}])
def test_the_numbers_of_predict(table_run, tmp_path, how):
    rows = ROWS if not how else ROWS[:10]
    said: list[str] = []
    served = local_model(table_run, say=said.append, **how)
    assert served.name == "run"
    assert said[0].startswith("intervals are the model's own" if how.get("calibrate") else "intervals are calibrated on")
    questions = find_source(str(table_run)).questions
    with client_of(NumberApi(served, Limits())) as client:
        prompts = [questions.ask(row, tmp_path).prompt for row in rows]
        texts = [choice["text"] for choice in asked(client, model="run", prompt=prompts)["choices"]]
        chats = [{"role": "user", "content": prompts[3]}]
        chat = asked(client, "/v1/chat/completions", model="run", messages=chats, numerate=True)["choices"][0]
        details = [asked(client, model="run", row=row, numerate=True)["choices"][0] for row in rows[:10]]
    written = predicted(table_run, rows, tmp_path, **how)
    rule = how.get("decide", "median")
    assert all(same(text, row["prediction"], rule) for text, row in zip(texts, written, strict=True))
    assert same(chat["message"]["content"], written[3]["prediction"], rule)
    for choice, row in zip(details, written, strict=False):
        assert same(choice["text"], row["prediction"], rule)
        fields = choice["numerate"]
        assert fields["interval"] == {"level": Decimal(str(how.get("interval", 0.9))), "low": row["low"], "high": row["high"]}
        if not how:
            assert fields["median"] == row["prediction"]
        shares = fields["distribution"]
        assert float(shares["covered"]) == pytest.approx(float(row["covered"]), abs=1e-6)
        assert sum(map(float, shares["probabilities"])) == pytest.approx(1)
        assert shares["values"] == sorted(shares["values"])


def test_draws_depend_on_the_question_alone(table_run, tmp_path):
    """With two prefixes a step nearly all is drawn; a question gets the same number alone and in any order, without a seed."""
    rows = ROWS[:20]
    how = {"width": 2, "calibrate": "none"}
    written, turned = ([row["prediction"] for row in predicted(table_run, part, tmp_path, **how)] for part in (rows, rows[::-1]))
    with client_of(NumberApi(local_model(table_run, **how), Limits())) as client:
        alone, other = (
            [Decimal(asked(client, model="run", row=row, seed=seed)["choices"][0]["text"]) for row in rows] for seed in (None, 1)
        )
    assert written == turned[::-1] == alone != other


def test_members_are_pooled(tmp_path):
    pool = train(tmp_path, members=2, decide=("median",), steps=10)
    written = predicted(pool, ROWS[:5], tmp_path)
    with client_of(NumberApi(local_model(pool), Limits())) as client:
        for row, expected in zip(ROWS, written, strict=False):
            choice = asked(client, model="run", row=row, numerate=True)["choices"][0]
            assert Decimal(choice["text"]) == expected["prediction"]
            assert float(choice["numerate"]["disagreement"]) == pytest.approx(float(expected["disagreement"]), rel=1e-5)


def test_a_model_that_was_not_trained_here(tmp_path):
    """Its prompts are asked as they are; a template makes prompts of rows, in the format that is named."""
    template, rows = "A flat of {area} m2 costs", [{"area": 20}, {"area": 33}]
    how = {"prompt": template, "format": "spaced"}
    written = predicted("tiny", rows, tmp_path, **how)
    with client_of(NumberApi(local_model("tiny", name="mine", **how), Limits())) as client:
        found = [asked(client, model="mine", row=row)["choices"][0]["text"] for row in rows]
        plain = asked(client, model="mine", prompt="A flat of 33 m2 costs")["choices"][0]["text"]
    assert [*map(Decimal, found)] == [row["prediction"] for row in written]
    assert plain == found[1]
    with client_of(NumberApi(local_model("tiny", format="spaced"), Limits())) as client:
        assert asked(client, model="tiny", prompt="A flat of 33 m2 costs")["choices"][0]["text"] == found[1]


def test_code_of_a_model_is_never_run(monkeypatch, tmp_path):
    seen = []

    def source(model, target, prompt, format, *, trust_remote_code=False):
        seen.append(trust_remote_code)
        raise ValueError("stop here")

    monkeypatch.setattr("numerate.serve.models.find_source", source)
    with pytest.raises(ValueError, match="stop here"):
        local_model("someone/some-model")
    assert seen == [False]


def test_the_format_of_a_completion(client):
    body = client.post("/v1/completions", json={"model": "ready", "prompt": ["a", "bb"]}).json()
    assert body.pop("id").startswith("cmpl-")
    assert body.pop("created") > 0
    choices = [{"index": i, "text": str(i + 1), "logprobs": None, "finish_reason": "stop"} for i in range(2)]
    assert body == {"object": "text_completion", "model": "ready", "choices": choices}


def test_numerate_is_there_on_request(client):
    for sent, there in ((None, False), (False, False), (True, True)):
        asks = {"model": "ready", "prompt": "a", "numerate": sent}
        (choice,) = client.post("/v1/completions", json=asks).json()["choices"]
        assert ("numerate" in choice) is there
    shares = {"covered": 0.5, "drawn": 0, "more_digits": 0, "no_number": 0.5, "not_searched": 0}
    distribution = {"values": [1, 2], "probabilities": [0.75, 0.25], **shares}
    interval = {"level": 0.9, "low": 1, "high": 2}
    assert choice["numerate"] == {"median": 1, "mean": 1.25, "interval": interval, "distribution": distribution}


@pytest.mark.parametrize("chat", [False, True])
def test_a_stream_has_what_the_whole_has(client, chat):
    path = "/v1/chat/completions" if chat else "/v1/completions"
    body = {"model": "ready", "numerate": True}
    body |= {"messages": [{"role": "user", "content": "how many?"}]} if chat else {"prompt": ["a", "bb"]}
    whole = client.post(path, json=body).json()
    answer = client.post(path, json={**body, "stream": True})
    assert answer.headers["content-type"].startswith("text/event-stream")
    *events, end = [line.removeprefix("data: ") for line in answer.text.split("\n\n") if line]
    assert end == "[DONE]"
    chunks = [json.loads(event) for event in events]
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk" if chat else "text_completion"}
    for first, last, choice in zip(*(chunk["choices"] for chunk in chunks), whole["choices"], strict=True):
        assert (first["finish_reason"], last["finish_reason"]) == (None, "stop")
        assert first["numerate"] == choice["numerate"]
        if chat:
            assert first["delta"] == choice["message"]
            assert last["delta"] == {}
        else:
            assert (first["text"], last["text"]) == (choice["text"], "")


def test_models_health_and_metrics(client, ready):
    (card,) = client.get("/v1/models").json()["data"]
    assert card["id"] == "ready"
    said = {"target": "rent", "columns": ["area"], "decide": "median", "interval": 0.9}
    assert said.items() <= card["numerate"].items()
    assert client.get("/v1/models/ready").json() == card
    assert client.get("/v1/models/other").status_code == 404
    assert client.get("/health").json() == {"status": "ok", "model": "ready"}
    client.post("/v1/completions", json={"model": "ready", "prompt": ["a", "bb"]})
    client.post("/v1/completions", json={"model": "ready", "prompt": 1})
    lines = client.get("/metrics").text.splitlines()
    assert 'numerate_requests_total{route="/v1/completions",status="200"} 1' in lines
    assert 'numerate_requests_total{route="/v1/completions",status="400"} 1' in lines
    assert {"numerate_model_calls_total 1", "numerate_questions_total 2", "numerate_questions_waiting 0"} <= {*lines}
    named = [line.split()[2] for line in lines if line.startswith("# TYPE ")]
    assert {line.partition("{")[0].split()[0] for line in lines if line[0] != "#"} == {*named}
