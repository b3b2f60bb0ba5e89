"""Show progress bars of a run and of a grid of runs; without a terminal (a pipe, CI, a file), print an occasional line.

Runs note how far they are in a file of their folder, by which another process shows it.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numerate.checks import one_line
from numerate.lab.files.records import RESULT, write_bytes

if TYPE_CHECKING:
    from rich.console import Console
    from typing_extensions import Self

Progress = Callable[[str, int, int, dict[str, float]], object]  # "pictures", "train" or "evaluate"; done, total, latest figures
NOTE = ".progress"
"""File of a run that has begun and is not finished: the stage, what is done of it, and its total."""

LINE_SECONDS = 60.0  # between lines, without a terminal
_MEASURED_SECONDS = 4.0  # of steps, before a first estimate of the time left
_NOTE_SECONDS = 1.0  # between notes
_LOOK_SECONDS = 2.0  # between looks at the notes
_FIRST_LINE_SECONDS = 15.0  # before the first line about runs in other processes
_FIGURES = {"loss": "loss", "loss/cross_entropy": "CE", "loss/numeric": "numeric"}


class RunProgress:
    """A bar per stage of a run, with the parts of the loss and the time left; without a terminal, an occasional line."""

    def __init__(self, console: Console) -> None:
        from rich import progress as rich

        texts = [rich.TextColumn(text) for text in ("{task.description:>8}", "{task.fields[figures]}")]
        columns = (rich.BarColumn(), rich.MofNCompleteColumn(), rich.TimeElapsedColumn(), rich.TimeRemainingColumn())
        self.lines = not (console.is_terminal or console.is_jupyter)  # no terminal
        self.console, self.bars = console, rich.Progress(texts[0], *columns, texts[1], console=console, disable=self.lines)
        self.stages: dict[str, Any] = {}
        self._begun: dict[str, tuple[float, int, float]] = {}  # of each stage: when, what was done then, when a line is due

    def __enter__(self) -> Self:
        self.bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bars.stop()

    def __call__(self, stage: str, done: int, total: int, figures: dict[str, float]) -> None:
        """Update the bar of a stage."""
        if stage not in self.stages:
            self.stages[stage] = self.bars.add_task(stage, total=total, figures="")
        shown = "  ".join(f"{name} {figures[key]:.3f}" for key, name in _FIGURES.items() if key in figures)
        self.bars.update(self.stages[stage], completed=done, figures=shown)
        if self.lines:
            self._tell(stage, done, total, shown)

    def _tell(self, stage: str, done: int, total: int, figures: str) -> None:
        """Print a line if it is due: once there is a speed, then every minute, and at the end of a stage."""
        now = time.monotonic()
        began, first, due = self._begun.setdefault(stage, (now, done, now + _MEASURED_SECONDS))
        if done < total and now < due:
            return
        self._begun[stage] = began, first, now + LINE_SECONDS
        text = f"{stage}: {done:,} of {total:,}"
        if done == total:
            text += f" in {in_words(now - began)}"
        elif left := _time_left((began, first), done, total):
            text += f", {left}"
        self.write(f"{text}, {figures}" if figures else text)

    def write(self, text: str, *prefix: Any) -> None:
        """Print a line, above the bars."""
        from rich.text import Text

        self.console.print(Text.assemble(*prefix, text), soft_wrap=True)


class GridProgress(RunProgress):
    """A bar for the grid and, if runs are executed one at a time, the bars of the current run."""

    def begin(self, name: str, total: int, finished: int) -> None:
        """Start a grid of ``total`` runs, ``finished`` of which are done."""
        self.name, self.total, self.finished = name, total, finished
        self.grid = self.bars.add_task(name, total=total, completed=finished, figures="")
        if self.lines:
            self.write(f"{total} {name}, {finished} of them already finished")

    def _tell(self, stage: str, done: int, total: int, figures: str) -> None:
        """Print a line when pictures are drawn, before any run begins: runs are counted when they are finished."""
        if stage == "pictures" and done in (0, total):
            self.write(f"{total:,} pictures {'are drawn' if done else 'to draw'}")

    def finish(self, run: str, summary: str) -> None:
        """Count a finished run; without a terminal, print it."""
        self._remove_stages()
        self.finished += 1
        self.bars.update(self.grid, completed=self.finished)
        if self.lines:
            self.write(f"{self.finished}/{self.total} {self.name}: {run}: {summary}")

    def fail(self, run: str, error: Exception) -> None:
        """Print a failed run."""
        self._remove_stages()
        self.write(f"{run}: {one_line(error)}", ("failed: ", "bold red"))

    @contextmanager
    def watching(self, runs: Mapping[Path, int]) -> Iterator[None]:
        """Show the training steps of runs in any process, and the time left; ``runs`` are their folders and steps."""
        for folder in runs:  # of a run that was killed; one that runs elsewhere notes again
            (folder / NOTE).unlink(missing_ok=True)
        total, ended = sum(runs.values()), threading.Event()
        bar = self.bars.add_task("steps", total=total, figures="", visible=bool(runs))

        def look() -> None:
            since: tuple[float, int] | None = None  # the first step
            due = time.monotonic() + _FIRST_LINE_SECONDS
            while not ended.wait(_LOOK_SECONDS):
                if not (done := sum(_steps_done(*run) for run in runs.items())):
                    continue
                since = since or (time.monotonic(), done)
                left = _time_left(since, done, total)
                self.bars.update(bar, completed=done, figures=left)
                if self.lines and time.monotonic() >= due:
                    self.write(f"{done:,} of {total:,} steps" + (f", {left}" if left else ""))
                    due = time.monotonic() + LINE_SECONDS

        watcher = threading.Thread(target=look, daemon=True)
        watcher.start()
        try:
            yield
        finally:
            ended.set()
            watcher.join()  # a look that has begun still updates the bar
            self.bars.remove_task(bar)

    def _remove_stages(self) -> None:
        while self.stages:
            self.bars.remove_task(self.stages.popitem()[1])


class NotedProgress:
    """Progress that is also noted in the folders of the runs, at most once a second."""

    def __init__(self, folders: Sequence[Path], progress: Progress = lambda *_: None) -> None:
        self.folders, self.progress, self.noted = folders, progress, 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for folder in self.folders:
            (folder / NOTE).unlink(missing_ok=True)

    def __call__(self, stage: str, done: int, total: int, figures: dict[str, float]) -> None:
        """Note what is done, and pass it on."""
        if time.monotonic() - self.noted >= _NOTE_SECONDS:
            for folder in self.folders:
                if folder.is_dir():
                    write_bytes(folder / NOTE, json.dumps([stage, done, total]).encode(), sync=False)
            self.noted = time.monotonic()
        self.progress(stage, done, total, figures)


def _steps_done(folder: Path, steps: int) -> int:
    """Return how many steps of a run are done, by its note or its result."""
    if (folder / RESULT).is_file():
        return steps
    try:
        stage, done, _ = json.loads((folder / NOTE).read_text(encoding="utf-8"))
    except (OSError, ValueError):  # not begun
        return 0
    return {"train": int(done), "evaluate": steps}.get(stage, 0)


def _time_left(since: tuple[float, int], done: int, total: int) -> str:
    """Return the estimated time left, from the speed since a point in time; empty before a speed is known."""
    began, first = since
    seconds = time.monotonic() - began
    if seconds < _MEASURED_SECONDS or not first < done < total:
        return ""
    return f"about {roughly(seconds * (total - done) / (done - first))} left"


def in_words(seconds: float) -> str:
    """Return a time in one or two units.

    Examples:
        >>> [in_words(seconds) for seconds in (0.2, 44, 95, 300, 3600, 8000)]
        ['1 s', '44 s', '1 min 35 s', '5 min', '1 h', '2 h 13 min']
    """
    whole = max(1, round(seconds))
    if whole < 60:
        return f"{whole} s"
    large, small, names = (*divmod(whole, 60), ("min", "s")) if whole < 3600 else (*divmod(round(whole / 60), 60), ("h", "min"))
    return f"{large} {names[0]}" + (f" {small} {names[1]}" if small else "")


def roughly(seconds: float) -> str:
    """Return a rounded estimate.

    Examples:
        >>> [roughly(seconds) for seconds in (3, 44, 95, 222, 1000, 8000)]
        ['5 s', '45 s', '1 min 40 s', '4 min', '17 min', '2 h 15 min']
    """
    unit = 5 if seconds < 60 else 10 if seconds < 120 else 60 if seconds < 3600 else 900
    return in_words(max(1, round(seconds / unit)) * unit)
