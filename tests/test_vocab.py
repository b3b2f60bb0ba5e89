"""NumericVocab: which tokens it takes for numbers, from every kind of tokenizer, and how it is kept."""

from __future__ import annotations

import json
import re
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from numerate import NumericVocab, SMMDLoss

DIGITS = {str(d): d for d in range(10)}
NOT_NUMBERS = [
    *["1_0", "1e5", "inf", "nan", "0x1F", "1.5", "+5", "-5", "5%", "x1", "1x", ""],
    *["²", "½", "Ⅷ", "４２", "٣", "৩", "①", "𝟙"],  # digits, but not 0-9
    *["5 ", "  5", "\t5", "\n5", "\u00a05", "▁▁5", "ĠĠ5"],  # more than one plain leading space
]


def byte_level() -> PreTrainedTokenizerFast:
    """A byte-level BPE that joins digits, as GPT-2's does: spaced, with leading zeros, and with other scripts."""
    words = ["12", "123", "Ġ1", "Ġ12", "00", "007", "Ġ-", "(-", ")-", "Ù£", "Â²", "1e"]
    merges = [("Ġ", "1"), ("Ġ1", "2"), ("1", "2"), ("12", "3"), ("0", "0"), ("00", "7"), ("Ġ", "-"), ("(", "-"), (")", "-")]
    merges += [("Ù", "£"), ("Â", "²"), ("1", "e")]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE({token: i for i, token in enumerate(alphabet + words)}, merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=backend)


def sentencepiece_like() -> PreTrainedTokenizerFast:
    """A Unigram with ▁ for a space and bytes as ``<0x31>``."""
    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *DIGITS, "▁1", "▁42", "▁-", "-", ".", ",", "a"]
    backend = Tokenizer(models.Unigram([(piece, -float(i)) for i, piece in enumerate(pieces)], unk_id=0, byte_fallback=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>")


def word_level(*words: str) -> PreTrainedTokenizerFast:
    backend = Tokenizer(models.WordLevel({word: i for i, word in enumerate(("[UNK]", *words))}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]")


def state(tokenizer: PreTrainedTokenizerFast) -> tuple[object, ...]:
    return tokenizer.get_vocab(), len(tokenizer), tokenizer.backend_tokenizer.to_str(), list(tokenizer.added_tokens_decoder)


class TestFromTokenizer:
    def test_byte_level_bpe(self):
        tokenizer = byte_level()
        vocab = NumericVocab.from_tokenizer(tokenizer)
        assert vocab.texts == ("0", "00", "1", " 1", "2", "3", "4", "5", "6", "7", "007", "8", "9", "12", " 12", "123")
        assert vocab.values.tolist() == [0, 0, 1, 1, 2, 3, 4, 5, 6, 7, 7, 8, 9, 12, 12, 123]
        assert vocab.widths.tolist() == [1, 2, 1, 1, 1, 1, 1, 1, 1, 1, 3, 1, 1, 2, 2, 3]
        ids = tokenizer.convert_tokens_to_ids
        assert vocab.minus_ids == tuple(sorted([ids("-"), ids("Ġ-")]))
        assert vocab.negating_ids == (ids("(-"),)  # not ")-", where the minus follows a closing bracket
        assert vocab.point_ids == (ids("."),)
        assert vocab.comma_ids == (ids(","),)

    def test_sentencepiece_pieces(self):
        vocab = NumericVocab.from_tokenizer(sentencepiece_like())
        assert vocab.texts == ("0", "1", " 1", "2", "3", "4", "5", "6", "7", "8", "9", " 42")
        assert len(vocab.minus_ids) == 2
        byte_of_one = sentencepiece_like().convert_tokens_to_ids("<0x31>")
        assert vocab.index_of(torch.tensor([byte_of_one])).tolist() == [-1]

    @pytest.mark.parametrize("text", [text for text in NOT_NUMBERS if text])
    def test_what_is_not_a_number(self, text: str):
        assert NumericVocab.from_tokenizer(word_level("7", text)).texts == ("7",)

    def test_added_tokens_are_read(self):
        tokenizer = word_level("7")
        tokenizer.add_tokens([AddedToken(text, normalized=False) for text in ("100", " 200", "Ġ8")])  # as they are written
        assert NumericVocab.from_tokenizer(tokenizer).texts == ("7", "100", " 200")
        silent = SimpleNamespace(get_vocab=lambda: {"7": 0, "8": 1}, added_tokens_decoder={1: "8"})  # special or not
        assert NumericVocab.from_tokenizer(silent).texts == ("7", "8")

    def test_special_tokens_that_look_like_numbers_are_left_out(self):
        tokenizer = word_level("7", "99")
        tokenizer.add_special_tokens({"pad_token": "0", "eos_token": "99"})
        tokenizer.add_tokens([AddedToken("1", special=True)], special_tokens=True)
        assert NumericVocab.from_tokenizer(tokenizer).texts == ("7",)
        backend = word_level("7").backend_tokenizer
        backend.add_special_tokens(["13"])
        assert NumericVocab.from_tokenizer(backend).texts == ("7",)

    def test_plain_tokenizers_tokenizer(self):
        tokenizer = byte_level()
        assert NumericVocab.from_tokenizer(tokenizer.backend_tokenizer) == NumericVocab.from_tokenizer(tokenizer)

    @pytest.mark.parametrize("make", [byte_level, sentencepiece_like, lambda: word_level("7", "8")])
    def test_the_tokenizer_stays_as_it_is(self, make):
        tokenizer = make()
        before = state(tokenizer)
        SMMDLoss(NumericVocab.from_tokenizer(tokenizer))
        NumericVocab.from_pattern(tokenizer, r"([0-9])")
        assert state(tokenizer) == before

    def test_vocab_size_counts_gaps_in_the_ids(self):
        backend = Tokenizer(models.WordLevel({"[UNK]": 0, "7": 9}, unk_token="[UNK]"))
        assert NumericVocab.from_tokenizer(backend).vocab_size == 10
        assert NumericVocab.from_tokenizer(backend, vocab_size=64).vocab_size == 64

    def test_tokens_as_bytes(self):
        class Bytes:
            def get_vocab(self):
                return {b"7": 0, b"\xff": 1, b" 8": 2}

        assert NumericVocab.from_tokenizer(Bytes()).texts == ("7", " 8")

    def test_not_a_tokenizer(self):
        with pytest.raises(TypeError, match=r"tokenizer is a dict: expected a Hugging Face tokenizer.*from_texts"):
            NumericVocab.from_tokenizer({"7": 0})


class TestRestrict:
    vocab = NumericVocab.from_texts({text: i for i, text in enumerate(["0", "7", " 7", "07", "42", "999", "1000", "-", "."])}, 16)

    @pytest.mark.parametrize(
        ("options", "texts"),
        [
            ({}, ("0", "7", " 7", "07", "42", "999", "1000")),
            ({"canonical_only": True}, ("0", "7", "42", "999")),
            ({"canonical_only": True, "max_value": 1000}, ("0", "7", "42", "999", "1000")),
            ({"canonical_only": True, "max_value": 0}, ("0",)),
            ({"digits_only": True}, ("0", "7")),
            ({"max_value": 42}, ("0", "7", " 7", "07", "42")),
        ],
    )
    def test_options(self, options: dict[str, Any], texts: tuple[str, ...]):
        small = self.vocab.restrict(**options)
        assert small.texts == texts
        assert (small.minus_ids, small.point_ids, small.vocab_size) == (self.vocab.minus_ids, self.vocab.point_ids, 16)

    def test_the_options_of_the_constructors(self):
        texts = {token.text: token.token_id for token in self.vocab.tokens}
        assert NumericVocab.from_texts(texts, 16, canonical_only=True).texts == ("0", "7", "42", "999")
        assert NumericVocab.from_tokenizer(byte_level(), digits_only=True).is_single_digits
        assert NumericVocab.from_tokenizer(byte_level(), max_value=9).values.max() == 9


class TestFromValues:
    def test_values_in_order_each_a_number_of_its_own(self):
        vocab = NumericVocab.from_values({5: 2.5, 3: -1, 4: 0.5}, vocab_size=8, texts={5: "Jan"})
        assert vocab.texts == ("-1", "0.5", "Jan")
        assert vocab.values.tolist() == [-1, 0.5, 2.5]
        assert vocab.token_ids.tolist() == [3, 4, 5]
        assert not vocab.composes
        assert not vocab.is_single_digits


class TestFromPattern:
    @pytest.fixture
    def tokenizer(self) -> PreTrainedTokenizerFast:
        tokenizer = word_level("7")
        tokenizer.add_tokens([AddedToken(f"<loc{i:04d}>", special=True) for i in range(1024)], special_tokens=True)
        return tokenizer

    def test_location_tokens(self, tokenizer):
        vocab = NumericVocab.from_pattern(tokenizer, r"<loc(\d+)>")
        assert len(vocab) == vocab.size == 1024
        assert vocab.values.tolist() == list(range(1024))
        assert vocab.texts[7] == "<loc0007>"
        assert vocab.token_ids[7] == tokenizer.convert_tokens_to_ids("<loc0007>")
        assert vocab.vocab_size == len(tokenizer)
        assert not vocab.composes

    def test_the_whole_token_must_match(self, tokenizer):
        assert NumericVocab.from_pattern(tokenizer, r"<loc(000\d)>").size == 10
        with pytest.raises(ValueError, match="matches none of the 1026 tokens"):
            NumericVocab.from_pattern(tokenizer, r"loc(\d+)")


class TestFromTexts:
    @given(st.text(max_size=6) | st.text("0123456789 _-+.e²４", max_size=6))
    def test_a_number_is_ascii_digits_after_at_most_one_space(self, text: str):
        vocab = NumericVocab.from_texts({"sentinel": 0, "7": 1, text: 2}, vocab_size=3)
        expected = re.fullmatch("[0-9]+", text.removeprefix(" ")) is not None
        assert (2 in vocab.token_ids.tolist()) == expected
        if expected:
            assert vocab.values[vocab.index_of(torch.tensor([2]))].item() == int(text)

    @given(st.dictionaries(st.integers(0, 99999).map(str), st.integers(0, 499), min_size=1, max_size=30))
    def test_index_and_id_are_inverse(self, texts: dict[str, int]):
        texts = {text: i for i, text in enumerate(texts)}
        vocab = NumericVocab.from_texts(texts, vocab_size=500)
        assert vocab.index_of(vocab.token_ids).tolist() == list(range(vocab.size))
        assert vocab.values.tolist() == sorted(vocab.values.tolist())
        assert (vocab.index_table >= 0).sum() == vocab.size

    def test_index_of_ids_outside(self):
        vocab = NumericVocab.from_texts(DIGITS, vocab_size=10)
        assert vocab.index_of(torch.tensor([[-100, 3], [10, 9]])).tolist() == [[-1, 3], [-1, 9]]


class TestKeeping:
    vocabs = pytest.mark.parametrize(
        "vocab",
        [
            NumericVocab.from_texts(
                {**DIGITS, " 7": 10, "007": 11, "-": 12, " -": 13, "(-": 14, ".": 15, ",": 16}, vocab_size=20
            ),
            NumericVocab.from_values({3: -1.5, 4: 1e300}, vocab_size=8, texts={3: "«low»"}),
        ],
        ids=["digits", "values"],
    )

    @vocabs
    def test_round_trip(self, vocab: NumericVocab, tmp_path):
        vocab.save(tmp_path / "vocab.json")
        again = NumericVocab.load(tmp_path / "vocab.json")
        assert again == vocab
        assert hash(again) == hash(vocab)
        assert json.loads((tmp_path / "vocab.json").read_text())["format"] == 3
        assert torch.equal(again.flag_table, vocab.flag_table)
        assert again.tokens[0].text == vocab.tokens[0].text

    def test_repr(self):
        digits = NumericVocab.from_texts(DIGITS, vocab_size=10)
        assert digits != NumericVocab.from_texts(DIGITS, vocab_size=11)
        assert repr(digits) == "NumericVocab(10 numeric tokens of 10: one digit wide, values 0..9; no point, minus or comma)"
        marked = NumericVocab.from_texts({"7": 0, " 7": 1, "07": 2, ",": 3, ".": 4}, vocab_size=5)
        assert repr(marked) == (
            "NumericVocab(3 numeric tokens of 5: 1-2 digits wide, values 7..7, 1 with leading zeros, 1 with a leading space; "
            "point '.', comma ',')"
        )
        wide = NumericVocab.from_texts({"42": 0}, vocab_size=1)
        assert "2 digits wide" in repr(wide)
        bins = NumericVocab.from_values({0: 0.25, 1: 0.5}, vocab_size=2)
        assert repr(bins) == "NumericVocab(2 numeric tokens of 2: one number per token, values 0.25..0.5)"


def test_a_double_dash_is_no_sign():
    vocab = NumericVocab.from_texts({"5": 0, "--": 1, " --": 2, "=-": 3, "-": 4}, vocab_size=5)
    assert vocab.negating_ids == (3,)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: NumericVocab.from_tokenizer(word_level("one", "two")), r"\w+ of 3 tokens: no numeric token found.*from_values"),
        (lambda: TestRestrict.vocab.restrict(max_value=-1), "max_value=-1 keep none of the 7 numeric tokens.*Relax"),
        *((lambda bad=bad: NumericVocab.from_values({5: bad}, 8), r"values\[5\]") for bad in (float("nan"), "many")),
        (lambda: NumericVocab.from_values({}, vocab_size=8), "values is empty"),
        *((lambda bad=bad: NumericVocab.from_values({bad: 1.0}, 8), "vocab_size=8 does not cover token ids") for bad in (-1, 8)),
        (lambda: NumericVocab.from_pattern(word_level("<loc1>"), r"<loc\d+>"), "has no group"),
        (lambda: NumericVocab.from_pattern(word_level("<loc1>"), r"<([a-z]+)\d+>"), "takes 'loc' from .*: expected a number"),
        (lambda: NumericVocab.from_pattern(word_level("<loc>"), r"<loc(\d+)?>"), "expected a number in its first group"),
        (lambda: NumericVocab.from_texts(DIGITS, 10).index_of(torch.tensor([1.0])), "labels has dtype torch.float32"),
        (lambda: NumericVocab(NumericVocab.from_texts(DIGITS, 10).tokens * 2, 10), "contains a duplicate token id"),
        (lambda: NumericVocab(tokens=(), vocab_size=10), "tokens is empty"),
    ],
)
def test_what_is_refused(call: Any, message: str):
    with pytest.raises((TypeError, ValueError), match=message):
        call()
