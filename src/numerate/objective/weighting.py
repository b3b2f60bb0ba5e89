"""Weighting: how the numeric term is normalised, scaled and added to cross-entropy."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from numerate.choices import Normalize, Scale

_MATCH_EPS = 1e-10  # as in NTIL's published code


@dataclass(frozen=True)
class Weighting:
    """The settings in ``CE_sum / num_items + factor · numeric_sum / denominator``; see :class:`numerate.NumericObjective`."""

    weight: float
    normalize: Normalize
    scale: Scale
    label_smoothing: float

    def denominator(self, num_items: float | Tensor, num_units: float | Tensor) -> float | Tensor:
        """Return the denominator of the numeric sum."""
        return num_units if self.normalize == "numeric" else num_items

    def factor(self, ce: Tensor | None, numeric: Tensor) -> Tensor | float:
        """Return the factor of the normalised numeric term, without gradient. A fixed scale ignores ``ce``."""
        if self.scale == "fixed":
            return self.weight
        assert ce is not None
        # Clamped: a cross-entropy of 1e38 would give inf, and 0 · inf is NaN in a batch without numbers.
        return self.weight * (ce / (numeric + _MATCH_EPS)).detach().clamp_max(torch.finfo(ce.dtype).max)
