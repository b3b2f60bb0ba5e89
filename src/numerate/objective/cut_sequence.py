"""Sequences that are cut over processes, as context parallelism does: numbers that touch a border are read whole.

Every process has the logits and labels of a part of each sequence. Labels are exchanged, so that all processes read the same
numbers. A number-level loss needs the numeric logits of all tokens of a number. So the rows ``[P, N]`` of numbers with tokens on
several processes, and only these, are summed over the processes, of which one has each row. Every process then computes the cost
of the numbers it has a part of, and adds the gradient of its own rows: gradients need no communication. The value of each row's
share is counted by the process that has the row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor

from numerate.checks import check_choice, choices
from numerate.losses.base import NumericLoss
from numerate.losses.target_tokens import NumberTargets, Targets
from numerate.objective.batch import BatchLabels
from numerate.objective.weighting import Weighting

Order = Literal["contiguous", "zigzag"]


class CutSequence:
    """How the sequences of a batch are cut over the processes of a group.

    Args:
        group: the processes, such as those of context parallelism, in the order of their parts.
        order: ``"contiguous"``: process r has the r-th of n equal parts; ``"zigzag"``: the r-th and the r-th last of 2n, which
            balances causal attention.
    """

    def __init__(self, group: Any, order: Order = "contiguous") -> None:
        if hasattr(group, "get_group"):  # a mesh of one dimension
            group = group.get_group()
        check_choice("order", order, choices(Order))
        if not isinstance(group, dist.ProcessGroup):
            raise TypeError(f"group is a {type(group).__name__}: expected the process group of context parallelism.")
        self.group, self.order = group, order
        self.rank, self.count = dist.get_rank(group), dist.get_world_size(group)

    def sum(self, values: Tensor) -> Tensor:
        """Return the sum of ``values``, which are overwritten, over the processes."""
        dist.all_reduce(values, group=self.group)
        return values

    def positions(self, length: int) -> Tensor:
        """Return the positions ``[processes, length]`` in the sequence of the tokens of each process, which has ``length``."""
        if self.order == "contiguous":
            return torch.arange(self.count * length).view(self.count, length)
        if length % 2:
            raise ValueError(
                f"labels have {length} positions on this process: expected an even number, two parts in zigzag order."
            )
        parts = torch.arange(self.count * length).view(2 * self.count, -1)
        return torch.cat([parts[: self.count], parts[self.count :].flip(0)], 1)

    def check(self, labels: Tensor) -> None:
        """Raise on all processes unless their parts have the same shape."""
        sizes = torch.zeros((self.count, 2), dtype=torch.int64, device=labels.device)
        sizes[self.rank] = torch.tensor([labels.shape[:-1].numel(), labels.shape[-1]])
        sizes = self.sum(sizes).cpu()
        if bool((sizes != sizes[0]).any()):
            shapes = ", ".join(str(tuple(size)) for size in sizes.tolist())
            raise ValueError(
                f"labels have the shapes {shapes} on the processes of cut=: expected the same number of sequences and positions "
                "on each; fill them up with ignore_index."
            )

    def whole(self, own: Tensor) -> Tensor:
        """Return tensors ``[.., T]`` of whole sequences from this process's ``[.., T / processes]``."""
        found = own.new_zeros((self.count, *own.shape))
        found[self.rank] = own
        found = self.sum(found).movedim(0, -2).flatten(-2)  # [.., T] in the order of the processes
        return torch.empty_like(found).index_copy(-1, self.positions(own.shape[-1]).flatten().to(own.device), found)


@dataclass(frozen=True)
class CutNumbers:
    """The numbers that this process has tokens of."""

    cut: CutSequence
    targets: Targets  # of this process's rows, [P]
    whole: Targets  # of these and of the other rows of their numbers, [Q]
    own: Tensor  # [P] index of this process's rows among those
    others: Tensor  # [Q - P] index of the others
    num_border: int  # rows of numbers with tokens on several processes
    sent: Tensor  # index of such rows among this process's P
    sent_as: Tensor  # and among all such rows
    received_as: Tensor  # [Q - P] index of the others among all such rows

    @classmethod
    def read(cls, loss: NumericLoss, cut: CutSequence, whole: BatchLabels, length: int, device: torch.device) -> CutNumbers:
        """Find the rows of this process, which has ``length`` positions, and the numbers at its borders."""
        on_cpu = {"position_weights": whole.position_weights, "position_ids": whole.position_ids}
        labels = whole.ids.cpu()
        targets = loss.targets(
            labels, **{name: None if value is None else value.cpu() for name, value in on_cpu.items()}, compact=True
        )
        assert targets.rows is not None
        slot = cut.positions(length).flatten().argsort()[targets.rows % labels.shape[-1]]  # in the order of the processes
        process, row = slot // length, targets.rows // labels.shape[-1] * length + slot % length
        mine = process == cut.rank
        own = mine.nonzero()[:, 0]
        own = own[row[own].argsort()]
        border = other = torch.zeros_like(mine)
        if isinstance(targets, NumberTargets):
            number = targets.spans.number_of.clamp_min(-1) + 1  # 0: none
            size = int(number.max()) + 1 if number.numel() else 1
            first = torch.full((size,), cut.count).scatter_reduce(0, number, process, "amin")
            last = torch.full((size,), -1).scatter_reduce(0, number, process, "amax")
            here = torch.zeros(size, dtype=torch.bool).index_fill(0, number[own], True)
            border = (number > 0) & (first < last)[number]
            other = border & here[number] & ~mine
        rows = (mine | other).nonzero()[:, 0]
        where = torch.zeros_like(slot).index_copy(0, rows, torch.arange(rows.shape[0]))
        as_border = border.long().cumsum(0) - 1
        sent = border[own].nonzero()[:, 0]
        theirs = other.nonzero()[:, 0]
        shape = torch.Size((*labels.shape[:-1], length))
        indices = (where[own], where[theirs], sent, as_border[own[sent]], as_border[theirs])
        to = [index.to(device, non_blocking=True) for index in indices]
        return cls(
            cut,
            replace(targets.take(own), rows=row[own], shape=shape).to(device),
            replace(_renumbered(targets.take(rows)), shape=shape).to(device),
            to[0],
            to[1],
            int(border.sum()),
            *to[2:],
        )

    def to(self, device: torch.device) -> CutNumbers:
        """Copy to another device."""
        if device == self.own.device:
            return self
        names = ("targets", "whole", "own", "others", "sent", "sent_as", "received_as")
        return replace(self, **{name: getattr(self, name).to(device) for name in names})

    def joined(self, own: Tensor, *, exchange: bool) -> Tensor:
        """Return rows ``[Q, ..]`` from this process's ``[P, ..]`` and those of others, which are zero without ``exchange``."""
        rows = own.new_zeros((self.whole.slots, *own.shape[1:])).index_copy(0, self.own, own)
        if not exchange or not self.num_border:
            return rows
        border = own.new_zeros((self.num_border, *own.shape[1:])).index_copy(0, self.sent_as, own[self.sent])
        every: Tensor = _Sum.apply(border, self.cut)  # type: ignore[no-untyped-call]
        return rows.index_copy(0, self.others, every[self.received_as])

    def costs(self, loss: NumericLoss, z: Tensor, rest: Tensor | None) -> Tensor:
        """Return the cost of each row ``[P]`` of this process; their gradients reach the rows of all processes."""
        exchange = loss.level == "number"
        z, rest = self.joined(z, exchange=exchange), None if rest is None else self.joined(rest, exchange=exchange)
        return loss.per_row(z, rest, self.whole)[self.own]

    def gradient(
        self, loss: NumericLoss, z: Tensor, rest: Tensor | None, *, needs_grad: bool
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Return this process's share of the numeric sum, and the gradients w.r.t. its ``z [P, N]`` and ``rest [P]``."""
        exchange = loss.level == "number"
        with torch.no_grad(), torch.autocast(z.device.type, enabled=False):
            z = self.joined(z, exchange=exchange)
            rest = None if rest is None else self.joined(rest, exchange=exchange)
            total = loss.per_row(z, rest, self.whole)[self.own].sum()
            if not needs_grad:
                return total, None, None
            _, dz, d_rest = loss.value_and_grad(z, rest, self.whole)
            return total, dz[self.own], None if d_rest is None else d_rest[self.own]


class _Sum(torch.autograd.Function):
    """The sum over processes, whose gradients are summed too."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, cut: CutSequence) -> Tensor:
        ctx.cut = cut
        return cut.sum(values.clone())

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return ctx.cut.sum(grad.clone()), None


def _renumbered(targets: Targets) -> Targets:
    """Return targets whose numbers are counted from 0: a number's slot is its index."""
    if not isinstance(targets, NumberTargets):
        return targets
    number = targets.spans.number_of
    index = torch.unique(number.clamp_min(-1), return_inverse=True)[1] - int(bool((number < 0).any()))
    return replace(targets, spans=replace(targets.spans, number_of=index))


def whole_batch(batch: BatchLabels, cut: CutSequence) -> BatchLabels:
    """Return the labels of whole sequences, and what belongs to them; counts and soft targets stay as they are."""
    cut.check(batch.ids)
    whole: Callable[[Tensor | None], Tensor | None] = lambda value: None if value is None else cut.whole(value)  # noqa: E731
    return replace(
        batch,
        ids=cut.whole(batch.ids),
        position_weights=whole(batch.position_weights),
        position_ids=whole(batch.position_ids),
        token_weights=whole(batch.token_weights),
    )


def refuse_cut(loss: NumericLoss, weighting: Weighting, *, shift: bool, with_overrun: bool) -> None:
    """Raise for what cut sequences do not support."""
    refused = {
        "shift=True": (shift, "shift the labels before they are cut, since the label of a part's last position is in the next"),
        "with_overrun=True": (with_overrun, "leave it out"),
        "scale='match_ce'": (weighting.scale == "match_ce", "expected scale='fixed'"),
        "average='sequence'": (getattr(loss, "average", "number") == "sequence", "expected average='number'"),
        "noise": (getattr(loss, "noise", 0.0) > 0, "expected noise=0, which is the same on all processes"),
    }
    for name, (is_set, remedy) in refused.items():
        if is_set:
            raise NotImplementedError(f"{name} is not supported with cut=, sequences that are cut over processes: {remedy}.")
