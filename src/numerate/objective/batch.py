"""The labels that go into the objective, and the parts of the loss that come out."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from numerate.checks import check_count, check_labels, check_tensor
from numerate.labels import shift_all
from numerate.losses.base import NumericLoss


@dataclass(frozen=True)
class BatchLabels:
    """Labels of a batch, and the counts of its optimizer step if the caller knows them."""

    ids: Tensor  # [.., T]
    position_weights: Tensor | None = None  # [.., T]
    position_ids: Tensor | None = None  # [.., T]
    num_items: float | Tensor | None = None
    num_units: float | Tensor | None = None

    def checked(self, loss: NumericLoss, *, shift: bool) -> BatchLabels:
        """Check labels and counts, and align raw labels if ``shift`` is set."""
        ids, position_weights, position_ids = check_labels(self.ids), self.position_weights, self.position_ids
        for name, value in (("position_weights", position_weights), ("position_ids", position_ids)):
            if value is not None:
                check_tensor(name, value, "of the shape of labels")
        if shift:
            ids, position_weights, position_ids = shift_all(ids, position_weights, position_ids, loss.ignore_index)
        batch = BatchLabels(ids, position_weights, position_ids, self.num_items, self.num_units)
        if self.num_items is not None:
            check_count("num_items", self.num_items, lambda: batch.count(loss)[0])
        if self.num_units is not None:
            check_count("num_units", self.num_units, lambda: batch.count(loss)[1])
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
