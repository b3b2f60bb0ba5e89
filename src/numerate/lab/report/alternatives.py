"""Say what a figure shows in words with its values, for readers who do not see it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from numerate.lab.evaluation.missing import NO_NUMBER
from numerate.lab.report.drawing import split_name
from numerate.lab.report.predicted import group_text, residual_text
from numerate.lab.report.series import ErrorScale, calibration_errors, place_name
from numerate.lab.report.tables import DataTable
from numerate.lab.report.wording import Measure, rounded, sentence, times

Row = Mapping[str, Any]


def by_keys(data: DataTable, keys: Sequence[str], said: Callable[[Row], str]) -> str:
    """Return every row in words, under the values of the other keys: ``In range: ce 3.1, smmd 2.9. Out of range: ...``."""
    groups: dict[str, list[str]] = {}
    for row in data.where():
        *outer, last = (split_name(row[key]) if key == "split" else str(row[key]) for key in keys)
        groups.setdefault(", ".join(outer), []).append(f"{last} {said(row)}")
    return " ".join(f"{sentence(f'{name}: ') if name else ''}{', '.join(rows)}." for name, rows in groups.items())


def estimates(measure: Measure, name: str) -> Callable[[Row], str]:
    """Return a function that says the score of a row with its interval."""
    return lambda row: f"{measure.value(row[name])}{_ends(measure, row)}"


def gains(measure: Measure) -> Callable[[Row], str]:
    """Return a function that says the difference of a row with its interval."""
    return lambda row: f"{measure.difference(row['difference'])} ({measure.signed_range(row['low'], row['high'])})"


def gains_and_times(measure: Measure) -> Callable[[Row], str]:
    """Return a function that says the difference of a row and its time per step."""
    return lambda row: f"{gains(measure)(row)} at {times(row['time_ratio'])} the time"


def shares(data: DataTable, name: str) -> str:
    """Return the share of the answers in each class of errors."""
    return by_keys(data, ("split", "loss", name), lambda row: f"{100 * row['share']:.1f} %")


def tolerances(data: DataTable, scale: ErrorScale) -> str:
    """Return the share of the answers within the limits of the classes of errors."""
    name = scale.measure.name
    rows = [row for row in data.where() if row[name] in scale.steps]
    few = DataTable(
        ("split", "loss", "limit", "share"), [(r["split"], r["loss"], scale.limit(r[name]), r["share"]) for r in rows]
    )
    return shares(few, "limit")


def places(data: DataTable) -> str:
    """Return the share of wrong tokens by place."""
    named = DataTable((*data.columns, "name"), [(*row, place_name(row[2])) for row in data.rows])
    return by_keys(named, ("split", "name", "loss"), lambda row: f"{100 * row['wrong']:.1f} %")


def residuals(data: DataTable) -> str:
    """Return the middle of the residuals by size of the actual number."""
    named = DataTable((*data.columns, "actual"), [(*row, f"actual {group_text(row[2:4])}") for row in data.rows])
    return by_keys(named, ("split", "actual", "loss"), residual_text)


def gaps(data: DataTable) -> str:
    """Return the calibration error of each loss."""
    found = [(*key, gap) for key, gap in calibration_errors(data).items()]
    return by_keys(
        DataTable(("split", "loss", "gap"), found), ("split", "loss"), lambda row: f"{100 * row['gap']:.1f} points off"
    )


def last_points(data: DataTable) -> str:
    """Return the last value of each learning curve."""
    last = {(row["curve"], row["loss"]): (row["curve"], row["loss"], row["step"], row["mean"]) for row in data.where()}
    few = DataTable(("curve", "loss", "step", "mean"), list(last.values()))
    return by_keys(few, ("curve", "loss"), lambda row: f"{_mean(row['mean'])} at step {row['step']:,g}")


def _mean(value: float) -> str:
    return NO_NUMBER if math.isinf(value) else rounded(value)


def _ends(measure: Measure, row: Row) -> str:
    return "" if math.isinf(row["low"]) and math.isinf(row["high"]) else f" ({measure.range(row['low'], row['high'])})"
