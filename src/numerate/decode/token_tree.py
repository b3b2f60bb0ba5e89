r"""TokenTree: the effect of each token of a vocabulary on the text of a number: continue it, end it, or make it too long.

The texts of all tokens that can be part of an answer form one trie. At a prefix of an answer, the trie and the grammar are
traversed together, character by character:

    continues    all characters are allowed                            "12" + "3"
    ends         a character that is not part of the answer follows    "12" + "\n", "12" + ".\n", and any other token
    exceeds      a character of the answer follows that is forbidden   "12" + "3" with at most two digits

Prefixes in the same state share the result, so that it is computed only a few times per vocabulary. A state is that of the
grammar, which says what may follow, and where the answer ends if nothing does: ``5,`` may continue as ``7,`` does, yet 5 may be
an answer where 7 is out of range.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor

from numerate.checks import check_integer
from numerate.decode.grammar import Grammar
from numerate.tokens import known_texts
from numerate.vocab import NumericVocab

Effect = Literal["continues", "ends", "exceeds"]

WHITE_SPACE = "".join(character for character in map(chr, range(0x3001)) if character.isspace())
"""Characters that may precede a number: spaces, tabs, newlines, no-break spaces."""


@dataclass
class _Node:
    """A node of the trie: the ids of the tokens whose text ends here."""

    token_ids: list[int] = field(default_factory=list)
    children: dict[str, _Node] = field(default_factory=dict)

    def below(self) -> Iterator[int]:
        """Yield the ids of the tokens whose text ends here or later."""
        nodes = [self]
        while nodes:
            node = nodes.pop()
            yield from node.token_ids
            nodes += reversed(node.children.values())


@dataclass(frozen=True)
class Fork:
    """The effect of tokens after a prefix. A token in none of the lists ends the answer immediately."""

    token_ids: Tensor  # [C], tokens that continue the answer, sorted by text
    pieces: tuple[str, ...]  # the text of each of them
    states: tuple[Hashable, ...]  # the state after each of them; see ``fork``
    late_ids: Tensor  # [L], tokens that continue the answer and end it, such as ``5\n``; grouped by piece
    late_pieces: tuple[str, ...]  # the part of each that belongs to the answer
    late_cuts: tuple[int | None, ...]  # like ``cut``, for each of them
    exceeding_ids: Tensor  # [X], tokens that add more digits than allowed, or leave the range
    # Characters after the answer if the prefix ends here: 1 for ``12.``, where the point is a full stop; None if the prefix
    # contains no answer.
    cut: int | None

    @cached_property
    def ids(self) -> tuple[int, ...]:
        """``token_ids`` as Python integers."""
        return tuple(self.token_ids.tolist())

    @cached_property
    def late_groups(self) -> list[tuple[int, str, int | None]]:
        """The first of the late tokens with each piece, the piece, and its cut: ``.com`` and ``.get`` are one group."""
        pieces = self.late_pieces
        return [(i, pieces[i], self.late_cuts[i]) for i in range(len(pieces)) if not i or pieces[i] != pieces[i - 1]]


class TokenTree:
    """The tokens of a vocabulary that can be part of an answer."""

    def __init__(
        self,
        tokens: Iterable[tuple[str, int]],  # texts and ids, as ``token_texts`` returns them
        grammar: Grammar,
        *,
        end_token_ids: Iterable[int] = (),  # always end an answer, regardless of their text
        most_spaces: int = 2,  # white space characters before the answer
        spaces: str = WHITE_SPACE,
        looks_past: bool = True,  # whether to look past a space after the longest number for more digits
    ) -> None:
        self.grammar, self.most_spaces, self.spaces, self.looks_past = grammar, most_spaces, spaces, looks_past
        self._trie, self._forks = _Node(), dict[Hashable, Fork]()
        self._accepting: dict[Hashable, bool] = {}  # by the key of a text
        self._firsts = {*grammar.alphabet}
        ended = {*end_token_ids}
        self.texts = {token_id: text for text, token_id in tokens if token_id not in ended and self._can_belong(text)}
        longest = most_spaces + grammar.max_length + 2  # a longer token leaves the grammar before its end
        for token_id, text in self.texts.items():
            node = self._trie
            for character in text[:longest]:
                node = node.children.setdefault(character, _Node())
            node.token_ids.append(token_id)

    def state(self, text: str) -> Hashable | None:
        """Return a key, equal only for texts on which tokens have the same effect; None if no answer starts with ``text``."""
        key = self._key(text)
        return None if key is None else (key, self._cut(text))

    def _key(self, text: str) -> Hashable | None:
        """Return a key that is equal only for texts with the same continuations; None if no answer starts with ``text``."""
        answer = text.lstrip(self.spaces)
        if not answer:
            return None if len(text) > self.most_spaces else ("spaces", len(text))
        if len(text) - len(answer) > self.most_spaces:
            return None
        key, before = self.grammar.state(answer), answer[:-1]
        joined = key is None and self.looks_past and answer[-1] == self.grammar.joint and self.grammar.accepts(before)
        return "joined" if joined else key

    def fork(self, text: str, state: Hashable = None) -> Fork:
        """Return the effect of tokens after the prefix ``text``; ``state`` is that of the text, if known."""
        key = self.state(text) if state is None else state
        if key not in self._forks:
            self._forks[key] = self._walk(text)
        return self._forks[key]

    def split(self, text: str, token: str) -> tuple[str, Effect]:
        r"""Return the part of a token that belongs to the answer after ``text``, and the token's effect.

        Like :meth:`fork`, for the text of a single token, which need not be in the tree.

        Examples:
            >>> from numerate.decode import NumberGrammar
            >>> tree = TokenTree((), NumberGrammar(digits=2))
            >>> tree.split("1", "2"), tree.split("1", "2.\n"), tree.split("12", "3"), tree.split("", "It")
            (('2', 'continues'), ('2.', 'ends'), ('', 'exceeds'), ('', 'ends'))
        """
        if not self._can_belong(token):
            return "", "ends"
        for end, character in enumerate(token):
            if self._key(text + token[: end + 1]) is None:
                return token[:end], "exceeds" if self._exceeds(text + token[:end], character) else "ends"
        return token, "continues"

    def answer(self, text: str) -> str | None:
        """Return the answer if the text ends here: ``12`` for ``12.``, where the point is a full stop; None if there is none."""
        return self.grammar.complete(text.lstrip(self.spaces))

    def _can_belong(self, token: str) -> bool:
        """Whether a token can be part of an answer, or of the white space before it."""
        stripped = token.lstrip(self.spaces)
        return bool(token) and (not stripped or stripped[0] in self._firsts)

    def _exceeds(self, text: str, character: str) -> bool:
        """Whether a forbidden character after ``text`` would still belong to the answer."""
        return self.grammar.belongs(character) and bool(text.strip(self.spaces))

    def spelled(self, text: str) -> tuple[int, ...]:
        """Return a greedy longest-match tokenization of a text.

        Examples:
            >>> from numerate.decode.grammar import NumberGrammar
            >>> TokenTree([("1", 5), ("2", 6), ("12", 7)], NumberGrammar()).spelled("1212")
            (7, 7)
        """
        token_ids: list[int] = []
        while text:
            node, longest = self._trie, (0, 0)
            for end, character in enumerate(text, 1):
                if character not in node.children:
                    break
                node = node.children[character]
                if node.token_ids:
                    longest = end, node.token_ids[0]
            if not longest[0]:
                raise ValueError(f"text={text!r} has no token for its first character: expected one for each; use another rule.")
            token_ids.append(longest[1])
            text = text[longest[0] :]
        return tuple(token_ids)

    def _walk(self, text: str) -> Fork:
        going: list[tuple[str, int, Hashable]] = []
        late: list[tuple[str, int]] = []
        exceeding: list[int] = []
        cuts = {"": self._cut(text)}
        open_nodes = [(self._trie, "")]
        while open_nodes:
            node, piece = open_nodes.pop()
            for character, child in node.children.items():
                longer = piece + character
                if (key := self._key(text + longer)) is not None:
                    cut = cuts[piece]
                    if key not in self._accepting:
                        self._accepting[key] = self.grammar.accepts((text + longer).lstrip(self.spaces))
                    cuts[longer] = 0 if self._accepting[key] else None if cut is None else cut + 1
                    going += [(longer, token_id, (key, cuts[longer])) for token_id in child.token_ids]
                    open_nodes.append((child, longer))
                elif self._exceeds(text + piece, character):
                    exceeding += child.below()
                elif piece:
                    late += [(piece, token_id) for token_id in child.below()]
        going.sort(key=lambda found: found[:2])
        late.sort()
        return Fork(
            torch.tensor([token_id for _, token_id, _ in going], dtype=torch.long),
            tuple(piece for piece, _, _ in going),
            tuple(state for _, _, state in going),
            torch.tensor([token_id for _, token_id in late], dtype=torch.long),
            tuple(piece for piece, _ in late),
            tuple(cuts[piece] for piece, _ in late),
            torch.tensor(exceeding, dtype=torch.long),
            cuts[""],
        )

    def _cut(self, text: str) -> int | None:
        answer = self.answer(text)
        return None if answer is None else len(text.lstrip(self.spaces)) - len(answer)


def text_tokenizer(tokens: Any) -> Any:
    """Return the tokenizer of a processor; anything else as it is."""
    return tokens if hasattr(tokens, "get_vocab") else getattr(tokens, "tokenizer", tokens)


def token_texts(tokens: Any) -> Iterable[tuple[str, int]]:
    """Return the texts and ids of the tokens that are not special, as :func:`numerate.tokens.known_texts` reads them.

    ``tokens`` is a Hugging Face tokenizer, a processor that has one, a :class:`NumericVocab`, or ``{text: token_id}``.
    """
    tokens = text_tokenizer(tokens)
    if isinstance(tokens, NumericVocab):
        if not tokens.composes:
            raise ValueError(
                f"tokens={tokens!r}: expected digits that join into numbers; pass the tokenizer, or a vocabulary made by "
                "NumericVocab.from_tokenizer or from_texts."
            )
        spaces = ((" ", token_id) for token_id in tokens.space_ids)
        return [*((token.text, token.token_id) for token in tokens.tokens), *((text, i) for i, text in tokens.marks), *spaces]
    if isinstance(tokens, Mapping):
        return [(text, int(token_id)) for text, token_id in tokens.items()]
    return known_texts(tokens)


def end_ids(tokens: Any, end_token_ids: Any) -> tuple[int, ...]:
    """Return the ids of the end tokens: those given, or the tokenizer's ``eos_token_id``."""
    tokens = text_tokenizer(tokens)
    found = getattr(tokens, "eos_token_id", None) if end_token_ids is None else end_token_ids
    if isinstance(found, Tensor):
        found = found.tolist()
    try:
        listed = [*found] if isinstance(found, Iterable) else [found]
        ids = [check_integer("end_token_ids", i, "a token id", least=0) for i in listed]
    except ValueError:
        ids = []
    if not ids:
        raise ValueError(
            f"end_token_ids={end_token_ids!r} of tokens={type(tokens).__name__} names no end token: expected one token id or "
            "several; pass the model's generation_config.eos_token_id."
        )
    return tuple(dict.fromkeys(ids))
