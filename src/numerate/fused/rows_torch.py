"""The pass over rows in torch, for any device and dtype: what the Triton kernel does, readable."""

from __future__ import annotations

import torch
from torch import Tensor

from numerate.fused.head import Head
from numerate.losses.rows import wide
from numerate.objective import rows_at_a_time


def cross_entropy_rows_(
    logits: Tensor,
    labels: Tensor,
    share: Tensor,
    by_lse: Tensor | None,
    head: Head,
    smoothing: float,
    *,
    write: bool,
    d_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The largest logit, the log-sum-exp above it and the cross-entropy, ``[R]`` each, of raw logits ``[R, V]``.

    The log-sum-exp is kept in two parts because its sum would be rounded: at a logit of 300 float32 has steps of 3e-5.

    With ``write`` the logits become their gradient, in place: ``share`` (0-d) of the cross-entropy's, plus ``by_lse [R]``
    of the log-sum-exp's. ``d_bias [V]`` takes the gradient's sum over rows, before it is rounded to the logits' dtype.
    """
    top, rest, nll = (torch.empty(logits.shape[0], dtype=wide(logits.dtype), device=logits.device) for _ in range(3))
    step = rows_at_a_time(logits)
    for start in range(0, logits.shape[0], step):
        rows = slice(start, start + step)
        x = head.shaped(logits[rows].to(top.dtype))  # [r, V]
        top[rows] = x.amax(-1).clamp_min(torch.finfo(x.dtype).min)
        above = x - top[rows, None]
        p = above.exp()
        total = p.sum(-1)
        rest[rows] = total.log()
        at = labels[rows, None]
        nll[rows] = rest[rows] - above.gather(1, at)[:, 0]
        if smoothing:
            nll[rows] = (1 - smoothing) * nll[rows] + smoothing * (rest[rows] - above.mean(-1))
        if write:
            per_p = share if by_lse is None else share + by_lse[rows]
            grad = p.mul_((per_p / total)[:, None])
            if smoothing:
                grad -= share * (smoothing / x.shape[1])
            grad[torch.arange(grad.shape[0], device=grad.device), at[:, 0]] -= (1 - smoothing) * share
            grad = head.unshaped(grad, x)
            logits[rows] = grad.to(logits.dtype)
            if d_bias is not None:
                d_bias += grad.sum(0)
    return top, rest, nll


def join_(
    logits: Tensor,
    rows: Tensor,
    columns: Tensor,
    z: Tensor,
    dz: Tensor,
    top: Tensor,
    rest: Tensor,
    labels: Tensor,
    share: Tensor,
    numeric_share: Tensor,
    by_lse: Tensor | None,
    head: Head,
    smoothing: float,
) -> None:
    """Write the whole gradient of ``rows [P]`` of a chunk at ``columns [N]``: cross-entropy's and the numeric term's.

    Cross-entropy's part is computed anew from ``z [P, N]``, so that the sum is rounded once. ``dz [P, N]`` is the gradient
    of the numeric sum, ``numeric_share`` (0-d) what that sum counts in the loss.
    """
    per_p = share if by_lse is None else (share + by_lse[rows])[:, None]
    grad = (z - top[rows][:, None] - rest[rows][:, None]).exp() * per_p + dz * numeric_share
    at_label = columns == labels[rows][:, None]
    grad = grad - torch.where(at_label, (1 - smoothing) * share, 0.0) - share * (smoothing / logits.shape[1])
    logits[rows[:, None], columns] = head.unshaped(grad, z).to(logits.dtype)


def rescale_(tensor: Tensor, factor: Tensor) -> None:
    """``tensor *= factor``, in place."""
    tensor.mul_(factor)
