"""Runs as one stack: each has the files that :func:`numerate.lab.training.run.run` writes."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numerate.lab.data import Task
from numerate.lab.data.picture_store import PICTURES
from numerate.lab.data.settings import make_task, tested
from numerate.lab.evaluation.derailing import label_digits
from numerate.lab.evaluation.evaluate import Evaluation, evaluate_all
from numerate.lab.evaluation.missing import middle_label
from numerate.lab.files.progress import Progress
from numerate.lab.models.encoding import SharedData
from numerate.lab.models.loading import LoadedModel
from numerate.lab.models.names import BUILT
from numerate.lab.training.config import HEADS, RunConfig
from numerate.lab.training.finish import end_run, finish, read_trained, write_trained
from numerate.lab.training.prepare import (
    begin_run,
    check_run,
    find_pictures,
    load_run_model,
    run_data,
    run_encoder,
    run_examples,
    training_arguments,
    validation,
)
from numerate.lab.training.stacked.fit import fit, loader_workers
from numerate.lab.training.stacked.model import stack, unstack
from numerate.lab.training.stacked.objective import StackedObjective

OWN = frozenset({"loss", "loss_settings", "weight", "normalize", "scale", "soft", "label", "seed", "learning_rate"})
"""Settings in which the runs of a stack may differ."""

_OBJECTIVE = ("loss", "loss_settings", "normalize", "scale")


def stackable(config: RunConfig) -> bool:
    """Return whether a run can be part of a stack."""
    weighted = config.term_numbers != "all" or config.number_weight != 1
    return (
        config.model in BUILT
        and config.adapter == "none"
        and not config.tensorboard
        and not weighted
        and config.loss not in HEADS
    )


def stacks(configs: Sequence[RunConfig], most: int) -> list[list[RunConfig]]:
    """Return the runs in stacks of up to ``most`` that differ only in the settings ``OWN``; runs with one loss are neighbours."""
    by_settings: dict[str, list[RunConfig]] = {}
    for config in configs:
        by_settings.setdefault(json.dumps(config.model_dump(mode="json", exclude=set(OWN)), sort_keys=True), []).append(config)
    found = []
    for group in by_settings.values():
        group.sort(key=_kind)
        parts = -(-len(group) // most)  # of about equal size
        found += [group[len(group) * k // parts : len(group) * (k + 1) // parts] for k in range(parts)]
    return found


def _kind(config: RunConfig) -> str:
    """Return what the objective of a run depends on, but for its weight."""
    soft = None if config.soft is None else config.soft.path
    return json.dumps([config.model_dump(mode="json", include=set(_OBJECTIVE)), soft], sort_keys=True)


def run_stack(
    configs: Sequence[RunConfig],
    folders: Sequence[Path],
    *,
    pictures: Path | None = None,
    progress: Progress = lambda *_: None,
) -> list[dict[str, Any]]:
    """Train and evaluate runs as one, one of :func:`stacks`; return the content of their ``result.json``.

    Batches, objectives, steps and answers are those of one run at a time, up to rounding; ``samples`` are other draws. Times are
    each run's share. With ``save_every``, an interrupted stack continues where it was saved, if its runs are the same.
    ``pictures`` is a folder in which other runs keep what they draw too.
    """
    trained = _train(configs, folders, pictures, progress)
    begin = time.perf_counter()
    examples = [run_examples(config, trained.task) for config in configs]
    labels = [(label_digits(trained.task, own), middle_label(trained.task, own)) for own in examples]
    evaluations = [
        Evaluation(tested(config, trained.task), config.seed, folder, *own)
        for config, folder, own in zip(configs, folders, labels, strict=True)
    ]
    options = {**configs[0].answering, "bf16": configs[0].bf16}
    records = evaluate_all(trained.stacked, trained.task, evaluations, stacked=True, progress=progress, **options)
    seconds = (time.perf_counter() - begin) / len(configs)
    results = []
    for index, (config, folder) in enumerate(zip(configs, folders, strict=True)):
        loaded = unstack(trained.stacked, index, trained.single[index])
        cost = trained.costs[index] | {"eval_seconds": seconds}
        results.append(end_run(config, trained.task, loaded, records[index], labels[index], cost, folder))
    return results


def train_stack(
    configs: Sequence[RunConfig],
    folders: Sequence[Path],
    *,
    pictures: Path | None = None,
    progress: Progress = lambda *_: None,
) -> None:
    """Train runs as one, and write the weights of each to its folder, for :func:`finish_run`."""
    trained = _train(configs, folders, pictures, progress)
    for index, folder in enumerate(folders):
        loaded = unstack(trained.stacked, index, trained.single[index])
        write_trained(loaded, trained.costs[index], folder)


def finish_run(config: RunConfig, folder: Path, *, pictures: Path | None = None) -> dict[str, Any]:
    """Evaluate a run that :func:`train_stack` trained; return the content of its ``result.json``."""
    task = make_task(config)
    encoder = run_encoder(config, task)
    encoder.keep_pictures(folder / PICTURES if pictures is None else pictures)
    loaded = load_run_model(config, encoder)
    return finish(config, task, loaded, read_trained(loaded, folder), folder)


@dataclass(frozen=True)
class _Trained:
    task: Task
    stacked: LoadedModel
    single: list[LoadedModel]
    costs: list[dict[str, Any]]


def _train(configs: Sequence[RunConfig], folders: Sequence[Path], pictures: Path | None, progress: Progress) -> _Trained:
    first = configs[0]
    task = make_task(first)
    encoder = run_encoder(first, task)
    objectives = [check_run(config, task, encoder) for config in configs]
    for config, folder in zip(configs, folders, strict=True):
        begin_run(config, folder)
    find_pictures(configs, task, encoder, folders[0], pictures, progress)
    single = [load_run_model(config, encoder) for config in configs]
    stacked = stack(single)
    shared = SharedData()
    data = [run_data(config, task, loaded, shared) for config, loaded in zip(configs, single, strict=True)]
    for tries in shared.tries.values() if loader_workers() else ():
        tries.make_expected(os.cpu_count() or 1)
    name = hashlib.blake2b("".join(config.hash for config in configs).encode(), digest_size=8).hexdigest()
    costs = fit(
        stacked,
        [rows for rows, _ in data],
        StackedObjective(objectives, [_kind(config) for config in configs]),
        training_arguments(first, bf16=first.bf16),
        [float(config.learning_rate or 0) for config in configs],
        [folder / "curve.jsonl" for folder in folders],
        checkpoint=None if first.save_every is None else folders[0] / "checkpoints" / f"{name}.pt",
        validation=validation(configs, task, stacked, stacked=True),
        progress=progress,
    )
    return _Trained(task, stacked, single, [cost | {"examples_too_long": own[1]} for cost, own in zip(costs, data, strict=True)])
