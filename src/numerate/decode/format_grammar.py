r"""FormatGrammar: which texts are numbers in a format: padded, reversed, spaced, with the power of ten first.

Numbers of ``n`` digits that are written alike, such as ``-##.#``, share a form, in which each is an integer ``m`` in units of its
last digit. Bounds on the value are bounds on ``m``. After a prefix with ``k`` of the digits, the others make up an integer ``x``:

    most significant digit first    m = known · 10^(n-k) + x        reversed    m = x · 10^k + known

so the prefix is allowed if and only if some ``x`` is within the bounds, in some form. Continuations depend only on the rest of
the forms and the range of ``x`` in each: that is the state. Reversed numbers have few states too.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from typing import Any, NamedTuple

from numerate.decode.grammar import ANY_NUMBER, Grammar, NumberGrammar
from numerate.formats import NumberFormat, as_format

_NO_DIGIT = re.compile(r"[^0-9]+")
_MASKED = str.maketrans(dict.fromkeys("0123456789", "#"))


class Form(NamedTuple):
    """Numbers that are written alike: their text with ``#`` for each digit, and the range of the integer that the digits make."""

    mask: str
    low: int
    high: int


@dataclass(frozen=True)
class FormatGrammar(Grammar):
    """Numbers of a range, written in a format.

    Args:
        format: how they are written.
        numbers: which numbers: sign, digits, decimals and range. Padding replaces its digits and decimals.

    Examples:
        >>> grammar = FormatGrammar(NumberFormat("reversed"), NumberGrammar(decimals=0, lowest=0, highest=120))
        >>> grammar.accepts("021"), grammar.accepts("121"), grammar.following("12"), grammar.value("021")
        (True, False, '', Decimal('120'))
    """

    format: NumberFormat
    numbers: NumberGrammar

    def __post_init__(self) -> None:
        if not self._forms:
            raise ValueError(
                f"{self!r} contains no number: expected at least one between lowest={self.numbers.lowest} and "
                f"highest={self.numbers.highest} with these digits and decimals; allow more of them."
            )

    @cached_property
    def alphabet(self) -> str:
        """Characters of the grammar's numbers."""
        marks = {character for form in self._forms for character in form.mask} - {"#", *"0123456789"}
        return "".join(sorted(marks)) + "0123456789"

    @cached_property
    def max_length(self) -> int:
        """Length of the longest text."""
        return max(len(form.mask) for form in self._forms)

    @cached_property
    def joint(self) -> str:
        """The space between digits, if there is one."""
        return " " if "spaced" in self.format.kind else ""

    def accepts(self, text: str) -> bool:
        """Whether ``text`` is a complete number of the grammar."""
        return any(not rest for rest, _, _ in self._open(text))

    def value(self, text: str) -> Decimal:
        """Return the value of a number of the grammar."""
        return Decimal(self.format.read(text) or "NaN")

    def write(self, text: str) -> str:
        """Return how a number in ordinary notation is written."""
        return self.format.write(text, strict=False)

    def count_decimals(self, text: str) -> int:
        """Return how many decimals a number of the grammar is written with."""
        padding = self.format.sizes.decimals[1]
        return padding if self.format.padded else super().count_decimals(self.format.read(text) or "")

    def state(self, prefix: str) -> Hashable | None:
        """Return a key that is equal only for prefixes with the same continuations; None if no number starts with ``prefix``."""
        return self._open(prefix) or None

    def _open(self, prefix: str) -> tuple[Form, ...]:
        """Return the rest of each form in which some number starts with ``prefix``, and the range of its digits as an integer."""
        if "#" in prefix:
            return ()
        shape, digits = self._shape(prefix)
        known, count = int((digits[::-1] if self._reversed else digits) or "0"), len(digits)
        unit, found = 10**count, list[Form]()
        for (mask, low, high), length in self._starts.get(shape, ()):
            values = 10 ** (length - count)  # of the rest
            if self._reversed:
                low, high = -((known - low) // unit), (high - known) // unit
            else:
                low, high = low - known * values, high - known * values
            low, high = max(low, 0), min(high, values - 1)
            if low <= high:
                found.append(Form(mask[len(prefix) :], low, high))
        return tuple(found)

    def _shape(self, text: str) -> tuple[str, str]:
        """Return a text with ``#`` for the digits of the number, and these digits; the power of ten stays as it is."""
        power, colon, rest = text.partition(":") if self._exponent else ("", "", text)
        return power + colon + rest.translate(_MASKED), _NO_DIGIT.sub("", rest)

    @cached_property
    def _reversed(self) -> bool:
        return "reversed" in self.format.kind

    @cached_property
    def _exponent(self) -> bool:
        return "exponent" in self.format.kind

    @cached_property
    def _starts(self) -> dict[str, list[tuple[Form, int]]]:
        """The forms, with the number of their digits, by each prefix of their masks."""
        found: dict[str, list[tuple[Form, int]]] = defaultdict(list)
        for form in self._forms:
            for end in range(len(form.mask) + 1):
                found[form.mask[:end]].append((form, form.mask.count("#")))
        return dict(found)

    @cached_property
    def _forms(self) -> tuple[Form, ...]:
        return tuple(dict.fromkeys(form for form in self._all_forms() if form.low <= form.high))

    def _all_forms(self) -> Iterator[Form]:
        """Yield the forms of all signs, digits and decimals, with the range of each."""
        numbers = self.numbers
        (least, most), (fewest, longest) = numbers.spans
        if self.format.padded:
            sizes = self.format.sizes
            (least, most), (fewest, longest) = (sizes.digits[1],) * 2, (sizes.decimals[1],) * 2
        for negative in (False, True) if numbers.sign else (False,):
            for digits in range(least, most + 1):
                for decimals in range(fewest, longest + 1):
                    low, high = numbers.magnitudes(negative, digits, decimals)
                    yield from self._written(negative, digits, decimals, low, high)

    def _written(self, negative: bool, digits: int, decimals: int, low: int, high: int) -> Iterator[Form]:
        """Yield the forms of numbers with these many digits, whose integer of all digits is in a range."""
        free, size = self.numbers.leading_zeros or self.format.padded, digits + decimals
        bottom = 0 if free or digits == 1 else 10 ** (size - 1)
        low, high = max(low, bottom), min(high, 10**size - 1)
        sample = f"{'-' if negative else ''}{'1' * digits}{'.' if decimals else ''}{'1' * decimals}"
        if not self._exponent:
            yield Form(self.format.write(sample).translate(_MASKED), low, high)
            return
        # The first digit decides the power of ten; that of a number below 1 is the first that is not 0.
        for zeros in range(size if digits == 1 else 1):
            tail = "0." + "0" * (zeros - 1) + "1" * (size - zeros) if zeros else sample.removeprefix("-")
            shape, _ = self._shape(self.format.write(("-" if negative else "") + tail))
            yield Form(shape, max(low, 10 ** (size - zeros - 1)), min(high, 10 ** (size - zeros) - 1))
        if low <= 0 <= high:
            shape, _ = self._shape(self.format.write(sample))
            yield Form(shape, 0, 0)


def format_grammar(format: NumberFormat | str, numbers: NumberGrammar | None = None, **settings: Any) -> Grammar:
    """Return the grammar of numbers in a format, as functions that take ``grammar=`` and ``format=`` make it.

    Args:
        format: how the numbers are written.
        numbers: which numbers. Default: ``NumberGrammar(**settings)``.
        **settings: of :class:`NumberGrammar`: ``lowest``, ``highest``, ``decimals``, ``digits``, ``sign``.

    Examples:
        >>> format_grammar(NumberFormat("padded", digits=5, decimals=2), lowest=0).accepts("00012.50")
        True
        >>> format_grammar("spaced", lowest=0, highest=99).following("4 2")
        ' '
    """
    format = as_format(format)
    numbers = NumberGrammar(**settings) if numbers is None else numbers
    return numbers if format.kind == "plain" else FormatGrammar(format, numbers)


def check_grammar(
    grammar: Grammar | None, format: NumberFormat | str | None = None, default: NumberGrammar = ANY_NUMBER
) -> Grammar:
    """Return the grammar of a search, ``default`` for None, of numbers in a format if there is one; raise unless it is one."""
    grammar = default if grammar is None else grammar
    if not isinstance(grammar, Grammar):
        raise TypeError(
            f"grammar is a {type(grammar).__name__}: expected a NumberGrammar, a TextGrammar, or None; pass how numbers are "
            "written as format."
        )
    if format is None:
        return grammar
    if not isinstance(grammar, NumberGrammar):
        raise TypeError(f"grammar is a {type(grammar).__name__} with format={format!r}: expected a NumberGrammar, or None.")
    return format_grammar(format, grammar)
