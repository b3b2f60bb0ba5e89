"""The arithmetic task: compute the exact value of an expression.

    Calculate -12 + 4*(3 - 19).        -76
    What is 7/6 - 2/9?                 17/18

Real data: the text files of DeepMind's mathematics_dataset (Saxton et al., Analysing Mathematical Reasoning Abilities of
Neural Models, ICLR 2019, arXiv:1904.01557), ``arithmetic__mixed`` and others of its kind: a question line, then an answer line.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from numerate.answers.extract import EXTRACTORS
from numerate.checks import check_choice, choices
from numerate.distribution.exact import exact_number
from numerate.lab.data.base import Example, Split, Task, check_whole
from numerate.lab.data.row_reader import BadData, RowReader

if TYPE_CHECKING:
    from numerate.decode.grammar import Grammar

Operands = Literal["integers", "decimals", "rationals", "mixed"]
Wording = Literal["varied", "bare"]
ArithmeticSpec = tuple[str, str, str]  # wording, expression, answer

QUESTIONS = ("Calculate {}.", "What is {}?", "Evaluate {}.", "What is the value of {}?")
_SUM, _PRODUCT, _ATOM = 1, 2, 3  # operator precedence


@dataclass(frozen=True)
class Arithmetic(Task):
    """Expressions of integers, decimals or fractions.

    Training and interpolation have 1 to ``longest`` operations on numbers of up to ``difficulty`` digits. Extrapolation has
    one or two more operations, and its numbers have one more digit; with ``extra_digits``, its numbers alone are longer.

    Examples:
        >>> task = Arithmetic(difficulty=2)
        >>> example = task.examples("train", 1)[0]
        >>> example.prompt, example.answer
        ('What is 60*15?', '900')
        >>> task.score(example, "It is 900.")["exact"]
        1.0
    """

    # ``"integers"`` (``+ - *``), ``"decimals"`` (one or two places), ``"rationals"`` (``+ - * /``, answers such as ``17/18``), or
    # ``"mixed"`` (one of the three per question).
    operands: Operands = "integers"
    difficulty: int = 2  # 1 to 8
    longest: int | None = None  # the most operations in a training question, 1 to 10; default: ``difficulty``
    operations: str = "+-*/"  # which of ``+-*/`` occur; ``/`` only between rationals
    signed: bool = True  # whether the operands may be negative; answers may be negative in any case
    wording: Wording = "varied"  # ``"varied"`` asks in four ways; ``"bare"`` writes ``3+4=``, which small models learn sooner
    # The most digits that numbers of extrapolation have beyond ``difficulty``, 1 to 8, with as many operations as in training.
    extra_digits: int | None = None

    name = "arithmetic"
    dataset = "files of mathematics_dataset"
    number_kind = "sums"
    in_expressions = True
    extractor = "rational"
    measures = (
        *("exact", "parsed", "absolute_error", "relative_error", "log10_error", "smape"),
        *("within_1", "within_5", "within_10", "magnitude", "sign"),
    )

    def __post_init__(self) -> None:
        check_choice("operands", self.operands, choices(Operands))
        check_choice("wording", self.wording, choices(Wording))
        check_whole("difficulty", self.difficulty, 1, 8)
        if self.longest is not None:
            check_whole("longest", self.longest, 1, 10)
        if self.extra_digits is not None:
            check_whole("extra_digits", self.extra_digits, 1, 8)
        if not self.operations or set(self.operations) - set("+-*/"):
            raise ValueError(f"operations={self.operations!r} is not known: expected some of '+-*/'.")
        if set(self.operations) == {"/"} and self.operands != "rationals":
            raise ValueError(f"operations='/' needs operands='rationals', not {self.operands!r}: others leave a remainder.")

    def draw(self, rng: random.Random, split: Split) -> ArithmeticSpec:
        """Draw an expression and compute its value."""
        operands = self.operands if self.operands != "mixed" else rng.choice(("integers", "decimals", "rationals"))
        far = split == "extrapolate"
        longest = self.longest or self.difficulty
        longer = far and self.extra_digits is None
        count = longest + rng.randint(1, 2) if longer else rng.randint(1, longest)
        digits = self.difficulty + (rng.randint(1, self.extra_digits) if far and self.extra_digits else far)
        signs = [sign for sign in self.operations if sign != "/" or operands == "rationals"]
        while True:
            text, value, _ = _expression(rng, count, operands, digits, far, signs or ["+"], self.signed)
            # Skip very long answers: they test copying, not arithmetic.
            if value is not None and value.denominator < 10 ** (digits + 1) and abs(value) < 10 ** (3 * digits + 1):
                if self.wording == "bare":
                    return "{}=", text.replace(" ", ""), value_text(value, operands)
                return rng.choice(QUESTIONS), text, value_text(value, operands)

    def make(self, spec: ArithmeticSpec) -> Example:
        """Insert the expression into its wording."""
        wording, text, answer = spec
        return Example(wording.format(text), answer)

    def content(self, spec: ArithmeticSpec) -> str:
        """Return the expression; ignores the wording."""
        return spec[1]

    def number_form(self, answers: Sequence[str]) -> Grammar:
        """Return the form of numbers; of fractions too where they occur, as in ``17/18``."""
        from numerate.decode.grammar import NumberGrammar, TextGrammar

        if self._has_fractions:
            return TextGrammar("-0123456789./", EXTRACTORS["number"], most=40)
        if answers:
            return super().number_form(answers)
        decimals = 24 if self.operands == "decimals" else 2  # a denominator below 10^7 may be 2^23
        return NumberGrammar(
            digits=(1, 3 * (self.difficulty + (self.extra_digits or 1)) + 3), decimals=(0, decimals), leading_zeros=True
        )

    def written(self, value: Decimal) -> str:
        """Return a number; where fractions occur, as :func:`simplest_fraction`."""
        return simplest_fraction(value) if self._has_fractions else super().written(value)

    @property
    def _has_fractions(self) -> bool:
        if self.rows is None:
            return self.operands in ("rationals", "mixed")
        return any("/" in row.answer for rows in self.rows.values() for row in rows)

    def read_files(self, path: Path, reader: RowReader) -> Mapping[Split, Sequence[Example]]:
        """Read one file, or a folder of ``train-easy__*.txt``, ``interpolate__*.txt``, ``extrapolate__*.txt``, also as ``.gz``.

        The start of the file's name, or of its folder's name, gives the split.
        """
        files = sorted(file for file in path.rglob("*") if file.name.endswith((".txt", ".txt.gz"))) if path.is_dir() else [path]
        if not files:
            raise BadData("has no .txt or .txt.gz files", "Expected those of mathematics_dataset.", path)
        rows: dict[Split, list[Example]] = {"train": [], "interpolate": [], "extrapolate": []}
        for file in files:
            rows[_split_of(file)] += _pairs(file, reader)
        return rows


def simplest_fraction(value: Decimal) -> str:
    """Return the simplest fraction with the same 28 digits.

    Decisions keep 28 digits of 17/18. That is enough to find a fraction again unless its terms have some 20 digits.

    Examples:
        >>> simplest_fraction(Decimal(17) / Decimal(18)), simplest_fraction(Decimal("2.50"))
        ('17/18', '5/2')
    """
    nearest = (Fraction(value).limit_denominator(10**power) for power in count())
    return str(next(fraction for fraction in nearest if exact_number("value", fraction) == value))


def _expression(
    rng: random.Random, count: int, operands: str, digits: int, far: bool, signs: Sequence[str], signed: bool
) -> tuple[str, Fraction | None, int]:
    """Draw an expression of ``count`` operations: its text, its value (None if it divides by zero), and its precedence."""
    if count == 0:
        return _operand(rng, operands, digits, far, signed)
    left_count = rng.randrange(count)
    left, a, left_binds = _expression(rng, left_count, operands, digits, far, signs, signed)
    right, b, right_binds = _expression(rng, count - 1 - left_count, operands, digits, far, signs, signed)
    sign = rng.choice(signs)
    binds = _SUM if sign in "+-" else _PRODUCT
    left = f"({left})" if left_binds < binds or (binds == _PRODUCT and left.startswith("-")) else left
    right = f"({right})" if right_binds <= binds and (right_binds < binds or sign in "-/") else right
    if binds == _PRODUCT and right.startswith("-"):
        right = f"({right})"
    text = f"{left} {sign} {right}" if binds == _SUM else f"{left}{sign}{right}"
    if a is None or b is None or (sign == "/" and b == 0):
        return text, None, binds
    value = a + b if sign == "+" else a - b if sign == "-" else a * b if sign == "*" else a / b
    return text, value, binds


def _operand(rng: random.Random, operands: str, digits: int, far: bool, signed: bool) -> tuple[str, Fraction, int]:
    # Draw the length first, so that short numbers are as common as long ones; in extrapolation all are long.
    length = digits if far else rng.randint(1, digits)
    whole = rng.randrange(10 ** (length - 1) if length > 1 else 0, 10**length)
    if signed and rng.random() < 0.4:
        whole = -whole
    if operands == "decimals":
        places = rng.randint(1, 2)
        value = Fraction(whole * 10**places + rng.randrange(10**places) * (-1 if whole < 0 else 1), 10**places)
        return value_text(value, "decimals"), value, _ATOM
    if operands == "rationals" and rng.random() < 0.5:
        value = Fraction(whole, rng.randint(2, 10 ** min(digits, 2) - 1))
        return str(value), value, _ATOM if value.denominator == 1 else _PRODUCT
    return str(whole), Fraction(whole), _ATOM


def value_text(value: Fraction, operands: str) -> str:
    """Return the value as ``-3``, ``2.75`` or ``17/18``."""
    if operands != "decimals" or value.denominator == 1:
        return str(value)
    return f"{(Decimal(value.numerator) / Decimal(value.denominator)).normalize():f}"


def _split_of(file: Path) -> Split:
    parts = (file.name, file.parent.name)
    return next((split for part in parts for split in get_args(Split) if part.startswith(split)), "train")


def _number(answer: str) -> str:
    """Check that an answer is one number or fraction: in ``-1a3`` or ``2*sqrt(3)`` the last number would be read."""
    if EXTRACTORS["number"](answer) is None:
        remedy = "Expected a number such as -3, 2.75 or 17/18; skip_bad=True (--skip-bad) skips such rows."
        raise BadData(f"the answer {answer!r:.60} is not one number", remedy)
    return answer


def _pairs(file: Path, reader: RowReader) -> list[Example]:
    expected = "Expected a question line, then an answer line."
    pairs: list[Example] = []
    question: tuple[int, str] | None = None
    for line, text in reader.lines(file):
        with reader.row(file, line):
            if question is None:
                if not text.strip():
                    raise BadData("is empty instead of a question", expected)
                question = line, text
                continue
            asked, question = question[1], None
            if not text.strip():
                raise BadData("is empty instead of an answer", expected)
            pairs.append(Example(asked, _number(text.strip())))
    if question is not None:
        with reader.row(file, question[0]):
            raise BadData("the last question has no answer", "The file may be truncated: download it again.")
    return pairs
