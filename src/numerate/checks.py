"""Checks of arguments, tensors too. An error names the argument, its value, what was expected, and the way out."""

from __future__ import annotations

from collections.abc import Callable
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from numerate.messages import check_choice, check_integer, check_number, check_settings, choices, nearest, one_line

__all__ = [
    "check_choice",
    "check_columns",
    "check_count",
    "check_ignore_index",
    "check_integer",
    "check_labels",
    "check_logits",
    "check_number",
    "check_settings",
    "check_tensor",
    "check_weights",
    "choices",
    "nearest",
    "one_line",
]


def check_tensor(name: str, value: Any, shape: str) -> None:
    """Raise unless ``value`` is a tensor that is whole in this process."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} is a {type(value).__name__}: expected a torch tensor {shape}; use torch.as_tensor({name}).")
    if type(value).__name__ == "DTensor":  # by name: importing torch.distributed.tensor takes seconds
        remedy = f"use {name}.full_tensor() if all processes of its mesh then compute the same loss, as in tensor parallelism."
        if name in ("head_weight", "bias"):
            remedy = (
                "with FSDP2, call lm_head.unshard() before reading lm_head.weight, as full_tensor() would give a wrong gradient; "
                "with tensor parallelism, gather the logits and use objective(logits, labels)."
            )
        raise TypeError(f"{name} is a DTensor, spread over processes: expected a plain tensor {shape}; {remedy}")


def check_columns(name: str, size: int, least: int) -> None:
    """Raise unless logits or a head have the ``least`` size of the vocabulary."""
    if size < least:
        raise ValueError(
            f"{name} has V={size}, but the NumericVocab needs {least}: expected the whole vocabulary. Gather it first if it is "
            "sharded over processes (tensor parallelism): ColwiseParallel(output_layouts=Replicate()). Otherwise build the "
            "NumericVocab from the tokenizer that belongs to this model, or with vocab_size=V."
        )


def check_ignore_index(ignore_index: Any) -> int:
    """Raise unless ``ignore_index`` is a whole number; return it."""
    if isinstance(ignore_index, bool) or not isinstance(ignore_index, Integral):
        raise TypeError(
            f"ignore_index={ignore_index!r} is not a whole number: expected the label of positions to skip, such as -100; "
            "to skip none, pass an id that does not occur."
        )
    return int(ignore_index)


def check_count(name: str, count: Any, own: Callable[[], Tensor]) -> None:
    """Raise unless ``count``, the denominator of a sum, is a number >= 0, and above 0 where the batch's ``own`` count is.

    A count on a device other than the CPU is not checked, since that would need a sync.
    """
    if torch.compiler.is_compiling() or (isinstance(count, Tensor) and count.device.type != "cpu"):
        return
    remedy = "the sum of objective.count(labels) over the batches of the step"
    number = check_number(name, count, least=0.0, hint=f"Pass {remedy}.")
    if number == 0 and bool(mine := own()):
        raise ValueError(f"{name}={count!r}, but this batch alone counts {float(mine):g}: expected {remedy}.")


def check_weights(weights: Any, labels: Tensor, name: str = "position_weights") -> None:
    """Raise unless ``weights`` is a tensor of one finite number >= 0 for each label."""
    check_tensor(name, weights, "of the shape of labels")
    if weights.shape != labels.shape:
        raise ValueError(
            f"{name} has shape {tuple(weights.shape)} and labels {tuple(labels.shape)}: expected one weight per label."
        )
    if torch.compiler.is_compiling():
        return
    wrong = ~((weights >= 0) & (weights < float("inf")))
    if weights.device.type != "cpu":  # no sync
        torch._assert_async(~wrong.any(), f"{name} holds NaN, inf or a number below 0: expected finite weights >= 0")
    elif bool(wrong.any()):
        raise ValueError(
            f"{name} holds {float(weights[wrong][0]):g}: expected finite weights >= 0; use 0 for positions that do not count."
        )


def check_labels(labels: Tensor, name: str = "labels") -> Tensor:
    """Raise unless ``labels`` is an integer tensor with a dimension; return it as int64."""
    check_tensor(name, labels, "of token ids [.., T]")
    if labels.is_floating_point() or labels.is_complex() or labels.dtype.itemsize == 1:
        raise TypeError(f"{name} has dtype {labels.dtype}: expected integer token ids; use {name}.long().")
    if labels.dim() == 0:
        raise ValueError(f"{name} has shape (), which has no positions: expected [.., T]; use {name}[None].")
    return labels.long()


def check_logits(logits: Tensor, labels: Tensor, least_vocab: int) -> None:
    """Raise unless ``logits [.., T, V]`` fit ``labels [.., T]`` and hold the columns of the vocabulary."""
    check_tensor("logits", logits, "[.., T, V]")
    if not logits.is_floating_point():
        raise TypeError(
            f"logits has dtype {logits.dtype}: expected floating point scores, not token ids; pass model(...).logits."
        )
    if logits.dim() != labels.dim() + 1 or logits.shape[:-1] != labels.shape:
        raise ValueError(
            f"logits has shape {tuple(logits.shape)} and labels {tuple(labels.shape)}: expected [.., T, V] and [.., T] "
            "with equal leading sizes. Labels must be aligned with the logits (logits[:, :-1] with labels[:, 1:]), or raw, as "
            "long as the logits, with shift=True."
        )
    check_columns("logits", logits.shape[-1], least_vocab)
