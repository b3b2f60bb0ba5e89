"""NumericVocab: which tokens it takes for numbers, from every kind of tokenizer, and how it is kept."""

from __future__ import annotations

import json
import re
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from numerate import NumericVocab, SMMDLoss
from numerate.tokens import byte_alphabet

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

    def test_thebyte_alphabet_is_that_of_the_tokenizers(self):
        text = "".join(
            map(chr, [*range(0x800), *range(0x1000, 0xD000, 0x1000), 0xFFFD, 0x10000, 0x50000, 0x90000, 0xD0000, 0x10FFFF])
        )
        pieces = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(text)
        alphabet = byte_alphabet()
        assert bytes(alphabet[ord(character)] for piece, _ in pieces for character in piece) == text.encode()
        assert {chr(character) for character in alphabet} == set(pre_tokenizers.ByteLevel.alphabet())

    def test_a_label_finds_the_token_that_the_tokenizer_made(self):
        tokenizer = byte_level()
        vocab = NumericVocab.from_tokenizer(tokenizer)
        ids = tokenizer.encode("a 12 007x", add_special_tokens=False)
        index = vocab.index_of(torch.tensor(ids))
        assert [vocab.texts[i] for i in index.tolist() if i >= 0] == [" 12", "007"]

    def test_sentencepiece_pieces(self):
        vocab = NumericVocab.from_tokenizer(sentencepiece_like())
        assert vocab.texts == ("0", "1", " 1", "2", "3", "4", "5", "6", "7", "8", "9", " 42")
        assert len(vocab.minus_ids) == 2

    def test_bytes_are_no_numbers(self):
        tokenizer = sentencepiece_like()
        byte_of_one = tokenizer.convert_tokens_to_ids("<0x31>")
        assert NumericVocab.from_tokenizer(tokenizer).index_of(torch.tensor([byte_of_one])).tolist() == [-1]

    def test_whole_words(self):
        vocab = NumericVocab.from_tokenizer(word_level("the", "7", "42", "007", "1000000"))
        assert vocab.texts == ("7", "007", "42", "1000000")

    @pytest.mark.parametrize("text", [text for text in NOT_NUMBERS if text])
    def test_what_is_not_a_number(self, text: str):
        assert NumericVocab.from_tokenizer(word_level("7", text)).texts == ("7",)

    def test_added_tokens_are_read(self):
        tokenizer = word_level("7")
        tokenizer.add_tokens([AddedToken("100", normalized=False), AddedToken(" 200", normalized=False)])
        assert NumericVocab.from_tokenizer(tokenizer).texts == ("7", "100", " 200")

    def test_added_tokens_that_say_nothing_of_being_special_are_read(self):
        tokenizer = SimpleNamespace(get_vocab=lambda: {"7": 0, "8": 1}, added_tokens_decoder={1: "8"})
        assert NumericVocab.from_tokenizer(tokenizer).texts == ("7", "8")

    def test_an_added_token_means_what_it_says(self):
        tokenizer = word_level("7")
        tokenizer.add_tokens([AddedToken("Ġ8", normalized=False)])
        assert NumericVocab.from_tokenizer(tokenizer).texts == ("7",)

    def test_special_tokens_that_look_like_numbers_are_left_out(self):
        tokenizer = word_level("7", "99")
        tokenizer.add_special_tokens({"pad_token": "0", "eos_token": "99"})
        tokenizer.add_tokens([AddedToken("1", special=True)], special_tokens=True)
        assert NumericVocab.from_tokenizer(tokenizer).texts == ("7",)

    def test_plain_tokenizers_tokenizer(self):
        tokenizer = byte_level()
        assert NumericVocab.from_tokenizer(tokenizer.backend_tokenizer) == NumericVocab.from_tokenizer(tokenizer)

    def test_special_tokens_of_a_plain_tokenizers_tokenizer(self):
        backend = word_level("7").backend_tokenizer
        backend.add_special_tokens(["13"])
        assert NumericVocab.from_tokenizer(backend).texts == ("7",)

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

    def test_no_numeric_token(self):
        with pytest.raises(ValueError, match=r"tokenizer=\w+ of 3 tokens: no numeric token found.*from_values"):
            NumericVocab.from_tokenizer(word_level("one", "two"))

    def test_not_a_tokenizer(self):
        with pytest.raises(TypeError, match=r"tokenizer is a dict: expected a Hugging Face tokenizer.*from_texts"):
            NumericVocab.from_tokenizer({"7": 0})


class TestRestrict:
    vocab = NumericVocab.from_texts({text: i for i, text in enumerate(["0", "7", " 7", "07", "42", "999", "1000", "-", "."])}, 16)

    def test_canonical_only(self):
        assert self.vocab.restrict(canonical_only=True).texts == ("0", "7", "42", "999")

    def test_canonical_only_with_a_limit(self):
        assert self.vocab.restrict(canonical_only=True, max_value=1000).texts == ("0", "7", "42", "999", "1000")
        assert self.vocab.restrict(canonical_only=True, max_value=0).texts == ("0",)

    def test_digits_only(self):
        assert self.vocab.restrict(digits_only=True).texts == ("0", "7")

    def test_max_value(self):
        assert self.vocab.restrict(max_value=42).texts == ("0", "7", " 7", "07", "42")

    def test_nothing_asked_changes_nothing(self):
        assert self.vocab.restrict() == self.vocab

    def test_marks_stay(self):
        small = self.vocab.restrict(digits_only=True)
        assert (small.minus_ids, small.point_ids, small.vocab_size) == (self.vocab.minus_ids, self.vocab.point_ids, 16)

    def test_the_options_of_the_constructors(self):
        texts = {token.text: token.token_id for token in self.vocab.tokens}
        assert NumericVocab.from_texts(texts, 16, canonical_only=True).texts == ("0", "7", "42", "999")
        assert NumericVocab.from_tokenizer(byte_level(), digits_only=True).is_single_digits
        assert NumericVocab.from_tokenizer(byte_level(), max_value=9).values.max() == 9

    def test_nothing_left(self):
        with pytest.raises(ValueError, match=r"max_value=-1 keep none of the 7 numeric tokens.*Loosen"):
            self.vocab.restrict(max_value=-1)


class TestFromValues:
    def test_values_in_order_each_a_number_of_its_own(self):
        vocab = NumericVocab.from_values({5: 2.5, 3: -1, 4: 0.5}, vocab_size=8)
        assert vocab.values.tolist() == [-1, 0.5, 2.5]
        assert vocab.token_ids.tolist() == [3, 4, 5]
        assert not vocab.composes
        assert not vocab.is_single_digits

    def test_texts(self):
        vocab = NumericVocab.from_values({5: 1, 6: 2}, vocab_size=8, texts={5: "Jan"})
        assert vocab.texts == ("Jan", "2")

    @pytest.mark.parametrize("bad", [float("nan"), float("inf"), "many"])
    def test_values_must_be_finite(self, bad):
        with pytest.raises((TypeError, ValueError), match=r"values\[5\]"):
            NumericVocab.from_values({5: bad}, vocab_size=8)

    def test_empty(self):
        with pytest.raises(ValueError, match="values is empty"):
            NumericVocab.from_values({}, vocab_size=8)

    @pytest.mark.parametrize("token_id", [-1, 8])
    def test_an_id_outside_the_vocabulary(self, token_id: int):
        with pytest.raises(ValueError, match=r"vocab_size=8 does not hold token ids"):
            NumericVocab.from_values({token_id: 1.0}, vocab_size=8)


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

    def test_a_pattern_without_a_group(self, tokenizer):
        with pytest.raises(ValueError, match="has no group"):
            NumericVocab.from_pattern(tokenizer, r"<loc\d+>")

    def test_a_group_that_is_no_number(self, tokenizer):
        with pytest.raises(ValueError, match=r"takes 'loc' from token '<loc\d+>': expected a number"):
            NumericVocab.from_pattern(tokenizer, r"<([a-z]+)\d+>")


class TestFromTexts:
    @pytest.mark.parametrize("text", NOT_NUMBERS)
    def test_what_is_not_a_number(self, text: str):
        assert NumericVocab.from_texts({"7": 0, text: 1}, vocab_size=2).texts == ("7",)

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

    def test_index_of_wants_integers(self):
        with pytest.raises(TypeError, match=r"labels has dtype torch.float32"):
            NumericVocab.from_texts(DIGITS, vocab_size=10).index_of(torch.tensor([1.0]))


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
        assert torch.equal(again.flag_table, vocab.flag_table)
        assert again.tokens[0].text == vocab.tokens[0].text

    @vocabs
    def test_the_file_is_plain_json(self, vocab: NumericVocab, tmp_path):
        vocab.save(tmp_path / "vocab.json")
        assert json.loads((tmp_path / "vocab.json").read_text())["format"] == 2

    @pytest.mark.parametrize("text", ["[]", "{}", '{"format": 2}', '{"format": 1, "tokens": []}'])
    def test_another_file(self, text: str):
        with pytest.raises(ValueError, match="is not a NumericVocab of format 2.*from_tokenizer"):
            NumericVocab.from_json(text)

    def test_equal_and_hashable(self):
        one, same = (NumericVocab.from_texts(DIGITS, vocab_size=10) for _ in range(2))
        other = NumericVocab.from_texts(DIGITS, vocab_size=11)
        assert one == same
        assert one != other
        assert {one: 1}[same] == 1
        assert len({one, same, other}) == 2

    def test_frozen(self):
        with pytest.raises(AttributeError):
            NumericVocab.from_texts(DIGITS, vocab_size=10).vocab_size = 11  # type: ignore[misc]

    def test_repr(self):
        digits = NumericVocab.from_texts(DIGITS, vocab_size=10)
        assert repr(digits) == "NumericVocab(10 numeric tokens of 10: one digit wide, values 0..9; no point, minus or comma)"
        marked = NumericVocab.from_texts({"7": 0, " 7": 1, "07": 2, ",": 3, ".": 4}, vocab_size=5)
        assert repr(marked) == (
            "NumericVocab(3 numeric tokens of 5: 1-2 digits wide, values 7..7, 1 with leading zeros, 1 with a leading space; "
            "point '.', comma ',')"
        )
        wide = NumericVocab.from_texts({"42": 0}, vocab_size=1)
        assert "2 digits wide" in repr(wide)
        bins = NumericVocab.from_values({0: 0.25, 1: 0.5}, vocab_size=2)
        assert repr(bins) == "NumericVocab(2 numeric tokens of 2: each a number by itself, values 0.25..0.5)"

    def test_an_id_twice(self):
        vocab = NumericVocab.from_texts(DIGITS, vocab_size=10)
        with pytest.raises(ValueError, match="holds a token id twice"):
            NumericVocab(tokens=vocab.tokens * 2, vocab_size=10)

    def test_no_tokens(self):
        with pytest.raises(ValueError, match="tokens is empty"):
            NumericVocab(tokens=(), vocab_size=10)


def test_a_double_dash_is_no_sign():
    vocab = NumericVocab.from_texts({"5": 0, "--": 1, " --": 2, "=-": 3, "-": 4}, vocab_size=5)
    assert vocab.negating_ids == (3,)


def test_from_pattern_names_a_group_that_matched_nothing():
    with pytest.raises(ValueError, match="expected a number in its first group"):
        NumericVocab.from_pattern(word_level("<loc1>", "<loc>"), r"<loc(\d+)?>")
