"""Tokenizers of every kind, small enough to build in a test, and conditionals by brute force."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from numerate.targets import AnswerDistribution

TRIPLES = ["".join(digits) for size in (1, 2, 3) for digits in itertools.product("0123456789", repeat=size)]


@cache
def tokenizer(kind: str) -> PreTrainedTokenizerFast:
    """``digits``: a token a character; ``triples``: one to three digits from the left; ``spaced``: a space before each text, as
    in SentencePiece; ``joined``: a leading space belongs to the number's token, and ``=-`` is one token.
    """
    characters = [chr(code) for code in range(32, 127)] + ["\n"]
    merges: list[tuple[str, str]] = []
    if kind == "digits":
        made = Tokenizer(models.BPE(_ids(["<end>", *characters]), []))
        made.decoder = decoders.Fuse()
        return _wrapped(made)
    if kind == "triples":
        vocab = ["<end>", *characters, *(t for t in TRIPLES if len(t) > 1)]
        merges = [(t[:-1], t[-1]) for t in TRIPLES if len(t) > 1]
        made = Tokenizer(models.BPE(_ids(vocab), merges))
        made.decoder = decoders.Fuse()
        made.pre_tokenizer = pre_tokenizers.Split(Regex(r"[0-9]{1,3}|[^0-9]"), "isolated")
        return _wrapped(made)
    if kind == "spaced":
        made = Tokenizer(models.BPE(_ids(["<end>", "▁", *characters[1:], "▁-", "▁="]), [("▁", "-"), ("▁", "=")]))
        made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
        return _wrapped(made)
    assert kind == "joined"
    pairs = [("Ġ", digit) for digit in "0123456789"] + [("=", "-"), ("Ġ", "-"), *itertools.product("12", "0123456789")]
    pairs += [(f"Ġ{a}", b) for a in "19" for b in "0123456789"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE(_ids(["<end>", *alphabet, *(a + b for a, b in pairs)]), pairs))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    return _wrapped(made)


KINDS = ("digits", "triples", "spaced", "joined")


def encoded(tokens: Any, text: str) -> list[int]:
    return [*tokens(text, add_special_tokens=False)["input_ids"]]


def conditionals(path: Sequence[int], answers: Sequence[Sequence[int]], masses: Sequence[float]) -> list[dict[int, float]]:
    """The distribution of each token of a path, by going through all answers for each of its positions."""
    found = []
    for place in range(len(path)):
        begun = [(ids, p) for ids, p in zip(answers, masses, strict=True) if [*ids[:place]] == [*path[:place]]]
        total = sum(p for _, p in begun)
        options: dict[int, float] = {}
        for ids, p in begun:
            options[ids[place]] = options.get(ids[place], 0.0) + p / total
        found.append(options)
    return found


def listed(row: dict[str, Any]) -> dict[str, Any]:
    """A row without arrays, which == does not compare as a whole."""
    return {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in row.items()}


def row_targets(row: dict[str, Any]) -> dict[int, dict[int, float]]:
    """The soft targets of a row, by position."""
    found: dict[int, dict[int, float]] = {}
    fields = row["soft_positions"], row["soft_token_ids"], row["soft_probabilities"]
    for place, token_id, p in zip(*fields, strict=True):
        assert token_id not in found.setdefault(place, {})
        found[place][token_id] = p
    return found


def written(answers: AnswerDistribution) -> dict[str, float]:
    return dict(zip(answers.texts, answers.probabilities.tolist(), strict=True))


def _ids(tokens: Sequence[str]) -> dict[str, int]:
    return {token: token_id for token_id, token in enumerate(dict.fromkeys(tokens))}


def _wrapped(made: Tokenizer) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<end>", pad_token="<end>")
