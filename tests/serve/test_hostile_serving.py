"""Requests that no client should send, and models that fail: an error in OpenAI's format each time, and the server lives on."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.serve.serving import client_of, in_a_loop

from numerate.serve.batching import Batcher, QueueFullError, StoppingError
from numerate.serve.openai_format import ChatRequest, CompletionRequest
from numerate.serve.server import NumberServer

JSON = {"content-type": "application/json"}
PATHS = {"/v1/completions": CompletionRequest, "/v1/chat/completions": ChatRequest}
GOOD = {
    "/v1/completions": {"model": "ready", "prompt": "how many?"},
    "/v1/chat/completions": {"model": "ready", "messages": [{"role": "user", "content": "how many?"}]},
}


def refused(answer, status: int) -> dict[str, object]:
    """The error of a response, after a look at its format."""
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert "\n" not in error["message"]
    assert 0 < len(error["message"]) < 500
    return error


@pytest.mark.parametrize("path", PATHS)
class TestBodies:
    @pytest.mark.parametrize(
        "body", [b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"a":' * 5000, b'{"model": NaN}', b'{"model": "\\ud800"}', b"1e999"]
    )
    def test_broken_json(self, client, path, body):
        refused(client.post(path, content=body, headers=JSON), 400)
        assert client.post(path, json=GOOD[path]).status_code == 200

    def test_wrong_types_of_every_field(self, client, ready, path):
        wrong = ["x", -1, 1.5, True, [], {}, [[]], [None], {"a": {"b": []}}, 10**400, None, "\0", "\u2028"]
        for name in (*PATHS[path].model_fields, "tools", "logprobs", "__class__"):
            for value in wrong:
                answer = client.post(path, json={**GOOD[path], name: value})
                if answer.status_code != 200:
                    refused(answer, 404 if name == "model" and isinstance(value, str) else 400)
        assert client.post(path, json=GOOD[path]).status_code == 200

    @pytest.mark.parametrize("field", ["temperature", "top_p", "seed", "max_tokens", "n"])
    @pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "1e999"])
    def test_numbers_that_are_none(self, client, path, field, value):
        body = f'{{"model": "ready", "prompt": "a", "messages": [], "{field}": {value}}}'
        refused(client.post(path, content=body, headers=JSON), 400)

    def test_what_would_change_the_answer_is_refused(self, client, path):
        for name, value in (
            ("n", 2),
            ("logprobs", 5),
            ("tools", []),
            ("response_format", {"type": "json_object"}),
            ("best_of", 3),
        ):
            error = refused(client.post(path, json={**GOOD[path], name: value}), 400)
            assert name in error["message"]
            assert error["param"] == name

    def test_what_samples_has_no_effect(self, client, path):
        more = {
            "temperature": 0.7,
            "top_p": 0.9,
            "max_tokens": 1,
            "n": 1,
            "user": "me",
            "stop": ["\n"],
            "seed": 7,
            "stream": False,
        }
        answers = [client.post(path, json={**GOOD[path], **extra}).json()["choices"] for extra in ({}, more)]
        assert answers[0] == answers[1]

    def test_a_large_body(self, client, path):
        error = refused(client.post(path, content=b" " * ((1 << 18) + 1), headers=JSON), 413)
        assert "expected at most 256 KiB" in error["message"]

    @pytest.mark.parametrize("kind", ["text/plain", "multipart/form-data", "application/x-www-form-urlencoded", ""])
    def test_what_a_form_can_send(self, client, path, kind):
        refused(client.post(path, content=b"{}", headers={"content-type": kind}), 415)

    def test_an_unknown_model(self, client, path):
        error = refused(client.post(path, json={**GOOD[path], "model": "x" * 10_000}), 404)
        assert (error["code"], error["param"]) == ("model_not_found", "model")

    def test_other_hosts_and_origins(self, client, path):
        refused(client.post(path, json=GOOD[path], headers={"host": "evil.example"}), 400)
        refused(client.post(path, json=GOOD[path], headers={"origin": "http://evil.example"}), 403)
        refused(client.get(path), 405)
        refused(client.get("/v1/nothing"), 404)


class TestQuestions:
    def test_a_long_prompt(self, ready):
        with client_of(ready.api(prompt=10)) as client:
            assert client.post("/v1/completions", json={"model": "ready", "prompt": "x" * 10}).status_code == 200
            error = refused(client.post("/v1/completions", json={"model": "ready", "prompt": ["x", "x" * 11]}), 413)
        assert error["code"] == "context_length_exceeded"
        assert "11 characters: expected at most 10" in error["message"]

    def test_many_prompts(self, ready):
        with client_of(ready.api(queue=3)) as client:
            assert client.post("/v1/completions", json={"model": "ready", "prompt": ["x"] * 3}).status_code == 200
            refused(client.post("/v1/completions", json={"model": "ready", "prompt": ["x"] * 4}), 413)

    def test_rows(self, client, ready):
        (choice,) = client.post("/v1/completions", json={"model": "ready", "row": {"area": 7}}).json()["choices"]
        assert int(choice["text"]) == len("area: 7. rent?")
        for row in ({}, {"rooms": 3}, {"area": 1, "image": "/etc/passwd"}, {"area": [1]}, {"area": {"b": 1}}):
            refused(client.post("/v1/completions", json={"model": "ready", "row": row}), 400)
        refused(client.post("/v1/completions", json={"model": "ready", "row": {"area": 1}, "prompt": "x"}), 400)
        assert len(ready.calls) == 1

    @pytest.mark.parametrize(
        "messages",
        [
            [{"role": "assistant", "content": "7"}],
            [{"role": "user"}],
            [{"role": "user", "content": None}],
            [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}]}],
            [{"role": "tool", "content": "x"}, {"role": "user", "content": "x"}],
        ],
    )
    def test_messages(self, client, ready, messages):
        refused(client.post("/v1/chat/completions", json={"model": "ready", "messages": messages}), 400)
        assert not ready.calls

    def test_no_number(self, client):
        error = refused(client.post("/v1/completions", json={"model": "ready", "prompt": ["x", ""]}), 400)
        assert error["code"] == "no_number"
        assert error["message"] == "prompt[1]: no number was found."

    @pytest.mark.parametrize(
        ("error", "status"),
        [(KeyError("gone"), 500), (RuntimeError("a\nb"), 500), (ConnectionError("lost"), 502), (TimeoutError("late"), 504)],
    )
    def test_a_model_that_fails(self, client, ready, error, status):
        ready.error = error
        refused(client.post("/v1/completions", json=GOOD["/v1/completions"]), status)
        refused(client.post("/v1/completions", json={**GOOD["/v1/completions"], "stream": True}), status)
        ready.error = None
        assert client.post("/v1/completions", json=GOOD["/v1/completions"]).status_code == 200


class TestBatches:
    def begin(self, client, ready, waiting: int, api):
        """Send a request that is being asked, and as many that wait for it."""
        ready.going.clear()
        pool = ThreadPoolExecutor(waiting + 1)
        sent = [pool.submit(client.post, "/v1/completions", json={"model": "ready", "prompt": "x"})]
        assert ready.begun.wait(60)
        sent += [
            pool.submit(client.post, "/v1/completions", json={"model": "ready", "prompt": "x" * i}) for i in range(1, waiting + 1)
        ]
        while api.batcher.waiting < waiting:
            pass
        return sent

    def test_concurrent_requests_are_one_call(self, ready):
        api = ready.api()
        with client_of(api) as client:
            sent = self.begin(client, ready, 20, api)
            ready.going.set()
            texts = [one.result().json()["choices"][0]["text"] for one in sent]
        assert texts == ["1", *map(str, range(1, 21))]
        assert [len(call) for call in ready.calls] == [1, 20]

    def test_a_call_has_at_most_batch_size_questions(self, ready):
        with client_of(ready.api(batch_size=4)) as client:
            assert client.post("/v1/completions", json={"model": "ready", "prompt": ["x"] * 10}).status_code == 200
        assert [len(call) for call in ready.calls] == [4, 4, 2]

    def test_a_full_queue(self, ready):
        api = ready.api(queue=2)
        with client_of(api) as client:
            sent = self.begin(client, ready, 2, api)
            answer = client.post("/v1/completions", json={"model": "ready", "prompt": "x"})
            assert refused(answer, 429)["code"] == "queue_full"
            assert answer.headers["retry-after"] == "1"
            ready.going.set()
            assert [one.result().status_code for one in sent] == [200] * 3

    def test_a_slow_model_is_given_up(self, ready):
        ready.going.clear()
        with client_of(ready.api(seconds=0.05)) as client:
            assert "within 0.05 seconds" in refused(client.post("/v1/completions", json=GOOD["/v1/completions"]), 504)["message"]
            ready.going.set()

    def test_stopping_answers_what_is_asked_and_refuses_the_rest(self, ready):
        api = ready.api()
        with client_of(api) as client:
            sent = self.begin(client, ready, 3, api)
            client.portal.call(api.batcher.stop)
            for one in sent[1:]:
                assert refused(one.result(), 503)["code"] == "stopping"
            refused(client.post("/v1/completions", json=GOOD["/v1/completions"]), 503)
            ready.going.set()
            assert sent[0].result().status_code == 200
        assert [len(call) for call in ready.calls] == [1]

    def test_the_server_stops_the_batcher_first(self, ready):
        api = ready.api()
        running = NumberServer(api, "127.0.0.1")

        async def ended() -> None:
            running.servers, running.lifespan = [], running.config.lifespan_class(running.config)
            await running.shutdown()
            with pytest.raises(StoppingError):
                await api.batcher.ask([])

        running.config.load()
        in_a_loop(ended)

    def test_questions_of_those_who_left_are_not_asked(self):
        going, calls = threading.Event(), []

        def answer(questions: list[int]) -> list[int]:
            calls.append(questions)
            assert going.wait(60)
            return questions

        async def leave() -> None:
            batcher: Batcher[int, int] = Batcher(answer, size=8, room=3)
            first = asyncio.ensure_future(batcher.ask([0]))
            gone, kept = (asyncio.ensure_future(batcher.ask(asked)) for asked in ([1, 2], [3]))
            await asyncio.sleep(0)
            with pytest.raises(QueueFullError):
                await batcher.ask([4])
            gone.cancel()
            await asyncio.wait([gone])
            assert batcher.waiting == 1
            going.set()
            assert await first == [0]
            assert await kept == [3]

        in_a_loop(leave)
        assert calls == [[0], [3]]
