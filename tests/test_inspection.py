"""What a tokenizer does to numbers, on real tokenizers and on small ones with a known habit."""

from __future__ import annotations

import pytest
from tests.samples import real_tokenizer
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from numerate import LOSSES, NumericVocab
from numerate.inspection import inspect_tokenizer, loss_advice, number_style, read_text, vocab_facts


def chunked(pattern: str) -> PreTrainedTokenizerFast:
    """Splits digits by a pattern; knows every number below 1000, with leading zeros."""
    numbers = [f"{n:0{width}d}" for width in (1, 2, 3) for n in range(10**width)]
    words = ["[UNK]", "The", "answer", "is", "in", "all", ".", ",", "-", *numbers]
    backend = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    split = pre_tokenizers.Split(Regex(pattern), "isolated")
    backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation(), split])
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]")


class TestStyle:
    @pytest.mark.parametrize(
        ("pattern", "style"),
        [
            (r"\d", "one digit per token"),
            (r"\d{1,3}", "chunks of 1-3 digits, left to right"),
            (r"\d{1,2}", "chunks of 1-2 digits, left to right"),
            (r"\d{1,3}(?=(\d{3})*$)", "chunks of 1-3 digits, right to left"),
            (r"1\d|\d{1,3}", "irregular: no fixed rule for splitting numbers"),
            (r"\d{7}", "irregular: no fixed rule for splitting numbers"),  # most numbers are unknown words
        ],
    )
    def test_known_habits(self, pattern: str, style: str):
        tokenizer = chunked(pattern)
        assert number_style(tokenizer, NumericVocab.from_tokenizer(tokenizer)) == style


class TestReadings:
    tokenizer = chunked(r"\d{1,3}")
    vocab = NumericVocab.from_tokenizer(tokenizer)

    def test_tokens_places_and_numbers(self):
        reading = read_text(self.tokenizer, self.vocab, "12345.678")
        assert reading.tokens == ("123", "45", ".", "678")
        assert reading.exponents == (2, 0, None, -3)
        assert reading.numbers == (12345.678,)

    def test_thousands_are_shown_where_they_differ(self):
        inspection = inspect_tokenizer(self.tokenizer, ["1,000", "-7"])
        assert [(one.text, one.thousands, one.numbers) for one in inspection.readings] == [
            ("1,000", False, (1.0, 0.0)),
            ("1,000", True, (1000.0,)),
            ("-7", False, (-7.0,)),
        ]

    @pytest.mark.parametrize("name", ["deepseek", "mistral"])
    def test_spaces_are_shown(self, name: str):
        tokenizer = real_tokenizer(name)
        reading = read_text(tokenizer, NumericVocab.from_tokenizer(tokenizer), "is -7")
        assert reading.tokens[-2:] == ("␣-", "7")

    def test_marks_of_several_bytes_are_shown_as_text(self):
        tokenizer = real_tokenizer("deepseek")
        vocab = NumericVocab.from_tokenizer(tokenizer)
        assert read_text(tokenizer, vocab, "−7").tokens == ("−", "7")
        assert "−" in vocab_facts(vocab)["minus"]


class TestFacts:
    def test_counts_and_examples(self):
        tokenizer = chunked(r"\d{1,3}")
        facts = vocab_facts(NumericVocab.from_tokenizer(tokenizer))
        assert facts["numeric tokens"] == "1,110 of 1,119"
        assert facts["digits per token"] == "1 (10 tokens), 2 (100 tokens), 3 (1,000 tokens)"
        assert facts["values"] == "0 to 999"
        assert facts["leading zeros"] == "110: 00  000  01  001  02  .."
        assert facts["leading space"] == "none"
        assert (facts["point"], facts["minus"], facts["comma"]) == ("1: .", "1: -", "1: ,")


class TestAdvice:
    def test_every_loss_is_there_the_best_first(self):
        advice = loss_advice(NumericVocab.from_texts({str(n): n for n in range(1000)}, vocab_size=1000))
        assert {one.loss for one in advice} == set(LOSSES)
        ranks = [("good", "fair", "poor").index(one.suitability) for one in advice]
        assert ranks == sorted(ranks)
        assert len(set(ranks)) == 3

    def test_level_is_that_of_the_loss_as_built(self):
        advice = {one.loss: one.level for one in loss_advice(NumericVocab.from_texts({"7": 0, "8": 1}, vocab_size=2))}
        assert (advice["ntl_number"], advice["ntl_was"]) == ("number", "token")
