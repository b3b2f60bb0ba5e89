"""NumberSpans: label ids to numbers, with sign, point and place value; vectorised.

``12345.678`` in a tokenizer of one to three digits per token is ``123 | 45 | . | 678``: the place of ``123`` is 10²,
of ``45`` 10⁰, of ``678`` 10⁻³. With C the running count of digits, a token's exponent is C at the end of the integer
part (the point counts no digit) minus C at the token: one formula for both sides of the point.

A power of ten shifts them: the place of 5 in ``1.5e-3`` is 10⁻⁴. Its own digits are part of the number, but have no place in it.

Nothing here loops over tokens, waits for a GPU, or has a shape that depends on the data: S numbers live in the first
S of B·T slots. Only the properties that give ``[S]`` tensors cut them to size.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

import torch
from torch import Tensor

from numerate.checks import check_choice, check_labels, choices
from numerate.lexer import Parts, Tokens, after, before, read_numbers, read_runs
from numerate.marks import SPACED
from numerate.vocab import NumericVocab, look_up

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
        number_of: which number a token belongs to, counted through the batch, its sign, point, commas and power of ten
            included; else -1.
        is_digit: whether the token carries digits, those of a power of ten included.
        is_start: whether it is the first digit token of its number.
        is_sign: whether it is the minus of a number, as a token of its own (``(-`` is not, but negates all the same).
        is_fraction: whether it carries digits after the point.
        is_power: whether it carries digits of a power of ten: the 5 of ``1e-5``. Its exponent, leading and last are those it has
            within that power, and it adds nothing to the number by itself.
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
    is_power: Tensor
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
        """Place value of each digit token, float64, 0 elsewhere and for digits of a power of ten."""
        self._refuse_beyond_float64(torch.where(self.has_place, self.exponent, 0))
        return torch.where(self.has_place, power_of_ten(self.exponent), 0.0)

    @property
    def has_place(self) -> Tensor:
        """Whether the token carries digits that have a place in their number: all but those of a power of ten."""
        return self.is_digit & ~self.is_power

    @property
    def values(self) -> Tensor:
        """The numbers ``[S]`` in float64; exact up to 15 digits and 22 places after the point."""
        top, last = self._first_digits()
        self._refuse_beyond_float64(top)
        # Up to 15 digits the integer of all digits is exact, and one division by a power of ten rounds correctly.
        exact = top - last < EXACT_DIGITS
        base = torch.where(exact, last, top)
        total = self._sum_above(base)
        # Numbers below 1e-308 take two divisions: 10**400 is no float64.
        small = total / power_of_ten((-base).clamp(0, 308)) / power_of_ten((-base - 308).clamp_min(0))
        value = torch.where(base < 0, small, total * power_of_ten(base))
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
        shown = torch.where(self.has_place & (self.token_values != 0), self.exponent + width, self.last)
        shown = torch.where(self.is_power, torch.iinfo(torch.int64).min, shown)
        group = self.number_of.flatten()
        slots = torch.full((group.numel() + 1,), torch.iinfo(torch.int64).min, device=group.device)
        top = slots.scatter_reduce(0, torch.where(group < 0, group.numel(), group), shown.flatten(), "amax")
        count = int(self.count)
        return top[:count], self.per_number(torch.where(self.is_start, self.last, 0))[:count]

    def _sum_above(self, base: Tensor) -> Tensor:
        """Each number ``[S]`` without its sign, in units of ``10**base``."""
        shift = self.exponent - base[self.number_of.clamp(0, max(0, base.shape[0] - 1))] if base.numel() else self.exponent
        amounts = torch.where(self.has_place & (self.token_values != 0), self.token_values * power_of_ten(shift), 0.0)
        return self.per_number(amounts)[: base.shape[0]]

    @property
    def relative_values(self) -> Tensor:
        """What each digit token adds to its number, in units of the number's leading place; 0 elsewhere."""
        return torch.where(self.has_place, self.token_values * self.relative_place, 0.0)

    @property
    def relative_place(self) -> Tensor:
        """Place of each token in units of its number's leading place, float64: never large, whatever the number.

        0 for digits of a power of ten.
        """
        return torch.where(self.is_power, 0.0, torch.pow(10.0, (self.exponent - self.leading).double()))

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
        return sum_segments(group, amounts, size)
    # One spare slot takes what belongs to no group: a mask without a data-dependent shape.
    slots = amounts.new_zeros((size + 1, *amounts.shape[1:]))
    return slots.index_add(0, torch.where(group < 0, size, group), amounts)[:size]


def sum_segments(group: Tensor, amounts: Tensor, size: int) -> Tensor:
    """:func:`sum_by` in the same order every time on a GPU too, which ``index_add`` does not promise there."""
    amounts = torch.where((group < 0).view(-1, *[1] * (amounts.dim() - 1)), 0.0, amounts)
    begins = torch.searchsorted(group.cummax(0).values, torch.arange(size + 1, device=group.device))
    return torch.segment_reduce(amounts, "sum", offsets=begins, unsafe=True)


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
    labels = labels.reshape(-1, shape[-1])
    inner = torch.ones_like(labels, dtype=torch.bool) if position_ids is None else position_ids.reshape(labels.shape) != 0
    inner[:, 0] = False
    index = look_up(index_table, labels, ignore_index)
    flags = look_up(flag_table, labels, ignore_index)
    spans = _find(index, flags, before(flags), inner, inner, widths, values, numbers=numbers, thousands=thousands)
    # By fields: torch 2.11 does not trace vars() of a frozen dataclass.
    return NumberSpans(**{field.name: getattr(spans, field.name).reshape(shape) for field in fields(spans)})


def find_numbers_among(
    labels: Tensor,
    part_table: Tensor,
    index_table: Tensor,
    flag_table: Tensor,
    widths: Tensor,
    values: Tensor,
    *,
    position_ids: Tensor | None = None,
    numbers: Numbers = "values",
    thousands: bool = False,
    ignore_index: int = -100,
) -> tuple[Tensor, NumberSpans]:
    """:func:`find_numbers` of the tokens that can be part of a number: their positions ``[M]`` and ``[1, M]``.

    Of the text between numbers, only the token directly before such a token is looked at.
    """
    check_choice("numbers", numbers, choices(Numbers))
    flat = labels.reshape(-1)
    rows = look_up(part_table, flat, ignore_index).nonzero()[:, 0]
    if rows.numel() == 0:
        rows = rows.new_zeros(1)  # one position, and what stands there is no number
    inner = rows % labels.shape[-1] != 0
    if position_ids is not None:
        inner = inner & (position_ids.reshape(-1)[rows] != 0)
    next_to = inner & torch.cat([rows[:1] < 0, rows.diff() == 1])
    index = look_up(index_table, flat[rows][None], ignore_index)
    flags = look_up(flag_table, flat[rows][None], ignore_index)
    flags_before = look_up(flag_table, flat[rows - 1][None], ignore_index)
    options = {"numbers": numbers, "thousands": thousands}
    return rows, _find(index, flags, flags_before, inner[None], next_to[None], widths, values, **options)  # type: ignore[arg-type]


def _find(
    index: Tensor,
    flags: Tensor,
    flags_before: Tensor,
    inner: Tensor,
    next_to: Tensor,
    widths: Tensor,
    values: Tensor,
    *,
    numbers: Numbers,
    thousands: bool,
) -> NumberSpans:
    """The numbers of tokens ``[B, T]``: what each is, and in ``flags_before`` what the one before it in the text is.

    ``inner`` tells where that one is in the same document, ``next_to`` where it is also the one before it in ``index``.
    """
    if thousands and numbers == "runs":
        raise ValueError("thousands=True has no meaning for numbers='runs', which end at a comma: expected numbers='values'.")
    unspaced = (flags & SPACED) == 0
    digit = index >= 0
    safe = index.clamp_min(0)
    width = torch.where(digit, widths[safe], 0)
    tokens = Tokens.of(digit, width, next_to & unspaced, flags, torch.where(inner & unspaced, flags_before, 0))
    parts = read_numbers(tokens, thousands=thousands) if numbers == "values" else read_runs(tokens)
    return _with_places(parts, tokens, index, torch.where(digit, values[safe], 0.0))


def _with_places(parts: Parts, tokens: Tokens, index: Tensor, token_values: Tensor) -> NumberSpans:
    """Places and signs of the tokens of each number."""
    number_of, digit, powers = parts.number_of, tokens.digit, parts.powers
    none = torch.zeros_like(digit)
    is_power = none if powers is None else powers.sign != 0
    placed = digit if powers is None else digit & ~is_power
    width = tokens.width if powers is None else torch.where(placed, tokens.width, 0)
    running = width.cumsum(-1)
    goes_on = parts.joined if parts.separator is None else parts.joined | parts.separator
    # What a number's tokens must know of it: one writer each, but for the tokens of its power of ten.
    told = [
        torch.where(placed & ~after(goes_on), running, 0),
        torch.where(parts.start, running - width, 0),
    ]
    owner = number_of
    if parts.point is not None and parts.leads is not None and parts.negates is not None:
        owner = torch.where(parts.negates, parts.number + 1, number_of)
        # Digits before the point, and one more: 0 is no point.
        told += [
            torch.where(parts.point | parts.leads, running + torch.where(parts.point, 1, 1 - width), 0),
            parts.negates.long(),
        ]
    if powers is not None:
        power_width = torch.where(is_power, tokens.width, 0)
        power_right = after(power_width) + after(after(power_width))  # a power of ten has three digits at most
        told.append(powers.sign * token_values.where(is_power, 0.0).long() * 10**power_right)
    size = number_of.numel()
    known = sum_by(owner.flatten(), torch.stack(told, -1).flatten(0, 1), size)[number_of.flatten().clamp_min(0)]
    last_running, before_start, *more = known.view(*number_of.shape, len(told)).unbind(-1)
    members = number_of >= 0
    integer_end, is_fraction, negative = last_running, none, none
    if len(more) > 1:
        has_point = more[0] > 0
        integer_end = torch.where(has_point, more[0] - 1, last_running)
        is_fraction = placed & has_point & (running > integer_end)
        negative = members & (more[1] > 0)
    exponent, leading, last = integer_end - running, integer_end - before_start - 1, integer_end - last_running
    if powers is not None:
        power_of = more[2]
        exponent = torch.where(is_power, power_right, exponent + power_of)
        leading = torch.where(is_power, powers.width - 1, leading + power_of)
        last = torch.where(is_power, 0, last + power_of)
    return NumberSpans(
        index=index,
        number_of=number_of,
        is_digit=digit,
        is_start=parts.start,
        is_sign=none if parts.sign is None else parts.sign,
        is_fraction=is_fraction,
        is_power=is_power,
        exponent=torch.where(digit, exponent, 0),
        leading=torch.where(members, leading, 0),
        last=torch.where(members, last, 0),
        negative=negative,
        token_values=token_values,
    )


def check_position_ids(position_ids: Tensor, labels: Tensor) -> None:
    """Raise unless there is one position for each label."""
    if position_ids.shape != labels.shape:
        raise ValueError(
            f"position_ids has shape {tuple(position_ids.shape)} and labels {tuple(labels.shape)}: expected the same; "
            "where labels were shifted, shift position_ids along with them."
        )
