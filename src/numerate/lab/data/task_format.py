"""TaskFormat: how the numbers of a task are written for a model, and read back from what it says.

A format belongs to a model, as a chat template does: the model is asked in it and answers in it. Everything else, extractors,
decisions and metrics, sees ordinary numbers.

    12+345=      padded   012+345=       357    357
    area: 84.    padded   area: 84.      750    0750      cells of a table have widths of their own
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from numerate.decode.grammar import Grammar, NumberGrammar, TextGrammar
from numerate.formats import NUMBER, NumberFormat
from numerate.formats.number_format import ordered_kind
from numerate.formats.patterns import Span, find_spans
from numerate.lab.data.base import Example, Task

if TYPE_CHECKING:
    from typing_extensions import Self

_GIVEN = re.compile(r"([^:]*)(?::([0-9]+)(?:\.([0-9]+))?)?")
_DASH = r"[-\u2212]"
_BEGIN = rf"(?<![\w.:])(?:(?<![0-9)])(?<![0-9)] ){_DASH})?"  # a dash after a digit or a bracket subtracts
_END = r"(?!\w*[0-9])(?! ?:[0-9])(?!(?:st|nd|rd|th)\b)"
_APART = r"[0-9](?: [0-9])*(?: \. [0-9](?: [0-9])*)?(?! [0-9])"

OPERAND = re.compile(rf"{_BEGIN}(?:[0-9]{{1,3}}(?:,[0-9]{{3}})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?{_END}")
"""A number of an expression: as a quantity, but also beside an operator, as in ``3-5`` and ``17/18``."""

_OPERANDS = {  # by whether digits are apart, and whether the power of ten is first
    (False, False): OPERAND,
    (True, False): re.compile(rf"{_BEGIN}{_APART}{_END}"),
    (False, True): re.compile(rf"{_BEGIN}[0-9]+:{_DASH}?[0-9]+{_END}"),
    (True, True): re.compile(rf"{_BEGIN}[0-9](?: [0-9])* : {_DASH}?[0-9](?: [0-9])*(?! [0-9]){_END}"),
}


def format_of(text: str) -> tuple[str, int | None, int | None]:
    """Return the kind of a format, and its digits and decimals if they are given; raise if there is no such format.

    Examples:
        >>> format_of("reversed+padded"), format_of("padded:6"), format_of("padded:5.2")
        (('padded+reversed', None, None), ('padded', 6, 0), ('padded', 5, 2))
    """
    match = _GIVEN.fullmatch(text)
    if match is None:
        raise ValueError(
            f"format={text!r} has no such width: expected a kind, or a padded one with digits and decimals: padded:6, padded:5.2."
        )
    try:
        kind = ordered_kind(match[1])
    except ValueError as error:
        raise ValueError(str(error).replace("kind=", "format=", 1)) from None
    if match[2] is None:
        return kind, None, None
    digits, decimals = int(match[2]), int(match[3] or 0)
    if "padded" not in kind.split("+"):
        raise ValueError(f"format={text!r} has a width, which {kind!r} does not use: leave it out, or use a padded kind.")
    NumberFormat(kind, digits, decimals)  # raises
    return kind, digits, decimals


def format_text(text: str) -> str:
    """Return the text of a format with its parts in order; raise if there is no such format.

    Examples:
        >>> format_text("reversed+padded:5.0")
        'padded+reversed:5'
    """
    kind, digits, decimals = format_of(text)
    return kind if digits is None else f"{kind}:{digits}{f'.{decimals}' if decimals else ''}"


@dataclass(frozen=True)
class TaskFormat:
    """Writes questions and answers of a task in a format, and reads answers back.

    Examples:
        >>> from numerate.lab.data import Arithmetic
        >>> padded = TaskFormat.of(Arithmetic(), NumberFormat("padded", digits=3, decimals=0))
        >>> padded.question("3-12="), padded.answer("-9"), padded.read("-009")
        ('003-012=', '-009', '-9')
    """

    format: NumberFormat = field(default_factory=NumberFormat)  # how numbers are written
    questions: re.Pattern[str] | None = None  # matches the numbers of a question that are written in the format; None: none are
    answers: re.Pattern[str] = NUMBER  # matches those of an answer, as the task writes it
    said: re.Pattern[str] = NUMBER  # matches those of an answer in the format
    # Whether an answer with digits that are no number in the format has no number: one number is expected, and part of a text
    # such as ``3:12`` is not it.
    strict: bool = False

    @classmethod
    def of(cls, task: Task, format: NumberFormat) -> Self:
        """Return what writes a task in a format; raise if its numbers cannot be written so."""
        if format.kind == "plain":
            return cls()
        if format.kind not in task.formats:
            others = ", ".join(kind for kind in task.formats if kind != "plain")
            expected = f"{others} or plain" if others else "plain, as its numbers have to stay as they are"
            raise ValueError(f"format={format.kind!r} does not fit the task {task.name!r}: expected {expected}.")
        spaced, exponent = "spaced" in format.kind, "exponent" in format.kind
        strict = (spaced or exponent) and task.answer_is == "one number"
        if task.in_expressions:
            return cls(format, OPERAND, OPERAND, _OPERANDS[spaced, exponent], strict)
        own = task.answer_numbers
        return cls(format, None, NUMBER if own is None else own, format.pattern if own is None else own, strict)

    @classmethod
    def fit(cls, task: Task, text: str, most: int) -> Self:
        """Return the format of a name such as ``padded``; widths that it needs are those of the training rows.

        Of a generated task, the first ``most`` training examples of seed 0 are looked at, so that all seeds write alike.
        """
        kind, digits, decimals = format_of(text)
        if "padded" not in kind.split("+") or digits is not None:
            return cls.of(task, NumberFormat(kind, digits, decimals))
        known: dict[tuple[str, int], Self] = task.__dict__.setdefault("_formats", {})
        if (kind, most) not in known:
            rough = cls.of(task, NumberFormat(kind, digits=1, decimals=0))
            rows = task.count("train")
            examples = task.examples("train", most) if rows is None else task.examples("train")
            labels = [number for example in examples for number in rough.numbers(example) if _is_plain(number)]
            if not labels:
                raise ValueError(f"format={text!r} finds no number in the training rows of the task {task.name!r}: use plain.")
            known[kind, most] = cls.of(task, NumberFormat.fit(labels, kind))
        return known[kind, most]

    @classmethod
    def kept(cls, task: Task, settings: Mapping[str, Any] | None) -> Self:
        """Return what :attr:`settings` describe."""
        return cls.of(task, NumberFormat(**settings or {}))

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of the format, as JSON."""
        return self.format.settings

    @property
    def plain(self) -> bool:
        """Whether nothing is rewritten."""
        return self.format.kind == "plain"

    @property
    def has_places(self) -> bool:
        """Whether the place of a digit can be read from where it stands in the text."""
        return "exponent" not in self.format.kind

    def question(self, text: str) -> str:
        """Return a question in the format."""
        return text if self.questions is None else self._written(text, find_spans(text, self.questions))

    def answer(self, text: str) -> str:
        """Return an answer in the format; a number that does not fit is written with its own width."""
        return text if self.plain else self._written(text, self._in_answer(text))

    def read(self, text: str) -> str:
        """Return what a model said with its numbers in ordinary notation."""
        if self.plain:
            return text
        parts, after = list[str](), 0
        for start, end in find_spans(text, self.said, min(self.said.groups, 1)):
            number = self.format.read(text[start:end])
            if number is not None:
                parts += text[after:start], number
                after = end
        if self.strict and any(character.isdigit() for character in "".join([*parts[::2], text[after:]])):
            return re.sub("[0-9]", "?", text)
        return "".join([*parts, text[after:]])

    def grammar(self, grammar: Grammar) -> Grammar:
        """Return the grammar of a task's answers as a model writes them."""
        if self.plain:
            return grammar
        if isinstance(grammar, NumberGrammar):
            from numerate.decode.format_grammar import format_grammar

            return format_grammar(self.format, grammar)
        assert isinstance(grammar, TextGrammar)
        marks = {"spaced": " ", "exponent": ":", "grouped": ","}
        added = "".join(mark for kind, mark in marks.items() if kind in self.format.kind)
        read = grammar.read
        longer = (2 if " " in added else 1) * (grammar.most + (8 if ":" in added else 0))
        return TextGrammar(grammar.characters + added, lambda text: read(self.read(text)), most=longer)

    def numbers(self, example: Example) -> Iterator[str]:
        """Yield the numbers of an example that are written in the format, as the task writes them."""
        if self.questions is not None:
            yield from (example.prompt[start:end] for start, end in find_spans(example.prompt, self.questions))
        yield from (example.answer[start:end] for start, end in self._in_answer(example.answer))

    def misfits(self, examples: Iterable[Example]) -> int:
        """Return how many examples have a number that does not fit into the width of the format."""
        if not self.format.padded:
            return 0
        return sum(any(_is_plain(number) and not self.format.fits(number) for number in self.numbers(one)) for one in examples)

    def check(self, examples: Iterable[Example]) -> None:
        """Raise for a number of the training that does not fit into the width of the format."""
        if not self.format.padded:
            return
        for number in (number for example in examples for number in self.numbers(example) if _is_plain(number)):
            if not self.format.fits(number):
                (_, digits), (_, decimals) = self.format.sizes.digits, self.format.sizes.decimals
                raise ValueError(
                    f"format='{self.format.kind}:{digits}.{decimals}' is too narrow for {number!r} in a training row: expected "
                    f"as many digits and decimals as it has, or {self.format.kind!r} alone, which fits them."
                )

    def _in_answer(self, text: str) -> list[Span]:
        return find_spans(text, self.answers, min(self.answers.groups, 1))

    def _written(self, text: str, spans: Iterable[Span]) -> str:
        return self.format.write_text(text, spans, strict=False)


def _is_plain(number: str) -> bool:
    """Return whether a number has no power of ten, so that a format can write it."""
    return not re.search("[eE]", number)
