"""NTL, Number Token Loss: a regression loss on the values of the numeric tokens.

With ŷ = Σ_i p_i v_i over the numeric tokens:

    was      Σ_i p_i |v_i - y|              earth mover's distance, the default of the paper
    mse      (ŷ - y)²                       ignores spread: for 4, half the mass on 3 and half on 5 costs nothing
    mae      |ŷ - y|
    huber    ½ (ŷ - y)² below 1, |ŷ - y| - ½ above
    number   |Ŷ - Y| / (|Ŷ| + |Y| + ε)      Ŷ = Σ_j place_j · ŷ_j over the tokens j of the number

Zausinger et al.: Regress, Don't Guess: A Regression-like Loss on Number Tokens for Language Models, ICML 2025,
arXiv:2411.02083. The published code is the package ``ntloss``; its ``reweigh`` is ``outside="penalize"`` here.
docs/papers.md lists all differences.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from numerate.checks import check_choice, choices
from numerate.losses.base import NumericLoss, Suitability, TokenSettings, Variant, check_vocab
from numerate.losses.emd import emd_loss, wide_range_advice
from numerate.losses.kernels import distances, squashed
from numerate.losses.logit_rows import by_mean
from numerate.losses.number_level import NumberLevelLoss, label_amounts, mean_amount, token_amounts, token_scale
from numerate.losses.target_tokens import NumberTargets
from numerate.spans import Numbers
from numerate.vocab import NumericVocab

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

_EPS = torch.finfo(torch.float32).eps  # ε of ``kind="number"`` as published, in units of the leading place

NTLKind = Literal["was", "mse", "mae", "huber", "number"]

DIFFERENCES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mse": lambda guess, value: (guess - value).square(),
    "mae": lambda guess, value: (guess - value).abs(),
    "huber": lambda guess, value: F.huber_loss(guess, value, reduction="none"),
}


def ntl_loss(logits: Tensor, target: Tensor, values: Tensor, kind: str = "mse") -> Tensor:
    """Return NTL ``[P]`` of the mean ŷ: logits ``[P, N]``, target index ``[P]``, values ``[N]``."""
    return DIFFERENCES[kind](logits.softmax(-1) @ values, values[target])


def ntl_number_loss(guess: Tensor, value: Tensor, eps: float) -> Tensor:
    """Return the symmetric relative error of complete numbers ``[S]``, between 0 and 1."""
    return (guess - value).abs() / (guess.abs() + value.abs() + eps)


def ntl_number_slope(guess: Tensor, value: Tensor, eps: float) -> Tensor:
    """Return the derivative of :func:`ntl_number_loss` w.r.t. ``guess [S]``; 0 where the guess is correct."""
    total = guess.abs() + value.abs() + eps
    return ((guess - value).sign() - (guess - value).abs() * guess.sign() / total) / total


def released_tokens(vocab: NumericVocab) -> NumericVocab:
    """Keep the tokens that ``ntloss`` supports: those without a leading space."""
    kept = tuple(token for token in vocab.tokens if not token.text.startswith(" "))
    if not kept:
        raise ValueError(
            "vocab has only numeric tokens with a leading space, which ntloss does not support: expected some without; "
            "use NTLLoss(vocab, reweigh=True)."
        )
    return replace(vocab, tokens=kept)


class NTLLoss(NumericLoss):
    """Number Token Loss; the formulas are above. Returns the subclass of its kind: ``kind="mse"`` gives an NTLMSELoss.

    Args:
        vocab: the numeric tokens.
        kind: ``"was"`` (the default), ``"mse"``, ``"mae"``, ``"huber"``, or ``"number"`` for complete numbers.
        reweigh: the published name of ``outside="penalize"``.
        squash: rescale distances to 1..squash, a number > 1, as in ``ntloss``; None: off. ``kind="was"`` only.
        numbers: definition of a number, for ``kind="number"`` and ``places``: ``"values"`` (decimals, multi-digit tokens) or
            ``"runs"`` of digits. None: ``"values"``, or ``"runs"`` for ``variant="released"``.
        variant: ``"paper"``: the paper's formula on every numeric token. ``"released"``: reproduces ``ntloss``: tokens without a
            leading space, and ``reweigh=True``; ``kind="number"`` penalizes mass outside at the first digit only.
        digit_level: keep only the ten digits. None: False, or True for ``variant="released"``.
        **shared: ``outside``, ``places``, ``place_sigma``, ``thousands``, ``ignore_index``; see
            :class:`~numerate.losses.base.NumericLoss`.

    Examples:
        >>> vocab = NumericVocab.from_texts({str(d): d for d in range(10)}, vocab_size=10)
        >>> logits = torch.full((1, 10), -40.0)
        >>> logits[0, 3] = logits[0, 5] = 40.0
        >>> NTLLoss(vocab, kind="was")(logits, torch.tensor([4])), NTLLoss(vocab, kind="mse")(logits, torch.tensor([4]))
        (tensor(1.), tensor(0.))
    """

    name = "ntl_was"
    sees = "Expected distance to the target, the same as emd."
    kind: ClassVar[NTLKind] = "was"

    def __new__(cls, vocab: Any = None, kind: Any = None, *args: Any, **settings: Any) -> Self:
        """Return an instance of the subclass of ``kind``."""
        chosen = KINDS.get(kind, cls) if cls is NTLLoss and isinstance(kind, str) else cls
        return cast("Self", super().__new__(chosen))

    def __init__(
        self,
        vocab: NumericVocab,
        kind: NTLKind | None = None,
        reweigh: bool | None = None,
        squash: float | None = None,
        numbers: Numbers | None = None,
        variant: Variant = "paper",
        digit_level: bool | None = None,
        **shared: Unpack[TokenSettings],
    ) -> None:
        check_choice("kind", kind, (None, *choices(NTLKind)))
        if kind not in (None, self.kind):
            raise ValueError(
                f"kind={kind!r} contradicts {type(self).__name__}, whose kind is {self.kind!r}: expected no kind; "
                f"use NTLLoss(vocab, kind={kind!r})."
            )
        check_choice("variant", variant, choices(Variant))
        check_choice("digit_level", digit_level, (None, True, False))
        check_choice("reweigh", reweigh, (None, True, False))
        released = variant == "released"
        outside = shared.get("outside")
        if reweigh is not None and outside is not None and (outside == "penalize") != reweigh:
            raise ValueError(
                f"reweigh={reweigh!r} contradicts outside={outside!r}: expected one of them; they are the same setting."
            )
        if outside is None and (released if reweigh is None else reweigh):
            shared["outside"] = "penalize"
        if released:
            vocab = released_tokens(check_vocab(vocab))
        if released if digit_level is None else digit_level:
            vocab = check_vocab(vocab).restrict(digits_only=True)
        super().__init__(vocab, **shared)
        self.variant: Variant = variant
        self.read_as(numbers if numbers is not None else "runs" if released else "values")
        if squash is not None and self.kind != "was":
            raise ValueError(f"squash={squash!r} does not apply to kind={self.kind!r}: expected kind='was', or squash=None.")
        self._prepare(squash)

    def _prepare(self, squash: float | None) -> None:
        """Compute the buffers of this kind."""
        distance = squashed(distances(self.vocab.values), squash)
        self.keep_matrix("distance", distance)
        self.set_worst(distance.max())

    @classmethod
    def released(cls, vocab: NumericVocab, **settings: Any) -> Self:
        """Return the loss with ``variant="released"``, which reproduces ``ntloss``."""
        return cls(vocab, variant="released", **settings)

    @classmethod
    def advice(cls, vocab: NumericVocab) -> tuple[Suitability, str]:
        """Fair for a wide range of values: distances grow with it."""
        return wide_range_advice(vocab, "squash=9 bounds them")

    def cost(self, z: Tensor, rest: Tensor | None, target: Tensor) -> Tensor:
        """See :func:`~numerate.losses.emd.emd_loss`."""
        return emd_loss(z, target, self.matrix("distance", z.dtype))


class _MeanLoss(NTLLoss):
    """NTL of the predicted mean; subclasses set the kind."""

    def _prepare(self, squash: float | None) -> None:
        low, high = self.vocab.values[0], self.vocab.values[-1]
        self.set_worst(DIFFERENCES[self.kind](high - low, torch.zeros_like(low)))
        # Only differences matter: float32 rounds the values 1,700,000,001 and 1,700,000,002 to the same number.
        self.keep_matrix("token_values", self.vocab.values - (low + high) / 2)

    @classmethod
    def advice(cls, vocab: NumericVocab) -> tuple[Suitability, str]:
        """Fair for a wide range of values: distances grow with it."""
        return wide_range_advice(vocab, "give it a small weight")

    def cost(self, z: Tensor, rest: Tensor | None, target: Tensor) -> Tensor:
        """See :func:`ntl_loss`."""
        return ntl_loss(z, target, self.matrix("token_values", z.dtype), self.kind)


class NTLMSELoss(_MeanLoss):
    """:class:`NTLLoss` with ``kind="mse"``."""

    name = "ntl_mse"
    sees = "Only the mean of the bars, squared error: half on 3 and half on 5 counts as a perfect 4."
    kind = "mse"

    @classmethod
    def advice(cls, vocab: NumericVocab) -> tuple[Suitability, str]:
        """Poor for a wide range of values: squared distances grow even faster."""
        span = float(vocab.values[-1] - vocab.values[0])
        return ("poor", f"squared distances reach {span * span:,.0f}") if span > 10 else ("good", "")


class NTLMAELoss(_MeanLoss):
    """:class:`NTLLoss` with ``kind="mae"``."""

    name = "ntl_mae"
    sees = "Only the mean of the bars, absolute error: half on 3 and half on 5 counts as a perfect 4."
    kind = "mae"


class NTLHuberLoss(_MeanLoss):
    """:class:`NTLLoss` with ``kind="huber"``."""

    name = "ntl_huber"
    sees = "Only the mean of the bars: squared error for small errors, absolute error for large ones."
    kind = "huber"


class NTLNumberLoss(NTLLoss, NumberLevelLoss):
    """:class:`NTLLoss` with ``kind="number"``."""

    name = "ntl_number"
    sees = "Only the mean, relative to its size: predicting 1 for 2 costs more than 8 for 9."
    kind = "number"

    def _prepare(self, squash: float | None) -> None:
        self.check_scale(self.vocab.number_values)
        self.keep_matrix("amounts", token_amounts(self.vocab))
        self.worst.fill_(1.0)

    @classmethod
    def advice(cls, vocab: NumericVocab) -> tuple[Suitability, str]:
        """Good for every vocabulary: a relative error."""
        return "good", ""

    def number_cost(self, z: Tensor, targets: NumberTargets) -> Tensor:
        """See :func:`ntl_number_loss`."""
        _, mean, scale = self._digits(z, targets)
        return ntl_number_loss(*self._predicted(mean, scale, targets), _EPS).to(z.dtype)

    def mass_group(self, targets: NumberTargets) -> Tensor:
        """All digits of a number; its first digit for ``variant="released"``."""
        return torch.where(targets.spans.is_start, targets.group, -1) if self.variant == "released" else targets.group

    @property
    def replayable(self) -> bool:
        """True with an analytic gradient."""
        return self.outside == "ignore"

    def number_gradient(self, z: Tensor, targets: NumberTargets) -> tuple[Tensor, Tensor]:
        """See :meth:`NumberLevelLoss.number_gradient`."""
        z = targets.blank(z)
        p, mean, scale = self._digits(z, targets)
        numbers = self._predicted(mean, scale, targets)
        cost, slope = ntl_number_loss(*numbers, _EPS), ntl_number_slope(*numbers, _EPS)
        if (weights := targets.number_weights) is not None:
            cost, slope = cost * weights, slope * weights
        # Rows outside numbers index the first number, which may be NaN.
        slope = targets.blank(targets.per_row(slope) * scale).to(z.dtype)
        dz = by_mean(p, self.matrix("amounts", z.dtype)[targets.spans.is_fraction.long()], mean, slope)
        return cost.sum().to(z.dtype), dz

    def _digits(self, z: Tensor, targets: NumberTargets) -> tuple[Tensor, Tensor, Tensor]:
        """Return the softmax ``[P, N]``, each token's mean amount ``[P]``, and its scale ``[P]``."""
        p = z.softmax(-1)
        mean = mean_amount(p, self.matrix("amounts", z.dtype), targets.spans)
        return p, mean, targets.blank(token_scale(targets.spans, self.widths[targets.index]))

    def _predicted(self, mean: Tensor, scale: Tensor, targets: NumberTargets) -> tuple[Tensor, Tensor]:
        """Return predicted and true numbers ``[slots]`` in units of the leading place: any length fits float64."""
        label = label_amounts(self.matrix("amounts", mean.dtype), targets)
        totals = targets.sum(torch.stack([mean, label], -1) * scale[:, None])
        return totals[:, 0], totals[:, 1]


KINDS: dict[str, type[NTLLoss]] = {loss.kind: loss for loss in (NTLLoss, NTLMSELoss, NTLMAELoss, NTLHuberLoss, NTLNumberLoss)}
