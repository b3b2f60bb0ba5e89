"""Numbers drawn after the collator: for rows that become tokens there, such as messages with pictures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from numerate.labels import IGNORE_INDEX
from numerate.targets.drawn import Draws, EpochDataset, Soft
from numerate.targets.soft_numbers import PathKind
from numerate.targets.soft_targets import SOFT_FIELDS, WEIGHT_FIELDS, Entry, soft_fields
from numerate.targets.tokenised_rows import ENDINGS


class NumberedRow(NamedTuple):
    """A row and its index, which seeds its draw."""

    place: int
    row: Any


class NumberedDataset(EpochDataset):
    """A dataset of rows that are not tokenised, each with its index, for :class:`DrawnCollator`."""

    def __init__(self, dataset: Any, soft: Soft, *, seed: int = 0, path: PathKind = "drawn") -> None:
        super().__init__(dataset, Draws(soft, seed, path))

    def read(self, index: int) -> NumberedRow:
        """Return a row with its index."""
        return NumberedRow(index, self.dataset[index])


class DrawnCollator:
    """A data collator whose batches have drawn numbers: the same as if rows had been tokenised and drawn before.

    Args:
        collator: from a list of rows to a batch with ``input_ids`` and ``labels`` ``[B, T]``, such as one that calls a processor.
        data: the rows, and what draws them. Rows from elsewhere, such as those of an evaluation, are collated as they are.
        column: a column of the rows that the draws read, such as ratings.
    """

    def __init__(self, collator: Callable[[list[Any]], Any], data: NumberedDataset, *, column: str | None = None) -> None:
        self.collator, self.column, self._draws = collator, column, data.draws

    def __call__(self, rows: Sequence[Any]) -> Any:
        """Return the batch of the rows."""
        if not isinstance(rows[0], NumberedRow):
            return self.collator([*rows])
        extra = [{} if self.column is None else {self.column: row[self.column]} for _, row in rows]  # collators may change rows
        batch = self.collator([row for _, row in rows])
        lines = lines_of(batch)
        drawn = [self._draws.draw({**line, **own}, number.place) for line, own, number in zip(lines, extra, rows, strict=True)]
        self._pad(batch, drawn, [*lines[0]])
        return batch

    def _pad(self, batch: Any, drawn: list[dict[str, Any]], names: list[str]) -> None:
        """Put drawn rows in place of those of a batch, padded on the same side and with the same tokens."""
        mask, length = _real(batch), max(len(row["input_ids"]) for row in drawn)
        multiple = getattr(self.collator, "pad_to_multiple_of", None) or 1
        length += -length % multiple
        tokenizer = getattr(getattr(self._draws.soft, "_encoder", None), "tokenizer", None)
        left = getattr(tokenizer, "padding_side", "right") == "left"
        if not bool(mask.all()):
            left = bool(mask[:, -1].all())
        names += [name for name in WEIGHT_FIELDS if name in drawn[0] and name not in names]
        for name in names:
            values = [torch.as_tensor(row[name]) for row in drawn]
            old = batch.get(name)
            padding = old[~mask].flatten()[:1].tolist() if old is not None and not bool(mask.all()) else []
            fill = (
                padding[0]
                if padding
                else IGNORE_INDEX
                if name == "labels"
                else int(getattr(tokenizer, "pad_token_id", None) or 0)
                if name == "input_ids"
                else 0
            )
            side = "left" if left else "right"
            table = pad_sequence(values, batch_first=True, padding_value=fill, padding_side=side)
            extra = length - table.shape[1]
            if extra:
                more = table.new_full((table.shape[0], extra, *table.shape[2:]), fill)
                table = torch.cat([more, table] if left else [table, more], 1)
            batch[name] = table
        if SOFT_FIELDS[0] not in drawn[0]:
            return
        entries: list[list[Entry]] = []
        for row in drawn:
            moved = length - len(row["input_ids"]) if left else 0
            entries.append([(t + moved, k, p) for t, k, p in zip(*(row[name] for name in SOFT_FIELDS), strict=True)])
        for name, value in soft_fields(entries).items():
            batch[name] = value  # [B, E]


def lines_of(batch: Mapping[str, Any]) -> list[dict[str, Tensor]]:
    """Return the tokens of each line of a batch, and what belongs to them, without padding."""
    mask = _real(batch)
    names = [
        name
        for name, value in batch.items()
        if isinstance(value, Tensor) and value.shape[:2] == mask.shape
        if name in ("labels", "position_ids") or name.endswith(ENDINGS)
    ]
    return [{name: batch[name][line][real] for name in names} for line, real in enumerate(mask)]


def _real(batch: Mapping[str, Any]) -> Tensor:
    """Return which tokens ``[B, T]`` of a batch are no padding."""
    ids = batch.get("input_ids")
    if not isinstance(ids, Tensor) or ids.dim() != 2:
        raise ValueError(
            f"the collator's input_ids is a {type(ids).__name__}: expected a tensor [B, T] of the tokens in which numbers "
            "are drawn; use return_tensors='pt', or tokenise the rows before."
        )
    mask = batch.get("attention_mask")
    return mask.bool() if isinstance(mask, Tensor) and mask.shape == ids.shape else torch.ones_like(ids, dtype=torch.bool)
