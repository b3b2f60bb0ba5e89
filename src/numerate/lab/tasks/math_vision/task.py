"""Mathematics in pictures: a figure with lengths and angles, one of which is to be found.

Real data: MathVista (Lu et al., ICLR 2024, arXiv:2310.02255) and MathVision (Wang et al., NeurIPS 2024, arXiv:2402.14804).
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from string import ascii_uppercase
from typing import TYPE_CHECKING, Any, NamedTuple

from numerate.answers.extract import EXTRACTORS
from numerate.answers.metrics import METRICS
from numerate.lab.tasks.base import Example, Split, Task
from numerate.lab.tasks.files import BadData, Reader, column, existing
from numerate.lab.tasks.math_vision.angles import ANGLES
from numerate.lab.tasks.math_vision.figures import STYLES, Layout, laid_out, render, turned
from numerate.lab.tasks.math_vision.geometry import Draw, Numbers, Problem
from numerate.lab.tasks.math_vision.lengths import LENGTHS

if TYPE_CHECKING:
    from PIL.Image import Image

FAMILIES = LENGTHS | ANGLES
NAMES = ("ABCDE", "PQRST", "JKLMN", "DEFGH", "UVWYZ")
HINT = "Answer with a number."

_LETTER = re.compile(r"\(([A-Z])\)|\b([A-Z])\W*$")
_ANSWER = re.compile(r"\banswer(?:\s+is\b|\s*:)+", re.IGNORECASE)
_LIST = re.compile(r"\[[^\[\]]*\]")
_BOXED = re.compile(r"\\boxed\{((?:[^{}]|\{[^{}]*\})*)\}")


class Drawn(NamedTuple):
    """A problem: its family and numbers; and how it looks: names of points, turn in degrees, mirrored or not, style."""

    family: str
    numbers: Numbers
    names: str
    turn: int
    mirror: bool
    style: int


class Asked(NamedTuple):
    """A row of a dataset: a picture (or where it lies), question, answer, choices if any, and decimals of the answer."""

    image: Path | Image
    prompt: str
    answer: str
    choices: tuple[str, ...] = ()
    precision: int | None = None


@dataclass(frozen=True)
class MathVision(Task):
    """Find a length, an angle, an area or a perimeter in a figure that is drawn to scale.

    Training: every length in a figure is at most ``largest``, and every angle a multiple of 5 degrees. Extrapolation: every
    length is larger, and no angle is a multiple of 5.

    Of real data, an answer that is a number is compared as one, rounded to the decimals that the dataset asks for. An answer
    to a multiple choice is the letter; it is also right as the choice's text. Any other answer is compared as text. For
    the last two, the relative error is 0 or infinite, and ``within_5`` is ``exact``.

    Args:
        largest: the largest length of training, from 20 to 1000.
        size: of the picture's width, in pixels.

    Example:
        >>> example = MathVision().examples("train", 1)[0]
        >>> example.prompt, example.answer
        ('PQRS is a rectangle. Find x. Answer with a number.', '21')
    """

    largest: int = 50
    size: int = 384

    name = "math_vision"
    extractor = "last_number"
    measures = ("exact", "parsed", "relative_error", "within_5")
    visual = True

    def __post_init__(self) -> None:
        for name, low, high in (("largest", 20, 1000), ("size", 224, 2048)):
            value = getattr(self, name)
            if not isinstance(value, int) or not low <= value <= high:
                raise ValueError(f"{name}={value!r} is out of range: expected a whole number from {low} to {high}.")

    def draw(self, rng: random.Random, split: Split) -> Drawn:
        """A problem, and how it looks."""
        name = rng.choice(list(FAMILIES))
        family = FAMILIES[name]
        numbers = family.draw(Draw(rng, self.largest, split == "extrapolate"))
        turn = rng.randint(-family.turn, family.turn)
        return Drawn(name, numbers, rng.choice(NAMES), turn, rng.random() < 0.5, rng.randrange(len(STYLES)))

    def make(self, spec: Drawn | Asked) -> Example:
        """The picture and the question."""
        if isinstance(spec, Asked):
            from numerate.lab.tasks.drawing import open_image

            meta = {"choices": spec.choices, "precision": spec.precision}
            return Example(spec.prompt, spec.answer, open_image(spec.image), meta)
        problem = FAMILIES[spec.family].build(spec.numbers, spec.names)
        layout = arranged(problem, spec, self.size)
        answer = str(problem.answer) if problem.answer.denominator == 1 else str(float(problem.answer))
        return Example(f"{problem.question} {HINT}", answer, render(layout, STYLES[spec.style]), {"family": spec.family})

    def content(self, spec: Drawn) -> Any:
        """The problem; not how it is turned and drawn."""
        return spec[:2]

    def score(self, example: Example, output: str) -> dict[str, float]:
        """Every measure of an output; see the class for choices and texts."""
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

    def read_row(self, row: dict[str, Any]) -> list[Asked]:
        """See :func:`asked`."""
        return [asked(row)]

    def read_files(self, path: Path, reader: Reader) -> Mapping[Split, Sequence[Asked]]:
        """MathVista's ``testmini.json``, MathVision's ``test.jsonl`` or ``testmini.jsonl``, or a folder with them.

        They may be in ``data/`` of that folder. Images lie beside the file or one folder up, where the column ``image`` says
        (``images/1.jpg``). MathVista's columns are ``question``, ``image``, ``choices``, ``unit``, ``precision``, ``answer``
        and ``answer_type``; those of MathVision are ``question``, ``options``, ``image`` and ``answer``. A row that stands in
        two files counts once. All rows are ``interpolate``, unless the file's name begins with "train".
        """
        places = [path, path / "data"] if path.is_dir() else []
        files = sorted(file for place in places for file in place.glob("t*.json*")) if places else [path]
        if not files:
            raise BadData(
                "no test*.json or test*.jsonl is here", "Expected MathVista's testmini.json or MathVision's test.jsonl.", path
            )
        rows: dict[Split, dict[Asked, None]] = {"train": {}, "interpolate": {}}
        for file in files:
            split: Split = "train" if file.stem.startswith("train") else "interpolate"
            for line, row in _rows(file, reader):
                with reader.row(file, line):
                    rows[split][asked(row, file.parent)] = None
        return {split: list(found) for split, found in rows.items()}


def arranged(problem: Problem, spec: Drawn, size: int) -> Layout:
    """The figure of a problem, turned as drawn or else a little further, until every label has room."""
    most = FAMILIES[spec.family].turn
    for further in range(0, 2 * most, 5):
        turn = (spec.turn + most + further) % (2 * most + 1) - most
        layout = laid_out(turned(problem.figure, turn, spec.mirror), size)
        if layout.clear:
            break
    return layout


def asked(row: Mapping[str, Any], folder: Path = Path()) -> Asked:
    r"""A row of MathVista or MathVision; ``decoded_image``, if there, is the picture itself.

    Example:
        >>> row = {"question": "Find $m\\angle H$", "choices": ["97", "102"], "answer": "102", "decoded_image": "<a picture>"}
        >>> asked(row).prompt.splitlines()
        ['Find $m\\angle H$', '(A) 97', '(B) 102', 'Answer with the letter of the choice.']
        >>> asked(row).answer
        'B'
    """
    row = dict(row)
    question, answer = str(column(row, "question")).strip(), str(column(row, "answer") or "").strip()
    if not answer:
        raise BadData("the answer is empty", "Those of MathVista's test split are withheld: use testmini.")
    choices = tuple(str(choice) for choice in row.get("choices") or row.get("options") or ())
    image = row.get("decoded_image")
    if image is None:
        name = str(column(row, "image"))
        image = next((place / name for place in (folder, folder.parent) if (place / name).is_file()), None) or existing(
            folder / name
        )
    if row.get("unit"):
        question += f" (Unit: {row['unit']})"
    if not choices:
        precision = row.get("precision") if row.get("answer_type") == "float" else None
        decimals = None if precision is None else int(precision)
        return Asked(image, f"{question}\n{_hint(answer, decimals)}", answer, (), decimals)
    letters = ascii_uppercase[: len(choices)]
    letter = letters[choices.index(answer)] if answer in choices and "choices" in row else answer
    if letter not in letters:
        raise BadData(
            f"the answer {answer!r} is none of the choices {', '.join(choices)}", "Expected one of them, or its letter."
        )
    listed = "\n".join(f"({letter}) {choice}" for letter, choice in zip(letters, choices, strict=True))
    return Asked(image, f"{question}\n{listed}\nAnswer with the letter of the choice.", letter, choices)


def _hint(answer: str, decimals: int | None) -> str:
    if EXTRACTORS["number"](answer) is None:
        return "Answer with the result alone."
    return HINT if decimals is None else f"Answer with a number with {decimals} decimal{'s' if decimals > 1 else ''}."


def _rows(file: Path, reader: Reader) -> Iterator[tuple[int, dict[str, Any]]]:
    """Rows of a file: an object a line, a list, or an object of objects by their number, as MathVista's."""
    if file.suffix != ".json":
        yield from reader.jsonl(file)
        return
    text = "\n".join(line for _, line in reader.lines(file))
    if not text.lstrip().startswith("{"):
        yield from reader.json_list(file)
        return
    at = 0
    with reader.row(file, None):
        try:
            rows = json.loads(text)
        except (json.JSONDecodeError, RecursionError) as error:
            where = f"{error.msg}, line {error.lineno}" if isinstance(error, json.JSONDecodeError) else "nested too deeply"
            raise BadData(f"broken JSON ({where})", "The file may be truncated: download it again.") from None
        for number, row in rows.items():
            at = max(at, text.find(f'"{number}"', at))
            if not isinstance(row, dict):
                raise BadData(f"{number} is a {type(row).__name__}", 'Expected {"1": {"question": .., "answer": ..}, ..}.')
            yield text.count("\n", 0, at) + 1, row


def _choice(output: str, choices: Sequence[str]) -> str | None:
    """The letter that an output chooses, or that of the choice whose text it says."""
    letters = ascii_uppercase[: len(choices)]
    said = _plain(_said(output))
    if said.upper() in letters and len(said) == 1:
        return said.upper()
    texts = [_plain(choice) for choice in choices]
    if said in texts:
        return letters[texts.index(said)]
    first = re.match(r"\W*([A-Z])\b", _said(output)) if _ANSWER.search(output) else None
    found = [first[1]] if first else [one or two for one, two in _LETTER.findall(output)]
    return found[-1] if found and found[-1] in letters else None


def _text(output: str, answer: str) -> str | None:
    """What an output says for an answer that is no number; for a list, its last list."""
    if not answer.startswith("["):
        return _said(output) or None
    lists = _LIST.findall(output)
    return lists[-1] if lists else None


def _said(output: str) -> str:
    r"""The last ``\boxed{}`` of an output, or the line after its last "answer:" or "answer is", or all of it."""
    boxed = _BOXED.findall(output)
    return (boxed[-1] if boxed else _ANSWER.split(output)[-1].strip().partition("\n")[0]).strip()


def _plain(text: str) -> str:
    """Without case, spaces, dollar signs and stars, a full stop, and brackets around a letter."""
    text = re.sub(r"[\s$*]+", "", text).rstrip(".").casefold()
    return text[1:-1] if re.fullmatch(r"\([a-z]\)", text) else text
