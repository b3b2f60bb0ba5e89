"""Evaluate a model that was trained before, with other settings if wanted; after an interruption it goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from numerate.lab.config import RunConfig, checked
from numerate.lab.evaluate import Progress, evaluate
from numerate.lab.models import NAMED, LoadedModel, load_model
from numerate.lab.records import plain, write_json, write_jsonl
from numerate.lab.train import make_task

EVALUATION = (
    *("task", "task_settings", "data", "skip_bad", "trust_remote_code"),
    *("eval_splits", "eval_examples", "eval_batch_size", "max_new_tokens", "samples", "bf16"),
)
"""Settings that an evaluation heeds; the others are of the training, which is over."""

_RECORD = "evaluation.json"


def evaluate_again(
    folder: Path, settings: dict[str, Any], out: Path | None = None, *, progress: Progress = lambda *_: None
) -> list[dict[str, Any]]:
    """Evaluate the model in ``folder`` with other settings; an interrupted evaluation of the same settings is continued."""
    config, out = plan_evaluation(folder, settings, out)
    part = out / f".predictions.{config.hash}.part"
    done = _whole_lines(part)
    loaded = _trained(config, folder / "model")
    write_json(out / _RECORD, {"hash": config.hash, "model": str(folder / "model"), **config.model_dump(mode="json")})
    with part.open("a", encoding="utf-8") as lines:

        def keep(record: dict[str, Any]) -> None:
            lines.write(json.dumps(plain(record)) + "\n")
            lines.flush()

        records = evaluate(config, make_task(config), loaded, progress=progress, images=out, done=done, keep=keep)
    write_jsonl(out / "predictions.jsonl", records)
    part.unlink()
    return records


def trained_config(folder: Path) -> RunConfig:
    """The settings of a run whose weights were kept."""
    file = folder / "config.json"
    if not file.is_file() or not (folder / "model").is_dir():
        raise ValueError(f"{folder} holds no trained model: expected what `numerate train` writes, with config.json and model/.")
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{file} is no JSON ({error}): train again, or restore the file.") from None
    return checked(RunConfig, values, str(file))


def plan_evaluation(folder: Path, settings: dict[str, Any], out: Path | None = None) -> tuple[RunConfig, Path]:
    """The settings of an evaluation and the folder for its files; other results there are not overwritten."""
    config = trained_config(folder)
    for name, value in settings.items():
        if name in RunConfig.model_fields and name not in EVALUATION:
            raise ValueError(
                f"{name}={value!r} has no effect on an evaluation: expected one of {', '.join(EVALUATION)}. "
                "Train again to change another setting."
            )
    values = config.model_dump(mode="json")
    if "task_settings" in settings and "task" not in settings:  # some of them, beside those of the training
        settings = {**settings, "task_settings": {**config.task_settings, **settings["task_settings"]}}
    config = checked(RunConfig, values | settings)
    out = folder / f"eval-{config.hash}" if out is None else out
    record = out / _RECORD
    same = record.is_file() and json.loads(record.read_text(encoding="utf-8"))["hash"] == config.hash
    if (out / "predictions.jsonl").exists() and not same:
        raise ValueError(f"{out} holds other predictions, which would be lost: name another folder with --out, or leave it out.")
    return config, out


def _trained(config: RunConfig, weights: Path) -> LoadedModel:
    """The model with the weights that were kept."""
    if config.model not in NAMED and config.adapter == "none":
        return load_model(weights, trust_remote_code=config.trust_remote_code)
    loaded = load_model(config.model, seed=config.seed, trust_remote_code=config.trust_remote_code)
    if config.adapter == "none":
        loaded.model = type(loaded.model).from_pretrained(weights)
    else:
        from peft import PeftModel

        loaded.model = PeftModel.from_pretrained(loaded.model, weights)
    return loaded


def _whole_lines(path: Path) -> list[dict[str, Any]]:
    """Records that were written to their end."""
    if not path.is_file():
        return []
    found = []
    for line in path.read_text(encoding="utf-8").split("\n")[:-1]:
        try:
            found.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    path.write_text("".join(json.dumps(record) + "\n" for record in found), encoding="utf-8")
    return found
