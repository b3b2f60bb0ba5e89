"""Answers without a number, where errors are averaged, and infinite values, as text.

The error of an answer that is missing is infinite, and one of them among a thousand would make their mean infinite. In practice
one would take a constant instead. So in means it counts as the median of the training labels: the record has the metrics of that
answer as ``fallback``. Medians, accuracies and the share of answers with a number are not affected.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from numerate.answers.metrics import METRICS
from numerate.answers.numerals import last_number
from numerate.distribution.exact import Floats
from numerate.lab.data import Examples, Task

FALLBACK = "fallback"
NO_NUMBER = "no number"
ZERO_LABELS = "labels are 0"
WHY_INFINITE = {
    NO_NUMBER: "at least half of the outputs held no number",
    ZERO_LABELS: "at least half of the labels are 0, where an answer has no relative error",
}
"""What stands in a table instead of an infinite figure, and what it means."""


def middle_label(task: Task, examples: Examples) -> str | None:
    """Return the median of the labels that are numbers, as it is written there; None if there is none.

    Tasks with pictures are left out.
    """
    if task.visual:
        return None
    numbers = [(value, example.answer) for example in examples if isinstance(value := task.read(example.answer), Fraction)]
    if not numbers:
        return None
    # Sorting fractions takes seconds; rounded, they have the same order, and the few that round to the median are sorted.
    rounded = np.array([_rounded(value) for value, _ in numbers])
    middle = (len(numbers) - 1) // 2
    median = np.partition(rounded, middle)[middle]
    same = sorted(numbers[place] for place in np.flatnonzero(rounded == median))
    return str(same[middle - int((rounded < median).sum())][1])


def _rounded(value: Fraction) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def with_fallback(record: Mapping[str, Any], measures: Mapping[str, float | None]) -> dict[str, float | None]:
    """Return the metrics of an answer in a record; where they are infinite, those of the fallback if there is one.

    Examples:
        >>> with_fallback({"fallback": {"absolute_error": 3.0}}, {"absolute_error": None, "exact": 0.0})
        {'absolute_error': 3.0, 'exact': 0.0}
    """
    other = record.get(FALLBACK) or {}
    return {name: other.get(name, value) if value is None or math.isinf(value) else value for name, value in measures.items()}


def finite_mean(values: Floats) -> float | None:
    """Return the mean of the finite values; None if there are none.

    Examples:
        >>> finite_mean(np.array([1.0, math.inf, 4.0])), finite_mean(np.array([math.inf]))
        (2.5, None)
    """
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if len(finite) else None


def with_middle(golds: Floats, answers: Floats) -> Floats:
    """Return the answers for correlations: those that are missing (NaN) count as the median of the gold numbers.

    Examples:
        >>> with_middle(np.array([1.0, 2.0, 9.0]), np.array([3.0, math.nan, 8.0])).tolist()
        [3.0, 2.0, 8.0]
    """
    return np.where(np.isnan(answers), np.median(golds), answers)


def gold_answers(records: Sequence[Mapping[str, Any]], split: str) -> list[str]:
    """Return the gold answers of a split."""
    return [str(record.get("gold", "")) for record in records if record["split"] == split]


def mostly_zero(golds: Sequence[str]) -> bool:
    """Return whether at least half of the gold answers are 0."""
    return 2 * sum(last_number(gold) == 0 for gold in golds) >= len(golds) > 0


def figure_text(name: str, value: float, golds: Sequence[str], form: str = ".3g") -> str:
    """Format the value of a metric; instead of an infinite one, say why there is none.

    Examples:
        >>> figure_text("relative_error", 0.25, ["7"]), figure_text("relative_error", math.inf, ["7"])
        ('0.25', 'no number')
        >>> figure_text("relative_error", math.inf, ["0", "7"])
        'labels are 0'
    """
    if not math.isinf(value):
        return format(value, form)
    if name == "relative_error" and mostly_zero(golds):
        return ZERO_LABELS
    if name in METRICS:
        return NO_NUMBER if METRICS[name].no_answer == math.inf else "infinite"
    return "a sample without a number" if name == "sample_crps" else "infinite"
