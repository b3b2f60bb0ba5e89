"""The head in chunks of rows: logits, their gradient in place, and the gradients of hidden states and head.

Per chunk: one matrix product with the head; one pass that replaces each row of logits by its gradient; two more products for the
gradients of hidden states and head. No tensor of size ``[B·T, V]`` is ever allocated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from types import ModuleType
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from numerate.losses.logit_rows import take, wide
from numerate.objective.device import add_mm_, mm_wide
from numerate.objective.head import Head
from numerate.objective.rows_torch import RowSums, cross_entropy_rows_
from numerate.targets.soft_targets import SoftRows


@dataclass(frozen=True)
class Execution:
    """Implementation, chunk size and accumulation dtype."""

    implementation: ModuleType  # rows_torch or rows_triton
    chunk_rows: int  # rows of logits per chunk
    head_grad_dtype: torch.dtype  # accumulation dtype of the head's gradient


class SoftEntries(NamedTuple):
    """Entries of the soft targets in a chunk, other than the labels."""

    rows: Tensor  # [s] within the chunk
    token_ids: Tensor  # [s]
    probabilities: Tensor  # [s]
    logits: Tensor  # [s]
    at_label: Tensor | None  # [r] logits of the labels, only for label smoothing


class Chunk(NamedTuple):
    """A chunk of rows after the pass."""

    rows: slice
    grad: Tensor  # [r, V]: the logits, replaced by their gradient
    sums: RowSums
    entries: SoftEntries | None


class ChunkedHead:
    """The head applied to all rows with a label, and the required gradients of hidden states, head and bias."""

    def __init__(
        self,
        hidden: Tensor,  # [B·T, H]
        rows: Tensor | None,  # [R] rows with a label; None: all of them
        labels: Tensor,  # [R]
        head: Head,
        columns: Tensor,  # [N]
        share: Tensor,  # 0-d or [R], factor of each row in the cross-entropy
        smoothing: float,
        execution: Execution,
        requires_grad: tuple[bool, bool, bool],  # hidden, weight, bias
        read_soft: Callable[[], SoftRows] | None = None,  # soft targets on the CPU, without duplicates, sorted by row
    ) -> None:
        self.hidden, self.rows, self.labels, self.head, self.columns = hidden, rows, labels, head, columns
        self.share, self.smoothing, self.execution, self.requires_grad = share, smoothing, execution, requires_grad
        self._read_soft = read_soft
        self.h = take(hidden, rows)  # [R, H]
        self.slices = split_rows(self.h.shape[0], execution.chunk_rows)
        self.padded_columns = F.pad(columns, (0, -columns.shape[0] % 8))  # matrix units need multiples of 8
        self.softmax_share: Tensor | None = None  # [R], factor of the softmax that the numeric term adds to the gradient
        self.d_hidden: Tensor | None = None
        self.d_weight: Tensor | None = None
        self.d_bias: Tensor | None = None
        if requires_grad[2] and head.bias is not None:
            self.d_bias = torch.zeros_like(head.bias, dtype=wide(hidden.dtype))

    @property
    def has_soft_targets(self) -> bool:
        """Whether some rows have soft targets."""
        return self._read_soft is not None

    @cached_property
    def _soft_on_cpu(self) -> SoftRows | None:
        return None if self._read_soft is None else self._read_soft()

    @cached_property
    def _soft(self) -> tuple[SoftRows, list[int]] | None:
        """Soft targets on the device, and the offsets of the chunks among their entries."""
        if (soft := self._soft_on_cpu) is None:
            return None
        return SoftRows(*(value.to(self.h.device, non_blocking=True) for value in soft)), self._edges(soft.rows)

    def _edges(self, rows: Tensor) -> list[int]:
        """Return the offsets of the chunks among sorted rows on the CPU."""
        starts = torch.tensor([*(chunk.start for chunk in self.slices), self.h.shape[0]])
        return torch.searchsorted(rows, starts).tolist()

    def passes(self, *, write: bool, excluded: Tensor | None = None) -> Iterator[Chunk]:
        """Yield each chunk after the pass over its rows, with the gradient if ``write`` is set. Chunks share one buffer."""
        largest = self.slices[0].stop if self.slices else 0
        buffer = self.h.new_empty((largest, self.head.weight.shape[0]))
        for number, rows in enumerate(self.slices):
            h = self.h[rows]
            logits = torch.mm(h, self.head.weight.T, out=buffer[: h.shape[0]])
            entries = self._entries(number, logits)  # overlaps with the device computing the first logits
            softmax_share = None if self.softmax_share is None else self.softmax_share[rows]
            sums = self._pass(rows, logits, softmax_share, write=write, excluded=excluded)
            yield Chunk(rows, logits, self._soft_sums(rows, sums, entries), entries)

    def _pass(
        self, rows: slice, logits: Tensor, softmax_share: Tensor | None, *, write: bool, excluded: Tensor | None
    ) -> RowSums:
        """Return the sums of a chunk's rows; replace its logits by their gradient if ``write``."""
        labels, gold, smoothing = self._targets(rows)
        arguments = (logits, labels, self._share(rows), softmax_share, self.head, smoothing)
        if write and self.d_bias is not None:
            # The gradient of the bias sums over rows before rounding, which only the torch pass supports.
            return cross_entropy_rows_(*arguments, write=True, gold=gold, d_bias=self.d_bias)
        pass_over_rows = self.execution.implementation.cross_entropy_rows_
        sums: RowSums = pass_over_rows(*arguments, write=write, gold=gold, excluded=excluded)
        return sums

    def _targets(self, rows: slice) -> tuple[Tensor, Tensor | None, float]:
        """Return the columns of the labels ``[r]``, their target probabilities (None: 1) and the smoothing, for a pass."""
        return self.labels[rows], self._gold(rows), self.smoothing

    def _share(self, rows: slice) -> Tensor:
        return self.share if self.share.dim() == 0 else self.share[rows]

    def _gold(self, rows: slice) -> Tensor | None:
        return None if self._soft is None else self._soft[0].gold[rows]

    def _entries(self, number: int, logits: Tensor) -> SoftEntries | None:
        """Read the logits of a chunk's soft entries before they are overwritten by their gradient."""
        if self._soft is None:
            return None
        soft, edges = self._soft

        own, chunk = slice(edges[number], edges[number + 1]), self.slices[number]
        rows, token_ids = soft.rows[own] - chunk.start, soft.token_ids[own]
        every_row = torch.arange(logits.shape[0], device=logits.device)
        at_label = self._read(logits, every_row, self.labels[chunk]) if self.smoothing else None
        return SoftEntries(rows, token_ids, soft.probabilities[own], self._read(logits, rows, token_ids), at_label)

    def _read(self, logits: Tensor, rows: Tensor, token_ids: Tensor) -> Tensor:
        """Return the logits ``[s]`` of tokens, from raw ones ``[r, V]``."""
        return self.head.shaped(logits[rows, token_ids].to(wide(logits.dtype)), token_ids)

    def _soft_sums(self, rows: slice, sums: RowSums, entries: SoftEntries | None) -> RowSums:
        """Return sums with ``nll`` replaced by the cross-entropy with the soft targets."""
        if entries is None or (gold := self._gold(rows)) is None:
            return sums
        soft = SoftRows(gold, entries.rows, entries.token_ids, entries.probabilities)
        above = entries.logits - sums.top.index_select(0, entries.rows)
        if entries.at_label is None:
            return sums._replace(nll=soft.cross_entropy(sums.nll, sums.log_total, above))
        hard = sums.log_total - (entries.at_label - sums.top)
        return sums._replace(nll=sums.nll + (1 - self.smoothing) * (soft.cross_entropy(hard, sums.log_total, above) - hard))

    def write_soft_entries(self, chunk: Chunk) -> None:
        """Subtract the soft entries from the gradient of a chunk."""
        if (entries := chunk.entries) is None:
            return
        share = self._share(chunk.rows).expand(chunk.grad.shape[0]).index_select(0, entries.rows)
        part = self.head.unshaped((self.smoothing - 1) * share * entries.probabilities, entries.logits)
        # Entries are unique, so index_put_ need not accumulate, which would sort.
        places = entries.rows, entries.token_ids
        chunk.grad[places] = (chunk.grad[places].to(part.dtype) + part).to(chunk.grad.dtype)
        if self.d_bias is not None:
            self.d_bias.index_add_(0, entries.token_ids, part.to(self.d_bias.dtype))

    def concatenate(self, parts: list[RowSums]) -> RowSums:
        """Concatenate the sums of all chunks."""
        if not parts:
            return RowSums(*self.h.new_zeros((4, 1), dtype=wide(self.h.dtype)))
        if len(parts) == 1:
            return parts[0]
        return RowSums(*(None if field[0] is None else torch.cat(field) for field in zip(*parts, strict=True)))  # type: ignore[arg-type]

    def numeric_logits(self, rows: Tensor) -> Tensor:
        """Return ``z [P, N]`` of the given rows, rounded like the chunks' logits, since a softmax combines both."""
        raw = take(self.h, rows) @ take(self.head.weight, self.padded_columns).T
        size = self.columns.shape[0]
        return self.head.shaped(raw[:, :size].to(wide(raw.dtype)), self.columns).contiguous()

    def logits_of(self, rows: Tensor, token_ids: Tensor) -> Tensor:
        """Return the logits ``[E, N]`` of tokens, given on the CPU, in the given rows."""
        columns = token_ids.to(self.h.device, non_blocking=True)
        raw = take(self.h, rows) @ take(self.head.weight, columns).T
        return self.head.shaped(raw.to(wide(raw.dtype)), columns)

    def write_numeric_columns(self, chunk: Chunk, z: Tensor, dz: Tensor, rows: Tensor, numeric_share: Tensor) -> None:
        """Write the gradient of the objective at the numeric columns of this chunk's numeric ``rows``."""
        sums, shares = chunk.sums, (self._share(chunk.rows), numeric_share)
        labels, gold, smoothing = self._targets(chunk.rows)
        local = rows - chunk.rows.start if chunk.rows.start else rows
        self.execution.implementation.write_numeric_columns_(
            chunk.grad, local, self.columns, z, dz, sums, labels, *shares, self.head, smoothing, gold
        )
        if self.d_bias is not None:
            change = dz * numeric_share
            if self.softmax_share is not None:  # the pass over rows included these columns
                p = (z - (sums.top + sums.log_total)[local, None]).exp()
                change = change - p * self.softmax_share[rows, None]
            self.d_bias.index_add_(0, self.columns, self.head.unshaped(change, z).sum(0))

    def add_hidden_gradient(self, chunk: Chunk) -> None:
        """Write the gradient of a chunk's hidden states."""
        if not self.requires_grad[0]:
            return
        if self.d_hidden is None:
            self.d_hidden = torch.empty_like(self.hidden) if self.rows is None else torch.zeros_like(self.hidden)
        if self.rows is None:
            torch.mm(chunk.grad, self.head.weight, out=self.d_hidden[chunk.rows])
        else:
            self.d_hidden.index_copy_(0, self.rows[chunk.rows], chunk.grad @ self.head.weight)

    def add_head_gradient(self, chunk: Chunk) -> None:
        """Add a chunk's gradient of the head."""
        if not self.requires_grad[1]:
            return
        grad, h, dtype = chunk.grad, self.h[chunk.rows], self.head.weight.dtype
        if self.d_weight is not None:
            add_mm_(self.d_weight, grad.T, h)
        elif dtype != torch.float16 and (len(self.slices) == 1 or self.execution.head_grad_dtype == dtype):
            self.d_weight = grad.T @ h
        else:
            self.d_weight = mm_wide(grad.T, h)

    def update_head_gradient(self, first: Chunk) -> None:
        """Recompute the numeric rows of the head's gradient, which the numeric term changed in the first chunk."""
        assert self.d_weight is not None
        changed = mm_wide(first.grad.index_select(1, self.padded_columns).T, self.h[first.rows])[: self.columns.shape[0]]
        self.d_weight[self.columns] = changed.to(self.d_weight.dtype)

    def finish(self, *, narrow: bool) -> None:
        """Set required gradients to zero if there were no rows; cast the head's gradient to its dtype if ``narrow``."""
        if self.requires_grad[0] and self.d_hidden is None:
            self.d_hidden = torch.zeros_like(self.hidden)
        if self.requires_grad[1] and self.d_weight is None:
            self.d_weight = torch.zeros_like(self.head.weight)
        if self.d_weight is not None and narrow:
            self.d_weight = self.d_weight.to(self.head.weight.dtype)


def split_rows(num_rows: int, max_rows: int) -> list[slice]:
    """Split rows into as few chunks of at most ``max_rows`` as possible, of similar size, in multiples of 128."""
    num_chunks = -(-num_rows // max_rows)
    size = min(max_rows, -(-num_rows // max(1, num_chunks * 128)) * 128)
    return [slice(start, min(start + size, num_rows)) for start in range(0, num_rows, max(1, size))]
