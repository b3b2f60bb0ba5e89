"""Plots of calibration: reliability, coverage against level, and distributions with their truths."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal, localcontext
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from numerate.calibration import Conformal, coverage, pit
from numerate.calibration.frame import check_distribution
from numerate.distribution import NumberDistribution
from numerate.distribution.exact import EXACT, Floats, Number, as_list, exact_number, label
from numerate.plotting.figures import COLOURS, figure_for, save, unframed

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LEVELS = tuple(k / 20 for k in range(1, 20))
_BINS = 60  # more values than this are binned
_SIGMAS = 1.96  # 95 % of binomial noise
_BAND, _DARK = "#9aa5ab", "#30363a"


def plot_reliability(
    distributions: Sequence[NumberDistribution], truths: Iterable[Number], path: str | Path, *, seed: int = 0
) -> Path:
    """Plot how often the truth lies below each quantile, and a histogram of its positions.

    At each quantile, a calibrated model is inside the grey band with a probability of 95 %. A curve that is flatter than the
    diagonal in the middle means overconfidence; one above the diagonal means answers that are too high.

    Args:
        distributions: the model's answers.
        truths: one for each.
        path: a ``.png``, ``.svg`` or ``.pdf`` file; its folder is created if missing.
        seed: seed of the random part of the positions, see :func:`numerate.calibration.pit`.
    """
    Figure = figure_for(path)  # noqa: N806
    positions = np.sort(pit(distributions, truths, seed=seed))
    n = len(positions)
    figure = Figure(figsize=(10, 4.6))
    curve, histogram = figure.subplots(1, 2)
    _diagonal(curve, n)
    shares = np.arange(n + 1) / n
    curve.step([0, *positions, 1], [*shares, 1], where="post", color=COLOURS[0], linewidth=2)
    curve.legend(frameon=False, loc="best")
    curve.set_xlabel("quantile of the model")
    curve.set_ylabel("share of truths below it")
    bins = int(np.clip(n // 20, 4, 20))
    counts, edges = np.histogram(positions, bins=bins, range=(0, 1))
    noise = _SIGMAS * math.sqrt((bins - 1) / n)
    histogram.axhspan(max(0.0, 1 - noise), 1 + noise, color=_BAND, alpha=0.3, linewidth=0, zorder=3)
    histogram.axhline(1, color="0.35", linewidth=1, linestyle="--", zorder=3)
    histogram.bar(edges[:-1], counts * bins / n, width=0.92 / bins, align="edge", color=COLOURS[0])
    histogram.set_xlabel("position of the truth in its distribution")
    histogram.set_ylabel("truths, 1 = as many as expected")
    histogram.set_xlim(0, 1)
    for axes in (curve, histogram):
        unframed(axes)
    figure.suptitle(f"Reliability on {n:,} rows", fontsize="large", fontweight="bold")
    return save(figure, path)


def plot_coverage(
    distributions: Sequence[NumberDistribution],
    truths: Iterable[Number],
    path: str | Path,
    calibrated: Conformal | None = None,
    *,
    levels: Iterable[float] = _LEVELS,
) -> Path:
    """Plot the share of truths inside the intervals of each level, of the model itself and of ``calibrated``.

    Args:
        distributions: the model's answers; other rows than ``calibrated`` was fitted on.
        truths: one for each.
        path: a ``.png``, ``.svg`` or ``.pdf`` file; its folder is created if missing.
        calibrated: from :func:`numerate.calibration.conformal`. Levels that its rows cannot guarantee are left out.
        levels: above 0 and below 1.
    """
    Figure = figure_for(path)  # noqa: N806
    chosen, truths = sorted(as_list("levels", levels)), as_list("truths", truths)
    figure = Figure(figsize=(6.4, 5.6))
    axes = figure.subplots()
    _diagonal(axes, len(truths))
    own = coverage(distributions, truths, chosen)
    axes.plot(chosen, own, color=COLOURS[0], marker="o", markersize=4, linewidth=2, label="the model's intervals")
    if calibrated is not None:
        kept = [level for level in chosen if level <= calibrated.rows / (calibrated.rows + 1)]
        held = coverage(distributions, truths, kept, calibrated)
        axes.plot(kept, held, color=COLOURS[1], marker="o", markersize=4, linewidth=2, label="conformal intervals")
    axes.set_xlabel("level")
    axes.set_ylabel("share of truths inside")
    unframed(axes)
    axes.legend(frameon=False, loc="upper left")
    figure.suptitle(f"Coverage on {len(truths):,} rows", fontsize="large", fontweight="bold")
    return save(figure, path)


def plot_distributions(
    distributions: Sequence[NumberDistribution],
    path: str | Path,
    truths: Iterable[Number] | None = None,
    *,
    level: float = 0.9,
    calibrated: Conformal | None = None,
    titles: Iterable[str] | None = None,
) -> Path:
    """Plot distributions side by side, each with its median, its interval and, if given, the truth.

    Each picture shows the central 98 % and the interval. A truth farther away than three times that is an arrow at the edge.

    Args:
        distributions: a few; 1 to 30.
        path: a ``.png``, ``.svg`` or ``.pdf`` file; its folder is created if missing.
        truths: one for each.
        level: the level of the intervals.
        calibrated: conformal intervals instead of the model's own.
        titles: one for each.
    """
    Figure = figure_for(path)  # noqa: N806
    from matplotlib.lines import Line2D

    rows = as_list("distributions", distributions)
    for row in rows:
        check_distribution("distributions", row)
    count = len(rows)
    if not 1 <= count <= 30:
        raise ValueError(f"distributions has {count} entries: expected 1 to 30. Pass a part, such as distributions[:6].")
    known = None if truths is None else [exact_number("truths", truth) for truth in as_list("truths", truths)]
    names = None if titles is None else as_list("titles", titles)
    for name, given in (("truths", known), ("titles", names)):
        if given is not None and len(given) != count:
            raise ValueError(f"{name} has {len(given)} entries for {count} distributions: expected one for each.")
    columns = min(count, 3)
    lines = math.ceil(count / columns)
    figure = Figure(figsize=(max(3.6 * columns, 5.4), 2.9 * lines + 0.5))
    grid = figure.subplots(lines, columns, squeeze=False).flatten()
    for i, (axes, row) in enumerate(zip(grid, rows, strict=False)):
        ends = row.interval(level) if calibrated is None else calibrated.interval(row, level)
        _draw_distribution(axes, row, ends, None if known is None else known[i])
        covered = f", covered {100 * row.covered:.3g} %" if row.covered < 1 else ""
        axes.set_title(names[i] if names else f"median {label(row.median)}{covered}", fontsize="medium", loc="left")
    for axes in grid[count:]:
        axes.set_visible(False)
    interval = f"{100 * level:g} % interval{' (conformal)' if calibrated is not None else ''}"
    handles = [
        Line2D([], [], color=_DARK, linewidth=2.5, marker="|", markersize=9, label=interval),
        Line2D([], [], color=COLOURS[0], marker="D", linestyle="none", label="median"),
        *([] if known is None else [Line2D([], [], color=COLOURS[1], linewidth=1.8, label="truth")]),
    ]
    figure.legend(handles=handles, loc="outside upper center", ncols=len(handles), frameon=False)
    return save(figure, path)


def _diagonal(axes: Axes, n: int) -> None:
    """Draw the diagonal of calibrated models, and the noise of n rows around it."""
    q = np.linspace(0, 1, 201)
    noise = _SIGMAS * np.sqrt(q * (1 - q) / n)
    band = f"95 % noise of {n:,} rows"
    axes.fill_between(q, np.maximum(q - noise, 0), np.minimum(q + noise, 1), color=_BAND, alpha=0.3, linewidth=0, label=band)
    axes.plot([0, 1], [0, 1], color="0.35", linewidth=1, linestyle="--")
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)
    axes.set_aspect("equal")


@dataclass(frozen=True)
class _Axis:
    """An axis of floats for exact numbers: in a unit that is a power of ten, and from a base where all are nearly equal."""

    base: Decimal
    exponent: int

    @classmethod
    def of(cls, low: Decimal, high: Decimal, median: Decimal) -> _Axis:
        size, span = max(low.copy_abs(), high.copy_abs()), EXACT.subtract(high, low)
        alike = bool(span) and span < EXACT.scaleb(size, -4)
        largest = span if alike else size
        plain = not largest or Decimal("0.001") <= largest < 10**7
        return cls(median if alike else Decimal(0), 0 if plain else 3 * (largest.adjusted() // 3))

    def __call__(self, values: Iterable[Decimal]) -> Floats:
        return np.array([float(EXACT.scaleb(EXACT.subtract(value, self.base), -self.exponent)) for value in values])

    @property
    def name(self) -> str:
        unit = rf"in units of $10^{{{self.exponent}}}$" if self.exponent else ""
        base = f"distance from {label(self.base)}" if self.base else ""
        return ", ".join(part for part in (base, unit) if part)


def _edges(values: Sequence[Decimal]) -> list[Decimal]:
    """Return the edges of at most 61 equal bins, each with as many numbers of the lattice: no bin stands out."""
    exponent = min(int(value.as_tuple().exponent) for value in values)
    with localcontext(EXACT):
        whole = [int(value.scaleb(-exponent)) for value in values]
        step = math.gcd(*(b - a for a, b in pairwise(whole)))
        width = step * -(-(whole[-1] - whole[0] + step) // (_BINS * step))
        count = (whole[-1] - whole[0]) // width + 1
        return [(whole[0] + i * width - Decimal(step) / 2).scaleb(exponent) for i in range(count + 1)]


def _draw_distribution(axes: Axes, row: NumberDistribution, ends: tuple[Decimal, Decimal], truth: Decimal | None) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    low, high = min(row.interval(0.98)[0], ends[0]), max(row.interval(0.98)[1], ends[1])
    reach = EXACT.multiply(3, EXACT.subtract(high, low) or max(row.median.copy_abs(), Decimal(1)))
    near = truth is not None and EXACT.subtract(low, reach) <= truth <= EXACT.add(high, reach)
    if truth is not None and near:
        low, high = min(low, truth), max(high, truth)
    shown = slice(bisect_left(row.values, low), bisect_right(row.values, high))
    axis = _Axis.of(low, high, row.median)
    left, right = axis([low, high])
    margin = 0.06 * (right - left) or 1.0
    places, masses = axis(row.values[shown]), 100 * row.probabilities[shown]
    if len(places) <= _BINS:
        nearest = np.diff(places).min() / (right - left + 2 * margin) if len(places) > 1 else 1
        axes.vlines(places, 0, masses, color=COLOURS[0], linewidth=float(np.clip(130 * nearest, 1.5, 12)))
        top = masses.max()
    else:
        masses, edges = np.histogram(places, bins=axis(_edges(row.values[shown])), weights=masses)
        axes.stairs(masses, edges, fill=True, color=COLOURS[0])
        top = masses.max()
    axes.plot(axis(ends), [-0.08 * top] * 2, color=_DARK, linewidth=2.5, marker="|", markersize=9)
    axes.plot(axis([row.median]), [-0.08 * top], color=COLOURS[0], marker="D", markersize=6, markeredgecolor="white")
    if truth is not None and near:
        axes.axvline(axis([truth])[0], color=COLOURS[1], linewidth=1.8)
    elif truth is not None:
        right_side = truth > high
        text = f"{label(truth)} \N{RIGHTWARDS ARROW}" if right_side else f"\N{LEFTWARDS ARROW} {label(truth)}"
        axes.text(
            0.99 if right_side else 0.01,
            0.78,
            text,
            color=COLOURS[1],
            ha="right" if right_side else "left",
            fontsize="small",
            fontweight="bold",
            transform=axes.transAxes,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.5},
        )
    axes.set_xlim(left - margin, right + margin)
    axes.set_ylim(-0.16 * top, 1.08 * top)
    whole = all(value == value.to_integral_value() for value in (low, high, *row.values[shown])) and axis.exponent <= 0
    axes.xaxis.set_major_locator(MaxNLocator(4, integer=whole, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.7g}"))
    axes.yaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10]))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g} %" if y >= 0 else ""))
    axes.set_xlabel(axis.name, fontsize="small")
    unframed(axes)
