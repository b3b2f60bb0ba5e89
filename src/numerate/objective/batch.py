"""The labels that go into the objective, and the parts of the loss that come out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from torch import Tensor

from numerate.checks import check_count, check_labels, check_tensor
from numerate.labels import shift_all
from numerate.losses.base import NumericLoss


@dataclass(frozen=True)
class BatchLabels:
    """Labels of a batch, ALIGNED with its logits, and the counts of its optimizer step if the caller knows them."""

    ids: Tensor  # [.., T]
    position_weights: Tensor | None  # [.., T]
    position_ids: Tensor | None  # [.., T]
    num_items: float | Tensor | None = None
    num_units: float | Tensor | None = None

    @classmethod
    def read(
        cls,
        loss: NumericLoss,
        labels: Tensor,
        position_weights: Tensor | None,
        position_ids: Tensor | None,
        *,
        shift: bool,
        num_items: float | Tensor | None = None,
        num_units: float | Tensor | None = None,
    ) -> Self:
        """Check the arguments of an objective that concern its labels, and align raw labels if ``shift`` is set."""
        labels = check_labels(labels)
        for name, value in (("position_weights", position_weights), ("position_ids", position_ids)):
            if value is not None:
                check_tensor(name, value, "of the shape of labels")
        if shift:
            labels, position_weights, position_ids = shift_all(labels, position_weights, position_ids, loss.ignore_index)
        batch = cls(labels, position_weights, position_ids, num_items, num_units)
        if num_items is not None:
            check_count("num_items", num_items, lambda: batch.count(loss)[0])
        if num_units is not None:
            check_count("num_units", num_units, lambda: batch.count(loss)[1])
        return batch

    def count(self, loss: NumericLoss) -> tuple[Tensor, Tensor]:
        """Return the label tokens of this batch, and the units that the mean of ``loss`` divides by."""
        num_units = loss.count(self.ids, position_weights=self.position_weights, position_ids=self.position_ids)
        return (self.ids != loss.ignore_index).sum(), num_units


@dataclass(frozen=True)
class ObjectiveOutput:
    """The loss of a batch and its parts. Only ``loss`` carries a gradient; the parts are for logs."""

    loss: Tensor
    cross_entropy: Tensor
    numeric: Tensor
    num_items: Tensor
    num_units: Tensor
    mass: Tensor | None = None  # mean probability of the numeric tokens where the label is one; with_mass=True only
