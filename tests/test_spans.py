"""NumberSpans reads the numbers of a label sequence as a person would."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.reference.numbers import numbers_reference
from tests.samples import CHUNKS, MARKS, TEXTS, VOCABS, certain, encode, encode_batch, random_logits
from torch import Tensor

import numerate as nm
from numerate.spans import Rules, find_numbers_among

CHUNK_VOCAB, MARK_VOCAB = VOCABS["chunks"], VOCABS["marks"]


def spans_of(text: str, vocab: str = "marks", **options: Any) -> nm.NumberSpans:
    return nm.NumberSpans.from_labels(torch.tensor(encode(text, TEXTS[vocab])), VOCABS[vocab], **options)


def expected_spans(
    labels: Tensor, vocab: nm.NumericVocab, position_ids: Tensor | None = None, **options: Any
) -> dict[str, Tensor]:
    """All that NumberSpans holds, written out from the reference; ``labels`` are ``[B, T]``."""
    out = {name: torch.zeros_like(labels) for name in ("exponent", "leading", "last")}
    out |= {
        name: torch.zeros_like(labels, dtype=torch.bool)
        for name in ("is_digit", "is_start", "is_sign", "is_fraction", "is_power", "negative")
    }
    out |= {"number_of": torch.full_like(labels, -1), "index": torch.full_like(labels, -1)}
    values: list[float] = []
    for row, ids in enumerate(labels.tolist()):
        positions = None if position_ids is None else position_ids[row].tolist()
        for number in numbers_reference(ids, vocab, position_ids=positions, **options):
            sign = [] if number.sign_at is None else [number.sign_at]
            for at in [*number.positions, *number.marks, *sign]:
                out["number_of"][row, at] = len(values)
                out["leading"][row, at], out["last"][row, at] = number.leading, number.last
                out["negative"][row, at] = number.negative
            raised = [at for at, power in zip(number.positions, number.power, strict=True) if power]
            for at, token, exponent, fraction in zip(
                number.positions, number.tokens, number.exponents, number.fraction, strict=True
            ):
                out["exponent"][row, at], out["is_fraction"][row, at] = exponent, fraction
                out["is_digit"][row, at] = True
                out["index"][row, at] = vocab.tokens.index(token)
                if at in raised:
                    width = sum(t.width for t, power in zip(number.tokens, number.power, strict=True) if power)
                    out["leading"][row, at], out["last"][row, at], out["is_power"][row, at] = width - 1, 0, True
            out["is_start"][row, number.positions[0]] = True
            out["is_sign"][row, sign] = True
            values.append(float(number.value) if number.value == 0 or number.leading < 308 else math.inf)
    return out | {"values": torch.tensor(values, dtype=torch.float64)}


def check_against_reference(labels: Tensor, vocab: nm.NumericVocab, **options: Any) -> None:
    spans = nm.NumberSpans.from_labels(labels, vocab, **options)
    for name, expected in expected_spans(labels, vocab, **options).items():
        if name == "values" and bool(expected.isinf().any()):
            with pytest.raises(OverflowError, match="beyond float64"):
                assert spans.values is None
            continue
        found = getattr(spans, name)
        if name == "values":
            torch.testing.assert_close(found, expected, rtol=4e-16, atol=0)
        else:
            assert torch.equal(found, expected), (name, labels.tolist(), options)
    assert int(spans.count) == int(spans.is_start.sum())
    check_compact(labels, vocab, spans, **options)


def check_compact(labels: Tensor, vocab: nm.NumericVocab, spans: nm.NumberSpans, **options: Any) -> None:
    """Reading only the tokens that can be part of a number finds the same."""
    tables = (vocab.part_table, vocab.index_table, vocab.flag_table, vocab.widths, vocab.number_values)
    position_ids = options.pop("position_ids", None)
    rows, compact = find_numbers_among(labels, *tables, position_ids=position_ids, rules=Rules.of(vocab.format, **options))
    for name in spans.__dataclass_fields__:
        assert torch.equal(getattr(compact, name)[0], getattr(spans, name).flatten()[rows]), (name, labels.tolist(), options)
    outside = torch.ones(labels.numel(), dtype=torch.bool)
    outside[rows] = False
    assert bool((spans.number_of.flatten()[outside] == -1).all())


# The examples of DESIGN.md, one by one


def test_places_of_chunks() -> None:
    """``12345.678`` is ``123|45|.|678``: places 10², 10⁰ and 10⁻³."""
    spans = spans_of("12345.678", "chunks")
    assert (
        spans.index.tolist() == CHUNK_VOCAB.index_of(torch.tensor([CHUNKS[text] for text in ("123", "45", ".", "678")])).tolist()
    )
    assert spans.place.tolist() == [100.0, 1.0, 0.0, 0.001]
    assert spans.exponent.tolist() == [2, 0, 0, -3]
    assert spans.number_of.tolist() == [0, 0, 0, 0]
    assert spans.is_fraction.tolist() == [False, False, False, True]
    assert (spans.leading.tolist(), spans.last.tolist()) == ([4] * 4, [-3] * 4)
    assert spans.values.tolist() == [12345.678]


def test_leading_zeros_keep_their_width() -> None:
    """``007`` after a point is 0.007."""
    assert spans_of("0.007", "chunks").values.tolist() == [0.007]
    assert spans_of("1007", "chunks").values.tolist() == [1007.0]  # 10|07 would be 107 without widths
    assert spans_of("007", "chunks").leading.tolist() == [2]


@pytest.mark.parametrize(
    ("text", "values"), [("_-5", [-5.0]), ("3_-5", [3.0, -5.0]), ("-_5", [5.0]), ("1._5", [1.0, 5.0]), ("12_34", [12.0, 34.0])]
)
def test_an_ignored_label_parts_numbers(text: str, values: list[float]) -> None:
    """Other signs, points and spaces are in tests/data/numbers_in_labels.md, which test_numbers.py reads."""
    assert spans_of(text).values.tolist() == values


def test_a_sign_belongs_to_its_number() -> None:
    spans = spans_of(",-12")
    assert spans.number_of.tolist() == [-1, 0, 0, 0]
    assert spans.is_sign.tolist() == [False, True, False, False]
    assert spans.negative.tolist() == [False, True, True, True]
    glued = spans_of("(-12")  # one token, which is no minus of its own but negates
    assert glued.number_of.tolist() == [-1, 0, 0]
    assert not bool(glued.is_sign.any())
    assert glued.values.tolist() == [-12.0]


@pytest.mark.parametrize(
    ("text", "value", "exponents", "power"),
    [
        ("1e-5", 1e-5, [-5, 0, 0], [False, False, True]),
        ("12.5E+007", 12.5e7, [7, 0, 6, 0, 0], [False, False, False, False, True]),
        ("-.678e12", -0.678e12, [0, 9, 0, 0], [False, False, False, True]),
    ],
)
def test_powers_of_ten_shift_the_places(text: str, value: float, exponents: list[int], power: list[bool]) -> None:
    spans = spans_of(text, "signs")
    assert spans.values.tolist() == [value]
    assert spans.exponent.tolist() == exponents
    assert spans.is_power.tolist() == power
    assert (spans.place != 0).tolist() == (spans.is_digit & ~spans.is_power).tolist()
    assert spans.relative_values[spans.is_power].tolist() == [0.0]
    assert spans.log10.tolist() == pytest.approx([math.log10(abs(value))])


@pytest.mark.parametrize(("text", "value"), [("1e-400", 0.0), ("5e-324", 5e-324), ("12e-320", 12e-320), ("1e307", 1e307)])
def test_powers_at_the_ends_of_float64(text: str, value: float) -> None:
    assert spans_of(text, "signs").values.tolist() == pytest.approx([value], rel=1e-3 if value < 1e-300 else 1e-15)


def test_the_minus_of_a_power_is_no_sign() -> None:
    spans = spans_of("-1e−5 -1e-5", "signs")
    assert spans.values.tolist() == [-1e-5, -1e-5]
    assert spans.is_sign.tolist() == [True, False, False, False, False, True, False, False, False]
    assert spans.number_of.tolist() == [0] * 5 + [1] * 4


@pytest.mark.parametrize(
    ("text", "border", "values"),
    [
        ("12345", 0, [12345.0]),
        ("12345", 2, [12.0, 345.0]),
        ("1.5", 1, [1.0, 0.5]),
        ("1.5", 2, [1.0, 5.0]),
        ("3-5", 1, [3.0, -5.0]),
        ("3-5", 2, [3.0, 5.0]),
        ("-55", 1, [55.0]),
        ("(-5", 1, [5.0]),
    ],
)
def test_a_document_border_parts_digits_sign_and_point(text: str, border: int, values: list[float]) -> None:
    labels = torch.tensor(encode(text, MARKS))
    position_ids = torch.arange(1, len(labels) + 1)
    position_ids[border] = 0
    assert nm.NumberSpans.from_labels(labels, MARK_VOCAB, position_ids=position_ids).values.tolist() == values


def test_runs_are_integers() -> None:
    """What the published NTIL and ntloss code read: no sign, no point."""
    assert spans_of("-12.05 3-5", numbers="runs").values.tolist() == [12.0, 5.0, 3.0, 5.0]


def test_tokens_that_do_not_compose_are_numbers_of_their_own() -> None:
    spans = nm.NumberSpans.from_labels(torch.tensor([3, 9, 9, 0]), VOCABS["ratings"])
    assert spans.values.tolist() == [0.5, 30.0, 30.0]
    assert spans.place.tolist() == [1.0, 1.0, 1.0, 0.0]


def test_ids_beyond_the_vocabulary_end_a_number() -> None:
    labels = torch.tensor([MARKS["1"], MARK_VOCAB.vocab_size + 5, MARKS["2"]])
    assert nm.NumberSpans.from_labels(labels, MARK_VOCAB).values.tolist() == [1.0, 2.0]


def test_a_row_ends_a_number() -> None:
    spans = nm.NumberSpans.from_labels(encode_batch(["12", "34", "-5", "-x"], MARKS), MARK_VOCAB)
    assert spans.values.tolist() == [12.0, 34.0, -5.0]
    assert spans.number_of.tolist() == [[0, 0], [1, 1], [2, 2], [-1, -1]]


def test_shapes() -> None:
    """``[T]``, ``[B, T]`` and ``[A, B, T]``: all fields are shaped like the labels, numbers counted through."""
    labels = encode_batch(["1.5 2", "-34x5", "6_789", "0.98,"], MARKS)
    flat = nm.NumberSpans.from_labels(labels, MARK_VOCAB)
    cube = nm.NumberSpans.from_labels(labels.reshape(2, 2, -1), MARK_VOCAB)
    assert cube.number_of.shape == (2, 2, labels.shape[1])
    for name in flat.__dataclass_fields__:
        assert torch.equal(getattr(cube, name).reshape(labels.shape), getattr(flat, name)), name
    assert cube.values.tolist() == flat.values.tolist() == [1.5, 2.0, -34.0, 5.0, 6.0, 789.0, 0.98]
    row = nm.NumberSpans.from_labels(labels[1], MARK_VOCAB)
    assert row.number_of.shape == labels[1].shape
    assert row.values.tolist() == [-34.0, 5.0]


def test_no_numbers() -> None:
    spans = spans_of("x.-_")
    assert spans.values.shape == (0,)
    assert spans.log10.shape == (0,)
    assert int(spans.count) == 0


# Against the reference, on anything


def labels_of(vocab: str) -> st.SearchStrategy[list[list[int]]]:
    texts = TEXTS[vocab]
    digits = [texts[text] for text in texts if text.strip().isdigit()]
    marks = [texts[text] for text in (".", "-", ",", "e", "E+", "$", "+") if text in texts]
    token = st.one_of(st.sampled_from(digits), st.sampled_from(marks), st.sampled_from([*texts.values(), len(texts) + 1, -100]))
    return st.integers(1, 9).flatmap(
        lambda length: st.lists(st.lists(token, min_size=length, max_size=length), min_size=1, max_size=3)
    )


@pytest.mark.parametrize("numbers", ["values", "runs", "thousands"])
@pytest.mark.parametrize("vocab", ["marks", "chunks", "signs"])
@settings(max_examples=150)
@given(data=st.data())
def test_random_tokens(vocab: str, numbers: str, data: st.DataObject) -> None:
    labels = torch.tensor(data.draw(labels_of(vocab)))
    options: dict[str, Any] = {"thousands": True} if numbers == "thousands" else {"numbers": numbers}
    if data.draw(st.booleans()):
        new = st.lists(st.integers(0, 4), min_size=labels.numel(), max_size=labels.numel())
        options["position_ids"] = torch.tensor(data.draw(new)).reshape(labels.shape)
    check_against_reference(labels, VOCABS[vocab], **options)


def decimals(digits: int) -> st.SearchStrategy[str]:
    """Texts of numbers with up to so many digits behind up to seven zeros, with sign and fraction."""

    def spelled(parts: tuple[int, str, int, bool]) -> str:
        zeros, text, point, negative = parts
        text = "0" * zeros + text
        text = text if point >= len(text) or point == 0 else f"{text[:point]}.{text[point:]}"
        return "-" + text if negative else text

    significant = st.text("0123456789", min_size=1, max_size=digits)
    return st.tuples(st.integers(0, 7), significant, st.integers(0, digits + 7), st.booleans()).map(spelled)


@pytest.mark.parametrize("vocab", ["marks", "chunks"])
@settings(max_examples=150)
@given(texts=st.lists(decimals(15), min_size=1, max_size=4), separator=st.sampled_from([" ", ",", " (", "x ", "_"]))
def test_values_equal_decimals(vocab: str, texts: list[str], separator: str) -> None:
    """Exactly what Python reads, for up to 15 digits, and 22 places after the point."""
    spans = spans_of(separator.join(texts), vocab)
    assert spans.values.tolist() == [float(Decimal(text)) for text in texts]
    for text, log in zip(texts, spans.log10.tolist(), strict=True):
        size = abs(float(Decimal(text)))
        assert log == pytest.approx(math.log10(size) if size else -math.inf, abs=1e-12)


@settings(max_examples=60)
@given(text=decimals(60))
def test_long_values_are_close(text: str) -> None:
    assert spans_of(text).values.tolist() == pytest.approx([float(Decimal(text))], rel=1e-14)


@settings(max_examples=100)
@given(text=decimals(30), vocab=st.sampled_from(["marks", "chunks"]))
def test_the_reference_is_exact(text: str, vocab: str) -> None:
    (number,) = numbers_reference(encode(text, TEXTS[vocab]), VOCABS[vocab])
    assert number.value == Fraction(Decimal(text))


def test_places_are_correctly_rounded() -> None:
    """10²³ and the like, which ``torch.pow`` gets wrong by a bit."""
    spans = spans_of("1" * 300)
    assert spans.place.tolist() == [float(f"1e{k}") for k in reversed(range(300))]


# Numbers that no float64 holds

HUGE = "7" + "3" * 399


def test_400_digits() -> None:
    spans = spans_of(HUGE)
    assert spans.log10.tolist() == pytest.approx([399 + math.log10(7.3333333333333333)], abs=1e-9)
    for ask in (lambda: spans.values, lambda: spans.place):
        with pytest.raises(OverflowError, match=r"400 digits.*float64.*expected fewer than 309.*log10"):
            ask()


@pytest.mark.parametrize(("text", "log"), [("0." + "0" * 330 + "1", -331.0), ("0" * 330 + "100", 2.0)])
def test_log10_with_many_leading_zeros(text: str, log: float) -> None:
    assert spans_of(text).log10.tolist() == pytest.approx([log])


@pytest.mark.parametrize(
    ("vocab", "text"),
    [
        (vocab, text)
        for vocab in ("marks", "chunks")
        for text in (HUGE, "-" + HUGE + ".5", "0." + HUGE, "0" * 400, "x " + HUGE[:200] + " " + HUGE)
    ]
    + [("signs", text) for text in ("1.5e999", "-.5e-999", "12e007 0e400")],
)
@pytest.mark.parametrize("name", ["ntil", "ntl_number", "number"])
def test_number_level_losses_of_400_digits(name: str, vocab: str, text: str) -> None:
    labels = torch.tensor(encode(text, TEXTS[vocab]))
    for outside in ("ignore", "penalize"):
        logits = random_logits(labels, VOCABS[vocab], torch.float32).requires_grad_()
        value = nm.LOSSES[name](VOCABS[vocab], outside=outside)(logits, labels)
        value.backward()
        assert bool(value.isfinite())
        assert logits.grad is not None
        assert bool(logits.grad.isfinite().all())
        if outside == "ignore":  # the chance that 400 tokens are all digits is too small to have a gradient
            assert float(logits.grad.abs().sum()) > 0


# On the hot path


# Bad input


def test_bad_input() -> None:
    labels = torch.tensor([[2, 3]])
    cases: list[tuple[type[Exception], str, dict[str, Any]]] = [
        (
            ValueError,
            r"position_ids has shape \(2,\) and labels \(1, 2\): expected the same; .*shift",
            {"position_ids": torch.ones(2)},
        ),
        (ValueError, r"numbers='run' .*expected one of 'values', 'runs'.*Did you mean 'runs'", {"numbers": "run"}),
        (ValueError, r"thousands=True does not apply to numbers='runs'.*expected", {"numbers": "runs", "thousands": True}),
        (TypeError, r"labels has dtype torch.float32: expected integer.*labels.long\(\)", {"labels": labels.float()}),
    ]
    for error, message, options in cases:
        with pytest.raises(error, match=message):
            nm.NumberSpans.from_labels(**{"labels": labels, "vocab": MARK_VOCAB, **options})


def test_ntil_of_400_digits_is_of_the_size_of_its_digits() -> None:
    labels = torch.tensor(encode("7" * 400, MARKS))
    wrong = certain(torch.tensor(encode("8" + "7" * 399, MARKS)), MARK_VOCAB.vocab_size)
    assert 0 < float(nm.LOSSES["ntil"](MARK_VOCAB)(wrong, labels)) < 1
