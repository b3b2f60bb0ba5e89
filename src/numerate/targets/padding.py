"""Rows of lists padded as arrays: the batch that transformers' ``DataCollatorForSeq2Seq`` makes, in a fraction of the time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import torch


def padded(collator: Any, rows: Sequence[Mapping[str, Any]]) -> tuple[Any, list[int]] | None:
    """Return the batch that a collator makes of rows, and where each row begins; None unless it is known to pad them as here.

    Examples:
        >>> from transformers import DataCollatorForSeq2Seq
        >>> from numerate.tokenizers import load_tokenizer
        >>> row = {"input_ids": [5, 7], "attention_mask": [1, 1], "labels": [-100, 7]}
        >>> batch, starts = padded(DataCollatorForSeq2Seq(load_tokenizer("smollm2"), pad_to_multiple_of=4), [row])
        >>> batch["labels"].tolist(), starts
        ([[-100, 7, -100, -100]], [0])
    """
    if type(collator).__module__ != "transformers.data.data_collator" or not rows:
        return None
    from transformers import BatchEncoding, DataCollatorForSeq2Seq, PreTrainedTokenizerBase

    tokens = getattr(collator, "tokenizer", None)
    names = [name for name in rows[0] if name != "labels"]
    if (
        type(collator) is not DataCollatorForSeq2Seq
        or (collator.model, collator.padding, collator.return_tensors) != (None, True, "pt")
        or not isinstance(tokens, PreTrainedTokenizerBase)
        or any(getattr(type(tokens), name) is not getattr(PreTrainedTokenizerBase, name) for name in ("pad", "_pad"))
        or {"pad", "_pad"} & vars(tokens).keys()
        or tokens.model_input_names[0] != "input_ids"
        or "attention_mask" not in tokens.model_input_names
        or tokens.pad_token_id is None
        or tokens.padding_side not in ("left", "right")
    ):
        return None
    fills = {"input_ids": tokens.pad_token_id, "attention_mask": 0, "labels": collator.label_pad_token_id}
    if any(row.keys() != fills.keys() for row in rows):
        return None
    columns = {name: [row[name] for row in rows] for name in (*names, "labels")}
    if {*map(type, chain(*columns.values()))} != {list}:
        return None
    sizes, *others = ([*map(len, column)] for column in columns.values())
    if 0 in sizes or any(other != sizes for other in others):
        return None
    lengths = np.array(sizes)[:, None]  # [B, 1]
    length = lengths.max()
    length += -length % (collator.pad_to_multiple_of or 1)
    places = np.arange(length)  # [T]
    starts = length - lengths if tokens.padding_side == "left" else np.zeros_like(lengths)
    real = (places >= starts) & (places < starts + lengths)  # [B, T]
    batch = {}
    for name, values in columns.items():
        flat = np.array([*chain(*values)])
        if flat.dtype != np.int64:
            return None
        table = np.full(real.shape, fills[name])
        table[real] = flat
        batch[name] = torch.from_numpy(table)
    return BatchEncoding(batch), starts[:, 0].tolist()
