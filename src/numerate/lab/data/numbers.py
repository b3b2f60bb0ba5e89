"""Numbers of a task: read from the answers of examples, and put on a scale."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from numerate.distribution.exact import Floats
from numerate.lab.data.base import Example, Task

if TYPE_CHECKING:
    from typing_extensions import Self


class NotApplicable(ValueError):  # noqa: N818 - reads well as `raise NotApplicable(...)`
    """A model of numbers cannot be used for this task; the message says why."""


@dataclass(frozen=True)
class Scale:
    """Standardised numbers, or logarithms of them.

    Examples:
        >>> scale = Scale.of(np.array([10.0, 1000.0]), log=True)
        >>> scale.standardised(np.array([10.0, 100.0])).round(3).tolist(), scale.restored(np.array([1.0])).round(3).tolist()
        ([-1.0, 0.0], [1000.0])
    """

    log: bool
    center: float
    width: float

    @classmethod
    def of(cls, numbers: Floats, *, log: bool) -> Self:
        """Return the scale on which these numbers have the mean 0 and the standard deviation 1."""
        shown = np.log(numbers) if log else numbers
        power = np.frexp(np.abs(shown).max())[1]  # squares of 1e200 overflow, and those of 1e-200 are 0
        small = np.ldexp(shown, -power)
        return cls(log, float(np.ldexp(small.mean(), power)), float(np.ldexp(small.std(), power)) or 1.0)

    def standardised(self, numbers: Floats) -> Floats:
        """Return numbers on this scale."""
        return ((np.log(numbers) if self.log else numbers) - self.center) / self.width

    def restored(self, standardised: Floats) -> Floats:
        """Return the numbers of values on this scale; infinite beyond the range of a float."""
        shown = standardised * self.width + self.center
        with np.errstate(over="ignore"):
            return np.exp(shown) if self.log else shown

    @property
    def name(self) -> str:
        """The word for it in tables."""
        return "log" if self.log else "linear"


def gold_numbers(task: Task, examples: Sequence[Example]) -> Floats:
    """Return the answers of examples as numbers."""
    if task.answer_is != "one number":
        raise NotApplicable(f"an answer of the task {task.name!r} is {task.answer_is}: expected a task with one number.")
    numbers = []
    for example in examples:
        if (number := task.read(example.answer)) is None:
            raise NotApplicable(f"the answer {example.answer!r:.60} is not a number: expected a table with a numeric target.")
        numbers.append(float(number))
    return np.array(numbers)
