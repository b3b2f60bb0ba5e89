"""Kernels over the values of numeric tokens, and their gram matrices.

A kernel is the similarity of two values; the matrix K ``[N, N]`` of all pairs is the *gram*. With d = |v_i - v_j|:

    gaussian    K = exp(-d² / 2σ²)
    laplacian   K = exp(-d / σ)
    energy      K = 1 - d / max d         (r'Kr is then 2 CRPS / max d, for r that sums to zero)

Several σ are averaged. All matrices are float64 ``[N, N]`` and positive semi-definite.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from numerate.checks import check_choice, check_number, choices

Kernel = Literal["gaussian", "laplacian", "energy"]
Ablation = Literal["random", "shuffled"]

KERNELS: dict[Kernel, Callable[[Tensor, float], Tensor]] = {
    "gaussian": lambda d, sigma: torch.exp(-(d / sigma).square() / 2),  # d² / sigma² would be 0 / 0 for a small sigma
    "laplacian": lambda d, sigma: torch.exp(-d / sigma),
    "energy": lambda d, sigma: 1 - d / d.max().clamp_min(torch.finfo(d.dtype).tiny),
}


def distances(values: Tensor) -> Tensor:
    """Return ``|v_i - v_j|`` ``[N, N]`` of values ``[N]``."""
    return (values[:, None] - values[None, :]).abs()


def squashed(distance: Tensor, squash: float | None) -> Tensor:
    """Map distances linearly so that the smallest positive one is 1 and the largest ``squash``; zero stays zero. None: off.

    The published SMMD and ``ntloss`` code do this so that one σ suits both ten digits and a thousand tokens. ``squash`` must
    be > 1, as in ``ntloss``; the published SMMD code treats a factor <= 1 as off.
    """
    if squash is None:
        return distance
    check_number("squash", squash, above=1.0, most=1e20, hint="None turns it off.")
    apart = distance > 0
    if not bool(apart.any()):
        return distance
    low, high = torch.where(apart, distance, float("inf")).min(), distance.max()
    if bool(low == high):
        return distance
    return torch.where(apart, 1 + (distance - low) * (squash - 1) / (high - low), 0.0)


def gram_matrix(distance: Tensor, kernel: Kernel = "gaussian", sigma: float | Sequence[float] = 2.0) -> Tensor:
    """Return the gram of a distance matrix ``[N, N]``, the mean over all ``sigma``."""
    check_choice("kernel", kernel, choices(Kernel))
    sigmas = [check_number("sigma", s, above=0.0) for s in (sigma if isinstance(sigma, list | tuple) else [sigma])]
    if not sigmas:
        raise ValueError("sigma=() is empty: expected a number > 0, or a sequence of them.")
    total = KERNELS[kernel](distance, sigmas[0])
    for s in sigmas[1:]:  # one at a time: there may be hundreds
        total += KERNELS[kernel](distance, s)
    return total / len(sigmas) if len(sigmas) > 1 else total


def shuffled_values(values: Tensor, seed: int) -> Tensor:
    """Return a random permutation of the values: the gram keeps its spectrum but ignores the number line."""
    return values[torch.randperm(values.shape[0], generator=torch.Generator().manual_seed(seed))]


def random_gram(size: int, seed: int) -> Tensor:
    """Return a gram that ignores the values: products of random sign vectors of length 4, to the power 5 (SMMD, appendix C.4)."""
    generator = torch.Generator().manual_seed(seed)
    signs = torch.randint(0, 2, (size, 4), generator=generator, dtype=torch.float32).double() * 2 - 1
    unit = F.normalize(signs, dim=1)
    return (unit @ unit.T).pow(5)


def check_gram(gram: Tensor, size: int) -> Tensor:
    """Return a custom gram (``kernel=``) as float64; raise unless it is ``[N, N]``, symmetric and positive semi-definite."""
    if gram.shape != (size, size):
        raise ValueError(f"kernel has shape {tuple(gram.shape)}: expected [{size}, {size}], one row per numeric token.")
    matrix = gram.detach().double().cpu()
    if not bool(matrix.isfinite().all()):
        raise ValueError("kernel contains NaN or inf: expected finite similarities.")
    if not torch.allclose(matrix, matrix.T, rtol=0, atol=1e-6 * float(matrix.abs().max())):
        gap = float((matrix - matrix.T).abs().max())
        raise ValueError(f"kernel is not symmetric (entries differ by {gap:.3g}): expected K == K.T; use (K + K.T) / 2.")
    matrix = (matrix + matrix.T) / 2
    lowest = float(torch.linalg.eigvalsh(matrix)[0])
    if lowest < -1e-6 * max(1.0, float(matrix.abs().max())):
        raise ValueError(
            f"kernel is not positive semi-definite (lowest eigenvalue {lowest:.3g}): expected K = F F' for some features F. "
            "A wrong prediction could have a negative cost; add a multiple of the identity or build K from features."
        )
    return matrix
