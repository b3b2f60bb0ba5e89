"""The tree of a search for numbers, pruned to its most likely branches for drawing."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field

from numerate.decode.search import Branches, Node


@dataclass
class TreeBranch:
    """A prefix of an answer in the tree."""

    text: str  # all tokens
    piece: str  # the last token
    p: float  # its probability; below a sampled prefix, its weight
    ends: float = 0.0  # the part of it that is a complete number here
    searched: bool = False  # whether the search continued from here
    drawn: bool = False  # whether it was sampled and also stands for unlikely prefixes that were not searched
    children: list[TreeBranch] = field(default_factory=list)  # the most likely continuations, in descending order
    others: int = 0  # number of continuations that are not shown
    others_p: float = 0.0  # their probability

    def to_dict(self) -> dict[str, object]:
        """Return the branch and its descendants as plain values."""
        return asdict(self)


@dataclass
class SearchedTree:
    """Collects the steps of a search; pass it as ``watch`` to :func:`numerate.decode.distribution`, with one prompt."""

    levels: list[tuple[Sequence[Node], Sequence[Branches]]] = field(default_factory=list)

    def __call__(self, nodes: Sequence[Node], branches: Sequence[Branches]) -> None:
        """Record the nodes of one length and their branches."""
        if nodes[0].branch < 0:  # a root: a search that found no number restarts
            self.levels.clear()
        self.levels.append((list(nodes), list(branches)))

    def likeliest(self, most: int, each: int) -> TreeBranch:
        """Return the root with its ``most`` most likely descendants, at most ``each`` children per prefix."""
        root = self._expanded(0, 0, "", 1.0)
        places: dict[int, tuple[int, int]] = {id(root): (0, 0)}
        heap: list[tuple[float, int, TreeBranch, TreeBranch]] = []
        opened, shown = [root], 0
        while True:
            for parent in opened:
                for child, place in self._children(*places[id(parent)]) if id(parent) in places else ():
                    heapq.heappush(heap, (-child.p, len(places) + len(heap), child, parent))
                    if place is not None:
                        places[id(child)] = place
            if not heap:
                return root
            _, _, child, parent = heapq.heappop(heap)
            if shown < most and len(parent.children) < each:
                parent.children.append(child)
                opened, shown = [child], shown + 1
            else:
                parent.others, parent.others_p, opened = parent.others + 1, parent.others_p + child.p, []

    def _children(self, level: int, index: int) -> Iterator[tuple[TreeBranch, tuple[int, int] | None]]:
        """Yield the branches of a node, each with the place of its own node if it was searched."""
        nodes, branches = self.levels[level]
        longer = self.levels[level + 1][0] if level + 1 < len(self.levels) else ()
        kept = {node.branch: place for place, node in enumerate(longer) if node.parent == index}
        for branch, (piece, share) in enumerate(zip(branches[index].pieces, branches[index].shares.tolist(), strict=True)):
            p = nodes[index].mass * share
            if branch in kept:
                yield self._expanded(level + 1, kept[branch], piece, p), (level + 1, kept[branch])
            elif p > 0:
                yield TreeBranch(nodes[index].text + piece, piece, p), None

    def _expanded(self, level: int, index: int, piece: str, p: float) -> TreeBranch:
        node, branches = self.levels[level][0][index], self.levels[level][1][index]
        ends = node.mass * math.fsum(share for _, share in branches.answers)
        return TreeBranch(node.text, piece, p, ends, searched=True, drawn=not node.exact)
