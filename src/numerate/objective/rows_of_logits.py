"""One pass over rows of logits forward, and one buffer for their gradient backward.

The gradient of the objective is the softmax that cross-entropy computes anyway, with a few entries changed: the label's, those
of soft targets, and the numeric tokens'. On a CPU the softmax is kept, and turned into the gradient in place; the kernels of a
GPU keep only its log-sum-exp, and compute it again as they write the gradient.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from numerate.losses.base import NumericLoss
from numerate.losses.logit_rows import reads_freely, take, wide
from numerate.objective.device import has_kernels, rows_at_a_time
from numerate.objective.logit_columns import Columns
from numerate.targets.soft_targets import SoftRows


class RowTargets(NamedTuple):
    """The targets of the cross-entropy of each row."""

    ignore_index: int
    smoothing: float
    soft: SoftRows | None
    columns: Columns


class RowsRead(NamedTuple):
    """Results of :func:`read_rows`."""

    valid: Tensor  # [R] whether a row has a label
    here: Tensor | None  # [R] whether this process has the column of the label; None: it has all
    column: Tensor  # [R] the column of the label, 0 where there is none
    softmax: Tensor | None  # [R, V] over the columns of this process; None where kernels compute it again
    factor: Tensor | None  # [R] that turns it into the softmax over all columns; None: 1
    top: Tensor  # [R] the largest logit
    log_total: Tensor  # [R] the log-sum-exp of the logits minus the largest
    log_p: Tensor  # [R] of the label
    nll: Tensor  # [R] cross-entropy; arbitrary in rows without a label
    rest: Tensor | None  # [R] float64, log-sum-exp of this process's columns without those of the loss; only from kernels


def read_rows(flat: Tensor, labels: Tensor, targets: RowTargets, loss: NumericLoss, *, keep: bool) -> RowsRead:
    """Return the cross-entropy of each row of ``flat [R, V]``, and its softmax if ``keep``."""
    smoothing, soft = targets.smoothing, targets.soft
    valid = labels != targets.ignore_index
    here, column = targets.columns.locate(torch.where(valid, labels, 0))
    softmax, rest = None, None
    if has_kernels(flat):
        from numerate.objective import rows_triton

        left_out = targets.columns.columns_of(loss, flat.device) if loss.uses_rest else None
        found = rows_triton.log_sum_exp_of_rows(flat, column, left_out)
        top, log_total = found.top, found.log_total
        if found.log_rest is not None:
            rest = (top.double() + found.log_rest).clamp_min(torch.finfo(top.dtype).min)
    else:
        softmax, top, log_total = _softmax(flat, valid, keep=keep)
    sums = targets.columns.row_sums(flat, here, column, soft, smoothing, top, log_total)
    # Subtract first: the log-sum-exp may be large where log p is not.
    log_p = sums.at_label - sums.log_total  # [R]
    nll = -log_p
    if soft is not None and sums.at_entries is not None:
        nll = soft.cross_entropy(nll, sums.log_total, sums.at_entries)
    if sums.mean is not None:
        nll = (1 - smoothing) * nll + smoothing * (sums.log_total - sums.mean)
    factor: Tensor | None = None
    if softmax is not None and sums.above is not None:
        factor = torch.where(valid & (sums.above > -torch.inf), (sums.above - sums.log_total).exp(), 0.0)
    return RowsRead(valid, here, column, softmax, factor, sums.top, sums.log_total, log_p, nll, rest)


def gradient_of_rows(
    flat: Tensor,  # [R, V], the logits
    targets: RowTargets,
    read: RowsRead,
    share: Tensor,  # [R], factor of each row in the cross-entropy, 0 without a label
    softmax_share: Tensor | None,  # [R], factor of the softmax that the numeric term adds, except at the numeric columns
    rows: Tensor | None,  # [P], the numeric rows; None: all
    columns: Tensor,  # [N], the numeric columns
    dz: Tensor,  # [P, N], gradient of the numeric term at those rows and columns
) -> Tensor:
    """Turn the softmax of :func:`read_rows` into the gradient, in place; None recomputes it."""
    smoothing, soft, all_columns = targets.smoothing, targets.soft, targets.columns
    numeric: Any = (slice(None), columns) if rows is None else (rows[:, None], columns)  # the entries [P, N]
    per_row = share if softmax_share is None else share + softmax_share
    uniform = share * (smoothing / all_columns.num_tokens(flat)) if smoothing else None
    ce_grad: Tensor | None = None  # [P, N]
    if has_kernels(flat):
        from numerate.objective import rows_triton

        if softmax_share is not None:
            p = (flat[numeric].to(share.dtype) - take(read.top, rows)[:, None] - take(read.log_total, rows)[:, None]).exp()
            ce_grad = _times(p, take(share, rows))
        grad = rows_triton.gradient_of_rows(flat, read.top, read.log_total, per_row, uniform)
    else:
        softmax, factor = read.softmax, read.factor
        grad = _softmax(flat, read.valid, keep=True)[0] if softmax is None else softmax  # type: ignore[assignment]
        if softmax_share is not None:
            ce_grad = _times(grad[numeric], take(share if factor is None else share * factor, rows))
        _scale_rows_(grad, per_row if factor is None else per_row * factor, uniform, skips=reads_freely(flat) and factor is None)
    if ce_grad is not None:
        ce_grad = ce_grad if uniform is None else ce_grad - take(uniform, rows)[:, None]
        grad[numeric] = ce_grad.to(grad.dtype)
    # p - 1 at the label via expm1(log p), which is accurate for p close to 1.
    above_target = torch.expm1(read.log_p) + smoothing  # p - (1 - smoothing)
    if soft is not None:
        above_target = above_target + (1 - smoothing) * (1 - soft.gold).to(share.dtype)
    at_label = share * above_target if uniform is None else share * above_target - uniform
    all_columns.put(grad, read.here, read.column, torch.where(read.valid, at_label, 0.0))
    if soft is not None:
        part = (smoothing - 1) * take(share, soft.rows) * soft.probabilities.to(share.dtype)
        all_columns.add(grad, soft.rows, soft.token_ids, part)
    if rows is None:
        grad.index_add_(1, columns, dz.to(grad.dtype))
    else:
        grad[numeric] = (grad[numeric] + dz).to(grad.dtype)
    return grad


def _softmax(flat: Tensor, valid: Tensor, *, keep: bool) -> tuple[Tensor | None, Tensor, Tensor]:
    """Return the row softmax ``[R, V]`` in the dtype of the logits (if ``keep``), and the log-sum-exp ``[R]`` as two summands.

    The summands are the maximum and the remainder, in float32 or wider. Rows without a label are zero on a CPU and arbitrary,
    possibly NaN, on a GPU.
    """
    skips = reads_freely(flat) and not bool(valid.all())
    softmax = (torch.zeros_like if skips else torch.empty_like)(flat) if keep else None
    top, log_total = torch.zeros((2, flat.shape[0]), dtype=wide(flat.dtype), device=flat.device)
    order = valid.nonzero()[:, 0] if skips else torch.arange(flat.shape[0], device=flat.device)
    start = 0
    for rows in order.split(rows_at_a_time(flat)):
        selected: Any = rows if skips else slice(start, start + rows.shape[0])
        start += rows.shape[0]
        chunk = flat[selected].to(top.dtype)
        top[selected] = highest = chunk.amax(-1)
        if softmax is None:
            log_total[selected] = (chunk - highest[:, None]).exp_().sum(-1).log()
            continue
        in_place = not skips and softmax.dtype == chunk.dtype
        p = torch.softmax(chunk, -1, out=softmax[selected]) if in_place else torch.softmax(chunk, -1)
        log_total[selected] = -p.amax(-1).log()  # max p >= 1/V, so its logarithm is finite
        if not in_place:
            softmax[selected] = p.to(softmax.dtype)
    return softmax, top, log_total


def _times(p: Tensor, factors: Tensor) -> Tensor:
    """Return ``p [P, N]`` times the factor of each row; a factor of 0 gives 0 even for NaN."""
    return torch.where(factors[:, None] == 0, 0.0, p * factors[:, None])


def _scale_rows_(softmax: Tensor, per_row: Tensor, uniform: Tensor | None, *, skips: bool) -> None:
    """Multiply each row by its factor, and subtract ``uniform [R]``. With ``skips``, rows with a factor of 0 are zero already."""
    step = rows_at_a_time(softmax)
    for start in range(0, softmax.shape[0], step):
        rows = slice(start, start + step)
        chunk = softmax[rows].mul_(per_row[rows, None])
        if not skips:
            chunk.masked_fill_(per_row[rows, None] == 0, 0.0)
        if uniform is not None:
            chunk.sub_(uniform[rows, None])
