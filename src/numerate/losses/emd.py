"""EMD, earth mover's distance: how far the predicted mass has to move to the target.

    Σ_i p_i |v_i - y|                   for a one-hot target, the first Wasserstein distance

Fei et al.: Advancing Sequential Numerical Prediction in Autoregressive Models, ACL 2025, arXiv:2505.13077 (the digit
part of NTIL); Zausinger et al.: Regress, Don't Guess, ICML 2025, arXiv:2411.02083 (NTL-WAS, the same formula).

Known weakness: it is proper but not strictly. If 3 and 5 are equally likely, predicting 4 costs as much on average as predicting
3 and 5 with probability ½ each. :mod:`~numerate.losses.crps` is strictly proper.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from numerate.checks import check_choice, choices
from numerate.losses.base import NumericLoss, Suitability, TokenSettings
from numerate.losses.kernels import distances, shuffled_values, squashed
from numerate.vocab import NumericVocab

if TYPE_CHECKING:
    from typing_extensions import Unpack

EMDAblation = Literal["shuffled", "equal"]


def emd_loss(logits: Tensor, target: Tensor, distance: Tensor) -> Tensor:
    """Return the EMD ``[P]`` of logits ``[P, N]``, target index ``[P]`` and distances ``[N, N]``."""
    return (logits.softmax(-1) * distance[target]).sum(-1)


class EMDLoss(NumericLoss):
    """Earth mover's distance between the softmax over numeric tokens and the target; the formula is above.

    Args:
        vocab: the numeric tokens.
        squash: rescale distances to 1..squash, so that multi-digit tokens cost no more than single digits. A number > 1;
            None: off.
        ablation: controls without a number line: ``"shuffled"`` permutes the values; ``"equal"`` sets all distances to their
            mean (1 - p(label), up to a factor). None: off.
        seed: seed of the permutation.
        **shared: ``outside``, ``places``, ``place_sigma``, ``thousands``, ``ignore_index``; see
            :class:`~numerate.losses.base.NumericLoss`.

    Examples:
        >>> vocab = NumericVocab.from_texts({str(d): d for d in range(10)}, vocab_size=10)
        >>> logits = torch.full((1, 10), -40.0)
        >>> logits[0, 7] = 40.0
        >>> EMDLoss(vocab)(logits, torch.tensor([5]))
        tensor(2.)
    """

    name = "emd"
    sees = "Expected distance to the target: twice as far costs twice as much."
    distance: Tensor

    def __init__(
        self,
        vocab: NumericVocab,
        squash: float | None = None,
        ablation: EMDAblation | None = None,
        seed: int = 42,
        **shared: Unpack[TokenSettings],
    ) -> None:
        super().__init__(vocab, **shared)
        check_choice("ablation", ablation, (None, *choices(EMDAblation)))
        distance = squashed(distances(vocab.values if ablation != "shuffled" else shuffled_values(vocab.values, seed)), squash)
        if ablation == "equal":
            size = distance.shape[0]
            distance = (1 - torch.eye(size, dtype=distance.dtype)) * distance.sum() / max(1, size * (size - 1))
        self.keep_matrix("distance", distance)
        self.set_worst(distance.max())

    @classmethod
    def advice(cls, vocab: NumericVocab) -> tuple[Suitability, str]:
        """Distances grow with the range of values."""
        return wide_range_advice(vocab, "squash=9 bounds them")

    def cost(self, z: Tensor, rest: Tensor | None, target: Tensor) -> Tensor:
        """See :func:`emd_loss`."""
        return emd_loss(z, target, self.matrix("distance", z.dtype))


def wide_range_advice(vocab: NumericVocab, remedy: str) -> tuple[Suitability, str]:
    """Return the advice of losses in units of value: good for digits, fair for a wide range of values."""
    span = float(vocab.values[-1] - vocab.values[0])
    return ("good", "") if span <= 10 else ("fair", f"distances reach {span:,.0f}: {remedy}")
