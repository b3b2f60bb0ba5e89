"""Lightning: the counts of an optimizer step, which a ``training_step`` cannot know by itself.

Lightning averages the losses of a step's micro-batches and the gradients of its processes. A mean of means is not the mean
over the step: batches differ in tokens, and more so in numbers. So each batch's sums are divided by the *average* counts of
the step's batches, and Lightning's average of the losses is then the step's loss::

    trainer = Trainer(accumulate_grad_batches=4)
    loader = attach(trainer, dataset, "smmd", soft=0.05, tokenizer=tokenizer, batch_size=8, collate_fn=collate)

    class Module(LightningModule):
        def training_step(self, batch, batch_idx):
            counts = step_counts(self, batch, batch_idx)
            logits = self.model(batch["input_ids"]).logits
            return loader.objective(logits, batch["labels"], shift=True, **counts).loss

    trainer.fit(Module(), loader)

Soft targets and weights that a batch carries are part of ``counts``. A validation step does not need this. Lightning is not
imported here: ``lightning`` and ``pytorch_lightning`` both work.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, MutableMapping
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate

from numerate.checks import check_number, public_dir
from numerate.formats import NumberFormat
from numerate.integrations.asked import Asked
from numerate.integrations.fields import take_fields
from numerate.integrations.notice import notice
from numerate.integrations.step import StepCounts, steps_of
from numerate.losses import NumericLoss
from numerate.objective import NumericObjective
from numerate.targets import SoftNumbers, Target
from numerate.targets.drawn import EpochDataset
from numerate.targets.soft_numbers import PathKind, Where
from numerate.targets.tokenised_rows import TokenColumn

__all__ = ["StepDataLoader", "attach", "step_counts"]
__dir__ = public_dir(globals())

_KEY = "step_counts"


def attach(
    trainer: Any,
    dataset: Any,
    loss: str | NumericLoss | NumericObjective | None = None,
    *,
    soft: float | bool | Target | SoftNumbers | None = None,
    weight: float | None = None,
    numbers: Where | re.Pattern[str] | None = None,
    tokenizer: Any = None,
    seed: int = 0,
    path: PathKind = "drawn",
    check: bool = True,
    format: NumberFormat | str | None = None,
    sequence: TokenColumn = "input_ids",
    shift: bool = True,
    **options: Any,
) -> StepDataLoader:
    """Return a loader for ``trainer.fit``, whose ``objective`` is what was asked for; numbers are drawn anew in each epoch.

    Args:
        trainer: a Lightning ``Trainer``.
        dataset: rows by index.
        loss: as for :func:`numerate.attach`, as are ``soft``, ``weight``, ``numbers``, ``path``, ``check`` and ``format``.
        soft: how uncertain labels are.
        weight: of the loss.
        numbers: the numbers that are meant.
        tokenizer: that made the rows. Default: the tokenizer of ``collate_fn``.
        seed: of the draws.
        path: as in :class:`~numerate.targets.DrawnDataset`.
        check: whether to look for numbers in the first rows.
        format: how the numbers of the rows are written.
        sequence: ``"labels"`` for an encoder-decoder, as in :class:`~numerate.targets.SoftNumbers`.
        shift: as for :class:`StepDataLoader`.
        options: as for a ``DataLoader``, such as ``batch_size`` and ``collate_fn``.
    """
    asked = Asked(loss, soft, weight, numbers, tokenizer, seed, path, check, format)
    made = asked.prepared(dataset, options.pop("collate_fn", default_collate), sequence, seed)
    notice(made.summary, shown=trainer.is_global_zero)
    epoch = partial(getattr, trainer, "current_epoch")
    options |= {"accumulate": trainer.accumulate_grad_batches, "shift": shift, "epoch": epoch, "collate_fn": made.collator}
    return StepDataLoader(made.dataset, objective=made.objective, **options)


class _Tally:
    """Number of batches yielded by a loader, and of those whose counts were read. Shared by Lightning's copies of a batch."""

    def __init__(self) -> None:
        self.yielded = self.read = 0

    def add(self, ahead: int) -> None:
        """Count a batch to be yielded; raise if the counts of more than ``ahead`` batches were not read."""
        if self.yielded - self.read > ahead:
            raise RuntimeError(
                f"training_step took the counts of {self.read} of {self.yielded} batches: expected step_counts(self, batch, "
                "batch_idx) at the start of each, for objective(.., **counts). Without them each batch is divided by its own "
                "counts, and the gradient of a step is wrong. To validate, or to look at the data, use a plain DataLoader."
            )
        self.yielded += 1


class _BatchCounts(NamedTuple):
    """What a loader adds to each batch of a step."""

    counts: Tensor  # [batches of the step, 2]: label tokens, units of the numeric loss
    accumulate: int
    tally: _Tally


class StepDataLoader(DataLoader[Any]):
    """A ``DataLoader`` that reads a step ahead: each batch carries the counts of its step, for :func:`step_counts`.

    Batches are mappings with ``labels``. Lightning gives it a distributed sampler, as any ``DataLoader``. It raises at the second
    batch (the third of an iterable dataset) if ``training_step`` does not call :func:`step_counts`.

    Args:
        dataset: as for a ``DataLoader``.
        objective: the objective to count for.
        accumulate: ``accumulate_grad_batches`` of the ``Trainer``.
        shift: True if labels are raw (``labels[t]`` is ``input_ids[t]`` or ignored), as a causal model's batches have them; False
            if they are aligned with the logits (``labels[t]`` is ``input_ids[t + 1]``).
        epoch: returns the epoch that begins, for a :class:`~numerate.targets.DrawnDataset`.
        options: as for a ``DataLoader``.
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        *,
        objective: NumericObjective,
        accumulate: int = 1,
        shift: bool = True,
        epoch: Callable[[], int] | None = None,
        **options: Any,
    ) -> None:
        check_number("accumulate", accumulate, least=1)
        super().__init__(dataset, **options)
        self.objective, self.accumulate, self.shift, self.epoch = objective, accumulate, shift, epoch

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        if self.epoch is not None and isinstance(self.dataset, EpochDataset):
            self.dataset.set_epoch(self.epoch())
        tally = _Tally()
        # Lightning fetches one batch ahead where it cannot know which is the last.
        ahead = 1 if isinstance(self.dataset, IterableDataset) else 0
        ignore_index = self.objective.ignore_index
        for step in steps_of(super().__iter__(), self.accumulate, shift=self.shift, ignore_index=ignore_index):
            counts = [StepCounts.of(self.objective, [batch], shift=self.shift) for batch in step]
            sums = torch.stack([torch.stack([count.num_items, count.num_units]) for count in counts])
            for batch in step:
                tally.add(ahead)
                batch[_KEY] = _BatchCounts(sums.float(), self.accumulate, tally)
                yield batch


def step_counts(module: Any, batch: MutableMapping[str, Any], batch_idx: int) -> dict[str, Any]:
    """Return ``num_items`` and ``num_units`` for ``objective(..)`` or ``objective.fused(..)`` in ``training_step``.

    Soft targets, ``token_weights`` and ``position_weights`` of the batch are returned too, as the arguments ``soft``,
    ``token_weights`` and ``position_weights``. They are raw or aligned as the batch's labels are. All this is removed from the
    batch. The parts of the objective's output are scaled like its loss: their average over a step's batches and processes, as
    ``self.log`` computes it, is the step's.
    """
    trainer = module.trainer
    step: _BatchCounts | None = batch.pop(_KEY, None)
    if step is None:
        raise ValueError(f"batch has {', '.join(batch)} and no counts of its step: expected batches of a StepDataLoader.")
    step.tally.read += 1
    accumulate = trainer.accumulate_grad_batches
    if step.accumulate != accumulate:
        raise ValueError(
            f"accumulate={step.accumulate} of the StepDataLoader is not accumulate_grad_batches={accumulate} of the Trainer: "
            "expected the same number."
        )
    strategy = trainer.strategy
    if accumulate > 1 and strategy.handles_gradient_accumulation:
        raise NotImplementedError(
            f"{type(strategy).__name__} accumulates gradients in its own way: expected accumulate_grad_batches=1, or another "
            "strategy, such as 'ddp' or 'fsdp'."
        )
    # The Trainer may end an epoch, and with it a step, before the loader does.
    left = trainer.num_training_batches - (batch_idx - batch_idx % accumulate)
    mean = step.counts[: min(left, accumulate)].sum(0) / accumulate
    num_items, num_units = strategy.reduce(mean, reduce_op="mean")
    return {"num_items": num_items, "num_units": num_units, **take_fields(batch)}
