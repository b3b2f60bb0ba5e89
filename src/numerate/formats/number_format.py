"""NumberFormat: how numbers are written, and read back."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from numerate.checks import check_choice, check_integer, choices
from numerate.formats.kinds import KINDS, STEPS, Sizes, is_ordinary, steps_of
from numerate.formats.patterns import NUMBER, POWER_FIRST, SPACED_NUMBER, SPACED_POWER_FIRST, Span, find_spans

if TYPE_CHECKING:
    from typing_extensions import Self

Which = Literal["answer", "all"] | re.Pattern[str] | Iterable[Span]
"""Which numbers of a text are meant: the last, all, those that a pattern matches, or those at ``(start, end)``."""

_MOST = 1000
_COMMAS = re.compile(r"[-+\u2212]?[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]+)?")
_SIGNS = "+-\u2212"


@dataclass(frozen=True)
class NumberFormat:
    """A way to write numbers, and to read them back exactly.

    Digits, decimals and the sign are kept, however many there are; thousands commas are not. Only padding does not keep the
    zeros that a number had of its own, and the value is the same.

    Args:
        kind: one of ``KINDS``: ``"plain"``, or one or several of ``padded``, ``exponent``, ``reversed``, ``grouped`` and
            ``spaced``, joined by ``+``. Each is described in :mod:`numerate.formats.kinds`.
        digits: of ``padded``: the most digits before the point, to which numbers are padded, or ``(fewest, most)``, where
            numbers are read with at least the fewest.
        decimals: of ``padded``: the most decimals, or ``(fewest, most)``.

    Examples:
        >>> NumberFormat("padded", digits=(1, 5), decimals=(0, 2)).write("12.5"), NumberFormat("reversed").write("12.5")
        ('00012.50', '5.21')
        >>> NumberFormat("spaced").write(-120), NumberFormat("exponent").write("1984.50")
        ('-1 2 0', '3:198450')
        >>> NumberFormat("padded", digits=(1, 5), decimals=(0, 2)).read("00012.50"), NumberFormat("exponent").read("-2:5")
        ('12.5', '0.05')
    """

    kind: str = "plain"
    digits: int | tuple[int, int] | None = None
    decimals: int | tuple[int, int] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "kind", ordered_kind(self.kind))
        given = self.settings
        if self.padded and (unset := [name for name in ("digits", "decimals") if name not in given]):
            raise ValueError(
                f"{' and '.join(f'{name}=None' for name in unset)}, and kind={self.kind!r} pads numbers: expected the most "
                f"{' and '.join(unset)}, such as {', '.join(f'{name}=(1, 5)' for name in unset)}; use "
                "NumberFormat.fit(labels, kind), which finds them."
            )
        for name, least in (("digits", 1), ("decimals", 0)):
            if name in given:
                if not self.padded:
                    raise ValueError(
                        f"{name}={given[name]!r} has no effect on kind={self.kind!r}: leave it out, or use a padded kind."
                    )
                object.__setattr__(self, name, _span(name, given[name], least))

    @classmethod
    def fit(cls, labels: Iterable[Any], kind: str) -> Self:
        """Return a format of a kind for the numbers of the training data.

        Args:
            labels: numbers, or texts of numbers. Only padded kinds look at them.
            kind: one of ``KINDS``.

        Examples:
            >>> NumberFormat.fit(["7", "12.5", "1984"], "padded")
            NumberFormat(kind='padded', digits=(1, 4), decimals=(0, 1))
        """
        kind = ordered_kind(kind)
        if "padded" not in kind.split("+"):
            return cls(kind)
        parts = [_ordinary(label).lstrip(_SIGNS).partition(".") for label in labels]
        if not parts:
            raise ValueError(f"labels is empty: expected the numbers of the training data, to which kind={kind!r} is fitted.")
        whole, decimals = [len(part[0]) for part in parts], [len(part[2]) for part in parts]
        return cls(kind, (min(whole), max(whole)), (min(decimals), max(decimals)))

    @property
    def padded(self) -> bool:
        """Whether numbers are padded to a fixed width."""
        return "padded" in self.kind.split("+")

    @property
    def settings(self) -> dict[str, Any]:
        """The arguments that make this format, for JSON."""
        given = {"kind": self.kind, "digits": self.digits, "decimals": self.decimals}
        return {name: value for name, value in given.items() if value is not None}

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """What a number in this format looks like in a text; digits of dates, versions and words are none."""
        spaced, exponent = "spaced" in self.kind, "exponent" in self.kind
        return (SPACED_POWER_FIRST if spaced else POWER_FIRST) if exponent else SPACED_NUMBER if spaced else NUMBER

    def fits(self, number: Any) -> bool:
        """Return whether a number has at most the digits and decimals to which numbers are padded."""
        whole, _, decimals = _ordinary(number).lstrip(_SIGNS).partition(".")
        return not self.padded or (len(whole) <= self.sizes.digits[1] and len(decimals) <= self.sizes.decimals[1])

    def write(self, number: Any, *, strict: bool = True) -> str:
        """Return the text of a number.

        Args:
            number: an integer, a float (as its ``repr``), a ``Decimal``, or its text in ordinary notation: ``-1,234.50``.
            strict: raise for a number that does not fit into the width of a padded format; otherwise, it is written with as
                many digits as it has.
        """
        if self.kind == "plain" and isinstance(number, str):
            return number
        text = _ordinary(number)
        if strict and not self.fits(text):
            raise ValueError(
                f"number={number!r} does not fit into digits={self.digits} and decimals={self.decimals}: expected at most "
                "these; fit the format to all numbers of the training data, or pass strict=False."
            )
        for step in steps_of(self.kind):
            text = step.write(text, self.sizes)
        return text

    def read(self, text: str) -> str | None:
        """Return the ordinary text of a number in this format; None if ``text`` is not one.

        A padded number may have another width.
        """
        read: str | None = text
        for step in reversed(steps_of(self.kind)):
            read = None if read is None else step.read(read, self.sizes)
        return read if read is not None and is_ordinary(read.replace(",", "")) else None

    def write_text(
        self, text: str, numbers: Which = "answer", *, keep: re.Pattern[str] | None = None, strict: bool = True
    ) -> str:
        r"""Return a text with its numbers in this format.

        Args:
            text: in ordinary notation.
            numbers: ``"answer"``: the last number; ``"all"``; a pattern (``re.compile(r"price: (\d+)")``): its matches, or its
                first group; or a list of ``(start, end)``. What is a quantity, and not part of a date, a version or a word, is
                decided as in :class:`~numerate.targets.SoftNumbers`.
            keep: a pattern of texts that stay as they are, such as ids.
            strict: raise for a number that does not fit, see :meth:`write`, or has a power of ten (``1e5``), which then stays as
                it is.

        Examples:
            >>> NumberFormat("padded", digits=5, decimals=0).write_text("12 + 345 = 357", "all")
            '00012 + 00345 = 00357'
            >>> NumberFormat("spaced").write_text("On 2024-11-14 it was 12.5 m.")
            'On 2024-11-14 it was 1 2 . 5 m.'
            >>> from numerate.formats import CLOCK
            >>> NumberFormat("padded", digits=2, decimals=0).write_text("It is 2_55.", CLOCK)
            'It is 02_55.'
        """

        def written(number: str) -> str:
            return number if not strict and not _is_number(number) else self.write(number, strict=strict)

        return _replaced(text, meant_spans(text, numbers, NUMBER, keep), written)

    def read_text(self, text: str, numbers: Which = "answer", *, keep: re.Pattern[str] | None = None) -> str:
        """Return a text with its numbers in ordinary notation; the inverse of :meth:`write_text`.

        What is not a number in this format stays as it is. A pattern in ``numbers`` is one of the text as it is given.

        Examples:
            >>> NumberFormat("padded", digits=5, decimals=0).read_text("00012 + 00345 = 00357", "all")
            '12 + 345 = 357'
            >>> NumberFormat("spaced").read_text("On 2024-11-14 it was 1 2 . 5 m.")
            'On 2024-11-14 it was 12.5 m.'
        """
        return _replaced(text, meant_spans(text, numbers, self.pattern, keep), lambda number: self.read(number) or number)

    @cached_property
    def sizes(self) -> Sizes:
        """Digits and decimals to which numbers are padded."""
        return Sizes(_span("digits", self.digits, 1), _span("decimals", self.decimals, 0)) if self.padded else Sizes()


def ordered_kind(kind: Any) -> str:
    """Return one of ``KINDS``, whose parts may be given in any order."""
    parts = kind.split("+") if isinstance(kind, str) else []
    ordered = "+".join(name for name in STEPS if name in parts)
    found: str = ordered if ordered and len(ordered) == len(kind) else kind
    check_choice("kind", found, KINDS)
    return found


def as_format(format: Any) -> NumberFormat:
    """Return a format, or the one of a kind; raise unless it is either."""
    if isinstance(format, str):
        return NumberFormat(format)
    if not isinstance(format, NumberFormat):
        raise TypeError(f"format is a {type(format).__name__}: expected a NumberFormat, or one of {', '.join(KINDS)}.")
    return format


def meant_spans(text: str, numbers: Which, pattern: re.Pattern[str], keep: re.Pattern[str] | None) -> list[Span]:
    """Return where the numbers of a text that are meant stand; ``pattern`` is what a number looks like."""
    if isinstance(numbers, re.Pattern):
        return find_spans(text, numbers, min(numbers.groups, 1), keep)
    if not isinstance(numbers, str):
        return sorted(numbers)
    check_choice("numbers", numbers, choices(Literal["answer", "all"]))
    spans = find_spans(text, pattern, keep=keep)
    return spans[-1:] if numbers == "answer" else spans


def _replaced(text: str, spans: Iterable[Span], change: Callable[[str], str]) -> str:
    parts, after = list[str](), 0
    for start, end in spans:
        parts += text[after:start], change(text[start:end])
        after = end
    return "".join([*parts, text[after:]])


def _is_number(text: str) -> bool:
    """Return whether a text is a number without a power of ten."""
    return is_ordinary(text) or _COMMAS.fullmatch(text) is not None or is_ordinary(_leading(text))


def _leading(text: str) -> str:
    """Return a text with the 0 that ``.5`` and ``-.5`` leave out."""
    sign = text[:1] if text[:1] in _SIGNS else ""
    return f"{sign}0{text[len(sign) :]}" if text[len(sign) :].startswith(".") else text


def _ordinary(number: Any) -> str:
    """Return a number in ordinary notation, without commas."""
    text = number
    if not isinstance(number, str):
        try:
            text = f"{Decimal(str(number)):f}"
        except InvalidOperation:
            text = repr(number)
    if not _is_number(text):
        raise ValueError(
            f"number={number!r:.80} is not a plain number: expected digits with an optional sign, thousands commas and decimals, "
            "such as '-1,234.50'; powers of ten such as 1e5 have no format."
        )
    return _leading(text).replace(",", "")


def _span(name: str, value: Any, least: int) -> tuple[int, int]:
    """Return ``(fewest, most)`` as two integers; one integer is the most."""
    pair = tuple(value) if isinstance(value, tuple | list) else (least, value)
    expected = f"an integer >= {least}, or (fewest, most)"
    numbers = [check_integer(name, count, expected, least=least, most=_MOST) for count in pair]
    if len(numbers) != 2 or numbers[0] > numbers[1]:
        raise ValueError(f"{name}={value!r} is out of range: expected {expected}, with fewest <= most <= {_MOST}.")
    return numbers[0], numbers[1]
