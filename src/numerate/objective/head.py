"""The head: how a hidden state becomes logits, and how a gradient of the logits goes back."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Head:
    """``softcap · tanh(scale · (hidden @ weight.T + bias) / softcap)``; what is None is left out."""

    weight: Tensor  # [V, H]
    bias: Tensor | None = None  # [V]
    scale: float | None = None
    softcap: float | None = None

    def shaped(self, raw: Tensor, columns: Tensor | None = None) -> Tensor:
        """Raw products ``[R, V]``, or those of some columns, to logits."""
        x = raw
        if self.bias is not None:
            x = x + (self.bias if columns is None else self.bias[columns]).to(x.dtype)
        if self.scale is not None:
            x = x * self.scale
        return x if self.softcap is None else self.softcap * torch.tanh(x / self.softcap)

    def unshaped(self, grad: Tensor, shaped: Tensor) -> Tensor:
        """The gradient of logits to that of the raw products."""
        if self.softcap is not None:
            grad = grad * (1 - (shaped / self.softcap).square())
        return grad if self.scale is None else grad * self.scale
