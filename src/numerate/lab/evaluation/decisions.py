"""Decide answers from the model's distribution over numbers, and record what each decision scores.

One search per batch, that of :func:`numerate.decode.distribution`, finds the distribution of each answer. Every rule decides from
it. Worked solutions cannot be searched: theirs is the distribution of the numbers in which sampled ones end. Answers of a task
with a ``period``, such as clock times, are decided on a circle (:class:`numerate.distribution.CircularDistribution`).
:mod:`numerate.lab.evaluation.error_sources` reads the records and computes how much of an error is due to the decision.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from numerate.answers.metrics import FACE, METRICS
from numerate.answers.numerals import number_of
from numerate.distribution import CircularDistribution, NumberDistribution
from numerate.distribution.decision_rules import CIRCLE_RULE_NAMES
from numerate.distribution.exact import exact_number
from numerate.distribution.shares import SHARES
from numerate.lab.data import Example, Task

if TYPE_CHECKING:
    from numerate.decode.finder import NumberFinder
    from numerate.decode.search import Answers
    from numerate.lab.models.loading import LoadedModel

Floats = NDArray[np.float64]
_Placed = NumberDistribution | CircularDistribution  # on a line or on a circle

GREEDY = "greedy"
"""Name of greedy answers beside those of rules."""

SAMPLED = "sampled median"
"""Name of the median of sampled answers, where a run has ``samples``."""

FITTING = {
    "absolute_error": "median",
    "relative_error": "relative",
    "exact": "mode",
    "time_gap_circular": "median",
    "clock_accuracy": "mode",
}
"""The rule that is best for a metric, for metrics whose expected cost is recorded."""


def pool_sizes(members: int) -> list[int]:
    """Return the sizes of the pools of a run's first members that are recorded: powers of two, and all.

    Examples:
        >>> pool_sizes(8), pool_sizes(6), pool_sizes(1)
        ([1, 2, 4, 8], [1, 2, 4, 6], [1])
    """
    return [*(2**power for power in range(20) if 2**power < members), members]


def check_decisions(rules: Sequence[str], task: Task, samples: int = 0) -> None:
    """Raise if the rules cannot decide: an answer of the task is not one number, or is on a circle, where not all rules apply."""
    if not rules:
        return
    if task.ends_in_number:
        if samples < 2:
            raise ValueError(
                f"decide={','.join(rules)} needs samples: an answer of the task {task.name!r} is {task.answer_is}, decided "
                f"from the numbers in which sampled ones end, but samples={samples}. Add --set samples=16."
            )
        return
    try:
        task.answer_grammar()
    except ValueError as error:
        raise ValueError(
            f"decide={','.join(rules)} does not fit: {error}, and a decision needs one number. Leave decide out, or use answers "
            "that are plain numbers: a table with --target, or a task such as arithmetic or regression."
        ) from None
    if task.period is not None and (wrong := [rule for rule in rules if rule not in CIRCLE_RULE_NAMES]):
        known = ", ".join(name for name in CIRCLE_RULE_NAMES if name != "within")
        raise ValueError(
            f"decide={','.join(wrong)} does not fit: answers of the task {task.name!r} are on a circle, where it has no meaning. "
            f"Expected one of {known}."
        )


def number_finder(loaded: LoadedModel, task: Task, width: int | None) -> NumberFinder:
    """Return the search of the task's answers in the format of the model; it reads the tokenizer once for all batches."""
    from numerate.decode.finder import NumberFinder

    grammar = loaded.format.grammar(task.answer_grammar())
    return NumberFinder(loaded.tokenizer, grammar, width=width, end_token_ids=[loaded.end])


def find_distributions(
    loaded: LoadedModel,
    finder: NumberFinder,
    examples: Sequence[Example],
    *,
    indices: Sequence[int],
    seed: int | Sequence[int],
    bf16: bool,
    members: Sequence[int] | None = None,
) -> list[NumberDistribution | None]:
    """Return the model's distribution over the answers to each question; None where it gives every number a probability of 0.

    What the search draws depends on ``seed`` and on the index of the example, not on the batch. For stacked models, ``members``
    and ``seed`` are those of each example.
    """
    import torch

    from numerate.decode.model import generate

    answers: list[Answers] = []
    options = {"pad_token_id": loaded.pad, "eos_token_id": loaded.end}
    seeds = [*zip([seed] * len(indices) if isinstance(seed, int) else seed, indices, strict=True)]
    batch = prompts(loaded, examples, members)
    with torch.autocast(loaded.model.device.type, torch.bfloat16, enabled=bf16):
        generate(loaded.model, batch, lambda rows: answers.extend(finder.find(rows, indices, seeds)), options)
    return [answer.distribution(finder.grammar.value) for answer in answers]


def search_rows(
    finder: NumberFinder,
    examples: Sequence[Example],
    seeds: Sequence[tuple[int, int]],
    bf16: bool,
    loaded: LoadedModel,
    rows: Sequence[int],
    members: Sequence[int] | None,
) -> list[NumberDistribution | None]:
    """Return the distribution over the answers to each of these rows; members draw alike."""
    own, indices = zip(*(seeds[row] for row in rows), strict=True)
    batch = [examples[row] for row in rows]
    return find_distributions(loaded, finder, batch, indices=indices, seed=own, bf16=bf16, members=members)


def sampled_distribution(task: Task, samples: Sequence[str]) -> NumberDistribution | None:
    """Return the distribution of the numbers in sampled answers; None if they have none."""
    numbers = [number_of(task.read(sample)) for sample in samples]
    return None if all(found is None for found in numbers) else NumberDistribution.from_samples(numbers)


def prompts(loaded: LoadedModel, examples: Sequence[Example], members: Sequence[int] | None = None) -> dict[str, Any]:
    """Return the questions as a batch for ``generate``, padded on the left; for stacked models with the model of each."""
    import torch

    from numerate.lab.models.encoding import collate

    rows = loaded.encode([(example.prompt, example.picture) for example in examples])
    batch = collate(rows, pad=loaded.pad, left=True) | ({} if members is None else {"members": torch.tensor(members)})
    return {name: value.to(loaded.model.device) for name, value in batch.items()}


def decided(task: Task, example: Example, found: NumberDistribution | None, rules: Sequence[str], level: float) -> dict[str, Any]:
    """Return what a distribution decides.

    Keys: ``decisions`` (by rule: ``answer``, ``measures``), ``median``, ``interval`` of this ``level`` (on a circle it may end at
    a lower number than it begins), ``covers`` (whether the gold number lies in it), and ``crps``.
    """
    if found is None:
        missing = {"answer": None, "measures": task.score(example, "")}
        return {"decisions": dict.fromkeys(rules, missing), "level": level} | dict.fromkeys(
            ("median", "interval", "covers", "crps")
        )
    placed, truth = on_period(found, task.period), _truth(task, example)
    texts = {rule: task.written(placed.decide(rule)) for rule in rules}
    low, high = placed.interval(level)
    return {
        "decisions": {rule: {"answer": text, "measures": task.score(example, text)} for rule, text in texts.items()},
        "median": f"{placed.median:f}",
        "interval": [f"{low:f}", f"{high:f}"],
        "level": level,
        "covers": None if truth is None else _covers(placed, level, truth),
        "crps": None if truth is None else placed.crps(truth),
    }


def decision_record(
    task: Task,
    example: Example,
    output: str,
    found: NumberDistribution | None,
    rules: Sequence[str],
    level: float,
    samples: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Return the decisions of a record; ``samples`` are drawn answers, whose median is one more decision.

    Beside the keys of :func:`decided`: ``distribution`` (see :func:`recorded_distribution`), ``truth`` (the gold number), and
    ``expected``: for each metric of ``FITTING``, the expected cost of the ``greedy`` answer and of the ``decided`` one, and the
    ``cost`` of the latter.
    """
    record = decided(task, example, found, rules, level)
    if samples is not None:
        missing = {"answer": None, "measures": task.score(example, "")}
        record["decisions"] = {SAMPLED: _sampled(task, example, samples) or missing} | record["decisions"]
    if found is None:
        return record | {"distribution": None, "truth": None, "expected": {}}
    placed, truth, said = on_period(found, task.period), _truth(task, example), number_of(task.read(output))
    fitting = [measure for measure in task.measures if measure in FITTING]
    return record | {
        "distribution": _compact(found) | ({} if task.period is None else {"period": task.period}),
        "truth": None if truth is None else f"{truth:f}",
        "expected": {measure: _expected(task, example, placed, measure, said) for measure in fitting},
    }


def _truth(task: Task, example: Example) -> Decimal | None:
    gold = number_of(task.read(example.answer))
    return None if gold is None else exact_number("gold", gold)


def every_decision(record: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the decisions of a record, and those of its smaller pools (:mod:`numerate.lab.evaluation.pooled`)."""
    for part in (record, *(record.get("pools") or {}).values()):
        yield from (part.get("decisions") or {}).values()


def recorded_distribution(record: Mapping[str, Any]) -> NumberDistribution | None:
    """Return the distribution in a record; None if it has none. On a circle, its ``period`` is in the record beside it.

    Examples:
        >>> recorded_distribution({"distribution": {"values": ["1", "2"], "probabilities": [0.25, 0.75], "covered": 0.9}}).mode
        Decimal('2')
    """
    saved = record.get("distribution")
    if saved is None:
        return None
    return NumberDistribution(
        saved["values"], saved["probabilities"], **{name: saved[name] for name in SHARES if saved.get(name) is not None}
    )


def on_period(found: NumberDistribution, period: int | None) -> _Placed:
    """Return a distribution on the circle of a task's period, or on the line if it has none."""
    return found if period is None else CircularDistribution(found, period)


def on_line(placed: _Placed, truth: Decimal) -> tuple[NumberDistribution, Decimal]:
    """Return distribution and truth on a line; a circle is cut opposite to the median."""
    return (placed.unrolled, placed.unroll(truth)) if isinstance(placed, CircularDistribution) else (placed, truth)


def _covers(placed: _Placed, level: float, truth: Decimal) -> bool:
    line, place = on_line(placed, truth)
    low, high = line.interval(level)
    return low <= place <= high


def _sampled(task: Task, example: Example, samples: Sequence[str]) -> dict[str, Any] | None:
    if (found := sampled_distribution(task, samples)) is None:
        return None
    text = task.written(on_period(found, task.period).median)
    return {"answer": text, "measures": task.score(example, text)}


def _compact(found: NumberDistribution) -> dict[str, Any]:
    """Return a distribution as plain data; probabilities have six significant digits."""
    shares = {name: float(f"{getattr(found, name):.9g}") for name in SHARES}  # must not add up to more than 1
    return {
        "values": [f"{value:f}" for value in found.values],
        "probabilities": [float(f"{p:.6g}") for p in found.probabilities.tolist()],
        **shares,
    }


def _expected(task: Task, example: Example, found: _Placed, measure: str, said: Fraction | None) -> dict[str, Any]:
    best = found.decide(FITTING[measure])
    score = task.score(example, task.written(best))[measure]
    return {
        GREEDY: None if said is None else expected_cost(found, measure, said),
        "decided": expected_cost(found, measure, Fraction(best)),
        "cost": cost(measure, score),
    }


def cost(measure: str, score: Any) -> Any:
    """Return a score, or an array of scores, as a cost: an error as it is, an accuracy as the share that is wrong."""
    return 1 - score if METRICS[measure].higher_is_better else score


def expected_cost(found: _Placed, measure: str, x: Fraction) -> float:
    """Return the expected cost of the answer ``x`` if the truth is drawn from the distribution.

    Examples:
        >>> two = NumberDistribution([10, 20], [0.25, 0.75])
        >>> [expected_cost(two, measure, Fraction(20)) for measure in ("absolute_error", "relative_error", "exact")]
        [2.5, 0.25, 0.25]
    """
    p = found.probabilities
    if measure in ("exact", "clock_accuracy"):
        value = exact_number("x", x)
        at = bisect_left(found.values, value)
        return 1 - float(p[at]) if at < len(p) and found.values[at] == value else 1.0
    try:
        away = np.abs(found.floats - float(x))
    except OverflowError:
        return math.inf
    if measure == "time_gap_circular":
        away = np.minimum(away % FACE, -away % FACE)
    if measure == "relative_error":
        kept = found.floats != 0
        with np.errstate(invalid="ignore"):
            p, away = p[kept], away[kept] / np.abs(found.floats[kept])
        away[np.isnan(away)] = 1.0  # from a value beyond the range of a float, any number is its own size away
        if not len(p):
            return 0.0 if x == 0 else math.inf
        p = p / p.sum()
    return float(away @ p)
