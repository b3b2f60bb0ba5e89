"""NumberSpans: numbers in label ids, with sign, point and place value; vectorised.

With one to three digits per token, ``12345.678`` is ``123 | 45 | . | 678``: the place of ``123`` is 10², of ``45`` 10⁰, of
``678`` 10⁻³. The digits of a power of ten (the 3 of ``1.5e-3``) belong to the number but have no place in it.

Reading labels neither loops over tokens nor syncs with a GPU, and no shape depends on the data: S numbers use the first S of B·T
slots. Only properties that return ``[S]`` tensors truncate them.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from numerate.checks import check_labels
from numerate.marks import SPACED
from numerate.spans.lexer import Tokens, before, read_numbers, read_runs
from numerate.spans.places import EXACT_DIGITS, find_places, power_of_ten, top_digit
from numerate.spans.readable import PLAIN, Numbers, Rules
from numerate.spans.segments import extreme_by, sum_by
from numerate.spans.spaced import close_gaps
from numerate.vocab import NumericVocab, look_up

_OF_NUMBER = ("number_of", "leading", "last", "negative")  # fields that are facts of a number


@dataclass(frozen=True)
class NumberSpans:
    """The numbers in a batch of labels. All tensors have the shape of the labels, ``[.., T]``.

    Attributes:
        index: index of the token among the numeric tokens, -1 for other tokens.
        number_of: index of the number that the token belongs to, counted through the batch; -1 for none. Sign, point, commas,
            spaces of a spaced number, and power of ten belong to the number.
        is_digit: mask of tokens with digits, including those of a power of ten.
        is_start: mask of the first digit token of each number.
        is_sign: mask of minus signs that are separate tokens; ``(-`` is not in the mask, but makes its number negative.
        is_fraction: mask of tokens with digits after the point; before it in a reversed number.
        is_power: mask of tokens with digits of a power of ten: the 5 of ``1e-5``. Their exponent, leading and last are those
            within the power.
        exponent: the lowest place of the token's digits is ``10**exponent``; 0 for tokens without digits.
        leading: exponent of the highest place of the token's number; zeros of a padded format do not count.
        last: exponent of the lowest place of the token's number; zeros of a padded format do not count.
        negative: whether the token's number is negative.
        token_values: value of the token's digits, float64, 0 for tokens without digits: 120 for ``021`` in a reversed number.

    Examples:
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
        """Find the numbers in ``labels``, written in the format of the vocabulary.

        Args:
            labels: token ids ``[.., T]``; ``ignore_index`` and every id outside the vocabulary end a number.
            vocab: the numeric tokens. Formats with the power of ten first are refused.
            position_ids: position ``[.., T]`` of each label's token; a 0 starts a new document.
            numbers: ``"values"`` reads sign, point and power of ten; ``"runs"`` reads every run of digits as an integer, as
                the published NTIL and ``ntloss`` code do.
            thousands: read ``1,000`` as one number.
            ignore_index: label of ignored positions.
        """
        return find_numbers(
            labels,
            vocab.index_table.to(labels.device),
            vocab.flag_table.to(labels.device),
            vocab.widths.to(labels.device),
            vocab.number_values.to(labels.device),
            position_ids=position_ids,
            rules=Rules.of(vocab.format, numbers, thousands=thousands),
            ignore_index=ignore_index,
        )

    @property
    def count(self) -> Tensor:
        """S, the number of numbers, as a 0-d tensor."""
        return self.is_start.sum()

    @property
    def place(self) -> Tensor:
        """Place value of each digit token, float64; 0 for digits of a power of ten and other tokens."""
        self._refuse_beyond_float64(torch.where(self.has_place, self.exponent, 0))
        return torch.where(self.has_place, power_of_ten(self.exponent), 0.0)

    @property
    def has_place(self) -> Tensor:
        """Mask of tokens with digits that have a place in their number; digits of a power of ten have none."""
        return self.is_digit & ~self.is_power

    @property
    def values(self) -> Tensor:
        """The numbers ``[S]`` in float64, correctly rounded up to 15 digits and 22 places after the point."""
        top, last = self._first_digits()
        self._refuse_beyond_float64(top)
        # Up to 15 digits the integer of all digits is exact, and one division by a power of ten rounds correctly.
        exact = top - last < EXACT_DIGITS
        base = torch.where(exact, last, top)
        total = self._sum_above(base)
        # Numbers below 1e-308 need two divisions: float64 has no 10**400.
        small = total / power_of_ten((-base).clamp(0, 308)) / power_of_ten((-base - 308).clamp_min(0))
        value = torch.where(base < 0, small, total * power_of_ten(base))
        negative = self.per_number((self.is_start & self.negative).long())[: value.shape[0]]
        return torch.where(negative > 0, -value, value)

    @property
    def log10(self) -> Tensor:
        """``log10 |value|`` of each number ``[S]``; -inf for zero, finite for numbers beyond float64."""
        top, _ = self._first_digits()
        return self._sum_above(top).log10() + top

    def _first_digits(self) -> tuple[Tensor, Tensor]:
        """Return the exponents ``[S]`` of each number's first nonzero digit and of its last digit."""
        group, count = torch.where(self.has_place, self.number_of, -1).flatten(), int(self.count)
        first = torch.where(self.token_values != 0, self.exponent + top_digit(self.token_values), self.last)
        top = extreme_by(group, first.flatten(), "amax")
        return top[:count], extreme_by(group, self.exponent.flatten(), "amin")[:count]

    def _sum_above(self, base: Tensor) -> Tensor:
        """Return each number ``[S]`` without its sign, in units of ``10**base``."""
        shift = self.exponent - base[self.number_of.clamp(0, max(0, base.shape[0] - 1))] if base.numel() else self.exponent
        amounts = torch.where(self.has_place & (self.token_values != 0), self.token_values * power_of_ten(shift), 0.0)
        return self.per_number(amounts)[: base.shape[0]]

    @property
    def relative_values(self) -> Tensor:
        """Contribution of each digit token to its number, in units of the number's leading place; 0 elsewhere."""
        return torch.where(self.has_place, self.token_values * self.relative_place, 0.0)

    @property
    def relative_place(self) -> Tensor:
        """Place of each token in units of its number's leading place: at most 1 for digits, 0 for those of a power of ten."""
        return torch.where(self.is_power, 0.0, torch.pow(10.0, (self.exponent - self.leading).double()))

    def per_number(self, amounts: Tensor) -> Tensor:
        """Sum ``amounts [.., T]`` over the tokens of each number, into ``[B·T]`` slots of which S are used."""
        return sum_by(self.number_of.flatten(), amounts.flatten(), self.number_of.numel())

    @staticmethod
    def _refuse_beyond_float64(exponent: Tensor) -> None:
        if bool((exponent > 307).any()):
            raise OverflowError(
                f"a number of {int(exponent.max()) + 1} digits is beyond float64 (1.8e308): expected fewer than 309 before the "
                "point. Use .log10, or .relative_values with .leading, as the losses do."
            )


def find_numbers(
    labels: Tensor,
    index_table: Tensor,
    flag_table: Tensor,
    widths: Tensor,
    values: Tensor,
    *,
    position_ids: Tensor | None = None,
    rules: Rules = PLAIN,
    ignore_index: int = -100,
) -> NumberSpans:
    """Find the numbers as :meth:`NumberSpans.from_labels` does, with the vocabulary's tables on the labels' device."""
    check_labels(labels)
    if position_ids is not None:
        check_position_ids(position_ids, labels)
    shape = labels.shape
    labels = labels.reshape(shape[:-1].numel(), shape[-1])
    inner = torch.ones_like(labels, dtype=torch.bool) if position_ids is None else position_ids.reshape(labels.shape) != 0
    inner[:, :1] = False
    index = look_up(index_table, labels, ignore_index)
    flags = look_up(flag_table, labels, ignore_index)
    spans = _read(index, flags, before(flags), inner, inner, widths, values, rules)
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
    rules: Rules = PLAIN,
    ignore_index: int = -100,
) -> tuple[Tensor, NumberSpans]:
    """Find the numbers among the M tokens that can be part of one; return their positions ``[M]`` and spans ``[1, M]``.

    Other tokens are read only directly before one of these.
    """
    flat = labels.reshape(-1)
    rows = look_up(part_table, flat, ignore_index).nonzero()[:, 0]
    inner = rows % max(1, labels.shape[-1]) != 0
    if position_ids is not None:
        inner = inner & (position_ids.reshape(-1)[rows] != 0)
    next_to = inner & torch.cat([rows[:1] < 0, rows.diff() == 1])
    index = look_up(index_table, flat[rows][None], ignore_index)
    flags = look_up(flag_table, flat[rows][None], ignore_index)
    flags_before = look_up(flag_table, flat[rows - 1][None], ignore_index)
    return rows, _read(index, flags, flags_before, inner[None], next_to[None], widths, values, rules)


def _read(
    index: Tensor,
    flags: Tensor,
    flags_before: Tensor,
    inner: Tensor,
    next_to: Tensor,
    widths: Tensor,
    values: Tensor,
    rules: Rules,
) -> NumberSpans:
    """Read the numbers of tokens ``[B, T]``; ``flags_before`` are the flags of the token before each one in the text.

    ``inner``: that token is in the same document. ``next_to``: it also precedes the token in ``index``.
    """
    digit = index >= 0
    safe = index.clamp_min(0)
    width = torch.where(digit, widths[safe], 0)
    token_values = torch.where(digit, values[safe], 0.0)
    if not rules.spaced:
        unspaced = (flags & SPACED) == 0
        tokens = Tokens.of(digit, width, next_to & unspaced, flags, torch.where(inner & unspaced, flags_before, 0))
        return NumberSpans(index=index, is_digit=digit, token_values=token_values, **_found(tokens, token_values, rules))
    tokens, order = close_gaps(digit, width, next_to, flags, flags_before, inner)
    found = _found(tokens, order.moved(token_values), rules)
    restored = {name: order.restored(x, of_number=name in _OF_NUMBER) for name, x in found.items()}
    return NumberSpans(index=index, is_digit=digit, token_values=token_values, **restored)


def _found(tokens: Tokens, token_values: Tensor, rules: Rules) -> dict[str, Tensor]:
    """Return the fields of :class:`NumberSpans` that depend on other tokens."""
    parts = read_numbers(tokens, thousands=rules.thousands) if rules.numbers == "values" else read_runs(tokens)
    places = find_places(parts, tokens, token_values, last_first=rules.last_first, fewest=rules.fewest)
    return {"number_of": parts.number_of, "is_start": parts.start, **places}


def check_position_ids(position_ids: Tensor, labels: Tensor) -> None:
    """Raise unless ``position_ids`` has the shape of ``labels``."""
    if position_ids.shape != labels.shape:
        raise ValueError(
            f"position_ids has shape {tuple(position_ids.shape)} and labels {tuple(labels.shape)}: expected the same; "
            "if you shift labels, shift position_ids too."
        )
