"""The word_problems task: a story of a few arithmetic steps, with a worked answer that ends in ``#### 42``.

    Ivo has 39 cards. Ivo uses 11 of them. How many cards does Ivo have now?       39 - 11 = 28
                                                                                   #### 28

Real data: GSM8K (Cobbe et al., arXiv:2110.14168), ``train.jsonl`` and ``test.jsonl``; SVAMP (Patel et al., NAACL 2021,
arXiv:2103.07191), ``SVAMP.json``.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from numerate.answers.extract import EXTRACTORS
from numerate.answers.metrics import METRICS
from numerate.lab.data.base import Example, Split, Task, check_whole, content_hash
from numerate.lab.data.cells import plain_answer
from numerate.lab.data.chats import as_question, has_turns, is_chat, turns_notes
from numerate.lab.data.readers import read_rows
from numerate.lab.data.row_reader import BadData, RowReader, column, named_split

WordProblem = tuple[str, str]  # question, worked answer

NAMES = (
    *("Ada", "Ben", "Chen", "Dina", "Emil", "Farah", "Goran", "Hana"),
    *("Ivo", "Jun", "Kofi", "Lena", "Mira", "Nils", "Omar", "Priya"),
)
THINGS = ("apples", "marbles", "stickers", "pencils", "cards", "shells", "stamps", "buttons", "books", "tickets", "eggs", "tiles")
STEPS = ("gains", "loses", "multiplies", "shares", "packs")
PLACES = ("the market", "a friend", "the school", "a neighbour", "the library", "a cousin", "the club", "the fair")


@dataclass(frozen=True)
class WordProblems(Task):
    """Stories of one to ``steps`` arithmetic steps.

    Extrapolation has one or two more steps, and numbers up to ten times larger.

    Examples:
        >>> example = WordProblems().examples("train", 1)[0]
        >>> example.prompt.split(". ")[-1], example.answer.split()[-2:]
        ('How many shells does Ada have now?', ['####', '87'])
    """

    steps: int = 3  # the most steps in a training problem, 1 to 6
    largest: int = 60  # the largest number in a training story, at least 10

    name = "word_problems"
    dataset = "GSM8K, SVAMP or chats with worked answers"
    number_kind = "words"
    in_expressions = True
    extractor = "gsm8k_flexible"
    measures = ("exact", "parsed", "absolute_error", "relative_error", "log10_error", "within_1", "within_5", "within_10")
    answer_is = "a worked solution"
    ends_in_number = True

    def __post_init__(self) -> None:
        check_whole("steps", self.steps, 1, 6)
        if self.largest < 10:
            raise ValueError(f"largest={self.largest!r} is out of range: expected at least 10.")

    def draw(self, rng: random.Random, split: Split) -> WordProblem:
        """Draw a story and its answer, step by step."""
        far = split == "extrapolate"
        steps = self.steps + rng.randint(1, 2) if far else rng.randint(1, self.steps)
        low, high = (self.largest + 1, 10 * self.largest) if far else (2, self.largest)
        who, things = rng.choice(NAMES), rng.choice(THINGS)
        count = rng.randint(low, high)
        story, working = [f"{who} has {count} {things}."], []
        for _ in range(steps):
            sentence, line, count = _step(rng, rng.choice(STEPS), who, things, count, low, high)
            story.append(sentence)
            working.append(line)
        question = f"How many {things} does {who} have now?"
        return " ".join([*story, question]), "\n".join([*working, f"#### {count}"])

    def make(self, spec: WordProblem) -> Example:
        """Return the question with its worked answer."""
        return Example(*spec)

    def score(self, example: Example, output: str) -> dict[str, float]:
        """Return every metric under GSM8K's flexible rule, and ``exact_strict`` under its strict rule (``#### 42``)."""
        gold = EXTRACTORS["gsm8k_strict"](example.answer)
        strict, guess = (EXTRACTORS[name](output) for name in ("gsm8k_strict", "gsm8k_flexible"))
        scores = {name: METRICS[name](gold, guess) for name in self.measures}
        return scores | {"exact_strict": METRICS["string_match"](gold, strict)}

    def written(self, value: Decimal) -> str:
        """Return a decided number as the last line of a worked answer."""
        return f"#### {value:f}"

    def read_files(self, path: Path, reader: RowReader) -> Mapping[Split, Sequence[Example]]:
        """Read GSM8K's folder or one of its files, ``SVAMP.json``, or a file of chats (:mod:`numerate.lab.data.chats`).

        GSM8K's test file is ``interpolate``. SVAMP and chats are split by a column ``split``, or else by hash.
        """
        files = sorted([*path.glob("*.jsonl"), *path.glob("*.json")]) if path.is_dir() else [path]
        if not files:
            raise BadData("has no .jsonl or .json files", "Expected GSM8K's train.jsonl and test.jsonl, or SVAMP.json.", path)
        rows: dict[Split, list[Example]] = {"train": [], "interpolate": [], "extrapolate": []}
        longer: list[bool] = []
        for file in files:
            for line, row in read_rows(file, reader):
                with reader.row(file, line):
                    spec = _svamp(row) if "Body" in row else _gsm8k(row)
                    tested = file.stem.startswith(("test", "valid")) if "question" in row else content_hash(spec) % 5 == 0
                    rows[named_split(row) or ("interpolate" if tested else "train")].append(Example(*spec))
                    longer.append(has_turns(row))
        reader.notes += turns_notes(longer)
        return rows


def _gsm8k(row: Mapping[str, Any]) -> WordProblem:
    if "question" in row or not ("prompt" in row or is_chat(row)):
        question, answer = (str(column(row, name)) for name in ("question", "answer"))
    else:
        question, answer = (str(column(as_question(row), name)) for name in ("prompt", "answer"))
    if EXTRACTORS["gsm8k_strict"](answer) is None:
        raise BadData(f"the answer {answer[-40:]!r} has no number after ####", "Expected a worked answer that ends in '#### 42'.")
    return question, answer


def _svamp(row: Mapping[str, Any]) -> WordProblem:
    body, question, equation, answer = (column(row, name) for name in ("Body", "Question", "Equation", "Answer"))
    number = plain_answer(answer)
    body = body if body.rstrip().endswith((".", ",", "?", "!")) else f"{body}."
    return f"{body} {question}", f"{_plain(equation)} = {number}\n#### {number}"


def _plain(equation: str) -> str:
    """Convert ``( 76.0 - 25.0 )`` to ``76 - 25``."""
    text = re.sub(r"(\d+)\.0\b", r"\1", equation).strip()
    inner = text.removeprefix("( ").removesuffix(" )")
    return inner if text != inner and "(" not in inner else text


def _step(rng: random.Random, kind: str, who: str, things: str, count: int, low: int, high: int) -> tuple[str, str, int]:
    """Return a sentence of a story, its arithmetic, and the count after it; a kind that does not fit becomes another one."""
    if kind == "multiplies":
        times = rng.randint(2, 5)
        if count * times <= 20 * high:
            word = {2: "twice", 3: "three times", 4: "four times", 5: "five times"}[times]
            return f"A week later {who} has {word} as many.", f"{count} * {times} = {count * times}", count * times
        kind = "loses"
    if kind == "loses" and count >= 2:
        less = rng.randint(1, min(count - 1, high))
        verb = rng.choice(("gives away", "loses", "sells", "uses"))
        return f"{who} {verb} {less} of them.", f"{count} - {less} = {count - less}", count - less
    if kind == "packs":
        packs, size = rng.randint(2, 6), rng.randint(max(2, low // 10), max(3, high // 6))
        total = count + packs * size
        return f"{who} buys {packs} packs of {size} {things} each.", f"{count} + {packs} * {size} = {total}", total
    if kind == "shares" and (parts := [part for part in (2, 3, 4, 5) if count % part == 0 and count >= 2 * part]):
        part = rng.choice(parts)
        others = {2: "one friend", 3: "two friends", 4: "three friends", 5: "four friends"}[part]
        return f"{who} shares them equally with {others}.", f"{count} / {part} = {count // part}", count // part
    more = rng.randint(low, high)
    return f"{who} gets {more} more from {rng.choice(PLACES)}.", f"{count} + {more} = {count + more}", count + more
