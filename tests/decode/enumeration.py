"""Numbers in formats by enumeration: every number of a range, and the probability of each under a model; no shared code."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from itertools import product
from typing import Any

from numerate.decode import NumberGrammar
from numerate.formats import NumberFormat


def small_format(kind: str) -> NumberFormat:
    """Return a format of a kind for two digits and one decimal."""
    return NumberFormat(kind, 2, 1) if "padded" in kind else NumberFormat(kind)


def members(format: NumberFormat, numbers: NumberGrammar) -> dict[str, Decimal]:
    """Every number of a range, written in a format."""
    found = {}
    (least, most), (fewest, longest) = numbers.spans
    for sign, digits, decimals in product(("", "-"), range(least, most + 1), range(fewest, longest + 1)):
        for integer in range(10 ** (digits + decimals)):
            text = str(integer).zfill(digits + decimals)
            text = f"{sign}{text[:digits]}{'.' if decimals else ''}{text[digits:]}"
            if (NumberGrammar.accepts if not format.padded else _in_range)(numbers, text):
                found[format.write(text)] = Decimal(text)
    return found


def _in_range(numbers: NumberGrammar, text: str) -> bool:
    value = Decimal(text)
    if text[0] == "-" and (not numbers.sign or (value == 0 and not numbers.negative_zero)):
        return False
    low, high = (None if bound is None else Decimal(str(bound)) for bound in (numbers.lowest, numbers.highest))
    return (low is None or value >= low) and (high is None or value <= high)


Chances = Callable[[list[tuple[int, ...]]], Sequence[Sequence[float]]]


def enumerate_answers(chances: Chances, texts: Mapping[int, str], numbers: Mapping[str, Any], spaced: bool) -> dict[Any, float]:
    """Return the probability of each value, of "more" digits and of "none": every sequence of tokens, all of one length at once.

    Args:
        chances: the probabilities of the next token after each sequence of tokens.
        texts: of the tokens; one without a text ends an answer.
        numbers: the text of every number, and its value.
        spaced: whether a space and a digit after a number are more digits.
    """
    prefixes = {text[:end] for text in numbers for end in range(len(text) + 1)}

    def is_open(text: str) -> bool:
        answer = text.lstrip()
        if len(text) - len(answer) > 2:
            return False
        return answer in prefixes or (spaced and answer[-1:] == " " and answer[:-1] in numbers)

    masses: dict[Any, float] = defaultdict(float)
    open_paths = {(): ("", 1.0)}
    while open_paths:
        longer = {}
        for (path, (text, mass)), row in zip(open_paths.items(), chances([*open_paths]), strict=True):
            for token, share in enumerate(row):
                whole = text + texts.get(token, "\0")
                if is_open(whole):
                    longer[(*path, token)] = whole, mass * share
                    continue
                size = next(size for size in range(len(whole)) if not is_open(whole[: size + 1]))
                answer = whole[:size].lstrip()
                found = [answer[:end] for end in range(1, len(answer) + 1) if answer[:end] in numbers]
                if whole[size].isdigit() and answer:
                    masses["more"] += mass * share
                else:
                    masses[numbers[found[-1]] if found else "none"] += mass * share
        open_paths = longer
    return dict(masses)
