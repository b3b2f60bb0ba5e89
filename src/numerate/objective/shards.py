"""Vocabulary shards: every process of a group holds a range of the vocabulary, as in tensor parallelism.

The objective exchanges what vocabulary-parallel cross-entropy exchanges, and the numeric logits:

    [R]      maximum      the largest logit of each row
    [2, R]   sum          the sum of exponentials, and the label's logit (one more with label smoothing)
    [P, N]   sum          logits of the numeric tokens, each of which one process has

With soft targets, the logits of their entries are added, and for losses that need the mass outside the numeric tokens a maximum
and a sum of ``[P]``. The gradient of each shard then needs no communication. Bytes per process and step are in
``docs/large_models.md``.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from numerate.checks import check_integer
from numerate.losses.base import LEAST_SHARE, NumericLoss
from numerate.losses.logit_rows import reads_freely, rest_of_rows, take, wide
from numerate.losses.target_tokens import Targets
from numerate.objective.logit_columns import Columns, LabelSums, row_means
from numerate.targets.soft_targets import SoftRows


class VocabShard(Columns):
    """The range ``[start, start + width)`` of the vocabulary that this process holds.

    Ranges are contiguous, in the order of the ranks: equal ranges, of which the last ones may be padded (Megatron), or those of
    ``torch.chunk``, of which the last may be shorter (DTensor).

    Args:
        held: number of columns of the logits, or rows of the head, of this process.
        group: the processes; None for a group of which :meth:`sum` and :meth:`max` are replaced.
        vocab_size: number of tokens; what processes hold beyond them is padding. None: all that they hold.
        rank: of this process in the group.
        count: number of processes.
    """

    def __init__(self, held: int, group: Any, vocab_size: int | None, rank: int, count: int) -> None:
        self.group, self.rank, self.count = group, rank, count
        self.vocab_size = count * held if vocab_size is None else vocab_size
        self.longest = max(held, -(-self.vocab_size // count))  # of all processes
        self.start = rank * self.longest
        self.width = min(held, self.vocab_size - self.start)
        self._own_columns: dict[NumericLoss, tuple[Tensor, Tensor]] = {}
        if (count - 1) * self.longest >= self.vocab_size:
            raise ValueError(
                f"vocab_size={self.vocab_size} in shards of {self.longest} leaves none for the last of {count} processes: "
                "expected at least one token on each; use less padding, or a smaller group."
            )

    def num_tokens(self, flat: Tensor) -> int:
        """See :class:`Columns`, as for the methods below."""
        return self.vocab_size

    # Communication

    def sum(self, values: Tensor) -> Tensor:
        """Return the sum of ``values``, which are overwritten, over the processes."""
        values = values.contiguous()
        dist.all_reduce(values, dist.ReduceOp.SUM, self.group)
        return values

    def max(self, values: Tensor) -> Tensor:
        """Return the largest of ``values`` over the processes."""
        values = values.clone()
        dist.all_reduce(values, dist.ReduceOp.MAX, self.group)
        return values

    def check(self, name: str, labels: Tensor, loss: NumericLoss) -> None:
        """See :class:`Columns`; raise on all processes alike."""
        vocab = getattr(loss, "vocab", None)
        if self.count > 1 and vocab is not None and self.width >= LEAST_SHARE * vocab.vocab_size:
            raise ValueError(
                f"{name} has {self.width} entries in the vocabulary dimension on one of {self.count} processes, and the "
                f"NumericVocab {vocab.vocab_size}: expected a shard of the vocabulary; leave out group= for the whole one."
            )
        if getattr(loss, "noise", 0.0) > 0:
            raise NotImplementedError(
                f"{type(loss).__name__} adds noise of its own on each process, but all processes of group= need the same numeric "
                "term: expected noise=0."
            )
        edges = torch.full((self.count, 3), -1)
        edges[self.rank] = torch.tensor([self.start, self.start + self.width, self.vocab_size])
        flat = labels.reshape(-1)
        digest = (flat * (torch.arange(flat.shape[0], device=flat.device) * 0x9E3779B1 + 1)).sum() + flat.shape[0]
        digest = digest & 0x7FFFFFFFFFFFFFFF
        found = self.max(torch.cat([edges.flatten().to(flat.device, non_blocking=True), torch.stack([digest, -digest])]))
        edges, equal = found[:-2].view(-1, 3), found[-2] == -found[-1]
        size = edges[0, 2]
        tiled = (edges[1:, 0] == edges[:-1, 1]).all() & (edges[0, 0] == 0) & (edges[-1, 1] == size) & (edges[:, 2] == size).all()
        if not reads_freely(flat):  # no sync
            torch._assert_async(tiled, "the shards of the processes in group= do not make up the vocabulary")
            torch._assert_async(equal, "the labels of the processes in group= differ")
            return
        if not bool(tiled):
            ranges = ", ".join(f"[{start}, {stop})" for start, stop, _ in edges.tolist())
            raise ValueError(
                f"{name} has the ranges {ranges} of the vocabulary on the processes of group=: expected ranges that follow each "
                "other, of equal size, or of the sizes of torch.chunk; pass vocab_size=, the number of tokens, if the last is "
                "shorter, and the tensor-parallel group."
            )
        if not bool(equal):
            raise ValueError(
                "labels differ between the processes of group=: expected the same labels on all of them, each with its own shard "
                "of the vocabulary; pass the tensor-parallel group, not the data-parallel one. A head that FSDP2 sharded needs "
                "lm_head.unshard() first."
            )

    # Tokens

    def locate(self, token_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return a mask of the tokens that are here, and their columns; 0 for the others."""
        local = token_ids - self.start
        inside = local.clamp(0, self.width - 1)
        mine = inside == local
        return mine, inside * mine

    def own_columns(self, loss: NumericLoss, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return which of a loss's columns are here, as indices among them, and where; found on the CPU, without a sync."""
        if loss not in self._own_columns:
            mine, local = self.locate(loss.column_ids)
            which = mine.nonzero()[:, 0]
            found = torch.stack([which, local[which]]).to(device, non_blocking=True)
            self._own_columns[loss] = found[0], found[1]
        return self._own_columns[loss]

    def columns_of(self, loss: NumericLoss, device: torch.device) -> Tensor:
        """See :class:`Columns`."""
        return self.own_columns(loss, device)[1]

    # Read

    def row_sums(
        self,
        flat: Tensor,
        here: Tensor | None,
        column: Tensor,
        soft: SoftRows | None,
        smoothing: float,
        top: Tensor,
        log_total: Tensor,
    ) -> LabelSums:
        """Combine the log-sum-exps of all shards; read the label's logit where it is."""
        whole = self.max(top)
        empty = top == -torch.inf  # no token here is possible
        above = torch.where(empty, -torch.inf, (top - whole) + log_total)
        assert here is not None
        at_label = flat.gather(1, column[:, None])[:, 0].to(top.dtype) - whole
        parts = [above.exp(), torch.where(here, at_label, 0.0)]
        if smoothing:
            parts.append(row_means(flat, whole) * self.width)
        if soft is not None:
            mine, local = self.locate(soft.token_ids)
            entries = flat[soft.rows, local].to(top.dtype) - take(whole, soft.rows)
            parts.append(torch.where(mine, entries, 0.0))
        total, at_label, *others = self.sum(torch.cat(parts)).split([part.shape[0] for part in parts])
        log_total = total.log()
        mean = others.pop(0) / self.vocab_size if smoothing else None
        return LabelSums(whole, log_total, at_label, others[0] if others else None, mean, above)

    def select(self, flat: Tensor, rows: Tensor | None, token_ids: Tensor) -> Tensor:
        """Sum over processes, of which one has the token: exact in any dtype."""
        mine, local = self.locate(token_ids)
        return self.sum(torch.where(mine, super().select(flat, rows, local), 0.0))

    def numeric(self, loss: NumericLoss, flat: Tensor, targets: Targets, rest: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Return the numeric logits of all shards, and the log-sum-exp of all others."""
        which, columns = self.own_columns(loss, flat.device)
        own = super().select(flat, targets.rows, columns)
        z = self.sum(own.new_zeros((own.shape[0], loss.columns.shape[0])).index_copy_(1, which, own)).to(wide(flat.dtype))
        if not loss.uses_rest:
            return z, None
        here = rest_of_rows(flat, targets.rows, columns, targets.mask) if rest is None else take(rest, targets.rows)
        return z, self.log_sum_exp(here)

    def log_sum_exp(self, own: Tensor) -> Tensor:
        """Return the log-sum-exp over all processes of those of each, in float64."""
        top = self.max(own.double())
        return self.sum((own - top).exp()).log() + top

    # Write

    def own(self, loss: NumericLoss, dz: Tensor) -> tuple[Tensor, Tensor]:
        """Return the part of the gradient that belongs to this shard."""
        which, columns = self.own_columns(loss, dz.device)
        return columns, dz[:, which]

    def add(self, grad: Tensor, rows: Tensor, token_ids: Tensor, values: Tensor) -> None:
        """Add where the token is here."""
        mine, local = self.locate(token_ids)
        super().add(grad, rows, local, torch.where(mine, values, 0.0))


def shard_of(held: int, group: Any, vocab_size: int | None, *, whole: int | None = None) -> VocabShard:
    """Return the shard of this process, which holds so many columns; all processes hold ``whole``, where that is known.

    ``group`` is a ``ProcessGroup``, or a ``DeviceMesh`` of one dimension.
    """
    if hasattr(group, "get_group"):
        group = group.get_group()
    if not isinstance(group, dist.ProcessGroup):
        raise TypeError(
            f"group is a {type(group).__name__}: expected the process group of tensor parallelism, such as "
            "parallel_state.get_tensor_model_parallel_group() or mesh['tp'].get_group()."
        )
    if vocab_size is not None:
        vocab_size = check_integer("vocab_size", vocab_size, "the number of tokens, an integer >= 1", least=1)
    if whole is not None:
        held, vocab_size = -(-whole // dist.get_world_size(group)), whole if vocab_size is None else vocab_size
        if vocab_size > whole:
            raise ValueError(f"vocab_size={vocab_size} is out of range: expected at most {whole}, the size of the DTensor.")
    return VocabShard(held, group, vocab_size, dist.get_rank(group), dist.get_world_size(group))
