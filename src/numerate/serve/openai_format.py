"""Requests and responses in OpenAI's format, with the field ``numerate``.

A request is checked completely: a field that would change the answer and cannot be honoured is an error. Fields of sampling, such
as ``temperature`` and ``max_tokens``, are accepted and have no effect: the answer is a decision on the complete distribution.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone
from decimal import Decimal
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from starlette.responses import Response

from numerate.distribution import NumberDistribution
from numerate.distribution.shares import SHARES
from numerate.lab.data.chats import as_question
from numerate.lab.data.row_reader import BadData
from numerate.lab.prediction.prediction_file import Prediction
from numerate.web import plain_sentence

Cell = str | int | float | bool | None
_TYPES = {408: "timeout", 429: "rate_limit_exceeded", 500: "server_error", 502: "upstream_error", 503: "server_error"}


class _Checked(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, frozen=True, strict=True)


class OpenAIRequest(_Checked):
    """What the requests of both routes share."""

    model: str
    numerate: bool | None = None
    stream: bool | None = None
    seed: int | None = Field(None, ge=0, lt=1 << 62)
    n: Literal[1] | None = None
    user: str | None = None
    metadata: dict[str, str] | None = None
    # Without effect: nothing is sampled or cut.
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, ge=0, le=1)
    max_tokens: int | None = Field(None, ge=1)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    stop: str | list[str] | None = None

    @property
    def questions(self) -> Sequence[str | Mapping[str, Cell]]:
        """Texts, or the cells of a row."""
        raise NotImplementedError


class CompletionRequest(OpenAIRequest):
    """A body of ``/v1/completions``; ``row`` has the cells of a table's row instead of a prompt."""

    prompt: Any = ""
    row: dict[str, Cell] | None = None

    @field_validator("prompt")
    @classmethod
    def _texts(cls, prompt: Any) -> Any:
        texts = prompt if isinstance(prompt, list) else [prompt]
        if not texts or not all(isinstance(text, str) for text in texts):
            raise ValueError("expected a text, or a list of texts; token ids are not supported")
        return prompt

    @model_validator(mode="after")
    def _one_of_both(self) -> CompletionRequest:
        if self.row is not None and self.prompt:
            raise ValueError("prompt and row are both given: expected one of them")
        if self.row is not None and "image" in self.row:
            raise ValueError("row has the column image: pictures are not supported")
        return self

    @property
    def questions(self) -> Sequence[str | Mapping[str, Cell]]:
        """The prompts, or the row."""
        return [self.row] if self.row is not None else self.prompt if isinstance(self.prompt, list) else [self.prompt]


class ChatRequest(OpenAIRequest):
    """A body of ``/v1/chat/completions``."""

    messages: list[dict[str, Any]]
    max_completion_tokens: int | None = Field(None, ge=1)

    @field_validator("messages")
    @classmethod
    def _ends_with_a_question(cls, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        if not messages or messages[-1].get("role") != "user":
            raise ValueError("expected a list of messages, of which the last one is the user's")
        try:
            as_question({"messages": messages})
        except BadData as bad:
            raise ValueError(bad.problem) from None
        return messages

    @property
    def questions(self) -> Sequence[str | Mapping[str, Cell]]:
        """The question, as ``numerate predict`` reads it from a row with messages."""
        return [str(as_question({"messages": self.messages})["prompt"])]


def sentence(error: ValidationError) -> tuple[str, str | None]:
    """Return the first error of a request as a sentence, and the field that it is about."""
    first = error.errors(include_url=False)[0]
    field = str(first["loc"][0]) if first["loc"] else None
    if first["type"] == "extra_forbidden":
        return f"{'.'.join(map(str, first['loc']))!r:.60} is not supported: leave it out.", field
    return plain_sentence(error), field


def error_response(message: str, status: int, code: str | None = None, param: str | None = None) -> Response:
    """Return an error in OpenAI's format."""
    kind = _TYPES.get(status, "invalid_request_error")
    headers = {"retry-after": "1"} if status in (429, 503) else {}
    return exact_json({"error": {"message": message, "type": kind, "param": param, "code": code}}, status, headers)


class Said:
    """The response to a request, in one piece or as a stream.

    ``texts`` are the decided numbers of its questions, ``details`` the field ``numerate`` of each, if the request asks for it.
    """

    def __init__(self, request: OpenAIRequest, texts: Sequence[str], details: Sequence[Mapping[str, Any]]) -> None:
        self.chat = isinstance(request, ChatRequest)
        self.model, self.texts = request.model, texts
        self.details = [{"numerate": one} if request.numerate else {} for one in details]
        created = int(datetime.now(timezone.utc).timestamp())
        self.head = {"id": f"{'chatcmpl' if self.chat else 'cmpl'}-{uuid.uuid4().hex}", "created": created}

    def whole(self) -> Mapping[str, Any]:
        """Return the body of a response in one piece."""
        named = [{"message": {"role": "assistant", "content": text}} if self.chat else {"text": text} for text in self.texts]
        return self._body("chat.completion" if self.chat else "text_completion", named, "stop")

    def events(self) -> Iterator[str]:
        """Yield server-sent events: the numbers, the end of each, and the end of the stream."""
        kind = "chat.completion.chunk" if self.chat else "text_completion"
        begun = [{"delta": {"role": "assistant", "content": text}} if self.chat else {"text": text} for text in self.texts]
        ended: list[dict[str, Any]] = [{"delta": {}} if self.chat else {"text": ""} for _ in self.texts]
        for body in (self._body(kind, begun, None), self._body(kind, ended, "stop", last=True)):
            yield f"data: {_exact(body)}\n\n"
        yield "data: [DONE]\n\n"

    def _body(self, kind: str, said: Sequence[Mapping[str, Any]], why: str | None, *, last: bool = False) -> Mapping[str, Any]:
        choices = [
            {"index": index, **one, **({} if last else details), "logprobs": None, "finish_reason": why}
            for index, (one, details) in enumerate(zip(said, self.details, strict=True))
        ]
        return {**self.head, "object": kind, "model": self.model, "choices": choices}


def details_of(found: NumberDistribution, prediction: Prediction, level: float) -> dict[str, Any]:
    """Return the field ``numerate`` of an answer; numbers have all their digits."""
    away = {} if prediction.disagreement is None else {"disagreement": prediction.disagreement, "unusual": prediction.unusual}
    return {
        "median": found.median,
        "mean": found.mean,
        "interval": {"level": level, "low": prediction.low, "high": prediction.high},
        **away,
        "distribution": {
            "values": found.values,
            "probabilities": found.probabilities.tolist(),
            **{name: float(getattr(found, name)) for name in SHARES},
        },
    }


def exact_json(body: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return a response of strict JSON, in which decimals keep their digits."""
    return Response(_exact(body), status, dict(headers or {}), "application/json")


def _exact(value: Any) -> str:
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{json.dumps(name)}: {_exact(one)}" for name, one in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_exact, value)) + "]"
    return json.dumps(value, allow_nan=False)
