"""The tab "a model's answer": a small model's distribution over numbers, what each metric would decide, and what was searched."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from decimal import ROUND_HALF_EVEN, Context, Decimal
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from numerate.answers.metrics import METRICS
from numerate.distribution import NumberDistribution
from numerate.distribution.decision_rules import RULE_NAMES
from numerate.distribution.exact import canonical, label
from numerate.distribution.shares import SHARES
from numerate.playground.models import AskableModel, find_models, open_model
from numerate.playground.request import TabRequest
from numerate.playground.searched import SearchedTree

if TYPE_CHECKING:
    from numerate.lab.data.regression import Row

BARS = 32
SHOWN_BRANCHES, SHOWN_EACH = 28, 4  # of the tree, and of one prefix
DECIDED = {"squared": "mean", "exact": "mode", "absolute_error": "median", "relative_error": "relative", "log10_error": "median"}
DECIDED |= {name: name for name in RULE_NAMES if name in METRICS}
"""Metrics, and the squared error, that an answer is decided for, with the rule of :meth:`numerate.NumberDistribution.decide`."""

_ROUNDED = Context(prec=6, rounding=ROUND_HALF_EVEN)
_LONG = 12  # characters of a number that is shown in full

Cell = Annotated[str, Field(max_length=200)]
ColumnName = Annotated[str, Field(max_length=100)]


class AnswerRequest(TabRequest):
    """A model, the row or the line that it is asked about, and how far its answers are searched."""

    model: Annotated[str, Field(max_length=300)] = ""
    cells: Annotated[dict[ColumnName, Cell], Field(max_length=64)] = {}  # noqa: RUF012 - pydantic copies defaults
    line: Annotated[str, Field(max_length=500)] = ""
    width: Annotated[int, Field(ge=1, le=512)] = 256
    covered: Annotated[float, Field(ge=0.5, le=1)] = 0.99
    level: Annotated[float, Field(ge=0.5, le=0.99)] = 0.9


def compute(request: AnswerRequest, runs: Path) -> dict[str, object]:
    """Return the model's distribution over the answer, its decisions and the tree of the search."""
    model = open_model(request.model, runs)
    with model.lock:  # loaded once, and asked by one at a time
        cells = dict(request.cells) or dict(model.examples[0].cells if model.examples else {})
        row = _question(model, cells, request.line.strip())
        width = min(request.width, model.most_width)
        found, decisions, tree = model.remembered(
            (row.prompt, width, request.covered), lambda: _searched(model, row, width, request.covered)
        )
    low, high = found.interval(request.level)
    return {
        "model": model.name,
        "models": [*find_models(runs)],
        "columns": [vars(column) for column in model.columns],
        "examples": [{"cells": dict(example.cells), "truth": example.truth} for example in model.examples],
        "target": model.source.questions.task.target,
        "card": model.card,
        "measures": model.measures,
        "cells": cells,
        "prompt": row.prompt,
        "values": len(found),
        "width": width,
        "bars": [
            {"label": bar.label, "low": _float(bar.low), "high": _float(bar.high), "p": bar.probability}
            for bar in found.bars(BARS)
        ],
        "mode": _shown(found.mode),
        "median": _shown(found.median),
        "mean": _shown(found.mean),
        "interval": [_shown(low), _shown(high)],
        "decisions": decisions,
        "shares": {name: getattr(found, name) for name in SHARES},
        "tree": tree,
        "truth": _truth(model, cells if not request.line.strip() else {}, found, (low, high)),
    }


def _question(model: AskableModel, cells: Mapping[str, str], line: str) -> Row:
    from numerate.lab.data.regression import Row

    if line:
        return Row(line, "")
    if not model.columns:
        raise ValueError(f"{model.name} was not trained on a table: type a question in its own words.")
    return model.ask(cells)


def _searched(
    model: AskableModel, row: Row, width: int, covered: float
) -> tuple[NumberDistribution, list[dict[str, object]], dict[str, object]]:
    """Return the model's distribution over the answer, what each metric decides, and the tree of the search."""
    tree = SearchedTree()
    found = model.answering.search([row], width=width, covered=covered, watch=tree)[0]
    if isinstance(found, str):
        raise ValueError(found)
    values = [_rational(value) for value in found.values]
    decisions = [_decision(found, values, name) for name in DECIDED]
    return found, decisions, tree.likeliest(SHOWN_BRANCHES, SHOWN_EACH).to_dict()


def _decision(found: NumberDistribution, values: Sequence[Fraction | int], name: str) -> dict[str, object]:
    """Return what a metric would decide, and the score that the model expects of it; None where that is infinite."""
    answer, metric = found.decide(DECIDED[name]), METRICS.get(name)
    expected = found.std  # the root of the expected squared error of the mean
    if metric is not None:
        x, pairs = _rational(answer), zip(values, found.probabilities.tolist(), strict=True)
        expected = math.fsum(p * float(metric.function(value, x)) for value, p in pairs)
    return {
        "metric": name,
        "what": "root of the mean squared error" if metric is None else metric.description,
        "higher_is_better": metric is not None and metric.higher_is_better,
        "expected": expected if math.isfinite(expected) else None,
        **_shown(answer),
    }


def _truth(
    model: AskableModel, cells: Mapping[str, str], found: NumberDistribution, interval: tuple[Decimal, Decimal]
) -> dict[str, object] | None:
    """Return what is true of an example, and how the model's distribution scores there; None for another row."""
    for example in model.examples:
        if dict(example.cells) == dict(cells):
            truth = Decimal(example.truth)
            inside = interval[0] <= truth <= interval[1]
            return {**_shown(truth), "crps": found.crps(truth), "inside": inside}
    return None


def _shown(number: Decimal) -> dict[str, object]:
    """Return a number as text, of six digits where it is long, and as a float."""
    text = f"{number:f}" if len(f"{number:f}") <= _LONG else f"{canonical(_ROUNDED.plus(number)):f}"
    return {"text": text if len(text) <= 2 * _LONG else label(number), "value": _float(number)}


def _rational(number: Decimal) -> Fraction | int:
    """Return the number exactly; whole ones as int, with which metrics are several times as fast."""
    exact = Fraction(number)
    return exact.numerator if exact.denominator == 1 else exact


def _float(number: Decimal | None) -> float | None:
    return None if number is None or not math.isfinite(float(number)) else float(number)
