"""The fused operator: hidden states and head in, loss and both gradients out, a few rows of logits at a time.

Per chunk of rows: the product with the head; one pass per row that turns the logits into their gradient, in place; two
more products for the gradients of hidden states and head. Nothing of size ``[B·T, V]`` outlives its chunk, and rows
without a label are dropped before the first product.

The numeric logits are had apart, as ``hidden[rows] @ weight[columns].T``: a thousandth of the work, so any loss takes its
gradient by plain autograd, numbers that cross chunk borders included. It joins the chunks' gradients at its columns.

The gradient is made in the forward pass; only the upstream scalar is left for the backward pass.

Labels are read on the CPU, since they decide shapes, and asking the device for a shape would mean waiting for it. The device
is given work to do meanwhile: the first chunk or, with a small head, all rows without a number (``Plan.numeric_last``).
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
    join: Callable[..., None]  # rows_torch.join_, or one like it
    rescale: Callable[[Tensor, Tensor], None]  # multiplies in place
    chunk: int  # rows of logits at a time
    accumulate: torch.dtype  # of the head's gradient, summed over chunks
    numeric_last: bool = False  # whether rows without a number come first, in chunks of their own


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
        self.order = self._order(ids)
        self.rows: Tensor | None = None
        if self.order is not None:
            ids, self.rows = ids[self.order], self._here(self.order)
        check_range(ids, head.weight.shape[0], objective.ignore_index)
        self.h = take(hidden, self.rows)  # [R, H], the rows with a label
        on_device = labels.here if self.rows is None else None
        self.targets_of_rows = self._here(ids) if on_device is None else on_device.reshape(-1).long()
        self.items = ids.shape[0] if labels.num_items is None else labels.num_items
        # A row's share of the mean is too small a number for float16: there the gradients are larger by a power of two
        # until the upstream scalar, which may be as large, is known.
        self.gain = 2.0 ** round(math.log2(max(1, ids.shape[0]))) if hidden.dtype == torch.float16 else 1.0
        self.share = self._scalar(self.gain, self.items)
        plain = self.num_plain
        self.plain_chunks = chunks(0, plain, plan.chunk)  # without numbers
        self.chunks = [*self.plain_chunks, *chunks(plain, ids.shape[0], plan.chunk)]
        rows = max((chunk.stop - chunk.start for chunk in self.chunks), default=0)
        self.buffer = hidden.new_empty((rows, head.weight.shape[0]))
        self.by_softmax: Tensor | None = None
        self.d_hidden: Tensor | None = None
        self.d_weight: Tensor | None = None
        self.d_bias = torch.zeros_like(head.bias, dtype=self.dtype) if wanted[2] and head.bias is not None else None

    @property
    def needs_grad(self) -> bool:
        return any(self.wanted)

    def _order(self, ids: Tensor) -> Tensor | None:
        """The rows with a label in the order in which they are worked on; None: all of them, as they stand."""
        self.num_plain = 0  # rows at the beginning that are known to hold no number
        valid = ids != self.objective.ignore_index
        if not self.plan.numeric_last:
            return None if bool(valid.all()) else valid.nonzero()[:, 0]
        numeric = self.objective.numeric_loss.may_look_at(ids) & valid
        plain = (valid & ~numeric).nonzero()[:, 0]
        self.num_plain = plain.shape[0]
        return torch.cat([plain, numeric.nonzero()[:, 0]])

    def forward(self) -> tuple[Tensor | None, ...]:
        """Loss, cross-entropy, numeric term, the counts of both, and the mass; the gradients are left on self."""
        objective, loss = self.objective, self.objective.numeric_loss
        numeric_chunks = self.chunks[len(self.plain_chunks) :]
        seen: rows_torch.RowSums | None = None
        ce: Tensor | None = None
        if loss.uses_lse or (objective.scale == "match_ce" and len(numeric_chunks) > 1):
            # What the numeric gradient waits for must be known before the first gradient is written.
            seen = self._look()
            ce = divide(seen.nll.sum(), self.items)
        beside = Beside(self.device)
        # The device is given what needs no numbers before the CPU turns to the labels: the chunks without any, and the product
        # and the pass of the first chunk with some.
        sums = []
        for chunk in self.plain_chunks:
            logits, chunk_sums = self._pass_chunk(chunk)
            sums.append(chunk_sums)
            if self.needs_grad:
                self._products_back(logits, chunk)
        passed = self._pass_chunk(numeric_chunks[0]) if numeric_chunks and not loss.uses_lse else None
        with beside:
            targets, numeric = self._read_labels()
            count = objective.denominator(self.items, numeric)
            z = self._numeric_logits()
            above, rest = z, None
            if loss.uses_lse:  # a shift of a row's logits changes no loss, and near 0 less is rounded away
                assert seen is not None and seen.log_rest is not None
                above, rest = z - seen.top[self.numeric_rows, None], seen.log_rest[self.numeric_rows].double()
                rest = rest.clamp_min(torch.finfo(z.dtype).min)
            total, dz, d_rest = numeric_gradient(loss, above, rest, targets, needs_grad=self.needs_grad)
            term = divide(total, count)
        if ce is None and objective.scale == "match_ce":
            first = [] if passed is None else [passed[1]]
            ce = divide(sum((part.nll.sum() for part in [*sums, *first]), self.share.new_zeros(())), self.items)
        numeric_share = self._scalar(self.gain * objective.factor(ce, term), count)
        if d_rest is not None and rest is not None and seen is not None:
            wanted = numeric_share * by_softmax(d_rest, seen.log_total[self.numeric_rows] - rest)
            self.by_softmax = torch.zeros_like(seen.top).index_copy(0, self.numeric_rows, wanted.to(self.dtype))
        for number, chunk in enumerate(numeric_chunks, len(self.plain_chunks)):
            logits, chunk_sums = self._pass_chunk(chunk) if passed is None else passed
            passed = None
            sums.append(chunk_sums)
            if dz is not None:
                mine = slice(self.edges[number], self.edges[number + 1])
                self._join(logits, chunk, chunk_sums, z[mine], dz[mine], self.numeric_rows[mine], numeric_share)
                self._products_back(logits, chunk)
            del logits  # a view that would keep the buffer
        del self.buffer
        self._finish()
        ce = divide(torch.stack([part.nll.sum() for part in sums]).sum() if sums else self.share.new_zeros(()), self.items)
        mass = None
        if self.labels.with_mass:
            every = self._all_rows(sums)
            mass = mean_mass(loss, z - every.top[self.numeric_rows, None], every.log_total[self.numeric_rows], targets)
        loss_value = ce + objective.factor(ce, term) * term
        return loss_value, ce, term, self._scalar(self.items), self._scalar(numeric), mass

    def _here(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.device, non_blocking=True)

    def _scalar(self, value: float | Tensor, count: float | Tensor | None = None) -> Tensor:
        """A number, or ``value / count``, on the device, without a copy from the CPU."""
        if count is None:
            return self._here(value) if isinstance(value, Tensor) else torch.full((), value, device=self.device)
        value = value if isinstance(value, Tensor) else torch.full((), value, dtype=self.dtype, device=self.device)
        return divide(value, count)

    def _pass_chunk(self, chunk: slice) -> tuple[Tensor, rows_torch.RowSums]:
        """A chunk's logits, turned into their gradient if one is wanted, and sums over its rows."""
        logits = self._product(chunk)
        by_softmax = None if self.by_softmax is None else self.by_softmax[chunk]
        arguments = (logits, self.targets_of_rows[chunk], self.share, by_softmax, self.head, self.objective.label_smoothing)
        if self.needs_grad and self.d_bias is not None:
            # A bias that learns needs sums over rows before they are rounded, which only the torch pass has.
            return logits, rows_torch.cross_entropy_rows_(*arguments, write=True, d_bias=self.d_bias)
        return logits, self.plan.row_pass(*arguments, write=self.needs_grad)

    def _product(self, chunk: slice) -> Tensor:
        """Raw logits of a chunk of rows."""
        h = self.h[chunk]
        return torch.mm(h, self.head.weight.T, out=self.buffer[: h.shape[0]])

    def _look(self) -> rows_torch.RowSums:
        """Sums over all rows, and no gradient."""
        loss, smoothing = self.objective.numeric_loss, self.objective.label_smoothing
        without: Tensor | None = None
        if loss.uses_lse:
            without = torch.zeros(self.head.weight.shape[0], dtype=torch.bool, device=self.device)
            without[loss.columns] = True
        parts = []
        for chunk in self.chunks:
            arguments = self._product(chunk), self.targets_of_rows[chunk], self.share, None, self.head, smoothing
            parts.append(self.plan.row_pass(*arguments, write=False, without=without))
        return self._all_rows(parts)

    def _all_rows(self, parts: list[rows_torch.RowSums]) -> rows_torch.RowSums:
        """The sums of all chunks in one."""

        def joined(tensors: list[Tensor]) -> Tensor:
            return torch.cat(tensors) if tensors else torch.zeros(1, dtype=self.dtype, device=self.device)

        return rows_torch.RowSums(
            joined([part.top for part in parts]),
            joined([part.log_total for part in parts]),
            joined([part.nll for part in parts]),
            joined([part.log_rest for part in parts if part.log_rest is not None]),
        )

    def _read_labels(self) -> tuple[Targets, float | Tensor]:
        """Targets and their count; also where the numeric rows stand among the rows that are left, chunk by chunk."""
        labels, loss = self.labels, self.objective.numeric_loss
        targets = loss.targets(
            labels.ids,
            weights=labels.weights,
            position_ids=labels.position_ids,
            ignore_index=self.objective.ignore_index,
            compact=True,
        )
        assert targets.rows is not None
        rows = targets.rows
        if self.order is not None:
            place = torch.empty(labels.ids.numel(), dtype=torch.long)
            place[self.order] = torch.arange(self.order.shape[0])
            rows = place[rows]
        edges = torch.tensor([*(chunk.start for chunk in self.chunks), self.h.shape[0]])
        self.edges: list[int] = torch.searchsorted(rows, edges).tolist()
        assert self.edges[len(self.plain_chunks)] == 0, "a row with a number was taken for one without"
        units = loss.units(targets).item() if labels.num_numeric is None else labels.num_numeric
        targets = targets.to(self.device)
        assert targets.rows is not None
        self.numeric_rows = targets.rows if self.order is None else self._here(rows)
        return targets, units

    def _numeric_logits(self) -> Tensor:
        """``z [P, N]``, rounded as the chunks' logits are: a softmax over both must not find two values of one logit."""
        columns = self.objective.numeric_loss.columns
        padded = F.pad(columns, (0, -columns.shape[0] % 8))  # matrix units want multiples of 8
        raw = take(self.h, self.numeric_rows) @ take(self.head.weight, padded).T
        return self.head.shaped(raw[:, : columns.shape[0]].to(self.dtype), columns).contiguous()

    def _join(
        self,
        logits: Tensor,
        chunk: slice,
        sums: rows_torch.RowSums,
        z: Tensor,
        dz: Tensor,
        rows: Tensor,
        numeric_share: Tensor,
    ) -> None:
        """Write the whole gradient at the numeric columns of this chunk's numeric rows."""
        columns, labels = self.objective.numeric_loss.columns, self.targets_of_rows[chunk]
        local = rows - chunk.start if chunk.start else rows
        shares, smoothing = (self.share, numeric_share), self.objective.label_smoothing
        self.plan.join(logits, local, columns, z, dz, sums.top, sums.log_total, labels, *shares, self.head, smoothing)
        if self.d_bias is not None:
            change = dz * numeric_share
            if self.by_softmax is not None:  # which the pass over rows gave these columns too
                p = (z - (sums.top + sums.log_total)[local, None]).exp()
                change = change - p * self.by_softmax[rows, None]
            self.d_bias.index_add_(0, columns, self.head.unshaped(change, z).sum(0))

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


def chunks(start: int, stop: int, most: int) -> list[slice]:
    """Cut a range of rows into as few pieces of at most ``most`` as possible, alike in size, in multiples of 128."""
    pieces = -(-(stop - start) // most)
    size = min(most, -(-(stop - start) // max(1, pieces * 128)) * 128)
    return [slice(at, min(at + size, stop)) for at in range(start, stop, max(1, size))]


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


class Beside:
    """A second CUDA stream, from what was queued when this was made until it is left; nothing on a CPU.

    It waits for the current stream when it is made and is waited for when it is left, so memory that one hands to the
    other is never reused too early.
    """

    def __init__(self, device: torch.device) -> None:
        self.stream = _second_stream(device) if device.type == "cuda" else None
        self.device = device
        if self.stream is not None:
            self.stream.wait_stream(torch.cuda.current_stream(device))

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
