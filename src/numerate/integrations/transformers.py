"""Hugging Face Trainer: ``attach(trainer, objective)`` and train as before.

One forward pass; the head and the loss are fused where the head is plain, so no ``[B, T, V]`` logits are built; the same
gradient for any split of a step into micro-batches and processes. Works for plain models, PEFT models, vision-language
models and encoder-decoders.
"""

from __future__ import annotations

import copy
import inspect
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Trainer
from transformers.loss.loss_utils import LOSS_MAPPING, ForCausalLMLoss, ForMaskedLMLoss

from numerate.integrations.lazy_logits import LazyHead, LazyLogits, find_head
from numerate.integrations.step import (
    Batch,
    Counts,
    Parts,
    add_parts,
    aligned,
    numeric_positions,
    refuse_split_sequences,
    shifted,
)
from numerate.objective import NumericObjective, ObjectiveOutput


def attach(trainer: Trainer, objective: NumericObjective) -> Attachment:
    """Train with ``objective`` from now on. ``.detach()`` of what is returned leaves model and trainer as they were.

    Both counts of the objective are those of the whole optimizer step, over all its micro-batches and processes. Label
    smoothing of the ``TrainingArguments`` is applied to the cross-entropy. The logs gain ``loss/cross_entropy``,
    ``loss/numeric``, ``numeric/share`` (of label tokens that are numeric) and ``numeric/mass`` (probability on numeric tokens
    where the label is one).

    Example::

        trainer = Trainer(model, args, train_dataset=dataset, data_collator=collator)
        attach(trainer, NumericObjective(SMMDLoss(vocab)))
        trainer.train()
    """
    return Attachment(trainer, objective)


def compute_loss_func(objective: NumericObjective) -> Callable[..., Tensor]:
    """For ``Trainer(compute_loss_func=...)``: the objective of the model's logits.

    The Trainer tells such a function how many label tokens a step has, and nothing of its numbers. So with gradient
    accumulation or several processes it takes ``normalize="tokens"``; :func:`attach` has no such limit.
    """
    from transformers.utils import ModelOutput

    def compute(outputs: ModelOutput, labels: Tensor, num_items_in_batch: Tensor | int | None = None) -> Tensor:
        logits = outputs["logits"]
        targets = labels if "encoder_last_hidden_state" in outputs else shifted(labels, objective.ignore_index)
        mine = int((targets != objective.ignore_index).sum())
        if objective.normalize == "numeric" and num_items_in_batch is not None and int(num_items_in_batch) != mine:
            raise ValueError(
                f"this batch has {mine} of its step's {int(num_items_in_batch)} label tokens, and how many numbers the step "
                "has is not known here: expected NumericObjective(..., normalize='tokens'), or use attach(trainer, objective)."
            )
        out: ObjectiveOutput = objective.to(logits.device)(logits, targets, num_items=num_items_in_batch)
        return out.loss

    return compute


class Attachment:
    """A trainer that trains with a numeric objective, until :meth:`detach`."""

    def __init__(self, trainer: Trainer, objective: NumericObjective) -> None:
        model = _base_model(trainer.model)
        _refuse(trainer, model)
        objective = _with_smoothing(objective, trainer.args.label_smoothing_factor)
        refuse_split_sequences(objective, trainer.get_cp_size(), trainer.get_sp_size())
        self.trainer, self.model = trainer, model
        self.objective = objective.to(trainer.args.device)
        self.encoder_decoder = bool(getattr(model.config, "is_encoder_decoder", False))
        self.shift = not self.encoder_decoder and _loss_of(model) is ForCausalLMLoss
        self.head = self._lazy_head()
        self._counts: Counts | None = None
        self._first = True
        self._batch: Batch  # what the model is looking at
        self._step: Counts | None  # of the step it belongs to
        self._made: ObjectiveOutput | None  # by the model's call of its loss function
        self._begin({}, None)
        self._parts = {True: Parts(), False: Parts()}  # of training, of evaluation
        self._undo: list[Callable[[], None]] = []
        if _own_compute_loss(type(trainer)):
            self._put_below(trainer)
        else:
            self._put(trainer, "compute_loss", self._compute_loss)
        for name in ("get_batch_samples", "log"):
            self._put(trainer, name, getattr(self, f"_{name}"))
        self._put(trainer, "label_smoother", None)
        self._put(trainer, "loss_is_scaled_for_ga", True)
        self._put(model, "_loss_function", self._loss_function)

    def detach(self) -> None:
        """Leave model and trainer as they were before."""
        while self._undo:
            self._undo.pop()()
        if self.head is not None:
            self.head.remove()
            self.head = None

    def _put(self, owner: Any, name: str, value: Any) -> None:
        """Set an attribute of the instance, and remember what it was."""
        had, before = name in vars(owner), vars(owner).get(name)
        object.__setattr__(owner, name, value)
        self._undo.append(lambda: object.__setattr__(owner, name, before) if had else object.__delattr__(owner, name))

    def _put_below(self, trainer: Trainer) -> None:
        """Take ``Trainer``'s place as what the trainer's own classes reach by ``super().compute_loss``."""
        own = type(trainer)
        made: Any = None
        version = 0

        def below(_: Trainer, *args: Any, **kwargs: Any) -> Any:
            nonlocal made, version
            made = self._compute_loss(*args, **kwargs)
            version = _loss_in(made)._version  # an in-place change raises it
            return made

        def above(trainer: Trainer, *args: Any, **kwargs: Any) -> Any:
            nonlocal made
            made = None
            result = own.compute_loss(trainer, *args, **kwargs)
            if made is None or _loss_in(result) is not _loss_in(made) or _loss_in(result)._version != version:
                raise TypeError(f"{own.__name__} does not train with what super().compute_loss returns: {_WAY_OUT}.")
            return result

        # Methods are looked for in its own classes, then in ours, then in Trainer.
        ours = type("_Attached", (Trainer,), {"compute_loss": below})
        trainer.__class__ = type(own.__name__, (own, ours), {"compute_loss": above, "__module__": own.__module__})
        self._undo.append(lambda: setattr(trainer, "__class__", own))

    def _lazy_head(self) -> LazyHead | None:
        linear, why_not = find_head(self.model)
        if self.trainer.args.torch_compile:
            linear, why_not = None, "the model is compiled"
        if linear is None:
            warnings.warn(f"logits of the whole batch will be built: {why_not}. The loss is the same.", stacklevel=4)
            return None
        return LazyHead(linear)

    # What the trainer calls

    def _get_batch_samples(self, *args: Any, **kwargs: Any) -> Any:
        """Count the step that begins."""
        batches, num_items = type(self.trainer).get_batch_samples(self.trainer, *args, **kwargs)
        self._counts, self._first = (self._count(batches) if batches else None), True
        return batches, num_items

    def _count(self, batches: list[Batch]) -> Counts:
        trainer = self.trainer
        if "labels" not in batches[0] and "shift_labels" not in batches[0]:
            raise ValueError(f"a batch has {', '.join(batches[0])} and no labels: expected labels from the data collator.")
        copies = trainer.get_tp_size() * trainer.get_cp_size()
        return Counts.of(self.objective, batches, shift=self.shift).over(trainer.accelerator, copies)

    def _compute_loss(
        self, model: nn.Module, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """What ``Trainer.compute_loss`` does, with our loss; it is right for the whole step, whatever the model's kind."""
        trainer = self.trainer
        training = self.model.training and torch.is_grad_enabled()
        counts = self._counts if training and self._counts is not None else self._count([inputs])
        self._begin(inputs, counts)
        arguments = self._arguments(inputs)
        if trainer.model_accepts_loss_kwargs and num_items_in_batch is not None:
            arguments["num_items_in_batch"] = num_items_in_batch
        with self._putting_off():
            outputs = model(**arguments)
            own, within = outputs.get("loss"), self._made
            if within is None and outputs.get("logits") is None:
                raise NotImplementedError(
                    f"{type(self.model).__name__} computes its loss by itself and gives no logits (patched, by Liger "
                    "or Unsloth?): expected its own forward; leave out the patch of its cross-entropy."
                )
            made = self._objective(outputs["logits"], inputs["labels"]) if within is None else within
        if within is None and outputs.get("aux_loss") is not None:
            raise NotImplementedError(f"{type(self.model).__name__} adds a router's loss to one that it computes by itself.")
        positions = numeric_positions(self.objective, aligned(inputs, shift=self.shift)[0])
        self._parts[training].add(made, counts, positions, first=self._first or not training)
        self._first = False
        # The step's sum is wanted, and processes are averaged.
        loss = made.loss * (trainer.accelerator.num_processes // trainer.get_tp_size())
        steps = trainer.current_gradient_accumulation_steps if training else 1
        if within is not None and own is not within.loss:
            # What the model adds by itself: a router's balance, a mean per micro-batch. FSDP2 may have rounded what it returns.
            loss = loss + (own - made.loss.to(own.dtype)) / steps
        if training and self._will_be_divided(num_items_in_batch):
            loss = loss * steps
        self._begin({}, None)
        return (loss, outputs) if return_outputs else loss

    def _begin(self, batch: Batch, counts: Counts | None) -> None:
        self._batch, self._step, self._made = batch, counts, None

    def _will_be_divided(self, num_items_in_batch: Any) -> bool:
        """Whether the trainer divides by the accumulation steps after us: releases before 5.19 cannot be told not to."""
        told = "loss_is_scaled_for_ga" in dir(Trainer)
        return not told and not (self.trainer.model_accepts_loss_kwargs and num_items_in_batch is not None)

    def _arguments(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """The model's inputs. An encoder-decoder is asked for logits alone: its own loss would be a second one."""
        prepare = getattr(self.model, "prepare_decoder_input_ids_from_labels", None)
        if not self.encoder_decoder or prepare is None:
            return dict(inputs)
        arguments = {name: value for name, value in inputs.items() if name != "labels"}
        if "decoder_input_ids" not in arguments and "decoder_inputs_embeds" not in arguments:
            arguments["decoder_input_ids"] = prepare(labels=inputs["labels"])
        return arguments

    @contextmanager
    def _putting_off(self) -> Iterator[None]:
        """Logits are not computed within.

        Unless they are needed after the model's forward: a sharded head is gone by then, and DDP looks for the parameters
        that had a part in what the model returned.
        """
        accelerator = self.trainer.accelerator
        sharded = accelerator.distributed_type in ("FSDP", "DEEPSPEED")
        after = (self.encoder_decoder and accelerator.num_processes > 1) or (sharded and not torch.is_grad_enabled())
        with nullcontext() if self.head is None or after else self.head.on():
            yield

    def _loss_function(self, logits: Tensor, labels: Tensor, *_: Any, **__: Any) -> Tensor:
        """What the model calls with its logits."""
        self._made = self._objective(logits, labels)
        return self._made.loss

    def _objective(self, logits: Tensor, labels: Tensor) -> ObjectiveOutput:
        labels, positions = aligned({**self._batch, "labels": labels}, shift=self.shift)
        options: dict[str, Any] = {"position_ids": positions, "with_mass": True}
        if self._step is not None:  # else the model was called by somebody else, with labels
            options |= {"num_items": self._step.items, "num_numeric": self._step.units}
        labels = labels.to(logits.device)
        if isinstance(logits, LazyLogits):
            return logits.objective(self.objective, labels, **options)
        return self.objective(logits, labels, **options)  # type: ignore[no-any-return]

    def _log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Add the parts to what the trainer logs."""
        add_parts(logs, self._parts, self.trainer.accelerator)
        type(self.trainer).log(self.trainer, logs, *args, **kwargs)


def _base_model(model: nn.Module) -> nn.Module:
    """The transformers model within a PeftModel, or the model itself."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model  # type: ignore[operator]


def _loss_of(model: nn.Module) -> Any:
    return LOSS_MAPPING.get(getattr(model, "loss_type", None), ForCausalLMLoss)


def _with_smoothing(objective: NumericObjective, factor: float) -> NumericObjective:
    """The objective with the trainer's label smoothing; the caller's own is left alone."""
    if not factor or objective.label_smoothing == factor:
        return objective
    if objective.label_smoothing:
        raise ValueError(
            f"label_smoothing={objective.label_smoothing} of the objective contradicts label_smoothing_factor={factor} of the "
            "TrainingArguments: expected one of them."
        )
    objective = copy.copy(objective)
    objective.label_smoothing = factor
    return objective


def _refuse(trainer: Trainer, model: nn.Module) -> None:
    """Raise for what cannot be done right."""
    if "compute_loss" in vars(trainer) or any(cls.__name__ == "_Attached" for cls in type(trainer).__mro__):
        raise RuntimeError("trainer.compute_loss was replaced already: call .detach() on the first attachment.")
    own = _own_compute_loss(type(trainer))
    if _is_sft(trainer) or not all(map(_calls_super, own)):
        way_out = "use numerate.integrations.trl.NumericSFTTrainer" if _is_sft(trainer) else _WAY_OUT
        raise TypeError(f"trainer is a {type(trainer).__name__}, which computes its own loss: {way_out}.")
    if trainer.compute_loss_func is not None:
        raise ValueError("trainer has a compute_loss_func: expected one loss; leave it out, attach takes its place.")
    if trainer.args.n_gpu > 1:
        raise NotImplementedError(
            f"one process with {trainer.args.n_gpu} GPUs (DataParallel) copies the model at every step: expected one process per "
            "GPU; start with `accelerate launch` or `torchrun`, or set CUDA_VISIBLE_DEVICES."
        )
    if _loss_of(model) not in (ForCausalLMLoss, ForMaskedLMLoss) and not getattr(model.config, "is_encoder_decoder", False):
        raise TypeError(f"model is a {type(model).__name__}, which predicts no tokens: expected a language model.")


_WAY_OUT = "use objective(logits, labels) within it"


def _own_compute_loss(cls: type) -> list[Any]:
    """The overrides of ``compute_loss`` between a trainer's class and ``Trainer``."""
    above = cls.__mro__[: cls.__mro__.index(Trainer)]
    return [inspect.unwrap(vars(base)["compute_loss"]) for base in above if "compute_loss" in vars(base)]


def _loss_in(result: Any) -> Any:
    """Of ``compute_loss``, with or without ``return_outputs``."""
    return result[0] if isinstance(result, tuple) else result


def _calls_super(method: Any) -> bool:
    """Whether a method names ``super()``, without arguments, and itself."""
    code = method.__code__
    return "__class__" in code.co_freevars and method.__name__ in code.co_names


def _is_sft(trainer: Trainer) -> bool:
    return any(cls.__name__ == "SFTTrainer" for cls in type(trainer).__mro__)
