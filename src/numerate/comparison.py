"""The whole of ``numerate compare``: plan the grid, tune if asked to, run what is missing, write the report."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from numerate.checks import one_line
from numerate.config import RunConfig
from numerate.executors import run_local, run_ray
from numerate.experiment import begin, is_finished, read_experiment, tuned_cells, tuning_trials
from numerate.models import Reader, load_reader
from numerate.tasks import Task
from numerate.training import check_fit, make_task


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
    """Where the report is, its answer, the scores of the headlines, and how many rows of the data were left out."""

    path: Path
    sentences: list[str]
    scores: list[dict[str, Any]]
    skipped: int


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
    from numerate.report import write_report

    experiment = read_experiment(values, source)
    folder = Path("runs") / experiment.name if folder is None else folder
    _check_writable(folder)

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
    skipped = _check_fit(cells) if executor == "local" else 0
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
    return Report(path, sentences, [score for score in told["scores"] if score["headline"]], skipped)


def _check_fit(cells: Sequence[RunConfig]) -> int:
    """Say what would stop a run before any begins, and count the rows that are left out of the data."""
    readers: dict[str, Reader] = {}
    tasks: dict[str, Task] = {}
    for cell in {(cell.model, cell.task, json.dumps(cell.task_settings), cell.name): cell for cell in cells}.values():
        if cell.model not in readers:
            readers[cell.model] = load_reader(cell.model, trust_remote_code=cell.trust_remote_code)
        asked = json.dumps([cell.task, cell.task_settings, cell.data, cell.skip_bad])
        if asked not in tasks:
            tasks[asked] = make_task(cell)
        check_fit(cell, tasks[asked], readers[cell.model])
    return sum(len(task.skipped) for task in tasks.values())


def _check_writable(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".probe"
        probe.write_text("", encoding="utf-8")
        probe.unlink()
    except OSError as error:
        raise OSError(f"{folder} cannot be written to ({error.strerror}): name another folder with --out.") from None
