"""A comparison: losses x seeds x tasks x models. Each cell of the grid is a run.

    runs/name/
      experiment.json        what is compared, and the environment
      cells/<hash>/          one run, named by the hash of its settings (see numerate.lab.training.run)
      pictures/              what visual tasks have drawn, for all runs; may be deleted (see numerate.lab.data.picture_store)

A cell with a ``result.json`` is finished and is not run again; any other cell is run from the start. A process locks the cell
that it runs, so that several processes can share one folder. The system releases the lock when the process ends.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime, timezone
from itertools import count, groupby, islice
from operator import itemgetter
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from numerate.lab.comparison.plan import Experiment, cell_key
from numerate.lab.data.picture_store import PICTURES
from numerate.lab.data.settings import make_task
from numerate.lab.evaluation.evaluate import summarize
from numerate.lab.evaluation.missing import figure_text, gold_answers, with_fallback
from numerate.lab.files.environment import environment
from numerate.lab.files.progress import Progress
from numerate.lab.files.records import RESULT, locked, naming_full_disk, read_jsonl, write_json
from numerate.lab.models.loading import load_encoder
from numerate.lab.training.config import CROSS_ENTROPY, RunConfig, scaled
from numerate.lab.training.finish import is_trained
from numerate.lab.training.prepare import draw_ahead
from numerate.lab.training.run import run
from numerate.lab.training.stacked import OWN, finish_run, run_stack, train_stack
from numerate.lab.training.validation import chosen_figure

TUNING_SEED = 1000  # the first of all trials, or the next that is not a seed of the comparison


# Cells


def cell_folder(folder: Path, config: RunConfig) -> Path:
    """Return the folder of a cell."""
    return folder / "cells" / config.hash


def is_finished(folder: Path, config: RunConfig) -> bool:
    """Return whether a cell has a result."""
    return (cell_folder(folder, config) / RESULT).is_file()


def read_result(folder: Path, config: RunConfig) -> dict[str, Any]:
    """Return the content of the ``result.json`` of a finished cell."""
    found: dict[str, Any] = json.loads((cell_folder(folder, config) / RESULT).read_text(encoding="utf-8"))
    return found


def run_cells(
    configs: Sequence[RunConfig], folder: Path, *, wait: bool = True, progress: Progress = lambda *_: None
) -> list[RunConfig]:
    """Run cells unless they are finished: one, or several as one stack; return those whose lock another process holds.

    With ``wait``, locks are waited for. A stack that does not fit into memory is run in halves.
    """
    with locked_cells(configs, folder, wait=wait) as (mine, others):
        trained = [config for config in mine if is_trained(config, cell_folder(folder, config))]
        for config in trained:
            finish_run(config, cell_folder(folder, config), pictures=folder / PICTURES)
        _in_halves(run_stack, [config for config in mine if config not in trained], folder, progress)
    return others


def train_cells(configs: Sequence[RunConfig], folder: Path, *, progress: Progress = lambda *_: None) -> None:
    """Train cells as one stack, unless they are trained; :func:`run_cells` evaluates them. Locks are waited for."""
    with locked_cells(configs, folder, wait=True) as (mine, _):
        untrained = [config for config in mine if not is_trained(config, cell_folder(folder, config))]
        _in_halves(train_stack, untrained, folder, progress)


@contextmanager
def locked_cells(configs: Sequence[RunConfig], folder: Path, *, wait: bool) -> Iterator[tuple[list[RunConfig], list[RunConfig]]]:
    """Lock cells; yield those that are locked and not finished, and those that another process holds."""
    with naming_full_disk(folder), ExitStack() as locks:
        held: set[str] = set()
        for config in sorted(configs, key=lambda config: config.hash):  # in one order: no two processes wait for each other
            own = cell_folder(folder, config)
            own.mkdir(parents=True, exist_ok=True)
            if not locks.enter_context(locked(own, wait=wait)):
                held.add(config.hash)
                continue
            for part in own.glob(".*.part"):  # left by a process that was killed, on any machine
                shutil.rmtree(part) if part.is_dir() else part.unlink()
        free = [config for config in configs if config.hash not in held and not is_finished(folder, config)]
        yield free, [config for config in configs if config.hash in held]


def _in_halves(run_all: Callable[..., object], configs: Sequence[RunConfig], folder: Path, progress: Progress) -> None:
    """Run cells as one stack; in halves if it does not fit into memory."""
    folders = [cell_folder(folder, config) for config in configs]
    if len(configs) < 2 and run_all is run_stack:
        for config, own in zip(configs, folders, strict=True):
            run(config, own, pictures=folder / PICTURES, progress=progress)
        return
    if not configs:
        return
    try:
        run_all(configs, folders, pictures=folder / PICTURES, progress=progress)
        return
    except torch.OutOfMemoryError:
        if len(configs) < 2:
            raise
    # Not above, where the error would still hold the tensors of the whole stack.
    torch.cuda.empty_cache()
    half = len(configs) // 2
    _in_halves(run_all, configs[:half], folder, progress)
    _in_halves(run_all, configs[half:], folder, progress)


def draw_pictures(configs: Sequence[RunConfig], folder: Path, progress: Progress) -> None:
    """Draw the pictures that cells need, and that are not kept yet, on all cores."""
    groups: dict[str, dict[str, RunConfig]] = {}
    for config in configs:
        task = config.model_dump(mode="json", include={"model", "task", "task_settings", "data", "skip_bad"})
        same_pictures = config.model_dump(mode="json", exclude=set(OWN - {"seed"}))
        groups.setdefault(json.dumps(task), {})[json.dumps(same_pictures)] = config
    for group in groups.values():
        first, *_ = cells = list(group.values())
        try:
            encoder = load_encoder(first.model, trust_remote_code=first.trust_remote_code)
            if not encoder.sees:
                continue
            encoder.keep_pictures(folder / PICTURES)
            draw_ahead(cells, make_task(first), encoder, progress)
        except Exception:  # what fails here fails in the cells that need it, which report it
            continue


def write_plan(experiment: Experiment, cells: Sequence[RunConfig], folder: Path, note: str = "") -> None:
    """Write ``experiment.json``, with a ``note`` for the report. Existing cells are kept."""
    machine = environment()
    description = {
        "name": experiment.name,
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "baseline": experiment.baseline,
        "config": experiment.model_dump(mode="json"),
        "command": machine.pop("command"),
        "environment": machine,
        "cells": [cell.hash for cell in cells],
    }
    write_json(folder / "experiment.json", description | ({"note": note} if note else {}))


def read_headline(folder: Path, config: RunConfig) -> tuple[str, str, float]:
    """Return the headline metric of a finished cell, its value on the first split, and the seconds that the run took."""
    mine = cell_folder(folder, config)
    result = read_result(folder, config)
    name, records = result["headline"], read_jsonl(mine / "predictions.jsonl")
    split, figures = next(iter(summarize(records).items()))
    shown = figure_text(name, figures[name], gold_answers(records, split))
    cost = result.get("cost", {})
    return name, shown, sum(cost.get(f"{part}_seconds", 0.0) for part in ("train", "eval"))


# Tuning


def tuning_trials(experiment: Experiment, budget: int, seeds: int = 1) -> dict[str, list[RunConfig]]:
    """Return the runs of ``budget`` trials per loss: of learning rates, weights of numeric losses, and widths of soft labels.

    Each trial changes the settings by factors, and is run with as many seeds as said, with one member. All losses get the same
    number of trials, whatever there is to tune.
    """
    others = list(islice((seed for seed in count(TUNING_SEED) if seed not in experiment.seeds), seeds))
    trials: dict[str, list[RunConfig]] = {}
    for cell in experiment.of_one_seed():
        assert cell.learning_rate is not None  # RunConfig sets it
        mine = trials[cell_key(cell)] = []
        for rate, weight, width in _factors(cell)[:budget]:
            tried = {"learning_rate": scaled(cell.learning_rate, rate), "weight": scaled(cell.weight, weight)}
            soft = None if cell.soft is None else cell.soft.times(width)
            every = cell.validate_every if cell.keep_best else None  # a curve alone chooses nothing
            fixed = {"validation": True, "decide": (), "validate_every": every, "members": 1}
            mine += [cell.model_copy(update={**tried, "soft": soft, **fixed, "seed": seed}) for seed in others]
    return trials


def _factors(cell: RunConfig) -> list[tuple[float, float, float]]:
    """Return factors of learning rate, weight and width for up to nine trials, the most useful first."""
    weighted, widened = cell.loss != CROSS_ENTROPY, cell.soft is not None and bool(cell.soft.spread)
    if weighted and widened:
        order = [(1, 1, 1), (0.5, 1, 1), (1, 0.3, 1), (1, 1, 0.4), (1, 1, 2), (1, 3, 1), (2, 1, 1), (1, 1, 0.2), (1, 1, 4)]
    elif weighted:
        pairs = [(1, 1), (0.5, 1), (1, 0.3), (1, 3), (2, 1), (0.5, 0.3), (0.5, 3), (2, 0.3), (2, 3)]
        order = [(rate, weight, 1) for rate, weight in pairs]
    elif widened:
        pairs = [(1, 1), (0.5, 1), (1, 0.4), (1, 2), (2, 1), (1, 0.2), (1, 4), (0.5, 2), (0.5, 0.4)]
        order = [(rate, 1, width) for rate, width in pairs]
    else:
        order = [(rate, 1, 1) for rate in (1, 0.5, 2, 0.25, 4, 0.7, 1.4, 0.35, 2.8)]
    return [(float(rate), float(weight), float(width)) for rate, weight, width in order]


def tuned_cells(experiment: Experiment, folder: Path, trials: Mapping[str, Sequence[RunConfig]]) -> list[RunConfig]:
    """Return the experiment's cells with the learning rate, weight and width of their loss that are best on validation examples.

    The score of a trial is the mean over its seeds.
    """
    chosen = {key: _best_settings(folder, mine) for key, mine in trials.items()}
    return [cell.model_copy(update=chosen[cell_key(cell)]) for cell in experiment.cells()]


def _best_settings(folder: Path, trials: Sequence[RunConfig]) -> dict[str, Any]:
    groups = groupby(trials, _tuned_settings)  # the seeds of a trial follow each other
    tried = [(fmean(validation_score(folder, run) for run in runs), settings) for settings, runs in groups]
    return max(tried, key=itemgetter(0))[1]


def _tuned_settings(trial: RunConfig) -> dict[str, Any]:
    return {name: getattr(trial, name) for name in ("learning_rate", "weight", "soft")}


def validation_score(folder: Path, config: RunConfig) -> float:
    """Return the figure of a finished trial by which the best is chosen: larger is better."""
    mine = cell_folder(folder, config)
    records = read_jsonl(mine / "predictions.jsonl")
    headline = read_result(folder, config)["headline"]
    return chosen_figure(headline, config.choose_by, [with_fallback(record, record["measures"]) for record in records])
