r"""How wide a label's distribution should be, estimated from data.

The width answers "how far off would still be fine to you?". If nobody can say, the noise of the labels is a start: y_i and y_j
are labels of rows whose features agree, e_i is the error of a first model,

    neighbours    width^2 = mean of (y_i - y_j)^2 / 2
    residuals     width   = sqrt(mean of e_i^2), mean of |e_i|, or max of |e_i|: gaussian, laplace, uniform

Relative widths divide each difference by the mean size of its two labels, or by the truth. Exact tasks (sums, counts, ids) want
the width 0, whatever the data say.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from numerate.checks import check_choice, choices
from numerate.distribution.bell_steps import Shape
from numerate.distribution.exact import Floats

_CHUNK = 512  # rows whose distances are computed at once
_RELATIVE, _OF_SPREAD = 0.05, 0.2  # of `suitable_width`: shares of the label and of the spread of all labels


def estimate_width(
    features: npt.ArrayLike | Sequence[Hashable],
    labels: npt.ArrayLike,
    *,
    relative: bool = False,
    at_most: int = 10_000,
    seed: int = 0,
) -> float:
    """Estimate the noise of labels from rows whose features agree, or nearly do.

    Where at least 30 rows have a twin with the same features, or where the features are no numbers, the twins alone are used.
    Otherwise each row is compared with its nearest neighbour, by the distance of the features in units of their standard
    deviations. A neighbour is not a twin, so this is an upper bound, which is close if there are many rows and few features.

    Args:
        features: ``[N, D]`` numbers, or N texts or tuples that are equal or not, such as prompts.
        labels: ``[N]`` numbers.
        relative: return a share of the label, for ``Bell(relative=...)``; labels of 0 are left out.
        at_most: of more rows, this many are drawn.
        seed: of that draw.

    Returns:
        The width of a Gaussian bell: the standard deviation of the noise.

    Examples:
        >>> estimate_width(["red", "red", "blue", "blue"], [10, 12, 30, 28])
        1.4142135623730951
    """
    y = _numbers("labels", labels)  # [N]
    rows, table = _rows(features, len(y))
    if relative:
        kept = np.flatnonzero(y)
        y, rows, table = y[kept], [rows[i] for i in kept], None if table is None else table[kept]
    if len(y) > at_most:
        kept = np.random.default_rng(seed).permutation(len(y))[:at_most]
        y, rows, table = y[kept], [rows[i] for i in kept], None if table is None else table[kept]
    groups: dict[Hashable, list[int]] = defaultdict(list)
    for index, row in enumerate(rows):
        groups[row].append(index)
    twins = [group for group in groups.values() if len(group) > 1]
    if sum(map(len, twins)) < 30 and table is not None:
        if len(y) < 2:
            raise ValueError(
                f"labels holds {len(y)} rows to compare: expected at least two; relative widths leave labels of 0 out."
            )
        near = _nearest(table)
        return float(np.sqrt((_differences(y, y[near], relative) ** 2).mean() / 2))
    if not twins:
        raise ValueError(
            f"features holds {len(y)} rows, and no two agree: expected equal rows; pass numbers [N, D] to compare neighbours."
        )
    # The pooled variance: squared differences of all pairs of a group sum to its size times its sum of squares.
    total = 0.0
    for group in twins:
        members = y[group]
        first, second = np.triu_indices(len(group), 1)
        total += float((_differences(members[first], members[second], relative) ** 2).sum()) / len(group)
    return float(np.sqrt(total / sum(len(group) - 1 for group in twins)))


def width_of_residuals(
    predictions: npt.ArrayLike, truths: npt.ArrayLike, *, relative: bool = False, shape: Shape = "gaussian"
) -> float:
    """Return the width of a first model's errors; use predictions for rows that it was not trained on.

    Args:
        predictions: ``[N]`` numbers.
        truths: ``[N]`` numbers.
        relative: return a share of the truth, for ``Bell(relative=...)``; truths of 0 are left out.
        shape: of the bell that the width is for.

    Examples:
        >>> width_of_residuals([9, 12], [10, 10], shape="laplace"), width_of_residuals([9, 12], [10, 10], relative=True)
        (1.5, 0.15811388300841897)
    """
    check_choice("shape", shape, choices(Shape))
    predicted, truth = _numbers("predictions", predictions), _numbers("truths", truths)
    if predicted.shape != truth.shape:
        raise ValueError(f"predictions has {len(predicted)} numbers and truths {len(truth)}: expected one for each.")
    if relative:
        predicted, truth = predicted[truth != 0], truth[truth != 0]
        if not len(truth):
            raise ValueError("truths holds only 0: expected others; use relative=False.")
    errors = np.abs(predicted - truth) / (np.abs(truth) if relative else 1.0)
    if shape == "gaussian":
        return float(np.sqrt(np.square(errors).mean()))
    return float(errors.mean() if shape == "laplace" else errors.max())


def _differences(a: Floats, b: Floats, relative: bool) -> Floats:
    return (a - b) / ((np.abs(a) + np.abs(b)) / 2 if relative else 1.0)


def _numbers(name: str, values: npt.ArrayLike) -> Floats:
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise TypeError(f"{name}={values!r:.80} holds no plain numbers: expected a list of numbers.") from None
    if array.ndim != 1 or not array.size or not np.isfinite(array).all():
        raise ValueError(f"{name} has shape {array.shape} or holds NaN: expected finite numbers [N]; leave out rows without one.")
    return array


def _rows(features: Any, count: int) -> tuple[list[Hashable], Floats | None]:
    """Return the rows as keys, and as standardised numbers ``[N, D]`` if they are numbers."""
    listed = features.tolist() if hasattr(features, "tolist") else [*features]
    if len(listed) != count:
        raise ValueError(f"features has {len(listed)} rows and labels {count}: expected one for each.")
    rows: list[Hashable] = [tuple(row) if isinstance(row, list) else row for row in listed]
    if any(isinstance(row, str) for row in rows):
        return rows, None
    try:
        table = np.asarray(listed, dtype=np.float64).reshape(count, -1)
    except (TypeError, ValueError):
        return rows, None
    spread = table.std(0)
    return rows, (table - table.mean(0)) / np.where(spread > 0, spread, 1.0)


def _nearest(table: Floats) -> npt.NDArray[np.int64]:
    """Return the nearest other row of each row of ``[N, D]``."""
    squares = np.square(table).sum(1)
    found = np.empty(len(table), dtype=np.int64)
    for start in range(0, len(table), _CHUNK):
        stop = min(start + _CHUNK, len(table))
        distance = squares - 2 * table[start:stop] @ table.T  # [chunk, N], less the row's own square
        distance[np.arange(stop - start), np.arange(start, stop)] = np.inf
        found[start:stop] = distance.argmin(1)
    return found


def suitable_width(labels: npt.ArrayLike) -> dict[str, float]:
    """Return settings of a :class:`Bell` whose width suits numbers ``[N]`` of any sign and size.

    Five per cent of the label where no two labels differ in sign, and they vary by more than that; zeros stay as they are. Else a
    fifth of the spread of all labels: a temperature of 0.1 is as uncertain as one of 20, and the years 1990 to 2010 are closer
    than five per cent. The spread is the standard deviation of a normal distribution with their 10 % and 90 % quantiles. If
    these are equal, most labels are, which are then taken to be exact.

    Examples:
        >>> suitable_width([326, 950, 2401, 5324, 18823]), suitable_width([0, 0, 1, 2, 7])
        ({'relative': 0.05}, {'relative': 0.05})
        >>> suitable_width([-5, 0, 5, 10, 20]), suitable_width([1990, 1995, 2003, 2010])
        ({'width': 1.5}, {'width': 1.3, 'lowest': 0.0})
    """
    values = _numbers("labels", labels)
    low, high = np.quantile(values, (0.1, 0.9))
    spread, sizes = float(high - low) / 2.56, np.abs(values[values != 0])
    signs = {"lowest": bool((values >= 0).all()), "highest": bool((values <= 0).all())}
    if not spread or (any(signs.values()) and _RELATIVE * float(np.median(sizes)) <= _OF_SPREAD * spread):
        return {"relative": _RELATIVE}
    bounds = {name: 0.0 for name, holds in signs.items() if holds}
    return {"width": float(f"{_OF_SPREAD * spread:.2g}"), **bounds}
