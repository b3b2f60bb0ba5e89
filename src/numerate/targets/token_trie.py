r"""TokenTrie: the tokens of all answers of a distribution, and how likely each token is after those before it.

With the probability P(a) of each answer, and the answers whose tokens begin with the path c_1 .. c_t:

    q(k | c_1 .. c_t) = mass of the answers that begin with c_1 .. c_t k  /  mass of those that begin with c_1 .. c_t

The product of q along the tokens of an answer is its probability. So cross-entropy against q along a path that is drawn from
the distribution is an unbiased estimate of the cross-entropy between the distribution and the model's over whole answers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise, zip_longest

import numpy as np
import numpy.typing as npt

from numerate.distribution.exact import Floats, check_masses
from numerate.targets.answer_distribution import draw_index


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

_Branches = tuple[dict[int, float], dict[int, tuple[int, int]]]  # probability of each token; first and stop of its sequences


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
        self._known: dict[tuple[int, int, int], _Branches] = {}
        self.probabilities: Floats = np.array([merged[tokens] for tokens in ordered])  # [N]
        self._cumulative = self.probabilities.cumsum()
        columns = [*zip_longest(*ordered, fillvalue=-1)]
        self._tokens = np.array(columns, dtype=np.int32).T  # [N, longest], by columns; small in a cache

    @property
    def sequences(self) -> tuple[tuple[int, ...], ...]:
        """Distinct and sorted; N of them."""
        return tuple(map(self._sequence, range(len(self))))

    def path(self, token_ids: Sequence[int]) -> SoftPath:
        """Return the targets along the tokens of one of the sequences; do not change them."""
        first, stop, targets = 0, len(self), []
        for place, token_id in enumerate(token_ids):
            if stop - first == 1 and self._sequence(first)[place:] == (rest := (*token_ids[place:],)):
                return SoftPath([*token_ids], [*targets, *({token_id: 1.0} for token_id in rest)])
            target, ranges = self._branches(first, stop, place)
            if token_id not in ranges:
                raise ValueError(
                    f"token_ids={[*token_ids]!r:.80} leaves the sequences at position {place}: expected the tokens of one of the "
                    f"{len(self)} answers; a label must have a probability above 0 in its own distribution."
                )
            targets.append(target)
            first, stop = ranges[token_id]
        if stop - first > 1 or self._sequence(first) != tuple(token_ids):
            raise ValueError(
                f"token_ids={[*token_ids]!r:.80} ends before the answer does: expected all tokens of a sequence, with its end."
            )
        return SoftPath([*token_ids], targets)

    def _branches(self, first: int, stop: int, place: int) -> _Branches:
        """Return the probability of each token after a common prefix, and the sequences that continue with it."""
        if stop - first == 1:  # not worth keeping; the sequence may have ended, as none of several has
            token = int(self._tokens[first, place]) if place < self._tokens.shape[1] else -1
            return ({token: 1.0}, {token: (first, stop)}) if token >= 0 else ({}, {})
        key = (first, stop, place)
        if (known := self._known.get(key)) is None:
            column = self._tokens[first:stop, place]
            starts = [0, *((column[1:] != column[:-1]).nonzero()[0] + 1).tolist()]
            sums = np.add.reduceat(self.probabilities[first:stop], starts)
            tokens, edges = column[starts].tolist(), [*(first + start for start in starts), stop]
            target = dict(zip(tokens, (sums / sums.sum()).tolist(), strict=True))
            known = self._known[key] = target, dict(zip(tokens, pairwise(edges), strict=True))
        return known

    def draw(self, rng: np.random.Generator) -> SoftPath:
        """Draw a sequence, and return it with the targets along it."""
        return self.path(self._sequence(draw_index(self._cumulative, rng)))

    def __contains__(self, token_ids: Sequence[int]) -> bool:
        first, stop = 0, len(self)
        for place, token_id in enumerate(token_ids):
            first, stop = self._branches(first, stop, place)[1].get(token_id, (0, 0))
            if first == stop:
                return False
        return self._sequence(first) == tuple(token_ids)

    def __len__(self) -> int:
        return len(self.probabilities)

    def _sequence(self, index: int) -> tuple[int, ...]:
        tokens = self._tokens[index].tolist()
        return tuple(tokens[: tokens.index(-1)] if tokens[-1] < 0 else tokens)
