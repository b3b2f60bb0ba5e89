"""Arithmetic: an expression in, its exact value out.

    Calculate -12 + 4*(3 - 19).        -76
    What is 7/6 - 2/9?                 17/18

Real data: the text files of DeepMind's mathematics_dataset (Saxton et al., Analysing Mathematical Reasoning Abilities of
Neural Models, ICLR 2019, arXiv:1904.01557), ``arithmetic__mixed`` and its siblings: a question line, an answer line.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

from numerate.answers.extract import EXTRACTORS
from numerate.lab.tasks.base import Example, Split, Task
from numerate.lab.tasks.files import BadData, Reader, column
from numerate.messages import check_choice, choices

Numbers = Literal["integers", "decimals", "rationals", "mixed"]
Wording = Literal["varied", "bare"]
Spec = tuple[str, str, str]  # how it is asked, what is asked, the answer

QUESTIONS = ("Calculate {}.", "What is {}?", "Evaluate {}.", "What is the value of {}?")
_SUM, _PRODUCT, _ATOM = 1, 2, 3  # how tightly an expression binds
_SPLITS: tuple[tuple[str, Split], ...] = (("train", "train"), ("interpolate", "interpolate"), ("extrapolate", "extrapolate"))


@dataclass(frozen=True)
class Arithmetic(Task):
    """Expressions of whole numbers, decimals or fractions.

    Training and interpolation have 1 to ``longest`` operations on numbers of up to ``difficulty`` digits; extrapolation has
    one or two operations more, and its numbers have a digit more.

    Args:
        numbers: ``"integers"`` (``+ - *``), ``"decimals"`` (one or two places), ``"rationals"`` (``+ - * /``, answers such as
            ``17/18``), or ``"mixed"``, one of them each time.
        difficulty: 1 to 5.
        longest: the most operations of a training question; as many as the difficulty unless given.
        operations: which of ``+-*/`` occur; ``/`` only between rationals.
        signed: whether the numbers of a question may be negative; those of an answer may be in any case.
        wording: ``"varied"`` asks in four ways, ``"bare"`` writes ``3+4=``, which small models learn sooner.

    Example:
        >>> task = Arithmetic(difficulty=2)
        >>> example = task.examples("train", 1)[0]
        >>> example.prompt, example.answer
        ('What is 60*15?', '900')
        >>> task.score(example, "It is 900.")["exact"]
        1.0
    """

    numbers: Numbers = "integers"
    difficulty: int = 2
    longest: int | None = None
    operations: str = "+-*/"
    signed: bool = True
    wording: Wording = "varied"

    name = "arithmetic"
    extractor = "rational"
    measures = (
        *("exact", "parsed", "absolute_error", "relative_error", "log10_error", "smape"),
        *("within_1", "within_5", "within_10", "magnitude", "sign"),
    )

    def __post_init__(self) -> None:
        check_choice("numbers", self.numbers, choices(Numbers))
        check_choice("wording", self.wording, choices(Wording))
        if self.difficulty not in range(1, 6):
            raise ValueError(f"difficulty={self.difficulty!r} is out of range: expected 1, 2, 3, 4 or 5.")
        if self.longest is not None and self.longest not in range(1, 11):
            raise ValueError(f"longest={self.longest!r} is out of range: expected 1 to 10.")
        if not self.operations or set(self.operations) - set("+-*/"):
            raise ValueError(f"operations={self.operations!r} is not known: expected some of '+-*/'.")
        if set(self.operations) == {"/"} and self.numbers != "rationals":
            raise ValueError(f"operations='/' needs numbers='rationals', not {self.numbers!r}: only they divide without a rest.")

    def draw(self, rng: random.Random, split: Split) -> Spec:
        """An expression and its value."""
        numbers = self.numbers if self.numbers != "mixed" else rng.choice(("integers", "decimals", "rationals"))
        far = split == "extrapolate"
        longest = self.longest or self.difficulty
        count = longest + rng.randint(1, 2) if far else rng.randint(1, longest)
        digits = self.difficulty + far
        signs = [sign for sign in self.operations if sign != "/" or numbers == "rationals"]
        while True:
            text, value, _ = _expression(rng, count, numbers, digits, far, signs or ["+"], self.signed)
            # Answers as long as the questions would be about patience, not about arithmetic.
            if value is not None and value.denominator < 10 ** (digits + 1) and abs(value) < 10 ** (3 * digits + 1):
                if self.wording == "bare":
                    return "{}=", text.replace(" ", ""), _written(value, numbers)
                return rng.choice(QUESTIONS), text, _written(value, numbers)

    def make(self, spec: Spec) -> Example:
        """Text is all there is to it."""
        asked, text, answer = spec
        return Example(asked.format(text), answer)

    def content(self, spec: Spec) -> str:
        """The expression, however it is asked for."""
        return spec[1]

    def read_row(self, row: dict[str, Any]) -> list[Spec]:
        """Columns ``question`` and ``answer``; some copies hold them as bytes written out, with ``b'`` before them."""
        texts = (str(column(row, name)).strip() for name in ("question", "answer"))
        question, answer = (text[2:-1].removesuffix("\\n") if text.startswith("b'") else text for text in texts)
        return [("{}", question, _number(answer))]

    def read_files(self, path: Path, reader: Reader) -> Mapping[Split, Sequence[Spec]]:
        """One file, or a folder of ``train-easy__*.txt``, ``interpolate__*.txt``, ``extrapolate__*.txt``, also as ``.gz``.

        A file's split is what its name, or its folder's, begins with.
        """
        files = sorted(file for file in path.rglob("*") if file.name.endswith((".txt", ".txt.gz"))) if path.is_dir() else [path]
        if not files:
            raise BadData("no .txt or .txt.gz files are here", "Expected those of mathematics_dataset.", path)
        rows: dict[Split, list[Spec]] = {"train": [], "interpolate": [], "extrapolate": []}
        for file in files:
            rows[_split_of(file)] += _pairs(file, reader)
        return rows


def _expression(
    rng: random.Random, count: int, numbers: str, digits: int, far: bool, signs: Sequence[str], signed: bool
) -> tuple[str, Fraction | None, int]:
    """An expression of ``count`` operations: its text, its value (None if it divides by zero), and how tightly it binds."""
    if count == 0:
        return _operand(rng, numbers, digits, far, signed)
    left_count = rng.randrange(count)
    left, a, left_binds = _expression(rng, left_count, numbers, digits, far, signs, signed)
    right, b, right_binds = _expression(rng, count - 1 - left_count, numbers, digits, far, signs, signed)
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


def _operand(rng: random.Random, numbers: str, digits: int, far: bool, signed: bool) -> tuple[str, Fraction, int]:
    # Lengths are drawn first, so that short numbers are as common as long ones; outside the range all are long.
    length = digits if far else rng.randint(1, digits)
    whole = rng.randrange(10 ** (length - 1) if length > 1 else 0, 10**length)
    if signed and rng.random() < 0.4:
        whole = -whole
    if numbers == "decimals":
        places = rng.randint(1, 2)
        value = Fraction(whole * 10**places + rng.randrange(10**places) * (-1 if whole < 0 else 1), 10**places)
        return _written(value, "decimals"), value, _ATOM
    if numbers == "rationals" and rng.random() < 0.5:
        value = Fraction(whole, rng.randint(2, 10 ** min(digits, 2) - 1))
        return str(value), value, _ATOM if value.denominator == 1 else _PRODUCT
    return str(whole), Fraction(whole), _ATOM


def _written(value: Fraction, numbers: str) -> str:
    """``-3``, ``2.75`` or ``17/18``."""
    if numbers != "decimals" or value.denominator == 1:
        return str(value)
    return f"{(Decimal(value.numerator) / Decimal(value.denominator)).normalize():f}"


def _split_of(file: Path) -> Split:
    for part in (file.name, file.parent.name):
        for prefix, split in _SPLITS:
            if part.startswith(prefix):
                return split
    return "train"


def _number(answer: str) -> str:
    """An answer that is a number or a fraction, and nothing else: ``-1a3`` or ``2*sqrt(3)`` would be read as 3."""
    if EXTRACTORS["number"](answer) is None:
        raise BadData(
            f"the answer {answer!r:.60} is not one number", "Expected such as -3, 2.75 or 17/18; see skip_bad (--skip-bad)."
        )
    return answer


def _pairs(file: Path, reader: Reader) -> list[Spec]:
    pairs: list[Spec] = []
    question: tuple[int, str] | None = None
    for line, text in reader.lines(file):
        with reader.row(file, line):
            if question is None:
                if not text.strip():
                    raise BadData("is empty where a question belongs", "Expected a question line, then an answer line.")
                question = line, text
                continue
            asked, question = question[1], None
            if not text.strip():
                raise BadData("is empty where an answer belongs", "Expected a question line, then an answer line.")
            pairs.append(("{}", asked, _number(text.strip())))
    if question is not None:
        with reader.row(file, question[0]):
            raise BadData("the last question has no answer", "The file may be truncated: download it again.")
    return pairs
