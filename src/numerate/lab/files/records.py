"""Files of a run, written atomically, so that files on disk can be trusted after an interruption."""

from __future__ import annotations

import difflib
import errno
import io
import json
import math
import os
import platform
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from numerate.checks import one_line

RESULT = "result.json"  # written last: a run without it is not finished
_LITTLE = 1 << 16  # free bytes below which a disk counts as full
RUNS = Path("runs")
"""Where runs are kept unless a folder is named."""
TRAINED = "trained.pt"
"""File of a run that is trained and not evaluated yet: its weights and its cost."""

TEMPORARY = ("checkpoints", "pictures", "trained.pt", ".progress")
"""What a run keeps until it is finished: to resume from, what it has drawn, weights to be evaluated, how far it is."""


def write_text(path: Path, text: str) -> None:
    """Write a text; see :func:`write_bytes`."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes | bytearray, *, sync: bool = True) -> None:
    """Write a file atomically: to a temporary file, which is then renamed.

    Without ``sync``, which takes milliseconds, a file may be cut short if the machine (not only the process) fails.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{platform.node()}.{os.getpid()}.part")
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


def remove_parts(folder: Path) -> None:
    """Remove the temporary files of :func:`write_bytes` whose process, on this machine, was killed."""
    for part in folder.glob(".*.part"):
        name, _, pid = part.name.removesuffix(".part").rpartition(".")
        if name.endswith(f".{platform.node()}") and pid.isdigit() and not _is_alive(int(pid)):
            part.unlink(missing_ok=True)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # somebody else's
        pass
    return True


def write_state(path: Path, state: Any) -> None:
    """Write tensors and plain values for :func:`read_state`."""
    import torch

    content = io.BytesIO()
    torch.save(state, content)
    write_bytes(path, content.getvalue())


def read_state(path: Path, device: Any = "cpu") -> Any:
    """Read what :func:`write_state` wrote; raise a ValueError if the file is damaged."""
    import torch

    try:
        return torch.load(path, map_location=device, weights_only=True)
    except (OSError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # of many kinds
        raise ValueError(f"{path} is damaged ({one_line(error)}): delete it, and what it holds is computed again.") from error


@contextmanager
def saving() -> Iterator[None]:
    """Raise an OSError where safetensors cannot write a file, such as on a full disk."""
    from safetensors import SafetensorError

    try:
        yield
    except SafetensorError as error:
        raise OSError(one_line(error)) from error


def write_json(path: Path, value: Any) -> None:
    """Write strict JSON: infinite values and NaN become null."""
    write_text(path, json.dumps(jsonable(value), indent=2, allow_nan=False) + "\n")


def write_jsonl(path: Path, rows: Iterable[Any]) -> None:
    """Write one JSON object per line."""
    write_text(path, "".join(json.dumps(jsonable(row), allow_nan=False) + "\n" for row in rows))


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """Read a file that :func:`write_jsonl` wrote; raise a ValueError if it is damaged."""
    rows = []
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        try:
            rows.append(json.loads(line))
        except ValueError:
            raise ValueError(f"{path}, line {number}: not JSON. Delete the folder and run it again.") from None
    return rows


def recover_jsonl(path: Path) -> list[dict[str, Any]]:
    """Return the complete lines of a file that was being appended to, and remove the others; no file gives an empty list."""
    rows = []
    for line in path.read_text(encoding="utf-8", errors="replace").split("\n")[:-1] if path.is_file() else ():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    if path.is_file():
        write_jsonl(path, rows)
    return rows


def cut_curve(path: Path, step: int) -> float:
    """Keep the points of a learning curve up to a step, as later ones are logged again; return the seconds until then."""
    points = [point for point in recover_jsonl(path) if point["step"] <= step]
    write_jsonl(path, points)
    return points[-1]["seconds"] if points else 0.0


def jsonable(value: Any) -> Any:
    """Return lists, dicts, strings and finite numbers; other floats become None."""
    if isinstance(value, dict):
        return {str(key): jsonable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [jsonable(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


# The folder of a run


def run_folder(name: str) -> Path:
    r"""Return ``runs/NAME``; raise if that is not one folder in ``runs``, because the name may come from somebody else's file.

    Examples:
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


def check_folder(folder: Path) -> None:
    """Raise if there is no such folder, with the nearest name beside it."""
    if folder.is_dir():
        return
    if folder.exists():
        raise ValueError(f"{folder} is a file: expected the folder of a run, such as {RUNS / 'flats-rent-ce-0'}.")
    beside = next(parent for parent in folder.parents if parent.is_dir())
    names = {path.name: path for path in beside.iterdir() if path.is_dir()}
    close = difflib.get_close_matches(str(folder.relative_to(beside)), names, 1)
    hint = f"Did you mean '{names[close[0]]}'?" if close else "Check the path."
    raise ValueError(f"{folder}: there is no such folder. {hint}")


class DiskFullError(OSError):
    """A disk is full: which folder was written to, and the remedy."""


@contextmanager
def naming_full_disk(folder: Path) -> Iterator[None]:
    """Raise a DiskFullError where the disk of ``folder`` is full, instead of errors that name neither the folder nor a remedy."""
    try:
        yield
    except DiskFullError:
        raise
    except (OSError, RuntimeError) as error:
        full = isinstance(error, OSError) and (error.errno in (errno.ENOSPC, errno.EDQUOT) or "os error 28" in str(error))
        if not full and (isinstance(error, OSError) or shutil.disk_usage(folder).free > _LITTLE):  # torch has RuntimeErrors
            raise
        raise DiskFullError(
            f"no space left on the disk of {folder} ({one_line(error)}): free some, or name a folder on another disk (--out)."
        ) from error


def is_first_process() -> bool:
    """Return whether this process writes and prints: the only process, or rank 0 of a launcher."""
    return os.environ.get("RANK", "0") == "0"


def check_writable(folder: Path) -> None:
    """Create the folder; raise if it cannot be written to."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):  # without a name where the system can, so that nothing is left
            pass
    except OSError as error:
        raise OSError(f"{folder} cannot be written to ({error.strerror}): name another folder with --out.") from None


@contextmanager
def locked(folder: Path, *, wait: bool) -> Iterator[bool]:
    """Lock a folder; yield False if another process holds the lock and ``wait=False``. The end of a process releases it.

    On Windows, and on filesystems without locking, such as some that machines share, nothing is locked.
    """
    try:
        import fcntl
    except ImportError:
        yield True
        return
    with (folder / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
            return
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
                raise
        yield True


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Create a folder and hold its lock; raise if another process trains there. Those of one launcher train together."""
    check_writable(folder)
    if not is_first_process():
        yield
        return
    with naming_full_disk(folder), locked(folder, wait=False) as free:
        if not free:
            raise ValueError(f"{folder} is in use by another process that trains there: wait for it, or name another with --out.")
        yield


def claim(folder: Path, settings: Mapping[str, Any], *, resume: bool = False, overwrite: bool = False) -> bool:
    """Check that a run may write to ``folder``; return False if the same run is already finished there.

    ``settings`` are those that decide the result. ``overwrite`` deletes the files of a run that is there. Results of a run with
    other settings are never overwritten.
    """
    if overwrite:
        if is_first_process():
            _delete_run(folder)
        return True
    finished, begun = (folder / RESULT).is_file(), (folder / "checkpoints").is_dir()
    if is_first_process():
        remove_parts(folder)
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
    if finished and is_first_process():
        clear(folder)
    return not finished


def clear(folder: Path) -> None:
    """Remove what a finished run no longer needs; one that was killed after its result has left it."""
    for path in (folder / name for name in TEMPORARY):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    for place in (folder, folder / "model"):
        remove_parts(place)


def _delete_run(folder: Path) -> None:
    """Delete the files that a run and its evaluations wrote.

    The result goes first, so that the rest does not look finished; the settings last, since checkpoints need them.
    """
    (folder / RESULT).unlink(missing_ok=True)
    clear(folder)
    for path in [*(folder / name for name in ("model", "members", "images", "tensorboard")), *folder.glob("eval-*")]:
        shutil.rmtree(path, ignore_errors=True)
    for name in ("predictions.jsonl", "baselines.json", "curve.jsonl", "environment.json", "config.json"):
        (folder / name).unlink(missing_ok=True)
