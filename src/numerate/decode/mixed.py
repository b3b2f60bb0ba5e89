"""Batches in which each row has its own adapter, for the LoRA layers for which peft can do that.

peft gives a row its adapter if a layer is called with ``adapter_names``, one name per row. It takes them from the user only as an
argument of ``generate`` or ``forward``, and a search changes its rows between two tokens. So hooks pass on the names of the rows
that are being computed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn


class CannotMixError(Exception):
    """A layer with adapters does not have the rows of the batch in the first dimension of its input."""


class RowAdapters:
    """The adapter of each row; ``use`` before a forward pass of these rows."""

    def __init__(self, names: Sequence[str], used: list[list[str]] | None = None) -> None:
        self.names = [*names]
        self.used = [self.names] if used is None else used  # by the hooks, which all selections of rows share

    def select(self, index: Tensor) -> RowAdapters:
        """Return the adapters of the rows of ``index``."""
        return RowAdapters([self.names[row] for row in index.tolist()], self.used)

    def use(self) -> None:
        """Let the next forward pass use these adapters."""
        self.used[0] = self.names


def can_mix(model: Any, adapters: Sequence[str]) -> bool:
    """Whether peft can mix these adapters of a model: LoRA on linear layers and embeddings, not merged, without variants."""
    from peft import PeftType
    from peft.tuners.tuners_utils import BaseTunerLayer
    from peft.utils.other import AuxiliaryTrainingWrapper

    if any(model.peft_config[name].peft_type != PeftType.LORA for name in adapters):
        return False
    for module in model.modules():
        if isinstance(module, AuxiliaryTrainingWrapper):  # row by row, and not if another adapter without them is active
            return False
        if isinstance(module, BaseTunerLayer):
            varied = {*getattr(module, "lora_variant", ()), *(name for name, on in getattr(module, "use_dora", {}).items() if on)}
            if not isinstance(module, _mixing_layers()) or module.merged or varied & {*adapters}:
                return False
    return True


@contextmanager
def mixing(model: Any, names: Sequence[str]) -> Iterator[RowAdapters]:
    """Compute each row with its own adapter; ``names`` are those of the first rows."""
    rows = RowAdapters(names)

    def pass_on(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        given = args[0] if args else None
        # Two dimensions of hidden states may be tokens of all rows, or those that an expert takes.
        if not isinstance(given, Tensor) or given.dim() < 2 + given.is_floating_point() or len(given) != len(rows.used[0]):
            raise CannotMixError
        return args, {**kwargs, "adapter_names": rows.used[0]}

    layers = [module for module in model.modules() if isinstance(module, _mixing_layers())]
    hooks = [layer.register_forward_pre_hook(pass_on, with_kwargs=True) for layer in layers]
    try:
        yield rows
    finally:
        for hook in hooks:
            hook.remove()


def repeated(batch: Mapping[str, Any], times: int) -> dict[str, Tensor]:
    """Return the inputs of a batch several times, one after the other."""
    rows = len(next(iter(batch.values())))
    if not all(isinstance(value, Tensor) and value.dim() and len(value) == rows for value in batch.values()):
        raise CannotMixError
    return {name: torch.cat([value] * times) for name, value in batch.items()}


def _mixing_layers() -> tuple[type[nn.Module], ...]:
    from peft.tuners import lora

    quantised = (getattr(lora, name, None) for name in ("Linear8bitLt", "Linear4bit"))  # with bitsandbytes
    return (lora.Linear, lora.Embedding, *(kind for kind in quantised if kind is not None))
