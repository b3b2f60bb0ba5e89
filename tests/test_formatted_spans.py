"""NumberSpans reads the numbers of every format: the values that were written, and the place of every digit."""

from __future__ import annotations

import re
from decimal import Decimal
from functools import cache, partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.samples import TEXTS, encode, encode_batch, real_tokenizer, refused, shared_tokenizers

import numerate as nm
from numerate.formats import KINDS, NumberFormat
from numerate.objective.overrun import number_ends
from test_spans import check_compact

READABLE = [kind for kind in KINDS if "exponent" not in kind]
TOKENIZERS = sorted({"smollm2", "deepseek", "mistral", *shared_tokenizers()})
NUMBERS = st.from_regex(r"-?(0|[1-9][0-9]{0,6})(\.[0-9]{1,4})?", fullmatch=True)


def format_of(kind: str, numbers: list[str] | None = None) -> NumberFormat:
    """A format of a kind, as wide as the numbers or wider."""
    if numbers is not None:
        return NumberFormat.fit(numbers, kind)
    return NumberFormat(kind, (1, 9), (0, 5)) if "padded" in kind else NumberFormat(kind)


@cache
def sample_vocab(name: str, kind: str) -> nm.NumericVocab:
    return nm.NumericVocab.from_texts(TEXTS[name], vocab_size=len(TEXTS[name]), format=format_of(kind))


@cache
def real_vocab(name: str, kind: str) -> nm.NumericVocab:
    return nm.NumericVocab.from_tokenizer(real_tokenizer(name), format=format_of(kind))


def places_by_change(format: NumberFormat, text: str) -> list[Decimal]:
    """The place of each digit of a number in a format: what the value changes by if the digit does, by one."""

    def value(text: str) -> Decimal:
        return abs(Decimal(format.read(text) or "NaN"))

    changed = [text[: m.start()] + str((int(m[0]) + 1) % 10) + text[m.end() :] for m in re.finditer("[0-9]", text)]
    return [
        abs(value(other) - value(text)) / (1 if int(c) < 9 else 9)
        for other, c in zip(changed, re.findall("[0-9]", text), strict=True)
    ]


def check_number(spans: nm.NumberSpans, format: NumberFormat, text: str, widths: list[int]) -> None:
    """All tokens of one number: each holds the places of its digits."""
    places = iter(places_by_change(format, text))
    for width, place in zip(widths, spans.place[spans.has_place].tolist(), strict=True):
        assert min(next(places) for _ in range(width)) == Decimal(repr(place))


@pytest.mark.parametrize("vocab", ["marks", "chunks", "signs"])
@pytest.mark.parametrize("kind", READABLE)
@settings(max_examples=25)
@given(numbers=st.lists(NUMBERS, min_size=1, max_size=4), separator=st.sampled_from([" (", " x ", ",x", "_", "  ("]))
def test_values_and_places(kind: str, vocab: str, numbers: list[str], separator: str) -> None:
    format, tokens = format_of(kind), sample_vocab(vocab, kind)
    texts = [format.write(number) for number in numbers]
    labels = torch.tensor(encode(separator.join(texts), TEXTS[vocab]))
    if separator.endswith("x"):  # no sign after a letter
        numbers = [numbers[0], *(number.lstrip("-") for number in numbers[1:])]
    spans = nm.NumberSpans.from_labels(labels, tokens)
    assert spans.values.tolist() == [float(number) for number in numbers]
    check_compact(labels[None], tokens, nm.NumberSpans.from_labels(labels[None], tokens))
    for number in numbers:
        text = format.write(number)
        one = nm.NumberSpans.from_labels(torch.tensor(encode(text, TEXTS[vocab])), tokens)
        check_number(one, format, text, tokens.widths[one.index[one.is_digit]].tolist())
        assert one.number_of.unique().tolist() in ([0], [-1, 0])  # -1: a sign within a longer token
        assert one.is_start.nonzero()[:, 0].tolist() == one.is_digit.nonzero()[:1, 0].tolist()


@pytest.mark.parametrize("kind", READABLE)
@pytest.mark.parametrize("name", TOKENIZERS)
@settings(max_examples=8)
@given(numbers=st.lists(NUMBERS, min_size=1, max_size=3))
def test_values_with_real_tokenizers(name: str, kind: str, numbers: list[str]) -> None:
    format, tokenizer = format_of(kind), real_tokenizer(name)
    text = "It costs " + " or ".join(map(format.write, numbers)) + "."
    labels = torch.tensor(tokenizer.encode(text, add_special_tokens=False))
    spans = nm.NumberSpans.from_labels(labels, real_vocab(name, kind))
    assert spans.values.tolist() == [float(number) for number in numbers]
    check_compact(labels[None], real_vocab(name, kind), nm.NumberSpans.from_labels(labels[None], real_vocab(name, kind)))


@pytest.mark.parametrize("kind", [kind for kind in READABLE if "padded" in kind])
@settings(max_examples=60)
@given(number=NUMBERS, other=NUMBERS)
def test_padding_is_not_part_of_a_number(kind: str, number: str, other: str) -> None:
    """Leading and last place are those of the number as it is read back."""
    format = format_of(kind, [number, other])
    vocab = nm.NumericVocab.from_texts(TEXTS["chunks"], vocab_size=len(TEXTS["chunks"]), format=format)
    spans = nm.NumberSpans.from_labels(torch.tensor(encode(format.write(number), TEXTS["chunks"])), vocab)
    whole, _, decimals = (format.read(format.write(number)) or "").lstrip("-").partition(".")
    assert spans.leading[spans.is_digit].unique().tolist() == [len(whole) - 1]
    assert spans.last[spans.is_digit].unique().tolist() == [-len(decimals)]


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("1 2 . 5", [12.5]),
        ("-1 2 . 5 (", [-12.5]),
        ("1 2 .", [12.0]),  # the end of a sentence
        ("1 2.", [12.0]),
        ("1 2 . x", [12.0]),
        ("12 3", [12.0, 3.0]),  # only digits that stand alone are joined
        ("3 12", [3.0, 12.0]),
        ("1 2.5", [1.0, 2.5]),
        ("1.2 5", [1.2, 5.0]),
        ("1 2. 5", [12.0, 5.0]),
        ("1 2 .5", [12.0, 0.5]),
        ("1  2", [1.0, 2.0]),
        ("1 _2", [1.0, 2.0]),
        ("1_ 2", [1.0, 2.0]),
        ("1 x 2", [1.0, 2.0]),
        ("1 2 . 3 . 4", [12.3, 4.0]),
        ("3-5 2", [3.0, 52.0]),
        (" 5 5 5x 5", [555.0, 5.0]),
        ("5 12 5 5", [5.0, 12.0, 55.0]),
        ("", []),
        (" ", []),
    ],
)
def test_spaces_join_single_digits(text: str, values: list[float]) -> None:
    for name in ("marks", "chunks", "signs"):
        if labels := encode(text, TEXTS[name]):
            spans = nm.NumberSpans.from_labels(torch.tensor(labels), sample_vocab(name, "spaced"))
            assert spans.values.tolist() == values, name


def test_a_space_in_a_number_belongs_to_it() -> None:
    spans = nm.NumberSpans.from_labels(torch.tensor(encode("x -1 2 . 0x", TEXTS["marks"])), sample_vocab("marks", "spaced"))
    assert spans.number_of.tolist() == [-1, 0, 0, 0, 0, 0, 0, 0, 0, -1]
    assert spans.exponent.tolist() == [0, 0, 1, 0, 0, 0, 0, 0, -1, 0]
    assert spans.leading.tolist() == [0, *[1] * 8, 0]
    assert spans.negative.tolist() == [False, *[True] * 8, False]
    assert not bool((spans.is_digit & (spans.index < 0)).any())


def test_a_document_border_parts_a_spaced_number() -> None:
    labels = torch.tensor(encode("1 2 3", TEXTS["marks"]))
    for border, values in ((1, [1.0, 23.0]), (2, [1.0, 23.0]), (3, [12.0, 3.0]), (4, [12.0, 3.0])):
        position_ids = torch.arange(1, 6)
        position_ids[border] = 0
        spans = nm.NumberSpans.from_labels(labels, sample_vocab("marks", "spaced"), position_ids=position_ids)
        assert spans.values.tolist() == values


def test_a_row_ends_a_spaced_number() -> None:
    labels = encode_batch(["1 2", " 3 4", "5 6 "], TEXTS["marks"])
    spans = nm.NumberSpans.from_labels(labels, sample_vocab("marks", "spaced"))
    assert spans.values.tolist() == [12.0, 34.0, 56.0]
    check_compact(labels, sample_vocab("marks", "spaced"), spans)


def test_a_multi_digit_token_of_a_reversed_number() -> None:
    """``678`` is 876 and ``45`` is 54: ``67845`` is 54876."""
    spans = nm.NumberSpans.from_labels(torch.tensor(encode("67845", TEXTS["chunks"])), sample_vocab("chunks", "reversed"))
    assert spans.token_values.tolist() == [876.0, 54.0]
    assert spans.exponent.tolist() == [0, 3]
    assert spans.values.tolist() == [54876.0]


def test_a_number_wider_than_its_padding() -> None:
    vocab = nm.NumericVocab.from_texts(TEXTS["marks"], vocab_size=len(TEXTS["marks"]), format=NumberFormat("padded", 2, 1))
    for text, value, leading in (("1984.0", 1984.0, 3), ("0" * 30 + "7.0", 7.0, 15), ("00.00", 0.0, 0), ("0.5", 0.5, 0)):
        spans = nm.NumberSpans.from_labels(torch.tensor(encode(text, TEXTS["marks"])), vocab)
        assert (spans.values.tolist(), int(spans.leading[0])) == ([value], leading)


@pytest.mark.parametrize("kind", KINDS)
def test_where_numbers_end(kind: str) -> None:
    """In every format, also in those whose places are not read."""
    format, vocab = format_of(kind), sample_vocab("ends", kind)
    text = f"x {format.write('12.5')}x{format.write('7')} x"
    labels = torch.tensor(encode(text, TEXTS["ends"]))
    ends = number_ends(labels, vocab).nonzero()[:, 0].tolist()
    after = [match.start() for match in re.finditer(r"(?<=[0-9])(x| x)", text)]
    powers = [match.start() for match in re.finditer(r" ?:", text)]
    assert ends == sorted(after + powers)


def test_plain_is_the_default() -> None:
    plain = nm.NumericVocab.from_texts(TEXTS["marks"], vocab_size=len(TEXTS["marks"]))
    for given_format in ("plain", NumberFormat(), None):
        assert nm.NumericVocab.from_texts(TEXTS["marks"], vocab_size=len(TEXTS["marks"]), format=given_format) == plain
    assert plain.format is None
    assert plain.number_values is plain.values


@pytest.mark.parametrize("kind", KINDS)
def test_a_vocabulary_keeps_its_format(kind: str, tmp_path: Any) -> None:
    vocab = sample_vocab("marks", kind)
    vocab.save(tmp_path / "vocab.json")
    again = nm.NumericVocab.load(tmp_path / "vocab.json")
    assert again == vocab
    assert hash(again) == hash(vocab)
    assert vocab.restrict(max_value=5).format == vocab.format == (None if kind == "plain" else format_of(kind))
    assert (kind == "plain") != (f"; {kind} numbers" in repr(vocab))


def test_what_is_refused() -> None:
    digits = {str(digit): digit for digit in range(10)}
    labels = torch.tensor([1, 2])
    exponent = sample_vocab("marks", "exponent+spaced")
    refused(
        ValueError,
        [
            "NumberSpans reads complete numbers",
            "format='exponent+spaced'",
            "power of ten comes before",
            "Expected another",
        ],
        lambda: nm.NumberSpans.from_labels(labels, exponent),
    )
    refused(
        ValueError,
        ["numbers='runs'", "format='spaced'", "expected numbers='values'"],
        lambda: nm.NumberSpans.from_labels(labels, sample_vocab("marks", "spaced"), numbers="runs"),
    )
    for kind, lacks in (("spaced", "no token is a space"), ("grouped", "no token is a comma")):
        refused(ValueError, [f"format='{kind}'", lacks], partial(nm.NumericVocab.from_texts, digits, 10, format=kind))
    ratings = nm.NumericVocab.from_values({1: 2.0}, vocab_size=3)
    values = dict.fromkeys(("tokens", "vocab_size", "composes"))
    refused(
        ValueError,
        ["format='reversed'", "each token is a complete number"],
        lambda: nm.NumericVocab(**{name: getattr(ratings, name) for name in values}, format="reversed"),
    )
    refused(ValueError, ["digits=None", "NumberFormat.fit"], lambda: nm.NumericVocab.from_texts(digits, 10, format="padded"))
    refused(TypeError, ["format is a int"], lambda: nm.NumericVocab.from_texts(digits, 10, format=3))


def test_padded_runs_are_read_as_they_stand() -> None:
    spans = nm.NumberSpans.from_labels(
        torch.tensor(encode("0012.50", TEXTS["marks"])), sample_vocab("marks", "padded"), numbers="runs"
    )
    assert spans.values.tolist() == [12.0, 50.0]
    assert spans.leading[spans.is_start].tolist() == [3, 1]
