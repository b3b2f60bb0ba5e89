"""What was compared: the column and file of a table, or the task, and the model."""

from __future__ import annotations

from pathlib import PurePath

from numerate.lab.data import TASKS, Task
from numerate.lab.models.names import BUILT
from numerate.lab.report.analysis import Setup


def subject(setup: Setup) -> str:
    """Return ``price in diamonds.csv (tiny, 78,768 parameters, not pre-trained)``; of other data than a table, the task."""
    config, what, named = setup.first.config, setup.task, [setup.model]
    settings, data = config.get("task_settings"), config.get("data")
    column = settings.get("target") if isinstance(settings, dict) else None
    if isinstance(data, str) and data:
        file = PurePath(data.replace("\\", "/")).name or data
        what, named = (f"{column} in {file}", named) if isinstance(column, str) else (what, [file, *named])
    parameters = setup.first.cost.get("parameters")
    if parameters is not None:
        named.append(f"{parameters:,.0f} parameters")
    if config.get("model"):
        named.append("not pre-trained" if setup.model in BUILT else "pre-trained")
    return f"{what} ({', '.join(named)})"


def task_of(setup: Setup) -> Task | None:
    """Return the task with its settings; None if it is not known, or has settings that are not, as in another release."""
    task = TASKS.get(setup.task)
    if task is None:
        return None
    try:
        return task(**(setup.first.config.get("task_settings") or {}))
    except (TypeError, ValueError):
        return None
