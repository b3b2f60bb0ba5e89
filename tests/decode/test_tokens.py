"""The texts of tokens: what the tokenizer itself writes for each, and the numbers that a search finds with them."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest
import sentencepiece
import torch
from tests.decode.models import small_llama
from tests.test_numbers import TOKENIZERS, Tekken
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from numerate import NumericVocab
from numerate.decode import NumberGrammar, distribution
from numerate.decode.token_tree import TokenTree, token_texts
from numerate.targets.windows import Encoder
from numerate.tokenizers import packaged_file

LETTERS = "abcdefghijklmnopqrstuvwxyzĠĊĉ"
PIECES = [*LETTERS, *"0123456789", *"-.,", "42", "▁4", "▁", "▁▁", "▁▁▁", "\t", "\n\n", "\u00a0"]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def _made(tokens: list[str], decoder: Any = None) -> PreTrainedTokenizerFast:
    backend = Tokenizer(models.WordLevel({token: i for i, token in enumerate(["<end>", *tokens])}, unk_token="<end>"))
    if decoder is not None:
        backend.decoder = decoder
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<end>")


def _with_added() -> PreTrainedTokenizerFast:
    """Like Gemma's: runs of spaces are added tokens, spelled with ▁."""
    made = _made([*PIECES, *BYTES], _byte_fallback())
    made.add_tokens([AddedToken("▁▁▁▁", normalized=False), AddedToken("\n\n\n", normalized=False)])
    return made


def _byte_fallback() -> Any:
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    return decoders.Sequence(steps)


def _with_model() -> Any:
    """A tokenizer in Python around a SentencePiece model, as many come with their own code."""
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(packaged_file("mistral")))
    vocab = {pieces.id_to_piece(i): i for i in range(pieces.get_piece_size())}
    return SimpleNamespace(
        get_vocab=lambda: vocab,
        sp_model=pieces,
        decode=lambda ids: pieces.decode([*ids]),
        all_special_ids=[i for i in range(len(vocab)) if pieces.is_control(i) or pieces.is_unknown(i)],
    )


BYTE_LEVEL = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "ĠĠ", "ĊĊ", "ĉĉ", "Âł", "Ġ4", "42"]  # Âł is a no-break space
MADE: dict[str, Callable[[], Any]] = {
    "ByteLevel": lambda: _made(BYTE_LEVEL, decoders.ByteLevel()),
    "Metaspace": lambda: _made(PIECES, decoders.Metaspace()),
    "ByteFallback": lambda: _made([*PIECES, *BYTES], _byte_fallback()),  # with Ġ and Ċ as letters, like Baichuan 2
    "ByteFallback, added": _with_added,
    "WordPiece": lambda: _made([*LETTERS, *"0123456789.-", *(f"##{digit}" for digit in range(10))], decoders.WordPiece()),
    "Fuse": lambda: _made([*LETTERS, *"0123456789.- \n\t", "  "], decoders.Fuse()),
    "SentencePiece": _with_model,
}
EVERY = {**TOKENIZERS, **MADE}
"""All real tokenizers of the tests, and one for each kind of decoder."""


@cache
def tokenizer(name: str) -> Any:
    return EVERY[name]()


@cache
def texts(name: str) -> dict[int, str]:
    return {token_id: text for text, token_id in token_texts(tokenizer(name))}


def decoded(name: str, rows: list[list[int]]) -> list[str]:
    """What the tokenizer makes of token ids."""
    it = tokenizer(name)
    if isinstance(it, Tekken):
        return [it.tekken.decode(row) for row in rows]
    if isinstance(it, SimpleNamespace):
        return [it.decode(row) for row in rows]
    return it.backend_tokenizer.decode_batch(rows, skip_special_tokens=False)


@cache
def letters(name: str) -> list[int]:
    """The tokens ``a`` and ``b``."""
    vocab = tokenizer(name).get_vocab()
    return [vocab.get(letter, vocab.get(letter.encode())) for letter in "ab"]


@cache
def in_context(name: str) -> dict[int, str]:
    """The text of each token between two letters, by the tokenizer alone."""
    ids, (first, last) = [*texts(name)], letters(name)
    end = len(decoded(name, [[first, last]])[0]) - 1
    assert decoded(name, [[first]]) == ["a"]
    return {i: text[1:-end] for i, text in zip(ids, decoded(name, [[first, i, last] for i in ids]), strict=True)}


@pytest.mark.parametrize("name", EVERY)
def test_texts_are_what_the_tokenizer_writes(name: str) -> None:
    assert texts(name) == in_context(name)
    whole = [i for i, text in texts(name).items() if "\ufffd" not in text]
    rows = [random.Random(seed).choices(whole, k=8) for seed in range(100)]
    for row, text in zip(rows, decoded(name, [[letters(name)[0], *row] for row in rows]), strict=True):
        assert text == "a" + "".join(map(texts(name).__getitem__, row))


@pytest.mark.parametrize("name", EVERY)
def test_soft_labels_read_the_same_texts(name: str) -> None:
    if not callable(tokenizer(name)):
        pytest.skip("cannot be called, so there are no soft labels")
    encoder = Encoder(tokenizer(name))
    texts = in_context(name)
    assert encoder.pieces(texts) == [*texts.values()]


class Following(LlamaForCausalLM):  # type: ignore[misc]
    """A model that is certain of one path of tokens for each first token of a prompt."""

    def __init__(self, vocab_size: int, paths: dict[int, list[int]]) -> None:
        super().__init__(small_llama(1, end=0, width=4).config)
        self.vocab_size, self.paths = vocab_size, paths

    def forward(self, input_ids: Tensor, *args: Any, **kwargs: Any) -> Any:
        outputs = super().forward(torch.zeros_like(input_ids), *args, **kwargs)
        outputs.logits = torch.full((*input_ids.shape, self.vocab_size), -30.0)
        for row, (first, *written) in enumerate(input_ids.tolist()):
            path = self.paths[first]
            if written == path[: len(written)] and len(written) < len(path):
                outputs.logits[row, -1, path[len(written)]] = 0.0
        return outputs


def found(name: str, paths: list[list[int]]) -> list[Any]:
    """The distributions of a model that writes each of these paths of tokens, and then a letter."""
    spelled = in_context(name)
    prompts = [i for i, text in spelled.items() if text.isascii() and text.strip().isalpha()][: len(paths)]
    model = Following(1 + max(spelled), {i: [*path, letters(name)[1]] for i, path in zip(prompts, paths, strict=True)})
    inputs = {"input_ids": torch.tensor(prompts)[:, None]}
    grammar = NumberGrammar(digits=(1, 2), decimals=(0, 1))
    return distribution(model, inputs, tokenizer(name), grammar=grammar, use_cache=False)


WHITE = {" ", "  ", "\n", "\n\n", "\t", "\u00a0"}
FEWEST = {"WordPiece": 0, "tiny": 1, "tiny-3": 1}  # kinds of white space that are tokens; of others at least three


@pytest.mark.parametrize("name", EVERY)
def test_a_number_is_found_after_white_space(name: str) -> None:
    """After each token that is a space, a newline, a tab, several of them, or a no-break space, and in a token with a space."""
    spelled = in_context(name)
    ids = {text: i for i, text in spelled.items()}
    starts = {i: text for i, text in spelled.items() if text in WHITE}
    assert len({*starts.values()}) >= FEWEST.get(name, 3)
    paths = [[i, ids["4"], ids["2"]] for i in starts] + [[i, ids["2"]] for i, text in spelled.items() if text == " 4"]
    assert paths
    for path, one in zip(paths, found(name, paths), strict=True):
        assert (one.mode, one.covered > 0.99) == (42, True), [spelled[i] for i in path]


@pytest.mark.parametrize("name", EVERY)
def test_every_token_of_a_digit_a_minus_and_a_point(name: str) -> None:
    """Bytes too: ``<0x34>`` is a 4."""
    spelled = in_context(name)
    tokens = {text: [i for i, other in spelled.items() if other.strip() == text] for text in "-4.2"}
    bytes_too = "<0x34>" in tokenizer(name).get_vocab()
    assert all(len(ids) >= 1 + bytes_too for ids in tokens.values())
    if name != "WordPiece":  # it puts spaces between them
        paths = [[min(ids, key=lambda i: (len(spelled[i]), sign * i)) for ids in tokens.values()] for sign in (1, -1)]
        for path, one in zip(paths, found(name, paths), strict=True):
            assert (str(one.mode), one.covered > 0.99) == ("-4.2", True), path


@pytest.mark.parametrize("name", ["mistral", *MADE])
def test_numbers_are_written_in_the_tokens_of_the_tokenizer(name: str) -> None:
    """Bytes are read, and not written where there is another token; and losses do not count a digit twice."""
    names = {i: token for token, i in tokenizer(name).get_vocab().items()}
    tree = TokenTree(token_texts(tokenizer(name)), NumberGrammar())
    ids = tree.spelled("".join(text for text in "-42.0" if text in in_context(name).values()))
    assert not {names[i] for i in ids} & {*BYTES}
    vocab = NumericVocab.from_tokenizer(tokenizer(name))
    assert not {names[i] for i in (*vocab.token_ids.tolist(), *vocab.minus_ids, *vocab.point_ids)} & {*BYTES}


def test_digits_that_are_bytes_alone() -> None:
    vocab = NumericVocab.from_tokenizer(_made(["a", "b", *BYTES], _byte_fallback()))
    assert vocab.texts == tuple("0123456789")
    assert len(vocab.minus_ids) == len(vocab.point_ids) == 1


def test_without_a_decoder_tokens_are_read_by_their_spelling() -> None:
    """Tokenizers without a decoder put spaces between tokens, which says nothing about digits that join."""
    for expected in (
        {"4": "4", "▁4": " 4", "▁▁4": "  4", "<0x0A>": "\n", "<0x34>": "4", "<0xE9>": "\ufffd", "▁": " ", "Ċ": "Ċ"},
        {"4": "4", "Ġ4": " 4", "ĠĠ": "  ", "Ġ": " ", "Ċ": "\n", "Ã©": "é"},
        {"4": "4", "Ġ4": " 4", "x": "x"},
    ):
        read = {i: text for text, i in token_texts(_made([*expected]))}
        assert [read[i] for i in sorted(read)] == [*expected.values()]
