"""Served models: the distribution is that of the model itself, what is not known is booked, and no server hangs a search."""

from __future__ import annotations

import _thread
import json
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from itertools import pairwise
from math import log
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from tests.decode.stand_in import CHUNKS, DIGITS, OWNERS, StandIn, Toy, Turn, serving

from numerate import NumberDistribution
from numerate.answers import number_distribution
from numerate.decode import CompletionServer, NumberGrammar, TextGrammar, connection, distribution, served_distribution
from numerate.decode import server as server_module

SMALL = NumberGrammar(sign=False, digits=(1, 2), decimals=0, leading_zeros=True)
WIDE = NumberGrammar(digits=(1, 3), decimals=0, leading_zeros=True)
PROMPTS = ["x=", "xx="]
EVERYTHING: dict[str, Any] = {"width": None, "covered": 1.0}
KEY = "sk-secret-1234567890"
CHAT = CompletionServer("http://localhost/v1", "toy", chat=True)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(connection, "LONGEST_PAUSE", 0.01)


@pytest.fixture
def stand_in() -> Iterator[StandIn]:
    with serving(Toy(DIGITS)) as server:
        yield server


def client(server: StandIn, **settings: Any) -> CompletionServer:
    return CompletionServer(server.url, "toy", **{"top": len(server.toy.texts), "timeout": 5, **settings})


def masses(found: NumberDistribution) -> dict[Decimal, float]:
    return {value: float(p) * found.covered for value, p in zip(found.values, found.probabilities, strict=True)}


def close(found: dict[Decimal, float], expected: dict[Decimal, float]) -> bool:
    return found.keys() == expected.keys() and all(abs(found[value] - p) < 1e-6 for value, p in expected.items())


def of_model(toy: Toy, prompt: str, grammar: Any) -> dict[Decimal, float]:
    """The distribution of the model itself, without a server."""
    ids = torch.tensor([toy.tokens(prompt)])
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    return masses(distribution(toy.model, inputs, toy.ids, grammar=grammar, **EVERYTHING)[0])


class Tokenizer(dict[str, int]):
    """A tokenizer as far as a search needs one: texts with their ids, and a call."""

    def __init__(self, toy: Toy) -> None:
        super().__init__(toy.ids)
        self.toy = toy

    def __call__(self, text: str) -> dict[str, list[int]]:
        return {"input_ids": [*self.toy.tokens(text)]}


@pytest.mark.parametrize("style", ["vllm", "llama.cpp"])
@pytest.mark.parametrize("settings", [{}, {"per_request": 7}, {"concurrency": 1}], ids=str)
def test_one_token_per_digit_is_exact(style, settings):
    toy = Toy(DIGITS, llama=True)
    with serving(toy, style) as server:
        found = served_distribution(client(server, **settings), PROMPTS, grammar=SMALL, batch_size=1, **EVERYTHING)
    for prompt, one in zip(PROMPTS, found, strict=True):
        assert close(masses(one), of_model(toy, prompt, SMALL))
        assert one.not_searched < 1e-9


@pytest.mark.parametrize("style", ["vllm", "llama.cpp"])
def test_token_ids_are_exact_for_every_tokenizer(style):
    toy = Toy(CHUNKS, llama=True)
    with serving(toy, style) as server:
        fast = client(server, per_request=50)
        found = served_distribution(fast, ["x=", toy.tokens("xx=")], tokenizer=Tokenizer(toy), grammar=SMALL, **EVERYTHING)
    for prompt, one in zip(PROMPTS, found, strict=True):
        assert close(masses(one), of_model(toy, prompt, SMALL))


NAMING = {"vllm", "sglang", "llama.cpp"}


def found_by(server: StandIn, **settings: Any) -> NumberDistribution:
    tokenizer = Tokenizer(server.toy)
    (found,) = served_distribution(client(server, top=3, **settings), ["x="], tokenizer=tokenizer, grammar=SMALL, **EVERYTHING)
    return found


@pytest.mark.parametrize("texts", [DIGITS, CHUNKS], ids=["digits", "chunks"])
@pytest.mark.parametrize("style", OWNERS)
def test_named_tokens_leave_nothing_unknown(style, texts):
    """With three tokens of each position, the distribution is that of the model where the server takes names."""
    toy = Toy(texts)
    with serving(toy, style) as server:
        found = found_by(server)
        with_all = masses(served_distribution(client(server), ["x="], tokenizer=Tokenizer(toy), grammar=SMALL, **EVERYTHING)[0])
        listed = found_by(server, kind="other")
    assert listed.not_searched > 0.01
    if style in NAMING:
        assert close(masses(found), with_all)
        assert found.not_searched < 1e-9
    else:
        assert found == listed


def test_many_names_are_asked_for_in_slices(monkeypatch):
    """vLLM takes a limited number of ids per request; a version that ignores them is not asked for the rest."""
    monkeypatch.setattr(server_module, "NAMED", 4)
    asked: dict[str, list[dict[str, Any]]] = {}
    for style in ("vllm", "old vllm"):
        with serving(Toy(CHUNKS), style) as server:
            server.most_named = 4
            found = found_by(server)
            asked[style] = server.asked
        assert (found.not_searched < 1e-9) == (style == "vllm")
    assert max(Counter(tuple(body["prompt"]) for body in asked["vllm"]).values()) > 1
    assert {*Counter(tuple(body["prompt"]) for body in asked["old vllm"]).values()} == {1}


VLLM = {  # answers of vLLM 0.32.0 to SmolLM2-135M-Instruct after "12 + 30 =", shortened
    "models": {"object": "list", "data": [{"id": "toy", "object": "model", "owned_by": "vllm", "max_model_len": 512}]},
    "named": {"token_id:216": -0.06072593107819557, "token_id:0": -15.194331169128418, "token_id:1": -21.645545959472656},
    "likely": {"token_id:216": -0.06072593107819557, "token_id:365": -4.755437850952148},
    "beside named ones": {"token_id:216": -0.06072593107819557, "token_id:0": -9999.0},
}


@pytest.mark.parametrize(
    ("said", "wanted", "sent", "ids"),
    [
        ("named", [0, 1], [0, 1], [216, 0, 1]),
        ("likely", [], None, [216, 365]),
        ("beside named ones", [], None, [216]),
    ],
)
def test_recorded_answers_of_vllm(monkeypatch, said, wanted, sent, ids):
    """The last one is an answer to a request without ids, computed together with requests that name some."""
    asked: list[dict[str, Any]] = []

    def request(self: CompletionServer, url: str, body: dict[str, Any] | None, stop: Any) -> bytes:
        if body is None:
            return json.dumps(VLLM["models"]).encode()
        asked.append(body)
        listed: Any = VLLM[said]
        logprobs = {"text_offset": [0], "token_logprobs": [next(iter(listed.values()))], "tokens": ["token_id:216"]}
        choice = {"index": 0, "text": " ", "logprobs": {**logprobs, "top_logprobs": [listed]}, "finish_reason": "length"}
        return json.dumps({"id": "cmpl-a40", "object": "text_completion", "choices": [choice]}).encode()

    monkeypatch.setattr(CompletionServer, "request", request)
    (found,) = CompletionServer("http://localhost/v1", "toy").next_tokens([[33, 34]], [[446]], [wanted])
    assert [token for token, _ in found] == ids
    assert found[0][1] == pytest.approx(-0.06072593107819557)
    assert [(body["prompt"], body.get("logprob_token_ids")) for body in asked] == [([33, 34, 446], sent)]


HALF = {"choices": [{"text": " \ufffd", "index": 0, "logprobs": None}]}


def test_half_a_character_is_asked_for_again(stand_in):
    """llama.cpp lists nothing after a token that ends within a character, so another one is sampled."""
    stand_in.turns.extend([answer(200, HALF)] * 2)
    assert client(stand_in, retries=2).next_tokens(["x"], ["="]) == stand_in.toy.next_texts(["x="])
    stand_in.turns.extend([answer(200, HALF)] * 3)
    with pytest.raises(ValueError, match="no log-probabilities"):
        client(stand_in, retries=2).next_tokens(["x"], ["="])


def test_llama_cpp_samples_a_number():
    """Which is no half character, whatever the model says; what is listed does not depend on it."""
    with serving(Toy(DIGITS), "llama.cpp") as server:
        client(server).next_tokens([(3,)], [(0,)], [[1, 2]])
    assert [(body["logit_bias"], body["logprobs"]) for body in server.asked] == [([[1, 1000]], 1000)]


@pytest.mark.parametrize("with_ids", [False, True])
@pytest.mark.parametrize("style", OWNERS)
def test_llama_cpp_is_asked_about_one_prompt_after_the_other(style, with_ids):
    """It keeps what it has computed of a prompt until it computes another one."""
    toy = Toy(DIGITS)
    tokenizer, start = (Tokenizer(toy), [*toy.tokens("xx")]) if with_ids else (None, "xx")
    turns = {}
    for batch_size in (None, 2):
        with serving(toy, style) as server:
            served_distribution(
                client(server, concurrency=1), PROMPTS, tokenizer=tokenizer, grammar=SMALL, batch_size=batch_size, **EVERYTHING
            )
            asked = [body["input_ids"][0] if "input_ids" in body else body["prompt"] for body in server.asked]
        longer = [prompt[:2] == start for prompt in asked]
        turns[batch_size] = sum(one != other for one, other in pairwise(longer))
    assert turns[2] > 1
    assert turns[None] == (1 if style == "llama.cpp" else turns[2])


@pytest.mark.parametrize("style", OWNERS)
def test_a_server_says_what_it_is(style):
    with serving(Toy(DIGITS), style) as server:
        asked = client(server)
        expected = {"old vllm": "vllm"}.get(style, style)
        assert [asked.found_kind, asked.found_kind, server.looks] == [expected, expected, 1]
        assert client(server, kind="vllm").found_kind == "vllm"
        assert CompletionServer(f"{server.url}/v9", "toy").found_kind == "other"  # has no list of models
        assert server.looks == 2


@pytest.mark.parametrize("proxied", [False, True])
def test_what_a_server_is_can_be_asked_when_it_is_up(monkeypatch, proxied):
    with StandIn(Toy(DIGITS), "vllm") as gone:
        pass
    asked = client(gone)
    if proxied:
        monkeypatch.setattr(CompletionServer, "request", Mock(side_effect=connection.RejectedError("no upstream", 502, "")))
    with pytest.raises(ConnectionError, match="no upstream" if proxied else "was not reached"):
        asked.found_kind  # noqa: B018
    monkeypatch.setattr(CompletionServer, "request", lambda *args: b'{"data": [{"owned_by": "vllm"}]}')
    assert asked.found_kind == "vllm"


@pytest.mark.parametrize("said", [b"[]", b"{}", b"null", b'{"data": [{}]}', b'{"data": [{"owned_by": 3}]}', b"<html>", b"\xff"])
def test_a_list_of_models_that_says_nothing(monkeypatch, said):
    monkeypatch.setattr(CompletionServer, "request", lambda *args: said)
    assert CompletionServer("http://localhost/v1", "toy").found_kind == "other"


@pytest.mark.parametrize("meta", [None, {}, {"output_top_logprobs": [[3]]}, {"output_top_logprobs": [[]]}], ids=str)
def test_wrong_answers_of_sglang_are_refused(meta):
    with serving(Toy(DIGITS), "sglang") as server:
        server.turns.append(answer(200, [{"meta_info": meta}]))
        with pytest.raises(ValueError, match="/generate returned .*expected 1 rows.*kind='other'"):
            found_by(server)


def chain(toy: Toy, prompt: str, grammar: NumberGrammar) -> dict[Decimal, float]:
    """The distribution over texts by its definition: mass of each text, spread over the tokens that may follow it."""
    numbers: Counter[Decimal] = Counter()
    texts = {"": 1.0}
    while texts:
        text = min(texts, key=len)
        mass = texts.pop(text)
        for token, logprob in toy.next_texts([prompt + text])[0]:
            longer, share = text + token, mass * np.exp(logprob)
            body = longer.lstrip()
            digits = next((end for end in range(len(body), 0, -1) if grammar.accepts(body[:end])), 0)
            if (not body and len(longer) <= 2) or (grammar.allows(body) and len(longer) - len(body) <= 2):
                texts[longer] = texts.get(longer, 0.0) + share
            elif digits and not body[digits : digits + 1].isdigit() and len(longer) - len(body) <= 2:
                numbers[Decimal(body[:digits])] += share
    return dict(numbers)


def test_texts_follow_the_chain_over_texts():
    """Several ways to write a text add up, and no mass is lost or counted twice."""
    toy = Toy(CHUNKS)
    found = served_distribution(toy.next_texts, PROMPTS, grammar=WIDE, **EVERYTHING)
    for prompt, one in zip(PROMPTS, found, strict=True):
        assert close(masses(one), chain(toy, prompt, WIDE))
        assert one.covered + one.more_digits + one.no_number == pytest.approx(1, abs=1e-9)
    ids = served_distribution(
        lambda rows: [toy.top(row, len(CHUNKS)) for row in rows], PROMPTS, tokenizer=Tokenizer(toy), grammar=WIDE, **EVERYTHING
    )
    assert not close(masses(found[0]), masses(ids[0]))  # the tokenizer of the server matters


def test_each_text_is_asked_for_once():
    toy = Toy(CHUNKS)
    asked: Counter[str] = Counter()

    def complete(texts: list[str]) -> Any:
        asked.update(texts)
        return toy.next_texts(texts)

    served_distribution(complete, ["x="], grammar=WIDE, **EVERYTHING)
    assert max(asked.values()) == 1
    assert len(asked) > 500


def test_what_is_not_listed_may_continue_the_number():
    """After 1: listed are 0.5 and twice 0.1, so that the digit that is missing has at most 0.1 of the other 0.3."""
    tokens = {"1": 0, "2": 1, ".": 2, "x": 3, "y": 4, "z": 5}
    table = {(): {0: 1.0}, (0,): {0: 0.5, 2: 0.1, 3: 0.1}, (0, 0): {2: 1.0}}

    def complete(rows: list[tuple[int, ...]]) -> Any:
        return [[(token, log(p)) for token, p in table[row[1:]].items()] for row in rows]

    grammar = NumberGrammar(digits=(1, 2), decimals=0)
    for listed in (0.1, 0.01):  # the least likely one may be the sampled one: others may have 0.1
        table[0,][3] = listed
        found = served_distribution(complete, [[9]], tokenizer=tokens, grammar=grammar, **EVERYTHING)[0]
        assert masses(found) == pytest.approx({Decimal(1): 0.4, Decimal(11): 0.5})
        assert found.not_searched == pytest.approx(0.1)


@pytest.mark.parametrize(("limit", "most"), [({"width": 4}, 4), ({"width": 4, "rest": "drop"}, 4), ({}, 16)], ids=str)
def test_width_limits_the_requests(limit, most):
    toy, counts = Toy(DIGITS), []

    def complete(texts: list[str]) -> Any:
        counts.append(len(texts))
        return toy.next_texts(texts)

    found = served_distribution(complete, PROMPTS, grammar=WIDE, **limit)
    assert max(counts) == most * len(PROMPTS)
    for one in found:
        assert one.covered + one.more_digits + one.no_number + one.not_searched == pytest.approx(1, abs=1e-9)
        assert (one.drawn > 0) == ("rest" not in limit)


def test_draws_are_those_of_the_model_itself():
    """The same seed keeps the same beginnings, with and without a server."""
    toy = Toy(DIGITS, llama=True)
    ids = torch.tensor([toy.tokens("x=")])
    options: dict[str, Any] = {"grammar": WIDE, "width": 4, "seed": [5]}
    local = distribution(toy.model, {"input_ids": ids, "attention_mask": torch.ones_like(ids)}, toy.ids, **options)[0]
    found = served_distribution(toy.next_texts, ["x="], **options)[0]
    assert local.drawn > 0.1
    assert close(masses(found), masses(local))
    assert found.drawn == pytest.approx(local.drawn)


def test_tokens_end_a_number_whatever_their_text():
    """Here ``2`` stands for the end: 12 cannot be written."""
    toy = Toy(DIGITS)
    found = served_distribution(toy.next_texts, ["x="], grammar=SMALL, end_tokens="2", **EVERYTHING)[0]
    assert not [value for value in found.values if "2" in str(value)]
    ids = served_distribution(
        lambda rows: [toy.top(row, len(DIGITS)) for row in rows],
        ["x="],
        tokenizer=Tokenizer(toy),
        grammar=SMALL,
        end_tokens=[toy.ids["2"]],
        **EVERYTHING,
    )[0]
    assert close(masses(found), masses(ids))


def test_chats_are_continued():
    """The stand-in renders a chat as the user's text, a sign, and what the assistant has written."""
    toy = Toy(DIGITS, llama=True)
    plain = NumberGrammar(sign=False, digits=1, decimals=0)
    expected = of_model(toy, "x=", plain)
    with serving(toy) as server:
        chat = client(server, chat=True)
        found = served_distribution(chat, ["x", [{"role": "user", "content": "x"}]], grammar=plain, **EVERYTHING)
        begun = served_distribution(
            chat, [[{"role": "user", "content": "x"}, {"role": "assistant", "content": "="}]], grammar=plain, **EVERYTHING
        )[0]
    assert found[0] == found[1]
    assert close(masses(begun), of_model(toy, "x==", plain))
    # After white space alone a template would begin anew, so that part is not searched.
    assert found[0].not_searched > 0
    assert found[0].covered + found[0].more_digits + found[0].no_number + found[0].not_searched == pytest.approx(1, abs=1e-9)
    assert all(mass <= expected[digit] + 1e-9 for digit, mass in masses(found[0]).items())


@pytest.mark.parametrize("chat", [False, True])
@pytest.mark.parametrize("most_choices", [1, 3, 1000])
def test_samples_are_the_models(chat, most_choices):
    toy = Toy(DIGITS)
    with serving(toy) as server:
        server.most_choices = most_choices
        texts = client(server, chat=chat).samples(["x", "xx"], n=10, max_tokens=3)
    assert [len(own) for own in texts] == [10, 10]
    assert len({*texts[0]}) > 3
    assert all(len(text) <= 3 for text in texts[0])
    assert len(server.asked) == 2 * -(-10 // most_choices)
    assert {(body["max_tokens"], body["temperature"], body["top_p"]) for body in server.asked} == {(3, 1.0, 1)}
    assert sum(number_distribution(["12", *texts[0]]).probabilities) == pytest.approx(1)


def test_requests_run_at_the_same_time(stand_in):
    meeting = threading.Barrier(4)

    def meet(handler: Any) -> bool:
        meeting.wait(timeout=20)
        return False

    stand_in.turns.extend([meet] * 4)
    client(stand_in, concurrency=4).next_tokens(["x"] * 4, ["="] * 4)
    assert not meeting.broken


def test_requests_ask_for_what_the_search_needs(stand_in):
    client(stand_in, options={"seed": 1, "top_p": None, "model": "other"}).next_tokens(["x"], ["="])
    assert stand_in.asked == [
        {"model": "other", "prompt": "x=", "max_tokens": 1, "logprobs": len(DIGITS), "temperature": 1, "seed": 1}
    ]
    assert stand_in.keys == [None]
    stand_in.asked.clear()
    client(stand_in, chat=True, top=3).next_tokens(["x"], ["1"])
    assert stand_in.asked == [
        {
            "model": "toy",
            "messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "1"}],
            "continue_final_message": True,
            "add_generation_prompt": False,
            "max_tokens": 1,
            "logprobs": True,
            "top_logprobs": 3,
            "temperature": 1,
            "top_p": 1,
        }
    ]


def hang_up(handler: Any) -> bool:
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # a reset, not a goodbye
    handler.connection.close()
    return True


def cut_short(handler: Any) -> bool:
    return bool(handler.send(200, b'{"choices": [', Content_Length="1000"))


def answer(status: int, body: Any, **headers: str) -> Turn:
    return lambda handler: bool(handler.send(status, body, **headers))


@pytest.mark.parametrize(
    "turn",
    [*(answer(429, {}, Retry_After=after) for after in ("0.02", "soon")), answer(500, b""), answer(503, {}), hang_up, cut_short],
)
def test_passing_failures_are_tried_again(stand_in, turn):
    stand_in.turns.extend([turn, turn])
    found = client(stand_in, retries=2).next_tokens(["x"], ["="])
    assert found == stand_in.toy.next_texts(["x="])
    assert len(stand_in.asked) == 3


def test_pauses_grow(stand_in, monkeypatch):
    monkeypatch.setattr(connection, "LONGEST_PAUSE", 3.0)
    stand_in.turns.extend([answer(500, b"")] * 4 + [answer(429, b"", Retry_After=after) for after in ("0.25", "100")])
    pauses: list[float] = []

    class Clock(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            pauses.append(timeout or 0.0)
            return False

    assert client(stand_in, retries=6)._post({"prompt": "x", "max_tokens": 1}, Clock())
    assert pauses == [0.5, 1.0, 2.0, 3.0, 0.25, 3.0]


def logprobs(value: Any) -> Turn:
    return answer(200, {"choices": [{"logprobs": value, "text": KEY}]})


FAILURES: dict[str, tuple[Turn, type[Exception], str]] = {
    "key": (answer(401, {"error": f"Incorrect API key provided: {KEY}"}), ConnectionError, r"401 .*\*\*\*.*pass api_key="),
    "path": (answer(404, {"error": "The model does not exist"}), ConnectionError, "404 .*model does not exist.*model='toy'"),
    "redirect": (answer(302, b"", Location="http://example.org"), ConnectionError, "302 .*a URL without"),
    "rejected": (answer(400, {"error": "logprobs must be <= 5"}), ConnectionError, "400 .*must be <= 5.*top=10"),
    "broken": (answer(500, {"error": "out of memory"}), ConnectionError, "500 .*out of memory.*in 2 attempt"),
    "reset": (hang_up, ConnectionError, "not reached in 2 attempt.*check that it runs"),
    "no json": (answer(200, b"<html>" + KEY.encode()), ValueError, "<html>.*expected JSON with choices"),
    "no choices": (answer(200, {"choices": []}), ValueError, "expected JSON with choices"),
    "other json": (answer(200, [3]), ValueError, "expected JSON with choices"),
    "two choices": (answer(200, {"choices": [{}, {}]}), ValueError, "2 choices for 1 prompts.*per_request=1"),
    "no logprobs": (logprobs(None), ValueError, "no log-probabilities.*samples"),
    "empty logprobs": (logprobs({"top_logprobs": [], "content": []}), ValueError, "no log-probabilities"),
    "no token": (logprobs({"content": [{"top_logprobs": [{"logprob": -1}]}]}), ValueError, "no log-probabilities"),
    "nan": (logprobs({"top_logprobs": [{"1": float("nan")}]}), ValueError, "nan for '1': expected a number"),
    "null": (logprobs({"top_logprobs": [{"1": None}]}), ValueError, "None for '1': expected a number"),
    "above 1": (logprobs({"top_logprobs": [{"1": 0.7}]}), ValueError, r"\('1', 0.7\).*a number <= 0"),
    "sum above 1": (logprobs({"top_logprobs": [{"1": -0.1, "2": -0.1}]}), ValueError, "sum to 1.81"),
    "ids": (logprobs({"top_logprobs": [{"token_id:17": -0.1}]}), ValueError, "pass tokenizer="),
}


@pytest.mark.parametrize("case", FAILURES)
def test_failures_are_reported_without_the_key(stand_in, case):
    turn, kind, message = FAILURES[case]
    stand_in.turns.extend([turn] * 2)
    with pytest.raises(kind, match=message) as caught:
        served_distribution(client(stand_in, retries=1, api_key=KEY), ["x="])
    assert KEY not in str(caught.value)
    assert stand_in.keys[0] == f"Bearer {KEY}"


def test_token_ids_are_needed_with_a_tokenizer(stand_in):
    stand_in.turns.append(logprobs({"content": [{"top_logprobs": [{"token": "1", "logprob": -0.1}]}]}))
    with pytest.raises(ValueError, match=r"'1' as text only.*leave tokenizer= out"):
        served_distribution(client(stand_in), ["x="], tokenizer=Tokenizer(stand_in.toy))


def test_a_single_attempt_at_no_server():
    with pytest.raises(ConnectionError, match=r"in 1 attempt\(s\).*refused.*check that it runs"):
        CompletionServer("http://127.0.0.1:9/v1", "toy").next_tokens(["x"], [""])


def drip(handler: Any) -> bool:
    """Send a byte now and then, for ever."""
    handler.send_response(200)
    handler.end_headers()
    while True:
        handler.wfile.write(b" ")
        handler.wfile.flush()
        time.sleep(0.05)


def sleep(handler: Any) -> bool:
    time.sleep(4)
    return True


@pytest.mark.parametrize("turn", [sleep, drip])
def test_a_server_that_does_not_answer_is_given_up(stand_in, turn):
    stand_in.turns.append(turn)
    with pytest.raises(TimeoutError, match="within timeout=0.2 seconds"):
        client(stand_in, timeout=0.2).next_tokens(["x"], [""])


def test_a_failure_ends_all_requests(stand_in, monkeypatch):
    """A hundred texts at a server that refuses: only requests under way are answered, and pauses are cut."""
    monkeypatch.setattr(connection, "LONGEST_PAUSE", 60.0)
    meeting = threading.Barrier(4)

    def refuse_last(handler: Any) -> bool:
        """Three requests are told to wait for half a minute, and one is refused."""
        last = meeting.wait(timeout=20) == 3
        time.sleep(0.2 * last)
        return bool(handler.send(401 if last else 429, {}, Retry_After="30"))

    stand_in.turns.extend([refuse_last] * 4)
    begun = time.monotonic()
    with pytest.raises(ConnectionError, match="401"):
        client(stand_in, concurrency=4).next_tokens(["x"] * 100, ["="] * 100)
    assert time.monotonic() - begun < 25  # a pause is half a minute
    assert len(stand_in.asked) < 10


def test_an_interruption_does_not_wait_for_requests():
    going, ended = threading.Event(), threading.Event()

    def ask(item: int, stop: threading.Event) -> None:
        _thread.interrupt_main()
        going.wait(5)
        ended.set()

    with pytest.raises(KeyboardInterrupt):
        connection.each(ask, [1], 1)
    assert not ended.is_set()
    going.set()
    assert ended.wait(60)


def test_keys_come_from_the_environment(stand_in, monkeypatch):
    monkeypatch.setenv("TOY_KEY", KEY + "\n")
    one = client(stand_in, api_key_variable="TOY_KEY")
    one.next_tokens(["x"], [""])
    assert stand_in.keys == [f"Bearer {KEY}"]
    assert KEY not in repr(one)
    assert KEY not in repr(client(stand_in, api_key=KEY))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"base_url": "localhost:8000"}, "base_url='localhost:8000' is not the URL"),
        ({"base_url": f"http://me:{KEY}@localhost/v1"}, "base_url is not the URL"),
        ({"base_url": f"http://localhost/v1?key={KEY}"}, "base_url is not the URL"),
        ({"top": 0}, "top=0 is out of range: expected an integer >= 1"),
        ({"concurrency": True}, "concurrency=True"),
        ({"retries": -1}, "retries=-1"),
        ({"timeout": 0}, "timeout=0"),
        ({"api_key": KEY + "\n"}, "expected a key in plain ASCII"),
        ({"api_key": KEY, "api_key_variable": "X"}, "both given"),
        ({"api_key_variable": "NOT_SET_ANYWHERE"}, "NOT_SET_ANYWHERE.*environment variable"),
    ],
)
def test_wrong_servers_are_refused(settings, message):
    with pytest.raises(ValueError, match=message) as caught:
        CompletionServer(**{"base_url": "http://localhost/v1", "model": "toy", **settings})
    assert KEY not in str(caught.value)


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ([[("1", -0.1)], []], "2 lists for 1 texts"),
        ([["1"]], "'1' after prompts.0. and ''.*pairs of a token's text"),
        ([[(1, -0.1)]], r"\(1, -0.1\).*a token's text"),
        ([[("1", float("nan"))]], "a number <= 0"),
        ([[("x", 0.0)]], "no number was found .no number 1"),
        ([[]], "not listed 1"),
    ],
)
def test_wrong_answers_of_a_function_are_refused(answers, message):
    with pytest.raises(ValueError, match=message):
        served_distribution(lambda texts: answers, ["x="])


@pytest.mark.parametrize(
    ("prompts", "settings", "kind", "message"),
    [
        ("x=", {}, TypeError, "prompts is a str"),
        (["x=", "x=12"], {}, ValueError, r"prompts\[1\] ends with 'x=12', within a number"),
        ([[1, 2]], {}, TypeError, r"prompts\[0\] is a list"),
        ([{"role": "user"}], {}, TypeError, r"prompts\[0\] is a dict"),
        ([[1, "2"]], {"tokenizer": {"1": 1}}, TypeError, r"prompts\[0\] is a list"),
        (["x="], {"width": 0}, ValueError, "width=0"),
        (["x="], {"covered": 2}, ValueError, "covered=2"),
        (["x="], {"batch_size": 0}, ValueError, "batch_size=0"),
        (["x="], {"grammar": "[0-9]"}, TypeError, "grammar is a str"),
    ],
)
def test_wrong_arguments_are_refused(prompts, settings, kind, message):
    with pytest.raises(kind, match=message):
        served_distribution(Toy(DIGITS).next_texts, prompts, **settings)


def test_neither_server_nor_function():
    with pytest.raises(TypeError, match="complete is a str: expected a CompletionServer, or a function"):
        served_distribution("http://localhost:8000/v1", ["x="])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="chat=True: expected chat=False"):
        served_distribution(CHAT, ["x"], tokenizer={"1": 1})
    for messages in ([], [{"role": "user", "content": "x"}, "y"]):
        with pytest.raises(TypeError, match=r"prompts\[0\] is a list.*list of messages"):
            served_distribution(CHAT, [messages])


def test_probabilities_above_1_by_rounding_are_scaled():
    table = {"": {"1": 0.606, "2": 0.404}, "1": {".": 1.0}, "2": {".": 1.0}, "1.": {"x": 1.0}, "2.": {"x": 1.0}}
    found = served_distribution(
        lambda texts: [[(token, log(p)) for token, p in table[text[1:]].items()] for text in texts], ["?"]
    )[0]
    assert masses(found) == pytest.approx({Decimal(1): 0.6, Decimal(2): 0.4})
    assert found.covered == pytest.approx(1)


def test_progress_and_other_grammars():
    """A function's answer may be float32, and a text grammar reads short answers."""
    table = {"": {"2_55": 0.5, "3": 0.25}, "2_55": {"\n": 1.0}, "3": {"_10": 1.0}, "3_10": {".": 1.0}}
    seen: list[tuple[int, int]] = []
    clock = TextGrammar("0123456789_", lambda text: int(text.replace("_", "")), most=5)
    found = served_distribution(
        lambda texts: [[(token, np.float32(log(p))) for token, p in table[text[1:]].items()] for text in texts],
        ["?"] * 3,
        grammar=clock,
        batch_size=2,
        progress=lambda done, total: seen.append((done, total)),
    )
    assert seen == [(2, 3), (3, 3)]
    assert masses(found[2]) == pytest.approx({Decimal(255): 0.5, Decimal(310): 0.25})
    assert found[0].not_searched == pytest.approx(0.25)
