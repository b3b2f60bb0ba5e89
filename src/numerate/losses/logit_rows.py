"""Operations on rows of logits, shared by losses and operators."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def take(flat: Tensor, rows: Tensor | None) -> Tensor:
    """Return the given rows; all of them if ``rows`` is None."""
    return flat if rows is None else flat.index_select(0, rows)


def wide(dtype: torch.dtype) -> torch.dtype:
    """Return the compute dtype: float64 for float64 logits, else float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def divide(total: Tensor, count: Tensor | float) -> Tensor:
    """Return ``total / count``, or ``total`` if the count is zero; either way connected to the graph."""
    if not isinstance(count, Tensor):
        return total / (count if count > 0 else 1)
    # Sums of weights may be below one. `where` takes three kernels.
    positive = torch.where(count > 0, count, 1) if count.is_floating_point() else count.clamp_min(1)
    return total / positive.to(total.dtype)


def residual(z: Tensor, target: Tensor) -> Tensor:
    """Return ``r = p - e_t``: the softmax ``[P, N]`` of the rows minus one at the target."""
    return z.softmax(-1).scatter_add(-1, target[:, None], torch.full_like(z[:, :1], -1.0))


def by_mean(p: Tensor, values: Tensor, mean: Tensor, slope: Tensor) -> Tensor:
    """Return the gradient ``[P, N]`` of ``slope · mean`` w.r.t. the logits; ``mean [P]`` is that of ``values [P, N]`` under p."""
    return p * (values - mean[:, None]).mul_(slope[:, None])


def reads_freely(tensor: Tensor) -> bool:
    """Whether shapes may depend on the values of a tensor: on a CPU, where reading them needs no sync."""
    return tensor.device.type == "cpu" and not torch.compiler.is_compiling()


def check_range(labels: Tensor, vocab_size: int, ignore_index: int) -> None:
    """Raise for a label that is outside the vocabulary and not ``ignore_index``."""
    if torch.compiler.is_compiling():
        return
    if labels.device.type == "cpu" and labels.numel():
        low, high = labels.aminmax()
        if low >= 0 and high < vocab_size:
            return
    wrong = ((labels < 0) | (labels >= vocab_size)) & (labels != ignore_index)
    if labels.device.type == "cpu":
        if bool(wrong.any()):
            raise ValueError(
                f"labels contains {int(labels[wrong][0])}: expected token ids in [0, {vocab_size}) or "
                f"ignore_index={ignore_index}. Check that the labels come from this model's tokenizer and use this ignore_index."
            )
    else:  # no sync
        torch._assert_async(~wrong.any(), f"labels contains ids outside [0, {vocab_size}) that are not ignore_index")


def refuse_second_derivative() -> None:
    """Raise in a backward pass that runs with ``create_graph=True``."""
    if torch.is_grad_enabled():
        raise RuntimeError(
            "second derivatives of this loss are not available (create_graph=True): its backward pass is not differentiable. "
            "Use F.cross_entropy and the numeric loss on float32 logits, which autograd can differentiate twice."
        )


def log_sum_exp(x: Tensor) -> Tensor:
    """Return the log-sum-exp ``[P]`` of ``x [P, N]``, in float64 for any dtype of ``x``.

    In float32, rounding a log-sum-exp near 50 changes a probability by four parts in a million. Here the maximum is exact and
    only the sum is rounded.
    """
    peak = x.detach().amax(-1, keepdim=True).clamp_min(torch.finfo(x.dtype).min)  # [P, 1]
    return (x - peak).exp().sum(-1).double().log() + peak[:, 0].double()


class _Rest(torch.autograd.Function):
    """:func:`rest_of_rows`, computed in chunks of rows, forward and backward."""

    @staticmethod
    def forward(ctx: Any, flat: Tensor, rows: Tensor | None, columns: Tensor) -> Tensor:
        ctx.save_for_backward(flat, rows, columns)
        return torch.cat([log_sum_exp(_without(flat[chunk], columns)) for chunk in row_chunks(flat, rows)])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        refuse_second_derivative()
        flat, rows, columns = ctx.saved_tensors
        out = torch.empty_like(flat) if rows is None else torch.zeros_like(flat)
        for chunk, upstream in zip(row_chunks(flat, rows), grad.split(chunk_rows(flat)), strict=True):
            others = _without(flat[chunk], columns)
            by_row = upstream[:, None].to(others.dtype)
            # Rows without a gradient may hold NaN.
            out[chunk] = torch.where(by_row == 0, 0.0, others.softmax(-1).mul_(by_row)).to(out.dtype)
        return out, None, None


def _without(rows: Tensor, columns: Tensor) -> Tensor:
    """Return ``rows [P, V]`` in float32 or wider, with the given columns set to the lowest finite number."""
    taken = torch.zeros(rows.shape[-1], dtype=torch.bool, device=rows.device).index_fill(0, columns, True)
    wider = rows.to(wide(rows.dtype))
    return torch.where(taken, torch.finfo(wider.dtype).min, wider)


def rest_of_rows(flat: Tensor, rows: Tensor | None, columns: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return the log-sum-exp ``[P]``, float64, of the given rows of ``flat [R, V]`` without ``columns``.

    Masked rows may contain any values.
    """
    if torch.compiler.is_compiling():
        others = _without(take(flat, rows), columns)
        return log_sum_exp(others if mask is None else torch.where(mask[:, None], others, 0.0))
    return _Rest.apply(flat, rows, columns)  # type: ignore[no-any-return, no-untyped-call]


def rest_of(z: Tensor, lse: Tensor) -> Tensor:
    """Return :func:`rest_of_rows` from the columns' logits ``z [P, N]`` and the log-sum-exp ``[P]`` of whole rows.

    Subtracts two rounded numbers: less accurate than :func:`rest_of_rows`, and at best as accurate as ``lse``.
    """
    lse = lse.double()
    share = -torch.expm1((log_sum_exp(z) - lse).clamp_max(0.0))  # probability of the rest in the row
    there = share > 0
    return torch.where(there, lse + torch.where(there, share, 1.0).log(), torch.finfo(z.dtype).min)


def chunk_rows(flat: Tensor, elements: int = 1 << 22) -> int:
    """Return how many rows of ``[R, V]`` have about four million entries."""
    return max(1, elements // max(1, flat.shape[-1]))


def row_chunks(flat: Tensor, rows: Tensor | None) -> list[Any]:
    """Return indices that split the given rows of ``flat [R, V]``, or all, into chunks of :func:`chunk_rows`; at least one."""
    step = chunk_rows(flat)
    if rows is not None:
        return list(rows.split(step))
    return [slice(start, start + step) for start in range(0, max(1, flat.shape[0]), step)]
