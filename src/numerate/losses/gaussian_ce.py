"""Gaussian cross-entropy: the target is a Gaussian around the true value instead of a single token.

    - Σ_i q_i log p_i,    q_i ∝ exp(-(v_i - y)² / 2σ²),    p over the whole vocabulary

The baseline of Zausinger et al., ICML 2025 (arXiv:2411.02083), where σ is 1 or 2, and of SMMD.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from numerate.losses.base import TokenSettings
from numerate.losses.kernels import distances, gram_matrix
from numerate.losses.soft_target import SoftTargetLoss, soft_target_loss
from numerate.vocab import NumericVocab

if TYPE_CHECKING:
    from typing_extensions import Unpack

gaussian_ce_loss = soft_target_loss


def gaussian_targets(values: Tensor, sigma: float) -> Tensor:
    """Return a Gaussian of width ``sigma`` around each value, one per row ``[N, N]``."""
    gram = gram_matrix(distances(values), "gaussian", sigma)
    return gram / gram.sum(-1, keepdim=True)


class GaussianCELoss(SoftTargetLoss):
    """Cross-entropy with a Gaussian around the target value; the formula is above.

    Args:
        vocab: the numeric tokens.
        sigma: width of the Gaussian, in units of value.
        **shared: ``outside``, ``places``, ``place_sigma``, ``thousands``, ``ignore_index``; see
            :class:`~numerate.losses.base.NumericLoss`.

    Examples:
        >>> import torch
        >>> vocab = NumericVocab.from_texts({str(d): d for d in range(10)}, vocab_size=10)
        >>> GaussianCELoss(vocab)(torch.zeros(1, 10), torch.tensor([5]))  # log 10 for any target
        tensor(2.3026)
    """

    name = "gaussian_ce"
    sees = "Divergence of the bars from a Gaussian around the target: a one-hot prediction is not optimal."

    def __init__(self, vocab: NumericVocab, sigma: float = 1.0, **shared: Unpack[TokenSettings]) -> None:
        super().__init__(vocab, **shared)
        self.keep_matrix("soft", gaussian_targets(vocab.values, sigma))
