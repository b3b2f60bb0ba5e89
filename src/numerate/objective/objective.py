"""NumericObjective: cross-entropy plus a numeric term, and how both are normalised.

    loss = CE_sum / num_items + weight · numeric_sum / num_units

Both sums run over the batch at hand; both counts may be those of a whole optimizer step, over all its micro-batches and
processes, so that any split of a batch gives the same gradient.

A numeric loss reads N columns of the logits and the log-sum-exp of all others, nothing else. So the gradient of the whole
is the softmax that cross-entropy needs anyway, with a few entries added: it is written once, into one buffer the size of
the logits, where cross-entropy alone would take two.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from numerate.checks import check_choice, check_count, check_labels, check_logits, check_number, choices
from numerate.losses.base import NumericLoss
from numerate.losses.rows import (
    check_range,
    chunk_rows,
    divide,
    log_sum_exp,
    refuse_second_derivative,
    rest_of,
    rest_of_rows,
    take,
    wide,
)
from numerate.losses.targets import Targets

Normalize = Literal["numeric", "tokens"]
Scale = Literal["fixed", "match_ce"]

_MATCH_EPS = 1e-10  # as in NTIL's published code
_MOST = 700.0  # the largest exponent whose exponential float64 holds; beyond it the gradient is zero


@dataclass(frozen=True)
class ObjectiveOutput:
    """A step's loss and its parts. Only ``loss`` carries a gradient; the parts are for logs."""

    loss: Tensor
    cross_entropy: Tensor
    numeric: Tensor
    num_items: Tensor
    num_units: Tensor
    mass: Tensor | None = None  # mean probability of the numeric tokens, where the label is one; only if asked for


class NumericObjective(nn.Module):
    """Cross-entropy plus ``weight`` times a numeric loss.

    Args:
        loss: a numeric loss, such as ``SMMDLoss(vocab)``.
        weight: λ, how much the numeric term counts.
        normalize: ``"numeric"`` divides the numeric term by the numeric positions (or numbers), ``"tokens"`` by all
            label tokens, so that a batch with few numbers feels it less.
        scale: ``"fixed"``, or ``"match_ce"``: the numeric term is rescaled, without gradient, to ``weight`` times the
            cross-entropy, as NTIL's published code does. That factor belongs to the batch at hand, so here a split into
            micro-batches does change the gradient.
        label_smoothing: of the cross-entropy, as in ``F.cross_entropy``.

    Example:
        >>> from numerate import NumericVocab, SMMDLoss
        >>> vocab = NumericVocab.from_texts({str(d): d for d in range(10)}, vocab_size=12)
        >>> objective = NumericObjective(SMMDLoss(vocab), weight=0.3)
        >>> logits = torch.zeros(1, 4, 12, requires_grad=True)
        >>> out = objective(logits, torch.tensor([[11, 4, 2, -100]]))
        >>> out.loss.backward()
        >>> int(out.num_items), int(out.num_units)
        (3, 2)
    """

    def __init__(
        self,
        loss: NumericLoss,
        weight: float = 0.3,
        normalize: Normalize = "numeric",
        scale: Scale = "fixed",
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__()
        if not isinstance(loss, NumericLoss):
            raise TypeError(f"loss is a {type(loss).__name__}: expected a numeric loss such as SMMDLoss(vocab).")
        check_choice("normalize", normalize, choices(Normalize))
        check_choice("scale", scale, choices(Scale))
        self.numeric_loss = loss
        self.weight = check_number("weight", weight, least=0.0)
        self.normalize: Normalize = normalize
        self.scale: Scale = scale
        self.label_smoothing = check_number("label_smoothing", label_smoothing, least=0.0)
        if self.label_smoothing >= 1:
            raise ValueError(f"label_smoothing={label_smoothing!r} is out of range: expected a share in [0, 1).")

    @property
    def ignore_index(self) -> int:
        """Label of positions to skip: a setting of the numeric loss."""
        return self.numeric_loss.ignore_index

    def count(
        self, labels: Tensor, *, position_weights: Tensor | None = None, position_ids: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """``num_items`` and ``num_units`` of these labels: sum them over a step's batches and pass them to each."""
        labels = check_labels(labels)
        numeric = self.numeric_loss.count(labels, position_weights=position_weights, position_ids=position_ids)
        return (labels != self.ignore_index).sum(), numeric

    def forward(
        self,
        logits: Tensor,
        labels: Tensor,
        *,
        num_items: int | Tensor | None = None,
        num_units: int | float | Tensor | None = None,
        position_weights: Tensor | None = None,
        position_ids: Tensor | None = None,
        with_mass: bool = False,
    ) -> ObjectiveOutput:
        """The objective of ``logits [.., T, V]`` for ``labels [.., T]`` that are ALIGNED with them.

        Args:
            logits: scores of any floating dtype.
            labels: token ids, or ``ignore_index``.
            num_items: label tokens to divide the cross-entropy by; this batch's own unless given.
            num_units: numeric positions (or numbers) to divide the numeric term by; this batch's own unless given.
            position_weights: ``[.., T]``, how much each position counts in the numeric term.
            position_ids: ``[.., T]`` for packed sequences; a 0 begins a new document.
            with_mass: also tell how much probability the numeric tokens have where they should, for logs.
        """
        labels = check_labels(labels)
        check_logits(logits, labels, self.numeric_loss.columns_needed)
        check_range(labels, logits.shape[-1], self.ignore_index)
        targets = self.numeric_loss.targets(labels, position_weights=position_weights, position_ids=position_ids)
        device = logits.device
        if num_items is not None:
            check_count("num_items", num_items, lambda: (labels != self.ignore_index).sum())
        if num_units is not None:
            check_count("num_units", num_units, lambda: self.numeric_loss.num_units(targets))
        items = (labels != self.ignore_index).sum() if num_items is None else torch.as_tensor(num_items, device=device)
        numeric = self.numeric_loss.num_units(targets) if num_units is None else torch.as_tensor(num_units, device=device)
        flat, flat_labels = logits.reshape(-1, logits.shape[-1]), labels.reshape(-1)
        joined = self._by_autograd if torch.compiler.is_compiling() else self._in_one_buffer
        loss, ce_part, numeric_part, mass = joined(flat, flat_labels, targets, items, numeric, with_mass)
        return ObjectiveOutput(loss, ce_part.detach(), numeric_part.detach(), items, numeric, mass if with_mass else None)

    def fused(
        self,
        hidden: Tensor,
        weight: Tensor,
        labels: Tensor,
        bias: Tensor | None = None,
        *,
        num_items: int | Tensor | None = None,
        num_units: int | float | Tensor | None = None,
        position_weights: Tensor | None = None,
        position_ids: Tensor | None = None,
        logit_scale: float | None = None,
        softcap: float | None = None,
        impl: Literal["auto", "torch", "triton"] = "auto",
        max_logits_mib: float | None = None,
        accumulate: Literal["float32", "weight"] = "float32",
        with_mass: bool = False,
    ) -> ObjectiveOutput:
        """The same objective of ``hidden [.., T, H]`` and a head ``weight [V, H]``, without logits of the whole batch.

        Loss and gradients are those of ``objective(hidden @ weight.T + bias, labels)``. Rows without a label cost nothing;
        a head that does not require a gradient costs neither its product nor its memory.

        Args:
            hidden: the model's last hidden states, aligned with the labels.
            weight: of the head, as it is (tied embeddings too).
            labels: token ids, or ``ignore_index``.
            bias: of the head, ``[V]``.
            num_items: as in :meth:`forward`.
            num_units: as in :meth:`forward`.
            position_weights: as in :meth:`forward`.
            position_ids: as in :meth:`forward`.
            logit_scale: logits are multiplied by it, as Cohere's and Granite's are.
            softcap: logits become ``softcap · tanh(logits / softcap)``, as Gemma's do, after the scale.
            impl: ``"triton"`` needs CUDA and bfloat16, float16 or float32; ``"torch"`` runs anywhere; ``"auto"`` chooses.
            max_logits_mib: how much memory logits may take at a time. None: a sixty-fourth of a GPU's, 64 MiB elsewhere.
            accumulate: dtype in which the head's gradient is summed over chunks: ``"float32"``, or the ``"weight"``'s own,
                which takes half the memory for a half-precision head.
            with_mass: as in :meth:`forward`.
        """
        from numerate.objective.from_hidden import fused_objective

        output: ObjectiveOutput = fused_objective(
            self,
            hidden,
            weight,
            labels,
            bias,
            num_items=num_items,
            num_units=num_units,
            position_weights=position_weights,
            position_ids=position_ids,
            logit_scale=logit_scale,
            softcap=softcap,
            impl=impl,
            max_logits_mib=max_logits_mib,
            accumulate=accumulate,
            with_mass=with_mass,
        )
        return output

    def denominator(self, items: float | Tensor, numeric: float | Tensor) -> float | Tensor:
        """What the numeric sum is divided by."""
        return numeric if self.normalize == "numeric" else items

    def factor(self, ce: Tensor | None, numeric: Tensor) -> Tensor | float:
        """What the normalised numeric term is multiplied by; carries no gradient. A fixed scale looks at neither."""
        if self.scale == "fixed":
            return self.weight
        assert ce is not None
        return self.weight * (ce / (numeric + _MATCH_EPS)).detach()

    def _by_autograd(
        self, flat: Tensor, labels: Tensor, targets: Targets, items: Tensor, numeric: Tensor, with_mass: bool
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """The plain formula; a compiler fuses it by itself."""
        ce_sum = F.cross_entropy(
            flat.to(wide(flat.dtype)),
            labels,
            ignore_index=self.ignore_index,
            reduction="sum",
            label_smoothing=self.label_smoothing,
        )
        ce = divide(ce_sum, items)
        loss = self.numeric_loss
        z, rest = loss.select(flat, targets)
        term = divide(loss.per_row(z, rest, targets).sum(), self.denominator(items, numeric))
        mass = None
        if with_mass:
            rest = rest_of_rows(take(flat.detach(), targets.rows), loss.columns, targets.mask) if rest is None else rest.detach()
            mass = _mean_mass(loss, z.detach(), rest, targets)
        return ce + self.factor(ce, term) * term, ce, term, mass

    def _in_one_buffer(
        self, flat: Tensor, labels: Tensor, targets: Targets, items: Tensor, numeric: Tensor, with_mass: bool
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """The same, with one gradient written by hand."""
        flat = flat if torch.is_grad_enabled() else flat.detach()
        results: tuple[Tensor, Tensor, Tensor, Tensor | None]
        results = _OneBuffer.apply(flat, labels, self, targets, items, numeric, with_mass)  # type: ignore[no-untyped-call]
        return results

    def extra_repr(self) -> str:
        """Shown by ``repr(objective)``."""
        return f"weight={self.weight}, normalize={self.normalize!r}, scale={self.scale!r}"


def numeric_gradient(
    loss: NumericLoss, z: Tensor, rest: Tensor | None, targets: Targets, *, needs_grad: bool
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """The numeric sum, and its gradients by ``z [P, N]`` and ``rest [P]`` if they are needed, apart from any graph."""
    with torch.no_grad(), torch.autocast(z.device.type, enabled=False):
        if needs_grad:
            return loss.value_and_grad(z, rest, targets)
        return loss.per_row(z, rest, targets).sum(), None, None


def by_softmax(d_rest: Tensor, log_ratio: Tensor) -> Tensor:
    """The gradient ``[P]`` by the log-sum-exp of the rest as a factor of the whole row's softmax, float64.

    ``log_ratio [P]`` is the log-sum-exp of the whole row less that of the rest.
    """
    return d_rest.double() * log_ratio.double().clamp_max(_MOST).exp()


def mean_mass(loss: NumericLoss, z: Tensor, lse: Tensor, targets: Targets) -> Tensor:
    """Mean probability of the numeric tokens over the rows ``[P]`` whose label is one, by their log-sum-exp."""
    return _mean_mass(loss, z, rest_of(targets.blank(z), targets.blank(lse)), targets)


def _mean_mass(loss: NumericLoss, z: Tensor, rest: Tensor, targets: Targets) -> Tensor:
    mass = loss.log_mass(targets.blank(z), targets.blank(rest)).exp().to(z.dtype)
    return divide(targets.blank(mass).sum(), targets.slots if targets.mask is None else targets.mask.sum())


class _OneBuffer(torch.autograd.Function):
    """Cross-entropy and numeric term of ``[R, V]`` logits; forward fills the softmax, backward turns it into the gradient."""

    @staticmethod
    def forward(
        ctx: Any,
        flat: Tensor,
        labels: Tensor,
        objective: NumericObjective,
        targets: Targets,
        items: Tensor,
        numeric: Tensor,
        with_mass: bool,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        needs_grad = ctx.needs_input_grad[0]
        valid = labels != objective.ignore_index
        softmax, lse = _softmax(flat, valid, keep=needs_grad)
        safe = torch.where(valid, labels, 0)
        log_p = flat.gather(1, safe[:, None])[:, 0].to(lse.dtype) - lse  # [R]
        smoothing = objective.label_smoothing
        nll = -log_p
        if smoothing:
            nll = (1 - smoothing) * nll + smoothing * (lse - _row_means(flat))
        ce = divide(torch.where(valid, nll, 0.0).sum(), items)

        loss = objective.numeric_loss
        z, rest = loss.select(flat, targets)
        total, dz, d_rest = numeric_gradient(loss, z, rest, targets, needs_grad=needs_grad)
        count = objective.denominator(items, numeric)
        term = divide(total, count)
        factor = objective.factor(ce, term)
        if needs_grad:
            assert softmax is not None and dz is not None
            scale = factor * divide(torch.ones_like(term), count)  # of the numeric sum
            share = torch.where(valid, divide(torch.ones_like(ce), items), 0.0)  # [R], of each row in the cross-entropy
            by_rest: Tensor | None = None  # [R], what the numeric term wants of the softmax beyond its columns
            if d_rest is not None and rest is not None:
                rows_want = scale * by_softmax(d_rest, -F.logsigmoid(rest - log_sum_exp(z)))
                rows_want = targets.blank(rows_want).to(share.dtype)
                by_rest = rows_want if targets.rows is None else torch.zeros_like(share).index_copy(0, targets.rows, rows_want)
            # p - 1 at the label, from its logarithm: exact where p is nearly one, which a rounded softmax is not.
            at_label = share * (torch.expm1(log_p) + smoothing) - share * smoothing / flat.shape[-1]
            at_label = torch.where(valid, at_label, 0.0)
            ctx.save_for_backward(flat, valid, safe, share, by_rest, at_label, targets.rows, loss.columns, dz * scale)
            ctx.softmax, ctx.smoothing = softmax, smoothing
        value = ce + factor * term
        mass = mean_mass(loss, z, take(lse, targets.rows), targets) if with_mass else None
        ctx.mark_non_differentiable(ce, term, *(() if mass is None else (mass,)))
        return value, ce, term, mass

    @staticmethod
    def backward(ctx: Any, upstream: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivative()
        flat, valid, label, share, by_rest, at_label, rows, columns, dz = ctx.saved_tensors
        # The first call turns the softmax itself into the gradient; a graph that was retained makes another.
        softmax, ctx.softmax = ctx.softmax, None
        grad: Tensor = _softmax(flat, valid, keep=True)[0] if softmax is None else softmax  # type: ignore[assignment]
        at: Any = (slice(None), columns) if rows is None else (rows[:, None], columns)
        columns_apart = None if by_rest is None else grad[at] * (upstream * take(share, rows))[:, None]  # [P, N]
        per_row = (upstream * (share if by_rest is None else share + by_rest))[:, None]
        uniform = (upstream * share * (ctx.smoothing / grad.shape[1]))[:, None]
        step = rows_at_a_time(grad)
        pieces = (torch.split(tensor, step) for tensor in (grad, per_row, uniform))
        for chunk, factor, even in zip(*pieces, strict=True):
            chunk.mul_(factor)
            if ctx.smoothing:
                chunk.sub_(even)
        if columns_apart is not None:
            grad[at] = (columns_apart - take(uniform, rows)).to(grad.dtype)
        every = torch.arange(grad.shape[0], device=grad.device)
        grad[every, label] = (upstream * at_label).to(grad.dtype)
        if rows is None:
            grad.index_add_(1, columns, (upstream * dz).to(grad.dtype))
        else:
            grad[at] = (grad[at] + upstream * dz).to(grad.dtype)
        return grad, *(None,) * 6


def rows_at_a_time(flat: Tensor) -> int:
    """Rows to work on at a time: what a CPU's cache holds, or what keeps a GPU busy."""
    return chunk_rows(flat, 1 << 20 if flat.device.type == "cpu" else 1 << 26)


def _softmax(flat: Tensor, valid: Tensor, *, keep: bool) -> tuple[Tensor | None, Tensor]:
    """Row softmax ``[R, V]`` in the dtype of the logits (if kept), and log-sum-exp ``[R]`` in float32 or wider.

    On a CPU, rows without a label are passed over: their softmax stays zero.
    """
    some = flat.device.type == "cpu" and not bool(valid.all())
    kept = (torch.zeros_like if some else torch.empty_like)(flat) if keep else None
    lse = torch.zeros(flat.shape[0], dtype=wide(flat.dtype), device=flat.device)
    order = valid.nonzero()[:, 0] if some else torch.arange(flat.shape[0], device=flat.device)
    start = 0
    for rows in order.split(rows_at_a_time(flat)):
        place: Any = rows if some else slice(start, start + rows.shape[0])
        start += rows.shape[0]
        chunk = flat[place].to(lse.dtype)
        if kept is None:
            lse[place] = chunk.logsumexp(-1)
            continue
        same = not some and kept.dtype == chunk.dtype
        p = torch.softmax(chunk, -1, out=kept[place]) if same else torch.softmax(chunk, -1)
        lse[place] = chunk.amax(-1) - p.amax(-1).log()  # the largest p is at least 1/V: its logarithm is safe
        if not same:
            kept[place] = p.to(kept.dtype)
    return kept, lse


def _row_means(flat: Tensor) -> Tensor:
    return torch.cat([chunk.to(wide(flat.dtype)).mean(-1) for chunk in flat.split(rows_at_a_time(flat))])
