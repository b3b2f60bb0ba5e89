"""Read the body of a request, with limits on its size, its time, and the memory of all bodies together."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
from starlette.requests import ClientDisconnect, Request

SECONDS = 60
"""The most that a body may take to arrive."""

MOST_HELD = 256 << 20
"""Bytes of the bodies that are held at once; further ones are refused."""

_held = 0  # bytes; only the thread of the event loop changes it


class BodyError(Exception):
    """A body that is not read, with the status of the answer that says so."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


@asynccontextmanager
async def read_body(request: Request, most: int) -> AsyncIterator[bytes]:
    """Read at most ``most`` bytes, counted as they come: a length that the request tells is not believed."""
    global _held
    body = bytearray()
    try:
        try:
            with anyio.fail_after(SECONDS):
                async for part in request.stream():
                    body += part
                    _held += len(part)
                    if len(body) > most:
                        raise BodyError(f"too large: at most {most / (1 << 20):g} MiB can be sent here.", 413)
                    if _held > MOST_HELD:
                        raise BodyError("too much is being sent at once: try again in a moment.", 503)
        except TimeoutError:
            raise BodyError(f"too slow: a request has to arrive within {SECONDS:g} seconds.", 408) from None
        except ClientDisconnect:  # nobody is there to read an answer
            raise BodyError("the connection was closed before the request was complete.", 400) from None
        yield bytes(body)
    finally:
        _held -= len(body)
