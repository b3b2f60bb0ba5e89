"""Examples to what a model reads: tokens, labels, padded batches."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from numerate.lab.config import RunConfig
from numerate.lab.models import LoadedModel
from numerate.lab.tasks import Example, Task
from numerate.lab.tasks.base import Examples

_WINDOW = 8  # batches whose examples are sorted by length among themselves
_PADDING = 1 / 3  # of a batch; with less of it, nothing is sorted


def held_out(config: RunConfig, task: Task) -> dict[str, Examples]:
    """The examples to evaluate on, the same for every loss and seed; with ``validation``, others of the same kind.

    Those for validation are taken from the training rows that were read, or are every other one of those that are generated
    (later ones are harder: short numbers are used up first).
    """
    if config.validation:
        rows = task.count("train")
        if rows is None:
            return {"interpolate": task.examples("interpolate", 2 * config.eval_examples, seed=0)[1::2]}
        return {"interpolate": task.examples("train", rows, seed=config.seed)[rows - _set_aside(config, rows) :]}
    found: dict[str, Examples] = {}
    for split in (split for split in config.eval_splits if split in task.splits):
        rows = task.count(split)
        if rows is not None:
            found[split] = task.examples(split, min(config.eval_examples, rows), seed=0)
        else:
            every = 2 if split == "interpolate" else 1
            found[split] = task.examples(split, every * config.eval_examples, seed=0)[::every]
    return found


def _set_aside(config: RunConfig, rows: int) -> int:
    """Of the training rows that were read, for validation."""
    if config.validation and rows < 5:
        raise ValueError(f"{rows} training rows are too few to set some of them aside for validation: expected 5 or more.")
    return min(config.eval_examples, rows // 5) if config.validation else 0


def _to_train_on(config: RunConfig, task: Task) -> Examples:
    rows = task.count("train")
    if rows is None:
        return task.examples("train", config.train_examples, seed=config.seed)
    return task.examples("train", min(config.train_examples, rows - _set_aside(config, rows)), seed=config.seed)


@dataclass(frozen=True)
class Collator:
    """Pads on the right; pictures of a batch stand one after the other."""

    pad: int

    def __call__(self, rows: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
        """A batch."""
        longest = max(len(row["input_ids"]) for row in rows)

        def padded(name: str, fill: int) -> Tensor:
            return torch.tensor([[*row[name], *[fill] * (longest - len(row[name]))] for row in rows])

        batch = {"input_ids": padded("input_ids", self.pad), "labels": padded("labels", -100)}
        lengths = torch.tensor([len(row["input_ids"]) for row in rows])
        batch["attention_mask"] = (torch.arange(longest) < lengths[:, None]).long()
        for name in rows[0]:
            if isinstance(rows[0][name], Tensor):
                batch[name] = torch.cat([row[name] for row in rows])
        return batch


def encoded(loaded: LoadedModel, examples: Sequence[Example]) -> list[dict[str, Any]]:
    """Questions and answers as the model reads them; only the answer, and that it ends, is to be learnt."""
    examples = list(examples)  # each is drawn when it is looked at
    questions = loaded.encode([(example.prompt, example.image) for example in examples])
    answers = [[*ids, loaded.end] for ids in loaded.tokens([example.answer for example in examples])]
    return [
        {**question, "input_ids": [*question["input_ids"], *answer], "labels": [-100] * len(question["input_ids"]) + answer}
        for question, answer in zip(questions, answers, strict=True)
    ]


class _Ordered(torch.utils.data.Dataset[dict[str, Any]]):
    """Rows in the order they are trained on. Pictures are drawn when their turn comes: they would fill the memory."""

    def __init__(self, order: Sequence[int], row: Callable[[int], dict[str, Any]]) -> None:
        self.order, self.row = order, row

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, at: int) -> dict[str, Any]:
        return self.row(self.order[at])


def training_order(lengths: Sequence[int], batch_size: int, batches: int, seed: int) -> list[int]:
    """Which example is trained on when: each once before any twice, in random order.

    Where the padding of random batches would be more than a third of them, each batch gets examples of similar length. Not
    otherwise: long answers are large numbers, and a small model learns much worse from batches that have only such.

    The same for every loss of a seed, on any number of processes.
    """
    rng = random.Random(f"order/{seed}")
    some = [rng.choices(lengths, k=batch_size) for _ in range(100)]
    padded = 1 - sum(map(sum, some)) / sum(batch_size * max(batch) for batch in some) > _PADDING
    order: list[int] = []
    pool: list[int] = []
    while len(order) < batches * batch_size:
        while len(pool) < _WINDOW * batch_size:
            pool += rng.sample(range(len(lengths)), len(lengths))
        window, pool = pool[: _WINDOW * batch_size], pool[_WINDOW * batch_size :]
        if padded:
            window.sort(key=lambda at: lengths[at])
        pieces = [window[start : start + batch_size] for start in range(0, len(window), batch_size)]
        rng.shuffle(pieces)
        order += [at for piece in pieces for at in piece]
    return order[: batches * batch_size]


def training_data(config: RunConfig, task: Task, loaded: LoadedModel) -> tuple[Any, int]:
    """What to train on, in order, tokenised once, and how many examples were too long for it."""
    examples = _to_train_on(config, task)
    batches = config.steps * config.accumulation * int(os.environ.get("WORLD_SIZE", "1"))
    if examples[0].image is not None:
        order = training_order([1] * len(examples), config.batch_size, batches, config.seed)
        return _Ordered(order, lambda at: encoded(loaded, examples[at : at + 1])[0]), 0
    rows = encoded(loaded, examples)
    kept = [row for row in rows if len(row["labels"]) <= config.max_length]
    if not kept:
        least = min(len(row["labels"]) for row in rows)
        raise ValueError(f"max_length={config.max_length} is shorter than every example: expected at least {least}.")
    order = training_order([len(row["labels"]) for row in kept], config.batch_size, batches, config.seed)
    return _Ordered(order, kept.__getitem__), len(rows) - len(kept)
