"""The interface of a task: examples in three splits, and a score for an output.

``train`` and ``interpolate`` are drawn from the same range and never share an example: a hash of the content assigns each
example to one of them. ``extrapolate`` lies outside the training range. The same seed gives the same examples.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from decimal import Decimal
from fractions import Fraction
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, overload

from numerate.answers.extract import EXTRACTORS
from numerate.answers.metrics import METRICS
from numerate.answers.numerals import last_number
from numerate.checks import check_choice, check_settings, choices
from numerate.formats import KINDS
from numerate.lab.data.pictures import Picture
from numerate.lab.data.readers import READERS
from numerate.lab.data.row_reader import BadData, RowReader, check_path, file_type
from numerate.recommendation import NumberKind

if TYPE_CHECKING:
    from PIL.Image import Image
    from typing_extensions import Self

    from numerate.decode.grammar import Grammar
    from numerate.targets import AnswerDistribution

Split = Literal["train", "interpolate", "extrapolate"]

_PLAIN_NUMBER = re.compile(r"[-+]?(?:\d+|\d{1,3}(?:,\d{3})+)(?:\.\d+)?(?:[eE][-+]?\d{1,3})?", re.ASCII)
_MOST_KEPT = 32  # sequences of examples whose contents a task remembers
_PATIENCE = 2000  # draws without a new example before a range is reported as exhausted


@dataclass(frozen=True)
class Example:
    """A question, its answer and, for visual tasks, a picture, which is an image or is made when ``image`` is asked for."""

    prompt: str
    answer: str
    picture: Picture | Image | None = None
    meta: Mapping[str, Any] = field(default_factory=dict)

    @property
    def image(self) -> Image | None:
        """The picture as an image, drawn on first access; None for tasks without pictures."""
        return self.picture.image if isinstance(self.picture, Picture) else self.picture


class Examples(Sequence[Example]):
    """A sequence that makes each example from its entry in ``specs`` on access."""

    def __init__(self, specs: Sequence[Any], make: Callable[[Any], Example]) -> None:
        self.specs, self._make = specs, make

    def __len__(self) -> int:
        return len(self.specs)

    @overload
    def __getitem__(self, index: int) -> Example: ...
    @overload
    def __getitem__(self, index: slice) -> Examples: ...
    def __getitem__(self, index: int | slice) -> Example | Examples:
        return Examples(self.specs[index], self._make) if isinstance(index, slice) else self._make(self.specs[index])

    def __iter__(self) -> Iterator[Example]:
        return map(self._make, self.specs)

    def __repr__(self) -> str:
        return f"<{len(self)} examples>"


class Task:
    """Questions whose answers are numbers. A subclass is a frozen dataclass of settings with :meth:`draw` and :meth:`make`."""

    name: ClassVar[str]  # key in ``TASKS``
    extractor: ClassVar[str] = "last_number"  # key in ``EXTRACTORS``; reads the answer from an output
    # Keys in ``METRICS`` that ``score`` returns; the first is the headline.
    measures: ClassVar[tuple[str, ...]] = ("exact", "parsed", "relative_error", "log10_error")
    number_kind: ClassVar[NumberKind]  # of the answers, for which ``numerate.recommended`` names loss and decision
    visual: ClassVar[bool] = False  # whether examples have images
    answer_is: ClassVar[str] = "one number"  # description of an answer; searching for answers needs ``"one number"``
    ends_in_number: ClassVar[bool] = False  # whether an answer is a text with a number at its end, decided from samples
    period: ClassVar[int | None] = None  # of answers on a circle, such as 720 minutes on a clock face
    in_expressions: ClassVar[bool] = False  # whether numbers are operands, as in ``3-5``, in questions and answers alike
    dataset: ClassVar[str] = ""  # description of what ``read_files`` reads
    generates_with: ClassVar[tuple[str, ...] | None] = None  # settings that change generated examples; None: all
    reads_with: ClassVar[tuple[str, ...]] = ()  # settings that change what is read from files
    rows: Mapping[Split, Sequence[Any]] | None = None  # of each split, read from files; None for a generated task
    skipped: Sequence[Exception] = ()  # rows of the files that were skipped, as errors that give the reason
    notes: Sequence[str] = ()  # messages about ambiguous or rewritten values in the files

    def __new__(cls, *args: Any, **settings: Any) -> Self:
        """Reject unknown settings before the dataclass's own ``__init__`` does, with a message that lists the known ones."""
        check_settings(f"the task {cls.name!r}", settings, [known.name for known in fields(cls)])  # type: ignore[arg-type]
        return super().__new__(cls)

    @classmethod
    def check_source(cls, settings: Mapping[str, Any], data: object) -> None:
        """Raise for a setting that has no effect: of real data without ``data`` (None), or of generated examples with them."""
        cls(**settings)  # unknown settings and wrong values come first
        for name, value in settings.items():
            if value is None:
                continue
            if data is None and cls.generates_with is not None and name not in cls.generates_with:
                raise ValueError(
                    f"{name}={value!r} has no effect on generated examples of the task {cls.name!r}: name your file with "
                    "data='my.csv' (--data), or leave it out."
                )
            if data is not None and name not in cls.reads_with:
                raise ValueError(
                    f"{name}={value!r} has no effect on real data, only on generated examples of the task {cls.name!r}: leave it "
                    "out, or leave out the data."
                )

    # Examples

    @property
    def splits(self) -> tuple[Split, ...]:
        """The splits that have examples."""
        every: tuple[Split, ...] = ("train", "interpolate", "extrapolate")
        return every if self.rows is None else tuple(split for split in every if self.rows.get(split))

    def count(self, split: Split) -> int | None:
        """Return the number of examples read from files; None for a generated task, which has no limit."""
        return None if self.rows is None else len(self.rows.get(split, ()))

    def examples(self, split: Split, n: int | None = None, seed: int = 0) -> Examples:
        """Return ``n`` examples of a split; ``None`` returns all examples that were read from files.

        Examples of ``interpolate`` and ``extrapolate`` are all different. The seed selects the examples and their order.
        """
        check_choice("split", split, choices(Split))
        if split not in self.splits:
            raise ValueError(f"split={split!r} has no examples here: expected one of {', '.join(self.splits) or 'none'}.")
        if n is not None and (not isinstance(n, int) or n < 0):
            raise ValueError(f"n={n!r} is out of range: expected an integer >= 0.")
        rng = random.Random(f"{self.name}/{split}/{seed}")
        if self.rows is not None:
            rows = list(self.rows[split])
            rng.shuffle(rows)
            if n is not None and n > len(rows):
                raise ValueError(f"n={n} is more than the {len(rows)} examples of {split!r} that were read: ask for fewer.")
            return Examples(rows[:n], self.of_row)
        if n is None:
            raise ValueError("n=None asks for all examples, but this task generates them without limit: expected a number.")
        known: dict[tuple[Split, int, int], list[Any]] = self.__dict__.setdefault("_specs", {})
        if (split, n, seed) not in known:  # the runs of a stack ask for the same ones
            while len(known) >= _MOST_KEPT:
                known.pop(next(iter(known)))
            known[split, n, seed] = self._draw_many(split, n, rng)
        return Examples(known[split, n, seed], self.make)

    def _draw_many(self, split: Split, n: int, rng: random.Random) -> list[Any]:
        specs: list[Any] = []
        seen: set[int] = set()
        misses = 0
        while len(specs) < n:
            spec = self.draw(rng, split)
            mark = content_hash(self.content(spec))
            in_split = split == "extrapolate" or (mark % 5 == 0) == (split == "interpolate")
            if in_split and (split == "train" or mark not in seen):
                specs.append(spec)
                seen.add(mark)
                misses = 0
                continue
            misses += 1
            if misses > _PATIENCE:
                raise ValueError(
                    f"n={n} is more than there are: {self!r} has about {len(seen)} different examples of {split!r}. "
                    "Ask for fewer, or widen its settings."
                )
        return specs

    def draw(self, rng: random.Random, split: Split) -> Any:
        """Draw the content of one example as plain data; for ``extrapolate``, from outside the training range."""
        raise NotImplementedError

    def make(self, spec: Any) -> Example:
        """Return the example for a drawn content, or for a row that was read and is no example yet."""
        raise NotImplementedError

    def of_row(self, row: Any) -> Example:
        """Return the example of a row that was read: the row itself, unless it is made when it is needed."""
        return row if isinstance(row, Example) else self.make(row)

    def content(self, spec: Any) -> Any:
        """Return the deduplication key; ignores appearance.

        Its ``repr`` is hashed: renaming a class or field that occurs in it moves examples between the splits.
        """
        return spec

    # Scores

    def score(self, example: Example, output: str) -> dict[str, float]:
        """Return every metric of an output. An output without an answer gets the worst score."""
        gold, guess = self.read(example.answer), self.read(output)
        return {name: METRICS[name](gold, guess) for name in self.measures}

    def read(self, text: str) -> Any:
        """Return the answer in a text, or None."""
        return EXTRACTORS[self.extractor](text)

    def outlines(self, text: str) -> list[Sequence[Fraction]]:
        """Return the places in the picture that an answer names, for showing them there.

        Each is a box x1, y1, x2, y2 or a quadrilateral x1, y1, .., x4, y4, in shares of width and height.
        """
        return []

    # Decisions

    def answer_grammar(self) -> Grammar:
        """Return the form of an answer, by which a model's distribution over numbers is searched.

        Raise if an answer is not one number, or some answers in the training rows that were read are not.
        """
        if self.answer_is != "one number":
            raise ValueError(f"an answer of the task {self.name!r} is {self.answer_is}")
        from numerate.decode.grammar import NumberGrammar

        answers = [*dict.fromkeys(self.answer_of(spec) for spec in (self.rows or {}).get("train", ()))]
        grammar = self.number_form(answers)
        for answer in answers:
            whole = grammar.accepts(answer) if isinstance(grammar, NumberGrammar) else grammar.state(answer) is not None
            if not whole or grammar.value(answer) is None:
                raise ValueError(f"the answer {answer!r:.60} in the data of the task {self.name!r} is not a plain number")
        return grammar

    def number_form(self, answers: Sequence[str]) -> Grammar:
        """Return the form of one number: with three digits and two decimals more than the ``answers`` that were read.

        Numbers outside of :func:`generous_range` are no answers.
        """
        from numerate.decode.grammar import NumberGrammar

        parts = [answer.partition(".") for answer in answers]
        digits = max((sum(map(str.isdigit, whole)) for whole, _, _ in parts), default=9) + 3
        decimals = max((len(after) for _, _, after in parts), default=4) + 2
        thousands = None if any("," in answer for answer in answers) else False
        most = (1, min(digits, 300)), (0, min(decimals, 300))
        low, high = generous_range(answers)
        return NumberGrammar(digits=most[0], decimals=most[1], lowest=low, highest=high, thousands=thousands, leading_zeros=True)

    def answer_of(self, row: Any) -> str:
        """Return the answer of a row that was read."""
        return self.of_row(row).answer

    def written(self, value: Decimal) -> str:
        """Return a decided number as an answer; :meth:`read` gives the number again."""
        return f"{value:f}"

    # Formats of numbers

    @property
    def formats(self) -> tuple[str, ...]:
        """The kinds of :mod:`numerate.formats` in which the numbers of the task can be written."""
        return KINDS

    @property
    def answer_numbers(self) -> re.Pattern[str] | None:
        """Matches the numbers of an answer that formats write, in its first group if it has one; None: all quantities."""
        return None

    # Soft labels

    @property
    def soft_width(self) -> Mapping[str, float]:
        """The width of soft labels if none is set: ``width`` or ``relative``; neither if they have no width."""
        return {"relative": 0.05}

    @property
    def soft_pattern(self) -> re.Pattern[str] | None:
        """Matches each of several numbers of an answer that have soft labels of their own; None if the answer is the number."""
        return None

    def soft_target(self, **settings: Any) -> Callable[[Example], AnswerDistribution]:
        """Return what makes the distribution over answers of an example. An answer that is not a number keeps its label.

        The settings are those of :class:`numerate.targets.Bell`. With a :attr:`soft_pattern`, it gets an example for each match,
        whose answer is the match alone. Raise if an answer is not one number, or the settings do not fit.
        """
        if self.answer_is != "one number":
            raise ValueError(f"an answer of the task {self.name!r} is {self.answer_is}")
        if (words := self.answers_in_words()) and len(words) == self.count("train"):
            raise ValueError(f"no training answer of the task {self.name!r} is a plain number: the first is {words[0]!r:.60}")
        from numerate.targets import AnswerDistribution, Bell

        bell = Bell(**settings)

        def target(example: Example) -> AnswerDistribution:
            is_number = _PLAIN_NUMBER.fullmatch(example.answer) is not None
            return bell(example.answer) if is_number else AnswerDistribution.point(example.answer)

        return target

    def answers_in_words(self) -> list[str]:
        """Return the answers of the training rows that were read and that are not plain numbers."""
        answers = map(self.answer_of, (self.rows or {}).get("train", ()))
        return [answer for answer in answers if _PLAIN_NUMBER.fullmatch(answer) is None]

    # Real data

    @classmethod
    def from_files(cls, path: str | Path, *, skip_bad: bool = False, **settings: Any) -> Self:
        """Return the task on real data, in the dataset's own format.

        Args:
            path: a file or folder.
            skip_bad: skip rows that cannot be read; ``.skipped`` lists them with file, line and remedy.
            **settings: settings of the task.
        """
        task, reader = cls(**settings), RowReader(skip_bad)
        check_path(Path(path))
        try:
            return task._with_rows(task.read_files(Path(path), reader), reader, path)
        except BadData as bad:  # of the first row, in a file that may be anything
            if not cls.dataset or not Path(path).is_file() or file_type(Path(path)) not in READERS or (bad.line or 1) > 2:
                raise
            own = f"The task {cls.name!r} reads {cls.dataset}; your own table is for the task 'regression' (--target COLUMN)."
            raise BadData(bad.problem, f"{bad.remedy} {own}", bad.path, bad.line) from None

    def _with_rows(self, rows: Mapping[Split, Sequence[Any]], reader: RowReader, source: object) -> Self:
        object.__setattr__(self, "rows", {split: tuple(specs) for split, specs in rows.items()})
        object.__setattr__(self, "skipped", tuple(reader.skipped))
        object.__setattr__(self, "notes", tuple(reader.notes))
        if not self.splits:
            skipped = f" {len(reader.skipped)} were skipped, the first: {reader.skipped[0]}" if reader.skipped else ""
            raise ValueError(f"{source} has no rows that could be read: expected data.{skipped}")
        return self

    def read_files(self, path: Path, reader: RowReader) -> Mapping[Split, Sequence[Any]]:
        """Return the rows of each split."""
        remedy = "Leave out the path; your own table is for the task 'regression' (--target COLUMN)."
        raise BadData(f"is no data of the task {self.name!r}, which is generated", remedy, path)


def generous_range(answers: Sequence[str]) -> tuple[Fraction | None, Fraction | None]:
    """Return the least and greatest number that may answer, given training labels; None for no bound.

    Where no label is negative, they are a tenth of the smallest label and ten times the largest; else ten times the largest
    size, of either sign.

    Examples:
        >>> generous_range(["350", "12.50"]), generous_range(["-3", "2"]), generous_range(["no idea"])
        ((Fraction(5, 4), Fraction(3500, 1)), (Fraction(-30, 1), Fraction(30, 1)), (None, None))
    """
    labels = [label for answer in answers if (label := last_number(answer)) is not None]
    largest = 10 * max(map(abs, labels), default=Fraction(0))
    if not largest:
        return None, None
    return (min(labels) / 10 if min(labels) >= 0 else -largest), largest


def content_hash(content: Any) -> int:
    """Return a hash of the content that is the same on every machine."""
    return int.from_bytes(blake2b(repr(content).encode(), digest_size=8).digest(), "big")


def check_whole(name: str, value: Any, low: int, high: int) -> None:
    """Raise unless ``value`` is an int from ``low`` to ``high``."""
    if not isinstance(value, int) or not low <= value <= high:
        raise ValueError(f"{name}={value!r} is out of range: expected an integer from {low} to {high}.")


def check_pair(name: str, value: Any, low: int, high: int) -> tuple[int, int]:
    """Return ``value`` as ``(fewest, most)``; raise unless both are ints in order within ``low`` to ``high``."""
    pair = isinstance(value, (list, tuple)) and len(value) == 2 and all(type(number) is int for number in value)
    if not pair or not low <= value[0] <= value[1] <= high:
        raise ValueError(f"{name}={value!r} is out of range: expected (fewest, most) within {low} to {high}.")
    return value[0], value[1]
