"""The whole of ``numerate compare``: plan the grid, tune if asked to, run what is missing, write the report."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from numerate.lab.config import PLAIN, RunConfig
from numerate.lab.executors import run_local, run_ray
from numerate.lab.experiment import begin, is_finished, read_experiment, tuned_cells, tuning_trials
from numerate.lab.models import Reader, load_reader
from numerate.lab.tasks import Task
from numerate.lab.train import check_fit, check_writable, make_task
from numerate.losses import LOSSES
from numerate.messages import check_choice, one_line


class Watch(Protocol):
    """Is told how far things are."""

    def begin(self, what: str, total: int, done: int) -> None:
        """A grid begins."""

    def step(self, what: str, done: int, total: int, figures: dict[str, float]) -> None:
        """How far the run is that is under way, if there is but one at a time."""

    def done(self, name: str, error: Exception | None) -> None:
        """A run is finished, or failed."""


@dataclass(frozen=True)
class Report:
    """Where the report is, its answer, the scores of the headlines, how many rows were left out, and how the others were read."""

    path: Path
    sentences: list[str]
    scores: list[dict[str, Any]]
    skipped: int
    notes: tuple[str, ...] = ()


def with_baseline(values: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
    """Put the baseline before the losses if it is not among them; whether that was so."""
    baseline, given = values.get("baseline", PLAIN), values.get("losses")
    if given is None:
        return dict(values), False
    losses = [given] if isinstance(given, str) else list(given)
    labels = [one.get("label") or one.get("loss") if isinstance(one, Mapping) else one for one in losses]
    if baseline in labels:
        return dict(values), False
    check_choice("baseline", baseline, (PLAIN, *LOSSES, *filter(None, labels)))
    return {**values, "losses": [baseline, *losses]}, True


def compare_losses(
    values: Mapping[str, Any],
    folder: Path | None = None,
    *,
    source: str = "",
    processes: int = 1,
    executor: str = "local",
    address: str | None = None,
    tune: int = 0,
    watch: Watch,
) -> Report:
    """Run the comparison of these settings in ``folder``, and write its report there."""
    from numerate.lab.report import write_report

    experiment = read_experiment(values, source)
    folder = Path("runs") / experiment.name if folder is None else folder
    check_writable(folder)

    def execute(cells: Sequence[RunConfig], what: str) -> None:
        failures: list[tuple[RunConfig, Exception]] = []

        def on_done(cell: RunConfig, error: Exception | None) -> None:
            if error is not None:
                failures.append((cell, error))
            watch.done(f"{cell.name}, {cell.task}, {cell.model}, seed {cell.seed}", error)

        watch.begin(what, len(cells), sum(is_finished(folder, cell) for cell in cells))
        if executor == "ray":
            run_ray(cells, folder, address=address, on_done=on_done)
        else:
            run_local(cells, folder, processes=processes, on_done=on_done, progress=watch.step)
        if failures:
            cell, error = failures[0]
            raise RuntimeError(
                f"{len(failures)} of {len(cells)} runs failed, the first {cell.name!r} with seed {cell.seed}: "
                f"{one_line(error).removesuffix('.')}. What is finished is kept: call again to go on."
            ) from error

    cells = experiment.cells()
    tasks = _check_fit(cells) if executor == "local" else []
    if tune:
        trials = tuning_trials(experiment, tune)
        execute([trial for found in trials.values() for trial in found], "trials")
        cells = tuned_cells(experiment, folder, trials)
    begin(experiment, cells, folder)
    execute(cells, "runs")
    path = write_report(folder)
    told = json.loads(path.with_name("report.json").read_text(encoding="utf-8"))
    answers = told["answers"]
    sentences = answers[0]["sentences"] if len(answers) == 1 else [told["answer"]]
    scores = [score for score in told["scores"] if score["headline"]]
    notes = dict.fromkeys(note for task in tasks for note in task.notes)
    return Report(path, sentences, scores, sum(len(task.skipped) for task in tasks), tuple(notes))


def _check_fit(cells: Sequence[RunConfig]) -> list[Task]:
    """Say what would stop a run before any begins; gives the tasks."""
    readers: dict[str, Reader] = {}
    tasks: dict[str, Task] = {}
    for cell in {(cell.model, cell.task, json.dumps(cell.task_settings), cell.name): cell for cell in cells}.values():
        if cell.model not in readers:
            readers[cell.model] = load_reader(cell.model, trust_remote_code=cell.trust_remote_code)
        asked = json.dumps([cell.task, cell.task_settings, cell.data, cell.skip_bad])
        if asked not in tasks:
            tasks[asked] = make_task(cell)
        check_fit(cell, tasks[asked], readers[cell.model])
    return list(tasks.values())
