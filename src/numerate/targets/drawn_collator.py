"""Numbers drawn after the collator: for rows that become tokens there, such as messages with pictures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from numerate.labels import IGNORE_INDEX
from numerate.targets.drawn import Draws, EpochDataset, Soft
from numerate.targets.soft_numbers import PathKind
from numerate.targets.soft_targets import SOFT_FIELDS, WEIGHT_FIELDS, soft_fields
from numerate.targets.tokenised_rows import ENDINGS, TokenColumn

_SHIFTED = "decoder_input_ids"  # the labels, moved by one to the right


class NumberedRow(NamedTuple):
    """A row and its index, which seeds its draw."""

    place: int
    row: Any


class NumberedDataset(EpochDataset):
    """A dataset of rows that are not tokenised, each with its index, for :class:`DrawnCollator`."""

    def __init__(self, dataset: Any, soft: Soft, *, seed: int = 0, path: PathKind = "drawn") -> None:
        super().__init__(dataset, Draws(soft, seed, path))

    def read(self, rows: list[Any], indices: Sequence[int]) -> list[Any]:
        """Return the rows with their indices."""
        return [*map(NumberedRow, indices, rows)]


class DrawnCollator:
    """A data collator whose batches have drawn numbers: the same as if rows had been tokenised and drawn before.

    Args:
        collator: from a list of rows to a batch with ``input_ids`` and ``labels`` ``[B, T]``, such as one that calls a processor.
        data: the rows, and what draws them. Rows from elsewhere, such as those of an evaluation, are collated as they are.
        column: a column of the rows that the draws read, such as ratings.
        sequence: the tokens in which numbers are drawn: ``"labels"`` for an encoder-decoder.
    """

    def __init__(
        self,
        collator: Callable[[list[Any]], Any],
        data: NumberedDataset,
        *,
        column: str | None = None,
        sequence: TokenColumn = "input_ids",
    ) -> None:
        self.collator, self.column, self.sequence, self._draws = collator, column, sequence, data.draws

    def __call__(self, rows: Sequence[Any]) -> Any:
        """Return the batch of the rows."""
        if not isinstance(rows[0], NumberedRow):
            return self.collator([*rows])
        extra = [{} if self.column is None else {self.column: row[self.column]} for _, row in rows]  # collators may change rows
        batch = self.collator([row for _, row in rows])
        tokenizer = getattr(getattr(self._draws.soft, "_encoder", None), "tokenizer", None)
        lines, left = lines_of(batch, self.sequence, getattr(tokenizer, "padding_side", "right"))
        if len(lines) != len(rows):
            raise ValueError(
                f"the collator made {len(lines)} lines of {len(rows)} rows that had no tokens: expected a line for each, in "
                "which its numbers are drawn; let the collator pad rows, or tokenise them before it joins them."
            )
        drawn = self._draws.draw([{**line, **own} for line, own in zip(lines, extra, strict=True)], [row.place for row in rows])
        self._pad(batch, drawn, [*lines[0]], left, getattr(tokenizer, "pad_token_id", None) or 0)
        return batch

    def _pad(self, batch: Any, drawn: list[dict[str, Any]], names: list[str], left: bool, pad_token: int) -> None:
        """Put drawn rows in place of those of a batch, padded on the same side and with the same tokens."""
        sequence = self.sequence
        mask, _ = _real(batch, sequence, "left" if left else "right")
        length = max(len(row[sequence]) for row in drawn)
        length += -length % (getattr(self.collator, "pad_to_multiple_of", None) or 1)
        if not mask.all(1).any():  # all lines are padded, to a length that was given
            length = max(length, mask.shape[1])
        for name in dict.fromkeys([*names, *(name for name in WEIGHT_FIELDS if name in drawn[0])]):
            values, old = [torch.as_tensor(row[name]) for row in drawn], batch.get(name)
            padding = [] if old is None or name == _SHIFTED else old[~mask].flatten()[:1].tolist()
            fill = padding[0] if padding else IGNORE_INDEX if name == "labels" else pad_token if "input_ids" in name else 0
            table = torch.stack([_padded(value, length, fill, left) for value in values])
            if name == _SHIFTED:  # the label after which padding begins is one of them
                table[:, 0], labels = old[:, 0], batch["labels"][:, :-1]
                table[:, 1:] = torch.where(labels == IGNORE_INDEX, table[:, 1:], labels)
            batch[name] = table
        if SOFT_FIELDS[0] not in drawn[0]:
            return
        places = [(line, length - len(row[sequence]) if left else 0) for line, row in enumerate(drawn)]
        for name, value in soft_fields(drawn, places, (len(drawn), length)).items():
            batch[name] = value  # [B, E]


def _padded(values: Tensor, length: int, fill: float, left: bool) -> Tensor:
    """Return values ``[T, ..]`` of a row's tokens with padding: ``fill``, or what the first or last token has of several."""
    edge = values[:1] if left else values[-1:]
    more = (torch.full_like(edge, fill) if values.dim() == 1 else edge).expand(length - len(values), *values.shape[1:])
    return torch.cat([more, values] if left else [values, more])


def lines_of(
    batch: Mapping[str, Any], sequence: TokenColumn = "input_ids", side: str = "right"
) -> tuple[list[dict[str, Tensor]], bool]:
    """Return the tokens of each line of a batch, and what belongs to them, without padding; and whether that is on the left.

    Args:
        batch: of a collator.
        sequence: the tokens.
        side: of the padding, where the batch has none.
    """
    mask, left = _real(batch, sequence, side)
    if sequence == "labels":
        names = ["labels", *(name for name in batch if name in WEIGHT_FIELDS or name.startswith("decoder_"))]
    else:
        names = [name for name in batch if name in ("labels", "position_ids") or name.endswith(ENDINGS)]
    names = [name for name in names if isinstance(batch[name], Tensor) and batch[name].shape[:2] == mask.shape]
    return [{name: batch[name][line][real] for name in names} for line, real in enumerate(mask)], left


def _real(batch: Mapping[str, Any], sequence: TokenColumn, side: str) -> tuple[Tensor, bool]:
    """Return which tokens ``[B, T]`` of a batch are no padding, and whether padding is on the left."""
    ids = batch.get(sequence)
    if not isinstance(ids, Tensor) or ids.dim() != 2:
        raise ValueError(
            f"the collator's {sequence} is a {type(ids).__name__}: expected a tensor [B, T] of the tokens in which numbers "
            "are drawn; use return_tensors='pt', or tokenise the rows before."
        )
    if sequence == "labels":  # of which the first may be ignored too, and are no padding then
        mask = ids != IGNORE_INDEX
        left = side == "left" and bool(mask[:, -1].all())
        return mask.cumsum(1).bool() if left else mask.flip(1).cumsum(1).bool().flip(1), left
    given = batch.get("attention_mask")
    mask = given.bool() if isinstance(given, Tensor) and given.shape == ids.shape else torch.ones_like(ids, dtype=torch.bool)
    return mask, side == "left" if bool(mask.all()) else bool(mask[:, -1].all())
