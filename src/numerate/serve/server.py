"""The server: ``/v1/completions``, ``/v1/chat/completions``, ``/v1/models``, ``/health`` and ``/metrics``.

Requests are untrusted: see :mod:`numerate.web`. All errors are in OpenAI's format.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import uvicorn
from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from numerate.checks import one_line
from numerate.distribution import NumberDistribution
from numerate.lab.data.regression import Row
from numerate.lab.data.row_reader import BadData
from numerate.lab.models.questions import Questions
from numerate.lab.prediction.answering import Searched
from numerate.lab.prediction.prediction_file import Prediction
from numerate.lab.prediction.served_source import OWNER
from numerate.serve.batching import Batcher, QueueFullError, StoppingError
from numerate.serve.openai_format import (
    Cell,
    ChatRequest,
    CompletionRequest,
    OpenAIRequest,
    Said,
    details_of,
    error_response,
    exact_json,
    sentence,
)
from numerate.web import Guard, RefusedError, config_of, is_loopback, json_body, names_of

BODY_SECONDS = 60  # to receive a request


class AskedQuestion(NamedTuple):
    """A question, and a seed that changes what a search draws."""

    row: Row
    seed: int = 0


Answer = tuple[Searched, Prediction]


@dataclass(frozen=True)
class ServedModel:
    """A model and how it is asked."""

    name: str  # that requests call it
    questions: Questions  # how rows are asked about
    decide: str  # the rule of decisions
    level: float  # of the interval
    answer: Callable[[list[AskedQuestion]], Sequence[Answer]]  # from questions to distributions and predictions
    calls: int = 1  # concurrent calls of ``answer``, of one question each if there are several
    calibration: Mapping[str, Any] | None = None  # what the intervals are calibrated with; None: they are the model's own
    weights: str | None = None  # a mark that changes when the weights of the model change, if they are known

    @property
    def card(self) -> Mapping[str, Any]:
        """What clients read about the model: how it is asked, and what ``numerate predict --url`` needs to predict the same."""
        task, questions = self.questions.task, self.questions.to_dict()
        asked = {"target": task.target, "columns": list(task.columns or ()), "decide": self.decide, "interval": self.level}
        more = {"members": self.questions.members, "calibration": self.calibration, "weights": self.weights}
        return {**asked, "questions": questions, **more}

    def ask(self, question: str | Mapping[str, Cell]) -> Row:
        """Return the question of a prompt, which is asked unchanged, or of the cells of a row."""
        return Row(question, "") if isinstance(question, str) else self.questions.ask(question, Path())


@dataclass(frozen=True)
class Limits:
    """Limits of requests."""

    batch_size: int = 64  # questions that are asked together
    queue: int = 256  # questions that wait
    prompt: int = 20_000  # characters of a question
    body: int = 1 << 18  # bytes of a request
    seconds: float = 300.0  # from a request to its answer


class NumberApi:
    """The routes of one model."""

    def __init__(self, model: ServedModel, limits: Limits) -> None:
        self.model, self.limits = model, limits
        size = limits.batch_size if model.calls == 1 else 1
        self.batcher = Batcher(model.answer, size=size, room=limits.queue, at_once=model.calls)
        self.started = int(datetime.now(timezone.utc).timestamp())
        self.statuses: Counter[tuple[str, int]] = Counter()
        self.seconds = 0.0

    def app(self, names: Collection[str] = (), *, everywhere: bool = False) -> Starlette:
        """Return the web application; see :class:`numerate.web.Guard` for the arguments."""
        routes = [
            Route("/v1/completions", partial(self._counted, kind=CompletionRequest), methods=["POST"]),
            Route("/v1/chat/completions", partial(self._counted, kind=ChatRequest), methods=["POST"]),
            Route("/v1/models", self._models),
            Route("/v1/models/{name:path}", self._one_model),
            Route("/health", self._health),
            Route("/metrics", self._metrics),
        ]
        guard = Middleware(Guard, names=names, everywhere=everywhere, refuse=error_response)
        return Starlette(routes=routes, middleware=[guard], exception_handlers={HTTPException: _no_route})

    async def _counted(self, request: Request, kind: type[OpenAIRequest]) -> Response:
        begun = time.perf_counter()
        response = await self._answered(request, kind)
        self.statuses[request.url.path, response.status_code] += 1
        self.seconds += time.perf_counter() - begun
        return response

    async def _answered(self, request: Request, kind: type[OpenAIRequest]) -> Response:
        """Return the response to a request, or an error."""
        try:
            asked = kind.model_validate_json(await json_body(request, self.limits.body, BODY_SECONDS))
        except RefusedError as refused:
            return error_response(str(refused), refused.status)
        except ValidationError as error:
            message, field = sentence(error)
            return error_response(message, 400, param=field)
        if asked.model != self.model.name:
            return self._unknown(asked.model)
        try:
            rows = [self.model.ask(question) for question in asked.questions]
        except BadData as bad:
            return error_response(one_line(bad), 400, param="row")
        questions = [AskedQuestion(row, asked.seed or 0) for row in rows]
        if len(questions) > self.limits.queue:
            return error_response(f"{len(questions)} prompts: expected at most {self.limits.queue}.", 413, param="prompt")
        if (longest := max(len(row.prompt) for row, _ in questions)) > self.limits.prompt:
            message = f"the question has {longest:,} characters: expected at most {self.limits.prompt:,}."
            return error_response(message, 413, "context_length_exceeded")
        try:
            answers = await _while_connected(request, self.batcher.ask(questions), self.limits.seconds)
        except QueueFullError:
            waiting = f"{self.batcher.waiting} questions are waiting, of at most {self.limits.queue}"
            return error_response(f"the server is busy: {waiting}. Try again later.", 429, "queue_full")
        except StoppingError:
            return error_response("the server is stopping: ask again when it is back.", 503, "stopping")
        except ClientDisconnect:  # nobody reads this; the status is counted
            return error_response("the client has hung up.", 499)
        except TimeoutError as error:
            late = f"no answer within {self.limits.seconds:g} seconds: ask for less at a time, or try again later."
            return error_response(one_line(error) if str(error) else late, 504, "timeout")
        except ConnectionError as error:
            return error_response(one_line(error), 502)
        except Exception as error:
            logging.getLogger(__name__).exception("a request failed")
            return error_response(f"internal error: {one_line(error)}", 500)
        return self._response(asked, answers)

    def _response(self, asked: OpenAIRequest, answers: Sequence[Answer]) -> Response:
        texts, details = [], []
        for index, ((found, *_), prediction) in enumerate(answers):
            if not isinstance(found, NumberDistribution) or prediction.value is None:
                where = f"prompt[{index}]: " if len(answers) > 1 else ""
                return error_response(f"{where}{prediction.problem.rstrip('.')}.", 400, "no_number")
            texts.append(f"{prediction.value:f}")
            details.append(details_of(found, prediction, self.model.level) if asked.numerate else {})
        said = Said(asked, texts, details)
        if asked.stream:
            return StreamingResponse(said.events(), media_type="text/event-stream")
        return exact_json(said.whole())

    def _unknown(self, name: str) -> Response:
        message = f"model={name!r:.80} is not served here: expected {self.model.name!r}."
        return error_response(message, 404, "model_not_found", "model")

    @property
    def _card(self) -> Mapping[str, Any]:
        card = {"id": self.model.name, "object": "model", "created": self.started, "owned_by": OWNER}
        return {**card, "numerate": self.model.card}

    async def _models(self, request: Request) -> Response:
        return exact_json({"object": "list", "data": [self._card]})

    async def _one_model(self, request: Request) -> Response:
        name = request.path_params["name"]
        return exact_json(self._card) if name == self.model.name else self._unknown(name)

    async def _health(self, request: Request) -> Response:
        return exact_json({"status": "ok", "model": self.model.name})

    async def _metrics(self, request: Request) -> Response:
        """Return counts in Prometheus' text format."""
        values: dict[str, tuple[str, str, Mapping[str, float]]] = {
            "numerate_requests_total": (
                "counter",
                "Requests by route and status.",
                {f'{{route="{route}",status="{status}"}}': count for (route, status), count in sorted(self.statuses.items())},
            ),
            "numerate_request_seconds_total": ("counter", "Time from requests to their responses.", {"": self.seconds}),
            "numerate_model_calls_total": ("counter", "Calls of the model.", {"": self.batcher.calls}),
            "numerate_questions_total": ("counter", "Questions in these calls.", {"": self.batcher.asked}),
            "numerate_questions_waiting": ("gauge", "Questions that wait for the model.", {"": self.batcher.waiting}),
        }
        lines = []
        for name, (kind, help, samples) in values.items():
            lines += [f"# HELP {name} {help}", f"# TYPE {name} {kind}"]
            lines += [f"{name}{labels} {value}" for labels, value in samples.items()]
        return PlainTextResponse("\n".join(lines) + "\n", media_type="text/plain; version=0.0.4")


async def _no_route(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    message = f"{request.method} {request.url.path!r:.80} is not a route: expected POST /v1/completions or /v1/chat/completions."
    return error_response(message, status)


async def _while_connected(request: Request, work: Any, seconds: float) -> Any:
    """Return the result of ``work``, which is cancelled if it takes longer, or if the client hangs up."""
    working, gone = asyncio.ensure_future(work), asyncio.ensure_future(_hung_up(request))
    try:
        done, _ = await asyncio.wait({working, gone}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if working in done:
            return working.result()
        raise TimeoutError if not done else ClientDisconnect
    finally:
        for task in (working, gone):
            task.cancel()


async def _hung_up(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


class NumberServer(uvicorn.Server):
    """A server that answers the requests that are being asked when it ends, and refuses those that wait."""

    def __init__(self, api: NumberApi, host: str) -> None:
        super().__init__(config_of(api.app(names_of(host), everywhere=not is_loopback(host))))
        self.api = api

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End."""
        self.api.batcher.stop()
        await super().shutdown(sockets)
