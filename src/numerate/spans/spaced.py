"""Spaced numbers: one space between digits, and on both sides of the point, belongs to the number and holds no place.

Tokenizers write the space as a token of its own (``1| |2| .| |5``) or as the start of the next one (``1| 2| .| 5``). Tokens of
the first kind are moved to the end of the row and spaces of the second kind ignored, so that the lexer sees ``12.5``. Only
digits that stand alone are joined: ``12 3`` remains two numbers.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from numerate.marks import GAP, POINT, SPACED
from numerate.spans.lexer import Tokens, after, before


class Order(NamedTuple):
    """Where the tokens of a row ``[B, T]`` are after those that are only a space within a number were moved to its end."""

    slot: Tensor  # new position of each token
    owner: Tensor  # the same, but at a space within a number that of the token after it

    def moved(self, x: Tensor) -> Tensor:
        """Return ``x [B, T]`` in the new order."""
        return torch.zeros_like(x).scatter(-1, self.slot, x)

    def restored(self, x: Tensor, *, of_number: bool = False) -> Tensor:
        """Return ``x [B, T]`` in the old order; a fact of a number also holds at the spaces in it."""
        return x.gather(-1, self.owner if of_number else self.slot)


def close_gaps(
    digit: Tensor, width: Tensor, next_to: Tensor, flags: Tensor, flags_before: Tensor, inner: Tensor
) -> tuple[Tokens, Order]:
    """Return the tokens without the spaces in numbers, and their order; the arguments are those of the number reader."""
    gap, spaced = (flags & GAP) != 0, (flags & SPACED) != 0
    glued = next_to & ~spaced
    # A token after exactly one space: its own, or a token before it that is only a space.
    behind_gap = glued & ~gap & before(gap & next_to & ~before(gap))
    behind_space = behind_gap | (next_to & spaced & ~before(gap))

    def previous(x: Tensor) -> Tensor:
        return torch.where(behind_gap, before(before(x)), before(x))

    point = (flags & POINT) != 0
    tight = glued & (digit & before(digit | point) | (point & before(digit)) & after(glued & digit))
    alone = digit & (width == 1) & ~tight & ~after(tight)
    follows = alone & behind_space
    inner_point = point & behind_space & previous(alone)
    inner_point = inner_point & torch.where(after(gap), after(after(follows)), after(follows))
    joined = inner_point | (follows & previous(alone | inner_point))

    out = after(joined & behind_gap)  # the spaces to move
    rank = torch.where(out, (~out).sum(-1, keepdim=True) + out.cumsum(-1), (~out).cumsum(-1)) - 1
    order = Order(rank, torch.where(out, after(rank), rank))
    flags_before = torch.where(joined, previous(flags), torch.where(inner & ~spaced, flags_before, 0))
    kept = torch.where(out, 0, torch.where(joined, flags & ~SPACED, flags)) & ~GAP
    tokens = Tokens.of(*map(order.moved, (digit, width, (glued | joined) & ~out, kept, flags_before & ~GAP)))
    return tokens, order
