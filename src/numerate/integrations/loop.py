"""A training loop of your own: plain PyTorch, DDP, FSDP, accelerate, Lightning Fabric.

The sums of a step are divided by the counts of the whole step, over its micro-batches and processes. So :class:`Steps` fetches
the micro-batches of a step together and counts them before the first forward pass::

    for step in attach(loader, model, "smmd", soft=0.05, tokenizer=tokenizer, accumulate=4):
        for batch in step:
            logits = model(batch["input_ids"]).logits
            step.objective(logits).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

Each framework divides the loss or the gradients by something else. ``step.objective`` multiplies the loss by the same:

=============  ==========================  =====================  ==========================================
engine         call                        backward divides by    the loss is multiplied by
=============  ==========================  =====================  ==========================================
one process    ``loss.backward()``         1                      1
DDP, FSDP      ``loss.backward()``         1                      processes, whose gradients are averaged
FSDP2          ``loss.backward()``         1                      what ``set_gradient_divide_factor`` says, or processes
Accelerator    ``accelerator.backward()``  gradient_accumulation  processes x gradient_accumulation
Fabric         ``fabric.backward()``       1                      processes, whose gradients are averaged
=============  ==========================  =====================  ==========================================

accelerate and Lightning are not imported here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn

from numerate.checks import check_number, check_tensor, public_dir
from numerate.formats import NumberFormat
from numerate.integrations.asked import Asked
from numerate.integrations.engines import Engine, engine_of
from numerate.integrations.fields import LABEL_FIELDS, Batch, aligned, labels_of, without_fields
from numerate.integrations.lazy_logits import override
from numerate.integrations.notice import notice
from numerate.integrations.step import StepCounts, reads_complete_numbers, steps_of
from numerate.losses import NumericLoss
from numerate.losses.logit_rows import reads_freely
from numerate.objective import NumericObjective, ObjectiveOutput
from numerate.targets import SoftNumbers, Target
from numerate.targets.drawn import EpochDataset
from numerate.targets.soft_numbers import PathKind, Where
from numerate.targets.tokenised_rows import TokenColumn

__all__ = ["AttachedSteps", "Step", "Steps", "attach"]
__dir__ = public_dir(globals())


def attach(
    loader: Any,
    model: nn.Module,
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
    accumulate: int = 1,
    engine: Any = None,
    shift: bool = True,
) -> AttachedSteps:
    """Return the optimizer steps of an epoch, trained with a numeric loss, soft labels, or both.

    With soft labels, the loader's dataset and ``collate_fn`` are replaced, also under the wrappers of accelerate and Fabric,
    until ``.detach()``; the numbers are drawn anew in each epoch.

    Args:
        loader: a ``DataLoader`` of rows by index.
        model: as for :class:`Steps`.
        loss: as for :func:`numerate.attach`, as are ``soft``, ``weight``, ``numbers``, ``path``, ``check`` and ``format``.
        soft: how uncertain labels are.
        weight: of the loss.
        numbers: the numbers that are meant.
        tokenizer: that made the rows. Default: the tokenizer of the loader's ``collate_fn``.
        seed: of the draws.
        path: as in :class:`~numerate.targets.DrawnDataset`.
        check: whether to look for numbers in the first rows.
        format: how the numbers of the rows are written.
        sequence: ``"labels"`` for an encoder-decoder, as in :class:`~numerate.targets.SoftNumbers`.
        accumulate: as for :class:`Steps`, as are ``engine`` and ``shift``.
        engine: the ``Accelerator`` or ``Fabric``, if there is one.
        shift: whether labels are raw.
    """
    asked = Asked(loss, soft, weight, numbers, tokenizer, seed, path, check, format)
    plain = loader
    while (inner := getattr(plain, "base_dataloader", None) or vars(plain).get("_dataloader")) is not None:
        plain = inner  # of accelerate's or Fabric's
    made = asked.prepared(getattr(plain, "dataset", None), getattr(plain, "collate_fn", None), sequence, seed)
    steps = AttachedSteps(loader, model, made.objective, accumulate=accumulate, engine=engine, shift=shift)
    if made.soft is not None:
        steps.draw(plain, made.dataset, made.collator)
    notice(made.summary, shown=not dist.is_available() or not dist.is_initialized() or dist.get_rank() == 0)
    return steps


class Steps:
    """The optimizer steps of an epoch: iterate over it once per epoch, and over each :class:`Step` for its micro-batches.

    Processes exchange gradients in the last micro-batch of a step; ``no_sync`` and ``accelerator.accumulate`` are not needed.
    The last step of an epoch may have fewer micro-batches. All processes need the same number of batches, as a
    ``DistributedSampler`` gives them.

    Args:
        loader: yields batches, which are mappings with ``labels``, and ``position_ids`` if sequences are packed. A batch may
            carry soft targets (:class:`numerate.targets.SoftTargets`), ``token_weights`` and ``position_weights``: they are read
            for the objective, and left out of the batch that a :class:`Step` yields.
        model: the model to train: wrapped by DDP or FSDP, or prepared by the engine.
        objective: the loss.
        accumulate: micro-batches per step.
        engine: the ``Accelerator`` or ``Fabric`` that prepared model and loader, if its ``backward`` is called; None for
            ``loss.backward()``.
        shift: True if labels are raw (``labels[t]`` is ``input_ids[t]`` or ignored), as a causal model's batches have them; False
            if they are aligned with the logits (``labels[t]`` is ``input_ids[t + 1]``).
    """

    def __init__(
        self,
        loader: Iterable[Batch],
        model: nn.Module,
        objective: NumericObjective,
        *,
        accumulate: int = 1,
        engine: Any = None,
        shift: bool = True,
    ) -> None:
        check_number("accumulate", accumulate, least=1)
        self.loader, self.numeric_objective, self.accumulate, self.shift = loader, objective, accumulate, shift
        self.engine = engine_of(engine, loader, model, accumulate)

    def __len__(self) -> int:
        """Return the number of steps of an epoch, if the loader has a length."""
        return -(-len(self.loader) // self.accumulate)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Step]:
        objective, shift = self.numeric_objective, self.shift
        for batches in steps_of(self.loader, self.accumulate, shift=shift, ignore_index=objective.ignore_index):
            step = Step(self.engine, objective, batches, shift=shift)
            yield step
            if step.trained < len(batches):
                raise RuntimeError(
                    f"{step.trained} of {len(batches)} micro-batches of a step were trained on, but its counts include all: "
                    "expected `for batch in step:` to run to its end."
                )


class AttachedSteps(Steps):
    """The steps of :func:`attach`; each iteration is an epoch.

    Attributes:
        epoch: the next one. Set it before a run that is resumed goes on.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.epoch = 0
        self._dataset: EpochDataset | None = None
        self._undo: list[Callable[[], None]] = []

    def draw(self, loader: Any, dataset: EpochDataset, collator: Callable[[list[Any]], Any]) -> None:
        """Let a loader read a dataset whose numbers are drawn anew in each epoch."""
        self._dataset = dataset
        self._undo = [override(loader, name, value) for name, value in (("dataset", dataset), ("collate_fn", collator))]
        self._undo.append(override(loader, "_iterator", None))  # workers that read the old one

    def detach(self) -> None:
        """Restore the loader."""
        while self._undo:
            self._undo.pop()()

    def __iter__(self) -> Iterator[Step]:
        for owner in (self.loader, self._dataset):
            if (set_epoch := getattr(owner, "set_epoch", None)) is not None:
                set_epoch(self.epoch)
        self.epoch += 1
        yield from super().__iter__()


class Step:
    """The micro-batches of one optimizer step, and the objective with the counts of all of them, on all processes.

    Attributes:
        num_items: label tokens of the step, or the sum of their weights.
        num_units: numeric positions of the step, or numbers for a number-level loss.
        trained: micro-batches that are done.
    """

    def __init__(self, engine: Engine, objective: NumericObjective, batches: list[Batch], *, shift: bool) -> None:
        self._engine, self._objective, self._batches, self._shift = engine, objective, batches, shift
        if engine.num_processes > 1 and reads_complete_numbers(objective.numeric_loss):
            for batch in batches:
                _refuse_cut_numbers(objective, *aligned(batch, shift=shift, ignore_index=objective.ignore_index))
        counts = StepCounts.of(objective, batches, shift=shift).over(engine, copies=1)
        self.num_items, self.num_units = counts.num_items, counts.num_units
        self.trained = 0
        self._labels: tuple[Tensor, dict[str, Any]] | None = None  # of the current micro-batch, and what belongs to them
        self._given: Tensor | None = None  # its labels as they are in the batch
        self._versions: list[int] = []
        self._used = False

    def __len__(self) -> int:
        """Return the number of micro-batches."""
        return len(self._batches)

    def __iter__(self) -> Iterator[Any]:
        for number, batch in enumerate(self._batches):
            self._labels = aligned(batch, shift=self._shift, ignore_index=self._objective.ignore_index)
            self._given = labels_of(batch)
            self._versions, self._used = _versions(self._given, *self._labels), False
            with self._engine.micro_batch(last=number + 1 == len(self)):
                yield without_fields(batch)
            self._labels = None
            if not self._used:
                raise RuntimeError(
                    f"micro-batch {number} of {len(self)} was trained on without the counts of its step: expected its loss from "
                    "step.objective(logits) or step.fused(hidden, head_weight)."
                )
            self.trained += 1

    def objective(self, logits: Tensor, *, with_mass: bool = False, with_overrun: bool = False) -> ObjectiveOutput:
        """Compute the objective of the current micro-batch, with its labels.

        ``loss`` is for ``backward``. The parts are the micro-batch's share: their sum over the step is the step's.

        Args:
            logits: ``[.., T, V]``, as the model returns them.
            with_mass: as in ``NumericObjective``.
            with_overrun: as in ``NumericObjective``.
        """
        check_tensor("logits", logits, "[.., T, V]")  # steps count over processes that do not share batches
        settings = self._settings(logits)
        return self._scaled(self._objective(logits, **settings, with_mass=with_mass, with_overrun=with_overrun))

    def fused(self, hidden: Tensor, head_weight: Tensor, bias: Tensor | None = None, **options: Any) -> ObjectiveOutput:
        """Compute the same from hidden states ``[.., T, H]`` and a head; ``options`` as in ``NumericObjective.fused``."""
        if given := options.keys() & {"position_weights", "token_weights", "soft"}:
            raise TypeError(
                f"{min(given)} is not an option of step.fused, since the step was counted without it: expected as fields of the "
                f"batch, which may be {', '.join(LABEL_FIELDS)}."
            )
        if given := options.keys() & {"group", "vocab_size"}:
            raise NotImplementedError(
                f"{min(given)} is not an option of step.fused, since a step is counted over all processes, and those of tensor "
                "parallelism share their batches: expected objective.fused(.., group=...) with the counts of count_step, in a "
                "loop without Steps."
            )
        check_tensor("head_weight", head_weight, "[V, H]")
        if type(head_weight.grad_fn).__name__ == "_ToTorchTensorBackward":
            raise TypeError(
                "head_weight is a DTensor's full_tensor(), to whose gradient only this process would add: expected the parameter "
                "itself; with FSDP2, call lm_head.unshard() before reading lm_head.weight."
            )
        return self._scaled(self._objective.fused(hidden, head_weight, bias=bias, **self._settings(hidden), **options))

    def _settings(self, scores: Tensor) -> dict[str, Any]:
        if self._labels is None:
            raise RuntimeError("there is no current micro-batch: expected a call inside `for batch in step:`.")
        self._engine.check()
        labels, fields = self._labels
        assert self._given is not None
        if _versions(self._given, labels, fields) != self._versions:
            raise RuntimeError(
                f"labels or what belongs to them were changed in place after their step was counted, and now have shape "
                f"{tuple(self._given.shape)}: expected the labels of the batch. context_parallel cuts its buffers in place: use "
                "objective(logits, labels, cut=CutSequence(group, 'zigzag')) in a loop without Steps, or data parallelism."
            )
        self._used = True
        moved = {name: value.to(scores.device) if isinstance(value, Tensor) else value for name, value in fields.items()}
        counts = {"num_items": self.num_items, "num_units": self.num_units}
        return {"labels": labels.to(scores.device), **moved, **counts}

    def _scaled(self, out: ObjectiveOutput) -> ObjectiveOutput:
        return replace(out, loss=out.loss * self._engine.factor)


def _versions(given: Tensor, labels: Tensor, fields: dict[str, Any]) -> list[int]:
    """Return how often each tensor was changed in place; inference tensors do not count that."""
    tensors = (value for value in (given, labels, *fields.values()) if isinstance(value, Tensor))
    return [tensor._version for tensor in tensors if not tensor.is_inference()]


def _refuse_cut_numbers(objective: NumericObjective, labels: Tensor, fields: dict[str, Any]) -> None:
    """Raise if a row begins within a document and with digits, whose first ones another process may have.

    Only ``position_ids`` show that. Those on a device are not read, since that would need a sync.
    """
    positions = fields.get("position_ids")
    if positions is None or not (reads_freely(labels) and reads_freely(positions)) or not labels.numel():
        return
    # The first target of a whole row is at position 0 or 1.
    cut = (positions[..., :1] > 1) & (objective.numeric_loss.vocab.index_of(labels[..., :1]) >= 0)
    if bool(cut.any()):
        name = type(objective.numeric_loss).__name__
        raise NotImplementedError(
            f"a row begins with a number at position {int(positions[..., :1][cut][0])} of its document, as in rows split "
            f"over processes (context parallelism), but {name} reads complete numbers, and would count this one twice: expected "
            "whole rows, or position_ids that begin at 0 if rows are whole; use objective(logits, labels, "
            "cut=CutSequence(group)) in a loop without Steps, or a token-level loss such as SMMDLoss."
        )
