"""Examples to what a model reads: tokens, labels, padded batches."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from numerate.config import RunConfig
from numerate.models import LoadedModel
from numerate.tasks import Example, Task
from numerate.tasks.base import Examples

_WINDOW = 8  # batches whose examples are sorted by length among themselves


def held_out(config: RunConfig, task: Task) -> dict[str, Examples]:
    """The examples to evaluate on, the same for every loss and seed; with ``validation``, others of the same kind."""
    found: dict[str, Examples] = {}
    for split in config.eval_splits if not config.validation else ("interpolate",):
        if split not in task.splits:
            continue
        wanted = 2 * config.eval_examples if split == "interpolate" else config.eval_examples
        if task._rows is not None:
            wanted = min(wanted, len(task._rows[split]))
        both = task.examples(split, wanted, seed=0)
        half = wanted // 2 if split == "interpolate" and wanted < 2 * config.eval_examples else config.eval_examples
        found[split] = both[half:] if config.validation else both[:half]
    return found


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


def encoded(loaded: LoadedModel, example: Example) -> dict[str, Any]:
    """Question and answer as the model reads them; only the answer, and that it ends, is to be learnt."""
    question = loaded.encode(loaded.prompt(example.prompt, picture=example.image is not None), example.image)
    answer = [*loaded.encode(example.answer)["input_ids"], loaded.end]
    labels = [-100] * len(question["input_ids"]) + answer
    return {**question, "input_ids": [*question["input_ids"], *answer], "labels": labels}


class _Ordered(torch.utils.data.Dataset[dict[str, Any]]):
    """Rows in the order they are trained on. Pictures are drawn when their turn comes: they would fill the memory."""

    def __init__(self, order: Sequence[int], row: Callable[[int], dict[str, Any]]) -> None:
        self.order, self.row = order, row

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, at: int) -> dict[str, Any]:
        return self.row(self.order[at])


def training_order(lengths: Sequence[int], batch_size: int, batches: int, seed: int) -> list[int]:
    """Which example is trained on when: each once before any twice, batches of similar length, in random order.

    The same for every loss of a seed, on any number of processes.
    """
    rng = random.Random(f"order/{seed}")
    order: list[int] = []
    pool: list[int] = []
    while len(order) < batches * batch_size:
        while len(pool) < _WINDOW * batch_size:
            pool += rng.sample(range(len(lengths)), len(lengths))
        window, pool = pool[: _WINDOW * batch_size], pool[_WINDOW * batch_size :]
        window.sort(key=lambda at: lengths[at])
        pieces = [window[start : start + batch_size] for start in range(0, len(window), batch_size)]
        rng.shuffle(pieces)
        order += [at for piece in pieces for at in piece]
    return order[: batches * batch_size]


def training_data(config: RunConfig, task: Task, loaded: LoadedModel) -> tuple[Any, int]:
    """What to train on, in order, tokenised once, and how many examples were too long for it."""
    n = config.train_examples if task._rows is None else min(config.train_examples, len(task._rows["train"]))
    examples = task.examples("train", n, seed=config.seed)
    batches = config.steps * config.accumulation * int(os.environ.get("WORLD_SIZE", "1"))
    if examples[0].image is not None:
        order = training_order([1] * n, config.batch_size, batches, config.seed)
        return _Ordered(order, lambda at: encoded(loaded, examples[at])), 0
    rows = [encoded(loaded, example) for example in examples]
    kept = [row for row in rows if len(row["labels"]) <= config.max_length]
    if not kept:
        least = min(len(row["labels"]) for row in rows)
        raise ValueError(f"max_length={config.max_length} is shorter than every example: expected at least {least}.")
    order = training_order([len(row["labels"]) for row in kept], config.batch_size, batches, config.seed)
    return _Ordered(order, kept.__getitem__), len(rows) - len(kept)
