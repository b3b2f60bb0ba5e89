"""Runs as one stack: each has the files that :func:`numerate.lab.training.run.run` writes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

from numerate.lab.data import Task
from numerate.lab.data.picture_store import PICTURES
from numerate.lab.data.settings import make_task, tested
from numerate.lab.evaluation.derailing import label_digits
from numerate.lab.evaluation.evaluate import Evaluation, evaluate_all
from numerate.lab.evaluation.missing import middle_label
from numerate.lab.evaluation.pooled import AllAtOnce
from numerate.lab.files.progress import Progress
from numerate.lab.models.loading import LoadedModel
from numerate.lab.training.config import RunConfig
from numerate.lab.training.finish import end_run, finish, trained_file, write_trained
from numerate.lab.training.members import Cost, as_pool, read_members
from numerate.lab.training.prepare import begin_run, check_run, find_pictures, run_encoder, run_examples
from numerate.lab.training.stacked.model import stack
from numerate.lab.training.stacked.train import Stack, places, train_as_one


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
    ``pictures`` is a folder in which other runs keep what they draw too. The members of all runs are in the stack.
    """
    task, trained, runs = _train(configs, folders, pictures, progress)
    begin = time.perf_counter()
    examples = [run_examples(config, task) for config in configs]
    labels = [(label_digits(task, own), middle_label(task, own)) for own in examples]
    evaluations = [
        Evaluation(tested(config, task), config.seed, folder, *own)
        for config, folder, own in zip(configs, folders, labels, strict=True)
    ]
    options: dict[str, Any] = {**configs[0].answering, "bf16": configs[0].bf16}
    firsts = trained.whole
    if len(trained.models) > len(runs):
        firsts = stack([loaded for loaded, _ in runs]).to(trained.whole.model.device)
        options["members"] = AllAtOnce(trained.whole, [config.members for config in configs])
    records = evaluate_all(firsts, task, evaluations, stacked=True, progress=progress, **options)
    seconds = (time.perf_counter() - begin) / len(configs)
    return [
        end_run(config, task, loaded, own, facts, cost | {"eval_seconds": seconds}, folder)
        for config, (loaded, cost), own, facts, folder in zip(configs, runs, records, labels, folders, strict=True)
    ]


def train_stack(
    configs: Sequence[RunConfig],
    folders: Sequence[Path],
    *,
    pictures: Path | None = None,
    progress: Progress = lambda *_: None,
) -> None:
    """Train runs as one, and write the weights of each to its folder, for :func:`finish_run`."""
    _, _, runs = _train(configs, folders, pictures, progress)
    for config, (loaded, cost), folder in zip(configs, runs, folders, strict=True):
        if config.members == 1:
            write_trained(loaded, cost, trained_file(config, folder))


def finish_run(config: RunConfig, folder: Path, *, pictures: Path | None = None) -> dict[str, Any]:
    """Evaluate a run that :func:`train_stack` trained; return the content of its ``result.json``."""
    task = make_task(config)
    encoder = run_encoder(config, task)
    encoder.keep_pictures(folder / PICTURES if pictures is None else pictures)
    loaded, cost = read_members(config, encoder, folder)
    return finish(config, task, loaded, cost, folder)


def _train(
    configs: Sequence[RunConfig], folders: Sequence[Path], pictures: Path | None, progress: Progress
) -> tuple[Task, Stack, list[tuple[LoadedModel, Cost]]]:
    """Return the task, the stack, and of each run the model with its pool, and the cost."""
    first = configs[0]
    task = make_task(first)
    encoder = run_encoder(first, task)
    objectives = [check_run(config, task, encoder) for config in configs]
    for config, folder in zip(configs, folders, strict=True):
        begin_run(config, folder)
    find_pictures(configs, task, encoder, folders[0], pictures, progress)
    trained = train_as_one(task, encoder, places(configs, objectives, folders), progress=progress)
    ends = [*accumulate((config.members for config in configs), initial=0)]
    parts = [slice(*pair) for pair in pairwise(ends)]
    return task, trained, [as_pool(trained.models[part], trained.costs[part]) for part in parts]
