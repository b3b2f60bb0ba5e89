"""Evaluate a model that was trained before, with other settings if wanted; after an interruption it goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from numerate.config import RunConfig, checked
from numerate.evaluation.run import Progress, evaluate
from numerate.models import NAMED, LoadedModel, load_model
from numerate.records import plain, write_jsonl
from numerate.training import make_task


def evaluate_again(
    folder: Path, settings: dict[str, Any], out: Path, *, progress: Progress = lambda *_: None
) -> list[dict[str, Any]]:
    """Records of the model in ``folder``; what ``out`` has of the same settings already is taken as it is."""
    file, weights = folder / "config.json", folder / "model"
    if not file.is_file() or not weights.is_dir():
        raise ValueError(f"{folder} holds no trained model: expected what `numerate train` writes, with config.json and model/.")
    values = json.loads(file.read_text(encoding="utf-8")) | settings
    config = checked(RunConfig, values)
    part = out / f".predictions.{config.hash}.part"
    done = _whole_lines(part)
    loaded = _trained(config, weights)
    out.mkdir(parents=True, exist_ok=True)
    with part.open("a", encoding="utf-8") as lines:

        def keep(record: dict[str, Any]) -> None:
            lines.write(json.dumps(plain(record)) + "\n")
            lines.flush()

        records = evaluate(config, make_task(config), loaded, progress=progress, images=out, done=done, keep=keep)
    write_jsonl(out / "predictions.jsonl", records)
    part.unlink()
    return records


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
