"""How frameworks run an optimizer step: what they divide by, and when processes exchange gradients.

accelerate and Lightning are not imported here.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn


class Engine(ABC):
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


class _TorchEngine(Engine):
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


class _AccelerateEngine(Engine):
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


class _FabricEngine(Engine):
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


def engine_of(engine: Any, loader: Any, model: nn.Module, accumulate: int) -> Engine:
    """Wrap an Accelerator, a Fabric or None; raise if it did not prepare the model."""
    if hasattr(engine, "no_backward_sync"):
        return _FabricEngine(engine, model)
    if hasattr(engine, "gradient_accumulation_steps"):
        return _AccelerateEngine(engine, model, accumulate)
    if engine is not None:
        raise TypeError(f"engine is a {type(engine).__name__}: expected an accelerate.Accelerator, a lightning Fabric, or None.")
    if any(getattr(prepared, "_is_accelerate_prepared", False) for prepared in (model, loader)):
        raise ValueError("engine=None, but accelerate prepared the model or the loader: expected engine=accelerator.")
    if _set_up_by_fabric(model):
        raise ValueError("engine=None, but Fabric set up the model: expected engine=fabric.")
    return _TorchEngine(model)


def _averaged_over(model: nn.Module, num_processes: int) -> float:
    """Return what the sum of all processes' gradients is divided by, times the processes that share each batch.

    That is ``num_processes``, unless FSDP2 was given another divisor. Processes that share a batch (tensor parallelism) count it
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
