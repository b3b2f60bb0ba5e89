"""RAFT's regression-aware term: the squared error of the mean that the distribution predicts.

    (y - Σ_i p_i v_i)²                  p over the whole vocabulary: mass on other tokens counts as a value of 0

Lukasik et al.: Better Autoregressive Regression with LLMs via Regression-Aware Fine-Tuning, ICLR 2025. Published without code;
TRACT (ACL 2025, arXiv:2503.04381) uses it with a weight of 1 at the token of a score.

The paper sums over the grid of all answers, such as the ratings 1 to 5, each one token. Here the grid is the numeric tokens, and
the cost is that of a token. So it is the paper's loss where a number is one token. In a longer number every token is a
regression of its own: for ``12`` a digit 1 and a digit 2, not the mean of a two-digit number; ``places`` can weigh them.

Like every loss of the mean it is blind to spread: half on 3 and half on 5 costs nothing for 4. It is also blind to text where
the label is 0: mass on text lowers the mean, and 0 is as low as it gets.

In the paper it replaces cross-entropy: train on ``RAFTLoss(vocab)(logits, labels)`` alone, or give the objective
``token_weights`` of 0 at the numbers and a ``weight`` of 1, so that cross-entropy teaches the text and RAFT the numbers (TRACT):

    text = (vocab.index_of(labels) < 0).float()
    NumericObjective(RAFTLoss(vocab), weight=1.0)(logits, labels, token_weights=text)

Otherwise the objective adds it to cross-entropy, as it does with every loss.
"""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor

from numerate.losses.base import NumericLoss, Suitability, TokenSettings
from numerate.vocab import NumericVocab


def raft_loss(logits: Tensor, target: Tensor, values: Tensor, log_mass: Tensor | None = None) -> Tensor:
    """Return RAFT ``[P]`` of logits ``[P, N]``, target index ``[P]`` and values ``[N]``, in float64 for any dtype of the logits.

    ``log_mass [P]``, the log-probability of the numeric tokens in the whole vocabulary, extends the softmax to it.
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
            vocabulary. ``"ignore"`` renormalises over the numeric tokens, which is ``ntl_mse``; ``"penalize"`` also charges
            mass outside as more than the worst number.

    Examples:
        >>> vocab = NumericVocab.from_values({rating: float(rating) for rating in range(1, 6)}, vocab_size=7)
        >>> logits = torch.full((1, 7), -40.0)
        >>> logits[0, 2] = logits[0, 4] = logits[0, 6] = 0.0  # a third each on the ratings 2 and 4, and on text
        >>> label = torch.tensor([3])
        >>> RAFTLoss(vocab)(logits, label), RAFTLoss(vocab, outside="ignore")(logits, label)
        (tensor(1.), tensor(0.))
    """

    name = "raft"
    sees = "Only the mean of the bars, squared error; mass on tokens that are no numbers counts as 0."
    outsides = ("ignore", "penalize", "zero")
    default_outside = "zero"

    def __init__(self, vocab: NumericVocab, **shared: Unpack[TokenSettings]) -> None:
        super().__init__(vocab, **shared)
        self.check_scale(vocab.values.square())
        self.set_worst((vocab.values[-1] - vocab.values[0]).square())

    @classmethod
    def advice(cls, vocab: NumericVocab) -> tuple[Suitability, str]:
        """Poor for a wide range of values, and meant for numbers of one token."""
        span = float(vocab.values[-1] - vocab.values[0])
        if span > 10:
            return "poor", f"squared distances reach {span * span:,.0f}"
        return "fair", "for numbers of one token, such as ratings: each token of a longer number is scored by itself"

    def cost(self, z: Tensor, rest: Tensor | None, target: Tensor) -> Tensor:
        """See :func:`raft_loss`."""
        log_mass = self.log_mass(z, rest) if self.outside == "zero" else None
        return raft_loss(z, target, self.values, log_mass)
