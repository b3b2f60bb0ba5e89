"""The objective from logits, with its gradient in a single buffer.

A numeric loss reads N columns of the logits and the log-sum-exp of all others, so the gradient of the objective is the softmax
that cross-entropy computes anyway, with a few entries changed. It is written into one buffer the size of the logits;
cross-entropy in torch allocates two.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from numerate.checks import check_logits
from numerate.losses.base import NumericLoss
from numerate.losses.logit_rows import (
    check_range,
    divide,
    log_sum_exp,
    reads_freely,
    refuse_second_derivative,
    rest_of_rows,
    take,
    wide,
)
from numerate.losses.target_tokens import Targets
from numerate.objective.batch import BatchLabels, ObjectiveOutput
from numerate.objective.device import rows_at_a_time
from numerate.objective.overrun import NumberEnds
from numerate.objective.rows_torch import scale_rows_
from numerate.objective.term import mean_mass, mean_mass_from_rest, numeric_gradient, rest_as_softmax_share
from numerate.objective.weighting import Weighting
from numerate.targets.soft_targets import SoftRows

LossParts = tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]  # loss, cross-entropy, numeric term, mass, overrun


class _TermInputs(NamedTuple):
    """Inputs of the objective other than logits and labels."""

    loss: NumericLoss
    weighting: Weighting
    targets: Targets
    token_weights: Tensor | None  # [R]
    soft: SoftRows | None
    num_items: Tensor
    num_units: Tensor
    with_mass: bool
    ends: NumberEnds | None  # positions of the overrun


def objective_from_logits(
    loss: NumericLoss, weighting: Weighting, logits: Tensor, batch: BatchLabels, *, with_mass: bool, with_overrun: bool
) -> ObjectiveOutput:
    """Return the objective of ``logits [.., T, V]``; see :class:`numerate.NumericObjective`."""
    check_logits(logits, batch.ids, loss.columns_needed)
    labels, device = batch.ids, logits.device
    check_range(labels, logits.shape[-1], loss.ignore_index)
    targets = loss.targets(labels, position_weights=batch.position_weights, position_ids=batch.position_ids)
    num_items, num_units = batch.num_items, batch.num_units
    num_items = batch.count_items(loss.ignore_index) if num_items is None else torch.as_tensor(num_items, device=device)
    num_units = loss.num_units(targets) if num_units is None else torch.as_tensor(num_units, device=device)
    flat, flat_labels = logits.reshape(-1, logits.shape[-1]), labels.reshape(-1)
    soft = None if batch.soft is None else batch.soft.rows(labels, loss.ignore_index).checked(logits.shape[-1])
    weights = None if batch.token_weights is None else batch.token_weights.reshape(-1)
    ends = NumberEnds.of(loss, labels, batch.position_ids) if with_overrun else None
    inputs = _TermInputs(loss, weighting, targets, weights, soft, num_items, num_units, with_mass, ends)
    parts: LossParts
    if torch.compiler.is_compiling():
        parts = _by_autograd(flat, flat_labels, inputs)
    else:
        flat = flat if torch.is_grad_enabled() else flat.detach()
        parts = _OneBuffer.apply(flat, flat_labels, inputs)  # type: ignore[no-untyped-call]
    value, ce, term, mass, overrun = parts
    num_ends = None if ends is None else torch.as_tensor(ends.num_ends, device=device)
    return ObjectiveOutput(value, ce.detach(), term.detach(), num_items, num_units, mass, overrun, num_ends)


def _by_autograd(flat: Tensor, labels: Tensor, inputs: _TermInputs) -> LossParts:
    """Compute the formula with autograd; torch.compile fuses it."""
    loss, weighting, targets, weights, soft, num_items, num_units, with_mass, ends = inputs
    # Rows without a label are zeroed: a NaN in them must reach neither value nor gradient.
    x = torch.where((labels != loss.ignore_index)[:, None], flat.to(wide(flat.dtype)), 0.0)
    smoothing = weighting.label_smoothing
    nll = F.cross_entropy(x, labels, ignore_index=loss.ignore_index, reduction="none", label_smoothing=smoothing)  # [R]
    if soft is not None:
        hard = F.cross_entropy(x, labels, ignore_index=loss.ignore_index, reduction="none")
        target = soft.cross_entropy(hard, torch.zeros_like(hard), x.log_softmax(-1)[soft.rows, soft.token_ids])
        nll = nll + (1 - smoothing) * (target - hard)
    ce = divide((nll if weights is None else nll * weights.to(nll.dtype)).sum(), num_items)
    z, rest = loss.select(flat, targets)
    term = divide(loss.per_row(z, rest, targets).sum(), weighting.denominator(num_items, num_units))
    mass = overrun = None
    if with_mass:
        rest = rest_of_rows(flat.detach(), targets.rows, loss.columns, targets.mask) if rest is None else rest.detach()
        mass = mean_mass_from_rest(loss, z.detach(), rest, targets)
    if ends is not None:
        overrun = ends.mean_mass_of_logits(x.detach(), x.detach().logsumexp(-1))
    return ce + weighting.factor(ce, term) * term, ce, term, mass, overrun


class _OneBuffer(torch.autograd.Function):
    """The objective of ``[R, V]`` logits. Forward computes their softmax; backward turns it into the gradient in place."""

    @staticmethod
    def forward(ctx: Any, flat: Tensor, labels: Tensor, inputs: _TermInputs) -> LossParts:
        loss, weighting, targets, weights, soft, num_items, num_units, with_mass, ends = inputs
        needs_grad, smoothing = ctx.needs_input_grad[0], weighting.label_smoothing
        valid = labels != loss.ignore_index
        softmax, top, log_total = _softmax(flat, valid, keep=needs_grad)
        label = torch.where(valid, labels, 0)
        # Subtract first: the log-sum-exp may be large where log p is not.
        log_p = flat.gather(1, label[:, None])[:, 0].to(top.dtype) - top - log_total  # [R]
        nll = -log_p
        if soft is not None:
            nll = soft.cross_entropy(nll, log_total, flat[soft.rows, soft.token_ids].to(top.dtype) - take(top, soft.rows))
        if smoothing:
            nll = (1 - smoothing) * nll + smoothing * (log_total - _row_means(flat, top))
        if weights is not None:
            nll = nll * weights.to(nll.dtype)
        ce = divide(torch.where(valid, nll, 0.0).sum(), num_items)

        z, rest = loss.select(flat, targets)
        total, dz, d_rest = numeric_gradient(loss, z, rest, targets, needs_grad=needs_grad)
        denominator = weighting.denominator(num_items, num_units)
        term = divide(total, denominator)
        factor = weighting.factor(ce, term)
        if needs_grad:
            assert softmax is not None and dz is not None
            numeric_share = factor * divide(torch.ones_like(term), denominator)
            each = torch.ones_like(ce) if weights is None else weights.to(ce.dtype)
            share = torch.where(valid, divide(each, num_items), 0.0)  # [R], weight of each row in the cross-entropy
            softmax_share: Tensor | None = None  # [R], factor of the softmax that the numeric term adds
            if d_rest is not None and rest is not None:
                per_row = numeric_share * rest_as_softmax_share(d_rest, -F.logsigmoid(rest - log_sum_exp(z)))
                per_row = targets.blank(per_row).to(share.dtype)
                softmax_share = per_row if targets.rows is None else torch.zeros_like(share).index_copy(0, targets.rows, per_row)
            # p - 1 at the label via expm1(log p), which is accurate for p close to 1.
            above_target = torch.expm1(log_p) + smoothing  # p - (1 - smoothing)
            if soft is not None:
                above_target = above_target + (1 - smoothing) * (1 - soft.gold).to(share.dtype)
            d_label = torch.where(valid, share * above_target - share * smoothing / flat.shape[-1], 0.0)
            dz = dz * numeric_share
            ctx.save_for_backward(flat, valid, label, share, softmax_share, d_label, targets.rows, loss.columns, dz)
            ctx.softmax, ctx.smoothing, ctx.soft, ctx.skips = softmax, smoothing, soft, reads_freely(flat)
        lse = top + log_total
        mass = mean_mass(loss, z, take(lse, targets.rows), targets) if with_mass else None
        overrun = None if ends is None else ends.mean_mass_of_logits(flat, lse)
        ctx.mark_non_differentiable(ce, term, *(figure for figure in (mass, overrun) if figure is not None))
        return ce + factor * term, ce, term, mass, overrun

    @staticmethod
    def backward(ctx: Any, upstream: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivative()
        flat, valid, label, share, softmax_share, d_label, rows, columns, dz = ctx.saved_tensors
        # The first backward turns the stored softmax into the gradient; with retain_graph=True, a second one recomputes it.
        softmax, ctx.softmax = ctx.softmax, None
        grad: Tensor = _softmax(flat, valid, keep=True)[0] if softmax is None else softmax  # type: ignore[assignment]
        numeric: Any = (slice(None), columns) if rows is None else (rows[:, None], columns)  # the entries [P, N]
        # softmax_share does not apply to the numeric columns.
        ce_grad: Tensor | None = None  # [P, N]
        if softmax_share is not None:
            own = (upstream * take(share, rows))[:, None]
            ce_grad = torch.where(own == 0, 0.0, grad[numeric] * own)
        per_row = (upstream * (share if softmax_share is None else share + softmax_share))[:, None]
        uniform = (upstream * share * (ctx.smoothing / grad.shape[1]))[:, None]
        step = rows_at_a_time(grad)
        pieces = (torch.split(tensor, step) for tensor in (grad, per_row, uniform))
        for chunk, factor, even in zip(*pieces, strict=True):
            if ctx.skips:  # rows without a label are zero
                chunk.mul_(factor)
            else:
                _scale_rows_of(chunk)(chunk, factor)
            if ctx.smoothing:
                chunk.sub_(even)
        if ce_grad is not None:
            grad[numeric] = (ce_grad - take(uniform, rows)).to(grad.dtype)
        every_row = torch.arange(grad.shape[0], device=grad.device)
        grad[every_row, label] = (upstream * d_label).to(grad.dtype)
        if (soft := ctx.soft) is not None:
            part = upstream * (ctx.smoothing - 1) * take(share, soft.rows) * soft.probabilities.to(share.dtype)
            grad.index_put_((soft.rows, soft.token_ids), part.to(grad.dtype), accumulate=True)
        if rows is None:
            grad.index_add_(1, columns, (upstream * dz).to(grad.dtype))
        else:
            grad[numeric] = (grad[numeric] + upstream * dz).to(grad.dtype)
        return grad, None, None


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


def _row_means(flat: Tensor, top: Tensor) -> Tensor:
    """Return the mean logit of each row ``[R]`` minus ``top [R]``."""
    step = rows_at_a_time(flat)
    chunks = zip(flat.split(step), top[:, None].split(step), strict=True)
    return torch.cat([(chunk.to(top.dtype) - highest).mean(-1) for chunk, highest in chunks])
