"""The fused operator: from hidden states and head to the loss and all gradients, one chunk of logits at a time.

Rows without a label are dropped before the first product. Numeric logits are computed separately, as
``hidden[rows] @ weight[columns].T``, a thousandth of the work, so that a loss sees all of them at once, including numbers that
cross chunk borders. Its gradient is then written into the numeric columns of each chunk's gradient.

Gradients are computed in the forward pass; the backward pass only multiplies them by the upstream scalar.

Labels are read on the CPU, since they determine shapes and a shape from the device would need a sync. Meanwhile the device
computes logits and head gradient of the first chunk. The numeric term changes only the rows of that gradient that belong to
numeric columns; these are recomputed afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from numerate.losses.base import NumericLoss
from numerate.losses.logit_rows import check_range, divide, refuse_second_derivative, take, wide
from numerate.losses.target_tokens import Targets
from numerate.objective.batch import BatchLabels
from numerate.objective.chunks import Chunk, ChunkedHead, Execution
from numerate.objective.cut_sequence import CutNumbers, CutSequence
from numerate.objective.device import SideStream
from numerate.objective.head import Head
from numerate.objective.overrun import NumberEnds
from numerate.objective.replay import MAX_LOGITS, padded_size, replayed_gradient
from numerate.objective.rows_torch import RowSums
from numerate.objective.sharded_head import ShardedHead
from numerate.objective.shards import VocabShard
from numerate.objective.term import mean_mass, numeric_gradient, rest_as_softmax_share
from numerate.objective.weighting import Weighting
from numerate.targets.soft_targets import SoftRows

# Rows times entries of the head below which a number-level loss is launch-bound: the three products then take less than about
# 10 ms on an H200.
REPLAYED_BELOW = 1e12


class FusedInputs(NamedTuple):
    """Inputs of the operator other than the tensors that may require a gradient."""

    loss: NumericLoss
    weighting: Weighting
    head: Head  # detached
    batch: BatchLabels  # on the CPU
    labels_on_device: Tensor | None  # its labels, if the caller's were on the device
    execution: Execution
    with_mass: bool
    with_overrun: bool
    shard: VocabShard | None  # of the vocabulary, which the head has
    cut: CutSequence | None
    whole: BatchLabels | None  # labels of whole sequences on the CPU, if they are cut


class FusedObjective(torch.autograd.Function):
    """The objective of ``hidden [B·T, H]`` and a head, with all gradients."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, inputs: FusedInputs) -> tuple[Tensor | None, ...]:
        """Return the fields of :class:`numerate.objective.ObjectiveOutput`."""
        forward = _Forward(hidden, inputs, ctx.needs_input_grad[:3])
        results = forward.run(with_mass=inputs.with_mass, with_overrun=inputs.with_overrun)
        ctx.grads = forward.chunked.d_hidden, forward.chunked.d_weight, forward.chunked.d_bias
        ctx.rescale, ctx.gain = inputs.execution.implementation.rescale_, forward.gain
        ctx.dtypes = hidden.dtype, weight.dtype, None if bias is None else bias.dtype
        ctx.mark_non_differentiable(*(result for result in results[1:] if result is not None))
        return results

    @staticmethod
    def backward(ctx: Any, upstream: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        """Multiply the gradients by the upstream scalar."""
        refuse_second_derivative()
        if ctx.grads is None:
            raise RuntimeError(
                "the gradients of this fused objective were already consumed: they are computed in the forward pass and returned "
                "once. Call objective.fused again instead of using retain_graph=True."
            )
        grads, ctx.grads = ctx.grads, None
        for grad in grads:
            if grad is not None:
                ctx.rescale(grad, upstream if ctx.gain == 1.0 else upstream / ctx.gain)
        grads = (None if grad is None else grad.to(dtype) for grad, dtype in zip(grads, ctx.dtypes, strict=True))
        return (*grads, None)


class _NumericRows(NamedTuple):
    """The P numeric rows and their targets."""

    targets: Targets  # on the device; on the CPU if packed
    packed: Tensor | None  # the targets as one padded tensor on the device, input of a CUDA graph
    num_units: float | Tensor
    padded: Tensor  # [>= P] on the device, indices among the rows with a label; padded if packed
    edges: list[int]  # offsets of the chunks among them
    numbers: CutNumbers | None = None  # of cut sequences

    @property
    def rows(self) -> Tensor:
        """The P indices among the rows with a label, on the device."""
        return self.padded[: self.targets.slots]


class _Forward:
    """One forward pass, with the required gradients."""

    def __init__(self, hidden: Tensor, inputs: FusedInputs, requires_grad: tuple[bool, bool, bool]) -> None:
        loss, head, batch = inputs.loss, inputs.head, inputs.batch
        self.loss, self.weighting, self.batch = loss, inputs.weighting, batch
        self.device, self.dtype, self.needs_grad = hidden.device, wide(hidden.dtype), any(requires_grad)
        ids = batch.ids.reshape(-1)
        valid = ids != loss.ignore_index
        self.labelled: Tensor | None = None if bool(valid.all()) else valid.nonzero()[:, 0]  # [R] on the CPU; None: all rows
        rows, labels = None, inputs.labels_on_device
        if self.labelled is not None:
            ids, rows, labels = ids[self.labelled], self._to_device(self.labelled), None
        shard, self.cut, self.whole = inputs.shard, inputs.cut, inputs.whole
        vocab_size = head.weight.shape[0] if shard is None else shard.vocab_size
        check_range(ids, vocab_size, loss.ignore_index)
        labels = self._to_device(ids) if labels is None else labels.reshape(-1).contiguous()
        self.num_items: float | Tensor
        if batch.num_items is None:
            self.num_items = ids.shape[0] if batch.token_weights is None else batch.count_items(loss.ignore_index).item()
        else:
            self.num_items = batch.num_items
        # A row's share of the mean underflows float16, so gradients are scaled by a power of two until the upstream scalar is
        # known, which may be large.
        self.gain = 2.0 ** round(math.log2(max(1, ids.shape[0]))) if hidden.dtype == torch.float16 else 1.0
        share = self._ratio(self.gain, self.num_items)
        self.token_weights: Tensor | None = None  # [R]
        if batch.token_weights is not None:
            on_cpu = batch.token_weights.reshape(-1).to(self.dtype)
            self.token_weights = self._to_device(take(on_cpu, self.labelled))
            share = share * self.token_weights
        settings = (share, self.weighting.label_smoothing, inputs.execution, requires_grad)
        read_soft = None
        if batch.soft is not None:  # a method would create a reference cycle and keep all tensors alive
            read_soft = partial(_soft_rows, batch, self.labelled, loss.ignore_index, vocab_size, self.dtype)
        self.chunked: ChunkedHead
        if shard is None:
            self.chunked = ChunkedHead(hidden, rows, labels, head, loss.columns, *settings, read_soft)
        else:
            self.chunked = ShardedHead(shard, loss, hidden, rows, labels, head, *settings, read_soft)

    def _chunk_starts(self) -> Tensor:
        """Return the offsets of the chunks, on the CPU."""
        return torch.tensor([*(chunk.start for chunk in self.chunked.slices), self.chunked.h.shape[0]])

    def _cross_entropy(self, nll: Tensor) -> Tensor:
        """Return the mean of each row's cross-entropy ``[R]``."""
        return divide((nll if self.token_weights is None else nll * self.token_weights).sum(), self.num_items)

    def run(self, *, with_mass: bool, with_overrun: bool) -> tuple[Tensor | None, ...]:
        """Return the fields of :class:`numerate.objective.ObjectiveOutput`; the gradients stay in ``self.chunked``."""
        loss, weighting = self.loss, self.weighting
        known: RowSums | None = None
        ce: Tensor | None = None
        if loss.uses_rest or (weighting.scale == "match_ce" and len(self.chunked.slices) > 1):
            # The numeric gradient needs these sums before the first gradient is written.
            known = self._row_sums()
            ce = self._cross_entropy(known.nll)
        side = SideStream(self.device)
        passes = self.chunked.passes(write=self.needs_grad)
        first = None if loss.uses_rest else next(passes, None)
        if first is not None and self.needs_grad and loss.level == "number" and not self.chunked.has_soft_targets:
            self.chunked.add_head_gradient(first)  # keeps the device busy while the CPU reads numbers
        with side:
            numeric = self._read_labels()
            z = self.chunked.numeric_logits(numeric.padded)
            total, dz = self._numeric_gradient(z, numeric, known)
            denominator = weighting.denominator(self.num_items, numeric.num_units)
            term = divide(total, denominator)
        if ce is None and weighting.scale == "match_ce":  # of the only chunk
            ce = self.chunked.h.new_zeros((), dtype=self.dtype) if first is None else self._cross_entropy(first.sums.nll)
        numeric_share = self._ratio(self.gain * weighting.factor(ce, term), denominator)
        chunks = chain(() if first is None else (first,), passes)
        del first, passes  # frees the logits
        sums = self._differentiate(chunks, numeric, z, dz, numeric_share)
        ce = self._cross_entropy(sums.nll)
        mass = self._mass(numeric, z, sums) if with_mass else None
        overrun = self._overrun(sums) if with_overrun else (None, None)
        value = ce + weighting.factor(ce, term) * term
        return value, ce, term, self._scalar(self.num_items), self._scalar(numeric.num_units), mass, *overrun

    def _differentiate(
        self, chunks: Iterable[Chunk], numeric: _NumericRows, z: Tensor, dz: Tensor | None, numeric_share: Tensor
    ) -> RowSums:
        """Compute the gradients of all chunks, and return the sums of all rows."""
        head = self.chunked
        if head.softmax_share is not None:
            head.softmax_share *= numeric_share
        parts = []
        for number, chunk in enumerate(chunks):
            parts.append(chunk.sums)
            if dz is not None:
                own = slice(numeric.edges[number], numeric.edges[number + 1])
                head.write_numeric_columns(chunk, z[own], dz[own], numeric.rows[own], numeric_share)
                head.write_soft_entries(chunk)
                head.add_hidden_gradient(chunk)
                if number == 0 and head.d_weight is not None:  # only the numeric term is missing
                    head.update_head_gradient(chunk)
                else:
                    head.add_head_gradient(chunk)
            del chunk  # frees the logits
        head.finish(narrow=self.gain == 1.0)
        return head.concatenate(parts)

    def _row_sums(self) -> RowSums:
        """Return the sums of all rows, without a gradient; with ``log_rest`` if the numeric loss uses it."""
        excluded: Tensor | None = None
        if self.loss.uses_rest:
            excluded = torch.zeros(self.chunked.head.weight.shape[0], dtype=torch.bool, device=self.device)
            excluded[self.chunked.columns] = True
        return self.chunked.concatenate([chunk.sums for chunk in self.chunked.passes(write=False, excluded=excluded)])

    def _read_labels(self) -> _NumericRows:
        """Find the numeric rows, their targets and their number of units."""
        batch, loss = self.batch, self.loss
        if self.cut is not None:
            return self._read_cut_labels(self.cut)
        # On a CPU, autograd's graph contains the targets themselves; on a GPU, only copies.
        with torch.inference_mode(self.device.type == "cuda"):
            targets = loss.targets(
                batch.ids, position_weights=batch.position_weights, position_ids=batch.position_ids, compact=True
            )
        assert targets.rows is not None
        num_units = loss.num_units(targets).item() if batch.num_units is None else batch.num_units
        among_labelled = None if self.labelled is None else torch.searchsorted(self.labelled, targets.rows)
        on_cpu = targets.rows if among_labelled is None else among_labelled
        size = targets.slots
        packed: Tensor | None = None
        if self._replays(size):
            if targets.mask is None:
                targets = replace(targets, mask=torch.ones(size, dtype=torch.bool))
            packed = self._to_device(targets.packed(padded_size(size), pin_memory=self.device.type == "cuda"))
            rows = packed[0]
        else:
            targets = targets.to(self.device)
            assert targets.rows is not None
            rows = targets.rows
        if among_labelled is not None:
            rows = self._to_device(F.pad(among_labelled, (0, rows.shape[0] - size)))
        return _NumericRows(targets, packed, num_units, rows, torch.searchsorted(on_cpu, self._chunk_starts()).tolist())

    def _read_cut_labels(self, cut: CutSequence) -> _NumericRows:
        """Find the numeric rows of this process, and the numbers that other processes have tokens of."""
        assert self.whole is not None and self.batch.num_units is not None
        numbers = CutNumbers.read(self.loss, cut, self.whole, self.batch.ids.shape[-1], torch.device("cpu"))
        rows = numbers.targets.rows
        assert rows is not None
        rows = rows if self.labelled is None else torch.searchsorted(self.labelled, rows)
        edges = torch.searchsorted(rows, self._chunk_starts()).tolist()
        numbers = numbers.to(self.device)
        return _NumericRows(numbers.targets, None, self.batch.num_units, self._to_device(rows), edges, numbers)

    def _replays(self, num_rows: int) -> bool:
        """Whether the numeric gradient of that many rows is replayed from a CUDA graph."""
        loss, work = self.loss, self.chunked.h.shape[0] * self.chunked.head.weight.numel()
        small = work < REPLAYED_BELOW and 0 < num_rows * loss.columns.shape[0] <= MAX_LOGITS
        return self.device.type == "cuda" and self.needs_grad and loss.replayable and small

    def _numeric_gradient(self, z: Tensor, numeric: _NumericRows, known: RowSums | None) -> tuple[Tensor, Tensor | None]:
        """Return the numeric sum and its gradient w.r.t. ``z``; store the unscaled gradient w.r.t. all other logits."""
        loss, targets = self.loss, numeric.targets
        if numeric.packed is not None:
            return replayed_gradient(loss, z, targets, numeric.packed)
        above, rest = z, None
        if loss.uses_rest:  # shift-invariant losses: rounding is smaller near 0
            assert known is not None and known.log_rest is not None
            above, rest = z - known.top[numeric.rows, None], known.log_rest[numeric.rows].double()
            rest = rest.clamp_min(torch.finfo(z.dtype).min)
            log_ratio = known.log_total[numeric.rows] - rest
            if not loss.shift_invariant:
                above, rest = z, rest + known.top[numeric.rows]
        if numeric.numbers is not None:
            total, dz, d_rest = numeric.numbers.gradient(loss, above, rest, needs_grad=self.needs_grad)
        else:
            total, dz, d_rest = numeric_gradient(loss, above, rest, targets, needs_grad=self.needs_grad)
        if d_rest is not None and known is not None:
            share = rest_as_softmax_share(d_rest, log_ratio).to(self.dtype)
            self.chunked.softmax_share = torch.zeros_like(known.top).index_copy(0, numeric.rows, share)
        return total, dz

    def _mass(self, numeric: _NumericRows, z: Tensor, sums: RowSums) -> Tensor:
        """Return the mean probability of the numeric tokens."""
        rows, targets = numeric.rows, numeric.targets
        if numeric.packed is not None:
            targets = targets.unpacked(numeric.packed[:, : targets.slots])
        return mean_mass(self.loss, z[: rows.shape[0]] - sums.top[rows, None], sums.log_total[rows], targets)

    def _overrun(self, sums: RowSums) -> tuple[Tensor | None, Tensor | None]:
        """Return the mean probability of the numeric tokens right after a number, and the number of such rows."""
        ends = NumberEnds.of(self.loss, self.batch.ids, self.batch.position_ids, compact=True)
        if ends is None:
            return None, None
        assert ends.rows is not None
        rows = self._to_device(ends.rows if self.labelled is None else torch.searchsorted(self.labelled, ends.rows))
        z = self.chunked.logits_of(rows, ends.columns) - sums.top[rows, None]
        return ends.mean_mass(z, sums.log_total[rows]), self._scalar(ends.rows.shape[0])

    def _to_device(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.device, non_blocking=True)

    def _scalar(self, value: float | Tensor) -> Tensor:
        """Return a number as a tensor on the device, without a copy from the CPU."""
        return self._to_device(value) if isinstance(value, Tensor) else torch.full((), value, device=self.device)

    def _ratio(self, value: float | Tensor, count: float | Tensor) -> Tensor:
        """Return ``value / count`` as a tensor on the device, without a copy from the CPU."""
        value = value if isinstance(value, Tensor) else torch.full((), value, dtype=self.dtype, device=self.device)
        return divide(value, count)


def _soft_rows(batch: BatchLabels, labelled: Tensor | None, ignore_index: int, vocab_size: int, dtype: torch.dtype) -> SoftRows:
    """Return the soft targets of the ``labelled`` rows, sorted, without duplicates and padding, on the CPU."""
    assert batch.soft is not None
    found = batch.soft.rows(batch.ids, ignore_index).checked(vocab_size)
    entries = found.probabilities.nonzero()[:, 0]
    places, order = (found.rows[entries] * vocab_size + found.token_ids[entries]).sort()
    places, which = places.unique_consecutive(return_inverse=True)  # merges duplicate tokens
    p = found.probabilities.new_zeros(places.shape[0]).index_add(0, which, found.probabilities[entries[order]])
    rows = places // vocab_size
    if labelled is not None:
        rows = torch.searchsorted(labelled, rows)
    return SoftRows(take(found.gold, labelled).to(dtype), rows, places % vocab_size, p.to(dtype))
