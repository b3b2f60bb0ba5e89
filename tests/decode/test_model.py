"""distribution: equal to brute force on models small enough, and clear about what it cannot do."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.decode.models import small_llama
from tests.samples import refused
from torch import Tensor
from transformers import LlamaForCausalLM

from numerate.decode import NumberGrammar, distribution, numbers_only
from numerate.distribution import NumberDistribution

TOKENS: dict[str, list[str]] = {
    "one digit": ["0", "1", "7", "-", ".", " "],
    "three digits": ["0", "1", "12", "007", "-", ".", " ", " 1"],
    "commas": ["1", "000", "00", ",", "11"],
    "mixed": ["0", "1", "1\n", ".\n", "0.", "-1", ".5", "1x", " -", "\n"],
}
LONG = {"commas": 4}  # whole digits


class Tokens:
    """As much of a tokenizer as the search needs: texts with ids; 0 is padding, 1 and 2 are words, 3 ends."""

    pad_token_id, eos_token_id = 0, 3
    all_special_ids = (0, 3)

    def __init__(self, texts: list[str]) -> None:
        self.texts = ["<pad>", "x", "y", "<end>", *texts]
        self.added_tokens_decoder = dict[int, Any]()

    def get_vocab(self) -> dict[str, int]:
        return {text: index for index, text in enumerate(self.texts)}

    def __call__(self, text: str) -> dict[str, list[int]]:
        return {"input_ids": [self.texts.index(character) for character in text]}


def small(texts: list[str], seed: int = 0) -> LlamaForCausalLM:
    return small_llama(len(texts) + 4, end=3, layers=2, key_heads=1, spread=0.7, seed=seed)


PROMPTS = torch.tensor([[0, 0, 1, 2], [1, 2, 2, 1], [0, 2, 1, 1]])
INPUTS = {"input_ids": PROMPTS, "attention_mask": (PROMPTS > 0).long()}


def brute_force(model: Any, prompt: list[int], texts: list[str], digits: int, decimals: int) -> dict[Any, float]:
    """Probabilities by value, "more" and "none": every sequence of tokens; those of one length in one forward pass."""
    whole = rf"\d{{1,{digits}}}" if "," not in texts else r"(?:\d{1,4}|\d,\d{0,3})"
    begun = re.compile(rf"[ \n]{{0,2}}(?:-?|-?{whole}|-?(?:\d{{1,{digits}}})\.\d{{0,{decimals}}})")
    number = re.compile(r"-?(?:\d,\d{3}|\d+)(?:\.\d+)?")
    masses: dict[Any, float] = defaultdict(float)

    def settle(text: str, piece: str, mass: float) -> None:
        end = next(end for end in range(len(text + piece)) if not begun.fullmatch((text + piece)[: end + 1]))
        kept, following = (text + piece)[:end].strip(), (text + piece)[end]
        match = number.match(kept)
        if following.isdigit() and kept:
            masses["more"] += mass
        elif match is None:
            masses["none"] += mass
        else:
            masses[Decimal(match[0].replace(",", ""))] += mass

    rows = [(prompt, "", 1.0)]
    while rows:
        with torch.no_grad():
            chances = model(torch.tensor([ids for ids, _, _ in rows])).logits[:, -1].double().softmax(-1).tolist()
        longer = []
        for (ids, text, mass), after in zip(rows, chances, strict=True):
            for token, chance in enumerate(after):
                piece = "!" if token < 4 else texts[token - 4]  # words and the end end a number
                if begun.fullmatch(text + piece):
                    longer.append(([*ids, token], text + piece, mass * chance))
                else:
                    settle(text, piece, mass * chance)
        rows = longer
    return masses


def masses_of(found: NumberDistribution) -> dict[Any, float]:
    numbers = dict(zip(found.values, (found.probabilities * found.covered).tolist(), strict=True))
    return {**numbers, "more": found.more_digits, "none": found.no_number}


@pytest.mark.parametrize("name", TOKENS)
def test_equal_to_brute_force(name: str) -> None:
    texts, digits = TOKENS[name], LONG.get(name, 2)
    model = small(texts)
    grammar = NumberGrammar(digits=(1, digits), decimals=(0, 1), leading_zeros=True, negative_zero=True, thousands=None)
    found = distribution(model, INPUTS, Tokens(texts), grammar=grammar, width=None, covered=1.0)
    for ids, mask, one in zip(PROMPTS.tolist()[:2], INPUTS["attention_mask"].tolist(), found, strict=False):
        expected = brute_force(model, [i for i, real in zip(ids, mask, strict=True) if real], texts, digits, 1)
        assert math.fsum(expected.values()) == pytest.approx(1, abs=1e-9)
        got = masses_of(one)
        for key in expected.keys() | got.keys():
            assert got.get(key, 0.0) == pytest.approx(expected.get(key, 0.0), abs=1e-6), key
        assert (one.not_searched, one.drawn) == (0, 0)
        assert len(one.values) >= 9


def test_prompts_as_texts_in_any_batch() -> None:
    texts = TOKENS["one digit"]
    model, tokens, prompts = small(texts), Tokens(texts), ["xy", "xyyx", "yxx", "y"]
    seen: list[tuple[int, int]] = []
    batched = distribution(model, prompts, tokens, width=4, batch_size=3, progress=lambda *done: seen.append(done))
    assert seen == [(3, 4), (4, 4)]
    for one, other in zip(distribution(model, prompts, tokens, width=4, batch_size=1), batched, strict=True):
        assert one.values == other.values
        np.testing.assert_allclose(one.probabilities, other.probabilities, atol=1e-5)
    *_, together = distribution(model, prompts, tokens, width=2, seed=[5, 6, 7, 8])
    assert together.values == distribution(model, prompts[3:], tokens, width=2, seed=[8])[0].values
    assert len({distribution(model, prompts[:1], tokens, width=1, seed=[seed])[0].values for seed in range(10)}) > 1


def test_little_memory_gives_the_same() -> None:
    texts = TOKENS["one digit"]
    full = distribution(small(texts), INPUTS, Tokens(texts), width=8)
    searched: list[int] = []
    limits: dict[str, Any] = {"memory": 6000, "watch": lambda nodes, _: searched.append(len({node.prompt for node in nodes}))}
    parts = distribution(small(texts), INPUTS, Tokens(texts), width=8, **limits)
    assert max(searched) == 1  # there is no room for the rows of two prompts
    for one, other in zip(full, parts, strict=True):
        assert one.values == other.values
        np.testing.assert_allclose(one.probabilities, other.probabilities, atol=1e-6)


@settings(max_examples=15)
@given(width=st.integers(1, 40), covered=st.floats(0.5, 1.0), rest=st.sampled_from(["draw", "drop"]), seed=st.integers(0, 5))
def test_masses_add_up(width: int, covered: float, rest: Any, seed: int) -> None:
    texts = TOKENS["three digits"]
    found = distribution(small(texts, seed), INPUTS, Tokens(texts), width=width, covered=covered, rest=rest, seed=seed)
    for one in found:
        assert one.covered + one.more_digits + one.no_number + one.not_searched == pytest.approx(1, abs=1e-5)
        if rest == "draw":
            assert one.not_searched <= (1 - covered) + 1e-6
        else:
            assert one.drawn == 0


def test_temperature_divides_the_scores() -> None:
    texts = TOKENS["one digit"]
    model = small(texts)
    grammar = NumberGrammar(digits=1, decimals=0)
    with torch.no_grad():
        model.lm_head.weight.mul_(2.0)
    doubled = distribution(model, INPUTS, Tokens(texts), grammar=grammar, width=None, covered=1.0, temperature=2.0)
    with torch.no_grad():
        model.lm_head.weight.mul_(0.5)
    plain = distribution(model, INPUTS, Tokens(texts), grammar=grammar, width=None, covered=1.0)
    for one, other in zip(doubled, plain, strict=True):
        np.testing.assert_allclose(one.probabilities, other.probabilities, atol=1e-6)


def test_processors_of_generate_apply() -> None:
    texts = [*"0123456789", "-", "."]
    tokens = Tokens(texts)
    grammar = NumberGrammar(digits=(1, 2), decimals=0, lowest=3, highest=42)
    only = numbers_only(tokens, grammar, end_token_ids=3, prompt_length=PROMPTS.shape[1])
    found = distribution(small(texts), INPUTS, tokens, width=None, covered=1.0, logits_processor=[only])
    for one in found:
        assert one.covered == pytest.approx(1, abs=1e-6)
        assert one.values == tuple(map(Decimal, range(3, 43)))


def test_end_tokens_end_a_number_whatever_their_text() -> None:
    texts = TOKENS["one digit"]
    model, tokens = small(texts), Tokens(texts)
    seven = tokens.get_vocab()["7"]
    found = distribution(model, INPUTS, tokens, width=8, end_token_ids=[3, seven])
    assert all("7" not in str(value) for one in found for value in one.values)
    model.generation_config.eos_token_id = [3, seven]
    assert [one.values for one in distribution(model, INPUTS, tokens, width=8)] == [one.values for one in found]


class Fixed(LlamaForCausalLM):  # type: ignore[misc]
    """A model that gives every position the same scores."""

    def __init__(self, texts: list[str], scores: dict[int, float], others: float = 0.0) -> None:
        super().__init__(small(texts).config)
        self.row = torch.full((len(texts) + 4,), others)
        for token, score in scores.items():
            self.row[token] = score

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        outputs = super().forward(*args, **kwargs)
        outputs.logits = self.row.expand(outputs.logits.shape)
        return outputs


def test_no_number_at_all_is_an_error() -> None:
    texts = TOKENS["one digit"]
    model = Fixed(texts, {1: 0.0}, others=-math.inf)
    everything = lambda: distribution(model, INPUTS, Tokens(texts), width=None, covered=1)  # noqa: E731
    refused(ValueError, ["prompts[0]", "probability of 0", "grammar"], everything)
    refused(ValueError, ["prompts[0]", "16 prefixes", "larger width"], lambda: distribution(model, INPUTS, Tokens(texts)))


def test_a_number_that_hardly_occurs_has_a_distribution() -> None:
    texts = TOKENS["one digit"]
    (one, *_) = distribution(Fixed(texts, {1: 40.0, 5: 10.0}), INPUTS, Tokens(texts))
    assert one.mode == 1
    assert one.no_number == pytest.approx(1)
    assert 0 < one.covered < 1e-10


def test_nan_is_an_error() -> None:
    texts = TOKENS["one digit"]
    refused(ValueError, ["NaN", "bfloat16"], lambda: distribution(Fixed(texts, {5: math.nan}), INPUTS, Tokens(texts)))


def test_a_prompt_that_ends_within_a_number() -> None:
    texts = TOKENS["one digit"]
    inside = {"input_ids": torch.tensor([[1, 2], [1, 5]]), "attention_mask": torch.ones(2, 2, dtype=torch.long)}
    parts = ["prompts[1]", "within a number", "before the number"]
    refused(ValueError, parts, lambda: distribution(small(texts), inside, Tokens(texts)))


@pytest.mark.parametrize(
    ("change", "kind", "parts"),
    [
        ({"width": 0}, ValueError, ["width=0", "None"]),
        ({"rest": "drown"}, ValueError, ["rest='drown'", "draw"]),
        ({"temperature": 0.0}, ValueError, ["temperature=0"]),
        ({"batch_size": 0}, ValueError, ["batch_size=0"]),
        ({"grammar": "number"}, TypeError, ["grammar", "NumberGrammar"]),
        ({"prompts": 7}, TypeError, ["prompts is a int", "list of texts or chats"]),
        ({"prompts": {"attention_mask": torch.ones(1, 1)}}, ValueError, ["input_ids", "return_tensors"]),
        ({"prompts": [""]}, ValueError, ["prompts[0]", "no tokens"]),
        ({"tokenizer": Tokens(["a", "b"])}, ValueError, ["no token with which a number", "tokenizer"]),
        ({"tokenizer": Tokens([*"0123456789", *"abcdefgh", "11"])}, ValueError, ["token id", "belongs to the model"]),
    ],
)
def test_wrong_arguments(change: dict[str, Any], kind: type[Exception], parts: list[str]) -> None:
    texts = TOKENS["one digit"]
    arguments: dict[str, Any] = {"prompts": INPUTS, "tokenizer": Tokens(texts), **change}
    refused(kind, parts, lambda: distribution(small(texts), **arguments))


def test_no_prompts_no_distributions() -> None:
    texts = TOKENS["one digit"]
    assert distribution(small(texts), [], Tokens(texts)) == []
    empty: dict[str, Tensor] = {name: value[:0] for name, value in INPUTS.items()}
    assert distribution(small(texts), empty, Tokens(texts)) == []
