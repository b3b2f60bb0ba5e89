"""The pass over rows of logits in Triton: each program overwrites one row of logits with its gradient.

Triton launches a kernel on the current device, which need not be that of the logits: ``model.to("cuda:1")`` does not change it.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from numerate.objective.head import Head
from numerate.objective.rows_torch import RowSums

BLOCK = 16384  # entries of a row per iteration; fastest on an H200 for V = 49,152 and 128,256
LOG2E: tl.constexpr = tl.constexpr(1.4426950408889634)
LOWEST: tl.constexpr = tl.constexpr(-3.4028234663852886e38)  # stands for the maximum of a row that is all -inf


@triton.jit
def _shaped(x, bias, cols, inside, scale, softcap, HAS_BIAS: tl.constexpr, SCALED: tl.constexpr, CAPPED: tl.constexpr):
    """Apply bias, scale and soft-cap to raw logits."""
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
    share_stride,
    gold,
    softmax_share,
    bias,
    excluded,
    top_out,
    log_total_out,
    nll_out,
    log_rest_out,
    vocab_size,
    smoothing,
    scale,
    softcap,
    HAS_BIAS: tl.constexpr,
    HAS_GOLD: tl.constexpr,
    HAS_SOFTMAX_SHARE: tl.constexpr,
    HAS_EXCLUDED: tl.constexpr,
    SMOOTH: tl.constexpr,
    SCALED: tl.constexpr,
    CAPPED: tl.constexpr,
    WRITE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Compute the log-sum-exp of one row, then reread the row from cache and write its gradient in place."""
    row = tl.program_id(0).to(tl.int64)
    base = logits + row * row_stride
    label = tl.load(labels + row)
    # Read before it is overwritten: the reductions below act as barriers.
    at_label = _shaped(tl.load(base + label).to(tl.float32), bias, label, label >= 0, scale, softcap, HAS_BIAS, SCALED, CAPPED)

    top = -float("inf")
    total = 0.0
    rest = 0.0  # like total, without the excluded columns
    plain = 0.0  # sum of the logits, for label smoothing
    for start in range(0, vocab_size, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        inside = cols < vocab_size
        x = tl.load(base + cols, mask=inside, other=-float("inf"), eviction_policy="evict_last").to(tl.float32)
        x = _shaped(x, bias, cols, inside, scale, softcap, HAS_BIAS, SCALED, CAPPED)
        if SMOOTH:
            plain += tl.sum(tl.where(inside, x, 0.0), 0)
        x = tl.where(inside, x, -float("inf"))
        new_top = tl.maximum(tl.maximum(top, tl.max(x, 0)), LOWEST)
        # Subtract first: a rounded product of a large logit and log2(e) would be inaccurate.
        shrink = tl.exp2((top - new_top) * LOG2E)
        power = tl.exp2((x - new_top) * LOG2E)
        total = total * shrink + tl.sum(power, 0)
        if HAS_EXCLUDED:
            is_excluded = tl.load(excluded + cols, mask=inside, other=1)
            rest = rest * shrink + tl.sum(tl.where(is_excluded != 0, 0.0, power), 0)
        top = new_top
    log_total = tl.log2(total) / LOG2E
    nll = log_total - (at_label - top)
    if SMOOTH:
        nll = (1 - smoothing) * nll + smoothing * (log_total - (plain / vocab_size - top))
    tl.store(top_out + row, top)
    tl.store(log_total_out + row, log_total)
    tl.store(nll_out + row, nll)
    if HAS_EXCLUDED:
        tl.store(log_rest_out + row, tl.log2(rest) / LOG2E)

    if WRITE:
        weight = tl.load(share + row * share_stride)
        target = weight
        if HAS_GOLD:
            target *= tl.load(gold + row)
        per_p = weight
        if HAS_SOFTMAX_SHARE:
            per_p += tl.load(softmax_share + row)
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
            grad = tl.where(cols == label, grad - (1 - smoothing) * target, grad)
            if CAPPED:
                grad *= 1 - (x / softcap) * (x / softcap)
            if SCALED:
                grad *= scale
            tl.store(base + cols, grad.to(logits.dtype.element_ty), mask=inside)


@triton.jit
def _write_numeric_columns(
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
    share_stride,
    gold,
    numeric_share,
    size,
    vocab_size,
    smoothing,
    scale,
    softcap,
    HAS_GOLD: tl.constexpr,
    SMOOTH: tl.constexpr,
    SCALED: tl.constexpr,
    CAPPED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Write the gradient at the numeric columns of one row, or at a block of them."""
    p = tl.program_id(0).to(tl.int64)
    row = tl.load(rows + p)
    offsets = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < size
    column = tl.load(columns + offsets, mask=inside, other=0)
    weight = tl.load(share + row * share_stride)
    target = weight
    if HAS_GOLD:
        target *= tl.load(gold + row)
    x = tl.load(z + p * size + offsets, mask=inside, other=-float("inf"))
    grad = tl.exp(x - tl.load(top + row) - tl.load(log_total + row)) * weight
    grad += tl.load(dz + p * size + offsets, mask=inside, other=0.0) * tl.load(numeric_share)
    if SMOOTH:
        grad -= smoothing * weight / vocab_size
    grad = tl.where(column == tl.load(labels + row), grad - (1 - smoothing) * target, grad)
    if CAPPED:
        grad *= 1 - (x / softcap) * (x / softcap)
    if SCALED:
        grad *= scale
    tl.store(logits + row * row_stride + column, grad.to(logits.dtype.element_ty), mask=inside)


@triton.jit
def _rescale(tensor, factor, size, BLOCK: tl.constexpr):
    """Multiply by a factor on the device; return at once if it is one."""
    by = tl.load(factor)
    if by != 1.0:
        offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        inside = offsets < size
        value = tl.load(tensor + offsets, mask=inside).to(tl.float32) * by
        tl.store(tensor + offsets, value.to(tensor.dtype.element_ty), mask=inside)


@triton.jit
def _gradient_of_rows(
    logits, row_stride, grad, top, log_total, factors, uniform, size, SMOOTH: tl.constexpr, BLOCK: tl.constexpr
):
    """Write the softmax of a row times its factor. A factor of 0 writes zeros without reading, which removes NaN."""
    row = tl.program_id(0).to(tl.int64)
    by = tl.load(factors + row)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < size
    value = tl.zeros((BLOCK,), tl.float32)
    if by != 0.0:
        x = tl.load(logits + row * row_stride + columns, mask=inside, other=-float("inf")).to(tl.float32)
        value = tl.exp2((x - tl.load(top + row) - tl.load(log_total + row)) * LOG2E) * by
    if SMOOTH:
        value -= tl.load(uniform + row)
    tl.store(grad + row * size + columns, value.to(grad.dtype.element_ty), mask=inside)


def _settings(head: Head, smoothing: float) -> tuple[tuple[float, float, float], dict[str, bool]]:
    """Return smoothing, scale and soft-cap for both kernels, and which of them are set."""
    values = smoothing, 1.0 if head.scale is None else head.scale, 1.0 if head.softcap is None else head.softcap
    return values, {"SMOOTH": smoothing > 0, "SCALED": head.scale is not None, "CAPPED": head.softcap is not None}


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
) -> RowSums:
    """See :func:`numerate.objective.rows_torch.cross_entropy_rows_`; ``share`` and ``gold`` are float32."""
    rows, vocab_size = logits.shape
    assert logits.stride(1) == 1 and labels.shape == (rows,) and labels.is_contiguous()
    assert _fits(share, rows) and (gold is None or _fits(gold, rows))
    assert excluded is None or (excluded.shape == (vocab_size,) and excluded.dtype == torch.bool)
    top, log_total, nll, log_rest = torch.empty((4, rows), dtype=torch.float32, device=logits.device)
    block = min(BLOCK, triton.next_power_of_2(vocab_size))
    # Kernels do not accept None: pass any tensor as a placeholder.
    optional = (
        top if gold is None else gold,
        top if softmax_share is None else softmax_share,
        logits if head.bias is None else head.bias,
        labels if excluded is None else excluded.view(torch.int8),
    )
    values, flags = _settings(head, smoothing)
    outputs = top, log_total, nll, log_rest
    with torch.cuda.device_of(logits):
        _cross_entropy_rows[(rows,)](
            *(logits, logits.stride(0), labels, share, share.dim(), *optional, *outputs, vocab_size, *values),
            HAS_BIAS=head.bias is not None,
            HAS_GOLD=gold is not None,
            HAS_SOFTMAX_SHARE=softmax_share is not None,
            HAS_EXCLUDED=excluded is not None,
            WRITE=write,
            BLOCK=block,
            num_warps=max(4, min(32, block // 512)),
            **flags,
        )
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
    """See :func:`numerate.objective.rows_torch.write_numeric_columns_`."""
    size = columns.shape[0]
    assert z.is_contiguous() and z.shape == dz.shape == (rows.shape[0], size) and rows.is_contiguous()
    if not rows.shape[0]:
        return
    block = min(1024, triton.next_power_of_2(size))
    values, flags = _settings(head, smoothing)
    assert _fits(share, logits.shape[0]) and (gold is None or _fits(gold, logits.shape[0]))
    shares = (share, share.dim(), share if gold is None else gold, numeric_share)
    inputs = (rows, columns, z, dz.contiguous(), sums.top, sums.log_total, labels, *shares)
    with torch.cuda.device_of(logits):
        _write_numeric_columns[(rows.shape[0], triton.cdiv(size, block))](
            *(logits, logits.stride(0), *inputs, size, logits.shape[1], *values),
            HAS_GOLD=gold is not None,
            BLOCK=block,
            num_warps=max(1, min(4, block // 128)),
            **flags,
        )


def _fits(factor: Tensor, rows: int) -> bool:
    """Whether a kernel can read the factor of each row: a 0-d or contiguous ``[R]`` tensor."""
    return factor.dtype == torch.float32 and (factor.dim() == 0 or (factor.shape == (rows,) and factor.is_contiguous()))


def rescale_(tensor: Tensor, factor: Tensor) -> None:
    """Multiply ``tensor`` by ``factor`` in place. The kernel skips a factor of one, without a sync."""
    assert tensor.is_contiguous()
    block = 16384
    with torch.cuda.device_of(tensor):
        _rescale[(triton.cdiv(tensor.numel(), block),)](tensor, factor, tensor.numel(), BLOCK=block)


def log_sum_exp_of_rows(rows: Tensor, columns: Tensor, left_out: Tensor | None) -> RowSums:
    """Return the sums of ``rows [R, V]``; ``columns [R]`` may be any of theirs, ``left_out [N]`` are not in ``log_rest``."""
    share = torch.empty((), dtype=torch.float32, device=rows.device)  # not read
    excluded: Tensor | None = None
    if left_out is not None:
        excluded = torch.zeros(rows.shape[1], dtype=torch.bool, device=rows.device).index_fill_(0, left_out, True)
    return cross_entropy_rows_(rows, columns, share, None, Head(rows), 0.0, write=False, excluded=excluded)


def gradient_of_rows(rows: Tensor, top: Tensor, log_total: Tensor, factors: Tensor, uniform: Tensor | None) -> Tensor:
    """Return ``exp(rows - top - log_total) · factors - uniform`` for ``rows [R, V]``, and 0 for a factor of 0 even for NaN."""
    count, size = rows.shape
    grad = torch.empty((count, size), dtype=rows.dtype, device=rows.device)
    if count and size:
        block = min(4096, triton.next_power_of_2(size))
        sums = top.contiguous(), log_total.contiguous(), factors.contiguous()
        with torch.cuda.device_of(rows):
            _gradient_of_rows[(count, triton.cdiv(size, block))](
                *(rows, rows.stride(0), grad, *sums, top if uniform is None else uniform, size),
                SMOOTH=uniform is not None,
                BLOCK=block,
            )
    return grad
