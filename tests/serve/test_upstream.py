"""A server in front of another one: the same numbers, and clear errors where the other is killed, slow, or returns garbage."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from decimal import Decimal
from itertools import pairwise
from typing import Any

import pytest
from tests.decode.stand_in import DIGITS, StandIn, Toy
from tests.serve.serving import client_of

from numerate.decode import connection, served_distribution
from numerate.decode.server import CompletionServer
from numerate.lab.data.regression import Row
from numerate.lab.prediction.answering import draw_seed
from numerate.serve.models import PunctualServer, upstream_model
from numerate.serve.server import Limits, NumberApi

BODY = {"model": "toy", "prompt": "x=", "numerate": True}


@pytest.fixture
def other(monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    monkeypatch.setattr(connection, "LONGEST_PAUSE", 0.01)
    with StandIn(Toy(DIGITS), "other") as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def front(other: StandIn, seconds: float = 60, **how: Any) -> NumberApi:
    return NumberApi(upstream_model("toy", other.url, timeout=seconds, width=2, **how), Limits(seconds=seconds))


def refused(answer: Any, status: int) -> str:
    assert answer.status_code == status, answer.text
    return str(answer.json()["error"]["message"])


def test_the_numbers_of_served_distribution(other):
    prompts = ["x=", "x1=", "x22="]
    with client_of(front(other)) as client:
        choices = client.post("/v1/completions", json={**BODY, "prompt": prompts}).json()["choices"]
    seeds = [draw_seed(Row(prompt, "")) for prompt in prompts]
    found = served_distribution(CompletionServer(other.url, "toy"), prompts, seed=seeds, width=2)
    assert [Decimal(choice["text"]) for choice in choices] == [one.median for one in found]
    for choice, one in zip(choices, found, strict=True):
        assert choice["numerate"]["distribution"]["probabilities"] == pytest.approx(one.probabilities.tolist())


def test_rows_and_chats(other):
    with client_of(front(other, prompt="x{area}=", decide="mode")) as client:
        row = client.post("/v1/completions", json={"model": "toy", "row": {"area": 1}}).json()["choices"]
        text = client.post("/v1/completions", json={"model": "toy", "prompt": "x1="}).json()["choices"]
        asked = {"model": "toy", "messages": [{"role": "user", "content": "x1="}]}
        chat = client.post("/v1/chat/completions", json=asked).json()["choices"]
    assert row == text
    assert chat[0]["message"]["content"] == row[0]["text"]


def test_no_number_after_one_prompt(other):
    with client_of(front(other)) as client:
        other.turns.append(lambda handler: handler.send(200, listed("no", 0.0)))
        assert "no number was found" in refused(client.post("/v1/completions", json=BODY), 400)


def listed(token: str, logprob: float) -> dict[str, Any]:
    return {"choices": [{"index": 0, "text": token, "logprobs": {"top_logprobs": [{token: logprob}]}}]}


@pytest.mark.parametrize(
    "garbage", [b"", b"<html>", b"{}", b"[]", b"\xff", b'{"choices": []}', b'{"choices": [{"logprobs": null}]}', listed("1", 5.0)]
)
def test_garbage(other, garbage):
    with client_of(front(other)) as client:
        other.turns.append(lambda handler: handler.send(200, garbage))
        assert "expected" in refused(client.post("/v1/completions", json=BODY), 502)
        assert client.post("/v1/completions", json=BODY).status_code == 200


@pytest.mark.parametrize("status", [401, 404, 500, 503])
def test_refusals(other, status):
    with client_of(front(other)) as client:
        other.turns.extend([lambda handler: handler.send(status, {"error": "no"})] * 2)
        assert f"returned status {status}" in refused(client.post("/v1/completions", json=BODY), 502)
        assert len(other.turns) == (status in (401, 404))  # others are asked again
        other.turns.clear()
        assert client.post("/v1/completions", json=BODY).status_code == 200


@pytest.mark.parametrize("status", [400, 413, 422])
def test_a_refused_question(other, status):
    with client_of(front(other)) as client:
        other.turns.append(lambda handler: handler.send(status, {"error": {"message": "the prompt is too long"}}))
        assert refused(client.post("/v1/completions", json=BODY), 400) == "the prompt is too long."


def test_a_killed_server():
    with StandIn(Toy(DIGITS), "other") as gone:
        pass
    with client_of(front(gone)) as client:
        assert "was not reached" in refused(client.post("/v1/completions", json=BODY), 502)
        assert client.get("/health").status_code == 200


def test_a_slow_server(other):
    going = threading.Event()
    with client_of(front(other, seconds=0.3)) as client:
        other.turns.append(lambda handler: not going.wait(60))
        assert "seconds" in refused(client.post("/v1/completions", json=BODY), 504)
        going.set()


def test_nothing_is_asked_after_the_deadline(other):
    late = PunctualServer(other.url, "toy", deadline=time.monotonic() - 1)
    with pytest.raises(TimeoutError, match="was too slow"):
        served_distribution(late, ["x="])
    assert not other.asked


def test_questions_are_asked_at_the_same_time(other):
    meeting = threading.Barrier(3)
    other.turns.extend([lambda handler: meeting.wait(60) < 0] * 3)
    with client_of(front(other)) as client:
        answer = client.post("/v1/completions", json={**BODY, "prompt": ["x=", "x1=", "x2="]})
    assert answer.status_code == 200, answer.text


def test_llama_cpp_is_asked_about_one_question_after_the_other(other):
    """It computes a prompt again if it has computed another one in between."""
    other.style = "llama.cpp"
    other.turns.extend([lambda handler: time.sleep(0.02) is not None] * 1000)
    prompts = ["x=", "xx=", "xxx=", "xxxx="]
    with client_of(front(other)) as client:
        assert client.post("/v1/completions", json={**BODY, "prompt": prompts}).status_code == 200
    asked = [next(prompt for prompt in prompts if body["prompt"].startswith(prompt)) for body in other.asked]
    assert sum(one != following for one, following in pairwise(asked)) == len(prompts) - 1
