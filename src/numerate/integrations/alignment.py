"""How a model aligns its labels with its logits, found by comparing its own loss with the cross-entropy of its logits.

A causal model shifts its labels by one; a masked model or a decoder does not. There is no list of which does what: some
``ForCausalLM`` classes do not shift. So the cross-entropy is computed for each possible alignment, and the one that equals the
model's own loss is used. The logits are random and in float32 where possible: rounding would hide a small difference (a z-loss,
label smoothing), and the logits of a new head hardly differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from numerate.integrations.fields import Batch, without_fields
from numerate.labels import IGNORE_INDEX, shift_left

SHIFTED, AS_THEY_ARE, GIVEN = "labels shifted by one", "labels as they are", "shift_labels as they are"

_WIDTH = 64  # positions that are enough to distinguish alignments


def shifts_labels(model: nn.Module, batch: Batch) -> bool:
    """Return whether a model shifts its labels by one; raise if its loss is not a cross-entropy of its logits.

    Runs the model once on the batch, in evaluation mode and without gradients.

    Example::

        shifts_labels(model, {"input_ids": ids, "labels": ids})  # True for LlamaForCausalLM, False for BertForMaskedLM
    """
    training = model.training
    try:
        with torch.no_grad(), probed(model):
            outputs = model.eval()(**without_fields(batch))
    finally:
        model.train(training)
    own, logits = outputs["loss"], outputs["logits"]
    labels = pad_left(batch["labels"].to(logits.device), logits.shape[-2])
    losses = cross_entropies(logits, alignments(labels, shift=True))
    equal = agreeing(float(own), losses)
    if len(equal) != 1:
        raise ValueError(disagreement(type(model).__name__, float(own), losses))
    return equal == [SHIFTED]


def alignments(labels: Tensor | None, given: Tensor | None = None, *, shift: bool) -> dict[str, Tensor]:
    """Return each way to align labels ``[.., T]`` with logits, the most likely first; ``given`` are ``shift_labels``."""
    ways = {} if given is None else {GIVEN: given}
    if labels is not None:
        both = {SHIFTED: shift_left(labels, IGNORE_INDEX), AS_THEY_ARE: labels}
        ways |= both if shift else dict(reversed(both.items()))
    return ways


def pad_left(labels: Tensor, length: int) -> Tensor:
    """Pad labels ``[.., T]`` to the positions of the logits: what a model adds (images, prompts) comes before the text."""
    return F.pad(labels, (max(length - labels.shape[-1], 0), 0), value=IGNORE_INDEX)


def cross_entropies(logits: Tensor, targets: Mapping[str, Tensor]) -> dict[str, float]:
    """Return the mean cross-entropy of logits ``[.., T, V]`` for each alignment, row by row; NaN without a label."""
    flat = logits.detach().reshape(-1, *logits.shape[-2:])

    def mean(labels: Tensor) -> float:
        labels = labels.reshape(flat.shape[:-1])
        total = sum(float(F.cross_entropy(row.float(), line, reduction="sum")) for row, line in zip(flat, labels, strict=True))
        count = int((labels != IGNORE_INDEX).sum())
        return total / count if count else float("nan")

    return {name: mean(labels) for name, labels in targets.items()}


def agreeing(own: float, losses: Mapping[str, float]) -> list[str]:
    """Return the alignments whose cross-entropy equals a model's own loss up to rounding; several if they hardly differ."""
    size = max(abs(own), 1.0)
    errors = {name: abs(loss - own) for name, loss in losses.items() if loss == loss}
    nearest = min(errors.values(), default=float("inf"))
    if nearest > 1e-4 * size:
        return []
    return [name for name, error in errors.items() if error <= max(10 * nearest, 1e-6 * size)]


def random_logits(like: Tensor) -> Tensor:
    """Return random logits of the shape of ``like``, in float32 at least, without a draw from the global generator."""
    generator = torch.Generator(like.device).manual_seed(0)
    dtype = torch.promote_types(like.dtype, torch.float32)
    return torch.randn(like.shape, generator=generator, dtype=dtype, device=like.device)


@contextmanager
def probed(model: nn.Module) -> Iterator[None]:
    """Replace the output of a model's head by random logits in the body; a model that names no head is left alone."""
    head: Any = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None  # type: ignore[operator]
    if head is None:
        yield
        return
    hook = head.register_forward_hook(lambda module, inputs, logits: random_logits(logits))
    try:
        yield
    finally:
        hook.remove()


def disagreement(name: str, own: float, losses: Mapping[str, float]) -> str:
    """Return the error message for a model whose loss is something else."""
    listed = ", ".join(f"{loss:.6g} with {way}" for way, loss in losses.items())
    return (
        f"the loss of {name} is {own:.6g}, and the cross-entropy of its logits is {listed}: expected one of them. Its loss is "
        "not a plain cross-entropy of its logits (a z-loss, smoothing, focal, or rounded to half precision?); use "
        "objective(logits, labels) in a loss of your own."
    )


def window(
    loss_function: Callable[..., Tensor], logits: Tensor, labels: Tensor | None, args: tuple[Any, ...], options: dict[str, Any]
) -> tuple[float, Tensor, Tensor | None, Tensor | None]:
    """Evaluate a loss function on random logits of up to 64 positions; return it, the logits, ``labels`` and ``shift_labels``."""
    given = options.get("shift_labels")
    like = given if labels is None else labels
    assert like is not None
    shape = like.shape if like.dim() > 1 else (1, *like.shape)
    lines = like.reshape(shape).flatten(0, -2)  # [R, T]
    row = int((lines != IGNORE_INDEX).sum(-1).argmax())
    begin = max(int((lines[row] != IGNORE_INDEX).int().argmax()) - 1, 0)

    def cut(tensor: Tensor) -> Tensor:  # [.., T] to [1, W]
        return tensor.reshape(lines.shape)[row : row + 1, begin : begin + _WIDTH]

    with torch.no_grad():
        part = random_logits(torch.empty(*cut(like).shape, logits.shape[-1], dtype=logits.dtype, device=logits.device))
        options = {
            name: cut(value) if isinstance(value, Tensor) and value.shape == like.shape else value
            for name, value in options.items()
            if name != "num_items_in_batch"
        }
        labels = None if labels is None else cut(labels).to(part.device)
        own = float(loss_function(part, labels, *args, **options))
    return own, part, labels, None if given is None else cut(given)
