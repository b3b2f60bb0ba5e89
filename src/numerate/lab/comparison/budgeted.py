"""A comparison that fits into a budget: measure, choose, keep the plan in the folder, and stop in time.

The plan is ``budget.json`` in the folder of the comparison. The same comparison with the same budget goes on with it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch

from numerate.lab.comparison.budget import (
    ENOUGH_STEPS,
    ENOUGH_STEPS_PRETRAINED,
    LEAST_STEPS,
    LEAST_TESTS,
    MOST_SEEDS,
    USED,
    Budget,
    Choice,
    GridWork,
    Kind,
    Options,
    Pace,
    best_choice,
    finished,
    kept_order,
    left_out,
    quick_look,
)
from numerate.lab.comparison.cells import is_finished
from numerate.lab.comparison.executors import Job, submit, threads_for
from numerate.lab.comparison.pace import drawing_seconds, measured
from numerate.lab.comparison.plan import Experiment, read_experiment
from numerate.lab.data import Task
from numerate.lab.data.picture_store import PICTURES
from numerate.lab.files.durations import in_words, roughly
from numerate.lab.files.records import write_json
from numerate.lab.models.names import BUILT
from numerate.lab.training.config import RunConfig
from numerate.recommendation import recommended

PLAN = "budget.json"
_MEASURING = 0.1  # share of the budget that measuring may take
_OVER = 1.1  # share of the budget at which runs are given up, if a whole seed is finished
_REPORT_SECONDS = (6.0, 0.0015)  # of a report, and per row and run


@dataclass(frozen=True)
class Machine:
    """How a comparison is executed."""

    folder: Path
    processes: int
    stacked: bool
    pool: ProcessPoolExecutor | None
    trials: int = 0


@dataclass
class BudgetedPlan:
    """A comparison that fits: what is run, what it should take, and what it leaves out.

    Attributes:
        experiment: with the losses, steps, test rows and planned seeds that were chosen.
        seeds: all that may be run if there is time.
        text: what was chosen and left out, in words.
        clock: decides which seeds there is time for.
        quick: says that it is a quick look, if it is no more.
    """

    experiment: Experiment
    seeds: tuple[int, ...]
    text: str
    clock: SeedClock
    quick: str = ""

    def more(self, extra: Sequence[int]) -> Experiment:
        """Return the comparison with other seeds."""
        return self.experiment.model_copy(update={"seeds": tuple(extra)})


def plan_in_budget(
    budget: Budget,
    experiment: Experiment,
    values: Mapping[str, Any],
    given: Mapping[str, str],
    tasks: Callable[[RunConfig], Task],
    machine: Machine,
    *,
    most_seeds: int = MOST_SEEDS,
    say: Callable[[str], object] = lambda _: None,
) -> BudgetedPlan:
    """Choose what fits, or the least if nothing does, or read what was chosen before.

    Args:
        budget: the time.
        experiment: what is asked for.
        values: the settings that it was read from.
        given: settings that are not changed, and how the user gave them.
        tasks: the task of a run.
        machine: what runs are executed on.
        most_seeds: seeds to run if there is much time.
        say: prints a line.
    """
    cells = [cell for cell in experiment.cells() if cell.seed == experiment.seeds[0]]
    options = _options(experiment, cells, given, tasks, most_seeds)
    key = blake2b(
        json.dumps([experiment.model_dump(mode="json"), budget.seconds, machine.trials, sorted(given)]).encode(), digest_size=8
    ).hexdigest()
    kept = _read(machine.folder / PLAN, key)
    if kept is None:
        say(f"Measuring the speed of this machine, to fit into {in_words(budget.seconds)}.")
        work = GridWork(
            _kinds(experiment, cells, options, tasks, machine, budget),
            machine.processes,
            machine.stacked,
            machine.trials,
            _REPORT_SECONDS,
        )
        choice, needed = best_choice(options, work, USED * budget.seconds - budget.elapsed)
        seeds: Sequence[int] = _seeds(experiment, choice.seeds)
        kept = {"key": key, "budget": budget.seconds, "choice": choice._asdict(), "seeds": list(seeds), "final": False}
        kept |= {
            "losses": list(options.losses[: choice.losses]),
            "seconds": needed,
            "quick": quick_look(options, choice, budget.elapsed + needed - budget.seconds),
            "kinds": [asdict(kind) for kind in work.kinds],
        }
        write_json(machine.folder / PLAN, kept)
    choice, seeds = Choice(**kept["choice"]), tuple(kept["seeds"])
    kinds = tuple(Kind(**{**kind, "pace": Pace(**kind["pace"]), "splits": tuple(kind["splits"])}) for kind in kept["kinds"])
    work = GridWork(kinds, machine.processes, machine.stacked, machine.trials, _REPORT_SECONDS)
    chosen = _chosen(experiment, values, kept["losses"], choice, seeds)
    highest = seeds if kept["final"] else _seeds(experiment, options.seeds[1])
    clock = SeedClock(budget, work, choice, kept["losses"], machine.folder)
    quick = kept.get("quick", "")
    return BudgetedPlan(
        chosen, highest, f"{_text(budget, options, choice, experiment, kept['seconds'])} {quick}".rstrip(), clock, quick
    )


def settle(folder: Path, seeds: Sequence[int]) -> None:
    """Note in the plan that the comparison has ended with these seeds."""
    kept = json.loads((folder / PLAN).read_text(encoding="utf-8"))
    write_json(folder / PLAN, kept | {"seeds": list(seeds), "final": True})


def _read(file: Path, key: str) -> dict[str, Any] | None:
    """Return a plan for the same comparison and budget, if there is one."""
    try:
        kept = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return kept if isinstance(kept, dict) and kept.get("key") == key else None


def _options(
    experiment: Experiment,
    cells: Sequence[RunConfig],
    given: Mapping[str, str],
    tasks: Callable[[RunConfig], Task],
    most_seeds: int,
) -> Options:
    """Return what there is to choose from."""
    names = list(dict.fromkeys(cell.name for cell in cells))
    first = [experiment.baseline, *(recommended(tasks(cell).number_kind).loss for cell in cells)]
    order = kept_order(names, first)
    must = len([name for name in order if name in first])
    least = len(order) if "losses" in given else min(len(order), max(2, must))
    asked = len(experiment.seeds)
    most = asked if "seeds" in given else max(asked, most_seeds)
    steps, tests = (
        int(experiment.settings.get(name, RunConfig.model_fields[name].default)) for name in ("steps", "eval_examples")
    )
    scratch = all(model in BUILT for model in experiment.models)
    return Options(
        order,
        least,
        (most if "seeds" in given else 1, most),
        (steps if "steps" in given else min(steps, LEAST_STEPS), steps),
        ENOUGH_STEPS if scratch else ENOUGH_STEPS_PRETRAINED,
        (tests if "eval_examples" in given else min(tests, LEAST_TESTS), tests),
    )


def _kinds(
    experiment: Experiment,
    cells: Sequence[RunConfig],
    options: Options,
    tasks: Callable[[RunConfig], Task],
    machine: Machine,
    budget: Budget,
) -> tuple[Kind, ...]:
    """Measure a run of each loss, in a tenth of the budget, those that are kept first; the others are as slow as the slowest."""
    began, limit = time.monotonic(), _MEASURING * budget.seconds
    pictures = machine.folder / PICTURES
    drawing: dict[str, tuple[float, int]] = {}
    for cell in (cell for cell in cells if cell.name == experiment.baseline):
        rows = cell.batch_size * cell.accumulation
        drawing[cell.hash] = drawing_seconds([cell], tasks(cell), pictures), -(-cell.train_examples // rows)
    paces: dict[str, Pace] = {}
    queue = sorted(cells, key=lambda cell: options.losses.index(cell.name))
    running: dict[Future[Any], RunConfig] = {}
    for cell in queue:
        if cell.name != options.losses[0] and time.monotonic() - began > limit:
            break
        if machine.pool is None:
            paces[cell.hash] = _measured(cell, pictures, 1, limit)
            continue
        while len(running) >= machine.processes:
            _collect(running, paces)
        running[submit(machine.pool, _measured, cell, pictures, machine.processes, limit)] = cell
    while running:
        _collect(running, paces)
    slowest = Pace.slowest(paces.values())
    usual = experiment.settings.get("steps", RunConfig.model_fields["steps"].default)
    return tuple(
        Kind(
            cell.name,
            paces.get(cell.hash, slowest),
            _setup(cell),
            tuple(tasks(cell).count(split) for split in cell.eval_splits if split in tasks(cell).splits),
            None if cell.steps == usual else cell.steps,
            *drawing.get(cell.hash, (0.0, 0)),
        )
        for cell in cells
    )


def _collect(running: dict[Future[Any], RunConfig], paces: dict[str, Pace]) -> None:
    done, _ = wait(running, return_when=FIRST_COMPLETED)
    for future in done:
        paces[running.pop(future).hash] = future.result()


def _measured(config: RunConfig, pictures: Path, processes: int, limit: float) -> Pace:
    torch.set_num_threads(threads_for(config, processes))
    return measured(config, pictures, limit)


def _seeds(experiment: Experiment, count: int) -> tuple[int, ...]:
    """Return the first seeds of a comparison, and as many others as it takes."""
    others = (seed for seed in range(count + len(experiment.seeds)) if seed not in experiment.seeds)
    return tuple([*experiment.seeds, *others][:count])


def _chosen(
    experiment: Experiment, values: Mapping[str, Any], losses: Sequence[str], choice: Choice, seeds: Sequence[int]
) -> Experiment:
    """Return the comparison with what was chosen."""
    first = [cell for cell in experiment.cells() if cell.seed == experiment.seeds[0]]
    labels = [cell.name for cell in first[: len(experiment.losses)]]  # losses vary fastest
    kept = [loss for loss, name in zip(experiment.losses, labels, strict=True) if name in losses]
    changed = {**values, "losses": kept, "seeds": list(seeds), "steps": choice.steps, "eval_examples": choice.tests}
    softened = any(cell.soft is not None and cell.name in losses for cell in first)
    if not softened:
        changed.pop("soft", None)
    return read_experiment(changed)


def _text(budget: Budget, options: Options, choice: Choice, experiment: Experiment, seconds: float) -> str:
    """Say what a plan takes, and what it leaves out."""
    asked = Choice(len(options.losses), len(experiment.seeds), options.steps[1], options.tests[1])
    words = left_out(options, choice, asked)
    text = f"{in_words(budget.seconds)}, about {roughly(seconds)} for runs and report."
    if not words:
        return f"{text} Nothing is left out."
    text += f" Left out: {', '.join(words)}."
    if choice.steps < min(options.enough_steps, options.steps[1]):
        text += f" {choice.steps} steps are few: expect weak models."
    return text


@dataclass
class SeedClock:
    """Begin a seed only if its runs of all losses should end in time; see :class:`numerate.lab.comparison.executors.Timekeeper`.

    The first seed always begins. What runs take is what runs of the same loss took, or by the measured pace until then.
    """

    budget: Budget
    work: GridWork
    choice: Choice
    losses: Sequence[str]
    folder: Path
    cells: Sequence[RunConfig] = ()
    begun: set[int] = field(default_factory=set)
    dropped: set[int] = field(default_factory=set)
    _running: dict[str, tuple[float, float]] = field(default_factory=dict)  # by the hash of its first cell: began, expected
    _taken: dict[tuple[str, ...], list[float]] = field(default_factory=dict)
    _slow: list[float] = field(default_factory=list)

    def begin(self, job: Job) -> bool:
        """Return whether a job may begin."""
        seed = job[0].seed
        if seed in self.dropped:
            return False
        if self.begun and seed not in self.begun and not self._fits(seed):
            self.dropped.add(seed)
            return False
        self.begun.add(seed)
        self._running[job[0].hash] = time.monotonic(), self.expected(job)
        return True

    def end(self, job: Job) -> None:
        """Note what a job took."""
        began, _ = self._running.pop(job[0].hash)
        seconds = time.monotonic() - began
        self._taken.setdefault(_names(job), []).append(seconds)
        self._slow.append(seconds / max(self._planned(job), 1e-9))

    def is_over(self) -> bool:
        """Return whether runs have to be given up: the time is over, and a whole seed is finished."""
        if self.budget.elapsed + self.reporting() < _OVER * self.budget.seconds:
            return False
        return bool(self.complete())

    def complete(self) -> list[int]:
        """Return the seeds of which all runs are finished."""
        seeds = dict.fromkeys(cell.seed for cell in self.cells)
        return [seed for seed in seeds if all(is_finished(self.folder, cell) for cell in self.cells if cell.seed == seed)]

    def expected(self, job: Job) -> float:
        """Return what a job should take."""
        if taken := self._taken.get(_names(job)):
            return _cautious(taken)
        return self._planned(job) * (_cautious(self._slow) if self._slow else 1.0)

    def reporting(self) -> float:
        """Return what the report should take."""
        return self.work.reporting(self.choice, self.work.of(self.losses))

    def extra(self, seeds: Sequence[int], cells: Callable[[Sequence[int]], Sequence[RunConfig]]) -> list[int]:
        """Return how many of further ``seeds`` there is time for; ``cells`` are the runs of seeds."""
        for count in range(len(seeds), 0, -1):
            jobs = [self.expected(job) for seed in seeds[:count] for job in self._jobs(cells([seed]))]
            if self.budget.elapsed + finished([0.0] * self.work.slots, jobs) + self.reporting() <= USED * self.budget.seconds:
                return list(seeds[:count])
        return []

    def _fits(self, seed: int) -> bool:
        now = time.monotonic()
        free = [max(0.0, began + expected - now) for began, expected in self._running.values()]
        free += [0.0] * (self.work.slots - len(free))
        mine = [cell for cell in self.cells if cell.seed == seed and not is_finished(self.folder, cell)]
        end = finished(free, [self.expected(job) for job in self._jobs(mine)])
        return self.budget.elapsed + end + self.reporting() <= self.budget.seconds

    def _jobs(self, cells: Sequence[RunConfig]) -> list[Job]:
        return [list(cells)] if self.work.stacked and cells else [[cell] for cell in cells]

    def _planned(self, job: Job) -> float:
        kinds = {(kind.setup, kind.loss): kind for kind in self.work.kinds}
        return sum(kinds[_setup(cell), cell.name].seconds(self.choice) for cell in job)


def _cautious(measured: Sequence[float]) -> float:
    """Return the mean or, if that is more, the last: a machine that gets slower stays so."""
    return max(sum(measured) / len(measured), measured[-1])


def _names(job: Job) -> tuple[str, ...]:
    return tuple(f"{_setup(cell)}/{cell.name}" for cell in job)


def _setup(cell: RunConfig) -> str:
    """Return what names the task and the model of a run."""
    return json.dumps([cell.model, cell.task, cell.task_settings, cell.data], sort_keys=True)
