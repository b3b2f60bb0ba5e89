"""Runs whose weights were kept: load them, and evaluate them again with other settings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numerate.checks import one_line
from numerate.lab.data import TASKS
from numerate.lab.data.settings import make_task
from numerate.lab.data.task_format import TaskFormat
from numerate.lab.evaluation.decisions import check_decisions
from numerate.lab.files.progress import Progress
from numerate.lab.files.records import (
    RESULT,
    check_folder,
    check_writable,
    jsonable,
    naming_full_disk,
    recover_jsonl,
    write_json,
    write_jsonl,
)
from numerate.lab.models.names import NAMED, member_folder, member_name
from numerate.lab.models.questions import ASKED
from numerate.lab.models.settings import PLAIN
from numerate.lab.training.config import RunConfig, checked

if TYPE_CHECKING:
    from numerate.lab.evaluation.evaluate import Record
    from numerate.lab.models.loading import LoadedModel

EVALUATION = (
    *("task", "task_settings", "data", "skip_bad", "trust_remote_code"),
    *("eval_splits", "eval_examples", "eval_batch_size", "max_new_tokens", "samples", "bf16"),
    *("decide", "interval", "decide_width"),
)
"""Settings that can be changed when a trained model is evaluated again."""


def evaluate(
    folder: Path, settings: dict[str, Any], out: Path | None = None, *, progress: Progress = lambda *_: None
) -> list[Record]:
    """Evaluate the model in ``folder`` with changed settings; continue an interrupted evaluation with the same settings."""
    config, out = plan_evaluation(folder, settings, out)
    task = make_task(config)
    check_decisions(config.decide, task, config.samples)
    check_writable(out)
    from numerate.lab.training.finish import evaluated  # loads torch, after what could be wrong with the settings

    part = out / f".predictions.{config.hash}.part"
    done = recover_jsonl(part)
    loaded = load_run(folder, config)
    result = folder / RESULT
    known = json.loads(result.read_text(encoding="utf-8")) if result.is_file() else {}
    with naming_full_disk(out):
        write_json(out / "evaluation.json", {"hash": config.hash, "model": str(folder / "model"), **config.used})
        with part.open("a", encoding="utf-8") as lines:

            def keep(record: Record) -> None:
                lines.write(json.dumps(jsonable(record)) + "\n")
                lines.flush()

            labels = known.get("label_digits"), known.get("label_median")
            records = evaluated(config, task, loaded, labels, images=out, done=done, keep=keep, progress=progress)
        write_jsonl(out / "predictions.jsonl", records)
        part.unlink()
    return records


def is_run(folder: Path) -> bool:
    """Return whether a folder is that of a run, finished or not; a folder of weights has no ``environment.json``."""
    return (folder / "config.json").is_file() and (folder / "environment.json").is_file()


def trained_config(folder: Path, *, trust_remote_code: bool = False) -> RunConfig:
    """Return the settings of a run whose weights were kept.

    The folder may come from somebody else: that its own settings trust the code in it counts for nothing.
    """
    check_folder(folder)
    file = folder / "config.json"
    if is_run(folder) and not (folder / "model").is_dir() and not (folder / "result.json").is_file():
        raise ValueError(
            f"{folder} holds a run that is not finished: expected its weights in model/; continue the same `numerate train` with "
            "--resume."
        )
    if not file.is_file() or not (folder / "model").is_dir():
        raise ValueError(f"{folder} holds no trained model: expected what `numerate train` writes, with config.json and model/.")
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file} is not valid JSON ({error}): train again, or restore the file.") from None
    if not isinstance(values, dict):
        raise ValueError(f"{file} holds a {type(values).__name__}: expected the settings of a run.")
    return checked(RunConfig, {**values, "trust_remote_code": trust_remote_code}, str(file))


def plan_evaluation(folder: Path, settings: dict[str, Any], out: Path | None = None) -> tuple[RunConfig, Path]:
    """Return the settings of an evaluation and its folder; raise if the folder holds results of other settings."""
    config = trained_config(folder)
    for name, value in settings.items():
        if name in RunConfig.model_fields and name not in EVALUATION:
            raise ValueError(
                f"{name}={value!r} has no effect on an evaluation: expected one of {', '.join(EVALUATION)}. "
                "Train again to change another setting."
            )
    if "task_settings" in settings and "task" not in settings:  # added to those of the training
        settings = {**settings, "task_settings": {**config.task_settings, **settings["task_settings"]}}
    config = checked(RunConfig, config.model_dump(mode="json") | settings)
    out = folder / f"eval-{config.hash}" if out is None else out
    record = out / "evaluation.json"
    same = record.is_file() and json.loads(record.read_text(encoding="utf-8"))["hash"] == config.hash
    if (out / "predictions.jsonl").exists() and not same:
        raise ValueError(f"{out} holds other predictions, which would be lost: name another folder with --out, or omit --out.")
    return config, out


def load_run(folder: Path, config: RunConfig) -> LoadedModel:
    """Load the weights of a run that were kept; raise a ValueError if their file is damaged."""
    from safetensors import SafetensorError

    from numerate.lab.models.pretrained import quietly

    with quietly():
        try:
            loaded = load_members(_load_trained(config, folder / "model"), folder / "model", config.members)
            loaded.limit(config.max_length)
            if config.format != PLAIN:
                loaded.write(kept_format(folder / "model", config))
            return loaded
        except SafetensorError as error:
            raise ValueError(f"{folder / 'model'} is damaged ({one_line(error)}): train again, or restore the files.") from error


def kept_format(weights: Path, config: RunConfig) -> TaskFormat:
    """Return the format of a run as it was fitted to the training rows, which is beside the weights."""
    try:
        kept = json.loads((weights / ASKED).read_text(encoding="utf-8"))["format"]
        return TaskFormat.kept(TASKS[config.task](**config.task_settings), kept)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{weights / ASKED} does not say how numbers are written in format={config.format!r} ({one_line(error)}): train "
            "again, or restore the file."
        ) from None


def load_adapter(weights: Path, model: str, seed: int, *, trust_remote_code: bool = False) -> LoadedModel:
    """Load an adapter, that of the first member, with the model that it was trained on."""
    from peft import PeftModel

    from numerate.lab.models.loading import load_model
    from numerate.lab.models.pretrained import plain_weights, quietly

    loaded = load_model(model, seed=seed, trust_remote_code=trust_remote_code)
    with plain_weights(weights), quietly():
        loaded.model = PeftModel.from_pretrained(loaded.model, weights)
    return loaded


def load_members(loaded: LoadedModel, weights: Path, members: int) -> LoadedModel:
    """Load the other members of a run, which lie beside the first; return the model with its pool."""
    from numerate.lab.models.loading import ModelPool
    from numerate.lab.models.pretrained import plain_weights, quietly

    if members == 1:
        return loaded
    first: Any = loaded.model
    others = [member_folder(weights, member) for member in range(1, members)]
    if missing := [folder for folder in others if not folder.is_dir()]:
        raise ValueError(f"{missing[0]} is missing: expected the weights of {members} members; restore it, or train again.")
    with quietly(), plain_weights(weights):
        if hasattr(first, "peft_config"):
            for member, folder in enumerate(others, 1):
                first.load_adapter(folder, adapter_name=member_name(member))
            first.set_adapter(member_name(0))
            names = tuple(map(member_name, range(members)))
            loaded.pool = ModelPool((first,), names)
        else:
            rest = (type(first).from_pretrained(folder, dtype=first.dtype) for folder in others)
            loaded.pool = ModelPool((first, *rest))
    return loaded


def _load_trained(config: RunConfig, weights: Path) -> LoadedModel:
    from numerate.lab.models.loading import load_model
    from numerate.lab.models.pretrained import plain_weights

    if config.adapter != "none":
        return load_adapter(weights, config.model, config.seed, trust_remote_code=config.trust_remote_code)
    if config.model not in NAMED:
        return load_model(weights, trust_remote_code=config.trust_remote_code)
    loaded = load_model(config.model, seed=config.seed, trust_remote_code=config.trust_remote_code)
    with plain_weights(weights):
        loaded.model = type(loaded.model).from_pretrained(weights)
    return loaded
