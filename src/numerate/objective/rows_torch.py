"""The pass over rows in torch, for any device and dtype: what the Triton kernel does, readable."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from numerate.losses.rows import wide
from numerate.objective.head import Head
from numerate.objective.objective import rows_at_a_time


class RowSums(NamedTuple):
    """What a pass over rows of logits tells, ``[R]`` each.

    The log-sum-exp is kept in two parts because its sum would be rounded: at a logit of 300, float32 has steps of 3e-5.
    """

    top: Tensor  # the largest logit
    log_total: Tensor  # the log-sum-exp of the logits less the largest
    nll: Tensor  # cross-entropy
    log_rest: Tensor | None  # as log_total, of some columns alone


def cross_entropy_rows_(
    logits: Tensor,
    labels: Tensor,
    share: Tensor,
    by_softmax: Tensor | None,
    head: Head,
    smoothing: float,
    *,
    write: bool,
    without: Tensor | None = None,
    d_bias: Tensor | None = None,
) -> RowSums:
    """Sums over raw logits ``[R, V]``; ``without [V]`` marks columns that their ``log_rest`` leaves out.

    With ``write`` the logits become their gradient, in place: ``share`` (0-d) of the cross-entropy's, plus ``by_softmax [R]``
    times the softmax. ``d_bias [V]`` takes the gradient's sum over rows, before it is rounded to the logits' dtype.
    """
    top, log_total, nll, log_rest = torch.empty((4, logits.shape[0]), dtype=wide(logits.dtype), device=logits.device)
    step = rows_at_a_time(logits)
    for start in range(0, logits.shape[0], step):
        rows = slice(start, start + step)
        x = head.shaped(logits[rows].to(top.dtype))  # [r, V]
        top[rows] = x.amax(-1).clamp_min(torch.finfo(x.dtype).min)
        above = x - top[rows, None]
        p = above.exp()
        total = p.sum(-1)
        log_total[rows] = total.log()
        if without is not None:
            log_rest[rows] = p.masked_fill(without, 0.0).sum(-1).log()
        at = labels[rows, None]
        nll[rows] = log_total[rows] - above.gather(1, at)[:, 0]
        if smoothing:
            nll[rows] = (1 - smoothing) * nll[rows] + smoothing * (log_total[rows] - above.mean(-1))
        if write:
            per_p = share if by_softmax is None else share + by_softmax[rows]
            grad = p.mul_((per_p / total)[:, None])
            if smoothing:
                grad -= share * (smoothing / x.shape[1])
            grad[torch.arange(grad.shape[0], device=grad.device), at[:, 0]] -= (1 - smoothing) * share
            grad = head.unshaped(grad, x)
            logits[rows] = grad.to(logits.dtype)
            if d_bias is not None:
                d_bias += grad.sum(0)
    return RowSums(top, log_total, nll, None if without is None else log_rest)


def join_(
    logits: Tensor,
    rows: Tensor,
    columns: Tensor,
    z: Tensor,
    dz: Tensor,
    top: Tensor,
    log_total: Tensor,
    labels: Tensor,
    share: Tensor,
    numeric_share: Tensor,
    head: Head,
    smoothing: float,
) -> None:
    """Write the whole gradient of ``rows [P]`` of a chunk at ``columns [N]``: cross-entropy's and the numeric term's.

    Cross-entropy's part is computed anew from ``z [P, N]``, so that the sum is rounded once. ``dz [P, N]`` is the gradient
    of the numeric sum, ``numeric_share`` (0-d) what that sum counts in the loss.
    """
    grad = (z - top[rows][:, None] - log_total[rows][:, None]).exp() * share + dz * numeric_share
    at_label = columns == labels[rows][:, None]
    grad = grad - torch.where(at_label, (1 - smoothing) * share, 0.0) - share * (smoothing / logits.shape[1])
    logits[rows[:, None], columns] = head.unshaped(grad, z).to(logits.dtype)


def rescale_(tensor: Tensor, factor: Tensor) -> None:
    """``tensor *= factor``, in place."""
    tensor.mul_(factor)
