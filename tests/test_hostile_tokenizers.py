"""Hostile tokenizers: tokens that no text has, a megabyte long, of ten thousand digits, and files made to exhaust the reader.

Each gives a right answer or a clear error, in time.
"""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.samples import real_tokenizer, refused, shared_tokenizers

from numerate import NumericVocab, tokenizers
from numerate.decode.grammar import NumberGrammar
from numerate.decode.token_tree import TokenTree
from numerate.inspection import inspect_tokenizer, loss_advice
from numerate.losses import LOSSES
from numerate.marks import flags_of
from numerate.tokenizers import PACKAGED, load_tokenizer, read_tokenizer
from numerate.vocab import MOST_TOKENS

SECONDS = 20.0  # most inputs take a hundredth; what grows with the square of a megabyte takes hours
DIGITS = {str(d): d for d in range(10)} | {"?": 10}
MEGABYTE = 10**6


@contextmanager
def in_time() -> Iterator[None]:
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
    with in_time():
        vocab = NumericVocab.from_tokenizer(tokenizer_of(known))
        assert vocab.texts == tuple("0123456789")
        assert vocab.vocab_size == len(known)
        assert NumericVocab.from_json(vocab.to_json()) == vocab


@pytest.mark.parametrize("texts", HARMLESS.values(), ids=HARMLESS)
def test_a_search_is_not_misled(texts: list[str]) -> None:
    known = DIGITS | {text: 11 + i for i, text in enumerate(texts)}
    with in_time():
        fork = TokenTree(known.items(), NumberGrammar(digits=(1, 3), decimals=(0, 1))).fork("1")
    assert set(DIGITS.values()) - {10} <= set(fork.ids)
    assert all(len(piece) <= 1 for piece in fork.pieces)


@pytest.mark.parametrize("digits", [4000, 10_000, MEGABYTE])
def test_a_number_beyond_floats_is_named(digits: int) -> None:
    with in_time():
        refused(
            ValueError,
            ["'99999", "id 11", "inf", "expected a finite number"],
            lambda: NumericVocab.from_tokenizer(tokenizer_of(DIGITS | {"9" * digits: 11})),
        )


@pytest.mark.parametrize("digits", [400, 10_000, MEGABYTE])
def test_a_zero_of_many_digits_is_zero(digits: int) -> None:
    with in_time():
        vocab = NumericVocab.from_tokenizer(tokenizer_of(DIGITS | {"0" * digits: 11}))
    assert (vocab.tokens[1].value, vocab.tokens[1].width) == (0.0, digits)


@pytest.mark.parametrize("digits", [16, 300])
def test_long_numbers_have_their_value_and_losses_say_if_they_cannot(digits: int) -> None:
    vocab = NumericVocab.from_tokenizer(tokenizer_of(DIGITS | {"9" * digits: 11}))
    assert float(vocab.values[-1]) == float("9" * digits)
    with in_time():
        advice = {item.loss: item for item in loss_advice(vocab)}
    assert set(advice) == set(LOSSES)
    assert advice["ntl_mse"].suitability == "poor"
    assert "does not support these tokens" in advice["ntl_mse"].note


@pytest.mark.parametrize("digits", [1000, 10_000, MEGABYTE])
def test_a_long_token_in_a_search_is_a_number_with_too_many_digits(digits: int) -> None:
    with in_time():
        tree = TokenTree((DIGITS | {"7" * digits: 11, "8" * digits + "\n": 12}).items(), NumberGrammar(digits=(1, 200)))
        fork = tree.fork("1")
    assert sorted(fork.exceeding_ids.tolist()) == [11, 12]
    assert 11 not in fork.ids


def test_the_longest_grammar_needs_no_recursion() -> None:
    tree = TokenTree((DIGITS | {"7" * 3000: 11}).items(), NumberGrammar(digits=1000, decimals=1000))
    assert tree.fork("1" * 999).exceeding_ids.tolist() == [11]
    assert tree.spelled("12") == (1, 2)


def test_the_same_text_twice() -> None:
    vocab = NumericVocab.from_tokenizer(tokenizer_of(DIGITS | {"Ġ5": 11, "▁5": 12, " 5": 13}))
    assert [token.token_id for token in vocab.tokens if token.value == 5] == [5, 11, 12, 13]


@pytest.mark.parametrize(
    ("texts", "parts"),
    [
        ({}, ["0 tokens", "no numeric token"]),
        ({"a": 0}, ["1 tokens", "no numeric token"]),
        ({"5": 3, "6": 3}, ["a duplicate token id"]),
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
    with in_time():
        refused((ValueError, TypeError), parts, lambda: NumericVocab.from_tokenizer(tokenizer_of(texts)))


@pytest.mark.parametrize(
    ("pattern", "values"),
    [(r"<loc(\d+)>", [0, 1, 7]), (r"<loc(-?\d+)>", [-1, 0, 1, 7]), (r"<loc(.+)>", None), (r"<loc(x)?.*>", None)],
)
def test_location_tokens(pattern: str, values: list[int] | None) -> None:
    tokenizer = tokenizer_of({"<loc0>": 0, "<loc1>": 1, "<loc-1>": 2, "<loc7>": 3, "<loc1_0>": 4, "<locnan>": 5})
    if values is None:
        refused(ValueError, ["expected a number in its first group"], lambda: NumericVocab.from_pattern(tokenizer, pattern))
    else:
        assert NumericVocab.from_pattern(tokenizer, pattern).values.tolist() == values


@pytest.mark.parametrize(
    "change",
    [
        lambda data: "[" * 100_000,
        lambda data: "",
        lambda data: "3",
        lambda data: "null",
        lambda data: json.dumps({**data, "tokens": [[1]]}),
        lambda data: json.dumps({**data, "tokens": None}),
        lambda data: json.dumps({**data, "tokens": [[1, float("nan"), 1, "5"]]}),
        lambda data: json.dumps({**data, "tokens": [["a", 1, 1, "5"]]}),
        lambda data: json.dumps({**data, "marks": [[1]]}),
        lambda data: json.dumps({**data, "vocab_size": "3"}),
        lambda data: json.dumps({**data, "vocab_size": 10**12}),
        lambda data: json.dumps({**data, "closing_ids": [10**12]}),
    ],
    ids=range(12),
)
def test_a_saved_vocabulary_that_is_none(change: Callable[[Any], str]) -> None:
    data = json.loads(NumericVocab.from_texts(DIGITS, vocab_size=12).to_json())
    refused(ValueError, ["NumericVocab of format 3", "expected a file"], lambda: NumericVocab.from_json(change(data)))


# Files


def deep(depth: int, opening: str = '{"a":', closing: str = "}") -> bytes:
    return (opening * depth + "1" + closing * depth).encode()


@pytest.mark.parametrize(
    "data",
    [
        deep(100_000),
        deep(100_000, "[", "]"),
        b'{"added_tokens":' + deep(100_000, "[", "]") + b"}",
        file_of(DIGITS, normalizer=json.loads(deep(100))),
        file_of(DIGITS | {"9" * 10_000: 11})[:-5],
        file_of(DIGITS | {"\ud800": 11}),
        file_of(DIGITS | {"big": 1_000_000_000}),
        b" " * MEGABYTE,
        b"",
    ],
    ids=range(9),
)
def test_files_that_are_no_tokenizer(data: bytes) -> None:
    read_tokenizer(file_of(DIGITS), Path("tokenizer.json"))  # imports
    with in_time():
        refused(ValueError, ["cannot be read", "expected"], lambda: read_tokenizer(data, Path("tokenizer.json")))


@pytest.mark.parametrize("texts", [value for name, value in HARMLESS.items() if "surrogates" not in name])
def test_files_with_such_tokens_are_inspected(texts: list[str]) -> None:
    data = file_of(DIGITS | {text: 11 + i for i, text in enumerate(texts)})
    read_tokenizer(file_of(DIGITS), Path("tokenizer.json"))
    with in_time():
        found = inspect_tokenizer(read_tokenizer(data, Path("tokenizer.json")), ["5"])
    assert found.readings[0].numbers == (5.0,)


def test_a_file_without_its_unknown_token_is_named() -> None:
    data = file_of({"5": 0}, model={"type": "WordLevel", "vocab": {"5": 0}, "unk_token": "missing"})
    tokenizer = read_tokenizer(data, Path("tokenizer.json"))
    refused(ValueError, ["cannot be split", "expected"], lambda: inspect_tokenizer(tokenizer))


def test_a_compression_bomb_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of 300 KB that unpacks to 300 MB: no more than the limit is read."""
    path = tmp_path / "tokenizer.json.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        for _ in range(20):
            file.write(b" " * 15 * MEGABYTE)
    read: list[int] = []
    plain = gzip.GzipFile.read
    monkeypatch.setattr(gzip.GzipFile, "read", lambda self, size=-1: read.append(size) or plain(self, size))
    with in_time():
        refused(ValueError, ["more than 64 MiB", "expected"], lambda: load_tokenizer(path))
    assert read == [tokenizers.MOST_BYTES + 1]


def test_a_large_file_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    with path.open("wb") as file:
        file.truncate(10 << 30)  # no bytes on the disk
    with in_time():
        refused(ValueError, ["more than 64 MiB", "expected"], lambda: load_tokenizer(path))


def test_a_deep_config_beside_the_file_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes(file_of(DIGITS))
    (tmp_path / "tokenizer_config.json").write_bytes(deep(100_000))
    assert len(load_tokenizer(tmp_path / "tokenizer.json")) == 11
    refused(ValueError, ["cannot be read"], lambda: load_tokenizer(tmp_path))


@pytest.mark.parametrize("text", ["-", "$-", "(-", "x-", "-.", " -", "5$", "US$", "e", ".", "--", "\\$", "x", ")"])
def test_the_marks_of_a_long_token_are_those_of_its_end(text: str) -> None:
    """Only the ends of a token are read, so that a megabyte takes no time: a hundred characters more change nothing."""
    for head in ("y", "-", "$", "."):
        assert flags_of(head + head * 60 + text) == flags_of(head + head * 60_000 + text)


@pytest.mark.parametrize("name", [*PACKAGED, *shared_tokenizers()])
def test_real_tokenizers_are_inspected(name: str) -> None:
    found = inspect_tokenizer(real_tokenizer(name))
    assert found.vocab.size >= 10
    assert not any("refuses" in item.note for item in found.advice)
