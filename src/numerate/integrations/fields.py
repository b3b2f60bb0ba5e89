"""Fields of a batch that belong to its labels: soft targets, weights of tokens and of positions, ids of positions.

Like the labels they are raw: an entry at position ``t`` belongs to ``labels[t]``. A model may shift its labels, cut off the first
ones, or add positions before them (images, virtual tokens). The fields are moved along.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, MutableMapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from numerate.checks import check_weights
from numerate.labels import IGNORE_INDEX, shift_left
from numerate.targets.soft_targets import SOFT_FIELDS, WEIGHT_FIELDS, SoftTargets

Batch = Mapping[str, Any]

LABEL_FIELDS = (*SOFT_FIELDS, *WEIGHT_FIELDS)
"""Fields of a batch that the objective reads and the model does not."""


def has_fields(names: Iterable[str]) -> bool:
    """Return whether any of these columns, or of the fields of this batch, is one of ``LABEL_FIELDS``."""
    return not set(LABEL_FIELDS).isdisjoint(names)


def without_fields(batch: Batch) -> Any:
    """Return a batch as the model may see it; the same object if there is nothing to leave out."""
    if not has_fields(batch):
        return batch
    if not isinstance(batch, MutableMapping):
        return {name: value for name, value in batch.items() if name not in LABEL_FIELDS}
    plain = copy.copy(batch)  # of the same class, such as a BatchEncoding
    for name in LABEL_FIELDS:
        plain.pop(name, None)
    return plain


def keep_fields(batch: dict[str, Any], given: Batch) -> dict[str, Any]:
    """Return a batch with the fields as they were given: DeepSpeed rounds all inputs to the model's dtype."""
    kept = {name: given[name].to(batch[name].device) for name in LABEL_FIELDS if isinstance(given.get(name), Tensor)}
    return batch | kept


def take_fields(batch: MutableMapping[str, Any]) -> dict[str, Any]:
    """Take the fields out of a batch; return them as arguments of the objective."""
    taken = {"soft": SoftTargets.from_batch(batch), **{name: batch.get(name) for name in WEIGHT_FIELDS}}
    for name in LABEL_FIELDS:
        batch.pop(name, None)
    return {name: value for name, value in taken.items() if value is not None}


def labels_of(batch: Batch) -> Tensor:
    """Return ``labels``, or ``shift_labels`` where there are none."""
    labels: Tensor = batch["labels"] if "labels" in batch else batch["shift_labels"]
    return labels


def aligned(batch: Batch, *, shift: bool, ignore_index: int = IGNORE_INDEX) -> tuple[Tensor, dict[str, Any]]:
    """Return a batch's labels aligned with the logits, and what belongs to them as arguments of the objective."""
    labels: Tensor | None = batch.get("shift_labels")
    if labels is None:
        labels = shift_left(batch["labels"], ignore_index) if shift else batch["labels"]
    return labels, fields_of(batch, labels, shift=shift)


def fields_of(batch: Batch, targets: Tensor, *, shift: bool) -> dict[str, Any]:
    """Return what belongs to the targets ``[.., T']`` of a model, as arguments of the objective.

    Targets and labels end together, unless ``shift`` is set: then the last label is one position before the last target.
    """
    positions = document_positions(batch, targets, shift=shift)
    found: dict[str, Any] = {} if positions is None else {"position_ids": positions}
    if not has_fields(batch):
        return found
    labels = labels_of(batch)
    if targets.shape[:-1] != labels.shape[:-1]:
        raise NotImplementedError(
            f"the model's targets have shape {tuple(targets.shape)} and labels {tuple(labels.shape)}: expected a row of targets "
            "for each row of labels, since soft targets and weights belong to positions of the labels; leave these fields out, "
            "or use objective(logits, labels) in a loss of your own."
        )
    for name in WEIGHT_FIELDS:
        if batch.get(name) is not None:
            check_weights(batch[name], labels, name)
            found[name] = _moved(batch[name], targets, shift=shift).to(targets.device)
    soft = SoftTargets.from_batch(batch)
    if soft is not None:
        soft = soft.checked(labels)
        by = targets.shape[-1] - labels.shape[-1] - int(shift)
        moved = torch.where(soft.positions >= 0, (soft.positions + by).clamp_min(-1), -1)
        found["soft"] = SoftTargets(moved, soft.token_ids, soft.probabilities)
    return found


def document_positions(batch: Batch, targets: Tensor, *, shift: bool) -> Tensor | None:
    """Return a batch's ``position_ids`` for targets ``[.., T']``; a model may have cut off or added the first positions."""
    positions: Tensor | None = batch.get("position_ids")
    if positions is None or positions.dim() > targets.dim():
        return None  # the three rows of positions of some vision models count image patches, not documents
    return _moved(positions.expand(*targets.shape[:-1], -1), targets, shift=shift)


def _moved(field: Tensor, targets: Tensor, *, shift: bool) -> Tensor:
    """Return a field ``[.., T]`` for targets ``[.., T']``, which end where it ends."""
    missing = targets.shape[-1] - field.shape[-1]
    field = F.pad(field, (missing, 0)) if missing > 0 else field[..., -missing:]
    return shift_left(field, 0) if shift else field
