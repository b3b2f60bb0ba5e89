"""Save trained weights with a model card."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from numerate.lab.evaluate import summarize
from numerate.lab.models import LoadedModel
from numerate.lab.questions import ASKED
from numerate.lab.records import write_json, write_text


def save_model(loaded: LoadedModel, folder: Path, card: str, asked: Mapping[str, Any] | None = None) -> None:
    """Save weights, tokenizer, model card and what the model was asked; the folder gets its name when all are written."""
    part = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    loaded.model.save_pretrained(part)
    (loaded.processor or loaded.tokenizer).save_pretrained(part)
    write_text(part / "README.md", card)
    if asked is not None:
        write_json(part / ASKED, asked)
    shutil.rmtree(folder, ignore_errors=True)
    part.replace(folder)


def model_card(settings: Mapping[str, Any], records: Sequence[dict[str, Any]]) -> str:
    """Return the model card of a run with these settings and predictions."""
    rows = []
    for split, figures in summarize(records).items():
        n = sum(record["split"] == split for record in records)
        exact = f"{figures['exact']:.3f}" if "exact" in figures else "-"
        rows.append(f"| {split} | {n} | {exact} |")
    numeric = "" if settings["loss"] == "ce" else f" + {settings['weight']:g} x `{settings['loss']}`"
    if soft := settings.get("soft"):
        used = ", ".join(f"{name} {value}" for name, value in soft.items() if value not in (None, 0))
        numeric += f" on soft labels ({used})"
    listed = "\n".join(f"- {name}: `{value}`" for name, value in settings.items())
    return f"""---
library_name: transformers
base_model: {settings["model"]}
tags: [numerate, {settings["loss"]}]
---
# {settings["model"]} on {settings["task"]}

Trained with cross-entropy{numeric} for {settings["steps"]:,} steps with numerate.

| split | examples | exact |
|---|---|---|
{chr(10).join(rows)}

## Settings

{listed}
"""
