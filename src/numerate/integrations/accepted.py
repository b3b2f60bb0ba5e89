"""Which trainers and models :func:`numerate.integrations.transformers.attach` takes."""

from __future__ import annotations

import inspect
from typing import Any

from torch import nn
from transformers import Trainer
from transformers.loss.loss_utils import LOSS_MAPPING, ForCausalLMLoss, ForMaskedLMLoss

WAY_OUT = "use objective(logits, labels) within it"


def base_model(trainer: Trainer) -> nn.Module:
    """The model within a trainer's wrappers, and within a PeftModel."""
    model: nn.Module = trainer.accelerator.unwrap_model(trainer.model, keep_torch_compile=False)
    return model.get_base_model() if hasattr(model, "get_base_model") else model  # type: ignore[operator]


def loss_of(model: nn.Module) -> Any:
    """The loss function that a model's class names; that of a causal model if it names none."""
    return LOSS_MAPPING.get(getattr(model, "loss_type", None), ForCausalLMLoss)


def refuse_trainer(trainer: Trainer) -> None:
    """Raise for a trainer that cannot be attached to."""
    if "compute_loss" in vars(trainer) or any(cls.__name__ == "_Attached" for cls in type(trainer).__mro__):
        raise RuntimeError("trainer.compute_loss was replaced already: call .detach() on the first attachment.")
    own = own_compute_loss(type(trainer))
    if _is_sft(trainer) or not all(map(_calls_super, own)):
        way_out = "use numerate.integrations.trl.NumericSFTTrainer" if _is_sft(trainer) else WAY_OUT
        raise TypeError(f"trainer is a {type(trainer).__name__}, which computes its own loss: {way_out}.")
    if trainer.compute_loss_func is not None:
        raise ValueError("trainer has a compute_loss_func: expected one loss; leave it out, attach takes its place.")
    if trainer.args.n_gpu > 1:
        raise NotImplementedError(
            f"one process with {trainer.args.n_gpu} GPUs (DataParallel) copies the model at every step: expected one process per "
            "GPU; start with `accelerate launch` or `torchrun`, or set CUDA_VISIBLE_DEVICES."
        )


def refuse_model(model: nn.Module) -> None:
    """Raise for a model that predicts no tokens."""
    encoder_decoder = getattr(getattr(model, "config", None), "is_encoder_decoder", False)
    if loss_of(model) not in (ForCausalLMLoss, ForMaskedLMLoss) and not encoder_decoder:
        raise TypeError(f"model is a {type(model).__name__}, which predicts no tokens: expected a language model.")


def own_compute_loss(cls: type) -> list[Any]:
    """The overrides of ``compute_loss`` between a trainer's class and ``Trainer``."""
    above = cls.__mro__[: cls.__mro__.index(Trainer)]
    return [inspect.unwrap(vars(base)["compute_loss"]) for base in above if "compute_loss" in vars(base)]


def loss_in(result: Any) -> Any:
    """Of ``compute_loss``, with or without ``return_outputs``."""
    return result[0] if isinstance(result, tuple) else result


def _calls_super(method: Any) -> bool:
    """Whether a method names ``super()``, without arguments, and itself."""
    code = method.__code__
    return "__class__" in code.co_freevars and method.__name__ in code.co_names


def _is_sft(trainer: Trainer) -> bool:
    return any(cls.__name__ == "SFTTrainer" for cls in type(trainer).__mro__)
