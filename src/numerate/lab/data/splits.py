"""Which examples of a task a run trains on, is tuned on, and is tested on. No example is in two of these sets."""

from __future__ import annotations

from collections.abc import Iterable

from numerate.lab.data.base import Examples, Split, Task


def training_examples(task: Task, n: int, seed: int, *, reserved: int = 0) -> Examples:
    """Return up to ``n`` examples to train on; of data read from files, the last ``reserved`` rows are kept for validation."""
    rows = task.count("train")
    return task.examples("train", n if rows is None else min(n, rows - reserved), seed=seed)


def held_out(task: Task, splits: Iterable[Split], n: int) -> dict[str, Examples]:
    """Return up to ``n`` test examples of each split that the task has, the same for every loss and seed.

    Generated examples get harder, because short numbers are used up first. Test and validation therefore take every other one.
    """
    examples: dict[str, Examples] = {}
    for split in splits:
        if split not in task.splits:
            continue
        rows = task.count(split)
        every = 2 if rows is None and split == "interpolate" else 1
        examples[split] = task.examples(split, every * n if rows is None else min(n, rows), seed=0)[::every]
    return examples


def validation_examples(task: Task, n: int, seed: int) -> dict[str, Examples]:
    """Return up to ``n`` examples for tuning: generated ones, or training rows that ``reserved`` keeps out of training."""
    rows = task.count("train")
    if rows is None:
        return {"interpolate": task.examples("interpolate", 2 * n, seed=0)[1::2]}
    return {"interpolate": task.examples("train", rows, seed=seed)[rows - reserved_rows(task, n) :]}


def reserved_rows(task: Task, n: int) -> int:
    """Return how many training rows are kept for a validation set of ``n``: at most a fifth; 0 for generated examples."""
    rows = task.count("train")
    if rows is None:
        return 0
    if rows < 5:
        raise ValueError(f"{rows} training rows are too few to reserve some for validation: expected 5 or more.")
    return min(n, rows // 5)
