r"""SoftTargets: labels that are distributions over tokens, at some positions of a batch.

With the label y, the target q and the logits z of a position, and their log-sum-exp:

    -sum_k q_k log p_k = q_y (-log p_y) + sum over k != y of q_k (lse - z_k)

So a soft position needs a few more entries of the logits than a hard one, and its gradient is p - q instead of p - 1[y].
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from numerate.checks import check_tensor
from numerate.labels import IGNORE_INDEX

SOFT_FIELDS = ("soft_positions", "soft_token_ids", "soft_probabilities")
"""Fields of a batch that hold soft targets, ``[B, E]`` each; see :class:`SoftTargets`."""

WEIGHT_FIELDS = ("token_weights", "position_weights")
"""Fields of a batch that weigh its labels, ``[B, T]`` each: in the cross-entropy, and in the numeric term."""

_SUM = 1e-3  # how far the probabilities of a position may be from 1


@dataclass(frozen=True)
class SoftTargets:
    """Targets that are distributions over tokens, as E entries per sequence.

    An entry says: at this position of the sequence, this token has this probability. The entries of a position sum to one; a
    position without entries has its label as the target. Entries fill up each sequence of a batch to E: position -1 is no entry.
    The label itself should be one of the tokens of its position, since it is the text that the model reads next.

    Args:
        positions: ``[.., E]``, index into the sequence's labels ``[.., T]``, or -1.
        token_ids: ``[.., E]``.
        probabilities: ``[.., E]``, >= 0.

    Examples:
        >>> soft = SoftTargets(torch.tensor([[1, 1, -1]]), torch.tensor([[7, 8, 0]]), torch.tensor([[0.75, 0.25, 0.0]]))
        >>> rows = soft.rows(torch.tensor([[5, 7, 2]]))
        >>> rows.gold.tolist(), rows.rows.tolist(), rows.token_ids.tolist(), rows.probabilities.tolist()
        ([1.0, 0.75, 1.0], [1, 1, 0], [7, 8, 0], [0.0, 0.25, 0.0])
    """

    positions: Tensor
    token_ids: Tensor
    probabilities: Tensor

    @classmethod
    def from_batch(cls, batch: Mapping[str, Any]) -> SoftTargets | None:
        """Return the soft targets in a batch's ``SOFT_FIELDS``, or None if there are none."""
        found = [name for name in SOFT_FIELDS if batch.get(name) is not None]
        if not found:
            return None
        if len(found) < len(SOFT_FIELDS):
            raise ValueError(f"the batch has {', '.join(found)}: expected all of {', '.join(SOFT_FIELDS)}, or none of them.")
        return cls(*(batch[name] for name in SOFT_FIELDS))

    def checked(self, labels: Tensor) -> SoftTargets:
        """Return these targets on the device of ``labels [.., T]``; raise if they do not fit.

        Positions and sums of probabilities are checked on a CPU, where that needs no sync.
        """
        sizes = "".join(f"{size}, " for size in labels.shape[:-1])
        expected = f"[{sizes}E], E entries for each sequence of labels"
        for name in ("positions", "token_ids", "probabilities"):
            value = getattr(self, name)
            check_tensor(f"soft.{name}", value, expected)
            if value.shape != self.positions.shape or value.shape[:-1] != labels.shape[:-1]:
                raise ValueError(
                    f"soft.{name} has shape {tuple(value.shape)} and labels {tuple(labels.shape)}: expected {expected}."
                )
            if value.is_floating_point() != (name == "probabilities"):
                raise TypeError(f"soft.{name} has dtype {value.dtype}: expected {_DTYPES[name]}.")
        if self.positions.device.type == "cpu" and not torch.compiler.is_compiling():
            self._check_entries(labels.shape[-1])
        return self.to(labels.device)

    def to(self, device: torch.device | str) -> SoftTargets:
        """Copy to another device."""
        return SoftTargets(self.positions.to(device), self.token_ids.to(device), self.probabilities.to(device))

    def _check_entries(self, length: int) -> None:
        inside = self.positions >= 0
        if bool((self.positions >= length).any()):
            last = int(self.positions.max())
            raise ValueError(f"soft.positions holds {last}: expected an index below {length}, the length of labels, or -1.")
        p = self.probabilities.double().cpu()
        if not bool((p.isfinite() & (p >= 0)).all()):
            raise ValueError("soft.probabilities holds a negative or infinite number or NaN: expected finite numbers >= 0.")
        sums = p.new_zeros((*self.positions.shape[:-1], length + 1))
        index = torch.where(inside, self.positions, length)
        sums.scatter_add_(-1, index, p)
        touched = torch.zeros_like(sums).scatter_(-1, index, 1.0)[..., :length] > 0
        wrong = touched & ((sums[..., :length] - 1).abs() > _SUM)
        if bool(wrong.any()):
            raise ValueError(
                f"soft.probabilities of a position sum to {float(sums[..., :length][wrong][0]):.4g}: expected 1 at each position."
            )

    def shifted(self) -> SoftTargets:
        """Return the targets aligned with a causal model's logits: one position to the left. The first position is dropped."""
        return SoftTargets(self.positions - 1, self.token_ids, self.probabilities)

    def rows(self, labels: Tensor, ignore_index: int = -100) -> SoftRows:
        """Return the entries by rows of the flattened ``labels [.., T]``, aligned; without a shape that depends on data."""
        length, device = labels.shape[-1], labels.device
        flat = labels.reshape(-1)
        sequences = torch.arange(labels.shape[:-1].numel(), device=device).reshape(*labels.shape[:-1], 1)
        inside = (self.positions >= 0) & (self.positions < length)
        row = torch.where(inside, sequences * length + self.positions, 0).reshape(-1)  # [S]
        inside = inside.reshape(-1) & (flat.take(row) != ignore_index)
        row, token = torch.where(inside, row, 0), torch.where(inside, self.token_ids.reshape(-1), 0)
        p = torch.where(inside, self.probabilities.reshape(-1).to(torch.float64), 0.0)
        at_label = inside & (token == flat.take(row))
        soft = torch.zeros(flat.shape, dtype=torch.float64, device=device).index_add(0, row, inside.double())
        gold = torch.zeros_like(soft).index_add(0, row, torch.where(at_label, p, 0.0))
        gold = torch.where(soft > 0, gold, 1.0)
        return SoftRows(gold, row, token, torch.where(at_label, 0.0, p))


def soft_fields(
    rows: Sequence[Mapping[str, Any]], places: Sequence[tuple[int, int]], shape: Sequence[int], labels: Tensor | None = None
) -> dict[str, Tensor]:
    """Return the ``SOFT_FIELDS`` ``[B, E]`` of a batch, filled up to the most entries of a line.

    Args:
        rows: with their own ``SOFT_FIELDS``, if any.
        places: the line of the batch that each row lies in, in ascending order, and how far it was moved to the right.
        shape: ``B, T``; entries of tokens that were cut are left out.
        labels: ``[B, T]``; entries of ignored ones are left out.

    Examples:
        >>> row = {"soft_positions": [2], "soft_token_ids": [7], "soft_probabilities": [1.0]}
        >>> {name: value.tolist() for name, value in soft_fields([row, {}], [(0, 0), (1, 0)], (2, 4)).items()}
        {'soft_positions': [[2], [-1]], 'soft_token_ids': [[7], [0]], 'soft_probabilities': [[1.0], [0.0]]}
    """
    columns = [[() if (own := row.get(name)) is None else own for row in rows] for name in SOFT_FIELDS]
    counts, *others = ([*map(len, column)] for column in columns)
    if any(other != counts for other in others):
        raise ValueError(f"rows have {SOFT_FIELDS} of different lengths: expected one of each for each entry.")
    kinds = np.int64, np.int64, np.float32
    place, token_ids, p = (
        np.concatenate(column, dtype=kind, casting="unsafe") for column, kind in zip(columns, kinds, strict=True)
    )  # [S] each
    line, moved = (np.array(given).repeat(counts) for given in zip(*places, strict=True))  # [S] each
    place += moved
    kept = (place >= 0) & (place < shape[1])
    if labels is not None:
        kept &= labels.numpy(force=True).take(line * shape[1] + place, mode="clip") != IGNORE_INDEX
    if not kept.all():
        line, place, token_ids, p = line[kept], place[kept], token_ids[kept], p[kept]
    sizes = np.bincount(line, minlength=shape[0])  # [B]
    real = np.arange(max(1, sizes.max())) < sizes[:, None]  # [B, E]
    batch = {}
    for name, values, fill in zip(SOFT_FIELDS, (place, token_ids, p), (-1, 0, 0), strict=True):
        table = np.full(real.shape, fill, dtype=values.dtype)
        table[real] = values
        batch[name] = torch.from_numpy(table)
    return batch


class SoftRows(NamedTuple):
    """Soft targets of R rows of logits: the label's probability, and that of other tokens as entries."""

    gold: Tensor  # [R] float64, probability of each row's label; 1 where the target is hard
    rows: Tensor  # [S]
    token_ids: Tensor  # [S], other than the row's label wherever the probability is not 0
    probabilities: Tensor  # [S] float64; 0: no entry

    def checked(self, vocab_size: int) -> SoftRows:
        """Return these rows; raise for a token outside the vocabulary."""
        if torch.compiler.is_compiling():
            return self
        wrong = (self.token_ids < 0) | (self.token_ids >= vocab_size)
        if wrong.device.type != "cpu":  # no sync
            torch._assert_async(~wrong.any(), f"soft.token_ids holds ids outside [0, {vocab_size})")
        elif bool(wrong.any()):
            raise ValueError(f"soft.token_ids holds {int(self.token_ids[wrong][0])}: expected token ids in [0, {vocab_size}).")
        return self

    def cross_entropy(self, nll: Tensor, lse: Tensor, at_entries: Tensor) -> Tensor:
        """Return the cross-entropy of each row ``[R]``.

        ``nll [R]`` is that of the labels, ``lse [R]`` the log-sum-exp of the logits, and ``at_entries [S]`` are the logits of the
        entries.
        """
        gold, p = self.gold.to(nll.dtype), self.probabilities.to(nll.dtype)
        others = torch.where(p > 0, p * (lse.index_select(0, self.rows) - at_entries), 0.0)
        return torch.where(gold > 0, gold * nll, 0.0).index_add(0, self.rows, others)


_DTYPES = {"positions": "integers", "token_ids": "integers", "probabilities": "floating point"}
