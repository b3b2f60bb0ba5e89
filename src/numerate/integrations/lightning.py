"""Lightning: the counts of an optimizer step, which a ``training_step`` cannot know by itself.

Lightning averages the losses of a step's micro-batches, and the gradients of its processes. An average of means is not the
mean over the step: batches differ in tokens, and more so in numbers. So each batch's sums are divided by the *average* counts
of the step's batches, and Lightning's average of them is right::

    loader = StepDataLoader(dataset, objective=objective, accumulate=4, batch_size=8, collate_fn=collate)

    class Module(LightningModule):
        def training_step(self, batch, batch_idx):
            counts = step_counts(self, batch, batch_idx)
            logits = self.model(batch["input_ids"]).logits
            return self.objective(logits, shifted(batch["labels"]), **counts).loss

    Trainer(accumulate_grad_batches=4).fit(Module(), loader)

A validation step needs none of this. Nothing here imports Lightning: it serves ``lightning`` and ``pytorch_lightning`` alike.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

from numerate.integrations.step import Counts, shifted
from numerate.objective import NumericObjective

__all__ = ["StepDataLoader", "shifted", "step_counts"]

_KEY = "step_counts"


class _Tally:
    """Batches that a loader gave, and those whose counts were taken. Shared by the copies that Lightning makes of a batch."""

    def __init__(self) -> None:
        self.given = self.taken = 0

    def give(self, ahead: int) -> None:
        """Count another batch; raise if more than ``ahead`` are not taken."""
        if self.given - self.taken > ahead:
            raise RuntimeError(
                f"training_step took the counts of {self.taken} of {self.given} batches: expected step_counts(self, batch, "
                "batch_idx) at the beginning of each, for objective(.., **counts). Without them each batch is divided by its own "
                "counts, and the gradient of a step is wrong. To validate, or to look at the data, use a plain DataLoader."
            )
        self.given += 1


class _StepCounts(NamedTuple):
    """What a loader tells each batch of a step."""

    counts: Tensor  # [batches of the step, 2]: label tokens, units of the numeric loss
    accumulate: int
    tally: _Tally


class StepDataLoader(DataLoader[Any]):
    """A ``DataLoader`` that looks ahead: each batch carries the counts of the step it belongs to, for :func:`step_counts`.

    Batches are mappings with ``labels``. Being a ``DataLoader``, it gets its distributed sampler from Lightning. It raises at the
    second batch (the third of an iterable dataset) if a ``training_step`` does not take the counts.

    Args:
        dataset: as of a ``DataLoader``.
        objective: whose counts.
        accumulate: ``accumulate_grad_batches`` of the ``Trainer``.
        shift: whether labels stand where their tokens do, as in a causal model's batch, and not where they are predicted.
        options: of a ``DataLoader``.
    """

    def __init__(
        self, dataset: Dataset[Any], *, objective: NumericObjective, accumulate: int = 1, shift: bool = True, **options: Any
    ) -> None:
        if accumulate < 1:
            raise ValueError(f"accumulate={accumulate!r} is out of range: expected one batch or more per step.")
        super().__init__(dataset, **options)
        self.objective, self.accumulate, self.shift = objective, accumulate, shift

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        batches = iter(super().__iter__())
        tally = _Tally()
        # Lightning fetches one batch ahead where it cannot know which is the last.
        ahead = 1 if isinstance(self.dataset, IterableDataset) else 0
        while step := list(islice(batches, self.accumulate)):
            counts = [Counts.of(self.objective, [batch], shift=self.shift) for batch in step]
            sums = torch.stack([torch.stack([count.items, count.units]) for count in counts])
            for batch in step:
                tally.give(ahead)
                batch[_KEY] = _StepCounts(sums.float(), self.accumulate, tally)
                yield batch


def step_counts(module: Any, batch: MutableMapping[str, Any], batch_idx: int) -> dict[str, Tensor]:
    """``num_items`` and ``num_units`` for ``objective(..)`` or ``objective.fused(..)`` in ``training_step``.

    Takes what a :class:`StepDataLoader` left in the batch out of it. The parts of the objective's output are scaled like its
    loss: their average over a step's batches and processes, which is what ``self.log`` makes, is the step's.
    """
    trainer = module.trainer
    step: _StepCounts | None = batch.pop(_KEY, None)
    if step is None:
        raise ValueError(f"batch has {', '.join(batch)} and no counts of its step: expected batches of a StepDataLoader.")
    step.tally.taken += 1
    accumulate = trainer.accumulate_grad_batches
    if step.accumulate != accumulate:
        raise ValueError(
            f"accumulate={step.accumulate} of the StepDataLoader is not accumulate_grad_batches={accumulate} of the Trainer: "
            "expected the same number."
        )
    strategy = trainer.strategy
    if accumulate > 1 and strategy.handles_gradient_accumulation:
        raise NotImplementedError(
            f"{type(strategy).__name__} accumulates gradients by its own rules: expected accumulate_grad_batches=1, or another "
            "strategy, such as 'ddp' or 'fsdp'."
        )
    # The Trainer may end an epoch, and with it a step, before the loader does.
    left = trainer.num_training_batches - (batch_idx - batch_idx % accumulate)
    mean = step.counts[: min(left, accumulate)].sum(0) / accumulate
    num_items, num_units = strategy.reduce(mean, reduce_op="mean")
    return {"num_items": num_items, "num_units": num_units}
