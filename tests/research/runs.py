"""Folders of comparisons, as far as the scripts of research/ read them."""

from __future__ import annotations

import json
from pathlib import Path


def run_of(folder: Path, label: str, seed: int, rows: list[dict], result: dict | None = None, **config: object) -> None:
    """Write a finished run with these predictions."""
    cell = folder / "cells" / f"{label}-{seed}"
    same = {"model": "smollm2", "steps": 5, "train_examples": 80, "learning_rate": 1e-3, "weight": 0.3}
    write(cell / "config.json", same | {"label": label, "seed": seed} | config)
    write(cell / "result.json", result or {})
    (cell / "predictions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def write(path: Path, value: object) -> None:
    """Write a JSON file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))
