"""Validate while training: greedy answers to validation questions every few steps, and the weights that answered best.

The figures join the learning curve as ``validation/exact`` and so on. Weights and trials are
chosen by the mean of the metric ``choose_by``, or else by the task's headline metric as it is summarised everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from numerate.answers.metrics import METRICS
from numerate.lab.data import Examples, Task
from numerate.lab.evaluation.evaluate import greedy_answers
from numerate.lab.evaluation.missing import FALLBACK, with_fallback
from numerate.lab.files.records import read_state, write_state
from numerate.lab.models.loading import LoadedModel

MOST = 200  # questions of a validation


def chosen_figure(task_headline: str, choose_by: str | None, scores: Sequence[Mapping[str, float | None]]) -> float:
    """Return the figure by which runs are chosen, negated if lower is better; ``scores`` are the metrics of each example.

    Examples:
        >>> chosen_figure("exact", None, [{"exact": 1.0}, {"exact": 0.0}])
        0.5
        >>> chosen_figure("exact", "absolute_error", [{"absolute_error": 2.0}, {"absolute_error": 4.0}])
        -3.0
    """
    metric = METRICS[choose_by or task_headline]
    values = [metric.no_answer if row[metric.name] is None else row[metric.name] for row in scores]
    value = metric.summarize(values) if choose_by is None else fmean(values)  # type: ignore[arg-type]
    return value if metric.higher_is_better else -value


@dataclass
class Validation:
    """Validation of a run, or of each run of a stack."""

    loaded: LoadedModel  # the model that is trained, or the stack
    task: Task  # scores the answers
    questions: Sequence[Examples]  # of each run
    fallbacks: Sequence[str | None]  # what an answer without a number counts as, for each run (``missing``)
    every: int  # steps between validations
    keep_best: bool = False  # restore the best weights at the end
    choose_by: str | None = None  # the metric that decides what is best; None: the task's headline
    options: Mapping[str, Any] = field(default_factory=dict)  # of ``greedy_answers``

    def __post_init__(self) -> None:
        self.best = [-float("inf")] * len(self.questions)
        self.best_step = [0] * len(self.questions)
        self.weights: dict[str, Tensor] = {}

    @property
    def stacked(self) -> bool:
        """Whether the model is a stack: its weights then have a part for each run."""
        return bool(self.options.get("stacked"))

    def due(self, step: int, steps: int) -> bool:
        """Return whether to validate after this step: every ``validate_every`` steps, and after the last."""
        return step % self.every == 0 or step == steps

    def after(self, step: int) -> list[dict[str, float]]:
        """Validate, and return the figures of each run as they are logged."""
        training = self.loaded.model.training
        outputs = greedy_answers(self.loaded, self.questions, **self.options)
        self.loaded.model.train(training)
        figures = []
        for run, (examples, answers) in enumerate(zip(self.questions, outputs, strict=True)):
            scores = [self.task.score(example, answer) for example, answer in zip(examples, answers, strict=True)]
            names = [name for name in self.task.measures if name in scores[0]]
            figures.append({f"validation/{name}": METRICS[name].summarize([row[name] for row in scores]) for name in names})
            value = chosen_figure(self.task.measures[0], self.choose_by, [*self._filled(run, examples, scores)])
            if self.keep_best and (value > self.best[run] or not self.best_step[run]):
                self.best[run], self.best_step[run] = value, step
                self._keep(run)
        return figures

    def _filled(self, run: int, examples: Examples, scores: Sequence[Mapping[str, float]]) -> Iterator[dict[str, float | None]]:
        fallback = self.fallbacks[run]
        for example, row in zip(examples, scores, strict=True):
            missing = math.inf in row.values()  # most answers are numbers
            other = self.task.score(example, fallback) if missing and fallback is not None else None
            yield with_fallback({FALLBACK: other}, row)

    def _keep(self, run: int) -> None:
        for name, weight in self.loaded.model.named_parameters():
            if name not in self.weights:
                self.weights[name] = weight.detach().clone()
            elif self.stacked:
                self.weights[name][run] = weight.detach()[run]
            else:
                self.weights[name].copy_(weight.detach())

    def restore(self) -> None:
        """Put the best weights back into the model, if they are kept."""
        with torch.no_grad():
            for name, weight in self.loaded.model.named_parameters():
                if name in self.weights:
                    weight.copy_(self.weights[name])

    # State, for a run that is resumed

    def state(self) -> dict[str, Any]:
        """Return what :meth:`load` needs."""
        return {"best": self.best, "best_step": self.best_step, "weights": self.weights}

    def load(self, state: Mapping[str, Any]) -> None:
        """Continue from a state."""
        self.best, self.best_step, self.weights = state["best"], state["best_step"], dict(state["weights"])

    def save(self, file: Path) -> None:
        """Write the state to a file."""
        write_state(file, self.state())

    def read(self, file: Path) -> None:
        """Read the state from a file, if there is one."""
        if file.is_file():
            self.load(read_state(file, self.loaded.model.device))
