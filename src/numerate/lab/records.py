"""Files of a run: written whole or not at all, so that what is there can be trusted after any interruption."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def write_text(path: Path, text: str) -> None:
    """See :func:`write_bytes`."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes) -> None:
    """The whole content, or the file as it was: under another name first, then renamed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def write_json(path: Path, value: Any) -> None:
    """As JSON that every reader understands: what is infinite or not a number becomes null."""
    write_text(path, json.dumps(plain(value), indent=2, allow_nan=False) + "\n")


def write_jsonl(path: Path, rows: Iterable[Any]) -> None:
    """One JSON object a line."""
    write_text(path, "".join(json.dumps(plain(row), allow_nan=False) + "\n" for row in rows))


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """What :func:`write_jsonl` wrote."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def plain(value: Any) -> Any:
    """Lists, dicts, texts and finite numbers."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
