"""The tab "a model's answer": a model's distribution over complete numbers, its greedy answer, and the best answer by metric."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Context, Decimal
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, get_args

from pydantic import Field

from numerate.answers.extract import EXTRACTORS
from numerate.answers.metrics import METRICS
from numerate.distribution import NumberDistribution
from numerate.distribution.decision_rules import RULE_NAMES
from numerate.distribution.exact import canonical, exact_number, label
from numerate.distribution.shares import SHARES
from numerate.playground.models import AskableModel, find_models, open_model
from numerate.playground.request import TabRequest
from numerate.playground.searched import SearchedTree

if TYPE_CHECKING:
    from numerate.lab.data.regression import Row

BARS = 32
SHOWN_BRANCHES, SHOWN_EACH = 28, 4  # of the tree, and of one prefix
Rule = Literal["greedy", "median", "mean", "relative", "within_5", "within_10"]
RULES: tuple[Rule, ...] = get_args(Rule)
"""How the one number of an answer is chosen: greedy decoding, or a rule of :meth:`numerate.NumberDistribution.decide`."""

DECIDED = {"squared": "mean", "exact": "mode", "absolute_error": "median", "relative_error": "relative", "log10_error": "median"}
DECIDED |= {name: name for name in RULE_NAMES if name in METRICS}
"""The metrics of the table, and the squared error, with the rule of ``decide`` that is best for each."""

_ROUNDED = Context(prec=6, rounding=ROUND_HALF_EVEN)
_LONG = 12  # characters of a number that is shown in full

Cell = Annotated[str, Field(max_length=200)]
ColumnName = Annotated[str, Field(max_length=100)]


class AnswerRequest(TabRequest):
    """A model, its question as a row or as a complete prompt, the decision rule, and the settings of the search."""

    model: Annotated[str, Field(max_length=300)] = ""
    cells: Annotated[dict[ColumnName, Cell], Field(max_length=64)] = {}  # noqa: RUF012 - pydantic copies defaults
    line: Annotated[str, Field(max_length=500)] = ""
    rule: Rule = "median"  # marked in the picture; every rule is computed
    width: Annotated[int, Field(ge=1, le=512)] = 256
    covered: Annotated[float, Field(ge=0.5, le=1)] = 0.99
    level: Annotated[float, Field(ge=0.5, le=0.99)] = 0.9


def compute(request: AnswerRequest, runs: Path) -> dict[str, object]:
    """Return the model's distribution, its answer under every rule, the best answer for each metric, and the search tree."""
    model = open_model(request.model, runs)
    with model.lock:  # loaded once, one question at a time
        cells = dict(request.cells) or dict(model.examples[0].cells if model.examples else {})
        row = _question(model, cells, request.line.strip())
        width = min(request.width, model.most_width)
        seen = model.remembered((row.prompt, width, request.covered), lambda: _searched(model, row, width, request.covered))
    found = seen.found
    low, high = found.interval(request.level)
    truth = _truth(model, cells if not request.line.strip() else {})
    return {
        "model": model.name,
        "models": [*find_models(runs)],
        "columns": [vars(column) for column in model.columns],
        "examples": [{"cells": dict(example.cells), "truth": example.truth} for example in model.examples],
        "target": model.source.questions.task.target,
        "card": model.card,
        "members": model.source.members,
        "measures": model.measures,
        "cells": cells,
        "prompt": row.prompt,
        "values": len(found),
        "width": width,
        "bars": [
            {"label": bar.label, "low": _float(bar.low), "high": _float(bar.high), "p": bar.probability}
            for bar in found.bars(BARS)
        ],
        "answers": [_answer(rule, answer, truth) for rule, answer in seen.answers.items()],
        "interval": [_shown(low), _shown(high)],
        "decisions": seen.decisions,
        "stray": seen.stray,
        "shares": {name: getattr(found, name) for name in SHARES},
        "tree": seen.tree,
        "truth": None if truth is None else {**_shown(truth), "crps": found.crps(truth), "inside": low <= truth <= high},
    }


def _question(model: AskableModel, cells: Mapping[str, str], line: str) -> Row:
    from numerate.lab.data.regression import Row

    if line:
        return Row(line, "")
    if not model.columns:
        raise ValueError(f"{model.name} was not trained on a table: type a complete prompt.")
    return model.ask(cells)


@dataclass(frozen=True)
class _Searched:
    """What is kept of a question while rule and interval change."""

    found: NumberDistribution  # the model's distribution
    # By rule; that of greedy decoding, by the first member of a pool, is None if it has no number.
    answers: dict[Rule, Decimal | None]
    decisions: list[dict[str, object]]  # the best answer for each metric, its expected score, and that of the greedy answer
    stray: dict[str, object] | None  # values that ``decide`` leaves out; None if there are none
    tree: dict[str, object]  # of the search, of the first member of a pool


def _searched(model: AskableModel, row: Row, width: int, covered: float) -> _Searched:
    tree, answering = SearchedTree(), model.answering.first_member()
    found = answering.search([row], width=width, covered=covered, watch=tree)[0]
    if model.source.members > 1:
        found = model.answering.search([row], width=width, covered=covered)[0]
    if isinstance(found, str):
        raise ValueError(found)
    number = EXTRACTORS["last_number"](answering.greedy([row])[0])
    greedy = None if number is None else exact_number("answer", number)
    answers = {rule: greedy if rule == "greedy" else found.decide(rule) for rule in RULES}
    kept = found.trimmed(relative=True)
    shown = tree.likeliest(SHOWN_BRANCHES, SHOWN_EACH).to_dict()
    return _Searched(found, answers, _decisions(found, kept, greedy), _stray(found, kept), shown)


def _decisions(found: NumberDistribution, kept: NumberDistribution, greedy: Decimal | None) -> list[dict[str, object]]:
    """Return the best answer for each metric with the scores expected of it and of the greedy answer.

    Expectations are over the values that ``decide`` keeps: 0.1 % on the number 1 would add 1,000 % to the expected relative error
    of an answer of 10,000. The mode is left out where most of the probability is sampled: its value is one of many with the same
    weight.
    """
    sampled = found.drawn > found.covered / 2
    decisions = []
    for name, rule in DECIDED.items():
        if sampled and rule == "mode":
            continue
        metric, best = METRICS.get(name), found.decide(rule)
        decisions.append(
            {
                "metric": name,
                "what": "root of the mean squared error" if metric is None else metric.description,
                "higher_is_better": metric is not None and metric.higher_is_better,
                "expected": _expected(kept, name, best),
                "expected_of_greedy": None if greedy is None else _expected(kept, name, greedy),
                **_shown(best),
            }
        )
    return decisions


def _stray(found: NumberDistribution, kept: NumberDistribution) -> dict[str, object] | None:
    """Return the share of stray values, the most likely of them, and the expected relative error with all of them."""
    p = dict(zip(found.values, found.probabilities.tolist(), strict=True))
    stray = {*found.values} - {*kept.values}
    if not stray:
        return None
    return {
        "share": math.fsum(p[value] for value in stray),
        "top": _shown(max(stray, key=p.__getitem__))["text"],
        "relative_error": _expected(found, "relative_error", found.decide("relative")),
    }


def _expected(found: NumberDistribution, name: str, answer: Decimal) -> float | None:
    """Return the score that a distribution expects of an answer, the root of a squared error; None where it is infinite."""
    metric, x = METRICS.get(name), _rational(answer)
    if metric is None:
        mean = math.sqrt(found.probabilities @ (found.floats - float(answer)) ** 2)
    else:
        scores = (float(metric.function(_rational(value), x)) for value in found.values)
        mean = math.fsum(p * score for p, score in zip(found.probabilities.tolist(), scores, strict=True))
    return mean if math.isfinite(mean) else None


def _answer(rule: Rule, answer: Decimal | None, truth: Decimal | None) -> dict[str, object]:
    """Return the answer of a rule and, if the truth is known and not 0, its relative error with its sign."""
    if answer is None:
        return {"rule": rule, "text": None, "value": None, "off": None}
    off = None if not truth else float((Fraction(answer) - Fraction(truth)) / abs(Fraction(truth)))
    return {"rule": rule, **_shown(answer), "off": off}


def _truth(model: AskableModel, cells: Mapping[str, str]) -> Decimal | None:
    """Return the truth of an example; None for any other row."""
    return next((Decimal(example.truth) for example in model.examples if dict(example.cells) == dict(cells)), None)


def _shown(number: Decimal) -> dict[str, object]:
    """Return a number as text, of six digits where it is long, and as a float."""
    text = f"{number:f}" if len(f"{number:f}") <= _LONG else f"{canonical(_ROUNDED.plus(number)):f}"
    return {"text": text if len(text) <= 2 * _LONG else label(number), "value": _float(number)}


def _rational(number: Decimal) -> Fraction | int:
    """Return the exact number; integers as ``int``, with which metrics are several times as fast."""
    exact = Fraction(number)
    return exact.numerator if exact.denominator == 1 else exact


def _float(number: Decimal | None) -> float | None:
    return None if number is None or not math.isfinite(float(number)) else float(number)
