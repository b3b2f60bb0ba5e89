"""Which numbers can be read from label ids, and by which rules: what a format makes of signs, points and places."""

from __future__ import annotations

from typing import Literal, NamedTuple

from numerate.checks import check_choice, choices
from numerate.formats import NumberFormat

Numbers = Literal["values", "runs"]


class Rules(NamedTuple):
    """How the tokens of a number are found, and which places they have."""

    numbers: Numbers = "values"
    thousands: bool = False  # commas between thousands belong to the number
    spaced: bool = False  # so do single spaces between digits
    last_first: bool = False  # the digit of the lowest place is written first
    fewest: tuple[int, int] | None = None  # digits and decimals that are never padding; None: there is none

    @classmethod
    def of(
        cls,
        format: NumberFormat | str | None,
        numbers: Numbers = "values",
        *,
        thousands: bool = False,
        reader: str = "NumberSpans",
    ) -> Rules:
        """Return the rules for labels in a format of :class:`~numerate.NumericVocab`; raise if its places cannot be read.

        Args:
            format: of the vocabulary; None: plain.
            numbers: ``"values"`` or ``"runs"``; see :meth:`NumberSpans.from_labels`.
            thousands: read ``1,000`` as one number, in whatever format.
            reader: what reads the numbers, for messages.
        """
        check_choice("numbers", numbers, choices(Numbers))
        if thousands and numbers == "runs":
            raise ValueError("thousands=True does not apply to numbers='runs', which end at a comma: expected numbers='values'.")
        if not isinstance(format, NumberFormat):
            return cls(numbers, thousands)
        kinds = format.kind.split("+")
        if "exponent" in kinds:
            raise ValueError(
                f"{reader} reads complete numbers, and the vocabulary has format={format.kind!r}: the power of ten comes before "
                "the digits, whose places a model learns from it and not from where they stand. Expected another format; or use "
                "cross-entropy, or a token-level loss with places='uniform'."
            )
        if numbers == "runs" and kinds != ["padded"]:
            raise ValueError(
                f"{reader} with numbers='runs' reads every run of digits as an integer, as published code does, and the "
                f"vocabulary has format={format.kind!r}: expected numbers='values', without variant='released'; or plain or "
                "padded numbers."
            )
        return cls(
            numbers,
            thousands or "grouped" in kinds,
            "spaced" in kinds,
            "reversed" in kinds,
            (format.sizes.digits[0], format.sizes.decimals[0]) if format.padded and numbers == "values" else None,
        )


PLAIN = Rules()
