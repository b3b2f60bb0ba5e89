"""The server of the playground: the page, its files, and ``POST /api/NAME`` for every tab.

Requests are untrusted. Only requests for this host are answered (no DNS rebinding), other origins may not send anything, bodies
are limited in size and time, the page may not load anything from other hosts, and no other page can read an answer.
"""

from __future__ import annotations

import ipaddress
import logging
import socket
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import anyio
import torch
import uvicorn
from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from numerate.checks import check_number, one_line
from numerate.playground.request import plain_sentence
from numerate.playground.tabs import TABS, Tab
from numerate.plotting.palette import css

PAGE = Path(__file__).parent / "page"
POLICY = "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'self'; object-src 'none'"
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-cache",
}
BODY_BYTES, BODY_SECONDS = 1 << 18, 60  # limits of a request
COMPUTATIONS = 4  # concurrent; further requests wait
CONNECTIONS = 512  # concurrent; further ones get status 503


class Guard:
    """Refuse requests for other hosts and from other origins, and add the security headers.

    Args:
        app: the application that answers all other requests.
        names: host names of this machine.
        everywhere: accept any IP address as host, because the server listens on more than the loopback address.
    """

    def __init__(self, app: ASGIApp, names: Collection[str], everywhere: bool = False) -> None:
        self.app = app
        self.names = {"localhost", *names}
        self.everywhere = everywhere

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        app, headers = self.app, Headers(scope=scope)
        hosts, origins = headers.getlist("host"), headers.getlist("origin")
        if len(hosts) != 1 or not self.knows(hosts[0]):
            app = PlainTextResponse("This host name is not the playground's.", 400)
        elif scope["method"] not in ("GET", "HEAD") and any(origin != f"{scope['scheme']}://{hosts[0]}" for origin in origins):
            app = PlainTextResponse("Requests from other origins are refused.", 403)
        await app(scope, receive, guarded)

    def knows(self, host: str) -> bool:
        """Whether ``host`` is one of the names, or an IP address, which no DNS server can redirect."""
        name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
        try:
            address = ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
        except ValueError:
            return name.lower() in self.names
        return self.everywhere or address.is_loopback or str(address) in self.names


def create_app(runs: Path | str = "runs", names: Collection[str] = (), *, everywhere: bool = False) -> Starlette:
    """Return the web application; ``runs`` is the folder of models; see :class:`Guard` for the other arguments."""
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
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        return _error("expected content-type application/json.", 415)
    body = bytearray()
    try:
        with anyio.fail_after(BODY_SECONDS):
            async for part in request.stream():
                body += part
                if len(body) > BODY_BYTES:  # counted as received: content-length is not trusted
                    return _error(f"the request is too large: expected at most {BODY_BYTES >> 10} KiB.", 413)
    except TimeoutError:
        return _error(f"the request timed out: expected it within {BODY_SECONDS:g} seconds.", 408)
    except ClientDisconnect:  # nobody reads the answer
        return _error("the connection was closed before the request was complete.", 400)
    try:
        return await anyio.to_thread.run_sync(_compute, tab, bytes(body), runs, limiter=limiter)
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


def is_loopback(host: str) -> bool:
    """Whether ``host`` is reachable from this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@contextmanager
def listening(host: str, port: int) -> Iterator[tuple[socket.socket, str]]:
    """Listen on a port, 0 for any free one; yield the socket and the URL."""
    check_number("port", port, least=0, most=65535)
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror as error:
        raise ValueError(f"host={host!r} is not known here: expected an address of this machine, such as 127.0.0.1.") from error
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(address)
            listener.listen(128)
        except OSError as error:
            raise ValueError(f"port {port} of {host} cannot be used ({error.strerror}): pass another one with --port.") from error
        shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
        yield listener, f"http://{shown}:{listener.getsockname()[1]}/"


def create_server(host: str, runs: Path | str = "runs") -> uvicorn.Server:
    """Return the server; ``run(sockets=[listener])`` serves until interrupted."""
    torch.set_num_threads(1)  # for each computation
    names = {host.lower(), *(() if is_loopback(host) else (socket.gethostname().lower(), socket.getfqdn().lower()))}
    app = create_app(runs, names, everywhere=not is_loopback(host))
    config = uvicorn.Config(
        app,
        lifespan="off",
        ws="none",
        proxy_headers=False,  # the client address is not used
        limit_concurrency=CONNECTIONS,
        log_level="error",
        access_log=False,
        server_header=False,
    )
    return uvicorn.Server(config)
