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
from benchmarks.measure import Kernel, compare_ms, kernels_of, median_ratio
from numerate.checks import check_choice
from numerate.losses import LOSSES
from numerate.losses.base import NumericLoss
from numerate.objective import NumericObjective
from numerate.objective.batch import BatchLabels
from numerate.objective.from_hidden import objective_from_hidden
from numerate.objective.from_logits import objective_from_logits
from numerate.objective.head import Head
from numerate.objective.shards import VocabShard


@dataclass(frozen=True)
class ShardCost:
    """Time of cross-entropy (``loss`` is empty), or of the objective with one loss."""

    loss: str
    runtime_ms: float
    ratio: float  # to vocabulary-parallel cross-entropy, per round
    queued_ms: float  # on a GPU that is busy while the CPU launches the kernels
    queued_ratio: float
    kernels: tuple[Kernel, ...]


@dataclass(frozen=True)
class ShardsBench:
    """Results for one shard, cross-entropy first."""

    tokens: int
    vocab_size: int
    processes: int
    numeric_tokens: int
    hidden_size: int | None
    dtype: str
    device: str
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
    hidden_size: int | None = None,
    dtype: str = "float32",
    device: str = "cpu",
    repeats: int = 7,
) -> ShardsBench:
    """Measure the first of ``processes`` shards, from logits, or with ``hidden_size`` from hidden states and the head."""
    check_choice("dtype", dtype, tuple(DTYPES))
    for loss in losses:
        check_choice("loss", loss, tuple(LOSSES))
    place, vocab = torch.device(device), bench_vocab(numeric_tokens, vocab_size)
    labels = bench_labels(vocab, tokens).to(place)
    held = vocab_size // processes
    shapes = ((1, tokens, held),) if hidden_size is None else ((1, tokens, hidden_size), (held, hidden_size))
    given = [(torch.randn(shape, device=place) * (hidden_size or 1) ** -0.25).to(DTYPES[dtype]) for shape in shapes]
    given = [tensor.requires_grad_() for tensor in given]

    def work(loss: str) -> Callable[[], object]:
        objective = NumericObjective(LOSSES[loss](vocab)).to(place)
        terms = objective.numeric_loss, objective.weighting
        figures: dict[str, Any] = {"with_mass": False, "with_overrun": False}

        def run() -> object:
            columns = LoneShard(held, None, None, 0, processes)  # one per call, as for the caller of the objective
            if hidden_size is None:
                out = objective_from_logits(*terms, given[0], BatchLabels(labels), columns, **figures)
            else:
                head = Head(given[1])
                settings: dict[str, Any] = {"impl": "auto", "max_logits_mib": None, "head_grad_dtype": "float32"}
                out = objective_from_hidden(*terms, given[0], head, BatchLabels(labels), columns, None, **settings, **figures)
            return torch.autograd.grad(out.loss, given)

        return run

    def ce() -> object:
        rows = given[0].view(tokens, -1)  # the gradient of an index would be a copy
        logits = rows if hidden_size is None else rows @ given[1].T
        return torch.autograd.grad(VocabParallelCrossEntropy.apply(logits, labels[0]), given)  # type: ignore[no-untyped-call]

    works = {"": ce} | {loss: work(loss) for loss in losses}
    busy = torch.randn(16384, 16384, device=place, dtype=torch.bfloat16) if place.type == "cuda" else torch.zeros(1, 1)
    times = compare_ms(works, place, repeats=repeats)
    queued = compare_ms(works, place, repeats=repeats, before=lambda: [busy @ busy for _ in range(2)])  # about 25 ms
    costs = tuple(
        ShardCost(
            loss,
            *(median(times[loss]), median_ratio(times[loss], times[""])),
            *(median(queued[loss]), median_ratio(queued[loss], queued[""])),
            kernels_of(run, place),
        )
        for loss, run in works.items()
    )
    return ShardsBench(tokens, vocab_size, processes, numeric_tokens, hidden_size, dtype, device_name(place), costs)
