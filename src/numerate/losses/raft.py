"""RAFT's regression-aware term: the squared error of the mean of the predictive distribution.

    (y - Σ_i p_i v_i)²                  p over the whole vocabulary; mass on non-numeric tokens counts as a value of 0

Lukasik et al.: Better Autoregressive Regression with LLMs via Regression-Aware Fine-Tuning, ICLR 2025. Published without code;
TRACT (ACL 2025, arXiv:2503.04381) uses it with a weight of 1 at the token of a score.

The paper sums over a grid of possible answers, such as the ratings 1 to 5, each a single token. Here the grid is the numeric
tokens, so this is the paper's loss for single-token numbers. In a longer number, each token is a separate regression: ``12`` is
a digit 1 and a digit 2, not a two-digit number; ``places`` can weight them.

Known weaknesses: like every loss of the mean it ignores spread: for 4, half the mass on 3 and half on 5 costs nothing. For the
label 0, mass on text costs nothing either.

In the paper it replaces cross-entropy: train on ``RAFTLoss(vocab)(logits, labels)`` alone, or set ``token_weights`` to 0 at the
numbers and ``weight=1``, so that cross-entropy trains the text and RAFT the numbers (TRACT):

    text = (vocab.index_of(labels) < 0).float()
    NumericObjective(RAFTLoss(vocab), weight=1.0)(logits, labels, token_weights=text)

Otherwise the objective adds it to cross-entropy, like every loss.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from numerate.losses.base import NumericLoss, Suitability, TokenSettings
from numerate.vocab import NumericVocab

if TYPE_CHECKING:
    from typing_extensions import Unpack


def raft_loss(logits: Tensor, target: Tensor, values: Tensor, log_mass: Tensor | None = None) -> Tensor:
    """Return RAFT ``[P]`` of logits ``[P, N]``, target index ``[P]`` and values ``[N]``, in float64 for any dtype of the logits.

    ``log_mass [P]``, the log-probability of all numeric tokens, extends the softmax to the whole vocabulary.
    """
    y = values[target]
    gap = (logits.softmax(-1) * (values - y[:, None]).to(logits.dtype)).sum(-1)
    if log_mass is not None:
        gap = log_mass.exp().to(gap.dtype) * gap + torch.expm1(log_mass).to(gap.dtype) * y.to(gap.dtype)
    return gap.square()


class RAFTLoss(NumericLoss):
    """Squared error of the predicted mean; the formula is above.

    Args:
        vocab: the numeric tokens.
        **shared: ``outside``, ``places``, ``place_sigma``, ``thousands``, ``ignore_index``; see
            :class:`~numerate.losses.base.NumericLoss`. ``outside="zero"``, the default, is the paper's softmax over the whole
            vocabulary. ``"ignore"`` renormalises over the numeric tokens, which is ``ntl_mse``; with ``"penalize"``, mass
            outside costs more than the worst number.

    Examples:
        >>> vocab = NumericVocab.from_values({rating: float(rating) for rating in range(1, 6)}, vocab_size=7)
        >>> logits = torch.full((1, 7), -40.0)
        >>> logits[0, 2] = logits[0, 4] = logits[0, 6] = 0.0  # a third each on the ratings 2 and 4 and on text
        >>> label = torch.tensor([3])
        >>> RAFTLoss(vocab)(logits, label), RAFTLoss(vocab, outside="ignore")(logits, label)
        (tensor(1.), tensor(0.))
    """

    name = "raft"
    sees = "Only the mean of the bars, squared error; mass on non-numeric tokens counts as 0."
    outsides = ("ignore", "penalize", "zero")
    default_outside = "zero"

    def __init__(self, vocab: NumericVocab, **shared: Unpack[TokenSettings]) -> None:
        super().__init__(vocab, **shared)
        self.check_scale(vocab.values.square())
        self.set_worst((vocab.values[-1] - vocab.values[0]).square())

    @classmethod
    def advice(cls, vocab: NumericVocab) -> tuple[Suitability, str]:
        """Poor for a wide range of values; meant for single-token numbers."""
        span = float(vocab.values[-1] - vocab.values[0])
        if span > 10:
            return "poor", f"squared distances reach {span * span:,.0f}"
        return "fair", "for single-token numbers, such as ratings: tokens of longer numbers are scored separately"

    def cost(self, z: Tensor, rest: Tensor | None, target: Tensor) -> Tensor:
        """See :func:`raft_loss`."""
        log_mass = self.log_mass(z, rest) if self.outside == "zero" else None
        return raft_loss(z, target, self.values, log_mass)
