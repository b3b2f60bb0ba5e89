"""NumberDistribution: a distribution over numbers, with quantiles, intervals, scores and decisions.

X is drawn from the distribution, F(x) = P(X <= x), y is the truth and X' an independent copy of X:

    crps        E|X - y| - E|X - X'| / 2 = integral of (F(x) - 1[x >= y])^2 dx

Values are Decimals, so that 0.1 + 0.2 is 0.3 and numbers of 400 digits are exact. Differences between values are computed
exactly; probabilities and scores are floats.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from numerate.checks import check_integer, check_number
from numerate.distribution.bars import Bar, bar_lines, bars_of
from numerate.distribution.bell_steps import Shape, bell_steps
from numerate.distribution.decision_rules import CENTRAL, REACH, Cost, best, decide, stray
from numerate.distribution.exact import EXACT, Floats, Number, as_list, check_masses, exact_number, first_reached, is_nan, label
from numerate.distribution.moments import crps_of, mean_of, variance_of
from numerate.distribution.shares import SHARES, check_shares, share_lines

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass(frozen=True, init=False, repr=False, eq=False)
class NumberDistribution:
    """A distribution over numbers: exact values, their probabilities, and the share of a model's mass that they cover.

    Create one from values and probabilities, or with :meth:`from_pairs`, :meth:`from_samples`, :meth:`point`, :meth:`bell` or
    :meth:`mixed`. Values are sorted, equal ones merged, and those with probability 0 dropped. All methods are conditional on the
    number being one of the values; ``covered`` is the probability of that under the model.

    Args:
        values: numbers, or texts such as ``"84.50"``; floats have the value of their repr.
        probabilities: one finite number >= 0 per value; normalised to sum to 1.
        covered: share of the model's mass on the values, above 0.
        drawn: part of ``covered`` that was estimated by sampling instead of computed exactly.
        more_digits: mass of numbers with more digits than allowed.
        no_number: mass of answers that are not a number.
        not_searched: mass of answers that were not searched; by default the remainder to 1.

    Examples:
        >>> answer = NumberDistribution(["0.1", "0.2", "0.7"], [0.3, 0.3, 0.4], covered=0.9, no_number=0.1)
        >>> answer
        NumberDistribution(3 values 0.1..0.7: median 0.2, 90 % in 0.1..0.7, covered 0.9)
        >>> answer.mode, answer.median, answer.mean
        (Decimal('0.7'), Decimal('0.2'), Decimal('0.37'))
        >>> answer.decide("relative"), answer.decide("within", tolerance=0.1), round(answer.crps(0.2), 6)
        (Decimal('0.1'), Decimal('0.2'), 0.089)
    """

    values: tuple[Decimal, ...]
    """The N values, sorted and distinct."""

    probabilities: Floats
    """``[N]``, positive, summing to 1; read-only."""

    covered: float
    drawn: float
    more_digits: float
    no_number: float
    not_searched: float

    def __init__(
        self,
        values: Iterable[Number],
        probabilities: npt.ArrayLike,
        *,
        covered: float = 1.0,
        drawn: float = 0.0,
        more_digits: float = 0.0,
        no_number: float = 0.0,
        not_searched: float | None = None,
    ) -> None:
        numbers = [exact_number("values", value) for value in as_list("values", values)]
        shares = {"covered": covered, "drawn": drawn, "more_digits": more_digits, "no_number": no_number}
        self._set(numbers, probabilities, **shares, not_searched=not_searched)

    @classmethod
    def _of_exact(cls, numbers: Sequence[Decimal], probabilities: npt.ArrayLike, shares: Mapping[str, float]) -> Self:
        """Create a distribution over values of others, which are exact already."""
        made = object.__new__(cls)
        made._set(numbers, probabilities, **shares)
        return made

    def _set(self, numbers: Sequence[Decimal], probabilities: npt.ArrayLike, **masses_elsewhere: Any) -> None:
        masses = check_masses("probabilities", probabilities, len(numbers), "value")
        merged: dict[Decimal, float] = {}
        for number, mass in zip(numbers, (masses / masses.sum()).tolist(), strict=True):
            merged[number] = merged.get(number, 0.0) + mass
        support = sorted(number for number, mass in merged.items() if mass > 0)
        kept = np.array([merged[number] for number in support])
        kept.flags.writeable = False
        shares = check_shares(**masses_elsewhere)
        for name, field in {"values": tuple(support), "probabilities": kept, **shares}.items():
            object.__setattr__(self, name, field)

    @classmethod
    def from_pairs(cls, pairs: Iterable[tuple[Number, float]], **shares: float) -> NumberDistribution:
        """Create a distribution from ``(value, probability)`` pairs; ``shares`` are ``covered`` and the other masses.

        Examples:
            >>> NumberDistribution.from_pairs([(12, 0.2), (15, 0.6), ("12.0", 0.1)], covered=0.9, no_number=0.1).mode
            Decimal('15')
        """
        listed = as_list("pairs", pairs)
        for pair in listed:
            if isinstance(pair, str) or not hasattr(pair, "__len__") or len(pair) != 2:
                raise ValueError(
                    f"pairs contains {pair!r:.80}: expected (value, probability); for numbers alone, use from_samples."
                )
        return cls([value for value, _ in listed], [mass for _, mass in listed], **shares)

    @classmethod
    def from_samples(cls, samples: Iterable[Number | None]) -> NumberDistribution:
        """Create the empirical distribution of samples or ratings. None and NaN count as ``no_number``.

        ``drawn`` equals ``covered``. For texts with a number in them, use :func:`numerate.answers.number_distribution`.

        Examples:
            >>> raters = NumberDistribution.from_samples([4, 5, 5, None])
            >>> raters.values, raters.probabilities.round(3).tolist(), raters.covered, raters.no_number
            ((Decimal('4'), Decimal('5')), [0.333, 0.667], 0.75, 0.25)
        """
        drawn = as_list("samples", samples)
        numbers = [value for value in drawn if value is not None and not is_nan(value)]
        if not numbers:
            raise ValueError(f"samples has {len(drawn)} entries but no number: expected at least one number. Draw more samples.")
        covered, no_number = len(numbers) / len(drawn), (len(drawn) - len(numbers)) / len(drawn)
        return cls(numbers, np.ones(len(numbers)), covered=covered, drawn=covered, no_number=no_number)

    @classmethod
    def point(cls, value: Number) -> NumberDistribution:
        """Create a point mass.

        Examples:
            >>> NumberDistribution.point("0.30")
            NumberDistribution(1 value 0.3)
        """
        return cls([exact_number("value", value)], [1.0])

    @classmethod
    def mixed(cls, distributions: Sequence[NumberDistribution], weights: npt.ArrayLike | None = None) -> NumberDistribution:
        """Create a mixture: draw one of the distributions by its weight, then a number from it.

        ``covered`` and the other masses are mixed too, so a distribution with less coverage contributes less.

        Args:
            distributions: at least one.
            weights: one finite number >= 0 per distribution; equal by default.

        Examples:
            >>> models = [NumberDistribution.point(10), NumberDistribution([10, 20], [0.5, 0.5])]
            >>> NumberDistribution.mixed(models, [1, 3]).probabilities.tolist()
            [0.625, 0.375]
        """
        for part in as_list("distributions", distributions):
            if not isinstance(part, NumberDistribution):
                raise TypeError(
                    f"distributions contains {part!r:.80}: expected a list of NumberDistribution; use point for a number."
                )
        masses = check_masses(
            "weights", np.ones(len(distributions)) if weights is None else weights, len(distributions), "distribution"
        )
        shares = masses / masses.sum()
        values = [value for part in distributions for value in part.values]
        mixture = np.concatenate([w * part.covered * part.probabilities for w, part in zip(shares, distributions, strict=True)])
        total = {
            name: math.fsum(w * getattr(part, name) for w, part in zip(shares, distributions, strict=True)) for name in SHARES
        }
        return cls._of_exact(values, mixture, total)

    @classmethod
    def bell(
        cls,
        center: Number,
        *,
        width: Number | None = None,
        relative: Number | None = None,
        shape: Shape = "gaussian",
        decimals: int | None = None,
        lowest: Number | None = None,
        highest: Number | None = None,
        at_most: int = 501,
    ) -> NumberDistribution:
        r"""Create a discrete bell around a label, on the numbers with as many decimals as the label.

        The probability of a value v is proportional to f((v - center) / width):

            gaussian    exp(-z^2 / 2)       |z| <= 6;  the width is the standard deviation
            laplace     exp(-|z|)           |z| <= 20; the width is the mean distance from the center
            uniform     1                   |z| <= 1;  the values are center - width to center + width

        A bell with more than ``at_most`` values is approximated by that many equally likely ones, the medians of strata of equal
        probability. If it contains no value, or the width is 0, the result is a point mass at the value closest to the center.

        Args:
            center: the label. A text or Decimal keeps its zeros: ``"84.50"`` has two decimals, 84.5 one, and 84.0 none.
            width: width in the unit of the label.
            relative: width relative to the center instead of ``width``: 0.05 for 5 %.
            shape: shape of the bell.
            decimals: number of decimals of the values; -2 for multiples of 100. Default: that of the center.
            lowest: smallest value allowed, such as 0 for a price.
            highest: largest value allowed.
            at_most: maximum number of values; an odd number keeps the center among them.

        Examples:
            >>> [str(value) for value in NumberDistribution.bell("84.5", width=0.05).values]
            ['84.2', '84.3', '84.4', '84.5', '84.6', '84.7', '84.8']
            >>> NumberDistribution.bell(3, width=1, shape="uniform", highest=3).probabilities.tolist()
            [0.5, 0.5]
            >>> NumberDistribution.bell(99_900, relative=0.05)
            NumberDistribution(501 values 84461..115339: median 99900, 90 % in 91727..108073)
        """
        steps, places, weights = bell_steps(center, width, relative, shape, decimals, lowest, highest, at_most)
        return cls([EXACT.scaleb(Decimal(step), -places) for step in steps], weights)

    @cached_property
    def floats(self) -> Floats:
        """The values as floats ``[N]``, for plots; infinite beyond the range of a float. Read-only."""
        values = np.array([float(value) for value in self.values])
        values.flags.writeable = False
        return values

    @cached_property
    def mode(self) -> Decimal:
        """The most likely value; ties go to the closest to the median, then to the lower one."""
        return best(self.values, self.probabilities, self.median)

    @property
    def median(self) -> Decimal:
        """The lowest value v with P(X <= v) >= 1/2."""
        return self.quantile(0.5)

    @cached_property
    def mean(self) -> Decimal:
        """The mean, rounded to 15 digits relative to the range, since probabilities are floats."""
        return mean_of(self.values, self.probabilities)

    @property
    def variance(self) -> float:
        """The mean squared distance from the mean; infinite beyond the range of a float."""
        share, scale = self._deviation
        return float(EXACT.multiply(Decimal(share), EXACT.multiply(scale, scale)))

    @property
    def std(self) -> float:
        """The standard deviation; infinite beyond the range of a float."""
        share, scale = self._deviation
        return float(EXACT.multiply(Decimal(math.sqrt(share)), scale))

    def cdf(self, x: Number) -> float:
        """Return P(X <= x).

        Examples:
            >>> [NumberDistribution([1, 2], [0.25, 0.75]).cdf(x) for x in (0, 1, 1.5, 2)]
            [0.0, 0.25, 0.25, 1.0]
        """
        if isinstance(x, Real | Decimal) and x in (math.inf, -math.inf):
            return float(x > 0)
        below = bisect_right(self.values, exact_number("x", x))
        return float(self._cumulative[below - 1]) if below else 0.0

    def quantile(self, q: float) -> Decimal:
        """Return the lowest value v with P(X <= v) >= q; the smallest value for q = 0.

        Comparisons allow for a rounding error of 1e-11, relative to q and to 1 - q.

        Examples:
            >>> uniform = NumberDistribution(range(1, 11), [0.1] * 10)
            >>> uniform.quantile(0.3), uniform.quantile(0.31)
            (Decimal('3'), Decimal('4'))
        """
        q = check_number("q", q, least=0, most=1)
        return self.values[first_reached(self._cumulative, q)]

    def interval(self, level: float) -> tuple[Decimal, Decimal]:
        """Return the central interval: the lowest and the highest value outside the tails of (1 - level) / 2.

        The upper end is ``quantile((1 + level) / 2)``; the lower end is defined symmetrically. The interval is closed and has at
        least ``level`` of the probability, with at most (1 - level) / 2 on either side. Mass that is not covered is ignored.

        Examples:
            >>> NumberDistribution(range(1, 21), [1] * 20).interval(0.9)
            (Decimal('2'), Decimal('19'))
        """
        share = (1 + check_number("level", level, above=0, most=1)) / 2
        above = self.probabilities[::-1].cumsum()
        return self.values[len(self.values) - 1 - first_reached(above, share)], self.values[
            first_reached(self._cumulative, share)
        ]

    def sample(self, n: int, seed: int | np.random.Generator) -> list[Decimal]:
        """Draw ``n`` independent values. ``seed`` is an integer, or a generator whose state advances.

        Examples:
            >>> NumberDistribution([1, 2], [0.25, 0.75]).sample(5, seed=0)
            [Decimal('2'), Decimal('2'), Decimal('1'), Decimal('1'), Decimal('2')]
        """
        n = check_integer("n", n, "an integer >= 0 of values to draw", least=0)
        if isinstance(seed, bool) or not isinstance(seed, int | np.integer | np.random.Generator):
            raise TypeError(f"seed={seed!r} is not an integer: expected one, such as 0, or a numpy Generator.")
        drawn = np.random.default_rng(seed).random(n)
        index = np.searchsorted(self._cumulative, drawn, side="right")  # the last sum is 1, and above all that is drawn
        return [self.values[i] for i in index.tolist()]

    def tempered(self, temperature: float) -> NumberDistribution:
        """Return the distribution with probabilities proportional to p^(1 / temperature): above 1 flatter, below 1 sharper.

        Values and shares of the model's mass are unchanged; :func:`numerate.calibration.fit_temperature` fits a temperature.
        Equally likely values, such as distinct samples, remain equally likely.

        Examples:
            >>> NumberDistribution([1, 2], [0.2, 0.8]).tempered(2).probabilities.round(6).tolist()
            [0.333333, 0.666667]
        """
        if check_number("temperature", temperature, above=0) == 1:
            return self
        with np.errstate(over="ignore"):  # -inf: a probability of 0
            logs = np.log(self.probabilities / self.probabilities.max()) / temperature
        shares = {name: getattr(self, name) for name in SHARES}
        return self._of_exact(self.values, np.exp(logs), shares)

    def trimmed(self, *, relative: bool = False, reach: int = REACH) -> NumberDistribution:
        """Return the distribution without outliers, on which :meth:`decide` operates; their mass is added to ``not_searched``.

        Outliers are values farther from the central 90 % than three times its width: at most 5 % on either side.

        Args:
            relative: for relative errors, which small values dominate: also drop values less than half of the central 90 %.
            reach: distance from the central 90 % beyond which values are outliers, in units of its width; 0 keeps only the
                central 90 %.

        Examples:
            >>> price = NumberDistribution([1, 9900, 10000, 10100, 10**9], [0.001, 0.3, 0.4, 0.298, 0.001])
            >>> price.trimmed()
            NumberDistribution(3 values 9900..10100: median 10000, 90 % in 9900..10100, covered 0.998)
            >>> price.decide("relative"), price.decide("relative", trim=False)
            (Decimal('10000'), Decimal('1'))
        """
        kept = ~np.array(stray(self.values, *self.interval(CENTRAL), relative, reach))
        if kept.all():
            return self
        share = float(self.probabilities[kept].sum())
        shares = {name: getattr(self, name) for name in SHARES}
        shares["not_searched"] = min(1.0, self.not_searched + self.covered * (1 - share))
        shares["covered"], shares["drawn"] = self.covered * share, min(self.drawn, self.covered * share)
        values = [value for value, keep in zip(self.values, kept.tolist(), strict=True) if keep]
        return self._of_exact(values, self.probabilities[kept], shares)

    def crps(self, truth: Number) -> float:
        """Return the continuous ranked probability score, in the unit of the values; lower is better.

        For a point mass it is the absolute error. Infinite beyond the range of a float.

        Examples:
            >>> NumberDistribution([0, 2], [0.5, 0.5]).crps(0), NumberDistribution.point(3).crps("0.5")
            (0.5, 2.5)
        """
        return crps_of(self.values, self.probabilities, self._cumulative, exact_number("truth", truth))

    def decide(
        self,
        metric: str | Cost,
        *,
        tolerance: Number | None = None,
        relative_tolerance: Number | None = None,
        floor: Number | None = None,
        candidates: Iterable[Number] | None = None,
        trim: bool = True,
    ) -> Decimal:
        """Return the number with the smallest expected cost; ``numerate.distribution.decision_rules`` has a table of the rules.

        Outliers are dropped first (:meth:`trimmed`), except for the median: a tiny mass on a distant number would change the mean
        or a relative decision by orders of magnitude. The properties ``mean``, ``median`` and ``mode`` are exact.

        All answers except the mean are values of the distribution. Ties go to the value closest to the median, then to the lower
        one; the median is the lower one of two.

        The relative error of a truth of 0 is 0 or infinite: if P(X = 0) >= 1/2, ``"relative"`` returns 0, otherwise it ignores
        the value 0. With ``floor``, the cost is |x - y| / max(|y|, floor), and 0 needs no special case.

        Args:
            metric: "median" (absolute error), "mean" (squared error), "mode" (exact answers), "relative", "within", "within_1",
                "within_5", "within_10", or a function ``cost(prediction, truth)`` of two floats.
            tolerance: for "within": the largest |x - y| that counts as correct.
            relative_tolerance: for "within", instead: the largest |x - y| / |y| that counts as correct, 0.05 for 5 %.
            floor: for "relative": lower bound of the divisor.
            candidates: for "within" and functions: the answers to choose from, by default the values. A function is
                called once per pair of a candidate and a value.
            trim: ignore outliers; False for the exact minimum of the expected cost.

        Examples:
            >>> answer = NumberDistribution([1, 10, 11, 100], [0.4, 0.15, 0.2, 0.25])
            >>> [str(answer.decide(metric)) for metric in ("median", "mean", "relative", "mode")]
            ['10', '29.1', '1', '1']
            >>> answer.decide("within", tolerance=1, candidates=[2, 10.5]), answer.decide(lambda x, y: max(y - x, 0))
            (Decimal('2'), Decimal('100'))
        """
        found = self.trimmed(relative=True) if trim and metric == "relative" else self
        return decide(found, metric, tolerance, relative_tolerance, floor, candidates, trim=trim)

    def bars(self, rows: int = 10) -> list[Bar]:
        """Return a histogram: one bar per value, or per range of a round width for more than ``rows`` values.

        Ranges cover the central 98 %; the values below and above have an unbounded bar each.

        Examples:
            >>> [(bar.label, round(bar.probability, 2)) for bar in NumberDistribution(range(100), [1] * 100).bars(2)]
            [('0 to 50', 0.5), ('50 to 100', 0.5)]
        """
        check_integer("rows", rows, "an integer >= 1", least=1)
        return bars_of(self.values, self.probabilities, self._cumulative, self.interval(0.98), rows)

    def to_text(self, rows: int = 10, width: int = 40) -> str:
        """Return :meth:`bars` as text for the terminal; the longest bar has ``width`` characters.

        The last line shows the mass that the values do not cover, and how much of the covered mass was sampled.

        Examples:
            >>> print(NumberDistribution([12, 15, 150], [0.25, 0.5, 0.25], covered=0.9, no_number=0.1).to_text(width=8))
             12  25.0 %  ████
             15  50.0 %  ████████
            150  25.0 %  ████
            covered 90.0 %, no number 10.0 %
        """
        check_integer("width", width, "an integer >= 1", least=1)
        lines = bar_lines(self.bars(rows), width)
        return "\n".join([*lines, *share_lines({name: getattr(self, name) for name in SHARES})])

    def __len__(self) -> int:
        return len(self.values)

    def __eq__(self, other: object) -> bool:
        return self._key == other._key if isinstance(other, NumberDistribution) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._key)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        for field in state.values():
            if isinstance(field, np.ndarray):  # copied and unpickled arrays are writeable
                field.flags.writeable = False

    def __repr__(self) -> str:
        covered = f"covered {self.covered:.3g}" if self.covered < 1 else ""
        if len(self.values) == 1:
            return f"NumberDistribution(1 value {label(self.values[0])}{', ' * bool(covered)}{covered})"
        low, high = map(label, self.interval(0.9))
        facts = [f"median {label(self.median)}", f"90 % in {low}..{high}", *([covered] if covered else [])]
        ends = f"{label(self.values[0])}..{label(self.values[-1])}"
        return f"NumberDistribution({len(self.values)} values {ends}: {', '.join(facts)})"

    @property
    def _key(self) -> tuple[Any, ...]:
        return self.values, self.probabilities.tobytes(), *(getattr(self, name) for name in SHARES)

    @cached_property
    def _cumulative(self) -> Floats:
        """P(X <= v) for each value; the last is 1."""
        sums: Floats = np.minimum(self.probabilities.cumsum(), 1.0)
        sums[-1] = 1.0
        return sums

    @cached_property
    def _deviation(self) -> tuple[float, Decimal]:
        """The variance in units of the squared range, and the range."""
        return variance_of(self.values, self.probabilities, self.mean)
