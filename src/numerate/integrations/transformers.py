"""Hugging Face Trainer: ``attach(trainer, objective)`` and train as before.

One forward pass per micro-batch; head and loss are fused where the head is plain, so no ``[B, T, V]`` logits are built; the
gradient is the same for any split of a step into micro-batches and processes. Works for plain models, PEFT models,
vision-language models and encoder-decoders. Model and head are changed only while ``trainer.compute_loss`` runs.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from transformers import Trainer

from numerate.checks import public_dir
from numerate.integrations.accepted import base_model, refuse_trainer
from numerate.integrations.alignment import shifts_labels
from numerate.integrations.fields import LABEL_FIELDS, Batch, keep_fields, labels_of, without_fields
from numerate.integrations.lazy_logits import override
from numerate.integrations.model_loss import ForwardPass, ModelLoss
from numerate.integrations.step import (
    LossSums,
    StepCounts,
    check_gradient,
    check_objective,
    numeric_positions,
    refuse_split_fields,
    refuse_split_sequences,
    repeated_rows,
    will_be_logged,
    without_repeats,
)
from numerate.labels import IGNORE_INDEX
from numerate.objective import NumericObjective, ObjectiveOutput

__all__ = ["Attachment", "attach", "compute_loss_func", "shifts_labels"]
__dir__ = public_dir(globals())

_NO_LABELS = (
    "expected labels from the dataset or the data collator, such as DataCollatorForLanguageModeling(tokenizer, mlm=False) makes."
)


def attach(trainer: Trainer, objective: NumericObjective) -> Attachment:
    """Train with ``objective`` from now on. ``.detach()`` of the result restores the trainer.

    Both counts of the objective are those of the whole optimizer step, over all its micro-batches and processes. Label
    smoothing of the ``TrainingArguments`` is applied to the cross-entropy. The logs gain ``loss/cross_entropy``,
    ``loss/numeric``, ``numeric/share`` (of label tokens that are numeric), ``numeric/mass`` (probability on numeric tokens
    where the label is one) and ``numeric/overrun`` (the same at the first label after a number, in the logged step alone: near 1,
    numbers do not end). The first batch is used to compare the model's own loss with the cross-entropy of its logits: this
    shows how the model aligns its labels, and a model whose loss is something else is refused.

    A batch may carry soft targets (:class:`numerate.targets.SoftTargets`), ``token_weights`` and ``position_weights``. The
    objective gets them, aligned as the labels are, and the model does not. ``remove_unused_columns`` keeps these columns.

    Example::

        trainer = Trainer(model, args, train_dataset=dataset, data_collator=collator)
        attach(trainer, NumericObjective(SMMDLoss(vocab)))
        trainer.train()
    """
    if not isinstance(trainer, Trainer):
        hint = "attach(Trainer(model, args, train_dataset=dataset), objective)" if isinstance(trainer, nn.Module) else "a Trainer"
        raise TypeError(f"trainer is a {type(trainer).__name__}: expected a transformers Trainer; call {hint}.")
    check_objective(objective)
    return Attachment(trainer, objective)


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
        if router := [name for name in outputs if "router" in name or "aux_loss" in name or "z_loss" in name]:
            raise NotImplementedError(
                f"the model returns {', '.join(router)}, for a loss that would be left out here: expected no router loss; use "
                "attach(trainer, objective), or set output_router_logits=False in the model's configuration."
            )
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


class Attachment:
    """A trainer that trains with a numeric objective, until :meth:`detach`."""

    def __init__(self, trainer: Trainer, objective: NumericObjective) -> None:
        refuse_trainer(trainer)
        refuse_split_sequences(objective, trainer.get_cp_size(), trainer.get_sp_size())
        self.trainer = trainer
        self.ignore_index = objective.ignore_index  # of the dataset's labels; models know only IGNORE_INDEX
        self.objective = _adapted(objective, trainer.args.label_smoothing_factor).to(trainer.args.device)
        self._model_loss: ModelLoss | None = None
        self._bind()
        self._counts: StepCounts | None = None  # of the current step
        self._batches: list[Batch] = []  # of that step, until labels are checked
        self._left, self._first = 0, True  # micro-batches left, and whether the next is the step's first
        self._logged = False  # whether the current step will be logged
        self._training, self._evaluation = LossSums(), LossSums()
        self._undo: list[Callable[[], None]] = []
        if type(trainer).compute_loss is not Trainer.compute_loss:
            self._insert_below(trainer)
        else:
            self._undo.append(override(trainer, "compute_loss", self._compute_loss))
        for name in ("get_batch_samples", "evaluation_loop", "prediction_step", "_prepare_inputs", "log"):
            self._undo.append(override(trainer, name, getattr(self, f"_{name.removeprefix('_')}")))
        columns = trainer._signature_columns
        self._undo.append(override(trainer, "_signature_columns", None if columns is None else [*columns, *LABEL_FIELDS]))
        self._undo.append(override(trainer, "_set_signature_columns_if_needed", self._set_signature_columns))
        self._undo.append(override(trainer, "label_smoother", None))
        self._undo.append(override(trainer, "loss_is_scaled_for_ga", True))

    def detach(self) -> None:
        """Restore the trainer."""
        while self._undo:
            self._undo.pop()()

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(
            "a Trainer with a numeric objective attached cannot be pickled or copied: expected a detached one; call .detach() "
            "before, or attach in the process that trains. Its model can be."
        )

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

    def _get_batch_samples(self, *args: Any, **kwargs: Any) -> Any:
        """Count the step that begins."""
        batches, num_items = type(self.trainer).get_batch_samples(self.trainer, *args, **kwargs)
        model_loss = self._bind()
        step: list[Batch] = [self._readable(batch) for batch in batches]
        self._counts, self._left, self._first = (model_loss.count(step) if step else None), len(step), True
        self._batches = [] if model_loss.checked else step
        self._logged = will_be_logged(self.trainer)
        return batches, num_items

    def _set_signature_columns(self) -> None:
        """Keep the columns of the dataset that the objective reads, although the model does not."""
        trainer = self.trainer
        type(trainer)._set_signature_columns_if_needed(trainer)
        columns: Any = trainer._signature_columns
        trainer._signature_columns = [*columns, *(name for name in LABEL_FIELDS if name not in columns)]

    def _prepare_inputs(self, inputs: dict[str, Any]) -> dict[str, Any]:
        trainer = self.trainer
        return keep_fields(dict(type(trainer)._prepare_inputs(trainer, inputs)), inputs)

    def _compute_loss(
        self, model: nn.Module, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Replace ``Trainer.compute_loss``; the loss is scaled so that its sum over the step is the step's loss."""
        trainer, model_loss = self.trainer, self._bind()
        training = model_loss.model.training and torch.is_grad_enabled()
        in_step = training and self._left > 0
        inputs = self._readable(inputs)
        if in_step:
            assert self._counts is not None
            forward = ForwardPass(inputs, self._counts, self._batches, training=True, with_overrun=self._logged)
            self._left -= 1
        else:
            counted = inputs if training else without_repeats(inputs, trainer.accelerator)
            forward = ForwardPass(inputs, model_loss.count([counted]), [counted], training=training, with_overrun=not training)
            forward.repeated = None if training else repeated_rows(labels_of(inputs), trainer.accelerator)
        outputs, extra = model_loss.run(model, forward)
        out = forward.output
        assert out is not None and forward.targets is not None
        positions = numeric_positions(self.objective, forward.targets)
        if training:
            self._training.add_step(out, forward.counts, positions, first=self._first or not in_step)
            self._first = False
        else:
            self._evaluation.add_batch(out, forward.counts, positions, self.objective, extra)
        if in_step:
            self._counts = forward.counts
        steps = trainer.current_gradient_accumulation_steps if training else 1
        # Gradients are averaged over processes: multiply by their number. A batch outside of a step is a mean, as the trainer's.
        loss = out.loss * (trainer.accelerator.num_processes // trainer.get_tp_size()) / (1 if in_step else steps)
        loss = loss + extra / steps
        if training and self._will_be_divided(num_items_in_batch):
            loss = loss * steps
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

    def _evaluation_loop(self, *args: Any, metric_key_prefix: str = "eval", **kwargs: Any) -> Any:
        """Add the parts of the whole set to the metrics."""
        trainer = self.trainer
        self._evaluation = LossSums()
        output = type(trainer).evaluation_loop(trainer, *args, metric_key_prefix=metric_key_prefix, **kwargs)
        parts = self._evaluation.of_set(trainer.accelerator, self.objective)
        output.metrics.update({f"{metric_key_prefix}_{name}": value for name, value in parts.items()})
        return output

    def _log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Add the parts of training to the logs."""
        if "loss" in logs:
            logs.update(self._training.of_steps(self.trainer.accelerator))
        type(self.trainer).log(self.trainer, logs, *args, **kwargs)

    def _will_be_divided(self, num_items_in_batch: Any) -> bool:
        """Return whether the trainer divides our loss by the accumulation steps: before transformers 5.19 it always may."""
        scaled = "loss_is_scaled_for_ga" in dir(Trainer)
        return not scaled and not (self.trainer.model_accepts_loss_kwargs and num_items_in_batch is not None)

    def _readable(self, batch: Batch) -> dict[str, Any]:
        """Return a batch whose ignored labels are ``IGNORE_INDEX``, as models expect."""
        if "labels" not in batch and "shift_labels" not in batch:
            raise ValueError(f"a batch has {', '.join(batch)} and no labels: {_NO_LABELS}")
        refuse_split_fields(batch, self.trainer.get_cp_size())
        if self.ignore_index == IGNORE_INDEX:
            return dict(batch)
        names = batch.keys() & {"labels", "shift_labels"}
        return {**batch, **{name: batch[name].masked_fill(batch[name] == self.ignore_index, IGNORE_INDEX) for name in names}}


def _adapted(objective: NumericObjective, smoothing: float) -> NumericObjective:
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
