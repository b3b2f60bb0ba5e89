"""Tokenizations of numbers: one digit per token, up to three, and installed tokenizers."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache, cached_property
from importlib.util import find_spec
from itertools import product
from threading import RLock
from typing import Literal

import torch
from torch import Tensor

from numerate.targets.windows import Encoder
from numerate.tokenizers import PACKAGED, load_tokenizer, packaged_file
from numerate.vocab import NumericVocab

LOADING = RLock()
"""Held while transformers is imported: concurrent imports may see a partially initialized module."""

TokenizerName = Literal["one", "three", "smollm2", "deepseek", "mistral"]

TITLES: dict[TokenizerName, str] = {
    "one": "one digit per token",
    "three": "up to three digits per token",
    "smollm2": "SmolLM2",
    "deepseek": "DeepSeek",
    "mistral": "Mistral",
}

END = "end"
"""Text of the end token."""

_MARKS = ".-:_,"
_SINGLE, _TRIPLE = re.compile(r"[\s\S]"), re.compile(r"[0-9]{1,3}|[^0-9]")

Split = Callable[[Sequence[str]], list[list[str]]]


class NumberTokens:
    """A tokenizer restricted to the tokens of numbers, with ids of its own, so that logits stay small.

    ``texts`` are those of its tokens; ``split`` maps texts to the texts of their tokens.
    """

    def __init__(self, texts: Sequence[str], split: Split) -> None:
        self._split = split
        self.texts = (END, *dict.fromkeys(texts))
        self._ids = {text: token_id for token_id, text in enumerate(self.texts) if token_id}
        self.vocab = NumericVocab.from_texts(self._ids, vocab_size=len(self.texts))

    def pieces(self, text: str) -> list[str]:
        """Return the texts of the tokens of a text, of tokens of other characters too."""
        return self._split([text])[0]

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of each text, with the end token."""
        encoded = []
        for text, pieces in zip(texts, self._split(texts), strict=True):
            for piece in pieces:
                if piece not in self._ids:
                    raise ValueError(
                        f"{text[:40]!r} has {piece!r:.40}: expected only digits and the characters {' '.join(_MARKS)}."
                    )
            encoded.append([*(self._ids[piece] for piece in pieces), 0])
        return encoded

    @cached_property
    def plain(self) -> Tensor:
        """Mask ``[V]`` of digits, points, minuses and the end token: the tokens of a plain number."""
        mask = torch.zeros(len(self.texts), dtype=torch.bool)
        mask[0] = True
        mask[self.vocab.token_ids] = True
        mask[[token_id for text, token_id in self._ids.items() if text.strip() in (".", "-")]] = True
        return mask


@cache
def number_tokens(name: TokenizerName) -> NumberTokens:
    """Return a tokenizer by name. The first two need no package."""
    if name in PACKAGED:
        return _packaged(name)
    widths = (1,) if name == "one" else (1, 2, 3)
    numbers = ["".join(digits) for width in widths for digits in product("0123456789", repeat=width)]
    pattern = _SINGLE if name == "one" else _TRIPLE
    return NumberTokens([*numbers, *_MARKS], lambda texts: [pattern.findall(text) for text in texts])


def _packaged(name: str) -> NumberTokens:
    try:
        with LOADING:
            tokenizer = load_tokenizer(name)
    except ModuleNotFoundError as error:
        raise ValueError(f"The tokenizer {name} is not installed: {error}") from error
    encoder, vocab = Encoder(tokenizer), NumericVocab.from_tokenizer(tokenizer)
    marks = [f"{space}{mark}" for mark in _MARKS for space in ("", " ")]  # SentencePiece starts a text with a space

    def split(texts: Sequence[str]) -> list[list[str]]:
        return [encoder.pieces(ids) for ids in encoder.encode(texts)]

    return NumberTokens([*vocab.texts, *marks, " "], split)


def listed_tokenizers() -> list[dict[str, str | None]]:
    """Return name, title and, if it is not installed, the reason, of each tokenizer."""
    return [{"name": name, "title": title, "reason": _missing(name)} for name, title in TITLES.items()]


@cache
def _missing(name: TokenizerName) -> str | None:
    if name not in PACKAGED:
        return None
    if find_spec("transformers") is None:
        return "transformers is not installed; run pip install 'numerate[lab]'"
    try:
        packaged_file(name)
    except ModuleNotFoundError:
        return f"not installed; run {PACKAGED[name].install}"
    return None
