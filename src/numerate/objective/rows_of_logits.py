"""One pass over rows of logits forward, and one buffer for their gradient backward.

The gradient of the objective is the softmax that cross-entropy computes anyway, with a few entries changed: the label's, those
of soft targets, and the numeric tokens'. The softmax is kept, and turned into the gradient in place.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch import Tensor

from numerate.losses.logit_rows import reads_freely, take, wide
from numerate.objective.device import rows_at_a_time
from numerate.objective.logit_columns import Columns
from numerate.objective.rows_torch import scale_rows_
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
    label: Tensor  # [R] the label, 0 where there is none
    softmax: Tensor | None  # [R, V] over the columns of this process
    factor: Tensor | None  # [R] that turns it into the softmax over all columns; None: 1
    top: Tensor  # [R] the largest logit
    log_total: Tensor  # [R] the log-sum-exp of the logits minus the largest
    log_p: Tensor  # [R] of the label
    nll: Tensor  # [R] cross-entropy; arbitrary in rows without a label


def read_rows(flat: Tensor, labels: Tensor, targets: RowTargets, *, keep: bool) -> RowsRead:
    """Return the cross-entropy of each row of ``flat [R, V]``, and its softmax if ``keep``."""
    smoothing, soft = targets.smoothing, targets.soft
    valid = labels != targets.ignore_index
    softmax, top, log_total = _softmax(flat, valid, keep=keep)
    label = torch.where(valid, labels, 0)
    sums = targets.columns.row_sums(flat, valid, label, soft, smoothing, top, log_total)
    # Subtract first: the log-sum-exp may be large where log p is not.
    log_p = sums.at_label - sums.log_total  # [R]
    nll = -log_p
    if soft is not None and sums.at_entries is not None:
        nll = soft.cross_entropy(nll, sums.log_total, sums.at_entries)
    if sums.mean is not None:
        nll = (1 - smoothing) * nll + smoothing * (sums.log_total - sums.mean)
    return RowsRead(valid, label, softmax, sums.factor, sums.top, sums.log_total, log_p, nll)


def gradient_of_rows(
    flat: Tensor,
    targets: RowTargets,
    softmax: Tensor | None,
    valid: Tensor,
    label: Tensor,
    log_p: Tensor,
    factor: Tensor | None,
    share: Tensor,
    softmax_share: Tensor | None,
    rows: Tensor | None,
    columns: Tensor,
    dz: Tensor,
) -> Tensor:
    """Turn the ``softmax`` of :func:`read_rows` into the gradient, in place; None recomputes it.

    Args:
        flat: the logits ``[R, V]``.
        targets: of the cross-entropy.
        softmax: of the logits.
        valid: as in :class:`RowsRead`, as are ``label``, ``log_p`` and ``factor``.
        label: of each row.
        log_p: of the label.
        factor: of the softmax.
        share: factor of each row ``[R]`` in the cross-entropy, 0 without a label.
        softmax_share: ``[R]``, factor of the softmax that the numeric term adds, except at the numeric columns.
        rows: the P numeric rows; None: all.
        columns: the numeric columns.
        dz: gradient of the numeric term ``[P, N]`` at those rows and columns.
    """
    smoothing, soft, all_columns = targets.smoothing, targets.soft, targets.columns
    grad: Tensor = _softmax(flat, valid, keep=True)[0] if softmax is None else softmax  # type: ignore[assignment]
    numeric: Any = (slice(None), columns) if rows is None else (rows[:, None], columns)  # the entries [P, N]
    per_row = share if softmax_share is None else share + softmax_share
    ce_grad: Tensor | None = None  # [P, N]
    if softmax_share is not None:
        own = take(share if factor is None else share * factor, rows)[:, None]
        ce_grad = torch.where(own == 0, 0.0, grad[numeric] * own)
    if factor is not None:
        per_row = per_row * factor
    uniform = share * (smoothing / all_columns.num_tokens(flat))
    skips = reads_freely(flat) and factor is None  # rows without a label are zero
    step = rows_at_a_time(grad)
    pieces = (torch.split(tensor, step) for tensor in (grad, per_row[:, None], uniform[:, None]))
    for chunk, by, even in zip(*pieces, strict=True):
        if skips:
            chunk.mul_(by)
        else:
            _scale_rows_of(chunk)(chunk, by)
        if smoothing:
            chunk.sub_(even)
    if ce_grad is not None:
        grad[numeric] = (ce_grad - take(uniform, rows)[:, None]).to(grad.dtype)
    # p - 1 at the label via expm1(log p), which is accurate for p close to 1.
    above_target = torch.expm1(log_p) + smoothing  # p - (1 - smoothing)
    if soft is not None:
        above_target = above_target + (1 - smoothing) * (1 - soft.gold).to(share.dtype)
    all_columns.put(grad, label, torch.where(valid, share * above_target - uniform, 0.0))
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


def _scale_rows_of(grad: Tensor) -> Callable[[Tensor, Tensor], None]:
    """Return the fastest :func:`scale_rows_` for a gradient: on a GPU one that skips rows without a label."""
    if grad.device.type != "cuda" or grad.stride(1) != 1 or not find_spec("triton"):
        return scale_rows_
    from numerate.objective import rows_triton

    return rows_triton.scale_rows_
