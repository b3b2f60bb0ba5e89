"""Plot results: time and memory of the fused operator, and quality of decoding against time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.decode import DecodeBench, DecodeCost
from benchmarks.fused import FusedBench, FusedCase, FusedCost
from numerate.plotting import figure_for

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MARKERS = "osD^vPX*hd"

Quantity = Callable[[FusedCost], float]


def plot_fused(result: FusedBench, path: str | Path) -> Path:
    """Plot time and peak memory of the first shape: against tokens on the left, against N at the largest case on the right."""
    path = Path(path)
    figure = figure_for(path)(figsize=(12, 8.5), layout="constrained")
    vocab_size, hidden_size = result.cases[0].vocab_size, result.cases[0].hidden_size
    cases = [case for case in result.cases if (case.vocab_size, case.hidden_size) == (vocab_size, hidden_size)]
    panels = figure.subplots(2, 2)
    quantities: tuple[Quantity, ...] = (lambda cost: cost.ratio, lambda cost: cost.peak_mib)
    for row, quantity in zip(panels, quantities, strict=True):
        _against_tokens(row[0], cases, quantity)
        _against_numeric(row[1], cases[-1], quantity)
    for axes in panels[0]:
        axes.set_ylabel("time / matrix products")
        axes.axhline(1, color="grey", linewidth=1)
    for axes in panels[1]:
        axes.set(ylabel="peak MiB", yscale="log")
    panels[1, 1].set_ylim(panels[1, 0].get_ylim())
    handles, labels = panels[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    figure.suptitle(f"head {vocab_size:,} x {hidden_size:,}, {result.dtype}, {result.device}", fontweight="bold")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    return path


def _against_tokens(axes: Axes, cases: Sequence[FusedCase], quantity: Quantity) -> None:
    """Plot all works with the smallest N; the panel to the right shows the others."""
    fewest = min(cost.numeric_tokens for cost in cases[0].costs if cost.numeric_tokens is not None)
    shown = [cost for cost in cases[0].costs if cost.numeric_tokens in (None, fewest)]
    for marker, first in zip(_MARKERS * 2, shown, strict=False):
        points = [(case.tokens, quantity(cost)) for case in cases for cost in case.costs if cost.name == first.name]
        style = "--" if first.numeric_tokens is None else "-"
        axes.plot(*zip(*points, strict=True), style, marker=marker, markersize=5, label=first.name)
    _format_x_axis(axes, "tokens", [case.tokens for case in cases])


def _against_numeric(axes: Axes, case: FusedCase, quantity: Quantity) -> None:
    ours = [cost for cost in case.costs if cost.numeric_tokens is not None]
    for marker, name in zip(_MARKERS, dict.fromkeys(cost.loss for cost in ours), strict=False):
        costs = [cost for cost in ours if cost.loss == name]
        sizes = [cost.numeric_tokens or 0 for cost in costs]
        axes.plot(sizes, [quantity(cost) for cost in costs], marker=marker, label=f"CE + {name}")
    sizes = sorted({cost.numeric_tokens or 0 for cost in ours})
    _format_x_axis(axes, f"numeric tokens N, at {case.tokens:,} tokens", sizes)
    axes.legend(frameon=False, fontsize=9)


def _format_x_axis(axes: Axes, label: str, ticks: list[int]) -> None:
    axes.set(xscale="log", xlabel=label)
    axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    axes.minorticks_off()
    axes.grid(alpha=0.3)


def plot_decode(result: DecodeBench, path: str | Path) -> Path:
    """Plot coverage and excess CRPS against time; for random weights, memory alone."""
    path = Path(path)
    measures: list[tuple[str, Callable[[DecodeCost], float | None]]] = [("peak MiB", lambda cost: cost.peak_mib)]
    if result.trained:
        measures = [
            ("fresh samples within the central 99 %, %", lambda cost: _per_cent(cost.covers)),
            ("excess CRPS, %; smaller is better", lambda cost: _per_cent(cost.excess_crps)),
        ]
    figure = figure_for(path)(figsize=(5.5 * len(measures), 4.4), layout="constrained")
    for axes, (label, measure) in zip(figure.subplots(1, len(measures), squeeze=False)[0], measures, strict=True):
        shown = [(cost, value) for cost in result.costs if (value := measure(cost)) is not None]
        times = [cost.to_greedy for cost, _ in shown] or [1.0]  # without numbers in the answers, nothing is shown
        widths = [(cost.to_greedy, value) for cost, value in shown if cost.name.startswith("width")]
        if widths:
            axes.plot(*zip(*widths, strict=True), marker="o")
        for cost, value in shown:
            left = cost.to_greedy == max(times)
            axes.annotate(
                cost.name,
                (cost.to_greedy, value),
                textcoords="offset points",
                xytext=(-8 if left else 8, -12),
                ha="right" if left else "left",
                fontsize=9,
            )
            if not cost.name.startswith("width"):
                axes.plot([cost.to_greedy], [value], marker="s", color="black", linestyle="none")
        axes.set(xlabel="time / greedy answers", ylabel=label, xscale="log")
        ticks = [tick for tick in (1, 2, 3, 5, 10, 20, 30, 50, 100) if min(times) / 1.5 <= tick <= 1.5 * max(times)]
        axes.set_xticks(ticks, [str(tick) for tick in ticks])
        axes.minorticks_off()
        axes.margins(0.18)
        axes.grid(alpha=0.3)
    figure.suptitle(f"{result.model}, {result.prompts} prompts, {result.device}", fontweight="bold")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    return path


def _per_cent(share: float | None) -> float | None:
    return None if share is None else 100 * share
