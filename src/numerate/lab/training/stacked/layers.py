"""Layers of E models of one architecture at once: weights ``[E, ..]``, and rows of a batch that each belong to one of the models.

A batch of a stacked model is a batch of a single one with more rows. Everything that treats rows alike (attention, masks, caches,
``generate``) is the code of the architecture itself; only layers with weights are replaced, by the classes below.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Members:
    """Which of the E models each row of the current batch belongs to. One object, shared by the layers of a stack."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._slots: Tensor | None = None  # [E * M], the row in each slot; None: rows are in E equal parts already
        self._back: Tensor | None = None  # [R], the slot of each row
        self._owners: Tensor | None = None  # [R]

    def set(self, owners: Tensor | None) -> None:
        """Set the model of each row, ``[R]``; None: the rows are E equal parts, in the order of the models."""
        self._owners = self._slots = self._back = None
        if owners is None or not owners.numel():
            return
        counts = torch.bincount(owners, minlength=self.size)
        most = int(counts.max())
        equal = bool((owners[1:] >= owners[:-1]).all()) and bool((counts == most).all())
        if equal:
            return
        self._owners = owners
        order = owners.argsort(stable=True)
        firsts = counts.cumsum(0) - counts
        within = torch.arange(len(owners), device=owners.device) - firsts[owners[order]]
        slots = owners[order] * most + within
        self._slots = torch.zeros(self.size * most, dtype=torch.long, device=owners.device).scatter_(0, slots, order)
        self._back = torch.empty_like(order).scatter_(0, order, slots)

    def grouped(self, x: Tensor) -> Tensor:
        """Return rows ``[R, ..]`` as ``[E, M, ..]``; a model with fewer than M rows has another's in its free slots."""
        if self._slots is not None:
            self._check(x, len(self._back))  # type: ignore[arg-type]
            x = x.index_select(0, self._slots)
        else:
            self._share(x.shape[0])
        parts: Tensor = x.unflatten(0, (self.size, -1))
        return parts

    def rows(self, grouped: Tensor) -> Tensor:
        """Return ``[E, M, ..]`` as rows ``[R, ..]``."""
        flat = grouped.flatten(0, 1)
        return flat if self._back is None else flat.index_select(0, self._back)

    def of_rows(self, weight: Tensor, rows: int) -> Tensor:
        """Return the part ``[R, ..]`` of a weight ``[E, ..]`` that each of R rows has."""
        if self._owners is None:
            return weight.repeat_interleave(self._share(rows), 0)
        self._check(self._owners, rows)
        return weight.index_select(0, self._owners)

    def _share(self, rows: int) -> int:
        if rows % self.size:
            raise ValueError(f"{rows} rows cannot be split among {self.size} models: pass members=, the model of each row.")
        return rows // self.size

    @staticmethod
    def _check(x: Tensor, rows: int) -> None:
        if x.shape[0] != rows:
            raise ValueError(f"a layer got {x.shape[0]} rows, and members has {rows}: expected one row for each.")


class StackedLinear(nn.Module):
    """``nn.Linear`` with weights ``[E, out, in]``."""

    def __init__(self, members: Members, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.members = members
        self.weight = nn.Parameter(weight)
        self.bias = None if bias is None else nn.Parameter(bias)

    def forward(self, x: Tensor) -> Tensor:
        """Apply each model's layer to its rows."""
        grouped = self.members.grouped(x)
        flat, weight = grouped.flatten(1, -2), self.weight.transpose(1, 2)
        y = torch.bmm(flat, weight) if self.bias is None else torch.baddbmm(self.bias[:, None], flat, weight)
        return self.members.rows(y.unflatten(1, grouped.shape[1:-1]))


class StackedEmbedding(nn.Module):
    """``nn.Embedding`` with weights ``[E, V, H]``."""

    def __init__(self, members: Members, weight: Tensor) -> None:
        super().__init__()
        self.members = members
        self.weight = nn.Parameter(weight)

    def forward(self, ids: Tensor) -> Tensor:
        """Look up each row in its model's table."""
        size, count = self.weight.shape[:2]
        firsts = self.members.of_rows(torch.arange(size, device=ids.device) * count, ids.shape[0])
        return F.embedding(ids + firsts.view(-1, *[1] * (ids.dim() - 1)), self.weight.flatten(0, 1))


class StackedNorm(nn.Module):
    """A norm over the last dimension, ``normalize``, with weights (and biases) ``[E, H]``."""

    def __init__(self, members: Members, normalize: Callable[[Tensor], Tensor], weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.members, self.normalize = members, normalize
        self.weight = nn.Parameter(weight)
        self.bias = None if bias is None else nn.Parameter(bias)

    def forward(self, x: Tensor) -> Tensor:
        """Normalize, and apply each model's weights to its rows."""
        y = self.members.grouped(self.normalize(x))
        shape = (self.members.size, *[1] * (y.dim() - 2), -1)
        y = y * self.weight.view(shape)
        return self.members.rows(y if self.bias is None else y + self.bias.view(shape))


class StackedConv2d(StackedLinear):
    """A convolution whose kernels do not overlap, as that of a vision encoder's patches: weights ``[E, out, in, h, w]``."""

    def forward(self, x: Tensor) -> Tensor:
        """Apply each model's kernels to its pictures."""
        high, wide = self.weight.shape[-2:]
        across = x.shape[-2] // high, x.shape[-1] // wide
        whole = x[..., : across[0] * high, : across[1] * wide].unflatten(-1, (across[1], wide)).unflatten(-3, (across[0], high))
        patches = whole.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)  # [R, patches, in * h * w]; F.unfold goes row by row
        weight = self.weight.flatten(2)
        grouped = self.members.grouped(patches)  # [E, M, patches, in * h * w]
        flat = grouped.flatten(1, 2)
        y = torch.bmm(flat, weight.transpose(1, 2))
        y = y if self.bias is None else y + self.bias[:, None]
        maps: Tensor = self.members.rows(y.unflatten(1, grouped.shape[1:3])).transpose(1, 2).unflatten(2, across)
        return maps


class StackedClipEmbeddings(nn.Module):
    """The first layer of CLIP's vision encoder: patches of pictures, a class token and positions."""

    def __init__(self, members: Members, layers: list[Any]) -> None:
        super().__init__()
        self.members = members
        self.class_embedding = nn.Parameter(torch.stack([layer.class_embedding.detach() for layer in layers]))
        self.patch_embedding: Any = stacked_layer(members, [layer.patch_embedding for layer in layers])
        self.position_embedding: Any = stacked_layer(members, [layer.position_embedding for layer in layers])

    def forward(self, pixel_values: Tensor, interpolate_pos_encoding: bool = False) -> Tensor:
        """Return the embeddings of each picture, ``[R, 1 + patches, H]``."""
        rows = pixel_values.shape[0]
        patches = self.patch_embedding(pixel_values).flatten(2).transpose(1, 2)
        first = self.members.of_rows(self.class_embedding, rows)[:, None]
        return torch.cat([first, patches], dim=1) + self.members.of_rows(self.position_embedding.weight, rows)


def stacked_layer(members: Members, layers: list[Any]) -> nn.Module | None:
    """Return the layer that computes all ``layers`` at once; None if there is none for their type."""
    from transformers.models.clip.modeling_clip import CLIPVisionEmbeddings
    from transformers.models.llama.modeling_llama import LlamaRMSNorm

    first = layers[0]

    def stacked(name: str) -> Tensor | None:
        return None if getattr(first, name, None) is None else torch.stack([getattr(layer, name).detach() for layer in layers])

    weight, bias = stacked("weight"), stacked("bias")
    if type(first) is nn.Linear:
        return StackedLinear(members, weight, bias)  # type: ignore[arg-type]
    if type(first) is nn.Embedding:
        return StackedEmbedding(members, weight)  # type: ignore[arg-type]
    if type(first) is nn.LayerNorm:
        shape, eps = first.normalized_shape, first.eps
        return StackedNorm(members, lambda x: F.layer_norm(x, shape, eps=eps), weight, bias)  # type: ignore[arg-type]
    if type(first) is LlamaRMSNorm:
        epsilon = first.variance_epsilon

        def normalize(x: Tensor) -> Tensor:
            wide = x.float()
            return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + epsilon)).to(x.dtype)

        return StackedNorm(members, normalize, weight, None)  # type: ignore[arg-type]
    if type(first) is CLIPVisionEmbeddings:
        return StackedClipEmbeddings(members, layers)
    if type(first) is nn.Conv2d and first.kernel_size == first.stride and not any(first.padding):
        return StackedConv2d(members, weight, bias)  # type: ignore[arg-type]
    return None
