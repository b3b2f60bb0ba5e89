"""Files of a run. Each is written whole or not at all, so that files on disk can be trusted after an interruption."""

from __future__ import annotations

import io
import json
import math
import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

RESULT = "result.json"  # written last: a run without it is not finished
RUNS = Path("runs")
"""Where runs are kept unless a folder is named."""


def write_text(path: Path, text: str) -> None:
    """Write a text; see :func:`write_bytes`."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes | bytearray, *, sync: bool = True) -> None:
    """Write the whole content or leave the file unchanged: write to a temporary file, then rename it.

    Without ``sync``, which takes milliseconds, a file may be cut short if the machine (not only the process) fails.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            file.write(content)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def write_state(path: Path, state: Any) -> None:
    """Write tensors and plain values for ``torch.load(path, weights_only=True)``."""
    import torch

    content = io.BytesIO()
    torch.save(state, content)
    write_bytes(path, content.getvalue())


def write_json(path: Path, value: Any) -> None:
    """Write strict JSON: infinite values and NaN become null."""
    write_text(path, json.dumps(plain(value), indent=2, allow_nan=False) + "\n")


def write_jsonl(path: Path, rows: Iterable[Any]) -> None:
    """Write one JSON object per line."""
    write_text(path, "".join(json.dumps(plain(row), allow_nan=False) + "\n" for row in rows))


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """Read a file that :func:`write_jsonl` wrote."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def recover_jsonl(path: Path) -> list[dict[str, Any]]:
    """Return the complete lines of a file that was being appended to, and remove the others; no file gives an empty list."""
    rows = []
    for line in path.read_text(encoding="utf-8").split("\n")[:-1] if path.is_file() else ():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    if path.is_file():
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return rows


def plain(value: Any) -> Any:
    """Return lists, dicts, strings and finite numbers; other floats become None."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


# The folder of a run


def run_folder(name: str) -> Path:
    r"""Return ``runs/NAME``; raise if that is not one folder in ``runs``, because the name may come from somebody else's file.

    Example:
        >>> run_folder("../../bin")
        Traceback (most recent call last):
        ...
        ValueError: name='../../bin' cannot be a folder in runs: expected a name without / and \; name another folder with --out.
    """
    if name in ("", ".", "..") or any(character in "/\\" or not character.isprintable() for character in name):
        shown = name if len(name) <= 80 else f"{name[:80]}.."
        expected = "a name without / and \\; name another folder with --out"
        raise ValueError(f"name={shown!r} cannot be a folder in {RUNS}: expected {expected}.")
    return RUNS / name


def is_first_process() -> bool:
    """Return whether this process writes and prints: the only process, or rank 0 of a launcher."""
    return os.environ.get("RANK", "0") == "0"


def check_writable(folder: Path) -> None:
    """Create the folder; raise if it cannot be written to."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".probe.{os.getpid()}"
        probe.write_text("", encoding="utf-8")
        probe.unlink()
    except OSError as error:
        raise OSError(f"{folder} cannot be written to ({error.strerror}): name another folder with --out.") from None


def claim(folder: Path, settings: Mapping[str, Any], *, resume: bool = False, overwrite: bool = False) -> bool:
    """Check that a run may write to ``folder``; return False if the same run is already finished there.

    ``settings`` are those that decide the result. ``overwrite`` deletes the files of a run that is there. Results of a run with
    other settings are never overwritten.
    """
    if overwrite and resume:
        raise ValueError("overwrite=True starts over and resume=True continues: expected only one of them.")
    check_writable(folder)
    if overwrite:
        if is_first_process():
            _delete_run(folder)
        return True
    finished, begun = (folder / RESULT).is_file(), (folder / "checkpoints").is_dir()
    if not finished and not begun:
        return True
    state = "a finished run" if finished else "an interrupted run"
    ways = "name another folder with --out, or start over there with --overwrite"
    if not resume:
        raise ValueError(f"{folder} holds {state}: {ways if finished else f'continue it with --resume, {ways}'}.")
    saved = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    changed = {name: value for name, value in settings.items() if saved.get(name) != value}
    if changed:
        listed = ", ".join(f"{name} is {saved.get(name)!r} there and {value!r} here" for name, value in changed.items())
        raise ValueError(f"{folder} holds {state} with other settings ({listed}): {ways}.")
    return not finished


def _delete_run(folder: Path) -> None:
    """Delete the files that a run and its evaluations wrote, the result first, so that the rest does not look finished."""
    for name in (RESULT, "predictions.jsonl", "curve.jsonl", "environment.json", "config.json"):
        (folder / name).unlink(missing_ok=True)
    folders = ("checkpoints", "model", "images", "pictures", "tensorboard")
    for path in [*(folder / name for name in folders), *folder.glob("eval-*")]:
        shutil.rmtree(path, ignore_errors=True)
