"""Bars of a distribution as text, for the terminal."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from decimal import ROUND_FLOOR, Decimal, localcontext

from numerate.distribution.exact import EXACT, SHORT, Floats, canonical, label


def bar_lines(
    values: Sequence[Decimal], probabilities: Floats, cumulative: Floats, central: tuple[Decimal, Decimal], rows: int, width: int
) -> list[str]:
    """Return a line per value, or per range of values where there are more than ``rows``; ranges cover ``central``."""
    if len(values) <= rows:
        bars = [(label(value), p) for value, p in zip(values, probabilities.tolist(), strict=True)]
    else:
        bars = _ranges(values, cumulative, central, rows)
    most = max(p for _, p in bars)
    labels, shares = [name for name, _ in bars], [f"{100 * p:.1f} %" for _, p in bars]
    columns = max(map(len, labels)), max(map(len, shares))
    return [
        f"{name:>{columns[0]}}  {share:>{columns[1]}}  {'█' * round(width * p / most)}".rstrip()
        for name, share, (_, p) in zip(labels, shares, bars, strict=True)
    ]


def _ranges(
    values: Sequence[Decimal], cumulative: Floats, central: tuple[Decimal, Decimal], rows: int
) -> list[tuple[str, float]]:
    """Return labels and probabilities of at most ``rows`` + 3 ranges of a round width."""
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
    names = [label(canonical(edge)) for edge in edges]
    bars = [(f"below {names[0]}", below[0])] if below[0] > 0 else []
    bars += [(f"{a} to {b}", q - p) for a, b, p, q in zip(names, names[1:], below, below[1:], strict=False)]
    return bars + ([(f"from {names[-1]}", 1 - below[-1])] if values[-1] >= edges[-1] else [])
