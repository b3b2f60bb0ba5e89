"""Sequences cut over processes, on threads: every number cut at every offset equals the uncut batch."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from tests.objective.sharded import (
    LABELS,
    SIZE,
    VOCAB,
    OneOfThreads,
    ThreadCut,
    Threads,
    compare_cut,
    compare_fused,
    moved,
    options,
    padded_labels,
    thread_shard_of,
)

from numerate import LOSSES, NTILLoss, NumericObjective, SMMDLoss
from numerate.objective import CutSequence
from numerate.objective.cut_sequence import Order


@pytest.mark.parametrize("order", ["contiguous", "zigzag"])
@pytest.mark.parametrize("name", [*LOSSES, None])
def test_equals_the_uncut_batch(name: str | None, order: Order) -> None:
    numeric = None if name is None else LOSSES[name](VOCAB)
    objective = NumericObjective(numeric, weight=0.7)
    for count in (2, 4):
        for offset in range(9):
            group, labels = Threads(count), padded_labels(offset)
            run_cut(group, objective, order, labels, {})


def run_cut(group: Threads, objective: NumericObjective, order: Order, labels: torch.Tensor, call: dict[str, object]) -> None:
    group.run(lambda rank: compare_cut(objective, ThreadCut(group, rank, order), labels, {}, call))


@pytest.mark.parametrize("option", ["soft", "outside"])
@pytest.mark.parametrize("name", ["smmd", "number", "ntil", "ntl_number", "digit_entropy"])
def test_with_weights_soft_targets_and_mass_outside(name: str, option: str) -> None:
    of_loss, settings, call, _ = options()[option]
    objective = NumericObjective(LOSSES[name](VOCAB, **of_loss), weight=0.7, **settings)
    for offset in range(0, 9, 2):
        run_cut(Threads(4), objective, "zigzag", padded_labels(offset), moved(call, offset))


@pytest.mark.parametrize("places", ["exponential", "linear", "del"])
def test_places_are_those_of_whole_numbers(places: str) -> None:
    objective = NumericObjective(SMMDLoss(VOCAB, places=places))
    for offset in range(9):
        run_cut(Threads(4), objective, "contiguous", padded_labels(offset), {})


@pytest.mark.parametrize("outside", ["ignore", "penalize"])
@pytest.mark.parametrize("name", ["smmd", "number", "ntil", "ntl_number"])
def test_per_position(name: str, outside: str) -> None:
    """Each position may have any factor; that of a number's first digit reaches its digits on other processes."""
    objective = NumericObjective(LOSSES[name](VOCAB, outside=outside))
    generator = torch.Generator().manual_seed(4)
    for offset in range(9):
        group, labels = Threads(4), padded_labels(offset)
        logits = torch.randn((*labels.shape, SIZE), generator=generator, dtype=torch.float64).requires_grad_()
        factors = torch.rand(labels.shape, generator=generator, dtype=torch.float64)
        losses = objective.per_position(logits, labels)
        (truth,) = torch.autograd.grad((losses * factors).sum(), logits)
        compare_positions(objective, group, labels, (logits.detach(), factors), (losses.detach(), truth))


def compare_positions(
    objective: NumericObjective,
    group: Threads,
    labels: torch.Tensor,
    given: tuple[torch.Tensor, torch.Tensor],
    expected: tuple[torch.Tensor, torch.Tensor],
) -> None:
    def one(rank: int) -> None:
        cut = ThreadCut(group, rank, "zigzag")
        at = cut.positions(4)[rank]
        (logits, factors), (losses, truth) = given, expected
        part = logits[:, at].requires_grad_()
        found = objective.per_position(part, labels[:, at], cut=cut)
        assert torch.allclose(found, losses[:, at], rtol=1e-11)
        (grad,) = torch.autograd.grad((found * factors[:, at]).sum(), part)
        assert float((grad - truth[:, at]).abs().max() / truth.abs().max()) <= 1e-12

    group.run(one)


@pytest.mark.parametrize("option", ["plain", "soft", "outside"])
@pytest.mark.parametrize("name", [*LOSSES, None])
def test_fused(name: str | None, option: str) -> None:
    """One chunk, and chunks of three rows."""
    if name is None and option == "outside":
        return
    of_loss, settings, call, _ = options()[option]
    objective = NumericObjective(None if name is None else LOSSES[name](VOCAB, **of_loss), weight=0.7, **settings)
    for offset, order in ((1, "contiguous"), (5, "zigzag")):
        group, labels, own = Threads(4), padded_labels(offset), moved(call, offset)
        run_fused(group, objective, order, labels, own)


def run_fused(group: Threads, objective: NumericObjective, order: Order, labels: torch.Tensor, own: dict[str, object]) -> None:
    group.run(lambda rank: compare_fused(objective, ThreadCut(group, rank, order), labels, own))


def test_with_shards_of_the_vocabulary(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two parts of the sequence times two shards."""
    monkeypatch.setattr("numerate.objective.placements.shard_of", thread_shard_of)
    objective, labels = NumericObjective(LOSSES["number"](VOCAB)), padded_labels(2)
    parts, shards = [Threads(2) for _ in range(2)], [Threads(2) for _ in range(2)]

    def one(rank: int) -> None:
        part, shard = divmod(rank, 2)
        cut = ThreadCut(parts[shard], part, "zigzag")
        columns = (17 * shard, 17 if shard == 0 else SIZE)
        group = {"group": OneOfThreads(shards[part], shard), "vocab_size": SIZE, "columns": columns}
        compare_cut(objective, cut, labels, group, {})

    Threads(4).run(one)


def test_only_rows_at_borders_are_sent() -> None:
    """Labels, and the numeric logits of numbers on both sides; nothing for losses of single tokens."""
    assert sent("number", 2) == []
    assert sent("number", 8) == [4]  # - 123 45 | 678: the minus is read, the point is not
    assert sent("smmd", 8) == []


def sent(name: str, offset: int) -> list[int]:
    """Return the numbers of rows that are sent, besides the labels."""
    group, labels, objective = Threads(2), padded_labels(offset, 24), NumericObjective(LOSSES[name](VOCAB))
    parts = labels.chunk(2, 1)
    group.run(lambda rank: call(objective, ThreadCut(group, rank, "contiguous"), parts[rank]))
    assert group.sent[0] == group.sent[1]
    assert group.sent[0][:2] == [("sum", 8 * 2 * 2), ("sum", 8 * labels.numel())]  # shapes, labels
    return [size // 8 // objective.numeric_loss.columns.shape[0] for _, size in group.sent[0][2:]]


def call(objective: NumericObjective, cut: CutSequence, labels: torch.Tensor) -> None:
    objective(torch.zeros(*labels.shape, SIZE, dtype=torch.float64), labels, cut=cut)


def test_refusals() -> None:
    cut, logits = ThreadCut(Threads(1), 0, "contiguous"), torch.zeros(*LABELS.shape, SIZE)
    objective = NumericObjective(SMMDLoss(VOCAB))
    for name in ("shift", "with_overrun"):
        with pytest.raises(NotImplementedError, match=f"{name}=True is not supported with cut="):
            objective(logits, LABELS, cut=cut, **{name: True})
    for settings, message in (({"noise": 0.1}, "noise=0"), ({"average": "sequence"}, "average='number'")):
        with pytest.raises(NotImplementedError, match=message):
            NumericObjective(NTILLoss(VOCAB, **settings))(logits, LABELS, cut=cut)
    with pytest.raises(NotImplementedError, match="expected scale='fixed'"):
        NumericObjective(SMMDLoss(VOCAB), scale="match_ce")(logits, LABELS, cut=cut)
    with pytest.raises(ValueError, match="expected an even number, two parts in zigzag order"):
        ThreadCut(Threads(2), 0, "zigzag").positions(3)
    uneven = Threads(2)

    def other_length(rank: int) -> str:
        with pytest.raises(ValueError, match="labels have the shapes") as error:
            call(objective, ThreadCut(uneven, rank, "contiguous"), LABELS[:, : 4 + rank])
        return str(error.value)

    assert all(r"(3, 4), (3, 5) on the processes of cut=" in message for message in uneven.run(other_length))
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        out = objective(logits, LABELS, cut=CutSequence(dist.group.WORLD, "zigzag"))
        assert torch.isclose(out.loss, objective(logits, LABELS).loss)
        with pytest.raises(TypeError, match="expected the process group of context parallelism"):
            CutSequence("cp")
        with pytest.raises(ValueError, match="order='striped' is not known"):
            CutSequence(dist.group.WORLD, "striped")  # type: ignore[arg-type]
    finally:
        dist.destroy_process_group()
