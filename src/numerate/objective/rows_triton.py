"""The Triton side of the fused operator: one pass per row turns logits into the gradient of their cross-entropy."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from numerate.objective.head import Head
from numerate.objective.rows_torch import RowSums

BLOCK = 16384  # entries of a row at a time; the fastest of a sweep on an H200, for rows of 49,152 and of 128,256
LOG2E: tl.constexpr = tl.constexpr(1.4426950408889634)
LOWEST: tl.constexpr = tl.constexpr(-3.4028234663852886e38)  # a row of -inf alone has this as its largest logit


@triton.jit
def _shaped(x, bias, cols, inside, scale, softcap, HAS_BIAS: tl.constexpr, SCALED: tl.constexpr, CAPPED: tl.constexpr):
    """Bias, scale and soft-cap of raw logits."""
    if HAS_BIAS:
        x += tl.load(bias + cols, mask=inside, other=0.0).to(tl.float32)
    if SCALED:
        x *= scale
    if CAPPED:
        x = softcap * (1 - 2 / (tl.exp(2 * x / softcap) + 1))
    return x


@triton.jit
def _cross_entropy_rows(
    logits,
    row_stride,
    labels,
    share,
    by_softmax,
    bias,
    without,
    top_out,
    log_total_out,
    nll_out,
    log_rest_out,
    vocab_size,
    smoothing,
    scale,
    softcap,
    HAS_BIAS: tl.constexpr,
    HAS_BY_SOFTMAX: tl.constexpr,
    HAS_WITHOUT: tl.constexpr,
    SMOOTH: tl.constexpr,
    SCALED: tl.constexpr,
    CAPPED: tl.constexpr,
    WRITE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One row: its log-sum-exp as it is read, then, read again from the cache, its gradient in place."""
    row = tl.program_id(0).to(tl.int64)
    base = logits + row * row_stride
    label = tl.load(labels + row)
    # Read before anything is written over it: the reductions below are barriers between the two.
    at_label = _shaped(tl.load(base + label).to(tl.float32), bias, label, label >= 0, scale, softcap, HAS_BIAS, SCALED, CAPPED)

    top = -float("inf")
    total = 0.0
    rest = 0.0  # of the total, that of the columns that are not left out
    plain = 0.0  # sum of the logits, for smoothing
    for start in range(0, vocab_size, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        inside = cols < vocab_size
        x = tl.load(base + cols, mask=inside, other=-float("inf"), eviction_policy="evict_last").to(tl.float32)
        x = _shaped(x, bias, cols, inside, scale, softcap, HAS_BIAS, SCALED, CAPPED)
        if SMOOTH:
            plain += tl.sum(tl.where(inside, x, 0.0), 0)
        x = tl.where(inside, x, -float("inf"))
        new_top = tl.maximum(tl.maximum(top, tl.max(x, 0)), LOWEST)
        # Differences first: a large logit times log2(e) would be rounded by more than its softmax can bear.
        shrink = tl.exp2((top - new_top) * LOG2E)
        power = tl.exp2((x - new_top) * LOG2E)
        total = total * shrink + tl.sum(power, 0)
        if HAS_WITHOUT:
            left_out = tl.load(without + cols, mask=inside, other=1)
            rest = rest * shrink + tl.sum(tl.where(left_out != 0, 0.0, power), 0)
        top = new_top
    log_total = tl.log2(total) / LOG2E
    nll = log_total - (at_label - top)
    if SMOOTH:
        nll = (1 - smoothing) * nll + smoothing * (log_total - (plain / vocab_size - top))
    tl.store(top_out + row, top)
    tl.store(log_total_out + row, log_total)
    tl.store(nll_out + row, nll)
    if HAS_WITHOUT:
        tl.store(log_rest_out + row, tl.log2(rest) / LOG2E)

    if WRITE:
        weight = tl.load(share)
        per_p = weight
        if HAS_BY_SOFTMAX:
            per_p += tl.load(by_softmax + row)
        per_p = per_p / total
        even = smoothing * weight / vocab_size
        for start in range(0, vocab_size, BLOCK):
            cols = start + tl.arange(0, BLOCK)
            inside = cols < vocab_size
            x = tl.load(base + cols, mask=inside, other=-float("inf"), eviction_policy="evict_first").to(tl.float32)
            x = _shaped(x, bias, cols, inside, scale, softcap, HAS_BIAS, SCALED, CAPPED)
            grad = tl.exp2((x - top) * LOG2E) * per_p
            if SMOOTH:
                grad -= even
            grad = tl.where(cols == label, grad - (1 - smoothing) * weight, grad)
            if CAPPED:
                grad *= 1 - (x / softcap) * (x / softcap)
            if SCALED:
                grad *= scale
            tl.store(base + cols, grad.to(logits.dtype.element_ty), mask=inside)


@triton.jit
def _join(
    logits,
    row_stride,
    rows,
    columns,
    z,
    dz,
    top,
    log_total,
    labels,
    share,
    numeric_share,
    size,
    vocab_size,
    smoothing,
    scale,
    softcap,
    SMOOTH: tl.constexpr,
    SCALED: tl.constexpr,
    CAPPED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The numeric columns of one row, or a block of them."""
    p = tl.program_id(0).to(tl.int64)
    row = tl.load(rows + p)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    column = tl.load(columns + at, mask=inside, other=0)
    weight = tl.load(share)
    x = tl.load(z + p * size + at, mask=inside, other=-float("inf"))
    grad = tl.exp(x - tl.load(top + row) - tl.load(log_total + row)) * weight
    grad += tl.load(dz + p * size + at, mask=inside, other=0.0) * tl.load(numeric_share)
    if SMOOTH:
        grad -= smoothing * weight / vocab_size
    grad = tl.where(column == tl.load(labels + row), grad - (1 - smoothing) * weight, grad)
    if CAPPED:
        grad *= 1 - (x / softcap) * (x / softcap)
    if SCALED:
        grad *= scale
    tl.store(logits + row * row_stride + column, grad.to(logits.dtype.element_ty), mask=inside)


@triton.jit
def _scale(tensor, factor, size, BLOCK: tl.constexpr):
    """Multiply by a factor that lies on the device, and leave at once where it is one."""
    by = tl.load(factor)
    if by != 1.0:
        at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        inside = at < size
        value = tl.load(tensor + at, mask=inside).to(tl.float32) * by
        tl.store(tensor + at, value.to(tensor.dtype.element_ty), mask=inside)


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
) -> RowSums:
    """See :func:`numerate.objective.rows_torch.cross_entropy_rows_`; ``share`` is a 0-d float32 tensor."""
    rows, vocab_size = logits.shape
    assert logits.stride(1) == 1 and labels.shape == (rows,) and share.numel() == 1
    assert without is None or (without.shape == (vocab_size,) and without.dtype == torch.bool)
    top, log_total, nll, log_rest = torch.empty((4, rows), dtype=torch.float32, device=logits.device)
    block = min(BLOCK, triton.next_power_of_2(vocab_size))
    _cross_entropy_rows[(rows,)](
        logits,
        logits.stride(0),
        labels,
        share,
        top if by_softmax is None else by_softmax,
        logits if head.bias is None else head.bias,
        labels if without is None else without.view(torch.int8),
        top,
        log_total,
        nll,
        log_rest,
        vocab_size,
        smoothing,
        1.0 if head.scale is None else head.scale,
        1.0 if head.softcap is None else head.softcap,
        HAS_BIAS=head.bias is not None,
        HAS_BY_SOFTMAX=by_softmax is not None,
        HAS_WITHOUT=without is not None,
        SMOOTH=smoothing > 0,
        SCALED=head.scale is not None,
        CAPPED=head.softcap is not None,
        WRITE=write,
        BLOCK=block,
        num_warps=max(4, min(32, block // 512)),
    )
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
    """See :func:`numerate.objective.rows_torch.join_`."""
    size = columns.shape[0]
    assert z.is_contiguous() and z.shape == dz.shape == (rows.shape[0], size) and rows.is_contiguous()
    if not rows.shape[0]:
        return
    block = min(1024, triton.next_power_of_2(size))
    _join[(rows.shape[0], triton.cdiv(size, block))](
        logits,
        logits.stride(0),
        rows,
        columns,
        z,
        dz.contiguous(),
        top,
        log_total,
        labels,
        share,
        numeric_share,
        size,
        logits.shape[1],
        smoothing,
        1.0 if head.scale is None else head.scale,
        1.0 if head.softcap is None else head.softcap,
        SMOOTH=smoothing > 0,
        SCALED=head.scale is not None,
        CAPPED=head.softcap is not None,
        BLOCK=block,
        num_warps=max(1, min(4, block // 128)),
    )


def rescale_(tensor: Tensor, factor: Tensor) -> None:
    """``tensor *= factor``, in place, without reading the tensor where the factor is one, and without waiting to know."""
    assert tensor.is_contiguous()
    block = 16384
    _scale[(triton.cdiv(tensor.numel(), block),)](tensor, factor, tensor.numel(), BLOCK=block)
