"""Inputs and outputs of the objective: labels of a batch, and the parts of the loss."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from numerate.checks import check_count, check_labels, check_tensor, check_weights
from numerate.labels import shift_all, shift_left
from numerate.losses.base import NumericLoss
from numerate.targets.soft_targets import SoftTargets


@dataclass(frozen=True)
class BatchLabels:
    """Labels of a batch, and optionally the counts of its optimizer step."""

    ids: Tensor  # [.., T]
    position_weights: Tensor | None = None  # [.., T]
    position_ids: Tensor | None = None  # [.., T]
    num_items: float | Tensor | None = None
    num_units: float | Tensor | None = None
    token_weights: Tensor | None = None  # [.., T], factor of each position in the cross-entropy
    soft: SoftTargets | None = None

    def checked(self, loss: NumericLoss, *, shift: bool) -> BatchLabels:
        """Check labels and counts, and align raw labels if ``shift`` is set."""
        ids, position_weights, position_ids = check_labels(self.ids), self.position_weights, self.position_ids
        for name, value in (("position_weights", position_weights), ("position_ids", position_ids)):
            if value is not None:
                check_tensor(name, value, "of the shape of labels")
        token_weights, soft = self.token_weights, self.soft
        if token_weights is not None:
            check_weights(token_weights, ids, "token_weights")
        if soft is not None:
            if not isinstance(soft, SoftTargets):
                raise TypeError(f"soft is a {type(soft).__name__}: expected SoftTargets, such as SoftTargets.from_batch(batch).")
            soft = soft.checked(ids) if ids.numel() else None  # entries need a position, padding too
        if shift:
            ids, position_weights, position_ids = shift_all(ids, position_weights, position_ids, loss.ignore_index)
            token_weights = None if token_weights is None else shift_left(token_weights, 0)
            soft = None if soft is None else soft.shifted()
        batch = BatchLabels(ids, position_weights, position_ids, self.num_items, self.num_units, token_weights, soft)
        if self.num_items is not None:
            check_count("num_items", self.num_items, lambda: batch.count(loss)[0])
        if self.num_units is not None:
            check_count("num_units", self.num_units, lambda: batch.count(loss)[1])
        return batch

    def to(self, device: torch.device | str) -> BatchLabels:
        """Copy to another device, without the counts."""
        fields = {name: value for name, value in vars(self).items() if name not in ("num_items", "num_units")}
        moved: dict[str, Any] = {name: None if value is None else value.to(device) for name, value in fields.items()}
        return replace(self, **moved)

    def count(self, loss: NumericLoss) -> tuple[Tensor, Tensor]:
        """Return the number of label tokens, or the sum of their weights, and the number of units of ``loss``."""
        num_units = loss.count(self.ids, position_weights=self.position_weights, position_ids=self.position_ids)
        return self.count_items(loss.ignore_index), num_units

    def count_items(self, ignore_index: int) -> Tensor:
        """Return the number of label tokens of this batch, or the sum of their ``token_weights``."""
        valid = self.ids != ignore_index
        return valid.sum() if self.token_weights is None else torch.where(valid, self.token_weights.double(), 0.0).sum()


@dataclass(frozen=True)
class ObjectiveOutput:
    """The loss of a batch and its parts. Only ``loss`` has a gradient; the parts are detached, for logging.

    Attributes:
        loss: call ``backward`` on it.
        cross_entropy: mean over ``num_items``.
        numeric: the numeric term, not multiplied by ``weight``.
        num_items: number of label tokens, the denominator of the cross-entropy.
        num_units: number of numeric positions (or numbers), the denominator of the numeric term.
        mass: mean probability of the numeric tokens at numeric labels; only with ``with_mass=True``.
        overrun: mean probability of the numeric tokens right after a number; only with ``with_overrun=True``.
        num_ends: number of positions that ``overrun`` averages over.
    """

    loss: Tensor
    cross_entropy: Tensor
    numeric: Tensor
    num_items: Tensor
    num_units: Tensor
    mass: Tensor | None = None
    overrun: Tensor | None = None
    num_ends: Tensor | None = None
