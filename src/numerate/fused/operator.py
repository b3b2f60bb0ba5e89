"""The fused operator: hidden states and head in, loss and both gradients out, a few rows of logits at a time.

Per chunk of rows: the product with the head; one pass per row that turns the logits into their gradient, in place; two
more products for the gradients of hidden states and head. Nothing of size ``[B·T, V]`` outlives its chunk, and rows
without a label are dropped before the first product.

Numeric logits are computed separately, as ``hidden[rows] @ weight[columns].T``: a thousandth of the work, so that a loss sees
all of them at once, numbers that cross chunk borders included. The gradient of the numeric term goes back the same way: it
is added to the rows of the hidden states and of the head that it concerns.

The gradient is made in the forward pass; only the upstream scalar is left for the backward pass.

Labels are read on the CPU, since they decide shapes, and asking the device for a shape would mean waiting for it. By then the
device has all the work of cross-entropy queued, on another stream.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from numerate.fused import rows_torch
from numerate.fused.head import Head
from numerate.losses.rows import Targets, check_range, divide, refuse_second_derivative, take, wide
from numerate.objective import NumericObjective, by_softmax, mean_mass, numeric_gradient


class RowPass(Protocol):
    """:func:`numerate.fused.rows_torch.cross_entropy_rows_`, or one like it."""

    def __call__(
        self,
        logits: Tensor,
        labels: Tensor,
        share: Tensor,
        by_softmax: Tensor | None,
        head: Head,
        smoothing: float,
        *,
        write: bool,
        without: Tensor | None = None,
    ) -> rows_torch.RowSums:
        """Sums over raw logits, which become their gradient."""
        ...


@dataclass(frozen=True)
class Plan:
    """How the work is done."""

    row_pass: RowPass
    rescale: Callable[[Tensor, Tensor], None]  # multiplies in place
    chunk: int  # rows of logits at a time
    accumulate: torch.dtype  # of the head's gradient, summed over chunks


@dataclass(frozen=True)
class Labels:
    """Labels, and what is known of the step."""

    ids: Tensor  # [.., T], on the CPU
    here: Tensor | None  # the same on the device, if they came from there
    weights: Tensor | None  # on the CPU
    position_ids: Tensor | None  # on the CPU
    num_items: float | Tensor | None
    num_numeric: float | Tensor | None
    with_mass: bool  # whether the mass on numeric tokens is asked for


class FusedObjective(torch.autograd.Function):
    """Loss, its two parts and their two counts of ``hidden [B·T, H]`` and a head, with the gradients of both."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        labels: Labels,
        objective: NumericObjective,
        head: Head,
        plan: Plan,
    ) -> tuple[Tensor | None, ...]:
        """Everything but the upstream scalar."""
        run = _Run(hidden, labels, objective, head, plan, ctx.needs_input_grad[:3])
        results = run.forward()
        ctx.grads = run.d_hidden, run.d_weight, run.d_bias
        ctx.rescale, ctx.gain = plan.rescale, run.gain
        ctx.dtypes = hidden.dtype, weight.dtype, None if bias is None else bias.dtype
        ctx.mark_non_differentiable(*(result for result in results[1:] if result is not None))
        return results

    @staticmethod
    def backward(ctx: Any, upstream: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        """The upstream scalar."""
        refuse_second_derivative()
        if ctx.grads is None:
            raise RuntimeError(
                "the gradients of this fused objective were already taken: they are made in the forward pass and handed "
                "out once. Call objective.fused again instead of keeping its graph (retain_graph=True)."
            )
        grads, ctx.grads = ctx.grads, None
        for grad in grads:
            if grad is not None:
                ctx.rescale(grad, upstream if ctx.gain == 1.0 else upstream / ctx.gain)
        grads = (None if grad is None else grad.to(dtype) for grad, dtype in zip(grads, ctx.dtypes, strict=True))
        return (*grads, *(None,) * 4)


class _Run:
    """One forward pass, with the gradients that were asked for."""

    def __init__(
        self,
        hidden: Tensor,
        labels: Labels,
        objective: NumericObjective,
        head: Head,
        plan: Plan,
        wanted: tuple[bool, bool, bool],
    ) -> None:
        self.objective, self.head, self.plan = objective, head, plan
        self.hidden, self.labels, self.wanted = hidden, labels, wanted
        self.device, self.dtype = hidden.device, wide(hidden.dtype)
        ids = labels.ids.reshape(-1)
        valid = ids != objective.ignore_index
        self.kept: Tensor | None = None if bool(valid.all()) else valid.nonzero()[:, 0]  # on the CPU
        self.rows: Tensor | None = None
        if self.kept is not None:
            ids, self.rows = ids[self.kept], self._here(self.kept)
        check_range(ids, head.weight.shape[0], objective.ignore_index)
        self.h = take(hidden, self.rows)  # [R, H], the rows with a label
        on_device = labels.here if self.rows is None else None
        self.targets_of_rows = self._here(ids) if on_device is None else on_device.reshape(-1).long()
        self.items = ids.shape[0] if labels.num_items is None else labels.num_items
        # A row's share of the mean is too small a number for float16: there the gradients are larger by a power of two
        # until the upstream scalar, which may be as large, is known.
        self.gain = 2.0 ** round(math.log2(max(1, ids.shape[0]))) if hidden.dtype == torch.float16 else 1.0
        self.share = self._scalar(self.gain, self.items)
        self.chunks = chunks(ids.shape[0], plan.chunk)
        self.by_softmax: Tensor | None = None
        self.d_hidden: Tensor | None = None
        self.d_weight: Tensor | None = None
        self.d_bias = torch.zeros_like(head.bias, dtype=self.dtype) if wanted[2] and head.bias is not None else None

    @property
    def needs_grad(self) -> bool:
        return any(self.wanted)

    def forward(self) -> tuple[Tensor | None, ...]:
        """Loss, cross-entropy, numeric term, the counts of both, and the mass; the gradients are left on self."""
        objective, loss = self.objective, self.objective.numeric_loss
        side = SideStream(self.device)
        sums = self._row_sums() if loss.uses_lse else self._cross_entropy()
        with side:
            targets, numeric = self._read_labels()
            z = self._numeric_logits()
        if loss.uses_lse:
            side.wait_for_current()
        with side:
            above, rest = z, None
            if loss.uses_lse:  # a shift of a row's logits changes no loss, and near 0 less is rounded away
                assert sums.log_rest is not None
                above, rest = z - sums.top[self.numeric_rows, None], sums.log_rest[self.numeric_rows].double()
                rest = rest.clamp_min(torch.finfo(z.dtype).min)
            total, dz, d_rest = numeric_gradient(loss, above, rest, targets, needs_grad=self.needs_grad)
            count = objective.denominator(self.items, numeric)
            term = divide(total, count)
        ce = divide(sums.nll.sum(), self.items)
        factor = objective.factor(ce, term)
        if dz is not None:
            numeric_share = self._scalar(self.gain * factor, count)
            change = dz * numeric_share
            if rest is not None and d_rest is not None:
                wanted = (numeric_share * by_softmax(d_rest, sums.log_total[self.numeric_rows] - rest)).to(self.dtype)
                self.by_softmax = torch.zeros_like(sums.top).index_copy(0, self.numeric_rows, wanted)
                self._cross_entropy()
                # The pass over rows gave this share of the softmax to the numeric columns too.
                change -= (above - sums.log_total[self.numeric_rows, None]).exp() * wanted[:, None]
            self._add_numeric(change, z)
        self._finish()
        mass = None
        if self.labels.with_mass:
            rows = self.numeric_rows
            mass = mean_mass(loss, z - sums.top[rows, None], sums.log_total[rows], targets)
        return ce + factor * term, ce, term, self._scalar(self.items), self._scalar(numeric), mass

    def _here(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.device, non_blocking=True)

    def _scalar(self, value: float | Tensor, count: float | Tensor | None = None) -> Tensor:
        """A number, or ``value / count``, on the device, without a copy from the CPU."""
        if count is None:
            return self._here(value) if isinstance(value, Tensor) else torch.full((), value, device=self.device)
        value = value if isinstance(value, Tensor) else torch.full((), value, dtype=self.dtype, device=self.device)
        return divide(value, count)

    def _cross_entropy(self) -> rows_torch.RowSums:
        """Sums over all rows and, if a gradient is wanted, those of hidden states and head without the numeric term."""
        parts = []
        for chunk, logits in self._products():
            by_softmax = None if self.by_softmax is None else self.by_softmax[chunk]
            arguments = (logits, self.targets_of_rows[chunk], self.share, by_softmax, self.head, self.objective.label_smoothing)
            if self.needs_grad and self.d_bias is not None:
                # A bias that learns needs sums over rows before they are rounded, which only the torch pass has.
                parts.append(rows_torch.cross_entropy_rows_(*arguments, write=True, d_bias=self.d_bias))
            else:
                parts.append(self.plan.row_pass(*arguments, write=self.needs_grad))
            if self.needs_grad:
                self._products_back(logits, chunk)
        return self._all_rows(parts)

    def _row_sums(self) -> rows_torch.RowSums:
        """Sums over all rows, those of the tokens that the numeric loss does not read among them, and no gradient."""
        without = torch.zeros(self.head.weight.shape[0], dtype=torch.bool, device=self.device)
        without[self.objective.numeric_loss.columns] = True
        parts = []
        for chunk, logits in self._products():
            arguments = (logits, self.targets_of_rows[chunk], self.share, None, self.head)
            parts.append(self.plan.row_pass(*arguments, self.objective.label_smoothing, write=False, without=without))
        return self._all_rows(parts)

    def _products(self) -> Iterator[tuple[slice, Tensor]]:
        """Chunks of rows and their raw logits, one after the other in the same memory."""
        most = self.chunks[0].stop if self.chunks else 0
        buffer = self.h.new_empty((most, self.head.weight.shape[0]))
        for chunk in self.chunks:
            h = self.h[chunk]
            yield chunk, torch.mm(h, self.head.weight.T, out=buffer[: h.shape[0]])

    def _all_rows(self, parts: list[rows_torch.RowSums]) -> rows_torch.RowSums:
        """The sums of all chunks in one."""
        if len(parts) == 1:
            return parts[0]

        def joined(tensors: list[Tensor]) -> Tensor:
            return torch.cat(tensors) if tensors else torch.zeros(1, dtype=self.dtype, device=self.device)

        return rows_torch.RowSums(
            joined([part.top for part in parts]),
            joined([part.log_total for part in parts]),
            joined([part.nll for part in parts]),
            joined([part.log_rest for part in parts if part.log_rest is not None]),
        )

    def _read_labels(self) -> tuple[Targets, float | Tensor]:
        """Targets and their count; also where the numeric rows stand, in the batch and among the rows that are left."""
        labels, loss = self.labels, self.objective.numeric_loss
        targets = loss.targets(
            labels.ids,
            weights=labels.weights,
            position_ids=labels.position_ids,
            ignore_index=self.objective.ignore_index,
            compact=True,
        )
        assert targets.rows is not None
        units = loss.units(targets).item() if labels.num_numeric is None else labels.num_numeric
        kept = None if self.kept is None else torch.searchsorted(self.kept, targets.rows)
        targets = targets.to(self.device)
        assert targets.rows is not None
        self.rows_in_batch = targets.rows
        self.numeric_rows = targets.rows if kept is None else self._here(kept)
        return targets, units

    def _numeric_logits(self) -> Tensor:
        """``z [P, N]``, rounded as the chunks' logits are: a softmax over both must not find two values of one logit."""
        columns = self.objective.numeric_loss.columns
        padded = F.pad(columns, (0, -columns.shape[0] % 8))  # matrix units want multiples of 8
        self.numeric_h, self.numeric_weight = take(self.h, self.numeric_rows), take(self.head.weight, padded)
        raw = self.numeric_h @ self.numeric_weight.T
        return self.head.shaped(raw[:, : columns.shape[0]].to(self.dtype), columns).contiguous()

    def _add_numeric(self, change: Tensor, z: Tensor) -> None:
        """Add what a gradient ``change [P, N]`` of the numeric logits means for hidden states, head and bias."""
        columns = self.objective.numeric_loss.columns
        grad = self.head.unshaped(change, z)
        if self.d_bias is not None:
            self.d_bias.index_add_(0, columns, grad.sum(0))
        grad = F.pad(grad.to(self.h.dtype), (0, -columns.shape[0] % 8))
        if self.d_hidden is not None:
            self.d_hidden.index_add_(0, self.rows_in_batch, grad @ self.numeric_weight)
        if self.d_weight is not None:
            update = mm_wide(grad.T, self.numeric_h)[: columns.shape[0]]
            self.d_weight.index_add_(0, columns, update.to(self.d_weight.dtype))

    def _products_back(self, grad: Tensor, rows: slice) -> None:
        """Turn a chunk's gradient into those of hidden states and head."""
        wants_hidden, wants_weight, _ = self.wanted
        weight, h = self.head.weight, self.h[rows]
        if wants_hidden:
            if self.d_hidden is None:
                self.d_hidden = torch.empty_like(self.hidden) if self.rows is None else torch.zeros_like(self.hidden)
            if self.rows is None:
                torch.mm(grad, weight, out=self.d_hidden[rows])
            else:
                self.d_hidden.index_copy_(0, self.rows[rows], grad @ weight)
        if wants_weight:
            if self.d_weight is not None:
                add_mm_(self.d_weight, grad.T, h)
            elif weight.dtype != torch.float16 and (len(self.chunks) == 1 or self.plan.accumulate == weight.dtype):
                self.d_weight = grad.T @ h
            else:
                self.d_weight = mm_wide(grad.T, h)

    def _finish(self) -> None:
        """Zeros where there was nothing to learn from; the head's gradient in its own dtype, where that holds the gain."""
        wants_hidden, wants_weight, _ = self.wanted
        if wants_hidden and self.d_hidden is None:
            self.d_hidden = torch.zeros_like(self.hidden)
        if wants_weight and self.d_weight is None:
            self.d_weight = torch.zeros_like(self.head.weight)
        if self.d_weight is not None and self.gain == 1.0:
            self.d_weight = self.d_weight.to(self.head.weight.dtype)


def chunks(rows: int, most: int) -> list[slice]:
    """Cut rows into as few pieces of at most ``most`` as possible, alike in size, in multiples of 128."""
    pieces = -(-rows // most)
    size = min(most, -(-rows // max(1, pieces * 128)) * 128)
    return [slice(start, min(start + size, rows)) for start in range(0, rows, max(1, size))]


@contextmanager
def one_thread(device: torch.device) -> Iterator[None]:
    """Keep the CPU to this thread where it only reads labels: waking the others can take longer than a GPU's whole step."""
    before = torch.get_num_threads()
    torch.set_num_threads(1 if device.type == "cuda" else before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@cache
def _second_stream(device: torch.device) -> torch.cuda.Stream:
    # What is small goes first: beside a large kernel that fills the device it would wait for its end.
    return torch.cuda.Stream(device, priority=-1)


class SideStream:
    """Run the body on a second CUDA stream; no-op on a CPU.

    It waits for the current stream when it is made, and the current stream waits for it when its body ends, so that memory
    that one hands to the other is never reused too early.
    """

    def __init__(self, device: torch.device) -> None:
        self.stream = _second_stream(device) if device.type == "cuda" else None
        self.device = device
        self.wait_for_current()

    def wait_for_current(self) -> None:
        """Let the side stream wait for all that is queued on the current one."""
        if self.stream is not None:
            self.stream.wait_stream(torch.cuda.current_stream(self.device))

    def __enter__(self) -> None:
        self.entered = torch.cuda.stream(self.stream)
        self.entered.__enter__()

    def __exit__(self, *error: Any) -> None:
        self.entered.__exit__(*error)
        if self.stream is not None:
            torch.cuda.current_stream(self.device).wait_stream(self.stream)


def mm_wide(a: Tensor, b: Tensor) -> Tensor:
    """``a @ b`` of half-precision matrices, with the result in float32."""
    if a.dtype == wide(a.dtype):
        return a @ b
    if a.device.type == "cuda":
        return torch.mm(a, b, out_dtype=torch.float32)
    return a.float() @ b.float()


def add_mm_(total: Tensor, a: Tensor, b: Tensor) -> None:
    """``total += a @ b``, where ``total`` may be wider than the factors."""
    if total.dtype == a.dtype:
        total.addmm_(a, b)
    elif a.device.type == "cuda":
        torch.addmm(total, a, b, out_dtype=total.dtype, out=total)
    else:
        total.addmm_(a.to(total.dtype), b.to(total.dtype))
