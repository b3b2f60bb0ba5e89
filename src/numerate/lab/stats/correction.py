"""Correct p-values for multiple comparisons, by Holm's method.

The i-th smallest of m p-values becomes the largest of min(1, (m + 1 - j) p_j), j = 1, .., i.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

from numerate.checks import check_number
from numerate.lab.stats.comparison import Comparison

K = TypeVar("K")


def holm(p_values: Mapping[K, float]) -> dict[K, float]:
    """Apply Holm's correction: if no difference is real, any corrected p-value is below 0.05 with probability at most 0.05.

    Args:
        p_values: Numbers in [0, 1]. NaN raises: leave out comparisons that could not be tested.

    Returns:
        The corrected p-values, with the same keys.

    Examples:
        >>> holm({"smmd": 0.01, "emd": 0.04, "ntil": 0.03})
        {'smmd': 0.03, 'emd': 0.06, 'ntil': 0.06}
    """
    for key, p in p_values.items():
        if not 0 <= check_number(f"p_values[{key!r}]", p) <= 1:
            raise ValueError(f"p_values[{key!r}]={p!r} is out of range: expected a probability, from 0 to 1.")
    largest = 0.0
    adjusted = dict.fromkeys(p_values, largest)
    for rank, key in enumerate(sorted(p_values, key=lambda key: p_values[key])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * float(p_values[key])))
        adjusted[key] = largest
    return adjusted


def corrected(comparisons: Mapping[K, Comparison]) -> dict[K, Comparison]:
    """Return the comparisons with ``corrected_p`` set by :func:`holm`. Pass all comparisons that are reported together.

    Examples:
        >>> from numerate.lab.stats import compare
        >>> result = compare([1, 1, 1, 1, 1, 1], [0, 0, 0, 0, 0, 0])
        >>> [c.corrected_p for c in corrected({"smmd": result, "emd": result}).values()]
        [0.0625, 0.0625]
    """
    p_values = holm({key: comparison.p_value for key, comparison in comparisons.items()})
    return {key: replace(comparison, corrected_p=p_values[key]) for key, comparison in comparisons.items()}
