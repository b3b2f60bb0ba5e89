"""The columns of the logits: the whole vocabulary. :mod:`numerate.objective.shards` has one process's share of it."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from numerate.losses.base import NumericLoss
from numerate.losses.logit_rows import take
from numerate.losses.target_tokens import Targets
from numerate.objective.device import rows_at_a_time
from numerate.targets.soft_targets import SoftRows


class LabelSums(NamedTuple):
    """What the cross-entropy needs of rows of logits, ``[R]`` each; the log-sum-exp as two summands."""

    top: Tensor  # the largest logit
    log_total: Tensor  # the log-sum-exp of the logits minus the largest
    at_label: Tensor  # the label's logit minus the largest
    at_entries: Tensor | None  # [S] the same of the entries of soft targets
    mean: Tensor | None  # mean logit minus the largest, for label smoothing
    above: Tensor | None  # log-sum-exp of these columns minus the largest logit of all; None: they are all columns


class Columns:
    """Reads and writes the entries of ``[R, V]`` logits that belong to tokens. V is the whole vocabulary."""

    def num_tokens(self, flat: Tensor) -> int:
        """Return the number of tokens that the softmax is over."""
        return flat.shape[-1]

    def check(self, name: str, labels: Tensor, loss: NumericLoss) -> None:
        """Raise unless the columns fit the vocabulary of the loss, and the labels of all processes are equal."""

    def locate(self, token_ids: Tensor) -> tuple[Tensor | None, Tensor]:
        """Return a mask of the tokens that are here (None: all), and their columns; 0 for the others."""
        return None, token_ids

    def row_sums(
        self,
        flat: Tensor,
        here: Tensor | None,
        column: Tensor,
        soft: SoftRows | None,
        smoothing: float,
        top: Tensor,
        log_total: Tensor,
    ) -> LabelSums:
        """Return the sums of rows, given the log-sum-exp ``[R]`` over these columns, and where the labels are."""
        at_label = flat.gather(1, column[:, None])[:, 0].to(top.dtype) - top
        at_entries = None if soft is None else flat[soft.rows, soft.token_ids].to(top.dtype) - take(top, soft.rows)
        return LabelSums(top, log_total, at_label, at_entries, row_means(flat, top) if smoothing else None, None)

    def select(self, flat: Tensor, rows: Tensor | None, token_ids: Tensor) -> Tensor:
        """Return the logits ``[P, N]`` of tokens ``[N]`` in the given rows; in all if ``rows`` is None."""
        return flat.index_select(-1, token_ids) if rows is None else flat[rows[:, None], token_ids]

    def columns_of(self, loss: NumericLoss, device: torch.device) -> Tensor:
        """Return the columns of a loss that are here."""
        return loss.columns

    def numeric(self, loss: NumericLoss, flat: Tensor, targets: Targets, rest: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Return ``z [P, N]`` and ``rest [P]`` of a loss, given the ``rest [R]`` of these columns or None."""
        if rest is None:
            return loss.select(flat, targets)
        return loss.select_columns(flat, targets), take(rest, targets.rows)

    def own(self, loss: NumericLoss, dz: Tensor) -> tuple[Tensor, Tensor]:
        """Return the columns of a loss among these, and their part of the gradient ``dz [P, N]``."""
        return loss.columns, dz

    def put(self, grad: Tensor, here: Tensor | None, column: Tensor, values: Tensor) -> None:
        """Write a value at one column of each row, where it is here."""
        values = values.to(grad.dtype)[:, None]
        if here is not None:
            values = torch.where(here[:, None], values, grad.gather(1, column[:, None]))
        grad.scatter_(1, column[:, None], values)

    def add(self, grad: Tensor, rows: Tensor, token_ids: Tensor, values: Tensor) -> None:
        """Add values at tokens of rows."""
        grad.index_put_((rows, token_ids), values.to(grad.dtype), accumulate=True)


ALL_COLUMNS = Columns()


def row_means(flat: Tensor, top: Tensor) -> Tensor:
    """Return the mean logit of each row ``[R]`` minus ``top [R]``."""
    step = rows_at_a_time(flat)
    chunks = zip(flat.split(step), top[:, None].split(step), strict=True)
    return torch.cat([(chunk.to(top.dtype) - highest).mean(-1) for chunk, highest in chunks])
