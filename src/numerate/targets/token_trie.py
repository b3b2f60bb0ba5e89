r"""TokenTrie: the tokens of all answers of a distribution, and how likely each token is after those before it.

With the probability P(a) of each answer, and the answers whose tokens begin with the path c_1 .. c_t:

    q(k | c_1 .. c_t) = mass of the answers that begin with c_1 .. c_t k  /  mass of those that begin with c_1 .. c_t

The product of q along the tokens of an answer is its probability. So cross-entropy against q along a path that is drawn from
the distribution is an unbiased estimate of the cross-entropy between the distribution and the model's over whole answers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, compress
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from numerate.distribution.exact import Floats, check_masses
from numerate.targets.answer_distribution import draw_index
from numerate.targets.soft_targets import SOFT_FIELDS

Ints = npt.NDArray[np.int32]

Options = tuple[Ints, Floats]
"""Tokens that may follow, and the probability of each."""


class SoftPath(NamedTuple):
    """The tokens of one answer, and the distribution of the token at each of its positions, given those before it.

    Attributes:
        token_ids: T tokens.
        forks: the options at each position that has several, in ascending order; the other tokens are certain.
    """

    token_ids: list[int]
    forks: dict[int, Options]

    @property
    def targets(self) -> list[dict[int, float]]:
        """For each of the tokens, ``{token_id: probability}``, with the sum 1."""
        targets = [{token_id: 1.0} for token_id in self.token_ids]
        for place, (token_ids, shares) in self.forks.items():
            targets[place] = dict(zip(token_ids.tolist(), shares.tolist(), strict=True))
        return targets


def entries(forks: Mapping[int, Options]) -> dict[str, npt.NDArray[Any]]:
    """Return the options at some positions as the ``SOFT_FIELDS`` of a row."""
    if not forks:
        return dict(zip(SOFT_FIELDS, (np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int32), np.zeros(0)), strict=True))
    tokens, shares = zip(*forks.values(), strict=True)
    positions = np.array([*forks]).repeat([*map(len, tokens)])
    return dict(zip(SOFT_FIELDS, (positions, np.concatenate(tokens), np.concatenate(shares)), strict=True))


_MOST_TOKENS = 1 << 28  # a gigabyte


class TokenTrie:
    """The answers of a distribution as a tree of tokens.

    Args:
        sequences: the tokens of each answer, with the token that ends it. Equal ones are merged. No sequence may begin with
            all of another: without an end token ``1 2`` and ``1 2 3`` do not say how likely the answer is to end after ``1 2``.
        probabilities: one finite number >= 0 per sequence; they are normalised. Sequences of probability 0 are left out.

    Examples:
        >>> trie = TokenTrie([[9, 8, 0], [9, 9, 0], [1, 0, 0, 0]], [0.25, 0.25, 0.5])  # 98, 99 and 100, with the end token 0
        >>> trie.path([9, 9, 0]).targets
        [{1: 0.5, 9: 0.5}, {8: 0.5, 9: 0.5}, {0: 1.0}]
    """

    def __init__(self, sequences: Iterable[Sequence[int]], probabilities: npt.ArrayLike) -> None:
        given = [*sequences]
        masses = check_masses("probabilities", probabilities, len(given), "sequence")
        masses = masses / masses.sum()
        listed, masses = [*compress(given, masses > 0)], masses[masses > 0]
        lengths = np.array([*map(len, listed)])
        try:
            flat = np.fromiter(chain.from_iterable(listed), dtype=np.int64)
        except OverflowError:
            flat = np.full(1, -1, dtype=np.int64)
        if flat.min(initial=0) < 0 or flat.max(initial=0) >= 1 << 31:
            raise ValueError("sequences holds a token id outside [0, 2^31): expected ids of the tokenizer.")
        longest = lengths.max()
        if len(listed) * longest > _MOST_TOKENS:
            raise ValueError(
                f"sequences has {len(listed):,} answers of up to {longest:,} tokens: expected at most {_MOST_TOKENS:,} tokens "
                "together; use a narrower bell, or fewer values."
            )
        table = np.full((len(listed), longest), -1, dtype=np.int32)
        table[np.arange(longest) < lengths[:, None]] = flat
        # Sorted, so that the sequences that begin alike are neighbours, and one with which others begin is right before them.
        order = np.lexsort(table.T[::-1]) if longest else np.arange(len(listed))
        table = table[order]
        differs = table[1:] != table[:-1]  # [N - 1, longest]
        distinct = np.concatenate([[True], differs.any(axis=1)])
        first = differs[distinct[1:]].argmax(axis=1) if longest else np.zeros(0, dtype=np.intp)
        self._tokens = table[distinct]  # [N, longest]
        ended = np.flatnonzero(self._tokens[np.arange(len(first)), first] < 0)
        if lengths.min() == 0 or len(ended):
            tokens = [] if lengths.min() == 0 else self._sequence(ended[0])
            raise ValueError(
                f"sequences holds {tokens!r:.80}, with which another one begins, or which is empty: expected the token "
                "that ends the answer as the last of each; append the end token, or what follows in the text."
            )
        index = np.empty(len(listed), dtype=np.intp)
        index[order] = distinct.cumsum() - 1
        self.probabilities: Floats = np.bincount(index, masses).astype(np.float64, copy=False)  # [N]
        self._cumulative = self.probabilities.cumsum()
        self._forks, self._options, self._shares, self._edges = self._branches()

    def _branches(self) -> tuple[Ints, Ints, Floats, list[int]]:
        """Return the fork of each sequence at each place ``[N, longest]``, -1 where the token is certain; and all their options.

        The options of fork f are the tokens and probabilities ``edges[f]`` to ``edges[f + 1]``.
        """
        places, count = self._tokens.shape[::-1]
        begins = np.ones((places + 1, count), dtype=bool)  # tokens before a place are not those of the sequence before
        begins[0, 1:] = False
        np.logical_or.accumulate(self._tokens[1:].T != self._tokens[:-1].T, axis=0, out=begins[1:, 1:])
        starts = np.flatnonzero(begins[1:])  # of the sequences with the same tokens up to a place, place by place
        masses = np.add.reduceat(np.tile(self.probabilities, places), starts)
        groups = begins[:-1].ravel().cumsum() - 1  # of the sequences with the same tokens before a place
        counts = np.bincount(groups[starts])  # of the tokens that may follow
        forked = counts > 1
        forks = np.where(forked, forked.cumsum() - 1, -1)[groups].reshape(places, count).T
        kept, counts = forked[groups[starts]], counts[forked]
        options, shares, edges = self._tokens.T.ravel()[starts[kept]], masses[kept], [0, *counts.cumsum().tolist()]
        for size in np.unique(counts):  # together, as the sum of each alone is slow
            of_fork = np.array(edges[:-1])[counts == size, None] + np.arange(size)  # [F, size]
            shares[of_fork] /= shares[of_fork].sum(axis=1, keepdims=True)
        return np.ascontiguousarray(forks, dtype=np.min_scalar_type(-len(edges))), options, shares, edges

    @property
    def sequences(self) -> tuple[tuple[int, ...], ...]:
        """Distinct and sorted; N of them."""
        return tuple(tuple(self._sequence(index)) for index in range(len(self)))

    def path(self, token_ids: Sequence[int]) -> SoftPath:
        """Return the targets along the tokens of one of the sequences; do not change their arrays."""
        tokens, width = [*token_ids], self._tokens.shape[1]
        index = self._index(tokens)
        if index is None:
            same = (self._tokens == [*tokens, *[-1] * width][:width]).cumprod(axis=1).sum(axis=1)
            if (place := int(same.max(initial=0))) < len(tokens):
                raise ValueError(
                    f"token_ids={tokens!r:.80} leaves the sequences at position {place}: expected the tokens of one of the "
                    f"{len(self)} answers; a label must have a probability above 0 in its own distribution."
                )
            raise ValueError(
                f"token_ids={tokens!r:.80} ends before the answer does: expected all tokens of a sequence, with its end."
            )
        return self._path(index)

    def _path(self, index: int) -> SoftPath:
        options, shares, edges = self._options, self._shares, self._edges
        forks = {
            place: (options[(start := edges[fork]) : (stop := edges[fork + 1])], shares[start:stop])
            for place, fork in enumerate(self._forks[index].tolist())
            if fork >= 0
        }
        return SoftPath(self._sequence(index), forks)

    def _index(self, token_ids: Sequence[int]) -> int | None:
        """Return which of the sequences has these tokens."""
        width = self._tokens.shape[1]
        if not 0 < len(token_ids) <= width:
            return None
        found = np.flatnonzero((self._tokens == [*token_ids, *[-1] * (width - len(token_ids))]).all(axis=1))
        return int(found[0]) if len(found) else None

    def starts_with(self, token_ids: tuple[int, ...]) -> bool:
        """Return whether all sequences begin with these tokens."""
        return all(self._tokens[index, : len(token_ids)].tolist() == [*token_ids] for index in (0, -1))  # they are sorted

    def draw(self, rng: np.random.Generator) -> SoftPath:
        """Draw a sequence, and return it with the targets along it."""
        return self._path(draw_index(self._cumulative, rng))

    def __contains__(self, token_ids: Sequence[int]) -> bool:
        return self._index(token_ids) is not None

    def __len__(self) -> int:
        return len(self.probabilities)

    def _sequence(self, index: int) -> list[int]:
        tokens: list[int] = self._tokens[index].tolist()
        return tokens[: tokens.index(-1)] if tokens[-1] < 0 else tokens
