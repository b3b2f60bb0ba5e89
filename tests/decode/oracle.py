"""What DecideNumbers should write, by enumeration: every sequence of tokens that can follow, each with its exact probability.

It shares no code with the library. Tokens are read by the tokenizer's own ``decode`` of the whole sequence, numbers by patterns,
and probabilities are those of the model in float64, from a forward pass over all tokens of a sequence without a cache.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable
from decimal import Decimal
from functools import cache
from typing import Any, NamedTuple

import torch

DIGITS, DECIMALS = 2, 1  # the most of a number
_OPEN = re.compile(rf"\s{{0,2}}(-?|-?\d{{1,{DIGITS}}}|-?\d{{1,{DIGITS}}}\.\d{{0,{DECIMALS}}})")
_NUMBER = re.compile(rf"\s{{0,2}}(-?\d{{1,{DIGITS}}}(?:\.\d{{1,{DECIMALS}}})?)")
_ANY_NUMBER = re.compile(r"\s*(-?\d+(?:\.\d+)?)")


class Number(NamedTuple):
    """What may follow: the probability of each value, and of each sequence of tokens that is a number with nothing after it."""

    masses: dict[Any, float]  # by value, "more" and "none"
    paths: dict[tuple[int, ...], float]
    values: dict[tuple[int, ...], Decimal]


class Oracle:
    """A model, the ``decode`` of its tokenizer, and the tokens that end a text."""

    def __init__(self, model: Any, decode: Callable[[list[int]], str], end: int) -> None:
        self.model, self.end = model, end
        self._decode = cache(lambda ids: decode([*ids]))

    def decode(self, ids: list[int]) -> str:
        return self._decode(tuple(ids))

    @torch.no_grad()
    def chances(self, rows: list[list[int]]) -> list[list[float]]:
        return self.model(torch.tensor(rows)).logits[:, -1].softmax(-1).tolist()

    def text(self, ids: list[int], path: tuple[int, ...]) -> str:
        """The text of a path after ``ids``; the end of a text is written as a bar."""
        before, whole = self.decode(ids), self.decode([*ids, *(i for i in path if i != self.end)])
        assert whole.startswith(before)
        return whole[len(before) :] + "|" * (self.end in path)

    def number(self, ids: list[int], first: list[float]) -> Number:
        """What may follow ``ids``, with the probabilities ``first`` of the next token."""
        masses: dict[Any, float] = defaultdict(float)
        paths: dict[tuple[int, ...], float] = {}
        texts: dict[tuple[int, ...], str] = {}
        open_paths: dict[tuple[int, ...], float] = {(): 1.0}
        ended: list[tuple[tuple[int, ...], str, float]] = []
        while open_paths:
            rows = self.chances([[*ids, *path] for path in open_paths]) if () not in open_paths else [first]
            longer = {}
            for (path, mass), row in zip(open_paths.items(), rows, strict=True):
                for token, chance in enumerate(row):
                    text = self.text(ids, (*path, token))
                    if token != self.end and _OPEN.fullmatch(text):
                        longer[(*path, token)] = mass * chance
                        texts[(*path, token)] = text
                    else:
                        ended.append(((*path, token), text, mass * chance))
            open_paths = longer
        for path, text, mass in ended:
            size = next(size for size in range(len(text)) if not _OPEN.fullmatch(text[: size + 1]))
            match = _NUMBER.match(text[:size])
            if text[size].isdigit() and text[:size].strip():
                masses["more"] += mass
            elif match is None:
                masses["none"] += mass
            else:
                masses[Decimal(match[1])] += mass
                for end in range(1, len(path)):
                    if texts.get(path[:end]) == match[0]:
                        paths[path[:end]] = paths.get(path[:end], 0.0) + mass
        return Number(dict(masses), paths, {path: Decimal(texts[path].strip()) for path in paths})

    def begins(self, ids: list[int], token: int) -> bool:
        """Whether greedy text from this token on is a number, and not part of a word."""
        text, path = self.text(ids, (token,)), (token,)
        if not text.strip() or (not text[0].isspace() and self.decode(ids)[-1:].isalnum()):
            return False
        while _OPEN.fullmatch(text) and not _NUMBER.fullmatch(text):
            (row,) = self.chances([[*ids, *path]])
            path = (*path, row.index(max(row)))
            text = self.text(ids, path)
        match = _NUMBER.match(text)
        return match is not None and not text[match.end() :][:1].isdigit()

    def write(
        self, ids: list[int], decide: Callable[[dict[Decimal, float]], Decimal], most: int
    ) -> tuple[list[int], list[Number]]:
        """The tokens that are written after a prompt, and the distributions of the numbers among them."""
        written: list[int] = []
        found: list[Number] = []
        number, after = "", 0  # the last number, and how many tokens there were with it
        while len(written) < most and self.end not in written:
            (row,) = self.chances([[*ids, *written]])
            if number:
                for token in range(len(row)):
                    match = _ANY_NUMBER.match(number + self.text([*ids, *written[:after]], (*written[after:], token)))
                    row[token] *= match is not None and match[1] == number
            token = row.index(max(row))
            if self.begins([*ids, *written], token):
                if self.decode([*ids, *written])[-1:].isalnum():  # within a word only a number after white space is one
                    texts = [self.text([*ids, *written], (token,)) for token in range(len(row))]
                    row = [chance * (re.match(r"-|\d", text) is None) for chance, text in zip(row, texts, strict=True)]
                found.append(self.number([*ids, *written], [chance / sum(row) for chance in row]))
                value = decide({value: mass for value, mass in found[-1].masses.items() if isinstance(value, Decimal)})
                path = max((path for path, own in found[-1].values.items() if own == value), key=found[-1].paths.__getitem__)
                number = self.text([*ids, *written], path).strip()
                written += path
                after = len(written)
            else:
                written.append(token)
        return written, found


def median(masses: dict[Decimal, float]) -> Decimal:
    left = sum(masses.values()) / 2
    for value in sorted(masses):
        left -= masses[value]
        if left <= 0:
            return value
    raise AssertionError


def mode(masses: dict[Decimal, float]) -> Decimal:
    return max(masses, key=masses.__getitem__)
