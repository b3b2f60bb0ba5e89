"""Train a step of an architecture with an objective attached, and compare the gradient with one computed by hand."""

from __future__ import annotations

import contextlib
import functools
import itertools
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch
import torch.nn.functional as F
from tests.integrations.trainers.architectures import ATTEMPTS, VOCAB, Architecture, Attempt, batches, build, tokenizer, where
from tests.integrations.trainers.cases import Collect, Watched, arguments, gradients
from tests.integrations.trainers.soft import parts_of
from torch import Tensor, nn
from transformers import Trainer

from numerate import NumericObjective, SMMDLoss
from numerate.integrations.transformers import attach
from numerate.targets import Bell
from numerate.targets.soft_targets import SOFT_FIELDS

Batch = dict[str, Tensor]
WEIGHTS = (0.0, 0.3)
TARGET = Bell(relative=0.3)
TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-3}


@dataclass
class Verdict:
    """The result for one architecture."""

    architecture: str
    status: str  # exact, differs, refused, fails, nothing to compare, not built
    detail: str = ""
    inputs: str = ""  # text, image, sound
    labels: str = ""  # shifted, aligned
    path: str = ""  # fused, logits
    extra: bool = False  # whether the model adds a loss, such as a router's
    errors: tuple[float, ...] = ()  # relative, of the gradient, at each of WEIGHTS, and with soft labels
    dtype: str = ""
    seconds: float = 0.0

    @property
    def soft(self) -> str:
        """Whether soft labels were compared; masked models refuse them."""
        return "yes" if len(self.errors) > len(WEIGHTS) else ""


class Alignment(NamedTuple):
    """How labels are aligned with logits."""

    shift: bool
    last: bool  # the labels belong to the last positions of the logits

    def __call__(self, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits and labels of the same positions."""
        length = labels.shape[-1]
        logits = logits[..., -length:, :] if self.last else logits[..., :length, :]
        return (logits[..., :-1, :], labels[..., 1:]) if self.shift else (logits, labels)

    def cross_entropy(self, logits: Tensor, labels: Tensor, reduction: str = "mean") -> Tensor:
        logits, labels = self(logits, labels)
        return F.cross_entropy(logits.flatten(0, -2), labels.flatten(), reduction=reduction)


class NoTokenLossError(Exception):
    """The model's own loss is not a cross-entropy of tokens."""


class Way(NamedTuple):
    """How a model is built, and batches for which it returns a loss."""

    make: Callable[[], nn.Module]
    inputs: str
    data: list[Batch]
    dtype: torch.dtype


def ways(architecture: Architecture, failures: dict[str, None]) -> Iterator[Way]:
    """Yield the ways that work; put the others' errors into ``failures``."""
    for dtype, attempt in itertools.product(TOLERANCE, ATTEMPTS):
        make = functools.partial(_make, architecture, dtype, attempt)
        try:
            found = list(batches(architecture, make(), dtype))
        except Exception as error:
            failures[where(error)] = None
            continue
        for inputs, data in found:
            try:
                if make()(**data[0]).loss is None:
                    raise NoTokenLossError("returns no loss")
            except Exception as error:
                failures[f"{inputs}: {where(error)}"] = None
                continue
            yield Way(make, inputs, data, dtype)


def check(architecture: Architecture) -> Verdict:
    """Build the model, find what its own loss is, train, and compare."""
    verdict = Verdict(str(architecture), "not built")
    failures: dict[str, None] = {}
    way = next(ways(architecture, failures), None)
    if way is None:
        verdict.detail = "; ".join(failures)
        return verdict
    verdict.inputs, verdict.dtype = way.inputs, str(way.dtype).removeprefix("torch.")
    try:
        with in_float64() if way.dtype == torch.float64 else contextlib.nullcontext():
            compare(verdict, way.make, way.data, TOLERANCE[way.dtype])
    except NoTokenLossError as error:
        verdict.status, verdict.detail = "nothing to compare", str(error)
    return verdict


_FLOAT32 = torch.Tensor.float


def in_float64() -> Any:
    """Return a context in which ``Tensor.float`` keeps float64: models that round to float32 would hide errors."""
    return mock.patch.object(torch.Tensor, "float", lambda tensor: tensor if tensor.dtype == torch.float64 else _FLOAT32(tensor))


def _make(architecture: Architecture, dtype: torch.dtype, attempt: Attempt) -> nn.Module:
    """Build the model, with the same random numbers in every forward pass."""
    model = build(architecture, dtype, attempt)
    model.register_forward_pre_hook(lambda *_: torch.manual_seed(0) and None)
    return model


def compare(verdict: Verdict, make: Callable[[], nn.Module], data: list[Batch], tolerance: float) -> None:
    """Train, and complete the verdict."""
    alignment, verdict.extra = find_alignment(make(), data[0])
    verdict.labels = "shifted" if alignment.shift else "aligned"
    errors, details = [], []
    steps = [*((weight, False) for weight in WEIGHTS), (WEIGHTS[-1], True)]
    for weight, soft in steps[: len(WEIGHTS)] if verdict.architecture.startswith("masked/") else steps:
        objective = Watched(SMMDLoss(VOCAB), weight=weight)
        try:
            found, seen = by_trainer(make(), data, objective, soft=soft)
        except Exception as error:
            frames = traceback.extract_tb(error.__traceback__)
            refused = "numerate" in Path(frames[-1].filename).parts and isinstance(
                error, (TypeError, ValueError, NotImplementedError)
            )
            verdict.status, verdict.detail = ("refused", str(error)) if refused else ("fails", where(error))
            return
        expected = by_hand(make(), seen, alignment, weight, verdict.extra)
        if not all(bool(grad.isfinite().all()) for grad in expected.values()):
            raise NoTokenLossError("the gradient of the model's own loss is not finite on these inputs")
        error, name = difference(found, expected)
        errors.append(error)
        details.append(f"{name} is off by {error:.2g} at weight {weight}{' with soft labels' if soft else ''}")
    # The first micro-batch may have logits: attach compares their loss with the model's own.
    verdict.path = "fused" if objective.plain_calls <= 1 < objective.fused_calls else "logits"
    verdict.errors = tuple(errors)
    verdict.status = "exact" if max(errors) < tolerance else "differs"
    verdict.detail = "" if verdict.status == "exact" else details[errors.index(max(errors))]


def find_alignment(model: nn.Module, batch: Batch) -> tuple[Alignment, bool]:
    """Return the alignment, and whether the model's own loss has more than the cross-entropy.

    Such an extra loss does not depend on the labels: the right alignment is the one for which it stays the same when labels
    change.
    """
    labels = batch["labels"]
    if getattr(model.config, "is_encoder_decoder", False):
        batch = batch | {"decoder_input_ids": labels.clamp_min(0)}  # otherwise labels would change the routing
    others = torch.where(labels == -100, labels, labels.flip(0).roll(3, -1).clamp_min(24))
    rests: dict[Alignment, list[float]] = {}
    with torch.no_grad():
        for chosen in (labels, others):
            output = model(**batch | {"labels": chosen})
            if getattr(output, "logits", None) is None or output.logits.dim() != 3 or output.logits.shape[1] < labels.shape[1]:
                shape = None if getattr(output, "logits", None) is None else list(output.logits.shape)
                raise NoTokenLossError(f"logits of shape {shape} for labels of shape {list(labels.shape)}")
            for alignment in (Alignment(s, last) for last in (False, True) for s in (True, False)):
                own = float(output.loss) - float(alignment.cross_entropy(output.logits, chosen))
                rests.setdefault(alignment, []).append(own)
    if not output.loss.isfinite():
        raise NoTokenLossError(f"the model's own loss is {float(output.loss)}")
    change = {alignment: abs(one - two) for alignment, (one, two) in rests.items()}
    best = min(change, key=lambda alignment: (change[alignment] > 1e-4, abs(rests[alignment][0])))
    if change[best] > 1e-4:
        raise NoTokenLossError(
            f"the model's own loss, {float(output.loss):.4f}, is not a cross-entropy of its logits: off by {rests[best][1]:.4f}"
        )
    return best, abs(rests[best][0]) > 1e-5


def by_hand(model: nn.Module, data: list[Batch], alignment: Alignment, weight: float, extra: bool) -> dict[str, Tensor]:
    """Return the gradient of a step: sums over label tokens and numbers, divided by their counts; soft targets are dense."""
    loss = SMMDLoss(VOCAB)
    fields = [{name: batch.get(name) for name in SOFT_FIELDS} for batch in data]
    data = [{name: value for name, value in batch.items() if name not in SOFT_FIELDS} for batch in data]
    labels = [alignment(torch.empty(*batch["labels"].shape, 1), batch["labels"])[1] for batch in data]
    items = sum(int((part != -100).sum()) for part in labels)
    numbers = sum(int(loss.count(part)) for part in labels)
    for batch, soft, part in zip(data, fields, labels, strict=True):
        output = model(**batch)
        total = alignment.cross_entropy(output.logits, batch["labels"], "sum") / items
        if soft[SOFT_FIELDS[0]] is not None:
            logits, _ = Alignment(False, alignment.last)(output.logits, batch["labels"])
            mean, _ = parts_of(NumericObjective(None), logits, batch["labels"], soft, shift=alignment.shift)
            total = mean * (part != -100).sum() / items
        if weight:
            total = total + weight * loss(*alignment(output.logits, batch["labels"]), reduction="sum") / numbers
        if extra:
            total = total + (output.loss - alignment.cross_entropy(output.logits, batch["labels"])) / len(data)
        total.backward()
    return gradients(model)


def by_trainer(
    model: nn.Module, data: list[Batch], objective: Watched, *, soft: bool = False
) -> tuple[dict[str, Tensor], list[Batch]]:
    """Return the gradient of a Trainer's step with one micro-batch for each of ``data``, and the batches that it saw."""
    collect, seen, size = Collect(), [], data[0]["labels"].shape[0]
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        args = arguments(folder, len(data), per_device_train_batch_size=size, logging_strategy="no", disable_tqdm=True)
        rows = [{"batch": number} for number in range(len(data)) for _ in range(size)]
        trainer = Trainer(model, args, lambda rows: {**data[rows[0]["batch"]]}, rows, callbacks=[collect])
        trainer._get_train_sampler = lambda *_: None  # rows in their order
        attach(trainer, objective, soft=TARGET if soft else None, tokenizer=tokenizer())
        collate = trainer.data_collator
        trainer.data_collator = lambda rows: seen.append(collate(rows)) or {**seen[-1]}
        trainer.train()
    assert not soft or any(bool((batch[SOFT_FIELDS[0]] >= 0).any()) for batch in seen), "no number was drawn"
    return collect.grads, seen


def difference(found: dict[str, Tensor], expected: dict[str, Tensor]) -> tuple[float, str]:
    """Return the largest relative error of a parameter's gradient, and the parameter's name."""
    largest = max(float(grad.norm()) for grad in expected.values())
    errors = {
        name: float((found.get(name, torch.zeros_like(grad)) - grad).norm()) / max(float(grad.norm()), 1e-3 * largest)
        for name, grad in expected.items()
    }
    errors |= {name: float(grad.norm()) / largest for name, grad in found.items() if name not in expected}
    errors = {name: error if error == error else float("inf") for name, error in errors.items()}
    worst = max(errors, key=lambda name: errors[name])
    return errors[worst], worst
