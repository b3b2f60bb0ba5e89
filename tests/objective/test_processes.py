"""Shards and cut sequences on two and on four gloo processes against one device. One launch for all cases.

Run by `torchrun`, this file is one of the four processes.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from itertools import product

import pytest
import torch
import torch.distributed as dist
from tests.integrations.trainers.launch import torchrun
from tests.objective.sharded import (
    KINDS,
    LABELS,
    SIZE,
    VOCAB,
    Shards,
    cases,
    check,
    compare_cut,
    expected,
    padded_labels,
    plain_shards,
)
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import loss_parallel

from numerate import LOSSES, NumericObjective
from numerate.objective import CutSequence
from numerate.objective.cut_sequence import Order

DIMENSIONS = {"logits": 2, "weight": 0, "bias": 0, "hidden": 1}


@pytest.mark.launch
def test_on_two_and_four_processes() -> None:
    torchrun(__file__, processes=4)


def main() -> None:
    dist.init_process_group("gloo")
    pairs = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "shards"))["shards"]
    for mesh in (pairs, init_device_mesh("cpu", (4,))):
        count = mesh.size()
        names = [*LOSSES, None] if count == 4 else [*LOSSES, None][dist.get_rank() // 2 :: 2]  # each pair has half of them
        for case in cases(names, (*KINDS, "dtensor"), every=count == 2):
            kind = "uneven" if case.kind == "dtensor" else case.kind
            of_one = expected(case._replace(kind=kind), count)
            shards = plain_shards(kind, mesh.get_local_rank(), count, mesh.get_group())
            parallel: AbstractContextManager[None] = nullcontext()
            if case.kind == "dtensor":
                shards, parallel = as_dtensors(shards, mesh), loss_parallel()
            with parallel:
                check(case, shards, count, of_one)
    check_cut_sequences()
    dist.barrier()
    dist.destroy_process_group()


def check_cut_sequences() -> None:
    """Sequences over four processes; over two, times two shards of the vocabulary; and times two halves of the batch."""
    orders: tuple[Order, ...] = ("contiguous", "zigzag")
    for name, order in product([*LOSSES, None], orders):
        objective = NumericObjective(None if name is None else LOSSES[name](VOCAB), weight=0.7)
        for offset in (2, 5):
            compare_cut(objective, CutSequence(dist.group.WORLD, order), padded_labels(offset), {}, {})
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("other", "sequence"))
    shard, cut = mesh["other"].get_local_rank(), CutSequence(mesh["sequence"], "zigzag")
    for name in ("smmd", "number", "ntil"):
        objective = NumericObjective(LOSSES[name](VOCAB, outside="penalize"), weight=0.7)
        group = {"group": mesh["other"], "vocab_size": SIZE, "columns": (17 * shard, 17 if shard == 0 else SIZE)}
        compare_cut(objective, cut, padded_labels(3), group, {})
        check_halves(objective, cut, shard)


def check_halves(objective: NumericObjective, cut: CutSequence, half: int) -> None:
    """Each pair of processes has other rows, and the counts are those of both, as data and context parallelism sum them."""
    labels = padded_labels(3)
    logits = torch.randn((*labels.shape, SIZE), generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    truth = objective(logits, labels)
    rows, positions = slice(0, 2) if half == 0 else slice(2, 3), cut.positions(labels.shape[1] // 2)[cut.rank]
    counts = {"num_items": truth.num_items, "num_units": truth.num_units}
    share = objective(logits[rows][:, positions], labels[rows][:, positions], cut=cut, **counts).loss
    dist.all_reduce(share)
    assert torch.isclose(share, truth.loss, rtol=1e-12)


def as_dtensors(shards: Shards, mesh: DeviceMesh) -> Shards:
    """Return the same shards as DTensors, and hidden states that are sharded over the sequence; they need no arguments."""
    length = LABELS.shape[1]

    def wrap(name: str, whole: Tensor, own: Tensor) -> Tensor:
        if name == "hidden":
            own = whole.split(-(-length // mesh.size()), 1)[mesh.get_local_rank()]
        placements = [Shard(DIMENSIONS[name])]
        return DTensor.from_local(own, mesh, placements, run_check=False, shape=whole.shape, stride=whole.stride())

    def unwrap(name: str, grad: Tensor) -> Tensor:
        assert isinstance(grad, DTensor)
        assert grad.placements == (Shard(DIMENSIONS[name]),)
        return grad.full_tensor() if name == "hidden" else grad.to_local()

    return Shards(shards.cut, {}, wrap, unwrap)


if __name__ == "__main__":
    main()
