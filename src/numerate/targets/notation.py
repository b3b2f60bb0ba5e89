"""How a label is written: its decimals, zeros, thousands commas, minus and power of ten; and other values in that form."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

from numerate.distribution.exact import EXACT
from numerate.marks import DASHES

_PARTS = re.compile(
    rf"(?P<sign>[+{re.escape(DASHES)}]?)(?P<whole>[0-9]{{1,3}}(?:,[0-9]{{3}})+|[0-9]*)(?P<point>\.?)(?P<decimals>[0-9]*)"
    r"(?P<power>(?:[eE][-+]?[0-9]{1,9})?)"
)
_SHORT = 10**18  # Python's own text of an int ends at 4,300 digits


@dataclass(frozen=True)
class Notation:
    """The form of a written number.

    A value is written with the label's decimals, thousands commas, leading zeros and power of ten. A minus sign is written as the
    label writes it, else as ``-``; a plus is left out.

    Examples:
        >>> Notation.of("1,984.50").write(Decimal("1000000.126"))
        '1,000,000.13'
        >>> Notation.of("-.5").write(Decimal("0.25")), Notation.of("007").write(Decimal(12))
        ('.2', '012')
        >>> Notation.of("1.5e3").write(Decimal(900))
        '0.9e3'
    """

    value: Decimal
    places: int  # decimals before the power of ten
    digits: int  # digits before the point, at least: 3 for 007, 0 for .5
    commas: bool
    minus: str
    point: str  # "." in "84.", which has no decimals
    power: str

    @classmethod
    def of(cls, label: str) -> Notation:
        """Read how ``label`` is written; raise unless it is one number and nothing else."""
        match = _PARTS.fullmatch(label) if isinstance(label, str) else None
        if match is None or not (match["whole"] or match["decimals"]):
            raise ValueError(
                f"label={label!r:.80} is not a plain number: expected a text such as '84.50', '-7' or '1,250'; choose with "
                "`where` which part of a text is the number."
            )
        whole, decimals, power = match["whole"].replace(",", ""), match["decimals"], match["power"]
        minus = match["sign"] if match["sign"] not in ("", "+") else ""
        padded = len(whole) > 1 and whole[0] == "0"
        return cls(
            EXACT.create_decimal(f"{'-' if minus else ''}{whole or '0'}.{decimals or '0'}{power}"),
            len(decimals),
            len(whole) if padded else min(len(whole), 1),
            "," in match["whole"],
            minus or "-",
            match["point"] if not decimals else "",
            power,
        )

    @property
    def decimals(self) -> int:
        """Decimals of the value: 2 for 84.50, -2 for 1.5e3."""
        return self.places - self._exponent

    @property
    def _exponent(self) -> int:
        return int(self.power[1:] or 0)

    def write(self, value: Decimal) -> str:
        """Write a value in this form, rounded to its decimals."""
        step = Decimal((0, (1,), -self.places))
        mantissa = EXACT.quantize(EXACT.scaleb(value, -self._exponent), step)
        return self.write_step(int(EXACT.scaleb(mantissa, self.places)))

    def write_steps(self, steps: Sequence[int]) -> list[str]:
        """Write several values as :meth:`write_step` does, integers in one go."""
        plain = not (self.places or self.commas or self.point or self.power) and self.digits <= 1 and self.minus == "-"
        if plain and -_SHORT < min(steps) <= max(steps) < _SHORT:
            return [*map(str, steps)]
        return [*map(self.write_step, steps)]

    def write_step(self, steps: int) -> str:
        """Write the value ``steps · 10^-decimals`` in this form."""
        size = abs(steps)
        digits = str(size if size < _SHORT else Decimal(size)).zfill(self.places + 1)
        whole, decimals = (digits[: -self.places], digits[-self.places :]) if self.places else (digits, "")
        whole = whole.zfill(self.digits) if self.digits or whole != "0" else ""
        if self.commas:
            head = len(whole) % 3
            whole = ",".join(filter(None, [whole[:head], *(whole[i : i + 3] for i in range(head, len(whole), 3))]))
        sign = self.minus if steps < 0 else ""
        return f"{sign}{whole}{'.' + decimals if decimals else self.point}{self.power}"
