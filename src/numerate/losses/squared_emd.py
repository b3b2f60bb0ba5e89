"""Squared EMD: the squared difference of two cumulative distributions, over the distinct values in order.

    Σ_i (CDF_p(i) - CDF_q(i))²

Hou, Yu, Samaras: Squared Earth Mover's Distance-based Loss for Training Deep Neural Networks, 2016, arXiv:1611.05916.
On a unit grid it is the CRPS, and half the MMD of the kernel -|x - y|.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from numerate.losses.base import NumericLoss, Suitability, TokenSettings
from numerate.losses.emd import wide_range_advice
from numerate.losses.logit_rows import residual
from numerate.vocab import NumericVocab

if TYPE_CHECKING:
    from typing_extensions import Unpack


def cumulative_matrix(steps: Tensor) -> Tensor:
    """Return the matrix ``[N, N - 1]`` that maps a distribution ``[N]`` to its CDF times the root of each step ``[N - 1]``.

    ``steps[i]`` is the distance from value i to value i+1: 1 for ranks, the difference of values for the CRPS, 0 between
    tokens of equal value.
    """
    below = torch.ones(steps.shape[0] + 1, steps.shape[0], dtype=steps.dtype, device=steps.device).triu()  # i <= j
    return below * steps.sqrt()


def squared_emd_loss(logits: Tensor, target: Tensor, cumulative: Tensor) -> Tensor:
    """Return the squared EMD ``[P]`` of logits ``[P, N]`` ordered by value, target ``[P]`` and :func:`cumulative_matrix`.

    Uses a matrix product because ``torch.compile`` computes a wrong gradient of ``cumsum`` on a CPU.
    """
    return (residual(logits, target) @ cumulative).square().sum(-1)


class SquaredEMDLoss(NumericLoss):
    """Squared earth mover's distance over the ranks of the values; the formula is above.

    Args:
        vocab: the numeric tokens. Tokens of equal value (``5``, ``05``) share a rank.
        **shared: ``outside``, ``places``, ``place_sigma``, ``thousands``, ``ignore_index``; see
            :class:`~numerate.losses.base.NumericLoss`.

    Examples:
        >>> vocab = NumericVocab.from_texts({str(d): d for d in range(10)}, vocab_size=10)
        >>> logits = torch.full((1, 10), -40.0)
        >>> logits[0, 7] = 40.0
        >>> SquaredEMDLoss(vocab)(logits, torch.tensor([5]))
        tensor(2.)
    """

    name = "squared_emd"
    sees = "The squared difference of the cumulative distributions: distance, and whether the mass is on one side."
    strictly_proper = True
    cumulative: Tensor

    def __init__(self, vocab: NumericVocab, **shared: Unpack[TokenSettings]) -> None:
        super().__init__(vocab, **shared)
        step = self.steps(vocab.values)
        self.keep_matrix("cumulative", cumulative_matrix(step))
        self.set_worst(step.sum())

    def steps(self, values: Tensor) -> Tensor:
        """Return ones ``[N - 1]`` between values that differ, zeros between equal ones."""
        return (values.diff() > 0).double()

    @classmethod
    def advice(cls, vocab: NumericVocab) -> tuple[Suitability, str]:
        """Distances grow with the range of values."""
        return wide_range_advice(vocab, "give it a small weight")

    def cost(self, z: Tensor, rest: Tensor | None, target: Tensor) -> Tensor:
        """See :func:`squared_emd_loss`."""
        return squared_emd_loss(z, target, self.matrix("cumulative", z.dtype))
