r"""TokenTrie: the tokens of all answers of a distribution, and how likely each token is after those before it.

With the probability P(a) of each answer, and the answers whose tokens begin with the path c_1 .. c_t:

    q(k | c_1 .. c_t) = mass of the answers that begin with c_1 .. c_t k  /  mass of those that begin with c_1 .. c_t

The product of q along the tokens of an answer is its probability. So cross-entropy against q along a path that is drawn from
the distribution is an unbiased estimate of the cross-entropy between the distribution and the model's over whole answers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from numerate.distribution.exact import Floats, check_masses
from numerate.targets.answer_distribution import draw_index


@dataclass
class _Branch:
    """A prefix of answers: its mass, and what can follow it."""

    mass: float = 0.0
    children: dict[int, _Branch] = field(default_factory=dict)
    target: dict[int, float] | None = None  # computed when it is first asked for


@dataclass(frozen=True)
class SoftPath:
    """The tokens of one answer, and the distribution of the token at each of its positions, given those before it.

    Attributes:
        token_ids: T tokens.
        targets: for each of them, ``{token_id: probability}``, with the sum 1.
    """

    token_ids: list[int]
    targets: list[dict[int, float]]


class TokenTrie:
    """The answers of a distribution as a tree of tokens.

    Args:
        sequences: the tokens of each answer, with the token that ends it. Equal ones are merged. No sequence may begin with
            all of another: without an end token ``1 2`` and ``1 2 3`` do not say how likely the answer is to end after ``1 2``.
        probabilities: one finite number >= 0 per sequence; they are normalised. Sequences of probability 0 are left out.

    Example:
        >>> trie = TokenTrie([[9, 8, 0], [9, 9, 0], [1, 0, 0, 0]], [0.25, 0.25, 0.5])  # 98, 99 and 100, with the end token 0
        >>> trie.path([9, 9, 0]).targets
        [{9: 0.5, 1: 0.5}, {8: 0.5, 9: 0.5}, {0: 1.0}]
    """

    def __init__(self, sequences: Iterable[Sequence[int]], probabilities: npt.ArrayLike) -> None:
        listed = [tuple(map(int, sequence)) for sequence in sequences]
        masses = check_masses("probabilities", probabilities, len(listed), "sequence")
        merged: dict[tuple[int, ...], float] = {}
        for tokens, mass in zip(listed, (masses / masses.sum()).tolist(), strict=True):
            if mass > 0:
                merged[tokens] = merged.get(tokens, 0.0) + mass
        self.sequences: tuple[tuple[int, ...], ...] = tuple(merged)
        self.probabilities: Floats = np.array([*merged.values()])  # [N]
        self._cumulative = self.probabilities.cumsum()
        self._root = _Branch()
        ends = {id(self._insert(tokens, mass)): tokens for tokens, mass in merged.items()}
        self._check_prefixes(ends)

    def path(self, token_ids: Sequence[int]) -> SoftPath:
        """Return the targets along the tokens of one of the sequences."""
        branch, targets = self._root, []
        for position, token_id in enumerate(token_ids):
            if token_id not in branch.children:
                raise ValueError(
                    f"token_ids={[*token_ids]!r:.80} leaves the sequences at position {position}: expected the tokens of one "
                    f"of the {len(self.sequences)} answers; a label must have a probability above 0 in its own distribution."
                )
            targets.append(self._target(branch))
            branch = branch.children[token_id]
        if branch.children or not targets:
            raise ValueError(
                f"token_ids={[*token_ids]!r:.80} ends before the answer does: expected all tokens of a sequence, with its end."
            )
        return SoftPath([*token_ids], targets)

    def draw(self, rng: np.random.Generator) -> SoftPath:
        """Draw a sequence, and return it with the targets along it."""
        return self.path(self.sequences[draw_index(self._cumulative, rng)])

    def __len__(self) -> int:
        return len(self.sequences)

    def _insert(self, tokens: tuple[int, ...], mass: float) -> _Branch:
        branch = self._root
        for token_id in tokens:
            branch.mass += mass
            branch = branch.children.setdefault(token_id, _Branch())
        branch.mass += mass
        return branch

    def _check_prefixes(self, ends: dict[int, tuple[int, ...]]) -> None:
        open_branches = [self._root]
        while open_branches:
            branch = open_branches.pop()
            if id(branch) in ends and (branch.children or branch is self._root):
                raise ValueError(
                    f"sequences holds {[*ends[id(branch)]]!r:.80}, with which another one begins, or which is empty: expected "
                    "the token that ends the answer as the last of each; append the end token, or what follows in the text."
                )
            open_branches += branch.children.values()

    @staticmethod
    def _target(branch: _Branch) -> dict[int, float]:
        if branch.target is None:
            total = sum(child.mass for child in branch.children.values())
            branch.target = {token_id: child.mass / total for token_id, child in branch.children.items()}
        return branch.target
