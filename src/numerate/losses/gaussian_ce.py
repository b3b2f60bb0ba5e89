"""Gaussian cross-entropy: a bell around the target instead of a single token.

    - Σ_i q_i log p_i,    q_i ∝ exp(-(v_i - y)² / 2σ²),    p over the whole vocabulary

The baseline of Zausinger et al., ICML 2025 (arXiv:2411.02083), where σ is 1 or 2, and of SMMD.
"""

from __future__ import annotations

from torch import Tensor

from numerate.losses.base import Outside
from numerate.losses.kernels import distances, gram_matrix
from numerate.losses.rows import Places
from numerate.losses.soft_target import SoftTargetLoss, soft_target_loss
from numerate.vocab import NumericVocab

gaussian_ce_loss = soft_target_loss


def gaussian_targets(values: Tensor, sigma: float) -> Tensor:
    """Rows ``[N, N]`` of a bell of width ``sigma`` around each value."""
    bell = gram_matrix(distances(values), "gaussian", sigma)
    return bell / bell.sum(-1, keepdim=True)


class GaussianCELoss(SoftTargetLoss):
    """Cross-entropy with a Gaussian around the target value; the formula is above.

    Args:
        vocab: the numeric tokens.
        sigma: width of the bell, in units of value.
        outside, places, place_sigma, thousands: see :class:`~numerate.losses.base.NumericLoss`.

    Example:
        >>> import torch
        >>> vocab = NumericVocab.from_texts({str(d): d for d in range(10)}, vocab_size=10)
        >>> GaussianCELoss(vocab)(torch.zeros(1, 10), torch.tensor([5]))  # log 10, whatever the target
        tensor(2.3026)
    """

    name = "gaussian_ce"

    def __init__(
        self,
        vocab: NumericVocab,
        sigma: float = 1.0,
        *,
        outside: Outside | None = None,
        places: Places = "uniform",
        place_sigma: float = 0.2,
        thousands: bool = False,
    ) -> None:
        soft = gaussian_targets(vocab.values, sigma)
        super().__init__(vocab, soft, outside=outside, places=places, place_sigma=place_sigma, thousands=thousands)
