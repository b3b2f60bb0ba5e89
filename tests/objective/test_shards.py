"""Shards of the vocabulary, on threads in place of processes; ``test_processes.py`` has the same on gloo."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.objective.sharded import (
    LABELS,
    SIZE,
    VOCAB,
    Case,
    Expected,
    OneOfThreads,
    Threads,
    cases,
    check,
    expected,
    kernels_in_torch,
    plain_shards,
    run,
    tensors,
    thread_shard_of,
)
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

import numerate.objective
from numerate import LOSSES, NTILLoss, NumericObjective, SMMDLoss
from numerate.objective import rows_torch


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> type[Threads]:
    monkeypatch.setattr("numerate.objective.placements.shard_of", thread_shard_of)
    return Threads


@pytest.mark.parametrize(("count", "kind"), [(2, "uneven"), (4, "padded")])  # the rest on gloo
@pytest.mark.parametrize("name", [*LOSSES, None])
def test_equals_one_device(name: str | None, count: int, kind: str, threads: type[Threads]) -> None:
    for case in cases([name], (kind,), every=True):
        compare(case, count, threads(count), expected(case, count))


@pytest.mark.parametrize("name", ["smmd", "number", "gaussian_ce", None])
def test_equals_one_device_with_kernels(name: str | None, threads: type[Threads], monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, where the gradient is computed from the logits and the log-sum-exp of all shards."""
    chosen = [(case, expected(case, 2)) for case in cases([name], ("uneven",), every=True) if case.way == "logits"]
    monkeypatch.setattr("numerate.objective.rows_of_logits.has_kernels", lambda rows: True)
    monkeypatch.setattr(numerate.objective, "rows_triton", kernels_in_torch(), raising=False)
    monkeypatch.setitem(sys.modules, "numerate.objective.rows_triton", kernels_in_torch())
    for case, of_one in chosen:
        compare(case, 2, threads(2), of_one)


def compare(case: Case, count: int, group: Threads, of_one: Expected) -> None:
    group.run(lambda rank: check(case, plain_shards(case.kind, rank, count, OneOfThreads(group, rank)), count, of_one))


def test_a_shard_in_which_nothing_is_possible(threads: type[Threads]) -> None:
    """Logits of -inf for every token of one process, as a mask may leave them."""
    group, objective = threads(2), NumericObjective(SMMDLoss(VOCAB))
    logits = torch.randn(1, 3, 32, dtype=torch.float64)
    logits[..., 16:] = -torch.inf
    labels = torch.tensor([[2, 3, 11]])
    whole = logits.clone().requires_grad_()
    objective(whole, labels).loss.backward()

    def gradient(rank: int) -> torch.Tensor:
        shard = logits.chunk(2, -1)[rank].clone().requires_grad_()
        objective(shard, labels, group=OneOfThreads(group, rank)).loss.backward()
        assert shard.grad is not None
        return shard.grad

    assert torch.allclose(torch.cat(group.run(gradient), -1), whole.grad, rtol=1e-12)


@pytest.mark.parametrize(("name", "options"), [("number", "plain"), ("smmd", "soft"), ("smmd", "outside")])
def test_what_is_sent(name: str, options: str, threads: type[Threads]) -> None:
    """The bytes per step of docs/large_models.md: a maximum and the sums of each row, and the numeric logits."""
    group = threads(2)
    case = Case(name, options, "logits", "uneven", torch.float32)
    given = tensors(torch.float32)
    shards = [plain_shards("uneven", rank, 2, OneOfThreads(group, rank)) for rank in range(2)]
    group.run(lambda rank: run(case, {"logits": shards[rank].cut(given["logits"], 2)}, shards[rank].arguments))
    rows = LABELS.numel()
    loss = LOSSES[name](VOCAB)
    numeric = int((VOCAB.index_of(LABELS) >= 0).sum()) if name == "smmd" else loss.targets(LABELS).slots
    sums = {"plain": 2 * rows, "soft": 3 * rows + 6 * LABELS.shape[0], "outside": 3 * rows}[options]
    words = [("max", 4 * rows), ("sum", 4 * sums), ("sum", 4 * numeric * loss.columns.shape[0])]
    if options == "outside":
        words += [("max", 8 * numeric), ("sum", 8 * numeric)]
    sent = group.sent[0]
    assert sent == group.sent[1]
    assert sent[0] == ("max", 8 * (2 * 3 + 2))  # whether ranges and labels fit each other
    assert sent[1 : 1 + len(words)] == words
    assert len(sent) == 2 + len(words)  # and the logits after numbers, for with_overrun


def test_each_chunk_is_read_once_before_it_is_written(threads: type[Threads], monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a loss needs the sums of all rows before the first gradient."""
    passes: list[bool] = []
    row_pass = rows_torch.cross_entropy_rows_

    def counted(*arguments: Any, write: bool, **options: Any) -> rows_torch.RowSums:
        passes.append(write)
        return row_pass(*arguments, write=write, **options)

    monkeypatch.setattr(rows_torch, "cross_entropy_rows_", counted)
    for outside in ("ignore", "penalize"):
        assert row_passes(NumericObjective(SMMDLoss(VOCAB, outside=outside)), threads(1), passes) == [False, True]


def row_passes(objective: NumericObjective, group: Threads, passes: list[bool]) -> list[bool]:
    given = tensors(torch.float64)
    passes.clear()
    arguments = given["hidden"].requires_grad_(), given["weight"], LABELS
    group.run(lambda rank: objective.fused(*arguments, group=OneOfThreads(group, rank)))
    return passes


def refusal(threads: type[Threads], message: str, held: int | list[int] = 16, **changes: Any) -> None:
    """Expect that both threads raise."""
    group = threads(2)
    objective = NumericObjective(SMMDLoss(VOCAB))

    def call(rank: int) -> str:
        of_rank = {key: value[rank] if isinstance(value, list) else value for key, value in ({"held": held} | changes).items()}
        labels, columns = of_rank.pop("labels", LABELS), of_rank.pop("held")
        with pytest.raises((ValueError, NotImplementedError)) as error:
            objective(torch.zeros(*labels.shape, columns), labels, group=OneOfThreads(group, rank), **of_rank)
        return str(error.value)

    for text in group.run(call):
        assert message in text


def test_refusals(threads: type[Threads]) -> None:
    refusal(threads, "has the ranges [0, 17), [16, 32)", held=[17, 16])
    refusal(threads, "pass vocab_size=", held=[17, 16])
    refusal(threads, "the tensor-parallel group, not the data-parallel one", labels=[LABELS, LABELS.flip(0)])
    refusal(threads, "leave out group= for the whole one", held=33)
    refusal(threads, "leaves none for the last of 2 processes", held=40, vocab_size=32)
    refusal(threads, "the NumericVocab needs 32", held=8)
    group = threads(1)
    with pytest.raises(NotImplementedError, match="expected noise=0"):
        group.run(
            lambda rank: NumericObjective(NTILLoss(VOCAB, noise=0.01))(
                torch.zeros(*LABELS.shape, SIZE), LABELS, group=OneOfThreads(group, rank)
            )
        )


def test_a_shard_without_a_group() -> None:
    """Even if it has every numeric token."""
    held = int(VOCAB.token_ids.max()) + 1
    vocab = type(VOCAB)(VOCAB.tokens, 2 * held, VOCAB.marks)
    with pytest.raises(ValueError, match=r"logits has V=32, but the NumericVocab needs 58.*pass group="):
        NumericObjective(SMMDLoss(vocab))(torch.zeros(*LABELS.shape, held), LABELS)
    with pytest.raises(ValueError, match=r"head_weight has V=32.*pass group="):
        NumericObjective(SMMDLoss(vocab)).fused(torch.zeros(*LABELS.shape, 4), torch.zeros(held, 4), LABELS)


@pytest.fixture
def mesh() -> Iterator[DeviceMesh]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


def test_groups_of_one_process(mesh: DeviceMesh) -> None:
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    case = Case("number", "soft", "logits", "uneven", torch.float64)
    given = tensors(torch.float64)
    truth, grads = run(case, given, {})
    for group in (dist.group.WORLD, mesh):
        values, found = run(case, given, {"group": group, "vocab_size": SIZE})
        assert torch.allclose(values, truth, rtol=1e-12)
        assert torch.allclose(found["logits"], grads["logits"], rtol=1e-9, atol=1e-15)
    objective = NumericObjective(SMMDLoss(VOCAB))
    logits = given["logits"]
    for placement in (Shard(2), Replicate()):
        spread = distribute_tensor(logits, mesh, [placement])
        assert torch.isclose(objective(spread, LABELS).loss, objective(logits, LABELS).loss, rtol=1e-12)
    spread = distribute_tensor(logits, mesh, [Shard(2)])
    refused = {
        "expected the process group of tensor parallelism": (logits, {"group": "tp"}),
        "vocab_size is given without shards": (logits, {"vocab_size": SIZE}),
        "leave out group=": (spread, {"group": mesh}),
        r"expected Shard\(2\), the vocabulary dimension": (distribute_tensor(logits, mesh, [Shard(1)]), {}),
    }
    for message, (scores, arguments) in refused.items():
        with pytest.raises(TypeError, match=message):
            objective(scores, LABELS, **arguments)
    with pytest.raises(ValueError, match="expected at most 33"):
        objective(spread, LABELS, vocab_size=34)
    with pytest.raises(ValueError, match="vocab_size=1.5 is out of range"):
        objective(logits, LABELS, group=mesh, vocab_size=1.5)
