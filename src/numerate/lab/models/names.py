"""Names of models and adapters, and a learning rate that suits them. Needs no torch, so that settings are checked at once."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Literal

from numerate.lab.files.records import RUNS, check_folder

Adapter = Literal["none", "lora", "qlora"]

BUILT = ("tiny", "tiny-3", "tiny-vlm", "small")
"""Names of models that are built from a configuration, with random weights."""

NAMED = (*BUILT, "smollm2")
ANSWER_TOKENS = 32
"""Tokens that are kept free for an answer where long texts of a question are cut."""

MEMBER = "member_"
"""Begins the name of a member's adapter."""

SEEING = "tiny-vlm"
"""The one of them that accepts pictures."""


def member_folder(folder: Path, member: int) -> Path:
    """Return where a member is kept: the first in the folder itself, so that it is found by who knows of no others."""
    return folder / "members" / str(member) if member else folder


def member_name(member: int) -> str:
    """Return the name of a member's adapter; none is part of another, which peft could not tell apart."""
    return f"{MEMBER}{member:03d}" if member else "default"


def suitable_rate(name: str, adapter: Adapter) -> float:
    """Return a learning rate to start with: large for small models, small for pre-trained ones, which would forget."""
    return {"tiny": 4e-3, "tiny-3": 4e-3, "tiny-vlm": 1e-3, "small": 1e-3}.get(name, 5e-5 if adapter == "none" else 2e-4)


def check_model_name(name: str) -> None:
    """Raise if a name is a file, the path of a folder that is not there, rather than a Hub id, or close to that of a run."""
    path = Path(name).expanduser()
    if path.is_file() and path.suffix != ".gguf":
        raise ValueError(f"model={name!r} is a file: expected a folder with a model, the folder of a run, or a GGUF file.")
    if name in NAMED or path.exists():
        return
    runs = [folder.name for folder in RUNS.iterdir()] if RUNS.is_dir() else []
    inside = len(path.parts) == 2 and (Path(path.parts[0]).is_dir() or path.parent == RUNS)
    if inside or path.is_absolute() or len(path.parts) > 2 or name.startswith("."):
        check_folder(path)
    elif len(path.parts) == 1 and difflib.get_close_matches(name, runs, 1, cutoff=0.8):
        check_folder(RUNS / name)
        raise ValueError(f"{name}: there is no such folder. Did you mean '{RUNS / name}'?")
