"""The math_vision task: find a length, angle, area or perimeter in a geometric figure.

    Find the area of the trapezoid PQRS. Answer with a number.       496

``problems`` has the kinds of problem, ``figures`` the drawing.
Real data: MathVista (Lu et al., ICLR 2024, arXiv:2310.02255) and MathVision (Wang et al., NeurIPS 2024, arXiv:2402.14804).
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from string import ascii_uppercase
from typing import TYPE_CHECKING, Any, NamedTuple

from numerate.answers.extract import EXTRACTORS
from numerate.answers.metrics import METRICS
from numerate.lab.data.base import Example, Split, Task, check_whole
from numerate.lab.data.math_vision.figures import STYLES, Layout, laid_out, render, turned
from numerate.lab.data.math_vision.problems import FAMILIES, Draw, Problem, ProblemNumbers
from numerate.lab.data.pictures import Picture
from numerate.lab.data.row_reader import BadData, RowReader, column, existing, photo

if TYPE_CHECKING:
    from PIL.Image import Image

NAMES = ("ABCDE", "PQRST", "JKLMN", "DEFGH", "UVWYZ")
HINT = "Answer with a number."

_LETTER = re.compile(r"\(([A-Z])\)|\b([A-Z])\W*$")
_ANSWER = re.compile(r"\banswer(?:\s+is\b|\s*:)+", re.IGNORECASE)
_LIST = re.compile(r"\[[^\[\]]*\]")
_BOXED = re.compile(r"\\boxed\{((?:[^{}]|\{[^{}]*\})*)\}")


class DrawnProblem(NamedTuple):
    """A problem (family and numbers) and its appearance (names of points, rotation in degrees, mirrored or not, style)."""

    family: str
    numbers: ProblemNumbers
    names: str
    turn: int
    mirror: bool
    style: int


@dataclass(frozen=True)
class MathVision(Task):
    """Find a length, an angle, an area or a perimeter in a figure that is drawn to scale.

    In training, every length is at most ``largest`` and every angle a multiple of 5 degrees. In extrapolation, every length
    is larger, and no angle is a multiple of 5.

    In real data, a numeric answer is compared as a number, rounded to the decimals that the dataset asks for. The answer to a
    multiple choice is the letter, or the text of that choice. Any other answer is compared as text. For the last two, the
    relative error is 0 or infinite, and ``within_5`` equals ``exact``.

    Examples:
        >>> example = MathVision().examples("train", 1)[0]
        >>> example.prompt, example.answer
        ('Find the area of the trapezoid PQRS. Answer with a number.', '496')
    """

    largest: int = 50  # the largest length in training, 20 to 1000
    size: int = 384  # width of the image in pixels, 224 to 2048

    name = "math_vision"
    dataset = "MathVista or MathVision"
    number_kind = "sums"
    measures = ("exact", "parsed", "relative_error", "within_5")
    visual = True

    def __post_init__(self) -> None:
        check_whole("largest", self.largest, 20, 1000)
        check_whole("size", self.size, 224, 2048)

    def draw(self, rng: random.Random, split: Split) -> DrawnProblem:
        """Draw a problem and its appearance."""
        name = rng.choice(list(FAMILIES))
        family = FAMILIES[name]
        numbers = family.draw(Draw(rng, self.largest, split == "extrapolate"))
        turn = rng.randint(-family.turn, family.turn)
        return DrawnProblem(name, numbers, rng.choice(NAMES), turn, rng.random() < 0.5, rng.randrange(len(STYLES)))

    def make(self, spec: DrawnProblem) -> Example:
        """Return a question about a figure, which is drawn."""
        problem = FAMILIES[spec.family].build(spec.numbers, spec.names)
        answer = str(problem.answer) if problem.answer.denominator == 1 else str(float(problem.answer))
        return Example(f"{problem.question} {HINT}", answer, Picture(figure_image, (spec, self.size)), {"family": spec.family})

    def content(self, spec: DrawnProblem) -> Any:
        """Return the problem; ignores its appearance."""
        return spec[:2]

    def score(self, example: Example, output: str) -> dict[str, float]:
        """Return every metric of an output; the class docstring explains choices and texts."""
        choices, precision = example.meta.get("choices", ()), example.meta.get("precision")
        gold = None if choices else EXTRACTORS["number"](example.answer)
        if gold is not None:
            guess: Fraction | None = self.read(output)
            guess = guess if guess is None or precision is None else round(guess, precision)
            return {name: METRICS[name](gold, guess) for name in self.measures}
        said = _choice(output, choices) if choices else _text(output, example.answer)
        right = METRICS["string_match"](_plain(example.answer), None if said is None else _plain(said))
        parsed = METRICS["parsed"](example.answer, said)
        return {"exact": right, "parsed": parsed, "relative_error": 0.0 if right else float("inf"), "within_5": right}

    def read_files(self, path: Path, reader: RowReader) -> Mapping[Split, Sequence[Example]]:
        """Read MathVista's ``testmini.json``, MathVision's ``test.jsonl`` or ``testmini.jsonl``, or a folder with them.

        They may be in ``data/`` of that folder. The column ``image`` (``images/1.jpg``) is relative to the file's folder or its
        parent. MathVista's columns are ``question``, ``image``, ``choices``, ``unit``, ``precision``, ``answer`` and
        ``answer_type``; those of MathVision are ``question``, ``options``, ``image`` and ``answer``. Duplicate rows are
        dropped. All rows are ``interpolate``, unless the file name starts with "train".
        """
        places = [path, path / "data"] if path.is_dir() else []
        files = sorted(file for place in places for file in place.glob("t*.json*")) if places else [path]
        if not files:
            expected = "Expected MathVista's testmini.json or MathVision's test.jsonl."
            raise BadData("has no test*.json or test*.jsonl", expected, path)
        rows: dict[Split, dict[object, Example]] = {"train": {}, "interpolate": {}}
        for file in files:
            split: Split = "train" if file.stem.startswith("train") else "interpolate"
            for line, row in reader.jsonl(file) if file.suffix != ".json" else reader.json_list(file, numbered=True):
                with reader.row(file, line):
                    example = math_question(row, file.parent)
                    rows[split][example.prompt, example.answer, example.picture] = example
        return {split: list(questions.values()) for split, questions in rows.items()}


def figure_image(spec: DrawnProblem, size: int) -> Image:
    """Return the figure of a problem, ``size`` pixels wide."""
    problem = FAMILIES[spec.family].build(spec.numbers, spec.names)
    return render(arranged(problem, spec, size), STYLES[spec.style])


def arranged(problem: Problem, spec: DrawnProblem, size: int) -> Layout:
    """Lay out the figure of a problem; rotate it in steps of 5 degrees until every label has room."""
    most = FAMILIES[spec.family].turn
    for further in range(0, 2 * most, 5):
        turn = (spec.turn + most + further) % (2 * most + 1) - most
        layout = laid_out(turned(problem.figure, turn, spec.mirror), size)
        if layout.clear:
            break
    return layout


def math_question(row: dict[str, Any], folder: Path) -> Example:
    """Read a row of MathVista or MathVision."""
    question, answer = str(column(row, "question")).strip(), str(column(row, "answer") or "").strip()
    if not answer:
        raise BadData("the answer is empty", "MathVista withholds the answers of its test split: use testmini.")
    choices = tuple(str(choice) for choice in row.get("choices") or row.get("options") or ())
    places = [place / str(column(row, "image")) for place in (folder, folder.parent)]
    image = existing(next((place for place in places if place.is_file()), places[0]))
    if row.get("unit"):
        question += f" (Unit: {row['unit']})"
    meta = {"choices": choices, "precision": None}
    if not choices:
        precision = row.get("precision") if row.get("answer_type") == "float" else None
        decimals = None if precision is None else int(precision)
        return Example(f"{question}\n{_hint(answer, decimals)}", answer, photo(image), {**meta, "precision": decimals})
    letters = ascii_uppercase[: len(choices)]
    letter = letters[choices.index(answer)] if answer in choices and "choices" in row else answer
    if letter not in letters:
        problem = f"the answer {answer!r} is none of the choices {', '.join(choices)}"
        raise BadData(problem, "Expected one of them, or its letter.")
    listed = "\n".join(f"({letter}) {choice}" for letter, choice in zip(letters, choices, strict=True))
    return Example(f"{question}\n{listed}\nAnswer with the letter of the choice.", letter, photo(image), meta)


def _hint(answer: str, decimals: int | None) -> str:
    if EXTRACTORS["number"](answer) is None:
        return "Answer with the result alone."
    return HINT if decimals is None else f"Answer with a number with {decimals} decimal{'s' if decimals > 1 else ''}."


def _choice(output: str, choices: Sequence[str]) -> str | None:
    """Return the letter that an output chooses, directly or by the text of the choice."""
    letters = ascii_uppercase[: len(choices)]
    said = _plain(_said(output))
    if said.upper() in letters and len(said) == 1:
        return said.upper()
    texts = [_plain(choice) for choice in choices]
    if said in texts:
        return letters[texts.index(said)]
    first = re.match(r"\W*([A-Z])\b", _said(output)) if _ANSWER.search(output) else None
    chosen = [first[1]] if first else ["".join(groups) for groups in _LETTER.findall(output)]
    return chosen[-1] if chosen and chosen[-1] in letters else None


def _text(output: str, answer: str) -> str | None:
    """Return the answer of an output as text; if the gold answer is a list, the last list in the output."""
    if not answer.startswith("["):
        return _said(output) or None
    lists = _LIST.findall(output)
    return lists[-1] if lists else None


def _said(output: str) -> str:
    r"""Return the last ``\boxed{}`` of an output, else the line after its last "answer:" or "answer is", else all of it."""
    boxed = _BOXED.findall(output)
    return (boxed[-1] if boxed else _ANSWER.split(output)[-1].strip().partition("\n")[0]).strip()


def _plain(text: str) -> str:
    """Remove case, spaces, dollar signs, stars, a final full stop, and brackets around a letter."""
    text = re.sub(r"[\s$*]+", "", text).rstrip(".").casefold()
    return text[1:-1] if re.fullmatch(r"\([a-z]\)", text) else text
