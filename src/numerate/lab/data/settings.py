"""Settings of a run's data, and the task that they make: generated, or read from a file."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from numerate.lab.data import TASKS
from numerate.lab.data.base import Examples, Split, Task
from numerate.lab.data.splits import held_out, validation_examples


class Settings(BaseModel):
    """Base class of the groups of settings."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    seed: int = Field(0, ge=0, description="Seed of weights and data.")


class DataSettings(Settings):
    """Which task, from which data, and how many examples of it."""

    task: str = Field("arithmetic", description="Name of the task.")
    task_settings: dict[str, Any] = Field(default_factory=dict, description="Settings of the task.")
    data: str | None = Field(
        None, description="File or folder with real data, or a packaged table: esol or diamonds. None: generated."
    )
    skip_bad: bool = Field(False, description="Skip rows of the data that cannot be read.")
    train_examples: int = Field(20_000, ge=1, description="Maximum number of different training examples.")
    eval_splits: tuple[Split, ...] = Field(
        ("interpolate", "extrapolate"), description="Splits to evaluate on, as far as the data have them."
    )
    eval_examples: int = Field(200, ge=1, description="Maximum number of test examples per split.")
    validation: bool = Field(False, description="Evaluate on a validation split instead of the test splits, for tuning.")


def make_task(settings: DataSettings) -> Task:
    """Return the task, generated or read from files; a file that has not changed is read once."""
    kind = TASKS[settings.task]
    if settings.data is None:
        return kind(**settings.task_settings)
    if not (path := Path(settings.data)).is_file():
        return kind.from_files(settings.data, skip_bad=settings.skip_bad, **settings.task_settings)
    state = path.stat()
    return _read_task(task_key(settings), state.st_mtime_ns, state.st_size, path.resolve())


def task_key(settings: DataSettings) -> str:
    """Return the settings that make the task of a run."""
    return json.dumps([settings.task, settings.data, settings.skip_bad, settings.task_settings])


@lru_cache(2)
def _read_task(key: str, *_: object) -> Task:
    """Read a file once, since a large table takes seconds; the other arguments change when the file does."""
    task, data, skip_bad, settings = json.loads(key)
    named = {name: tuple(value) if isinstance(value, list) else value for name, value in settings.items()}
    return TASKS[task].from_files(data, skip_bad=skip_bad, **named)


def tested(settings: DataSettings, task: Task) -> dict[str, Examples]:
    """Return the examples that a run is evaluated on, by split."""
    if settings.validation:
        return validation_examples(task, settings.eval_examples, settings.seed)
    return held_out(task, settings.eval_splits, settings.eval_examples)
