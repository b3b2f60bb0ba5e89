"""Sums over groups of rows, with output shapes that do not depend on the data."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor


def sum_by(group: Tensor, amounts: Tensor, size: int) -> Tensor:
    """Sum the rows of ``amounts [P, ..]`` that share a ``group [P]``, into ``[size, ..]``.

    Group numbers never decrease, except for -1: those rows are skipped.
    """
    if amounts.device.type == "cuda" and amounts.is_floating_point():
        return sum_segments(group, amounts, size)
    # An extra slot collects the rows without a group.
    slots = amounts.new_zeros((size + 1, *amounts.shape[1:]))
    return slots.index_add(0, torch.where(group < 0, size, group), amounts)[:size]


def sum_segments(group: Tensor, amounts: Tensor, size: int) -> Tensor:
    """Compute :func:`sum_by` in a fixed order; on a GPU ``index_add`` does not guarantee one."""
    amounts = torch.where((group < 0).view(-1, *[1] * (amounts.dim() - 1)), 0.0, amounts)
    begins = torch.searchsorted(group.cummax(0).values, torch.arange(size + 1, device=group.device))
    return torch.segment_reduce(amounts, "sum", offsets=begins, unsafe=True)


def put_by(group: Tensor, amounts: Tensor, size: int) -> Tensor:
    """Compute :func:`sum_by` for groups of at most one row; cheaper on a GPU because it does not sort."""
    slots = amounts.new_zeros((size + 1, *amounts.shape[1:]))
    return slots.index_put((torch.where(group < 0, size, group),), amounts)[:size]


def extreme_by(group: Tensor, amounts: Tensor, which: Literal["amin", "amax"]) -> Tensor:
    """Return the least or the largest of the integers ``amounts [P]`` that share a ``group [P]``, not -1, as ``[P]`` slots."""
    size, bounds = group.numel(), torch.iinfo(amounts.dtype)
    slots = amounts.new_full((size + 1,), bounds.min if which == "amax" else bounds.max)
    return slots.scatter_reduce(0, torch.where(group < 0, size, group), amounts, which)[:size]
