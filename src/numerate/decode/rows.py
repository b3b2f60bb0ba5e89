"""Rows: sequences that a transformers model extends token by token, and of which any selection can be extended further.

It uses the same methods as ``generate`` between two tokens (``prepare_inputs_for_generation``, the model's cache, position ids
and masks), and thus works for decoders, encoder-decoders and vision-language models.

Selecting rows requires selecting their part of the cache. Attention, convolution and recurrent layers keep tensors ``[R, ..]`` in
different places, so every tensor in the cache with R rows is selected, positions ``[P, R, T]`` along the second dimension;
``reorder_cache`` of transformers handles fewer tensors. A model without such a cache, or with state in its layers, such as
RecurrentGemma, recomputes every sequence from the start.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import MethodType
from typing import Any

import torch
import transformers
from packaging.version import Version
from torch import Tensor, nn
from transformers import GenerationMixin, PretrainedConfig
from transformers.cache_utils import Cache
from transformers.generation import utils as generation
from transformers.generation.utils import ALL_CACHE_NAMES

from numerate.decode.mixed import RowAdapters

IGNORE_PADDING = frozenset(
    {
        "bart",
        "bigbird_pegasus",
        "blenderbot",
        "blenderbot-small",
        "blip",
        "blip_text_model",
        "doge",
        "hunyuan_vl",
        "kosmos-2.5",
        "marian",
        "mbart",
        "mvp",
        "pegasus",
        "plbart",
        "prophetnet",
        "reformer",
        "rwkv",
        "trocr",
        "whisper",
        "xlm",
        "xlnet",
        *(["git"] if Version(transformers.__version__) < Version("5") else []),
        *(["minimax_m3_vl"] if Version(transformers.__version__) < Version("5.23") else []),
    }
)
"""Types of decoders that treat padding before a prompt as text, as found by ``scripts/sweep_architectures.py``."""

_BY_ROW = {
    "EncoderNoRepeatNGramLogitsProcessor": "encoder_no_repeat_ngram_size=0",
    "EncoderRepetitionPenaltyLogitsProcessor": "encoder_repetition_penalty=1.0",
    "PrefixConstrainedLogitsProcessor": "prefix_allowed_tokens_fn=None",
    "UnbatchedClassifierFreeGuidanceLogitsProcessor": "guidance_scale=None",
}
# Early releases of transformers leave these to each model, and have no such list.
_MEDIA = {
    *getattr(generation, "MULTIMODAL_INPUTS_TO_DROP_OUTSIDE_PREFILL", ()),
    *(
        "pixel_values",
        "pixel_values_videos",
        "pixel_attention_mask",
        "pixel_mask",
        "image_sizes",
        "input_features",
        "input_values",
    ),
}
_PREPARED_BY = inspect.signature(GenerationMixin.prepare_inputs_for_generation).parameters
_POSITION = "cache_position"  # of transformers before 5.5: where in the cache the next tokens go, the same for all rows


class Rows:
    """Sequences being generated, and the scores of their next token."""

    def __init__(
        self,
        model: Any,
        input_ids: Tensor,  # [R, T], the prompts, or the decoder's prompts; grows by one column per token
        model_kwargs: dict[str, Any],  # the other model inputs that ``generate`` prepared
        process: Callable[..., Tensor],  # ``logits_processor`` of ``generate``
        *,
        continued: bool = False,  # whether the caller passed a cache, which has a prefix of the prompts
        adapters: RowAdapters | None = None,  # of each row, if they differ
    ) -> None:
        self.model, self.input_ids, self.kwargs, self.process = model, input_ids, dict(model_kwargs), process
        self.continued, self.adapters = continued, adapters
        self._scores: Tensor = torch.empty(0)
        self._chosen: Tensor | None = None
        self._check()
        self.cached = bool(self.kwargs.get("use_cache", True))  # otherwise every sequence is recomputed from the start
        if self.cached:
            before = _inner_states(model, len(self))
            self._forward(first=True)
            inside = any(before.get(place) is not state for place, state in _inner_states(model, len(self)).items())
            caches = [self.kwargs[name] for name in ALL_CACHE_NAMES if self.kwargs.get(name) is not None]
            if self._cache_bytes() and all(isinstance(cache, Cache) for cache in caches) and not inside:
                for name in _MEDIA & self.kwargs.keys():  # already in the cache
                    del self.kwargs[name]
                return
        self.cached = False
        self.kwargs = {name: value for name, value in model_kwargs.items() if name not in ALL_CACHE_NAMES} | {"use_cache": False}
        for name in _MEDIA & self.kwargs.keys():
            value = self.kwargs[name]
            if value is not None and (not isinstance(value, Tensor) or value.shape[:1] != (len(self),)):
                raise ValueError(
                    f"{type(model).__name__} has no cache from which rows can be selected, and {name} cannot be selected either: "
                    f"expected use_cache=True, or {name} with one part for each prompt; use samples of model.generate."
                )
        self._forward(first=True)

    def __len__(self) -> int:
        return self.input_ids.shape[0]

    @property
    def scores(self) -> Tensor:
        """The scores of the next token, ``[R, V]`` in float32."""
        if self._chosen is not None:
            self._scores, self._chosen = self._scores.index_select(0, self._chosen), None
        return self._scores

    @property
    def bytes_per_row(self) -> int:
        """Memory of the cache and the scores of one row."""
        return (self._cache_bytes() + self.scores.numel() * self.scores.element_size()) // max(len(self), 1)

    def select(self, index: Tensor) -> Rows:
        """Return the rows of ``index [S]``, in this order; rows may be repeated or left out."""
        chosen = copy.copy(self)
        index = index.to(self.input_ids.device)
        chosen.input_ids = self.input_ids.index_select(0, index)
        chosen.adapters = None if self.adapters is None else self.adapters.select(index)
        chosen._scores, chosen._chosen = self.scores, index  # [R, V] is large and only needed if no token is fed
        chosen.kwargs = {
            name: _of_rows(value, index, len(self)) if name in ALL_CACHE_NAMES else _selected(name, value, index, len(self))
            for name, value in self.kwargs.items()
        }
        return chosen

    def feed(self, token_ids: Tensor) -> None:
        """Append ``token_ids [R]`` to the rows and compute the next scores."""
        column = token_ids.to(self.input_ids.device)[:, None]
        self.input_ids = torch.cat([self.input_ids, column], dim=1)
        embedded = self.kwargs.get("inputs_embeds")
        if not self.cached and embedded is not None:
            self.kwargs["inputs_embeds"] = torch.cat([embedded, self.model.get_input_embeddings()(column)], dim=1)
        self._forward(first=not self.cached)

    def _check(self) -> None:
        """Raise for padding that the model treats as text, and for processors that depend on the row."""
        name, mask = type(self.model).__name__, self.kwargs.get("attention_mask")
        if ignores_padding(self.model) and isinstance(mask, Tensor) and not bool(mask.all()):
            raise ValueError(
                f"{name} treats padding as text: expected prompts of equal length; pass them as a list of texts, which is "
                "batched by length, or search each length separately."
            )
        processors: list[Any] = self.process if isinstance(self.process, list) else []
        for processor in processors:
            if (setting := _BY_ROW.get(kind := type(processor).__name__)) is not None:
                raise ValueError(
                    f"{kind} of generate depends on the row of the batch: expected processors of text and scores only; "
                    f"pass {setting}, or use samples of {name}.generate."
                )

    def _forward(self, *, first: bool) -> None:
        length = None if first else 1
        given: Any = self.kwargs.get("past_key_values")
        if first and self.continued and given is not None:
            length = self.input_ids.shape[1] - given.get_seq_length()
        if first and hasattr(self.model, "_get_initial_cache_position"):
            self.kwargs[_POSITION] = None
            self.kwargs = self.model._get_initial_cache_position(self.input_ids.shape[1], self.input_ids.device, self.kwargs)
        options = {"next_sequence_length": length, "is_first_iteration": first}
        options = {name: value for name, value in options.items() if name in _PREPARED_BY}
        inputs = self.model.prepare_inputs_for_generation(self.input_ids, **options, **self.kwargs)
        if self.adapters is not None:
            self.adapters.use()
        with any_shape():
            outputs = self.model(**inputs, return_dict=True)
        self.kwargs = self.model._update_model_kwargs_for_generation(
            outputs, self.kwargs, is_encoder_decoder=self.model.config.is_encoder_decoder
        )
        if not self.cached:
            self.kwargs = {name: value for name, value in self.kwargs.items() if name not in ALL_CACHE_NAMES}
        logits = outputs.logits[:, -1].to(copy=True, dtype=torch.float32, device=self.input_ids.device)
        self._scores, self._chosen = self.process(self.input_ids, logits), None

    def _cache_bytes(self) -> int:
        """Return the memory of the tensors in the caches that have a row dimension."""
        found: dict[int, int] = {}

        def count(name: str, tensor: Tensor) -> Tensor:
            if _has_rows(name, tensor, len(self)):
                found[id(tensor)] = tensor.numel() * tensor.element_size()
            return tensor

        _mapped([self.kwargs.get(name) for name in ALL_CACHE_NAMES], count)
        return sum(found.values())


def ignores_padding(model: Any) -> bool:
    """Whether the model treats padding before a prompt as text, regardless of the mask."""
    return model.config.model_type in IGNORE_PADDING and not model.config.is_encoder_decoder


@contextmanager
def any_shape() -> Iterator[None]:
    """Disable cuDNN attention.

    Planning a new shape takes longer than computing it, and in training its backward pass has returned NaN (bfloat16, torch 2.11,
    H200).
    """
    cudnn = torch.backends.cuda.cudnn_sdp_enabled() and torch.backends.cuda.math_sdp_enabled()  # if a fallback is enabled
    if cudnn:
        torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        if cudnn:
            torch.backends.cuda.enable_cudnn_sdp(True)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Temporarily set all modules to ``eval`` mode."""
    training = [module for module in model.modules() if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True


def _selected(name: str, value: Any, index: Tensor, rows: int) -> Any:
    """Return a model input for the rows of ``index``; inputs without a row dimension are unchanged."""
    if name == _POSITION:
        return value
    if isinstance(value, Tensor):
        dim = _row_dim(name, value)
        return value.index_select(dim, index.to(value.device)) if value.dim() and value.shape[dim] == rows else value
    if isinstance(value, Mapping):  # outputs of the encoder
        return type(value)(**{key: _selected(key, part, index, rows) for key, part in value.items()})
    if isinstance(value, list | tuple):
        return type(value)(_selected(name, part, index, rows) for part in value)
    return value


def _of_rows(cache: Any, index: Tensor, rows: int) -> Any:
    """Return a copy of a cache with the rows of ``index``; it shares no tensors, since models write to their caches."""

    def select(name: str, tensor: Tensor) -> Tensor:
        if not _has_rows(name, tensor, rows):
            return tensor.clone()
        return tensor.index_select(_row_dim(name, tensor), index.to(tensor.device))

    return _mapped(cache, select)


def _row_dim(name: str, tensor: Tensor) -> int:
    return tensor.dim() - 2 if name.endswith("position_ids") else 0  # [R, T], and [3, R, T] in multimodal models


def _has_rows(name: str, tensor: Tensor, rows: int) -> bool:
    return tensor.dim() > 1 and tensor.shape[_row_dim(name, tensor)] == rows


def _inner_states(model: nn.Module, rows: int) -> dict[tuple[nn.Module, str], Tensor]:
    """Return tensors with a row dimension that layers keep as plain attributes; integer positions are not state."""
    return {
        (module, name): value
        for module in model.modules()
        for name, value in vars(module).items()
        if isinstance(value, Tensor) and value.is_floating_point() and _has_rows(name, value, rows)
    }


def _mapped(value: Any, change: Callable[[str, Tensor], Tensor], name: str = "") -> Any:
    """Return a copy of a cache with ``change`` applied to every tensor; ``name`` is the attribute of the value."""
    if isinstance(value, Tensor):
        return change(name, value)
    if isinstance(value, dict):
        twin = copy.copy(value)
        twin.update({key: _mapped(part, change, str(key)) for key, part in value.items()})
        return twin
    if isinstance(value, list | tuple):
        return type(value)(_mapped(part, change, name) for part in value)
    if (
        not hasattr(value, "__dict__")
        or isinstance(value, type | MethodType | nn.Module | PretrainedConfig)
        or type(value).__module__.startswith("torch")
    ):
        return value
    twin = copy.copy(value)
    for attribute, part in vars(value).items():
        own = isinstance(part, MethodType) and part.__self__ is value  # a method that the model attaches to its cache
        object.__setattr__(twin, attribute, MethodType(part.__func__, twin) if own else _mapped(part, change, attribute))
    return twin
