"""Targets: token, number and place of the label of each row of logits that a loss reads."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from numerate.spans import EXACT_DIGITS, NumberSpans, Rules, put_by, sum_by

if TYPE_CHECKING:
    from typing_extensions import Self

Places = Literal["uniform", "exponential", "linear", "del"]

DECIMAL_FACTOR = 1.02  # ratio of the weights of successive decimals (DEL)


@dataclass(frozen=True)
class Targets:
    """The target token of each of the P rows."""

    rows: Tensor | None  # [P] positions in the flattened labels; None: all of them
    index: Tensor  # [P] index of the label among the numeric tokens; 0 where the mask is False
    mask: Tensor | None  # [P] whether the label is a numeric token; None: all of them are
    position_weights: Tensor | None  # [P] float64
    shape: torch.Size  # of the labels

    def to(self, device: torch.device) -> Self:
        """Copy to another device, in one non-blocking transfer."""
        if device == self.index.device:
            return self
        return self.unpacked(self.packed(pin_memory=device.type == "cuda").to(device, non_blocking=True))

    def packed(self, size: int | None = None, *, pin_memory: bool = False) -> Tensor:
        """Return all tensors stacked as ``[.., P]``, int64, ``rows`` first.

        A larger ``size`` pads the columns: padding belongs to no number, and is masked if there is a ``mask``.
        """
        tensors = self._tensors()
        packed = torch.zeros((len(tensors), size or self.slots), dtype=torch.int64, pin_memory=pin_memory)
        for name in ("spans.index", "spans.number_of"):
            if name in tensors:
                packed[list(tensors).index(name), self.slots :] = -1
        values = [value.view(torch.int64) if value.itemsize == 8 else value.long() for value in tensors.values()]
        packed[:, : self.slots] = torch.stack(values)
        return packed

    def unpacked(self, packed: Tensor) -> Self:
        """Inverse of :meth:`packed`: return targets with the tensors of ``packed``, on its device."""
        return self._with(
            {
                name: row.view(value.dtype) if value.itemsize == 8 else row.to(value.dtype)
                for (name, value), row in zip(self._tensors().items(), packed, strict=True)
            }
        )

    def take(self, index: Tensor) -> Self:
        """Return some of the rows."""
        return self._with({name: value[index] for name, value in self._tensors().items()})

    def _tensors(self) -> dict[str, Tensor]:
        return {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}

    def _with(self, tensors: dict[str, Tensor]) -> Self:
        return replace(self, **tensors)  # type: ignore[arg-type]

    @property
    def slots(self) -> int:
        """P, the number of rows, which bounds the number of numbers."""
        return self.index.shape[0]

    def blank(self, x: Tensor) -> Tensor:
        """Return ``x [P, ..]`` with zeros in masked rows."""
        if self.mask is None:
            return x
        return torch.where(self.mask if x.dim() == 1 else self.mask[:, None], x, 0.0)


@dataclass(frozen=True)
class NumberTargets(Targets):
    """The target token of each row, and the number it belongs to.

    Per-number tensors have P slots, ``[slots]``: number i of the batch is in slot i, and the other slots are zero.
    """

    spans: NumberSpans  # [P] each

    @classmethod
    def of(cls, targets: Targets) -> NumberTargets:
        """Return ``targets``, or raise if they come from a loss that does not read numbers."""
        if not isinstance(targets, NumberTargets):
            raise TypeError("targets have no numbers: expected targets of this loss; use loss.targets(labels).")
        return targets

    def _tensors(self) -> dict[str, Tensor]:
        return super()._tensors() | {f"spans.{name}": value for name, value in vars(self.spans).items()}

    def _with(self, tensors: dict[str, Tensor]) -> Self:
        spans = {name.removeprefix("spans."): value for name, value in tensors.items() if name.startswith("spans.")}
        own = {name: value for name, value in tensors.items() if not name.startswith("spans.")}
        return replace(self, spans=replace(self.spans, **spans), **own)  # type: ignore[arg-type]

    @property
    def group(self) -> Tensor:
        """Number of each row ``[P]``; -1 in masked rows."""
        return self.spans.number_of if self.mask is None else torch.where(self.mask, self.spans.number_of, -1)

    @property
    def first_group(self) -> Tensor:
        """Number of each row ``[P]`` at its first digit; -1 elsewhere."""
        return torch.where(self.spans.is_start, self.spans.number_of, -1)

    @property
    def sequence(self) -> Tensor:
        """Sequence of each row ``[P]``."""
        rows = torch.arange(self.slots, device=self.index.device) if self.rows is None else self.rows
        return rows // max(1, self.shape[-1])

    @property
    def number_weights(self) -> Tensor | None:
        """Position weight of each number ``[slots]``: that of its first digit."""
        return None if self.position_weights is None else put_by(self.first_group, self.position_weights, self.slots)

    def sum(self, amounts: Tensor) -> Tensor:
        """Sum ``[P, ..]`` over the digits of each number: ``[slots, ..]``."""
        return sum_by(self.group, amounts, self.slots)

    def per_row(self, amounts: Tensor) -> Tensor:
        """Return the entry of ``amounts [slots, ..]`` for the number of each row ``[P, ..]``; arbitrary outside numbers."""
        return amounts[self.group.clamp_min(0)]

    def at_first_digit(self, amounts: Tensor) -> Tensor:
        """Place ``amounts [slots]`` at the first digit of each number, zero elsewhere: ``[P]``."""
        return torch.where(self.spans.is_start, self.per_row(amounts), 0.0)

    def own_digits(self, widths: Tensor) -> Tensor:
        """Return how many digits of each token ``[P]`` are not padding: from ``leading`` to ``last``."""
        spans = self.spans
        top = torch.minimum(spans.exponent + widths[self.index] - 1, spans.leading)
        return (top - torch.maximum(spans.exponent, spans.last) + 1).clamp_min(0)

    def place_weights(self, places: Places, sigma: float, rules: Rules, widths: Tensor) -> Tensor:
        """Return the weight of each row ``[P]`` within its number; ``widths [N]`` are those of the numeric tokens.

        Digits have the weights that they have without padding, and padding those that follow from its places.
        """
        right = (self.spans.exponent - self.spans.last).double()  # [P]
        if places == "exponential":
            # At most 15 places: a number of 400 digits would have a weight of 10^31. The published code has no limit.
            return (1 + sigma) ** (right.clamp_max(EXACT_DIGITS) if rules.numbers == "values" else right)
        own = None if rules.fewest is None else self.own_digits(widths)
        if places == "del":
            after_point = torch.where(self.spans.is_fraction, (widths[self.index] if own is None else own).double(), 0.0)
            decimals = torch.where(self.spans.is_power, 0.0, self.per_row(self.sum(after_point)))  # a power of ten has none
            place = right - decimals  # 0 for units, -1 for tenths
            return torch.where(self.spans.is_fraction, torch.pow(DECIMAL_FACTOR, place - 1), 2 * (place + 1))
        # Linear: n, n-1, .., 1 over the digits; each token takes the weight of its last digit, normalized to mean 1 per number.
        raw = self.blank(right + 1)
        if own is None:
            return raw * self.per_row(self.sum(torch.ones_like(raw)) / self.sum(raw).clamp_min(1.0))
        counted = (own > 0).to(raw.dtype)
        return raw.clamp_min(0) * self.per_row(self.sum(counted) / self.sum(raw * counted).clamp_min(1.0))
