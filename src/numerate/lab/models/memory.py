"""Check that a model can be trained in the available memory, before its weights are loaded."""

from __future__ import annotations

import os

import torch

from numerate.lab.models.names import BUILT, Adapter
from numerate.lab.models.pretrained import count_parameters
from numerate.lab.models.settings import ModelSettings

_WEIGHT = 4  # bytes of a weight
_TRAINED = 16  # bytes of a trained weight: itself, its gradient and the two moments of AdamW, in float32
_GIB = 1 << 30


def least_bytes(parameters: int, adapter: Adapter, *, bf16: bool) -> int:
    """Return the memory that training takes before any activation; an adapter's own weights are not counted.

    Examples:
        >>> least_bytes(1_000_000_000, "none", bf16=True), least_bytes(1_000_000_000, "lora", bf16=True)
        (16000000000, 2000000000)
    """
    frozen = {"lora": 2 if bf16 else 4, "qlora": 0.5}
    return int(parameters * frozen.get(adapter, _TRAINED))


def check_memory(config: ModelSettings, members: int = 1) -> None:
    """Raise if the weights of a pre-trained model, their gradients and the optimizer's state exceed the available memory.

    So do the weights of all ``members`` when they are evaluated, unless they are adapters of one model.
    """
    if config.model in BUILT:
        return
    count = count_parameters(config.model, trust_remote_code=config.trust_remote_code)
    where, memory = _memory()
    if count is None or memory is None:
        return
    need = max(least_bytes(count, config.adapter, bf16=config.bf16), _WEIGHT * count * members if config.adapter == "none" else 0)
    if need <= memory:
        return
    several = f", members={members}" if members > 1 else ""
    lora = least_bytes(count, "lora", bf16=config.bf16)
    remedies = [
        *([f"adapter='lora', which takes {lora / _GIB:.1f} GiB and the activations"] if lora < min(need, memory) else []),
        *(["bf16=true, which halves the frozen weights"] if config.adapter == "lora" and not config.bf16 else []),
        "a smaller model",
    ]
    raise ValueError(
        f"model={config.model!r} has {count / 1e6:,.0f} M parameters, which take at least {need / _GIB:.1f} GiB to train "
        f"(adapter={config.adapter!r}{several}), and {where} has {memory / _GIB:.1f} GiB: expected {', or '.join(remedies)}."
    )


def _memory() -> tuple[str, int | None]:
    """Return where models are trained, and its memory in bytes; None if the system does not say."""
    if torch.cuda.is_available():
        return f"the GPU ({torch.cuda.get_device_name()})", torch.cuda.get_device_properties(0).total_memory
    try:
        return "this machine", os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # Windows
        return "this machine", None
