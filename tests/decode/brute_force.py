"""The distribution over numbers by brute force: a full forward pass for every prefix, without cache, padding or shared code."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from torch import Tensor

NextLogits = Callable[[list[int]], Tensor]


def enumerate_numbers(next_logits: NextLogits, tokens: dict[str, int], pattern: str) -> dict[Decimal, float]:
    """Return the probability of each number.

    Args:
        next_logits: the scores ``[V]`` of the token that follows the prompt and the given tokens.
        tokens: texts and ids of the tokens that numbers are made of, digits alone; every other token ends a number.
        pattern: what a number looks like; its prefixes are all texts of digits that are not longer.
    """
    longest = max(length for length in range(1, 10) if re.fullmatch(pattern, "1" * length))
    numbers: dict[Decimal, float] = defaultdict(float)

    def visit(text: str, ids: list[int], mass: float) -> None:
        shares = next_logits(ids).float().double().softmax(-1)
        ended = sum(share for i, share in enumerate(shares.tolist()) if i not in tokens.values())
        if re.fullmatch(pattern, text):
            numbers[Decimal(text)] += mass * ended
        for piece, i in tokens.items():
            if len(text + piece) <= longest:
                visit(text + piece, [*ids, i], mass * float(shares[i]))

    visit("", [], 1.0)
    return dict(numbers)


def distance(found: Any, expected: dict[Decimal, float]) -> float:
    """Return the largest relative difference between a NumberDistribution's probabilities and those expected."""
    masses = {value: float(p) * found.covered for value, p in zip(found.values, found.probabilities, strict=True)}
    expected = {value: p for value, p in expected.items() if p > 0}
    if masses.keys() != expected.keys():
        return float("inf")
    return max(abs(masses[value] - p) / p for value, p in expected.items())
