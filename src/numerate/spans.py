"""NumberSpans: label ids to numbers, with sign, point and place value; vectorised.

``12345.678`` in a tokenizer of one to three digits per token is ``123 | 45 | . | 678``: the place of ``123`` is 10²,
of ``45`` 10⁰, of ``678`` 10⁻³. With C the running count of digits, a token's exponent is C at the end of the integer
part (the point counts no digit) minus C at the token: one formula for both sides of the point.

Nothing here loops over tokens, waits for a GPU, or has a shape that depends on the data: S numbers live in the first
S of B·T slots. Only the properties that give ``[S]`` tensors cut them to size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from numerate.checks import check_choice, check_labels, choices
from numerate.vocab import CLOSES, COMMA, MINUS, NEGATES, POINT, SPACED, NumericVocab, look_up

Numbers = Literal["values", "runs"]

EXACT_DIGITS = 15  # as many digits as float64 always keeps
_POWERS = torch.tensor([float(f"1e{k}") for k in range(-330, 309)], dtype=torch.float64)


def power_of_ten(exponent: Tensor) -> Tensor:
    """``10**exponent`` in float64, correctly rounded (``torch.pow`` is not); at most 1e308."""
    return _POWERS.to(exponent.device)[(exponent + 330).clamp(0, _POWERS.shape[0] - 1)]


@dataclass(frozen=True)
class NumberSpans:
    """The numbers in a batch of labels. All tensors are shaped like the labels, ``[.., T]``.

    Attributes:
        index: index of the token among the numeric ones, -1 where it is none.
        number_of: which number a token belongs to, counted through the batch, its sign, point and commas included; else -1.
        is_digit: whether the token carries digits.
        is_start: whether it is the first digit token of its number.
        is_sign: whether it is the minus of a number, as a token of its own (``(-`` is not, but negates all the same).
        is_fraction: whether it carries digits after the point.
        exponent: place of the token's last digit is ``10**exponent``; 0 where there is none.
        leading: exponent of the first digit of the token's number.
        last: exponent of the last digit of the token's number.
        negative: whether the token's number is negative.

    Example:
        >>> vocab = NumericVocab.from_texts({str(d): d for d in range(10)} | {".": 10, "-": 11}, vocab_size=12)
        >>> spans = NumberSpans.from_labels(torch.tensor([[11, 1, 2, 10, 5, -100, 7]]), vocab)
        >>> spans.values
        tensor([-12.5000,   7.0000], dtype=torch.float64)
        >>> spans.place
        tensor([[ 0.0000, 10.0000,  1.0000,  0.0000,  0.1000,  0.0000,  1.0000]],
               dtype=torch.float64)
    """

    index: Tensor
    number_of: Tensor
    is_digit: Tensor
    is_start: Tensor
    is_sign: Tensor
    is_fraction: Tensor
    exponent: Tensor
    leading: Tensor
    last: Tensor
    negative: Tensor
    token_values: Tensor

    @classmethod
    def from_labels(
        cls,
        labels: Tensor,
        vocab: NumericVocab,
        *,
        position_ids: Tensor | None = None,
        numbers: Numbers = "values",
        thousands: bool = False,
        ignore_index: int = -100,
    ) -> NumberSpans:
        """Find the numbers.

        Args:
            labels: token ids ``[.., T]``; ``ignore_index`` and every id outside the vocabulary end a number.
            vocab: what the tokens are worth.
            position_ids: ``[.., T]``, the position of each label's token; a 0 begins a new document.
            numbers: ``"values"`` reads sign and point; ``"runs"`` takes every run of digits as an integer, as the
                published NTIL and ``ntloss`` code do.
            thousands: read ``1,000`` as one number.
            ignore_index: the label that counts as absent.
        """
        return find_numbers(
            labels,
            vocab.index_table.to(labels.device),
            vocab.flag_table.to(labels.device),
            vocab.widths.to(labels.device),
            vocab.values.to(labels.device),
            position_ids=position_ids,
            numbers=numbers,
            thousands=thousands,
            ignore_index=ignore_index,
        )

    @property
    def count(self) -> Tensor:
        """S, how many numbers there are, as a 0-d tensor."""
        return self.is_start.sum()

    @property
    def place(self) -> Tensor:
        """Place value of each digit token, float64, 0 elsewhere."""
        self._refuse_beyond_float64(torch.where(self.is_digit, self.exponent, 0))
        return torch.where(self.is_digit, power_of_ten(self.exponent), 0.0)

    @property
    def values(self) -> Tensor:
        """The numbers ``[S]`` in float64; exact up to 15 digits and 22 places after the point."""
        top, last = self._first_digits()
        self._refuse_beyond_float64(top)
        # Up to 15 digits the integer of all digits is exact, and one division by a power of ten rounds correctly.
        exact = top - last < EXACT_DIGITS
        base = torch.where(exact, last, top)
        total = self._sum_above(base)
        value = torch.where(base < 0, total / power_of_ten(-base), total * power_of_ten(base))
        negative = self.per_number((self.is_start & self.negative).long())[: value.shape[0]]
        return torch.where(negative > 0, -value, value)

    @property
    def log10(self) -> Tensor:
        """``log10 |value|`` of each number ``[S]``; -inf for zero. Finite for numbers that no float64 holds."""
        top, _ = self._first_digits()
        return self._sum_above(top).log10() + top

    def _first_digits(self) -> tuple[Tensor, Tensor]:
        """Exponents ``[S]`` of each number's first digit that is not zero, and of its last digit."""
        width = self.token_values.abs().clamp_min(1).log10().floor().long()  # of the token without its leading zeros, less one
        shown = torch.where(self.is_digit & (self.token_values != 0), self.exponent + width, self.last)
        group = self.number_of.flatten()
        slots = torch.full((group.numel() + 1,), torch.iinfo(torch.int64).min, device=group.device)
        top = slots.scatter_reduce(0, torch.where(group < 0, group.numel(), group), shown.flatten(), "amax")
        count = int(self.count)
        return top[:count], self.per_number(torch.where(self.is_start, self.last, 0))[:count]

    def _sum_above(self, base: Tensor) -> Tensor:
        """Each number ``[S]`` without its sign, in units of ``10**base``."""
        shift = self.exponent - base[self.number_of.clamp(0, max(0, base.shape[0] - 1))] if base.numel() else self.exponent
        amounts = torch.where(self.is_digit & (self.token_values != 0), self.token_values * power_of_ten(shift), 0.0)
        return self.per_number(amounts)[: base.shape[0]]

    @property
    def relative_values(self) -> Tensor:
        """What each digit token adds to its number, in units of the number's leading place; 0 elsewhere."""
        return torch.where(self.is_digit, self.token_values * self.relative_place, 0.0)

    @property
    def relative_place(self) -> Tensor:
        """Place of each token in units of its number's leading place, float64: never large, whatever the number."""
        return torch.pow(10.0, (self.exponent - self.leading).double())

    def per_number(self, amounts: Tensor) -> Tensor:
        """Sum ``[.., T]`` amounts over the tokens of each number: ``[B·T]`` slots, S of them in use."""
        return sum_by(self.number_of.flatten(), amounts.flatten(), self.number_of.numel())

    @staticmethod
    def _refuse_beyond_float64(exponent: Tensor) -> None:
        if bool((exponent > 307).any()):
            raise OverflowError(
                f"a number of {int(exponent.max()) + 1} digits is beyond float64 (1.8e308): expected fewer than 309 before the "
                "point. Use .log10, or .relative_values with .leading; the losses work with those."
            )


def sum_by(group: Tensor, amounts: Tensor, size: int) -> Tensor:
    """Sum rows of ``amounts [P, ..]`` that share a ``group [P]``, into ``[size, ..]``.

    Groups follow one another: they never fall, but for -1, which is left out.
    """
    if amounts.device.type == "cuda" and amounts.is_floating_point():
        # Segments are added in the same order every time, which index_add does not promise there.
        amounts = torch.where((group < 0).view(-1, *[1] * (amounts.dim() - 1)), 0.0, amounts)
        begins = torch.searchsorted(group.cummax(0).values, torch.arange(size + 1, device=group.device))
        return torch.segment_reduce(amounts, "sum", offsets=begins, unsafe=True)
    # One spare slot takes what belongs to no group: a mask without a data-dependent shape.
    slots = amounts.new_zeros((size + 1, *amounts.shape[1:]))
    return slots.index_add(0, torch.where(group < 0, size, group), amounts)[:size]


def put_by(group: Tensor, amounts: Tensor, size: int) -> Tensor:
    """:func:`sum_by` for groups of one row at most: cheaper on a GPU, where a sum in a fixed order has to sort."""
    slots = amounts.new_zeros((size + 1, *amounts.shape[1:]))
    return slots.index_put((torch.where(group < 0, size, group),), amounts)[:size]


def find_numbers(
    labels: Tensor,
    index_table: Tensor,
    flag_table: Tensor,
    widths: Tensor,
    values: Tensor,
    *,
    position_ids: Tensor | None = None,
    numbers: Numbers = "values",
    thousands: bool = False,
    ignore_index: int = -100,
) -> NumberSpans:
    """:meth:`NumberSpans.from_labels`, with the vocabulary's tables already on the labels' device."""
    check_labels(labels)
    check_choice("numbers", numbers, choices(Numbers))
    if position_ids is not None:
        check_position_ids(position_ids, labels)
    shape = labels.shape
    labels = labels.reshape(-1, shape[-1]).long()
    index = look_up(index_table, labels, ignore_index)
    flags = look_up(flag_table, labels, ignore_index).long()

    def has(bit: int) -> Tensor:
        return (flags & bit) != 0

    digit = index >= 0
    safe = index.clamp_min(0)
    width = torch.where(digit, widths[safe], 0)
    # Whether a token is glued to the one before it: same document, no space between.
    glued = ~has(SPACED)
    glued[:, 0] = False
    if position_ids is not None:
        glued = glued & (position_ids.reshape(labels.shape) != 0)

    glued_digit = glued & digit
    between = _before(digit) & glued & _after(glued_digit)
    comma = torch.zeros_like(digit)
    point = torch.zeros_like(digit)
    if numbers == "values":
        point = has(POINT) & between
        if thousands:
            comma = has(COMMA) & between & _three_digits_follow(glued_digit, digit, width)
        # Read from the left, a point begins a fraction, which a further point or comma ends: 1.2.3.4 is 1.2 and 3.4.
        chained = point | comma | (glued_digit & _before(digit | point | comma))
        points_so_far = _count_since(point.long(), comma | ~chained)
        in_fraction = _before(points_so_far % 2 == 1)
        point, comma = point & ~in_fraction, comma & ~in_fraction

    joined = glued_digit & _before(digit | point | comma)
    start = digit & ~joined
    inside = digit | point | comma
    number = start.flatten().long().cumsum(0).view_as(labels) - 1
    sign = negates = torch.zeros_like(digit)
    if numbers == "values":
        starts_next = _after(start & glued)
        sign = has(MINUS) & ~(glued & _before(has(CLOSES) | digit)) & starts_next
        negates = sign | (has(NEGATES) & starts_next)
    number_of = torch.where(inside, number, torch.where(sign, number + 1, -1))

    # What a number's tokens must know of it: one writer each, its last token, its point and its first digit.
    running = width.cumsum(-1)
    ends = digit & ~_after(joined | point | comma)
    told = torch.stack(
        [
            torch.where(ends, running, 0),
            torch.where(point, running, 0),
            point.long(),
            torch.where(start, running - width, 0),
            negates.long(),
        ],
        -1,
    )
    owner = torch.where(negates, number + 1, number_of)
    known = sum_by(owner.flatten(), told.flatten(0, 1), number_of.numel())[number_of.flatten().clamp_min(0)]
    last_running, point_running, points, before_start, negated = known.view(*labels.shape, 5).unbind(-1)
    has_point = points > 0
    integer_end = torch.where(has_point, point_running, last_running)
    exponent = torch.where(digit, integer_end - running, 0)
    fraction = digit & has_point & (running > integer_end)
    members = number_of >= 0
    negative = members & (negated > 0)

    def shaped(tensor: Tensor) -> Tensor:
        return tensor.reshape(shape)

    return NumberSpans(
        index=shaped(index),
        number_of=shaped(number_of),
        is_digit=shaped(digit),
        is_start=shaped(start),
        is_sign=shaped(sign),
        is_fraction=shaped(fraction),
        exponent=shaped(exponent),
        leading=shaped(torch.where(members, integer_end - before_start - 1, 0)),
        last=shaped(torch.where(members, integer_end - last_running, 0)),
        negative=shaped(negative),
        token_values=shaped(torch.where(digit, values[safe], 0.0)),
    )


def find_numbers_among(
    labels: Tensor,
    part_table: Tensor,
    *tables: Tensor,
    position_ids: Tensor | None = None,
    numbers: Numbers = "values",
    ignore_index: int = -100,
) -> tuple[Tensor, NumberSpans]:
    """:func:`find_numbers` of the tokens that can be part of a number or stop one: their positions ``[M]`` and ``[1, M]``.

    Text between numbers only cuts them apart, so most labels need not be looked at.
    """
    flat = labels.reshape(-1)
    rows = look_up(part_table, flat, ignore_index).nonzero()[:, 0]
    follows = torch.cat([rows[:1] < 0, rows.diff() == 1]) & (rows % labels.shape[-1] != 0)
    if position_ids is not None:
        follows = follows & (position_ids.reshape(-1)[rows] != 0)
    if rows.numel() == 0:
        rows = rows.new_zeros(1)  # one position, and what stands there is no number
        follows = torch.zeros_like(rows)
    spans = find_numbers(flat[rows][None], *tables, position_ids=follows[None].long(), numbers=numbers, ignore_index=ignore_index)
    return rows, spans


def check_position_ids(position_ids: Tensor, labels: Tensor) -> None:
    """Raise unless there is one position for each label."""
    if position_ids.shape != labels.shape:
        raise ValueError(
            f"position_ids has shape {tuple(position_ids.shape)} and labels {tuple(labels.shape)}: expected the same; "
            "where labels were shifted, shift position_ids along with them."
        )


def _before(flag: Tensor) -> Tensor:
    """``flag`` of the token before, False at the left edge."""
    return torch.cat([torch.zeros_like(flag[:, :1]), flag[:, :-1]], dim=1)


def _after(flag: Tensor) -> Tensor:
    """``flag`` of the token after, False at the right edge."""
    return torch.cat([flag[:, 1:], torch.zeros_like(flag[:, :1])], dim=1)


def _count_since(amount: Tensor, reset: Tensor) -> Tensor:
    """Running sum of ``amount`` that starts anew (at 0) where ``reset`` is set."""
    running = amount.cumsum(-1)
    base = torch.where(reset, running, 0).cummax(-1).values
    return running - base


def _three_digits_follow(glued_digit: Tensor, digit: Tensor, width: Tensor) -> Tensor:
    """Where a separator of thousands may stand: one to three digits before, exactly three after."""
    new_run = digit & ~(glued_digit & _before(digit))
    run = torch.where(digit, new_run.flatten().long().cumsum(0).view_as(width) - 1, -1)
    length = sum_by(run.flatten(), width.flatten(), run.numel())[run.clamp_min(0)]
    return _before(digit & (length <= 3)) & _after(digit & (length == 3))
