"""One run: train a model and evaluate it. The configuration is taken apart here.

runs/name/
config.json  environment.json   settings, and versions and machine
curve.jsonl                     the learning curve; also tensorboard/ if requested
predictions.jsonl               one line per test example
checkpoints/                    to resume from, if requested or interrupted; deleted when the run is finished
trained.pt                      weights of a run that is trained and not evaluated yet; likewise
pictures/                       what a visual task has drawn, unless runs share it; deleted when the run is finished
model/                          the trained weights with a model card, if requested; the first member, with the others in members/
members/                        of a run with several: the learning curves of the others
result.json                     written last: a run without it is not finished
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from numerate.lab.data import Task
from numerate.lab.data.settings import make_task
from numerate.lab.files.interruption import Interruption
from numerate.lab.files.progress import Progress
from numerate.lab.files.records import RESULT, is_first_process, read_state
from numerate.lab.models.loading import LoadedModel, PromptEncoder
from numerate.lab.training.config import HEADS, RunConfig
from numerate.lab.training.finish import finish, read_trained, trained_file, write_trained
from numerate.lab.training.heads import with_head
from numerate.lab.training.members import as_pool, train_in_turn
from numerate.lab.training.prepare import (
    begin_run,
    check_run,
    find_pictures,
    load_run_model,
    member_checkpoints,
    run_encoder,
    run_examples,
    train,
)
from numerate.lab.training.stacked.train import checkpoint_file, places, stack_parts, stackable, train_as_one
from numerate.objective import NumericObjective


def run(
    config: RunConfig,
    folder: Path,
    *,
    task: Task | None = None,
    resume: bool = True,
    pictures: Path | None = None,
    interruption: Interruption | None = None,
    on_task: Callable[[Task], object] = lambda task: None,
    progress: Progress = lambda *_: None,
) -> dict[str, Any]:
    """Train and evaluate; return the content of ``result.json``. ``resume`` continues from the last checkpoint, if any.

    ``task`` is that of the configuration, if it is made already. ``pictures`` is a folder in which several runs keep what they
    draw (:mod:`numerate.lab.data.picture_store`). With ``interruption``, a run that a signal ends keeps what it has trained.
    ``on_task`` is called with the task once all is checked.

    If several processes are launched (``accelerate launch``), all of them train. Only the first writes, evaluates and returns
    the result; the others return an empty dict.
    """
    task = make_task(config) if task is None else task
    encoder = run_encoder(config, task)
    objective = check_run(config, task, encoder)
    begin_run(config, folder)
    on_task(task)
    find_pictures([config], task, encoder, folder, pictures, progress)
    how: dict[str, Any] = {"resume": resume, "interruption": interruption, "progress": progress}
    if config.members > 1:
        loaded, cost = _members(config, task, encoder, objective, folder, **how)
        if interruption is not None:
            interruption.check()
        return finish(config, task, loaded, cost, folder, progress=progress)
    loaded = load_run_model(config, encoder)
    if config.loss in HEADS:
        loaded = with_head(loaded, config.loss, task, run_examples(config, task), config.seed, **config.loss_settings)
    file = trained_file(config, folder)
    cost = read_trained(loaded, file) if resume and file.is_file() else train(config, task, loaded, objective, folder, **how)
    if not is_first_process():
        return {}
    try:
        if interruption is not None:
            interruption.check()
        return finish(config, task, loaded, cost, folder, progress=progress)
    except KeyboardInterrupt:
        if interruption is not None and not (folder / RESULT).is_file():
            write_trained(loaded, cost, file)
        raise


def last_step(config: RunConfig, folder: Path) -> tuple[int, int]:
    """Return the step of the last checkpoint of a run, 0 if there is none, and its steps, as its progress counts them."""
    if config.members == 1 or not stackable(config):
        from numerate.lab.training.trainer import last_saved_step

        trained = [config.members > 1 and trained_file(config, folder, member).is_file() for member in range(config.members)]
        saved = 0 if all(trained) else last_saved_step(member_checkpoints(config, folder, sum(trained)))
        return sum(trained) * config.steps + saved, config.members * config.steps
    parts = stack_parts(places([config], [None], [folder]))
    left = [part for part in parts if not all(place.file.is_file() for place in part)]
    done = (len(parts) - len(left)) * config.steps
    if left and (file := checkpoint_file(left[0])).is_file():
        done += read_state(file)["step"]
    return done, len(parts) * config.steps


def _members(
    config: RunConfig, task: Task, encoder: PromptEncoder, objective: NumericObjective | None, folder: Path, **how: Any
) -> tuple[LoadedModel, dict[str, Any]]:
    """Return the trained model of a run with its pool, and the cost."""
    if stackable(config):
        trained = train_as_one(task, encoder, places([config], [objective], [folder]), **how)
        loaded, cost = as_pool(trained.models, trained.costs)
    else:
        loaded, cost = train_in_turn(config, task, encoder, objective, folder, **how)
    if torch.cuda.is_available() and loaded.model.device.type == "cpu":
        loaded.to("cuda")
    return loaded, cost
