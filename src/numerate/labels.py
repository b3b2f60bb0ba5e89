"""Labels: ``ignore_index``, and the shift that aligns the labels of a causal model with its logits."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from numerate.checks import check_tensor

IGNORE_INDEX = -100


def shift_left(x: Tensor, fill: int) -> Tensor:
    """Shift ``x [.., T]`` one position to the left, so that each entry is where its token is predicted."""
    return F.pad(x, (0, 1), value=fill)[..., 1:]


def shift_all(
    labels: Tensor, position_weights: Tensor | None, position_ids: Tensor | None, ignore_index: int = IGNORE_INDEX
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Shift ``labels [.., T]`` of a causal model, and tensors of the same shape, to align them with its logits.

    Labels that need this equal ``input_ids``, or ``ignore_index``, at every position. The last position gets no label. A shifted
    position id of 0 still marks the first token of a document.
    """
    for name, value in (("position_weights", position_weights), ("position_ids", position_ids)):
        if value is not None:
            check_tensor(name, value, "of the shape of labels")
    weights = None if position_weights is None else shift_left(position_weights, 0)
    return shift_left(labels, ignore_index), weights, None if position_ids is None else shift_left(position_ids, 0)
