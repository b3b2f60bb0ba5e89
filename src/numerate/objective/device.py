"""What the operator asks of a device: a second stream, one CPU thread, products wider than their factors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor

from numerate.losses.rows import wide


@contextmanager
def one_thread(device: torch.device) -> Iterator[None]:
    """Keep the CPU to this thread where it only reads labels: waking the others can take longer than a GPU's whole step."""
    before = torch.get_num_threads()
    torch.set_num_threads(1 if device.type == "cuda" else before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@cache
def _second_stream(device: torch.device) -> torch.cuda.Stream:
    # What is small goes first: beside a large kernel that fills the device it would wait for its end.
    return torch.cuda.Stream(device, priority=-1)


class SideStream:
    """Run the body on a second CUDA stream; no-op on a CPU.

    It waits for the current stream when it is made, and the current stream waits for it when its body ends, so that memory
    that one hands to the other is never reused too early.
    """

    def __init__(self, device: torch.device) -> None:
        self.stream = _second_stream(device) if device.type == "cuda" else None
        self.device = device
        self.wait_for_current()

    def wait_for_current(self) -> None:
        """Let the side stream wait for all that is queued on the current one."""
        if self.stream is not None:
            self.stream.wait_stream(torch.cuda.current_stream(self.device))

    def __enter__(self) -> None:
        self.entered = torch.cuda.stream(self.stream)
        self.entered.__enter__()

    def __exit__(self, *error: Any) -> None:
        self.entered.__exit__(*error)
        if self.stream is not None:
            torch.cuda.current_stream(self.device).wait_stream(self.stream)


def mm_wide(a: Tensor, b: Tensor) -> Tensor:
    """``a @ b`` of half-precision matrices, with the result in float32."""
    if a.dtype == wide(a.dtype):
        return a @ b
    if a.device.type == "cuda":
        return torch.mm(a, b, out_dtype=torch.float32)
    return a.float() @ b.float()


def add_mm_(total: Tensor, a: Tensor, b: Tensor) -> None:
    """``total += a @ b``, where ``total`` may be wider than the factors."""
    if total.dtype == a.dtype:
        total.addmm_(a, b)
    elif a.device.type == "cuda":
        torch.addmm(total, a, b, out_dtype=total.dtype, out=total)
    else:
        total.addmm_(a.to(total.dtype), b.to(total.dtype))
