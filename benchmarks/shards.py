"""Time of the objective on a shard of the vocabulary, next to vocabulary-parallel cross-entropy on the same shard.

One process does the work of one of several: sums over processes are left out on both sides, so that arithmetic is compared. The
values mean nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch import Tensor

from benchmarks.losses import DTYPES, bench_labels, bench_vocab, device_name
from benchmarks.measure import compare_ms, median_ratio
from numerate.checks import check_choice
from numerate.losses import LOSSES
from numerate.losses.base import NumericLoss
from numerate.objective import NumericObjective
from numerate.objective.batch import BatchLabels
from numerate.objective.from_logits import objective_from_logits
from numerate.objective.shards import VocabShard


@dataclass(frozen=True)
class ShardCost:
    """Time of the objective with one loss."""

    loss: str
    runtime_ms: float
    ratio: float  # to vocabulary-parallel cross-entropy, per round


@dataclass(frozen=True)
class ShardsBench:
    """Results for one shard."""

    tokens: int
    vocab_size: int
    processes: int
    numeric_tokens: int
    dtype: str
    device: str
    ce_runtime_ms: float
    costs: tuple[ShardCost, ...]


class LoneShard(VocabShard):
    """The first shard, without the other processes."""

    def sum(self, values: Tensor) -> Tensor:
        """Return this process's share."""
        return values

    def max(self, values: Tensor) -> Tensor:
        """Return this process's share."""
        return values.clone()

    def check(self, name: str, labels: Tensor, loss: NumericLoss) -> None:
        """Compare nothing."""


class VocabParallelCrossEntropy(torch.autograd.Function):
    """The arithmetic of Megatron's loss of that name: softmax in float32 kept, gradient in place."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the mean over rows."""
        x = logits.float()
        x = x - x.amax(-1, keepdim=True)
        here = labels < x.shape[-1]
        column = torch.where(here, labels, 0)
        at_label = torch.where(here, x.gather(-1, column[:, None])[:, 0], 0.0)
        p = x.exp_()
        total = p.sum(-1)
        p.div_(total[:, None])
        ctx.save_for_backward(p, here, column)
        ctx.dtype = logits.dtype
        return (total.log() - at_label).mean()

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None]:
        """Return the softmax minus one at the labels."""
        p, here, column = ctx.saved_tensors
        p[torch.arange(p.shape[0], device=p.device), column] -= here.to(p.dtype)
        return p.mul_(upstream / p.shape[0]).to(ctx.dtype), None


def bench_shards(
    losses: Sequence[str] = ("smmd",),
    *,
    tokens: int = 1024,
    vocab_size: int = 49152,
    processes: int = 8,
    numeric_tokens: int = 10,
    dtype: str = "float32",
    device: str = "cpu",
    repeats: int = 7,
) -> ShardsBench:
    """Measure the first of ``processes`` shards."""
    check_choice("dtype", dtype, tuple(DTYPES))
    for loss in losses:
        check_choice("loss", loss, tuple(LOSSES))
    place, vocab = torch.device(device), bench_vocab(numeric_tokens, vocab_size)
    labels = bench_labels(vocab, tokens).to(place)
    held = vocab_size // processes
    logits = torch.randn(1, tokens, held, device=place).to(DTYPES[dtype]).requires_grad_()
    columns = LoneShard(held, None, None, 0, processes)

    def work(loss: str) -> Callable[[], object]:
        objective = NumericObjective(LOSSES[loss](vocab)).to(place)
        inputs = objective.numeric_loss, objective.weighting, logits, BatchLabels(labels), columns
        return lambda: torch.autograd.grad(objective_from_logits(*inputs, with_mass=False, with_overrun=False).loss, logits)

    def ce() -> object:
        return torch.autograd.grad(VocabParallelCrossEntropy.apply(logits[0], labels[0]), logits)  # type: ignore[no-untyped-call]

    times = compare_ms({"": ce} | {loss: work(loss) for loss in losses}, place, repeats=repeats)
    costs = tuple(ShardCost(loss, median(times[loss]), median_ratio(times[loss], times[""])) for loss in losses)
    return ShardsBench(tokens, vocab_size, processes, numeric_tokens, dtype, device_name(place), median(times[""]), costs)
