"""Which trainers and models :func:`numerate.integrations.transformers.attach` accepts."""

from __future__ import annotations

from typing import Any

from torch import nn
from transformers import Trainer
from transformers.loss.loss_utils import LOSS_MAPPING, ForCausalLMLoss, ForMaskedLMLoss


def base_model(trainer: Trainer) -> nn.Module:
    """Return the model inside the trainer's wrappers and inside a PeftModel."""
    model: nn.Module = trainer.accelerator.unwrap_model(trainer.model, keep_torch_compile=False)
    return model.get_base_model() if hasattr(model, "get_base_model") else model  # type: ignore[operator]


def loss_of(model: nn.Module) -> Any:
    """Return the loss function that a model's class names; by default that of a causal model."""
    return LOSS_MAPPING.get(getattr(model, "loss_type", None), ForCausalLMLoss)


def is_encoder_decoder(model: nn.Module) -> bool:
    """Return whether a model's configuration says that it has an encoder and a decoder."""
    return bool(getattr(getattr(model, "config", None), "is_encoder_decoder", False))


def refuse_trainer(trainer: Trainer) -> None:
    """Raise for a trainer that cannot be attached to. One that ignores ``super().compute_loss`` is found when it trains."""
    classes = {cls.__name__ for cls in type(trainer).__mro__}
    if "compute_loss" in vars(trainer) or "_Attached" in classes:
        raise RuntimeError("trainer.compute_loss was replaced already: call .detach() on the first attachment.")
    _refuse_trl(type(trainer))
    if trainer.compute_loss_func is not None:
        raise ValueError("trainer has a compute_loss_func: expected one loss; leave it out, attach takes its place.")
    if trainer.args.n_gpu > 1:
        raise NotImplementedError(
            f"one process with {trainer.args.n_gpu} GPUs (DataParallel) copies the model at every step: expected one process per "
            "GPU; start with `accelerate launch` or `torchrun`, or set CUDA_VISIBLE_DEVICES."
        )


def _refuse_trl(kind: type) -> None:
    """Raise for a trainer of TRL, or one derived from it: each computes a loss of its own."""
    own = next((cls.__name__ for cls in kind.__mro__ if cls.__module__.split(".")[0] == "trl"), None)
    if own is None:
        return
    if own == "SFTTrainer":
        raise TypeError(f"trainer is a {kind.__name__} of TRL: use numerate.integrations.trl.NumericSFTTrainer.")
    raise TypeError(
        f"trainer is a {kind.__name__} of TRL, whose loss (preferences, rewards, a teacher) is not a cross-entropy of labels "
        "that a numeric term could be added to: expected supervised training; use numerate.integrations.trl.NumericSFTTrainer "
        "before or instead of it. A trainer with reward_funcs takes numerate.rewards."
    )


def refuse_model(model: nn.Module) -> None:
    """Raise for a model that predicts no tokens."""
    if loss_of(model) not in (ForCausalLMLoss, ForMaskedLMLoss) and not is_encoder_decoder(model):
        raise TypeError(f"model is a {type(model).__name__}, which predicts no tokens: expected a language model.")
