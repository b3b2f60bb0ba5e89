"""The objective from logits, with its gradient in a single buffer.

A numeric loss reads N columns of the logits and the log-sum-exp of all others, so the gradient of the objective is the softmax
that cross-entropy computes anyway, with a few entries changed. It is written into one buffer the size of the logits;
cross-entropy in torch allocates two.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from numerate.checks import check_logits, check_tensor
from numerate.losses.base import NumericLoss
from numerate.losses.logit_rows import check_range, divide, refuse_second_derivative, rest_of_rows, take, wide
from numerate.losses.target_tokens import Targets
from numerate.objective.batch import BatchLabels, ObjectiveOutput
from numerate.objective.cut_sequence import CutNumbers, CutSequence, whole_batch
from numerate.objective.logit_columns import Columns
from numerate.objective.overrun import NumberEnds
from numerate.objective.replay import replayed_from_labels, replays_labels
from numerate.objective.rows_of_logits import RowsRead, RowTargets, gradient_of_rows, read_rows
from numerate.objective.term import mean_mass, mean_mass_from_rest, numeric_gradient, softmax_share_of
from numerate.objective.weighting import Weighting

LossParts = tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]  # loss, cross-entropy, numeric term, mass, overrun


class TermInputs(NamedTuple):
    """Inputs of the objective other than logits and labels."""

    loss: NumericLoss
    weighting: Weighting
    targets: Targets
    token_weights: Tensor | None  # [R]
    row_targets: RowTargets
    num_items: Tensor
    num_units: Tensor
    with_mass: bool
    ends: NumberEnds | None  # positions of the overrun
    numbers: CutNumbers | None  # of sequences that are cut over processes
    replayed: tuple[Tensor, Tensor] | None  # numeric sum, and its gradient w.r.t. the numeric columns of all rows


def read_inputs(
    loss: NumericLoss,
    weighting: Weighting,
    logits: Tensor,
    batch: BatchLabels,
    columns: Columns,
    *,
    cut: CutSequence | None = None,
    with_mass: bool = False,
    with_overrun: bool = False,
    replays: bool = False,
) -> tuple[Tensor, Tensor, TermInputs]:
    """Check ``logits [.., T, V]`` and read the labels; return both by rows, and what the objective needs besides.

    ``replays`` permits a CUDA graph that reads the labels and computes the numeric term; the targets are then not known.
    """
    check_tensor("logits", logits, "[.., T, V]")
    vocab_size = columns.num_tokens(logits)
    check_logits(logits, batch.ids, loss.columns_needed, vocab_size)
    labels, device = batch.ids, logits.device
    columns.check("logits", labels, loss)
    check_range(labels, vocab_size, loss.ignore_index)
    num_items, num_units, numbers, whole = batch.num_items, batch.num_units, None, batch
    flat, flat_labels = logits.reshape(-1, logits.shape[-1]), labels.reshape(-1)
    replayed: tuple[Tensor, Tensor] | None = None
    if replays and cut is None and logits.requires_grad and torch.is_grad_enabled() and replays_labels(loss, labels):
        targets = Targets(None, flat_labels, None, None, labels.shape)  # all rows
        z, _ = columns.numeric(loss, flat.detach(), targets, None)
        total, dz, counted = replayed_from_labels(loss, z, labels, batch.position_weights, batch.position_ids)
        replayed = total, dz
        num_units = counted if num_units is None else torch.as_tensor(num_units, device=device)
    elif cut is None:
        targets = loss.targets(labels, position_weights=batch.position_weights, position_ids=batch.position_ids)
        num_units = loss.num_units(targets) if num_units is None else torch.as_tensor(num_units, device=device)
    else:
        whole = whole_batch(batch, cut)
        numbers = CutNumbers.read(loss, cut, whole, labels.shape[-1], device)
        targets = numbers.targets
        num_units = whole.count(loss)[1] if num_units is None else torch.as_tensor(num_units, device=device)
    num_items = whole.count_items(loss.ignore_index) if num_items is None else torch.as_tensor(num_items, device=device)
    soft = None if batch.soft is None else batch.soft.rows(labels, loss.ignore_index).checked(vocab_size)
    weights = None if batch.token_weights is None else batch.token_weights.reshape(-1)
    ends = NumberEnds.of(loss, labels, batch.position_ids) if with_overrun else None
    row_targets = RowTargets(loss.ignore_index, weighting.label_smoothing, soft, columns)
    inputs = TermInputs(loss, weighting, targets, weights, row_targets, num_items, num_units, with_mass, ends, numbers, replayed)
    return flat if torch.is_grad_enabled() else flat.detach(), flat_labels, inputs


def objective_from_logits(
    loss: NumericLoss,
    weighting: Weighting,
    logits: Tensor,
    batch: BatchLabels,
    columns: Columns,
    cut: CutSequence | None = None,
    *,
    with_mass: bool,
    with_overrun: bool,
) -> ObjectiveOutput:
    """Return the objective of ``logits [.., T, V]``; see :class:`numerate.NumericObjective`."""
    figures = {"with_mass": with_mass, "with_overrun": with_overrun}
    replays = not (with_mass or torch.compiler.is_compiling())
    flat, labels, inputs = read_inputs(loss, weighting, logits, batch, columns, cut=cut, replays=replays, **figures)
    compute: Callable[..., LossParts] = _by_autograd if torch.compiler.is_compiling() else _OneBuffer.apply
    value, ce, term, mass, overrun = compute(flat, labels, inputs)
    num_ends = None if inputs.ends is None else torch.as_tensor(inputs.ends.num_ends, device=flat.device)
    return ObjectiveOutput(value, ce.detach(), term.detach(), inputs.num_items, inputs.num_units, mass, overrun, num_ends)


objective_over_processes = torch.compiler.disable(objective_from_logits)


def _by_autograd(flat: Tensor, labels: Tensor, inputs: TermInputs) -> LossParts:
    """Compute the formula with autograd; torch.compile fuses it."""
    loss, weighting, targets, weights, row_targets, num_items, num_units, with_mass, ends, *_ = inputs
    soft = row_targets.soft
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
        overrun = ends.mean_mass_of_logits(x.detach(), x.detach().logsumexp(-1), row_targets.columns)
    return ce + weighting.factor(ce, term) * term, ce, term, mass, overrun


class _OneBuffer(torch.autograd.Function):
    """The objective of ``[R, V]`` logits. Forward computes their softmax; backward turns it into the gradient in place."""

    @staticmethod
    def forward(ctx: Any, flat: Tensor, labels: Tensor, inputs: TermInputs) -> LossParts:
        loss, weighting, targets, weights, row_targets, num_items, num_units, with_mass, ends, numbers, replayed = inputs
        needs_grad, columns = ctx.needs_input_grad[0], row_targets.columns
        read = read_rows(flat, labels, row_targets, loss, keep=needs_grad)
        nll = read.nll if weights is None else read.nll * weights.to(read.nll.dtype)
        ce = divide(torch.where(read.valid, nll, 0.0).sum(), num_items)

        if replayed is None:
            z, rest = columns.numeric(loss, flat, targets, read.rest)
            if numbers is None:
                total, dz, d_rest = numeric_gradient(loss, z, rest, targets, needs_grad=needs_grad)
            else:
                total, dz, d_rest = numbers.gradient(loss, z, rest, needs_grad=needs_grad)
        else:
            (total, dz), rest, d_rest = replayed, None, None
        denominator = weighting.denominator(num_items, num_units)
        term = divide(total, denominator)
        factor = weighting.factor(ce, term)
        if needs_grad:
            assert dz is not None
            numeric_share = factor * divide(torch.ones_like(term), denominator)
            each = torch.ones_like(ce) if weights is None else weights.to(ce.dtype)
            share = torch.where(read.valid, divide(each, num_items), 0.0)  # [R], weight of each row in the cross-entropy
            softmax_share: Tensor | None = None  # [R], factor of the softmax that the numeric term adds
            if d_rest is not None and rest is not None:
                softmax_share = softmax_share_of(numeric_share * d_rest, z, rest, targets, share)
            own_columns, dz = columns.own(loss, dz * numeric_share)
            ctx.save_for_backward(flat, share, softmax_share, targets.rows, own_columns, dz, *read._replace(softmax=None))
            ctx.softmax, ctx.targets = read.softmax, row_targets
        lse = read.top + read.log_total
        mass = mean_mass(loss, z, take(lse, targets.rows), targets) if with_mass else None
        overrun = None if ends is None else ends.mean_mass_of_logits(flat, lse, columns)
        ctx.mark_non_differentiable(ce, term, *(figure for figure in (mass, overrun) if figure is not None))
        return ce + factor * term, ce, term, mass, overrun

    @staticmethod
    def backward(ctx: Any, upstream: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivative()
        flat, share, softmax_share, rows, columns, dz, *read = ctx.saved_tensors
        softmax_share = None if softmax_share is None else upstream * softmax_share
        # The first backward turns the stored softmax into the gradient; with retain_graph=True, a second one recomputes it.
        softmax, ctx.softmax = ctx.softmax, None
        settled = flat, ctx.targets, RowsRead(*read)._replace(softmax=softmax)
        grad = gradient_of_rows(*settled, upstream * share, softmax_share, rows, columns, upstream * dz)
        return grad, None, None
