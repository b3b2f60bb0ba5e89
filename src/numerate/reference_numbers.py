"""The numbers of a label sequence, read from left to right by a plain state machine: the ground truth of NumberSpans.

Example:
    >>> texts = {**{str(d): d for d in range(10)}, ".": 10, "-": 11}
    >>> vocab = NumericVocab.from_texts(texts, vocab_size=12)
    >>> [str(number.value) for number in numbers_reference([11, 1, 2, 10, 5, -100, 7], vocab)]
    ['-25/2', '7']
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from numerate.vocab import CLOSES, COMMA, MINUS, NEGATES, POINT, SPACED, NumericToken, NumericVocab


@dataclass(frozen=True)
class Number:
    """One number of a label sequence; the lists run over its digit tokens from left to right."""

    positions: list[int]
    tokens: list[NumericToken]
    exponents: list[int]  # the place of a token's last digit is 10**exponent
    fraction: list[bool]  # whether the token stands after the point
    marks: list[int]  # positions of its point and commas
    sign_at: int | None  # position of its minus, where that is a token of its own
    negative: bool

    @property
    def leading(self) -> int:
        """Exponent of its first digit."""
        return self.exponents[0] + self.tokens[0].width - 1

    @property
    def last(self) -> int:
        """Exponent of its last digit."""
        return self.exponents[-1]

    @property
    def value(self) -> Fraction:
        """What it is worth, exactly."""
        size = sum(
            (Fraction(t.value) * Fraction(10) ** e for t, e in zip(self.tokens, self.exponents, strict=True)),
            Fraction(0),
        )
        return -size if self.negative else size

    def worth(self, j: int, token: NumericToken) -> float:
        """What ``token`` would add in the place of the j-th token, in units of the number's leading place.

        Before the point it counts by its value: 6 where 45 stands is 6. After it, digits line up on the left: 6 where
        678 stands is 0.6.
        """
        shift = self.tokens[j].width - token.width if self.fraction[j] else 0
        return token.value * 10.0 ** (self.exponents[j] - self.leading + shift)


def numbers_reference(
    labels: Sequence[int],
    vocab: NumericVocab,
    *,
    position_ids: Sequence[int] | None = None,
    numbers: str = "values",
    thousands: bool = False,
    ignore_index: int = -100,
) -> list[Number]:
    """Read the numbers of one label sequence from left to right, as a person would.

    A number is a run of digits; with ``numbers="values"`` also a sign before it, a point and digits after it. With
    ``thousands``, a comma joins where one to three digits stand before it and exactly three after it.
    """
    digits = {token.token_id: token for token in vocab.tokens}
    flags = vocab.flag_table.tolist()[1:-1]
    size = len(labels)

    def is_digit(at: int) -> bool:
        return 0 <= at < size and labels[at] != ignore_index and labels[at] in digits

    def has(at: int, flag: int) -> bool:
        known = 0 <= at < size and labels[at] != ignore_index and 0 <= labels[at] < len(flags)
        return known and bool(flags[labels[at]] & flag)

    def glued(at: int) -> bool:
        """Whether nothing stands between this token and the one before it: no space, no border of documents."""
        return at > 0 and not has(at, SPACED) and (position_ids is None or position_ids[at] != 0)

    def run_from(at: int) -> list[int]:
        """Positions of the digit tokens that follow each other from here; none if there is no digit glued here."""
        run: list[int] = []
        while is_digit(at) and glued(at):
            run.append(at)
            at += 1
        return run

    def width(run: list[int]) -> int:
        return sum(digits[labels[at]].width for at in run)

    found: list[Number] = []
    at = 0
    while at < size:
        if not is_digit(at):
            at += 1
            continue
        start = at
        whole, part, marks = [start, *run_from(start + 1)], [], []  # type: list[int], list[int], list[int]
        at = whole[-1] + 1
        if numbers == "values":
            group = whole
            while thousands and has(at, COMMA) and glued(at) and width(group) <= 3 and width(run_from(at + 1)) == 3:
                group = run_from(at + 1)
                whole, marks = whole + group, [*marks, at]
                at = group[-1] + 1
            if has(at, POINT) and glued(at) and run_from(at + 1):
                part, marks = run_from(at + 1), [*marks, at]
                at = part[-1] + 1
        minus = numbers == "values" and glued(start) and has(start - 1, MINUS)
        behind = glued(start - 1) and (is_digit(start - 2) or has(start - 2, CLOSES))  # 3-5, (a)-5: no sign
        signed = minus and not behind
        longer = numbers == "values" and glued(start) and has(start - 1, NEGATES)  # a token such as "(-"
        exponents: list[int] = []
        right = width(whole)
        for position in whole + part:
            right -= digits[labels[position]].width
            exponents.append(right)
        found.append(
            Number(
                positions=whole + part,
                tokens=[digits[labels[position]] for position in whole + part],
                exponents=exponents,
                fraction=[False] * len(whole) + [True] * len(part),
                marks=marks,
                sign_at=start - 1 if signed else None,
                negative=signed or longer,
            )
        )
    return found
