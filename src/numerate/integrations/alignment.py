"""Where a model predicts its labels, found by comparing its own loss with the cross-entropy of its logits.

A causal model's labels stand where their tokens do, so they are shifted by one; those of a masked model or a decoder are not.
No list says which: some ``ForCausalLM`` classes do not shift. So each way to align labels gives a figure, and the one that
agrees with the model's own loss is right.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from numerate.integrations.lazy_logits import LazyLogits
from numerate.integrations.step import Batch, shifted

SHIFTED, AS_THEY_ARE, GIVEN = "labels shifted by one", "labels as they are", "shift_labels as they are"
IGNORE = -100  # what models ignore

_WIDTH = 64  # positions that are enough to tell alignments apart


def shifts_labels(model: nn.Module, batch: Batch) -> bool:
    """Whether a model shifts its labels by one, found from a batch with labels; raise if its loss is no cross-entropy.

    Runs the model once as it is, in evaluation mode and without a graph.

    Example::

        shifts_labels(model, {"input_ids": ids, "labels": ids})  # True for LlamaForCausalLM, False for BertForMaskedLM
    """
    training = model.training
    try:
        with torch.no_grad():
            outputs = model.eval()(**batch)
    finally:
        model.train(training)
    own, logits = outputs["loss"], outputs["logits"]
    labels = widened(batch["labels"].to(logits.device), logits.shape[-2])
    figures = cross_entropies(logits, alignments(labels, shift=True))
    found = agreeing(float(own), figures, logits.dtype)
    if len(found) != 1:
        raise ValueError(disagreement(type(model).__name__, float(own), figures))
    return found == [SHIFTED]


def alignments(labels: Tensor | None, given: Tensor | None = None, *, shift: bool) -> dict[str, Tensor]:
    """Each way to align labels ``[.., T]`` with logits, the likeliest first."""
    found = {} if given is None else {GIVEN: given}
    if labels is not None:
        ways = {SHIFTED: shifted(labels, IGNORE), AS_THEY_ARE: labels}
        found |= ways if shift else dict(reversed(ways.items()))
    return found


def widened(labels: Tensor, length: int) -> Tensor:
    """Labels ``[.., T]`` for logits of more positions: a model puts what it adds before the text."""
    return F.pad(labels, (max(length - labels.shape[-1], 0), 0), value=IGNORE)


def cross_entropies(logits: Tensor, targets: Mapping[str, Tensor]) -> dict[str, float]:
    """The mean cross-entropy of logits ``[.., T, V]`` for each alignment, a row at a time; NaN without a label."""
    flat = logits.detach().reshape(-1, *logits.shape[-2:])

    def figure(labels: Tensor) -> float:
        labels = labels.reshape(flat.shape[:-1])
        total = sum(float(F.cross_entropy(row.float(), line, reduction="sum")) for row, line in zip(flat, labels, strict=True))
        count = int((labels != IGNORE).sum())
        return total / count if count else float("nan")

    return {name: figure(labels) for name, labels in targets.items()}


def agreeing(own: float, figures: Mapping[str, float], dtype: torch.dtype) -> list[str]:
    """The alignments whose cross-entropy is a model's own loss, as far as can be told: more than one if they hardly differ."""
    size = max(abs(own), 1.0)
    errors = {name: abs(figure - own) for name, figure in figures.items()}
    nearest = min(errors.values())
    if nearest > (2e-2 if dtype.itemsize < 4 else 1e-4) * size:
        return []
    return [name for name, error in errors.items() if error <= max(10 * nearest, 1e-6 * size)]


def disagreement(name: str, own: float, figures: Mapping[str, float]) -> str:
    """What to tell a user whose model computes something else."""
    told = ", ".join(f"{figure:.6g} with {way}" for way, figure in figures.items())
    return (
        f"the loss of {name} is {own:.6g}, and the cross-entropy of its logits is {told}: expected one of them. Its loss is not "
        "a plain cross-entropy of its logits; use objective(logits, labels) in a loss of your own."
    )


def window(
    loss_function: Callable[..., Tensor], logits: Tensor, labels: Tensor | None, args: tuple[Any, ...], options: dict[str, Any]
) -> tuple[float, Tensor, Tensor | None, Tensor | None]:
    """A loss function's value at a few positions, and the logits, ``labels`` and ``shift_labels`` there."""
    given = options.get("shift_labels")
    like = given if labels is None else labels
    assert like is not None
    shape = like.shape if like.dim() > 1 else (1, *like.shape)
    lines = like.reshape(shape).flatten(0, -2)  # [R, T]
    row = int((lines != IGNORE).sum(-1).argmax())
    begin = max(int((lines[row] != IGNORE).int().argmax()) - 1, 0)

    def cut(tensor: Tensor) -> Tensor:  # [.., T] to [1, W]
        return tensor.reshape(lines.shape)[row : row + 1, begin : begin + _WIDTH]

    with torch.no_grad():
        part = logits.reshape(*lines.shape, logits.shape[-1])[row : row + 1, begin : begin + _WIDTH]
        part = part.logits() if isinstance(part, LazyLogits) else part
        options = {
            name: cut(value) if isinstance(value, Tensor) and value.shape == like.shape else value
            for name, value in options.items()
            if name != "num_items_in_batch"
        }
        labels = None if labels is None else cut(labels).to(part.device)
        own = float(loss_function(part, labels, *args, **options))
    return own, part, labels, None if given is None else cut(given)
