"""The head in chunks of rows, of which this process holds a shard of the vocabulary.

A chunk's gradient needs the log-sum-exp of all shards, so each chunk is read once more before it is overwritten. The kernels are
those of the whole vocabulary: they subtract ``gold`` at the label, which is zero where the label is elsewhere, and multiply the
softmax over this shard by a factor per row, which turns it into the softmax over all.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from numerate.losses.base import NumericLoss
from numerate.losses.logit_rows import wide
from numerate.objective.chunks import Chunk, ChunkedHead
from numerate.objective.head import Head
from numerate.objective.rows_torch import RowSums
from numerate.objective.shards import VocabShard


class ShardedHead(ChunkedHead):
    """The rows of the head that belong to a :class:`VocabShard`. ``labels`` and the logits it returns are of all tokens."""

    def __init__(
        self,
        shard: VocabShard,
        loss: NumericLoss,
        hidden: Tensor,
        rows: Tensor | None,
        labels: Tensor,
        head: Head,
        *settings: Any,
    ) -> None:
        self.shard, self.num_columns = shard, loss.columns.shape[0]
        self.which, columns = shard.own_columns(loss, hidden.device)
        super().__init__(hidden, rows, labels, head, columns, *settings)
        self.is_here, self.label_columns = shard.locate(labels)
        # The kernels divide the smoothing by the size of the shard, and multiply the label's target by what it leaves.
        self.own_smoothing = self.smoothing * shard.width / shard.vocab_size
        self.own_gold = self.is_here.to(wide(hidden.dtype)) * ((1 - self.smoothing) / (1 - self.own_smoothing))
        self._read_before: dict[int, tuple[RowSums, Tensor]] = {}

    def _targets(self, rows: slice) -> tuple[Tensor, Tensor | None, float]:
        gold, own = self._gold(rows), self.own_gold[rows]
        return self.label_columns[rows], own if gold is None else own * gold, self.own_smoothing

    def _pass(
        self, rows: slice, logits: Tensor, softmax_share: Tensor | None, *, write: bool, excluded: Tensor | None
    ) -> RowSums:
        found = self._read_before.pop(rows.start, None)
        sums, factor = self._row_sums(rows, logits, excluded) if found is None else found
        if not write:
            self._read_before[rows.start] = sums, factor
            return sums
        share = self._share(rows).expand(logits.shape[0]).contiguous()
        wanted = share if softmax_share is None else share + softmax_share
        super()._pass(rows, logits, wanted * factor - share, write=True, excluded=None)
        return sums

    def _row_sums(self, rows: slice, logits: Tensor, excluded: Tensor | None) -> tuple[RowSums, Tensor]:
        """Return the sums of whole rows, and the factor from the softmax over this shard to the softmax over all."""
        shard, smoothing = self.shard, self.smoothing
        here, columns = self.is_here[rows], self.label_columns[rows]
        every_row = torch.arange(logits.shape[0], device=logits.device)
        at_label = self.head.shaped(logits[every_row, columns].to(wide(logits.dtype)), columns)
        read = self.execution.implementation.cross_entropy_rows_
        own = read(logits, columns, self._share(rows), None, self.head, smoothing, write=False, excluded=excluded)
        top = shard.max(own.top)
        shift = own.top - top
        parts = [(shift + own.log_total).exp(), torch.where(here, at_label - top, 0.0)]
        if smoothing:  # nll = (1 - smoothing) (log_total - above) + smoothing (log_total - mean)
            mean = own.log_total - (1 - smoothing) * (at_label - own.top) - own.nll
            parts.append((mean + smoothing * shift) * (shard.width / shard.vocab_size))
        if own.log_rest is not None:
            parts.append((shift + own.log_rest).exp())
        total, above, *others = shard.sum(torch.stack(parts))
        log_total = total.log()
        nll = log_total - above
        if smoothing:
            nll = log_total - (1 - smoothing) * above - others[0]
        log_rest = None if own.log_rest is None else others[-1].log()
        return RowSums(top, log_total, nll, log_rest), (shift + own.log_total - log_total).exp()

    @cached_property
    def _own_soft(self) -> tuple[Tensor, Tensor, list[int]]:
        """Indices of the soft entries that are here, their columns, and the offsets of the chunks among them."""
        assert self._soft_on_cpu is not None
        here, columns = self.shard.locate(self._soft_on_cpu.token_ids)
        which, device = here.nonzero()[:, 0], self.h.device
        edges = self._edges(self._soft_on_cpu.rows[which])
        return which.to(device, non_blocking=True), columns[which].to(device, non_blocking=True), edges

    def _read(self, logits: Tensor, rows: Tensor, token_ids: Tensor) -> Tensor:
        here, columns = self.shard.locate(token_ids)
        return self.shard.sum(torch.where(here, super()._read(logits, rows, columns), 0.0))

    def write_soft_entries(self, chunk: Chunk) -> None:
        """Subtract the soft entries that are here from the gradient of a chunk."""
        if chunk.entries is None or self._soft is None:
            return
        soft, (which, columns, edges), number = self._soft[0], self._own_soft, self.slices.index(chunk.rows)
        own = slice(edges[number], edges[number + 1])
        mine = which[own]
        start = self._soft[1][number]
        entries = chunk.entries._replace(
            rows=soft.rows[mine] - chunk.rows.start,
            token_ids=columns[own],
            probabilities=soft.probabilities[mine],
            logits=chunk.entries.logits[mine - start],
        )
        super().write_soft_entries(chunk._replace(entries=entries))

    def numeric_logits(self, rows: Tensor) -> Tensor:
        """Return ``z [P, N]`` of all shards."""
        return self._joined(super().numeric_logits(rows), self.which, self.num_columns)

    def logits_of(self, rows: Tensor, token_ids: Tensor) -> Tensor:
        """Return the logits ``[E, N]`` of tokens of all shards."""
        here, columns = self.shard.locate(token_ids)
        which = here.nonzero()[:, 0]
        return self._joined(super().logits_of(rows, columns[which]), which.to(self.h.device), token_ids.shape[0])

    def _joined(self, own: Tensor, which: Tensor, size: int) -> Tensor:
        """Return logits ``[P, N]`` from the columns ``which`` of each process; one process has each."""
        return self.shard.sum(own.new_zeros((own.shape[0], size)).index_copy(1, which, own))

    def write_numeric_columns(self, chunk: Chunk, z: Tensor, dz: Tensor, rows: Tensor, numeric_share: Tensor) -> None:
        """Write the gradient at the numeric columns that are here."""
        z, dz = z.index_select(1, self.which), dz.index_select(1, self.which)
        super().write_numeric_columns(chunk, z, dz, rows, numeric_share)
