"""The pass over rows of logits in torch, for any device and dtype: the reference of the Triton kernels."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from numerate.losses.logit_rows import wide
from numerate.objective.device import rows_at_a_time
from numerate.objective.head import Head


class RowSums(NamedTuple):
    """Results of a pass over rows of logits, ``[R]`` each.

    The log-sum-exp is stored as two summands to avoid rounding: at a logit of 300, float32 has a resolution of 3e-5.
    """

    top: Tensor  # the largest logit
    log_total: Tensor  # the log-sum-exp of the logits minus the largest
    nll: Tensor  # cross-entropy
    log_rest: Tensor | None  # like log_total, without the excluded columns


def cross_entropy_rows_(
    logits: Tensor,
    labels: Tensor,
    share: Tensor,
    softmax_share: Tensor | None,
    head: Head,
    smoothing: float,
    *,
    write: bool,
    gold: Tensor | None = None,
    excluded: Tensor | None = None,
    d_bias: Tensor | None = None,
) -> RowSums:
    """Return the sums of raw logits ``[R, V]``; columns in the mask ``excluded [V]`` are left out of ``log_rest``.

    With ``write``, the logits are overwritten by the gradient: ``share`` (0-d or ``[R]``) times that of the cross-entropy, plus
    ``softmax_share [R]`` times the softmax. Its sum over rows, before rounding to the logits' dtype, is added to ``d_bias [V]``.
    ``gold [R]`` is the target probability of each label, 1 by default.
    """
    share = share.expand(logits.shape[0])
    target = share if gold is None else share * gold  # [R]
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
        if excluded is not None:
            log_rest[rows] = p.masked_fill(excluded, 0.0).sum(-1).log()
        label = labels[rows, None]
        nll[rows] = log_total[rows] - above.gather(1, label)[:, 0]
        if smoothing:
            nll[rows] = (1 - smoothing) * nll[rows] + smoothing * (log_total[rows] - above.mean(-1))
        if write:
            per_p = share[rows] if softmax_share is None else share[rows] + softmax_share[rows]
            grad = p.mul_((per_p / total)[:, None])
            if smoothing:
                grad -= (share[rows] * (smoothing / x.shape[1]))[:, None]
            grad[torch.arange(grad.shape[0], device=grad.device), label[:, 0]] -= (1 - smoothing) * target[rows]
            grad = head.unshaped(grad, x)
            logits[rows] = grad.to(logits.dtype)
            if d_bias is not None:
                d_bias += grad.sum(0)
    return RowSums(top, log_total, nll, None if excluded is None else log_rest)


def write_numeric_columns_(
    logits: Tensor,
    rows: Tensor,
    columns: Tensor,
    z: Tensor,
    dz: Tensor,
    sums: RowSums,
    labels: Tensor,
    share: Tensor,
    numeric_share: Tensor,
    head: Head,
    smoothing: float,
    gold: Tensor | None = None,
) -> None:
    """Write the gradient of cross-entropy plus numeric term at ``rows [P]`` and ``columns [N]`` of a chunk.

    ``share`` and ``gold`` as in :func:`cross_entropy_rows_`. The gradient of the cross-entropy is recomputed from ``z [P, N]``
    so that the total is rounded once. ``dz [P, N]`` is the gradient of the numeric sum, ``numeric_share`` (0-d) its factor in
    the loss.
    """
    share = share.expand(logits.shape[0])[rows][:, None]  # [P, 1]
    target = share if gold is None else share * gold[rows][:, None]
    grad = (z - sums.top[rows][:, None] - sums.log_total[rows][:, None]).exp() * share + dz * numeric_share
    at_label = columns == labels[rows][:, None]
    grad = grad - torch.where(at_label, (1 - smoothing) * target, 0.0) - share * (smoothing / logits.shape[1])
    logits[rows[:, None], columns] = head.unshaped(grad, z).to(logits.dtype)


def rescale_(tensor: Tensor, factor: Tensor) -> None:
    """Multiply ``tensor`` by ``factor`` in place."""
    tensor.mul_(factor)
