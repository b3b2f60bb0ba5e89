"""Members of a pool on the tables of part 15 of the plan, and what their own distributions say beside what a run records.

    python research/pool_members.py weights --minutes 9 --processes 14      # research/scores/weights_pools.csv

``weights`` asks the members for test and validation rows: pools with equal weights, with weights fitted on the validation rows,
and with averaged quantiles; errors of medians, CRPS, coverage of the 90 % interval and its width, and the width of the conformal
interval. ``cheaper_members.py`` and ``disagreement.py`` ask the same members.

A draw of a table is one step of the work, in a process of its own: its lines join the CSV file when it is done, and another call
does those that are missing. The settings of a table are those of the entry ``pools_TABLE`` of schedule.yaml. Members are trained
as those of ``numerate train --members``, once: their weights are in ``runs/members``, with which another command goes on.
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent))

from schedule import HERE, read_schedule

from numerate.answers.numerals import number_of
from numerate.calibration import conformal, fit_pool_weights
from numerate.distribution import NumberDistribution, pool
from numerate.distribution.exact import exact_number
from numerate.lab.comparison.cells import cell_folder
from numerate.lab.data import Example, Task
from numerate.lab.data.settings import make_task
from numerate.lab.data.splits import held_out, validation_examples
from numerate.lab.evaluation.decisions import find_distributions, number_finder
from numerate.lab.evaluation.missing import middle_label
from numerate.lab.models.loading import LoadedModel
from numerate.lab.training.config import RunConfig
from numerate.lab.training.prepare import check_run, find_pictures, run_encoder, run_examples
from numerate.lab.training.stacked import stack
from numerate.lab.training.stacked.train import places, train_as_one

TABLES = ("diamonds", "births", "flights", "rodents", "storms", "demand")
SETTINGS = ("train_examples", "steps", "learning_rate")
LEVEL = 0.9
BATCH = 128

Row = dict[str, Any]
Answers = list[list[NumberDistribution]]  # of each row, by member


@dataclass(frozen=True)
class Members:
    """Models as one stack, and which of them answer; one may answer several times, with dropout."""

    stacked: LoadedModel
    config: RunConfig
    owners: tuple[int, ...]
    seconds: float = 0.0  # that their training took

    @property
    def task(self) -> Task:
        """The task of the run."""
        return make_task(self.config)

    def answers(self, examples: Sequence[Example], width: int = 16) -> Answers:
        """Return the distribution of every member for each example; one without a number answers the median of the labels."""
        finder, every = number_finder(self.stacked, self.task, width), len(self.owners)
        middle = NumberDistribution.point(str(middle_label(self.task, run_examples(self.config, self.task))))
        self.stacked.model.eval()
        found: list[NumberDistribution | None] = []
        for first in range(0, len(examples), BATCH):
            batch = list(examples[first : first + BATCH])
            found += find_distributions(
                self.stacked,
                finder,
                [example for example in batch for _ in self.owners],
                indices=[index for index in range(first, first + len(batch)) for _ in self.owners],
                seed=self.config.seed,
                bf16=False,
                members=[*self.owners] * len(batch),
            )
        sure = [middle if one is None else one for one in found]
        return [sure[first : first + every] for first in range(0, len(sure), every)]


def draws(tables: Sequence[str], seeds: Iterable[int], members: int = 8, **changes: Any) -> list[tuple[str, RunConfig]]:
    """Return a run with soft labels for each table and draw, all tables of a draw before the next."""
    entries = {entry.name: entry for entry in read_schedule(HERE / "schedule.yaml")}
    found = {}
    for table in tables:
        (config,) = (cell for cell in entries[f"pools_{table}"].experiment.of_one_seed() if cell.name == "soft")
        found[table] = config.model_copy(update={"members": members, **changes})
    return [(table, config.model_copy(update={"seed": seed})) for seed in seeds for table, config in found.items()]


def trained(config: RunConfig, folder: Path) -> Members:
    """Return the members of a run as one stack; those whose weights are in the folder are not trained again."""
    task, own = make_task(config), cell_folder(folder, config.model_copy(update={"decide": (), "eval_examples": 1}))
    encoder = run_encoder(config, task)
    objective = check_run(config.model_copy(update={"members": 1}), task, encoder)
    own.mkdir(parents=True, exist_ok=True)
    find_pictures([config], task, encoder, own, None, lambda *_: None)
    found = train_as_one(task, encoder, places([config], [objective], [own]))
    seconds = sum(cost["train_seconds"] for cost in found.costs)
    return Members(found.whole.to(device()), config, tuple(range(config.members)), seconds)


def stacked_members(config: RunConfig, models: Sequence[LoadedModel]) -> Members:
    """Return models as members, on the GPU if there is one."""
    return Members(stack(models).to(device()), config, tuple(range(len(models))))


def device() -> str:
    """Return the GPU if there is one."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def truths(task: Task, examples: Sequence[Example]) -> list[Any]:
    """Return the numbers of the answers."""
    return [exact_number("answer", number_of(task.read(example.answer)) or 0) for example in examples]


def figures(task: Task, examples: Sequence[Example], pools: Sequence[NumberDistribution]) -> Row:
    """Return the means over test rows of the error of medians, the CRPS, the coverage of the interval, and its width."""
    golds = truths(task, examples)
    ends = [one.interval(LEVEL) for one in pools]
    return {
        "rows": len(golds),
        "absolute_error": fmean(abs(float(one.median - gold)) for one, gold in zip(pools, golds, strict=True)),
        "crps": fmean(one.crps(gold) for one, gold in zip(pools, golds, strict=True)),
        "covers": fmean(low <= gold <= high for (low, high), gold in zip(ends, golds, strict=True)),
        "interval": fmean(float(high - low) for low, high in ends),
    }


def conformal_figures(
    task: Task,
    known: tuple[Sequence[Example], Sequence[NumberDistribution]],
    asked: Sequence[NumberDistribution],
    golds: list[Any],
) -> Row:
    """Return coverage and mean width of conformal intervals that are fitted on validation rows."""
    fit = conformal(known[1], truths(task, known[0]), LEVEL)
    ends = [fit.interval(one) for one in asked]
    covers = fmean(low <= gold <= high for (low, high), gold in zip(ends, golds, strict=True))
    return {"conformal_covers": covers, "conformal_interval": fmean(float(high - low) for low, high in ends)}


def about(table: str, config: RunConfig, label: str, members: int) -> Row:
    """Return what a line is about."""
    same = {"comparison": table, "model": config.model, "label": label, "seed": config.seed}
    return same | {name: getattr(config, name) for name in SETTINGS} | {"members": members}


def weights(table: str, config: RunConfig, folder: Path, *, rows: int = 1000, known: int = 500) -> list[Row]:
    """Return the figures of pools of the first members, with three ways to weigh them."""
    members = trained(config, folder)
    task = members.task
    asked = held_out(task, ("interpolate",), rows)["interpolate"]
    validation = validation_examples(task, known, config.seed)["interpolate"]
    test, before = members.answers(asked), members.answers(validation)
    found = []
    for size in sizes(config.members):
        fitted = fit_pool_weights([row[:size] for row in before], truths(task, validation))
        ways: dict[str, Callable[[list[NumberDistribution]], NumberDistribution]] = {"equal weights": pool}
        if size > 1:
            ways |= {"fitted weights": partial(pool, weights=fitted), "mean quantiles": partial(pool, average="quantiles")}
        for label, pooled in ways.items():
            own, ours = [pooled(row[:size]) for row in test], [pooled(row[:size]) for row in before]
            more = conformal_figures(task, (validation, ours), own, truths(task, asked))
            found.append(about(table, config, label, size) | figures(task, asked, own) | more)
    return found


def sizes(members: int) -> list[int]:
    """Return the sizes of pools: 1, 2, 4 and so on, and all."""
    return sorted({*(1 << k for k in range(members.bit_length()) if 1 << k <= members), members})


# Work through draws


Measure = Callable[[str, RunConfig, Path], list[Row]]


def work(measure: Measure, out: Path, todo: Sequence[tuple[str, RunConfig]], *, processes: int, minutes: float) -> list[str]:
    """Measure draws whose lines are not in the file, until the time is over; return a line for each that failed."""
    end, failures = time.monotonic() + 60 * minutes, []
    done = {(row["comparison"], int(row["seed"])) for row in read(out)}
    left = [(table, config) for table, config in todo if (table, config.seed) not in done]
    for table, seed, future in _executed(measure, left, processes, end):
        try:
            rows, seconds = future()
        except Exception as error:
            traceback.print_exception(error)
            failures.append(f"{table} draw {seed}: {error}")
            continue
        if rows:
            append(out, rows)
        print(f"{table} draw {seed}: {f'{seconds:.0f} s' if rows else 'not begun, out of time'}", flush=True)
    return failures


def _executed(
    measure: Measure, todo: Sequence[tuple[str, RunConfig]], processes: int, end: float
) -> Iterator[tuple[str, int, Callable[[], tuple[list[Row], float]]]]:
    """Yield table, draw and what returns the lines of each, as they are done."""
    if processes == 1:
        yield from ((table, config.seed, partial(_one, measure, table, config, end)) for table, config in todo)
        return
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as workers:
        running = {workers.submit(_one, measure, table, config, end): (table, config.seed) for table, config in todo}
        yield from ((*running[future], future.result) for future in as_completed(running))


def _one(measure: Measure, table: str, config: RunConfig, end: float) -> tuple[list[Row], float]:
    begin = time.monotonic()
    if begin > end:
        return [], 0.0
    torch.set_num_threads(1)
    return measure(table, config, Path("runs") / "members"), time.monotonic() - begin


def read(file: Path) -> list[dict[str, str]]:
    """Return the lines of a file; none if it is not there."""
    if not file.is_file():
        return []
    with file.open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


def append(file: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Add lines to a file, sorted by what they are about; floats have six digits."""
    every = [*read(file), *({name: f"{x:.6g}" if isinstance(x, float) else str(x) for name, x in row.items()} for row in rows)]
    every.sort(key=lambda row: (row["comparison"], row["model"], row["label"], int(row["seed"]), int(row.get("members") or 0)))
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_name(f".{file.name}.part")
    with part.open("w", encoding="utf-8", newline="") as lines:
        writer = csv.DictWriter(lines, list(dict.fromkeys(name for row in every for name in row)), lineterminator="\n")
        writer.writeheader()
        writer.writerows(every)
    part.replace(file)


def command(
    measure: Measure,
    name: str,
    description: str | None,
    arguments: list[str] | None,
    tables: Sequence[str],
    choose: Callable[..., list[tuple[str, RunConfig]]] = draws,
) -> None:
    """Run a command that measures draws of tables, or of what else there is to ``choose``."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", default=",".join(tables), help="default: %(default)s")
    parser.add_argument("--draws", type=int, default=8, help="default: %(default)s")
    parser.add_argument("--members", type=int, default=8, help="default: %(default)s")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=9.0, help="after which no draw is begun")
    parser.add_argument("--steps", type=int, help="instead of those of the schedule")
    parser.add_argument("--out", type=Path, default=HERE / "scores" / f"{name}_pools.csv")
    given = parser.parse_args(arguments)
    changes = {} if given.steps is None else {"steps": given.steps}
    todo = choose(given.tables.split(","), range(given.draws), given.members, **changes)
    if failures := work(measure, given.out, todo, processes=given.processes, minutes=given.minutes):
        sys.exit("\n".join([f"{len(failures)} draws failed:", *failures]))


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    given = sys.argv[1:] if arguments is None else arguments
    if given[:1] != ["weights"]:
        sys.exit(__doc__)
    command(weights, "weights", __doc__, given[1:], TABLES)


if __name__ == "__main__":
    main()
