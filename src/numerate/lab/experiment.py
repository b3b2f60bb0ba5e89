"""A comparison: losses x seeds x tasks x models, each cell a run of its own.

    runs/name/
      experiment.json        what is compared, and on what
      cells/<hash>/          one run each, named by the hash of what defines it (see numerate.lab.train)

A cell with a ``result.json`` is finished and never run again; any other is run from the start. Whoever runs a cell holds a
lock on it, which the system takes back when the process dies, so that several processes may work on one directory.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import count, product
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from numerate.answers.metrics import METRICS
from numerate.lab.config import PLAIN, RunConfig, checked
from numerate.lab.environment import environment
from numerate.lab.evaluate import Progress
from numerate.lab.records import read_jsonl, write_json
from numerate.lab.train import RESULT, run

DEFAULT_LOSSES = (PLAIN, "emd", "ntil", "smmd", "ntl_was", "number")
TUNING_SEED = 1000  # the first to try: see tuning_seed


class Experiment(BaseModel):
    """What is compared. Settings of a run (``steps``, ``weight`` and so on) hold for all cells, and stand beside these."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = "demo"
    losses: tuple[dict[str, Any], ...] = Field(
        DEFAULT_LOSSES, description="Names, or settings of runs with a label.", validate_default=True
    )
    tasks: tuple[dict[str, Any], ...] = Field(("arithmetic",), description="Names, or settings of runs.", validate_default=True)
    models: tuple[str, ...] = ("tiny",)
    seeds: tuple[int, ...] = Field((0, 1, 2), description="How many, or which.")
    baseline: str = Field(PLAIN, description="The label that the others are compared with.")
    settings: dict[str, Any] = Field(default_factory=dict, description="Settings of all runs.")

    @model_validator(mode="before")
    @classmethod
    def _spread(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Settings of runs may stand beside ours; names stand for settings; a number of seeds for that many."""
        ours = set(cls.model_fields)
        runs = {name: value for name, value in values.items() if name in RunConfig.model_fields and name not in ours}
        values = {name: value for name, value in values.items() if name not in runs}
        values["settings"] = {**runs, **values.get("settings", {})}
        for plural, singular in (("losses", "loss"), ("tasks", "task")):
            given = values.get(plural)
            if given is not None:
                values[plural] = [
                    {singular: one} if isinstance(one, str) else one for one in ([given] if isinstance(given, str) else given)
                ]
        if isinstance(values.get("models"), str):
            values["models"] = (values["models"],)
        if isinstance(values.get("seeds"), int):
            values["seeds"] = tuple(range(values["seeds"]))
        return values

    @model_validator(mode="after")
    def _cells_are_valid(self) -> Self:
        labels = [cell.name for cell in self.cells() if cell.seed == self.seeds[0]] if self.seeds else []
        if not labels:
            raise ValueError("nothing is compared: expected at least one loss, task, model and seed.")
        here = [cell for cell in self.cells() if cell.seed == self.seeds[0] and cell.model == self.models[0]]
        twice = {
            c.name
            for c in here
            if sum(o.name == c.name and o.task == c.task and o.task_settings == c.task_settings for o in here) > 1
        }
        if twice:
            raise ValueError(f"label {sorted(twice)[0]!r} names two different runs: give each a `label` of its own.")
        return self

    def cells(self) -> list[RunConfig]:
        """Every run, seeds outermost: all losses of a seed come before the next seed, so that a part of the grid is of use."""
        return [
            checked(RunConfig, {**self.settings, **task, **loss, "model": model, "seed": seed})
            for seed, model, task, loss in product(self.seeds, self.models, self.tasks, self.losses)
        ]


def read_experiment(values: Mapping[str, Any], source: str = "") -> Experiment:
    """An experiment of these values, names of losses and tasks included; errors name the key and the nearest valid one."""
    values = dict(values)
    for plural, default in (("losses", DEFAULT_LOSSES), ("tasks", ("arithmetic",))):
        values.setdefault(plural, list(default))
    known = [*Experiment.model_fields, *RunConfig.model_fields]
    for key, value in values.items():
        if key not in known:
            from numerate.checks import nearest

            where = f"{source}: " if source else ""
            raise ValueError(
                f"{where}{key}={value!r} is not a setting: expected one of losses, tasks, models, seeds, ...{nearest(key, known)}"
            )
    return checked(Experiment, values, source)


# Cells


def cell_folder(folder: Path, config: RunConfig) -> Path:
    """Where a cell's files are."""
    return folder / "cells" / config.hash


def is_finished(folder: Path, config: RunConfig) -> bool:
    """Whether there is a result."""
    return (cell_folder(folder, config) / RESULT).is_file()


def run_cell(config: RunConfig, folder: Path, *, wait: bool = True, progress: Progress = lambda *_: None) -> bool:
    """Run a cell unless it is finished; False if somebody else is at it and ``wait`` is off."""
    mine = cell_folder(folder, config)
    mine.mkdir(parents=True, exist_ok=True)
    with _lock(mine / ".lock", wait=wait) as held:
        if not held:
            return False
        if not is_finished(folder, config):
            run(config, mine, progress=progress)
    return True


@contextmanager
def _lock(path: Path, *, wait: bool) -> Iterator[bool]:
    """Hold a file's lock within; it goes with the process that holds it, however that ends."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
            return
        yield True


def begin(experiment: Experiment, cells: Sequence[RunConfig], folder: Path) -> None:
    """Write what is going to be compared. Cells that are there already stay."""
    made = environment()
    described = {
        "name": experiment.name,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "baseline": experiment.baseline,
        "config": experiment.model_dump(mode="json"),
        "command": made.pop("command"),
        "environment": made,
        "cells": [cell.hash for cell in cells],
    }
    write_json(folder / "experiment.json", described)


# Tuning


def tuning_seed(experiment: Experiment) -> int:
    """A seed of weights and data for all trials, and none of those that count."""
    return next(seed for seed in count(TUNING_SEED) if seed not in experiment.seeds)


def tuning_trials(experiment: Experiment, budget: int) -> dict[str, list[RunConfig]]:
    """As many trials for every loss: learning rates for plain cross-entropy, learning rates and weights for the others."""
    seed = tuning_seed(experiment)
    found: dict[str, list[RunConfig]] = {}
    for cell in experiment.cells():
        if cell.seed != experiment.seeds[0]:
            continue
        rates = [cell.learning_rate * factor for factor in (1.0, 0.5, 2.0, 0.25, 4.0, 0.7, 1.4, 0.35, 2.8)]
        if cell.loss == PLAIN:
            pairs = [(rate, cell.weight) for rate in rates]
        else:
            pairs = [(rate, cell.weight * factor) for factor, rate in product((1.0, 0.3, 3.0), rates[:3])]
            pairs = [pairs[at] for at in (0, 1, 3, 6, 2, 4, 7, 5, 8)]
        changes = [{"learning_rate": rate, "weight": weight, "seed": seed, "validation": True} for rate, weight in pairs[:budget]]
        found[_key(cell)] = [cell.model_copy(update=change) for change in changes]
    return found


def tuned_cells(experiment: Experiment, folder: Path, trials: Mapping[str, Sequence[RunConfig]]) -> list[RunConfig]:
    """The experiment's cells, each with the learning rate and weight of its loss's best trial on the validation split."""
    best = {key: max(found, key=lambda trial: validation_score(folder, trial)) for key, found in trials.items()}
    chosen = {key: {"learning_rate": trial.learning_rate, "weight": trial.weight} for key, trial in best.items()}
    return [cell.model_copy(update=chosen[_key(cell)]) for cell in experiment.cells()]


def _key(cell: RunConfig) -> str:
    return f"{cell.model}/{cell.task}/{json.dumps(cell.task_settings, sort_keys=True)}/{cell.name}"


def validation_score(folder: Path, config: RunConfig) -> float:
    """Of a finished run: larger is better."""
    mine = cell_folder(folder, config)
    headline = json.loads((mine / RESULT).read_text(encoding="utf-8"))["headline"]
    metric = METRICS[headline]
    values: list[float | None] = [record["measures"][headline] for record in read_jsonl(mine / "predictions.jsonl")]
    score = metric.summarize([metric.no_answer if value is None else value for value in values])
    return score if metric.higher_is_better else -score
