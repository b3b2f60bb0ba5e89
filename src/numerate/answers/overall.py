"""Metrics over all answers: RMSE, R² and correlations.

With y the gold numbers, m their mean, and e the errors of the answers:

    rmse    sqrt(mean of e²)
    r²      1 - sum of e² / sum of (y - m)²     1: no error; 0: as good as the constant m; negative: worse

Correlations do not depend on offset and scale of the answers.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from numerate.distribution.exact import Floats


def rmse(errors: npt.ArrayLike) -> float:
    """Return the root mean squared error; infinite if an error is, or beyond the range of a float.

    Examples:
        >>> rmse([3, -4, 0, 0]), rmse([1e300, 1e300])
        (2.5, 1e+300)
    """
    sizes = np.abs(_column("errors", errors))
    largest = float(sizes.max())
    if largest == 0 or math.isinf(largest):
        return largest
    return largest * math.sqrt(float(np.square(sizes / largest).mean()))  # squares do not overflow


def r_squared(golds: npt.ArrayLike, errors: npt.ArrayLike) -> float | None:
    """Return R², the share of the variance of the gold numbers that the answers explain; None if all gold numbers are equal.

    Examples:
        >>> r_squared([1, 2, 3, 6], [1, -1, 0, 0]), r_squared([1, 3], [2, 2]), r_squared([5, 5], [0, 1])
        (0.857..., -3.0, None)
    """
    numbers, off = _column("golds", golds), _column("errors", errors)
    if len(numbers) != len(off):
        raise ValueError(f"golds has {len(numbers)} numbers and errors {len(off)}: expected one error per gold number.")
    if numbers.min() == numbers.max():
        return None
    ratio = rmse(off) / rmse(numbers - numbers.mean())
    return 1 - ratio * ratio


def pearson(golds: npt.ArrayLike, answers: npt.ArrayLike) -> float | None:
    """Return Pearson's correlation; None if all gold numbers or all answers are equal, or any answer is infinite.

    Examples:
        >>> pearson([1, 2, 3], [10, 20, 30]), pearson([1, 2, 3], [3, 1, 2]), pearson([1, 2], [5, 5])
        (1.0, -0.5, None)
    """
    numbers, others = _column("golds", golds), _column("answers", answers)
    if len(numbers) != len(others):
        raise ValueError(f"golds has {len(numbers)} numbers and answers {len(others)}: expected one answer per gold number.")
    columns = np.stack([numbers, others])
    if not np.isfinite(columns).all():
        return None
    columns /= np.maximum(np.abs(columns).max(1, keepdims=True), np.finfo(float).tiny)  # products do not overflow
    centred = columns - columns.mean(1, keepdims=True)
    sizes = np.sqrt(np.square(centred).sum(1))
    if not sizes.all() or any(column.min() == column.max() for column in columns):
        return None
    return float(np.clip((centred[0] / sizes[0]) @ (centred[1] / sizes[1]), -1, 1))


def spearman(golds: npt.ArrayLike, answers: npt.ArrayLike) -> float | None:
    """Return Spearman's rank correlation with mean ranks for ties; None if all gold numbers or all answers are equal.

    Examples:
        >>> spearman([1, 2, 3], [1, 10, 1000]), spearman([1, 2, 3, 4], [5, 5, 9, math.inf])
        (1.0, 0.948...)
    """
    return pearson(_ranks(_column("golds", golds)), _ranks(_column("answers", answers)))


def _ranks(column: Floats) -> Floats:
    _, place, counts = np.unique(column, return_inverse=True, return_counts=True)
    middles: Floats = np.cumsum(counts) - (counts - 1) / 2
    return middles[place]


def _column(name: str, values: npt.ArrayLike) -> Floats:
    column = np.asarray(values, dtype=np.float64)
    if column.ndim != 1 or not column.size or np.isnan(column).any():
        raise ValueError(f"{name} has shape {column.shape} or contains NaN: expected numbers [E], one per example.")
    return column
