"""The tokens of an answer in its text: a window around a number is written with each member of its distribution, and encoded.

What a tokenizer does to a number depends on the text beside it: a space may belong to the first digit's token, a minus may join
the sign before it. So members are encoded together with their neighbours, and a window is used only if it gives the row's own
tokens for the row's own number. If it does not (the row may have been encoded in parts), other windows are tried.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from numerate.targets.answer_distribution import AnswerDistribution
from numerate.targets.token_trie import TokenTrie
from numerate.tokens import known_texts

BARRIER = "\0"
"""Stands for a special token in the text of a row."""

_SIZES = (1, 2, 4, 8, 16, 32)  # neighbours on either side, in tokens
_ANCHOR = "\n"
_MOST_CACHED = 50_000  # of about 20 kB, for a bell of 501 values


class Pieces(dict[int, str]):
    """The text of each token; ``BARRIER`` for a special one."""

    def __missing__(self, token_id: int) -> str:
        return BARRIER


class Context(NamedTuple):
    """All that the paths through a window depend on; equal contexts share them."""

    key: str  # equal for equal distributions of the number
    tokens: tuple[int, ...]  # the row's own
    begin: int  # characters of the text at which the number begins
    end: int
    ender: int  # the token that follows
    kept: int  # tokens at the start that have to stay
    tail: int  # at the end


class Window(NamedTuple):
    """A stretch of a row, tokens ``start`` to ``stop``, that is replaced with the number in its tokens ``first`` to ``last``."""

    start: int
    stop: int
    first: int
    last: int
    context: Context
    lowest: int  # the window would be the same with other tokens before this one

    def moved(self, by: int) -> Window:
        """Return the window of a row that got longer before it."""
        return Window(self.start + by, self.stop + by, self.first + by, self.last + by, self.context, self.lowest + by)


class Encoder:
    """A tokenizer, the text of each token, and what was encoded before.

    Args:
        tokenizer: a Hugging Face tokenizer, or a processor that has one.
        targets: whether texts are targets of an encoder-decoder, which some tokenizers encode in another way than its inputs.
    """

    def __init__(self, tokenizer: Any, *, targets: bool = False) -> None:
        if not hasattr(tokenizer, "get_vocab"):
            tokenizer = getattr(tokenizer, "tokenizer", tokenizer)
        if not hasattr(tokenizer, "get_vocab") or not callable(tokenizer):
            raise TypeError(
                f"tokenizer is a {type(tokenizer).__name__}: expected a Hugging Face tokenizer, or a processor that has one."
            )
        self.tokenizer = tokenizer
        # Marian's has a SentencePiece model for each side. Others change special tokens alone, and need a language for that.
        self._as_targets = targets and hasattr(tokenizer, "spm_target")
        self._pieces = Pieces({token_id: text for text, token_id in known_texts(tokenizer)})
        self._known: dict[str, tuple[tuple[int, ...], str]] = {}
        self._tries: dict[Context, TokenTrie | None] = {}

    def pieces(self, token_ids: Iterable[int]) -> list[str]:
        """Return the text of each token; ``BARRIER`` for a special one."""
        return [*map(self._pieces.__getitem__, token_ids)]

    def text(self, token_ids: Iterable[int]) -> str:
        """Return the texts of tokens, joined."""
        return "".join(map(self._pieces.__getitem__, token_ids))

    def encode(self, texts: Sequence[str]) -> list[tuple[int, ...]]:
        """Return the tokens of each text, without special tokens."""
        call: Any = partial(self.tokenizer, add_special_tokens=False)
        encoded = call(text_target=[*texts]) if self._as_targets else call([*texts])
        return [tuple(map(int, ids)) for ids in encoded["input_ids"]]

    def window(
        self,
        ids: Sequence[int],
        tokens: tuple[int, int],
        offset: int,
        length: int,
        locked: Sequence[bool],
        answers: Callable[[], AnswerDistribution],
        key: str,
        end_token: int | None,
    ) -> tuple[Window, TokenTrie] | None:
        """Return a window in which every answer can stand for a number of a row, and the paths through it.

        Args:
            ids: the tokens of the row.
            tokens: the first and the last that hold characters of the number.
            offset: characters of the first that come before the number.
            length: of the number, in characters.
            locked: whether each token has to stay as it is.
            answers: returns what can stand in place of the number; called where that is not known yet.
            key: equal for equal ``answers``.
            end_token: what follows a number at the end of the row, if known.
        """
        first, last = tokens
        if True in locked[first : last + 1]:
            return None
        lowest = first
        for start, stop in self._bounds(ids, first, last + 1, locked):
            lowest = min(lowest, start)
            ender = ids[stop] if stop < len(ids) else end_token
            if ender is None:
                continue
            kept, after = first, last + 1
            while kept > start and not locked[kept - 1]:
                kept -= 1
            while after < stop and not locked[after]:
                after += 1
            begin = offset + len(self.text(ids[start:first]))
            context = Context(key, (*ids[start:stop],), begin, begin + length, ender, kept - start, stop - after)
            if context not in self._tries:
                trim(self._tries)
                self._tries[context] = self._made(context, answers())
            if (trie := self._tries[context]) is not None:
                return Window(start, stop, first, last, context, lowest), trie
        return None

    def trie(self, context: Context) -> TokenTrie | None:
        """Return the paths through a window that was found before; None if they were dropped since."""
        return self._tries.get(context)

    def _bounds(self, ids: Sequence[int], first: int, after: int, locked: Sequence[bool]) -> Iterator[tuple[int, int]]:
        """Yield windows around the tokens ``first`` to ``after``, from narrow to wide, without special tokens.

        Narrow windows are shared by more rows. Those without a neighbour, or only with free ones, are for rows encoded in parts.
        """
        tried = set()
        for neighbours in (True, False):
            for size in (*_SIZES, 256):
                stop, low = after, first
                while neighbours and stop < min(after + size, len(ids)) and self._pieces[ids[stop]] != BARRIER:
                    stop += 1
                while low > max(first - size, 0) and self._pieces[ids[low - 1]] != BARRIER:
                    low -= 1
                free = first
                while free > low and not locked[free - 1]:
                    free -= 1
                for start in (low, free, first):
                    if (start, stop) not in tried:
                        tried.add((start, stop))
                        yield start, stop

    def _made(self, context: Context, answers: AnswerDistribution) -> TokenTrie | None:
        """Return the paths of all answers through a window; None if the window does not fit."""
        own, kept, tail = context.tokens, context.kept, context.tail
        text = self.text(own)
        before, after = text[: context.begin], text[context.end :]
        for prefix, cut in ("", 0), ("", 1), (_ANCHOR, 0):
            if cut and not before.startswith(" "):
                continue  # a tokenizer that puts a space before every text puts one there itself
            if self._one(prefix, text, cut) != own:
                continue
            lead = self._lead(prefix)
            texts = [f"{before}{answer}{after}" for answer in answers.texts]
            encoded, spelled = zip(*self._encoded([f"{prefix}{whole[cut:]}" for whole in texts]), strict=True)
            members = [ids[len(lead) :] for ids in encoded] if lead else encoded
            start = self.text(lead)
            fits = (
                {ids[: len(lead)] for ids in encoded} == {lead}
                and [*spelled] == ([f"{start}{whole}" for whole in texts] if start else texts)
                and {ids[:kept] for ids in members} == {own[:kept]}
                and {ids[len(ids) - tail :] for ids in members} == {own[len(own) - tail :]}
                and min(map(len, members)) >= kept + tail
            )
            if fits:
                try:
                    return TokenTrie([(*ids, context.ender) for ids in members], answers.probabilities)
                except ValueError:  # what follows looks like more of the number
                    return None
        return None

    def _one(self, prefix: str, text: str, cut: int) -> tuple[int, ...] | None:
        lead = self._lead(prefix)
        encoded, _ = self._encoded([prefix + text[cut:]])[0]
        return encoded[len(lead) :] if encoded[: len(lead)] == lead else None

    def _lead(self, prefix: str) -> tuple[int, ...]:
        return self._encoded([prefix])[0][0] if prefix else ()

    def _encoded(self, texts: list[str]) -> list[tuple[tuple[int, ...], str]]:
        """Return the tokens of each text and what they spell, mostly those of texts before: bells of other labels overlap."""
        trim(self._known)
        if new := [text for text in texts if text not in self._known]:
            for text, ids in zip(new, self.encode(new), strict=True):
                spelled = self.text(ids)
                self._known[text] = ids, text if spelled == text else spelled
        return [*map(self._known.__getitem__, texts)]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_known": {}, "_tries": {}}  # a worker process starts with its own


def trim(cache: dict[Any, Any], most: int = _MOST_CACHED) -> None:
    """Drop the oldest half of a cache that is full."""
    if len(cache) >= most:
        for name in [*cache][: most // 2]:
            del cache[name]
