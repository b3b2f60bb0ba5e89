"""Measure time and peak memory of a function, on a CPU or a GPU."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median

import torch

os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # or the profiler below writes to stderr

Work = Callable[[], object]


@dataclass(frozen=True)
class Kernel:
    """The kernels of one name, or on a CPU the operations."""

    name: str
    count: int
    runtime_ms: float


def runtime_ms(work: Work, device: torch.device, before: Work = lambda: None) -> float:
    """Return the time of one call in milliseconds; on a GPU, between two events after the kernels of ``before``."""
    if device.type == "cuda":
        before()
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        work()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end))
    begin = time.perf_counter()
    work()
    return (time.perf_counter() - begin) * 1000


def compare_ms(
    works: Mapping[str, Work],
    device: torch.device,
    *,
    repeats: int = 7,
    lead: int = 0,
    tick: Callable[[], object] = lambda: None,
    before: Work = lambda: None,
) -> dict[str, list[float]]:
    """Return the times of several functions, interleaved, so that a busy machine slows all of them equally.

    Each measured call follows ``lead`` calls of the same function, because a GPU's clock depends on its recent load.
    ``tick`` is called after every measurement, for a progress bar, and ``before`` in front of it, to keep a GPU busy while the
    CPU launches the kernels, as in the middle of a training step.
    """
    for work in works.values():
        work()
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(repeats):
        for name, work in works.items():
            for _ in range(lead):
                work()
            times[name].append(runtime_ms(work, device, before))
            tick()
    return times


def median_ratio(times: list[float], baseline: list[float]) -> float:
    """Return the median over rounds of ``time / baseline``."""
    return median(ours / theirs for ours, theirs in zip(times, baseline, strict=True))


def peak_mib(work: Work, device: torch.device) -> float:
    """Return the peak memory of one call in MiB, without previous allocations."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        work()
        torch.cuda.synchronize(device)
        return float(torch.cuda.max_memory_allocated(device) - before) / 2**20
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        work()
    held = peak = 0
    for event in profiler.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    return peak / 2**20


def kernels_of(work: Work, device: torch.device) -> tuple[Kernel, ...]:
    """Return the kernels of one call, those that take the most time first."""
    from torch.profiler import ProfilerActivity, profile

    on_gpu = device.type == "cuda"
    with profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]) as profiler:
        work()
        if on_gpu:
            torch.cuda.synchronize(device)
    events = [event for event in profiler.key_averages() if (event.device_type.name == "CUDA") == on_gpu]
    times = [event.self_device_time_total if on_gpu else event.self_cpu_time_total for event in events]
    kernels = [Kernel(event.key, event.count, time / 1000) for event, time in zip(events, times, strict=True) if time]
    return tuple(sorted(kernels, key=lambda kernel: -kernel.runtime_ms))
