"""Fit a comparison into a time budget: time a few steps on this machine, choose what fits, and keep the choice in the folder.

The choice is in ``budget.json``. The same comparison with the same budget continues with it.
"""

from __future__ import annotations

import json
import math
import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import torch

from numerate.lab.comparison.budget import (
    LEAST_STEPS,
    LEAST_TESTS,
    MOST_SEEDS,
    Budget,
    Choice,
    GridWork,
    Kind,
    Pace,
    best_choice,
    enough_steps,
    left_out,
    quick_look,
)
from numerate.lab.comparison.cells import is_finished
from numerate.lab.comparison.executors import submit, threads_for
from numerate.lab.comparison.plan import Experiment
from numerate.lab.data import Task
from numerate.lab.data.picture_store import PICTURES
from numerate.lab.data.settings import task_key
from numerate.lab.files.progress import in_words, roughly
from numerate.lab.files.records import jsonable, write_json
from numerate.lab.models.loading import load_encoder
from numerate.lab.models.names import BUILT
from numerate.lab.report.recommended import recommended_for
from numerate.lab.training.config import RunConfig, in_format
from numerate.lab.training.prepare import load_run_model
from numerate.lab.training.run import run
from numerate.lab.training.validation import MOST

PLAN = "budget.json"
CHOSEN = ("losses", "seeds", "steps", "eval_examples")
"""Settings that a budget chooses, unless they are given."""

_MEASURING = 0.1  # share of the budget that measuring may take
_STEPS, _TESTS = 8, 64  # of a short run of a model that is built here
_FEW_STEPS, _FEW_TESTS = 3, 8  # of larger ones


# Measure


class _Enough(BaseException):
    """Raised within a short run that has been measured for long enough."""


def measured(config: RunConfig, pictures: Path, limit: float = math.inf) -> Pace:
    """Train and evaluate a short run like ``config``, in a folder that is deleted; ``pictures`` are kept.

    After ``limit`` seconds it ends at the next step or answer. An answer that was not seen is taken to be as slow as a step.
    """
    called, small = time.perf_counter(), config.model in BUILT
    steps, tests = (_STEPS, _TESTS) if small else (_FEW_STEPS, _FEW_TESTS)
    changed = {"steps": steps, "eval_examples": min(tests, config.eval_examples), "validate_every": None, "keep_best": False}
    short = config.model_copy(update={**changed, "save_every": None, "keep_model": False, "tensorboard": False})
    if small:  # what is imported and loaded once is no part of a run
        load_run_model(short, load_encoder(config.model, trust_remote_code=config.trust_remote_code).limit(config.max_length))
        from transformers import trainer  # noqa: F401
    trained: list[float] = []  # when each step ended
    turns = 1  # of members that are trained one after the other
    tested = (0, 0.0)  # answers, and when the last of them came

    def watched(stage: str, done: int, total: int, _: object) -> None:
        nonlocal tested, turns
        now = time.perf_counter()
        if stage == "train":
            trained.append(now)
            turns = total // steps
        elif stage == "evaluate" and done:
            tested = done, now
        if now - called > limit and (len(trained) > 1 or stage == "evaluate"):
            raise _Enough

    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, suppress(_Enough):
        run(short, Path(folder), pictures=pictures, progress=watched)
    end = time.perf_counter()
    gaps = [after - before for before, after in pairwise(trained)]
    step = median(gaps[1:] or gaps)
    count, answered = tested if tested[0] else (0, end)
    answer = (answered - trained[-1]) / count if count else step
    if config.validate_every is not None:
        step += answer * min(MOST, config.eval_examples) / config.validate_every
    return Pace(max(0.0, trained[0] - begin - step) + end - answered, step * turns, answer)


def _paces(
    cells: Sequence[RunConfig], folder: Path, limit: float, processes: int, pool: ProcessPoolExecutor | None
) -> list[Pace]:
    """Measure a run like each cell. Those for which there is no time are taken to be as slow as the slowest."""
    until = time.monotonic() + limit  # which is the same in all processes of a machine
    jobs = [(cell, folder / PICTURES, processes, limit, until if cell.name != cells[0].name else math.inf) for cell in cells]
    if pool is None:
        found = [_measured_until(*job) for job in jobs]
    else:
        found = [future.result() for future in [submit(pool, _measured_until, *job) for job in jobs]]
    slowest = Pace(*map(max, zip(*filter(None, found), strict=True)))
    return [pace or slowest for pace in found]


def _measured_until(config: RunConfig, pictures: Path, processes: int, limit: float, until: float) -> Pace | None:
    """Measure a run, in any process, unless it is later than ``until``."""
    if time.monotonic() > until:
        return None
    torch.set_num_threads(threads_for(config, processes))
    return measured(config, pictures, limit)


# Choose


@dataclass(frozen=True)
class BudgetedPlan:
    """A comparison that fits into a budget."""

    budget: Budget
    experiment: Experiment  # with the losses, seeds, steps and test rows that were chosen
    others: Sequence[int]  # seeds to run too, if there is time left
    text: str  # what was chosen and left out
    quick: str  # says that it is a quick look, if it is no more
    report: float  # seconds that the report takes
    note: str = ""  # which seeds were left out, if it has ended

    def with_seeds(self, seeds: Sequence[int]) -> Experiment:
        """Return the comparison with other seeds."""
        return self.experiment.model_copy(update={"seeds": tuple(seeds)})

    def is_over(self, cells: Sequence[RunConfig], folder: Path) -> bool:
        """Return whether runs have to be given up: the time is over, and all losses have finished a seed."""
        return self.budget.elapsed + self.report >= self.budget.seconds and bool(complete_seeds(cells, folder))

    def further(self, seconds: float, at_a_time: float) -> Sequence[int]:
        """Return other seeds for which there is time; the planned ones took ``seconds``, ``at_a_time`` of them."""
        per_round = seconds / math.ceil(len(self.experiment.seeds) / at_a_time)
        return self.others[: max(0, int(int((self.budget.left - self.report) / per_round) * at_a_time))]


def complete_seeds(cells: Sequence[RunConfig], folder: Path) -> list[int]:
    """Return the seeds of which all runs are finished."""
    unfinished = {cell.seed for cell in cells if not is_finished(folder, cell)}
    return [seed for seed in dict.fromkeys(cell.seed for cell in cells) if seed not in unfinished]


def settle(folder: Path, seeds: Sequence[int], note: str) -> None:
    """Keep in the plan that the comparison has ended with these seeds."""
    kept = json.loads((folder / PLAN).read_text(encoding="utf-8"))
    write_json(folder / PLAN, kept | {"seeds": list(seeds), "others": [], "note": note})


def plan_in_budget(
    budget: Budget,
    experiment: Experiment,
    tasks: Mapping[str, Task],
    folder: Path,
    *,
    given: Collection[str] = (),
    most_seeds: int = MOST_SEEDS,
    trials: int = 0,
    processes: int = 1,
    stacked: bool = False,
    pool: ProcessPoolExecutor | None = None,
    say: Callable[[str], object] = lambda _: None,
) -> BudgetedPlan:
    """Choose what fits, or the least if nothing does, or read what was chosen before.

    ``tasks`` are by :func:`task_key`. Settings of ``CHOSEN`` in ``given`` are not changed; ``most_seeds`` are run if there is
    much time. There are ``trials`` tuning runs of each loss, and ``processes`` runs at a time, in those of ``pool`` if there are
    several. With ``stacked``, the runs of a seed are trained as one.
    """
    excluded = {"formats"} if max(experiment.members) > 1 else {"formats", "members"}
    asked = jsonable([experiment.model_dump(mode="json", exclude=excluded), budget.seconds, trials, sorted(given)])
    if (kept := _read(folder / PLAN)) is None or kept.get("asked") != asked:
        say(f"Measuring the speed of this machine, to fit into {in_words(budget.seconds)}.")
        losses, least, most = _options(experiment, tasks, given, most_seeds)
        cells = sorted(experiment.of_one_seed(), key=lambda cell: losses.index(cell.name))
        paces = _paces(cells, folder, _MEASURING * budget.seconds, processes, pool)
        rows = [_test_rows(cell, tasks[task_key(cell)]) for cell in cells]
        kinds = [Kind(cell.name, pace, own, cell.members) for cell, pace, own in zip(cells, paces, rows, strict=True)]
        kept = _fitted(budget, experiment, least, most, GridWork(losses, kinds, processes, stacked, trials))
        write_json(folder / PLAN, {"asked": asked, **kept})
    labelled = zip(experiment.losses, experiment.cells(), strict=False)  # losses vary fastest
    changed = {
        "losses": tuple(loss for loss, cell in labelled if cell.name in kept["losses"]),
        "seeds": tuple(kept["seeds"]),
        "settings": experiment.settings | {"steps": kept["steps"], "eval_examples": kept["tests"]},
    }
    said = {name: kept[name] for name in ("others", "text", "quick", "report", "note")}
    return BudgetedPlan(budget, experiment.model_copy(update=changed), **said)


def _read(file: Path) -> dict[str, Any] | None:
    try:
        return dict(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def _options(
    experiment: Experiment, tasks: Mapping[str, Task], given: Collection[str], most_seeds: int
) -> tuple[list[str], Choice, Choice]:
    """Return the losses in the order in which they are kept, the baseline and those recommended first; the least and the most."""
    names = dict.fromkeys(cell.name for cell in experiment.cells())
    best = [recommended_for(tasks[task_key(cell)], cell.model) for cell in experiment.of_one_seed()]
    first = [experiment.baseline, *(in_format(one.loss, one.format) for one in best)]
    losses = list(dict.fromkeys([*(name for name in first if name in names), *names]))
    default = {name: field.default for name, field in RunConfig.model_fields.items()}
    steps, tests = (int({**default, **experiment.settings}[name]) for name in ("steps", "eval_examples"))
    if "eval_examples" not in given:
        tests = int(min(tests, max(max(_test_rows(cell, tasks[task_key(cell)])) for cell in experiment.of_one_seed())))
    seeds = len(experiment.seeds)
    most = Choice(len(losses), seeds if "seeds" in given else max(seeds, most_seeds), steps, tests)
    low = max(2, len(set(first) & set(losses))), 1, LEAST_STEPS, LEAST_TESTS
    least = (high if name in given else min(few, high) for name, few, high in zip(CHOSEN, low, most, strict=True))
    return losses, Choice(*least), most


def _test_rows(cell: RunConfig, task: Task) -> list[float]:
    """Return how many test rows there are of each split of a run."""
    counts = [task.count(split) for split in cell.eval_splits if split in task.splits]
    return [math.inf if count is None else count for count in counts]


def _fitted(budget: Budget, experiment: Experiment, least: Choice, most: Choice, work: GridWork) -> dict[str, Any]:
    """Return what fits, and what to say about it."""
    enough = enough_steps(experiment.models)
    choice = best_choice(least, most, enough, work.seconds, budget.left)
    needed = work.seconds(choice)
    quick = quick_look(choice, most, enough, budget.elapsed + needed - budget.seconds)
    asked = most._replace(seeds=len(experiment.seeds))
    text = f"{in_words(budget.seconds)}, about {roughly(needed)} for runs and report. {left_out(work.losses, choice, asked)}"
    if not quick and choice.steps < min(enough, most.steps):
        text += f" {choice.steps} steps are few: expect weak models."
    more = (seed for seed in range(most.seeds + asked.seeds) if seed not in experiment.seeds)
    seeds = [*experiment.seeds, *more][: most.seeds]
    return {
        "losses": list(work.losses[: choice.losses]),
        "seeds": seeds[: choice.seeds],
        "others": seeds[choice.seeds :],
        "steps": choice.steps,
        "tests": choice.tests,
        "text": f"{text} {quick}".rstrip(),
        "quick": quick,
        "report": work.report(choice),
        "note": "",
    }
