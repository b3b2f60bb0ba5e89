"""What a tokenizer does to numbers: how it splits them, what is read back from the pieces, and which losses fit it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from numerate.losses import LOSSES
from numerate.losses.base import Fit
from numerate.spans import NumberSpans
from numerate.vocab import NumericVocab

EXAMPLES = ("12345.678", "-7", "1,000")
_PROBES = ("7", "42", "365", "1000", "31415", "271828", "1234567", "98765432", "100000000", "2718281828")
_FITS: tuple[Fit, ...] = ("good", "fair", "poor")


@dataclass(frozen=True)
class Reading:
    """A text as the tokenizer splits it, and the numbers that :class:`~numerate.NumberSpans` reads back."""

    text: str
    thousands: bool
    tokens: tuple[str, ...]  # a leading space shown as ␣
    exponents: tuple[int | None, ...]  # of each token's last digit; None where a token has no digits, or those of a power of ten
    numbers: tuple[float, ...]


@dataclass(frozen=True)
class Advice:
    """How well a loss suits a vocabulary."""

    loss: str
    level: str
    fit: Fit
    note: str


@dataclass(frozen=True)
class Inspection:
    """Everything that ``numerate inspect`` shows."""

    style: str
    vocab: NumericVocab
    facts: dict[str, str]
    readings: tuple[Reading, ...]
    advice: tuple[Advice, ...]


def inspect_tokenizer(tokenizer: Any, texts: Sequence[str] = EXAMPLES) -> Inspection:
    """Look at a Hugging Face tokenizer, which stays as it is; ``texts`` are split and read as examples."""
    vocab = NumericVocab.from_tokenizer(tokenizer)
    return Inspection(
        style=number_style(tokenizer, vocab),
        vocab=vocab,
        facts=vocab_facts(tokenizer, vocab),
        readings=tuple(reading for text in texts for reading in _readings(tokenizer, vocab, text)),
        advice=loss_advice(vocab),
    )


def number_style(tokenizer: Any, vocab: NumericVocab) -> str:
    """How numbers in a plain sentence are split, from a few of one to ten digits."""
    splits = [_widths(tokenizer, vocab, digits) for digits in _PROBES]
    widest = max(max(widths, default=1) for widths in splits)
    for name, chunks in (("left to right", _from_left), ("right to left", _from_right)):
        if all(widths == chunks(len(digits), widest) for digits, widths in zip(_PROBES, splits, strict=True)):
            return "one digit per token" if widest == 1 else f"chunks of 1-{widest} digits, {name}"
    return "irregular, numbers are split by no fixed rule"


def _widths(tokenizer: Any, vocab: NumericVocab, digits: str) -> list[int]:
    index = vocab.index_of(_encode(tokenizer, f"The answer is {digits} in all."))
    return vocab.widths[index[index >= 0]].tolist()


def _from_left(length: int, widest: int) -> list[int]:
    return [widest] * (length // widest) + [length % widest] * (length % widest > 0)


def _from_right(length: int, widest: int) -> list[int]:
    return _from_left(length, widest)[::-1]


def vocab_facts(tokenizer: Any, vocab: NumericVocab) -> dict[str, str]:
    """The vocabulary in words, as ``{name: fact}``."""
    widths = Counter(vocab.widths.tolist())

    def count(texts: Sequence[str]) -> str:
        shown = " ".join(text.replace(" ", "␣") for text in texts[:5])
        return f"{len(texts):,}: {shown}{' ..' if len(texts) > 5 else ''}" if texts else "none"

    return {
        "numeric tokens": f"{vocab.size:,} of {vocab.vocab_size:,}",
        "digits per token": ", ".join(f"{width} ({tokens:,} tokens)" for width, tokens in sorted(widths.items())),
        "values": f"{vocab.values[0].item():,.0f} to {vocab.values[-1].item():,.0f}",
        "leading zeros": count([text for text in vocab.texts if len(text.strip()) > 1 and text.strip().startswith("0")]),
        "leading space": count([text for text in vocab.texts if text.startswith(" ")]),
        "point": count(_tokens(tokenizer, vocab.point_ids)),
        "minus": count(_tokens(tokenizer, vocab.minus_ids)),
        "minus after others": count(_tokens(tokenizer, vocab.negating_ids)),
        "comma": count(_tokens(tokenizer, vocab.comma_ids)),
        "power of ten": count(_tokens(tokenizer, vocab.exponent_ids)),
    }


def read_text(tokenizer: Any, vocab: NumericVocab, text: str, *, thousands: bool = False) -> Reading:
    """Split a text and read its numbers back."""
    ids = _encode(tokenizer, text)
    spans = NumberSpans.from_labels(ids, vocab, thousands=thousands)
    exponents = zip(spans.has_place.tolist(), spans.exponent.tolist(), strict=True)
    return Reading(
        text=text,
        thousands=thousands,
        tokens=_tokens(tokenizer, ids.tolist()),
        exponents=tuple(exponent if has_place else None for has_place, exponent in exponents),
        numbers=tuple(spans.values.tolist()),
    )


def _readings(tokenizer: Any, vocab: NumericVocab, text: str) -> Iterator[Reading]:
    """As it is read by default and, where that makes a difference, with thousands commas."""
    plain = read_text(tokenizer, vocab, text)
    grouped = read_text(tokenizer, vocab, text, thousands=True)
    yield plain
    if grouped.numbers != plain.numbers:
        yield grouped


def _encode(tokenizer: Any, text: str) -> torch.Tensor:
    ids = tokenizer.encode(text, add_special_tokens=False)
    if not ids:
        raise ValueError(f"text={text!r} has no tokens: expected a text with a number in it, such as '12.5'.")
    return torch.tensor(ids)


def _tokens(tokenizer: Any, ids: Sequence[int]) -> tuple[str, ...]:
    """Tokens as they are spelled, with either mark of a space shown as ␣."""
    return tuple(token.replace("Ġ", "␣").replace("▁", "␣") for token in tokenizer.convert_ids_to_tokens(list(ids)))


def loss_advice(vocab: NumericVocab) -> tuple[Advice, ...]:
    """Every loss with its fit, the best first."""
    advice = [Advice(name, loss(vocab).level, *loss.advice(vocab)) for name, loss in LOSSES.items()]
    return tuple(sorted(advice, key=lambda one: _FITS.index(one.fit)))
