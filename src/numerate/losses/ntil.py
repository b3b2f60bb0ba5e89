"""NTIL, Numerical Token Integrity Loss: place-weighted earth mover's distance of the digits, plus the error of the number.

For a number of n digits, X predicted and Y true:

    emd         mean over its tokens of (1 + sigma)^k · Σ_i p_i |i - t|       k digits to its right, at most 15
    relative    |X - Y| / (max(X, Y) + ε)
    magnitude   log (max(X, Y) + ε) / (min(X, Y) + ε)
    ntil        emd_weight · emd + alpha · relative + beta · magnitude

X takes the argmax token at every place; its gradient is that of the softmax at temperature tau (straight-through).
ε is one unit in the last place of the label: 1 for integers, as in the published code; at least 1e-15 of the leading place.

Fei et al.: Advancing Sequential Numerical Prediction in Autoregressive Models, ACL 2025, arXiv:2505.13077.

Known weakness: the published code supports integers only. A decimal point splits a number in two, so that for the label 0.98,
1.01 costs more than 1.98. The default, ``numbers="values"``, supports decimals and multi-digit tokens; the sign is left to
cross-entropy. ``variant="released"`` reproduces the published code.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from numerate.checks import check_choice, check_number, choices
from numerate.losses.base import MOST_FACTOR, MOST_PLACE_SIGMA, SharedSettings, Suitability, Variant, check_vocab
from numerate.losses.emd import emd_loss
from numerate.losses.kernels import distances
from numerate.losses.logit_rows import by_mean
from numerate.losses.number_level import NumberLevelLoss, label_amounts, mean_amount, token_amounts, token_scale
from numerate.losses.target_tokens import NumberTargets, Targets
from numerate.spans import EXACT_DIGITS, Numbers, sum_by
from numerate.vocab import NumericVocab

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

Average = Literal["number", "sequence"]


def relative_loss(guess: Tensor, value: Tensor, eps: Tensor) -> Tensor:
    """Return the relative error of numbers ``[S]``, between 0 and 1."""
    return (guess - value).abs() / (torch.maximum(guess, value) + eps)


def magnitude_loss(guess: Tensor, value: Tensor, eps: Tensor) -> Tensor:
    """Return the logarithm of the ratio of two numbers ``[S]``, larger over smaller."""
    return ((torch.maximum(guess, value) + eps) / (torch.minimum(guess, value) + eps)).log()


def whole_slope(guess: Tensor, value: Tensor, eps: Tensor, alpha: float, beta: float) -> Tensor:
    """Return the derivative of ``alpha · relative + beta · magnitude`` w.r.t. ``guess [S]``; 0 where the guess is correct."""
    relative = torch.where(guess > value, (value + eps) / (guess + eps).square(), 1 / (value + eps))
    return (guess - value).sign() * (alpha * relative + beta / (guess + eps))


def ntil_loss(
    emd: Tensor,
    guess: Tensor,
    value: Tensor,
    eps: Tensor,
    alpha: float = 0.2,
    beta: float = 0.2,
    emd_weight: float = 1.0,
) -> Tensor:
    """Return NTIL of numbers ``[S]`` from their weighted EMD, predicted and true values, and ε."""
    return emd_weight * emd + alpha * relative_loss(guess, value, eps) + beta * magnitude_loss(guess, value, eps)


class NTILLoss(NumberLevelLoss):
    """Numerical Token Integrity Loss; the formula is above.

    Args:
        vocab: the numeric tokens.
        alpha: weight of the relative error; 0: off.
        beta: weight of the magnitude error; 0: off.
        sigma: each place to the left has ``1 + sigma`` times the weight; 0: equal weights.
        emd_weight: weight of the earth mover's distance; 0: off.
        tau: temperature of the straight-through softmax.
        noise: scale of Gumbel noise on the logits of that softmax. None: 0 (deterministic), or 0.01 for
            ``variant="released"``.
        numbers: ``"values"`` (decimals, multi-digit tokens) or ``"runs"`` of digits. None: ``"values"``, or ``"runs"`` for
            ``variant="released"``.
        average: average over each ``"number"``, or over each ``"sequence"`` and then over all sequences, including those
            without numbers. None: ``"number"``, or ``"sequence"`` for ``variant="released"``.
        variant: ``"paper"``: the paper's formula on every numeric token. ``"released"``: reproduces the published code: single
            digits, and the defaults above.
        **shared: ``outside``, ``thousands``, ``ignore_index``; see :class:`~numerate.losses.base.NumericLoss`.

    Examples:
        >>> vocab = NumericVocab.from_texts({str(d): d for d in range(10)}, vocab_size=10)
        >>> logits = torch.full((3, 10), -40.0)
        >>> logits[[0, 1, 2], [1, 9, 9]] = 40.0  # predicts 199
        >>> NTILLoss(vocab, emd_weight=0, beta=0, alpha=1)(logits, torch.tensor([2, 0, 0]))  # 1 / (200 + 1)
        tensor(0.0050)
    """

    name = "ntil"
    sees = "Expected distance of each digit, plus the relative error of the most likely number."
    distance: Tensor
    amounts: Tensor

    def __init__(
        self,
        vocab: NumericVocab,
        alpha: float = 0.2,
        beta: float = 0.2,
        sigma: float = 0.2,
        emd_weight: float = 1.0,
        tau: float = 0.1,
        noise: float | None = None,
        numbers: Numbers | None = None,
        average: Average | None = None,
        variant: Variant = "paper",
        **shared: Unpack[SharedSettings],
    ) -> None:
        check_choice("variant", variant, choices(Variant))
        released = variant == "released"
        if released:
            vocab = check_vocab(vocab).restrict(digits_only=True)
        super().__init__(vocab, **shared)
        if bool((vocab.values < 0).any()):
            raise ValueError("vocab has values below 0: expected values >= 0, because NTIL compares magnitudes; use NumberLoss.")
        self.variant: Variant = variant
        self.alpha = check_number("alpha", alpha, least=0.0, most=MOST_FACTOR)
        self.beta = check_number("beta", beta, least=0.0, most=MOST_FACTOR)
        self.sigma = check_number("sigma", sigma, above=-1.0, most=MOST_PLACE_SIGMA)
        self.emd_weight = check_number("emd_weight", emd_weight, least=0.0, most=MOST_FACTOR)
        self.tau = check_number("tau", tau, least=1 / MOST_FACTOR)
        self.noise = check_number("noise", 0.01 * released if noise is None else noise, least=0.0, most=MOST_FACTOR)
        self.read_as(numbers if numbers is not None else "runs" if released else "values")
        self.average: Average = average if average is not None else "sequence" if released else "number"
        check_choice("average", self.average, choices(Average))
        # Distances in units of the label token's leading digit, so that a three-digit token costs as much as three digits.
        unit = torch.pow(10.0, vocab.widths.double() - 1)
        self.keep_matrix("distance", distances(vocab.number_values) / unit[:, None])
        self.check_scale(self.distance)
        self.keep_matrix("amounts", token_amounts(vocab))

    @classmethod
    def released(cls, vocab: NumericVocab, **settings: Any) -> Self:
        """Return the loss with ``variant="released"``, which reproduces the published code.

        Its EMD-only variant is ``released(vocab, alpha=0, beta=0, sigma=0)``.
        """
        return cls(vocab, variant="released", **settings)

    @classmethod
    def advice(cls, vocab: NumericVocab) -> tuple[Suitability, str]:
        """Good for every vocabulary; the published code supports single digits only."""
        return ("good", "") if vocab.is_single_digits else ("good", "the published code supports single digits only")

    def number_rows(self, z: Tensor, rest: Tensor | None, targets: NumberTargets) -> Tensor:
        """Return each row's share ``[P]`` of the total: its EMD, plus the error of the number at its first digit."""
        spans = targets.spans
        z = targets.blank(z)
        emd_share, whole_share = self._shares(targets)
        emd = emd_loss(z, targets.index, self.matrix("distance", z.dtype)).double()
        _, mean, hard, scale = self._digits(z, targets)
        straight = hard + (mean - mean.detach())  # value of the argmax token, gradient of the mean
        whole = self._whole(*self._predicted(straight, scale, targets))  # [slots]
        whole_share = torch.where(spans.is_start, whole_share, 0.0)
        # Rows outside numbers index the first number, which may be NaN.
        whole = torch.where(spans.is_start, whole_share * targets.per_row(whole), 0.0)
        cost = (emd_share * emd + whole).to(z.dtype)
        if self.outside == "penalize":
            most = math.log(10) * (spans.leading - spans.last).double() + self.number_values.max().log1p()
            worst = emd_share * self.distance.max() + whole_share * (self.alpha + self.beta * most)
            log_mass = self.log_mass(z, None if rest is None else targets.blank(rest))
            cost = targets.blank(self.charge_outside(cost, log_mass, worst))
        return cost

    @property
    def replayable(self) -> bool:
        """True with an analytic gradient, no noise, and averages over numbers."""
        return self.outside == "ignore" and self.noise == 0 and self.average == "number"

    def number_gradient(self, z: Tensor, targets: NumberTargets) -> tuple[Tensor, Tensor]:
        """See :meth:`NumberLevelLoss.number_gradient`."""
        spans = targets.spans
        z = targets.blank(z)
        emd_share, whole_share = self._shares(targets)
        p, distance = z.softmax(-1), self.matrix("distance", z.dtype)[targets.index]  # [P, N]
        emd = (p * distance).sum(-1)
        soft, mean, hard, scale = self._digits(z, targets)
        numbers = self._predicted(hard, scale, targets)
        whole = torch.where(spans.is_start, targets.per_row(self._whole(*numbers)) * whole_share, 0.0)
        slope = targets.per_row(whole_slope(*numbers, self.alpha, self.beta)) * whole_share * scale / self.tau
        dz = by_mean(p, distance, emd, emd_share.to(z.dtype))
        dz += by_mean(soft, self.matrix("amounts", z.dtype)[spans.is_fraction.long()], mean, slope.to(z.dtype))
        return (emd_share * emd + whole).sum().to(z.dtype), dz

    def _shares(self, targets: NumberTargets) -> tuple[Tensor, Tensor]:
        """Return the weights of each row's EMD and of its number's error in the total: ``[P]`` each, float64."""
        spans = targets.spans
        by_number = self.average == "number"
        unit, size = (targets.group, targets.slots) if by_number else (targets.sequence, targets.shape[:-1].numel())
        counted = spans.is_digit if self.rules.fewest is None else spans.is_digit & (targets.own_digits(self.widths) > 0)
        members = torch.stack([counted, spans.is_start], -1).double()
        tokens, numbers = sum_by(unit, members, size)[unit.clamp_min(0)].clamp_min(1.0).unbind(-1)
        emd_share = self.emd_weight * targets.place_weights("exponential", self.sigma, self.rules, self.widths) / tokens
        emd_share, whole_share = targets.blank(emd_share), numbers.reciprocal()
        if (weights := targets.number_weights) is None:
            return emd_share, whole_share
        weights = targets.per_row(weights)
        return emd_share * weights, whole_share * weights

    def _digits(self, z: Tensor, targets: NumberTargets) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the softmax at tau ``[P, N]``, each token's mean and argmax amount ``[P]``, and their scale ``[P]``."""
        noisy = z
        if self.noise > 0:
            noisy = z + self.noise * -torch.empty_like(z).exponential_().log()
        # Relative to the maximum: a logit near the dtype's limit would overflow.
        soft = ((noisy - noisy.detach().amax(-1, keepdim=True)) / self.tau).softmax(-1)
        mean = mean_amount(soft, self.matrix("amounts", z.dtype), targets.spans)
        hard = self.amounts[targets.spans.is_fraction.long(), noisy.detach().argmax(-1)]
        return soft, mean, hard, targets.blank(token_scale(targets.spans, self.widths[targets.index]))

    def _predicted(self, amounts: Tensor, scale: Tensor, targets: NumberTargets) -> tuple[Tensor, Tensor, Tensor]:
        """Return predicted and true numbers and ε ``[slots]``, in units of each number's leading place, float64."""
        spans = targets.spans
        # At least 1e-15 of the leading place: float64 would lose a smaller ε.
        ulp = torch.pow(10.0, (spans.last - spans.leading).clamp_min(-EXACT_DIGITS).double())
        eps = torch.where(spans.is_start, ulp, 0.0)
        label = label_amounts(self.amounts, targets)
        guess, value, eps = targets.sum(torch.stack([amounts * scale, label * scale, eps], -1)).unbind(-1)
        # Slots without a number are zero; an ε of 1 keeps their gradient finite.
        return guess, value, torch.where(eps > 0, eps, 1.0)

    def _whole(self, guess: Tensor, value: Tensor, eps: Tensor) -> Tensor:
        """Return the error of complete numbers ``[S]``."""
        return ntil_loss(torch.zeros_like(guess), guess, value, eps, self.alpha, self.beta, emd_weight=0.0)

    def num_units(self, targets: Targets) -> Tensor:
        """Return the count of numbers, or of sequences."""
        if self.average == "number":
            return super().num_units(targets)
        return torch.full((), targets.shape[:-1].numel(), device=targets.index.device)
