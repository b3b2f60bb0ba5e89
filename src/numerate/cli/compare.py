"""``numerate compare`` and ``numerate report``: does a numeric loss help, by how much, at what cost, and is that noise?"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from numerate.cli.app import app
from numerate.cli.settings import SET_HELP, experiment_types, merged, parse_settings
from numerate.lab.presets import PRESETS
from numerate.messages import check_choice, one_line

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import TaskID


@app.command()
def compare(
    config: Annotated[Path | None, typer.Argument(help="A YAML file of what to compare; flags go before it.")] = None,
    preset: Annotated[str | None, typer.Option(help=f"One of {', '.join(PRESETS)}; demo unless given.")] = None,
    loss: Annotated[list[str] | None, typer.Option(help="A loss to compare, or several; the baseline is added.")] = None,
    baseline: Annotated[str | None, typer.Option(help="The loss that the others are compared with; ce unless given.")] = None,
    task: Annotated[list[str] | None, typer.Option(help="A task, or several.")] = None,
    model: Annotated[
        list[str] | None, typer.Option(help="tiny, tiny-3, tiny-vlm, smollm2, a folder or Hub id; or several.")
    ] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="How many seeds.")] = None,
    data: Annotated[str | None, typer.Option(help="Real data, or a table of your own: a file or folder.")] = None,
    target: Annotated[str | None, typer.Option(help="Of your own table: the column to predict.")] = None,
    skip_bad: Annotated[bool, typer.Option(help="Leave out rows of the data that cannot be read, and count them.")] = False,
    setting: Annotated[list[str] | None, typer.Option("--set", help=f"Of every run. {SET_HELP}")] = None,
    out: Annotated[Path | None, typer.Option(help="Where to; runs/NAME unless given.")] = None,
    processes: Annotated[int | None, typer.Option(min=1, help="Runs at a time; one per core, or one on a GPU.")] = None,
    executor: Annotated[str, typer.Option(help="local, or ray.")] = "local",
    address: Annotated[str | None, typer.Option(help="Of the Ray cluster.")] = None,
    tune: Annotated[int, typer.Option(min=0, max=9, help="Trials for each loss on a validation split before; 0: none.")] = 0,
) -> None:
    """Train with each loss and seed, evaluate on the same examples, and write a report. Finished runs are not run again."""
    from rich.console import Console
    from rich.text import Text

    from numerate.lab.compare import compare_losses, with_baseline
    from numerate.lab.config import read_yaml

    check_choice("executor", executor, ("local", "ray"))
    values: dict[str, Any] = dict(PRESETS["demo"]) if config is None and preset is None else {}
    if preset is not None:
        check_choice("preset", preset, tuple(PRESETS))
        values = dict(PRESETS[preset])
    if config is not None:
        values |= {"name": config.stem} | read_yaml(config)
    if task or data or target:
        if config is None:
            values.pop("task_settings", None)
        values["name"] = "-".join([*(task or []), *([Path(data).stem] if data else [])]) or "my-data"
    values |= {"losses": loss} if loss else {}
    values |= {"tasks": task or ["regression"]} if task or data or target else {}
    values |= {"models": model} if model else {}
    values |= {"seeds": seeds} if seeds else {}
    values |= {"data": data} if data else {}
    values |= {"skip_bad": True} if skip_bad else {}
    values |= {"baseline": baseline} if baseline else {}
    values = merged(values, {"task_settings": {"target": target}} if target else {})
    values = merged(values, parse_settings(setting or [], experiment_types(values.get("tasks", ("arithmetic",)))))
    console = Console(highlight=False)
    values, added = with_baseline(values)
    if added:
        console.print(f"Added {values['losses'][0]}, the baseline that the others are compared with; --baseline names another.")
    with Grid(console) as grid:
        report = compare_losses(
            values,
            out,
            source="" if config is None else str(config),
            processes=processes or _processes(),
            executor=executor,
            address=address,
            tune=tune,
            watch=grid,
        )
    _show(console, report.scores)
    console.print(Text(" ".join(report.sentences)))
    if report.skipped:
        console.print(f"{report.skipped:,} rows of the data have no answer or could not be read, and were left out.")
    for note in report.notes:
        console.print(Text(note), style="yellow")
    console.print(Text.assemble("report in ", (str(report.path), "bold")), soft_wrap=True)


def _show(console: Console, scores: list[dict[str, Any]]) -> None:
    """The headline of each loss, in and out of range."""
    from rich.table import Table
    from rich.text import Text

    from numerate.lab.report.analysis import SPLIT_NAMES
    from numerate.lab.report.wording import measure, p_text

    for setup in dict.fromkeys(score["setup"] for score in scores):
        mine = [score for score in scores if score["setup"] == setup]
        shown = measure(mine[0]["measure"])
        splits = list(dict.fromkeys(score["split"] for score in mine))
        columns = [title for split in splits for title in (SPLIT_NAMES.get(split, split), "p")]
        table = Table("loss", *columns, title=f"{setup}: {shown.title}, {mine[0]['seeds']} seeds", title_justify="left")
        for label in dict.fromkeys(score["label"] for score in mine):
            found = {score["split"]: score for score in mine if score["label"] == label}
            cells: list[str] = []
            for split in splits:
                score = found[split]
                value, low, high = (float("inf") if score[key] is None else score[key] for key in ("value", "low", "high"))
                p = score["p_holm"]
                cells += [f"{shown.value(value)} ({shown.number(low)} to {shown.number(high)})", "" if p is None else p_text(p)]
            table.add_row(Text(label), *cells)
        console.print(table)


def _processes() -> int:
    import torch

    return 1 if torch.cuda.is_available() else max(1, os.cpu_count() or 1)


class Grid:
    """A bar for the grid, and one below it for the run that is under way, if there is but one at a time."""

    def __init__(self, console: Console) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

        columns = (
            TextColumn("{task.description:>8}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        self.console, self.bar = console, Progress(*columns, console=console)

    def __enter__(self) -> Grid:
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def begin(self, what: str, total: int, done: int) -> None:
        """A grid of ``total`` runs, ``done`` of which are finished."""
        self.task = self.bar.add_task(what, total=total, completed=done)
        self.run: tuple[str, TaskID] | None = None

    def step(self, what: str, done: int, total: int, figures: dict[str, float]) -> None:
        """So far."""
        if self.run is None or self.run[0] != what:
            self._forget_run()
            self.run = what, self.bar.add_task(what, total=total)
        self.bar.update(self.run[1], completed=done)

    def done(self, name: str, error: Exception | None) -> None:
        """One more."""
        self._forget_run()
        if error is None:
            self.bar.advance(self.task)
        else:
            from rich.text import Text

            self.console.print(Text.assemble(("failed: ", "bold red"), f"{name}: {one_line(error)}"), soft_wrap=True)

    def _forget_run(self) -> None:
        if self.run is not None:
            self.bar.remove_task(self.run[1])
            self.run = None


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(help="Of a comparison, such as runs/demo.")],
    out: Annotated[Path | None, typer.Option(help="Where to write report.html; the folder itself unless given.")] = None,
) -> None:
    """Write the report of a comparison anew."""
    from rich.console import Console
    from rich.text import Text

    from numerate.lab.report import write_report

    path = write_report(folder, out)
    Console(highlight=False).print(Text.assemble("report in ", (str(path), "bold")), soft_wrap=True)
