"""What web servers of this package share: who may ask, how much may be sent, and where they listen.

Requests are untrusted. Only requests for this host are answered (no DNS rebinding), other origins may not send anything, bodies
are limited in size and time, a page may not load anything from other hosts, and no other page can read an answer.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import anyio
import uvicorn
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from numerate.checks import check_number

if TYPE_CHECKING:
    from pydantic import ValidationError

POLICY = "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'self'; object-src 'none'"
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-cache",
}
CONNECTIONS = 512  # concurrent; further ones get status 503
_MOST_SHOWN = 60


class Guard:
    """Refuse requests for other hosts and from other origins, and add the security headers.

    Args:
        app: the application that answers all other requests.
        names: host names of this machine.
        everywhere: accept any IP address as host, because the server listens on more than the loopback address.
        refuse: makes the response from a message and a status.
    """

    def __init__(
        self,
        app: ASGIApp,
        names: Collection[str],
        everywhere: bool = False,
        refuse: Callable[[str, int], Response] = PlainTextResponse,
    ) -> None:
        self.app, self.refuse = app, refuse
        self.names = {"localhost", *names}
        self.everywhere = everywhere

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        if scope["type"] != "http":
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        app: ASGIApp = self.app
        headers = Headers(scope=scope)
        hosts, origins = headers.getlist("host"), headers.getlist("origin")
        if len(hosts) != 1 or not self.knows(hosts[0]):
            app = self.refuse("This host name is not that of this server.", 400)
        elif scope["method"] not in ("GET", "HEAD") and any(origin != f"{scope['scheme']}://{hosts[0]}" for origin in origins):
            app = self.refuse("Requests from other origins are refused.", 403)
        await app(scope, receive, guarded)

    def knows(self, host: str) -> bool:
        """Whether ``host`` is one of the names, or an IP address, which no DNS server can redirect."""
        name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
        try:
            address = ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
        except ValueError:
            return name.lower() in self.names
        return self.everywhere or address.is_loopback or str(address) in self.names


class RefusedError(Exception):
    """A request that is not read, with the status of the response."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


async def json_body(request: Request, most: int, seconds: float) -> bytes:
    """Return the body of a request of at most ``most`` bytes, or raise :class:`RefusedError`."""
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise RefusedError("expected content-type application/json.", 415)
    body = bytearray()
    try:
        with anyio.fail_after(seconds):
            async for part in request.stream():
                body += part
                if len(body) > most:  # counted as received: content-length is not trusted
                    raise RefusedError(f"the request is too large: expected at most {most >> 10} KiB.", 413)
    except TimeoutError:
        raise RefusedError(f"the request timed out: expected it within {seconds:g} seconds.", 408) from None
    except ClientDisconnect:  # nobody reads the answer
        raise RefusedError("the connection was closed before the request was complete.", 400) from None
    return bytes(body)


def plain_sentence(error: ValidationError) -> str:
    """Return the first error of a request as one sentence with field, value and expectation."""
    first = error.errors(include_url=False)[0]
    where = ".".join(map(str, first["loc"])) or "the request"
    message = first["msg"].removeprefix("Value error, ").rstrip(".")
    if first["type"] in ("value_error", "missing", "json_invalid"):
        return f"{where}: {message}."
    value = repr(first["input"])
    value = value if len(value) <= _MOST_SHOWN else f"{value[:_MOST_SHOWN]}.."
    return f"{where}={value}: {message}."


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


def names_of(host: str) -> set[str]:
    """Return the names under which a server that listens on ``host`` may be asked for."""
    return {host.lower(), *(() if is_loopback(host) else (socket.gethostname().lower(), socket.getfqdn().lower()))}


def config_of(app: ASGIApp) -> uvicorn.Config:
    """Return the settings of a server that says nothing of itself."""
    return uvicorn.Config(
        app,
        lifespan="off",
        ws="none",
        proxy_headers=False,  # the client address is not used
        limit_concurrency=CONNECTIONS,
        log_level="error",
        access_log=False,
        server_header=False,
    )
