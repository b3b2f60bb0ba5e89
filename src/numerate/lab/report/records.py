"""Read and check the files of an experiment.

    run/
      experiment.json
      cells/<hash>/config.json  curve.jsonl  predictions.jsonl  result.json

``result.json`` is written last: a run without it is unfinished, and only listed. A finished run must be complete; errors name
file and line. If ``experiment.json`` lists its ``cells``, other folders (tuning trials, earlier comparisons) are ignored.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from numerate.answers.numerals import last_number
from numerate.distribution.exact import Floats
from numerate.lab.evaluation.decisions import GREEDY
from numerate.lab.evaluation.error_sources import Decided, read_decisions, recorded_decisions
from numerate.lab.evaluation.missing import FALLBACK
from numerate.lab.files.records import read_jsonl

_PLAIN_NUMBER = re.compile(r"[-+−]?[\d,]*\.?\d+(?:[eE][-+]?\d+)?(?:/\d+)?")


@dataclass(frozen=True)
class Digits:
    """Teacher-forced predictions of the numeric tokens of all gold answers of a split."""

    place: NDArray[np.int64]  # [D], exponent of ten: 1 for tens, -1 for tenths
    top: Floats  # [D], largest probability of a numeric token
    right: NDArray[np.bool_]  # [D]
    mass: Floats  # [D], probability of all numeric tokens together


@dataclass(frozen=True)
class Predictions:
    """Answers of one run to the E examples of one split."""

    index: tuple[int, ...]
    prompts: tuple[str, ...]
    golds: tuple[str, ...]
    outputs: tuple[str, ...]
    answers: tuple[str | None, ...]
    images: tuple[str | None, ...]
    measures: Mapping[str, Floats]  # [E] each; inf for an error without an answer
    digits: Digits | None
    decided: Decided | None = None
    medians: tuple[str | None, ...] = ()  # of the model's distributions; empty without decisions
    intervals: tuple[tuple[str, str] | None, ...] = ()  # likewise
    fallback: Mapping[str, Floats] = field(default_factory=dict)  # [E] each; what a missing answer counts as in a mean
    decided_answers: Mapping[str, tuple[str | None, ...]] = field(default_factory=dict)  # by rule

    def by(self, rule: str) -> Mapping[str, Floats]:
        """Return the metrics of the answers that a rule decided, greedy too."""
        if rule == GREEDY:
            return self.measures
        assert self.decided is not None
        return self.decided.by(rule)

    def filled(self, name: str, rule: str) -> Floats:
        """Return a metric ``[E]`` of a decision with that of the fallback where it is infinite, for means."""
        own = self.by(rule)[name]
        return np.where(np.isinf(own), self.fallback.get(name, np.inf), own)

    def numbers(self, rule: str) -> Floats | None:
        """Return the numbers that a rule decided, ``[E]``, greedy too, NaN where there is none; None if they are not recorded."""
        texts = self.answers if rule == GREEDY else self.decided_answers.get(rule)
        return None if texts is None else numbers_in(texts)


@dataclass(frozen=True)
class RunRecord:
    """One finished training run and its evaluation."""

    folder: Path
    config: Mapping[str, Any]
    label: str
    seed: int
    headline: str
    cost: Mapping[str, float]  # measured values only
    curve: Sequence[Mapping[str, float]]
    splits: Mapping[str, Predictions]


@dataclass(frozen=True)
class UnfinishedRun:
    """Run that was planned or started and has no result."""

    folder: Path
    label: str
    seed: int | None
    steps: int | None  # last logged step


@dataclass(frozen=True)
class ExperimentRecord:
    """Experiment: its settings and its runs."""

    directory: Path
    name: str
    created: str
    command: str
    baseline: str
    config: Mapping[str, Any]
    environment: Mapping[str, Any]
    cells: Sequence[RunRecord]
    unfinished: Sequence[UnfinishedRun]
    note: str = ""  # what to keep in mind about all of it


def numbers_in(texts: Sequence[str | None]) -> Floats:
    """Return the last number of each text; NaN for a text without one, infinity for one beyond the range of a float."""

    def read(text: str | None) -> float:
        number = None if text is None else last_number(text)
        try:
            return math.nan if number is None else float(number)
        except OverflowError:
            return math.inf

    return np.array([read(text) for text in texts])


def plain_number(text: str) -> Fraction | None:
    """Return the number if the text is one and nothing else, else None."""
    return last_number(text) if _PLAIN_NUMBER.fullmatch(text.strip()) else None


def read_run(directory: str | Path) -> ExperimentRecord:
    """Read the directory of an experiment. Raise if no run is finished, or if the files of a finished run are broken."""
    directory = Path(directory)
    file = directory / "experiment.json"
    if not file.is_file():
        raise ValueError(f"{directory} has no experiment.json: expected a folder written by `numerate compare`.")
    experiment = _read_object(file)
    folders = _folders(directory / "cells", experiment.get("cells"), file)
    finished = [folder for folder in folders if (folder / "result.json").is_file()]
    unfinished = [_read_unfinished(folder) for folder in folders if folder not in finished]
    if not finished:
        raise ValueError(
            f"{directory} has no finished run ({len(unfinished)} unfinished): nothing to report yet. "
            "Run `numerate compare` again; it resumes where it stopped."
        )
    config = _object_in(experiment, "config", file)
    pools = members if isinstance(members := config.get("members"), list) else ()
    return ExperimentRecord(
        directory=directory,
        name=str(experiment.get("name") or directory.resolve().name),
        created=str(experiment.get("created") or ""),
        command=str(experiment.get("command") or ""),
        baseline=str(experiment.get("baseline") or "ce"),
        config=config,
        environment=_object_in(experiment, "environment", file),
        cells=[read_cell(folder, pools) for folder in finished],
        unfinished=unfinished,
        note=str(experiment.get("note") or ""),
    )


def _folders(cells: Path, listed: Any, file: Path) -> list[Path]:
    if listed is None:
        return sorted(path for path in cells.glob("*") if path.is_dir() and not path.name.startswith("."))
    if not isinstance(listed, list) or not all(isinstance(name, str) and name and name == Path(name).name for name in listed):
        raise ValueError(f"{file}: cells={listed!r:.80} is not a list of folders: expected names of folders in {cells}.")
    return [cells / name for name in dict.fromkeys(listed)]


def read_cell(folder: Path, pools: Collection[int] = ()) -> RunRecord:
    """Read a finished run; raise if its files are broken. ``pools`` are sizes that are compared beside one member and all."""
    for name in ("config.json", "predictions.jsonl"):
        if not (folder / name).is_file():
            raise ValueError(f"{folder} has a result.json but no {name}: delete the folder and run it again.")
    file = folder / "config.json"
    config, result = _read_object(file), _read_object(folder / "result.json")
    label = config.get("label") or config.get("loss")
    if not isinstance(label, str):
        raise ValueError(f"{file}: label={label!r} is not a string: expected the name of the loss.")
    seed = config.get("seed")
    if not isinstance(seed, int):
        raise ValueError(f"{file}: seed={seed!r} is not an integer: expected the seed of the run.")
    members = config.get("members", 1)
    if not isinstance(members, int) or members < 1:
        raise ValueError(f"{file}: members={members!r} is not a number of members: expected 1 or more.")
    splits = _read_predictions(folder / "predictions.jsonl", members, pools)
    for split, expected in _object_in(result, "splits", folder / "result.json").items():
        count = len(splits[split].index) if split in splits else 0
        if isinstance(expected, dict) and expected.get("n", count) != count:
            raise ValueError(
                f"{folder / 'predictions.jsonl'} has {count} lines of split {split!r}, but result.json says "
                f"{expected['n']}: delete the folder and run it again."
            )
    headline = result.get("headline")
    for split, predictions in splits.items():
        if headline not in predictions.measures:
            raise ValueError(
                f"{folder / 'result.json'}: headline={headline!r} is not a metric of split {split!r}: expected one of "
                f"{', '.join(predictions.measures) or 'them, but there are none'}."
            )
    cost = {name: float(value) for name, value in _object_in(result, "cost", folder / "result.json").items() if _is_finite(value)}
    curve = folder / "curve.jsonl"
    points = [_numbers(row) for _, row in _lines(curve)] if curve.is_file() else []
    return RunRecord(folder, config, label, seed, str(headline), cost, [point for point in points if "step" in point], splits)


def _read_unfinished(folder: Path) -> UnfinishedRun:
    """Read what there is; any file may be missing or truncated."""
    try:
        config = _read_object(folder / "config.json")
    except (OSError, ValueError):
        config = {}
    steps = None
    try:
        for line in (folder / "curve.jsonl").read_text(encoding="utf-8", errors="replace").splitlines():
            steps = int(json.loads(line)["step"])
    except (OSError, ValueError, TypeError, KeyError):
        pass
    seed = config.get("seed")
    return UnfinishedRun(
        folder, str(config.get("label") or config.get("loss") or "?"), seed if isinstance(seed, int) else None, steps
    )


def _read_predictions(file: Path, members: int, pools: Collection[int]) -> dict[str, Predictions]:
    splits: dict[str, list[dict[str, Any]]] = {}
    for number, row in _lines(file):
        try:
            rows = splits.setdefault(str(row["split"]), [])
            rows.append(_checked(row, (rows or [row])[0]["measures"]))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
            raise ValueError(f"{file}, line {number}: {what}. Delete the folder and run it again.") from None
    if not splits:
        raise ValueError(f"{file} is empty: expected one line per test example. Delete the folder and run it again.")
    try:
        return {split: _predictions(rows, members, pools) for split, rows in splits.items()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        what = f"the decisions of a line are not complete ({error})"
        raise ValueError(f"{file}: {what}. Delete the folder and run it again.") from None


def _checked(row: Mapping[str, Any], expected: Mapping[str, Any]) -> dict[str, Any]:
    """Return a line with its values converted. Raise KeyError, TypeError or ValueError if a field is missing or wrong."""
    measures = row["measures"]
    if measures.keys() != expected.keys():
        raise ValueError(f"measures are {', '.join(measures)}: expected {', '.join(expected)}, as in the previous lines")
    for name in ("prompt", "gold", "output"):
        if not isinstance(row[name], str):
            raise TypeError(f"{name}={row[name]!r:.60} is not a string")
    digits = []
    for digit in row.get("digits") or ():
        top, mass = (math.nan if digit.get(key) is None else float(digit[key]) for key in ("top", "mass"))
        digits.append((int(digit["place"]), top, bool(digit["right"]), mass))
    optional = {name: None if row.get(name) is None else str(row[name]) for name in ("answer", "image")}
    scores = {name: math.inf if value is None else _score(name, value) for name, value in measures.items()}
    return {**row, **optional, "index": int(row["index"]), "measures": scores, "digits": digits}


def _predictions(rows: Sequence[Mapping[str, Any]], members: int, pools: Collection[int]) -> Predictions:
    def column(name: str) -> tuple[Any, ...]:
        return tuple(row[name] for row in rows)

    digits = [digit for row in rows for digit in row["digits"]]
    names, decided = rows[0]["measures"], read_decisions(rows, members, pools)
    said = [] if decided is None else [recorded_decisions(row, members) for row in rows]
    others = [row.get(FALLBACK) or {} for row in rows]
    return Predictions(
        index=column("index"),
        prompts=column("prompt"),
        golds=column("gold"),
        outputs=column("output"),
        answers=column("answer"),
        images=column("image"),
        measures={name: np.array([row["measures"][name] for row in rows], float) for name in names},
        digits=Digits(*map(np.array, zip(*digits, strict=True))) if digits else None,
        decided=decided,
        medians=() if decided is None else tuple(None if text is None else str(text) for text in column("median")),
        intervals=() if decided is None else tuple(ends and tuple(map(str, ends)) for ends in column("interval")),
        decided_answers={rule: tuple(own[rule]["answer"] for own in said) for rule in (() if decided is None else decided.rules)},
        fallback={
            name: np.array([math.inf if (x := other.get(name)) is None else float(x) for other in others]) for name in names
        },
    )


def _lines(file: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, row in enumerate(read_jsonl(file), 1):
        if not isinstance(row, dict):
            raise ValueError(f"{file}, line {number}: a {type(row).__name__}: expected an object.")
        yield number, row


def _read_object(file: Path) -> dict[str, Any]:
    try:
        value = json.loads(file.read_bytes())
    except ValueError as error:
        raise ValueError(f"{file} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise ValueError(f"{file} holds a {type(value).__name__}: expected an object.")
    return value


def _object_in(value: Mapping[str, Any], name: str, file: Path) -> dict[str, Any]:
    content = value.get(name)
    if not isinstance(content, dict | None):
        raise ValueError(f"{file}: {name} is a {type(content).__name__}: expected an object.")
    return content or {}


def _score(name: str, value: Any) -> float:
    score = float(value)
    if math.isnan(score):
        raise ValueError(f"{name} is NaN: expected a number, or null if there was no answer")
    return score


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _numbers(row: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of a logged step. A validation score that is null is infinite: most answers held no number."""
    finite = {name: float(value) for name, value in row.items() if _is_finite(value)}
    return finite | {name: math.inf for name, value in row.items() if value is None and name.startswith("validation/")}
