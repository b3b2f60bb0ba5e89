"""Turn examples into model inputs: tokens and labels, padded batches, and the order of training."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from numerate.lab.models import LoadedModel
from numerate.lab.tasks import Example
from numerate.labels import IGNORE_INDEX

_WINDOW = 8  # batches whose examples are sorted by length together
_PADDING = 1 / 3  # share of padding in a batch above which examples are sorted


def collate(rows: Sequence[dict[str, Any]], *, pad: int, left: bool = False) -> dict[str, Tensor]:
    """Pad rows to one length, on the right or the left, and stack them. Pictures of a batch are concatenated."""
    fills = {"input_ids": pad, "labels": IGNORE_INDEX, "attention_mask": 0}
    rows = [{**row, "attention_mask": [1] * len(row["input_ids"])} for row in rows]
    longest = max(len(row["input_ids"]) for row in rows)

    def padded(values: list[int], fill: int) -> list[int]:
        padding = [fill] * (longest - len(values))
        return [*padding, *values] if left else [*values, *padding]

    batch = {}
    for name, value in rows[0].items():
        if isinstance(value, Tensor):
            batch[name] = torch.cat([row[name] for row in rows])
        elif name in fills:
            batch[name] = torch.tensor([padded(row[name], fills[name]) for row in rows])
    return batch


def encode(loaded: LoadedModel, examples: Sequence[Example]) -> list[dict[str, Any]]:
    """Return ``input_ids`` and ``labels`` of each example, and its picture; only the answer and its end are labels."""
    examples = list(examples)  # each is built when it is accessed
    questions = loaded.encode([(example.prompt, example.image) for example in examples])
    answers = [[*ids, loaded.end] for ids in loaded.tokens([example.answer for example in examples])]
    return [
        {
            **question,
            "input_ids": [*question["input_ids"], *answer],
            "labels": [IGNORE_INDEX] * len(question["input_ids"]) + answer,
        }
        for question, answer in zip(questions, answers, strict=True)
    ]


class _Ordered(torch.utils.data.Dataset[dict[str, Any]]):
    """Rows in training order. Rows with pictures are built on access, because all of them would fill the memory."""

    def __init__(self, order: Sequence[int], row: Callable[[int], dict[str, Any]]) -> None:
        self.order, self.row = order, row

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, position: int) -> dict[str, Any]:
        return self.row(self.order[position])


def training_order(lengths: Sequence[int], batch_size: int, batches: int, seed: int) -> list[int]:
    """Return the index of the example at each position: random order, each example once before any repeats.

    Examples are grouped by length only where more than a third of a random batch would be padding. Long answers are large
    numbers, and a small model learns much worse from batches that hold nothing else.

    The order is the same for every loss of a seed and any number of processes.
    """
    rng = random.Random(f"order/{seed}")
    samples = [rng.choices(lengths, k=batch_size) for _ in range(100)]
    by_length = 1 - sum(map(sum, samples)) / sum(batch_size * max(batch) for batch in samples) > _PADDING
    order: list[int] = []
    pool: list[int] = []
    while len(order) < batches * batch_size:
        while len(pool) < _WINDOW * batch_size:
            pool += rng.sample(range(len(lengths)), len(lengths))
        window, pool = pool[: _WINDOW * batch_size], pool[_WINDOW * batch_size :]
        if by_length:
            window.sort(key=lambda index: lengths[index])
        pieces = [window[start : start + batch_size] for start in range(0, len(window), batch_size)]
        rng.shuffle(pieces)
        order += [index for piece in pieces for index in piece]
    return order[: batches * batch_size]


def training_data(
    loaded: LoadedModel, examples: Sequence[Example], *, batch_size: int, batches: int, seed: int, max_length: int
) -> tuple[torch.utils.data.Dataset[dict[str, Any]], int]:
    """Return the rows to train on, in order, and how many examples were left out because they exceed ``max_length``."""
    if examples[0].image is not None:
        order = training_order([1] * len(examples), batch_size, batches, seed)
        return _Ordered(order, lambda index: encode(loaded, [examples[index]])[0]), 0
    rows = encode(loaded, examples)
    fitting = [row for row in rows if len(row["labels"]) <= max_length]
    if not fitting:
        least = min(len(row["labels"]) for row in rows)
        raise ValueError(f"max_length={max_length} is shorter than every example: expected at least {least}.")
    order = training_order([len(row["labels"]) for row in fitting], batch_size, batches, seed)
    return _Ordered(order, fitting.__getitem__), len(rows) - len(fitting)
