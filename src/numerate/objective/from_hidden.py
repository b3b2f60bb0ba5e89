"""The objective from hidden states: check arguments, choose implementation and chunk size, call the operator."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from typing import Literal

import torch
from torch import Tensor

from numerate.checks import check_choice, check_columns, check_number, check_tensor, choices
from numerate.losses.base import NumericLoss
from numerate.objective import rows_torch
from numerate.objective.batch import BatchLabels, ObjectiveOutput
from numerate.objective.chunks import Execution
from numerate.objective.cut_sequence import CutSequence, whole_batch
from numerate.objective.device import one_thread
from numerate.objective.head import Head
from numerate.objective.operator import FusedInputs, FusedObjective
from numerate.objective.shards import VocabShard
from numerate.objective.weighting import Weighting

Impl = Literal["auto", "torch", "triton"]
HeadGradDtype = Literal["float32", "weight"]

_ROWS = 128  # chunks are multiples of this, which suits matrix units


@torch.compiler.disable  # type: ignore[untyped-decorator]
def objective_from_hidden(
    loss: NumericLoss,
    weighting: Weighting,
    hidden: Tensor,
    head: Head,
    batch: BatchLabels,
    shard: VocabShard | None,
    cut: CutSequence | None,
    *,
    impl: Impl,
    max_logits_mib: float | None,
    head_grad_dtype: HeadGradDtype,
    with_mass: bool,
    with_overrun: bool,
) -> ObjectiveOutput:
    """Return the objective of ``hidden [.., T, H]`` and a head; see :meth:`numerate.NumericObjective.fused`."""
    _check_shapes(hidden, head, batch.ids, loss.columns_needed, shard)
    if shard is not None:
        shard.check("head_weight", batch.ids.to(hidden.device), loss)
    check_choice("head_grad_dtype", head_grad_dtype, choices(HeadGradDtype))
    scale = None if head.scale is None else check_number("logit_scale", head.scale)
    softcap = None if head.softcap is None else check_number("softcap", head.softcap, above=0.0)
    weight, bias = head.weight, head.bias
    if torch.is_autocast_enabled(hidden.device.type):
        narrow = torch.get_autocast_dtype(hidden.device.type)
        hidden, weight = hidden.to(narrow), weight.to(narrow)
    elif hidden.dtype != weight.dtype:
        raise TypeError(
            f"hidden has dtype {hidden.dtype} and head_weight {weight.dtype}: expected the same; use "
            "head_weight.to(hidden.dtype)."
        )
    num_rows = weight.shape[0] if shard is None else shard.longest  # all processes choose the same chunks
    execution = _choose_execution(impl, hidden, weight, num_rows, batch.ids.numel(), max_logits_mib, head_grad_dtype)
    head = Head(weight.detach(), None if bias is None else bias.detach(), scale, softcap)
    if not torch.is_grad_enabled():
        hidden, weight, bias = hidden.detach(), head.weight, head.bias
    flat = hidden.reshape(-1, hidden.shape[-1]).contiguous()
    whole: BatchLabels | None = None
    if cut is not None:
        whole = whole_batch(batch.to(hidden.device), cut).to("cpu")
        counts = whole.count(loss)
        num_items, num_units = batch.num_items, batch.num_units
        batch = replace(
            batch,
            num_items=counts[0] if num_items is None else num_items,
            num_units=counts[1] if num_units is None else num_units,
        )
    labels_on_device = batch.ids if batch.ids.device == hidden.device else None
    with torch.autocast(hidden.device.type, enabled=False), one_thread(hidden.device):
        # Last before the operator: this syncs with the device, which is then idle until the first product.
        num_items, num_units = _plain_number(batch.num_items), _plain_number(batch.num_units)
        on_cpu = replace(batch.to("cpu"), num_items=num_items, num_units=num_units)
        inputs = FusedInputs(
            loss, weighting, head, on_cpu, labels_on_device, execution, with_mass, with_overrun, shard, cut, whole
        )
        return ObjectiveOutput(*FusedObjective.apply(flat, weight, bias, inputs))  # type: ignore[no-untyped-call]


def _choose_execution(
    impl: Impl,
    hidden: Tensor,
    weight: Tensor,
    num_rows: int,
    num_tokens: int,
    max_logits_mib: float | None,
    head_grad_dtype: HeadGradDtype,
) -> Execution:
    check_choice("impl", impl, choices(Impl))
    supported = hidden.device.type == "cuda" and hidden.dtype in (torch.bfloat16, torch.float16, torch.float32)
    if impl == "triton" and not supported:
        raise ValueError(
            f"impl='triton' does not support hidden on {hidden.device} in {hidden.dtype}: expected a CUDA device and bfloat16, "
            "float16 or float32; use impl='auto'."
        )
    if impl == "auto":
        impl = "triton" if supported and find_spec("triton") else "torch"
    dtype = weight.dtype if head_grad_dtype == "weight" else torch.promote_types(weight.dtype, torch.float32)
    # Accumulating the head's gradient in a wider dtype uses part of the memory budget of the logits.
    extra_mib = num_rows * weight.shape[1] * (dtype.itemsize - weight.dtype.itemsize) / 2**20 if weight.requires_grad else 0.0
    rows = choose_chunk_rows(num_rows, hidden, num_tokens, max_logits_mib, extra_mib)
    if impl == "torch":
        return Execution(rows_torch, rows, dtype)
    from numerate.objective import rows_triton

    return Execution(rows_triton, rows, dtype)


def choose_chunk_rows(vocab_size: int, hidden: Tensor, num_tokens: int, max_logits_mib: float | None, extra_mib: float) -> int:
    """Return the number of rows per chunk: all of them if they fit.

    Without ``max_logits_mib``, a single chunk may take twice the default budget, because it saves the ``extra_mib`` of summing
    the head's gradient over chunks.
    """
    itemsize = hidden.dtype.itemsize
    if max_logits_mib is not None:
        return rows_in_budget(vocab_size, itemsize, max_logits_mib)
    budget = default_logits_mib(hidden.device)
    if num_tokens <= rows_in_budget(vocab_size, itemsize, 2 * budget):
        return max(1, num_tokens)
    return rows_in_budget(vocab_size, itemsize, max(budget - extra_mib, budget / 4))


def default_logits_mib(device: torch.device) -> float:
    """Return 1/64 of a GPU's memory, or 64 MiB on a CPU."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory / 2**20 / 64
    return 64.0


def rows_in_budget(vocab_size: int, itemsize: int, max_logits_mib: float) -> int:
    """Return the number of rows of logits that fit the budget: at least one, and a multiple of 128 if possible."""
    rows = int(check_number("max_logits_mib", max_logits_mib, above=0.0) * 2**20 / (vocab_size * itemsize))
    return max(1, rows // _ROWS * _ROWS or rows)


def _plain_number(count: float | Tensor | None) -> float | Tensor | None:
    """Return a count as a Python number, unless it is on a device, where reading it would sync."""
    return count.item() if isinstance(count, Tensor) and count.device.type == "cpu" else count


def _check_shapes(hidden: Tensor, head: Head, labels: Tensor, least_vocab: int, shard: VocabShard | None) -> None:
    weight, bias = head.weight, head.bias
    check_tensor("hidden", hidden, "[.., T, H]")
    check_tensor("head_weight", weight, "[V, H]")
    if not hidden.is_floating_point():
        raise TypeError(f"hidden has dtype {hidden.dtype}: expected hidden states; pass the model's last hidden state.")
    if hidden.dim() != labels.dim() + 1 or hidden.shape[:-1] != labels.shape:
        raise ValueError(
            f"hidden has shape {tuple(hidden.shape)} and labels {tuple(labels.shape)}: expected [.., T, H] and [.., T], "
            "aligned (hidden[:, :-1] with labels[:, 1:]), or both at full length with shift=True."
        )
    if weight.dim() != 2 or weight.shape[1] != hidden.shape[-1]:
        raise ValueError(
            f"head_weight has shape {tuple(weight.shape)} and hidden {tuple(hidden.shape)}: expected [V, H] with the same H; "
            "pass lm_head.weight as it is."
        )
    check_columns("head_weight", weight.shape[0] if shard is None else shard.vocab_size, least_vocab)
    if bias is not None:
        check_tensor("bias", bias, "[V]")
        if bias.shape != weight.shape[:1]:
            raise ValueError(
                f"bias has shape {tuple(bias.shape)}: expected [{weight.shape[0]}], one entry per row of head_weight."
            )
