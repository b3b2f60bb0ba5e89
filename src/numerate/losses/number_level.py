"""Base class of number-level losses, and the arithmetic from tokens to numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from numerate.checks import check_settings
from numerate.losses.base import LossLevel, NumericLoss, SharedSettings
from numerate.losses.target_tokens import NumberTargets, Targets
from numerate.spans import NumberSpans, power_of_ten, sum_by
from numerate.vocab import NumericVocab

if TYPE_CHECKING:
    from typing_extensions import Unpack


class NumberLevelLoss(NumericLoss):
    """Base class of losses with one cost per number. Subclasses implement :meth:`number_cost`; the mean is over numbers.

    The format of the vocabulary decides which places the digits have; with the power of ten first, these losses are refused.
    Cost and position weight of a number are those at its first digit. The settings ``places`` and ``place_sigma`` do not apply,
    since place values are powers of ten.
    """

    level: ClassVar[LossLevel] = "number"

    def __init__(self, vocab: NumericVocab, **shared: Unpack[SharedSettings]) -> None:
        check_settings(type(self).__name__, shared, self.settings())
        super().__init__(vocab, **shared)

    @classmethod
    def settings(cls) -> dict[str, Any]:
        """Return all settings with their defaults."""
        return {name: default for name, default in super().settings().items() if name not in ("places", "place_sigma")}

    def number_cost(self, z: Tensor, targets: NumberTargets) -> Tensor:
        """Return the cost of each number ``[slots]`` from the logits ``[P, N]`` of all numbers' tokens.

        ``targets.spans`` has the place of each row; ``targets.sum`` sums rows ``[P]`` to numbers ``[slots]``. Slots without a
        number may have any finite cost.
        """
        raise NotImplementedError

    def number_rows(self, z: Tensor, rest: Tensor | None, targets: NumberTargets) -> Tensor:
        """Return each row's share ``[P]`` of the total cost. Override to spread the cost of a number over its digits."""
        z = self.blank_unread(z, targets)
        cost = self.number_cost(z, targets)
        if self.outside == "penalize":
            log_mass = self.log_mass(targets.blank(z), None if rest is None else targets.blank(rest))
            group = self.mass_group(targets)
            own = torch.ones_like(log_mass)
            if self.rules.fewest is not None:
                own = (targets.own_digits(self.widths) > 0).to(log_mass.dtype)
            cost = self.charge_outside(cost, mean_log(targets.blank(log_mass), own, group, targets.slots))
        cost = targets.at_first_digit(cost)
        return cost if targets.position_weights is None else cost * targets.position_weights.to(cost.dtype)

    def blank_unread(self, z: Tensor, targets: NumberTargets) -> Tensor:
        """Return ``z [P, N]`` with zeros in the rows that the loss does not read."""
        return targets.blank(z)

    def mass_group(self, targets: NumberTargets) -> Tensor:
        """Number ``[P]`` that each row's mass outside counts towards, -1 for none; by default all digits of a number do."""
        return targets.group

    def row_costs(self, z: Tensor, rest: Tensor | None, targets: Targets) -> Tensor:
        """See :meth:`number_rows`."""
        return self.number_rows(z, rest, NumberTargets.of(targets))

    def number_gradient(self, z: Tensor, targets: NumberTargets) -> tuple[Tensor, Tensor] | None:
        """Return the total cost and its analytic gradient w.r.t. ``z [P, N]`` for ``outside="ignore"``; None: use autograd."""
        return None

    def value_and_grad(self, z: Tensor, rest: Tensor | None, targets: Targets) -> tuple[Tensor, Tensor, Tensor | None]:
        """Use :meth:`number_gradient`, unless mass outside the numeric tokens is penalized."""
        written = None if self.outside == "penalize" else self.number_gradient(z, NumberTargets.of(targets))
        return super().value_and_grad(z, rest, targets) if written is None else (*written, None)

    def unit_rows(self, targets: Targets) -> Tensor | None:
        """Mask of the first digit of each number."""
        return NumberTargets.of(targets).spans.is_start

    @property
    def reads_numbers(self) -> bool:
        """Always."""
        return True


def mean_log(log_mass: Tensor, counts: Tensor, group: Tensor, slots: int) -> Tensor:
    """Mean ``[slots]`` of the logarithms ``[P]`` in each group: a product of masses would vanish for long numbers.

    ``counts [P]`` is 1, and 0 for padding, which adds to the sum alone.
    """
    totals = sum_by(group, torch.stack([log_mass, counts], -1), slots)
    return totals[:, 0] / totals[:, 1].clamp_min(1.0)


def token_amounts(vocab: NumericVocab) -> Tensor:
    """Amount of each token ``[2, N]``, float64: its value before the point, a fraction after it (``678`` is 0.678)."""
    return torch.stack([vocab.number_values, vocab.number_values / power_of_ten(vocab.widths)])


def label_amounts(amounts: Tensor, targets: NumberTargets) -> Tensor:
    """Amount ``[P]`` of each label, from the same ``amounts [2, N]``: a correct prediction differs from it by exactly 0."""
    return amounts[targets.spans.is_fraction.long(), targets.index]


def mean_amount(p: Tensor, amounts: Tensor, spans: NumberSpans) -> Tensor:
    """Mean ``[P]`` of :func:`token_amounts` under the probabilities ``p [P, N]``."""
    return (p @ amounts.T).gather(-1, spans.is_fraction.long()[:, None])[:, 0]


def token_scale(spans: NumberSpans, width: Tensor) -> Tensor:
    """Factor ``[P]``, float64, that turns :func:`token_amounts` into units of the number's leading place.

    Before the point a token counts by its value: ``6`` in place of ``45`` is 6. After it, digits are left-aligned: ``6`` in
    place of ``678`` is 0.6, or 600 thousandths. ``width [P]`` is the width of the label's token.
    """
    return spans.relative_place * torch.where(spans.is_fraction, torch.pow(10.0, width.double()), 1.0)
