"""Show how far a grid of runs is: bars on a terminal, one line per finished run elsewhere (a pipe, CI, nohup)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from numerate.messages import one_line

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import TaskID

Progress = Callable[[str, int, int, dict[str, float]], object]  # "train" or "evaluate", done, total, latest figures


class GridProgress:
    """A bar for the grid and, where runs are executed one at a time, one for the current run."""

    def __init__(self, console: Console) -> None:
        from rich import progress as rich

        self.console, self.bars = console, console.is_terminal or console.is_jupyter
        times = (rich.TimeElapsedColumn(), rich.TimeRemainingColumn())
        columns = (rich.TextColumn("{task.description:>8}"), rich.BarColumn(), rich.MofNCompleteColumn(), *times)
        self.display = rich.Progress(*columns, console=console, disable=not self.bars)
        self.grid: TaskID | None = None
        self.current: tuple[str, TaskID] | None = None

    def __enter__(self) -> GridProgress:
        self.display.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.display.stop()

    def begin(self, name: str, total: int, finished: int) -> None:
        """Start a grid of ``total`` runs, ``finished`` of which are done."""
        self.grid, self.name, self.total, self.finished = self.display.add_task(name, total=total), name, total, finished
        self.display.update(self.grid, completed=finished)
        if not self.bars:
            self.write(f"{total} {name}, {finished} of them already finished")

    def step(self, stage: str, done: int, total: int, figures: dict[str, float]) -> None:
        """Update the current run."""
        if self.current is None or self.current[0] != stage:
            self._remove_current()
            self.current = stage, self.display.add_task(stage, total=total)
        self.display.update(self.current[1], completed=done)

    def finish(self, run: str, summary: str) -> None:
        """Count a finished run; without a terminal, print it."""
        self._remove_current()
        self.finished += 1
        if self.grid is not None:
            self.display.update(self.grid, completed=self.finished)
        if not self.bars:
            self.write(f"{self.name} {self.finished}/{self.total}: {run}: {summary}")

    def fail(self, run: str, error: Exception) -> None:
        """Print a failed run."""
        self._remove_current()
        self.write(f"{run}: {one_line(error)}", ("failed: ", "bold red"))

    def write(self, text: str, *prefix: Any) -> None:
        """Print a line above the bars."""
        from rich.text import Text

        self.console.print(Text.assemble(*prefix, text), soft_wrap=True)

    def _remove_current(self) -> None:
        if self.current is not None:
            self.display.remove_task(self.current[1])
            self.current = None
