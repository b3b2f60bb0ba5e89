"""The number_skills task: add, compare, round or count digits, of integers, decimals, fractions and scientific notation.

    Which is larger, 7/18 or 5/12?                        5/12
    Round 48213 to 2 significant digits.                  48000
    What is digit 3 of 40.75, counted from the left?      7

The kinds of questions are among those of NUPA (Yang et al., Number Cookbook, ICLR 2025, arXiv:2411.03766). Conversions between
notations are left out: they do not change the value, which is what is scored.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Context, Decimal
from fractions import Fraction
from math import gcd
from typing import TYPE_CHECKING, Literal

from numerate.answers.extract import EXTRACTORS
from numerate.checks import check_choice, choices
from numerate.lab.data.arithmetic import Arithmetic, simplest_fraction, value_text
from numerate.lab.data.base import Example, Split, Task, check_whole

if TYPE_CHECKING:
    from numerate.decode.grammar import Grammar

Notation = Literal["integers", "decimals", "fractions", "scientific", "mixed"]
Skill = Literal[
    "add", "subtract", "multiply", "larger", "smaller", "round", "digit", "length", "count", "quotient", "remainder", "mixed"
]

QUESTIONS: Mapping[Skill, str] = {
    "add": "What is {a} + {b}?",
    "subtract": "What is {a} - {b}?",
    "multiply": "What is {a} * {b}?",
    "larger": "Which is larger, {a} or {b}?",
    "smaller": "Which is smaller, {a} or {b}?",
    "round": "Round {a} to {k} significant digit{s}.",
    "digit": "What is digit {k} of {a}, counted from the left?",
    "length": "How many digits does {a} have?",
    "count": "How often does the digit {k} occur in {a}?",
    "quotient": "What is {a} / {b}, rounded down to an integer?",
    "remainder": "What is the remainder of {a} / {b}?",
}
_OF_VALUES: tuple[Skill, ...] = ("add", "subtract", "multiply", "larger", "smaller")
_OF_DIGITS: tuple[Skill, ...] = ("round", "digit", "length", "count")
SKILLS: Mapping[Notation, tuple[Skill, ...]] = {
    "integers": (*_OF_VALUES, *_OF_DIGITS, "quotient", "remainder"),
    "decimals": (*_OF_VALUES, *_OF_DIGITS),
    "fractions": _OF_VALUES,
    "scientific": (*_OF_VALUES, "round"),
}
"""What is asked about numbers of each notation."""

Question = tuple[str, str]  # with its answer


@dataclass(frozen=True)
class NumberSkills(Task):
    """Questions about one or two positive numbers in a notation.

    Training and interpolation have numbers of up to ``difficulty`` digits, before the point in decimals, and in the numerator
    and denominator of fractions. Extrapolation has one or two more.

    Examples:
        >>> task = NumberSkills(notation="integers", skill="round")
        >>> example = task.examples("train", 1)[0]
        >>> example.prompt, example.answer
        ('Round 4654 to 3 significant digits.', '4650')
    """

    # ``"integers"``, ``"decimals"``, ``"fractions"`` (``7/18``), ``"scientific"`` (``4.21e5``) or ``"mixed"`` (one of the four
    # per question).
    notation: Notation = "mixed"
    skill: Skill = "mixed"  # a key of ``QUESTIONS``, or ``"mixed"``: one per question, of those that the notation has
    difficulty: int = 4  # 2 to 8

    name = "number_skills"
    number_kind = "sums"
    extractor = "rational"
    measures = Arithmetic.measures

    def __post_init__(self) -> None:
        check_choice("notation", self.notation, choices(Notation))
        check_choice("skill", self.skill, choices(Skill))
        check_whole("difficulty", self.difficulty, 2, 8)
        if not self._notations:
            fitting = [name for name, skills in SKILLS.items() if self.skill in skills]
            raise ValueError(f"notation={self.notation!r} does not have skill={self.skill!r}: expected {' or '.join(fitting)}.")

    @property
    def _notations(self) -> list[Notation]:
        return [
            name
            for name, skills in SKILLS.items()
            if self.notation in (name, "mixed") and (self.skill == "mixed" or self.skill in skills)
        ]

    def draw(self, rng: random.Random, split: Split) -> Question:
        """Draw the numbers and what is asked about them."""
        notation = rng.choice(self._notations)
        skill = rng.choice(SKILLS[notation]) if self.skill == "mixed" else self.skill
        digits = self.difficulty + rng.randint(1, 2) if split == "extrapolate" else rng.randint(1, self.difficulty)
        a, x = _number(rng, notation, digits)
        b, y = a, x
        while y == x and skill not in _OF_DIGITS:
            b, y = _number(rng, notation, digits if notation == "integers" or rng.random() < 0.5 else rng.randint(1, digits))
        written = [int(digit) for digit in a.partition("e")[0] if digit.isdigit()]
        k = {
            "round": rng.randint(1, max(1, len(written) - 1)),
            "digit": rng.randint(1, len(written)),
            "count": rng.choice(written),
        }.get(skill, 0)
        answer = {
            "add": lambda: x + y,
            "subtract": lambda: x - y,
            "multiply": lambda: x * y,
            "larger": lambda: max(x, y),
            "smaller": lambda: min(x, y),
            "round": lambda: Fraction(Context(k, ROUND_HALF_UP).create_decimal(a)),
            "digit": lambda: Fraction(written[k - 1]),
            "length": lambda: Fraction(len(written)),
            "count": lambda: Fraction(written.count(k)),
            "quotient": lambda: Fraction(x // y),
            "remainder": lambda: x % y,
        }[skill]()
        plain = skill in ("digit", "length", "count")
        return QUESTIONS[skill].format(a=a, b=b, k=k, s="" if k == 1 else "s"), _text(answer, "integers" if plain else notation)

    def make(self, spec: Question) -> Example:
        """Return the question with its answer."""
        return Example(*spec)

    @property
    def formats(self) -> tuple[str, ...]:
        """Plain numbers alone: questions are about how they are written."""
        return ("plain",)

    def number_form(self, answers: Sequence[str]) -> Grammar:
        """Return the form of numbers; of fractions and powers of ten where they occur."""
        from numerate.decode.grammar import NumberGrammar, TextGrammar

        if self.notation in ("integers", "decimals"):
            return NumberGrammar(digits=(1, 2 * self.difficulty + 5), decimals=(0, 8), leading_zeros=True)
        return TextGrammar("-0123456789./e", EXTRACTORS["number"], most=40)

    def written(self, value: Decimal) -> str:
        """Return a number; where fractions occur, the simplest one."""
        return simplest_fraction(value) if self.notation in ("fractions", "mixed") else super().written(value)


def _number(rng: random.Random, notation: Notation, digits: int) -> tuple[str, Fraction]:
    """Draw a positive number with this many digits: its text and its value."""
    whole = rng.randrange(10 ** (digits - 1), 10**digits)
    if notation == "integers":
        return str(whole), Fraction(whole)
    if notation == "decimals":
        text = f"{whole}.{rng.randrange(1, 1000)}"
        return text, Fraction(text)
    if notation == "scientific":
        text = f"{rng.randint(1, 9)}.{rng.randrange(1, 10 ** min(digits, 3))}e{rng.randint(2, 2 + digits)}"
        return text, Fraction(text)
    below = rng.randrange(max(2, 10 ** (digits - 1)), 10**digits)
    while gcd(whole, below) != 1:
        whole = rng.randrange(10 ** (digits - 1), 10**digits)
    return f"{whole}/{below}", Fraction(whole, below)


def _text(value: Fraction, notation: Notation) -> str:
    """Return an answer in a notation.

    Examples:
        >>> [_text(Fraction(4210, 4), notation) for notation in ("integers", "decimals", "fractions", "scientific")]
        ['2105/2', '1052.5', '2105/2', '1.0525e3']
    """
    if notation != "scientific" or value == 0:
        return value_text(value, notation)
    return f"{(Decimal(value.numerator) / Decimal(value.denominator)).normalize():e}".replace("e+", "e")
