"""What a framework reads of a row with soft targets: names, shapes, and which token a position is about.

A target belongs to a label, which is the token itself. Frameworks whose targets stand where the logits do have them one position
earlier, as the logits of a token predict the next one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from numerate.labels import IGNORE_INDEX
from numerate.targets.soft_targets import SOFT_FIELDS

_NEVER = -1e4  # log-probability of padding: its exp is 0, and it is finite in every dtype
_Target = dict[int, float]


class SoftRow(NamedTuple):
    """A row of T tokens, and the distribution ``{token: probability}`` of each label; an ignored label has none."""

    input_ids: list[int]
    labels: list[int]
    targets: list[_Target]

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> SoftRow:
        """Return a row of a data set, with its ``SOFT_FIELDS`` if it has any; a label without entries is certain."""
        soft: dict[int, _Target] = {}
        for position, token_id, p in zip(*(row.get(name, ()) for name in SOFT_FIELDS), strict=True):
            soft.setdefault(position, {})[token_id] = p
        hard = [{} if label == IGNORE_INDEX else {label: 1.0} for label in row["labels"]]
        return cls(row["input_ids"], row["labels"], [soft.get(at, target) for at, target in enumerate(hard)])

    @property
    def top_k(self) -> int:
        """The most tokens of a target."""
        return max(map(len, self.targets))


class FileSizes(NamedTuple):
    """The most tokens of a target, and of a row, in a file."""

    top_k: int = 1
    length: int = 1

    def with_row(self, row: SoftRow) -> FileSizes:
        """Return the sizes of a file that has this row too."""
        return FileSizes(max(self.top_k, row.top_k), max(self.length, len(row.labels)))


def _generic(row: SoftRow, sizes: FileSizes) -> dict[str, Any]:
    ids, probabilities = _tables(row.targets, sizes.top_k)
    return {"input_ids": row.input_ids, "labels": row.labels, "target_ids": ids, "target_probabilities": probabilities}


def _axolotl(row: SoftRow, sizes: FileSizes) -> dict[str, Any]:
    """Return what ``DataCollatorForKD`` and the loss of ``AxolotlKDTrainer`` read: labels are shifted there, targets are not."""
    ids, probabilities = _tables([*row.targets[1:], {}], sizes.top_k)
    return {
        "input_ids": row.input_ids,
        "attention_mask": [1] * len(row.input_ids),
        "labels": row.labels,
        "target_token_ids": ids,
        "target_logprobs": _logs(probabilities),
        "target_mask": [[int(p > 0) for p in target] for target in probabilities],
    }


def _distillkit(row: SoftRow, sizes: FileSizes) -> dict[str, Any]:
    """Return what ``collate_packed_batch`` and ``LogprobCompressor`` read: rows of one length.

    A position takes part where its label is not ignored, without a shift, so labels stand where the logits do.
    """
    rest = sizes.length - len(row.labels)
    ids, probabilities = _tables([*row.targets[1:], *[{}] * (rest + 1)], sizes.top_k)
    return {
        "input_ids": row.input_ids + [0] * rest,
        "attention_mask": [1] * len(row.input_ids) + [0] * rest,
        "labels": row.labels[1:] + [IGNORE_INDEX] * (rest + 1),
        "token_ids": ids,
        "top_values": _logs(probabilities),
    }


def _tinker(row: SoftRow, sizes: FileSizes) -> dict[str, Any]:
    """Return the arguments of a ``Datum``: N = T - 1 tokens, and ``[N, K]`` target tokens with weights of the next ones."""
    ids, probabilities = _tables(row.targets[1:], sizes.top_k)
    return {"model_input": row.input_ids[:-1], "loss_fn_inputs": {"target_tokens": ids, "weights": probabilities}}


def _tables(targets: list[_Target], top_k: int) -> tuple[list[list[int]], list[list[float]]]:
    """Return ids and probabilities ``[T, K]``, filled up with token 0 of probability 0."""
    rest = [top_k - len(target) for target in targets]
    ids = [[*target, *[0] * more] for target, more in zip(targets, rest, strict=True)]
    return ids, [[*target.values(), *[0.0] * more] for target, more in zip(targets, rest, strict=True)]


def _logs(probabilities: list[list[float]]) -> list[list[float]]:
    return [[math.log(p) if p > 0 else _NEVER for p in target] for target in probabilities]


ROW_FORMATS: dict[str, Callable[[SoftRow, FileSizes], dict[str, Any]]] = {
    "generic": _generic,
    "axolotl": _axolotl,
    "distillkit": _distillkit,
    "tinker": _tinker,
}
