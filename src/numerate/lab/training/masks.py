"""Masks and weights of training rows.

The setting ``term_numbers`` of a run says which numbers of an answer the numeric term reads, such as the last one; cross-entropy
still reads every token. ``number_weight`` is the weight of numeric tokens in the cross-entropy.
"""

from __future__ import annotations

import re
from typing import Any

import torch

from numerate.lab.data import Task
from numerate.lab.data.task_format import TaskFormat
from numerate.lab.models.loading import PromptEncoder
from numerate.lab.training.config import TERM_NUMBERS
from numerate.targets import AnswerDistribution, SoftNumbers
from numerate.vocab import NumericVocab

_LOOKED_AT = 100  # training answers in which a pattern has to match

Rows = torch.utils.data.Dataset[dict[str, Any]]


class MaskedRows(torch.utils.data.Dataset[dict[str, Any]]):
    """Training rows with ``position_weights``: 1 at the tokens of the numbers that the numeric term reads, 0 elsewhere.

    ``term_numbers`` is ``"answer"``, the last number of an answer, or a pattern: its matches, or its first group.
    """

    def __init__(self, rows: Rows, encoder: PromptEncoder, term_numbers: str) -> None:
        where: Any = term_numbers if term_numbers in TERM_NUMBERS else re.compile(term_numbers)
        self.rows = rows
        self._find = SoftNumbers(encoder.tokenizer, AnswerDistribution.point, where=where, mask=True)  # nothing is drawn
        self._found: dict[tuple[int, ...], list[float]] = {}

    def __len__(self) -> int:
        return len(self.rows)  # type: ignore[arg-type]

    def __getitem__(self, position: int) -> dict[str, Any]:
        row = self.rows[position]
        answer = {name: row[name] for name in ("input_ids", "labels")}
        key = tuple(row["labels"])
        if key not in self._found:
            self._found[key] = self._find(answer, path="fixed")["position_weights"]
        return {**row, "position_weights": self._found[key]}


class WeightedRows(torch.utils.data.Dataset[dict[str, Any]]):
    """Training rows with ``token_weights``: ``weight`` at numeric tokens, 1 elsewhere."""

    def __init__(self, rows: Rows, vocab: NumericVocab, weight: float) -> None:
        self.rows, self.weight, self._numeric = rows, weight, frozenset(vocab.token_ids.tolist())

    def __len__(self) -> int:
        return len(self.rows)  # type: ignore[arg-type]

    def __getitem__(self, position: int) -> dict[str, Any]:
        row = self.rows[position]
        return {**row, "token_weights": [self.weight if token in self._numeric else 1.0 for token in row["labels"]]}


def check_term_numbers(pattern: str, task: Task, format: TaskFormat) -> None:
    """Raise if a pattern of ``term_numbers`` matches none of the first training answers, as they are written."""
    if pattern == "answer" and format.format.kind not in ("plain", "padded"):
        raise ValueError(
            f"term_numbers='answer' finds the last number of plain or padded text, and format={format.format.kind!r}: expected "
            "a pattern that matches it, or 'all'."
        )
    if pattern in TERM_NUMBERS:
        return
    answers = [
        format.answer(example.answer) for example in task.examples("train", min(_LOOKED_AT, task.count("train") or _LOOKED_AT))
    ]
    if not any(re.search(pattern, answer) for answer in answers):
        raise ValueError(
            f"term_numbers={pattern!r} matches nothing in the first {len(answers)} training answers, such as "
            f"{answers[0]!r:.80}: expected {', '.join(TERM_NUMBERS)} or a pattern that matches numbers."
        )
