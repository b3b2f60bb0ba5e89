"""Tokenised rows: which tokens are trained, which documents they belong to, and columns that follow when tokens are replaced."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import accumulate, compress
from typing import Any, Literal

import numpy as np
import torch

from numerate.labels import IGNORE_INDEX
from numerate.targets.soft_targets import WEIGHT_FIELDS

TokenColumn = Literal["input_ids", "labels"]
"""Which tokens of a row numbers are drawn in."""

COLUMNS = ("input_ids", "labels", "completion_mask", "assistant_masks", "attention_mask", "seq_lengths", "position_ids")
"""All that says what the tokens of a row are, which are trained, and where documents begin."""

ENDINGS = ("_mask", "_masks", "_ids", "_weights")
_OWN_LABELS = " For an encoder-decoder, whose labels are a sequence of their own, use SoftNumbers(..., sequence='labels')."


def as_ids(row: Mapping[str, Any], name: str) -> list[int]:
    """Return a column of token ids or the like as a list; do not change it."""
    value = row.get(name)
    if value is None:
        raise ValueError(f"the row has no {name!r}, only {', '.join(map(repr, row))}: expected tokenised rows.")
    listed = value if type(value) is list else value.tolist() if hasattr(value, "tolist") else [*value]
    if listed and isinstance(listed[0], (list, tuple)):  # a union takes longer
        raise ValueError(f"{name}={listed!r:.80} has more than one dimension: expected one row, a list of numbers.")
    return listed


def trained_tokens(row: Mapping[str, Any], ids: list[int]) -> bytes:
    """Return which tokens of a row are trained, 1 or 0: by its labels, or by the masks that a trainer makes labels of."""
    trained = b"\1" * len(ids)
    for name in ("labels", "completion_mask", "assistant_masks", "attention_mask"):
        if row.get(name) is None:
            continue
        values = as_ids(row, name)
        if len(values) != len(ids):
            hint = _OWN_LABELS if name == "labels" else ""
            raise ValueError(f"{name} has {len(values)} entries and input_ids {len(ids)}: expected one for each token.{hint}")
        if name != "labels":
            trained = bytes(a and bool(b) for a, b in zip(trained, values, strict=True))
            continue
        ignored = values.count(IGNORE_INDEX)
        trained = bytes(ignored) + b"\1" * (len(values) - ignored)
        if values[ignored:] == ids[ignored:] and values[:ignored] == [IGNORE_INDEX] * ignored:
            continue  # as most rows are: a question, and an answer
        trained = bytes(label != IGNORE_INDEX for label in values)
        if [*compress(values, trained)] != [*compress(ids, trained)]:
            pairs = zip(values, ids, strict=True)
            position = next(i for i, (label, token_id) in enumerate(pairs) if label not in (token_id, IGNORE_INDEX))
            raise ValueError(
                f"labels has {values[position]} at position {position}, where input_ids has {ids[position]}: expected raw "
                f"labels, which are the tokens themselves or {IGNORE_INDEX}; do not shift them.{_OWN_LABELS}"
            )
    return trained


def documents(row: Mapping[str, Any], length: int) -> list[int]:
    """Return the number of the document that each token belongs to; a packed row has several."""
    if row.get("seq_lengths") is not None:
        lengths = as_ids(row, "seq_lengths")
        found = [number for number, count in enumerate(lengths) for _ in range(count)]
        if len(found) != length:
            raise ValueError(f"seq_lengths={lengths!r:.80} sums to {len(found)}: expected {length}, the number of tokens.")
        return found
    if row.get("position_ids") is None:
        return [0] * length
    positions = as_ids(row, "position_ids")
    if len(positions) != length:
        raise ValueError(
            f"position_ids has {len(positions)} entries for {length} tokens: expected one each; leave it to the model."
        )
    return [*accumulate([int(position == 0) for position in positions])]


def rebuilt(row: Mapping[str, Any], ids: list[int], sources: list[int], trained: bytes) -> dict[str, Any]:
    """Return the row with other tokens: each of ``ids`` takes what belongs to it from the token ``sources`` of the old row.

    Columns with an entry for each token follow: ``labels``, ``position_ids``, and those whose names end in ``_mask``, ``_masks``,
    ``_ids`` or ``_weights``. ``seq_lengths`` are counted again.
    """
    length, out = len(trained), dict(row)
    out["input_ids"] = _like(row["input_ids"], ids)
    if row.get("labels") is not None:
        ignored = trained.index(1) if 1 in trained else length
        labels = [IGNORE_INDEX] * ignored + ids[ignored:]  # what comes first is not replaced
        if 0 in trained[ignored:]:
            kept = map(trained.__getitem__, sources)
            labels = [token_id if is_trained else IGNORE_INDEX for token_id, is_trained in zip(ids, kept, strict=True)]
        out["labels"] = _like(row["labels"], labels)
    _follow(out, sources, length, (name for name in row if name not in ("input_ids", "labels", "position_ids")))
    if row.get("position_ids") is None and row.get("seq_lengths") is None:
        return out
    docs = documents(row, length)
    if row.get("position_ids") is not None:
        positions, new = as_ids(row, "position_ids"), []
        old_start = {number: place for place, number in reversed([*enumerate(docs)])}
        new_start: dict[int, int] = {}
        for place, source in enumerate(sources):
            start = new_start.setdefault(docs[source], place)
            new.append(positions[source] + (place - start) - (source - old_start[docs[source]]))
        out["position_ids"] = _like(row["position_ids"], new)
    if row.get("seq_lengths") is not None:
        counts = np.bincount([docs[source] for source in sources], minlength=len(as_ids(row, "seq_lengths")))
        out["seq_lengths"] = _like(row["seq_lengths"], counts.tolist())
    return out


def rebuilt_labels(row: Mapping[str, Any], ids: list[int], sources: list[int]) -> dict[str, Any]:
    """Return the row of an encoder-decoder with other ``labels``: each takes what belongs to it from label ``sources``.

    Weights, and columns ``decoder_*`` with an entry for each label, follow; ``decoder_input_ids`` remain the labels moved by one.
    """
    old, out = as_ids(row, "labels"), dict(row)
    out["labels"] = _like(row["labels"], ids)
    decoder = [name for name in row if name.startswith("decoder_") and name != "decoder_input_ids"]
    _follow(out, sources, len(old), (*decoder, *WEIGHT_FIELDS))
    if row.get("decoder_input_ids") is not None:
        given = as_ids(row, "decoder_input_ids")
        moved = zip(given[1:], old[:-1], strict=False)
        if len(given) != len(old) or any(label not in (token_id, IGNORE_INDEX) for token_id, label in moved):
            raise ValueError(
                f"decoder_input_ids={given!r:.80} are not the labels moved by one to the right: expected those, or leave the "
                "column out, as models make it of the labels."
            )
        before = [given[source + 1] if new == IGNORE_INDEX else new for new, source in zip(ids[:-1], sources, strict=False)]
        out["decoder_input_ids"] = _like(row["decoder_input_ids"], [given[0], *before])
    return out


def _follow(out: dict[str, Any], sources: list[int], length: int, names: Iterable[str]) -> None:
    """Let columns with ``length`` entries, one for each token, follow to the tokens of ``sources``."""
    for name in names:
        value: Any = out.get(name) if name.endswith(ENDINGS) else None
        listed = type(value) is list or (hasattr(value, "__len__") and not isinstance(value, str | Mapping))
        if listed and len(value) == length:
            arrays = type(value) is not list and isinstance(value, torch.Tensor | np.ndarray)
            out[name] = value[sources] if arrays else [*map(value.__getitem__, sources)]


def _like(old: Any, values: list[Any]) -> Any:
    """Return the values in the form of ``old``: a tensor, an array or a list."""
    if type(old) is list:  # as most are, and looking for the others takes longer
        return values
    if isinstance(old, torch.Tensor):
        return torch.tensor([float(v) if old.is_floating_point() else int(v) for v in values], dtype=old.dtype)
    return np.array(values, dtype=old.dtype) if isinstance(old, np.ndarray) else values
