"""Numbers in formats, in every function that searches or restricts them, against the enumeration of all sequences of tokens."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from decimal import Decimal
from functools import cache
from typing import Any

import pytest
import torch
from tests.decode.enumeration import enumerate_answers, members, small_format
from tests.decode.test_model import Tokens, masses_of, small
from tests.samples import every_pair, refused
from transformers import LlamaForCausalLM

from numerate import decode
from numerate.answers import clock_time
from numerate.decode import (
    DecideNumbers,
    NumberGrammar,
    TextGrammar,
    distribution,
    interval,
    number,
    numbers_only,
    served_distribution,
)
from numerate.distribution import NumberDistribution
from numerate.formats import KINDS

TEXTS = {
    "one digit": ["0", "1", "5", "-", ".", " ", ",", ":"],
    "all digits": [*"0123456789-. ,:"],
    "several digits": ["0", "1", "5", "10", "51", "-1", ".", ".5", " ", " 1", ",", ":", "5:", " .\n"],
}
PROMPTS = ["x,", "yxx,"]
ALL: dict[str, Any] = {"width": None, "covered": 1.0}


class Guided(LlamaForCausalLM):  # type: ignore[misc]
    """A small model that is drawn towards one text after two tokens, place by place, whatever it wrote before."""

    guide: torch.Tensor

    def forward(self, input_ids: torch.Tensor, past_key_values: Any = None, **kwargs: Any) -> Any:
        end = input_ids.shape[1] + (0 if past_key_values is None else past_key_values.get_seq_length())
        output = super().forward(input_ids, past_key_values=past_key_values, **kwargs)
        output.logits = output.logits / 4 + self.guide[end - output.logits.shape[1] : end]
        return output


@cache
def model_of(name: str, guide: str = "") -> Any:
    """Return a model; ``guide`` is a text that it likes."""
    model = small(TEXTS[name], seed=3)
    model.__class__ = Guided
    model.guide = torch.zeros(40, len(TEXTS[name]) + 4)
    for place, character in enumerate(guide, 1):
        model.guide[place, 4 + TEXTS[name].index(character)] = 4.0
    return model.double()


def grammar_of(kind: str) -> NumberGrammar:
    # The power of ten of 007 is that of its first 0: with exponents there are no such numbers.
    zeros = "exponent" not in kind
    return NumberGrammar(True, (1, 2), (0, 1), lowest="-10.5", highest=51, leading_zeros=zeros, negative_zero=True)


@cache
def numbers_of(kind: str) -> dict[str, Decimal]:
    return members(small_format(kind), grammar_of(kind))


@torch.no_grad()
def chances(name: str, guide: str, rows: list[tuple[int, ...]]) -> list[list[float]]:
    """The probabilities of the token after each row."""
    found: list[list[float]] = model_of(name, guide)(torch.tensor(rows)).logits[:, -1].softmax(-1).tolist()
    return found


@cache
def enumerated(kind: str, name: str, guide: str, prompt: str) -> dict[Any, float]:
    """The probability of each value."""
    start = tuple(Tokens(TEXTS[name])(prompt)["input_ids"])
    texts, after = dict(enumerate(TEXTS[name], 4)), lambda paths: chances(name, guide, [start + path for path in paths])
    found = enumerate_answers(after, texts, numbers_of(kind), "spaced" in kind)
    assert math.fsum(found.values()) == pytest.approx(1, abs=1e-9)
    return found


class Case:
    """A kind, a tokenizer and a model."""

    def __init__(self, kind: str, name: str, guide: str = "") -> None:
        self.kind, self.name, self.guide = kind, name, guide
        self.model, self.tokens = model_of(name, guide), Tokens(TEXTS[name])
        self.form: dict[str, Any] = {"grammar": grammar_of(kind), "format": small_format(kind)}

    def expected(self, prompt: str) -> dict[Any, float]:
        return enumerated(self.kind, self.name, self.guide, prompt)

    def numbers(self, prompt: str) -> NumberDistribution:
        found = {value: mass for value, mass in self.expected(prompt).items() if isinstance(value, Decimal)}
        return NumberDistribution([*found], [*found.values()])

    def assert_expected(self, found: NumberDistribution, prompt: str) -> None:
        expected, got = self.expected(prompt), masses_of(found)
        for key in expected.keys() | got.keys():
            assert got.get(key, 0.0) == pytest.approx(expected.get(key, 0.0), abs=1e-6), key
        assert len(found.values) > 5


def _distribution(case: Case) -> None:
    for prompt, one in zip(PROMPTS, distribution(case.model, PROMPTS, case.tokens, **case.form, **ALL), strict=True):
        case.assert_expected(one, prompt)


def _member_distributions(case: Case) -> None:
    found = decode.member_distributions([case.model, case.model], PROMPTS, case.tokens, **case.form, **ALL)
    for prompt, (one, other) in zip(PROMPTS, found, strict=True):
        case.assert_expected(one, prompt)
        assert one == other


def _number(case: Case) -> None:
    for metric in ("median", "mode", "mean"):
        found = number(case.model, PROMPTS, case.tokens, metric, max_no_number=1, **case.form, **ALL)
        expected = [float(case.numbers(prompt).decide(metric)) for prompt in PROMPTS]
        assert found == pytest.approx(expected, abs=51e-6)  # a mean of numbers up to 51


def _interval(case: Case) -> None:
    found = interval(case.model, PROMPTS, case.tokens, 0.8, max_no_number=1, **case.form, **ALL)
    assert found == [tuple(map(float, case.numbers(prompt).interval(0.8))) for prompt in PROMPTS]


def _served(case: Case) -> None:
    def complete(rows: list[tuple[int, ...]]) -> list[list[tuple[int, float]]]:
        found: dict[tuple[int, ...], list[float]] = {}
        for length in {*map(len, rows)}:
            same = [row for row in rows if len(row) == length]
            found |= zip(same, chances(case.name, case.guide, same), strict=True)
        return [[*enumerate(map(math.log, found[row]))] for row in rows]

    found = served_distribution(complete, PROMPTS[:1], tokenizer=case.tokens, **case.form, **ALL)
    case.assert_expected(found[0], PROMPTS[0])


def decided(case: Case, metric: str, **options: Any) -> tuple[str, Any]:
    """Return what is written after ``x,``, and the distribution of its first number."""
    inputs = {"input_ids": torch.tensor([case.tokens("x,")["input_ids"]]), "attention_mask": torch.ones(1, 2, dtype=torch.long)}
    method = DecideNumbers(case.tokens, metric, most_numbers=1, **case.form, **options)
    output = case.model.generate(**inputs, custom_generate=method, max_new_tokens=16, return_dict_in_generate=True)
    written = (case.tokens.texts[i] if i > 3 else "|" for i in output.sequences[0, 2:].tolist())
    return "".join(written).lstrip(), output.distributions[0][0]


def _decide(case: Case) -> None:
    """What is read at the start of the text, whatever follows it, is what was decided."""
    case = Case(case.kind, case.name, small_format(case.kind).write("15.1"))
    text, found = decided(case, "median", **ALL)
    case.assert_expected(found, "x,")
    values = numbers_of(case.kind)
    *_, read = (values[text[:end]] for end in range(1, len(text) + 1) if text[:end] in values)
    assert read == found.decide("median")


def _numbers_only(case: Case) -> None:
    """What may follow each text, and where it may end: all texts that tokens can write."""
    pieces = [*dict.fromkeys([*"0123456789-.,: ", *TEXTS[case.name]])]
    processor = numbers_only({text: i for i, text in enumerate(pieces)}, end_token_ids=99, prompt_length=0, **case.form)
    numbers = numbers_of(case.kind)
    prefixes = {text[:end] for text in numbers for end in range(len(text) + 1)}
    paths, seen = [(list[int](), "")], {""}
    while paths:
        path, text = paths.pop()
        scores = processor(torch.tensor([path], dtype=torch.long), torch.zeros(1, 100))
        allowed = {99} if text.removeprefix(" ") in numbers else set()
        for token, piece in enumerate(pieces):
            if (text + piece).removeprefix(" ") in prefixes:
                allowed.add(token)
                if text + piece not in seen:
                    seen.add(text + piece)
                    paths.append(([*path, token], text + piece))
        assert {*scores[0].isfinite().nonzero()[:, 0].tolist()} == allowed, text
    assert seen >= numbers.keys()


CHECKS: dict[str, Callable[[Case], None]] = {
    "distribution": _distribution,
    "number": _number,
    "interval": _interval,
    "member_distributions": _member_distributions,
    "served_distribution": _served,
    "DecideNumbers": _decide,
    "numbers_only": _numbers_only,
}


@every_pair("check, name, kind", CHECKS, ["one digit", "several digits"], KINDS)
def test_equal_to_enumeration(check: str, name: str, kind: str) -> None:
    CHECKS[check](Case(kind, name))


def test_every_function_with_a_grammar_is_checked() -> None:
    assert decode.NumbersOnly is numbers_only
    functions = {getattr(decode, name): name for name in decode.__all__}
    searching = [name for called, name in functions.items() if {"grammar", "search"} & {*inspect.signature(called).parameters}]
    assert sorted(CHECKS) == sorted(searching)


@pytest.mark.parametrize("kind", KINDS)
def test_a_mean_is_written_in_the_format(kind: str) -> None:
    format = small_format(kind)
    case = Case(kind, "all digits", format.write("15.1"))
    text, found = decided(case, "mean")
    mean = found.decide("mean")
    rounded = {format.write(f"{mean:.{decimals}f}") for decimals in ((1,) if format.padded else (0, 1))}
    assert any(text.startswith(one) for one in rounded), (text, mean)


def test_a_kind_is_a_format() -> None:
    case = Case("spaced", "one digit")
    (one,), (other,) = (
        distribution(case.model, PROMPTS[:1], case.tokens, format=form, width=4) for form in ("spaced", small_format("spaced"))
    )
    assert one.values == other.values
    refused(ValueError, ["kind='spced'"], lambda: distribution(case.model, PROMPTS, case.tokens, format="spced"))
    clock = TextGrammar("0123456789_", clock_time, most=5)
    refused(
        TypeError,
        ["grammar is a TextGrammar with format='spaced'", "expected a NumberGrammar"],
        lambda: distribution(case.model, PROMPTS, case.tokens, grammar=clock, format="spaced"),
    )


@pytest.mark.parametrize("kind", ["reversed", "padded+reversed", "reversed+spaced"])
def test_a_width_that_suffices_draws_nothing(kind: str) -> None:
    """A prefix of a reversed number does not bound its value; what is kept is as exact as for other numbers."""
    case = Case(kind, "several digits")
    widths: list[int] = []
    options: dict[str, Any] = {**case.form, "covered": 1.0, "watch": lambda nodes, _: widths.append(len(nodes))}
    distribution(case.model, PROMPTS[:1], case.tokens, width=None, **options)
    (one,) = distribution(case.model, PROMPTS[:1], case.tokens, width=max(widths), **options)
    assert one.drawn == 0
    case.assert_expected(one, PROMPTS[0])
    (few,) = distribution(case.model, PROMPTS[:1], case.tokens, width=max(widths) // 4, **options)
    assert few.drawn > 0
    assert few.covered + few.no_number + few.more_digits == pytest.approx(1, abs=1e-6)
    drawn = [
        distribution(case.model, PROMPTS[:1], case.tokens, width=max(widths) // 4, seed=seed, **options)[0] for seed in range(20)
    ]
    expected = case.numbers(PROMPTS[0])
    means = [float(one.mean) * one.covered for one in drawn]
    spread = (sum((mean - sum(means) / 20) ** 2 for mean in means) / 19 / 20) ** 0.5
    assert abs(sum(means) / 20 - float(expected.mean) * sum(case.expected(PROMPTS[0])[v] for v in expected.values)) < 4 * spread
