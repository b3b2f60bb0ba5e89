"""NTL, Number Token Loss: a regression loss on the value that the numeric tokens predict.

With ŷ = Σ_i p_i v_i over the numeric tokens:

    was      Σ_i p_i |v_i - y|              earth mover's distance, the default of the paper
    mse      (ŷ - y)²                       blind to spread: half on 3 and half on 5 costs nothing for 4
    mae      |ŷ - y|
    huber    ½ (ŷ - y)² below 1, |ŷ - y| - ½ above
    number   |Ŷ - Y| / (|Ŷ| + |Y| + ε)      Ŷ = Σ_j place_j · ŷ_j, over the whole number

Zausinger et al.: Regress, Don't Guess: A Regression-like Loss on Number Tokens for Language Models, ICML 2025,
arXiv:2411.02083; the code is the package ``ntloss``, whose ``reweigh`` is ``outside="penalize"`` here. What differs from it
is in docs/ntloss.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar, Literal, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from numerate.checks import check_choice, choices
from numerate.losses.base import Fit, NumericLoss, Outside
from numerate.losses.emd import emd_loss, wide_range_advice
from numerate.losses.kernels import distances, squashed
from numerate.losses.rows import Places, Targets, by_mean, mean_log, token_scale, worths
from numerate.spans import Numbers, put_by, sum_by
from numerate.vocab import NumericVocab

_EPS = torch.finfo(torch.float32).eps  # of ``number``, as published, in units of the leading place

Kind = Literal["was", "mse", "mae", "huber", "number"]

DIFFERENCES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mse": lambda guess, value: (guess - value).square(),
    "mae": lambda guess, value: (guess - value).abs(),
    "huber": lambda guess, value: F.huber_loss(guess, value, reduction="none"),
}


def ntl_loss(logits: Tensor, target: Tensor, values: Tensor, kind: str = "mse") -> Tensor:
    """NTL of each row by its mean: logits ``[P, N]``, target index ``[P]``, values ``[N]`` to ``[P]``."""
    return DIFFERENCES[kind](logits.softmax(-1) @ values, values[target])


def ntl_number_loss(guess: Tensor, value: Tensor, eps: float) -> Tensor:
    """Symmetric relative error of whole numbers ``[S]``, between 0 and 1."""
    return (guess - value).abs() / (guess.abs() + value.abs() + eps)


def ntl_number_slope(guess: Tensor, value: Tensor, eps: float) -> Tensor:
    """Derivative of :func:`ntl_number_loss` by ``guess [S]``; 0 at the value."""
    total = guess.abs() + value.abs() + eps
    return ((guess - value).sign() - (guess - value).abs() * guess.sign() / total) / total


class NTLLoss(NumericLoss):
    """Number Token Loss; the formulas are above.

    Args:
        vocab: the numeric tokens.
        kind: ``"was"``, ``"mse"``, ``"mae"``, ``"huber"``, or ``"number"`` for whole numbers.
        reweigh: the published name for ``outside="penalize"``.
        squash: rescale distances to 1..squash; ``"was"`` only.
        numbers: for ``"number"``, what a number is: ``"values"`` (point, multi-digit tokens) or the published ``"runs"``
            of digits.
        outside, places, place_sigma, thousands: see :class:`~numerate.losses.base.NumericLoss`.

    Example:
        >>> vocab = NumericVocab.from_texts({str(d): d for d in range(10)}, vocab_size=10)
        >>> logits = torch.full((1, 10), -40.0)
        >>> logits[0, 3] = logits[0, 5] = 40.0
        >>> NTLLoss(vocab, kind="was")(logits, torch.tensor([4])), NTLLoss(vocab, kind="mse")(logits, torch.tensor([4]))
        (tensor(1.), tensor(0.))
    """

    name: ClassVar[str] = "ntl_was"
    default_kind: ClassVar[Kind] = "was"
    distance: Tensor

    def __init__(
        self,
        vocab: NumericVocab,
        kind: Kind | None = None,
        reweigh: bool | None = None,
        squash: float | None = None,
        numbers: Numbers = "values",
        *,
        outside: Outside | None = None,
        places: Places = "uniform",
        place_sigma: float = 0.2,
        thousands: bool = False,
    ) -> None:
        check_choice("reweigh", reweigh, (None, True, False))
        if reweigh is not None:
            if outside is not None and (outside == "penalize") != reweigh:
                raise ValueError(
                    f"reweigh={reweigh!r} contradicts outside={outside!r}: expected one of them; they name the same thing."
                )
            outside = "penalize" if reweigh else "ignore"
        super().__init__(vocab, outside=outside, places=places, place_sigma=place_sigma, thousands=thousands)
        kind = self.default_kind if kind is None else kind
        check_choice("kind", kind, choices(Kind))
        check_choice("numbers", numbers, choices(Numbers))
        if squash is not None and kind != "was":
            raise ValueError(f"squash={squash!r} has no meaning for kind={kind!r}: expected kind='was', or no squash.")
        if places != "uniform" and kind == "number":
            raise ValueError(
                f"places={places!r} has no meaning for kind='number', whose places are powers of ten: expected 'uniform'."
            )
        self.kind: Kind = kind
        self.numbers: Numbers = numbers
        self.level = "number" if kind == "number" else "token"
        self._keep_matrix("token_values", vocab.values)
        self.mass_at_start = False
        if kind == "number":
            self._keep_matrix("worth", worths(vocab))
            self.worst.fill_(1.0)
            return
        distance = distances(vocab.values)
        if kind == "was":
            distance = distance if squash is None else squashed(distance, squash)
            self._keep_matrix("distance", distance)
            self.worst.copy_(distance.max())
        else:
            self.worst.copy_(DIFFERENCES[kind](distance.max(), torch.zeros((), dtype=torch.float64)))

    @classmethod
    def released(cls, vocab: NumericVocab, *, digit_level: bool = True, **settings: Any) -> Self:
        """What ``ntloss`` computes: the ten digits (``digit_level=False``: all numeric tokens without a space), reweighed."""
        kept = tuple(token for token in vocab.tokens if not token.text.startswith(" "))
        if not kept:
            raise ValueError(
                "vocab has only numeric tokens that begin with a space, which ntloss does not take: expected some without; "
                "use NTLLoss(vocab, reweigh=True)."
            )
        vocab = replace(vocab, tokens=kept).restrict(digits_only=digit_level)
        loss = cls(vocab, **{"reweigh": True, "numbers": "runs", **settings})
        loss.mass_at_start = True
        return loss

    @classmethod
    def advice(cls, vocab: NumericVocab) -> tuple[Fit, str]:
        """Distances grow with the range of values; squares more so."""
        if cls.default_kind == "number":
            return "good", ""
        if cls.default_kind == "mse" and vocab.values[-1] - vocab.values[0] > 10:
            return "poor", f"squared distances reach {float(vocab.values[-1] - vocab.values[0]) ** 2:,.0f}"
        remedy = "squash=9 keeps them in bounds" if cls.default_kind == "was" else "give it a small weight"
        return wide_range_advice(vocab, remedy)

    def cost(self, z: Tensor, rest: Tensor | None, target: Tensor) -> Tensor:
        """See :func:`ntl_loss` and :func:`~numerate.losses.emd.emd_loss`."""
        if self.kind == "was":
            return emd_loss(z, target, self.matrix("distance", z.dtype))
        return ntl_loss(z, target, self.matrix("token_values", z.dtype), self.kind)

    def _per_row(self, z: Tensor, rest: Tensor | None, targets: Targets) -> Tensor:
        if self.kind != "number":
            return super()._per_row(z, rest, targets)
        spans = targets.spans
        assert spans is not None
        z = targets.blank(z)
        _, mean, scale = self._digits(z, targets)
        cost = ntl_number_loss(*self._numbers(mean * scale, targets), _EPS).to(z.dtype)
        if self.outside == "penalize":
            assert rest is not None
            log_mass = targets.blank(self.log_mass(z, targets.blank(rest)))
            looked_at = torch.where(spans.is_start, targets.group, -1) if self.mass_at_start else targets.group
            cost = self.charge_outside(cost, mean_log(log_mass, looked_at, targets.slots))
        cost = torch.where(spans.is_start, cost[targets.group.clamp_min(0)], 0.0)
        return cost if targets.position_weights is None else cost * targets.position_weights.to(cost.dtype)

    @property
    def replayable(self) -> bool:
        """With the gradient of whole numbers written out."""
        return self.kind == "number" and self.outside == "ignore"

    def value_and_grad(self, z: Tensor, rest: Tensor | None, targets: Targets) -> tuple[Tensor, Tensor, Tensor | None]:
        """For ``kind="number"`` the gradient written out, unless mass outside the numeric tokens is charged."""
        if self.kind != "number" or self.outside == "penalize":
            return super().value_and_grad(z, rest, targets)
        spans = targets.spans
        assert spans is not None
        z = targets.blank(z)
        p, mean, scale = self._digits(z, targets)
        numbers = self._numbers(mean * scale, targets)
        cost, slope = ntl_number_loss(*numbers, _EPS), ntl_number_slope(*numbers, _EPS)
        if targets.position_weights is not None:
            weight = put_by(torch.where(spans.is_start, spans.number_of, -1), targets.position_weights, targets.slots)
            cost, slope = cost * weight, slope * weight
        slope = (slope[targets.group.clamp_min(0)] * scale).to(z.dtype)
        dz = by_mean(p, self.matrix("worth", z.dtype)[spans.is_fraction.long()], mean, slope)
        return cost.sum().to(z.dtype), dz, None

    def _digits(self, z: Tensor, targets: Targets) -> tuple[Tensor, Tensor, Tensor]:
        """The softmax ``[P, N]``, each token's mean ``[P]``, and what it is multiplied by, in the number's leading places."""
        spans = targets.spans
        assert spans is not None
        p = z.softmax(-1)
        mean = (p @ self.matrix("worth", z.dtype).T).gather(-1, spans.is_fraction.long()[:, None])[:, 0]
        return p, mean, targets.blank(token_scale(spans, self.widths[targets.index]))

    def _numbers(self, amounts: Tensor, targets: Targets) -> tuple[Tensor, Tensor]:
        """Predicted and true numbers ``[slots]``, in units of the leading place, so that no number is too long."""
        assert targets.spans is not None
        totals = sum_by(targets.group, torch.stack([amounts, targets.spans.relative_values], -1), targets.slots)
        return totals[:, 0], totals[:, 1]

    def unit_rows(self, targets: Targets) -> Tensor | None:
        """Positions; for ``kind="number"``, the first digit of each number."""
        if self.kind != "number":
            return super().unit_rows(targets)
        assert targets.spans is not None
        return targets.spans.is_start


class NTLMSELoss(NTLLoss):
    """:class:`NTLLoss` with ``kind="mse"``."""

    name = "ntl_mse"
    default_kind = "mse"


class NTLMAELoss(NTLLoss):
    """:class:`NTLLoss` with ``kind="mae"``."""

    name = "ntl_mae"
    default_kind = "mae"


class NTLHuberLoss(NTLLoss):
    """:class:`NTLLoss` with ``kind="huber"``."""

    name = "ntl_huber"
    default_kind = "huber"


class NTLNumberLoss(NTLLoss):
    """:class:`NTLLoss` with ``kind="number"``."""

    name = "ntl_number"
    default_kind = "number"
    level = "number"
