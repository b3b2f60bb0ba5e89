"""Train stacked models: the steps of the Hugging Face Trainer, for E runs at once.

Batches, learning rates, clipping of gradients and what is logged are those that :mod:`numerate.lab.training.trainer` has for each
run. The loss of the stack is the sum over runs, so that the gradient of each is its own.
"""

from __future__ import annotations

import copy
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from numerate.decode.rows import any_shape
from numerate.lab.files.interruption import Interruption
from numerate.lab.files.progress import Progress
from numerate.lab.files.records import cut_curve, jsonable, read_state, write_state
from numerate.lab.models.built import scaled
from numerate.lab.models.encoding import collate
from numerate.lab.models.loading import PIXELS, LoadedModel
from numerate.lab.training.stacked.objective import StackedObjective, StackedParts
from numerate.lab.training.validation import Validation
from numerate.targets.soft_targets import SOFT_FIELDS, SoftTargets

_NOT_FOR_MODEL = {"labels", "counts", "tokens", *SOFT_FIELDS}
_PICTURE_OF = "picture_of"  # field of a batch: which of its pictures each row has
_CURVE_STATE = ("steps", "sums", "counts", "tokens")

Rows = torch.utils.data.Dataset[dict[str, Any]]


class _Steps(torch.utils.data.Dataset[list[dict[str, Tensor]]]):
    """The micro-batches of each optimizer step, of all runs; each has the counts ``[3, E]`` of the whole step."""

    def __init__(
        self, data: Sequence[Rows], objective: StackedObjective, pad: int, arguments: dict[str, Any], begin: int
    ) -> None:
        self.data, self.objective, self.pad, self.begin = data, objective, pad, begin
        self.steps: int = arguments["max_steps"]
        self.batch_size: int = arguments["per_device_train_batch_size"]
        self.accumulation: int = arguments["gradient_accumulation_steps"]

    def __len__(self) -> int:
        return self.steps - self.begin

    def __getitem__(self, index: int) -> list[dict[str, Tensor]]:
        if index >= len(self):
            raise IndexError(index)
        first = (self.begin + index) * self.accumulation * self.batch_size
        none: dict[str, list[Any]] = {name: [] for name in SOFT_FIELDS}
        batches = []
        for start in range(first, first + self.accumulation * self.batch_size, self.batch_size):
            rows = [own[at] for own in self.data for at in range(start, start + self.batch_size)]
            if any(SOFT_FIELDS[0] in row for row in rows):
                rows = [row if SOFT_FIELDS[0] in row else row | none for row in rows]
            seen = _distinct_pictures(rows) if PIXELS in rows[0] else {}
            if seen:
                rows = [{name: value for name, value in row.items() if name not in seen} for row in rows]
            batches.append(collate(rows, pad=self.pad) | seen)
        counts = [self.objective.count(batch["labels"].unflatten(0, (len(self.data), -1))) for batch in batches]
        total = torch.stack(counts).sum(0)
        tokens = torch.stack([batch["attention_mask"].view(len(self.data), -1).sum(1) for batch in batches]).sum(0)
        return [batch | {"counts": total, "tokens": tokens} for batch in batches]


def _distinct_pictures(rows: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
    """Return each picture once, as bytes, and which one each row has: runs with one seed have the same ones."""
    pictures = {id(row[PIXELS]): row[PIXELS] for row in rows}
    places = {key: place for place, key in enumerate(pictures)}
    of_rows = torch.tensor([places[id(row[PIXELS])] for row in rows])
    return {PIXELS: torch.cat([*pictures.values()]), _PICTURE_OF: of_rows}


def loader_workers() -> int:
    """Return how many processes make the batches: none without a GPU, where they would take cores from the training."""
    return min(8, (os.cpu_count() or 1) // 2) if torch.cuda.is_available() else 0


def fit(
    stacked: LoadedModel,
    data: Sequence[Rows],
    objective: StackedObjective,
    arguments: dict[str, Any],
    rates: Sequence[float],
    curves: Sequence[Path],
    *,
    checkpoint: Path | None = None,
    validation: Validation | None = None,
    interruption: Interruption | None = None,
    progress: Progress = lambda *_: None,
) -> list[dict[str, Any]]:
    """Train the stack in place, and return the cost of each run.

    The arguments are those of :func:`numerate.lab.training.trainer.fit`, for each run: its rows, its learning rate, the file of
    its curve. ``checkpoint`` is the file to resume from, if it exists, and to write to every ``save_steps``.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model: Any = stacked.model.to(device).train()
    size, steps = len(data), int(arguments["max_steps"])
    counting = copy.deepcopy(objective)  # in workers, where there is no GPU
    objective = objective.to(device)
    stepper = Stepper(model, arguments, rates)
    optimizer, schedule = stepper.optimizer, stepper.schedule
    curve = _Curves(curves, size, arguments["logging_steps"], numeric=counting.numeric)
    done = _restore(checkpoint, model, optimizer, schedule, curve, validation)
    workers = loader_workers()
    loader = torch.utils.data.DataLoader(
        _Steps(data, counting, stacked.pad, arguments, done),
        batch_size=None,
        num_workers=workers,
        pin_memory=device.type == "cuda",
        multiprocessing_context="fork" if workers else None,  # the rows are made by closures, which cannot be sent
    )
    curve.begin(done)
    for step, batches in enumerate(loader, done + 1):
        for batch in batches:
            moved = {name: value.to(device, non_blocking=True) for name, value in batch.items()}
            if PIXELS in moved:
                moved["pixel_values"] = scaled(moved.pop(PIXELS))[moved.pop(_PICTURE_OF)]
            with torch.autocast(device.type, torch.bfloat16, enabled=arguments["bf16"]), any_shape():
                logits = model(**{name: value for name, value in moved.items() if name not in _NOT_FOR_MODEL}).logits
            soft = SoftTargets.from_batch(moved)
            parts = objective(logits, moved["labels"], moved["counts"], soft, with_overrun=curve.due(step))
            parts.loss.sum().backward()
            curve.add(parts, moved["counts"])
        norms, used_rates = stepper.step()
        if validation is not None and validation.due(step, steps):
            curve.write(step, validation.after(step))
        curve.end_step(step, batches[0]["tokens"], norms, used_rates)
        due = checkpoint is not None and step % arguments["save_steps"] == 0 and step < steps
        if checkpoint is not None and due:
            _save(checkpoint, step, model, optimizer, schedule, curve, validation)
        progress("train", step, steps, curve.latest)
        if interruption is not None and interruption.caught is not None and step < steps:
            if checkpoint is not None and not due:
                _save(checkpoint, step, model, optimizer, schedule, curve, validation)
            raise KeyboardInterrupt
    if validation is not None:
        validation.restore()
    seconds = time.perf_counter() - curve.began
    weights = sum(p.numel() for p in model.parameters()) // size
    cost = {"steps": steps, "train_seconds": seconds / size, "ms_per_step": None, "peak_mib": None, "stacked": size}
    cost |= {"parameters": weights, "trained_parameters": weights}
    return [cost | {"tokens_per_second": tokens * size / seconds} for tokens in curve.tokens.tolist()]


class Stepper:
    """Optimizer steps of a stack as the Trainer takes them: clipping, AdamW and a cosine schedule; each run has its own rate."""

    def __init__(self, model: Any, arguments: dict[str, Any], rates: Sequence[float]) -> None:
        from transformers import get_cosine_schedule_with_warmup

        groups = _decayed(model, arguments["weight_decay"])
        self.most: float = arguments["max_grad_norm"]
        self.parameters = [p for group in groups for p in group["params"]]
        self.factors = [own / arguments["learning_rate"] for own in rates]
        self.relative = torch.tensor(self.factors, device=self.parameters[0].device)
        self.optimizer = torch.optim.AdamW(groups, lr=arguments["learning_rate"], fused=True)
        self.schedule: Any = get_cosine_schedule_with_warmup(
            self.optimizer, arguments["warmup_steps"], int(arguments["max_steps"])
        )

    def step(self) -> tuple[Tensor, list[float]]:
        """Use up the gradients; return their norms before clipping, ``[E]``, and the learning rate of each run."""
        norms, rate = clip_each(self.parameters, self.most), self.schedule.get_last_lr()[0]
        other_rates = any(factor != 1 for factor in self.factors)
        before = [p.detach().clone() for p in self.parameters] if other_rates else []
        self.optimizer.step()
        for p, old in zip(self.parameters, before, strict=False):  # a step of AdamW is proportional to its learning rate
            p.data.copy_(torch.lerp(old, p.data, self.relative.view(-1, *[1] * (p.dim() - 1))))
        self.schedule.step()
        self.optimizer.zero_grad()
        return norms, [rate * factor for factor in self.factors]


def clip_each(parameters: Sequence[Tensor], most: float) -> Tensor:
    """Clip the gradients of each run to the norm ``most``, and return the norms ``[E]`` that they had."""
    grads = [p.grad for p in parameters if p.grad is not None]
    norms: Tensor = torch.stack([grad.flatten(1).norm(dim=1) for grad in grads]).norm(dim=0)
    factors = (most / (norms + 1e-6)).clamp_max(1.0)  # as torch.nn.utils.clip_grad_norm_
    for grad in grads:
        grad.mul_(factors.view(-1, *[1] * (grad.dim() - 1)))
    return norms


def _decayed(model: Any, weight_decay: float) -> list[dict[str, Any]]:
    """Return the parameters with and without weight decay, as the Trainer does: none for norms and biases."""
    from numerate.lab.training.stacked.layers import StackedNorm

    norms = {id(p) for module in model.modules() if isinstance(module, StackedNorm) for p in module.parameters()}
    plain = {id(p) for name, p in model.named_parameters() if name.endswith("bias")} | norms
    return [
        {"params": [p for p in model.parameters() if id(p) not in plain], "weight_decay": weight_decay},
        {"params": [p for p in model.parameters() if id(p) in plain], "weight_decay": 0.0},
    ]


class _Curves:
    """Figures of each run since the last point of its learning curve; kept on the device until a point is written."""

    def __init__(self, files: Sequence[Path], size: int, every: int, *, numeric: Sequence[bool]) -> None:
        self.files, self.size, self.every, self.numeric = files, size, every, numeric
        self.tokens = torch.zeros(size, dtype=torch.float64)
        self.latest: dict[str, float] = {}
        self.began = self.earlier = 0.0
        self._reset()

    def _reset(self) -> None:
        self.steps = 0
        self.sums: Tensor | None = None  # [6, E], as StackedParts
        self.counts: Tensor | None = None  # [3, E]

    def begin(self, done: int) -> None:
        """Keep the points up to the step ``done``; later ones are written again."""
        for file in self.files:
            self.earlier = cut_curve(file, done)
        self.began = time.perf_counter()

    def due(self, step: int) -> bool:
        """Return whether a point is written after this step."""
        return step == 1 or step % self.every == 0

    def add(self, parts: StackedParts, counts: Tensor) -> None:
        """Add a micro-batch."""
        sums = torch.stack([part.detach().double() for part in parts])
        self.sums = sums if self.sums is None else self.sums + sums
        self._step_counts = counts

    def end_step(self, step: int, tokens: Tensor, norms: Tensor, rates: Sequence[float]) -> None:
        """End an optimizer step, and write a point of each curve if one is due."""
        self.steps += 1
        self.tokens += tokens
        self.counts = self._step_counts if self.counts is None else self.counts + self._step_counts
        if not self.due(step):
            return
        assert self.sums is not None
        points = []
        columns = zip(self.sums.T.tolist(), self.counts.T.tolist(), norms.tolist(), rates, self.numeric, strict=True)
        for (loss, ce, term, mass, overrun, ends), (items, _, positions), norm, rate, numeric in columns:
            point = {"loss": loss / self.steps, "grad_norm": norm, "learning_rate": rate}
            if numeric:
                point |= {"loss/cross_entropy": ce / self.steps, "loss/numeric": term / self.steps}
                point |= {"numeric/share": positions / max(items, 1.0)} | (
                    {"numeric/mass": mass / positions} if positions else {}
                )
            points.append(point | ({"numeric/overrun": overrun / ends} if ends else {}))
        self.write(step, points)
        self.latest = {"loss": float(self.sums[0].mean()) / self.steps}
        self._reset()

    def write(self, step: int, points: Sequence[dict[str, float]]) -> None:
        """Write a point of each curve."""
        seconds = time.perf_counter() - self.began + self.earlier
        for file, point in zip(self.files, points, strict=True):
            with file.open("a", encoding="utf-8") as lines:
                lines.write(json.dumps(jsonable({"step": step, **point, "seconds": seconds})) + "\n")


def _save(
    file: Path, step: int, model: Any, optimizer: Any, schedule: Any, curve: _Curves, validation: Validation | None
) -> None:
    """Write the state after a step, whole or not at all."""
    state = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict(), "schedule": schedule.state_dict()}
    state["curve"] = {name: getattr(curve, name) for name in _CURVE_STATE}
    state |= {} if validation is None else {"validation": validation.state()}
    write_state(file, state)


def _restore(file: Path | None, model: Any, optimizer: Any, schedule: Any, curve: _Curves, validation: Validation | None) -> int:
    """Read the state that :func:`_save` wrote, if there is one, and return its step."""
    if file is None or not file.is_file():
        return 0
    state = read_state(file, next(model.parameters()).device)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    schedule.load_state_dict(state["schedule"])
    for name, value in state["curve"].items():
        setattr(curve, name, value)
    curve.tokens = curve.tokens.cpu()
    if validation is not None:
        validation.load(state["validation"])
    return int(state["step"])
