"""Sequences that a Hugging Face Trainer splits over processes: accelerate's context parallelism, and DeepSpeed's Ulysses.

Both shift the labels before they cut them, and the model passes them on as ``shift_labels``. With context parallelism, the
processes of a group fetch the same batches, which are cut in place when the forward pass begins; also in evaluations. Ulysses
cuts batches while they are loaded, and evaluates whole ones.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, Literal

import torch
from torch import Tensor

from numerate.integrations.fields import Batch
from numerate.labels import shift_left
from numerate.objective import CutSequence, NumericObjective
from numerate.objective.cut_sequence import refuse_cut
from numerate.targets.soft_targets import WEIGHT_FIELDS, SoftTargets


def split_over(kind: Literal["cp", "sp"], trainer: Any) -> int:
    """Return over how many processes a trainer splits each sequence; one of transformers 4 leaves that to accelerate."""
    own = getattr(trainer, f"get_{kind}_size", None)
    if own is not None:
        return int(own())
    return getattr(getattr(trainer.accelerator, "parallelism_config", None), f"{kind}_size", 1) or 1


def cut_of(trainer: Any, batch: Batch, *, training: bool) -> CutSequence | None:
    """Return how the sequences of a batch in ``compute_loss`` are cut; None if they are whole."""
    if split_over("cp", trainer) > 1 and "shift_labels" in batch:  # else another caller's, outside of the trainer's steps
        from torch.distributed.tensor.experimental._attention import _cp_options

        # torch balances the load of sequences that it can cut into two parts for each process.
        balanced = _cp_options.enable_load_balance and batch["shift_labels"].shape[-1] % 2 == 0
        return CutSequence(trainer.accelerator.torch_device_mesh["cp"], "zigzag" if balanced else "contiguous")
    if training and split_over("sp", trainer) > 1:
        return CutSequence(import_module("deepspeed.utils.groups")._get_sequence_parallel_group())
    return None


def parts_that_add_up(trainer: Any, cut: CutSequence) -> int:
    """Return over how many parts gradients are summed, where the average over all processes is expected (deepspeed 0.19.8)."""
    if split_over("cp", trainer) > 1:
        return 1
    engine = trainer.accelerator.deepspeed_engine_wrapped.engine
    if engine.zero_optimization_stage() < 3:
        return cut.count
    if engine.zero_reduce_scatter():
        return 1
    raise NotImplementedError(
        "reduce_scatter=false with ZeRO-3 and sequence parallelism: DeepSpeed divides the gradients of small and of large "
        "parameters by different numbers. Expected reduce_scatter=true, the default."
    )


def whole_labels(batch: Batch, cut: CutSequence, device: Any) -> dict[str, Any]:
    """Return the labels of the whole sequences of a batch, and what belongs to them, to count them."""
    labels = "shift_labels" if "shift_labels" in batch else "labels"
    names = _present(batch, labels, "position_ids", *WEIGHT_FIELDS)
    return {name: _whole(batch[name].to(device), batch[labels], cut) for name in names}


def fields_of_part(batch: Batch, cut: CutSequence) -> dict[str, Any]:
    """Return what belongs to the labels of this process's part, which are shifted, as arguments of the objective."""
    labels: Tensor = batch["shift_labels"]
    length = labels.shape[-1]
    here = cut.positions(length)[cut.rank].to(labels.device)
    names = _present(batch, "shift_labels", "position_ids", *WEIGHT_FIELDS)[1:]
    whole = {name: _whole(batch[name], labels, cut) for name in names}
    found: dict[str, Any] = {name: shift_left(value, 0).index_select(-1, here) for name, value in whole.items()}
    soft = SoftTargets.from_batch(batch)
    if soft is not None:
        index = torch.full((cut.count * length + 1,), -1, device=labels.device)
        index[here + 1] = torch.arange(length, device=labels.device)  # shifted, and -1 for position 0 and padding
        found["soft"] = SoftTargets(index[soft.positions.clamp_min(0)], soft.token_ids, soft.probabilities)
    return found


def _present(batch: Batch, labels: str, *names: str) -> list[str]:
    """Return the names of labels and of fields with an entry for each; some vision models have other ``position_ids``."""
    return [name for name in (labels, *names) if batch.get(name) is not None and batch[name].dim() == batch[labels].dim()]


def _whole(field: Tensor, labels: Tensor, cut: CutSequence) -> Tensor:
    """Return a field of whole sequences, if it was cut; context parallelism leaves those that the model does not see."""
    return cut.whole(field) if field.shape[-1] == labels.shape[-1] else field


def refuse_split(objective: NumericObjective, trainer: Any, *, soft: bool) -> None:
    """Raise for what sequences that are split over processes do not support."""
    cp_size, sp_size = split_over("cp", trainer), split_over("sp", trainer)
    if cp_size > 1 or sp_size > 1:
        refuse_cut(objective.numeric_loss, objective.weighting, shift=False, with_overrun=False)
    if sp_size > 1 and soft:
        raise NotImplementedError(
            f"soft labels or numbers=... with sequence parallelism over {sp_size} processes: DeepSpeed's loader cuts all fields "
            "of a batch by position, and those of soft targets have other lengths. Expected a loss alone, context parallelism "
            "(cp_size) or data parallelism."
        )
