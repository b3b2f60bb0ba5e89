"""Watch runs in any process by the files that they write: how many steps are done, and about how long the rest takes."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from numerate.lab.comparison.cells import cell_folder, is_finished
from numerate.lab.files.durations import roughly
from numerate.lab.files.progress import LINE_SECONDS, MEASURED_SECONDS, NOTE, GridProgress
from numerate.lab.files.records import RESULT
from numerate.lab.training.config import RunConfig

CURVE = "curve.jsonl"
_WATCH_SECONDS = 2.0  # between looks at the runs
_LINE_SECONDS = (15.0, LINE_SECONDS)  # without a terminal: before the first line, and between lines
_MEASURED_SECONDS = MEASURED_SECONDS


@contextmanager
def steps_shown(cells: Sequence[RunConfig], folder: Path, display: GridProgress) -> Iterator[None]:
    """Show a bar of the training steps of all runs, with the time left; without a terminal, print a line now and then."""
    watch = Watch([cell for cell in cells if not is_finished(folder, cell)], folder)
    ended = threading.Event()
    bar = display.bars.add_task("steps", total=watch.total, figures="", visible=bool(watch.cells))
    first, between = _LINE_SECONDS

    def look() -> None:
        due = time.monotonic() + first
        while not ended.wait(_WATCH_SECONDS):
            watch.look()
            left = "" if watch.left is None else f"about {roughly(watch.left)} left"
            display.bars.update(bar, completed=watch.done, figures=left)
            if display.lines and watch.done and time.monotonic() >= due:
                display.write(f"{watch.done:,} of {watch.total:,} steps" + (f", {left}" if left else ""))
                due = time.monotonic() + between

    watcher = threading.Thread(target=look, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()  # a look that has begun still updates the bar
        display.bars.remove_task(bar)


@dataclass
class Watch:
    """The steps of runs, and the time that is left by the speed since the first step, evaluation included once it is measured.

    Attributes:
        cells: the runs.
        folder: of the comparison.
        done: steps that are done.
        left: seconds; None before there is a speed.
    """

    cells: Sequence[RunConfig]
    folder: Path
    done: int = 0
    left: float | None = None
    _before: dict[Path, object] = field(default_factory=dict)  # the files that were there when this watch began
    _first: tuple[float, float] | None = None  # when the first step was seen, and the work that was done then

    def __post_init__(self) -> None:
        files = [cell_folder(self.folder, cell) / name for cell in self.cells for name in (NOTE, CURVE)]
        self._before = {file: _version(file) for file in files if file.is_file()}

    @property
    def total(self) -> int:
        """Return the steps of all runs."""
        return sum(cell.steps for cell in self.cells)

    def look(self, now: float | None = None) -> None:
        """Read the files of the runs; ``now`` is in seconds."""
        now = time.monotonic() if now is None else now
        costs = [cost for cell in self.cells if (cost := self._evaluation(cell)) is not None]
        evaluation = sum(costs) / len(costs) if costs else 0.0
        states = [self._state(cell) for cell in self.cells]
        self.done = sum(steps for steps, _ in states)
        work = sum(steps + evaluation * share for steps, share in states)
        if self._first is None and work:
            self._first = now, work
        if self._first is None:
            return
        began, before = self._first
        if now - began >= _MEASURED_SECONDS and work > before:
            rest = self.total + evaluation * len(self.cells) - work
            self.left = rest * (now - began) / (work - before)

    def _state(self, cell: RunConfig) -> tuple[int, float]:
        """Return the steps of a run that are done, and the share of its test rows."""
        if is_finished(self.folder, cell):
            return cell.steps, 1.0
        own = cell_folder(self.folder, cell)
        try:
            stage, done, total = json.loads(self._fresh(own / NOTE))
        except (OSError, ValueError):
            stage, done, total = "", 0, 1
        if stage == "evaluate":
            return cell.steps, done / total
        try:
            whole, _, _ = self._fresh(own / CURVE).rpartition("\n")
            logged = int(json.loads(whole.splitlines()[-1])["step"])
        except (OSError, LookupError, ValueError):  # not begun
            logged = 0
        return min(cell.steps, max(logged, done if stage == "train" else 0)), 0.0

    def _fresh(self, file: Path) -> str:
        """Return the content of a file that was written since this watch began; an interrupted run leaves others.

        It is not compared with the time, since clocks may be changed, and those of machines that share a disk differ.
        """
        return file.read_text(encoding="utf-8") if _version(file) != self._before.get(file) else ""

    def _evaluation(self, cell: RunConfig) -> float | None:
        """Return the time of evaluating a run that is finished, as a number of its steps."""
        try:
            cost = json.loads((cell_folder(self.folder, cell) / RESULT).read_text(encoding="utf-8"))["cost"]
            return float(cost["eval_seconds"] / cost["train_seconds"] * cell.steps)
        except (OSError, ValueError, KeyError, TypeError, ZeroDivisionError):
            return None


def _version(file: Path) -> object:
    """Return what differs after a file was written again."""
    state = file.stat()
    return state.st_ino, state.st_size, state.st_mtime_ns
