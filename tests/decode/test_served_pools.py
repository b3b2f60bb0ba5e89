"""Several servers as one pool: equal to the pool of single servers, asked at the same time, with errors that name the server."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from tests.decode.stand_in import CHUNKS, DIGITS, StandIn, Toy, serving
from tests.decode.test_served import EVERYTHING, PROMPTS, SMALL, Tokenizer, answer, client, logprobs

from numerate.decode import connection, served_distribution
from numerate.distribution import pool

WEIGHTS = [1, 3, 0.5]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(connection, "LONGEST_PAUSE", 0.01)


@pytest.fixture
def servers() -> Iterator[list[StandIn]]:
    with ExitStack() as stack:
        yield [stack.enter_context(serving(Toy(DIGITS, seed=seed))) for seed in range(3)]


@pytest.mark.parametrize("batch_size", [1, 64])
def test_the_pool_of_servers_is_that_of_their_distributions(servers: list[StandIn], batch_size: int) -> None:
    members, search = [*map(client, servers)], {"grammar": SMALL, "width": 4, "batch_size": batch_size}
    seen: list[tuple[int, int]] = []
    found = served_distribution(members, PROMPTS, weights=WEIGHTS, progress=lambda *done: seen.append(done), **search)
    alone = [served_distribution(member, PROMPTS, **search) for member in members]
    assert alone[0] != alone[1] != alone[2]
    assert found == [pool(list(row), WEIGHTS) for row in zip(*alone, strict=True)]
    step = min(batch_size, len(PROMPTS))
    assert seen == [(done, 6) for done in range(step, 7, step)]
    assert served_distribution(members[:1], PROMPTS, **search) == alone[0]
    functions = [server.toy.next_texts for server in servers]
    mixed = served_distribution((members[0], *functions[1:]), PROMPTS, weights=WEIGHTS, **search)
    assert [one.values for one in mixed] == [one.values for one in found]


def test_each_server_has_its_tokenizer() -> None:
    toys = [Toy(DIGITS), Toy(CHUNKS)]
    functions = [lambda rows, toy=toy: [toy.top(row, len(toy.texts)) for row in rows] for toy in toys]
    tokenizers = [*map(Tokenizer, toys)]
    found = served_distribution(functions, PROMPTS, tokenizer=tokenizers, grammar=SMALL, **EVERYTHING)
    alone = [
        served_distribution(function, PROMPTS, tokenizer=tokenizer, grammar=SMALL, **EVERYTHING)
        for function, tokenizer in zip(functions, tokenizers, strict=True)
    ]
    assert found == [pool(list(row)) for row in zip(*alone, strict=True)]
    with pytest.raises(ValueError, match="tokenizer has 1 entries for 2 models"):
        served_distribution(functions, PROMPTS, tokenizer=tokenizers[:1])


def test_servers_are_asked_at_the_same_time(servers: list[StandIn]) -> None:
    meeting = threading.Barrier(len(servers))

    def meet(handler: Any) -> bool:
        meeting.wait(timeout=20)
        return False

    for server in servers:
        server.turns.append(meet)
    served_distribution([client(server, concurrency=1) for server in servers], PROMPTS, grammar=SMALL, width=2)
    assert not meeting.broken


def test_functions_are_called_by_one_thread(servers: list[StandIn]) -> None:
    threads = set()

    def complete(texts: list[str]) -> Any:
        threads.add(threading.get_ident())
        return servers[0].toy.next_texts(texts)

    served_distribution([complete, complete, client(servers[1])], PROMPTS, grammar=SMALL, width=2)
    assert threads == {threading.get_ident()}


@pytest.mark.parametrize(
    ("turn", "kind", "message"),
    [
        (answer(401, {}), ConnectionError, "401"),
        (logprobs(None), ValueError, "no log-probabilities"),
        (logprobs({"top_logprobs": [{"1": 0.7}]}), ValueError, "a number <= 0"),
    ],
)
def test_an_error_names_the_server_and_ends_the_others(servers: list[StandIn], turn: Any, kind: Any, message: str) -> None:
    """The other servers answer their first request only after the failure, and get no other."""
    failed = threading.Event()

    def wait(handler: Any) -> bool:
        failed.wait(timeout=20)
        return False

    def fail(handler: Any) -> bool:
        threading.Timer(1, failed.set).start()
        return bool(turn(handler))

    servers[1].turns.append(fail)
    for server in (servers[0], servers[2]):
        server.turns.append(wait)
    members = [client(server, concurrency=1, options={"user": str(place)}) for place, server in enumerate(servers)]
    with pytest.raises(kind, match=rf"^complete\[1\] \(model='toy'\): .*{message}"):
        served_distribution(members, PROMPTS[:1], grammar=SMALL, width=4)
    assert [len(server.asked) for server in servers] == [1, 1, 1]


def test_an_error_of_a_function_names_its_place(servers: list[StandIn]) -> None:
    with pytest.raises(ValueError, match=r"^complete\[1\]: complete returned 0 lists"):
        served_distribution([servers[0].toy.next_texts, lambda texts: []], PROMPTS)


def test_a_server_without_a_number_counts_as_no_number(servers: list[StandIn]) -> None:
    silent = lambda texts: [[("x", 0.0)] for _ in texts]  # noqa: E731
    speaking = servers[0].toy.next_texts
    alone = served_distribution(speaking, PROMPTS, grammar=SMALL, **EVERYTHING)
    found = served_distribution([silent, speaking], PROMPTS, weights=[1, 3], grammar=SMALL, **EVERYTHING)
    for one, other in zip(found, alone, strict=True):
        assert one.values == other.values
        assert one.no_number == pytest.approx(0.25 + 0.75 * other.no_number)
        assert one.covered == pytest.approx(0.75 * other.covered)
    with pytest.raises(ValueError, match=r"prompts\[0\]: no number was found"):
        served_distribution([silent, silent], PROMPTS)


def test_wrong_arguments() -> None:
    with pytest.raises(ValueError, match="empty list"):
        served_distribution([], PROMPTS)
    with pytest.raises(TypeError, match="expected a CompletionServer"):
        served_distribution(["http://localhost/v1"], PROMPTS)
    with pytest.raises(ValueError, match="weights has shape"):
        served_distribution([Toy(DIGITS).next_texts] * 2, PROMPTS, weights=[1])
