"""SoftCollator: any data collator, with the soft targets and weights of its rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, chain
from typing import Any

import torch
from torch import Tensor

from numerate.checks import check_choice, choices
from numerate.targets.padding import padded
from numerate.targets.soft_targets import SOFT_FIELDS, WEIGHT_FIELDS, soft_fields
from numerate.targets.tokenised_rows import TokenColumn

_FIELDS = frozenset((*SOFT_FIELDS, *WEIGHT_FIELDS))


class SoftCollator:
    """Wraps a data collator: takes soft targets and weights out of the rows, and puts them into its batch.

    The wrapped collator may pad on either side, cut rows, or join them into one (``padding_free`` of TRL). Where each row came to
    lie is found by its tokens.

    Args:
        collator: from a list of rows to a batch with ``input_ids``, and ``labels`` if any: of transformers, of TRL, or your own.
        sequence: what positions refer to, as in :class:`SoftNumbers`: ``"labels"`` for an encoder-decoder.

    Called, it returns the collator's batch, with ``soft_positions``, ``soft_token_ids`` and ``soft_probabilities`` ``[B, E]``
    if any row has them (position -1 is no entry), and ``position_weights`` and ``token_weights`` ``[B, T]`` if any row has those.

    Examples:
        >>> def collate(rows):
        ...     ids = [torch.tensor(row["input_ids"]) for row in rows]
        ...     return {"input_ids": torch.nn.utils.rnn.pad_sequence(ids, batch_first=True, padding_side="left")}
        >>> soft = {"soft_positions": [1, 1], "soft_token_ids": [7, 8], "soft_probabilities": [0.5, 0.5]}
        >>> none = {"soft_positions": [], "soft_token_ids": [], "soft_probabilities": []}
        >>> batch = SoftCollator(collate)([{"input_ids": [5, 7], **soft}, {"input_ids": [5, 6, 7], **none}])
        >>> batch["soft_positions"].tolist()
        [[2, 2], [-1, -1]]
    """

    def __init__(
        self, collator: Callable[[list[dict[str, Any]]], Mapping[str, Any]], *, sequence: TokenColumn = "input_ids"
    ) -> None:
        check_choice("sequence", sequence, choices(TokenColumn))
        if not callable(collator):
            raise TypeError(f"collator={collator!r:.80} cannot be called: expected a data collator.")
        self.collator, self.sequence = collator, sequence

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> Any:
        """Return the batch of the rows."""
        bare = [{name: value for name, value in row.items() if name not in _FIELDS} for row in rows]
        known = padded(self.collator, bare)
        batch: Any = self.collator(bare) if known is None else known[0]
        has_soft = any(row.get(SOFT_FIELDS[0]) is not None for row in rows)
        weights = [name for name in WEIGHT_FIELDS if any(row.get(name) is not None for row in rows)]
        if not has_soft and not weights:
            return batch
        places = [*enumerate(known[1])] if known else _places([_listed(row[self.sequence]) for row in rows], batch, self.sequence)
        count, length = batch[self.sequence].shape
        if has_soft:
            for name, value in soft_fields(rows, places, batch[self.sequence].shape, batch.get("labels")).items():
                batch[name] = value  # [B, E]
        for name in weights:
            table = torch.zeros(count, length)  # [B, T]
            for row, (line, offset) in zip(rows, places, strict=True):
                given, size = row.get(name), len(row[self.sequence])
                values = torch.ones(size) if given is None else torch.as_tensor(given, dtype=torch.float32)
                if len(values) < size:
                    lengths = f"{name} has {len(values)} entries and {self.sequence} {size}"
                    raise ValueError(f"{lengths}: expected one for each token.")
                start, stop = max(offset, 0), min(offset + size, length)
                table[line, start:stop] = values[start - offset : stop - offset]
            batch[name] = table
        return batch


def _listed(value: Any) -> list[Any]:
    return value.tolist() if hasattr(value, "tolist") else [*value]


def _places(rows: list[list[int]], batch: Mapping[str, Any], sequence: TokenColumn) -> list[tuple[int, int]]:
    """Return for each row the line of the batch that it lies in, and how far it was moved to the right."""
    table = batch.get(sequence)
    if not isinstance(table, Tensor) or table.dim() != 2:
        found = f"shape {tuple(table.shape)}" if isinstance(table, Tensor) else type(table).__name__
        raise ValueError(f"the collator's {sequence} is {found}: expected a tensor [B, T]; use return_tensors='pt'.")
    lines = table.numpy(force=True).tolist()
    if len(lines) == len(rows):
        mask = batch.get("attention_mask") if sequence == "input_ids" else None
        real = mask if isinstance(mask, Tensor) and mask.shape == table.shape else [None] * len(rows)
        return [(number, _offset(own, lines[number], real[number], number)) for number, own in enumerate(rows)]
    starts = [*accumulate(map(len, rows), initial=0)]
    if len(lines) != 1 or lines[0][: starts[-1]] != [*chain(*rows)]:
        raise ValueError(
            f"the collator made {sequence} {tuple(table.shape)} of {len(rows)} rows with {starts[-1]} tokens: expected a line "
            "for each row, or one line with all rows one after the other."
        )
    return [(0, start) for start in starts[:-1]]


def _offset(own: list[int], line: list[int], real: Tensor | None, number: int) -> int:
    """Return how far a row was moved in its line of the batch: 0 if it was padded or cut on the right, else on the left."""
    room = len(line) - len(own)
    size = min(len(own), len(line))
    begins = line[:size] == own[:size]
    ends = line[len(line) - size :] == own[len(own) - size :]
    if begins and ends and room > 0 and real is not None:  # padding that looks like text
        begins = bool(real[:size].all())
    if begins:
        return 0
    if ends:
        return room
    raise ValueError(
        f"row {number} is not in the collator's batch: expected its {len(own)} tokens at the left or the right of a line of "
        f"{len(line)}; a collator that changes tokens needs SoftNumbers after it."
    )
