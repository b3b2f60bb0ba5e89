"""``numerate task``: show examples of a task."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from numerate.cli.app import AsJson, command, options, print_json
from numerate.cli.settings import Columns, Encoding, Sheet, SkipBad, Target, Without, column_names, parse_settings, task_types

if TYPE_CHECKING:
    from numerate.lab.data import Task
    from numerate.lab.data.base import Split


TASK_NAMES = "arithmetic, word_problems, clock, charts, grounding, scene_text, math_vision, regression, number_skills, times"
"""The keys of ``TASKS``, repeated here because that module is slow to import."""

_task, _data = map(options, ("Task", "Data"))


@command("task clock -n 16 --preview clocks.png", "task regression --data my.csv --target price -n 3")
def task(
    name: Annotated[str, typer.Argument(metavar="NAME", help=f"One of {TASK_NAMES}.")],
    n: Annotated[int | None, _task("N", "Number of examples. Default: 5, or 16 with --preview.", "-n", min=1)] = None,
    split: Annotated[str, _task("NAME", "train, interpolate or extrapolate.")] = "train",
    seed: Annotated[int, _task("N", "Seed of the examples.")] = 0,
    setting: Annotated[
        list[str] | None,
        _task("NAME=VALUE", "Setting of the task, such as difficulty=3 or columns=area,rooms; repeatable.", "--set"),
    ] = None,
    preview: Annotated[Path | None, _task("FILE", "Save the examples of a visual task as one .png image.")] = None,
    data: Annotated[Path | None, _data("PATH", "File or folder in the dataset's format. Default: generated.")] = None,
    target: Target = None,
    columns: Columns = None,
    without: Without = None,
    encoding: Encoding = None,
    sheet: Sheet = None,
    skip_bad: SkipBad = False,
    as_json: AsJson = False,
) -> None:
    """Print examples of a task, generated or from your data."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from numerate.lab.wording.text import counted

    console = Console(highlight=False, quiet=as_json)
    named = {"target": target, "columns": column_names(columns), "without": column_names(without)}
    named |= {"encoding": encoding, "sheet": sheet}
    selected = make_task(name, setting or [], data, skip_bad, {name: value for name, value in named.items() if value is not None})
    if selected.skipped:
        first = f"Skipped {counted(len(selected.skipped), 'row')} that could not be read; the first: {selected.skipped[0]}"
        console.print(Text(first), style="yellow")
    for note in selected.notes:
        console.print(Text(note), style="yellow")
    if hidden := getattr(selected, "left_out", {}):
        console.print(Text(f"Not shown: {', '.join(f'{name} ({reason})' for name, reason in hidden.items())}."), soft_wrap=True)
    chosen: Split = split  # type: ignore[assignment]  # the task checks it
    default = 5 if preview is None else 16
    examples = selected.examples(chosen, n or min(default, selected.count(chosen) or default), seed)
    if as_json:
        asked = [{"prompt": example.prompt, "answer": example.answer} for example in examples]
        notes = [f"{len(selected.skipped):,} rows were skipped"] if selected.skipped else []
        print_json({"task": name, "split": split, "seed": seed, "examples": asked, "notes": [*notes, *selected.notes]})
    if preview is not None:
        from numerate.lab.data.drawing import contact_sheet

        if examples[0].image is None:
            raise ValueError(f"the task {name!r} has no images: omit --preview, or choose a visual task.")
        same_prompt = len({example.prompt for example in examples}) == 1
        pairs = [(e.image, e.answer if same_prompt else f"{e.prompt}\n{e.answer}") for e in examples if e.image is not None]
        picture = contact_sheet([image for image, _ in pairs], [label for _, label in pairs])
        preview.parent.mkdir(parents=True, exist_ok=True)
        picture.save(preview)
        console.print(Text.assemble("Saved ", (str(preview), "bold")), soft_wrap=True)
        return
    table = Table("prompt", "answer", title=f"{name}, {split}, seed {seed}", title_justify="left", show_lines=True)
    for example in examples:
        size = "" if example.image is None else f"[{example.image.width} x {example.image.height} image] "
        table.add_row(Text(size + example.prompt), Text(example.answer))
    console.print(table)


def make_task(name: str, settings: list[str], data: Path | None, skip_bad: bool, named: Mapping[str, Any]) -> Task:
    """Create the task from options; ``named`` are the settings with an option of their own."""
    from numerate.lab.data import TASKS

    chosen = {**parse_settings(settings, task_types(name)), **named}
    TASKS[name].check_source(chosen, data)
    if skip_bad and data is None:
        raise ValueError("--skip-bad has no effect on generated examples: pass your file as --data, or omit --skip-bad.")
    return TASKS[name](**chosen) if data is None else TASKS[name].from_files(data, skip_bad=skip_bad, **chosen)
