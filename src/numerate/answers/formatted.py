"""Answers in a format: spaced, reversed, with the power of ten first, and so on."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from numerate.answers.extract import EXTRACTORS, Extractor
from numerate.checks import check_choice
from numerate.formats import NumberFormat, as_format

_NO_NUMBER = "?"


def in_format(format: NumberFormat | str, extractor: str | Callable[[str], Any] = "last_number") -> Extractor:
    """Return an extractor for texts whose numbers are written in a format; its answers are ordinary numbers.

    All numbers of the text are rewritten in ordinary notation, then ``extractor`` reads it. A number that is not in the format
    is read as it is, unless the format gives its digits another meaning (``exponent``, ``reversed``): then it has no value.

    Args:
        format: a :class:`~numerate.formats.NumberFormat`, or a kind, such as ``"spaced"``. The width of a padded one does not
            matter here.
        extractor: a name in ``EXTRACTORS``, or a function of a text in ordinary notation.

    Examples:
        >>> read = in_format("spaced")
        >>> read("It is 1 2 . 5 m."), read("no idea")
        (Fraction(25, 2), None)
        >>> in_format("reversed", "gsm8k_strict")("6 * 7 = 24 #### 24"), in_format("exponent")("It is 3:12.")
        ('42', None)
        >>> from numerate.answers import METRICS
        >>> METRICS["absolute_error"](gold=12, guess=read("1 5"))
        3.0
    """
    format = as_format(format)
    if not callable(extractor):
        check_choice("extractor", extractor, [*EXTRACTORS])
        extractor = EXTRACTORS[extractor]
    if not isinstance(extractor, Extractor):
        name = getattr(extractor, "__name__", type(extractor).__name__)
        extractor = Extractor(name, 1, extractor, "a function")
    if format.kind == "plain":
        return extractor
    description = f"{extractor.description}, in the format {format.kind}"
    read = partial(_read, format, extractor.function)
    return Extractor(f"{extractor.name}_{format.kind}", extractor.version, read, description)


def _read(format: NumberFormat, extract: Callable[[str], Any], text: str) -> Any:
    strict = not {"exponent", "reversed"}.isdisjoint(format.kind.split("+"))
    found = [format.read(match[0]) for match in format.pattern.finditer(text)]
    if strict and found and found[-1] is None:
        return None  # as of other texts: if the last candidate has no value, there is no answer
    ordinary = iter(found)
    return extract(format.pattern.sub(lambda match: next(ordinary) or (_NO_NUMBER if strict else match[0]), text))
