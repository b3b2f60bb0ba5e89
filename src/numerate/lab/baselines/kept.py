"""The baselines on the rows of a comparison's runs, kept in its folder.

The report of a table compares the models with them. They take seconds to compute; once kept, a report needs neither the data
nor scikit-learn. A baseline that cannot be computed is a note in the report, not an error.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from numerate.checks import one_line
from numerate.distribution.exact import Floats
from numerate.lab.baselines.ngrams import choose_ridge, ridge, shows_text
from numerate.lab.baselines.tables import BaselineAnswers, boosting, choose_boosting, constant
from numerate.lab.data import Example, Task
from numerate.lab.data.numbers import NotApplicable
from numerate.lab.data.settings import make_task, tested
from numerate.lab.files.records import write_json
from numerate.lab.training.config import RunConfig
from numerate.lab.training.prepare import run_examples

FILE = "baselines.json"
TITLES = {"constant": "constant", "boosting": "gradient boosting", "ridge": "ridge on n-grams"}
"""The baselines of a table, and their names in a report."""

_ROWS = (  # settings that choose the rows
    *("task", "task_settings", "data", "skip_bad", "seed"),
    *("train_examples", "eval_examples", "eval_splits", "validate_every", "validation"),
)


@dataclass(frozen=True)
class KeptBaselines:
    """Answers ``[E]`` of each baseline by seed and split, and why others are missing."""

    answers: Mapping[str, Mapping[int, Mapping[str, Floats]]]
    notes: tuple[str, ...]


def kept_baselines(folder: Path, runs: Sequence[Mapping[str, Any]], golds: Mapping[str, Sequence[str]]) -> KeptBaselines:
    """Return the answers of the baselines to the test rows of runs; those that are new are kept.

    Settings are chosen once, on the last fifth of the training rows of the first run (:func:`choose_boosting`,
    :func:`choose_ridge`). Ridge regression is for questions that show free text; of others it has no answers.

    Args:
        folder: of the comparison; the file ``baselines.json`` in it is read and written.
        runs: settings of runs on one table that differ in their seed, as in ``config.json``.
        golds: gold answers of the test rows by split, to see that the data are still those of the runs.
    """
    kept = _read(folder / FILE)
    digest = hashlib.blake2b(json.dumps(golds, sort_keys=True).encode(), digest_size=8).hexdigest()
    keys = {
        int(run["seed"]): json.dumps({"golds": digest, **{name: run.get(name) for name in _ROWS}}, sort_keys=True) for run in runs
    }
    notes: dict[str, list[str]] = {}
    task: Task | None = None
    found = False
    for baseline, title in TITLES.items():
        mine = kept.setdefault(baseline, {})
        todo = [run for run in runs if keys[int(run["seed"])] not in mine]
        try:
            if todo:
                task = task or make_task(_config(todo[0]))
                predict = _PREDICT[baseline](task, _config(todo[0]))
                mine |= {keys[int(run["seed"])]: _answered(task, _config(run), golds, predict) for run in todo}
                found = True
        except Exception as error:  # any: the table of the models does not depend on it
            why = one_line(error)
            if baseline != "ridge" or (task is not None and why not in notes):  # else it is not known whether it applies
                notes.setdefault(why, []).append(title)
    if found:
        with suppress(OSError):  # a folder that cannot be written: computed again next time
            write_json(folder / FILE, kept)
    answers = {
        baseline: {
            seed: {split: np.array([math.inf if x is None else x for x in own]) for split, own in mine[key]["answers"].items()}
            for seed, key in keys.items()
        }
        for baseline, mine in kept.items()
        if baseline in TITLES and all(mine.get(key) for key in keys.values())
    }
    return KeptBaselines(answers, tuple(f"Without {' and '.join(titles)}: {why}" for why, titles in notes.items()))


_Predict = Callable[[Sequence[Example], Sequence[Example], int], BaselineAnswers]  # of training rows, test rows and seed


def _answered(task: Task, run: RunConfig, golds: Mapping[str, Sequence[str]], predict: _Predict | None) -> dict[str, Any] | None:
    """Return the answers to the test rows of a run by split, settings and seconds, as they are kept; None without ``predict``."""
    asked = {split: list(rows) for split, rows in tested(run, task).items()}
    if any([example.answer for example in asked.get(split, ())] != [*texts] for split, texts in golds.items()):
        raise NotApplicable(f"data={run.data!r} has other test rows than the runs: expected the file as it was then.")
    if predict is None:
        return None
    found = predict(run_examples(run, task), [example for rows in asked.values() for example in rows], run.seed)
    ends = np.cumsum([len(rows) for rows in asked.values()])[:-1]
    parts = dict(zip(asked, np.split(found.answers, ends), strict=True))
    answers = {split: part.tolist() for split, part in parts.items()}
    return {"answers": answers, "settings": found.settings, "seconds": round(found.seconds, 3)}


def _constant(task: Task, first: RunConfig) -> _Predict:
    return lambda training, test, seed: constant(task, training, test)


def _boosting(task: Task, first: RunConfig) -> _Predict:
    settings = choose_boosting(task, *_divided(task, first))
    return lambda training, test, seed: boosting(task, training, test, settings, seed=seed)


def _ridge(task: Task, first: RunConfig) -> _Predict | None:
    training, validation = _divided(task, first)
    if not shows_text(training):
        return None
    settings = choose_ridge(task, training, validation)
    return lambda training, test, seed: ridge(task, training, test, settings)


def _divided(task: Task, run: RunConfig) -> tuple[Sequence[Example], Sequence[Example]]:
    """Return the training rows of a run in two parts: those to fit on, and the last fifth, on which settings are chosen."""
    rows = run_examples(run, task)
    kept = max(1, len(rows) // 5)
    return rows[:-kept], rows[-kept:]


_PREDICT: dict[str, Callable[[Task, RunConfig], _Predict | None]] = {
    "constant": _constant,
    "boosting": _boosting,
    "ridge": _ridge,
}


def _config(run: Mapping[str, Any]) -> RunConfig:
    return RunConfig(**{name: run[name] for name in _ROWS if run.get(name) is not None})


def _read(file: Path) -> dict[str, dict[str, Any]]:
    """Return what is kept: by baseline, then by the settings that choose the rows. Nothing if the file is missing or broken."""
    try:
        kept = json.loads(file.read_text(encoding="utf-8"))
        return {baseline: dict(mine) for baseline, mine in kept.items()}
    except (OSError, ValueError, AttributeError, TypeError):
        return {}
