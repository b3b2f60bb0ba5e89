"""Hostile tokenizers: tokens that no text has, a megabyte long, of ten thousand digits, and files made to exhaust the reader.

Each gives a right answer or a clear error, within a second.
"""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.samples import real_tokenizer, refused, shared_tokenizers

from numerate import NumericVocab, tokenizers
from numerate.decode.grammar import NumberGrammar
from numerate.decode.token_tree import TokenTree
from numerate.inspection import inspect_tokenizer
from numerate.tokenizers import PACKAGED, load_tokenizer, read_tokenizer
from numerate.vocab import MOST_TOKENS

SECONDS = 1.0
DIGITS = {str(d): d for d in range(10)} | {"?": 10}
MEGABYTE = 10**6


@contextmanager
def within_a_second() -> Iterator[None]:
    """Processor time, since others may use the machine."""
    begin = time.process_time()
    yield
    assert time.process_time() - begin < SECONDS


def tokenizer_of(texts: dict[Any, Any]) -> SimpleNamespace:
    return SimpleNamespace(get_vocab=lambda: texts)


def file_of(texts: dict[str, int], **parts: Any) -> bytes:
    """A ``tokenizer.json`` with these words."""
    model = {"type": "WordLevel", "vocab": texts, "unk_token": "?"}
    empty = dict.fromkeys(("truncation", "padding", "normalizer", "pre_tokenizer", "post_processor", "decoder"))
    return json.dumps({"version": "1.0", "added_tokens": [], **empty, "model": model, **parts}).encode()


HARMLESS: dict[str, list[str]] = {
    "NUL": ["\0", "\0005", "5\0", " \0"],
    "lone surrogates": ["\ud800", "5\udfff", "\udfff5"],
    "a megabyte of letters": ["x" * MEGABYTE],
    "a megabyte of dashes": ["-" * MEGABYTE],
    "a megabyte of points": ["." * MEGABYTE],
    "a megabyte of currencies": ["$" * MEGABYTE, "-" * MEGABYTE + "$"],
    "a megabyte of spaces": [" " * MEGABYTE, " " * MEGABYTE + "5"],
    "other digits": ["٣", "²", "４２", "1_0", "0x1F", "1e5"],
    "location tokens": ["<loc-1>", "<loc5>", "<0x35>"],
}


@pytest.mark.parametrize("texts", HARMLESS.values(), ids=HARMLESS)
def test_other_tokens_do_not_matter(texts: list[str]) -> None:
    known = DIGITS | {text: 11 + i for i, text in enumerate(texts)}
    with within_a_second():
        vocab = NumericVocab.from_tokenizer(tokenizer_of(known))
        assert vocab.texts == tuple("0123456789")
        assert vocab.vocab_size == len(known)
        assert NumericVocab.from_json(vocab.to_json()) == vocab
        fork = TokenTree(known.items(), NumberGrammar(digits=(1, 3), decimals=(0, 1))).fork("1")
    assert set(DIGITS.values()) - {10} <= set(fork.ids)
    assert all(len(piece) <= 1 for piece in fork.pieces)


@pytest.mark.parametrize("digits", [4000, MEGABYTE])
def test_a_number_beyond_floats_is_named(digits: int) -> None:
    with within_a_second():
        known = tokenizer_of(DIGITS | {"9" * digits: 11})
        parts = ["'99999", "id 11", "inf", "expected a finite number"]
        refused(ValueError, parts, lambda: NumericVocab.from_tokenizer(known))
        zero = NumericVocab.from_tokenizer(tokenizer_of(DIGITS | {"0" * digits: 11})).tokens[1]
    assert (zero.value, zero.width) == (0.0, digits)


@pytest.mark.parametrize(
    ("texts", "parts"),
    [
        ({}, ["0 tokens", "no numeric token"]),
        ({"a": 0}, ["1 tokens", "no numeric token"]),
        ({"5": 3, "6": 3}, ["token id twice"]),
        ({"5": -1}, ["-1", "expected every id"]),
        ({"5": 10**9}, ["vocab_size=1000000001", f"1 to {MOST_TOKENS:,}"]),
        ({"5": 10**30}, ["expected 1 to"]),
        ({"5": 1.5}, ["1.5", "float", "integer"]),
        ({"5": None}, ["NoneType", "integer"]),
        ({"5": "7"}, ["str", "integer"]),
    ],
    ids=str,
)
def test_vocabularies_that_cannot_be(texts: dict[Any, Any], parts: list[str]) -> None:
    with within_a_second():
        refused((ValueError, TypeError), parts, lambda: NumericVocab.from_tokenizer(tokenizer_of(texts)))


WRONG: list[dict[str, Any]] = [{"tokens": None}, {"tokens": [[1]]}, {"tokens": [["a", 1, 1, "5"]]}, {"marks": [[1]]}]
WRONG += [{"tokens": [[1, float("nan"), 1, "5"]]}, {"vocab_size": "3"}, {"vocab_size": 10**12}, {"closing_ids": [10**12]}]


@pytest.mark.parametrize(
    "change", [*WRONG, "[" * 100_000, "", "[]", "{}", '{"format": 1, "tokens": []}'], ids=range(len(WRONG) + 5)
)
def test_a_saved_vocabulary_that_is_none(change: Any) -> None:
    saved = json.loads(NumericVocab.from_texts(DIGITS, vocab_size=12).to_json())
    text = change if isinstance(change, str) else json.dumps(saved | change)
    refused(ValueError, ["NumericVocab of format 2", "expected a file"], lambda: NumericVocab.from_json(text))


# Files


def deep(depth: int, opening: str = '{"a":', closing: str = "}") -> bytes:
    return (opening * depth + "1" + closing * depth).encode()


@pytest.mark.parametrize(
    "data",
    [
        deep(100_000),
        b'{"added_tokens":' + deep(100_000, "[", "]") + b"}",
        file_of(DIGITS, normalizer=json.loads(deep(100))),
        file_of(DIGITS | {"9" * 10_000: 11})[:-5],
        file_of(DIGITS | {"\ud800": 11}),
        file_of(DIGITS | {"big": 1_000_000_000}),
        b" " * MEGABYTE,
    ],
    ids=range(7),
)
def test_files_that_are_no_tokenizer(data: bytes) -> None:
    read_tokenizer(file_of(DIGITS), Path("tokenizer.json"))  # imports
    with within_a_second():
        refused(ValueError, ["cannot be read", "expected"], lambda: read_tokenizer(data, Path("tokenizer.json")))


def test_a_compression_bomb_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of 300 KB that unpacks to 300 MB: no more than the limit is read."""
    path = tmp_path / "tokenizer.json.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        for _ in range(20):
            file.write(b" " * 15 * MEGABYTE)
    read: list[int] = []
    plain = gzip.GzipFile.read
    monkeypatch.setattr(gzip.GzipFile, "read", lambda self, size=-1: read.append(size) or plain(self, size))
    with within_a_second():
        refused(ValueError, ["more than 64 MiB", "expected"], lambda: load_tokenizer(path))
    assert read == [tokenizers.MOST_BYTES + 1]


@pytest.mark.parametrize("name", [*PACKAGED, *shared_tokenizers()])
def test_real_tokenizers_are_inspected(name: str) -> None:
    found = inspect_tokenizer(real_tokenizer(name))
    assert found.vocab.size >= 10
    assert not any("refuses" in item.note for item in found.advice)
