"""The server of the playground: the page, its files, and ``POST /api/NAME`` for every tab.

Requests are untrusted: see :mod:`numerate.web`.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from functools import partial
from pathlib import Path

import anyio
import torch
import uvicorn
from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from numerate.checks import one_line
from numerate.playground.tabs import TABS, Tab
from numerate.plotting.palette import css
from numerate.web import Guard, RefusedError, config_of, is_loopback, json_body, names_of, plain_sentence

PAGE = Path(__file__).parent / "page"
BODY_BYTES, BODY_SECONDS = 1 << 18, 60  # limits of a request
COMPUTATIONS = 4  # concurrent; further requests wait


def create_app(runs: Path | str = "runs", names: Collection[str] = (), *, everywhere: bool = False) -> Starlette:
    """Return the web application; ``runs`` is the folder of models; see :class:`numerate.web.Guard` for the other arguments."""
    runs = Path(runs)
    limiter = anyio.CapacityLimiter(COMPUTATIONS)
    routes: list[BaseRoute] = [
        Route("/", _index),
        Route("/palette.css", _palette),
        Route("/api", _defaults),
        Mount("/page", StaticFiles(directory=PAGE)),
    ]
    for name, tab in TABS.items():
        routes.append(Route(f"/api/{name}", partial(_answer, tab=tab, runs=runs, limiter=limiter), methods=["POST"]))
    return Starlette(routes=routes, middleware=[Middleware(Guard, names=names, everywhere=everywhere)])


async def _index(request: Request) -> Response:
    return FileResponse(PAGE / "index.html")


async def _palette(request: Request) -> Response:
    """Return the report's colours in both schemes."""
    style = (
        f":root {{ color-scheme: light dark; {css()} }}\n@media (prefers-color-scheme: dark) {{ :root {{ {css(dark=True)} }} }}\n"
    )
    return Response(style, media_type="text/css")


async def _defaults(request: Request) -> Response:
    """Return the first view of every tab."""
    return JSONResponse({name: tab.request().model_dump(mode="json") for name, tab in TABS.items()})


async def _answer(request: Request, *, tab: Tab, runs: Path, limiter: anyio.CapacityLimiter) -> Response:
    """Validate a tab's state and compute its answer in a thread, so that other requests do not wait."""
    try:
        body = await json_body(request, BODY_BYTES, BODY_SECONDS)
    except RefusedError as refused:
        return _error(str(refused), refused.status)
    try:
        return await anyio.to_thread.run_sync(_compute, tab, body, runs, limiter=limiter)
    except ValidationError as error:
        return _error(plain_sentence(error), 400)
    except ValueError as error:
        return _error(one_line(error), 400)
    except Exception as error:
        logging.getLogger(__name__).exception("a tab failed")
        return _error(f"internal error of the playground: {one_line(error)}", 500)


def _compute(tab: Tab, body: bytes, runs: Path) -> Response:
    asked = tab.request.model_validate_json(body)
    answer = tab.compute(asked, runs) if tab.reads_runs else tab.compute(asked)
    try:
        return JSONResponse(answer)
    except ValueError as error:  # NaN or infinity, which JSON does not have
        raise RuntimeError(f"an answer is not finite: {one_line(error)}") from error


def _error(message: str, status: int) -> Response:
    return JSONResponse({"error": message}, status)


def create_server(host: str, runs: Path | str = "runs") -> uvicorn.Server:
    """Return the server; ``run(sockets=[listener])`` serves until interrupted."""
    torch.set_num_threads(1)  # for each computation
    return uvicorn.Server(config_of(create_app(runs, names_of(host), everywhere=not is_loopback(host))))
