r"""Weights of the members of a pool, fitted on validation data by the CRPS.

With the weights u of its members, the CRPS of the linear pool is a quadratic form in their distribution functions, y the truth:

    CRPS(u) = integral of (sum u_i F_i(x) - 1[x >= y])^2 dx = u' G u        G_ij = integral of (F_i - 1[x >= y]) (F_j - 1[x >= y])

so its mean over the rows has one minimum on the simplex.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from decimal import Decimal

import numpy as np

from numerate.calibration.frame import FAR, INNER, central, half_width, scale_of, typical_half
from numerate.distribution import CircularDistribution, NumberDistribution, pool
from numerate.distribution.exact import EXACT, SHORT, Floats, Number, as_list, exact_number
from numerate.distribution.pools import Distribution, checked_members, lines_of, steps

_FOLDS = 5
_STEPS = 2000


def fit_pool_weights(members: Sequence[Sequence[Distribution]], truths: Iterable[Number]) -> Floats:
    """Return the weights of :func:`numerate.distribution.pool` with the smallest mean CRPS on validation rows, ``[M]``.

    The CRPS of a row is in units of the row's scale, as for :func:`fit_temperature`, so that no row with large numbers decides.
    Equal weights are hard to beat with few rows: the fitted ones are returned only if, in five-fold cross-validation, they are
    better than equal ones by more than the standard error of the difference.

    Args:
        members: one list of distributions per row, each with the M members in the same order.
        truths: one number per row.

    Examples:
        >>> good, bad = NumberDistribution.bell(10, width=1), NumberDistribution.bell(14, width=1)
        >>> fit_pool_weights([[good, bad]] * 20, [9, 10, 10, 11] * 5).round(2).tolist()
        [1.0, 0.0]
        >>> fit_pool_weights([[good, good]] * 20, [9, 10, 10, 11] * 5).tolist()
        [0.5, 0.5]
    """
    grams, covered = _grams(members, truths)
    count = covered.shape[1]
    equal = np.full(count, 1 / count)
    if len(grams) < 2 * _FOLDS or count == 1:
        return equal
    folds = np.arange(len(grams)) % _FOLDS
    gains = np.empty(len(grams))
    for fold in range(_FOLDS):
        held, rest = folds == fold, folds != fold
        found = _fitted(grams[rest], covered[rest])
        gains[held] = _scores(equal, grams[held], covered[held]) - _scores(found, grams[held], covered[held])
    if gains.mean() <= gains.std() / np.sqrt(len(gains)):
        return equal
    return _fitted(grams, covered)


def _grams(members: Sequence[Sequence[Distribution]], truths: Iterable[Number]) -> tuple[Floats, Floats]:
    """Return G of each row ``[R, M, M]``, in units of the row's scale, and what each member covers ``[R, M]``."""
    rows = [checked_members(row) for row in as_list("members", members)]
    numbers = [exact_number("truths", truth) for truth in as_list("truths", truths)]
    counts = {len(row) for row in rows}
    if len(rows) != len(numbers) or len(counts) != 1 or counts == {0}:
        raise ValueError(
            f"members has {len(rows)} rows with {', '.join(map(str, sorted(counts))) or 'no'} distributions, and truths "
            f"{len(numbers)} entries: expected a truth for each row, and the same members in each."
        )
    halves = [half_width(*central(NumberDistribution.mixed(lines_of(row)), INNER)) for row in rows]
    typical = typical_half(sorted(half for half in halves if half))
    grams = []
    for row, y, half in zip(rows, numbers, halves, strict=True):
        first, point = row[0], NumberDistribution.point(y)
        if isinstance(first, CircularDistribution):
            scale = first.period
            heights, gaps, unit = steps([*row, CircularDistribution(point, scale, first.lowest)])
        else:
            exact = scale_of(half, typical)
            scale = SHORT.divide(Decimal(exact.numerator), Decimal(exact.denominator))
            middle, reach = pool(row).median, EXACT.multiply(scale, Decimal(FAR))
            heights, gaps, unit = steps([*row, point], (EXACT.subtract(middle, reach), EXACT.add(middle, reach)))
        away = heights[:-1] - heights[-1]
        grams.append((away * gaps) @ away.T * float(SHORT.divide(unit, scale)))
    return np.array(grams), np.array([[line.covered for line in lines_of(row)] for row in rows])


def _scores(weights: Floats, grams: Floats, covered: Floats) -> Floats:
    """Return the CRPS of each row's pool ``[R]``."""
    u = _votes(weights, covered)
    scores: Floats = np.einsum("ri,rij,rj->r", u, grams, u)
    return scores


def _votes(weights: Floats, covered: Floats) -> Floats:
    u = weights * covered
    normalised: Floats = u / u.sum(axis=1, keepdims=True)
    return normalised


def _fitted(grams: Floats, covered: Floats) -> Floats:
    """Return the weights with the smallest mean CRPS, by projected gradient steps that never raise it."""
    weights = np.full(covered.shape[1], 1 / covered.shape[1])
    score, size = _scores(weights, grams, covered).mean(), 1.0
    for _ in range(_STEPS):
        u = _votes(weights, covered)
        pull = 2 * np.einsum("rij,rj->ri", grams, u)
        total = (weights * covered).sum(axis=1, keepdims=True)
        slope = ((pull - (pull * u).sum(axis=1, keepdims=True)) * covered / total).mean(axis=0)
        while size > 1e-12:
            tried = _on_simplex(weights - size * slope)
            better = _scores(tried, grams, covered).mean()
            if better <= score - 1e-4 / size * np.square(tried - weights).sum():
                break
            size /= 2
        moved = float(np.abs(tried - weights).max())
        if size <= 1e-12 or moved < 1e-10:
            break
        weights, score, size = tried, better, size * 2
    return weights


def _on_simplex(point: Floats) -> Floats:
    """Return the closest point with non-negative entries that sum to 1."""
    ordered = np.sort(point)[::-1]
    excess = (ordered.cumsum() - 1) / np.arange(1, len(point) + 1)
    nearest: Floats = np.maximum(point - excess[np.flatnonzero(ordered > excess)[-1]], 0.0)
    return nearest
