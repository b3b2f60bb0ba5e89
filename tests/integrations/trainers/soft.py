"""Soft targets and weights for the examples of tests, and what they do to the loss, written out."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from numerate import NumericObjective
from numerate.targets.soft_targets import SOFT_FIELDS

WEIGHTS = ("token_weights", "position_weights")


def with_fields(rows: list[dict[str, Any]], fields: str, tokens: int = 32) -> list[dict[str, Any]]:
    """Add fields to examples: "soft", "weights", "both", "hard" for soft targets that are the labels, "" for none.

    Some entries are at the first position and at ignored labels, which have no target; the second example has no entry.
    ``tokens``: the ids of targets are below this.
    """
    return [row | fields_for(row["labels"], i, fields, tokens) for i, row in enumerate(rows)]


def fields_for(labels: Tensor, seed: int, fields: str, tokens: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    added: dict[str, Tensor] = {}
    if fields in ("weights", "both"):
        added |= {name: torch.rand(labels.shape, generator=generator, dtype=torch.float64) for name in WEIGHTS}
        added["position_weights"] = (added["position_weights"] > 0.3).double()
    if fields in ("soft", "hard", "both"):
        entries: list[tuple[int, int, float]] = []
        for t in range(0 if seed != 1 else len(labels), len(labels)):
            if t and torch.rand((), generator=generator) < 0.4:
                continue
            label, first = max(int(labels[t]), 0), int(torch.randint(0, tokens - 3, (), generator=generator))
            others = [token for token in range(first, first + 4) if token != label]
            shares = torch.rand(len(others) + 1, generator=generator, dtype=torch.float64)
            shares = torch.ones(1, dtype=torch.float64) if fields == "hard" else shares / shares.sum()
            entries += [(t, token, float(p)) for token, p in zip([label, *others], shares, strict=False)]
        columns = list(zip(*entries, strict=True)) or [(), (), ()]
        dtypes = (torch.int64, torch.int64, torch.float64)
        added |= {name: torch.tensor(x, dtype=d) for name, x, d in zip(SOFT_FIELDS, columns, dtypes, strict=True)}
    return added


def collate_fields(rows: list[dict[str, Any]]) -> dict[str, Tensor]:
    """Return the fields of examples as those of a batch, padded on the right."""
    fill = dict.fromkeys((*SOFT_FIELDS, *WEIGHTS), 0) | {SOFT_FIELDS[0]: -1}
    names = [name for name in fill if name in rows[0]]
    return {
        name: nn.utils.rnn.pad_sequence([row[name] for row in rows], batch_first=True, padding_value=fill[name]) for name in names
    }


def parts_of(
    objective: NumericObjective, logits: Tensor, labels: Tensor, batch: dict[str, Any], *, shift: bool, smoothing: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Return cross-entropy and numeric term of raw labels ``[B, T]``, from the last positions of the logits, in dense tensors.

    ``batch`` has the fields. More logits than labels: there are virtual tokens, the last of which predicts the first label.
    """
    size = logits.shape[-1]
    targets = F.one_hot(labels.clamp_min(0), size).to(logits.dtype)  # [B, T, V]
    if SOFT_FIELDS[0] in batch:
        positions, tokens, shares = (batch[name] for name in SOFT_FIELDS)
        for b in range(labels.shape[0]):
            for t in set(positions[b][positions[b] >= 0].tolist()):
                targets[b, t] = 0.0
                for e in (positions[b] == t).nonzero()[:, 0]:
                    targets[b, t, tokens[b, e]] += shares[b, e]
    targets = (1 - smoothing) * targets + smoothing / size
    ones = torch.ones(labels.shape, dtype=logits.dtype)
    weights, factors = (batch.get(name, ones).to(logits.dtype) for name in WEIGHTS)
    more = logits.shape[1] - labels.shape[1]
    if more:
        logits = logits[:, more - 1 : -1]
    elif shift:
        logits, labels, targets, weights, factors = logits[:, :-1], labels[:, 1:], targets[:, 1:], weights[:, 1:], factors[:, 1:]
    weights = torch.where(labels != -100, weights, 0.0)
    ce = -(weights[..., None] * targets * logits.log_softmax(-1)).sum() / weights.sum()
    loss = objective.numeric_loss
    if loss.vocab is None:
        return ce, torch.zeros_like(ce)
    count = loss.count(labels, position_weights=factors) if objective.normalize == "numeric" else weights.sum()
    numeric = loss(logits, labels, position_weights=factors, reduction="sum")
    return ce, numeric / count if count else numeric
