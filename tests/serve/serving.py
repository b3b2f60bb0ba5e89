"""What the tests of the server share: a model that answers at once, a client, and small runs."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="the extra playground is not installed")
pytest.importorskip("httpx2", reason="httpx2, which the test client needs, is not installed")

from anyio.from_thread import start_blocking_portal
from starlette.testclient import TestClient

from numerate.distribution import NumberDistribution
from numerate.lab.data.regression import Regression
from numerate.lab.models.questions import Questions
from numerate.lab.prediction.answering import Searched
from numerate.lab.prediction.prediction_file import Prediction
from numerate.lab.training.config import RunConfig, checked
from numerate.lab.training.run import run
from numerate.serve.server import Answer, AskedQuestion, Limits, NumberApi, NumberServer, ServedModel
from numerate.web import listening

QUICK = {"task": "regression", "keep_model": True, "steps": 30, "batch_size": 16, "eval_examples": 2, "learning_rate": 0.01}
PROBLEM = "no number was found"


class Ready:
    """A model whose answer is the number of characters of a question; it waits for ``going``, and may fail."""

    def __init__(self) -> None:
        self.calls: list[list[AskedQuestion]] = []
        self.going, self.begun = threading.Event(), threading.Event()
        self.going.set()
        self.error: Exception | None = None
        self.served = ServedModel("ready", Questions(Regression(target="rent", columns=("area",))), "median", 0.9, self.answer)

    def answer(self, questions: list[AskedQuestion]) -> Sequence[Answer]:
        self.calls.append(questions)
        self.begun.set()
        assert self.going.wait(60)
        if self.error is not None:
            raise self.error
        return [self._one(len(question.row.prompt)) for question in questions]

    def _one(self, size: int) -> Answer:
        if not size:
            return Searched(PROBLEM), Prediction(problem=PROBLEM)
        found = NumberDistribution([size, size + 1], [0.75, 0.25], covered=0.5, no_number=0.5)
        return Searched(found), Prediction(Decimal(size), Decimal(size), Decimal(size + 1))

    def api(self, **limits: float) -> NumberApi:
        return NumberApi(self.served, Limits(**limits))


def in_a_loop(work: Callable[[], Awaitable[None]]) -> None:
    """Run a coroutine function in a thread with a loop of its own: a browser in other tests leaves a loop running in this one."""
    with start_blocking_portal() as portal:
        portal.call(work)


@contextmanager
def listened(api: NumberApi) -> Iterator[str]:
    """Run a server in a thread; yield its URL."""
    with listening("127.0.0.1", 0) as (listener, address):
        server = NumberServer(api, "127.0.0.1")
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield f"{address}v1"
        finally:
            server.should_exit = True
            thread.join()


def client_of(api: NumberApi) -> TestClient:
    return TestClient(api.app(), base_url="http://127.0.0.1:8000", raise_server_exceptions=False)


def train(folder: Path, **settings: object) -> Path:
    rows = [f"{20 + i % 50},{i % 4},{30 + i % 7}" for i in range(120)]
    (folder / "flats.csv").write_text("\n".join(["area,rooms,rent", *rows]))
    given = {"data": str(folder / "flats.csv"), "task_settings": {"target": "rent"}, **settings}
    run(checked(RunConfig, {**QUICK, **given}), folder / "run")
    return folder / "run"
