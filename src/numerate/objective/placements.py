"""From what the caller has, plain shards with a group or DTensors, to this process's tensors and its :class:`VocabShard`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from numerate.checks import check_tensor
from numerate.objective.head import Head
from numerate.objective.logit_columns import ALL_COLUMNS, Columns
from numerate.objective.shards import VocabShard, shard_of


def local_logits(logits: Any, group: Any, vocab_size: int | None) -> tuple[Tensor, Columns]:
    """Return this process's columns of ``logits [.., T, V]`` without padding, and where they belong."""
    if not _is_dtensor(logits):
        if group is None:
            _refuse_size(vocab_size)
            return logits, ALL_COLUMNS
        check_tensor("logits", logits, "[.., T, V]")
        shard = shard_of(logits.shape[-1], group, vocab_size)
        return _without_padding(logits, -1, shard), shard
    _refuse_group("logits", group)
    dimension, at = logits.dim() - 1, _sharded_over("logits", logits, logits.dim() - 1)
    if at is None:
        _refuse_size(vocab_size)
        return logits.to_local(), ALL_COLUMNS
    shard = shard_of(0, logits.device_mesh.get_group(at), vocab_size, whole=logits.shape[dimension])
    return _without_padding(logits.to_local(), dimension, shard), shard


def local_head(hidden: Any, head: Head, group: Any, vocab_size: int | None) -> tuple[Tensor, Head, VocabShard | None]:
    """Return hidden states with a gradient that is summed over processes, this process's rows of the head, and their range."""
    weight: Any = head.weight
    if not _is_dtensor(weight):
        if group is None:
            _refuse_size(vocab_size)
            return hidden, head, None
        check_tensor("hidden", hidden, "[.., T, H]")
        check_tensor("head_weight", weight, "[V, H]")
        shard = shard_of(weight.shape[0], group, vocab_size)
        return _SumOfGradients.apply(hidden, shard), _head(head, weight, head.bias, shard), shard  # type: ignore[no-untyped-call]
    _refuse_group("head_weight", group)
    at = _sharded_over("head_weight", weight, 0)
    if at is None:
        return hidden, head, None  # which refuses it
    shard = shard_of(0, weight.device_mesh.get_group(at), vocab_size, whole=weight.shape[0])
    bias: Any = head.bias
    if _is_dtensor(bias):
        if _sharded_over("bias", bias, 0) != at:
            raise TypeError(f"bias has placements {bias.placements}: expected those of head_weight, {weight.placements}.")
        bias = bias.to_local()
    return _replicated(hidden, weight, at, shard), _head(head, weight.to_local(), bias, shard), shard


def _replicated(hidden: Any, weight: Any, at: int, shard: VocabShard) -> Tensor:
    """Return hidden states in full; each process adds to their gradient."""
    if not _is_dtensor(hidden):
        check_tensor("hidden", hidden, "[.., T, H]")
        return _SumOfGradients.apply(hidden, shard)  # type: ignore[no-any-return, no-untyped-call]
    from torch.distributed.tensor import Partial, Replicate

    if hidden.device_mesh != weight.device_mesh:
        raise TypeError(f"hidden is on {hidden.device_mesh}: expected the mesh of head_weight, {weight.device_mesh}.")
    placements = [Replicate()] * weight.device_mesh.ndim
    gradients = [Partial() if dim == at else Replicate() for dim in range(weight.device_mesh.ndim)]
    return hidden.redistribute(placements=placements).to_local(grad_placements=gradients)  # type: ignore[no-any-return]


def _head(head: Head, weight: Tensor, bias: Tensor | None, shard: VocabShard) -> Head:
    """Return the head with this process's rows."""
    if bias is not None:
        check_tensor("bias", bias, "[V]")
        if bias.shape != weight.shape[:1]:
            raise ValueError(
                f"bias has shape {tuple(bias.shape)}: expected [{weight.shape[0]}], one entry per row of head_weight on this "
                "process."
            )
        bias = _without_padding(bias, 0, shard)
    return replace(head, weight=_without_padding(weight, 0, shard), bias=bias)


def _without_padding(tensor: Tensor, dimension: int, shard: VocabShard) -> Tensor:
    return tensor if tensor.shape[dimension] <= shard.width else tensor.narrow(dimension, 0, shard.width)


def _is_dtensor(value: Any) -> bool:
    return type(value).__name__ == "DTensor"  # by name: importing torch.distributed.tensor takes seconds


def _sharded_over(name: str, tensor: Any, dimension: int) -> int | None:
    """Return the dimension of the mesh over which the vocabulary is sharded, None if every process has all of it."""
    found = [at for at, placement in enumerate(tensor.placements) if not placement.is_replicate()]
    # Strided shards, which FSDP2 makes on top of tensor parallelism, are another type and have another order.
    plain = [at for at in found if tensor.placements[at].is_shard(dimension) and type(tensor.placements[at]).__name__ == "Shard"]
    if plain != found or len(found) > 1:
        raise TypeError(
            f"{name} is a DTensor with placements {tensor.placements}: expected Shard({dimension}), the vocabulary dimension, "
            "over one dimension of its mesh, and Replicate() over others. Redistribute it; with FSDP2, call lm_head.unshard() "
            "before reading lm_head.weight, as full_tensor() would give a wrong gradient."
        )
    return found[0] if found else None


def _refuse_group(name: str, group: Any) -> None:
    if group is not None:
        raise TypeError(f"group is given with {name}, a DTensor, which knows its processes: leave out group=.")


def _refuse_size(vocab_size: int | None) -> None:
    if vocab_size is not None:
        raise TypeError("vocab_size is given without shards: expected it with group= or DTensors sharded over the vocabulary.")


class _SumOfGradients(torch.autograd.Function):
    """The same hidden states; their gradient is the sum of those of all processes, each from its rows of the head."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, shard: VocabShard) -> Tensor:
        ctx.shard = shard
        return hidden.view_as(hidden)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return ctx.shard.sum(grad.clone()), None
