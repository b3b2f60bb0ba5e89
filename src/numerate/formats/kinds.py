"""The kinds of formats: each rewrites the text of a number, and reads it back.

A format is one kind, or several joined by ``+``: ``padded+spaced`` pads the number, then spaces it. ``KINDS`` lists all of them.
A number's ordinary text is an optional sign, digits, and optionally a point with decimals: ``-12.50``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import combinations
from typing import ClassVar

_ORDINARY = re.compile(r"([-+\u2212]?)([0-9]+)(?:\.([0-9]+))?")
_POWER = re.compile(r"(-?[0-9]{1,4}):([-+\u2212]?)([0-9]+)")


@dataclass(frozen=True)
class Sizes:
    """Fewest and most digits before the point, and fewest and most decimals, of a padded number."""

    digits: tuple[int, int] = (1, 1)
    decimals: tuple[int, int] = (0, 0)


class FormatStep:
    """Rewrites the ordinary text of a number, or a text that an earlier kind made of it."""

    excludes: ClassVar[frozenset[str]] = frozenset()
    """Kinds with which this one makes no sense."""

    summary: ClassVar[str]
    """For lists of kinds."""

    @staticmethod
    def write(text: str, sizes: Sizes) -> str:
        """Return the text in this kind."""
        raise NotImplementedError

    @staticmethod
    def read(text: str, sizes: Sizes) -> str | None:
        """Return the text that :meth:`write` would make this of; None if there is none."""
        raise NotImplementedError


class Padded(FormatStep):
    """Zeros up to a fixed number of digits before and after the point: ``12.5`` is ``00012.50``.

    For arithmetic, where digits of the same place then stand at the same position, and for answers that may not go on forever:
    the model always writes the same number of digits. Needs to know the largest number; a larger one cannot be trained on.
    Zeros that a number had of its own are not told apart from those of the padding.
    """

    excludes = frozenset({"exponent"})
    summary = "zeros to a fixed width"

    @staticmethod
    def write(text: str, sizes: Sizes) -> str:
        """Pad a number."""
        sign, whole, decimals = _parts(text)
        decimals = decimals.ljust(sizes.decimals[1], "0")
        return f"{sign}{whole.zfill(sizes.digits[1])}{'.' if decimals else ''}{decimals}"

    @staticmethod
    def read(text: str, sizes: Sizes) -> str | None:
        """Strip the padding; None if the text does not have this form."""
        if not _ORDINARY.fullmatch(text):
            return None
        sign, whole, decimals = _parts(text)
        whole = whole.lstrip("0").zfill(sizes.digits[0])
        decimals = decimals.rstrip("0").ljust(sizes.decimals[0], "0")
        return f"{sign}{whole}{'.' if decimals else ''}{decimals}"


class Exponent(FormatStep):
    """The power of ten of the first digit, a colon, and the digits: ``1234.5`` is ``3:12345``, and ``-0.05`` is ``-2:-5``.

    For numbers of very different sizes: the first token says how large the number is. Digits of the same place stand at the same
    distance from the colon only in numbers of the same size, so sums are as hard as in plain text. Losses that read complete
    numbers from labels do not support it.
    """

    excludes = frozenset({"padded", "reversed", "grouped"})
    summary = "power of ten first"

    @staticmethod
    def write(text: str, sizes: Sizes) -> str:
        """Put the power of ten first."""
        sign, whole, decimals = _parts(text)
        power, digits = len(whole) - 1, whole + decimals
        if whole == "0" and decimals.strip("0"):
            digits = decimals.lstrip("0")
            power = len(digits) - len(decimals) - 1
        return f"{power}:{sign}{digits}"

    @staticmethod
    def read(text: str, sizes: Sizes) -> str | None:
        """Read the power of ten and the digits; None if the text does not have this form."""
        match = _POWER.fullmatch(text)
        if match is None or abs(int(match[1])) > _MOST_POWER:
            return None
        power, digits = int(match[1]), match[3]
        digits = "0" * -min(power, 0) + digits.ljust(power + 1, "0")
        point = max(power, 0) + 1
        plain = f"{match[2]}{digits[:point]}{'.' if digits[point:] else ''}{digits[point:]}"
        return plain if Exponent.write(plain, sizes) == text else None  # not 3:12 for 1200, which is 3:1200


class Reversed(FormatStep):
    """The last digit first: ``12.5`` is ``5.21``, and ``-120`` is ``-021``.

    For sums and products of models that are trained from scratch: each digit of the result depends on digits written before it.
    A prefix says little about the value, so a search for likely numbers prunes less well, and pre-trained models expect the
    usual order.
    """

    excludes = frozenset({"exponent", "grouped"})
    summary = "last digit first"

    @staticmethod
    def write(text: str, sizes: Sizes) -> str:
        """Reverse a number."""
        sign, whole, decimals = _parts(text)
        return sign + (f"{whole}.{decimals}" if decimals else whole)[::-1]

    @staticmethod
    def read(text: str, sizes: Sizes) -> str | None:
        """Reverse a number again; None if the text does not have this form."""
        return Reversed.write(text, sizes) if _ORDINARY.fullmatch(text) else None


class Grouped(FormatStep):
    """Commas between thousands: ``12345.5`` is ``12,345.5``.

    For tokenizers with up to three digits to a token: they cut digits from the left, so that ``12345`` is ``123|45``; the commas
    make it ``12|,|345``, with the same places in each token. Of no use with one digit to a token.
    """

    excludes = frozenset({"exponent", "reversed", "spaced"})
    summary = "commas between thousands"

    @staticmethod
    def write(text: str, sizes: Sizes) -> str:
        """Put commas between thousands."""
        sign, whole, decimals = _parts(text)
        head = len(whole) % 3
        groups = [whole[:head], *(whole[i : i + 3] for i in range(head, len(whole), 3))]
        return f"{sign}{','.join(filter(None, groups))}{'.' if decimals else ''}{decimals}"

    @staticmethod
    def read(text: str, sizes: Sizes) -> str | None:
        """Remove the commas; None if the text does not have this form."""
        plain = text.replace(",", "")
        return plain if _ORDINARY.fullmatch(plain) and Grouped.write(plain, sizes) == text else None


class Spaced(FormatStep):
    """Spaces between all characters but the sign: ``-12.5`` is ``-1 2 . 5``.

    For tokenizers with several digits to a token, which then give each digit a token of its own. Numbers become two to six times
    as many tokens, and several numbers that only spaces separate can no longer be told apart.
    """

    excludes = frozenset({"grouped"})
    summary = "spaces between digits"

    @staticmethod
    def write(text: str, sizes: Sizes) -> str:
        """Put spaces between the characters."""
        return re.sub(r"(?<=[0-9.:])(?!\Z)", " ", text)

    @staticmethod
    def read(text: str, sizes: Sizes) -> str | None:
        """Remove the spaces; None if the text does not have this form."""
        tight = text.replace(" ", "")
        return tight if Spaced.write(tight, sizes) == text else None


_MOST_POWER = 1000

STEPS: dict[str, type[FormatStep]] = {
    "padded": Padded,
    "exponent": Exponent,
    "reversed": Reversed,
    "grouped": Grouped,
    "spaced": Spaced,
}
"""The kinds that change a number, in the order in which they are applied."""


def _combined() -> tuple[str, ...]:
    """Return every kind and every combination that makes sense."""
    found = ["plain"]
    for count in range(1, len(STEPS) + 1):
        for names in combinations(STEPS, count):
            if not any(STEPS[name].excludes & {*names} for name in names):
                found.append("+".join(names))
    return tuple(found)


KINDS = _combined()
"""All kinds of formats; ``plain`` changes nothing."""


def steps_of(kind: str) -> tuple[type[FormatStep], ...]:
    """Return the steps of a kind, in the order in which they are applied."""
    return tuple(step for name, step in STEPS.items() if name in kind.split("+"))


def is_ordinary(text: str) -> bool:
    """Return whether a text is a number in ordinary notation, without commas and powers of ten."""
    return _ORDINARY.fullmatch(text) is not None


def _parts(text: str) -> tuple[str, str, str]:
    """Return sign, integer digits and decimals of a number in ordinary notation."""
    match = _ORDINARY.fullmatch(text)
    assert match is not None  # NumberFormat checks
    return match[1], match[2], match[3] or ""
