"""Train runs, and the members of a run, as one stack: which can be, and which are together."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from numerate.lab.data import Task
from numerate.lab.files.interruption import Interruption
from numerate.lab.files.progress import Progress
from numerate.lab.models.encoding import SharedData
from numerate.lab.models.loading import LoadedModel, PromptEncoder
from numerate.lab.models.names import BUILT, member_folder
from numerate.lab.training.config import HEADS, RunConfig
from numerate.lab.training.finish import read_trained, trained_file, write_trained
from numerate.lab.training.prepare import load_run_model, run_data, training_arguments, validation
from numerate.lab.training.stacked.fit import fit, loader_workers
from numerate.lab.training.stacked.model import stack, unstack
from numerate.lab.training.stacked.objective import StackedObjective
from numerate.objective import NumericObjective

OWN = frozenset({"loss", "loss_settings", "weight", "normalize", "scale", "soft", "label", "seed", "learning_rate", "members"})
"""Settings in which the runs of a stack may differ."""

_OBJECTIVE = ("loss", "loss_settings", "normalize", "scale")
_MOST, _MOST_ON_CPU = 128, 16  # models of a stack


def most_stacked() -> int:
    """Return the most models that are trained as one on this machine."""
    return _MOST if torch.cuda.is_available() else _MOST_ON_CPU


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
    """Return the runs in stacks of up to ``most`` models that differ only in the settings ``OWN``.

    Runs with one loss are neighbours. A run with more members than ``most`` is alone.
    """
    by_settings: dict[str, list[RunConfig]] = {}
    for config in configs:
        by_settings.setdefault(json.dumps(config.model_dump(mode="json", exclude=set(OWN)), sort_keys=True), []).append(config)
    found = []
    for group in by_settings.values():
        group.sort(key=kind)
        together = max(1, most // max(config.members for config in group))
        parts = -(-len(group) // together)  # of about equal size
        found += [group[len(group) * k // parts : len(group) * (k + 1) // parts] for k in range(parts)]
    return found


def kind(config: RunConfig) -> str:
    """Return what the objective of a run depends on, but for its weight."""
    soft = None if config.soft is None else config.soft.path
    return json.dumps([config.model_dump(mode="json", include=set(_OBJECTIVE)), soft], sort_keys=True)


@dataclass(frozen=True)
class Place:
    """A place in a stack: a member of a run, which has this folder."""

    config: RunConfig
    objective: NumericObjective | None
    folder: Path
    member: int = 0

    @property
    def file(self) -> Path:
        """Where the trained member is kept until its run is finished."""
        return trained_file(self.config, self.folder, self.member)


@dataclass(frozen=True)
class Stack:
    """Models that were trained as one, of each place; ``whole`` has all of them."""

    whole: LoadedModel
    models: list[LoadedModel]
    costs: list[dict[str, Any]]


def places(configs: Sequence[RunConfig], objectives: Sequence[NumericObjective | None], folders: Sequence[Path]) -> list[Place]:
    """Return the places of all members of these runs, in order."""
    runs = zip(configs, objectives, folders, strict=True)
    return [Place(*run, member) for run in runs for member in range(run[0].members)]


def stack_parts(members: Sequence[Place]) -> list[Sequence[Place]]:
    """Return the members in stacks of up to :func:`most_stacked`, of about equal size."""
    parts = -(-len(members) // most_stacked())
    return [members[len(members) * part // parts : len(members) * (part + 1) // parts] for part in range(parts)]


def train_as_one(
    task: Task,
    encoder: PromptEncoder,
    members: Sequence[Place],
    *,
    resume: bool = True,
    interruption: Interruption | None = None,
    progress: Progress = lambda *_: None,
) -> Stack:
    """Train members as a stack, or one after the other in stacks of :func:`most_stacked`.

    The members of a run with several are kept in its folder when they are trained, and a stack is saved when a signal interrupts
    it; with ``resume``, an interrupted training goes on there.
    """
    if not resume:
        for folder in {place.folder for place in members}:
            shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    parts, models, costs = stack_parts(members), list[LoadedModel](), list[dict[str, Any]]()
    whole: LoadedModel | None = None  # of one part
    for part, own in enumerate(parts):

        def report(stage: str, done: int, total: int, figures: dict[str, float], part: int = part) -> None:
            progress(stage, part * total + done, len(parts) * total, figures)

        if all(place.config.members > 1 and place.file.is_file() for place in own):
            trained = [load_run_model(place.config, encoder) for place in own]
            costs += [read_trained(loaded, place.file) for loaded, place in zip(trained, own, strict=True)]
        else:
            whole, trained, paid = _train(task, encoder, own, interruption, report)
            costs += paid
            for place, loaded, cost in zip(own, trained, paid, strict=True):
                if place.config.members > 1:
                    write_trained(loaded, cost, place.file)
            if interruption is not None and part < len(parts) - 1:
                interruption.check()
        models += trained
    if whole is None or len(parts) > 1:
        whole = stack(models).to("cuda" if torch.cuda.is_available() else "cpu")
    return Stack(whole, models, costs)


def checkpoint_file(members: Sequence[Place]) -> Path:
    """Return where a stack is saved while it is trained."""
    names = (place.config.hash + (f"/{place.member}" if place.config.members > 1 else "") for place in members)
    name = hashlib.blake2b("".join(names).encode(), digest_size=8).hexdigest()
    return members[0].folder / "checkpoints" / f"{name}.pt"


def _train(
    task: Task, encoder: PromptEncoder, members: Sequence[Place], interruption: Interruption | None, progress: Progress
) -> tuple[LoadedModel, list[LoadedModel], list[dict[str, Any]]]:
    """Return the stack, its models and their costs."""
    configs = [place.config for place in members]
    single = [load_run_model(place.config, encoder, place.config.member_seed(place.member)) for place in members]
    stacked, shared = stack(single), SharedData()
    pairs = zip(members, single, strict=True)
    data = [run_data(place.config, task, loaded, shared, member=place.member) for place, loaded in pairs]
    for tries in shared.tries.values() if loader_workers() else ():
        tries.make_expected(os.cpu_count() or 1)
    own = [member_folder(place.folder, place.member) for place in members]
    for folder in own:
        folder.mkdir(parents=True, exist_ok=True)
    saved = configs[0].save_every is not None or interruption is not None
    with nullcontext() if interruption is None else interruption.finishing_steps():
        costs = fit(
            stacked,
            [rows for rows, _ in data],
            StackedObjective([place.objective for place in members], [*map(kind, configs)]),
            training_arguments(configs[0], bf16=configs[0].bf16),
            [float(config.learning_rate or 0) for config in configs],
            [folder / "curve.jsonl" for folder in own],
            checkpoint=checkpoint_file(members) if saved else None,
            validation=validation(configs, task, stacked, stacked=True),
            interruption=interruption,
            progress=progress,
        )
    models = [unstack(stacked, index, into) for index, into in enumerate(single)]
    return stacked, models, [cost | {"examples_too_long": long} for cost, (_, long) in zip(costs, data, strict=True)]
