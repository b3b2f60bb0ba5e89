"""The objective as one value per position, for frameworks that mask, sum and divide the losses of tokens themselves."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from numerate.losses.base import NumericLoss
from numerate.losses.logit_rows import divide, refuse_second_derivative
from numerate.losses.target_tokens import Targets
from numerate.objective.batch import BatchLabels
from numerate.objective.cut_sequence import CutSequence
from numerate.objective.from_logits import read_inputs
from numerate.objective.logit_columns import Columns
from numerate.objective.rows_of_logits import RowsRead, RowTargets, gradient_of_rows, read_rows
from numerate.objective.term import softmax_share_of
from numerate.objective.weighting import Weighting


@torch.compiler.disable  # type: ignore[untyped-decorator]
def objective_per_position(
    loss: NumericLoss, weighting: Weighting, logits: Tensor, batch: BatchLabels, columns: Columns, cut: CutSequence | None
) -> Tensor:
    """Return the objective of each position; see :meth:`numerate.NumericObjective.per_position`."""
    flat, labels, inputs = read_inputs(loss, weighting, logits, batch, columns, cut=cut)
    targets, num_items = inputs.targets, inputs.num_items
    nll, z, rest = _Rows.apply(flat, labels, loss, targets, inputs.row_targets)  # type: ignore[no-untyped-call]
    if inputs.token_weights is not None:
        nll = nll * inputs.token_weights.to(nll.dtype)
    cost = loss.per_row(z, rest, targets) if inputs.numbers is None else inputs.numbers.costs(loss, z, rest)
    denominator = weighting.denominator(num_items, inputs.num_units)
    factor = weighting.factor(divide(nll.detach().sum(), num_items), divide(cost.detach().sum(), denominator))
    one = nll.new_ones(())
    items_per_unit = divide(one, denominator) / divide(one, num_items)
    losses: Tensor = nll.view(batch.ids.shape) + factor * items_per_unit * loss.scatter(cost, targets)
    return losses


class _Rows(torch.autograd.Function):
    """The cross-entropy ``[R]`` of rows of logits, and what a numeric loss reads of them, with any gradient of these."""

    @staticmethod
    def forward(
        ctx: Any, flat: Tensor, labels: Tensor, loss: NumericLoss, targets: Targets, row_targets: RowTargets
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        read = read_rows(flat, labels, row_targets, loss, keep=ctx.needs_input_grad[0])
        z, rest = row_targets.columns.numeric(loss, flat, targets, read.rest)
        ctx.save_for_backward(flat, z, rest, *read._replace(softmax=None))
        ctx.softmax, ctx.loss, ctx.targets, ctx.row_targets = read.softmax, loss, targets, row_targets
        return torch.where(read.valid, read.nll, 0.0), z, rest

    @staticmethod
    def backward(ctx: Any, d_nll: Tensor, dz: Tensor, d_rest: Tensor | None) -> tuple[Tensor | None, ...]:
        refuse_second_derivative()
        flat, z, rest, *saved = ctx.saved_tensors
        softmax, ctx.softmax = ctx.softmax, None  # overwritten; a second backward recomputes it
        read = RowsRead(*saved)._replace(softmax=softmax)
        share = torch.where(read.valid, d_nll, 0.0)
        softmax_share: Tensor | None = None
        if rest is not None and d_rest is not None:
            softmax_share = softmax_share_of(d_rest, z, rest, ctx.targets, share)
        columns, dz = ctx.row_targets.columns.own(ctx.loss, dz)
        grad = gradient_of_rows(flat, ctx.row_targets, read, share, softmax_share, ctx.targets.rows, columns, dz)
        return grad, None, None, None, None
