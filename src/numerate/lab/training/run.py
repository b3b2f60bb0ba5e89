"""One run: train a model and evaluate it. The configuration is taken apart here.

runs/name/
config.json  environment.json   settings, and versions and machine
curve.jsonl                     the learning curve; also tensorboard/ if requested
predictions.jsonl               one line per test example
checkpoints/                    to resume from, if requested or interrupted; deleted when the run is finished
trained.pt                      weights of a run that is trained and not evaluated yet; likewise
pictures/                       what a visual task has drawn, unless runs share it; deleted when the run is finished
model/                          the trained weights with a model card, if requested
result.json                     written last: a run without it is not finished
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from numerate.lab.data import Task
from numerate.lab.data.settings import make_task
from numerate.lab.files.interruption import Interruption
from numerate.lab.files.progress import Progress
from numerate.lab.files.records import RESULT, TRAINED, is_first_process
from numerate.lab.training.config import HEADS, RunConfig
from numerate.lab.training.finish import finish, read_trained, write_trained
from numerate.lab.training.heads import with_head
from numerate.lab.training.prepare import begin_run, check_run, find_pictures, load_run_model, run_encoder, run_examples, train


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
    loaded = load_run_model(config, encoder)
    if config.loss in HEADS:
        loaded = with_head(loaded, config.loss, task, run_examples(config, task), config.seed, **config.loss_settings)
    if resume and (folder / TRAINED).is_file():
        cost = read_trained(loaded, folder)
    else:
        cost = train(config, task, loaded, objective, folder, resume=resume, interruption=interruption, progress=progress)
    if not is_first_process():
        return {}
    try:
        if interruption is not None:
            interruption.check()
        return finish(config, task, loaded, cost, folder, progress=progress)
    except KeyboardInterrupt:
        if interruption is not None and not (folder / RESULT).is_file():
            write_trained(loaded, cost, folder)
        raise
