"""Errors that help, for tensors too: each names the argument, its value, what was expected, and the way out."""

from __future__ import annotations

from torch import Tensor

from numerate.messages import check_choice, check_number, choices, nearest, one_line

__all__ = ["check_choice", "check_labels", "check_logits", "check_number", "choices", "nearest", "one_line"]


def check_labels(labels: Tensor, name: str = "labels") -> None:
    """Raise unless ``labels`` is an integer tensor with at least one position."""
    if not isinstance(labels, Tensor):
        raise TypeError(f"{name} is a {type(labels).__name__}: expected a torch tensor of token ids; use torch.tensor(...).")
    if labels.is_floating_point() or labels.is_complex() or labels.dtype.itemsize == 1:
        raise TypeError(f"{name} has dtype {labels.dtype}: expected integer token ids; use {name}.long().")
    if labels.dim() == 0 or labels.numel() == 0:
        raise ValueError(f"{name} has shape {tuple(labels.shape)}, which holds no position: expected [.., T] with T >= 1.")


def check_logits(logits: Tensor, labels: Tensor, least_vocab: int) -> None:
    """Raise unless ``logits [.., T, V]`` fit ``labels [.., T]`` and hold the columns of the vocabulary."""
    if not isinstance(logits, Tensor):
        raise TypeError(f"logits is a {type(logits).__name__}: expected a torch tensor [.., T, V].")
    if not logits.is_floating_point():
        raise TypeError(
            f"logits has dtype {logits.dtype}: expected floating point scores, not token ids; pass model(...).logits."
        )
    if logits.dim() != labels.dim() + 1 or logits.shape[:-1] != labels.shape:
        raise ValueError(
            f"logits has shape {tuple(logits.shape)} and labels {tuple(labels.shape)}: expected [.., T, V] and [.., T] "
            "with equal leading sizes. Labels must already be aligned with the logits (logits[:, :-1] with labels[:, 1:])."
        )
    if logits.shape[-1] < least_vocab:
        raise ValueError(
            f"logits has V={logits.shape[-1]} columns, but the NumericVocab uses token id {least_vocab - 1}: expected "
            f"V >= {least_vocab}. Build the vocabulary from the tokenizer that belongs to this model."
        )
