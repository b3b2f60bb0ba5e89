"""A picture of how the fused operator's cost grows: with tokens, and with the numeric tokens of the vocabulary."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from numerate.bench.fused import FusedBench, FusedCase, FusedCost
from numerate.plotting import figure_for

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MARKERS = "osD^vPX*hd"

Measure = Callable[[FusedCost], float]


def plot_fused(result: FusedBench, path: str | Path) -> Path:
    """Time and peak memory of the first shape: on the left against tokens, on the right against N at the most tokens."""
    path = Path(path)
    figure = figure_for(path)(figsize=(12, 8.5), layout="constrained")
    cases = [case for case in result.cases if (case.vocab_size, case.hidden_size) == _shape(result.cases[0])]
    panels = figure.subplots(2, 2)
    time, memory = (lambda cost: cost.ratio), (lambda cost: cost.peak_mib)
    _against_tokens(panels[0, 0], cases, time)
    _against_tokens(panels[1, 0], cases, memory)
    _against_numeric(panels[0, 1], cases[-1], time)
    _against_numeric(panels[1, 1], cases[-1], memory)
    for axes in panels[0]:
        axes.set_ylabel("time, of the matrix products")
        axes.axhline(1, color="grey", linewidth=1)
    for axes in panels[1]:
        axes.set(ylabel="peak MiB", yscale="log")
    panels[1, 1].set_ylim(panels[1, 0].get_ylim())
    handles, labels = panels[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    vocab_size, hidden_size = _shape(cases[0])
    figure.suptitle(f"head {vocab_size:,} x {hidden_size:,}, {result.dtype}, {result.device}", fontweight="bold")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    return path


def _shape(case: FusedCase) -> tuple[int, int]:
    return case.vocab_size, case.hidden_size


def _against_tokens(axes: Axes, cases: list[FusedCase], measure: Measure) -> None:
    """Everything but the larger N, which the panel to the right shows."""
    fewest = min(cost.numeric_tokens for cost in cases[0].costs if cost.numeric_tokens is not None)
    shown = [cost for cost in cases[0].costs if cost.numeric_tokens in (None, fewest)]
    for marker, first in zip(_MARKERS * 2, shown, strict=False):
        points = [(case.tokens, measure(cost)) for case in cases for cost in case.costs if cost.name == first.name]
        style = "--" if first.numeric_tokens is None else "-"
        axes.plot(*zip(*points, strict=True), style, marker=marker, markersize=5, label=first.name)
    axes.set(xscale="log", xlabel="tokens")
    axes.set_xticks([case.tokens for case in cases], [f"{case.tokens:,}" for case in cases])
    axes.minorticks_off()
    axes.grid(alpha=0.3)


def _against_numeric(axes: Axes, case: FusedCase, measure: Measure) -> None:
    ours = [cost for cost in case.costs if cost.numeric_tokens is not None]
    for marker, name in zip(_MARKERS, dict.fromkeys(cost.loss for cost in ours), strict=False):
        costs = [cost for cost in ours if cost.loss == name]
        sizes = [cost.numeric_tokens or 0 for cost in costs]
        axes.plot(sizes, [measure(cost) for cost in costs], marker=marker, label=f"CE + {name}")
    sizes = sorted({cost.numeric_tokens or 0 for cost in ours})
    axes.set(xscale="log", xlabel=f"numeric tokens N, at {case.tokens:,} tokens")
    axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
    axes.minorticks_off()
    axes.legend(frameon=False, fontsize=9)
    axes.grid(alpha=0.3)
