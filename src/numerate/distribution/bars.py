"""Histograms of a distribution: ranges of a round width with their probabilities, and as text for the terminal."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from decimal import ROUND_FLOOR, Decimal, localcontext
from typing import NamedTuple

from numerate.distribution.exact import EXACT, SHORT, Floats, canonical, label


class Bar(NamedTuple):
    """The values in ``[low, high)`` and their probability; None: unbounded, ``low == high``: a single value."""

    low: Decimal | None
    high: Decimal | None
    probability: float

    @property
    def label(self) -> str:
        """The value or range as text."""
        if self.low is None or self.high is None:
            return f"from {label(self.low)}" if self.low is not None else f"below {label(self.high or Decimal(0))}"
        return label(self.low) if self.low == self.high else f"{label(self.low)} to {label(self.high)}"


def bar_lines(bars: Sequence[Bar], width: int) -> list[str]:
    """Return one line per bar; the longest bar has ``width`` characters."""
    most = max(bar.probability for bar in bars)
    labels, shares = [bar.label for bar in bars], [f"{100 * bar.probability:.1f} %" for bar in bars]
    columns = max(map(len, labels)), max(map(len, shares))
    return [
        f"{name:>{columns[0]}}  {share:>{columns[1]}}  {'█' * round(width * bar.probability / most)}".rstrip()
        for name, share, bar in zip(labels, shares, bars, strict=True)
    ]


def bars_of(
    values: Sequence[Decimal], probabilities: Floats, cumulative: Floats, central: tuple[Decimal, Decimal], rows: int
) -> list[Bar]:
    """Return one bar per value or, for more than ``rows`` values, at most ``rows`` + 3 ranges of a round width.

    Ranges cover ``central``; the values below and above it have a bar each.
    """
    if len(values) <= rows:
        return [Bar(value, value, p) for value, p in zip(values, probabilities.tolist(), strict=True)]
    low, high = central
    with localcontext(EXACT):
        finest = min(int(value.as_tuple().exponent) for value in values)
        least = max(SHORT.divide(high - low, Decimal(rows)), Decimal((0, (1,), finest)))
        power = Decimal((0, (1,), least.adjusted()))
        step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least)
        start = (low / step).to_integral_value(ROUND_FLOOR) * step
        edges = [start]
        while edges[-1] <= high:
            edges.append(edges[-1] + step)
    sums = [0.0, *cumulative.tolist()]
    below = [sums[bisect_left(values, edge)] for edge in edges]
    edges = [canonical(edge) for edge in edges]
    bars = [Bar(None, edges[0], below[0])] if below[0] > 0 else []
    bars += [Bar(a, b, q - p) for a, b, p, q in zip(edges, edges[1:], below, below[1:], strict=False)]
    return bars + ([Bar(edges[-1], None, 1 - below[-1])] if values[-1] >= edges[-1] else [])
