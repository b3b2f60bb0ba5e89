"""Train a model with one loss from a file or a frame, evaluate it, and keep its weights with a model card."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numerate.lab.checking import check_effect, checked_task, soft_target
from numerate.lab.config import SOFT, RunConfig, checked, read_yaml
from numerate.lab.own_table import TABLE_TASK, from_scratch, soft_labels
from numerate.lab.predict import keep_calibration
from numerate.lab.presets import merged
from numerate.lab.progress import Progress
from numerate.lab.records import RESULT, RUNS, alone, check_writable, claim, read_jsonl, run_folder
from numerate.lab.tasks.files import data_name
from numerate.lab.tasks.readers import data_file, default_task

_MOST_CHARACTERS = 60  # of a table's or a column's name, in that of a folder


@dataclass(frozen=True)
class Trained:
    """A finished run.

    Attributes:
        folder: of the run; ``numerate predict`` takes it as a model.
        figures: a figure per split and measure.
        notes: how the data were read, where that was not obvious.
        new: whether this call trained it; False if it was there.
    """

    folder: Path
    figures: Mapping[str, Mapping[str, float]]
    notes: Sequence[str] = ()
    new: bool = True

    @property
    def model(self) -> Path:
        """The folder with weights and model card, which can be moved elsewhere."""
        return self.folder / "model"


def train(
    config: str | Path | None = None,
    *,
    data: Any = None,
    target: str | None = None,
    columns: Sequence[str] | None = None,
    without: Sequence[str] | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    progress: Progress = lambda *_: None,
    **settings: Any,
) -> Trained:
    """Train a model, evaluate it, and keep its weights.

    Args:
        config: a YAML file of settings; the arguments below override it.
        data: a file or folder, or rows from Python, which are kept in a file of the run's folder (or in ``runs``, without
            ``out``): a pandas frame, or a list of dicts.
        target: the column of the table to predict.
        columns: the columns to predict from.
        without: columns to leave out.
        out: folder of the run. Default: ``runs/TABLE-TARGET-LOSS-SEED``; without data, ``runs/TASK-LOSS-SEED``.
        resume: continue from the last checkpoint in the folder (``save_every=``).
        overwrite: delete a run in the folder, and start over.
        progress: called with a stage, the number of steps done, of all, and figures.
        **settings: of :class:`numerate.lab.config.RunConfig`: ``model=``, ``loss=``, ``steps=``, ``task_settings=``, ...
    """
    if overwrite and resume:
        raise ValueError("overwrite=True starts over and resume=True continues: expected only one of them.")
    if data is not None:
        settings["data"] = data_file(data, RUNS if out is None else Path(out))
    values = run_settings(config, target, columns, without, settings)
    chosen = checked(RunConfig, values, "" if config is None else str(config))
    check_effect(settings, [chosen])
    task = checked_task(chosen)
    folder = default_folder(chosen) if out is None else Path(out)
    check_writable(folder)
    if chosen.soft is not None:
        soft_target(chosen, task)
    with alone(folder):
        new = claim(folder, {"soft": None} | chosen.deciding, resume=resume, overwrite=overwrite)
        from numerate.lab.evaluate import summarize  # loads torch, after what could be wrong with the call
        from numerate.lab.train import run

        if new and not run(chosen, folder, task=task, resume=resume, progress=progress):
            return Trained(folder, {})  # not the first of several processes
        if chosen.keep_model and chosen.task == TABLE_TASK and chosen.data is not None and (folder / "model").is_dir():
            keep_calibration(folder, trust_remote_code=chosen.trust_remote_code, progress=progress)
    notes = json.loads((folder / RESULT).read_text(encoding="utf-8")).get("notes", [])
    return Trained(folder, summarize(read_jsonl(folder / "predictions.jsonl")), notes, new)


def default_folder(config: RunConfig) -> Path:
    """Return the folder of a run for which none is named: after its table and target, or the task if there is no table.

    Examples:
        >>> str(default_folder(RunConfig(task="regression", data="my/flats.csv.gz", task_settings={"target": "rent"})))
        'runs/flats-rent-ce-0'
        >>> str(default_folder(RunConfig(loss="smmd", seed=3)))
        'runs/arithmetic-smmd-3'
    """
    target = config.task_settings.get("target")
    first = [config.task] if config.data is None else [data_name(config.data), *([str(target)] if target else [])]
    parts = [*(part[:_MOST_CHARACTERS] for part in first), config.name, str(config.seed)]
    return run_folder(re.sub(r"[^\w.+=-]+", "-", "-".join(parts)))  # a label and a column may hold anything


def run_settings(
    config: str | Path | None,
    target: str | None = None,
    columns: Sequence[str] | None = None,
    without: Sequence[str] | None = None,
    settings: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the settings of a file, overridden by ``settings``.

    A run with data has the task that reads them. Unless a file says otherwise, models from scratch are asked about a table in
    bare values; soft labels have a width that suits its numbers.
    """
    values = merged({"keep_model": True} | ({} if config is None else read_yaml(Path(config))), settings or {})
    chosen = {"target": target, "columns": columns, "without": without}
    named = {name: value if isinstance(value, str) else tuple(value) for name, value in chosen.items() if value is not None}
    values = merged(values, {"task_settings": named} if named else {})
    if "task" not in values and (named or values.get("data") is not None):
        values["task"] = TABLE_TASK if named else default_task(values["data"])
    if values.get("data") and values.get("task") == TABLE_TASK:
        values |= from_scratch(values) if config is None else {}
        if values.get("loss") in SOFT and "soft" not in values:
            values |= {"soft": width} if (width := soft_labels(values)) else {}
    return values
