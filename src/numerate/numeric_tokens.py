"""The numeric tokens among the texts of a vocabulary, and the tokens that belong to numbers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from numerate.marks import CLOSES, SPACED, flags_of
from numerate.tokens import checked_id

_NUMBER = re.compile(r" ?[0-9]+", re.ASCII)
TEN_DIGITS = frozenset("0123456789")


class NumericToken(NamedTuple):
    """A token that represents a number: its id, value, number of digits and text."""

    token_id: int
    value: float
    width: int
    text: str


def by_value(tokens: Iterable[NumericToken]) -> tuple[NumericToken, ...]:
    """Return tokens sorted by value; of one value, those with fewer digits and without a space first."""
    return tuple(sorted(tokens, key=lambda token: (token.value, token.width, token.text.startswith(" "), token.token_id)))


def parts_of_numbers(pairs: Iterable[tuple[str, int]], vocab_size: int) -> dict[str, Any]:
    """Return ``tokens``, ``marks``, ``closing_ids`` and ``space_ids`` of a NumericVocab from text and id of each token."""
    tokens: list[NumericToken] = []
    marks: list[tuple[int, str]] = []
    closing: list[int] = []
    spaces: list[int] = []
    for text, token_id in pairs:
        if _NUMBER.fullmatch(text):
            digits = text.lstrip(" ")
            tokens.append(NumericToken(checked_id(token_id), float(digits), len(digits), text))
            closing.append(checked_id(token_id))
        elif text == " ":
            spaces.append(checked_id(token_id))
        elif flags := flags_of(text):
            if flags & ~(CLOSES | SPACED):
                marks.append((checked_id(token_id), text))
            elif flags & CLOSES and token_id < vocab_size:
                closing.append(checked_id(token_id))
    if not tokens:
        raise ValueError(
            "no numeric token found: expected tokens of ASCII digits such as '7' or ' 42'. "
            "For other ordered tokens use NumericVocab.from_values or NumericVocab.from_pattern."
        )
    return {
        "tokens": by_value(tokens),
        "marks": tuple(sorted(marks)),
        "closing_ids": tuple(sorted(closing)),
        "space_ids": tuple(sorted(i for i in spaces if i < vocab_size)),
    }


def values_by_pattern(pattern: str, pairs: Sequence[tuple[str, int]]) -> dict[int, float]:
    """Return the value of each token whose full text matches a pattern: its first group."""
    compiled = re.compile(pattern)
    if compiled.groups < 1:
        raise ValueError(f"pattern={pattern!r} has no group: expected one group around the value, as in r'<loc(\\d+)>'.")
    values: dict[int, float] = {}
    for text, token_id in pairs:
        if match := compiled.fullmatch(text):
            try:
                values[token_id] = float(match[1].replace("_", "?"))  # Python parses "1_0" as 10
            except (AttributeError, ValueError):
                raise ValueError(
                    f"pattern={pattern!r} takes {match[1]!r} from token {text!r}: expected a number in its first group."
                ) from None
    if not values:
        raise ValueError(
            f"pattern={pattern!r} matches none of the {len(pairs)} tokens: expected it to match the full text of at least one."
        )
    return values
