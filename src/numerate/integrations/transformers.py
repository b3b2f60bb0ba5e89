"""Hugging Face Trainer: ``attach(trainer, "smmd", soft=0.05)`` and train as before.

One forward pass per micro-batch; head and loss are fused where the head is plain, so no ``[B, T, V]`` logits are built; the
gradient is the same for any split of a step into micro-batches and processes. Works for plain models, PEFT models,
vision-language models and encoder-decoders. Model and head are changed only while ``trainer.compute_loss`` runs.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from transformers import Trainer
from transformers.loss.loss_utils import ForMaskedLMLoss

from numerate.checks import public_dir
from numerate.integrations.accepted import base_model, is_encoder_decoder, loss_of, refuse_trainer
from numerate.integrations.alignment import shifts_labels
from numerate.integrations.asked import Asked
from numerate.integrations.attachment import Attachment
from numerate.integrations.fields import Batch, labels_of, without_fields
from numerate.integrations.hugging_face import attach
from numerate.integrations.lazy_logits import override
from numerate.integrations.model_loss import ForwardPass, ModelLoss
from numerate.integrations.split_sequences import cut_of, parts_that_add_up, refuse_split, split_over
from numerate.integrations.step import (
    StepCounts,
    check_gradient,
    check_objective,
    numeric_positions,
    repeated_rows,
    without_repeats,
)
from numerate.labels import IGNORE_INDEX
from numerate.objective import NumericObjective, ObjectiveOutput
from numerate.targets import SoftCollator
from numerate.targets.soft_targets import SOFT_FIELDS
from numerate.targets.tokenised_rows import TokenColumn

__all__ = ["Attachment", "attach", "compute_loss_func", "shifts_labels"]
__dir__ = public_dir(globals())

_NO_LABELS = (
    "expected labels from the dataset or the data collator, such as DataCollatorForLanguageModeling(tokenizer, mlm=False) makes."
)


def compute_loss_func(
    objective: NumericObjective, model: nn.Module | None = None, *, shift: bool | None = None
) -> Callable[..., Tensor]:
    """Return a function for ``Trainer(compute_loss_func=...)`` that computes the objective from the model's logits.

    The Trainer passes it the number of label tokens of a step, but not of its numbers. So with gradient accumulation or several
    processes it needs ``normalize="tokens"``; :func:`attach` has no such limit. Nor does it see how the model aligns its
    labels: pass the model or ``shift``. Soft targets and weights of a batch do not reach it.

    Args:
        objective: the objective.
        model: the model to train; runs once on eight tokens to find whether it shifts labels. Refused if its loss is not a
            plain cross-entropy, for instance because it adds a router's loss.
        shift: whether the model shifts labels by one, instead of ``model``.
    """
    from transformers.utils import ModelOutput

    check_objective(objective)
    if (model is None) == (shift is None):
        raise TypeError(
            "compute_loss_func was given both model and shift, or neither: expected the model, or shift=True or False."
        )
    if shift is None:
        assert model is not None
        ids = torch.arange(1, 9, device=next(model.parameters()).device)[None]
        shift = shifts_labels(model, {"input_ids": ids, "labels": ids})

    def compute(outputs: ModelOutput, labels: Tensor, num_items_in_batch: Tensor | int | None = None) -> Tensor:
        if labels is None:
            raise ValueError(f"labels=None: {_NO_LABELS}")
        refuse_router(outputs)
        logits = outputs["logits"]
        present = labels != objective.ignore_index
        # The Trainer counts the first label of each row for some models and not for others, by the names of their classes.
        if num_items_in_batch is not None and int(num_items_in_batch) in (int(present.sum()), int(present[..., 1:].sum())):
            num_items_in_batch = None  # the step is this batch
        processes = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
        if objective.normalize == "numeric" and processes > 1 and torch.is_grad_enabled():
            raise ValueError(
                f"{processes} processes share a step, and how many numbers the step has is not known here: expected "
                "NumericObjective(..., normalize='tokens'), or use attach(trainer, objective)."
            )
        if objective.normalize == "numeric" and num_items_in_batch is not None:
            raise ValueError(
                f"this batch has {int(present.sum())} of its step's {int(num_items_in_batch)} label tokens, and how many numbers "
                "the step has is not known here: expected NumericObjective(..., normalize='tokens'), or use attach(trainer, "
                "objective)."
            )
        out: ObjectiveOutput = objective.to(logits.device)(logits, labels, num_items=num_items_in_batch, shift=shift)
        if torch.is_grad_enabled():  # the Trainer evaluates without gradients
            check_gradient(out.loss)
        return out.loss

    return compute


def refuse_router(outputs: Iterable[str]) -> None:
    """Raise for a model that returns what a router's loss is computed from: a function of its logits leaves that loss out."""
    if router := [name for name in outputs if "router" in name or "aux_loss" in name or "z_loss" in name]:
        raise NotImplementedError(
            f"the model returns {', '.join(router)}, for a loss that would be left out here: expected no router loss; use "
            "attach(trainer, objective), or set output_router_logits=False in the model's configuration."
        )


class TrainerAttachment(Attachment):
    """A transformers Trainer that trains with what was asked for."""

    def _refuse(self, trainer: Trainer) -> None:
        refuse_trainer(trainer)

    def _token_column(self, trainer: Trainer, asked: Asked) -> TokenColumn:
        model = base_model(trainer)
        sequence: TokenColumn = "labels" if is_encoder_decoder(model) else "input_ids"
        if asked.draws and sequence == "input_ids" and loss_of(model) is ForMaskedLMLoss:
            raise TypeError(
                f"model is a {type(model).__name__}, which sees the tokens after its labels, and numbers are to be drawn: "
                "expected a causal model or an encoder-decoder."
            )
        return sequence

    def _change_trainer(self, trainer: Trainer) -> None:
        refuse_split(self.objective, trainer, soft=self.soft is not None)
        self.ignore_index = self.objective.ignore_index  # of the dataset's labels; models know only IGNORE_INDEX
        self.objective = adapted(self.objective, trainer.args.label_smoothing_factor).to(trainer.args.device)
        self._model_loss: ModelLoss | None = None
        self._bind()
        self._counts: StepCounts | None = None  # of the current step
        self._batches: list[Batch] = []  # of that step, until labels are checked
        if type(trainer).compute_loss is not Trainer.compute_loss:
            self._insert_below(trainer)
        else:
            self._undo.append(override(trainer, "compute_loss", self._compute_loss))
        if type(trainer.data_collator).__module__.startswith("trl."):  # TRL's leave soft targets and weights of the rows out
            self._undo.append(override(trainer, "data_collator", SoftCollator(trainer.data_collator)))
        self._undo.append(override(trainer, "prediction_step", self._prediction_step))
        self._undo.append(override(trainer, "label_smoother", None))
        self._undo.append(override(trainer, "loss_is_scaled_for_ga", True))

    def _insert_below(self, trainer: Trainer) -> None:
        """Make ``super().compute_loss`` of the trainer's own classes lead here; raise if they do not train with its result."""
        own = type(trainer)
        computed: list[tuple[Tensor, int]] = []  # the loss, and its version: an in-place change raises it

        def loss_of(result: Any) -> Tensor:  # with or without return_outputs
            loss: Tensor = result[0] if isinstance(result, tuple) else result
            return loss

        def below(_: Trainer, *args: Any, **kwargs: Any) -> Any:
            result = self._compute_loss(*args, **kwargs)
            computed[:] = [(loss_of(result), loss_of(result)._version)]
            return result

        def above(trainer: Trainer, *args: Any, **kwargs: Any) -> Any:
            computed.clear()
            result = own.compute_loss(trainer, *args, **kwargs)
            if not any(loss is loss_of(result) and loss._version == version for loss, version in computed):
                raise TypeError(
                    f"{own.__name__}.compute_loss does not return the loss of super().compute_loss unchanged: expected that; "
                    "use objective(logits, labels) within it, without attach."
                )
            return result

        # Method resolution order: the new class with `above`, the trainer's own classes, `_Attached` with `below`, Trainer.
        base = type("_Attached", (Trainer,), {"compute_loss": below})
        trainer.__class__ = type(own.__name__, (own, base), {"compute_loss": above, "__module__": own.__module__})
        self._undo.append(lambda: setattr(trainer, "__class__", own))

    def _bind(self) -> ModelLoss:
        """Return the loss of the model that is trained now: ``model_init`` makes a new model for each training."""
        model = base_model(self.trainer)
        if self._model_loss is None or self._model_loss.model is not model:
            self._model_loss = ModelLoss(model, self.objective, self.trainer)
        return self._model_loss

    def _count_step(self, batches: list[Any]) -> None:
        model_loss = self._bind()
        step: list[Batch] = [self._readable(batch) for batch in batches]
        # Context parallelism cuts a batch later, in its forward pass.
        cut = cut_of(self.trainer, step[0], training=True) if step and split_over("sp", self.trainer) > 1 else None
        self._counts = model_loss.count(step, cut) if step else None
        self._batches = [] if model_loss.checked else step

    def _compute_loss(
        self, model: nn.Module, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Replace ``Trainer.compute_loss``; the loss is scaled so that its sum over the step is the step's loss."""
        trainer, model_loss = self.trainer, self._bind()
        training = model_loss.model.training and torch.is_grad_enabled()
        in_step = training and self._left > 0
        inputs = self._readable(inputs)
        cut = cut_of(trainer, inputs, training=model_loss.model.training)
        if in_step:
            assert self._counts is not None
            forward = ForwardPass(inputs, self._counts, self._batches, cut, with_overrun=self._logged)
        else:
            copies = trainer.get_tp_size() * split_over("cp", trainer)
            counted = inputs if training else without_repeats(inputs, trainer.accelerator, copies)
            counts = model_loss.count([counted], cut)
            forward = ForwardPass(inputs, counts, [counted], cut, with_overrun=not training)
            forward.repeated = None if training else repeated_rows(labels_of(inputs), trainer.accelerator, copies)
        outputs, extra = model_loss.run(model, forward)
        out = forward.output
        assert out is not None and forward.targets is not None
        self._add(out, forward.counts, numeric_positions(self.objective, forward.targets), training=training, extra=extra)
        if in_step:
            self._counts = forward.counts
        steps = trainer.current_gradient_accumulation_steps if training else 1
        # Gradients are averaged over processes: multiply by their number. A batch outside of a step is a mean, as the trainer's.
        loss = out.loss * (trainer.accelerator.num_processes // trainer.get_tp_size()) / (1 if in_step else steps)
        loss = loss + extra / steps
        if training and self._will_be_divided(num_items_in_batch):
            loss = loss * steps
        if cut is not None:  # the logged loss is a mean over processes, whatever gradients are divided by
            loss = loss.detach() + (loss - loss.detach()) / parts_that_add_up(trainer, cut)
        return (loss, outputs) if return_outputs else loss

    def _prediction_step(self, model: nn.Module, inputs: dict[str, Any], prediction_loss_only: bool, **kwargs: Any) -> Any:
        """Replace the loss of a trainer that generates text: it is the model's own."""
        trainer = self.trainer
        generates = getattr(trainer.args, "predict_with_generate", False) and not prediction_loss_only
        has_labels = "labels" in inputs
        seen = inputs if has_labels and not generates else without_fields(inputs)
        result = type(trainer).prediction_step(trainer, model, seen, prediction_loss_only, **kwargs)
        if not generates or not has_labels:
            return result
        with torch.no_grad(), trainer.compute_loss_context_manager():
            loss = trainer.compute_loss(model, trainer._prepare_inputs(inputs))
        return (loss.detach(), *result[1:])

    def _will_be_divided(self, num_items_in_batch: Any) -> bool:
        """Return whether the trainer divides our loss by the accumulation steps: before transformers 5.19 it always may."""
        scaled = "loss_is_scaled_for_ga" in dir(Trainer)
        return not scaled and not (self.trainer.model_accepts_loss_kwargs and num_items_in_batch is not None)

    def _readable(self, batch: Batch) -> dict[str, Any]:
        """Return a batch whose ignored labels are ``IGNORE_INDEX``, as models expect."""
        if "labels" not in batch and "shift_labels" not in batch:
            raise ValueError(f"a batch has {', '.join(batch)} and no labels: {_NO_LABELS}")
        refuse_split(self.objective, self.trainer, soft=not set(SOFT_FIELDS).isdisjoint(batch))
        names = batch.keys() & {"labels", "shift_labels"} if self.ignore_index != IGNORE_INDEX else ()
        batch = {**batch, **{name: batch[name].masked_fill(batch[name] == self.ignore_index, IGNORE_INDEX) for name in names}}
        # Models compute a loss only if there are labels.
        return batch if "labels" in batch else {**batch, "labels": batch["shift_labels"]}


def adapted(objective: NumericObjective, smoothing: float) -> NumericObjective:
    """Return the objective with the trainer's label smoothing and the models' ``IGNORE_INDEX``.

    Where something changes it is a copy that shares the buffers: the caller's objective is left alone.
    """
    if smoothing and objective.label_smoothing not in (0.0, smoothing):
        raise ValueError(
            f"label_smoothing={objective.label_smoothing} of the objective contradicts label_smoothing_factor={smoothing} of the "
            "TrainingArguments: expected one of them."
        )
    smoothing = smoothing or objective.label_smoothing
    if objective.ignore_index == IGNORE_INDEX and objective.label_smoothing == smoothing:
        return objective
    loss = copy.copy(objective.numeric_loss)
    loss.ignore_index = IGNORE_INDEX
    objective = copy.copy(objective)
    objective._modules = dict(objective._modules)  # a shallow copy of a module shares this dict
    objective.numeric_loss, objective.label_smoothing = loss, smoothing
    return objective
