"""Formatted numbers are tokenised as the kinds claim, and as ``format_tokens`` says, by seven tokenizers."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.samples import real_tokenizer
from tests.targets import small
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from numerate.formats import KINDS, NumberFormat
from numerate.inspection import PLACES, FormatTokens, format_tokens, inspect_tokenizer
from numerate.tokenizers import PACKAGED

TOKENIZERS = (*small.KINDS, *PACKAGED)
THREE = ("triples", "deepseek")  # which never join more than three digits
NUMBERS = st.from_regex(r"-?(0|[1-9][0-9]{0,6})(\.[0-9]{1,3})?", fullmatch=True)
TOKENIZER = pytest.mark.parametrize("name", TOKENIZERS)


def tokenizer(name: str) -> Any:
    return small.tokenizer(name) if name in small.KINDS else real_tokenizer(name)


def pieces(tokens: Any, text: str) -> list[str]:
    """The characters of each token of an answer after a prompt, by the tokenizer's own offsets."""
    prompt = "The answer is"
    offsets = tokens(f"{prompt} {text}.", return_offsets_mapping=True, add_special_tokens=False)["offset_mapping"]
    ends = [(max(a, len(prompt)), min(b, len(f"{prompt} {text}"))) for a, b in offsets]
    return [f"{prompt} {text}"[a:b] for a, b in ends if a < b]


@TOKENIZER
@settings(max_examples=20)
@given(numbers=st.lists(NUMBERS, min_size=1, max_size=3))
def test_numbers_survive_tokens_and_are_cut_as_claimed(name: str, numbers: list[str]) -> None:
    tokens = tokenizer(name)
    for kind in KINDS:
        format = NumberFormat.fit(numbers, kind)
        for number in numbers:
            written = format.write(number)
            decoded = tokens.decode(tokens.encode(f"It is {written} m", add_special_tokens=False))
            assert Decimal(format.read(decoded.removeprefix("It is ").removesuffix(" m")) or "NaN") == Decimal(number), kind
            digits = [re.sub(r"[^0-9]", "", piece) for piece in pieces(tokens, written)]
            assert "".join(digits) == re.sub(r"[^0-9]", "", written), kind
            if "spaced" in kind:
                assert max(map(len, digits)) == 1
            if kind == "grouped" and name in THREE:
                # No token goes across a comma, so that thousands have tokens of their own.
                whole = written.lstrip("-").partition(".")[0].split(",")
                groups, found = list(whole), ""
                for piece in filter(None, digits):
                    found += piece
                    if groups and found == groups[0]:
                        groups, found = groups[1:], ""
                    assert len(found) < 3 or not groups
                assert not groups
        if "padded" in kind:
            lengths = {len(format.write(number).lstrip("-")) for number in numbers}
            assert len(lengths) == 1


@TOKENIZER
def test_what_inspection_says(name: str) -> None:
    tokens = tokenizer(name)
    found = {one.kind: one for one in format_tokens(tokens)}
    assert [*found] == [*KINDS]
    assert inspect_tokenizer(tokens).formats == (*found.values(),)
    for kind, one in found.items():
        assert "".join(one.tokens).replace("␣", " ").strip() == one.text
        assert one.text == NumberFormat.fit(["12345.6", "111111"], kind).write("12345.6")
        assert one.places in PLACES
        assert one.digits_per_token == (1, 1) or "spaced" not in kind
        if name not in ("triples", "joined"):  # which cut numbers of the same size differently, by their digits
            format = NumberFormat.fit(["1", "111111"], kind)
            numbers = [str(7 * 10**size + 38_917 % 10**size) for size in range(6)]
            counts = [len(pieces(tokens, format.write(number))) - 1 for number in numbers]  # without the space before it
            assert one.tokens_per_number == pytest.approx(sum(counts) / 6)


def _row(one: FormatTokens) -> tuple[tuple[str, ...], float, tuple[int, int], str]:
    return one.tokens, one.tokens_per_number, one.digits_per_token, one.places


def test_one_digit_and_three() -> None:
    three = {one.kind: _row(one) for one in format_tokens(real_tokenizer("deepseek"))}
    assert three["plain"] == (("123", "45", ".", "6"), 1.5, (1, 3), "shifting")
    assert three["grouped"] == (("12", ",", "345", ".", "6"), 2.0, (1, 3), "aligned")
    assert three["padded"] == (("012", "345", ".", "6"), 2.0, (3, 3), "fixed")
    assert three["reversed"] == (("6", ".", "543", "21"), 1.5, (1, 3), "fixed")
    one_digit = {one.kind: _row(one) for one in format_tokens(small.tokenizer("digits"), "-7")}
    assert one_digit["plain"] == (("-", "7"), 3.5, (1, 1), "aligned")
    assert one_digit["padded"] == ((*"-000007",), 6.0, (1, 1), "fixed")
    assert one_digit["reversed"][-1] == "fixed"
    assert one_digit["exponent"] == ((*"0:-7",), 5.5, (1, 1), "aligned")


def test_kinds_without_tokens_are_left_out() -> None:
    """A vocabulary of digits, points and spaces alone has no commas and colons, and no words around the number."""
    backend = Tokenizer(models.BPE({text: i for i, text in enumerate("0123456789. ")}, []))
    backend.decoder = decoders.Fuse()
    found = format_tokens(PreTrainedTokenizerFast(tokenizer_object=backend))
    assert [one.kind for one in found] == [kind for kind in KINDS if "grouped" not in kind and "exponent" not in kind]
