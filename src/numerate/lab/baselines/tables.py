"""Predict the target of a table without a language model: a constant, and gradient boosting on the columns."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib import import_module
from statistics import fmean
from typing import Any, Literal

import numpy as np

from numerate.answers.metrics import METRICS
from numerate.distribution.exact import Floats
from numerate.lab.data import Example, Task
from numerate.lab.data.cells import TableCell, decimal_mark, is_blank, read_cell, usual_unit
from numerate.lab.data.free_text import is_free_text
from numerate.lab.data.numbers import NotApplicable, Scale, gold_numbers
from numerate.lab.data.row_reader import BadData

_CATEGORIES = 255  # that scikit-learn can tell apart
_MOSTLY = 0.9  # share of cells that are numbers in a numeric column
_TREES = (100, 50, 200, 400)  # the default of scikit-learn first


@dataclass(frozen=True)
class BaselineAnswers:
    """A baseline's answers to the test examples, in order; the settings that were chosen, and the seconds that it took."""

    answers: Floats
    settings: dict[str, Any]
    seconds: float


def constant(task: Task, training: Sequence[Example], test: Sequence[Example]) -> BaselineAnswers:
    """Answer every question with the median of the training rows."""
    begin = time.perf_counter()
    value = float(np.median(gold_numbers(task, training)))
    return BaselineAnswers(np.full(len(test), value), {"value": value}, time.perf_counter() - begin)


@dataclass(frozen=True)
class BoostingSettings:
    """Settings of gradient boosting that are chosen on validation rows; the others are scikit-learn's defaults."""

    loss: Literal["absolute_error", "squared_error"] = "absolute_error"
    log: bool = False  # of the target
    trees: int = _TREES[0]


def boosting(
    task: Task,
    training: Sequence[Example],
    test: Sequence[Example],
    settings: BoostingSettings,
    *,
    seed: int = 0,
) -> BaselineAnswers:
    """Predict the target with scikit-learn's histogram gradient boosting on the columns that the questions show.

    A column is numeric if nine in ten of its cells in the training rows are numbers, read as a target is
    (:mod:`numerate.lab.data.cells`). Columns of free text are left out (:mod:`numerate.lab.data.free_text`); the others are
    categories, of which the 255 most frequent are kept. Blank cells, cells of a numeric column that are not a number and other
    categories are missing values.

    The training rows are in random order. Raises NotApplicable if the examples have no columns, such as those of a file of
    prompts and answers, or only free text.
    """
    begin = time.perf_counter()
    table, numbers = _Table(training), gold_numbers(task, training)
    scale = Scale.of(numbers, log=settings.log)
    model = sklearn("boosting", "ensemble").HistGradientBoostingRegressor(
        loss=settings.loss,
        max_iter=settings.trees,
        categorical_features=table.is_category,
        early_stopping=False,
        random_state=seed,
    )
    model.fit(table.matrix(training), scale.standardised(numbers))
    answers = scale.restored(model.predict(table.matrix(test)))
    chosen = {"loss": settings.loss, "scale": scale.name, "trees": settings.trees}
    return BaselineAnswers(answers, chosen, time.perf_counter() - begin)


def choose_boosting(task: Task, training: Sequence[Example], validation: Sequence[Example]) -> BoostingSettings:
    """Return the settings with the least mean absolute error: the loss and the scale of the target, then the number of trees.

    The logarithmic scale is tried if all numbers of the training rows are positive.
    """
    golds = gold_numbers(task, validation)
    logs = (False, True) if (gold_numbers(task, training) > 0).all() else (False,)

    def error(settings: BoostingSettings) -> float:
        return mean_absolute_error(golds, boosting(task, training, validation, settings).answers)

    first = min((BoostingSettings(loss, log) for log in logs for loss in ("absolute_error", "squared_error")), key=error)
    return min((replace(first, trees=trees) for trees in _TREES), key=error)


def sklearn(baseline: str, module: str) -> Any:
    """Import a module of scikit-learn; raise if it is not installed, naming the baseline that needs it."""
    try:
        return import_module(f"sklearn.{module}")
    except ImportError:
        raise ModuleNotFoundError(f"{baseline} needs the package scikit-learn: run pip install scikit-learn.") from None


class _Table:
    """Columns as numbers: what is a number and which categories there are is decided by the training rows."""

    def __init__(self, training: Sequence[Example]) -> None:
        rows = cells_of(training)
        names = dict.fromkeys(name for row in rows for name in row)
        if not names:
            raise NotApplicable(
                "boosting does not apply: the examples have prompts and no columns. Expected a table, with its target set "
                "(target='price')."
            )
        self._columns: dict[str, Callable[[Any], float]] = {}
        self.is_category: list[bool] = []
        texts = free_text_columns(rows)
        for name in names:
            known = [_plain(row[name]) for row in rows if not is_blank(row.get(name))]
            if known and name not in texts:
                number = _number_reader(name, known)
                self._columns[name] = number or _category_reader(known)
                self.is_category.append(number is None)
        if texts and not self._columns:
            raise NotApplicable(
                f"boosting does not apply: {', '.join(texts)} {'are' if len(texts) > 1 else 'is'} free text, in which trees have "
                "nothing to split. Expected a column of numbers or categories."
            )
        if not self._columns:
            raise NotApplicable(f"boosting does not apply: all cells of {', '.join(names)} are blank. Expected other columns.")

    def matrix(self, examples: Sequence[Example]) -> Floats:
        """Return a row for each example and a column for each of the table; NaN where a value is missing."""
        rows = cells_of(examples)
        columns = [
            [np.nan if is_blank(row.get(name)) else read(_plain(row[name])) for row in rows]
            for name, read in self._columns.items()
        ]
        matrix: Floats = np.array(columns).T
        return matrix


def cells_of(examples: Iterable[Example]) -> list[dict[str, Any]]:
    """Return the cells of each example by column; none of examples that are prompts."""
    return [example.meta.get("cells", {}) for example in examples]


def free_text_columns(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the columns of training rows that are free text."""
    names = dict.fromkeys(name for row in rows for name in row)
    return [name for name in names if is_free_text([row.get(name) for row in rows])]


def _plain(cell: Any) -> Any:
    """Return lists and mappings of a JSON file as text."""
    return cell if isinstance(cell, str | int | float | bool) else str(cell)


@lru_cache(100_000, typed=True)
def _parsed(cell: Any) -> TableCell | None:
    try:
        return read_cell(cell)
    except BadData:
        return None


def _number_reader(name: str, known: Sequence[Any]) -> Callable[[Any], float] | None:
    """Return what reads a cell of a numeric column; None if the column is not numeric."""
    cells = [cell for cell in map(_parsed, known) if cell is not None]
    if len(cells) < _MOSTLY * len(known):
        return None
    try:
        mark = decimal_mark([("", cell) for cell in cells], name)
    except BadData:  # two decimal marks
        return None
    unit = usual_unit(cells)

    def read(cell: Any) -> float:
        parsed = _parsed(cell)
        number = None if parsed is None or parsed.unit != unit else parsed.numbers[mark]
        return np.nan if number is None else float(number)

    return read


def _category_reader(known: Sequence[Any]) -> Callable[[Any], float]:
    """Return what turns a category into its code: those of the training rows, the most frequent first."""
    counts = Counter(str(cell).strip() for cell in known)
    codes = {text: float(code) for code, (text, _) in enumerate(counts.most_common(_CATEGORIES))}
    return lambda cell: codes.get(str(cell).strip(), np.nan)


def mean_absolute_error(golds: Floats, answers: Floats) -> float:
    """Return the figure by which settings are chosen."""
    return fmean(METRICS["absolute_error"](gold, answer) for gold, answer in zip(golds, answers, strict=True))
