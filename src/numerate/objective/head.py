"""The head: from raw products to logits, and from the gradient of the logits to the gradient of the products."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Head:
    """``softcap · tanh(scale · (hidden @ weight.T + bias) / softcap)``; settings that are None are skipped."""

    weight: Tensor  # [V, H]
    bias: Tensor | None = None  # [V]
    scale: float | None = None
    softcap: float | None = None

    def shaped(self, raw: Tensor, columns: Tensor | None = None) -> Tensor:
        """Return the logits of raw products ``[R, V]``, or of those in ``columns``."""
        x = raw
        if self.bias is not None:
            x = x + (self.bias if columns is None else self.bias[columns]).to(x.dtype)
        if self.scale is not None:
            x = x * self.scale
        return x if self.softcap is None else self.softcap * torch.tanh(x / self.softcap)

    def unshaped(self, grad: Tensor, shaped: Tensor) -> Tensor:
        """Return the gradient w.r.t. raw products from the gradient w.r.t. logits ``shaped``."""
        if self.softcap is not None:
            grad = grad * (1 - (shaped / self.softcap).square())
        return grad if self.scale is None else grad * self.scale
