"""Count the parameters of a GGUF file by its header, without reading weights or building a tokenizer.

The header is ``GGUF``, the version, the number of tensors and of settings; then each setting as name, type and value; then each
tensor as name, number of dimensions, dimensions, type and offset. Numbers are little-endian.
"""

from __future__ import annotations

import math
import mmap
import struct
from pathlib import Path

_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # bytes of a value, by its type
_STRING, _ARRAY = 8, 9


def gguf_parameters(file: Path) -> int:
    """Return the number of parameters of all tensors."""
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data:
        if data[:4] != b"GGUF":
            raise ValueError(f"{file} does not begin with GGUF: expected a model in that format.")
        tensors, settings = struct.unpack_from("<QQ", data, 8)
        at = 24
        for _ in range(settings):
            at = _after_string(data, at)
            (kind,) = struct.unpack_from("<I", data, at)
            at = _after_value(data, at + 4, kind)
        total = 0
        for _ in range(tensors):
            at = _after_string(data, at)
            (dimensions,) = struct.unpack_from("<I", data, at)
            total += math.prod(struct.unpack_from(f"<{dimensions}Q", data, at + 4))
            at += 4 + 8 * dimensions + 12
        return total


def _after_string(data: mmap.mmap, at: int) -> int:
    (length,) = struct.unpack_from("<Q", data, at)
    return at + 8 + int(length)


def _after_value(data: mmap.mmap, at: int, kind: int) -> int:
    if kind == _STRING:
        return _after_string(data, at)
    if kind != _ARRAY:
        return at + _SIZES[kind]
    kind, length = struct.unpack_from("<IQ", data, at)
    at += 12
    if kind in _SIZES:
        return at + int(length) * _SIZES[kind]
    for _ in range(length):
        at = _after_value(data, at, kind)
    return at
