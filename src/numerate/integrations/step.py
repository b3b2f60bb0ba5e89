"""What every trainer integration needs: the counts of an optimizer step, and sums of the loss's parts for logs."""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from numerate.integrations.fields import Batch, aligned
from numerate.labels import IGNORE_INDEX, shift_left
from numerate.losses.base import NumericLoss
from numerate.objective import NumericObjective, ObjectiveOutput
from numerate.vocab import NumericVocab


def steps_of(batches: Iterable[Any], accumulate: int, *, shift: bool, ignore_index: int) -> Iterator[list[Any]]:
    """Group batches into optimizer steps; warn if the first one's labels are raw despite ``shift=False``."""
    batches, first = iter(batches), True
    while step := list(islice(batches, accumulate)):
        if first and not shift:
            _warn_if_raw(step[0], ignore_index)
        first = False
        yield step


def _warn_if_raw(batch: Batch, ignore_index: int) -> None:
    """Warn if labels repeat ``input_ids``: a causal model's raw labels, which are not aligned with its logits."""
    ids, labels = batch.get("input_ids"), batch.get("labels")
    if ids is None or labels is None or "shift_labels" in batch or ids.shape != labels.shape:
        return
    ignored = labels == ignore_index
    raw, shifted = ((ignored | (labels == tokens)).all() for tokens in (ids, shift_left(ids, ignore_index)))
    if raw and not shifted:  # both: one repeated token, or no label at all
        warnings.warn(
            "shift=False, but labels equal input_ids: these are raw labels of a causal model, which predicts each token one "
            "position earlier, so the model would learn to copy its input. Leave out shift=False, or shift the labels yourself.",
            stacklevel=4,
        )


@dataclass
class StepCounts:
    """What the sums of an optimizer step are divided by."""

    num_items: Tensor  # label tokens, or the sum of their weights
    num_units: Tensor  # units of the numeric loss
    num_positions: Tensor  # positions whose label is a numeric token
    num_labels: Tensor  # label tokens

    @classmethod
    def of(cls, objective: NumericObjective, batches: Sequence[Batch], *, shift: bool) -> StepCounts:
        """Count batches, on their device and without a host sync."""
        sums = []
        for batch in batches:
            labels, fields = aligned(batch, shift=shift, ignore_index=objective.ignore_index)
            fields.pop("soft", None)  # a target counts once, whatever it is
            num_labels = (labels != objective.ignore_index).sum()
            counts = (*objective.count(labels, **fields), numeric_positions(objective, labels), num_labels)
            sums.append(torch.stack([count.double() for count in counts]))
        return cls(*torch.stack(sums).sum(0))

    def over(self, accelerator: Any, copies: int) -> StepCounts:
        """Return the sum over processes, of which ``copies`` share each batch."""
        if accelerator.num_processes == 1:
            return self
        mine = torch.stack([self.num_items, self.num_units, self.num_positions, self.num_labels])
        return StepCounts(*(accelerator.reduce(mine.to(accelerator.device), "sum") / copies))


def check_objective(objective: Any) -> None:
    """Raise unless ``objective`` is a :class:`NumericObjective`."""
    if not isinstance(objective, NumericObjective):
        name = type(objective).__name__
        hint = f"NumericObjective({name}(vocab))" if isinstance(objective, NumericLoss) else "NumericObjective(SMMDLoss(vocab))"
        raise TypeError(f"objective is a {name}: expected a NumericObjective; pass {hint}.")


def check_gradient(loss: Tensor) -> None:
    """Raise for a loss to train with that has no gradient: another loss, added to it, would be trained on alone."""
    if not loss.requires_grad:
        raise RuntimeError(
            "the objective's loss has no gradient, so nothing would be trained on it: expected logits that depend on trainable "
            "parameters; look for .detach(), torch.no_grad(), a hook that cuts them off, or a model that is frozen."
        )


def repeated_rows(labels: Tensor, accelerator: Any, copies: int) -> Tensor | None:
    """Return the mask ``[B]`` of rows that fill up the last evaluation batch, so that all processes have as many.

    ``copies`` processes that follow each other share each batch.
    """
    state = accelerator.gradient_state
    if accelerator.num_processes == copies:
        return None
    shard: Any = getattr(state.active_dataloader, "dataset", None)
    if type(shard).__name__ == "IterableDatasetShard" and not shard.drop_last:
        raise ValueError(
            "dispatch_batches=False and an IterableDataset: each process fills up its last evaluation batch with repeated rows, "
            "and how many is not known, so they would count twice. Expected dispatch_batches=True, the default for it, in "
            "accelerator_config of the TrainingArguments; or a dataset with a length and __getitem__."
        )
    if not state.end_of_dataloader or state.remainder <= 0:
        return None
    rows = labels.shape[0]
    repeated: Tensor = torch.arange(rows, device=labels.device) + accelerator.process_index // copies * rows >= state.remainder
    return repeated


def without_repeats(batch: Batch, accelerator: Any, copies: int) -> dict[str, Any]:
    """Return an evaluation batch with the labels of repeated rows ignored."""
    batch = dict(batch)
    for name in batch.keys() & {"labels", "shift_labels"}:
        repeated = repeated_rows(batch[name], accelerator, copies)
        if repeated is not None:
            batch[name] = batch[name].masked_fill(repeated.view(-1, *[1] * (batch[name].dim() - 1)), IGNORE_INDEX)
    return batch


def numeric_positions(objective: NumericObjective, labels: Tensor) -> Tensor:
    """Return the number of labels that are numeric tokens; zero for cross-entropy alone without a vocabulary."""
    vocab: NumericVocab | None = objective.numeric_loss.vocab
    if vocab is None:
        return labels.new_zeros(())
    numeric = vocab.index_of(labels) >= 0
    return (numeric & (labels != objective.ignore_index)).sum()


@dataclass
class LossSums:
    """Sums of the loss's parts since they were last logged, kept on the device: reading them is the only host sync."""

    sums: dict[str, Tensor | float] = field(default_factory=lambda: defaultdict(float))

    def add_step(self, out: ObjectiveOutput, counts: StepCounts, positions: Tensor, *, first: bool) -> None:
        """Add a training micro-batch; ``first``: it begins an optimizer step."""
        self._add({"cross_entropy": out.cross_entropy, "numeric": out.numeric} | _masses(out, positions))
        if first:
            self._add({"steps": 1.0, "labels": counts.num_labels, "positions": counts.num_positions})

    def add_batch(
        self, out: ObjectiveOutput, counts: StepCounts, positions: Tensor, objective: NumericObjective, extra: Any
    ) -> None:
        """Add an evaluation batch; ``extra`` is what the model adds to the objective."""
        items, units = counts.num_items, counts.num_units
        numeric = out.numeric * objective.weighting.denominator(items, units)
        self._add({"cross_entropy": out.cross_entropy * items, "numeric": numeric, "extra": extra} | _masses(out, positions))
        self._add({"batches": 1.0, "items": items, "units": units})
        self._add({"labels": counts.num_labels, "positions": counts.num_positions})

    def _add(self, new: dict[str, Any]) -> None:
        for name, value in new.items():
            self.sums[name] = self.sums[name] + (value.detach().double() if isinstance(value, Tensor) else value)

    def of_steps(self, accelerator: Any, copies: int = 1) -> dict[str, float]:
        """Return the means over training steps for the logs, and reset; ``copies`` processes compute the same shares."""
        sums = self._pop(accelerator, copies)
        if not sums:
            return {}
        steps = max(sums["steps"], 1.0)
        return {"loss/cross_entropy": sums["cross_entropy"] / steps, "loss/numeric": sums["numeric"] / steps, **_shares(sums)}

    def of_set(self, accelerator: Any, objective: NumericObjective, copies: int = 1) -> dict[str, float]:
        """Return the parts of a whole evaluation set, sums over counts, and reset; ``copies`` as in :meth:`of_steps`."""
        sums = self._pop(accelerator, copies)
        if not sums:
            return {}
        # Counts may be sums of weights, below one.
        ce = sums["cross_entropy"] / (sums["items"] or 1.0)
        weighting = objective.weighting
        numeric = sums["numeric"] / (float(weighting.denominator(sums["items"], sums["units"])) or 1.0)
        factor = float(weighting.factor(torch.tensor(ce, dtype=torch.float64), torch.tensor(numeric, dtype=torch.float64)))
        extra = sums["extra"] / sums["batches"] / (accelerator.num_processes // copies)
        loss = ce + factor * numeric + extra
        return {"loss": loss, "loss/cross_entropy": ce, "loss/numeric": numeric, **_shares(sums)}

    def _pop(self, accelerator: Any, copies: int) -> dict[str, float]:
        sums = {name: float(value) for name, value in self.sums.items()}
        self.sums.clear()
        # Each process has a share of these.
        shared = ("cross_entropy", "numeric", "extra", "mass", "mass_positions", "overrun", "num_ends")
        if sums and accelerator.num_processes > 1:
            # float64: float32 would round the counts of long runs.
            mine = torch.tensor([sums.get(name, 0.0) for name in shared], dtype=torch.float64, device=accelerator.device)
            sums |= dict(zip(shared, (accelerator.reduce(mine, "sum") / copies).tolist(), strict=True))
        return sums


def _masses(out: ObjectiveOutput, positions: Tensor) -> dict[str, Any]:
    sums = {} if out.mass is None else {"mass": out.mass * positions, "mass_positions": positions}
    if out.overrun is not None and out.num_ends is not None:
        sums |= {"overrun": out.overrun * out.num_ends, "num_ends": out.num_ends}
    return sums


def _shares(sums: dict[str, float]) -> dict[str, float]:
    shares = {"numeric/share": sums["positions"] / max(sums["labels"], 1.0)}
    if sums.get("mass_positions"):
        shares["numeric/mass"] = sums["mass"] / sums["mass_positions"]
    if sums.get("num_ends"):
        shares["numeric/overrun"] = sums["overrun"] / sums["num_ends"]
    return shares


def will_be_logged(trainer: Any) -> bool:
    """Return whether a Hugging Face Trainer will log the optimizer step that begins, once its batches are fetched.

    A callback may log at other steps: those logs have no ``numeric/overrun``.
    """
    args, state = trainer.args, trainer.state
    step = state.global_step + 1
    if args.logging_strategy == "epoch":
        logged = step == state.max_steps or trainer.accelerator.gradient_state.end_of_dataloader
    else:
        logged = args.logging_strategy == "steps" and step % state.logging_steps == 0
    return bool(logged or (step == 1 and args.logging_first_step))


def reads_complete_numbers(loss: NumericLoss) -> bool:
    """Return whether the loss depends on more than one token at a time."""
    return loss.level == "number" or loss.places != "uniform"
