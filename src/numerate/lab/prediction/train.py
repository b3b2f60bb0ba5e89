"""Train a model with one loss from a file or a frame, evaluate it, and keep its weights with a model card."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numerate.lab.comparison.budget import LEAST_STEPS, Budget, enough_steps
from numerate.lab.comparison.own_table import decisions, from_scratch, soft_labels
from numerate.lab.comparison.presets import merged
from numerate.lab.data import TABLE_TASK, Task
from numerate.lab.data.readers import data_file, default_task
from numerate.lab.data.row_reader import data_name
from numerate.lab.files.interruption import Interruption
from numerate.lab.files.progress import Progress, in_words, roughly
from numerate.lab.files.records import RESULT, RUNS, alone, check_writable, claim, read_jsonl, run_folder
from numerate.lab.prediction.calibration import MOST_HELD_OUT, keep_calibration
from numerate.lab.training.checking import check_effect, checked_task, soft_target
from numerate.lab.training.config import SOFT, RunConfig, checked, read_yaml

_MOST_CHARACTERS = 60  # of a table's or a column's name, in that of a folder
_PASSES = 10  # over the training rows: the most that a budget is filled with
_BASELINES_SECONDS = 10.0  # of the baselines and the rest after the last answer


@dataclass(frozen=True)
class Trained:
    """A finished run.

    Attributes:
        folder: of the run; ``numerate predict`` takes it as a model.
        figures: a value per split and metric.
        notes: how the data were read, where that was not obvious.
        new: whether this call trained it; False if it was there.
        levels: of a table, how good each decision is, beside the baselines: the rows of ``levels`` in the
            ``report.json`` of a comparison.
    """

    folder: Path
    figures: Mapping[str, Mapping[str, float]]
    notes: Sequence[str] = ()
    new: bool = True
    levels: Sequence[Mapping[str, Any]] = ()

    @property
    def model(self) -> Path:
        """The folder with weights and model card, which can be moved elsewhere."""
        return self.folder / "model"


def train(
    config: str | Path | None = None,
    *,
    data: Any = None,
    target: str | None = None,
    columns: Sequence[str] | None = None,
    without: Sequence[str] | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    budget: str | float | Budget | None = None,
    progress: Progress = lambda *_: None,
    say: Callable[[str], object] = lambda text: None,
    **settings: Any,
) -> Trained:
    """Train a model, evaluate it, and keep its weights.

    Args:
        config: a YAML file of settings; the arguments below override it.
        data: a file or folder, or rows from Python, which are kept in a file of the run's folder (or in ``runs``, without
            ``out``): a pandas frame, or a list of dicts.
        target: the column of the table to predict.
        columns: the columns to predict from.
        without: columns to leave out.
        out: folder of the run. Default: ``runs/TABLE-TARGET-LOSS-SEED``; without data, ``runs/TASK-LOSS-SEED``. With
            ``members=8``, ``8-members`` comes before the seed.
        resume: continue a run that was interrupted, or that was killed and has a checkpoint (``save_every=``).
        overwrite: delete a run in the folder, and start over.
        budget: time for all of it, such as ``"5m"`` or seconds: as many steps as fit, up to ten passes over the training rows.
        progress: called with a stage, the number of steps done, of all, and figures.
        say: called with each line of the plan, before training.
        **settings: of :class:`numerate.lab.training.config.RunConfig`: ``model=``, ``loss=``, ``steps=``, ``task_settings=``, ...

    Raises:
        InterruptedTraining: a KeyboardInterrupt (Ctrl-C, SIGTERM) that says what is kept; ``resume=True`` continues.
    """
    if overwrite and resume:
        raise ValueError("overwrite=True starts over and resume=True continues: expected only one of them.")
    if budget is not None and "steps" in settings:
        raise ValueError(f"steps={settings['steps']!r} and budget, which chooses the steps, are both set: leave out one of them.")
    time = None if budget is None else Budget.of(budget)
    if data is not None:
        settings["data"] = data_file(data, RUNS if out is None else Path(out))
    values = run_settings(config, target, columns, without, settings)
    chosen = checked(RunConfig, values, "" if config is None else str(config))
    check_effect(settings, [chosen])
    task = checked_task(chosen)
    folder = default_folder(chosen) if out is None else Path(out)
    check_writable(folder)
    if chosen.soft is not None:
        soft_target(chosen, task)
    if (begun := _steps_begun(folder)) is not None and resume and time is not None:
        chosen, time = chosen.model_copy(update={"steps": begun}), None
    with alone(folder), _interruptible(folder) as interruption:
        new, fitted = claim(folder, {"soft": None} | chosen.deciding, resume=resume, overwrite=overwrite), ""
        # They load torch, after what could be wrong with the call.
        from numerate.lab.comparison.announcement import run_announcement
        from numerate.lab.evaluation.evaluate import summarize
        from numerate.lab.training.run import run

        if new and time is not None:
            chosen, fitted = _fitted(chosen, time, task, folder, say)

        def announce(task: Task) -> None:
            from numerate.lab.training.run import last_step

            step, steps = last_step(chosen, folder)
            for line in run_announcement(chosen, task, folder, step=step if resume else 0, steps=steps, budget=fitted):
                say(line)

        how: dict[str, Any] = {"resume": resume, "interruption": interruption, "on_task": announce, "progress": progress}
        if new and not run(chosen, folder, task=task, **how):
            return Trained(folder, {})  # not the first of several processes
        if chosen.keep_model and chosen.task == TABLE_TASK and chosen.data is not None and (folder / "model").is_dir():
            keep_calibration(folder, trust_remote_code=chosen.trust_remote_code, progress=progress)
    notes = json.loads((folder / RESULT).read_text(encoding="utf-8")).get("notes", [])
    of_a_table = chosen.task == TABLE_TASK and chosen.data is not None
    rows, missing = _levels(folder) if of_a_table else ([], ())
    return Trained(folder, summarize(read_jsonl(folder / "predictions.jsonl")), [*notes, *missing], new, rows)


def _levels(folder: Path) -> tuple[list[dict[str, Any]], Sequence[str]]:
    """Return how good the model of a table is, beside the baselines, and why a baseline is missing."""
    from numerate.lab.report.analysis import Setup
    from numerate.lab.report.levels import levels, levels_rows
    from numerate.lab.report.records import read_cell

    own = read_cell(folder)
    model, task = (str(own.config.get(name)) for name in ("model", "task"))
    setup = Setup(model, task, f"{task} ({model})", None, {own.label: {own.seed: own}})
    found = levels(setup, folder)
    return ([], ()) if found is None else (levels_rows(setup, found), found.notes)


def _steps_begun(folder: Path) -> int | None:
    """Return the steps of the run in a folder; None if there is none."""
    try:
        return int(json.loads((folder / "config.json").read_text(encoding="utf-8"))["steps"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _fitted(config: RunConfig, budget: Budget, task: Task, folder: Path, say: Callable[[str], object]) -> tuple[RunConfig, str]:
    """Return the run with as many steps as fit into a budget, at least a few, and a text about it."""
    from numerate.lab.comparison.budgeted import measured
    from numerate.lab.data.picture_store import PICTURES

    say(f"Measuring the speed of this machine, to fit into {in_words(budget.seconds)}.")
    pace = measured(config, folder / PICTURES)
    there = task.count("train")
    different = config.train_examples if there is None else min(config.train_examples, there)
    most = max(config.steps, _PASSES * different // (config.batch_size * config.accumulation))
    tests = [task.count(split) for split in config.eval_splits if split in task.splits]
    tests += [MOST_HELD_OUT] if config.task == TABLE_TASK and config.data is not None else []  # calibration
    asked = config.eval_examples
    rest = pace.begin + _BASELINES_SECONDS + pace.answer * sum(asked if rows is None else min(asked, rows) for rows in tests)
    steps = max(min(LEAST_STEPS, most), min(most, int((budget.left - rest) / pace.step)))
    needed = rest + steps * pace.step
    few = f" {steps} steps are few: expect a weak model." if steps < enough_steps([config.model]) else ""
    few += " That is longer than the budget: no shorter run is of use." if budget.elapsed + needed > budget.seconds else ""
    text = f"{in_words(budget.seconds)}: {steps:,} steps, about {roughly(needed)} from here.{few}"
    return config.model_copy(update={"steps": steps}), text


class InterruptedTraining(KeyboardInterrupt):
    """A run was interrupted; its last checkpoint is kept, and ``resume=True`` continues from it.

    ``trained`` says what is left of a run whose training is finished.
    """

    def __init__(self, folder: Path, step: int, steps: int, number: int, trained: str = "") -> None:
        self.folder, self.step, self.steps, self.signal = folder, step, steps, number
        kept = f"step {step:,} of {steps:,} is saved in {folder}" if step else "before the first step was saved"
        super().__init__(f"Interrupted: {f'{folder} is trained; {trained} is left' if trained else kept}.")


@contextmanager
def _interruptible(folder: Path) -> Iterator[Interruption]:
    """Say what is kept if a signal ends the run."""
    try:
        with Interruption() as interruption:
            yield interruption
    except KeyboardInterrupt:
        step, steps, trained = _last_step(folder)
        left = "its calibration" if (folder / RESULT).is_file() else "its evaluation" if trained else ""
        number = interruption.caught or signal.SIGINT  # raised by a callback
        raise InterruptedTraining(folder, steps if left else step, steps, number, left) from None


def _last_step(folder: Path) -> tuple[int, int, bool]:
    """Return the step of the last checkpoint of a run, 0 if there is none, its steps, and whether it is trained."""
    from numerate.lab.training.finish import is_trained
    from numerate.lab.training.run import last_step

    try:
        config = checked(RunConfig, json.loads((folder / "config.json").read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return 0, 0, False
    return *last_step(config, folder), is_trained(config, folder)


def default_folder(config: RunConfig) -> Path:
    """Return the folder of a run for which none is named: after its table and target, or the task if there is no table.

    Examples:
        >>> str(default_folder(RunConfig(task="regression", data="my/flats.csv.gz", task_settings={"target": "rent"})))
        'runs/flats-rent-ce-0'
        >>> str(default_folder(RunConfig(loss="smmd", seed=3))), str(default_folder(RunConfig(members=8)))
        ('runs/arithmetic-smmd-3', 'runs/arithmetic-ce-8-members-0')
    """
    target = config.task_settings.get("target")
    first = [config.task] if config.data is None else [data_name(config.data), *([str(target)] if target else [])]
    several = [f"{config.members}-members"] if config.members > 1 else []
    parts = [*(part[:_MOST_CHARACTERS] for part in first), config.name, *several, str(config.seed)]
    return run_folder(re.sub(r"[^\w.+=-]+", "-", "-".join(parts)))  # a label and a column may hold anything


def run_settings(
    config: str | Path | None,
    target: str | None = None,
    columns: Sequence[str] | None = None,
    without: Sequence[str] | None = None,
    settings: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the settings of a file, overridden by ``settings``.

    A run with data has the task that reads them. Unless a file says otherwise, models from scratch are asked about a table in
    bare values; soft labels have a width that suits its numbers.
    """
    values = merged({"keep_model": True} | ({} if config is None else read_yaml(Path(config))), settings or {})
    chosen = {"target": target, "columns": columns, "without": without}
    named = {name: value if isinstance(value, str) else tuple(value) for name, value in chosen.items() if value is not None}
    values = merged(values, {"task_settings": named} if named else {})
    if "task" not in values and (named or values.get("data") is not None):
        values["task"] = TABLE_TASK if named else default_task(values["data"])
    if values.get("data") and values.get("task") == TABLE_TASK:
        values |= from_scratch(values) if config is None else {}
        values |= {} if "decide" in values else decisions(values)
        if values.get("loss") in SOFT and "soft" not in values:
            values |= {"soft": width} if (width := soft_labels(values)) else {}
    return values
