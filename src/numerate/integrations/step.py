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
    labels: Tensor | None = batch.get("shift_labels")
    if labels is None:
        labels = shifted(batch["labels"], ignore_index) if shift else batch["labels"]
    return labels, document_positions(batch, labels, shift=shift)


def document_positions(batch: Batch, targets: Tensor, *, shift: bool) -> Tensor | None:
    """``position_ids [.., T]`` of a batch for targets ``[.., T']``, of which a model may have cut off or added the first."""
    positions: Tensor | None = batch.get("position_ids")
    if positions is None or positions.dim() > targets.dim():
        return None  # three rows of positions, as some vision models have, count patches of images, not documents
    missing = targets.shape[-1] - positions.shape[-1]
    positions = positions.expand(*targets.shape[:-1], -1)
    positions = F.pad(positions, (missing, 0)) if missing > 0 else positions[..., -missing:]
    return shifted(positions, 0) if shift else positions


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
            items, units = objective.count(labels, position_ids=positions)
            sums.append(torch.stack([items.double(), units.double(), numeric_positions(objective, labels).double()]))
        return cls(*torch.stack(sums).sum(0))

    def over(self, accelerator: Any, copies: int) -> Counts:
        """The sum over processes, ``copies`` of which share each batch."""
        if accelerator.num_processes == 1:
            return self
        mine = torch.stack([self.items, self.units, self.positions])
        return Counts(*(accelerator.reduce(mine.to(accelerator.device), "sum") / copies))

    def same(self, other: Counts) -> bool:
        """Whether both count the same."""
        return all(float(mine) == float(its) for mine, its in zip(vars(self).values(), vars(other).values(), strict=True))


def check_objective(objective: Any) -> None:
    """Raise for what is no objective, a numeric loss by itself above all."""
    if not isinstance(objective, NumericObjective):
        name = type(objective).__name__
        hint = f"NumericObjective({name}(vocab))" if isinstance(objective, NumericLoss) else "NumericObjective(SMMDLoss(vocab))"
        raise TypeError(f"objective is a {name}: expected a NumericObjective; pass {hint}.")


def repeated_rows(labels: Tensor, accelerator: Any) -> Tensor | None:
    """Which rows of an evaluation's batch were there before: the last is filled up, so that processes have as many."""
    state = accelerator.gradient_state
    if accelerator.num_processes == 1 or not state.end_of_dataloader or state.remainder <= 0:
        return None
    rows = labels.shape[0]
    repeated: Tensor = torch.arange(rows, device=labels.device) + accelerator.process_index * rows >= state.remainder
    return repeated


def without_repeats(batch: Batch, accelerator: Any) -> dict[str, Any]:
    """An evaluation's batch whose repeated rows have no labels."""
    batch = dict(batch)
    for name in batch.keys() & {"labels", "shift_labels"}:
        repeated = repeated_rows(batch[name], accelerator)
        if repeated is not None:
            batch[name] = batch[name].masked_fill(repeated.view(-1, *[1] * (batch[name].dim() - 1)), -100)
    return batch


def numeric_positions(objective: NumericObjective, labels: Tensor) -> Tensor:
    """How many labels are numeric tokens."""
    numeric = objective.numeric_loss.vocab.index_of(labels) >= 0
    return (numeric & (labels != objective.ignore_index)).sum()


@dataclass
class Parts:
    """The parts of the loss since they were last logged, summed on the device: nothing waits for them until then."""

    sums: dict[str, Tensor | float] = field(default_factory=lambda: defaultdict(float))

    def add_step(self, out: ObjectiveOutput, counts: Counts, positions: Tensor, *, first: bool) -> None:
        """Add one micro-batch of a training step; ``first`` of its step."""
        self._add({"cross_entropy": out.cross_entropy, "numeric": out.numeric} | _mass(out, positions))
        if first:
            self._add({"steps": 1.0, "items": counts.items, "positions": counts.positions})

    def add_batch(self, out: ObjectiveOutput, counts: Counts, positions: Tensor, objective: NumericObjective, rest: Any) -> None:
        """Add one batch of an evaluation; ``rest`` is what the model adds to the objective."""
        numeric = out.numeric * objective.weighting.denominator(counts.items, counts.units)
        self._add({"cross_entropy": out.cross_entropy * counts.items, "numeric": numeric, "rest": rest} | _mass(out, positions))
        self._add({"batches": 1.0, "items": counts.items, "units": counts.units, "positions": counts.positions})

    def _add(self, new: dict[str, Any]) -> None:
        for name, value in new.items():
            self.sums[name] = self.sums[name] + (value.detach().double() if isinstance(value, Tensor) else value)

    def of_steps(self, accelerator: Any) -> dict[str, float]:
        """Return the means over training steps for the logs, and begin anew."""
        sums = self._pop(accelerator)
        if not sums:
            return {}
        steps = max(sums["steps"], 1.0)
        return {
            "loss/cross_entropy": sums["cross_entropy"] / steps,
            "loss/numeric": sums["numeric"] / steps,
            **_shares(sums),
        }

    def of_set(self, accelerator: Any, objective: NumericObjective) -> dict[str, float]:
        """Return the parts of a whole evaluation set, sums over counts, and begin anew."""
        sums = self._pop(accelerator)
        if not sums:
            return {}
        ce = sums["cross_entropy"] / max(sums["items"], 1.0)
        numeric = sums["numeric"] / max(float(objective.weighting.denominator(sums["items"], sums["units"])), 1.0)
        factor = float(
            objective.weighting.factor(torch.tensor(ce, dtype=torch.float64), torch.tensor(numeric, dtype=torch.float64))
        )
        rest = sums["rest"] / sums["batches"] / accelerator.num_processes
        return {
            "loss": ce + factor * numeric + rest,
            "loss/cross_entropy": ce,
            "loss/numeric": numeric,
            **_shares(sums),
        }

    def _pop(self, accelerator: Any) -> dict[str, float]:
        """The sums over processes; they begin anew."""
        sums = {name: float(value) for name, value in self.sums.items()}
        self.sums.clear()
        shared = ("cross_entropy", "numeric", "rest", "mass", "mass_positions")  # each process has a share of these
        if sums and accelerator.num_processes > 1:
            # Doubles survive the trip as such: float32 would round the counts of long runs.
            mine = torch.tensor([sums.get(name, 0.0) for name in shared], dtype=torch.float64, device=accelerator.device)
            sums |= dict(zip(shared, accelerator.reduce(mine, "sum").tolist(), strict=True))
        return sums


def _mass(out: ObjectiveOutput, positions: Tensor) -> dict[str, Any]:
    return {} if out.mass is None else {"mass": out.mass * positions, "mass_positions": positions}


def _shares(sums: dict[str, float]) -> dict[str, float]:
    shares = {"numeric/share": sums["positions"] / max(sums["items"], 1.0)}
    if sums.get("mass_positions"):
        shares["numeric/mass"] = sums["mass"] / sums["mass_positions"]
    return shares


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
