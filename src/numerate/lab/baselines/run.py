"""Tune a rival as losses are tuned, and measure it on the rows of every run of a comparison."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from numerate.checks import check_choice
from numerate.lab.baselines.fit import HeadRun, asked_examples, train_heads
from numerate.lab.baselines.heads import HEADS
from numerate.lab.baselines.numbers import RivalAnswers, errors, gold_numbers, validation_score
from numerate.lab.baselines.tables import boosting, choose_boosting, constant
from numerate.lab.data import Task
from numerate.lab.data.settings import tested
from numerate.lab.files.csv_lines import csv_line
from numerate.lab.training.config import RunConfig
from numerate.lab.training.run import run_examples

RIVALS = ("constant", "boosting", *HEADS)
"""Names of what can predict a number instead of a language model that writes it."""


def rival_rows(rival: str, task: Task, runs: Sequence[RunConfig], trials: Sequence[RunConfig]) -> list[dict[str, Any]]:
    """Return a row of a table for each run, decision and split: errors, seconds and the settings that were chosen.

    Args:
        rival: one of ``RIVALS``.
        task: that of the runs.
        runs: of plain cross-entropy; they differ in their seed. Their training and test rows are used.
        trials: the same with another seed, ``validation`` and several learning rates, that of the runs first. The rival gets as
            many trials, or as many as it has scales and losses to choose from if those are more.
    """
    check_choice("rival", rival, RIVALS)
    if rival in HEADS:
        return _rows(task, runs, _of_heads(rival, task, runs, trials))
    if rival == "constant":
        return _rows(
            task, runs, [{"constant": constant(task, run_examples(run, task), asked_examples(run, task))} for run in runs]
        )
    tuned = choose_boosting(
        task,
        run_examples(trials[0], task),
        asked_examples(trials[0], task),
        budget=len(trials),
        choose_by=trials[0].choose_by,
        logs=_logs(task, [*runs, trials[0]]),
    )
    answers = [boosting(task, run_examples(run, task), asked_examples(run, task), tuned, seed=run.seed) for run in runs]
    return _rows(task, runs, [{"boosting": own} for own in answers])


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows as a CSV file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    names = [*rows[0]]
    lines = [csv_line(names), *(csv_line(row[name] for name in names) for row in rows)]
    path.write_bytes("".join(lines).encode())


def _of_heads(kind: str, task: Task, runs: Sequence[RunConfig], trials: Sequence[RunConfig]) -> list[dict[str, RivalAnswers]]:
    """Choose learning rate and scale on the validation rows, by the best decision, and return the answers of all runs."""
    logs = _logs(task, [*runs, trials[0]])
    scales = logs if kind == "scalar" else logs[-1:]  # a histogram is on the logarithmic scale where there is one
    candidates = [HeadRun(trial, log) for trial in trials for log in reversed(scales)][: max(len(trials), len(scales))]
    best = candidates[0]
    if len(candidates) > 1:
        golds = gold_numbers(task, asked_examples(trials[0], task))
        found = train_heads(kind, task, candidates)
        measure = trials[0].choose_by
        scores = [max(validation_score(task, measure, golds, own.answers) for own in answers.values()) for answers in found]
        best = candidates[scores.index(max(scores))]
    rate = best.config.learning_rate
    return train_heads(kind, task, [HeadRun(run.model_copy(update={"learning_rate": rate}), best.log) for run in runs])


def _logs(task: Task, configs: Sequence[RunConfig]) -> tuple[bool, ...]:
    """Return the scales to try: the logarithmic one only if all numbers to be trained on are positive."""
    positive = all((gold_numbers(task, run_examples(config, task)) > 0).all() for config in configs)
    return (False, True) if positive else (False,)


def _rows(task: Task, runs: Sequence[RunConfig], answers: Sequence[Mapping[str, RivalAnswers]]) -> list[dict[str, Any]]:
    rows = []
    for run, by_decision in zip(runs, answers, strict=True):
        for name, own in by_decision.items():
            start = 0
            for split, examples in tested(run, task).items():
                part = own.answers[start : start + len(examples)]
                start += len(examples)
                row: dict[str, Any] = {"rival": name, "seed": run.seed, "split": split, "rows": len(examples)}
                row |= errors(gold_numbers(task, examples), part)
                rows.append(row | {"seconds": round(own.seconds, 3), "settings": json.dumps(own.settings)})
    return rows
