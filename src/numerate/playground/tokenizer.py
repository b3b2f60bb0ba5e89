"""The tab "your tokenizer": what ``numerate inspect`` says about a packaged tokenizer, or about a ``tokenizer.json`` of yours.

An uploaded file is read in memory by a process of its own (:mod:`numerate.playground.uploaded`), and nothing of it is kept.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, ValidationError

from numerate.checks import one_line
from numerate.inspection import EXAMPLES, inspect_tokenizer
from numerate.playground.loading import LOADING, check_installed
from numerate.playground.request import TabRequest, plain_sentence
from numerate.playground.uploaded import MOST_BYTES, described, inspect_upload
from numerate.tokenizers import PACKAGED, load_tokenizer, packaged_file

if TYPE_CHECKING:
    from starlette.routing import BaseRoute

UPLOAD = "/api/tokenizer/upload"
_HEADER = "x-texts"  # the texts to split, as JSON in ASCII

Text = Annotated[str, Field(min_length=1, max_length=200)]


class TokenizerRequest(TabRequest):
    """A tokenizer to inspect, and the texts to split with it."""

    name: Annotated[str, Field(max_length=40)] = "one digit"
    texts: Annotated[list[Text], Field(min_length=1, max_length=8)] = [*EXAMPLES]  # noqa: RUF012 - pydantic copies defaults


def compute(request: TokenizerRequest) -> dict[str, object]:
    """Return what ``numerate inspect`` says about a packaged tokenizer."""
    check_installed("Reading a tokenizer")
    known = choices()
    if request.name not in known:
        raise ValueError(f"name={request.name!r} is not here: expected one of {', '.join(known)}; upload other tokenizers.")
    return _answer(request.name, described(inspect_tokenizer(_loaded(request.name), request.texts)))


def inspect_file(data: bytes, request: TokenizerRequest) -> dict[str, object]:
    """Return what ``numerate inspect`` says about an uploaded file."""
    check_installed("Reading a tokenizer")
    return _answer("your file", inspect_upload(data, request.texts))


def choices() -> dict[str, Callable[[], Any]]:
    """Return the tokenizers that are at hand, and what loads each."""
    from numerate.lab.models.loading import tiny_tokenizer

    at_hand: dict[str, Callable[[], Any]] = {
        "one digit": partial(tiny_tokenizer, 1),
        "one to three digits": partial(tiny_tokenizer, 3),
    }
    for name in PACKAGED:
        try:
            packaged_file(name)
        except ModuleNotFoundError:
            continue
        at_hand[name] = partial(load_tokenizer, name)
    return at_hand


def routes(runs: Path) -> Sequence[BaseRoute]:
    """Return the address of uploads: the bytes of the file as the body, the texts in a header."""
    from anyio import CapacityLimiter, to_thread
    from starlette.requests import Request
    from starlette.responses import JSONResponse, Response
    from starlette.routing import Route

    from numerate.playground.body import BodyError, read_body

    limiter = CapacityLimiter(4)

    async def upload(request: Request) -> Response:
        # Not a type that a form of another page could send.
        if request.headers.get("content-type", "").partition(";")[0].strip() != "application/octet-stream":
            return JSONResponse({"error": "expected the bytes of a file: send content-type application/octet-stream."}, 415)
        if request.headers.get("content-encoding", "identity") != "identity":
            return JSONResponse({"error": "compressed files are not read: send the tokenizer.json itself."}, 415)
        try:
            asked = TokenizerRequest(texts=json.loads(request.headers.get(_HEADER) or json.dumps(EXAMPLES)))
            async with read_body(request, MOST_BYTES) as body:
                return JSONResponse(await to_thread.run_sync(inspect_file, body, asked, limiter=limiter))
        except BodyError as error:
            return JSONResponse({"error": str(error)}, error.status)
        except ValidationError as error:
            return JSONResponse({"error": plain_sentence(error)}, 400)
        except (ValueError, RecursionError) as error:
            return JSONResponse({"error": one_line(error)}, 400)

    return [Route(UPLOAD, upload, methods=["POST"])]


def _answer(name: str, found: dict[str, Any]) -> dict[str, object]:
    return {"name": name, "choices": [*choices()], "most_bytes": MOST_BYTES, **found}


def _loaded(name: str) -> Any:
    with LOADING:
        return _kept(name)


@cache
def _kept(name: str) -> Any:
    return choices()[name]()
