"""The fused operator: hidden states and head in, loss and both gradients out, a few rows of logits at a time.

Per chunk of rows: the product with the head; one pass per row that turns the logits into their gradient, in place; two
more products for the gradients of hidden states and head. Nothing of size ``[B·T, V]`` outlives its chunk, and rows
without a label are dropped before the first product.

Numeric logits are computed separately, as ``hidden[rows] @ weight[columns].T``: a thousandth of the work, so that a loss sees
all of them at once, numbers that cross chunk borders included. Its gradient joins the chunks' gradients at its columns.

The gradient is made in the forward pass; only the upstream scalar is left for the backward pass.

Labels are read on the CPU, since they decide shapes, and asking the device for a shape would mean waiting for it. Meanwhile
the device works on the first chunk: on its logits, and on the gradient of the head, of which the numeric term changes no more
than the rows of its columns; those are computed again when it is known.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from numerate.losses.rows import check_range, divide, refuse_second_derivative, take, wide
from numerate.losses.targets import Targets
from numerate.objective import rows_torch
from numerate.objective.device import SideStream, add_mm_, mm_wide
from numerate.objective.head import Head
from numerate.objective.objective import NumericObjective, by_softmax, mean_mass, numeric_gradient
from numerate.objective.replay import LARGEST, padded_size, replayed_gradient

# Rows times entries of the head below which the device would wait for the CPU to launch a number-level loss: its three products
# then take less than about 10 ms on an H200.
REPLAYED_BELOW = 1e12


class RowPass(Protocol):
    """:func:`numerate.objective.rows_torch.cross_entropy_rows_`, or one like it."""

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


@dataclass(frozen=True)
class Labels:
    """Labels, and what is known of the step."""

    ids: Tensor  # [.., T], on the CPU
    here: Tensor | None  # the same on the device, if they came from there
    position_weights: Tensor | None  # on the CPU
    position_ids: Tensor | None  # on the CPU
    num_items: float | Tensor | None
    num_units: float | Tensor | None
    with_mass: bool  # whether the mass on numeric tokens is asked for


class _Passed(NamedTuple):
    """A chunk of rows after the pass over them."""

    chunk: slice
    grad: Tensor  # [R, V]: the logits, turned into their gradient
    sums: rows_torch.RowSums


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
        columns = objective.numeric_loss.columns
        self.padded_columns = F.pad(columns, (0, -columns.shape[0] % 8))  # matrix units want multiples of 8
        self.by_softmax: Tensor | None = None  # [R], how much of the softmax the numeric term adds to a row's gradient
        self.d_hidden: Tensor | None = None
        self.d_weight: Tensor | None = None
        self.d_bias = torch.zeros_like(head.bias, dtype=self.dtype) if wanted[2] and head.bias is not None else None

    @property
    def needs_grad(self) -> bool:
        return any(self.wanted)

    def forward(self) -> tuple[Tensor | None, ...]:
        """Loss, cross-entropy, numeric term, the counts of both, and the mass; the gradients are left on self."""
        objective, loss = self.objective, self.objective.numeric_loss
        seen: rows_torch.RowSums | None = None
        ce: Tensor | None = None
        if loss.uses_rest or (objective.scale == "match_ce" and len(self.chunks) > 1):
            # What the numeric gradient waits for must be known before the first gradient is written.
            seen = self._row_sums()
            ce = divide(seen.nll.sum(), self.items)
        side = SideStream(self.device)
        products = self._products()
        early = None if loss.uses_rest or not self.chunks else self._pass_chunk(*next(products))
        # Whole numbers take the CPU long to read.
        head_early = early is not None and self.needs_grad and loss.level == "number"
        if early is not None and head_early:
            self._head_back(early.grad, early.chunk)
        with side:
            targets, packed, numeric = self._read_labels()
            z = self._numeric_logits()
            total, dz = self._numeric_gradient(z, targets, packed, seen)
            count = objective.denominator(self.items, numeric)
            term = divide(total, count)
        if ce is None and objective.scale == "match_ce":
            ce = divide(self.share.new_zeros(()) if early is None else early.sums.nll.sum(), self.items)  # of the only chunk
        numeric_share = self._scalar(self.gain * objective.factor(ce, term), count)
        if self.by_softmax is not None:
            self.by_softmax *= numeric_share
        parts = []
        for at in range(len(self.chunks)):
            passed = early if early is not None else self._pass_chunk(*next(products))
            parts.append(passed.sums)
            if dz is not None:
                mine = slice(self.edges[at], self.edges[at + 1])
                self._join(passed, z[mine], dz[mine], self.numeric_rows[mine], numeric_share)
                self._hidden_back(passed.grad, passed.chunk)
                if at == 0 and head_early:
                    self._head_back_at_columns(passed)
                else:
                    self._head_back(passed.grad, passed.chunk)
            early = None
            del passed  # or it would keep the logits
        del products
        self._finish()
        sums = self._all_rows(parts)
        ce = divide(sums.nll.sum(), self.items)
        mass = None
        if self.labels.with_mass:
            rows = self.numeric_rows
            targets = targets if packed is None else targets.unpacked(packed[:, : targets.slots])
            mass = mean_mass(loss, z[: rows.shape[0]] - sums.top[rows, None], sums.log_total[rows], targets)
        return ce + objective.factor(ce, term) * term, ce, term, self._scalar(self.items), self._scalar(numeric), mass

    def _numeric_gradient(
        self, z: Tensor, targets: Targets, packed: Tensor | None, seen: rows_torch.RowSums | None
    ) -> tuple[Tensor, Tensor | None]:
        """The numeric sum and its gradient by ``z``; that by all other logits is left on self, to be scaled."""
        loss = self.objective.numeric_loss
        if packed is not None:
            total, dz = replayed_gradient(loss, z, targets, packed)
            return total, dz
        above, rest = z, None
        if loss.uses_rest:  # a shift of a row's logits changes no loss, and near 0 less is rounded away
            assert seen is not None and seen.log_rest is not None
            above, rest = z - seen.top[self.numeric_rows, None], seen.log_rest[self.numeric_rows].double()
            rest = rest.clamp_min(torch.finfo(z.dtype).min)
        total, grad, d_rest = numeric_gradient(loss, above, rest, targets, needs_grad=self.needs_grad)
        if d_rest is not None and rest is not None and seen is not None:
            wanted = by_softmax(d_rest, seen.log_total[self.numeric_rows] - rest).to(self.dtype)
            self.by_softmax = torch.zeros_like(seen.top).index_copy(0, self.numeric_rows, wanted)
        return total, grad

    def _here(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.device, non_blocking=True)

    def _scalar(self, value: float | Tensor, count: float | Tensor | None = None) -> Tensor:
        """A number, or ``value / count``, on the device, without a copy from the CPU."""
        if count is None:
            return self._here(value) if isinstance(value, Tensor) else torch.full((), value, device=self.device)
        value = value if isinstance(value, Tensor) else torch.full((), value, dtype=self.dtype, device=self.device)
        return divide(value, count)

    def _pass_chunk(self, chunk: slice, logits: Tensor) -> _Passed:
        """Turn a chunk's logits into their gradient if one is wanted, and sum over its rows."""
        by_softmax = None if self.by_softmax is None else self.by_softmax[chunk]
        arguments = (logits, self.targets_of_rows[chunk], self.share, by_softmax, self.head, self.objective.label_smoothing)
        if self.needs_grad and self.d_bias is not None:
            # A bias that learns needs sums over rows before they are rounded, which only the torch pass has.
            return _Passed(chunk, logits, rows_torch.cross_entropy_rows_(*arguments, write=True, d_bias=self.d_bias))
        return _Passed(chunk, logits, self.plan.row_pass(*arguments, write=self.needs_grad))

    def _row_sums(self) -> rows_torch.RowSums:
        """Sums over all rows and, where the numeric loss asks for it, over the tokens it does not read; no gradient."""
        without: Tensor | None = None
        if self.objective.numeric_loss.uses_rest:
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

    def _read_labels(self) -> tuple[Targets, Tensor | None, float | Tensor]:
        """Targets, on the device, and their count; or on the CPU, and packed on the device, to replay a recording with.

        Also where the numeric rows stand, in the batch and among the rows that are left.
        """
        labels, loss = self.labels, self.objective.numeric_loss
        # On a CPU the targets themselves take part in autograd; on a GPU only copies of them do.
        with torch.inference_mode(self.device.type == "cuda"):
            targets = loss.targets(
                labels.ids,
                position_weights=labels.position_weights,
                position_ids=labels.position_ids,
                compact=True,
            )
        assert targets.rows is not None
        units = loss.num_units(targets).item() if labels.num_units is None else labels.num_units
        kept = None if self.kept is None else torch.searchsorted(self.kept, targets.rows)
        numeric_on_cpu = targets.rows if kept is None else kept
        size = targets.slots
        packed: Tensor | None = None
        if self._replays(size):
            if targets.mask is None:
                targets = replace(targets, mask=torch.ones(size, dtype=torch.bool))
            packed = self._here(targets.packed(padded_size(size), pin_memory=self.device.type == "cuda"))
            rows = packed[0]
        else:
            targets = targets.to(self.device)
            assert targets.rows is not None
            rows = targets.rows
        numeric_rows = rows if kept is None else self._here(F.pad(kept, (0, rows.shape[0] - size)))
        self.padded_rows, self.numeric_rows = numeric_rows, numeric_rows[:size]
        edges = torch.tensor([*(chunk.start for chunk in self.chunks), self.h.shape[0]])
        self.edges: list[int] = torch.searchsorted(numeric_on_cpu, edges).tolist()
        return targets, packed, units

    def _replays(self, rows: int) -> bool:
        """Whether the numeric gradient of that many rows is replayed from a recording."""
        loss, work = self.objective.numeric_loss, self.h.shape[0] * self.head.weight.numel()
        few = work < REPLAYED_BELOW and 0 < rows * loss.columns.shape[0] <= LARGEST
        return self.device.type == "cuda" and self.needs_grad and loss.replayable and few

    def _numeric_logits(self) -> Tensor:
        """``z [P, N]``, rounded as the chunks' logits are: a softmax over both must not find two values of one logit."""
        columns = self.objective.numeric_loss.columns
        raw = take(self.h, self.padded_rows) @ take(self.head.weight, self.padded_columns).T
        return self.head.shaped(raw[:, : columns.shape[0]].to(self.dtype), columns).contiguous()

    def _join(self, passed: _Passed, z: Tensor, dz: Tensor, rows: Tensor, numeric_share: Tensor) -> None:
        """Write the whole gradient at the numeric columns of this chunk's numeric rows."""
        columns, sums, labels = self.objective.numeric_loss.columns, passed.sums, self.targets_of_rows[passed.chunk]
        local = rows - passed.chunk.start if passed.chunk.start else rows
        shares, smoothing = (self.share, numeric_share), self.objective.label_smoothing
        self.plan.join(passed.grad, local, columns, z, dz, sums.top, sums.log_total, labels, *shares, self.head, smoothing)
        if self.d_bias is not None:
            change = dz * numeric_share
            if self.by_softmax is not None:  # which the pass over rows gave these columns too
                p = (z - (sums.top + sums.log_total)[local, None]).exp()
                change = change - p * self.by_softmax[rows, None]
            self.d_bias.index_add_(0, columns, self.head.unshaped(change, z).sum(0))

    def _hidden_back(self, grad: Tensor, chunk: slice) -> None:
        """Turn a chunk's gradient into that of its hidden states."""
        if not self.wanted[0]:
            return
        if self.d_hidden is None:
            self.d_hidden = torch.empty_like(self.hidden) if self.rows is None else torch.zeros_like(self.hidden)
        if self.rows is None:
            torch.mm(grad, self.head.weight, out=self.d_hidden[chunk])
        else:
            self.d_hidden.index_copy_(0, self.rows[chunk], grad @ self.head.weight)

    def _head_back(self, grad: Tensor, chunk: slice) -> None:
        """Add a chunk's gradient of the head."""
        if not self.wanted[1]:
            return
        h, dtype = self.h[chunk], self.head.weight.dtype
        if self.d_weight is not None:
            add_mm_(self.d_weight, grad.T, h)
        elif dtype != torch.float16 and (len(self.chunks) == 1 or self.plan.accumulate == dtype):
            self.d_weight = grad.T @ h
        else:
            self.d_weight = mm_wide(grad.T, h)

    def _head_back_at_columns(self, passed: _Passed) -> None:
        """Compute the rows of the head's gradient again that the numeric term has changed since; of the first chunk."""
        if self.d_weight is None:
            return
        columns = self.objective.numeric_loss.columns
        again = mm_wide(passed.grad.index_select(1, self.padded_columns).T, self.h[passed.chunk])[: columns.shape[0]]
        self.d_weight[columns] = again.to(self.d_weight.dtype)

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
