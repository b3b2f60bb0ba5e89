"""Numbers of a task: read, put on a scale, and compared with answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from numerate.answers.metrics import METRICS
from numerate.answers.overall import rmse
from numerate.distribution.exact import Floats
from numerate.lab.data import Example, Task
from numerate.lab.training.validation import chosen_figure


class NotApplicable(ValueError):  # noqa: N818 - reads well as `raise NotApplicable(...)`
    """A rival cannot be used for this task; the message says why."""


@dataclass(frozen=True)
class RivalAnswers:
    """A rival's answers to the test examples, in order; the settings that were chosen, and the seconds that it took."""

    rival: str
    answers: Floats
    settings: dict[str, Any]
    seconds: float


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
        return cls(log, float(shown.mean()), float(shown.std()) or 1.0)

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


def errors(golds: Floats, answers: Floats) -> dict[str, float]:
    """Return the figures of a table. Relative errors of a gold number of 0 are infinite, unless the answer is 0, too."""
    off = np.abs(answers - golds)
    relative = np.divide(off, np.abs(golds), out=np.where(off == 0, 0.0, np.inf), where=golds != 0)
    return {
        "mae": float(off.mean()),
        "mean_relative_error": float(relative.mean()),
        "median_relative_error": float(np.median(relative)),
        "rmse": rmse(off),
    }


def validation_score(task: Task, choose_by: str | None, golds: Floats, answers: Floats) -> float:
    """Return the figure by which a comparison chooses its tuning trials: larger is better."""
    name = choose_by or task.measures[0]
    scores = [{name: METRICS[name](gold, answer)} for gold, answer in zip(golds, answers, strict=True)]
    return chosen_figure(task.measures[0], choose_by, scores)
