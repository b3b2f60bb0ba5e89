r"""TokenTrie: the tokens of all answers of a distribution, and how likely each token is after those before it.

With the probability P(a) of each answer, and the answers whose tokens begin with the path c_1 .. c_t:

    q(k | c_1 .. c_t) = mass of the answers that begin with c_1 .. c_t k  /  mass of those that begin with c_1 .. c_t

The product of q along the tokens of an answer is its probability. So cross-entropy against q along a path that is drawn from
the distribution is an unbiased estimate of the cross-entropy between the distribution and the model's over whole answers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest

import numpy as np
import numpy.typing as npt

from numerate.distribution.exact import Floats, check_masses
from numerate.targets.answer_distribution import draw_index

Ints = npt.NDArray[np.int32]


@dataclass(frozen=True)
class SoftPath:
    """The tokens of one answer, and the distribution of the token at each of its positions, given those before it.

    Attributes:
        token_ids: T tokens.
        targets: for each of them, ``{token_id: probability}``, with the sum 1.
    """

    token_ids: list[int]
    targets: list[dict[int, float]]


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
        listed = [tuple(map(int, sequence)) for sequence in sequences]
        masses = check_masses("probabilities", probabilities, len(listed), "sequence")
        merged: dict[tuple[int, ...], float] = {}
        for tokens, mass in zip(listed, (masses / masses.sum()).tolist(), strict=True):
            if mass > 0:
                merged[tokens] = merged.get(tokens, 0.0) + mass
        # Sorted, so that the sequences that begin alike are neighbours, and one with which others begin is right before them.
        ordered = sorted(merged)
        for tokens, following in zip(ordered, [*ordered[1:], ()], strict=True):
            if following[: len(tokens)] == tokens:
                raise ValueError(
                    f"sequences holds {[*tokens]!r:.80}, with which another one begins, or which is empty: expected the token "
                    "that ends the answer as the last of each; append the end token, or what follows in the text."
                )
        longest = max(map(len, ordered))
        if min(map(min, ordered)) < 0 or max(map(max, ordered)) >= 1 << 31:
            raise ValueError("sequences holds a token id outside [0, 2^31): expected ids of the tokenizer.")
        if len(ordered) * longest > _MOST_TOKENS:
            raise ValueError(
                f"sequences has {len(ordered):,} answers of up to {longest:,} tokens: expected at most {_MOST_TOKENS:,} tokens "
                "together; use a narrower bell, or fewer values."
            )
        self.probabilities: Floats = np.array([merged[tokens] for tokens in ordered])  # [N]
        self._cumulative = self.probabilities.cumsum()
        columns = [*zip_longest(*ordered, fillvalue=-1)]
        self._tokens = np.array(columns, dtype=np.int32).T.copy()  # [N, longest]
        self._forks, self._options, self._shares, self._edges = self._branches()
        self._targets: dict[int, dict[int, float]] = {}

    def _branches(self) -> tuple[Ints, Ints, Floats, list[int]]:
        """Return the fork of each sequence at each place ``[N, longest]``, -1 where the token is certain; and all their options.

        The options of fork f are the tokens and probabilities ``edges[f]`` to ``edges[f + 1]``.
        """
        differs = np.ones_like(self._tokens, dtype=bool)  # [N, longest], whether the tokens up to a place are not those before
        np.logical_or.accumulate(self._tokens[1:] != self._tokens[:-1], axis=1, out=differs[1:])
        forks, edges = np.full(self._tokens.shape, -1, dtype=np.int32), [0]
        options, masses = [np.zeros(0, dtype=np.int32)], [np.zeros(0)]
        begun = np.arange(len(differs)) == 0  # [N], where sequences with the same tokens before the place begin
        for place, new in enumerate(differs.T):
            starts = np.flatnonzero(new)  # of the sequences with the same tokens up to the place
            groups = np.flatnonzero(begun[starts])
            if len(starts) > len(groups):
                counts = np.diff(groups, append=len(starts))
                forked = counts > 1
                forks[:, place] = np.where(forked, forked.cumsum() + len(edges) - 2, -1)[begun.cumsum() - 1]
                kept = np.repeat(forked, counts)
                options.append(self._tokens[starts[kept], place])
                masses.append(np.add.reduceat(self.probabilities, starts)[kept])
                edges += (counts[forked].cumsum() + edges[-1]).tolist()
            begun = new
        shares = np.concatenate(masses)
        starts, counts = np.array(edges[:-1], dtype=np.intp), np.diff(edges)
        for count in np.unique(counts):  # together, as the sum of each alone is slow
            of_fork = starts[counts == count, None] + np.arange(count)  # [F, count]
            shares[of_fork] /= shares[of_fork].sum(axis=1, keepdims=True)
        return forks.astype(np.min_scalar_type(-len(edges))), np.concatenate(options), shares, edges

    @property
    def sequences(self) -> tuple[tuple[int, ...], ...]:
        """Distinct and sorted; N of them."""
        return tuple(tuple(self._sequence(index)) for index in range(len(self)))

    def path(self, token_ids: Sequence[int]) -> SoftPath:
        """Return the targets along the tokens of one of the sequences; do not change them."""
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
        tokens = self._sequence(index)
        forks = zip(self._forks[index].tolist(), tokens, strict=False)
        return SoftPath(tokens, [{token: 1.0} if fork < 0 else self._target(fork) for fork, token in forks])

    def _target(self, fork: int) -> dict[int, float]:
        if (known := self._targets.get(fork)) is None:
            options = slice(self._edges[fork], self._edges[fork + 1])
            pairs = zip(self._options[options].tolist(), self._shares[options].tolist(), strict=True)
            known = self._targets[fork] = dict(pairs)
        return known

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
