"""Which trainers and models :func:`numerate.integrations.transformers.attach` accepts."""

from __future__ import annotations

from typing import Any

from torch import nn
from transformers import Trainer
from transformers.loss.loss_utils import LOSS_MAPPING, ForCausalLMLoss, ForMaskedLMLoss

from numerate.integrations.fields import has_fields
from numerate.integrations.hugging_face import of_trl


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
    if getattr(trainer.args, "loss_type", None) == "chunked_nll":
        raise ValueError(
            "loss_type='chunked_nll', the default of some releases of TRL before 1.15, computes no logits: expected "
            "SFTConfig(loss_type='nll'), or trl >= 1.15."
        )
    if of_trl(type(trainer)) == "SFTTrainer":
        _refuse_prepared_fields(trainer)
    if trainer.compute_loss_func is not None:
        raise ValueError("trainer has a compute_loss_func: expected one loss; leave it out, attach takes its place.")
    if trainer.args.n_gpu > 1:
        raise NotImplementedError(
            f"one process with {trainer.args.n_gpu} GPUs (DataParallel) copies the model at every step: expected one process per "
            "GPU; start with `accelerate launch` or `torchrun`, or set CUDA_VISIBLE_DEVICES."
        )


def _refuse_trl(kind: type) -> None:
    """Raise for a trainer of TRL, or one derived from it: each computes a loss of its own, but SFTTrainer."""
    if of_trl(kind) not in (None, "SFTTrainer"):
        raise TypeError(
            f"trainer is a {kind.__name__} of TRL, whose loss (preferences, rewards, a teacher) is not a cross-entropy of labels "
            "that a numeric term could be added to: expected supervised training; use SFTTrainer before or instead of it. "
            "A trainer with reward_funcs takes numerate.rewards."
        )


def _refuse_prepared_fields(trainer: Trainer) -> None:
    """Raise if TRL before 1.15 may have cut soft targets to ``max_length`` entries, as it cuts every list to that many."""
    if (trainer.args.dataset_kwargs or {}).get("skip_prepare_dataset"):
        return
    evaluated = trainer.eval_dataset if isinstance(trainer.eval_dataset, dict) else {"eval_dataset": trainer.eval_dataset}
    for name, dataset in {"train_dataset": trainer.train_dataset, **evaluated}.items():
        if has_fields(getattr(dataset, "column_names", None) or ()):
            raise ValueError(
                f"{name} has columns of soft targets or weights, which TRL before 1.15 may cut when it prepares rows: expected "
                "attach(trainer, soft=...), which makes them of the rows, trl >= 1.15, or tokenised rows with "
                "SFTConfig(dataset_kwargs={'skip_prepare_dataset': True})."
            )


def refuse_model(model: nn.Module) -> None:
    """Raise for a model that predicts no tokens."""
    if loss_of(model) not in (ForCausalLMLoss, ForMaskedLMLoss) and not is_encoder_decoder(model):
        raise TypeError(f"model is a {type(model).__name__}, which predicts no tokens: expected a language model.")
