"""Hidden states, head and labels to the loss and both gradients in one operator, without logits of the whole batch."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any, Literal

import torch
from torch import Tensor

from numerate.checks import check_choice, check_count, check_labels, check_number, check_tensor, choices
from numerate.objective.device import one_thread
from numerate.objective.head import Head
from numerate.objective.objective import NumericObjective, ObjectiveOutput
from numerate.objective.operator import FusedObjective, Labels, Plan

Impl = Literal["auto", "torch", "triton"]
Accumulate = Literal["float32", "weight"]

_ROWS = 128  # chunks are multiples of this, as the matrix units like them


@torch.compiler.disable  # type: ignore[untyped-decorator]
def fused_objective(
    objective: NumericObjective,
    hidden: Tensor,
    weight: Tensor,
    labels: Tensor,
    bias: Tensor | None = None,
    *,
    num_items: int | Tensor | None = None,
    num_units: int | float | Tensor | None = None,
    position_weights: Tensor | None = None,
    position_ids: Tensor | None = None,
    logit_scale: float | None = None,
    softcap: float | None = None,
    impl: Impl = "auto",
    max_logits_mib: float | None = None,
    accumulate: Accumulate = "float32",
    with_mass: bool = False,
) -> ObjectiveOutput:
    """:meth:`numerate.NumericObjective.fused`, as a function."""
    _check(hidden, weight, labels, bias, objective.numeric_loss.columns_needed)
    for name, given in (("position_weights", position_weights), ("position_ids", position_ids)):
        if given is not None:
            check_tensor(name, given, "of the shape of labels")
    check_choice("accumulate", accumulate, choices(Accumulate))
    logit_scale = None if logit_scale is None else check_number("logit_scale", logit_scale)
    softcap = None if softcap is None else check_number("softcap", softcap, above=0.0)
    if torch.is_autocast_enabled(hidden.device.type):
        narrow = torch.get_autocast_dtype(hidden.device.type)
        hidden, weight = hidden.to(narrow), weight.to(narrow)
    elif hidden.dtype != weight.dtype:
        raise TypeError(
            f"hidden has dtype {hidden.dtype} and weight {weight.dtype}: expected the same; use weight.to(hidden.dtype)."
        )

    if num_items is not None:
        check_count("num_items", num_items, lambda: objective.count(labels)[0])
    if num_units is not None:
        check_count(
            "num_units",
            num_units,
            lambda: objective.count(labels, position_weights=position_weights, position_ids=position_ids)[1],
        )
    plan = _plan(impl, hidden, weight, labels.numel(), max_logits_mib, accumulate)
    head = Head(weight.detach(), None if bias is None else bias.detach(), logit_scale, softcap)
    if not torch.is_grad_enabled():
        hidden, weight, bias = hidden.detach(), head.weight, head.bias
    flat = hidden.reshape(-1, hidden.shape[-1]).contiguous()
    with torch.autocast(hidden.device.type, enabled=False), one_thread(hidden.device):
        # Last of all that can be done before: it waits for the device, which then has nothing to do until the first product.
        read = Labels(
            ids=labels.cpu().long(),
            here=labels if labels.device == hidden.device else None,
            position_weights=None if position_weights is None else position_weights.cpu(),
            position_ids=None if position_ids is None else position_ids.cpu(),
            num_items=_known(num_items),
            num_units=_known(num_units),
            with_mass=with_mass,
        )
        results = FusedObjective.apply(flat, weight, bias, read, objective, head, plan)  # type: ignore[no-untyped-call]
    return ObjectiveOutput(*results)


def _plan(
    impl: Impl,
    hidden: Tensor,
    weight: Tensor,
    tokens: int,
    max_logits_mib: float | None,
    accumulate: Accumulate,
) -> Plan:
    check_choice("impl", impl, choices(Impl))
    fits = hidden.device.type == "cuda" and hidden.dtype in (torch.bfloat16, torch.float16, torch.float32)
    if impl == "triton" and not fits:
        raise ValueError(
            f"impl='triton' does not run with hidden on {hidden.device} in {hidden.dtype}: expected a CUDA device and bfloat16, "
            "float16 or float32; use impl='auto'."
        )
    if impl == "auto":
        impl = "triton" if fits and find_spec("triton") else "torch"
    dtype = weight.dtype if accumulate == "weight" else torch.promote_types(weight.dtype, torch.float32)
    # A head's gradient that is summed over chunks, and wider than it is kept, takes its room from the logits' budget.
    extra = weight.numel() * (dtype.itemsize - weight.dtype.itemsize) / 2**20 if weight.requires_grad else 0.0
    rows = rows_of_a_chunk(weight.shape[0], hidden, tokens, max_logits_mib, extra)
    from numerate.objective import rows_torch

    passes: Any = rows_torch
    if impl == "triton":
        from numerate.objective import rows_triton as passes
    return Plan(passes.cross_entropy_rows_, passes.join_, passes.rescale_, rows, dtype)


def rows_of_a_chunk(vocab_size: int, hidden: Tensor, tokens: int, max_logits_mib: float | None, extra_mib: float) -> int:
    """How many rows of logits to hold at a time: all of them where they fit.

    Unless a budget is given, all of them may take twice the default, since a gradient of the head that is not summed over
    chunks needs no ``extra_mib`` of its own.
    """
    itemsize = hidden.dtype.itemsize
    if max_logits_mib is not None:
        return chunk_rows(vocab_size, itemsize, max_logits_mib)
    budget = default_logits_mib(hidden.device)
    if tokens <= chunk_rows(vocab_size, itemsize, 2 * budget):
        return max(1, tokens)
    return chunk_rows(vocab_size, itemsize, max(budget - extra_mib, budget / 4))


def _known(count: int | float | Tensor | None) -> float | Tensor | None:
    """A count as a plain number, unless it lies on another device: asking for it there would mean waiting."""
    return count.item() if isinstance(count, Tensor) and count.device.type == "cpu" else count


def default_logits_mib(device: torch.device) -> float:
    """A sixty-fourth of a GPU's memory, 64 MiB elsewhere."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory / 2**20 / 64
    return 64.0


def chunk_rows(vocab_size: int, itemsize: int, max_logits_mib: float) -> int:
    """How many rows of logits fit the budget: a multiple of 128 where that many do, and at least one."""
    rows = int(check_number("max_logits_mib", max_logits_mib, above=0.0) * 2**20 / (vocab_size * itemsize))
    return max(1, rows // _ROWS * _ROWS or rows)


def _check(hidden: Tensor, weight: Tensor, labels: Tensor, bias: Tensor | None, least_vocab: int) -> None:
    check_labels(labels)
    check_tensor("hidden", hidden, "[.., T, H]")
    check_tensor("weight", weight, "[V, H]")
    if not hidden.is_floating_point():
        raise TypeError(f"hidden has dtype {hidden.dtype}: expected hidden states; pass the model's last hidden state.")
    if hidden.dim() != labels.dim() + 1 or hidden.shape[:-1] != labels.shape:
        raise ValueError(
            f"hidden has shape {tuple(hidden.shape)} and labels {tuple(labels.shape)}: expected [.., T, H] and [.., T], "
            "aligned (hidden[:, :-1] with labels[:, 1:])."
        )
    if weight.dim() != 2 or weight.shape[1] != hidden.shape[-1]:
        raise ValueError(
            f"weight has shape {tuple(weight.shape)} and hidden {tuple(hidden.shape)}: expected [V, H] with the same H; "
            "pass lm_head.weight as it is."
        )
    if weight.shape[0] < least_vocab:
        raise ValueError(
            f"weight has V={weight.shape[0]} rows, but the NumericVocab uses token id {least_vocab - 1}: expected "
            f"V >= {least_vocab}. Build the vocabulary from the tokenizer that belongs to this model."
        )
    if bias is not None:
        check_tensor("bias", bias, "[V]")
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(f"bias has shape {tuple(bias.shape)}: expected [{weight.shape[0]}], one entry per row of weight.")
