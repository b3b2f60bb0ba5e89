"""NTIL, Numerical Token Integrity Loss: earth mover's distance of the digits, weighted by place, plus the error of the number.

For a number of n digits, X as predicted and Y as labelled:

    emd         mean over its tokens of (1 + sigma)^k · Σ_i p_i |i - t|       k digits to its right, 15 at most
    relative    |X - Y| / (max(X, Y) + ε)
    magnitude   log (max(X, Y) + ε) / (min(X, Y) + ε)
    ntil        emd_weight · emd + alpha · relative + beta · magnitude

X has the likeliest token at every place; its gradient is that of the softmax at temperature tau (straight-through).
ε is one unit of the label's last place: 1 for integers, as in the published code; at least 1e-15 of the leading place.

Fei et al.: Advancing Sequential Numerical Prediction in Autoregressive Models, ACL 2025, arXiv:2505.13077.

The published code reads integers only: a point splits a number in two, so that for 0.98 a 1.01 costs more than a 1.98.
``numbers="values"``, the default, reads the point and multi-digit tokens; the sign is left to cross-entropy.
``variant="released"`` computes what the published code computes.
"""

from __future__ import annotations

import math
from typing import Any, Literal, Self, Unpack

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

Average = Literal["number", "sequence"]


def relative_loss(guess: Tensor, value: Tensor, eps: Tensor) -> Tensor:
    """Return the relative error of numbers ``[S]``, between 0 and 1."""
    return (guess - value).abs() / (torch.maximum(guess, value) + eps)


def magnitude_loss(guess: Tensor, value: Tensor, eps: Tensor) -> Tensor:
    """Return the logarithm of the ratio of two numbers ``[S]``, the larger by the smaller."""
    return ((torch.maximum(guess, value) + eps) / (torch.minimum(guess, value) + eps)).log()


def whole_slope(guess: Tensor, value: Tensor, eps: Tensor, alpha: float, beta: float) -> Tensor:
    """Return the derivative by ``guess [S]`` of ``alpha · relative + beta · magnitude``; 0 where the guess is right."""
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
        sigma: each further place has ``1 + sigma`` times the weight of the one before; 0: equal weights.
        emd_weight: weight of the earth mover's distance; 0: off.
        tau: temperature of the straight-through softmax.
        noise: scale of Gumbel noise on the logits of that softmax. None: 0, which keeps the loss deterministic; 0.01 for
            ``variant="released"``.
        numbers: ``"values"`` (point, multi-digit tokens) or ``"runs"`` of digits. None: ``"values"``; ``"runs"`` for
            ``variant="released"``.
        average: the mean is over each ``"number"``, or over each ``"sequence"`` and then over all sequences, also those without
            numbers. None: ``"number"``; ``"sequence"`` for ``variant="released"``.
        variant: ``"paper"``: the paper's formula on every numeric token. ``"released"``: what the published code computes:
            single digits, and the defaults above.
        **shared: ``outside``, ``thousands``, ``ignore_index``; see :class:`~numerate.losses.base.NumericLoss`.

    Examples:
        >>> vocab = NumericVocab.from_texts({str(d): d for d in range(10)}, vocab_size=10)
        >>> logits = torch.full((3, 10), -40.0)
        >>> logits[[0, 1, 2], [1, 9, 9]] = 40.0  # says 199
        >>> NTILLoss(vocab, emd_weight=0, beta=0, alpha=1)(logits, torch.tensor([2, 0, 0]))  # 1 / (200 + 1)
        tensor(0.0050)
    """

    name = "ntil"
    sees = "How far the mass has to travel, plus the relative error of the likeliest number."
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
            raise ValueError(
                "vocab has values below 0: expected values >= 0, since NTIL compares magnitudes; use the number loss."
            )
        self.variant: Variant = variant
        self.alpha = check_number("alpha", alpha, least=0.0, most=MOST_FACTOR)
        self.beta = check_number("beta", beta, least=0.0, most=MOST_FACTOR)
        self.sigma = check_number("sigma", sigma, above=-1.0, most=MOST_PLACE_SIGMA)
        self.emd_weight = check_number("emd_weight", emd_weight, least=0.0, most=MOST_FACTOR)
        self.tau = check_number("tau", tau, least=1 / MOST_FACTOR)
        self.noise = check_number("noise", 0.01 * released if noise is None else noise, least=0.0, most=MOST_FACTOR)
        self.numbers: Numbers = numbers if numbers is not None else "runs" if released else "values"
        self.average: Average = average if average is not None else "sequence" if released else "number"
        check_choice("numbers", self.numbers, choices(Numbers))
        check_choice("average", self.average, choices(Average))
        # Distances in units of the label token's leading digit, so that three-digit tokens cost what three digits do.
        unit = torch.pow(10.0, vocab.widths.double() - 1)
        self.keep_matrix("distance", distances(vocab.values) / unit[:, None])
        self.check_scale(self.distance)
        self.keep_matrix("amounts", token_amounts(vocab))

    @classmethod
    def released(cls, vocab: NumericVocab, **settings: Any) -> Self:
        """Return the loss with ``variant="released"``: exactly what the published code computes.

        Its EMD-only version is ``released(vocab, alpha=0, beta=0, sigma=0)``.
        """
        return cls(vocab, variant="released", **settings)

    @classmethod
    def advice(cls, vocab: NumericVocab) -> tuple[Suitability, str]:
        """Good for every vocabulary; the published code reads single digits only."""
        return ("good", "") if vocab.is_single_digits else ("good", "beyond the published code, which reads single digits only")

    def number_rows(self, z: Tensor, rest: Tensor | None, targets: NumberTargets) -> Tensor:
        """Return each row's share ``[P]`` of the total: its EMD, and at the first digit the error of the number."""
        spans = targets.spans
        z = targets.blank(z)
        emd_share, whole_share = self._shares(targets)
        emd = emd_loss(z, targets.index, self.matrix("distance", z.dtype)).double()
        _, mean, hard, scale = self._digits(z, targets)
        straight = hard + (mean - mean.detach())  # the value of the likeliest token, the gradient of the mean
        whole = self._whole(*self._predicted(straight, scale, targets))  # [slots]
        whole_share = torch.where(spans.is_start, whole_share, 0.0)
        # Rows of no number read the first one, which may be NaN.
        whole = torch.where(spans.is_start, whole_share * targets.per_row(whole), 0.0)
        cost = (emd_share * emd + whole).to(z.dtype)
        if self.outside == "penalize":
            most = math.log(10) * (spans.leading - spans.last).double() + self.values.max().log1p()
            worst = emd_share * self.distance.max() + whole_share * (self.alpha + self.beta * most)
            log_mass = self.log_mass(z, None if rest is None else targets.blank(rest))
            cost = targets.blank(self.charge_outside(cost, log_mass, worst))
        return cost

    @property
    def replayable(self) -> bool:
        """True with a written-out gradient, no noise, and no means over sequences."""
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
        """Return the factors of each row's EMD, and of the error of its number, in the total: ``[P]`` each, float64."""
        spans = targets.spans
        by_number = self.average == "number"
        unit, size = (targets.group, targets.slots) if by_number else (targets.sequence, targets.shape[:-1].numel())
        members = torch.stack([spans.is_digit, spans.is_start], -1).double()
        tokens, numbers = sum_by(unit, members, size)[unit.clamp_min(0)].clamp_min(1.0).unbind(-1)
        emd_share = self.emd_weight * targets.place_weights("exponential", self.sigma, self.numbers, self.widths) / tokens
        emd_share, whole_share = targets.blank(emd_share), numbers.reciprocal()
        if (weights := targets.number_weights) is None:
            return emd_share, whole_share
        weights = targets.per_row(weights)
        return emd_share * weights, whole_share * weights

    def _digits(self, z: Tensor, targets: NumberTargets) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the softmax at tau ``[P, N]``, each token's mean and likeliest amount ``[P]``, and their scale ``[P]``."""
        noisy = z
        if self.noise > 0:
            noisy = z + self.noise * -torch.empty_like(z).exponential_().log()
        # Below the largest, or a logit near the dtype's limit would overflow.
        soft = ((noisy - noisy.detach().amax(-1, keepdim=True)) / self.tau).softmax(-1)
        mean = mean_amount(soft, self.matrix("amounts", z.dtype), targets.spans)
        hard = self.amounts[targets.spans.is_fraction.long(), noisy.detach().argmax(-1)]
        return soft, mean, hard, targets.blank(token_scale(targets.spans, self.widths[targets.index]))

    def _predicted(self, amounts: Tensor, scale: Tensor, targets: NumberTargets) -> tuple[Tensor, Tensor, Tensor]:
        """Return predicted and true numbers and ε ``[slots]``, in units of each number's leading place, float64."""
        spans = targets.spans
        # At least 1e-15 of the leading place: float64 would round a smaller ε away.
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
