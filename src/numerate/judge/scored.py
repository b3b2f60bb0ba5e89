"""Scores of a judge: their means, medians and intervals, what labelled items teach about them, and how they agree with people.

With m the judge's mean for an item, s its standard deviation plus half the typical one, and y the score that people gave:

    calibrated mean       f(m), f increasing: a line or an isotonic step function, whichever is better in cross-validation
    calibrated interval   the scores v of the scale with |v - f(m)| <= r s

r is the conformal quantile of |y - f(m)| / s over the labelled items, f fitted without the item's own fold. For a y between two
scores it is that of the farther one, so that the interval contains y if and only if its own quotient is at most r. Only scores of
the scale are ends: rounding an interval outward would cover more than its level.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from numerate.answers.overall import pearson, spearman
from numerate.calibration import fit_temperature
from numerate.calibration.conformal_intervals import conformal_rank
from numerate.calibration.frame import check_level
from numerate.checks import check_choice, check_integer, choices
from numerate.distribution import NumberDistribution
from numerate.distribution.exact import Floats
from numerate.judge.scale import ScoreScale

Decision = Literal["mean", "median", "mode"]

FOLDS = 10
LEAST_ROWS = 10


@dataclass(frozen=True, repr=False)
class Scores:
    """What a judge says about items, in their order.

    Examples:
        >>> likely = NumberDistribution([7, 8, 9], [0.25, 0.5, 0.25], covered=0.9, no_number=0.1)
        >>> scores = Scores(ScoreScale.of("1 to 10"), (likely, None))
        >>> scores
        Scores(2 items, 1 to 10: mean 8, no score for 1)
        >>> scores.mean.tolist(), scores.refused.round(3).tolist(), scores.interval(0.9).tolist()
        ([8.0, nan], [0.1, 1.0], [[7.0, 9.0], [nan, nan]])
    """

    scale: ScoreScale
    """The scores that could be given."""

    distributions: tuple[NumberDistribution | None, ...]
    """The distribution over scores of each item; None where no score has any probability."""

    calibration: Calibration | None = None
    """What labelled items taught, if the judge is calibrated."""

    def __len__(self) -> int:
        return len(self.distributions)

    @cached_property
    def mean(self) -> Floats:
        """The expected scores ``[N]``, given that there is a score; NaN where there is none."""
        return self._decided("mean")

    @cached_property
    def median(self) -> Floats:
        """The medians ``[N]``."""
        return self._decided("median")

    @cached_property
    def mode(self) -> Floats:
        """The most likely scores ``[N]``, which calibration leaves as they are; ties go to the closest to the median."""
        return self._each(lambda one: float(one.mode))

    @cached_property
    def refused(self) -> Floats:
        """The probability that an answer is no score ``[N]``: words, or a number out of the scale."""
        shares = [1.0 if one is None else one.no_number + one.more_digits for one in self.distributions]
        return np.array(shares, dtype=np.float64)

    def interval(self, level: float = 0.9) -> Floats:
        """Return both ends of an interval for each item ``[N, 2]``, scores of the scale.

        For a calibrated judge, it contains the score that people give with a probability of ``level``. Otherwise it is the
        central interval of the judge's own distribution, which guarantees nothing.
        """
        if self.calibration is not None:
            return self.calibration.intervals(self.scale, self.mean, self._deviations, level)
        ends = [(np.nan, np.nan) if one is None else tuple(map(float, one.interval(level))) for one in self.distributions]
        return np.array(ends, dtype=np.float64).reshape(len(self), 2)

    def rows(self, level: float = 0.9) -> list[dict[str, float]]:
        """Return a dictionary for each item, for ``pandas.DataFrame(scores.rows())``: mean, median, mode, low, high, refused."""
        columns = (self.mean, self.median, self.mode, *self.interval(level).T, self.refused)
        names = ("mean", "median", "mode", "low", "high", "refused")
        return [dict(zip(names, map(float, row), strict=True)) for row in zip(*columns, strict=True)]

    def __repr__(self) -> str:
        missing = sum(one is None for one in self.distributions)
        about = f": mean {np.nanmean(self.mean):.3g}" if missing < len(self) else ""
        return f"Scores({len(self)} items, {self.scale}{about}{f', no score for {missing}' if missing else ''})"

    def _decided(self, decision: Literal["mean", "median"]) -> Floats:
        own = self._each(lambda one: float(getattr(one, decision)))
        return own if self.calibration is None else self.calibration.moved(decision, own)

    def _each(self, of: Callable[[NumberDistribution], float]) -> Floats:
        return np.array([np.nan if one is None else of(one) for one in self.distributions], dtype=np.float64)

    @cached_property
    def _deviations(self) -> Floats:
        return self._each(lambda one: one.std)


class Curve(NamedTuple):
    """An increasing function: straight between its knots, constant beyond them."""

    x: Sequence[float]
    y: Sequence[float]


@dataclass(frozen=True)
class Calibration:
    """What labelled items taught about a judge, in plain numbers: ``Calibration(**kept)`` reads what ``asdict`` returned."""

    temperature: float
    """Of the distributions (:func:`numerate.calibration.fit_temperature`)."""

    curves: Mapping[str, tuple[Sequence[float], Sequence[float]]]
    """For the mean and the median: knots, and what people say there."""

    typical: float
    """The median of the standard deviations."""

    quotients: Sequence[float]
    """Sorted distances of people's scores from the calibrated mean, divided by s."""

    def moved(self, decision: str, own: Floats) -> Floats:
        """Return the calibrated values of the judge's own; NaN stays."""
        x, y = self.curves[decision]
        found: Floats = np.interp(own, x, y)
        return found

    def intervals(self, scale: ScoreScale, means: Floats, deviations: Floats, level: float) -> Floats:
        """Return the intervals around calibrated means, ``[N, 2]``."""
        rank = conformal_rank(check_level("level", level), len(self.quotients))
        reach = self.quotients[rank - 1] * _units(deviations, self.typical)
        scores = np.array(scale.values, dtype=np.float64)
        nearest = scores[np.abs(means[:, None] - scores).argmin(1)]
        slack = 1e-9 * (scores[-1] - scores[0])  # the rounding of means
        low = scores[np.minimum(np.searchsorted(scores, means - reach - slack), len(scores) - 1)]
        high = scores[np.maximum(np.searchsorted(scores, means + reach + slack, side="right") - 1, 0)]
        ends = np.where(low <= high, [low, high], nearest)  # one score at least
        found: Floats = np.where(np.isnan(means), np.nan, ends).T
        return found


def calibrate(scores: Scores, human: npt.ArrayLike) -> Calibration:
    """Return what the scores that people gave to the same items teach about a judge that is not calibrated.

    Items without a score of the judge, and those whose human score is NaN, are left out.
    """
    people = _column("human", human, len(scores))
    lowest, highest = float(scores.scale.values[0]), float(scores.scale.values[-1])
    if (outside := people[(people < lowest) | (people > highest)]).size:
        raise ValueError(
            f"human contains {outside[0]:g}, and the scale is {scores.scale}: expected scores within it; rescale them, or give "
            "the judge their scale."
        )
    kept = [i for i, one in enumerate(scores.distributions) if one is not None and not np.isnan(people[i])]
    if len(kept) < LEAST_ROWS:
        raise ValueError(f"{len(kept)} items have both a score and a human score: expected {LEAST_ROWS} at least, better 100.")
    rows = [one for one in (scores.distributions[i] for i in kept) if one is not None]
    people = people[kept]
    temperature = fit_temperature(rows, people.tolist())
    tempered = Scores(scores.scale, tuple(one.tempered(temperature) for one in rows))
    found = {name: _fitted(getattr(tempered, name), people, (lowest, highest)) for name in ("mean", "median")}
    values = np.array(scores.scale.values, dtype=np.float64)
    below = values[np.searchsorted(values, people, side="right") - 1]
    above = values[np.searchsorted(values, people)]
    away = np.maximum(*(np.abs(end - found["mean"][1]) for end in (below, above)))
    typical = float(np.median(tempered._deviations))
    quotients = np.sort(away / _units(tempered._deviations, typical))
    curves = {name: (curve.x, curve.y) for name, (curve, _) in found.items()}
    return Calibration(temperature, curves, typical, tuple(quotients.tolist()))


def _units(deviations: Floats, typical: float) -> Floats:
    found: Floats = deviations + (typical / 2 or 1.0)  # a judge may always be certain
    return found


def _fitted(own: Floats, people: Floats, bounds: tuple[float, float]) -> tuple[Curve, Floats]:
    """Return the better of two curves, and what those fitted without each item's fold say about it."""
    folds = np.random.default_rng(0).permutation(len(own)) % FOLDS
    tried: list[tuple[float, int, Floats]] = []
    kinds = (_line, _isotonic)
    for index, fit in enumerate(kinds):
        left_out = np.empty(len(own))
        for fold in range(FOLDS):
            left_out[folds == fold] = np.interp(own[folds == fold], *fit(own[folds != fold], people[folds != fold], bounds))
        tried.append((float(np.square(left_out - people).mean()), index, left_out))
    _, best, left_out = min(tried, key=lambda one: one[:2])
    return kinds[best](own, people, bounds), left_out


def _line(x: Floats, y: Floats, bounds: tuple[float, float]) -> Curve:
    """Return the line of least squares that does not fall, within bounds."""
    centred = x - x.mean()
    spread = float(centred @ centred)
    slope = max(0.0, float(centred @ (y - y.mean())) / spread) if spread > 0 else 0.0
    middle, (low, high) = float(x.mean()), bounds
    if slope == 0:
        return Curve((middle,), (float(y.mean()),))
    ends = [middle + (end - float(y.mean())) / slope for end in (low, high)]
    return Curve((ends[0], ends[1]), (low, high))


def _isotonic(x: Floats, y: Floats, bounds: tuple[float, float]) -> Curve:
    """Return the increasing function of least squares, by pooling adjacent violators: a knot in the middle of each pool."""
    pools: list[Floats] = []  # sums of y and x, and their count
    for right, left in sorted(zip((-y).tolist(), x.tolist(), strict=True), key=lambda pair: (pair[1], pair[0])):  # ties: pooled
        pools.append(np.array([-right, left, 1.0]))
        while len(pools) > 1 and pools[-2][0] * pools[-1][2] >= pools[-1][0] * pools[-2][2]:
            last = pools.pop()
            pools[-1] = pools[-1] + last
    return Curve(tuple(float(p[1] / p[2]) for p in pools), tuple(float(p[0] / p[2]) for p in pools))


class Estimate(NamedTuple):
    """A figure with its bootstrap interval; None where it is not defined, as the correlation of equal scores."""

    value: float | None
    low: float | None
    high: float | None

    def __str__(self) -> str:
        if self.value is None or self.low is None or self.high is None:
            return "not defined" if self.value is None else f"{self.value:.3f}"
        return f"{self.value:.3f} ({self.low:.3f} to {self.high:.3f})"


@dataclass(frozen=True)
class Agreement:
    """How a judge agrees with people."""

    pearson: Estimate
    """Pearson's correlation."""

    spearman: Estimate
    """Spearman's rank correlation, with mean ranks for ties."""

    kappa: Estimate
    """Cohen's kappa with quadratic weights, which needs no rounding: 1 - mean (x - y)² / mean (x - y')² over all pairs."""

    error: Estimate
    """The mean absolute error."""

    ties: float
    """The share of pairs of items to which the judge gives the same score, and thus does not rank."""

    items: int
    """Items that were compared."""

    left_out: int
    """Items without a score of the judge, or of people."""

    def __str__(self) -> str:
        figures = "\n".join(f"{name:<9} {getattr(self, name)}" for name in ("pearson", "spearman", "kappa", "error"))
        return f"{figures}\nties      {self.ties:.3f}\nitems     {self.items}, left out {self.left_out}"


def agreement(
    scores: Scores | npt.ArrayLike,
    human: npt.ArrayLike,
    *,
    decision: Decision = "mean",
    level: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
) -> Agreement:
    """Compare the scores of a judge with those of people.

    Args:
        scores: of a judge, or numbers, one per item; NaN for none.
        human: the scores of people for the same items; NaN for none.
        decision: which number of the judge's distribution is compared.
        level: of the intervals, by the percentiles of the bootstrap over items.
        resamples: of the bootstrap.
        seed: of the bootstrap.

    Examples:
        >>> print(agreement([1, 2, 3, 5, float("nan")], [1, 2, 4, 5, 3]))
        pearson   0.962 (0.895 to 1.000)
        spearman  1.000 (1.000 to 1.000)
        kappa     0.947 (0.500 to 1.000)
        error     0.250 (0.000 to 0.750)
        ties      0.000
        items     4, left out 1
    """
    check_choice("decision", decision, choices(Decision))
    check_level("level", level)
    resamples = check_integer("resamples", resamples, "an integer >= 1", least=1)
    own = _column("scores", getattr(scores, decision) if isinstance(scores, Scores) else scores)
    people = _column("human", human, len(own))
    kept = ~(np.isnan(own) | np.isnan(people))
    x, y = own[kept], people[kept]
    if len(x) < 2:
        raise ValueError(f"{len(x)} items have both a score and a human score: expected two at least.")
    drawn = np.random.default_rng(seed).integers(len(x), size=(resamples, len(x)))

    def estimate(of: Callable[[Floats, Floats], float | None]) -> Estimate:
        again = [value for rows in drawn if (value := of(y[rows], x[rows])) is not None]
        ends: Any = np.quantile(again, [(1 - level) / 2, (1 + level) / 2]).tolist() if again else (None, None)
        return Estimate(of(y, x), *ends)

    _, counts = np.unique(x, return_counts=True)
    ties = float((counts * (counts - 1)).sum() / (len(x) * (len(x) - 1)))
    figures = (estimate(pearson), estimate(spearman), estimate(_kappa), estimate(_error))
    return Agreement(*figures, ties=ties, items=len(x), left_out=len(own) - len(x))


def _kappa(people: Floats, own: Floats) -> float | None:
    by_chance = own.var() + people.var() + (own.mean() - people.mean()) ** 2
    return float(1 - np.square(own - people).mean() / by_chance) if by_chance > 0 else None


def _error(people: Floats, own: Floats) -> float:
    return float(np.abs(own - people).mean())


def _column(name: str, values: npt.ArrayLike, rows: int | None = None) -> Floats:
    column = np.asarray(values, dtype=np.float64)
    if column.ndim != 1 or np.isinf(column).any() or rows not in (None, len(column)):
        raise ValueError(
            f"{name} has shape {column.shape}{' or is infinite' if np.isinf(column).any() else ''}: expected one number per item"
            f"{'' if rows is None else f', {rows} in all'}; NaN for none."
        )
    return column
