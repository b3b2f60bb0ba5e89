"""DEL, Digit Entropy Loss: binary cross-entropy of each digit, weighted by its predicted probability.

    w / 10 · Σ_k p_k · BCE(σ(z_k), 1[k = t])        z the logits of the numeric tokens, p their softmax, σ the sigmoid

    w = 2, 4, 6, ..             for units, tens, hundreds, ..
    w = 1.02^-(j + 1)           for the j-th digit after the point

Zheng et al.: DEL: Digit Entropy Loss for Numerical Learning of Large Language Models, 2026, arXiv:2605.20369, which adds it to
cross-entropy with a weight of 0.01.

Known weaknesses: it ignores distance, so that a wrong digit costs the same near the label and far from it; and it is not
shift-invariant: adding a constant to all logits changes it.

The published code supports single digits only and concatenates all labels that are not ignored, so that a number at the end of
a row, or before an ignored label, is joined to one that follows; it ignores a decimal point that starts a number.
``variant="released"`` reproduces that; the default reads numbers as docs/numbers.md defines them, with multi-digit tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from numerate.checks import check_choice, choices
from numerate.losses.base import NumericLoss, SharedSettings, Suitability, Variant, check_vocab
from numerate.losses.logit_rows import log_sum_exp, take
from numerate.losses.target_tokens import DECIMAL_FACTOR, Places, Targets
from numerate.spans import Rules
from numerate.vocab import NumericVocab

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

_CLASSES = 10  # the published mean is over ten digits; dividing by N instead would shrink the cost in a large vocabulary


def digit_entropy_loss(logits: Tensor, target: Tensor, rest: Tensor | None = None) -> Tensor:
    """Return DEL ``[P]``, with w = 1, of logits ``[P, N]`` and target index ``[P]``.

    ``rest [P]``, the log-sum-exp of all other tokens, is the logit of an additional wrong class.
    """
    dtype, at_target = logits.dtype, target[:, None]
    logits = logits.double()  # gradients are small differences between costs as large as the logits
    agreeing = logits.neg().scatter(-1, at_target, logits.gather(-1, at_target))
    cost = -(logits.softmax(-1) * F.logsigmoid(agreeing)).sum(-1)
    if rest is not None:
        lead = log_sum_exp(logits) - rest
        mass, outside = F.logsigmoid(lead).exp(), F.logsigmoid(-lead).exp()
        cost = mass * cost - outside * F.logsigmoid(-rest)
    return cost.to(dtype) / _CLASSES


@dataclass(frozen=True)
class JoinedTargets(Targets):
    """Targets, and the weight that the published code gives each row."""

    place_weights: Tensor  # [P] float64


class DigitEntropyLoss(NumericLoss):
    """Digit Entropy Loss (DEL); the formula is above.

    Args:
        vocab: the numeric tokens.
        places: weights w of the digits of a number; ``"del"`` is the formula above.
        place_sigma: growth per place of ``places="exponential"``.
        variant: ``"paper"``: the formula on every numeric token. ``"released"``: reproduces the published code: single digits,
            and numbers joined as described above; ``position_ids`` do not separate them.
        **shared: ``outside``, ``thousands``, ``ignore_index``; see :class:`~numerate.losses.base.NumericLoss`.
            ``outside="penalize"`` treats all other tokens as an additional wrong class, with their log-sum-exp as its logit.

    Examples:
        >>> vocab = NumericVocab.from_texts({str(d): d for d in range(10)}, vocab_size=10)
        >>> DigitEntropyLoss(vocab)(torch.zeros(1, 10), torch.tensor([5]))  # 2 / 10 · log 2
        tensor(0.1386)
    """

    name = "digit_entropy"
    sees = "Each bar independently, by its logit (here log p): ignores the distance between digits."
    shift_invariant = False

    def __init__(
        self,
        vocab: NumericVocab,
        places: Places = "del",
        place_sigma: float = 0.2,
        variant: Variant = "paper",
        **shared: Unpack[SharedSettings],
    ) -> None:
        check_choice("variant", variant, choices(Variant))
        if variant == "released":
            vocab = check_vocab(vocab).restrict(digits_only=True)
        super().__init__(vocab, places=places, place_sigma=place_sigma, **shared)
        self.variant: Variant = variant
        if self.joins:
            Rules.of(vocab.format, "runs", reader="DigitEntropyLoss with variant='released'")  # raises where they are none
        self._points = [token_id for token_id, text in vocab.marks if text == "."]

    @classmethod
    def released(cls, vocab: NumericVocab, **settings: Any) -> Self:
        """Return the loss with ``variant="released"``, which reproduces the published code except for its factor of 0.01.

        Pass that factor as the weight: ``NumericObjective(DigitEntropyLoss.released(vocab), weight=0.01)``.
        """
        return cls(vocab, variant="released", **settings)

    @classmethod
    def advice(cls, vocab: NumericVocab) -> tuple[Suitability, str]:
        """Fair: it ignores distance, and the published code supports single digits only."""
        beyond = "" if vocab.is_single_digits else "; the published code supports single digits only"
        return "fair", f"ignores distance: every wrong token costs the same; published weight 0.01{beyond}"

    @property
    def costs_outside(self) -> bool:
        """All other tokens are an additional class."""
        return True

    @property
    def joins(self) -> bool:
        """Whether numbers are joined and weighted as in the published code."""
        return self.variant == "released" and self.places == "del"

    @property
    def reads_numbers(self) -> bool:
        """Not where they are joined."""
        return self.places != "uniform" and not self.joins  # torch.compile of torch 2.11 cannot read a property of super()

    def targets(
        self,
        labels: Tensor,
        *,
        position_weights: Tensor | None = None,
        position_ids: Tensor | None = None,
        compact: bool | None = None,
    ) -> Targets:
        """See :meth:`NumericLoss.targets`."""
        read = super().targets(labels, position_weights=position_weights, position_ids=position_ids, compact=compact)
        if not self.joins:
            return read
        weights = take(self._joined_weights(labels.flatten()), read.rows)
        return JoinedTargets(read.rows, read.index, read.mask, read.position_weights, read.shape, weights)

    def place_weights(self, targets: Targets) -> Tensor:
        """See :meth:`NumericLoss.place_weights`."""
        return targets.place_weights if isinstance(targets, JoinedTargets) else super().place_weights(targets)

    def _joined_weights(self, labels: Tensor) -> Tensor:
        """Return the published place weight of each label ``[R]``, float64; arbitrary where the label is not a digit.

        A number is a run of digits and points among the labels that are not ignored. Its first point is the decimal point,
        unless the run starts with it.
        """
        counts = labels != self.ignore_index
        is_point = torch.isin(labels, torch.tensor(self._points, dtype=labels.dtype, device=labels.device)) & counts
        is_other = counts & ~is_point & ~torch.isin(labels, self.columns.to(labels))
        at = counts.long().cumsum(0) - 1  # [R] position among the labels that count
        size = labels.shape[0]
        start = torch.where(is_other, at + 1, 0).cummax(0).values
        end = _next(torch.where(is_other, at, size))
        end = torch.minimum(end, counts.sum())  # the last run ends with the labels
        # The first point of the run: the next point as seen from where the run starts.
        next_point = _next(torch.where(is_point, at, size))
        begins = torch.where(is_other, torch.arange(1, size + 1, device=labels.device), 0).cummax(0).values
        first_point = next_point[begins.clamp_max(size - 1)]
        unit = torch.where((first_point > start) & (first_point < end), first_point, end)
        place = (unit - 1 - at).double()  # 0 for units, -2 for tenths, as the point takes a position
        return torch.where(place < 0, torch.pow(DECIMAL_FACTOR, place), 2 * (place + 1))

    def cost(self, z: Tensor, rest: Tensor | None, target: Tensor) -> Tensor:
        """See :func:`digit_entropy_loss`."""
        return digit_entropy_loss(z, target, rest)


def _next(x: Tensor) -> Tensor:
    """Return the minimum over the entries at or after each position ``[R]``."""
    return x.flip(0).cummin(0).values.flip(0)
