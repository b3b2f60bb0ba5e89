"""Numbers in formats, in every function that searches or restricts them, against the enumeration of all sequences of tokens."""

from __future__ import annotations

import math
from decimal import Decimal
from functools import cache
from typing import Any

import pytest
import torch
from tests.decode.enumeration import enumerate_answers, members, small_format
from tests.decode.test_model import Tokens, masses_of, small

from numerate.decode import NumberGrammar, distribution, format_grammar
from numerate.formats import KINDS

TEXTS = {
    "one digit": ["0", "1", "5", "-", ".", " ", ",", ":"],
    "several digits": ["0", "1", "5", "10", "51", "-1", ".", ".5", " ", " 1", ",", ":", "5:", " .\n"],
}
PROMPTS = ["xy", "yxx"]


@cache
def model_of(name: str) -> Any:
    return small(TEXTS[name], seed=3).double()


@cache
def expected(kind: str, name: str, prompt: str) -> dict[Any, float]:
    """The probability of each value, by enumeration."""
    model, start = model_of(name), Tokens(TEXTS[name])(prompt)["input_ids"]

    @torch.no_grad()
    def chances(paths: list[tuple[int, ...]]) -> list[list[float]]:
        return model(torch.tensor([[*start, *path] for path in paths])).logits[:, -1].softmax(-1).tolist()

    found = enumerate_answers(chances, dict(enumerate(TEXTS[name], 4)), numbers_of(kind), "spaced" in kind)
    assert math.fsum(found.values()) == pytest.approx(1, abs=1e-9)
    return found


def grammar_of(kind: str) -> NumberGrammar:
    # The power of ten of 007 is that of its first 0: with exponents there are no such numbers.
    zeros = "exponent" not in kind
    return NumberGrammar(True, (1, 2), (0, 1), lowest="-10.5", highest=51, leading_zeros=zeros, negative_zero=True)


@cache
def numbers_of(kind: str) -> dict[str, Decimal]:
    return members(small_format(kind), grammar_of(kind))


CASES = [(kind, name) for name in TEXTS for kind in KINDS]


def assert_same(got: dict[Any, float], wanted: dict[Any, float]) -> None:
    for key in wanted.keys() | got.keys():
        assert got.get(key, 0.0) == pytest.approx(wanted.get(key, 0.0), abs=1e-6), key


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_distributions(kind: str, name: str) -> None:
    grammar = format_grammar(small_format(kind), grammar_of(kind))
    found = distribution(model_of(name), PROMPTS, Tokens(TEXTS[name]), grammar=grammar, width=None, covered=1.0)
    for prompt, one in zip(PROMPTS, found, strict=True):
        assert_same(masses_of(one), expected(kind, name, prompt))
        assert len(one.values) > 5
