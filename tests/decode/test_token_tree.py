"""TokenTree: what each token does to an answer, by reading one token after the other; and reading vocabularies."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.decode.enumeration import small_format
from tests.decode.test_model import Tokens
from tests.samples import refused

from numerate.answers import clock_time
from numerate.decode import NumberGrammar, TextGrammar, format_grammar
from numerate.decode.grammar import ANY_NUMBER
from numerate.decode.token_tree import TokenTree, end_ids, token_texts
from numerate.formats import KINDS, NumberFormat

CHARACTERS = "017-., \nx_"
PIECES = ["".join(each) for size in (1, 2, 3) for each in itertools.product(CHARACTERS, repeat=size)]
GRAMMARS = [
    NumberGrammar(digits=(1, 2), decimals=(0, 1)),
    NumberGrammar(digits=(1, 4), thousands=None, lowest=-7, highest=1100),
    NumberGrammar(sign=False, digits=2, decimals=1, leading_zeros=True),
    TextGrammar("017_", clock_time, most=4),
]


@pytest.mark.parametrize("grammar", GRAMMARS)
@settings(max_examples=12)
@given(data=st.data())
def test_every_token_does_what_its_characters_do(grammar: Any, data: st.DataObject) -> None:
    """Along a random answer: all texts of three characters in one walk, and each by itself, character by character."""
    tree = TokenTree([(piece, place) for place, piece in enumerate(PIECES)], grammar, end_token_ids=[3])
    text = ""
    for _ in range(data.draw(st.integers(0, 4))):
        fork = tree.fork(text)
        if not fork.pieces:
            break
        text += data.draw(st.sampled_from(fork.pieces))
    fork = tree.fork(text)
    going = dict(zip(fork.ids, zip(fork.pieces, fork.states, strict=True), strict=True))
    late = dict(zip(fork.late_ids.tolist(), zip(fork.late_pieces, fork.late_cuts, strict=True), strict=True))
    assert [*fork.pieces] == sorted(fork.pieces)
    assert fork.cut == _cut(tree, text)
    for token_id, piece in enumerate(PIECES):
        length = next((end for end in range(len(piece)) if tree.state(text + piece[: end + 1]) is None), len(piece))
        listed = token_id in going, token_id in late, token_id in fork.exceeding_ids.tolist()
        if token_id == 3:  # ends an answer whatever its text
            assert not any(listed)
        elif piece.strip() and piece.strip()[0] not in grammar.alphabet:
            assert not any(listed)
            assert tree.split(text, piece) == ("", "ends")
        elif length == len(piece):
            assert listed == (True, False, False)
            assert going[token_id] == (piece, tree.state(text + piece))
            assert tree.split(text, piece) == (piece, "continues")
        elif grammar.belongs(piece[length]) and (text + piece[:length]).strip():
            assert listed == (False, False, True)
            assert tree.split(text, piece) == (piece[:length], "exceeds")
        else:
            assert tree.split(text, piece) == (piece[:length], "ends")
            assert listed == (False, length > 0, False)
            assert not length or late[token_id] == (piece[:length], _cut(tree, text + piece[:length]))


SHARED: dict[str, Any] = {
    "commas, from 5 on": NumberGrammar(digits=(1, 4), decimals=(0, 1), thousands=None, lowest=5),
    **{kind: format_grammar(small_format(kind), digits=(1, 2), decimals=(0, 1), lowest=-12, highest="51.5") for kind in KINDS},
}
SEVERAL = ["".join(each) for size in (1, 2) for each in itertools.product("015-., :x", repeat=size)]


@pytest.mark.parametrize("name", SHARED)
def test_prefixes_share_effects_only_where_they_are_the_same(name: str) -> None:
    """One tree for all prefixes, each reached by every token: after 5, ``5.`` ends as 5, and after 1, ``1.`` ends as nothing."""
    grammar = SHARED[name]
    tree = TokenTree([(piece, place) for place, piece in enumerate(SEVERAL)], grammar)
    open_texts, seen = [("", tree.state(""))], {""}
    while open_texts:
        text, state = open_texts.pop()
        fork = tree.fork(text, state)
        assert fork.cut == _cut(tree, text), text
        for piece, cut in zip(fork.late_pieces, fork.late_cuts, strict=True):
            assert cut == _cut(tree, text + piece), (text, piece)
        for piece, after in zip(fork.pieces, fork.states, strict=True):
            assert tree.fork(text + piece, after) is tree.fork(text + piece), (text, piece)
            if text + piece not in seen:
                seen.add(text + piece)
                open_texts.append((text + piece, after))
    assert len(seen) > 100


@pytest.mark.parametrize("kind", KINDS)
def test_numbers_of_any_kind_share_their_states(kind: str) -> None:
    """A walk of the vocabulary for each state: at most twice as many as for plain numbers, in however many forms."""
    counts = []
    for form in ("plain", kind):
        format = NumberFormat(form, 12, 6) if "padded" in form else NumberFormat(form)
        tree = TokenTree([(character, i) for i, character in enumerate("0123456789-., :")], format_grammar(format, ANY_NUMBER))
        random = np.random.default_rng(0)
        for _ in range(500):
            text, fork = "", tree.fork("")
            while fork.pieces and (fork.cut is None or random.random() < 0.85):
                chosen = int(random.integers(len(fork.pieces)))
                text += fork.pieces[chosen]
                fork = tree.fork(text, fork.states[chosen])
        counts.append(len(tree._forks))
    assert 15 < counts[1] <= 2 * counts[0]


def _cut(tree: TokenTree, text: str) -> int | None:
    answer = tree.answer(text)
    return None if answer is None else len(text.lstrip()) - len(answer)


class Vocabulary(Tokens):
    """A tokenizer with a length, whose texts are counted when they are read."""

    def __init__(self, texts: list[str]) -> None:
        super().__init__(texts)
        self.reads = 0

    def __len__(self) -> int:
        return len(self.texts)

    def get_vocab(self) -> dict[str, int]:
        self.reads += 1
        return super().get_vocab()


def test_texts_leave_out_special_tokens_and_are_read_again_only_where_tokens_were_added() -> None:
    tokens = Vocabulary(["1", "2"])
    texts = token_texts(tokens)
    assert {*texts} == {("x", 1), ("y", 2), ("1", 4), ("2", 5)}  # neither <pad> nor <end>
    reads = tokens.reads
    assert {*token_texts(tokens)} == {*texts} == {*token_texts(SimpleNamespace(tokenizer=tokens))}
    assert tokens.reads == reads
    tokens.texts.append("3")
    assert {*token_texts(tokens)} == {*texts, ("3", 6)}


@pytest.mark.parametrize("given_ids", [None, 3, [3], (3, 3), torch.tensor(3), torch.tensor([3])], ids=str)
def test_end_tokens_in_any_form(given_ids: Any) -> None:
    assert end_ids(Tokens(["1"]), given_ids) == end_ids(SimpleNamespace(tokenizer=Tokens(["1"])), given_ids) == (3,)
    assert end_ids(Tokens(["1"]), [5, 3, 5]) == (5, 3)


@pytest.mark.parametrize("given_ids", [[], -1, [3, -1], True, [3, True], 2.5, ["3"], [3, "4"]], ids=str)
def test_what_is_no_end_token(given_ids: Any) -> None:
    refused(ValueError, ["names no end token", "expected one token id or several"], lambda: end_ids(Tokens(["1"]), given_ids))
    refused(ValueError, ["names no end token"], lambda: end_ids({"1": 4}, None))
