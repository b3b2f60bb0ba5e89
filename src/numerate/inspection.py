"""Inspect a tokenizer: how it splits numbers, plain and in each format, how they are read back, and which losses suit it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from statistics import fmean
from typing import Any, Literal, NamedTuple

import torch

from numerate.checks import one_line, public_dir
from numerate.formats import KINDS, NumberFormat
from numerate.losses import LOSSES
from numerate.losses.base import Suitability
from numerate.spans import NumberSpans
from numerate.tokens import known_texts
from numerate.vocab import NumericVocab

__all__ = [
    "EXAMPLES",
    "EXAMPLE_NUMBER",
    "PLACES",
    "Advice",
    "FormatTokens",
    "Inspection",
    "Reading",
    "format_tokens",
    "inspect_tokenizer",
    "loss_advice",
    "number_style",
    "read_text",
    "vocab_facts",
]
__dir__ = public_dir(globals())

EXAMPLES = ("12345.678", "-7", "1,000")
"""Default texts."""
EXAMPLE_NUMBER = "12345.6"
"""Default number of :func:`format_tokens`."""
_PROBES = ("7", "42", "365", "1000", "31415", "271828", "1234567", "98765432", "100000000", "2718281828")
_MOST_DIGITS = 6
_SENTENCE = "The answer is {} in all."
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


Places = Literal["fixed", "aligned", "shifting"]
PLACES: dict[Places, str] = {
    "fixed": "each place, such as the tens, is always in the same token of the number",
    "aligned": "tokens are cut at the same places in every number",
    "shifting": "where tokens are cut depends on how many digits the number has",
}
"""How the places of digits, ones, tens and so on, fall into tokens."""


@dataclass(frozen=True)
class FormatTokens:
    """What a tokenizer makes of numbers in a format; averages are over integers of one to six digits."""

    kind: str
    text: str
    """An example in the format."""

    tokens: tuple[str, ...]
    """Of the example; a leading space shown as ␣."""

    tokens_per_number: float
    digits_per_token: tuple[int, int]
    """Fewest and most digits of a token that has digits of the number."""

    places: Places


@dataclass(frozen=True)
class Inspection:
    """The result of :func:`inspect_tokenizer`."""

    style: str
    vocab: NumericVocab
    facts: dict[str, str]
    readings: tuple[Reading, ...]
    formats: tuple[FormatTokens, ...]
    advice: tuple[Advice, ...]


def inspect_tokenizer(tokenizer: Any, texts: Sequence[str] = EXAMPLES) -> Inspection:
    """Inspect a Hugging Face tokenizer without changing it; ``texts`` are examples to split and read."""
    vocab = NumericVocab.from_tokenizer(tokenizer)
    return Inspection(
        style=number_style(tokenizer, vocab),
        vocab=vocab,
        facts=vocab_facts(vocab),
        readings=tuple(reading for text in texts for reading in _readings(tokenizer, vocab, text)),
        formats=format_tokens(tokenizer),
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
    index = vocab.index_of(_encode(tokenizer, _SENTENCE.format(digits)))
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


def format_tokens(tokenizer: Any, number: str = EXAMPLE_NUMBER) -> tuple[FormatTokens, ...]:
    """Return what the tokenizer makes of numbers in every kind of format, without the kinds whose characters it does not know.

    Args:
        tokenizer: of Hugging Face.
        number: the example, in ordinary notation; padded kinds pad it to at least six digits before the point.
    """
    pieces = {token_id: text for text, token_id in known_texts(tokenizer)}
    random = Random(0)
    probes = [f"{random.randrange(10 ** (size - 1), 10**size)}" for size in range(1, _MOST_DIGITS + 1) for _ in range(5)]
    found = []
    for kind in KINDS:
        shown = NumberFormat.fit([number, "1" * _MOST_DIGITS], kind)
        format = NumberFormat.fit(["1" * _MOST_DIGITS, "1"], kind)
        example = _cut(tokenizer, pieces, shown.write(number))
        cuts = [_cut(tokenizer, pieces, format.write(probe)) for probe in probes]
        if example is None or None in cuts:
            continue
        digits = [_digits(format, probe, cut) for probe, cut in zip(probes, cuts, strict=True) if cut is not None]
        sizes = [count for one in digits for count in Counter(digit.token for digit in one).values()]
        tokens = tuple(text.replace(" ", "␣") for text, _ in example)
        mean = fmean(len(cut) for cut in cuts if cut is not None)
        found.append(FormatTokens(kind, shown.write(number), tokens, mean, (min(sizes), max(sizes)), _places(digits)))
    return tuple(found)


class _Digit(NamedTuple):
    """A digit of a number: its place, the index of its token, and the digits before and after it in that token."""

    place: int
    token: int
    before: int
    after: int


def _cut(tokenizer: Any, pieces: dict[int, str], written: str) -> list[tuple[str, range]] | None:
    """Return text and characters of each token of a number, not counting spaces; None if the tokens are not those of the text."""
    for context in (_SENTENCE, "{}"):  # a vocabulary of numbers alone has no words
        try:
            texts = [pieces.get(token_id, "") for token_id in _encode(tokenizer, context.format(written)).tolist()]
        except ValueError:
            continue  # a character without a token
        if "".join(texts).replace(" ", "") == context.format(written).replace(" ", ""):
            return _inside(texts, len(context.partition("{")[0].replace(" ", "")), len(written.replace(" ", "")))
    return None


def _inside(texts: Sequence[str], start: int, size: int) -> list[tuple[str, range]]:
    """Return the tokens that touch ``size`` characters from ``start``, not counting spaces, with those of the characters."""
    found, end = list[tuple[str, range]](), 0
    for text in texts:
        begin, end = end, end + len(text.replace(" ", ""))
        inside = range(max(begin, start) - start, min(end, start + size) - start)
        # Of tokens that are only a space, those between characters of the number count.
        if inside or (begin == end and start < begin < start + size):
            found.append((text, inside))
    return found


def _digits(format: NumberFormat, number: str, cut: list[tuple[str, range]]) -> list[_Digit]:
    """Return the digits of an integer and where they stand in its tokens."""
    written = format.write(number).replace(" ", "")
    place_of: dict[int, int] = {}
    for place in range(_MOST_DIGITS):  # the digit that changes with the number by a power of ten has its place
        digit = int(number.zfill(_MOST_DIGITS)[-1 - place])
        other = format.write(str(int(number) + (1 if digit < 5 else -1) * 10**place)).replace(" ", "")
        changed = [i for i, pair in enumerate(zip(written, other, strict=False)) if pair[0] != pair[1]]
        if len(other) == len(written) and len(changed) == 1:
            place_of[changed[0]] = place
    found = []
    for token, (_, characters) in enumerate(cut):
        inside = [character for character in characters if character in place_of]
        found += [_Digit(place_of[one], token, i, len(inside) - 1 - i) for i, one in enumerate(inside)]
    return found


def _places(numbers: Sequence[Sequence[_Digit]]) -> Places:
    """Return how the places of digits fall into tokens."""
    by_place: dict[int, set[_Digit]] = defaultdict(set)
    for digits in numbers:
        for digit in digits:
            by_place[digit.place].add(digit)
    seen = by_place.values()
    if all(len({(digit.token, digit.before) for digit in one}) == 1 for one in seen):
        return "fixed"
    same_start, same_end = (all(len({digit[field] for digit in one}) == 1 for one in seen) for field in (2, 3))
    return "aligned" if same_start or same_end else "shifting"


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
