"""Derailed answers: numbers with more digits than any label that a model was trained on.

A model that leaves the numbers it was trained on may write digits without end. A few such answers ruin a mean, so evaluation
counts them: the metric ``derailed`` of an answer is 1 if its number has more digits before the point, or more digits in all,
than every training label and its own gold answer, which may be longer in the split ``extrapolate``. An answer without a number
is not derailed. The decimals of a decided number, such as a mean, are computed and not counted. ``sample_derailed`` is the share
of an example's samples.

Counted for tasks whose answer is read as a number, except for tasks with pictures.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from statistics import fmean
from typing import Any

from numerate.answers.metrics import digit_counts
from numerate.lab.data import Examples, Task
from numerate.lab.evaluation.decisions import every_decision

DERAILED, SAMPLE_DERAILED = "derailed", "sample_derailed"

_NUMBERS = ("last_number", "rational", "number", "percent")  # extractors that return numbers
_KINDS = ("integer", "total")

LabelDigits = Mapping[str, int]


def label_digits(task: Task, examples: Examples) -> dict[str, int] | None:
    """Return the most digits of any label, before the point (``integer``) and in all (``total``); None if not counted."""
    if task.visual or task.extractor not in _NUMBERS:
        return None
    counts = [counted for example in examples if (counted := _digits(task, example.answer)) is not None]
    return {kind: max(found) for kind, found in zip(_KINDS, zip(*counts, strict=True), strict=True)} if counts else None


def mark_derailed(record: dict[str, Any], task: Task, most: LabelDigits) -> None:
    """Add the metrics to a record: of the greedy answer, of each decision, and of the samples."""
    gold = _digits(task, record["gold"]) or (0, 0)
    limits = [max(most[kind], own) for kind, own in zip(_KINDS, gold, strict=True)]

    def derailed(text: str | None, kinds: int = len(_KINDS)) -> float:
        found = None if text is None else _digits(task, text)
        return 0.0 if found is None else float(any(count > limit for count, limit in zip(found[:kinds], limits, strict=False)))

    record["measures"][DERAILED] = derailed(record["output"])
    if samples := record.get("samples"):
        record["measures"][SAMPLE_DERAILED] = fmean(map(derailed, samples))
    for decided in every_decision(record):
        decided["measures"][DERAILED] = derailed(decided["answer"], kinds=1)


def _digits(task: Task, text: str) -> tuple[int, int] | None:
    value = task.read(text)
    return digit_counts(value) if isinstance(value, Fraction) else None
