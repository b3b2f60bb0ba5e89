"""Errors that help: each names the argument, its value, what was expected, and the way out."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, get_args

import torch
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
    if isinstance(value, Tensor) or not isinstance(value, Hashable) or value not in allowed:
        listed = ", ".join(repr(choice) for choice in allowed)
        raise ValueError(f"{name}={value!r} is not known: expected one of {listed}.{nearest(value, map(str, allowed))}")


def check_number(
    name: str, value: Any, *, above: float | None = None, least: float | None = None, most: float | None = None
) -> float:
    """Raise unless ``value`` is a finite number ``> above`` or ``>= least``, and ``<= most``; return it as a float."""
    bound = f"> {above:g}" if above is not None else f">= {least:g}" if least is not None else "finite"
    bound += "" if most is None else f" and <= {most:g}"
    try:
        number = float("text" if isinstance(value, str) else value)
    except (TypeError, ValueError, RuntimeError):  # torch raises the last for a tensor of several numbers
        raise TypeError(f"{name}={value!r} is not a number: expected a number {bound}.") from None
    ok = abs(number) != float("inf") and number == number
    ok = ok and (above is None or number > above) and (least is None or number >= least) and (most is None or number <= most)
    if not ok:
        raise ValueError(f"{name}={value!r} is out of range: expected a finite number {bound}.")
    return number


def check_tensor(name: str, value: Any, shape: str) -> None:
    """Raise unless ``value`` is a tensor."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} is a {type(value).__name__}: expected a torch tensor {shape}; use torch.as_tensor({name}).")


def check_ignore_index(ignore_index: Any) -> int:
    """Raise unless ``ignore_index`` is a whole number; return it."""
    if isinstance(ignore_index, bool) or not isinstance(ignore_index, int):
        raise TypeError(
            f"ignore_index={ignore_index!r} is not a whole number: expected the label that counts as absent, such as -100; "
            "where every label counts, pass an id that does not occur."
        )
    return ignore_index


def check_count(name: str, count: Any, own: Callable[[], Tensor]) -> None:
    """Raise unless ``count``, what a sum is divided by, is a number >= 0, and above 0 where the batch's ``own`` count is.

    A count on another device than the CPU is taken as it is: looking at it would mean waiting.
    """
    if torch.compiler.is_compiling() or (isinstance(count, Tensor) and count.device.type != "cpu"):
        return
    remedy = "the sum of objective.counts(labels) over the batches of the step"
    try:
        number = check_number(name, count, least=0.0)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{error} Pass {remedy}.") from None
    if number == 0 and bool(mine := own()):
        raise ValueError(f"{name}={count!r}, but this batch alone counts {float(mine):g}: expected {remedy}.")


def check_weights(weights: Any, labels: Tensor) -> None:
    """Raise unless ``weights`` is a tensor of one finite number >= 0 for each label."""
    check_tensor("weights", weights, "of the shape of labels")
    if weights.shape != labels.shape:
        raise ValueError(
            f"weights has shape {tuple(weights.shape)} and labels {tuple(labels.shape)}: expected one weight per label."
        )
    if torch.compiler.is_compiling():
        return
    wrong = ~((weights >= 0) & (weights < float("inf")))
    if weights.device.type != "cpu":  # without waiting for the device
        torch._assert_async(~wrong.any(), "weights holds NaN, inf or a number below 0: expected finite weights >= 0")
    elif bool(wrong.any()):
        raise ValueError(
            f"weights holds {float(weights[wrong][0]):g}: expected finite weights >= 0; use 0 for positions that do not count."
        )


def check_labels(labels: Tensor, name: str = "labels") -> Tensor:
    """Raise unless ``labels`` is an integer tensor with at least one position; return it as int64."""
    if not isinstance(labels, Tensor):
        raise TypeError(f"{name} is a {type(labels).__name__}: expected a torch tensor of token ids; use torch.tensor(...).")
    if labels.is_floating_point() or labels.is_complex() or labels.dtype.itemsize == 1:
        raise TypeError(f"{name} has dtype {labels.dtype}: expected integer token ids; use {name}.long().")
    if labels.dim() == 0 or labels.numel() == 0:
        raise ValueError(f"{name} has shape {tuple(labels.shape)}, which holds no position: expected [.., T] with T >= 1.")
    return labels.long()


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
