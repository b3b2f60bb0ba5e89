"""Device-dependent code: chunk sizes, a side stream, a single CPU thread, products in float32 or wider."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from numerate.losses.logit_rows import chunk_rows, wide


def rows_at_a_time(logits: Tensor) -> int:
    """Return how many rows of ``logits [R, V]`` fit a CPU's cache, or keep a GPU busy."""
    return chunk_rows(logits, 1 << 20 if logits.device.type == "cpu" else 1 << 26)


@cache
def _has_triton() -> bool:
    return find_spec("triton") is not None


def has_kernels(rows: Tensor) -> bool:
    """Whether the Triton kernels can read ``rows [R, V]``."""
    on_gpu = rows.device.type == "cuda" and rows.dtype in (torch.bfloat16, torch.float16, torch.float32)
    return on_gpu and rows.numel() > 0 and rows.stride(-1) == 1 and _has_triton()


@contextmanager
def one_thread(device: torch.device) -> Iterator[None]:
    """Run CPU work on one thread if ``device`` is a GPU: waking more threads can take longer than the GPU's whole step."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1 if device.type == "cuda" else num_threads)
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)


@cache
def _second_stream(device: torch.device) -> torch.cuda.Stream:
    # High priority: otherwise a small kernel would wait for a large one that fills the device.
    return torch.cuda.Stream(device, priority=-1)


class SideStream:
    """Run the body on a side stream; no-op on a CPU.

    The side stream waits for the current stream at construction, and the current stream waits for it at exit, so memory is never
    reused too early by the other stream.
    """

    def __init__(self, device: torch.device) -> None:
        self.stream = _second_stream(device) if device.type == "cuda" else None
        self.device = device
        if self.stream is not None:
            self.stream.wait_stream(torch.cuda.current_stream(device))

    def __enter__(self) -> None:
        self.entered = torch.cuda.stream(self.stream)
        self.entered.__enter__()

    def __exit__(self, *error: Any) -> None:
        self.entered.__exit__(*error)
        if self.stream is not None:
            torch.cuda.current_stream(self.device).wait_stream(self.stream)


def mm_wide(a: Tensor, b: Tensor) -> Tensor:
    """Return ``a @ b`` in float32 or wider."""
    if a.dtype == wide(a.dtype):
        return a @ b
    if a.device.type == "cuda":
        return torch.mm(a, b, out_dtype=torch.float32)
    return a.float() @ b.float()


def add_mm_(total: Tensor, a: Tensor, b: Tensor) -> None:
    """Add ``a @ b`` to ``total`` in place; ``total`` may be wider than the factors."""
    if total.dtype == a.dtype:
        total.addmm_(a, b)
    elif a.device.type == "cuda":
        torch.addmm(total, a, b, out_dtype=total.dtype, out=total)
    else:
        total.addmm_(a.to(total.dtype), b.to(total.dtype))
