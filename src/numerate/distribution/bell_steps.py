"""A bell around a label: its values, with as many decimals as the label, and their probabilities."""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Decimal, localcontext
from statistics import NormalDist
from typing import Literal

import numpy as np

from numerate.checks import check_choice, check_integer, choices
from numerate.distribution.exact import EXACT, MAX_DIGITS, SHORT, Floats, Number, exact_number, size, written_decimals

Shape = Literal["gaussian", "laplace", "uniform"]

_REACH = {"gaussian": 6, "laplace": 20, "uniform": 1}  # in widths: less than 3e-9 of the mass is outside
_SMALL = 2.0**40  # steps up to which floats still have fractional bits
_NORMAL = NormalDist()


class EmptyBellError(ValueError):
    """Raised if the bounds exclude all values of a bell."""


def bell_steps(
    center: Number,
    width: Number | None,
    relative: Number | None,
    shape: Shape,
    decimals: int | None,
    lowest: Number | None,
    highest: Number | None,
    at_most: int,
) -> tuple[Sequence[int], int, Floats]:
    """Return sorted values as integer multiples of ``10^-decimals``, the decimals, and weights.

    See :meth:`numerate.NumberDistribution.bell` for the arguments.
    """
    middle = exact_number("center", center)
    check_choice("shape", shape, choices(Shape))
    if (width is None) == (relative is None):
        raise ValueError(
            f"width={width!r} and relative={relative!r}: expected exactly one of them, such as relative=0.05 for 5 %."
        )
    at_most = check_integer("at_most", at_most, "an integer >= 1, such as 501", least=1)
    places = written_decimals(center, middle) if decimals is None else decimals
    expected = "an integer such as 2, or -2 for hundreds"
    places = check_integer("decimals", places, expected, least=-MAX_DIGITS, most=MAX_DIGITS)
    least = Decimal("-Infinity") if lowest is None else exact_number("lowest", lowest)
    most = Decimal("Infinity") if highest is None else exact_number("highest", highest)
    with localcontext(EXACT):
        spread = size("width", width) if width is not None else size("relative", relative) * abs(middle)
        low, high = max(middle - _REACH[shape] * spread, least), min(middle + _REACH[shape] * spread, most)
        first = int(low.scaleb(places).to_integral_value(ROUND_CEILING))
        last = int(high.scaleb(places).to_integral_value(ROUND_FLOOR))
        nearest = int(middle.scaleb(places).to_integral_value(ROUND_HALF_EVEN))
        if low > high or (first > last and not least <= Decimal(nearest).scaleb(-places) <= most):
            raise EmptyBellError(
                f"lowest={lowest!r:.40} and highest={highest!r:.40} exclude all values of the bell around center={center!r:.40}: "
                "expected bounds with at least one of them. Widen the bell or the bounds."
            )
        if first > last or spread == 0:
            return [nearest], places, np.ones(1)

        def deviation(steps: Decimal | int) -> float:
            return float(SHORT.divide(Decimal(steps).scaleb(-places) - middle, spread))

        if last - first < at_most:
            # Relative to the nearest step, which is exact for numbers of any size.
            step = float(SHORT.divide(Decimal(1).scaleb(-places), spread))
            z = deviation(nearest) + step * np.arange(first - nearest, last - nearest + 1)  # [N]
            heights = {"gaussian": -np.square(z) / 2, "laplace": -np.abs(z), "uniform": np.zeros(len(z))}[shape]
            return range(first, last + 1), places, np.exp(heights - heights.max())
        half = Decimal("0.5")
        start, stop = (_cdf(shape, deviation(edge)) for edge in (first - half, last + half))
        # Rounded, so that the middle one of an odd count is the center.
        shares = (start + (stop - start) * (np.arange(at_most) + 0.5) / at_most).round(15)
        quantiles = [*map(_QUANTILES[shape], shares.tolist())]
        unit = float(SHORT.divide(spread, Decimal(1).scaleb(-places)))
        if unit * _REACH[shape] < _SMALL:  # the same in floating point, 100 times faster
            offset = float(middle.scaleb(places) - nearest)
            away = np.rint(offset + np.array(quantiles) * unit).clip(first - nearest, last - nearest)
            return [nearest + k for k in away.astype(np.int64).tolist()], places, np.ones(at_most)
        drawn = (middle + Decimal(quantile) * spread for quantile in quantiles)
        rounded = [int(value.scaleb(places).to_integral_value(ROUND_HALF_EVEN)) for value in drawn]
        return [min(max(k, first), last) for k in rounded], places, np.ones(at_most)


def _cdf(shape: Shape, z: float) -> float:
    if shape == "gaussian":
        return _NORMAL.cdf(z)
    if shape == "laplace":
        return math.exp(z) / 2 if z < 0 else 1 - math.exp(-z) / 2
    return min(max((z + 1) / 2, 0.0), 1.0)


def _laplace_quantile(share: float) -> float:
    return math.log(2 * share) if share < 0.5 else -math.log(2 * (1 - share))


_QUANTILES = {"gaussian": _NORMAL.inv_cdf, "laplace": _laplace_quantile, "uniform": lambda share: 2 * share - 1}
