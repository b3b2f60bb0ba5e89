"""A training loop of your own: plain PyTorch, DDP, FSDP, accelerate, Lightning Fabric.

The sums of a step are divided by the counts of the whole step, over its micro-batches and processes. So :class:`Steps` fetches
the micro-batches of a step together and counts them before the first forward pass::

    for step in Steps(loader, model, objective, accumulate=4):
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

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn

from numerate.checks import check_number, public_dir
from numerate.integrations.fields import LABEL_FIELDS, Batch, aligned, without_fields
from numerate.integrations.step import StepCounts, reads_complete_numbers, steps_of
from numerate.losses.logit_rows import reads_freely
from numerate.objective import NumericObjective, ObjectiveOutput

__all__ = ["Step", "Steps"]
__dir__ = public_dir(globals())


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
        self.engine = _engine(engine, loader, model, accumulate)

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


class Step:
    """The micro-batches of one optimizer step, and the objective with the counts of all of them, on all processes.

    Attributes:
        num_items: label tokens of the step, or the sum of their weights.
        num_units: numeric positions of the step, or numbers for a number-level loss.
        trained: micro-batches that are done.
    """

    def __init__(self, engine: _Engine, objective: NumericObjective, batches: list[Batch], *, shift: bool) -> None:
        self._engine, self._objective, self._batches, self._shift = engine, objective, batches, shift
        if engine.num_processes > 1 and reads_complete_numbers(objective.numeric_loss):
            for batch in batches:
                _refuse_cut_numbers(objective, *aligned(batch, shift=shift, ignore_index=objective.ignore_index))
        counts = StepCounts.of(objective, batches, shift=shift).over(engine, copies=1)
        self.num_items, self.num_units = counts.num_items, counts.num_units
        self.trained = 0
        self._labels: tuple[Tensor, dict[str, Any]] | None = None  # of the current micro-batch, and what belongs to them
        self._versions: list[int] = []
        self._used = False

    def __len__(self) -> int:
        """Return the number of micro-batches."""
        return len(self._batches)

    def __iter__(self) -> Iterator[Any]:
        for number, batch in enumerate(self._batches):
            self._labels = aligned(batch, shift=self._shift, ignore_index=self._objective.ignore_index)
            self._versions, self._used = _versions(*self._labels), False
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
        settings = self._settings(logits)
        return self._scaled(self._objective(logits, **settings, with_mass=with_mass, with_overrun=with_overrun))

    def fused(self, hidden: Tensor, head_weight: Tensor, bias: Tensor | None = None, **options: Any) -> ObjectiveOutput:
        """Compute the same from hidden states ``[.., T, H]`` and a head; ``options`` as in ``NumericObjective.fused``."""
        if given := options.keys() & {"position_weights", "token_weights", "soft"}:
            raise TypeError(
                f"{min(given)} is not an option of step.fused, since the step was counted without it: expected as fields of the "
                f"batch, which may be {', '.join(LABEL_FIELDS)}."
            )
        return self._scaled(self._objective.fused(hidden, head_weight, bias=bias, **self._settings(hidden), **options))

    def _settings(self, scores: Tensor) -> dict[str, Any]:
        if self._labels is None:
            raise RuntimeError("there is no current micro-batch: expected a call inside `for batch in step:`.")
        self._engine.check()
        labels, fields = self._labels
        if _versions(labels, fields) != self._versions:
            raise RuntimeError(
                f"labels or what belongs to them were changed in place after their step was counted, and now have shape "
                f"{tuple(labels.shape)}: expected the labels of the batch. context_parallel cuts its buffers in place: use data "
                "parallelism (DDP, FSDP2), or objective(logits, labels, num_items=..., num_units=...) in a loop without Steps."
            )
        self._used = True
        moved = {name: value.to(scores.device) if isinstance(value, Tensor) else value for name, value in fields.items()}
        counts = {"num_items": self.num_items, "num_units": self.num_units}
        return {"labels": labels.to(scores.device), **moved, **counts}

    def _scaled(self, out: ObjectiveOutput) -> ObjectiveOutput:
        return replace(out, loss=out.loss * self._engine.factor)


def _versions(labels: Tensor, fields: dict[str, Any]) -> list[int]:
    """Return how often each tensor was changed in place; inference tensors do not count that."""
    tensors = (value for value in (labels, *fields.values()) if isinstance(value, Tensor))
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
            "whole rows; use a token-level loss such as SMMDLoss, or position_ids that begin at 0 if rows are whole."
        )


class _Engine(ABC):
    """How a framework runs a step. ``num_processes``, ``device`` and ``reduce`` are named as in accelerate."""

    num_processes: int
    device: Any
    model: nn.Module

    @property
    def factor(self) -> float:
        """What the framework divides by, from the loss to the gradient."""
        return _averaged_over(self.model, self.num_processes)

    @abstractmethod
    def reduce(self, tensor: Tensor, reduction: str) -> Tensor:
        """Return the sum over processes."""

    @abstractmethod
    def micro_batch(self, *, last: bool) -> AbstractContextManager[None]:
        """Exchange gradients in the body if it is the last of its step."""

    def check(self) -> None:  # noqa: B027 - most have nothing to check
        """Raise if other code decides when gradients are exchanged."""


class _Torch(_Engine):
    """``loss.backward()``: in one process, or with DDP or FSDP, which average gradients over processes."""

    def __init__(self, model: nn.Module) -> None:
        self.model, self.device = model, next(model.parameters()).device
        self.num_processes = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
        self.group: Any = None
        self._no_sync: Any = nullcontext
        if self.num_processes == 1:
            return
        from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
        from torch.nn.parallel import DistributedDataParallel

        kinds = (DistributedDataParallel, FullyShardedDataParallel, FSDPModule)
        wrapper = next((module for module in model.modules() if isinstance(module, kinds)), None)
        if wrapper is None:
            raise ValueError(
                f"model is a {type(model).__name__}, and {self.num_processes} processes train: expected one that averages "
                "gradients over them; wrap it in DistributedDataParallel, or pass engine=accelerator or engine=fabric."
            )
        if isinstance(wrapper, DistributedDataParallel):
            self.group = wrapper.process_group
            self.num_processes = dist.get_world_size(self.group)
            self._no_sync = wrapper.no_sync

    def reduce(self, tensor: Tensor, reduction: str) -> Tensor:
        dist.all_reduce(tensor, group=self.group)
        return tensor

    def micro_batch(self, *, last: bool) -> AbstractContextManager[None]:
        manager: AbstractContextManager[None] = nullcontext() if last else self._no_sync()
        return manager


class _Accelerate(_Engine):
    """``accelerator.backward(loss)``, which divides by the accelerator's ``gradient_accumulation_steps``."""

    def __init__(self, accelerator: Any, model: nn.Module, accumulate: int) -> None:
        theirs = accelerator.gradient_accumulation_steps
        if theirs not in (1, accumulate):
            raise ValueError(
                f"accumulate={accumulate} is not gradient_accumulation_steps={theirs} of the Accelerator: expected the same "
                "number, or 1 there."
            )
        kind = str(getattr(accelerator.distributed_type, "value", accelerator.distributed_type))
        if kind in ("DEEPSPEED", "MEGATRON_LM", "XLA"):
            raise NotImplementedError(
                f"distributed_type={kind} of the Accelerator accumulates gradients in its own way: expected one process, DDP "
                "or FSDP; with DeepSpeed, use the Hugging Face Trainer and attach(trainer, objective)."
            )
        parallel = getattr(accelerator, "parallelism_config", None)
        if parallel is not None and parallel.non_data_parallel_size > 1:
            raise NotImplementedError(
                f"{parallel.non_data_parallel_size} processes of the Accelerator share each batch (tensor, context or sequence "
                "parallelism): expected data parallelism (DDP, FSDP)."
            )
        if accelerator.num_processes > 1 and not getattr(model, "_is_accelerate_prepared", False):
            raise ValueError(f"model is a {type(model).__name__}, not prepared: expected accelerator.prepare(model).")
        self.accelerator, self.model = accelerator, model
        self.num_processes, self.device = accelerator.num_processes, accelerator.device
        self._seen: tuple[int, bool] = (accelerator.step, True)

    @property
    def factor(self) -> float:
        return super().factor * int(self.accelerator.gradient_accumulation_steps)

    def reduce(self, tensor: Tensor, reduction: str) -> Tensor:
        total: Tensor = self.accelerator.reduce(tensor, reduction)
        return total

    @contextmanager
    def micro_batch(self, *, last: bool) -> Iterator[None]:
        # Not accelerator.accumulate: it ends a step once the loader is exhausted, which it is for all of the last step.
        self._seen = self.accelerator.step, last
        self.accelerator.sync_gradients = last
        try:
            with nullcontext() if last else self.accelerator.no_sync(self.model):
                yield
        finally:
            # The optimizer steps only if gradients are in sync, and is called after the last micro-batch.
            self.accelerator.sync_gradients = True

    def check(self) -> None:
        if (self.accelerator.step, self.accelerator.sync_gradients) != self._seen:
            raise RuntimeError(
                "accelerator.accumulate and Steps both decide when gradients are exchanged: expected one of them; leave out "
                "`with accelerator.accumulate(model):`."
            )


class _Fabric(_Engine):
    """``fabric.backward(loss)``, which divides by nothing; DDP and FSDP average gradients over processes."""

    def __init__(self, fabric: Any, model: nn.Module) -> None:
        strategy = fabric.strategy
        supported = ("SingleDeviceStrategy", "DDPStrategy", "FSDPStrategy")
        if not any(kind.__name__ in supported for kind in type(strategy).__mro__):
            raise NotImplementedError(
                f"{type(strategy).__name__} of the Fabric may accumulate or share batches in its own way: expected one "
                "process, 'ddp' or 'fsdp'."
            )
        if not _set_up_by_fabric(model):
            raise ValueError(f"model is a {type(model).__name__}, not set up: expected fabric.setup(model).")
        self.fabric, self.model = fabric, model
        self.num_processes, self.device = int(fabric.world_size), fabric.device

    def reduce(self, tensor: Tensor, reduction: str) -> Tensor:
        total: Tensor = self.fabric.all_reduce(tensor, reduce_op=reduction)
        return total

    def micro_batch(self, *, last: bool) -> AbstractContextManager[None]:
        manager: AbstractContextManager[None] = self.fabric.no_backward_sync(self.model, enabled=not last)
        return manager


def _engine(engine: Any, loader: Any, model: nn.Module, accumulate: int) -> _Engine:
    """Wrap an Accelerator, a Fabric or None; raise if it did not prepare the model."""
    if hasattr(engine, "no_backward_sync"):
        return _Fabric(engine, model)
    if hasattr(engine, "gradient_accumulation_steps"):
        return _Accelerate(engine, model, accumulate)
    if engine is not None:
        raise TypeError(f"engine is a {type(engine).__name__}: expected an accelerate.Accelerator, a lightning Fabric, or None.")
    if any(getattr(prepared, "_is_accelerate_prepared", False) for prepared in (model, loader)):
        raise ValueError("engine=None, but accelerate prepared the model or the loader: expected engine=accelerator.")
    if _set_up_by_fabric(model):
        raise ValueError("engine=None, but Fabric set up the model: expected engine=fabric.")
    return _Torch(model)


def _averaged_over(model: nn.Module, num_processes: int) -> float:
    """Return what the sum of all processes' gradients is divided by, times the processes that share each batch.

    That is ``num_processes``, unless FSDP2 was told another divisor. Processes that share a batch (tensor parallelism) count it
    more than once, which the result makes up for.
    """
    if not dist.is_available():
        return num_processes
    from torch.distributed.fsdp import FSDPModule

    groups: list[Any] = []
    for module in model.modules():
        if isinstance(module, FSDPModule):
            state = module._get_fsdp_state()
            # torch 2.11 has one group of parameters per module, and none where a module has no parameters of its own.
            several = hasattr(state, "_fsdp_param_groups")
            groups += filter(None, state._fsdp_param_groups if several else [state._fsdp_param_group])
    if all(group.gradient_divide_factor is None for group in groups):
        return num_processes
    sizes = [math.prod(getattr(group.mesh_info, f"{kind}_mesh_size", 1) for kind in ("shard", "replicate")) for group in groups]
    divisors = {float(group.gradient_divide_factor or size) for group, size in zip(groups, sizes, strict=True)}
    if len(divisors) > 1:
        raise ValueError(
            f"the FSDP2 modules of the model divide gradients by {', '.join(f'{d:g}' for d in sorted(divisors))}: expected one "
            "divisor; call set_gradient_divide_factor on every FSDPModule of model.modules()."
        )
    return float(divisors.pop() * num_processes / max(sizes))


def _set_up_by_fabric(model: nn.Module) -> bool:
    """Return whether ``fabric.setup`` wrapped the model, compiled or not."""
    return any(type(module).__name__ == "_FabricModule" for module in (model, getattr(model, "_orig_mod", None)))
