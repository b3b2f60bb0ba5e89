"""``numerate train`` and ``numerate eval``: one run."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from numerate.cli.app import AsJson, Quiet, command, interruptible, options, print_json
from numerate.cli.compare import show_levels
from numerate.cli.settings import (
    BUDGET_HELP,
    FORMAT_HELP,
    MODELS,
    SET_HELP,
    SOFT_LOSSES,
    Columns,
    Data,
    Encoding,
    Sheet,
    SkipBad,
    Target,
    Without,
    column_names,
    parse_settings,
    run_types,
)
from numerate.lab.comparison.budget import Budget
from numerate.lab.comparison.presets import merged
from numerate.lab.files.records import is_first_process

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


_RESULT = ("new", "figures", "levels", "notes")  # in JSON, besides the folders

_data, _training, _output = map(options, ("Data", "Training", "Output"))


@command("train --data my.csv --target price --loss soft", "train --task arithmetic --loss smmd --model smollm2 --steps 200")
def train(
    config: Annotated[Path | None, typer.Argument(metavar="CONFIG", help="YAML file with settings; options override it.")] = None,
    data: Data = None,
    target: Target = None,
    columns: Columns = None,
    without: Without = None,
    encoding: Encoding = None,
    sheet: Sheet = None,
    skip_bad: SkipBad = False,
    task: Annotated[
        str | None, _data("NAME", "Task, see numerate task --help. Default: inferred from the data; without data, arithmetic.")
    ] = None,
    model: Annotated[str | None, _training("NAME", f"{MODELS}. Default: tiny.")] = None,
    format: Annotated[str | None, _training("NAME", f"{FORMAT_HELP} Default: plain.")] = None,
    loss: Annotated[
        str | None,
        _training(
            "NAME", f"ce, a numeric loss added to cross-entropy (smmd, ntil, emd and others), or {SOFT_LOSSES}. Default: ce."
        ),
    ] = None,
    steps: Annotated[int | None, _training("N", "Optimizer steps. Default: 600.", min=1)] = None,
    seed: Annotated[int | None, _training("N", "Seed of weights and data. Default: 0.", min=0)] = None,
    members: Annotated[
        int | None, _training("N", "Models trained on the same rows, whose distributions are pooled. Default: 1.", min=1)
    ] = None,
    setting: Annotated[list[str] | None, _training("NAME=VALUE", SET_HELP, "--set")] = None,
    budget: Annotated[str | None, _training("TIME", f"{BUDGET_HELP} the steps.")] = None,
    out: Annotated[
        Path | None,
        _output("FOLDER", "Output folder. Default: runs/TABLE-TARGET-LOSS-SEED, or runs/TASK-LOSS-SEED without data."),
    ] = None,
    resume: Annotated[bool, _output(None, "Continue an interrupted run in the output folder.", "--resume")] = False,
    overwrite: Annotated[bool, _output(None, "Delete a run in the output folder and start over.", "--overwrite")] = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Train a model with one loss, evaluate it, and save the weights with a model card."""
    time = None if budget is None else Budget.of(budget)
    with interruptible("Interrupted before training started.", "--resume", without="--overwrite"):
        from rich.console import Console
        from rich.text import Text

        from numerate.lab.data import TASKS
        from numerate.lab.files.progress import RunProgress
        from numerate.lab.models.questions import ASKED
        from numerate.lab.prediction.answering import ONE_NUMBER
        from numerate.lab.prediction.train import run_settings, train

        flags = {"model": model, "task": task, "loss": loss, "data": data, "steps": steps, "seed": seed, "format": format}
        flags["members"] = members
        settings: dict[str, Any] = {name: value for name, value in flags.items() if value is not None}
        settings |= {"skip_bad": True} if skip_bad else {}
        read = {name: value for name, value in (("encoding", encoding), ("sheet", sheet)) if value is not None}
        settings |= {"task_settings": read} if read else {}
        shown, hidden = column_names(columns), column_names(without)
        tasks = [run_settings(config, target, shown, hidden, settings).get("task", "arithmetic")]
        tasks += [text[5:] for text in setting or [] if text.startswith("task=")]
        settings = merged(settings, parse_settings(setting or [], run_types(tasks[-1])))
        console = Console(highlight=False, quiet=quiet or as_json or not is_first_process())
        with RunProgress(console) as bars:
            named = {"target": target, "columns": shown, "without": hidden, "out": out, "resume": resume, "overwrite": overwrite}
            result = train(config, budget=time, progress=bars, say=bars.write, **{**named, **settings})
    if not result.figures:
        return
    if as_json:
        print_json({"folder": result.folder, "model": result.model} | {name: getattr(result, name) for name in _RESULT})
        return
    if not result.new:
        console.print("This run is already finished.")
    _show(console, result.folder, result.levels)
    if (result.model / ASKED).is_file() and TASKS[tasks[-1]].extractor in ONE_NUMBER:
        how = shlex.join(["numerate", "predict", str(result.folder), "--data", "new.csv"])
        console.print(Text(f"predict new rows with: {how}"), soft_wrap=True)
    for note in result.notes if result.new else ():
        console.print(Text(note), style="yellow")


@command("eval runs/my-price-soft-0", "eval runs/my-price-soft-0 --set decide=median,mean", name="eval")
def evaluate_command(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder of a run of numerate train.")],
    setting: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="Setting of the evaluation, such as eval_examples=1000 or decide=median,mean; repeatable.",
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Output folder. Default: FOLDER/eval-HASH.")] = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Evaluate a trained model and write one JSON line per example. Rerun to continue after an interruption."""
    from rich.console import Console

    from numerate.lab.files.progress import RunProgress
    from numerate.lab.training.kept_runs import evaluate, plan_evaluation, trained_config

    console = Console(highlight=False, quiet=quiet or as_json)
    settings = parse_settings(setting or [], run_types(trained_config(folder).task))
    where = plan_evaluation(folder, settings, out)[1]
    with interruptible("Interrupted."), RunProgress(console) as bars:
        records = evaluate(folder, settings, where, progress=bars)
    if as_json:
        from numerate.lab.evaluation.evaluate import summarize

        print_json({"folder": where, "figures": summarize(records)})
    elif not quiet:
        _show(console, where)


def _show(console: Console, folder: Path, levels: Sequence[Mapping[str, Any]] = ()) -> None:
    """Print a table of the metrics; with decisions, one per split, and how much of the error is due to the decision.

    For a table of numbers, print ``levels`` instead: each decision next to a constant and gradient boosting.
    """
    from rich.table import Table
    from rich.text import Text

    from numerate.answers.metrics import METRICS
    from numerate.lab.evaluation.evaluate import summarize
    from numerate.lab.evaluation.missing import figure_text, gold_answers
    from numerate.lab.files.records import read_jsonl
    from numerate.lab.training.model_card import SPLITS

    if levels:
        show_levels(console, levels)
        console.print(Text.assemble("results in ", (str(folder), "bold")), soft_wrap=True)
        return
    records = read_jsonl(folder / "predictions.jsonl")
    figures = summarize(records)
    golds = {split: gold_answers(records, split) for split in figures}
    if records[0].get("decisions"):
        for split in figures:
            mine = [record for record in records if record["split"] == split]
            _show_decisions(console, SPLITS.get(split, split), golds[split], mine)
        console.print(Text.assemble("results in ", (str(folder), "bold")), soft_wrap=True)
        return
    heads = [SPLITS.get(split, split) for split in figures]
    table = Table("metric", *heads, title=f"{len(records):,} examples", title_justify="left")
    for name in records[0]["measures"]:
        median = name in METRICS and METRICS[name].summary == "median"
        cells = [figure_text(name, figures[split][name], golds[split], ".3g" if median else ".3f") for split in figures]
        table.add_row(f"{name} (median)" if median else name, *cells)
    console.print(table)
    _explain(console, table)
    console.print(Text.assemble("results in ", (str(folder), "bold")), soft_wrap=True)


def _explain(console: Console, table: Table) -> None:
    """Print why values of a table are missing, if any are."""
    from numerate.lab.evaluation.missing import WHY_INFINITE

    found = {cell for column in table.columns for cell in column.cells}
    for text in (text for text in WHY_INFINITE if text in found):
        console.print(f"{text}: {WHY_INFINITE[text]}")


def _show_decisions(console: Console, name: str, golds: Sequence[str], records: Sequence[Mapping[str, Any]]) -> None:
    """Print metrics by decision for one split, with a summary in sentences."""
    from rich.table import Table
    from rich.text import Text

    from numerate.lab.evaluation.error_sources import read_decisions
    from numerate.lab.evaluation.missing import figure_text
    from numerate.lab.wording.decisions import evaluation_sentences, summary_rows

    part = read_decisions(records)
    assert part is not None  # the caller checks
    table = Table("metric", *part.measures, title=f"{name}: {len(records):,} examples", title_justify="left")
    for column in table.columns[1:]:
        column.justify = "right"
    for measure, summary, values in summary_rows(part):
        error = summary != "mean" or measure.endswith("_error")
        shown = [figure_text(measure, value, golds, ".4g" if error else ".3f") for value in values]
        table.add_row(f"{measure} ({summary})" if error else measure, *shown)
    console.print(table)
    _explain(console, table)
    for text in evaluation_sentences(part):
        console.print(Text(text))
    console.print()
