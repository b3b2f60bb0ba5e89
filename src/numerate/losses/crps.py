"""CRPS, continuous ranked probability score: EMD minus half the spread, and therefore strictly proper.

    E|X - y| - ½ E|X - X'|  =  ∫ (CDF_p(x) - 1[x >= y])² dx

Matheson, Winkler: Scoring Rules for Continuous Probability Distributions, Management Science 1976; Gneiting, Raftery:
Strictly Proper Scoring Rules, Prediction, and Estimation, JASA 2007.
"""

from __future__ import annotations

from torch import Tensor

from numerate.losses.squared_emd import SquaredEMDLoss, cumulative_matrix, squared_emd_loss


def crps_loss(logits: Tensor, target: Tensor, values: Tensor) -> Tensor:
    """Return the CRPS ``[P]`` of logits ``[P, N]``, target index ``[P]`` and ascending values ``[N]``."""
    return squared_emd_loss(logits, target, cumulative_matrix(values.diff()))


class CRPSLoss(SquaredEMDLoss):
    """Continuous ranked probability score of the softmax over numeric tokens, in units of value; the formula is above.

    Args:
        vocab: the numeric tokens.
        **shared: ``outside``, ``places``, ``place_sigma``, ``thousands``, ``ignore_index``; see
            :class:`~numerate.losses.base.NumericLoss`.

    Examples:
        >>> import torch
        >>> from numerate.vocab import NumericVocab
        >>> vocab = NumericVocab.from_values({0: 10.0, 1: 20.0, 2: 40.0}, vocab_size=3)
        >>> CRPSLoss(vocab)(torch.tensor([[0.0, 0.0, -40.0]]), torch.tensor([2]))
        tensor(22.5000)
    """

    name = "crps"
    sees = "Expected distance to the target minus half the spread: hedging around the target beats being off to one side."

    def steps(self, values: Tensor) -> Tensor:
        """Return the differences of the values ``[N - 1]``."""
        return values.diff()
