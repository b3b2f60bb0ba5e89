"""Checks of settings and tensors. Errors name the argument, its value, what was expected, and the remedy.

torch is imported inside the checks of tensors, so that the command line rejects a wrong setting without loading it.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from numbers import Integral
from operator import index
from pickle import UnpicklingError
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


def choices(literal: Any) -> tuple[str, ...]:
    """Return the values that a ``Literal[...]`` type allows."""
    return tuple(literal.__args__)  # torch.compile of torch 2.6 cannot trace get_args


def one_line(error: BaseException) -> str:
    """Return the message of an error in one line; its class name if it has no message."""
    if isinstance(error, UnpicklingError):  # torch's message recommends loading the file anyway
        return "a pickle that is damaged or contains more than tensors, such as code, which is not run"
    return " ".join(str(error).split()) or type(error).__name__


def nearest(name: str, known: Iterable[str]) -> str:
    """Return ``" Did you mean 'sigma'?"`` for a near miss, else an empty string."""
    close = difflib.get_close_matches(str(name), list(known), n=1)
    return f" Did you mean {close[0]!r}?" if close else ""


def check_choice(name: str, value: Any, allowed: Sequence[Any]) -> None:
    """Raise unless ``value``, of any type, is one of ``allowed``."""
    if not any(isinstance(value, type(choice)) and value == choice for choice in allowed):
        listed = ", ".join(repr(choice) for choice in allowed)
        raise ValueError(f"{name}={value!r} is not known: expected one of {listed}.{nearest(value, map(str, allowed))}")


def check_settings(owner: str, settings: Mapping[str, Any], known: Iterable[str]) -> None:
    """Raise for the first of ``settings`` that ``owner`` does not have."""
    known = list(known)
    for name, value in settings.items():
        if name not in known:
            expected = f"expected one of {', '.join(known) or 'none'}.{nearest(name, known)}"
            raise TypeError(f"{name}={value!r} is not a setting of {owner}: {expected}")


def check_integer(name: str, value: Any, expected: str, *, least: int | None = None, most: int | None = None) -> int:
    """Return an integer of any type, including numpy's, as an int; raise unless ``least <= value <= most``.

    ``expected`` describes it: "an integer >= 1".
    """
    try:
        number = None if isinstance(value, bool) else index(value)
    except TypeError:
        number = None
    if number is None or (least is not None and number < least) or (most is not None and number > most):
        raise ValueError(f"{name}={value!r} is out of range: expected {expected}.")
    return number


def check_number(
    name: str, value: Any, *, above: float | None = None, least: float | None = None, most: float | None = None, hint: str = ""
) -> float:
    """Return ``value`` as a float; raise unless it is finite, ``> above`` or ``>= least``, and ``<= most``.

    ``hint`` is a sentence with the remedy.
    """
    hint = f" {hint}" if hint else ""
    bound = f"> {above:g}" if above is not None else f">= {least:g}" if least is not None else "finite"
    bound += "" if most is None else f" and <= {most:g}"
    try:
        number = float("text" if isinstance(value, str) else value)
    except (TypeError, ValueError, RuntimeError):  # torch raises the last for a tensor of several numbers
        raise TypeError(f"{name}={value!r} is not a number: expected a number {bound}.{hint}") from None
    ok = abs(number) != float("inf") and number == number
    ok = ok and (above is None or number > above) and (least is None or number >= least) and (most is None or number <= most)
    if not ok:
        raise ValueError(f"{name}={value!r} is out of range: expected a finite number {bound}.{hint}")
    return number


def check_tensor(name: str, value: Any, shape: str) -> None:
    """Raise unless ``value`` is a tensor, and not a DTensor."""
    from torch import Tensor

    if not isinstance(value, Tensor):
        raise TypeError(f"{name} is a {type(value).__name__}: expected a torch tensor {shape}; use torch.as_tensor({name}).")
    if type(value).__name__ == "DTensor":  # by name: importing torch.distributed.tensor takes seconds
        remedy = f"use {name}.full_tensor() if all processes of its mesh then compute the same loss, as in tensor parallelism."
        if name in ("head_weight", "bias"):
            remedy = (
                "with FSDP2, call lm_head.unshard() before reading lm_head.weight, as full_tensor() would give a wrong gradient; "
                "with tensor parallelism, pass shards of the vocabulary to objective.fused."
            )
        raise TypeError(f"{name} is a DTensor, sharded over processes: expected a plain tensor {shape}; {remedy}")


def check_columns(name: str, size: int, least: int) -> None:
    """Raise if logits or a head have fewer than ``least`` entries in the vocabulary dimension."""
    if size < least:
        raise ValueError(
            f"{name} has V={size}, but the NumericVocab needs {least}: expected the whole vocabulary. If it is sharded over "
            "processes (tensor parallelism), pass group=, the tensor-parallel process group, or gather it first: "
            "ColwiseParallel(output_layouts=Replicate()). Otherwise create the NumericVocab from this model's tokenizer, or with "
            "vocab_size=V."
        )


def check_ignore_index(ignore_index: Any) -> int:
    """Raise unless ``ignore_index`` is an integer; return it."""
    if isinstance(ignore_index, bool) or not isinstance(ignore_index, Integral):
        raise TypeError(
            f"ignore_index={ignore_index!r} is not an integer: expected the label of positions to skip, such as -100; "
            "to skip none, pass an id that never occurs."
        )
    return int(ignore_index)


def check_count(name: str, count: Any, own: Callable[[], Tensor]) -> None:
    """Raise unless ``count``, a denominator, is a number >= 0, and > 0 if the batch's ``own`` count is.

    A count on another device than the CPU is not checked, since that would need a sync.
    """
    import torch

    if torch.compiler.is_compiling() or (isinstance(count, torch.Tensor) and count.device.type != "cpu"):
        return
    remedy = "the sum of objective.count(labels) over the batches of the step"
    number = check_number(name, count, least=0.0, hint=f"Pass {remedy}.")
    if number == 0 and bool(mine := own()):
        raise ValueError(f"{name}={count!r}, but this batch alone counts {float(mine):g}: expected {remedy}.")


def check_weights(weights: Any, labels: Tensor, name: str = "position_weights") -> None:
    """Raise unless ``weights`` is a tensor with one finite number >= 0 per label."""
    import torch

    check_tensor(name, weights, "of the shape of labels")
    if weights.shape != labels.shape:
        raise ValueError(
            f"{name} has shape {tuple(weights.shape)} and labels {tuple(labels.shape)}: expected one weight per label."
        )
    if torch.compiler.is_compiling():
        return
    wrong = ~((weights >= 0) & (weights < float("inf")))
    if weights.device.type != "cpu":  # no sync
        torch._assert_async(~wrong.any(), f"{name} contains NaN, inf or a number below 0: expected finite weights >= 0")
    elif bool(wrong.any()):
        raise ValueError(
            f"{name} contains {float(weights[wrong][0]):g}: expected finite weights >= 0; use 0 for positions to skip."
        )


def check_labels(labels: Tensor) -> Tensor:
    """Raise unless ``labels`` is an integer tensor with a dimension; return it as int64."""
    check_tensor("labels", labels, "of token ids [.., T]")
    if labels.is_floating_point() or labels.is_complex() or labels.dtype.itemsize == 1:
        raise TypeError(f"labels has dtype {labels.dtype}: expected integer token ids; use labels.long().")
    if labels.dim() == 0:
        raise ValueError("labels has shape (): expected [.., T]; use labels[None].")
    return labels.long()


def check_logits(logits: Tensor, labels: Tensor, least_vocab: int, vocab_size: int | None = None) -> None:
    """Raise unless ``logits [.., T, V]`` match ``labels [.., T]`` and cover the vocabulary.

    ``vocab_size``: V of all processes, of which these logits have a part; None: they have all.
    """
    check_tensor("logits", logits, "[.., T, V]")
    if not logits.is_floating_point():
        raise TypeError(
            f"logits has dtype {logits.dtype}: expected floating point logits, not token ids; pass model(...).logits."
        )
    if logits.dim() != labels.dim() + 1 or logits.shape[:-1] != labels.shape:
        raise ValueError(
            f"logits has shape {tuple(logits.shape)} and labels {tuple(labels.shape)}: expected [.., T, V] and [.., T] "
            "with equal leading sizes, aligned (logits[:, :-1] with labels[:, 1:]), or both at full length with shift=True."
        )
    check_columns("logits", logits.shape[-1] if vocab_size is None else vocab_size, least_vocab)


def public_dir(module: Mapping[str, Any]) -> Callable[[], list[str]]:
    """Return a module's ``__dir__`` from its globals: the names in ``__all__``, without its imports."""
    return lambda: sorted({*module["__all__"], *(name for name in module if name.startswith("__"))})


def on_first_use(module: Mapping[str, Any], homes: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """Return a module's ``__getattr__`` from its globals: it imports the names in ``__all__`` when they are used.

    ``homes`` has the names of each submodule; other names are submodules.
    """
    home_of = {name: home for home, names in homes.items() for name in names}

    def get(name: str) -> Any:
        if name not in module["__all__"]:
            raise AttributeError(f"{module['__name__']} has no {name!r}: expected one of {', '.join(module['__all__'])}.")
        home = import_module(f"{module['__name__']}.{home_of.get(name, name)}")
        return getattr(home, name) if name in home_of else home

    return get
