"""Compare losses: run a grid of losses and seeds, and write the report."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from numerate.checks import one_line
from numerate.lab.comparison.announcement import Setting, announcement
from numerate.lab.comparison.budget import MOST_SEEDS, Budget
from numerate.lab.comparison.budgeted import CHOSEN, BudgetedPlan, complete_seeds, plan_in_budget, settle
from numerate.lab.comparison.cells import (
    cell_folder,
    is_finished,
    read_headline,
    read_result,
    tuned_cells,
    tuning_trials,
    write_plan,
)
from numerate.lab.comparison.executors import run_local, run_ray, worker_pool
from numerate.lab.comparison.plan import Experiment, planned
from numerate.lab.data import Task
from numerate.lab.data.picture_store import PICTURES
from numerate.lab.data.readers import data_file
from numerate.lab.data.settings import task_key
from numerate.lab.files.progress import GridProgress
from numerate.lab.files.records import RUNS, clear, naming_full_disk, remove_parts
from numerate.lab.models.loading import load_encoder
from numerate.lab.report import write_report
from numerate.lab.training.checking import run_format
from numerate.lab.training.config import RunConfig
from numerate.lab.training.prepare import check_run
from numerate.lab.training.stacked import stackable
from numerate.lab.wording.text import counted

TRIALS = "trials"


@dataclass(frozen=True)
class ComparisonResult:
    """The report of a comparison.

    Attributes:
        path: of the HTML report; ``report.json`` and ``report.csv`` are in the same folder.
        answer: the answer in a sentence, and a line for each of the figures on the report's first screen.
        table: the headline metric, one row per task and model (``setup``), loss, split and ``decision`` (``"greedy"``, and
            those of ``decide``): ``score`` with its interval ``low`` to ``high``, ``difference`` from the baseline with the same
            decision and its Holm-corrected ``p`` (None for the baseline).
        data: everything in the report, as in ``report.json``.
        notes: how the data were read, where it was ambiguous, and how many rows were skipped.
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
    format: str | Sequence[str] | None = None,
    members: int | Sequence[int] | None = None,
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
    tune_seeds: int = 1,
    budget: str | float | Budget | None = None,
    progress: bool = True,
    **settings: Any,
) -> ComparisonResult:
    """Train a model with each loss and seed, evaluate all of them on the same examples, and write a report.

    Runs that are finished in ``out`` are not run again, so that an interrupted comparison continues.

    Args:
        config: a YAML file of settings; the arguments below override it.
        preset: name of a comparison in ``PRESETS``. Default: ``"demo"``, if there is no ``config``, ``task`` or ``data``.
        losses: names, or settings with a label; the baseline is added.
        format: how numbers are written, one or several of ``"plain"``, ``"padded"``, .. (:mod:`numerate.formats`): each loss is
            run in each of them; the baseline in plain text is added.
        members: how many models of a run decide together, such as 8 or ``[2, 8]``: each run is trained once, with the most of
            them, and pools of fewer, down to one, are of its first members.
        task: one or several.
        model: one or several: tiny, tiny-3, tiny-vlm, small, smollm2, a folder, a GGUF file or a Hub id.
        seeds: how many, or which ones.
        data: a file or folder with real data; or rows from Python, which are kept in a file of ``out`` (or ``runs``): a pandas
            frame, or a list of dicts.
        target: the column of the table to predict.
        out: folder of the comparison. Default: ``runs/NAME``.
        processes: runs at a time; of stacked runs on a GPU, those that are evaluated at a time. Default: one per core, or one for
            models that are trained one at a time on a GPU.
        executor: ``"local"``: runs in processes; ``"stacked"``: the same, with runs of small models trained as one; ``"ray"``.
            Default: stacked on a GPU and for the demo, else local, where the time per step is measured.
        address: of the Ray cluster.
        tune: trials per loss on a validation split before the comparison.
        tune_seeds: seeds of each trial; the trial with the best mean wins. More than one where runs differ much by seed.
        budget: time for all of it, such as ``"5m"`` or seconds: losses, seeds, steps and test rows are chosen to fit, except for
            those that are arguments of this call. Repeating the call continues with the same choice.
        progress: print the plan, and show progress bars on a terminal, or a line per finished run elsewhere.
        **settings: of every run (``steps=``, ``weight=``, ``task_settings=``, ...), ``baseline=`` and ``name=``.

    Raises:
        InterruptedComparison: a KeyboardInterrupt (Ctrl-C) that says how many runs are finished.
    """
    from rich.console import Console

    time = None if budget is None else Budget.of(budget)
    named = {"losses": losses, "formats": format, "members": members, "tasks": task, "models": model, "seeds": seeds}
    settings = {name: value for name, value in named.items() if value is not None} | settings
    if data is not None:
        data = data_file(data, RUNS if out is None else Path(out))
    how: dict[str, Any] = {"processes": processes, "executor": executor, "address": address, "out": out, "budget": time}
    plan = planned(config, preset, data, target, settings, tune=tune, tune_seeds=tune_seeds, **how)
    experiment, tasks, folder, executor = plan.experiment, plan.tasks, plan.folder, plan.executor
    for shared in (folder, folder / PICTURES):
        remove_parts(shared)
    cells = experiment.cells()
    if executor != "ray":
        _check_cells(experiment.of_one_seed(), tasks)
    stacked, notes = executor == "stacked", list[str]()
    together = stacked and all(map(stackable, cells))
    processes = processes or (1 if torch.cuda.is_available() and not together else os.cpu_count() or 1)
    console = Console(highlight=False, quiet=not progress)
    try:
        with naming_full_disk(folder), GridProgress(console) as display, ExitStack() as ended:
            pool, budgeted = None, None
            if executor != "ray" and processes > 1 and not (stacked and torch.cuda.is_available()):
                pool = ended.enter_context(worker_pool(cells, processes))
            if time is not None:
                budgeted = plan_in_budget(
                    time,
                    experiment,
                    tasks,
                    folder,
                    given={*settings, *settings.get("settings", {})} & {*CHOSEN},
                    most_seeds=MOST_SEEDS if config is None and preset is None else 0,
                    trials=tune * tune_seeds,
                    processes=processes,
                    stacked=together,
                    pool=pool,
                    say=display.write,
                )
                experiment, cells = budgeted.experiment, budgeted.experiment.cells()
            trials = tuning_trials(experiment, tune, tune_seeds) if tune else {}
            tried = [trial for mine in trials.values() for trial in mine]
            setting = Setting(folder, executor, processes, len(tried), budgeted.text if budgeted else "")
            for line in [*plan.said, *announcement(experiment, cells, list(tasks.values()), setting)] if progress else ():
                display.write(line)
            run_cells: Callable[..., None] = partial(run_ray, address=address)
            if executor != "ray":
                run_cells = partial(run_local, processes=processes, stacked=stacked, pool=pool, progress=display)
            execute = partial(_execute, folder=folder, display=display, run_cells=run_cells)

            def cells_of(experiment: Experiment) -> list[RunConfig]:
                return tuned_cells(experiment, folder, trials) if tune else experiment.cells()

            if tune:
                execute(tried, TRIALS)
            cells = cells_of(experiment)
            write_plan(experiment, cells, folder, budgeted.quick if budgeted else "")
            if budgeted is None:
                execute(cells, "runs")
            else:
                at_a_time = processes / (1 if together else len(cells) // len(experiment.seeds))
                notes = _execute_in_time(budgeted, folder, cells_of, execute, at_a_time, display.write)
        # It takes a minute where tens of thousands of distributions were kept.
        with naming_full_disk(folder), console.status("writing the report"):
            path = write_report(folder)
    except KeyboardInterrupt:
        raise InterruptedComparison(folder, sum(is_finished(folder, cell) for cell in cells), len(cells)) from None
    of_runs = [note for cell in cells if is_finished(folder, cell) for note in read_result(folder, cell).get("notes", [])]
    return _result(path, list(tasks.values()), [*notes, *of_runs])


class InterruptedComparison(KeyboardInterrupt):
    """A comparison was interrupted; finished runs are kept, and repeating the call continues it."""

    def __init__(self, folder: Path, finished: int, total: int) -> None:
        self.folder, self.finished, self.total = folder, finished, total
        rest = "the report is missing" if finished == total else "others begin again"
        super().__init__(f"Interrupted: {finished} of {total} runs are finished and kept in {folder}; {rest}.")


def _check_cells(cells: Sequence[RunConfig], tasks: Mapping[str, Task]) -> None:
    """Raise if a cell cannot run, before any cell is run."""
    models = {cell.model: cell.trust_remote_code for cell in cells}
    encoders = {model: load_encoder(model, trust_remote_code=trusted) for model, trusted in models.items()}
    for cell in cells:
        task = tasks[task_key(cell)]
        check_run(cell, task, encoders[cell.model].write(run_format(cell, task)))


def _execute_in_time(
    plan: BudgetedPlan,
    folder: Path,
    cells_of: Callable[[Experiment], list[RunConfig]],
    execute: Callable[..., None],
    at_a_time: float,
    say: Callable[[str], object],
) -> list[str]:
    """Run the planned seeds until the time is over, or further seeds if there is time left; return what was left out."""
    planned, cells = plan.experiment.seeds, cells_of(plan.experiment)
    begin, resumed = plan.budget.elapsed, any(is_finished(folder, cell) for cell in cells)
    execute(cells, "runs", is_over=partial(plan.is_over, cells, folder))
    done = complete_seeds(cells, folder)
    further = plan.further(plan.budget.elapsed - begin, at_a_time) if len(done) == len(planned) and not resumed else ()
    if further:
        say(f"There is time for {len(further)} more seed{'s' if len(further) > 1 else ''}.")
        more = cells_of(plan.with_seeds(further))
        execute(more, "more runs", is_over=partial(plan.is_over, cells, folder))
        cells, done = [*cells, *more], [*done, *complete_seeds(more, folder)]
    note = plan.note
    if missing := len({*planned} - {*done}):
        why = "to keep the budget: the machine was slower than measured. A longer --budget has them."
        note = f"Left out {missing} of {len(planned)} seeds, {why}"
    settle(folder, done, note)
    write_plan(plan.with_seeds(done), [cell for cell in cells if cell.seed in done], folder, plan.quick)
    return [note] if note else []


def _execute(
    cells: Sequence[RunConfig], name: str, folder: Path, display: GridProgress, run_cells: Callable[..., None], **options: Any
) -> None:
    """Run the cells that are not finished; raise at the end if one failed, with a report of the others."""
    failures: list[tuple[RunConfig, Exception]] = []

    def on_done(cell: RunConfig, error: Exception | None) -> None:
        title = f"{cell.name}, {cell.task}, {cell.model}, seed {cell.seed}"
        if error is not None:
            failures.append((cell, error))
            display.fail(title, error)
            return
        measure, figure, seconds = read_headline(folder, cell)
        display.finish(title, f"{measure} {figure}, {seconds:.0f} s")

    for cell in (cell for cell in cells if is_finished(folder, cell)):
        clear(cell_folder(folder, cell))
    left = {cell_folder(folder, cell): cell.steps for cell in cells if not is_finished(folder, cell)}
    display.begin(name, len(cells), len(cells) - len(left))
    with display.watching(left):
        run_cells(cells, folder, on_done=on_done, **options)
    if failures:
        cell, error = failures[0]
        raise RuntimeError(
            f"{len(failures)} of {len(cells)} runs failed, the first {cell.name!r} with seed {cell.seed}: "
            f"{one_line(error).removesuffix('.')}. Finished runs are kept{_reported(folder, name)}: call again to continue."
        ) from error


def _reported(folder: Path, name: str) -> str:
    """Write a report of the runs that are finished, which lists the others; say where, or nothing if there is none."""
    if name == TRIALS:
        return ""
    try:
        return f", with a report in {write_report(folder)} that lists the others"
    except (ValueError, OSError, ImportError):  # no run is finished, a full disk, a package is missing
        return ""


def _result(path: Path, tasks: Sequence[Task], said: Sequence[str] = ()) -> ComparisonResult:
    data = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
    figures = (f"{figure['title']}: {figure['text']} ({figure['note']})" for figure in data["key_figures"])
    answer = "\n".join([data["answer"], *figures])
    table = []
    for score in (score for score in data["scores"] if score["headline"]):
        row = {"loss": score["label"], **{name: score[name] for name in ("setup", "split", "decision", "measure", "seeds")}}
        for name, column, infinite in (("score", "value", math.inf), ("low", "low", -math.inf), ("high", "high", math.inf)):
            row[name] = infinite if score[column] is None else score[column]  # JSON has no infinity
        table.append(row | {"difference": score["difference"], "p": score["p_holm"]})
    notes = [note for task in tasks for note in task.notes]
    if skipped := sum(len(task.skipped) for task in tasks):
        notes.insert(0, f"Skipped {counted(skipped, 'row')} of the data without an answer or that could not be read.")
    return ComparisonResult(path, answer, table, data, list(dict.fromkeys([*said, *notes])))
