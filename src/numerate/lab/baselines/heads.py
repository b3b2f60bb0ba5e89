"""Heads of a backbone that predict a number from the hidden state of the last token of a question, for E stacked models.

    scalar      one output; squared error on the standardised number, or on its logarithm
    hl_gauss    a histogram; cross-entropy with a Gaussian around the number, integrated over each bin (Imani & White 2018,
                "Improving Regression Performance with Distributional Losses"; Farebrother et al. 2024, "Stop Regressing")

Numbers are on a :class:`~numerate.lab.baselines.numbers.Scale`. Bins of the histogram have one width on that scale and go from
the lowest to the highest number of the training rows, and three standard deviations of the Gaussian beyond.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from numerate.distribution.exact import Floats
from numerate.lab.baselines.numbers import Scale
from numerate.lab.training.stacked.layers import StackedLinear

BINS = 100
SIGMA = 0.75  # in bins
_BEYOND = 3 * SIGMA  # bins on either side of the training range


class ScalarHead(nn.Module):
    """One output for each model: the number on its scale."""

    outputs: ClassVar[int] = 1
    settings: ClassVar[dict[str, Any]] = {}

    def __init__(self, linear: StackedLinear, numbers: Sequence[Tensor]) -> None:
        super().__init__()
        self.linear = linear

    def loss(self, out: Tensor, numbers: Tensor) -> Tensor:
        """Return the squared error of each model, ``[E]``, from outputs ``[E, B, 1]`` and numbers ``[E, B]``."""
        return (out[..., 0] - numbers).square().mean(1)

    def answers(self, out: Tensor, scales: Sequence[Scale]) -> dict[str, list[Floats]]:
        """Return the answers of each model to its questions, by decision."""
        return {"scalar": [scale.restored(own[:, 0].double().numpy()) for own, scale in zip(out, scales, strict=True)]}


class HLGaussHead(nn.Module):
    """Logits of the bins of a histogram for each model.

    Args:
        linear: from hidden states to logits.
        numbers: the training rows of each model, on its scale.
    """

    outputs: ClassVar[int] = BINS
    settings: ClassVar[dict[str, Any]] = {"bins": BINS, "sigma": SIGMA}

    def __init__(self, linear: StackedLinear, numbers: Sequence[Tensor]) -> None:
        super().__init__()
        self.linear = linear
        self.edges: Tensor
        self.register_buffer("edges", torch.stack([bin_edges(own) for own in numbers]), persistent=False)  # [E, bins + 1]

    def loss(self, out: Tensor, numbers: Tensor) -> Tensor:
        """Return the cross-entropy of each model, ``[E]``, from logits ``[E, B, bins]`` and numbers ``[E, B]``."""
        targets = hl_gauss_targets(numbers, self.edges[:, None])
        return -(targets * out.log_softmax(-1)).sum(-1).mean(1)

    def answers(self, out: Tensor, scales: Sequence[Scale]) -> dict[str, list[Floats]]:
        """Return the mean and the median of each model's histogram; within a bin, mass is even on the scale."""
        means, medians = [], []
        for own, edges, scale in zip(out.double().softmax(-1).numpy(), self.edges.double().cpu().numpy(), scales, strict=True):
            means.append(own @ scale.restored((edges[1:] + edges[:-1]) / 2))
            medians.append(scale.restored(_medians(own, edges)))
        return {"hl_gauss_mean": means, "hl_gauss_median": medians}


HEADS: dict[str, type[ScalarHead] | type[HLGaussHead]] = {"scalar": ScalarHead, "hl_gauss": HLGaussHead}


def bin_edges(numbers: Tensor, bins: int = BINS) -> Tensor:
    """Return the edges ``[bins + 1]`` of a histogram over these numbers."""
    lowest, highest = float(numbers.min()), float(numbers.max())
    width = ((highest - lowest) or 1.0) / (bins - 2 * _BEYOND)
    return torch.linspace(lowest - _BEYOND * width, highest + _BEYOND * width, bins + 1)


def hl_gauss_targets(numbers: Tensor, edges: Tensor) -> Tensor:
    """Return the mass of a Gaussian around each number in each bin, which sums to one.

    Args:
        numbers: ``[..]``.
        edges: of bins of one width, ``[.., bins + 1]``; its other dimensions broadcast with those of the numbers.

    Examples:
        >>> hl_gauss_targets(torch.tensor(0.5), torch.linspace(-1, 2, 4)).round(decimals=3)  # in the middle of three bins
        tensor([0.2410, 0.5190, 0.2410])
    """
    sigma = SIGMA * (edges[..., 1:2] - edges[..., :1])
    below = torch.special.ndtr((edges - numbers[..., None]) / sigma)
    mass: Tensor = below.diff(dim=-1)
    return mass / mass.sum(-1, keepdim=True)


def _medians(shares: Floats, edges: Floats) -> Floats:
    """Return where half of the mass ``[n, bins]`` is reached."""
    below = np.cumsum(shares, axis=1)
    at = (below < below[:, -1:] / 2).sum(1)  # the bin of the median
    rows = np.arange(len(shares))
    before = below[rows, at] - shares[rows, at]
    within = (below[:, -1] / 2 - before) / shares[rows, at]
    medians: Floats = edges[at] + within * (edges[1] - edges[0])
    return medians
