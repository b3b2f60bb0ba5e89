"""A picture of how the fused operator's cost grows: with tokens, and with the numeric tokens of the vocabulary."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from numerate.bench.fused import FusedBench, FusedCase, FusedCost
from numerate.pictures import figure_for

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MARKERS = "osD^vPX*<>hd"


def plot_fused(result: FusedBench, path: str | Path) -> Path:
    """Time and peak memory of the first shape: on the left against tokens, on the right against N at the most tokens."""
    path = Path(path)
    figure = figure_for(path)(figsize=(12, 8), layout="constrained")
    cases = [case for case in result.cases if (case.vocab_size, case.hidden_size) == _shape(result.cases[0])]
    measures: dict[str, Callable[[FusedCost], float]] = {
        "ms, forward and backward": lambda cost: cost.runtime_ms,
        "peak MiB": lambda cost: cost.peak_mib,
    }
    panels = figure.subplots(2, 2, sharey="row")
    for row, (name, measure) in zip(panels, measures.items(), strict=True):
        _against_tokens(row[0], cases, measure)
        _against_numeric(row[1], cases[-1], measure)
        row[0].set_ylabel(name)
    handles, labels = panels[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    vocab_size, hidden_size = _shape(cases[0])
    figure.suptitle(f"head {vocab_size:,} x {hidden_size:,}, {result.dtype}, {result.device}", fontweight="bold")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    return path


def _shape(case: FusedCase) -> tuple[int, int]:
    return case.vocab_size, case.hidden_size


def _against_tokens(axes: Axes, cases: list[FusedCase], measure: Callable[[FusedCost], float]) -> None:
    for marker, first in zip(_MARKERS * 2, cases[0].costs, strict=False):
        points = [(case.tokens, measure(cost)) for case in cases for cost in case.costs if cost.name == first.name]
        style = "--" if first.numeric_tokens is None else "-"
        axes.plot(*zip(*points, strict=True), style, marker=marker, markersize=5, label=first.name)
    axes.set(xscale="log", yscale="log", xlabel="tokens")
    axes.set_xticks([case.tokens for case in cases], [f"{case.tokens:,}" for case in cases])
    axes.minorticks_off()
    axes.grid(alpha=0.3)


def _against_numeric(axes: Axes, case: FusedCase, measure: Callable[[FusedCost], float]) -> None:
    names = dict.fromkeys(cost.loss for cost in case.costs if cost.numeric_tokens is not None)
    for name in names:
        costs = [cost for cost in case.costs if cost.loss == name and cost.numeric_tokens is not None]
        axes.plot(
            [cost.numeric_tokens or 0 for cost in costs], [measure(cost) for cost in costs], marker="o", label=f"CE + {name}"
        )
    for cost in case.costs:
        if cost.name in ("three products", "plain CE"):
            axes.axhline(measure(cost), linestyle="--", color="grey", linewidth=1)
            axes.annotate(cost.name, (0.01, measure(cost)), xycoords=("axes fraction", "data"), fontsize=8, va="bottom")
    axes.set(xscale="log", xlabel=f"numeric tokens N, at {case.tokens:,} tokens")
    axes.legend(frameon=False, fontsize=9)
    axes.grid(alpha=0.3)
