"""Connection: requests to a server over HTTP, with a key, a time-out and retries. Uses only the standard library."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import cache
from http.client import HTTPException, HTTPResponse, IncompleteRead
from typing import Any, TypeVar
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, OpenerDirector, Request, build_opener

from numerate.checks import check_integer, check_number, one_line

LONGEST_PAUSE = 60.0  # seconds before a retry

_In = TypeVar("_In")
_Out = TypeVar("_Out")


class RejectedError(ConnectionError):
    """A server answered with an error.

    Attributes:
        status: of the response.
        body: of the response, truncated.
    """

    def __init__(self, message: str, status: int, body: str) -> None:
        super().__init__(message)
        self.status, self.body = status, body

    @property
    def of_this_request(self) -> bool:
        """Whether the server did not accept what this request asks for, and may accept another one."""
        return self.status in (400, 413, 422)


@dataclass(frozen=True)
class Connection:
    """A server and how to reach it.

    Args:
        base_url: URL including the version, such as ``http://localhost:8000/v1``.
        api_key: sent as ``Authorization: Bearer``; never shown in messages.
        api_key_variable: environment variable with the key, instead of ``api_key``.
        timeout: timeout of a request in seconds.
        retries: number of retries after status 408, 429 or 5xx, or a lost connection. The pause doubles from half a second, or is
            the server's ``Retry-After``.
        concurrency: number of concurrent requests.
    """

    base_url: str
    _: KW_ONLY
    api_key: str | None = field(default=None, repr=False)
    api_key_variable: str | None = None
    timeout: float = 60.0
    retries: int = 4
    concurrency: int = 8

    def __post_init__(self) -> None:
        address = urlsplit(self.base_url)
        if address.scheme not in ("http", "https") or not address.hostname or address.username or address.query:
            shown = f"base_url={self.base_url!r}" if "@" not in self.base_url and not address.query else "base_url"
            raise ValueError(
                f"{shown} is not the URL of a server: expected a URL such as 'http://localhost:8000/v1', without a user name "
                "or a query; pass a key as api_key=."
            )
        for name, least in (("retries", 0), ("concurrency", 1)):
            object.__setattr__(self, name, check_integer(name, getattr(self, name), f"an integer >= {least}", least=least))
        check_number("timeout", self.timeout, above=0)
        self._key()

    def request(self, url: str, body: Mapping[str, Any] | None, stop: threading.Event) -> bytes:
        """Send a body (None: a GET request) and return the response; retry until ``stop`` is set."""
        data = None if body is None else json.dumps(body).encode()
        tries = 0
        while True:
            tries += 1
            pause: float = min(0.5 * 2 ** (tries - 1), LONGEST_PAUSE)
            try:
                return self._send(url, data)
            except HTTPError as error:
                problem: Exception = self._refusal(url, error, tries)
                if not _passing(error.code):
                    raise problem from None
                pause = _retry_after(error) or pause
            except (OSError, HTTPException) as error:
                reason = error.reason if isinstance(error, URLError) else error
                if isinstance(reason, TimeoutError):
                    raise TimeoutError(
                        f"{url} did not respond within timeout={self.timeout:g} seconds: expected a response; raise it "
                        f"or lower concurrency={self.concurrency}."
                    ) from None
                lost = isinstance(reason, ConnectionResetError | ConnectionAbortedError | BrokenPipeError | IncompleteRead)
                why = one_line(reason) if isinstance(reason, Exception) else str(reason)
                problem = ConnectionError(
                    f"{url} was not reached in {tries} attempt(s) ({self.shown(why)}): expected a server at "
                    f"base_url={self.base_url!r}; check that it runs."
                )
                if not lost:
                    raise problem from None
            if tries > self.retries or stop.wait(pause):
                raise problem

    def _send(self, url: str, data: bytes | None) -> bytes:
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if key := self._key():
            headers["Authorization"] = f"Bearer {key}"
        request = Request(url, data, headers)
        deadline = time.monotonic() + self.timeout
        with _opener().open(request, timeout=self.timeout) as response:
            return _read(response, deadline)

    def _key(self) -> str | None:
        key = self.api_key
        if self.api_key_variable is not None:
            if key is not None:
                raise ValueError("api_key and api_key_variable are both given: expected one of them.")
            if not (key := os.environ.get(self.api_key_variable, "").strip()):
                raise ValueError(f"api_key_variable={self.api_key_variable!r}: expected an environment variable with a key.")
        if key is not None and not (isinstance(key, str) and key.isascii() and key.isprintable() and key and " " not in key):
            raise ValueError(
                "api_key contains a space or a character that is invalid in a header: expected a key in plain ASCII."
            )
        return key

    def _refusal(self, url: str, error: HTTPError, tries: int) -> RejectedError:
        """Return the error for a status that is not 200."""
        try:
            body = error.fp.read1(2000).decode(errors="replace")  # type: ignore[attr-defined]
        except (OSError, HTTPException):
            body = ""
        error.close()
        said = self.shown(body or error.reason, most=500)
        if error.code in (401, 403):
            hint = "expected a key with access to this model; pass api_key= or api_key_variable="
        elif _passing(error.code):
            hint = f"expected a response in {tries} attempt(s); lower concurrency={self.concurrency}, or raise retries="
        else:
            hint = self.hint(error.code)
        return RejectedError(f"{url} returned status {error.code} ({said}): {hint}.", error.code, body)

    def hint(self, status: int) -> str:
        """Return what was expected where the server refuses a request for good."""
        return f"expected a request that the server supports; check base_url={self.base_url!r}"

    def shown(self, text: str, most: int = 200) -> str:
        """Return a text in one line, truncated and without the key."""
        key = self._key()
        return " ".join((text.replace(key, "***") if key else text).split())[:most]


def each(ask: Callable[[_In, threading.Event], _Out], items: Sequence[_In], concurrency: int) -> list[_Out]:
    """Return ``ask(item, stop)`` for each item, concurrently; after an error, no request is started or retried.

    An interruption by the keyboard does not wait for requests, which a server may keep open for long.
    """
    stop, errors, found = threading.Event(), list[BaseException](), dict[int, _Out]()
    left, taking = iter(range(len(items))), threading.Lock()

    def work() -> None:
        while not stop.is_set():
            with taking:
                index = next(left, None)
            if index is None:
                return
            try:
                found[index] = ask(items[index], stop)
            except BaseException as error:
                errors.append(error)
                stop.set()

    threads = [
        threading.Thread(target=work, name=f"numerate-server-{number}", daemon=True)
        for number in range(min(concurrency, len(items)))
    ]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        stop.set()
    if errors:
        raise errors[0] from None
    return [found[index] for index in range(len(items))]


class _NoRedirect(HTTPRedirectHandler):
    """Report redirects: urllib would turn the request into a GET and send the key to another host."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


@cache
def _opener() -> OpenerDirector:
    return build_opener(_NoRedirect)


def _passing(status: int) -> bool:
    """Whether a retry may succeed."""
    return status in (408, 429) or (status >= 500 and status != 501)


def _read(response: HTTPResponse, deadline: float) -> bytes:
    """Return the complete body; raise if it is late or truncated."""
    length = None if response.chunked else response.length
    body = bytearray()
    while length is None or len(body) < length:
        part = response.read1(2**16)
        if not part:
            break
        body += part
        if time.monotonic() > deadline:
            raise TimeoutError
    if length is not None and len(body) < length:
        raise ConnectionResetError("the response was truncated")
    return bytes(body)


def _retry_after(error: HTTPError) -> float | None:
    """Return the ``Retry-After`` of a response in seconds, or None."""
    try:
        return min(max(float(error.headers.get("Retry-After", "")), 0.0), LONGEST_PAUSE)
    except ValueError:
        return None
