"""Rows: sequences that a model of transformers continues token by token, of which any selection can be continued further.

It stands on what ``generate`` itself does between two tokens (``prepare_inputs_for_generation``, the model's cache, position ids
and masks), so that it works for decoders, encoder-decoders and vision-language models alike.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import EncoderDecoderCache
from transformers.cache_utils import Cache
from transformers.generation.utils import ALL_CACHE_NAMES


class Rows:
    """Sequences in generation, and the scores of their next token.

    Args:
        model: the model that ``generate`` calls the decoding method with.
        input_ids: ``[R, T]``, the prompts, or the decoder's prompts.
        model_kwargs: what ``generate`` prepared besides.
        process: ``logits_processor`` of ``generate``.

    Attributes:
        input_ids: ``[R, T]``, grows by one column per token.
        scores: ``[R, V]`` in float32.
    """

    def __init__(self, model: Any, input_ids: Tensor, model_kwargs: dict[str, Any], process: Callable[..., Tensor]) -> None:
        self.model, self.input_ids, self.kwargs, self.process = model, input_ids, dict(model_kwargs), process
        prepared = {name: self.kwargs[name] for name in ALL_CACHE_NAMES if name in self.kwargs}
        self._forward(first=True)
        if not all(hasattr(cache, "reorder_cache") for cache in self._caches()):
            # A cache whose rows cannot be selected: compute every sequence from its beginning instead.
            for name in {*ALL_CACHE_NAMES} & {*self.kwargs, *prepared}:
                self.kwargs.pop(name, None)
            self.kwargs |= {**{name: value for name, value in model_kwargs.items() if name not in prepared}, "use_cache": False}
            self._forward(first=True)

    def __len__(self) -> int:
        return self.input_ids.shape[0]

    @property
    def bytes_per_row(self) -> int:
        """Memory that the cache and the scores of one row take."""
        tensors = [*_tensors([*self._caches()]), self.scores]
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors) // max(len(self), 1)

    def select(self, index: Tensor) -> Rows:
        """Return the rows of ``index [S]``, in this order; a row may occur several times, or not at all."""
        chosen = copy.copy(self)
        index = index.to(self.input_ids.device)
        chosen.input_ids = self.input_ids.index_select(0, index)
        chosen.scores = self.scores.index_select(0, index)
        chosen.kwargs = {name: _selected(name, value, index, len(self)) for name, value in self.kwargs.items()}
        return chosen

    def feed(self, token_ids: Tensor) -> None:
        """Append ``token_ids [R]`` to the rows, and compute the scores of what follows."""
        column = token_ids.to(self.input_ids.device)[:, None]
        self.input_ids = torch.cat([self.input_ids, column], dim=1)
        self._forward(first=False)

    def _forward(self, *, first: bool) -> None:
        cached = self.kwargs.get("use_cache", True)
        inputs = self.model.prepare_inputs_for_generation(
            self.input_ids,
            next_sequence_length=None if first or not cached else 1,
            is_first_iteration=first,
            **self.kwargs,
        )
        outputs = self.model(**inputs, return_dict=True)
        self.kwargs = self.model._update_model_kwargs_for_generation(
            outputs, self.kwargs, is_encoder_decoder=self.model.config.is_encoder_decoder
        )
        logits = outputs.logits[:, -1].to(copy=True, dtype=torch.float32, device=self.input_ids.device)
        self.scores = self.process(self.input_ids, logits)

    def _caches(self) -> list[Any]:
        return [self.kwargs[name] for name in ALL_CACHE_NAMES if self.kwargs.get(name) is not None]


def _selected(name: str, value: Any, index: Tensor, rows: int) -> Any:
    """Return an argument of the model for the rows of ``index``; what does not belong to rows is returned as it is."""
    if isinstance(value, Cache):
        chosen = _copied(value)
        chosen.reorder_cache(index)
        return chosen
    if isinstance(value, Tensor):
        dim = value.dim() - 2 if name.endswith("position_ids") and value.dim() > 2 else 0  # [3, R, T] in multimodal models
        return value.index_select(dim, index.to(value.device)) if value.dim() and value.shape[dim] == rows else value
    if isinstance(value, Mapping):  # outputs of the encoder
        return type(value)(**{key: _selected(key, part, index, rows) for key, part in value.items()})
    if isinstance(value, list | tuple):
        return type(value)(_selected(name, part, index, rows) for part in value)
    return value


def _copied(cache: Any) -> Any:
    """Return a cache with the same tensors; selecting rows of it leaves the original as it is."""
    twin = copy.copy(cache)
    if isinstance(cache, EncoderDecoderCache):
        twin.self_attention_cache = _copied(cache.self_attention_cache)
        twin.cross_attention_cache = _copied(cache.cross_attention_cache)
        twin.is_updated = dict(cache.is_updated)
    elif hasattr(cache, "layers"):
        twin.layers = [copy.copy(layer) for layer in cache.layers]
        for layer in twin.layers:
            for name, part in vars(layer).items():
                if isinstance(part, dict | list):
                    setattr(layer, name, copy.copy(part))
    return twin


def _tensors(value: Any) -> list[Tensor]:
    """Return the tensors inside a cache or a collection."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, EncoderDecoderCache):
        return _tensors([value.self_attention_cache, value.cross_attention_cache])
    if isinstance(value, Cache):
        return _tensors([*map(vars, value.layers)])
    parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    return [tensor for part in parts for tensor in _tensors(part)]
