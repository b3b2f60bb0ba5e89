"""``numerate task``: look at the examples of a task."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from numerate.cli.app import app
from numerate.cli.settings import parse_settings, task_types

if TYPE_CHECKING:
    from numerate.lab.tasks import Task
    from numerate.lab.tasks.base import Split


TASK_NAMES = "arithmetic, word_problems, clock, charts, grounding, scene_text, math_vision, regression"
"""Those of ``TASKS``, which takes long to import."""


@app.command()
def task(
    name: Annotated[str, typer.Argument(help=f"One of {TASK_NAMES}.")],
    n: Annotated[int | None, typer.Option("-n", min=1, help="How many; 5 unless given, 16 of a preview.")] = None,
    split: Annotated[str, typer.Option(help="train, interpolate or extrapolate.")] = "train",
    seed: Annotated[int, typer.Option(help="Another seed, other examples.")] = 0,
    setting: Annotated[
        list[str] | None, typer.Option("--set", help="A setting of the task: difficulty=3, or columns=area,rooms; several times.")
    ] = None,
    data: Annotated[Path | None, typer.Option(help="Real data: a file or folder in the dataset's own format.")] = None,
    target: Annotated[str | None, typer.Option(help="Of your own table: the column to predict.")] = None,
    skip_bad: Annotated[bool, typer.Option(help="Leave out rows that cannot be read, and count them.")] = False,
    preview: Annotated[Path | None, typer.Option(help="Draw the examples of a visual task on one sheet: a .png file.")] = None,
) -> None:
    """Print examples of a task, generated or from your data, or draw a sheet of them."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    made = make_task(name, setting or [], data, target, skip_bad)
    if made.skipped:
        console.print(f"Skipped {len(made.skipped):,} rows that could not be read; the first: {made.skipped[0]}", style="yellow")
    for note in made.notes:
        console.print(Text(note), style="yellow")
    if preview is not None:
        from numerate.lab.tasks.drawing import contact_sheet

        examples = made.examples(_split(split), n or 16, seed)
        if examples[0].image is None:
            raise ValueError(f"the task {name!r} has no pictures to preview: leave out --preview, or take a visual task.")
        asked_alike = len({example.prompt for example in examples}) == 1
        pictures = [(e.image, e.answer if asked_alike else f"{e.prompt}\n{e.answer}") for e in examples if e.image is not None]
        sheet = contact_sheet([image for image, _ in pictures], [answer for _, answer in pictures])
        preview.parent.mkdir(parents=True, exist_ok=True)
        sheet.save(preview)
        console.print(Text.assemble("picture in ", (str(preview), "bold")), soft_wrap=True)
        return
    table = Table("prompt", "answer", title=f"{name}, {split}, seed {seed}", title_justify="left", show_lines=True)
    for example in made.examples(_split(split), n or 5, seed):
        picture = "" if example.image is None else f"[{example.image.width} x {example.image.height} picture] "
        table.add_row(Text(picture + example.prompt), Text(example.answer))
    console.print(table)


def make_task(name: str, settings: list[str], data: Path | None, target: str | None, skip_bad: bool) -> Task:
    """The task of these options."""
    from numerate.lab.tasks import TASKS

    chosen = parse_settings(settings, task_types(name))
    if target is not None:
        chosen["target"] = target
    return TASKS[name](**chosen) if data is None else TASKS[name].from_files(data, skip_bad=skip_bad, **chosen)


def _split(name: str) -> Split:
    return name  # type: ignore[return-value]  # the task checks it
