r"""Decision rules: the number with the smallest expected cost under a metric.

x is the answer, y the truth, drawn from the distribution, and p the probability of a value:

    rule        cost of x when y is true            answer
    median      |x - y|, also after a monotonic     the median
                transform, such as the logarithm
    mean        (x - y)^2                           the mean
    mode        0 if x = y else 1                   the mode
    relative    |x - y| / |y|                       the median under the weights p / |y|
    within      0 if |x - y| <= tolerance           the value with the most probability within the tolerance
                else 1
    within_5    0 if |x - y| <= 5 % of |y|          the same; also within_1 and within_10
                else 1

The mean of logarithms would minimize the squared log error.

On a circle (:class:`numerate.distribution.CircularDistribution`), |x - y| is the distance around it, and relative errors are
undefined.

Except for the median, decisions ignore outliers unless ``trim=False``. Let [a, b] be the central interval with at least 90 % of
the probability. A value outside it is an outlier if it is more than 3 (b - a) away or, for a relative error, less than half as
large; for the mode and for answers within a tolerance, every value outside it. At most 5 % on either side are outliers. Searches
of a model's answers produce them: with 0.1 % on the number 1, the answer with the smallest expected relative error to a price of
about 10,000 would be 1. Ignoring correct outliers costs little: if they have a share s of the mass, the expected squared error is
at most 1 / (1 - s) times the minimum.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal, localcontext
from numbers import Real
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np

from numerate.checks import check_choice, choices
from numerate.distribution.exact import EXACT, SHORT, TIE, Floats, Number, as_list, exact_number, first_reached, offset, size

if TYPE_CHECKING:
    from typing_extensions import Self

Cost = Callable[[float, float], float]
Rule = Literal["median", "mean", "mode", "relative", "within", "within_1", "within_5", "within_10"]

_SHARES = {"within_1": "0.01", "within_5": "0.05", "within_10": "0.1"}

RULE_NAMES = choices(Rule)
"""All metrics of ``decide`` by name; only ``"within"`` needs another argument."""

CIRCLE_RULE_NAMES = ("median", "mean", "mode", "within")
"""The metrics that are defined on a circle."""

CENTRAL = 0.9
"""Probability of the central interval; outliers are outside it."""

REACH = 3
"""Distance from the central interval beyond which values are outliers, in units of its width."""


def stray(values: Sequence[Decimal], low: Decimal, high: Decimal, relative: bool, reach: int) -> list[bool]:
    """Return which values are outliers, given the ends of the central interval; see the top of this module."""
    away = EXACT.multiply(Decimal(reach), EXACT.subtract(high, low))
    first, last = EXACT.subtract(low, away), EXACT.add(high, away)
    same_sign = relative and (low > 0 or high < 0)
    least = EXACT.multiply(Decimal("0.5"), min(EXACT.abs(low), EXACT.abs(high))) if same_sign else Decimal(0)
    return [not first <= value <= last or EXACT.abs(value) < least for value in values]


class _Decidable(Protocol):
    """Inputs of a decision: sorted values, their probabilities and summaries."""

    @property
    def values(self) -> tuple[Decimal, ...]: ...
    @property
    def probabilities(self) -> Floats: ...
    @property
    def floats(self) -> Floats: ...
    @property
    def median(self) -> Decimal: ...
    @property
    def mean(self) -> Decimal: ...
    @property
    def mode(self) -> Decimal: ...
    def trimmed(self, *, reach: int) -> Self: ...


def decide(
    distribution: _Decidable,
    metric: str | Cost,
    tolerance: Number | None,
    relative_tolerance: Number | None,
    floor: Number | None,
    candidates: Iterable[Number] | None,
    period: Decimal | None = None,
    *,
    trim: bool,
) -> Decimal:
    """Return the number with the smallest expected cost; see :meth:`numerate.NumberDistribution.decide` for the arguments.

    With ``period``, distances are those around a circle; values and candidates lie within one period.
    """
    rule = "cost"
    if not callable(metric):
        check_choice("metric", metric, RULE_NAMES if period is None else CIRCLE_RULE_NAMES)
        rule = metric
        if metric in _SHARES:
            rule = "within"
            if tolerance is not None or relative_tolerance is not None:
                raise ValueError(
                    f"metric={metric!r} has a fixed tolerance: expected no tolerance; use metric='within' to set one."
                )
            relative_tolerance = _SHARES[metric]
    for name, value, rules in (
        ("tolerance", tolerance, ("within",)),
        ("relative_tolerance", relative_tolerance, ("within",)),
        ("floor", floor, ("relative",)),
        ("candidates", candidates, ("within", "cost")),
    ):
        if value is not None and rule not in rules:
            raise ValueError(f"{name}={value!r:.80} does not apply to metric={metric!r}: expected it only with {rules[0]!r}.")
    if trim and rule not in ("median", "relative"):  # the median is robust; the caller trims relative errors
        distribution = distribution.trimmed(reach=0 if rule in ("mode", "within") else REACH)
    answers = (
        distribution.values
        if candidates is None
        else tuple(sorted({exact_number("candidates", x) for x in as_list("candidates", candidates)}))
    )
    if not answers:
        raise ValueError("candidates is empty: expected at least one number to choose from; None takes the values.")
    if callable(metric):
        return _cheapest(distribution, metric, answers, period)
    match rule:
        case "median":
            return distribution.median
        case "mean":
            return distribution.mean
        case "mode":
            return distribution.mode
        case "relative":
            return _relative(distribution, floor)
    return _within(distribution, tolerance, relative_tolerance, answers, period)


def best(answers: Sequence[Decimal], scores: Floats, median: Decimal, period: Decimal | None = None) -> Decimal:
    """Return the answer with the highest score; ties go to the closest to the median, then to the one below it."""
    tied = np.flatnonzero(scores >= scores.max() * (1 - TIE)).tolist()
    away = {answers[i]: offset(answers[i], median, period) for i in tied}
    nearest: Decimal = min(away, key=lambda x: (away[x].copy_abs(), away[x]))
    return nearest


def _relative(distribution: _Decidable, floor: Number | None) -> Decimal:
    values, probabilities = distribution.values, distribution.probabilities
    least = Decimal(0) if floor is None else size("floor", floor)
    sizes = [max(EXACT.abs(value), least) for value in values]
    nonzero = [size for size in sizes if size]
    zero = bisect_left(values, 0)
    if len(nonzero) < len(sizes) and (not nonzero or probabilities[zero] >= 0.5 * (1 - TIE)):
        return Decimal(0)
    # In units of the smallest size, so that no weight overflows; weights may underflow to 0.
    unit = min(nonzero)
    weights = probabilities * np.array([float(SHORT.divide(unit, size)) if size else 0.0 for size in sizes])
    return values[first_reached(weights.cumsum() / weights.sum(), 0.5)]


def _within(
    distribution: _Decidable,
    tolerance: Number | None,
    relative_tolerance: Number | None,
    answers: Sequence[Decimal],
    period: Decimal | None,
) -> Decimal:
    if (tolerance is None) == (relative_tolerance is None):
        raise ValueError(
            f"tolerance={tolerance!r} and relative_tolerance={relative_tolerance!r}: expected exactly one of them with "
            "metric='within', such as tolerance=0.5 or relative_tolerance=0.05 for 5 %."
        )
    name, given = ("tolerance", tolerance) if relative_tolerance is None else ("relative_tolerance", relative_tolerance)
    allowed = size(name, given)
    changes: Floats = np.zeros(len(answers) + 1)
    with localcontext(EXACT):
        for y, p in zip(distribution.values, distribution.probabilities.tolist(), strict=True):
            reach = allowed if relative_tolerance is None else allowed * abs(y)
            whole = period is not None and 2 * reach >= period
            turns = (Decimal(0),) if period is None or whole else (-period, Decimal(0), period)
            for turn in turns:
                changes[0 if whole else bisect_left(answers, y + turn - reach)] += p
                changes[-1 if whole else bisect_right(answers, y + turn + reach)] -= p
    return best(answers, changes.cumsum()[:-1], distribution.median, period)


def _cheapest(distribution: _Decidable, cost: Cost, answers: Sequence[Decimal], period: Decimal | None) -> Decimal:
    truths = distribution.floats.tolist()
    totals = np.empty(len(answers))
    for i, x in enumerate(map(float, answers)):
        costs: list[Any] = [cost(x, y) for y in truths]
        for y, value in zip(truths, costs, strict=True):
            if not isinstance(value, Real | Decimal) or math.isnan(value):
                raise ValueError(
                    f"metric({x:g}, {y:g}) is {value!r:.80}: expected a number, the cost of a prediction for a truth."
                )
        totals[i] = np.array(costs, dtype=np.float64) @ distribution.probabilities
    lowest = totals.min()
    tied = totals <= lowest + abs(lowest) * TIE if np.isfinite(lowest) else totals == lowest
    return best(answers, tied.astype(np.float64), distribution.median, period)
