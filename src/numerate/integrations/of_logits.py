"""Attachment to a trainer of the Hugging Face family that passes its model's logits to ``compute_loss_func``.

For frameworks whose models compute their loss in their forward pass: without labels they return logits, and the trainer calls the
function. It sees no more than logits and labels, so counts of the step, and what else belongs to labels, are taken from the
batches before.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from numerate.integrations.accepted import base_model, is_encoder_decoder
from numerate.integrations.attachment import Attachment
from numerate.integrations.fields import LABEL_FIELDS, Batch, fields_of, has_fields, without_fields
from numerate.integrations.lazy_logits import override
from numerate.integrations.split_sequences import split_over
from numerate.integrations.step import (
    StepCounts,
    numeric_positions,
    reads_complete_numbers,
    without_repeats,
)
from numerate.integrations.transformers import adapted
from numerate.labels import IGNORE_INDEX, shift_left
from numerate.objective.no_loss import NoLoss


class LogitsAttachment(Attachment):
    """A trainer that trains with the objective of the logits it passes on."""

    def _refuse(self, trainer: Any) -> None:
        if trainer.compute_loss_func is not None:
            raise ValueError("trainer has a compute_loss_func: expected one loss; leave it out, attach takes its place.")
        if is_encoder_decoder(base_model(trainer)):
            raise TypeError(f"model is a {type(base_model(trainer)).__name__}, an encoder-decoder: expected a causal model.")
        if trainer.args.n_gpu > 1:
            raise NotImplementedError(
                f"one process with {trainer.args.n_gpu} GPUs (DataParallel): expected one process per GPU; start with `torchrun`."
            )

    def _change_trainer(self, trainer: Any) -> None:
        if (parts := max(split_over("cp", trainer), split_over("sp", trainer))) > 1:
            raise NotImplementedError(
                f"context or sequence parallelism over {parts} processes cuts sequences, whose labels this trainer does not "
                "shift before: expected data parallelism (DDP, FSDP2)."
            )
        self.objective = adapted(self.objective, trainer.args.label_smoothing_factor).to(trainer.args.device)
        self._counts: StepCounts | None = None  # of the current step
        self._batch: dict[str, Any] = {}  # of the forward pass
        self._undo.append(override(trainer, "compute_loss_func", self._loss))

    def _prepare_inputs(self, inputs: dict[str, Any]) -> dict[str, Any]:
        self._batch = _of_labels(inputs)
        prepared: dict[str, Any] = without_fields(super()._prepare_inputs(inputs))
        return prepared

    def _count_step(self, batches: list[Batch]) -> None:
        self._counts = self._count(batches) if batches else None

    def _count(self, batches: list[Batch]) -> StepCounts:
        counts = StepCounts.of(self.objective, [_of_labels(batch) for batch in batches], shift=True)
        return counts.over(self.trainer.accelerator, self.trainer.get_tp_size())

    def _loss(self, outputs: Any, labels: Tensor | None, num_items_in_batch: Any = None, **_: Any) -> Tensor:
        """Return the loss of a micro-batch, so that its sum over the step and mean over processes is the step's loss."""
        if labels is None:
            raise ValueError("labels=None: expected labels from the dataset or the data collator.")
        trainer, logits = self.trainer, outputs["logits"]
        training = trainer.model.training and torch.is_grad_enabled()
        in_step = training and self._left > 0
        batch = {name: value.to(logits.device) for name, value in self._batch.items()}
        if not training:
            batch = without_repeats(batch, trainer.accelerator, trainer.get_tp_size())
        counts = self._counts if in_step else self._count([batch])
        assert counts is not None
        if labels.shape == batch["labels"].shape:
            targets = shift_left(batch["labels"], IGNORE_INDEX)
            fields = fields_of(batch, targets, shift=True)
        elif reads_complete_numbers(self.objective.numeric_loss) or has_fields(batch):
            raise NotImplementedError(
                f"the model's logits belong to {labels.shape[-1]} of {batch['labels'].shape[-1]} positions, and the loss reads "
                "more than one at a time: expected logits of all, without logits_to_keep."
            )
        else:
            targets, fields = shift_left(labels.to(logits.device), IGNORE_INDEX), {}
        out = self.objective(
            logits,
            targets,
            num_items=counts.num_items,
            num_units=counts.num_units,
            with_mass=not isinstance(self.objective.numeric_loss, NoLoss),
            with_overrun=self._logged if in_step else not training,
            **fields,
        )
        self._add(out, counts, numeric_positions(self.objective, targets), training=training)
        # The average over processes divides by their number.
        missing = (
            1 if self._will_be_multiplied(num_items_in_batch) else trainer.accelerator.num_processes // trainer.get_tp_size()
        )
        loss: Tensor = out.loss * missing
        return loss

    def _will_be_multiplied(self, num_items_in_batch: Any) -> bool:
        """Return whether the trainer multiplies the loss by the number of processes."""
        return bool(self.trainer.args.average_tokens_across_devices and num_items_in_batch is not None)


def _of_labels(batch: Batch) -> dict[str, Any]:
    """Return the labels of a batch and what belongs to them; ``text_position_ids`` are ms-swift's, where others count images."""
    found = {name: batch[name] for name in ("labels", *LABEL_FIELDS) if batch.get(name) is not None}
    positions = batch.get("text_position_ids", batch.get("position_ids"))
    return found if positions is None else found | {"position_ids": positions}
