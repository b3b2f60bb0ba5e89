"""How a model aligns its labels with its logits, found by comparing its own loss with the cross-entropy of its logits.

A causal model shifts its labels by one; a masked model or a decoder does not. There is no list of which does what: some
``ForCausalLM`` classes do not shift. So the cross-entropy is computed for each possible alignment, and the one that equals the
model's own loss is used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from numerate.integrations.fields import Batch, without_fields
from numerate.integrations.lazy_logits import LazyLogits
from numerate.labels import IGNORE_INDEX, shift_left

SHIFTED, AS_THEY_ARE, GIVEN = "labels shifted by one", "labels as they are", "shift_labels as they are"

_WIDTH = 64  # positions that are enough to tell alignments apart


def shifts_labels(model: nn.Module, batch: Batch) -> bool:
    """Return whether a model shifts its labels by one; raise if its loss is not a cross-entropy of its logits.

    Runs the model once on the batch, in evaluation mode and without gradients.

    Example::

        shifts_labels(model, {"input_ids": ids, "labels": ids})  # True for LlamaForCausalLM, False for BertForMaskedLM
    """
    training = model.training
    try:
        with torch.no_grad():
            outputs = model.eval()(**without_fields(batch))
    finally:
        model.train(training)
    own, logits = outputs["loss"], outputs["logits"]
    labels = pad_left(batch["labels"].to(logits.device), logits.shape[-2])
    losses = cross_entropies(logits, alignments(labels, shift=True))
    equal = agreeing(float(own), losses, logits.dtype)
    if len(equal) != 1:
        raise ValueError(disagreement(type(model).__name__, float(own), losses))
    return equal == [SHIFTED]


def alignments(labels: Tensor | None, given: Tensor | None = None, *, shift: bool) -> dict[str, Tensor]:
    """Return each way to align labels ``[.., T]`` with logits, the likeliest first; ``given`` are ``shift_labels``."""
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


def agreeing(own: float, losses: Mapping[str, float], dtype: torch.dtype) -> list[str]:
    """Return the alignments whose cross-entropy equals a model's own loss up to rounding; several if they hardly differ."""
    size = max(abs(own), 1.0)
    errors = {name: abs(loss - own) for name, loss in losses.items()}
    nearest = min(errors.values())
    if nearest > (2e-2 if dtype.itemsize < 4 else 1e-4) * size:
        return []
    return [name for name, error in errors.items() if error <= max(10 * nearest, 1e-6 * size)]


def disagreement(name: str, own: float, losses: Mapping[str, float]) -> str:
    """Return the error message for a model whose loss is something else."""
    listed = ", ".join(f"{loss:.6g} with {way}" for way, loss in losses.items())
    return (
        f"the loss of {name} is {own:.6g}, and the cross-entropy of its logits is {listed}: expected one of them. Its loss is "
        "not a plain cross-entropy of its logits; use objective(logits, labels) in a loss of your own."
    )


def window(
    loss_function: Callable[..., Tensor], logits: Tensor, labels: Tensor | None, args: tuple[Any, ...], options: dict[str, Any]
) -> tuple[float, Tensor, Tensor | None, Tensor | None]:
    """Evaluate a loss function on up to 64 positions of one row; return it with the logits, ``labels`` and ``shift_labels``."""
    given = options.get("shift_labels")
    like = given if labels is None else labels
    assert like is not None
    shape = like.shape if like.dim() > 1 else (1, *like.shape)
    lines = like.reshape(shape).flatten(0, -2)  # [R, T]
    row = int((lines != IGNORE_INDEX).sum(-1).argmax())
    begin = max(int((lines[row] != IGNORE_INDEX).int().argmax()) - 1, 0)

    def cut(tensor: Tensor) -> Tensor:  # [.., T] to [1, W]
        return tensor.reshape(lines.shape)[row : row + 1, begin : begin + _WIDTH]

    part = logits.reshape(*lines.shape, logits.shape[-1])[row : row + 1, begin : begin + _WIDTH]
    with torch.no_grad():
        part = part.logits() if isinstance(part, LazyLogits) else part
        options = {
            name: cut(value) if isinstance(value, Tensor) and value.shape == like.shape else value
            for name, value in options.items()
            if name != "num_items_in_batch"
        }
        labels = None if labels is None else cut(labels).to(part.device)
        own = float(loss_function(part, labels, *args, **options))
    return own, part, labels, None if given is None else cut(given)
