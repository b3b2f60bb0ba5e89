"""The members of a run: trained one after the other where they cannot be stacked, read again, and together a pool."""

from __future__ import annotations

import copy
import gc
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from numerate.lab.data import Task
from numerate.lab.files.interruption import Interruption
from numerate.lab.files.progress import Progress
from numerate.lab.models.loading import LoadedModel, ModelPool, PromptEncoder, fresh_adapter
from numerate.lab.models.names import member_name
from numerate.lab.training.config import RunConfig
from numerate.lab.training.finish import read_trained, trained_file, write_trained
from numerate.lab.training.prepare import load_run_model, member_checkpoints, train
from numerate.objective import NumericObjective

Cost = dict[str, Any]


def train_in_turn(
    config: RunConfig,
    task: Task,
    encoder: PromptEncoder,
    objective: NumericObjective | None,
    folder: Path,
    *,
    resume: bool = True,
    interruption: Interruption | None = None,
    progress: Progress = lambda *_: None,
) -> tuple[LoadedModel, Cost]:
    """Train the members of a run one after the other; return the model with its pool, and the cost of all.

    Adapters are trained on one set of frozen weights. A member that is trained is kept in the folder; with ``resume``, the
    others are trained from where the training was interrupted.
    """
    if not resume:
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    base = None if config.adapter == "none" else load_run_model(config, encoder)
    for member in range(config.members):
        file = trained_file(config, folder, member)
        if file.is_file():
            continue
        if base is None:
            loaded = load_run_model(config, encoder, config.member_seed(member))
        elif member:
            loaded = base = fresh_adapter(base, config.rank, config.member_seed(member))
        else:
            loaded = base

        def report(stage: str, done: int, total: int, figures: dict[str, float], member: int = member) -> None:
            progress(stage, member * total + done, config.members * total, figures)

        how: dict[str, Any] = {"resume": resume, "interruption": interruption, "progress": report}
        cost = train(config, task, loaded, objective, folder, member=member, **how)
        write_trained(loaded, cost, file)
        shutil.rmtree(member_checkpoints(config, folder, member), ignore_errors=True)
        del loaded
        gc.collect()  # the Trainer has circles, which would keep the model on the GPU
        if interruption is not None and member < config.members - 1:
            interruption.check()
    return read_members(config, encoder, folder, base)


def read_members(
    config: RunConfig, encoder: PromptEncoder, folder: Path, loaded: LoadedModel | None = None
) -> tuple[LoadedModel, Cost]:
    """Return the trained members that are kept in the folder of a run, as one model with its pool, and the cost of all.

    ``loaded`` is the model that the run begins with, if it is loaded already; its adapter becomes that of the first member.
    """
    loaded = load_run_model(config, encoder) if loaded is None else loaded
    files = [trained_file(config, folder, member) for member in range(config.members)]
    if config.adapter == "none" or config.members == 1:
        models = [loaded, *(replace(loaded, model=copy.deepcopy(loaded.model)) for _ in files[1:])]
        return as_pool(models, [read_trained(own, file) for own, file in zip(models, files, strict=True)])
    model: Any = loaded.model
    names = tuple(map(member_name, range(config.members)))
    costs = []
    for name, file in zip(names, files, strict=True):
        if name not in model.peft_config:
            model.add_adapter(name, model.peft_config[names[0]])
        model.set_adapter(name)
        costs.append(read_trained(loaded, file, adapter=name))
    model.set_adapter(names[0])
    loaded.pool = ModelPool((model,), names)
    return loaded, cost_of_all(costs)


def as_pool(members: Sequence[LoadedModel], costs: Sequence[Cost]) -> tuple[LoadedModel, Cost]:
    """Return members that are models of their own as one, the first with the pool of all, and the cost of all."""
    if len(members) == 1:
        return members[0], costs[0]
    members[0].pool = ModelPool(tuple(member.model for member in members))
    return members[0], cost_of_all(costs)


def cost_of_all(costs: Sequence[Cost]) -> Cost:
    """Return the cost of a run with members: the seconds of all of them, and the parameters of one.

    Examples:
        >>> cost_of_all([{"train_seconds": 3.0, "tokens_per_second": 10.0}, {"train_seconds": 1.0, "tokens_per_second": 30.0}])
        {'train_seconds': 4.0, 'tokens_per_second': 15.0, 'members': 2}
    """
    seconds = sum(cost["train_seconds"] for cost in costs)
    tokens = sum(cost["train_seconds"] * cost["tokens_per_second"] for cost in costs)
    peaks = {"peak_mib": max((cost["peak_mib"] for cost in costs if cost.get("peak_mib")), default=None)}
    peaks = {name: value for name, value in peaks.items() if name in costs[0]}
    return {
        **costs[0],
        "train_seconds": seconds,
        "tokens_per_second": tokens / seconds if seconds else costs[0]["tokens_per_second"],
        **peaks,
        "members": len(costs),
    }
