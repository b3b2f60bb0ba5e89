"""How sure is a mean or a median? Intervals for measures of seeds x examples.

A measure is an array ``[S, E]``: S training runs (seeds), each scored on the same E examples; ``[E]`` is one run. Two things
vary: another seed gives another model, and other examples another test set. A lucky seed lifts all its examples at once, so
S x E scores tell far less than S x E independent ones. With x_s the values of seed s, m_s their mean, and m the mean of the m_s:

    over="examples"   these models, other examples   bootstrap (BCa) of m, the examples drawn anew
    over="seeds"      these examples, other seeds    m ± h_S               h_S = t(S-1) sqrt(s² / S),  s² the variance of the m_s
    over="both"       other examples and seeds       m ± sqrt(h_S² + h_E²) h_E = t(E-1) sqrt(c / E),   c the mean of cov(x_s, x_r)
                                                                           over the pairs of seeds s, r, or 0 if that is negative

t(n) is the quantile of the t distribution with n degrees of freedom. c is what seeds have in common because they share their
examples; what they do not share is in s² already.

Values are finite, or ``inf`` where an error is measured and there was no answer. Results depend on the arguments alone: what is
random comes from ``seed``, the seed of the resampling, not of a training run.
"""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats  # type: ignore[import-untyped]

from numerate.checks import check_choice, check_number, choices

Array = NDArray[np.float64]
Over = Literal["examples", "seeds", "both"]

ROUNDING = 1e-14  # what is smaller than this share of the values is an error of rounding
BATCH = 2**20  # values to resample at once


@dataclass(frozen=True)
class Interval:
    """An estimate, and the interval that holds the true value with probability ``level``."""

    estimate: float
    low: float
    high: float
    level: float
    over: Over


def mean_interval(
    values: Any, level: float = 0.95, over: Over | None = None, *, resamples: int = 9_999, seed: int = 0
) -> Interval:
    """The mean of a measure, with its interval.

    How often the 95 % interval held the true mean, in simulations of accuracies and normal measures:

    - Over seeds: 95 % at 3, 5 and 10 seeds, where a percentile bootstrap holds 76, 84 and 91 %. If one run in ten collapses,
      no interval from so few seeds knows it: 91, 83 and 79 % (percentile: 62, 65 and 73 %).
    - Over both: 95 to 98 % at 3 seeds, 94 to 97 % at 5 and 10, 95 to 99 % at 2. Seeds and examples resampled together give 87 to
      100 %. The intervals over seeds and over examples answer other questions, and hold this mean in as few as 43 and 46 %.
    - Over examples: 92 to 98 % from 100 examples on, if some are right and some wrong. Where a single wrong answer is to be
      expected (accuracy 0.99, 100 examples) it is 66 %, and where none was found the interval has no width, though that does
      not prove there is none. Errors with heavy tails (log-normal, σ = 2) stay below 84 %: take their median.

    Args:
        values: ``[E]`` or ``[S, E]``. Where one is infinite, so are the mean and both ends.
        level: of the interval.
        over: what would be drawn anew; by default both, or the examples where there is one seed.
        resamples: of the bootstrap over examples.
        seed: of the bootstrap.

    Example:
        >>> mean_interval([[1, 0, 1, 1], [1, 0, 0, 1], [1, 1, 1, 1]], over="seeds")
        Interval(estimate=0.75, low=0.12896..., high=1.37103..., level=0.95, over='seeds')
    """
    array = check_measure("values", values)
    level, over = check_level(level), check_over("values", array, over)
    if np.isinf(array).any():
        return Interval(math.inf, math.inf, math.inf, level, over)
    scale = scale_of(array)
    array = array / scale
    mean = float(array.mean())
    if over == "examples":
        low, high = _bootstrap_mean(array.mean(0), level, resamples, seed)
    else:
        half = half_width(1 - level, array.shape, *standard_errors(array, over))
        low, high = mean - half, mean + half
    return Interval(mean * scale, low * scale, high * scale, level, over)


def median_interval(
    values: Any, level: float = 0.95, over: Over | None = None, *, resamples: int = 1_999, seed: int = 0
) -> Interval:
    """The median over examples, averaged over seeds, with its interval: for errors, where no answer is infinitely wrong.

    Over examples, it is a percentile bootstrap: 95 % intervals hold the true median in 93 to 97 % of simulations. Over seeds, it
    is the t-interval of the seeds' medians. Over both, it reaches as far as the root of the two distances squared and added,
    and errs on the safe side: 96 to 99 %.

    An end is infinite where no answer is so frequent that it could be the median. Where it is the median of a seed, the
    estimate is infinite, and the interval over seeds or both the whole line.

    Args:
        values: see :func:`mean_interval`.
        level: see :func:`mean_interval`.
        over: see :func:`mean_interval`.
        resamples: see :func:`mean_interval`.
        seed: see :func:`mean_interval`.

    Example:
        >>> median_interval([0.5, 0.1, 0.2, float("inf"), 0.4])
        Interval(estimate=0.4, low=0.1, high=inf, level=0.95, over='examples')
    """
    array = check_measure("values", values)
    level, over = check_level(level), check_over("values", array, over)
    scale = scale_of(array)
    array = array / scale
    medians = np.median(array, axis=1)  # [S]
    estimate = float(medians.mean())
    low, high = (estimate, estimate) if over == "seeds" else _bootstrap_median(array, level, resamples, seed)
    if over != "examples" and math.isinf(estimate):
        low, high = -math.inf, math.inf
    elif over != "examples":
        half = half_width(1 - level, array.shape, _standard_error(medians), 0.0)
        low, high = estimate - math.hypot(half, estimate - low), estimate + math.hypot(half, high - estimate)
    return Interval(estimate * scale, low * scale, high * scale, level, over)


def standard_errors(array: Array, over: Over) -> tuple[float, float]:
    """Of the mean of ``array [S, E]``: what seeds add to it, and what examples add."""
    seeds, examples = array.shape
    if over == "seeds":
        return _standard_error(array.mean(1)), 0.0
    # The variance of a mean of S terms is (their mean variance + (S - 1) mean covariance) / S.
    covariance = (seeds * array.mean(0).var(ddof=1) - array.var(1, ddof=1).mean()) / (seeds - 1)
    return _standard_error(array.mean(1)), math.sqrt(max(covariance, 0.0) / examples)


def half_width(p: float, shape: tuple[int, ...], seed_error: float, example_error: float) -> float:
    """Of the interval at level ``1 - p``."""
    by_seeds, by_examples = (-float(special.stdtrit(max(size - 1, 1), p / 2)) for size in shape)
    return math.hypot(by_seeds * seed_error, by_examples * example_error)


def check_measure(name: str, values: Any) -> Array:
    """``values`` as an array ``[S, E]``, or an error that says what is wrong with them."""
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise TypeError(
            f"{name} is a {type(values).__name__} that is no array of numbers: expected [examples] or [seeds, examples], with "
            "every seed scored on the same examples."
        ) from None
    if array.ndim not in (1, 2) or not array.size:
        raise ValueError(f"{name} has shape {array.shape}: expected [examples] or [seeds, examples], none of them 0.")
    array = np.atleast_2d(array)
    bad = np.argwhere(np.isnan(array) | (array == -np.inf))
    if len(bad):
        seed, example = bad[0]
        raise ValueError(
            f"{name} holds {array[seed, example]} (seed {seed}, example {example}): expected finite values, or inf. Score what "
            "has no answer: 0 as an accuracy, inf as an error."
        )
    return array


def check_level(level: float) -> float:
    """Raise unless ``level`` is that of an interval; return it."""
    if not 0.5 < check_number("level", level) < 1:
        raise ValueError(f"level={level!r}: expected the level of an interval, between 0.5 and 1, such as 0.95.")
    return float(level)


def check_over(name: str, array: Array, over: Over | None) -> Over:
    """Raise unless ``array [S, E]`` has two of what ``over`` would draw anew; return ``over`` or its default."""
    seeds, examples = array.shape
    if over is None:
        over = "both" if seeds > 1 else "examples"
    check_choice("over", over, choices(Over))
    if over != "examples" and seeds < 2:
        raise ValueError(f'{name} has one seed: over="{over}" needs two or more. Train another, or use over="examples".')
    if over != "seeds" and examples < 2:
        raise ValueError(f'{name} has one example: over="{over}" needs two or more. Add examples, or use over="seeds".')
    return over


def check_count(name: str, value: Any, least: int) -> int:
    """Raise unless ``value`` is a whole number ``>= least``; return it."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name}={value!r} is not a whole number: expected one >= {least}.") from None
    if number < least:
        raise ValueError(f"{name}={value!r} is out of range: expected a whole number >= {least}.")
    return number


def scale_of(*arrays: Array) -> float:
    """A power of two as large as the largest finite value: divided by it, exactly, no square overflows."""
    largest = max(float(np.abs(array, where=np.isfinite(array), out=np.zeros_like(array)).max()) for array in arrays)
    return math.ldexp(1.0, math.frexp(largest)[1] - 1) if largest else 1.0


def _standard_error(terms: Array) -> float:
    error = float(terms.std(ddof=1)) / math.sqrt(len(terms))
    return error if error > ROUNDING else 0.0


def _bootstrap_mean(terms: Array, level: float, resamples: int, seed: int) -> tuple[float, float]:
    count, rng = check_count("resamples", resamples, least=99), np.random.default_rng(check_count("seed", seed, least=0))
    if np.ptp(terms) <= ROUNDING:
        return float(terms.mean()), float(terms.mean())
    batch = max(1, BATCH // len(terms))
    result = stats.bootstrap((terms,), np.mean, n_resamples=count, batch=batch, confidence_level=level, random_state=rng)
    return float(result.confidence_interval.low), float(result.confidence_interval.high)


def _bootstrap_median(array: Array, level: float, resamples: int, seed: int) -> tuple[float, float]:
    count, rng = check_count("resamples", resamples, least=99), np.random.default_rng(check_count("seed", seed, least=0))
    batch = max(1, BATCH // array.size)
    medians = [
        np.median(array[:, rng.integers(0, array.shape[1], (min(batch, count - done), array.shape[1]))], axis=-1).mean(0)
        for done in range(0, count, batch)
    ]
    ordered = np.sort(np.concatenate(medians))
    # Picked, not interpolated: between a number and inf there is no number.
    tail = max(int((1 - level) / 2 * (count + 1)) - 1, 0)
    return float(ordered[tail]), float(ordered[-1 - tail])
