r"""Breadth-first search of the prefix tree of answers, for all prompts at once.

A node is a prefix of the answer's text with its probability under the model. Expanding a node splits its probability among
the tokens that may follow: longer prefixes, the end of the answer (a leaf), more digits than allowed, no answer. One forward
pass expands the nodes of all prompts, so that a search takes as many passes as the longest answer has tokens.

If a prompt has more than ``width`` prefixes, likely ones are kept with their exact probability, and unlikely ones are subsampled
without bias (Fearnhead and Clifford, 2003): with the threshold c for which

    sum_i min(w_i / c, 1) = width,

every node of weight w_i >= c is kept, and each other one with probability w_i / c and new weight c. Draws are systematic: evenly
spaced in the order of the texts with one random offset, and thus spread over the number line. Expected weights are exact, and so
is the sum. With at most ``width`` prefixes nothing is drawn, and the result is exact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Literal, NamedTuple

import numpy as np

from numerate.checks import check_choice, check_integer, check_number, choices
from numerate.distribution import NumberDistribution
from numerate.distribution.exact import Floats

Rest = Literal["draw", "drop"]


class Node(NamedTuple):
    """An open prefix of an answer."""

    prompt: int  # index of the prompt
    text: str  # the prefix, including leading white space
    mass: float  # its probability, or its weight after subsampling
    exact: bool  # whether the mass is its probability
    parent: int  # index of its parent among the previously expanded nodes; index of the prompt for a root
    branch: int = -1  # index among the parent's continuations; -1 for a root
    token_ids: tuple[int, ...] = ()  # the tokens from the root on, where they are known
    edges: tuple[int, ...] = ()  # the length of the text after each of them


class Branches(NamedTuple):
    """How the probability of a node is split, as shares that sum to 1."""

    pieces: Sequence[str]  # texts that continue the prefix, in order
    shares: Floats  # [C], the probability of each
    answers: Sequence[tuple[str, float]]  # the texts that end here, with their probabilities
    nothing: float = 0.0  # the probability that the text ends without an answer
    exceeding: float = 0.0  # the probability of more digits than the grammar allows
    unknown: float = 0.0  # the probability of unknown tokens
    token_ids: Sequence[int] = ()  # the token of each piece, if known


Watch = Callable[[Sequence[Node], Sequence[Branches]], object]


@dataclass
class Answers:
    """The answers found for a prompt, and the remaining probability.

    ``written`` has the tokenizations of each answer, if known, with their probabilities.
    """

    leaves: dict[str, float] = field(default_factory=dict)
    written: dict[str, dict[tuple[int, ...], float]] = field(default_factory=dict)
    drawn: float = 0.0
    more_digits: float = 0.0
    no_number: float = 0.0
    not_searched: float = 0.0

    def has_number(self, value: Callable[[str], Any]) -> bool:
        """Whether any answer is a number."""
        return any(mass > 0 and value(text) is not None for text, mass in self.leaves.items())

    def distribution(self, value: Callable[[str], Any]) -> NumberDistribution | None:
        """Return the distribution over the numbers of the answers; None if there are none."""
        numbers: list[Any] = []
        masses: list[float] = []
        no_number = self.no_number
        for text, mass in self.leaves.items():
            if (number := value(text)) is None:
                no_number += mass
            else:
                numbers.append(number)
                masses.append(mass)
        covered = sum(masses)
        if not covered > 0:
            return None
        return NumberDistribution(
            numbers,
            masses,
            covered=min(covered, 1.0),
            drawn=min(self.drawn, covered, 1.0),
            more_digits=min(self.more_digits, 1.0),
            no_number=min(no_number, 1.0),
            not_searched=min(self.not_searched, 1.0),
        )


def check_limits(width: Any, covered: Any, rest: Any) -> int | None:
    """Raise unless these are limits of a :func:`search`; return ``width``."""
    check_number("covered", covered, above=0, most=1)
    check_choice("rest", rest, choices(Rest))
    expected = "an integer >= 1, the beam width, or None for no limit"
    return None if width is None else check_integer("width", width, expected, least=1)


def check_seed(seed: Any) -> int | list[int]:
    """Return one seed, or one per prompt; raise unless they are integers >= 0."""
    if isinstance(seed, Sequence) and not isinstance(seed, str):
        return [check_integer(f"seed[{i}]", own, "an integer >= 0", least=0) for i, own in enumerate(seed)]
    return check_integer("seed", seed, "an integer >= 0, or a list with one for each prompt", least=0)


def search(
    starts: Sequence[str],  # the first text of each answer, usually empty
    expand: Callable[[list[Node]], Sequence[Branches]],  # branches of each node; nodes of a prompt are next to each other
    *,
    width: int | None,  # beam width: most nodes of a prompt in one call of ``expand``; None: no limit
    covered: float,  # share of the probability of numbers to search; the least likely nodes are skipped
    rest: Rest,  # "draw" subsamples nodes beyond ``width`` without bias, "drop" skips the least likely ones
    seeds: Sequence[Sequence[int]],  # of the draws of each prompt
    watch: Watch = lambda nodes, branches: None,  # called with the nodes of each length and their branches
) -> list[Answers]:
    """Return the answers to each prompt."""
    found = [Answers() for _ in starts]
    slack = [0.0] * len(starts)  # probability that may be skipped
    draws = [np.random.default_rng(seed) for seed in seeds]
    nodes = [Node(prompt, text, 1.0, True, prompt) for prompt, text in enumerate(starts)]
    first = True
    while nodes:
        branches = expand(nodes)
        watch(nodes, branches)
        longer: list[Node] = []
        for prompt, group in groupby(range(len(nodes)), key=lambda index: nodes[index].prompt):
            parents = [*group]
            answers = found[prompt]
            for index in parents:
                _settle(answers, nodes[index], branches[index])
            shares = np.concatenate([nodes[index].mass * branches[index].shares for index in parents])
            if first:
                slack[prompt] = (1 - covered) * float(shares.sum())
            kept, left = _light_left(shares, slack[prompt] / 2)  # half is reserved for longer prefixes
            slack[prompt] -= left
            answers.not_searched += left
            exact = np.ones(len(kept), dtype=bool)
            weights = shares[kept]
            if width is not None and len(kept) > width:
                if rest == "draw":
                    chosen, weights, exact = thin_out(weights, width, draws[prompt])
                else:
                    chosen = np.sort(np.argsort(-weights, kind="stable")[:width])
                    answers.not_searched += float(weights.sum() - weights[chosen].sum())
                    weights, exact = weights[chosen], exact[chosen]
                kept = kept[chosen]
            longer += _children(nodes, branches, parents, kept, weights, exact)
        nodes, first = longer, False
    return found


def thin_out(weights: Floats, width: int, random: np.random.Generator) -> tuple[Any, Floats, Any]:
    """Subsample to ``width`` weights without bias: return sorted indices, new weights, and whether each is unchanged.

    Examples:
        >>> index, weights, exact = thin_out(np.array([0.5, 0.1, 0.1, 0.1, 0.2]), 3, np.random.default_rng(0))
        >>> [round(float(weight), 3) for weight in weights], exact.tolist()
        ([0.5, 0.25, 0.25], [True, False, False])
    """
    ordered = np.sort(weights)[::-1]
    tails = ordered[::-1].cumsum()[::-1]  # the sum of a weight and all smaller ones
    # With the k largest kept, the threshold is tails[k] / (width - k); k is the first for which the next is below it.
    thresholds = tails[:width] / np.arange(width, 0, -1)
    lighter = ordered[:width] < thresholds
    heavy = int(lighter.argmax())
    threshold = float(thresholds[heavy if lighter[heavy] else width - 1])
    exact = weights >= threshold
    light = (~exact).nonzero()[0]
    count = width - len(weights) + len(light)
    if not count:
        return exact.nonzero()[0], weights[exact], exact[exact]
    sums = weights[light].cumsum()
    points = (np.arange(count) + random.random()) * (sums[-1] / count)
    drawn = light[np.minimum(sums.searchsorted(points, side="right"), len(light) - 1)]
    # Points are one threshold apart and the remaining weights smaller: two points hit one node only by rounding.
    index = np.sort(np.concatenate([exact.nonzero()[0], drawn]))
    copies: Any = 1.0
    if (index[1:] == index[:-1]).any():
        index, copies = np.unique(index, return_counts=True)
    return index, np.where(exact[index], weights[index], copies * threshold), exact[index]


def _settle(answers: Answers, node: Node, branches: Branches) -> None:
    """Record the probability of a node that is not searched further."""
    answers.more_digits += node.mass * branches.exceeding
    answers.no_number += node.mass * branches.nothing
    answers.not_searched += node.mass * branches.unknown
    for text, share in branches.answers:
        mass = node.mass * share
        answers.leaves[text] = answers.leaves.get(text, 0.0) + mass
        answers.drawn += 0.0 if node.exact else mass
        end = len(node.text) - len(node.text.lstrip()) + len(text)
        if end in node.edges:  # unless a token extends beyond the answer
            path = node.token_ids[: node.edges.index(end) + 1]
            ways = answers.written.setdefault(text, {})
            ways[path] = ways.get(path, 0.0) + mass


def _light_left(shares: Floats, slack: float) -> tuple[Any, float]:
    """Return the sorted indices to continue, and the probability of the others: the least likely, at most ``slack``."""
    order = np.argsort(shares, kind="stable")
    sums = np.cumsum(shares[order])
    count = int(np.searchsorted(sums, max(slack, 0.0), side="right"))
    return np.sort(order[count:]), float(sums[count - 1]) if count else 0.0


def _children(
    nodes: Sequence[Node], branches: Sequence[Branches], parents: Sequence[int], kept: Any, weights: Floats, exact: Any
) -> Iterator[Node]:
    """Yield the nodes of the kept continuations; ``kept`` indexes the continuations of all parents."""
    firsts = np.cumsum([0, *(len(branches[index].shares) for index in parents)])
    owners = np.searchsorted(firsts, kept, side="right") - 1
    for owner, branch, weight, own in zip(
        owners.tolist(), (kept - firsts[owners]).tolist(), weights.tolist(), exact.tolist(), strict=True
    ):
        index = parents[owner]
        node = nodes[index]
        text = node.text + branches[index].pieces[branch]
        token_ids: tuple[int, ...] = ()
        edges: tuple[int, ...] = ()
        if branches[index].token_ids:
            token_ids, edges = (*node.token_ids, branches[index].token_ids[branch]), (*node.edges, len(text))
        yield Node(node.prompt, text, weight, node.exact and own, index, branch, token_ids, edges)
