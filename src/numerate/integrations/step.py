"""What a trainer's integration does whatever the trainer: align labels, count a step, remember the parts for the logs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from numerate.losses.base import NumericLoss
from numerate.objective import NumericObjective, ObjectiveOutput

Batch = Mapping[str, Any]


def shifted(labels: Tensor, fill: int = -100) -> Tensor:
    """Labels ``[.., T]`` moved one to the left, so that each stands where it is predicted."""
    return F.pad(labels, (0, 1), value=fill)[..., 1:]


def aligned(batch: Batch, *, shift: bool, ignore_index: int = -100) -> tuple[Tensor, Tensor | None]:
    """A batch's labels where they are predicted, and, for packed sequences, where documents begin among them."""
    labels: Tensor = batch["labels"]
    positions = batch.get("position_ids")
    if positions is not None:
        # Three rows of positions, as some vision models have, count patches of images, not documents.
        positions = positions.expand_as(labels) if positions.dim() == labels.dim() else None
    if batch.get("shift_labels") is not None:
        labels = batch["shift_labels"]
    elif shift:
        labels = shifted(labels, ignore_index)
    return labels, shifted(positions, 0) if shift and positions is not None else positions


@dataclass
class Counts:
    """Of an optimizer step: label tokens, units of the numeric loss, positions whose label is a numeric token."""

    items: Tensor
    units: Tensor
    positions: Tensor

    @classmethod
    def of(cls, objective: NumericObjective, batches: Sequence[Batch], *, shift: bool) -> Counts:
        """The sum over batches, on their device, without waiting for it."""
        sums = []
        for batch in batches:
            labels, positions = aligned(batch, shift=shift, ignore_index=objective.ignore_index)
            items, units = objective.counts(labels, position_ids=positions)
            sums.append(torch.stack([items.double(), units.double(), numeric_positions(objective, labels).double()]))
        return cls(*torch.stack(sums).sum(0))

    def over(self, accelerator: Any, copies: int) -> Counts:
        """The sum over processes, ``copies`` of which share each batch."""
        if accelerator.num_processes == 1:
            return self
        mine = torch.stack([self.items, self.units, self.positions])
        return Counts(*(accelerator.reduce(mine.to(accelerator.device), "sum") / copies))


def numeric_positions(objective: NumericObjective, labels: Tensor) -> Tensor:
    """How many labels are numeric tokens."""
    numeric = objective.numeric_loss.vocab.index_of(labels) >= 0
    return (numeric & (labels != objective.ignore_index)).sum()


@dataclass
class Parts:
    """The parts of the loss since they were last logged, summed on the device: nothing waits for them until then."""

    sums: dict[str, Tensor | float] = field(default_factory=lambda: defaultdict(float))

    def add(self, out: ObjectiveOutput, counts: Counts, positions: Tensor, *, first: bool) -> None:
        """One micro-batch's; ``first`` of its step."""
        new: dict[str, Any] = {"cross_entropy": out.cross_entropy, "numeric": out.numeric}
        if first:
            new |= {"steps": 1.0, "items": counts.items, "positions": counts.positions}
        if out.mass is not None:
            new |= {"mass": out.mass * positions, "mass_positions": positions}
        for name, value in new.items():
            self.sums[name] = self.sums[name] + (value.detach().double() if isinstance(value, Tensor) else value)

    def pop(self, accelerator: Any) -> dict[str, float]:
        """What goes to the logs; the sums begin anew."""
        if not self.sums:
            return {}
        sums = {name: float(value) for name, value in self.sums.items()}
        self.sums.clear()
        shared = ("cross_entropy", "numeric", "mass", "mass_positions")  # each process has a share of these
        if accelerator.num_processes > 1:
            # Doubles survive the trip as such: float32 would round the counts of long runs.
            mine = torch.tensor([sums.get(name, 0.0) for name in shared], dtype=torch.float64, device=accelerator.device)
            sums |= dict(zip(shared, accelerator.reduce(mine, "sum").tolist(), strict=True))
        steps = max(sums["steps"], 1.0)
        logs = {
            "loss/cross_entropy": sums["cross_entropy"] / steps,
            "loss/numeric": sums["numeric"] / steps,
            "numeric/share": sums["positions"] / max(sums["items"], 1.0),
        }
        if sums.get("mass_positions"):
            logs["numeric/mass"] = sums["mass"] / sums["mass_positions"]
        return logs


def add_parts(logs: dict[str, float], parts: Mapping[bool, Parts], accelerator: Any) -> None:
    """Add the parts of training (True) or evaluation (False) to a trainer's logs, in place: ``evaluate()`` returns them, too."""
    training = "loss" in logs
    if training or "eval_loss" in logs:
        prefix = "" if training else "eval_"
        logs.update({f"{prefix}{name}": value for name, value in parts[training].pop(accelerator).items()})


def reads_whole_numbers(loss: NumericLoss) -> bool:
    """Whether the loss looks at more than one token at a time."""
    return loss.level == "number" or loss.places != "uniform"


def refuse_split_sequences(objective: NumericObjective, cp_size: int, sp_size: int) -> None:
    """Raise where sequences are spread over processes in a way that would cut numbers in two, or count them wrongly."""
    name = type(objective.numeric_loss).__name__
    if sp_size > 1:
        raise NotImplementedError(
            f"sequence parallelism over {sp_size} processes averages losses its own way, which {name} cannot be part of: "
            "expected whole sequences; use data parallelism (DDP, FSDP2) instead."
        )
    if cp_size > 1 and reads_whole_numbers(objective.numeric_loss):
        raise NotImplementedError(
            f"context parallelism over {cp_size} processes cuts sequences, and numbers, in two, but {name} reads whole "
            "numbers: expected whole sequences; use a token-level loss such as SMMDLoss, or data parallelism (DDP, FSDP2)."
        )
