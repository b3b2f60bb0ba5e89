"""DecideNumbers in whole answers, with tokens of real tokenizers: it writes what enumerating all continuations says."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.decode.models import small_llama
from tests.decode.oracle import DECIMALS, DIGITS, Oracle, median, mode
from tests.decode.test_tokens import MADE, decoded, in_context, tokenizer

from numerate.decode import DecideNumbers, NumberGrammar

GRAMMAR = NumberGrammar(digits=(1, DIGITS), decimals=(0, DECIMALS), leading_zeros=True, negative_zero=True, thousands=False)
WANTED = ["a", " b", "4", "2", "42", " 4", "-", " -", ".", ".\n", " ", "\n", "  ", ","]


class Restricted:
    """A few tokens of a tokenizer, numbered anew, and their text by its own decoder. 0 ends a text."""

    eos_token_id = pad_token_id = 0
    all_special_ids = (0,)

    def __init__(self, name: str) -> None:
        self.name, texts = name, in_context(name)
        chosen = [next((i for i, text in texts.items() if text == wanted), None) for wanted in WANTED]
        self.ids = [-1, *(i for i in chosen if i is not None)]
        names = {i: token for token, i in tokenizer(name).get_vocab().items()}
        self.vocab = {"<end>": 0, **{names[i]: new for new, i in enumerate(self.ids) if new}}
        for attribute in ("backend_tokenizer", "sp_model"):
            if hasattr(tokenizer(name), attribute):
                setattr(self, attribute, getattr(tokenizer(name), attribute))

    def get_vocab(self) -> dict[Any, int]:
        return self.vocab

    def decode(self, ids: list[int]) -> str:
        return decoded(self.name, [[self.ids[i] for i in ids]])[0]


# One tokenizer for each kind of decoder; that texts are read as the tokenizer writes them is tested for all others.
CASES = [*((name, "median") for name in ("mistral", *MADE)), ("ByteLevel", "mode"), ("ByteFallback", "mode")]


@pytest.mark.parametrize(("name", "metric"), CASES)
def test_answers_are_those_of_the_oracle(name: str, metric: str) -> None:
    tokens = Restricted(name)
    method = DecideNumbers(tokens, metric, grammar=GRAMMAR, width=None, covered=1.0)
    marks = [i for i in tokens.vocab.values() if i and in_context(name)[tokens.ids[i]].strip() in ("", ".", ",")]
    numbers, several = 0, 0
    for seed in range(4):
        model = small_llama(len(tokens.vocab), end=0, layers=1, key_heads=2, spread=1.0, seed=seed).double()
        oracle = Oracle(model, tokens.decode, end=0)
        prompts = torch.tensor([[1, marks[0]], [marks[-1], 1]])
        output = model.generate(
            prompts,
            attention_mask=torch.ones_like(prompts),
            custom_generate=method,
            max_new_tokens=10,
            return_dict_in_generate=True,
        )
        for prompt, row, found in zip(prompts.tolist(), output.sequences.tolist(), output.distributions, strict=True):
            written, expected = oracle.write(prompt, median if metric == "median" else mode, 10)
            got = row[2 : 2 + len(written)]
            assert got == written
            several += len(expected) > 1
            for one, other in zip(found, expected, strict=True):
                numbers += 1
                masses = {
                    **dict(zip(one.values, (one.probabilities * one.covered).tolist(), strict=True)),
                    "more": one.more_digits,
                    "none": one.no_number,
                }
                for key in masses.keys() | other.masses.keys():
                    assert masses.get(key, 0.0) == pytest.approx(other.masses.get(key, 0.0), abs=5e-7), key
    assert numbers >= 3
    assert several
