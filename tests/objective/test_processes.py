"""Shards on two and on four gloo processes, plain and as DTensors, against one device. One launch for all cases.

Run by `torchrun`, this file is one of the four processes.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import pytest
import torch.distributed as dist
from tests.integrations.trainers.launch import torchrun
from tests.objective.sharded import KINDS, LABELS, Shards, cases, check, expected, plain_shards
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import loss_parallel

from numerate import LOSSES

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
    dist.barrier()
    dist.destroy_process_group()


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
