"""Inspect a tokenizer: how it splits numbers, how they are read back, and which losses suit it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from numerate.checks import one_line, public_dir
from numerate.losses import LOSSES
from numerate.losses.base import Suitability
from numerate.spans import NumberSpans
from numerate.vocab import NumericVocab

__all__ = [
    "EXAMPLES",
    "Advice",
    "Inspection",
    "Reading",
    "inspect_tokenizer",
    "loss_advice",
    "number_style",
    "read_text",
    "vocab_facts",
]
__dir__ = public_dir(globals())

EXAMPLES = ("12345.678", "-7", "1,000")
"""Default texts."""
_PROBES = ("7", "42", "365", "1000", "31415", "271828", "1234567", "98765432", "100000000", "2718281828")
_ORDER: tuple[Suitability, ...] = ("good", "fair", "poor")


@dataclass(frozen=True)
class Reading:
    """A text split into tokens, and its numbers as :class:`~numerate.NumberSpans` reads them."""

    text: str
    thousands: bool
    tokens: tuple[str, ...]  # a leading space shown as ␣
    exponents: tuple[int | None, ...]  # of each token's last digit; None for tokens without a place in a number
    numbers: tuple[float, ...]


@dataclass(frozen=True)
class Advice:
    """How well a loss suits a vocabulary."""

    loss: str
    level: str
    suitability: Suitability
    note: str


@dataclass(frozen=True)
class Inspection:
    """The result of :func:`inspect_tokenizer`."""

    style: str
    vocab: NumericVocab
    facts: dict[str, str]
    readings: tuple[Reading, ...]
    advice: tuple[Advice, ...]


def inspect_tokenizer(tokenizer: Any, texts: Sequence[str] = EXAMPLES) -> Inspection:
    """Inspect a Hugging Face tokenizer without changing it; ``texts`` are examples to split and read."""
    vocab = NumericVocab.from_tokenizer(tokenizer)
    return Inspection(
        style=number_style(tokenizer, vocab),
        vocab=vocab,
        facts=vocab_facts(vocab),
        readings=tuple(reading for text in texts for reading in _readings(tokenizer, vocab, text)),
        advice=loss_advice(vocab),
    )


def number_style(tokenizer: Any, vocab: NumericVocab) -> str:
    """Describe how the tokenizer splits numbers of one to ten digits in a sentence."""
    splits = [_widths(tokenizer, vocab, digits) for digits in _PROBES]
    widest = max(max(widths, default=1) for widths in splits)
    chunks = [[widest] * (len(digits) // widest) + [len(digits) % widest] * (len(digits) % widest > 0) for digits in _PROBES]
    for name, expected in (("left to right", chunks), ("right to left", [widths[::-1] for widths in chunks])):
        if splits == expected:
            return "one digit per token" if widest == 1 else f"chunks of 1-{widest} digits, {name}"
    return "irregular: no fixed rule for splitting numbers"


def _widths(tokenizer: Any, vocab: NumericVocab, digits: str) -> list[int]:
    index = vocab.index_of(_encode(tokenizer, f"The answer is {digits} in all."))
    return vocab.widths[index[index >= 0]].tolist()


def vocab_facts(vocab: NumericVocab) -> dict[str, str]:
    """Describe the vocabulary as ``{name: fact}``."""
    widths = Counter(vocab.widths.tolist())
    marks = dict(vocab.marks)

    def count(texts: Sequence[str]) -> str:
        examples = "  ".join(text.replace(" ", "␣") for text in texts[:5])
        return f"{len(texts):,}: {examples}{'  ..' if len(texts) > 5 else ''}" if texts else "none"

    def count_marks(ids: Sequence[int]) -> str:
        return count([marks[token_id] for token_id in ids])

    return {
        "numeric tokens": f"{vocab.size:,} of {vocab.vocab_size:,}",
        "digits per token": ", ".join(f"{width} ({tokens:,} tokens)" for width, tokens in sorted(widths.items())),
        "values": f"{vocab.values[0].item():,.0f} to {vocab.values[-1].item():,.0f}",
        "leading zeros": count([text for text in vocab.texts if len(text.strip()) > 1 and text.strip().startswith("0")]),
        "leading space": count([text for text in vocab.texts if text.startswith(" ")]),
        "point": count_marks(vocab.point_ids),
        "minus": count_marks(vocab.minus_ids),
        "ends in a minus sign": count_marks(vocab.negating_ids),
        "comma": count_marks(vocab.comma_ids),
        "power of ten": count_marks(vocab.exponent_ids),
    }


def read_text(tokenizer: Any, vocab: NumericVocab, text: str, *, thousands: bool = False) -> Reading:
    """Split a text into tokens and read its numbers."""
    ids = _encode(tokenizer, text)
    spans = NumberSpans.from_labels(ids, vocab, thousands=thousands)
    exponents = zip(spans.has_place.tolist(), spans.exponent.tolist(), strict=True)
    return Reading(
        text=text,
        thousands=thousands,
        tokens=_tokens(tokenizer, vocab, ids.tolist()),
        exponents=tuple(exponent if has_place else None for has_place, exponent in exponents),
        numbers=tuple(spans.values.tolist()),
    )


def _readings(tokenizer: Any, vocab: NumericVocab, text: str) -> Iterator[Reading]:
    """Read a text by default and, if the result differs, with thousands commas."""
    plain = read_text(tokenizer, vocab, text)
    grouped = read_text(tokenizer, vocab, text, thousands=True)
    yield plain
    if grouped.numbers != plain.numbers:
        yield grouped


def _encode(tokenizer: Any, text: str) -> torch.Tensor:
    try:
        ids = tokenizer.encode(text, add_special_tokens=False)
    except Exception as error:  # tokenizers raises a bare Exception if its unknown token is missing
        raise ValueError(f"text={text!r:.80} cannot be split ({one_line(error)}): expected a tokenizer that can.") from error
    if not ids:
        raise ValueError(f"text={text!r} has no tokens: expected a text with a number in it, such as '12.5'.")
    return torch.tensor(ids)


def _tokens(tokenizer: Any, vocab: NumericVocab, ids: list[int]) -> tuple[str, ...]:
    """Return the texts of tokens, with spaces shown as ␣."""
    marks = dict(vocab.marks)
    texts = (marks.get(token_id, token) for token_id, token in zip(ids, tokenizer.convert_ids_to_tokens(ids), strict=True))
    return tuple(text.replace("Ġ", "␣").replace("▁", "␣").replace(" ", "␣") for text in texts)


def loss_advice(vocab: NumericVocab) -> tuple[Advice, ...]:
    """Return the advice of every loss, most suitable first."""
    return tuple(sorted((_advice(name, vocab) for name in LOSSES), key=lambda item: _ORDER.index(item.suitability)))


def _advice(name: str, vocab: NumericVocab) -> Advice:
    loss = LOSSES[name]
    try:
        return Advice(name, loss(vocab).level, *loss.advice(vocab))
    except ValueError as error:
        return Advice(name, loss.level, "poor", f"does not support these tokens: {one_line(error)}")
