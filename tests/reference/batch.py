"""What the references share: sequences, their numbers, and the costs at each position.

Nothing is shared with the fast code except the vocabulary. The loops are slow and simple on purpose: read this package to learn
what a loss is, and use it to check fast code. Autograd through the loops gives the exact gradient.

Every reference takes ``logits [.., T, V]``, ``labels [.., T]`` aligned with them, the vocabulary, the settings of the class of
the same name with the same defaults, and:

    outside, places, place_sigma, thousands, position_weights, position_ids, ignore_index     as in :class:`numerate.NumericLoss`
    dtype       of the arithmetic; a narrow dtype gives the naive computation that fast code has to beat

Notation: p softmax over the N numeric tokens, v their values, t index and y value of the label, r = p - e_t.

Examples:
    >>> from tests.reference import emd_reference
    >>> vocab = NumericVocab.from_texts({str(d): d for d in range(10)}, vocab_size=10)
    >>> cost = emd_reference(torch.zeros(2, 10), torch.tensor([0, 5]), vocab)  # uniform: mean distance 4.5 and 2.5
    >>> float(cost.sum), cost.num_units, float(cost.mean)
    (7.0, 2.0, 3.5)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from tests.reference.numbers import Number, numbers_reference
from torch import Tensor

from numerate.vocab import NumericVocab

MARGIN = 1.01  # text where a number belongs costs this much more than the worst number


@dataclass(frozen=True)
class ReferenceCost:
    """Result of a reference: the cost at each position ``[.., T]``, and what ``"mean"`` divides their sum by."""

    per_position: Tensor
    num_units: float

    @property
    def sum(self) -> Tensor:
        """Total cost."""
        return self.per_position.sum()

    @property
    def mean(self) -> Tensor:
        """Total cost over ``num_units``; zero if that is zero."""
        return self.sum / (self.num_units if self.num_units > 0 else 1)


class Batch:
    """Logits and labels as sequences, the numbers in each, and the costs computed so far."""

    def __init__(
        self,
        logits: Tensor,
        labels: Tensor,
        vocab: NumericVocab,
        *,
        numbers: str = "values",
        thousands: bool = False,
        position_weights: Tensor | None = None,
        position_ids: Tensor | None = None,
        ignore_index: int = -100,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        length = labels.shape[-1]
        self.shape, self.ids = labels.shape, vocab.token_ids
        self.minus_ids = torch.tensor(vocab.minus_ids, dtype=torch.long)
        self.logits = logits.to(dtype).reshape(-1, length, logits.shape[-1])
        self.position_weights = None if position_weights is None else position_weights.reshape(-1, length).tolist()
        rows = labels.reshape(-1, length).tolist()
        positions = [None] * len(rows) if position_ids is None else position_ids.reshape(-1, length).tolist()
        self.sequences = [
            numbers_reference(row, vocab, position_ids=ids, numbers=numbers, thousands=thousands, ignore_index=ignore_index)
            for row, ids in zip(rows, positions, strict=True)
        ]
        # An empty sum is a zero that is connected to the graph.
        self.costs = [[self.logits.flatten()[:0].sum() for _ in range(length)] for _ in rows]
        self.num_units = 0.0

    def numbers(self) -> Iterator[tuple[int, Number]]:
        """Iterate over all numbers with the index of their sequence."""
        return ((row, number) for row, numbers in enumerate(self.sequences) for number in numbers)

    def weight(self, row: int, position: int) -> float:
        """Return the weight of a position."""
        return 1.0 if self.position_weights is None else float(self.position_weights[row][position])

    def p(self, row: int, position: int) -> Tensor:
        """Return the probability ``[N]`` of each numeric token among the numeric tokens."""
        return self.logits[row, position][self.ids].softmax(-1)

    def mass(self, row: int, position: int) -> Tensor:
        """Return the probability of all numeric tokens under the whole vocabulary."""
        return self.logits[row, position].softmax(-1)[self.ids].sum()

    def mean_mass(self, row: int, positions: list[int]) -> Tensor:
        """Return the geometric mean of the mass at several positions."""
        return torch.stack([self.mass(row, position) for position in positions]).log().mean().exp()

    def charge(self, row: int, position: int, cost: Tensor) -> None:
        """Enter the cost of one unit at its position, times the weight of that position."""
        weight = self.weight(row, position)
        self.costs[row][position] = cost * weight
        self.num_units += weight

    def result(self) -> ReferenceCost:
        """Return the costs that were entered."""
        costs = torch.stack([torch.stack(row) for row in self.costs])
        return ReferenceCost(costs.reshape(self.shape), self.num_units)


def charged(cost: Tensor, mass: Tensor, worst: float) -> Tensor:
    """Return the cost where mass is on numbers, and a little more than the worst cost where it is not."""
    return mass * cost + MARGIN * worst * (1 - mass)


def place_weights(number: Number, places: str, sigma: float, numbers: str) -> list[float]:
    """Return the weight of each token within its number."""
    right = [number.right(j) for j in range(len(number.tokens))]  # digits to each token's right
    if places == "exponential":
        return [(1 + sigma) ** (min(k, 15) if numbers == "values" else k) for k in right]
    if places == "linear":
        mean = sum(k + 1 for k in right) / len(right)
        return [(k + 1) / mean for k in right]
    if places == "del":
        decimals = sum(token.width for token, fraction in zip(number.tokens, number.fraction, strict=True) if fraction)
        place = [k - (0 if power else decimals) for k, power in zip(right, number.power, strict=True)]  # 0 for units
        return [1.02 ** (k - 1) if k < 0 else 2.0 * (k + 1) for k in place]
    return [1.0] * len(right)


def distances(values: Tensor, squash: float | None = None) -> list[Tensor]:
    """Return ``|v_i - v_j|``, rescaled so that the least above zero is 1 and the largest ``squash``; zero stays zero."""
    rows = [(value - values).abs() for value in values]
    if squash is None:
        return rows
    if squash <= 1:
        raise ValueError(f"squash={squash!r} is out of range: expected a number > 1; None turns it off.")
    apart = [d for row in rows for d in row.tolist() if d > 0]
    if not apart or min(apart) == max(apart):
        return rows
    low, high = min(apart), max(apart)
    return [torch.where(row > 0, 1 + (row - low) * (squash - 1) / (high - low), 0.0) for row in rows]
