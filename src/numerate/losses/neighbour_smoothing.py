"""Distance-aware label smoothing: most target mass on the true token, the rest spread over the others, more on near ones.

    - Σ_i q_i log p_i,    q = (1 - η) e_t + η ψ(· | t),    p over the whole vocabulary

    triangular   ψ ∝ 1 - |v_i - y| / range      η = 0.08, the best of the paper
    binomial     ψ = Binomial(N - 1, t / (N - 1)) over ranks, mean t     η = 0.05
    poisson      ψ ∝ Poisson(t) over ranks      η = 0.02
    uniform      ψ = 1 / N                      η = 0.05

Wang et al., ICCV 2025. The paper does not give the parameters of its binomial and Poisson targets; here their mean is the rank
of the target.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from numerate.checks import check_choice, check_number, choices
from numerate.losses.base import TokenSettings
from numerate.losses.kernels import distances
from numerate.losses.soft_target import SoftTargetLoss, soft_target_loss
from numerate.vocab import NumericVocab

if TYPE_CHECKING:
    from typing_extensions import Unpack

Spread = Literal["triangular", "binomial", "poisson", "uniform"]

neighbour_smoothing_loss = soft_target_loss


def _binomial(values: Tensor) -> Tensor:
    ranks = torch.arange(values.shape[0], dtype=torch.float64)
    trials = max(1, values.shape[0] - 1)
    return torch.exp(torch.distributions.Binomial(trials, probs=ranks[:, None] / trials).log_prob(ranks))


def _poisson(values: Tensor) -> Tensor:
    ranks = torch.arange(values.shape[0], dtype=torch.float64)
    return torch.exp(torch.xlogy(ranks, ranks[:, None]) - ranks[:, None] - torch.lgamma(ranks + 1))


SPREADS: dict[Spread, tuple[float, Callable[[Tensor], Tensor]]] = {
    "triangular": (0.08, lambda values: 1 - distances(values) / distances(values).max().clamp_min(1e-300)),
    "binomial": (0.05, _binomial),
    "poisson": (0.02, _poisson),
    "uniform": (0.05, lambda values: torch.ones_like(distances(values))),
}


class NeighbourSmoothingLoss(SoftTargetLoss):
    """Cross-entropy with some of the target mass on neighbouring values; the formula is above.

    Args:
        vocab: the numeric tokens.
        spread: shape of ψ.
        eta: share of the target mass that is spread; None: the paper's value for that shape.
        **shared: ``outside``, ``places``, ``place_sigma``, ``thousands``, ``ignore_index``; see
            :class:`~numerate.losses.base.NumericLoss`.

    Examples:
        >>> vocab = NumericVocab.from_texts({str(d): d for d in range(10)}, vocab_size=10)
        >>> NeighbourSmoothingLoss(vocab)(torch.zeros(1, 10), torch.tensor([5]))
        tensor(2.3026)
    """

    name = "neighbour_smoothing"
    sees = "Cross-entropy with a little of the target mass on other digits, more on near ones."

    def __init__(
        self, vocab: NumericVocab, spread: Spread = "triangular", eta: float | None = None, **shared: Unpack[TokenSettings]
    ) -> None:
        super().__init__(vocab, **shared)
        check_choice("spread", spread, choices(Spread))
        default, shape = SPREADS[spread]
        share = default if eta is None else check_number("eta", eta, least=0.0)
        if share > 1:
            raise ValueError(f"eta={eta!r} is out of range: expected a share in [0, 1].")
        psi = shape(vocab.values)
        soft = (1 - share) * torch.eye(vocab.size, dtype=torch.float64) + share * psi / psi.sum(-1, keepdim=True)
        self.keep_matrix("soft", soft)
