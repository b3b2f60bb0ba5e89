"""``numerate train`` and ``numerate eval``: one run."""

from __future__ import annotations

from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Annotated, Any

import typer

from numerate.cli.app import app
from numerate.cli.settings import SET_HELP, merged, parse_settings, run_types

if TYPE_CHECKING:
    from rich.console import Console


@app.command()
def train(
    config: Annotated[Path | None, typer.Argument(help="A YAML file of settings; flags go before it.")] = None,
    model: Annotated[str | None, typer.Option(help="tiny, tiny-3, tiny-vlm, smollm2, a folder, or a Hub id.")] = None,
    task: Annotated[str | None, typer.Option(help="A task by name.")] = None,
    loss: Annotated[str | None, typer.Option(help="ce, or a numeric loss that is added to it.")] = None,
    data: Annotated[str | None, typer.Option(help="Real data, or a table of your own: a file or folder.")] = None,
    target: Annotated[str | None, typer.Option(help="Of your own table: the column to predict.")] = None,
    skip_bad: Annotated[bool, typer.Option(help="Leave out rows of the data that cannot be read, and count them.")] = False,
    steps: Annotated[int | None, typer.Option(min=1, help="Optimizer steps.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Of weights and data.")] = None,
    setting: Annotated[list[str] | None, typer.Option("--set", help=SET_HELP)] = None,
    out: Annotated[Path | None, typer.Option(help="Where to; runs/TASK-LOSS-SEED unless given.")] = None,
    resume: Annotated[bool, typer.Option(help="Go on from the last checkpoint there, if there is one (set save_every).")] = False,
    overwrite: Annotated[bool, typer.Option(help="Start over in a folder that holds a run: its files are deleted.")] = False,
) -> None:
    """Train a model with one loss, evaluate it, and keep the weights with a model card."""
    from rich.console import Console
    from rich.text import Text

    from numerate.lab.config import RunConfig, checked, read_yaml
    from numerate.lab.environment import is_first_process
    from numerate.lab.train import claim, run

    values: dict[str, Any] = {"keep_model": True} | ({} if config is None else read_yaml(config))
    flags = {"model": model, "task": task, "loss": loss, "data": data, "steps": steps, "seed": seed}
    values |= {name: value for name, value in flags.items() if value is not None}
    values |= {"skip_bad": True} if skip_bad else {}
    if target is not None:
        values |= {"task": task or "regression", "task_settings": {**values.get("task_settings", {}), "target": target}}
    named = [text.removeprefix("task=") for text in setting or [] if text.startswith("task=")]
    tried = named[-1] if named else values.get("task", RunConfig.model_fields["task"].default)
    found = parse_settings(setting or [], run_types(tried))
    chosen = checked(RunConfig, merged(values, found), "" if config is None else str(config))
    folder = out or Path("runs") / f"{chosen.task}-{chosen.name}-{chosen.seed}".replace(" ", "-")
    console = Console(highlight=False, quiet=not is_first_process())
    if not claim(chosen, folder, resume=resume, overwrite=overwrite):
        console.print("This run is finished already.")
        _show(console, folder)
        return
    with Bars(console) as bars:
        result = run(chosen, folder, resume=resume, progress=bars)
    if result:
        _show(console, folder)
        for note in result["notes"]:
            console.print(Text(note), style="yellow")


@app.command("eval")
def evaluate_command(
    folder: Annotated[Path, typer.Argument(help="Of a run whose weights were kept (numerate train).")],
    setting: Annotated[
        list[str] | None, typer.Option("--set", help="A setting of the evaluation: eval_examples=1000, samples=8; several times.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Where to write predictions.jsonl; FOLDER/eval-HASH unless given.")] = None,
) -> None:
    """Evaluate a trained model: one JSON line for each example. Called again after an interruption, it goes on."""
    from rich.console import Console

    from numerate.lab.reevaluate import evaluate_again, plan_evaluation, trained_config

    console = Console(highlight=False)
    settings = parse_settings(setting or [], run_types(trained_config(folder).task))
    where = plan_evaluation(folder, settings, out)[1]
    with Bars(console) as bars:
        evaluate_again(folder, settings, where, progress=bars)
    _show(console, where)


class Bars:
    """Progress of training and evaluation, with the parts of the loss and the time left."""

    def __init__(self, console: Console) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (
            TextColumn("{task.description:>8}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[parts]}"),
        )
        self.bar = Progress(*columns, console=console)
        self.tasks: dict[str, Any] = {}

    def __enter__(self) -> Bars:
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def __call__(self, what: str, done: int, total: int, figures: dict[str, float]) -> None:
        """How far it is."""
        if what not in self.tasks:
            self.tasks[what] = self.bar.add_task(what, total=total, parts="")
        shown = {"loss": "loss", "loss/cross_entropy": "CE", "loss/numeric": "numeric"}
        parts = "  ".join(f"{name} {figures[key]:.3f}" for key, name in shown.items() if key in figures)
        self.bar.update(self.tasks[what], completed=done, total=total, parts=parts)


def _show(console: Console, folder: Path) -> None:
    """A table of the measures."""
    from rich.table import Table
    from rich.text import Text

    from numerate.answers.metrics import METRICS
    from numerate.lab.records import read_jsonl

    records = read_jsonl(folder / "predictions.jsonl")
    splits = list(dict.fromkeys(record["split"] for record in records))
    table = Table("measure", *splits, title=f"{len(records):,} examples", title_justify="left")
    for name in records[0]["measures"]:
        row = []
        for split in splits:
            values = [record["measures"][name] for record in records if record["split"] == split]
            known = [float("inf") if value is None else value for value in values]
            metric = METRICS.get(name)
            if metric is None or metric.summary == "mean":
                row.append(f"{mean(known):.3f}")
            else:
                row.append(f"{metric.summarize(known):.3g} (median)")
        table.add_row(name, *row)
    console.print(table)
    console.print(Text.assemble("everything in ", (str(folder), "bold")), soft_wrap=True)
