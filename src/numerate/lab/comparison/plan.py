"""The plan of a comparison: settings -> losses x seeds x tasks x models, checked before torch is loaded.

Formats and members are dimensions too. A format is part of a loss. Members are not: each run is trained once, with the most of
them, and its records have the pools of fewer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from numerate.checks import check_choice
from numerate.choices import loss_names
from numerate.lab.comparison.budget import Budget
from numerate.lab.comparison.own_table import default_model, has_gpu, table_settings
from numerate.lab.comparison.presets import DEFAULT_LOSSES, DEMO, GENERAL, PRESETS, merged
from numerate.lab.data import TABLE_TASK, TASKS, Task
from numerate.lab.data.readers import default_task
from numerate.lab.data.row_reader import data_name
from numerate.lab.data.settings import task_key
from numerate.lab.data.task_format import format_text
from numerate.lab.evaluation.decisions import FITTING, pool_sizes
from numerate.lab.files.records import check_writable, run_folder
from numerate.lab.models.settings import PLAIN
from numerate.lab.training.checking import check_effect, checked_task, soft_target
from numerate.lab.training.config import (
    CROSS_ENTROPY,
    HEADS,
    SOFT,
    RunConfig,
    checked,
    in_format,
    named_soft,
    read_yaml,
    run_name,
)

if TYPE_CHECKING:
    from typing_extensions import Self

_SINGULAR = {"losses": "loss", "formats": "format", "tasks": "task", "models": "model", "seeds": "seed"}


EXECUTORS = ("local", "stacked", "ray")


class Experiment(BaseModel):
    """Settings of a comparison. Settings of a run (``steps``, ``weight``, ...) apply to all cells."""

    model_config = ConfigDict(extra="forbid", frozen=True, title="a comparison")

    name: str = "demo"
    losses: tuple[dict[str, Any], ...] = Field(description="Names, or settings of runs with a label.")
    formats: tuple[str, ...] = Field(
        (PLAIN,), description="How numbers are written: each loss is run with each; one with a `format` of its own, with that."
    )
    tasks: tuple[dict[str, Any], ...] = Field(description="Names, or settings of runs.")
    members: tuple[Annotated[int, Field(ge=1)], ...] = Field(
        (1,),
        min_length=1,
        description="How many members decide together: each run is trained once, with the most of them, and pools of fewer are "
        "of its first ones; a loss with `members` of its own is trained with as many.",
    )
    models: tuple[str, ...] = ("tiny",)
    seeds: tuple[int, ...] = Field((0, 1, 2), description="How many seeds, or which ones.")
    baseline: str = Field(description="The label that the others are compared with.")
    settings: dict[str, Any] = Field(default_factory=dict, description="Settings of all runs.")

    @model_validator(mode="before")
    @classmethod
    def _expand(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Turn names into settings and a number of seeds into seeds, add the baseline, and collect the settings of runs."""
        values = {"losses": DEFAULT_LOSSES, "tasks": ("arithmetic",), "baseline": CROSS_ENTROPY} | values
        runs = {name: values.pop(name) for name in RunConfig.model_fields if name in values and name != "members"}
        values["settings"] = {**runs, **values.get("settings", {})}
        for plural in ("losses", "tasks"):
            listed = [values[plural]] if isinstance(values[plural], str | Mapping) else values[plural]
            values[plural] = [{_SINGULAR[plural]: item} if isinstance(item, str) else item for item in listed]
        values["formats"] = _formats(values)
        values["members"] = _members(values)
        values["losses"] = [each for loss in values["losses"] for each in _in_formats(loss, values["formats"])]
        values["losses"] = _trained_once(values["losses"], values["members"])
        labels = [_label(loss) for loss in values.get("losses", ()) if isinstance(loss, Mapping)]
        if labels and values["baseline"] not in labels:
            check_choice("baseline", values["baseline"], (CROSS_ENTROPY, *loss_names(), *SOFT, *HEADS, *labels))
            plain = {} if values["formats"] == [PLAIN] else {"format": PLAIN}
            values["losses"].insert(0, {"loss": values["baseline"], **plain})
        if isinstance(values.get("models"), str):
            values["models"] = (values["models"],)
        if isinstance(values.get("seeds"), int):
            values["seeds"] = tuple(range(values["seeds"]))
        return values

    @model_validator(mode="after")
    def _check_cells(self) -> Self:
        known = pool_sizes(max(self.members))
        if wrong := [size for size in self.members if size not in known]:
            raise ValueError(
                f"members={wrong[0]} is not among the pools of a run with {known[-1]}: expected some of "
                f"{', '.join(map(str, known))}."
            )
        cells = self.cells()
        if not cells:
            raise ValueError("nothing is compared: expected at least one loss, task, model and seed.")
        if not any(map(_is_soft, self.losses)) and (set_by := [part for part in (self.settings, *self.tasks) if "soft" in part]):
            raise ValueError(
                f"soft={set_by[0]['soft']!r} has no effect, because no loss of the comparison has soft labels: expected one of "
                f"{', '.join(SOFT)} among the losses, or a loss with settings, such as {{loss: emd, soft: {{relative: 0.1}}}}."
            )
        seen: dict[tuple[str, int], str] = {}
        for cell in cells:
            key = (cell_key(cell), cell.seed)
            if seen.get(key) == cell.hash:
                raise ValueError(
                    f"label {cell.name!r} names one run twice (a soft width of 0 is {CROSS_ENTROPY!r}): leave one out."
                )
            if key in seen:
                raise ValueError(f"label {cell.name!r} names two different runs: give each a different `label`.")
            seen[key] = cell.hash
        alike: dict[str, RunConfig] = {}
        for cell in self.of_one_seed():
            other = alike.setdefault(cell.model_copy(update={"members": 1}).hash, cell)
            if other.members != cell.members:
                least, most = sorted((other, cell), key=lambda one: one.members)
                instead = f", with baseline={most.name!r}" if least.name == self.baseline else ""
                raise ValueError(
                    f"labels {least.name!r} and {most.name!r} name runs that differ in members alone, {least.members} and "
                    f"{most.members}: expected {most.name!r} alone{instead}, whose pools have the answers of {least.name!r}."
                )
        return self

    def cells(self) -> list[RunConfig]:
        """Return every run. All losses of a seed come before the next seed, so that a part of the grid can be compared."""
        return [
            checked(RunConfig, {**self._shared(task, loss), "model": model, "seed": seed})
            for seed, model, task, loss in product(self.seeds, self.models, self.tasks, self.losses)
        ]

    def of_one_seed(self) -> list[RunConfig]:
        """Return the runs of the first seed: one of each loss, task and model."""
        return [cell for cell in self.cells() if cell.seed == self.seeds[0]]

    def _shared(self, task: Mapping[str, Any], loss: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings of a loss on a task. Those in ``soft`` are for losses with soft labels, and are merged."""
        pooled = {"members": max(self.members)} if max(self.members) > 1 and loss.get("loss") not in HEADS else {}
        values = {**pooled, **self.settings, **task, **loss}
        if not _is_soft(loss):
            return {name: value for name, value in values.items() if name != "soft"}
        given = [part["soft"] for part in (self.settings, task, loss) if part.get("soft") is not None]
        if all(isinstance(soft, Mapping) for soft in given):  # others are refused with the run's settings
            values["soft"] = reduce(_narrowed, given, dict[str, Any]())
        return values


def _is_soft(loss: Mapping[str, Any]) -> bool:
    """Return whether a loss of a comparison has soft labels: by its name, or settings of its own."""
    return loss.get("loss") in SOFT or loss.get("soft") is not None


def _narrowed(soft: dict[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings of soft labels overridden by ``more``; a width replaces a relative one, and the other way round."""
    widths = {"width", "relative"}
    return {name: value for name, value in soft.items() if name not in widths or not widths & more.keys()} | dict(more)


def _label(loss: Mapping[str, Any]) -> str:
    named = named_soft(loss)
    soft = named.get("soft")
    path = soft.get("path", "drawn") if isinstance(soft, Mapping) else None
    return str(named.get("label") or run_name(str(named.get("loss", CROSS_ENTROPY)), path, named.get("format", PLAIN)))


def _formats(values: dict[str, Any]) -> list[str]:
    """Return the formats of a comparison, in which each loss without one of its own is run; raise for one of a task."""
    if wrong := [task for task in values["tasks"] if isinstance(task, Mapping) and "format" in task]:
        raise ValueError(
            f"format={wrong[0]['format']!r} is set for a task: expected it in `formats`, which all tasks share, or in a loss."
        )
    inner = values["settings"].pop("format", PLAIN)
    given = values.get("formats", inner)
    return list(dict.fromkeys(format_text(text) for text in ([given] if isinstance(given, str) else given)))


def _members(values: dict[str, Any]) -> Any:
    """Return the numbers of members of a comparison, in order; wrong ones are refused later."""
    given = values.get("members", values["settings"].pop("members", 1))
    listed = [given] if isinstance(given, int) else given
    return sorted({*listed}) if isinstance(listed, list | tuple) and all(isinstance(size, int) for size in listed) else given


def _trained_once(losses: Sequence[Any], members: Any) -> list[Any]:
    """Return losses without those that differ from another in having fewer members, whose pools are among its own."""
    most = members[-1] if isinstance(members, list) and members else 1
    kept: dict[str, Any] = {}
    for loss in losses:
        same = json.dumps({**loss, "members": None}, default=str) if isinstance(loss, Mapping) else repr(loss)
        sizes = [one.get("members", most) for one in (loss, kept.get(same, loss)) if isinstance(one, Mapping)]
        if same not in kept or (all(isinstance(size, int) for size in sizes) and sizes[0] > sizes[1]):
            kept[same] = loss
    return [*kept.values()]


def _in_formats(loss: Any, formats: Sequence[str]) -> list[Any]:
    """Return a loss in each format, with the format in its label; a loss that writes no number in plain text alone."""
    if not isinstance(loss, Mapping) or "format" in loss or [*formats] == [PLAIN]:
        return [loss]
    fitting = [PLAIN] if loss.get("loss") in HEADS else formats
    named = {format: {"label": in_format(loss["label"], format)} if loss.get("label") else {} for format in fitting}
    return [{**loss, **named[format], "format": format} for format in fitting]


def read_experiment(values: Mapping[str, Any], source: str = "") -> Experiment:
    """Return an experiment; errors name the file ``source``, the key and the nearest known one."""
    return checked(Experiment, in_plural(values), source, also=RunConfig.model_fields)


def in_plural(values: Mapping[str, Any]) -> dict[str, Any]:
    """Rename ``loss``, ``task``, ``model`` and ``seed`` to ``losses``, ``tasks``, ``models`` and ``seeds``: lists of one."""
    values = dict(values)
    for plural, singular in _SINGULAR.items():
        if singular in values:
            item = values.pop(singular)
            if plural in values:
                raise ValueError(f"{singular}={item!r} and {plural}={values[plural]!r} are both set: expected only one of them.")
            values[plural] = [item]
    return values


def cell_key(cell: RunConfig) -> str:
    """Return what the seeds of a run have in common: model, task and label."""
    return f"{cell.model}/{cell.task}/{json.dumps(cell.task_settings, sort_keys=True)}/{cell.name}"


def comparison_settings(
    config: str | Path | None,
    preset: str | None,
    data: str | Path | None = None,
    target: str | None = None,
    settings: Mapping[str, Any] | None = None,
    say: Callable[[str], object] = lambda text: None,
    *,
    gpu: Callable[[], bool] = has_gpu,
) -> dict[str, Any]:
    """Return the settings of the preset, overridden by those of the file, then by ``settings``; mappings are merged.

    Without preset and file these are the settings of the demo. They are for its table: another task or other data begin with the
    general ones, and one's own table with those of :mod:`numerate.lab.comparison.own_table`, which depend on whether there is a
    ``gpu``. ``say`` gets a line on the model.
    """
    if preset is not None:
        check_choice("preset", preset, tuple(PRESETS))
    written = {} if config is None else {"name": Path(config).stem} | in_plural(read_yaml(Path(config)))
    settings = in_plural(settings or {})
    data = data or settings.get("data")
    given = written.keys() | settings.keys()
    values: dict[str, Any] = {} if preset is None and config is not None else dict(PRESETS[preset or DEMO])
    general = False
    if values and (preset or DEMO) == DEMO:
        if data or target or given & {"tasks", "data"}:
            values, general = dict(GENERAL), True
        elif "losses" in given:  # the width goes with the loss
            values.pop("soft")
    names = task_names(settings.get("tasks", ()))
    if names or data or target or written.keys() & {"tasks", "data"}:  # those of the preset are for its task
        values.pop("task_settings", None)
    values |= written
    if names or data or target:
        values["name"] = "-".join([*names, *([data_name(data)] if data else [])]) or "my-data"
        if "tasks" not in written:  # a file's task reads the data that is given
            settings.setdefault("tasks", ["regression" if target or not data else default_task(data)])
    values |= {"data": str(data)} if data else {}
    values = merged(merged(values, {"task_settings": {"target": target}} if target else {}), settings)
    if general and values.get("data") and values.get("tasks") == [TABLE_TASK]:
        known = {"data", "task_settings", *given}
        values |= table_settings({name: value for name, value in values.items() if name in known}, gpu=gpu)
        if "models" not in given:
            say(default_model(gpu=gpu)[1])
    return values | _decision_of_pools(values)


def _decision_of_pools(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the setting that decides answers, if there are pools and no rule is set; a pool has no greedy answers.

    The rule is the one that fits the first metric of the first task.
    """
    losses = [loss for loss in values.get("losses", ()) if isinstance(loss, Mapping)]
    pools = [values.get("members"), *(part.get("members") for part in (values.get("settings", {}), *losses))]
    tasks = task_names(values.get("tasks", ("arithmetic",)))
    if all(size in (None, 1, [1], (1,)) for size in pools) or {"decide"} & {*values, *values.get("settings", {})}:
        return {}
    if not tasks or tasks[0] not in TASKS:  # which is refused later
        return {}
    return {"decide": [FITTING.get(TASKS[tasks[0]].measures[0], "median")]}


def task_names(tasks: str | Sequence[str | Mapping[str, Any]]) -> list[str]:
    """Return the name of each task of a comparison."""
    listed = [tasks] if isinstance(tasks, str | Mapping) else tasks
    return [task.get("task", "arithmetic") if isinstance(task, Mapping) else task for task in listed]


@dataclass(frozen=True)
class Plan:
    """What a comparison will do."""

    experiment: Experiment
    tasks: dict[str, Task]  # by ``task_key``; none with Ray, whose machines may have the data, and not this one
    executor: str
    folder: Path
    said: list[str]  # lines on what was chosen


def planned(
    config: str | Path | None,
    preset: str | None,
    data: str | Path | None,
    target: str | None,
    settings: Mapping[str, Any],
    *,
    out: str | Path | None = None,
    processes: int | None = None,
    executor: str | None = None,
    address: str | None = None,
    tune: int = 0,
    tune_seeds: int = 1,
    budget: Budget | None = None,
    gpu: Callable[[], bool] = has_gpu,
) -> Plan:
    """Return the plan of a comparison; raise if an argument is wrong or has no effect, or the data cannot be trained on.

    The arguments are those of :func:`numerate.lab.comparison.compare.compare`. Without a ``gpu`` it needs no torch.
    """
    if tune_seeds < 1 or (tune_seeds > 1 and not tune):
        raise ValueError(f"tune={tune}, tune_seeds={tune_seeds}: expected one or more seeds of each trial, and tune=1 or more.")
    if executor is not None:
        check_choice("executor", executor, EXECUTORS)
    if address is not None and executor != "ray":
        raise ValueError(f"address={address!r} has no effect without executor='ray': expected both, or neither.")
    if processes is not None and executor == "ray":
        raise ValueError(f"processes={processes} has no effect with executor='ray': leave out one of them.")
    if budget is not None and executor == "ray":
        raise ValueError("budget is measured on this machine, and executor='ray' runs on others: leave out one of them.")
    said: list[str] = []
    values = comparison_settings(config, preset, data, target, settings, said.append, gpu=gpu)
    experiment = read_experiment(values, "" if config is None else str(config))
    cells = experiment.of_one_seed()
    check_effect({**settings, **settings.get("settings", {})}, cells)
    tasks = {task_key(cell): checked_task(cell) for cell in cells if executor != "ray"}
    folder = run_folder(experiment.name) if out is None else Path(out)
    check_writable(folder)
    for cell in cells if tasks else ():
        if cell.soft is not None:
            soft_target(cell, tasks[task_key(cell)])
    if executor is None:
        executor = "stacked" if experiment.name == DEMO or gpu() else "local"
    return Plan(experiment, tasks, executor, folder, said)
