"""Errors that help: each names the argument, its value, what was expected, and the way out."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import Any, get_args

from torch import Tensor


def choices(literal: Any) -> tuple[str, ...]:
    """The values a ``Literal[...]`` type allows."""
    return tuple(get_args(literal))


def one_line(error: BaseException) -> str:
    """What an error says, in one line; its name, if it says nothing."""
    return " ".join(str(error).split()) or type(error).__name__


def nearest(name: str, known: Iterable[str]) -> str:
    """``" Did you mean 'sigma'?"`` for a near miss, else an empty string."""
    close = difflib.get_close_matches(str(name), list(known), n=1)
    return f" Did you mean {close[0]!r}?" if close else ""


def check_choice(name: str, value: Any, allowed: Sequence[Any]) -> None:
    """Raise unless ``value`` is one of ``allowed``."""
    if value not in allowed:
        listed = ", ".join(repr(choice) for choice in allowed)
        raise ValueError(f"{name}={value!r} is not known: expected one of {listed}.{nearest(value, map(str, allowed))}")


def check_number(name: str, value: Any, *, above: float | None = None, least: float | None = None) -> float:
    """Raise unless ``value`` is a finite number ``> above`` or ``>= least``; return it as a float."""
    bound = f"> {above:g}" if above is not None else f">= {least:g}" if least is not None else "finite"
    try:
        number = float("text" if isinstance(value, str) else value)
    except (TypeError, ValueError):
        raise TypeError(f"{name}={value!r} is not a number: expected a number {bound}.") from None
    ok = abs(number) != float("inf") and number == number
    ok = ok and (above is None or number > above) and (least is None or number >= least)
    if not ok:
        raise ValueError(f"{name}={value!r} is out of range: expected a finite number {bound}.")
    return number


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
