"""Train a model with one loss from a file or a frame, evaluate it, and keep its weights with a model card."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numerate.lab.config import SOFT, RunConfig, checked, read_yaml
from numerate.lab.evaluate import summarize
from numerate.lab.interruption import Interruption
from numerate.lab.own_table import TABLE_TASK, from_scratch, soft_labels
from numerate.lab.predict import keep_calibration
from numerate.lab.presets import merged
from numerate.lab.progress import Progress
from numerate.lab.records import RESULT, RUNS, alone, claim, read_jsonl, run_folder
from numerate.lab.tasks.readers import data_file, default_task
from numerate.lab.train import TRAINED, run


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
        out: folder of the run. Default: ``runs/TASK-LOSS-SEED``.
        resume: continue a run that was interrupted, or that was killed and has a checkpoint (``save_every=``).
        overwrite: delete a run in the folder, and start over.
        progress: called with a stage, the number of steps done, of all, and figures.
        **settings: of :class:`numerate.lab.config.RunConfig`: ``model=``, ``loss=``, ``steps=``, ``task_settings=``, ...

    Raises:
        InterruptedTraining: a KeyboardInterrupt (Ctrl-C, SIGTERM) that says what is kept; ``resume=True`` continues.
    """
    if overwrite and resume:
        raise ValueError("overwrite=True starts over and resume=True continues: expected only one of them.")
    if data is not None:
        settings["data"] = data_file(data, RUNS if out is None else Path(out))
    values = run_settings(config, target, columns, without, settings)
    chosen = checked(RunConfig, values, "" if config is None else str(config))
    named = re.sub(r"[^\w.+=-]+", "-", f"{chosen.task}-{chosen.name}-{chosen.seed}")  # a label may hold anything
    folder = run_folder(named) if out is None else Path(out)
    with alone(folder), _interruptible(folder, chosen.steps) as interruption:
        new = claim(folder, {"soft": None} | chosen.deciding, resume=resume, overwrite=overwrite)
        if new and not run(chosen, folder, resume=resume, interruption=interruption, progress=progress):
            return Trained(folder, {})  # not the first of several processes
        if chosen.keep_model and chosen.task == TABLE_TASK and chosen.data is not None and (folder / "model").is_dir():
            keep_calibration(folder, trust_remote_code=chosen.trust_remote_code, progress=progress)
    notes = json.loads((folder / RESULT).read_text(encoding="utf-8")).get("notes", [])
    return Trained(folder, summarize(read_jsonl(folder / "predictions.jsonl")), notes, new)


class InterruptedTraining(KeyboardInterrupt):
    """A run was interrupted; what it has trained is kept, and ``resume=True`` goes on.

    Args:
        folder: of the run.
        step: that of the last checkpoint; 0 if there is none.
        steps: of the run.
        signal: the number of the signal.
        trained: what is left of a run whose training is finished.
    """

    def __init__(self, folder: Path, step: int, steps: int, signal: int, trained: str = "") -> None:
        self.folder, self.step, self.steps, self.signal = folder, step, steps, signal
        kept = f"step {step:,} of {steps:,} is saved in {folder}" if step else "before the first step was saved"
        super().__init__(f"Interrupted: {f'{folder} is trained; {trained} is left' if trained else kept}.")


@contextmanager
def _interruptible(folder: Path, steps: int) -> Iterator[Interruption]:
    """Say what is kept if a signal ends the run."""
    from numerate.lab.trainer import last_checkpoint

    try:
        with Interruption() as interruption:
            yield interruption
    except KeyboardInterrupt:
        left = "its calibration" if (folder / RESULT).is_file() else "its evaluation" if (folder / TRAINED).is_file() else ""
        saved = last_checkpoint(folder / "checkpoints")
        step = steps if left else 0 if saved is None else int(saved.name.rpartition("-")[2])
        raise InterruptedTraining(folder, step, steps, interruption.caught or 2, left) from None


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
    if "task" not in values and (target is not None or values.get("data") is not None):
        values["task"] = TABLE_TASK if target is not None else default_task(values["data"])
    if values.get("data") and values.get("task") == TABLE_TASK:
        values |= from_scratch(values) if config is None else {}
        if values.get("loss") in SOFT and "soft" not in values:
            values |= {"soft": width} if (width := soft_labels(values)) else {}
    return values
