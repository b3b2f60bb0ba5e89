"""Scale: the scores that a judge may give, how they are written, and what they are worth.

A scale is the grammar of the judge's answer: a finite list of texts. The search adds up every way to write a text in tokens, so
``10`` has the right probability whether a tokenizer writes it in one token or in two, and a ``1`` that continues is no 1.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from string import ascii_letters, digits
from typing import TYPE_CHECKING

from numerate.decode.grammar import Grammar
from numerate.distribution.exact import Number, exact_number, label

if TYPE_CHECKING:
    from typing_extensions import Self

MOST_SCORES = 10_001

_NUMBERS = re.compile(r"(-?\d+(?:\.\d+)?)\s*(?:to|-|–)\s*(-?\d+(?:\.\d+)?)", re.ASCII)
_LETTERS = re.compile(r"([A-Z])\s*(?:to|-|–)\s*([A-Z])|([a-z])\s*(?:to|-|–)\s*([a-z])")
_EXPECTED = (
    "expected a range such as '1 to 10', '0.0 to 5.0' or 'A to E', a list of labels from lowest to highest, or a mapping from "
    "labels to numbers"
)


@dataclass(frozen=True)
class ScoreScale(Grammar):
    """The scores that a judge may give. Create one with :meth:`of`.

    Attributes:
        texts: how scores are written.
        numbers: the value of each text; several texts may have the same.
        instruction: what the prompt says about the answer.

    Examples:
        >>> of = ScoreScale.of
        >>> of("1 to 10").values[-1], of("A to E").value("A"), of(["poor", "fair", "good"]).value("good")
        (Decimal('10'), Decimal('5'), Decimal('3'))
        >>> of("0.0 to 1.0").texts[:4]
        ('0.0', '0', '0.1', '0.2')
    """

    texts: tuple[str, ...]
    numbers: tuple[Decimal, ...]
    instruction: str

    @classmethod
    def of(cls, scale: ScoreScale | str | Sequence[str] | Mapping[str, Number]) -> ScoreScale:
        """Create a scale.

        Args:
            scale: a range of numbers with as many decimals as they are written with, such as ``"1 to 10"`` or ``"0.0 to 5.0"``; a
                range of grades such as ``"A to E"``, of which the first letter of the alphabet is the best and the last is worth
                1; labels from lowest to highest, which are worth 1, 2, 3 and so on; or labels with their values.
        """
        if isinstance(scale, ScoreScale):
            return scale
        if isinstance(scale, str):
            if match := _NUMBERS.fullmatch(scale.strip()):
                return cls._of_numbers(scale, *match.groups())
            if match := _LETTERS.fullmatch(scale.strip()):
                first, last = sorted(letter for letter in match.groups() if letter)
                letters = [chr(code) for code in range(ord(first), ord(last) + 1)]
                told = f"Answer with a single letter from {first} (best) to {last} (worst), and nothing else."
                return cls._of_labels(scale, {letter: rank for rank, letter in enumerate(reversed(letters), 1)}, told)
            raise ValueError(f"scale={scale!r} is not a scale: {_EXPECTED}.")
        if not isinstance(scale, Mapping | Sequence):
            raise TypeError(f"scale is a {type(scale).__name__}: {_EXPECTED}.")
        values = scale if isinstance(scale, Mapping) else {text: rank for rank, text in enumerate(scale, 1)}
        if len(values) < len(scale):
            raise ValueError(f"scale={scale!r} has a label twice: expected different labels.")
        ordered = sorted(values, key=lambda text: exact_number("scale", values[text]))
        told = f"Answer with one of these, from lowest to highest, and nothing else: {', '.join(map(str, ordered))}."
        return cls._of_labels(scale, values, told)

    @classmethod
    def _of_numbers(cls, scale: str, first: str, last: str) -> Self:
        places = max(len(end.partition(".")[2]) for end in (first, last))
        low, high = (int(Decimal(end).scaleb(places)) for end in (first, last))
        if not low < high < low + MOST_SCORES:
            raise ValueError(f"scale={scale!r} is not a scale: expected the lower end first, and at most {MOST_SCORES:,} scores.")
        values = [Decimal(step).scaleb(-places) for step in range(low, high + 1)]
        forms = {text: value for value in values for text in _forms(f"{value:f}")}
        told = f"Answer with a number from {first} (lowest) to {last} (highest), and nothing else."
        return cls(tuple(forms), tuple(forms.values()), told)

    @classmethod
    def _of_labels(cls, scale: object, values: Mapping[str, Number], told: str) -> Self:
        for text in values:
            if not isinstance(text, str) or not text or text != text.strip():
                raise ValueError(f"scale={scale!r} has the label {text!r}: expected texts without white space around them.")
        numbers = tuple(exact_number("scale", value) for value in values.values())
        if len({*numbers}) < 2:
            raise ValueError(f"scale={scale!r} has {len({*numbers})} different values: expected two at least.")
        return cls(tuple(values), numbers, told)

    @cached_property
    def values(self) -> tuple[Decimal, ...]:
        """The different values, sorted."""
        return tuple(sorted({*self.numbers}))

    @property
    def alphabet(self) -> str:
        """Characters of scores, and those that would continue them."""
        own = {character for text in self.texts for character in text}
        return "".join(sorted(own | {*digits} | (set() if self._numeric else {*ascii_letters})))

    @property
    def max_length(self) -> int:
        """Length of the longest score."""
        return max(map(len, self.texts))

    def state(self, prefix: str) -> Hashable | None:
        """Return ``prefix`` if a score starts with it, else None."""
        return prefix if prefix in self._prefixes else None

    def accepts(self, text: str) -> bool:
        """Whether ``text`` is a score."""
        return text in self._values

    def value(self, text: str) -> Decimal | None:
        """Return the value of a score; None if it is none."""
        return self._values.get(text)

    def belongs(self, character: str) -> bool:
        """Whether a character after a score makes another word or number of it, which is no score: 100, or Answer."""
        return character in (digits if self._numeric else digits + ascii_letters)

    def __str__(self) -> str:
        return f"{label(self.values[0])} to {label(self.values[-1])}"

    @cached_property
    def _values(self) -> dict[str, Decimal]:
        return dict(zip(self.texts, self.numbers, strict=True))

    @cached_property
    def _prefixes(self) -> frozenset[str]:
        return frozenset(text[:end] for text in self.texts for end in range(len(text) + 1))

    @cached_property
    def _numeric(self) -> bool:
        return {character for text in self.texts for character in text} <= {*digits, ".", "-"}


def _forms(text: str) -> Iterator[str]:
    """Yield the ways to write a number: 4.50, 4.5."""
    yield text
    while "." in text and text[-1] in "0.":
        text = text[:-1]
        if text[-1] != ".":
            yield text
