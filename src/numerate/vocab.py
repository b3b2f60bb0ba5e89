"""NumericVocab: which token ids are numbers, and their values."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from numerate.checks import check_labels, check_number, one_line
from numerate.formats import NumberFormat, as_format
from numerate.marks import CLOSES, COMMA, DIGITS, EXPONENT, GAP, MINUS, NEGATES, PARTS, POINT, SPACED, flags_of
from numerate.numeric_tokens import TEN_DIGITS, NumericToken, by_value, parts_of_numbers, values_by_pattern
from numerate.tokens import checked_id, read_texts

_FORMAT = 3
MOST_TOKENS = 1 << 24
"""Largest supported vocabulary; tables have one entry per token."""


@dataclass(frozen=True, repr=False)
class NumericVocab:
    """The numeric tokens of a vocabulary with their values, and the tokens for signs, points and exponents.

    Create one with :meth:`from_tokenizer`, :meth:`from_texts`, :meth:`from_values` or :meth:`from_pattern`. It is immutable
    and hashable, keeps no reference to the tokenizer, and can be saved as JSON.

    A token id indexes the whole vocabulary (V); an *index* indexes the numeric tokens (N), sorted by value.

    Args:
        tokens: the numeric tokens, sorted by value.
        vocab_size: V, the size of the vocabulary.
        marks: id and text of the tokens for signs, points and exponents: ``"."``, ``" -"``, ``"(-"``, ``"e"``.
        closing_ids: other tokens that end in a letter, a digit or a closing bracket.
        composes: whether tokens combine into longer numbers; False: each token is a complete number.
        space_ids: ids of the tokens that are only a space, which stand between the digits of a spaced number.
        format: how the numbers of the labels are written: a :class:`~numerate.formats.NumberFormat`, or a kind that needs no
            width, such as ``"spaced"``; None: plain. It decides which places the digits have in a number, and changes no loss
            that scores tokens alone.

    Examples:
        >>> vocab = NumericVocab.from_texts({"0": 5, "1": 6, "12": 7, ".": 3, "-": 4}, vocab_size=10)
        >>> vocab
        NumericVocab(3 numeric tokens of 10: 1-2 digits wide, values 0..12; point '.', minus '-')
        >>> vocab.index_of(torch.tensor([7, 3, 5, -100]))
        tensor([ 2, -1,  0, -1])
    """

    tokens: tuple[NumericToken, ...]
    vocab_size: int
    marks: tuple[tuple[int, str], ...] = ()
    closing_ids: tuple[int, ...] = ()
    composes: bool = True
    space_ids: tuple[int, ...] = ()
    format: NumberFormat | str | None = None

    def __post_init__(self) -> None:
        if not self.tokens:
            raise ValueError("tokens is empty: expected at least one numeric token.")
        if not 0 < self.vocab_size <= MOST_TOKENS:
            raise ValueError(f"vocab_size={self.vocab_size} is out of range: expected 1 to {MOST_TOKENS:,} tokens.")
        for token in self.tokens:
            if not math.isfinite(token.value):
                raise ValueError(
                    f"token {token.text!r:.40} with id {token.token_id} has the value {token.value}: expected a finite number, "
                    "at most 1.8e308; leave the token out with from_texts or from_values."
                )
        ids = [token.token_id for token in self.tokens]
        if len(set(ids)) != len(ids):
            raise ValueError("tokens contains a duplicate token id: expected each id once.")
        ids += [*(token_id for token_id, _ in self.marks), *self.closing_ids, *self.space_ids]
        if min(ids) < 0 or max(ids) >= self.vocab_size:
            raise ValueError(
                f"vocab_size={self.vocab_size} does not cover token ids {min(ids)}..{max(ids)}: expected every id in "
                "[0, vocab_size). Pass the number of rows of the model's head."
            )
        if self.format is not None:
            object.__setattr__(self, "format", self._checked_format(as_format(self.format)))

    def _checked_format(self, format: NumberFormat) -> NumberFormat | None:
        """Return the format, None for plain text; raise if no text of these tokens is in it."""
        if format.kind == "plain":
            return None
        lacks = ""
        if not self.composes:
            lacks = "each token is a complete number"
        elif "spaced" in format.kind and not (self.space_ids or any(token.text.startswith(" ") for token in self.tokens)):
            lacks = "no token is a space, or a digit after a space"
        elif "grouped" in format.kind and not self.comma_ids:
            lacks = "no token is a comma"
        if lacks:
            raise ValueError(
                f"format={format.kind!r} is not that of numbers in these tokens, of which {lacks}: expected a format that the "
                "tokens can write, or None for plain numbers."
            )
        return format

    @classmethod
    def from_texts(
        cls,
        texts: Mapping[str, int],
        vocab_size: int,
        *,
        canonical_only: bool = False,
        digits_only: bool = False,
        max_value: int | None = None,
        format: NumberFormat | str | None = None,
    ) -> NumericVocab:
        """Find the numbers among token texts, given as ``{text: token_id}`` with spaces written as spaces.

        A numeric token consists of ASCII digits with at most one leading space.

        Args:
            texts: token id of each token text.
            vocab_size: V, the size of the vocabulary.
            canonical_only: keep only ``0`` .. ``max_value`` without leading zero or space.
            digits_only: keep only the ten digits.
            max_value: drop tokens of a larger value. None: keep all, or 999 with ``canonical_only``.
            format: how numbers are written; see :class:`NumericVocab`.
        """
        vocab = cls(**parts_of_numbers(texts.items(), vocab_size), vocab_size=int(vocab_size), format=format)
        return vocab.restrict(canonical_only=canonical_only, digits_only=digits_only, max_value=max_value)

    @classmethod
    def from_tokenizer(
        cls,
        tokenizer: Any,
        *,
        vocab_size: int | None = None,
        canonical_only: bool = False,
        digits_only: bool = False,
        max_value: int | None = None,
        format: NumberFormat | str | None = None,
    ) -> NumericVocab:
        """Find the numbers among the tokens of a Hugging Face tokenizer (``transformers`` or ``tokenizers``).

        The tokenizer is not changed.

        Args:
            tokenizer: any tokenizer with ``get_vocab``.
            vocab_size: V; None: the tokenizer's. Logits may have more columns.
            canonical_only: as in :meth:`from_texts`.
            digits_only: as in :meth:`from_texts`.
            max_value: as in :meth:`from_texts`.
            format: how numbers are written; see :class:`NumericVocab`.
        """
        pairs, size = read_texts(tokenizer, skip_special=True)
        most = size if vocab_size is None else vocab_size
        try:
            vocab = cls(**parts_of_numbers(pairs, most), vocab_size=int(most), format=format)
            return vocab.restrict(canonical_only=canonical_only, digits_only=digits_only, max_value=max_value)
        except ValueError as error:
            raise ValueError(f"tokenizer={type(tokenizer).__name__} of {size} tokens: {error}") from None

    @classmethod
    def from_values(cls, values: Mapping[int, float], vocab_size: int, *, texts: Mapping[int, str] | None = None) -> NumericVocab:
        """Use any ordered set of tokens: ratings, months, bins. Each token is a complete number.

        Args:
            values: value of each token id.
            vocab_size: V, the size of the vocabulary.
            texts: text of each token id; None: its value.
        """
        if not values:
            raise ValueError("values is empty: expected {token_id: value} with at least one entry.")
        texts = texts or {}
        tokens = [
            NumericToken(checked_id(i), check_number(f"values[{i}]", v), 1, texts.get(i, f"{float(v):g}"))
            for i, v in values.items()
        ]
        return cls(tokens=by_value(tokens), vocab_size=int(vocab_size), composes=False)

    @classmethod
    def from_pattern(cls, tokenizer: Any, pattern: str, *, vocab_size: int | None = None) -> NumericVocab:
        r"""Use the tokens whose full text matches a pattern, such as location tokens. Each token is a complete number.

        Args:
            tokenizer: as in :meth:`from_tokenizer`.
            pattern: a regular expression; its first group is the value: ``r"<loc(\d+)>"``.
            vocab_size: V; None: the tokenizer's.
        """
        pairs, size = read_texts(tokenizer, skip_special=False)
        values = values_by_pattern(pattern, pairs)
        size = size if vocab_size is None else vocab_size
        return cls.from_values(values, size, texts={i: text for text, i in pairs if i in values})

    def restrict(self, *, canonical_only: bool = False, digits_only: bool = False, max_value: int | None = None) -> NumericVocab:
        """Return the vocabulary with fewer numeric tokens; see :meth:`from_texts` for the arguments."""
        limit = max_value if max_value is not None else 999 if canonical_only else None
        tokens = [
            token
            for token in self.tokens
            if not (digits_only and token.text not in TEN_DIGITS)
            and not (canonical_only and token.text != str(int(token.value)))
            and not (limit is not None and token.value > limit)
        ]
        if not tokens:
            raise ValueError(
                f"canonical_only={canonical_only}, digits_only={digits_only}, max_value={max_value} keep none of the "
                f"{self.size} numeric tokens: expected at least one. Relax one of them."
            )
        return replace(self, tokens=by_value(tokens))

    @property
    def size(self) -> int:
        """N, the number of numeric tokens; also ``len(vocab)``."""
        return len(self.tokens)

    def __len__(self) -> int:
        return len(self.tokens)

    @cached_property
    def token_ids(self) -> Tensor:
        """Token ids ``[N]``, sorted by value."""
        return torch.tensor([token.token_id for token in self.tokens])

    @cached_property
    def values(self) -> Tensor:
        """Values ``[N]``, float64, ascending."""
        return torch.tensor([token.value for token in self.tokens], dtype=torch.float64)

    @cached_property
    def number_values(self) -> Tensor:
        """Values ``[N]`` of the digits in a number, float64: those of :attr:`values`, but 120 for ``'021'`` if reversed."""
        if not self.writes("reversed"):
            return self.values
        return torch.tensor([float(token.text.strip()[::-1]) for token in self.tokens], dtype=torch.float64)

    def writes(self, kind: str) -> bool:
        """Whether the format is of a kind, or combines it with others."""
        return isinstance(self.format, NumberFormat) and kind in self.format.kind.split("+")

    @cached_property
    def widths(self) -> Tensor:
        """Digits per token ``[N]``: 3 for ``'007'``."""
        return torch.tensor([token.width for token in self.tokens])

    @property
    def texts(self) -> tuple[str, ...]:
        """The N token texts, including leading spaces."""
        return tuple(token.text for token in self.tokens)

    @cached_property
    def point_ids(self) -> tuple[int, ...]:
        """Ids of points, with or without a leading space."""
        return self._marked(POINT)

    @cached_property
    def comma_ids(self) -> tuple[int, ...]:
        """Ids of commas."""
        return self._marked(COMMA)

    @cached_property
    def minus_ids(self) -> tuple[int, ...]:
        """Ids of minus signs (``-``, U+2212 and other dashes), with or without a leading space."""
        return self._marked(MINUS)

    @cached_property
    def negating_ids(self) -> tuple[int, ...]:
        """Ids of longer tokens that end in a possible sign: ``(-``, ``-$``, ``-.``."""
        return self._marked(NEGATES, without=MINUS)

    @cached_property
    def exponent_ids(self) -> tuple[int, ...]:
        """Ids of tokens that start a power of ten: ``e``, ``E``, ``e-``."""
        return self._marked(EXPONENT)

    def _marked(self, flag: int, without: int = 0) -> tuple[int, ...]:
        return tuple(token_id for token_id, text in self.marks if flags_of(text) & flag and not flags_of(text) & without)

    @property
    def is_single_digits(self) -> bool:
        """Whether the numeric tokens are exactly the ten digits."""
        return self.composes and {token.text for token in self.tokens} == TEN_DIGITS

    @cached_property
    def index_table(self) -> Tensor:
        """Index of each token among the numeric tokens, -1 for other tokens; for :func:`look_up`."""
        table = torch.full((self.vocab_size + 2,), -1)
        table[self.token_ids + 1] = torch.arange(self.size)
        return table

    @cached_property
    def flag_table(self) -> Tensor:
        """Flags of :mod:`numerate.marks` for each token; for :func:`look_up`."""
        table = torch.zeros(self.vocab_size + 2, dtype=torch.int32)
        table[torch.tensor(self.closing_ids, dtype=torch.long) + 1] = CLOSES
        if self.marks:
            ids, texts = zip(*self.marks, strict=True)
            table[torch.tensor(ids) + 1] = torch.tensor([flags_of(text) for text in texts], dtype=torch.int32)
        spaced = [token.token_id for token in self.tokens if token.text.startswith(" ") or not self.composes]
        table[torch.tensor(spaced, dtype=torch.long) + 1] |= SPACED
        table[self.token_ids + 1] |= DIGITS
        if self.writes("spaced"):
            table[torch.tensor(self.space_ids, dtype=torch.long) + 1] |= GAP
        return table

    @cached_property
    def part_table(self) -> Tensor:
        """Mask of tokens that can be part of a number or affect the number directly after them; for :func:`look_up`."""
        return (self.flag_table & PARTS) != 0

    def index_of(self, labels: Tensor) -> Tensor:
        """Return the index of each label among the numeric tokens, -1 for other labels."""
        check_labels(labels)
        return look_up(self.index_table.to(labels.device), labels)

    def save(self, path: str | Path) -> None:
        """Write the vocabulary to a JSON file."""
        Path(path).write_text(self.to_json(), encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> NumericVocab:
        """Read a file written by :meth:`save`."""
        return cls.from_json(Path(path).read_text(encoding="utf-8"))

    def to_json(self) -> str:
        """Return the vocabulary as JSON."""
        parts = {name: getattr(self, name) for name in self.__dataclass_fields__}
        parts["number_format"] = None if (format := parts.pop("format")) is None else format.settings
        return json.dumps({"format": _FORMAT, **parts})

    @classmethod
    def from_json(cls, text: str) -> NumericVocab:
        """Read the result of :meth:`to_json`."""
        try:
            data: Any = json.loads(text)
            known, settings = data.pop("format", None) == _FORMAT, data.pop("number_format", None)
            data["format"] = None if settings is None else NumberFormat(**settings)
            if not known or set(data) != set(cls.__dataclass_fields__):
                raise ValueError("other fields")
            data = {name: tuple(value) if isinstance(value, list) else value for name, value in data.items()}
            data["tokens"] = tuple(NumericToken(*token) for token in data["tokens"])
            data["marks"] = tuple((token_id, mark) for token_id, mark in data["marks"])
            return cls(**data)
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError(
                f"text is not a NumericVocab of format {_FORMAT} ({one_line(error)}): expected a file written by "
                "NumericVocab.save; recreate it with NumericVocab.from_tokenizer."
            ) from None

    def __repr__(self) -> str:
        low, high = self.values[0].item(), self.values[-1].item()
        parts = f"{self.size} numeric tokens of {self.vocab_size}: "
        if self.composes:
            widths = sorted({token.width for token in self.tokens})
            span = "one digit" if widths == [1] else f"{widths[0]}-{widths[-1]} digits"
            zeros = sum(token.width > 1 and token.text.lstrip(" ").startswith("0") for token in self.tokens)
            spaced = sum(token.text.startswith(" ") for token in self.tokens)
            parts += f"{span} wide, values {low:g}..{high:g}"
            parts += f", {zeros} with leading zeros" if zeros else ""
            parts += f", {spaced} with a leading space" if spaced else ""
            marks = {"point '.'": self.point_ids, "minus '-'": self.minus_ids, "comma ','": self.comma_ids}
            parts += "; " + (", ".join(mark for mark, ids in marks.items() if ids) or "no point, minus or comma")
        else:
            parts += f"one number per token, values {low:g}..{high:g}"
        if isinstance(self.format, NumberFormat):
            parts += f"; {self.format.kind} numbers"
        return f"NumericVocab({parts})"


def look_up(table: Tensor, labels: Tensor, ignore_index: int = -1) -> Tensor:
    """Return the entry of each label in a ``[vocab_size + 2]`` table, where token id i is at i + 1.

    The first and last entries are for labels outside the vocabulary: ignored labels and those of padded vocabularies.
    """
    if ignore_index >= 0:
        labels = torch.where(labels == ignore_index, -1, labels)
    entries = (labels.long() + 1).clamp_(0, table.shape[0] - 1)
    return table.index_select(0, entries.flatten()).view(labels.shape)
