"""Weighting: how the numeric term is normalised, scaled and added to cross-entropy."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from numerate.choices import Normalize, Scale

_MATCH_EPS = 1e-10  # as in NTIL's published code


@dataclass(frozen=True)
class Weighting:
    """The settings in ``CE_sum / num_items + factor · numeric_sum / denominator``.

    :class:`numerate.NumericObjective` explains and checks them.
    """

    weight: float
    normalize: Normalize
    scale: Scale
    label_smoothing: float

    def denominator(self, num_items: float | Tensor, num_units: float | Tensor) -> float | Tensor:
        """Return what the numeric sum is divided by."""
        return num_units if self.normalize == "numeric" else num_items

    def factor(self, ce: Tensor | None, numeric: Tensor) -> Tensor | float:
        """Return what the normalised numeric term is multiplied by, without gradient. A fixed scale ignores ``ce``."""
        if self.scale == "fixed":
            return self.weight
        assert ce is not None
        # A bound, since a cross-entropy of 1e38 would give inf, and 0 · inf is NaN where there is no number.
        return self.weight * (ce / (numeric + _MATCH_EPS)).detach().clamp_max(torch.finfo(ce.dtype).max)
