"""Compare losses: run a grid of losses and seeds, and write the report."""

from __future__ import annotations

import json
import math
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from numerate.lab.config import RunConfig, read_yaml
from numerate.lab.executors import run_local, run_ray
from numerate.lab.experiment import (
    cell_folder,
    in_plural,
    is_finished,
    read_experiment,
    read_headline,
    tuned_cells,
    tuning_trials,
    write_plan,
)
from numerate.lab.models import PromptEncoder, load_encoder
from numerate.lab.presets import DEMO, GENERAL, PRESETS, merged
from numerate.lab.progress import GridProgress
from numerate.lab.records import check_writable
from numerate.lab.report import write_report
from numerate.lab.stacked import stackable
from numerate.lab.tasks import Task
from numerate.lab.tasks.readers import data_file, default_task
from numerate.lab.train import check_fit, make_task
from numerate.messages import check_choice, one_line

EXECUTORS = ("local", "stacked", "ray")
_WATCH_SECONDS, _LINE_SECONDS = 2.0, 60.0  # between looks at the learning curves, for a bar and for lines


@dataclass(frozen=True)
class ComparisonResult:
    """The report of a comparison.

    Attributes:
        path: of the HTML report; ``report.json`` and ``report.csv`` are in the same folder.
        answer: the answer in a few sentences.
        table: the headline measure, one row per task and model (``setup``), loss, split and ``decision`` (``"greedy"``, and
            those of ``decide``): ``score`` with its interval ``low`` to ``high``, ``difference`` from the baseline with the same
            decision and its Holm-corrected ``p`` (None for the baseline).
        data: everything in the report, as in ``report.json``.
        notes: how the data were read, where that was not obvious, and how many rows were skipped.
    """

    path: Path
    answer: str
    table: list[dict[str, Any]] = field(repr=False)
    data: dict[str, Any] = field(repr=False)
    notes: list[str] = field(default_factory=list)


def compare(
    config: str | Path | None = None,
    *,
    preset: str | None = None,
    losses: str | Sequence[str | Mapping[str, Any]] | None = None,
    task: str | Sequence[str | Mapping[str, Any]] | None = None,
    model: str | Sequence[str] | None = None,
    seeds: int | Sequence[int] | None = None,
    data: Any = None,
    target: str | None = None,
    out: str | Path | None = None,
    processes: int | None = None,
    executor: str | None = None,
    address: str | None = None,
    tune: int = 0,
    progress: bool = True,
    **settings: Any,
) -> ComparisonResult:
    """Train a model with each loss and seed, evaluate all of them on the same examples, and write a report.

    Runs that are finished in ``out`` are not run again, so that an interrupted comparison continues.

    Args:
        config: a YAML file of settings; the arguments below override it.
        preset: name of a comparison in ``PRESETS``. Default: ``"demo"``, if there is no ``config``, ``task`` or ``data``.
        losses: names, or settings with a label; the baseline is added.
        task: one or several.
        model: one or several: tiny, tiny-3, tiny-vlm, small, smollm2, a folder or a Hub id.
        seeds: how many, or which ones.
        data: a file or folder with real data; or rows from Python, which are kept in a file of ``out`` (or ``runs``): a pandas
            frame, or a list of dicts.
        target: the column of the table to predict.
        out: folder of the comparison. Default: ``runs/NAME``.
        processes: runs at a time; of stacked runs on a GPU, those that are evaluated at a time. Default: one per core, or one for
            models that are trained one at a time on a GPU.
        executor: ``"local"``: runs in processes; ``"stacked"``: the same, with runs of small models trained as one; ``"ray"``.
            Default: stacked on a GPU and for the demo, else local, which measures the time per step.
        address: of the Ray cluster.
        tune: trials per loss on a validation split before the comparison.
        progress: show bars on a terminal, or a line per finished run elsewhere.
        **settings: of every run (``steps=``, ``weight=``, ``task_settings=``, ...), ``baseline=`` and ``name=``.
    """
    from rich.console import Console

    named = {"losses": losses, "tasks": task, "models": model, "seeds": seeds}
    settings = {name: value for name, value in named.items() if value is not None} | settings
    if data is not None:
        data = data_file(data, Path("runs") if out is None else Path(out))
    values = comparison_settings(config, preset, data, target, settings)
    experiment = read_experiment(values, "" if config is None else str(config))
    if executor is None:
        executor = "stacked" if torch.cuda.is_available() or experiment.name == DEMO else "local"
    check_choice("executor", executor, EXECUTORS)
    folder = Path("runs") / experiment.name if out is None else Path(out)
    check_writable(folder)
    cells = experiment.cells()
    tasks = _check_cells(cells) if executor != "ray" else []
    alone = torch.cuda.is_available() and not (executor == "stacked" and all(map(stackable, cells)))
    processes = processes or (1 if alone else os.cpu_count() or 1)
    with GridProgress(Console(highlight=False, quiet=not progress)) as display:
        run_cells: Callable[..., None] = partial(run_ray, address=address)
        if executor != "ray":
            run_cells = partial(run_local, processes=processes, stacked=executor == "stacked", progress=display)
        others = dict.fromkeys(cell.name for cell in cells if cell.name != experiment.baseline)
        display.write(f"Comparing {', '.join(others) or 'nothing'} with the baseline {experiment.baseline}.")
        if tune:
            trials = tuning_trials(experiment, tune)
            _execute([trial for mine in trials.values() for trial in mine], "trials", folder, display, run_cells)
            cells = tuned_cells(experiment, folder, trials)
        write_plan(experiment, cells, folder)
        _execute(cells, "runs", folder, display, run_cells)
    return _result(write_report(folder), tasks)


def comparison_settings(
    config: str | Path | None,
    preset: str | None,
    data: str | Path | None = None,
    target: str | None = None,
    settings: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the settings of the preset, overridden by those of the file, then by ``settings``; mappings are merged.

    Without preset and file these are the settings of the demo. They are for its table: another task or other data begin with the
    general ones.
    """
    if preset is not None:
        check_choice("preset", preset, tuple(PRESETS))
    written = {} if config is None else {"name": Path(config).stem} | in_plural(read_yaml(Path(config)))
    settings = in_plural(settings or {})
    data = data or settings.get("data")
    given = written.keys() | settings.keys()
    values: dict[str, Any] = {} if preset is None and config is not None else dict(PRESETS[preset or DEMO])
    if values and (preset or DEMO) == DEMO:
        if data or target or given & {"tasks", "data"}:
            values = dict(GENERAL)
        elif "losses" in given:  # the width goes with the loss
            values.pop("soft")
    values |= written
    names = task_names(settings.get("tasks", ()))
    if names or data or target:
        if config is None:  # those of the preset are for its task
            values.pop("task_settings", None)
        values["name"] = "-".join([*names, *([Path(data).stem] if data else [])]) or "my-data"
        if "tasks" not in written:  # a file's task reads the data that is given
            settings.setdefault("tasks", ["regression" if target or not data else default_task(data)])
    values |= {"data": str(data)} if data else {}
    return merged(merged(values, {"task_settings": {"target": target}} if target else {}), settings)


def task_names(tasks: str | Sequence[str | Mapping[str, Any]]) -> list[str]:
    """Return the name of each task of a comparison."""
    listed = [tasks] if isinstance(tasks, str | Mapping) else tasks
    return [task.get("task", "arithmetic") if isinstance(task, Mapping) else task for task in listed]


def _check_cells(cells: Sequence[RunConfig]) -> list[Task]:
    """Raise if a cell cannot run, before any cell is run; return the tasks."""
    encoders: dict[str, PromptEncoder] = {}
    tasks: dict[str, Task] = {}
    for cell in {(cell.model, cell.task, json.dumps(cell.task_settings), cell.name): cell for cell in cells}.values():
        if cell.model not in encoders:
            encoders[cell.model] = load_encoder(cell.model, trust_remote_code=cell.trust_remote_code)
        key = json.dumps([cell.task, cell.task_settings, cell.data, cell.skip_bad])
        if key not in tasks:
            tasks[key] = make_task(cell)
        check_fit(cell, tasks[key], encoders[cell.model])
    return list(tasks.values())


def _execute(cells: Sequence[RunConfig], name: str, folder: Path, display: GridProgress, run_cells: Callable[..., None]) -> None:
    """Run the cells that are not finished; raise at the end if one failed."""
    failures: list[tuple[RunConfig, Exception]] = []

    def on_done(cell: RunConfig, error: Exception | None) -> None:
        title = f"{cell.name}, {cell.task}, {cell.model}, seed {cell.seed}"
        if error is not None:
            failures.append((cell, error))
            display.fail(title, error)
            return
        measure, value, seconds = read_headline(folder, cell)
        display.finish(title, f"{measure} {value:.3g}, {seconds:.0f} s")

    display.begin(name, len(cells), sum(is_finished(folder, cell) for cell in cells))
    with _steps_shown(cells, folder, display):
        run_cells(cells, folder, on_done=on_done)
    if failures:
        cell, error = failures[0]
        raise RuntimeError(
            f"{len(failures)} of {len(cells)} runs failed, the first {cell.name!r} with seed {cell.seed}: "
            f"{one_line(error).removesuffix('.')}. Finished runs are kept: call again to continue."
        ) from error


@contextmanager
def _steps_shown(cells: Sequence[RunConfig], folder: Path, display: GridProgress) -> Iterator[None]:
    """Show a bar of the training steps of all runs; without a terminal, print a line a minute.

    Steps are read from the learning curves: other processes report nothing else.
    """
    todo = [cell for cell in cells if not is_finished(folder, cell)]
    total, ended = sum(cell.steps for cell in todo), threading.Event()
    bar = display.bars.add_task("steps", total=total, figures="", visible=bool(todo))

    def watch() -> None:
        while not ended.wait(_LINE_SECONDS if display.lines else _WATCH_SECONDS):
            done = sum(min(cell.steps, _last_step(folder, cell)) for cell in todo)
            display.bars.update(bar, completed=done)
            if display.lines:
                display.write(f"{done:,} of {total:,} steps")

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        ended.set()
        display.bars.remove_task(bar)


def _last_step(folder: Path, cell: RunConfig) -> int:
    """Return the last step in the learning curve of a run, 0 if there is none yet."""
    if is_finished(folder, cell):
        return cell.steps
    try:
        whole, _, _ = (cell_folder(folder, cell) / "curve.jsonl").read_text(encoding="utf-8").rpartition("\n")
        return int(json.loads(whole.splitlines()[-1])["step"])
    except (OSError, LookupError, ValueError):  # not begun
        return 0


def _result(path: Path, tasks: Sequence[Task]) -> ComparisonResult:
    data = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
    answers = data["answers"]
    answer = " ".join(answers[0]["sentences"]) if len(answers) == 1 else data["answer"]
    table = []
    for score in (score for score in data["scores"] if score["headline"]):
        row = {"loss": score["label"], **{name: score[name] for name in ("setup", "split", "decision", "measure", "seeds")}}
        for name, column, infinite in (("score", "value", math.inf), ("low", "low", -math.inf), ("high", "high", math.inf)):
            row[name] = infinite if score[column] is None else score[column]  # JSON has no infinity
        table.append(row | {"difference": score["difference"], "p": score["p_holm"]})
    notes = [note for task in tasks for note in task.notes]
    if skipped := sum(len(task.skipped) for task in tasks):
        notes.insert(0, f"Skipped {skipped:,} rows of the data, which have no answer or could not be read.")
    return ComparisonResult(path, answer, table, data, list(dict.fromkeys(notes)))
