"""Ask the members of a run, and record what their pool decides, what pools of the first of them do, and how they disagree."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from numerate.decode.members import Member, active, pooled
from numerate.distribution import NumberDistribution, spread
from numerate.lab.data import Example, Task
from numerate.lab.evaluation.decisions import decided, decision_record, on_period, pool_sizes
from numerate.lab.models.loading import LoadedModel

Answer = TypeVar("Answer")
Ask = Callable[[LoadedModel, Sequence[int], Sequence[int] | None], Sequence[Answer]]
"""Return an answer to each of some rows of a batch; in a stack, the rows come with the model of each."""


@dataclass(frozen=True)
class OneByOne:
    """The members of one run, one after the other; a model without a pool is its only member."""

    loaded: LoadedModel

    def answers(self, runs: Sequence[int], ask: Ask[Answer]) -> list[list[Answer]]:
        """Return the answers of each member to each row of a batch; ``runs`` are those of the rows."""
        rows = range(len(runs))
        return [list(row) for row in zip(*(ask(own, rows, None) for own in self._members()), strict=True)]

    def _members(self) -> Iterator[LoadedModel]:
        if (pool := self.loaded.pool) is None:
            yield self.loaded
            return
        models = pool.models if pool.adapters is None else pool.models * pool.size
        for model, adapter in zip(models, pool.adapters or [None] * pool.size, strict=True):
            with active(Member(model.eval(), self.loaded.tokenizer, adapter, 1.0)):
                yield replace(self.loaded, model=model, pool=None)


@dataclass(frozen=True)
class AllAtOnce:
    """The members of several runs as one stack, asked in one batch; ``sizes`` are the members of each run, in order."""

    stacked: LoadedModel
    sizes: Sequence[int]

    def answers(self, runs: Sequence[int], ask: Ask[Answer]) -> list[list[Answer]]:
        """Return the answers of each member to each row of a batch; ``runs`` are those of the rows."""
        rows = [row for row, run in enumerate(runs) for _ in range(self.sizes[run])]
        owners = [sum(self.sizes[:run]) + member for run in runs for member in range(self.sizes[run])]
        found = iter(ask(self.stacked, rows, owners))
        return [[next(found) for _ in range(self.sizes[run])] for run in runs]


def pooled_record(
    task: Task,
    example: Example,
    output: str,
    found: Sequence[NumberDistribution | None],
    rules: Sequence[str],
    level: float,
    samples: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Return :func:`~numerate.lab.evaluation.decisions.decision_record` of the members' pool, of equal weights.

    With several members it also has ``pools``: by size, what the pool of the first members decides; and
    ``members``: their ``disagreement``, and the spread ``within`` them (:func:`numerate.distribution.spread`).
    """
    members = [Member(None, None, None, 1.0)] * len(found)
    record = decision_record(task, example, output, pooled(members, found), rules, level, samples)
    if len(found) == 1:
        return record
    record["pools"] = {}
    for count in pool_sizes(len(found))[:-1]:
        record["pools"][str(count)] = decided(task, example, pooled(members[:count], found[:count]), rules, level)
    there = [on_period(one, task.period) for one in found if one is not None]
    apart = spread(there) if there else None
    record["members"] = {
        "disagreement": None if apart is None else apart.between,
        "within": None if apart is None else apart.within,
    }
    return record
