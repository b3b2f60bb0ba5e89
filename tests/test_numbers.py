"""The rules for numbers in labels, on every real tokenizer at hand: all of them, and those that docs/numbers.md shows."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from mistral_common.tokens.tokenizers.tekken import Tekkenizer
from tests.reference.numbers import numbers_reference
from tests.samples import real_tokenizer, shared_tokenizers
from torch.nn.utils.rnn import pad_sequence

from numerate import NumberSpans, NumericVocab
from numerate.lab.models.built import tiny_tokenizer
from numerate.tokenizers import PACKAGED, load_tokenizer, packaged_file

HERE = Path(__file__).parent


def rows(markdown: str) -> list[tuple[str, list[float], bool]]:
    """Each text of the tables, its numbers, and whether it is read with thousands."""
    plain, grouped = markdown.split("### Thousands")
    return [
        (text, [float(number) for number in numbers.split(",") if number.strip()], part is grouped)
        for part in (plain, grouped)
        for text, numbers in re.findall(r"^\| `(.+?)` \| ([-0-9., ]*)\|", part, re.MULTILINE)
    ]


SHOWN = rows((HERE.parent / "docs" / "numbers.md").read_text(encoding="utf-8").split("## Numbers in labels")[1].split("\n## ")[0])
ROWS = [*rows((HERE / "data" / "numbers_in_labels.md").read_text(encoding="utf-8")), *SHOWN]
CONTEXTS = ("{}", "it is {}", "({})", "\n{}", "{} in all")
MISTRAL = packaged_file("mistral").parent


class Tekken:
    """Mistral's byte-level BPE, whose tokens are bytes."""

    def __init__(self, file: Path) -> None:
        self.tekken = Tekkenizer.from_file(file)

    def get_vocab(self) -> dict[bytes, int]:
        first = self.tekken.num_special_tokens
        return {self.tekken.id_to_byte_piece(token_id): token_id for token_id in range(first, self.tekken.n_words)}

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        return self.tekken.encode(text, bos=add_special_tokens, eos=add_special_tokens)


TOKENIZERS: dict[str, Callable[[], Any]] = {
    **{name: partial(real_tokenizer, name) for name in (*PACKAGED, *shared_tokenizers())},
    "mistral-v1": lambda: load_tokenizer(MISTRAL / "tokenizer.model.v1"),
    "mistral-v7": lambda: load_tokenizer(MISTRAL / "mistral_instruct_tokenizer_241114.model.v7"),
    "tekken": lambda: Tekken(MISTRAL / "tekken_240911.json"),
    "tiny": tiny_tokenizer,
    "tiny-3": lambda: tiny_tokenizer(3),
}


@cache
def loaded(name: str) -> tuple[Any, NumericVocab]:
    tokenizer = TOKENIZERS[name]()
    return tokenizer, NumericVocab.from_tokenizer(tokenizer)


def test_the_page_has_its_tables() -> None:
    assert len(ROWS) - len(SHOWN) > 100
    assert len(SHOWN) > 20
    assert {thousands for *_, thousands in ROWS} == {True, False}
    assert ("COVID-19", [19.0], False) in ROWS


def read_all(tokenizer: Any, vocab: NumericVocab, texts: list[str], **options: Any) -> list[list[float]]:
    """The numbers of each text, read as one batch."""
    rows = [torch.tensor(tokenizer.encode(text, add_special_tokens=False)) for text in texts]
    spans = NumberSpans.from_labels(pad_sequence(rows, batch_first=True, padding_value=-100), vocab, **options)
    return [values.tolist() for values in spans.values.split(spans.is_start.sum(-1).tolist())]


@pytest.mark.parametrize("name", TOKENIZERS)
def test_every_row_of_the_tables(name: str) -> None:
    tokenizer, vocab = loaded(name)
    for thousands in (False, True):
        rows = [(text, numbers) for text, numbers, grouped in ROWS if grouped == thousands]
        if name.startswith("tiny"):  # its alphabet is ASCII
            rows = [row for row in rows if row[0].isascii()]
        said = [(context.format(text), numbers) for text, numbers in rows for context in CONTEXTS]
        found = read_all(tokenizer, vocab, [text for text, _ in said], thousands=thousands)
        wrong = [
            (text, read, numbers)
            for (text, numbers), read in zip(said, found, strict=True)
            if read != pytest.approx(numbers, rel=1e-15)
        ]
        assert not wrong


@cache
def random_texts(count: int) -> list[tuple[str, list[float], list[float]]]:
    """Texts of digits and marks with their numbers, one character at a time, without and with thousands."""
    alphabet = "0123456789" * 2 + "...,,---−–+eEeE$€(()%x  =\n"
    characters = {character: token_id for token_id, character in enumerate(sorted(set(alphabet)))}
    vocab = NumericVocab.from_texts(characters, len(characters))
    rng = random.Random(0)
    texts = ["".join(rng.choices(alphabet, k=rng.randint(1, 9))) for _ in range(count)]
    texts = [text for text in texts if not re.search(r"[eE][-+−–]?[0-9]{3}", text)]  # may be beyond float64

    def numbers(text: str, thousands: bool) -> list[float]:
        labels = [characters[character] for character in text]
        return [float(number.value) for number in numbers_reference(labels, vocab, thousands=thousands)]

    return [(text, numbers(text, False), numbers(text, True)) for text in texts]


@pytest.mark.parametrize("name", [name for name in TOKENIZERS if not name.startswith("tiny")])
def test_every_tokenizer_reads_the_same(name: str) -> None:
    """However it merges the characters of a text, the numbers are those of the text."""
    tokenizer, vocab = loaded(name)
    rows = random_texts(1500)
    for thousands in (False, True):
        found = read_all(tokenizer, vocab, [text for text, *_ in rows], thousands=thousands)
        pairs = [(text, read, numbers[thousands]) for (text, *numbers), read in zip(rows, found, strict=True)]
        assert not [pair for pair in pairs if pair[1] != pytest.approx(pair[2], rel=1e-14)]
