"""Inspect a ``tokenizer.json`` that somebody uploaded, in a process of its own with limits on time and memory.

The file is data for the tokenizers library, and no code of it is run. It may still be hostile: a regular expression that never
ends, replacements that make a gigabyte of one character, a million numeric tokens, each of which a loss would compare with each.
No check of the text tells these apart from a useful file, so a child process reads it: it gets the bytes through a pipe (nothing
is written to a disk), may use a limited amount of processor time and memory, may write no file, and is killed when its time is
up. What comes back is JSON of a limited size, with texts cut short. Where the system has it, children are forked from a process
that has the libraries loaded, so that one takes a fraction of a second; elsewhere each loads them anew.
"""

from __future__ import annotations

import json
import multiprocessing
import os
from contextlib import suppress
from dataclasses import asdict
from multiprocessing.connection import Connection
from pathlib import Path
from threading import BoundedSemaphore
from typing import Any

from numerate.checks import one_line

MOST_BYTES = 32 << 20
SECONDS = 30
"""Of a child, after it is started; a large real file takes two."""

MEMORY = 3 << 30
AT_ONCE = 2

_STARTING = 60  # seconds until a child has loaded its libraries on a busy machine
_MOST_ANSWER = 1 << 20  # bytes
_MOST_TEXT, _MOST_TOKENS = 200, 200
_COMPRESSED = {b"\x1f\x8b": "gzip", b"PK": "zip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd"}

_RUNNING = BoundedSemaphore(AT_ONCE)
_FORKS = "forkserver" in multiprocessing.get_all_start_methods()


def inspect_upload(data: bytes, texts: list[str], *, seconds: float = SECONDS) -> dict[str, Any]:
    """Return what ``numerate inspect`` says about a file, or raise a ValueError that says why it cannot be read."""
    check_upload(data)
    if not _RUNNING.acquire(timeout=seconds):
        raise ValueError("Other files are being read: try again in a moment.")
    try:
        return _in_child(data, texts, seconds)
    finally:
        _RUNNING.release()


def check_upload(data: bytes) -> None:
    """Raise unless the bytes can be a ``tokenizer.json``: not too large, not compressed, a JSON object in UTF-8."""
    if len(data) > MOST_BYTES:
        raise ValueError(f"The file has {len(data) / 2**20:.1f} MiB: at most {MOST_BYTES >> 20} MiB can be read here.")
    for magic, name in _COMPRESSED.items():
        if data.startswith(magic):
            raise ValueError(f"The file is compressed ({name}): unpack it, and upload the tokenizer.json inside.")
    if not data.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] == b"{":
        raise ValueError("The file is not a tokenizer.json: expected a JSON object, which begins with a brace.")


def described(inspection: Any) -> dict[str, Any]:
    """Return an :class:`numerate.inspection.Inspection` as plain values, with long texts cut short."""
    return {
        "style": inspection.style,
        "facts": {name: _clipped(fact) for name, fact in inspection.facts.items()},
        "readings": [
            {
                "text": _clipped(reading.text),
                "thousands": reading.thousands,
                "tokens": [_clipped(token) for token in reading.tokens[:_MOST_TOKENS]],
                "exponents": list(reading.exponents[:_MOST_TOKENS]),
                "more": max(len(reading.tokens) - _MOST_TOKENS, 0),
                "numbers": [f"{number:.15g}" for number in reading.numbers[:_MOST_TOKENS]],
            }
            for reading in inspection.readings
        ],
        "advice": [asdict(advice) for advice in inspection.advice],
    }


def _clipped(text: str) -> str:
    return text if len(text) <= _MOST_TEXT else f"{text[:_MOST_TEXT]}.. ({len(text):,} characters)"


def _in_child(data: bytes, texts: list[str], seconds: float) -> dict[str, Any]:
    context: Any = multiprocessing.get_context("forkserver" if _FORKS else "spawn")
    if _FORKS:
        context.set_forkserver_preload(["numerate.playground.preloaded"])
    here, there = context.Pipe()
    child = context.Process(target=_child, args=(there, seconds), daemon=True)
    child.start()
    there.close()
    try:
        if not here.poll(_STARTING):
            raise ValueError("The process that reads files did not start: the machine may be too busy; try again.")
        here.recv_bytes(16)  # it is ready
        here.send_bytes(json.dumps(texts).encode())
        here.send_bytes(data)
        if not here.poll(seconds):
            raise ValueError(f"The file takes more than {seconds:g} seconds to read: it is not used.")
        answer: dict[str, Any] = json.loads(here.recv_bytes(_MOST_ANSWER))
    except (EOFError, OSError) as error:  # the child was ended by a limit
        raise ValueError(f"The file takes more time or memory than allowed ({MEMORY >> 30} GiB): it is not used.") from error
    finally:
        here.close()
        child.kill()
        child.join()
        child.close()
    if "error" in answer:
        raise ValueError(str(answer["error"]))
    return answer


def _child(pipe: Connection, seconds: float) -> None:
    """Read a file from the pipe, and answer with its inspection, or with what is wrong with it."""
    import torch

    from numerate.inspection import inspect_tokenizer
    from numerate.tokenizers import read_tokenizer

    torch.set_num_threads(1)
    with Path(os.devnull).open("w") as nowhere:  # a panic of the library prints its whole stack
        os.dup2(nowhere.fileno(), 2)
    pipe.send_bytes(b"ready")
    texts, data = json.loads(pipe.recv_bytes()), pipe.recv_bytes(MOST_BYTES)
    _limit(seconds)
    try:
        answer = described(inspect_tokenizer(read_tokenizer(data, Path("tokenizer.json")), texts))
    except MemoryError:
        answer = {"error": f"The file takes more memory than allowed ({MEMORY >> 30} GiB): it is not used."}
    except BaseException as error:  # also a panic of the library, which is no Exception
        problem = f"The file cannot be inspected: {one_line(error)}"
        answer = {"error": problem if len(problem) <= 500 else f"{problem[:500]} .."}
    with suppress(OSError):  # nobody waits any more
        pipe.send_bytes(json.dumps(answer).encode())


def _limit(seconds: float) -> None:
    """Limit this process where the system can: processor time, memory, and no files."""
    try:
        import resource
    except ImportError:  # Windows; the parent's time limit holds there too
        return
    used = resource.getrusage(resource.RUSAGE_SELF)
    processor = int(used.ru_utime + used.ru_stime + seconds) + 1
    for name, most in (("RLIMIT_CPU", processor), ("RLIMIT_DATA", MEMORY), ("RLIMIT_FSIZE", 0), ("RLIMIT_CORE", 0)):
        if hasattr(resource, name):
            with suppress(ValueError, OSError):  # a lower limit is already set
                resource.setrlimit(getattr(resource, name), (most, most))
