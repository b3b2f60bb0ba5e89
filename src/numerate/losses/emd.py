"""EMD, earth mover's distance: how far the predicted mass must travel to the target.

    Σ_i p_i |v_i - y|                   for a one-hot target, the first Wasserstein distance

Fei et al.: Advancing Sequential Numerical Prediction in Autoregressive Models, ACL 2025, arXiv:2505.13077 (the digit
part of NTIL); Zausinger et al.: Regress, Don't Guess, ICML 2025, arXiv:2411.02083 (NTL-WAS, the same formula).

It is proper but not strictly: half the mass on 3 and half on 5 costs the same as all of it on 4 when 3 and 5 are
equally true. :mod:`~numerate.losses.crps` repairs that.
"""

from __future__ import annotations

from torch import Tensor

from numerate.losses.base import Fit, NumericLoss, Outside
from numerate.losses.kernels import distances, squashed
from numerate.losses.rows import Places
from numerate.vocab import NumericVocab


def emd_loss(logits: Tensor, target: Tensor, distance: Tensor) -> Tensor:
    """EMD of each row: logits ``[P, N]``, target index ``[P]``, distance ``[N, N]`` to ``[P]``."""
    return (logits.softmax(-1) * distance[target]).sum(-1)


class EMDLoss(NumericLoss):
    """Earth mover's distance between the softmax over numeric tokens and the target; the formula is above.

    Args:
        vocab: the numeric tokens.
        squash: rescale distances to 1..squash, so that a wide vocabulary costs no more than ten digits do.
        outside, places, place_sigma, thousands: see :class:`~numerate.losses.base.NumericLoss`.

    Example:
        >>> import torch
        >>> vocab = NumericVocab.from_texts({str(d): d for d in range(10)}, vocab_size=10)
        >>> logits = torch.full((1, 10), -40.0)
        >>> logits[0, 7] = 40.0
        >>> EMDLoss(vocab)(logits, torch.tensor([5]))
        tensor(2.)
    """

    name = "emd"
    distance: Tensor

    def __init__(
        self,
        vocab: NumericVocab,
        squash: float | None = None,
        *,
        outside: Outside | None = None,
        places: Places = "uniform",
        place_sigma: float = 0.2,
        thousands: bool = False,
    ) -> None:
        super().__init__(vocab, outside=outside, places=places, place_sigma=place_sigma, thousands=thousands)
        distance = distances(vocab.values)
        if squash is not None:
            distance = squashed(distance, squash)
        self._keep_matrix("distance", distance)
        self.worst.copy_(distance.max())

    @classmethod
    def advice(cls, vocab: NumericVocab) -> tuple[Fit, str]:
        """Distances grow with the range of values."""
        return wide_range_advice(vocab, "squash=9 keeps them in bounds")

    def cost(self, z: Tensor, rest: Tensor | None, target: Tensor) -> Tensor:
        """See :func:`emd_loss`."""
        return emd_loss(z, target, self.matrix("distance", z.dtype))


def wide_range_advice(vocab: NumericVocab, remedy: str) -> tuple[Fit, str]:
    """For losses in units of value: fine on digits, large on wide vocabularies."""
    span = float(vocab.values[-1] - vocab.values[0])
    return ("good", "") if span <= 10 else ("fair", f"distances reach {span:,.0f}: {remedy}")
