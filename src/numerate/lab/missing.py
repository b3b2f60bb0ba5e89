"""Answers without a number, where errors are averaged.

The error of an answer that is missing is infinite, and one of them among a thousand would make their mean infinite. In practice
one would take a constant instead. So in means it counts as the median of the training labels: the record has the measures of that
answer as ``fallback``. Medians, accuracies and the share of answers with a number are not affected.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from numerate.lab.tasks import Examples, Task

FALLBACK = "fallback"


def middle_label(task: Task, examples: Examples) -> str | None:
    """Return the median of the labels that are numbers, as it is written there; None if there is none.

    Tasks with pictures are left out.
    """
    if task.visual:
        return None
    numbers = sorted((value, example.answer) for example in examples if isinstance(value := task.read(example.answer), Fraction))
    return numbers[(len(numbers) - 1) // 2][1] if numbers else None


def with_fallback(record: Mapping[str, Any], measures: Mapping[str, float | None]) -> dict[str, float | None]:
    """Return the measures of an answer in a record; where they are infinite, those of the fallback if there is one.

    Example:
        >>> with_fallback({"fallback": {"absolute_error": 3.0}}, {"absolute_error": None, "exact": 0.0})
        {'absolute_error': 3.0, 'exact': 0.0}
    """
    other = record.get(FALLBACK) or {}
    return {name: other.get(name, value) if value is None or math.isinf(value) else value for name, value in measures.items()}
