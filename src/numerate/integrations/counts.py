"""The counts of an optimizer step, for frameworks that do not count numbers: they pass the label tokens of a step, or nothing.

A step's sums are divided by its counts, over all micro-batches and processes. Count before the first forward pass::

    num_items, num_units = count_step(objective, batches, group=data_parallel_group, device=device)
    for batch in batches:
        out = objective(model(batch["input_ids"]), batch["labels"], num_items=num_items, num_units=num_units, shift=True)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from numerate.checks import public_dir
from numerate.integrations.split_sequences import whole_labels
from numerate.integrations.step import StepCounts, check_objective
from numerate.objective import CutSequence, NumericObjective
from numerate.objective.cut_sequence import refuse_cut

__all__ = ["count_step"]
__dir__ = public_dir(globals())


def count_step(
    objective: NumericObjective,
    batches: Sequence[Mapping[str, Any]],
    *,
    shift: bool = True,
    group: Any = None,
    device: torch.device | str | None = None,
    cut: CutSequence | None = None,
) -> tuple[Tensor, Tensor]:
    """Return ``num_items`` and ``num_units`` of an optimizer step, float64, for :class:`numerate.NumericObjective`.

    Args:
        objective: counts what its loss counts: numeric positions, or numbers.
        batches: the micro-batches of this process, with ``labels``, and ``position_ids`` or weights if there are any.
        shift: whether labels are raw, as :meth:`numerate.NumericObjective.forward` takes them.
        group: the process group over which to sum, whose processes have different batches: that of data parallelism,
            ``torch.distributed.group.WORLD`` without other kinds. None: this process alone.
        device: where to sum: the GPU for NCCL. None: that of the labels.
        cut: how sequences are cut over processes, if the batches are this process's parts, with ``shift=False``: all numbers
            are counted complete. ``group`` has then the processes with other sequences, or is None.

    Examples:
        >>> import torch
        >>> from numerate import NumericObjective, NumericVocab, SMMDLoss
        >>> vocab = NumericVocab.from_texts({str(d): d for d in range(10)}, vocab_size=12)
        >>> labels = torch.tensor([[11, 4, 2, -100], [11, 7, 11, 11]])
        >>> items, units = count_step(NumericObjective(SMMDLoss(vocab)), [{"labels": labels[:1]}, {"labels": labels[1:]}])
        >>> int(items), int(units)
        (5, 3)
    """
    check_objective(objective)
    if not batches:
        raise ValueError("batches is empty: expected the micro-batches of an optimizer step.")
    if cut is not None:
        refuse_cut(objective.numeric_loss, objective.weighting, shift=shift, with_overrun=False)
        batches = [whole_labels(batch, cut, device) for batch in batches]
    counts = StepCounts.of(objective, batches, shift=shift)
    own = torch.stack([counts.num_items, counts.num_units]).to(device)
    if group is not None:
        dist.all_reduce(own, group=group)
    num_items, num_units = own.unbind()
    return num_items, num_units
