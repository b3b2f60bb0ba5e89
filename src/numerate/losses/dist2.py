"""DIST2: KL divergence from a target that decays with squared distance.

    KL(q ‖ p),    q_i ∝ exp(-(v_i - y)² / τ)

Chung et al.: Teaching Metric Distance to Discrete Autoregressive Language Models, ICLR 2026, arXiv:2503.02379. The
published code takes p over the numeric tokens (``outside="ignore"``, the default here), τ = 2 or 4, and the weights
n, n-1, .., 1 for the tokens of a number (``places="linear"``); the paper has τ = 1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from numerate.checks import check_number
from numerate.losses.base import TokenSettings
from numerate.losses.gaussian_ce import gaussian_targets
from numerate.losses.soft_target import SoftTargetLoss, soft_target_loss
from numerate.vocab import NumericVocab

if TYPE_CHECKING:
    from typing_extensions import Unpack


def dist2_loss(logits: Tensor, target: Tensor, soft: Tensor, entropy: Tensor, rest: Tensor | None = None) -> Tensor:
    """Return DIST2 ``[P]`` of logits ``[P, N]``, target ``[P]``, soft targets ``[N, N]`` and their entropy ``[N]``."""
    return soft_target_loss(logits, target, soft, rest) - entropy[target]


class DIST2Loss(SoftTargetLoss):
    """Distance-aware divergence; the formula is above.

    Args:
        vocab: the numeric tokens.
        tau: temperature; larger is flatter.
        **shared: ``outside``, ``places``, ``place_sigma``, ``thousands``, ``ignore_index``; see
            :class:`~numerate.losses.base.NumericLoss`.

    Examples:
        >>> vocab = NumericVocab.from_texts({str(d): d for d in range(10)}, vocab_size=10)
        >>> target = torch.tensor([5])
        >>> loss = DIST2Loss(vocab, tau=2.0)
        >>> loss(-((torch.arange(10.0) - 5) ** 2)[None] / 2, target).abs() < 1e-6  # predicting the soft target costs nothing
        tensor(True)
    """

    name = "dist2"
    sees = "Divergence of the bars from a narrow Gaussian around the target: a one-hot prediction is not optimal."
    default_outside = "ignore"
    entropy: Tensor

    def __init__(self, vocab: NumericVocab, tau: float = 1.0, **shared: Unpack[TokenSettings]) -> None:
        super().__init__(vocab, **shared)
        sigma = (check_number("tau", tau, above=0.0) / 2) ** 0.5  # exp(-d²/τ) is a Gaussian of variance τ/2
        soft = gaussian_targets(vocab.values, sigma)
        self.keep_matrix("soft", soft)
        self.keep_matrix("entropy", torch.special.entr(soft).sum(-1))

    def cost(self, z: Tensor, rest: Tensor | None, target: Tensor) -> Tensor:
        """See :func:`dist2_loss`."""
        return dist2_loss(z, target, self.matrix("soft", z.dtype), self.matrix("entropy", z.dtype), rest)
