"""Show progress: bars of a run, and of a grid of runs. Without a terminal (a pipe, CI, a file), print a line now and then.

Runs note how far they are in a file of their folder, by which another process can show it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from numerate.checks import one_line
from numerate.lab.files.durations import in_words, roughly
from numerate.lab.files.records import write_bytes

if TYPE_CHECKING:
    from rich.console import Console

Progress = Callable[[str, int, int, dict[str, float]], object]  # "pictures", "train" or "evaluate"; done, total, latest figures
NOTE = ".progress"
"""File of a run that has begun and is not finished: the stage, what is done of it, and its total."""

LINE_SECONDS = 60.0  # between lines, without a terminal
MEASURED_SECONDS = 4.0  # of steps, before a first estimate of the time left
_NOTE_SECONDS = 1.0  # between notes
_FIGURES = {"loss": "loss", "loss/cross_entropy": "CE", "loss/numeric": "numeric"}


class RunProgress:
    """A bar per stage of a run, with the parts of the loss and the time left; without a terminal, a line now and then.

    Attributes:
        lines: whether there is no terminal.
    """

    def __init__(self, console: Console) -> None:
        from rich import progress as rich

        texts = [rich.TextColumn(text) for text in ("{task.description:>8}", "{task.fields[figures]}")]
        columns = (rich.BarColumn(), rich.MofNCompleteColumn(), rich.TimeElapsedColumn(), rich.TimeRemainingColumn())
        self.lines = not (console.is_terminal or console.is_jupyter)
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
        began, first, due = self._begun.setdefault(stage, (now, done, now + MEASURED_SECONDS))
        if done < total and now < due:
            return
        self._begun[stage] = began, first, now + LINE_SECONDS
        text = f"{stage}: {done:,} of {total:,}"
        if done == total:
            text += f" in {in_words(now - began)}"
        elif done > first:
            text += f", about {roughly((now - began) * (total - done) / (done - first))} left"
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
