"""NTIL, Numerical Token Integrity Loss: digits by earth mover's distance, weighed by place, plus the whole number's error.

For a number of n digits, X as predicted and Y as labelled:

    emd         mean over its tokens of (1 + sigma)^k · Σ_i p_i |i - t|       k digits stand to its right, 15 at most
    relative    |X - Y| / (max(X, Y) + ε)
    magnitude   log (max(X, Y) + ε) / (min(X, Y) + ε)
    ntil        emd_weight · emd + alpha · relative + beta · magnitude

X takes the likeliest token at every place; its gradient is that of the softmax at temperature tau (straight-through).
ε is one unit of the label's last place: 1 for whole numbers, as in the published code; at least 1e-15 of the leading place.

Fei et al.: Advancing Sequential Numerical Prediction in Autoregressive Models, ACL 2025, arXiv:2505.13077.

The published code reads integers only: a point splits a number in two, so that for 0.98 a 1.01 costs more than a 1.98.
``numbers="values"``, the default, reads the point and multi-digit tokens; the sign is left to cross-entropy.
:meth:`NTILLoss.released` is the published code.
"""

from __future__ import annotations

import math
from typing import Any, Literal, Self

import torch
from torch import Tensor

from numerate.checks import check_choice, check_number, choices
from numerate.losses.base import MOST_PLACE_SIGMA, Fit, NumericLoss, Outside
from numerate.losses.emd import emd_loss
from numerate.losses.kernels import distances
from numerate.losses.rows import Targets, by_mean, place_weights, token_scale, worths
from numerate.spans import EXACT_DIGITS, Numbers, put_by, sum_by
from numerate.vocab import NumericVocab

Average = Literal["number", "sequence"]


def relative_loss(guess: Tensor, value: Tensor, eps: Tensor) -> Tensor:
    """Relative error of numbers ``[S]``, between 0 and 1."""
    return (guess - value).abs() / (torch.maximum(guess, value) + eps)


def magnitude_loss(guess: Tensor, value: Tensor, eps: Tensor) -> Tensor:
    """How many e-folds two numbers ``[S]`` lie apart."""
    return ((torch.maximum(guess, value) + eps) / (torch.minimum(guess, value) + eps)).log()


def whole_slope(guess: Tensor, value: Tensor, eps: Tensor, alpha: float, beta: float) -> Tensor:
    """Derivative by ``guess [S]`` of ``alpha`` times the relative and ``beta`` times the magnitude error; 0 at the value."""
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
    """NTIL of numbers ``[S]``, from their weighted EMD, predicted and true values and the ε of each."""
    return emd_weight * emd + alpha * relative_loss(guess, value, eps) + beta * magnitude_loss(guess, value, eps)


class NTILLoss(NumericLoss):
    """Numerical Token Integrity Loss; the formula is above.

    Args:
        vocab: the numeric tokens.
        alpha: weight of the relative error; 0 leaves it out.
        beta: weight of the magnitude error; 0 leaves it out.
        sigma: how much more each further place weighs; 0 weighs all alike.
        emd_weight: weight of the earth mover's distance; 0 leaves it out.
        tau: temperature of the straight-through softmax.
        noise: scale of Gumbel noise on the logits of that softmax (published: 0.01). 0 keeps the loss deterministic.
        numbers: ``"values"`` or the published ``"runs"`` of digits.
        average: the mean is over numbers, or, as published, over sequences: first within each, then over all of them,
            those without numbers included.
        outside: see :class:`~numerate.losses.base.NumericLoss`.

    Example:
        >>> vocab = NumericVocab.from_texts({str(d): d for d in range(10)}, vocab_size=10)
        >>> logits = torch.full((3, 10), -40.0)
        >>> logits[[0, 1, 2], [1, 9, 9]] = 40.0  # says 199
        >>> NTILLoss(vocab, emd_weight=0, beta=0, alpha=1)(logits, torch.tensor([2, 0, 0]))  # 1 / (200 + 1)
        tensor(0.0050)
    """

    name = "ntil"
    level = "number"
    distance: Tensor
    worth: Tensor

    def __init__(
        self,
        vocab: NumericVocab,
        alpha: float = 0.2,
        beta: float = 0.2,
        sigma: float = 0.2,
        emd_weight: float = 1.0,
        tau: float = 0.1,
        noise: float = 0.0,
        numbers: Numbers = "values",
        average: Average = "number",
        *,
        outside: Outside | None = None,
        thousands: bool = False,
    ) -> None:
        place_sigma = check_number("sigma", sigma, above=-1.0, most=MOST_PLACE_SIGMA)
        super().__init__(vocab, outside=outside, places="exponential", place_sigma=place_sigma, thousands=thousands)
        check_choice("numbers", numbers, choices(Numbers))
        check_choice("average", average, choices(Average))
        if bool((vocab.values < 0).any()):
            raise ValueError(
                "vocab has values below 0: expected values >= 0, since NTIL compares magnitudes; use the number loss."
            )
        self.alpha = check_number("alpha", alpha, least=0.0)
        self.beta = check_number("beta", beta, least=0.0)
        self.emd_weight = check_number("emd_weight", emd_weight, least=0.0)
        self.tau = check_number("tau", tau, least=1e-30)
        self.noise = check_number("noise", noise, least=0.0)
        self.numbers: Numbers = numbers
        self.average: Average = average
        # Distances in units of the label token's leading digit, so that three-digit tokens cost what three digits do.
        unit = torch.pow(10.0, vocab.widths.double() - 1)
        distance = distances(vocab.values) / unit[:, None]
        self._keep_matrix("distance", distance)
        self._keep_matrix("worth", worths(vocab))

    @classmethod
    def released(cls, vocab: NumericVocab, **settings: Any) -> Self:
        """What the published code computes: single digits, integer runs, a mean of sequence means, noise 0.01.

        Its EMD-only variant is ``released(vocab, alpha=0, beta=0, sigma=0)``.
        """
        published = {"numbers": "runs", "average": "sequence", "noise": 0.01}
        return cls(vocab.restrict(digits_only=True), **{**published, **settings})

    @classmethod
    def advice(cls, vocab: NumericVocab) -> tuple[Fit, str]:
        """The published code knows single digits only."""
        return ("good", "") if vocab.is_single_digits else ("good", "beyond the published code, which reads single digits only")

    def _per_row(self, z: Tensor, rest: Tensor | None, targets: Targets) -> Tensor:
        spans = targets.spans
        assert spans is not None
        z = targets.blank(z)
        emd_share, whole_share = self._shares(targets)
        emd = emd_loss(z, targets.index, self.matrix("distance", z.dtype)).double()
        _, mean, hard, scale = self._digits(z, targets)
        straight = hard + (mean - mean.detach())  # the value of the likeliest token, the gradient of the mean
        whole = self._whole(*self._numbers(straight * scale, targets))  # [slots]
        whole_share = torch.where(spans.is_start, whole_share, 0.0)  # a number's error stands at its first digit
        cost = (emd_share * emd + whole_share * whole[targets.group.clamp_min(0)]).to(z.dtype)
        if self.outside == "penalize":
            assert rest is not None
            most = math.log(10) * (spans.leading - spans.last).double() + self.values.max().log1p()
            worst = emd_share * self.distance.max() + whole_share * (self.alpha + self.beta * most)
            cost = targets.blank(self.charge_outside(cost, self.log_mass(z, targets.blank(rest)), worst))
        return cost

    @property
    def replayable(self) -> bool:
        """With the gradient written out, no noise, and no means over sequences."""
        return self.outside == "ignore" and self.noise == 0 and self.average == "number"

    def value_and_grad(self, z: Tensor, rest: Tensor | None, targets: Targets) -> tuple[Tensor, Tensor, Tensor | None]:
        """The gradient written out, unless mass outside the numeric tokens is charged."""
        if self.outside == "penalize":
            return super().value_and_grad(z, rest, targets)
        spans, group = targets.spans, targets.group.clamp_min(0)
        assert spans is not None
        z = targets.blank(z)
        emd_share, whole_share = self._shares(targets)
        p, distance = z.softmax(-1), self.matrix("distance", z.dtype)[targets.index]  # [P, N]
        emd = (p * distance).sum(-1)
        soft, mean, hard, scale = self._digits(z, targets)
        numbers = self._numbers(hard * scale, targets)
        whole = torch.where(spans.is_start, self._whole(*numbers)[group] * whole_share, 0.0)
        slope = whole_slope(*numbers, self.alpha, self.beta)[group] * whole_share * scale / self.tau
        dz = by_mean(p, distance, emd, emd_share.to(z.dtype))
        dz += by_mean(soft, self.matrix("worth", z.dtype)[spans.is_fraction.long()], mean, slope.to(z.dtype))
        return (emd_share * emd + whole).sum().to(z.dtype), dz, None

    def _shares(self, targets: Targets) -> tuple[Tensor, Tensor]:
        """What each row's EMD, and the error of its number, count in the total: ``[P]`` each, float64."""
        spans, group = targets.spans, targets.group
        assert spans is not None
        unit, size = (group, targets.slots) if self.average == "number" else (targets.sequence, targets.shape[:-1].numel())
        members = torch.stack([spans.is_digit, spans.is_start], -1).double()
        tokens, numbers = sum_by(unit, members, size)[unit.clamp_min(0)].clamp_min(1.0).unbind(-1)
        emd_share = self.emd_weight * place_weights(targets, "exponential", self.place_sigma, self.numbers) / tokens
        emd_share, whole_share = targets.blank(emd_share), numbers.reciprocal()
        if targets.position_weights is None:
            return emd_share, whole_share
        weight = put_by(torch.where(spans.is_start, spans.number_of, -1), targets.position_weights, targets.slots)[
            group.clamp_min(0)
        ]
        return emd_share * weight, whole_share * weight

    def _digits(self, z: Tensor, targets: Targets) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The softmax at tau ``[P, N]``, each token's mean and likeliest value ``[P]``, and what these are multiplied by.

        The products are in units of the number's leading place.
        """
        spans = targets.spans
        assert spans is not None
        noisy = z
        if self.noise > 0:
            noisy = z + self.noise * -torch.empty_like(z).exponential_().log()
        soft = (noisy / self.tau).softmax(-1)
        kind = spans.is_fraction.long()
        mean = (soft @ self.matrix("worth", z.dtype).T).gather(-1, kind[:, None])[:, 0]
        hard = self.worth[kind, noisy.detach().argmax(-1)]
        return soft, mean, hard, targets.blank(token_scale(spans, self.widths[targets.index]))

    def _numbers(self, amounts: Tensor, targets: Targets) -> tuple[Tensor, Tensor, Tensor]:
        """Predicted and true numbers and ε ``[slots]``, in units of each number's leading place, float64."""
        spans = targets.spans
        assert spans is not None
        # Beyond what float64 tells apart, a unit in the last place would be nothing.
        ulp = torch.pow(10.0, (spans.last - spans.leading).clamp_min(-EXACT_DIGITS).double())
        eps = torch.where(spans.is_start, ulp, 0.0)
        guess, value, eps = sum_by(targets.group, torch.stack([amounts, spans.relative_values, eps], -1), targets.slots).unbind(
            -1
        )
        # Slots without a number hold zeros; an ε of 1 there keeps their gradient finite.
        return guess, value, torch.where(eps > 0, eps, 1.0)

    def _whole(self, guess: Tensor, value: Tensor, eps: Tensor) -> Tensor:
        """The error of whole numbers ``[S]``."""
        return ntil_loss(torch.zeros_like(guess), guess, value, eps, self.alpha, self.beta, emd_weight=0.0)

    def unit_rows(self, targets: Targets) -> Tensor:
        """The first digit of each number."""
        assert targets.spans is not None
        return targets.spans.is_start

    def num_units(self, targets: Targets) -> Tensor:
        """Numbers, or sequences."""
        if self.average == "number":
            return super().num_units(targets)
        return torch.full((), targets.shape[:-1].numel(), device=targets.index.device)
