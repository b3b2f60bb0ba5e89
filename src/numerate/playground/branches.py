"""BranchTree: the most likely branches of a distribution over answers, level by level, and how often samples take them."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from numerate.targets import TokenTrie

Path = tuple[int, ...]

LEVELS = 8
"""Deepest level shown. A run of tokens that follow with certainty is one level."""


@dataclass(eq=False)
class Branch:
    """A run of tokens, of which all but the first are certain; or the sum of the other branches of its parent."""

    path: Path  # all tokens up to the end of the run; for the sum of others, those of the parent
    run: int  # tokens of the run; 0 for the sum of others
    share: float  # probability given the parent
    probability: float  # probability of the prefix
    others: int = 0  # number of branches in the sum; 0 for a run
    cut: bool = False  # whether tokens follow that are not shown
    branches: list[Branch] = field(default_factory=list)

    @property
    def tokens(self) -> Path:
        """The tokens of the run."""
        return self.path[len(self.path) - self.run :]

    def walk(self) -> Iterator[Branch]:
        """Yield this branch and its descendants."""
        yield self
        for branch in self.branches:
            yield from branch.walk()


class BranchTree:
    """The most likely branches of a trie; probabilities are products of the trie's own targets along a path.

    Args:
        trie: the answers and their probabilities.
        most: branches to follow per level; the other children of a branch are summed.
        followed: an answer, such as the label, whose branches are always followed.
    """

    def __init__(self, trie: TokenTrie, most: int, followed: Path = ()) -> None:
        self._trie, self._sequences, self._followed = trie, trie.sequences, followed
        self.root = self._grown((), 1.0, 1.0)
        level = [self.root]
        for _ in range(LEVELS):
            level = self._below(level, most)
        for branch in level:
            branch.cut = bool(self._options(branch.path))

    def _options(self, path: Path) -> dict[int, float]:
        """Return the probability of each next token; empty at the end of an answer."""
        answer = self._sequences[bisect_left(self._sequences, path)]
        return self._trie.path(answer).targets[len(path)] if len(path) < len(answer) else {}

    def _grown(self, path: Path, share: float, probability: float) -> Branch:
        """Return the branch that starts with the last token of a path, with the tokens that follow with certainty."""
        answer = self._sequences[bisect_left(self._sequences, path)]
        targets = self._trie.path(answer).targets
        length = len(path)
        while length < len(answer) and len(targets[length]) == 1:
            length += 1
        return Branch(answer[:length], length - max(len(path) - 1, 0), share, probability)

    def _below(self, level: list[Branch], most: int) -> list[Branch]:
        """Add the next level, and return its branches that are followed."""
        found = [
            (branch.probability * share, branch, token_id, share)
            for branch in level
            for token_id, share in self._options(branch.path).items()
        ]
        found.sort(key=lambda option: ((*option[1].path, option[2]) != self._followed[: len(option[1].path) + 1], -option[0]))
        kept = sorted(found[:most], key=lambda option: -option[0])
        for probability, branch, token_id, share in kept:
            branch.branches.append(self._grown((*branch.path, token_id), share, probability))
        for branch in level:
            rest = [option for option in found[most:] if option[1] is branch]
            if rest and branch.branches:
                share, probability = sum(option[3] for option in rest), sum(option[0] for option in rest)
                branch.branches.append(Branch(branch.path, 0, share, probability, others=len(rest)))
            branch.cut = bool(rest) and not branch.branches
        return [below for branch in level for below in branch.branches if not below.others]

    def frequencies(self, drawn: Sequence[Path]) -> dict[Branch, float]:
        """Return the share of sampled paths through each branch."""
        counts: dict[Branch, int] = {}
        paths = Counter(drawn)
        for branch in self.root.walk():
            if not branch.others:
                begin = branch.path
                counts[branch] = sum(count for path, count in paths.items() if path[: len(begin)] == begin)
        for branch in [*counts]:
            for last in branch.branches[-1:]:
                if last.others:
                    counts[last] = counts[branch] - sum(counts[other] for other in branch.branches[:-1])
        return {branch: count / len(drawn) for branch, count in counts.items()}
