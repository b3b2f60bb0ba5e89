"""The numeric term: its gradient, and the probability of the numeric tokens, from logits or from hidden states."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from numerate.losses.base import NumericLoss
from numerate.losses.logit_rows import divide, log_sum_exp, rest_of
from numerate.losses.target_tokens import Targets

_MAX_EXPONENT = 700.0  # exp overflows float64 beyond; the gradient is zero there


def numeric_gradient(
    loss: NumericLoss, z: Tensor, rest: Tensor | None, targets: Targets, *, needs_grad: bool
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Return the numeric sum and, if needed, its gradients w.r.t. ``z [P, N]`` and ``rest [P]``, detached."""
    with torch.no_grad(), torch.autocast(z.device.type, enabled=False):
        if needs_grad:
            return loss.value_and_grad(z, rest, targets)
        return loss.per_row(z, rest, targets).sum(), None, None


def rest_as_softmax_share(d_rest: Tensor, log_ratio: Tensor) -> Tensor:
    """Convert the gradient ``[P]`` w.r.t. ``rest`` to a factor of the whole row's softmax, in float64.

    ``log_ratio [P]`` is the log-sum-exp of the whole row minus ``rest``.
    """
    return d_rest.double() * log_ratio.double().clamp_max(_MAX_EXPONENT).exp()


def softmax_share_of(d_rest: Tensor, z: Tensor, rest: Tensor, targets: Targets, share: Tensor) -> Tensor:
    """Return the factor of each row's softmax ``[R]`` from the gradient ``[P]`` w.r.t. ``rest``; ``share [R]`` gives the size."""
    per_row = rest_as_softmax_share(d_rest, -F.logsigmoid(rest - log_sum_exp(z)))
    per_row = targets.blank(per_row).to(share.dtype)
    return per_row if targets.rows is None else torch.zeros_like(share).index_copy(0, targets.rows, per_row)


def mean_mass(loss: NumericLoss, z: Tensor, lse: Tensor, targets: Targets) -> Tensor:
    """Return the mean probability of the numeric tokens, from ``z [P, N]`` and the log-sum-exp ``[P]`` of whole rows."""
    if not z.shape[1]:  # no numeric tokens
        return z.sum()
    return mean_mass_from_rest(loss, z, rest_of(targets.blank(z), targets.blank(lse)), targets)


def mean_mass_from_rest(loss: NumericLoss, z: Tensor, rest: Tensor, targets: Targets) -> Tensor:
    """Return the same from the log-sum-exp ``[P]`` of all other tokens."""
    mass = loss.log_mass(targets.blank(z), targets.blank(rest)).exp().to(z.dtype)
    return divide(targets.blank(mass).sum(), targets.slots if targets.mask is None else targets.mask.sum())
