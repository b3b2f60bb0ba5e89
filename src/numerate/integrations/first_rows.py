"""The first rows of a data set, to find what its labels are before training begins."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from numerate.labels import IGNORE_INDEX
from numerate.targets.drawn import DrawnDataset
from numerate.targets.drawn_collator import lines_of
from numerate.targets.tokenised_rows import TokenColumn, as_ids, trained_tokens
from numerate.vocab import NumericVocab

Row = Mapping[str, Any]

_MOST, _FEW, _COLLATED = 1000, 32, 8  # rows in memory, rows that are computed, and rows that a collator makes
_HEAVY = ("pixel_values", "input_features", "input_values", "image", "images")  # not read


@dataclass(frozen=True)
class FirstRows:
    """The first rows of a data set, tokenised."""

    rows: list[Row]  # none if the data set is empty, a stream, or missing
    complete: bool = True  # whether there are no others
    collated: bool = False  # whether the rows are no tokens before the collator

    @classmethod
    def of(cls, dataset: Any, collator: Callable[[list[Any]], Mapping[str, Any]], sequence: TokenColumn) -> FirstRows:
        """Read rows by index; random states are left as they are. Rows without the tokens ``sequence`` are collated.

        Streams give no rows, since they may not begin again.
        """
        if isinstance(dataset, DrawnDataset):
            dataset = dataset.dataset
        if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__") or not len(dataset):
            return cls([])
        with _same_random_state():
            light, most = _readable(dataset)
            first = light[0]
            if _has_tokens(first, sequence):
                return cls([first, *(light[i] for i in range(1, min(most, len(light))))], len(light) <= most)
            chosen = [dataset[i] for i in range(min(_COLLATED, len(dataset)))]
            extra = [dict(row) if isinstance(row, Mapping) else {} for row in chosen]
            batch = collator([copy.copy(row) for row in chosen])  # which may change rows
            rows = (
                [{**own, **line} for own, line in zip(extra, lines_of(batch, sequence)[0], strict=True)]
                if _is_batch(batch, len(chosen), sequence)
                else []
            )
            return cls([row for row in rows if _has_tokens(row, sequence)], len(dataset) <= len(chosen), collated=True)

    def __str__(self) -> str:
        return f"{'' if self.complete else 'the first '}{len(self.rows):,} row{'s' if len(self.rows) != 1 else ''}"


def numeric_rows(vocab: NumericVocab, rows: FirstRows) -> int:
    """Return how many rows have a numeric token among their labels."""
    numeric = set(vocab.token_ids.tolist())

    def labels(row: Row) -> list[int]:
        if row.get("labels") is not None:
            return as_ids(row, "labels")
        ids = as_ids(row, "input_ids")
        return [token_id if trained else IGNORE_INDEX for token_id, trained in zip(ids, trained_tokens(row, ids), strict=True)]

    return sum(not numeric.isdisjoint(labels(row)) for row in rows.rows)


def _readable(dataset: Any) -> tuple[Any, int]:
    """Return a data set without columns that take long to read, and how many of its rows to read."""
    if isinstance(dataset, list | tuple):
        return dataset, _MOST
    names = getattr(dataset, "column_names", None)
    if not isinstance(names, list) or getattr(dataset, "format", {}).get("type") == "custom" or "input_ids" not in names:
        return dataset, _FEW
    heavy = [name for name in names if name in _HEAVY]
    return (dataset.remove_columns(heavy) if heavy else dataset), _MOST


def _has_tokens(row: Any, sequence: TokenColumn) -> bool:
    value = row.get(sequence) if isinstance(row, Mapping) else None
    return value is not None and np.ndim(value) == 1


def _is_batch(batch: Any, rows: int, sequence: TokenColumn) -> bool:
    ids = batch.get(sequence) if isinstance(batch, Mapping) or hasattr(batch, "get") else None
    return isinstance(ids, torch.Tensor) and ids.dim() == 2 and ids.shape[0] == rows


@contextmanager
def _same_random_state() -> Iterator[None]:
    """Leave the random states as they were: rows may be augmented, and training should not depend on having looked at them."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])
