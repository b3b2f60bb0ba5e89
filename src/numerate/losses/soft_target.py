"""Cross-entropy with soft targets over neighbouring values, shared by Gaussian CE, DIST2 and neighbour smoothing.

    log Z - Σ_i q_i z_i          Z over the whole vocabulary, or over the numeric tokens alone

With ``outside="penalize"`` the softmax covers the whole vocabulary, so that mass on text is penalized; with ``"ignore"`` it
covers the numeric tokens.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from numerate.losses.base import NumericLoss, Outside
from numerate.losses.logit_rows import log_sum_exp


def soft_target_loss(logits: Tensor, target: Tensor, soft: Tensor, rest: Tensor | None = None) -> Tensor:
    """Return the cross-entropy ``[P]`` of logits ``[P, N]``, target index ``[P]`` and soft targets ``[N, N]``.

    ``rest [P]``, the log-sum-exp of all other tokens, extends the softmax to the whole vocabulary. A logit of -inf costs 0 where
    the target has no weight, else inf.
    """
    log_z = log_sum_exp(logits)
    if rest is not None:
        log_z = torch.logaddexp(log_z, rest)
    q = soft[target]  # [P, N]
    # Subtract first: log Z and the logits may be large where their difference is not.
    surprise = (log_z[:, None] - logits).to(q.dtype)
    return (q * torch.where(q > 0, surprise, 0.0)).sum(-1)


class SoftTargetLoss(NumericLoss):
    """Cross-entropy with soft targets. Subclasses set a matrix ``soft [N, N]``: a distribution for each target token."""

    default_outside: ClassVar[Outside] = "penalize"
    zero_when_certain = False
    soft: Tensor

    @property
    def costs_outside(self) -> bool:
        """The softmax covers the whole vocabulary."""
        return True

    def cost(self, z: Tensor, rest: Tensor | None, target: Tensor) -> Tensor:
        """See :func:`soft_target_loss`."""
        return soft_target_loss(z, target, self.matrix("soft", z.dtype), rest)
