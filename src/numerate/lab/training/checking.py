"""What is wrong with a run, found before torch and the model are loaded: its data, and settings without effect."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, get_args

from numerate.lab.data import TASKS, Example, Task
from numerate.lab.data.base import Split
from numerate.lab.data.regression import LEAST_ROWS
from numerate.lab.data.settings import DataSettings, make_task
from numerate.lab.data.task_format import TaskFormat
from numerate.lab.evaluation.decisions import check_decisions
from numerate.lab.models.names import NAMED, SEEING, check_model_name
from numerate.lab.training.config import HEADS, RunConfig, TrainingSettings

if TYPE_CHECKING:
    from numerate.targets import AnswerDistribution


def checked_task(config: RunConfig) -> Task:
    """Return the task of a new run; raise if it cannot be trained on, or a setting has no effect."""
    check_model_name(config.model)
    TASKS[config.task].check_source(config.task_settings, config.data)
    task = make_task(config)
    check_task(config, task, sees=config.model == SEEING if config.model in NAMED else None)
    run_format(config, task)
    return task


def check_task(config: RunConfig, task: Task, *, sees: bool | None) -> None:
    """Raise if the task's data, decisions or pictures do not suit a run.

    ``sees``: whether the model accepts pictures; None: not known yet.
    """
    _check_rows(config, task)
    check_decisions(config.decide, task, config.samples)
    if config.members > 1:
        _check_members(config, task)
    if sees is False and task.examples("train", 1)[0].picture is not None:
        raise ValueError(
            f"model={config.model!r} does not accept pictures, which task={config.task!r} has: expected a vision-language "
            "model, such as tiny-vlm."
        )


def _check_members(config: RunConfig, task: Task) -> None:
    """Raise if several members cannot be trained, or nothing would be decided from their pool."""
    where = f"members={config.members}"
    if config.loss in HEADS:
        raise ValueError(
            f"{where} is not supported for loss={config.loss!r}, whose runs keep no weights: expected members=1, or a loss of "
            "numbers that are written."
        )
    if (processes := int(os.environ.get("WORLD_SIZE", "1"))) > 1:
        raise ValueError(
            f"{where} is trained by one process, and {processes} are launched: start it without a launcher, or train runs with "
            "members=1, one seed at a time."
        )
    if not config.decide:
        if task.answer_is != "one number" and not task.ends_in_number:
            raise ValueError(
                f"{where} is not supported: an answer of the task {task.name!r} is {task.answer_is}, and a pool decides one "
                "number. Expected members=1, or answers that are plain numbers: a table with --target, or the task arithmetic."
            )
        raise ValueError(
            f"{where} has no decide, and greedy answers cannot be pooled: expected a rule that decides from the pool, such as "
            "--set decide=median, or mode for exact answers."
        )


def run_format(config: RunConfig, task: Task) -> TaskFormat:
    """Return the format of a run, fitted to the training rows of its task; raise if it does not suit the task."""
    return TaskFormat.fit(task, config.format, config.train_examples)


def soft_target(config: TrainingSettings, task: Task) -> Callable[[Example], AnswerDistribution]:
    """Return the distribution over answers that a run with soft labels trains an example on; raise if the task has none."""
    assert config.soft is not None
    settings = config.soft.model_dump(exclude={"path"})
    shown = ", ".join(f"soft.{name}={value!r}" for name, value in config.soft.model_dump(exclude_none=True).items())
    try:
        target = task.soft_target(**settings)
    except ValueError as error:
        raise ValueError(
            f"{shown}: {str(error).removesuffix('.')}. Expected a task whose answers are numbers, or hard labels."
        ) from None
    if config.soft.path == "fixed" and not config.soft.spread:
        raise ValueError(
            f"{shown}: the average of several ratings need not be one of them, so there are no targets along it. Expected the "
            "path 'drawn' or 'jitter', or a width, for a bell around the average."
        )
    return target


def check_effect(given: Iterable[str], configs: Sequence[RunConfig]) -> None:
    """Raise for the first of the ``given`` settings that has no effect on any run."""
    for name in given:
        reasons = [config.without_effect.get(name) for config in configs]
        if reasons and all(reasons):
            value = getattr(configs[0], name)
            raise ValueError(f"{name}={value!r} has no effect: {reasons[0]}. Leave it out.")


def _check_rows(config: DataSettings, task: Task) -> None:
    """Raise if data read from files leave no row to train on or no row to test on, or all have the same answer."""
    trained = task.count("train")
    if trained is None:
        return
    tested = trained if config.validation else sum(task.count(split) or 0 for split in config.eval_splits)
    if not trained or not tested:
        splits = "validation" if config.validation else " or ".join(config.eval_splits)
        counts = ", ".join(f"{task.count(split) or 0} of {split}" for split in get_args(Split))
        raise ValueError(
            f"data={config.data!r} has no row to {'test' if trained else 'train'} on ({counts}; to be tested: {splits}): "
            f"expected a table of at least {LEAST_ROWS} different rows, a fifth of which are kept for the test, or data that "
            "are split already, such as by a column `split` with train and test."
        )
    assert task.rows is not None  # they were counted
    answers = map(task.answer_of, task.rows["train"])
    first = next(answers)
    if all(answer == first for answer in answers):
        target = config.task_settings.get("target")
        column = "" if target is None else f" of the column {target!r}"
        raise ValueError(
            f"data={config.data!r}: all {trained:,} training answers{column} are {first!r:.40}, which leaves nothing to learn: "
            "expected at least two different answers; choose another target, or add rows."
        )
