"""Hugging Face Trainer: ``attach(trainer, objective)`` and train as before.

One forward pass; the head and the loss are fused where the head is plain, so no ``[B, T, V]`` logits are built; the same
gradient for any split of a step into micro-batches and processes. Works for plain models, PEFT models, vision-language
models and encoder-decoders. Model and head are changed while ``trainer.compute_loss`` runs them and at no other time.
"""

from __future__ import annotations

import copy
import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import Trainer
from transformers.loss.loss_utils import ForCausalLMLoss

from numerate.integrations.accepted import (
    WAY_OUT,
    base_model,
    loss_in,
    loss_of,
    own_compute_loss,
    refuse_model,
    refuse_trainer,
)
from numerate.integrations.alignment import (
    GIVEN,
    IGNORE,
    SHIFTED,
    agreeing,
    alignments,
    cross_entropies,
    disagreement,
    shifts_labels,
    widened,
    window,
)
from numerate.integrations.lazy_logits import LazyHead, LazyLogits, find_head
from numerate.integrations.step import (
    Batch,
    Counts,
    Parts,
    check_objective,
    document_positions,
    numeric_positions,
    reads_whole_numbers,
    refuse_split_sequences,
    repeated_rows,
    shifted,
    without_repeats,
)
from numerate.objective import NumericObjective, ObjectiveOutput

__all__ = ["Attachment", "attach", "compute_loss_func", "shifts_labels"]


def attach(trainer: Trainer, objective: NumericObjective) -> Attachment:
    """Train with ``objective`` from now on. ``.detach()`` of what is returned leaves the trainer as it was.

    Both counts of the objective are those of the whole optimizer step, over all its micro-batches and processes. Label
    smoothing of the ``TrainingArguments`` is applied to the cross-entropy. The logs gain ``loss/cross_entropy``,
    ``loss/numeric``, ``numeric/share`` (of label tokens that are numeric) and ``numeric/mass`` (probability on numeric tokens
    where the label is one). On the first batch the model's own loss is compared with the cross-entropy of its logits: this
    tells where labels are predicted, and a model whose loss is something else is refused.

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
    """For ``Trainer(compute_loss_func=...)``: the objective of the model's logits.

    The Trainer tells such a function how many label tokens a step has, and nothing of its numbers. So with gradient
    accumulation or several processes it takes ``normalize="tokens"``; :func:`attach` has no such limit. Nor is the function
    told what the model does with its labels, so pass the model, or say it.

    Args:
        objective: the objective.
        model: the model to train; runs once on eight tokens to find out whether it shifts labels. Refused if its loss is not a
            plain cross-entropy, for instance because it adds a router's.
        shift: whether the model shifts labels by one, in place of ``model``.
    """
    from transformers.utils import ModelOutput

    check_objective(objective)
    if (model is None) == (shift is None):
        raise TypeError(
            "compute_loss_func was given both model and shift, or neither: expected the model, or shift=True or False."
        )
    if shift is None:
        assert model is not None
        shift = shifts_labels(model, _eight_tokens(model))

    def compute(outputs: ModelOutput, labels: Tensor, num_items_in_batch: Tensor | int | None = None) -> Tensor:
        if labels is None:
            raise ValueError(f"labels=None: {_NO_LABELS}")
        if router := [name for name in outputs if "router" in name or "aux_loss" in name or "z_loss" in name]:
            raise NotImplementedError(
                f"the model returns {', '.join(router)}, for a loss that would be left out here: expected no router's loss; use "
                "attach(trainer, objective), or set output_router_logits=False in the model's configuration."
            )
        logits = outputs["logits"]
        targets = shifted(labels, objective.ignore_index) if shift else labels
        present = labels != objective.ignore_index
        # The Trainer counts the first label of each row for some models and not for others, by the names of their classes.
        if num_items_in_batch is not None and int(num_items_in_batch) in (int(present.sum()), int(present[..., 1:].sum())):
            num_items_in_batch = None  # the step is this batch
        if objective.normalize == "numeric" and num_items_in_batch is not None:
            raise ValueError(
                f"this batch has {int(present.sum())} of its step's {int(num_items_in_batch)} label tokens, and how many numbers "
                "the step has is not known here: expected NumericObjective(..., normalize='tokens'), or use attach(trainer, "
                "objective)."
            )
        out: ObjectiveOutput = objective.to(logits.device)(logits, targets, num_items=num_items_in_batch)
        return out.loss

    return compute


@dataclass
class _Run:
    """One forward pass of the model."""

    batch: Batch
    counts: Counts  # of the step it belongs to
    batches: list[Batch]  # of that step, until labels are checked
    repeated: Tensor | None = None  # [B], which rows count nowhere
    made: ObjectiveOutput | None = None  # by the model's call of its loss function, or of cross-entropy
    targets: Tensor | None = None  # [.., T], aligned, that it was made of


class Attachment:
    """A trainer that trains with a numeric objective, until :meth:`detach`."""

    def __init__(self, trainer: Trainer, objective: NumericObjective) -> None:
        refuse_trainer(trainer)
        objective = _with_smoothing(objective, trainer.args.label_smoothing_factor)
        refuse_split_sequences(objective, trainer.get_cp_size(), trainer.get_sp_size())
        self.trainer = trainer
        self.ignore_index = objective.ignore_index  # of the dataset's labels; models know one
        self.objective = _changed(objective, ignore_index=IGNORE).to(trainer.args.device)
        self.model: nn.Module | None = None
        self._bind()
        self._counts: Counts | None = None  # of the step that is under way
        self._batches: list[Batch] = []  # of that step, until labels are checked
        self._left, self._first = 0, True  # micro-batches to come, and whether the next is the step's first
        self._run: _Run | None = None
        self._training, self._evaluation = Parts(), Parts()
        self._undo: list[Callable[[], None]] = []
        if own_compute_loss(type(trainer)):
            self._put_below(trainer)
        else:
            self._put(trainer, "compute_loss", self._compute_loss)
        for name in ("get_batch_samples", "evaluation_loop", "prediction_step", "log"):
            self._put(trainer, name, getattr(self, f"_{name}"))
        self._put(trainer, "label_smoother", None)
        self._put(trainer, "loss_is_scaled_for_ga", True)

    def detach(self) -> None:
        """Leave the trainer as it was before."""
        while self._undo:
            self._undo.pop()()

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(
            "a Trainer with a numeric objective attached cannot be pickled or copied: expected a detached one; call .detach() "
            "before, or attach in the process that trains. Its model can be."
        )

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
            version = loss_in(made)._version  # an in-place change raises it
            return made

        def above(trainer: Trainer, *args: Any, **kwargs: Any) -> Any:
            nonlocal made
            made = None
            result = own.compute_loss(trainer, *args, **kwargs)
            if made is None or loss_in(result) is not loss_in(made) or loss_in(result)._version != version:
                raise TypeError(f"{own.__name__} does not train with what super().compute_loss returns: {WAY_OUT}.")
            return result

        # Methods are looked for in its own classes, then in ours, then in Trainer.
        ours = type("_Attached", (Trainer,), {"compute_loss": below})
        trainer.__class__ = type(own.__name__, (own, ours), {"compute_loss": above, "__module__": own.__module__})
        self._undo.append(lambda: setattr(trainer, "__class__", own))

    # The model

    def _bind(self) -> nn.Module:
        """The model that is trained now: ``model_init`` makes a new one for each training."""
        model = base_model(self.trainer)
        if model is not self.model:
            refuse_model(model)
            self.model = model
            self.encoder_decoder = bool(getattr(getattr(model, "config", None), "is_encoder_decoder", False))
            # A first guess; the first batch tells.
            self.shift = not self.encoder_decoder and loss_of(model) is ForCausalLMLoss
            self.alignment: str | None = None  # of the labels that the model gives to its loss function
            self.checked = False
            linear, why_not = find_head(model)
            if self.trainer.args.torch_compile:
                linear, why_not = None, "the model is compiled"
            if linear is None:
                warnings.warn(f"logits of the whole batch will be built: {why_not}. The loss is the same.", stacklevel=4)
            self.head = None if linear is None else LazyHead(linear)
        return model

    @contextmanager
    def _in_place(self, model: nn.Module) -> Iterator[None]:
        """Our loss takes the place of the model's within, and logits are not computed.

        Unless they are needed after the model's forward: a sharded head is gone by then.
        """
        sharded = self.trainer.accelerator.distributed_type in ("FSDP", "DEEPSPEED")
        lazy = self.head is not None and (torch.is_grad_enabled() or not sharded)
        had, before = "_loss_function" in vars(model), vars(model).get("_loss_function")
        self._own_loss_function = getattr(model, "loss_function", None)
        object.__setattr__(model, "_loss_function", self._loss_function)
        try:
            with self.head.on(self._cross_entropy) if lazy and self.head is not None else nullcontext():
                yield
        finally:
            if had:
                object.__setattr__(model, "_loss_function", before)
            else:
                object.__delattr__(model, "_loss_function")

    # What the trainer calls

    def _get_batch_samples(self, *args: Any, **kwargs: Any) -> Any:
        """Count the step that begins."""
        batches, num_items = type(self.trainer).get_batch_samples(self.trainer, *args, **kwargs)
        self._bind()
        step: list[Batch] = [self._readable(batch) for batch in batches]
        self._counts, self._left, self._first = (self._count(step) if step else None), len(step), True
        self._batches = [] if self.checked else step
        return batches, num_items

    def _compute_loss(
        self, model: nn.Module, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """What ``Trainer.compute_loss`` does, with our loss; it is right for the whole step, whatever the model's kind."""
        trainer, base = self.trainer, self._bind()
        training = base.training and torch.is_grad_enabled()
        in_step = training and self._left > 0
        inputs = self._readable(inputs)
        if in_step:
            assert self._counts is not None
            run = _Run(inputs, self._counts, self._batches)
            self._left -= 1
        else:
            counted = inputs if training else without_repeats(inputs, trainer.accelerator)
            run = _Run(inputs, self._count([counted]), [counted])
            run.repeated = None if training else repeated_rows(_labels_of(inputs), trainer.accelerator)
        self._run = run
        try:
            with self._in_place(base):
                outputs = model(**inputs)
                rest = self._rest(model, outputs, run)
        finally:
            self._run = None
        made = run.made
        assert made is not None and run.targets is not None
        positions = numeric_positions(self.objective, run.targets)
        if training:
            self._training.add_step(made, run.counts, positions, first=self._first or not in_step)
            self._first = False
        else:
            self._evaluation.add_batch(made, run.counts, positions, self.objective, rest)
        if in_step:
            self._counts = run.counts
        steps = trainer.current_gradient_accumulation_steps if training else 1
        # The step's sum is wanted, and processes are averaged. A batch that belongs to no step is a mean, as the trainer's is.
        loss = made.loss * (trainer.accelerator.num_processes // trainer.get_tp_size()) / (1 if in_step else steps)
        loss = loss + rest / steps
        if training and self._will_be_divided(num_items_in_batch):
            loss = loss * steps
        return (loss, outputs) if return_outputs else loss

    def _prediction_step(self, model: nn.Module, inputs: dict[str, Any], prediction_loss_only: bool, **kwargs: Any) -> Any:
        """The trainer's; one that generates text takes the model's own loss, which ours replaces."""
        trainer = self.trainer
        found = type(trainer).prediction_step(trainer, model, inputs, prediction_loss_only, **kwargs)
        if not getattr(trainer.args, "predict_with_generate", False) or prediction_loss_only or "labels" not in inputs:
            return found
        with torch.no_grad(), trainer.compute_loss_context_manager():
            loss = trainer.compute_loss(model, trainer._prepare_inputs(inputs))
        return (loss.detach(), *found[1:])

    def _evaluation_loop(self, *args: Any, **kwargs: Any) -> Any:
        """Add the parts of the whole set to the metrics."""
        trainer = self.trainer
        self._evaluation = Parts()
        output = type(trainer).evaluation_loop(trainer, *args, **kwargs)
        prefix = (
            inspect.signature(Trainer.evaluation_loop).bind(trainer, *args, **kwargs).arguments.get("metric_key_prefix", "eval")
        )
        parts = self._evaluation.of_set(trainer.accelerator, self.objective)
        output.metrics.update({f"{prefix}_{name}": value for name, value in parts.items()})
        return output

    def _log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Add the parts of training to what the trainer logs."""
        if "loss" in logs:
            logs.update(self._training.of_steps(self.trainer.accelerator))
        type(self.trainer).log(self.trainer, logs, *args, **kwargs)

    def _will_be_divided(self, num_items_in_batch: Any) -> bool:
        """Whether the trainer divides by the accumulation steps after us: releases before 5.19 cannot be told not to."""
        told = "loss_is_scaled_for_ga" in dir(Trainer)
        return not told and not (self.trainer.model_accepts_loss_kwargs and num_items_in_batch is not None)

    def _readable(self, batch: Batch) -> dict[str, Any]:
        """A batch whose absent labels are those that models know as such."""
        if "labels" not in batch and "shift_labels" not in batch:
            raise ValueError(f"a batch has {', '.join(batch)} and no labels: {_NO_LABELS}")
        if self.ignore_index == IGNORE:
            return dict(batch)
        names = batch.keys() & {"labels", "shift_labels"}
        return {**batch, **{name: batch[name].masked_fill(batch[name] == self.ignore_index, IGNORE) for name in names}}

    def _count(self, batches: list[Batch]) -> Counts:
        trainer = self.trainer
        copies = trainer.get_tp_size() * trainer.get_cp_size()
        return Counts.of(self.objective, batches, shift=self.shift).over(trainer.accelerator, copies)

    # What the model calls

    def _loss_function(self, logits: Tensor, labels: Tensor | None = None, *args: Any, **options: Any) -> Tensor:
        """Takes the place of ``model.loss_function``."""
        if self.alignment is None:
            assert self._own_loss_function is not None
            own, part, *some = window(self._own_loss_function, logits, labels, args, options)
            self._align(own, part, *some)
        ways = alignments(labels, options.get("shift_labels"), shift=self.shift)
        way = self.alignment if self.alignment in ways else next(iter(ways))
        return self._make(logits, ways[way], shift=way == SHIFTED)

    def _cross_entropy(self, logits: LazyLogits, targets: Tensor) -> Tensor:
        """Takes the place of a model's own cross-entropy, whose targets are aligned."""
        return self._make(logits, targets)

    def _rest(self, model: nn.Module, outputs: Any, run: _Run) -> Tensor:
        """What the model adds to its cross-entropy: a router's loss, a mean per micro-batch; zero as a rule."""
        named = outputs if isinstance(outputs, Mapping) else {"loss": outputs[0]}
        own, logits = named.get("loss"), named.get("logits")
        if run.made is not None:
            assert own is not None
            rest: Tensor = own - run.made.loss.to(own.dtype)  # FSDP2 may have rounded what the model returns
            return rest
        name = type(self.model).__name__
        if logits is None:
            raise NotImplementedError(
                f"{name} computes its loss by itself and gives no logits (patched, by Liger or Unsloth?): expected its own "
                "forward, which returns a mapping with loss and logits; leave out the patch of its cross-entropy."
            )
        if own is None:
            raise NotImplementedError(f"{name} returns no loss for labels: expected one, to see where it predicts its labels.")
        labels = widened(run.batch["labels"].to(logits.device), logits.shape[-2])
        router = any("aux_loss" in key or "z_loss" in key for key in named)
        if self.alignment is None:
            seen = named
            if router:  # its loss, without what the router adds
                with torch.no_grad(), torch.random.fork_rng():
                    seen = model(**run.batch, output_router_logits=False)
            self._align(float(seen["loss"].detach()), seen["logits"], labels)
        ways = alignments(labels, shift=self.shift)
        way = self.alignment or next(iter(ways))
        self._make(logits, ways[way], shift=way == SHIFTED)
        if not router:
            return torch.zeros_like(own)
        plain: Tensor = F.cross_entropy(logits.flatten(0, -2).to(own.dtype), ways[way].flatten())
        return torch.sub(own, plain)

    def _make(self, logits: Tensor, targets: Tensor, *, shift: bool | None = None) -> Tensor:
        """The objective of aligned targets; ``shift`` tells whether ``position_ids`` are shifted with them, if it is known."""
        run = self._run
        assert run is not None
        if run.made is not None:
            raise NotImplementedError(
                f"{type(self.model).__name__} computes more than one cross-entropy of its vocabulary in one forward: expected "
                "one; use objective(logits, labels) in a loss of your own."
            )
        labels = _labels_of(run.batch)
        targets = targets.to(logits.device)
        if targets.dim() < labels.dim():
            if targets.numel() % labels.shape[0] and reads_whole_numbers(self.objective.numeric_loss):
                raise NotImplementedError(
                    f"{type(self.model).__name__} takes {targets.numel()} positions of {labels.shape[0]} sequences for its loss: "
                    f"expected as many of each, since {type(self.objective.numeric_loss).__name__} reads whole numbers."
                )
            targets = targets.reshape(-1 if targets.numel() % labels.shape[0] else labels.shape[0], -1)
        logits = logits.reshape(*targets.shape, logits.shape[-1])
        if not self.checked:
            self._check_labels(targets, labels.to(targets.device))
        if run.repeated is not None:
            targets = targets.masked_fill(run.repeated[:, None], IGNORE)
        if shift is None:
            shift = self.shift and targets.shape[-1] == labels.shape[-1]
        options: dict[str, Any] = {"position_ids": document_positions(run.batch, targets, shift=shift), "with_mass": True}
        options |= {"num_items": run.counts.items, "num_units": run.counts.units}
        if isinstance(logits, LazyLogits):
            run.made = logits.objective(self.objective, targets, **options)
        else:
            run.made = self.objective(logits, targets, **options)
        run.targets = targets
        return run.made.loss.clone()  # models add to it in place

    # What the first batch tells

    def _align(self, own: float, logits: Tensor, labels: Tensor | None, given: Tensor | None = None) -> None:
        """Find out how labels are aligned, from a model's own loss; all processes come to the same."""
        figures = cross_entropies(logits, alignments(labels, given, shift=self.shift))
        mine = torch.tensor([own, *figures.values()], dtype=torch.float64)
        mine = mine if mine.isfinite().all() else torch.zeros_like(mine)  # a batch without labels tells nothing
        seen, *values = self._over_processes([float(mine.any()), *mine.tolist()])
        if not seen:
            return
        own, *rest = (value / seen for value in values)
        figures = dict(zip(figures, rest, strict=True))
        found = agreeing(own, figures, logits.dtype)
        if not found:
            raise ValueError(disagreement(type(self.model).__name__, own, figures))
        if len(found) == 1 or found[0] == GIVEN:
            self.alignment = found[0]

    def _check_labels(self, targets: Tensor, labels: Tensor) -> None:
        """Find out whether the first label of a row counts, from the targets that the model takes for its loss."""
        run = self._run
        assert run is not None
        if "shift_labels" in run.batch:  # which say it
            self.checked = True
            return
        fits = [_fits(targets, labels, shift=shift) for shift in (True, False)]
        if not any(fits):  # the model made something else of the labels; enough if it has the same counts
            positions = document_positions(run.batch, targets, shift=self.shift)
            mine = Counts.of(self.objective, [{"labels": targets, "position_ids": positions}], shift=False)
            fits = [mine.same(Counts.of(self.objective, [{**run.batch, "labels": labels}], shift=s)) for s in (True, False)]
        misfits = dict(zip((True, False), self._over_processes([float(not fit) for fit in fits]), strict=True))
        if misfits[self.shift] and misfits[not self.shift]:
            raise ValueError(
                f"{type(self.model).__name__} takes {int((targets != IGNORE).sum())} label tokens for its loss, and the batch "
                f"has {int((labels != IGNORE).sum())}: expected the batch's, or all but the first of each row, so that a step "
                "can be counted before it begins; use objective(logits, labels) in a loss of your own."
            )
        if misfits[self.shift]:
            self.shift = not self.shift
            run.counts = self._count(run.batches)
        self.checked = bool(misfits[not self.shift])

    def _over_processes(self, values: list[float]) -> list[float]:
        accelerator = self.trainer.accelerator
        if accelerator.num_processes == 1:
            return values
        return accelerator.reduce(torch.tensor(values, dtype=torch.float64, device=accelerator.device), "sum").tolist()  # type: ignore[no-any-return]


_NO_LABELS = (
    "expected labels from the dataset or the data collator, such as DataCollatorForLanguageModeling(tokenizer, mlm=False) makes."
)


def _labels_of(batch: Batch) -> Tensor:
    labels: Tensor = batch["labels"] if "labels" in batch else batch["shift_labels"]
    return labels


def _fits(targets: Tensor, labels: Tensor, *, shift: bool) -> bool:
    """Whether a model's targets ``[.., T']`` are a batch's labels ``[.., T]``; without the first of each row if ``shift``."""
    more = targets.shape[-1] - labels.shape[-1]
    if targets.shape[:-1] != labels.shape[:-1] or more < -1 or not bool((labels != IGNORE).any()):
        return not bool((labels != IGNORE).any())
    if more > 0:  # virtual tokens come first, and the last of them predicts the first label
        wide = widened(labels, targets.shape[-1])
        return not shift and (torch.equal(targets, wide) or torch.equal(targets, shifted(wide)))
    expected = labels if not shift else shifted(labels) if more == 0 else labels[..., 1:]
    return torch.equal(targets, expected)


def _eight_tokens(model: nn.Module) -> dict[str, Tensor]:
    """A batch with labels, for a model that takes text."""
    device = next(model.parameters()).device
    ids = torch.arange(1, 9, device=device)[None]
    return {"input_ids": ids, "labels": ids}


def _changed(objective: NumericObjective, **settings: Any) -> NumericObjective:
    """The objective with other settings: a copy, since the caller's own is left alone."""
    if all(getattr(objective, name) == value for name, value in settings.items()):
        return objective
    objective = copy.copy(objective)
    for name, value in settings.items():
        setattr(objective, name, value)
    return objective


def _with_smoothing(objective: NumericObjective, factor: float) -> NumericObjective:
    """The objective with the trainer's label smoothing."""
    if not factor:
        return objective
    if objective.label_smoothing not in (0.0, factor):
        raise ValueError(
            f"label_smoothing={objective.label_smoothing} of the objective contradicts label_smoothing_factor={factor} of the "
            "TrainingArguments: expected one of them."
        )
    return _changed(objective, label_smoothing=factor)
