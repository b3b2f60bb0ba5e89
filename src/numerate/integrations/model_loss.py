"""The model's side of ``attach``: the objective in place of a model's own loss, while the trainer calls the model.

``model.loss_function``, and ``F.cross_entropy`` of the model's lazy logits, lead here. The first batch with labels shows how
the model aligns its labels, and whether the first label of each row counts.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import Trainer
from transformers.loss.loss_utils import ForCausalLMLoss

from numerate.integrations.accepted import is_encoder_decoder, loss_of, refuse_model
from numerate.integrations.alignment import (
    GIVEN,
    SHIFTED,
    agreeing,
    alignments,
    cross_entropies,
    disagreement,
    pad_left,
    probed,
    window,
)
from numerate.integrations.fields import Batch, document_positions, fields_of, has_fields, labels_of, without_fields
from numerate.integrations.lazy_logits import LazyHead, LazyLogits, find_head, override
from numerate.integrations.split_sequences import fields_of_part, split_over, whole_labels
from numerate.integrations.step import StepCounts, reads_complete_numbers
from numerate.labels import IGNORE_INDEX, shift_left
from numerate.objective import CutSequence, NumericObjective, ObjectiveOutput
from numerate.objective.no_loss import NoLoss


@dataclass
class ForwardPass:
    """One forward pass of the model: its batch, the counts of its step, and the objective computed from it."""

    batch: Batch  # with the fields that the model does not see
    counts: StepCounts  # of the optimizer step
    step: list[Batch]  # the batches that were counted; needed until labels are checked
    cut: CutSequence | None = None  # how the sequences of the batch are cut over processes
    repeated: Tensor | None = None  # [B], mask of rows to ignore
    with_overrun: bool = False  # whether to compute ``numeric/overrun``
    output: ObjectiveOutput | None = None
    targets: Tensor | None = None  # [.., T], the aligned labels of ``output``
    deferred_in_vain: bool = False  # whether ``output`` may have lost its gradient


class ModelLoss:
    """Computes an objective in place of one model's loss."""

    def __init__(self, model: nn.Module, objective: NumericObjective, trainer: Trainer) -> None:
        refuse_model(model)
        self.model, self.objective, self.trainer = model, objective, trainer
        # A first guess; the first batch shows.
        self.shift = not is_encoder_decoder(model) and loss_of(model) is ForCausalLMLoss
        # Of the labels that the model passes to its loss function, by whether the batch has shift_labels.
        self.alignment: dict[bool, str] = {}
        self.checked = self._cut_checked = False
        self.changes_labels = False  # the model trains on other labels than the batch's
        self._pass: ForwardPass | None = None
        self._why_not = "the model is compiled" if trainer.args.torch_compile else ""  # logits cannot be deferred
        self._warned = False
        self._head = self._find_head()

    @property
    def _name(self) -> str:
        return type(self.model).__name__

    def count(self, batches: list[Batch], cut: CutSequence | None = None) -> StepCounts:
        """Count the batches of a step, over all processes; ``cut``: how their sequences are cut, if they are."""
        accelerator = self.trainer.accelerator
        shift, copies = self.shift, split_over("cp", self.trainer)
        if cut is not None:
            batches, copies = [whole_labels(batch, cut, accelerator.device) for batch in batches], cut.count
        shift = shift or copies > 1  # trainers shift labels before they cut them
        return StepCounts.of(self.objective, batches, shift=shift).over(accelerator, self.trainer.get_tp_size() * copies)

    def run(self, model: nn.Module, forward: ForwardPass) -> tuple[Any, Tensor]:
        """Call the (wrapped) model; return its outputs and what it adds to its cross-entropy. Fills ``forward.output``."""
        self._pass = forward
        try:
            outputs, extra = self._run(model, forward)
            if forward.deferred_in_vain:
                self._why_not = f"{self._name} reads its logits without gradients, or passes them to an autograd.Function"
                forward.output, forward.targets, forward.deferred_in_vain = None, None, False
                outputs, extra = self._run(model, forward)
        finally:
            self._pass = None
        return outputs, extra

    def _run(self, model: nn.Module, forward: ForwardPass) -> tuple[Any, Tensor]:
        with self._in_place():
            outputs = model(**without_fields(forward.batch))
            return outputs, self._extra(model, outputs, forward)

    def _find_head(self) -> LazyHead | None:
        """Return the head whose logits can be deferred now; None, with a warning once, if real logits are needed.

        Before every forward pass: DeepSpeed, PEFT and others change the head after ``attach``.
        """
        linear, why_not = find_head(self.model)
        why_not = self._why_not or why_not
        if linear is not None and not why_not:
            return LazyHead(linear)
        if not self._warned:
            warnings.warn(f"logits of the whole batch will be built: {why_not}. The loss is the same.", stacklevel=6)
        self._warned = True
        return None

    @contextmanager
    def _in_place(self) -> Iterator[None]:
        """Replace the model's loss and defer its logits in the body.

        Logits of a sharded head are not deferred where they may be needed after the forward pass: the weight is gone by then.
        """
        sharded = self.trainer.accelerator.distributed_type in ("FSDP", "DEEPSPEED")
        self._head = self._find_head() if torch.is_grad_enabled() or not sharded else None
        self._own_loss_function = getattr(self.model, "loss_function", None)
        restore = override(self.model, "_loss_function", self._loss_function)
        try:
            with nullcontext() if self._head is None else self._head.deferred(self._compute):
                yield
        finally:
            restore()

    def _loss_function(self, logits: Tensor, labels: Tensor | None = None, *args: Any, **options: Any) -> Tensor:
        """Replace ``model.loss_function``."""
        given = options.get("shift_labels")
        if (given is not None) not in self.alignment:
            assert self._own_loss_function is not None
            self._find_alignment(*window(self._own_loss_function, logits, labels, args, options))
        return self._compute_aligned(logits, alignments(labels, given, shift=self.shift))[0]

    def _extra(self, model: nn.Module, outputs: Any, forward: ForwardPass) -> Tensor:
        """Return what the model adds to its cross-entropy: a router's loss, a mean per micro-batch; usually zero."""
        named = outputs if isinstance(outputs, Mapping) else {"loss": outputs[0]}
        own, logits = named.get("loss"), named.get("logits")
        if forward.output is not None:
            assert own is not None
            extra: Tensor = own - forward.output.loss.to(own.dtype)  # FSDP2 may have rounded what the model returns
            return extra
        if logits is None:
            raise NotImplementedError(
                f"{self._name} computes its loss by itself and gives no logits (patched, by Liger or Unsloth?): expected its own "
                "forward, which returns a mapping with loss and logits; leave out the patch of its cross-entropy, or use "
                "numerate.integrations.unsloth.attach with Unsloth."
            )
        if own is None:
            raise NotImplementedError(f"{self._name} returns no loss for labels: expected one, to find how it aligns them.")
        labels = pad_left(forward.batch["labels"].to(logits.device), logits.shape[-2])
        routed = any("aux_loss" in key or "z_loss" in key for key in named)
        if False not in self.alignment:
            options = {"output_router_logits": False} if routed else {}  # without the router's loss
            with torch.no_grad(), torch.random.fork_rng(), probed(self.model):
                plain = model(**without_fields(forward.batch), **options)
            self._find_alignment(float(plain["loss"].detach()), plain["logits"], labels)
        _, targets = self._compute_aligned(logits, alignments(labels, shift=self.shift))
        if not routed:
            return torch.zeros_like(own)
        return torch.sub(own, F.cross_entropy(logits.flatten(0, -2).to(own.dtype), targets.flatten()))

    def _compute_aligned(self, logits: Tensor, ways: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Return the loss and the aligned labels, by the alignment that was found or else the most likely."""
        way = self.alignment.get(GIVEN in ways, next(iter(ways)))
        return self._compute(logits, ways[way], shift=None if way == GIVEN else way == SHIFTED), ways[way]

    def _compute(self, logits: Tensor, targets: Tensor, *, shift: bool | None = None) -> Tensor:
        """Compute the objective of aligned targets; ``shift``: whether to shift what belongs to them too, None if not known.

        Replaces ``F.cross_entropy`` of lazy logits.
        """
        forward = self._pass
        assert forward is not None
        if forward.output is not None:
            raise NotImplementedError(
                f"{self._name} computes more than one cross-entropy of its vocabulary in one forward: expected one; use "
                "objective(logits, labels) in a loss of your own."
            )
        cut = forward.cut
        forward.deferred_in_vain = self._head is not None and self._head.read_without_grad
        labels = labels_of(forward.batch)
        targets = targets.to(logits.device)
        joined = False  # whether sequences follow each other in a row
        if targets.dim() < labels.dim():
            uneven = bool(targets.numel() % labels.shape[0])
            joined = uneven or targets.numel() // labels.shape[0] < labels.shape[-1] - 1
            if uneven and reads_complete_numbers(self.objective.numeric_loss):
                raise NotImplementedError(
                    f"{self._name} takes {targets.numel()} positions of {labels.shape[0]} sequences for its loss: expected as "
                    f"many of each, since {type(self.objective.numeric_loss).__name__} reads complete numbers."
                )
            targets = targets.reshape(1 if uneven else labels.shape[0], -1)
        logits = logits.reshape(*targets.shape, logits.shape[-1])
        if cut is not None:
            self._check_cut(targets, forward.batch["shift_labels"].to(targets.device), cut)
        elif not self.checked:
            self._check_first_label(targets, labels.to(targets.device))
        if self.changes_labels and has_fields(forward.batch):
            raise NotImplementedError(
                f"{self._name} trains on other labels than the batch's, and the batch has soft targets or weights, which belong "
                "to positions of its labels: expected a model that keeps them; leave these fields out, or use "
                "objective(logits, labels) in a loss of your own."
            )
        if shift is None:
            shift = self._are_shifted(targets, labels)
        if forward.repeated is not None:
            targets = targets.masked_fill(forward.repeated[:, None], IGNORE_INDEX)
        options = {
            "num_items": forward.counts.num_items,
            "num_units": forward.counts.num_units,
            **(fields_of(forward.batch, targets, shift=shift) if cut is None else fields_of_part(forward.batch, cut)),
            "cut": cut,
            "with_mass": not isinstance(self.objective.numeric_loss, NoLoss),
            # Where sequences are joined or split, it is not known which label follows which.
            "with_overrun": forward.with_overrun and not joined and cut is None,
        }
        if isinstance(logits, LazyLogits):
            forward.output = logits.objective(self.objective, targets, **options)
        else:
            forward.output = self.objective(logits, targets, **options)
        forward.targets = targets
        return forward.output.loss.clone()  # models add to it in place

    def _are_shifted(self, targets: Tensor, labels: Tensor) -> bool:
        """Return whether the last target belongs to no label, since the labels were moved one position to the left."""
        if targets.shape[-1] <= labels.shape[-1]:
            return self.shift and targets.shape[-1] == labels.shape[-1]
        # Virtual tokens: the first label is counted, shifted or not.
        padded = pad_left(labels.to(targets.device), targets.shape[-1])
        return targets.shape == padded.shape and torch.equal(targets, shift_left(padded, IGNORE_INDEX))

    # What the first batch shows

    def _find_alignment(self, own: float, logits: Tensor, labels: Tensor | None, given: Tensor | None = None) -> None:
        """Find how labels are aligned from the model's own loss; all processes reach the same result."""
        losses = cross_entropies(logits, alignments(labels, given, shift=self.shift))
        # A batch without labels shows nothing; an alignment that leaves none is not the model's.
        mine = (
            [own, *(own + 1e3 if loss != loss else loss for loss in losses.values())] if own == own else [0.0] * (1 + len(losses))
        )
        processes, *sums = self._over_processes([float(own == own), *mine])
        if not processes:
            return
        own, *means = (total / processes for total in sums)
        losses = dict(zip(losses, means, strict=True))
        equal = agreeing(own, losses)
        if len(equal) != 1 and equal[:1] != [GIVEN]:
            raise ValueError(disagreement(self._name, own, losses))
        self.alignment[given is not None] = equal[0]

    def _check_first_label(self, targets: Tensor, labels: Tensor) -> None:
        """Find whether the first label of a row counts, from the targets of the model's loss; count the step anew if so."""
        forward = self._pass
        assert forward is not None
        if "shift_labels" in forward.batch:  # they are the targets
            self.checked = True
            return
        fits = [_fits(targets, labels, shift=shift) for shift in (True, False)]
        self.changes_labels = not any(fits)
        if self.changes_labels:  # equal counts are enough
            positions = document_positions(forward.batch, targets, shift=self.shift)
            mine = StepCounts.of(self.objective, [{"labels": targets, "position_ids": positions}], shift=False)
            batch = {**without_fields(forward.batch), "labels": labels}
            fits = [mine == StepCounts.of(self.objective, [batch], shift=shift) for shift in (True, False)]
        misfits = dict(zip((True, False), self._over_processes([float(not fit) for fit in fits]), strict=True))
        if misfits[self.shift] and misfits[not self.shift]:
            raise ValueError(
                f"{self._name} takes {int((targets != IGNORE_INDEX).sum())} label tokens for its loss, and the batch has "
                f"{int((labels != IGNORE_INDEX).sum())}: expected the batch's, or all but the first of each row, so that a step "
                "can be counted before it begins; use objective(logits, labels) in a loss of your own."
            )
        if misfits[self.shift]:
            self.shift = not self.shift
            forward.counts = self.count(forward.step)
        self.checked = bool(misfits[not self.shift])

    def _check_cut(self, targets: Tensor, given: Tensor, cut: CutSequence) -> None:
        """Raise on all processes unless the model's targets are the labels that were shifted before they were cut."""
        if not self._cut_checked and any(self._over_processes([float(not torch.equal(targets, given))])):
            raise NotImplementedError(
                f"{self._name} aligns labels by itself, and the label of a part's last position is in the next part, on another "
                f"of {cut.count} processes: expected a model that passes shift_labels to its loss function; use data parallelism "
                "(DDP, FSDP2)."
            )
        self._cut_checked = True

    def _over_processes(self, values: list[float]) -> list[float]:
        accelerator = self.trainer.accelerator
        if accelerator.num_processes == 1:
            return values
        return accelerator.reduce(torch.tensor(values, dtype=torch.float64, device=accelerator.device), "sum").tolist()  # type: ignore[no-any-return]


def _fits(targets: Tensor, labels: Tensor, *, shift: bool) -> bool:
    """Return whether a model's targets ``[.., T']`` are a batch's labels ``[.., T]``, without the first of a row if ``shift``."""
    more = targets.shape[-1] - labels.shape[-1]
    if targets.shape[:-1] != labels.shape[:-1] or more < -1 or not bool((labels != IGNORE_INDEX).any()):
        return not bool((labels != IGNORE_INDEX).any())
    if more > 0:  # virtual tokens come first, and the last of them predicts the first label
        padded = pad_left(labels, targets.shape[-1])
        return not shift and (torch.equal(targets, padded) or torch.equal(targets, shift_left(padded, IGNORE_INDEX)))
    expected = labels if not shift else shift_left(labels, IGNORE_INDEX) if more == 0 else labels[..., 1:]
    return torch.equal(targets, expected)
