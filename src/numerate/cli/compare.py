"""``numerate compare`` and ``numerate report``: does a numeric loss help, by how much, at what cost, and is that noise?"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from numerate.cli.app import AsJson, Quiet, app, interruptible, print_json
from numerate.cli.settings import (
    COLUMNS_HELP,
    ENCODING_HELP,
    SET_HELP,
    SHEET_HELP,
    WITHOUT_HELP,
    column_names,
    experiment_types,
    parse_settings,
)
from numerate.lab.comparison.budget import Budget
from numerate.lab.comparison.presets import PRESETS, merged

if TYPE_CHECKING:
    from rich.console import Console

    from numerate.lab.wording.measures import Measure


@app.command()
def compare(
    config: Annotated[Path | None, typer.Argument(help="YAML file with settings of the comparison; options override it.")] = None,
    preset: Annotated[
        str | None, typer.Option(help=f"One of {', '.join(PRESETS)}. Default: demo, without a task or data.")
    ] = None,
    loss: Annotated[
        list[str] | None,
        typer.Option(
            help="Loss to compare, soft labels (soft, soft_fixed, soft_jitter) among them; repeat for several. The baseline is "
            "always included."
        ),
    ] = None,
    baseline: Annotated[str | None, typer.Option(help="Loss that the others are compared with. Default: ce.")] = None,
    task: Annotated[list[str] | None, typer.Option(help="Task; repeat for several.")] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(help="tiny, tiny-3, tiny-vlm, small, smollm2, a folder, a GGUF file, or a Hub id; repeat for several."),
    ] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Number of seeds. Default: 3; the demo has 6.")] = None,
    data: Annotated[
        str | None, typer.Option(help="File or folder with real data, such as a table; diamonds is a packaged one.")
    ] = None,
    target: Annotated[str | None, typer.Option(help="Column of the table to predict.")] = None,
    columns: Annotated[str | None, typer.Option(help=COLUMNS_HELP)] = None,
    without: Annotated[str | None, typer.Option(help=WITHOUT_HELP)] = None,
    encoding: Annotated[str | None, typer.Option(help=ENCODING_HELP)] = None,
    sheet: Annotated[str | None, typer.Option(help=SHEET_HELP)] = None,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Skip rows of the data that cannot be read.")] = False,
    setting: Annotated[list[str] | None, typer.Option("--set", help=f"For every run: {SET_HELP}")] = None,
    out: Annotated[Path | None, typer.Option(help="Output folder. Default: runs/NAME.")] = None,
    processes: Annotated[int | None, typer.Option(min=1, help="Runs at a time. Default: one per core, or one on a GPU.")] = None,
    executor: Annotated[
        str | None,
        typer.Option(
            help="local, stacked (runs of small models trained as one), or ray. Default: stacked on a GPU and for the "
            "demo, else local."
        ),
    ] = None,
    address: Annotated[str | None, typer.Option(help="Address of the Ray cluster.")] = None,
    tune: Annotated[
        int, typer.Option(min=0, max=9, help="Tuning trials per loss, on a validation split: learning rate, weight, soft width.")
    ] = 0,
    tune_seeds: Annotated[
        int, typer.Option(min=1, help="Seeds of each tuning trial; the best has the best mean. More where runs differ much.")
    ] = 1,
    budget: Annotated[
        str | None,
        typer.Option(
            help="Time for all of it, such as 300, 90s, 5m or 1h: chooses losses, seeds, steps and test rows that fit, except "
            "for those given as options."
        ),
    ] = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Train with each loss and seed, evaluate on the same examples, write a report. Call again to continue."""
    time = None if budget is None else Budget.of(budget)
    with interruptible("Interrupted before the first run."):
        from numerate.lab.comparison.plan import comparison_settings, planned

        named = {"losses": loss, "tasks": task, "models": model, "seeds": seeds, "baseline": baseline, "skip_bad": skip_bad}
        settings: dict[str, Any] = {name: value for name, value in named.items() if value}
        known = comparison_settings(config, preset, data, target, settings, gpu=lambda: False)
        settings |= parse_settings(setting or [], experiment_types(known.get("tasks", ("arithmetic",))))
        of_table = {"columns": column_names(columns), "without": column_names(without), "encoding": encoding, "sheet": sheet}
        if chosen := {name: value for name, value in of_table.items() if value is not None}:
            settings = merged(settings, {"task_settings": chosen})
        how: dict[str, Any] = {"processes": processes, "executor": executor, "address": address, "out": out, "budget": time}
        how |= {"tune": tune, "tune_seeds": tune_seeds}
        planned(config, preset, data, target, settings, gpu=lambda: False, **how)
        from numerate.lab.comparison.compare import compare  # loads torch, after what could be wrong with the call

        show = not (quiet or as_json)
        result = compare(config, preset=preset, data=data, target=target, progress=show, **how, **settings)
    if as_json:
        print_json({name: getattr(result, name) for name in ("path", "answer", "table", "notes")})
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, quiet=quiet)
    _show(console, result.table)
    _show_decisions(console, result.data["decisions"])
    show_levels(console, result.data["levels"], result.data["level_notes"])
    console.print(Text(result.answer))
    for note in result.notes:
        console.print(Text(note), style="yellow")
    console.print(Text.assemble("report in ", (str(result.path), "bold")), soft_wrap=True)


def _show(console: Console, rows: list[dict[str, Any]]) -> None:
    """Print the headline measure of each loss, in and out of range, by decision."""
    from rich.table import Table
    from rich.text import Text

    from numerate.lab.stats import LEAST_SEEDS
    from numerate.lab.wording.decisions import decision_title
    from numerate.lab.wording.measures import measure
    from numerate.lab.wording.text import SPLIT_NAMES, counted, p_text

    for setup in dict.fromkeys(row["setup"] for row in rows):
        mine = {(row["loss"], (row["split"], row["decision"])): row for row in rows if row["setup"] == setup}
        first = next(iter(mine.values()))
        shown = measure(first["measure"])
        places = list(dict.fromkeys(place for _, place in mine))
        decided = len({decision for _, decision in places}) > 1
        names = [SPLIT_NAMES.get(split, split) + (f", {decision_title(rule)}" if decided else "") for split, rule in places]
        tested = first["seeds"] >= LEAST_SEEDS
        columns = [title for name in names for title in ((name, "p") if tested else (name,))]
        seeds = counted(first["seeds"], "seed")
        table = Table("loss", *columns, title=f"{setup}: {shown.title}, {seeds}", title_justify="left")
        for loss in dict.fromkeys(loss for loss, _ in mine):
            cells: list[str] = []
            for row in (mine[loss, place] for place in places):
                interval = f" ({shown.range(row['low'], row['high'])})" if math.isfinite(row["score"]) else ""
                cells.append(f"{shown.value(row['score'])}{interval}")
                cells += ["" if row["p"] is None else p_text(row["p"])] if tested else []
            table.add_row(Text(loss), *cells)
        console.print(table)


def _show_decisions(console: Console, rows: list[dict[str, Any]]) -> None:
    """Print the first measure of decisions by loss and decision, with the change from greedy answers and its p-value."""
    from rich.table import Table
    from rich.text import Text

    from numerate.lab.stats import LEAST_SEEDS
    from numerate.lab.wording.decisions import change_text
    from numerate.lab.wording.measures import mean_measure, measure
    from numerate.lab.wording.text import SPLIT_NAMES, p_text

    for setup, split in dict.fromkeys((row["setup"], row["split"]) for row in rows):
        mine = [row for row in rows if (row["setup"], row["split"]) == (setup, split)]
        shown = (measure if mine[0]["summary"] == "median" else mean_measure)(mine[0]["measure"])
        cells = {(row["label"], row["decision"]): row for row in mine if row["measure"] == shown.name}
        names = list(dict.fromkeys(decision for _, decision in cells))
        columns = [*names, f"in {100 * mine[0]['level']:g} % interval", "greedy, decided"]
        tested = mine[0]["seeds"] >= LEAST_SEEDS
        heading = f"{setup}, {SPLIT_NAMES.get(split, split)}: {shown.summary} by decision, change from greedy{' and p' * tested}"
        table = Table("loss", *columns, title=heading, title_justify="left")
        for loss in dict.fromkeys(loss for loss, _ in cells):
            texts: list[str] = []
            for row in (cells.get((loss, name)) for name in names):
                change = "" if row is None else change_text(shown, row["change"], row["difference"])
                p = "" if row is None or row["p_holm"] is None or not tested else f", {p_text(row['p_holm'])}"
                texts.append("" if row is None else _summary(shown, row) + (f" ({change}{p})" if change else ""))
            own = [cells[loss, name] for name in names if (loss, name) in cells]
            first, last = own[0], own[-1]
            shares = [first[name] for name in ("coverage", "calibrated_coverage") if first[name] is not None]
            texts.append(", conformal ".join(f"{100 * share:.1f} %" for share in shares))
            texts.append(f"{1000 * first['seconds']:.3g} ms, {1000 * last['seconds']:.3g} ms")
            table.add_row(Text(loss), *texts)
        console.print(table)


def show_levels(console: Console, rows: Sequence[Mapping[str, Any]], notes: Sequence[str] = ()) -> None:
    """Print the errors of each loss and decision on a table, beside those of a constant and of gradient boosting."""
    from rich.table import Table
    from rich.text import Text

    from numerate.lab.wording.text import SPLIT_NAMES

    for setup, split in dict.fromkeys((row["setup"], row["split"]) for row in rows):
        mine = [row for row in rows if (row["setup"], row["split"]) == (setup, split)]
        heading = f"{setup}, {SPLIT_NAMES.get(split, split)}: {'typical run' if mine[0]['seeds'] > 1 else 'one run'}"
        table = Table("loss", "decision", *mine[0]["shown"], title=heading, title_justify="left")
        models = sum(row["decision"] is not None for row in mine)
        for place, row in enumerate(mine, 1):
            table.add_row(Text(row["name"]), row["decision"] or "", *row["shown"].values(), end_section=place == models)
        console.print(table)
        for note in dict.fromkeys(row["note"] for row in mine if row["note"]):
            rows_of = ", ".join(f"{row['name']} ({row['decision']})" for row in mine if row["note"] == note)
            console.print(Text(f"{rows_of}: {note}"))
    for note in notes:
        console.print(Text(note), style="yellow")


def _summary(shown: Measure, row: dict[str, Any]) -> str:
    """Format the mean or median of a row; null is infinite, for which JSON has no number."""
    value = row[row["summary"]]
    return shown.value(math.inf if value is None else value)


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(help="Folder of a comparison, such as runs/demo.")],
    out: Annotated[Path | None, typer.Option(help="Folder or .html file to write. Default: the same folder.")] = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Write the report of a comparison again, from its records."""
    from rich.console import Console
    from rich.text import Text

    from numerate.lab.report import write_report

    console = Console(highlight=False, quiet=quiet or as_json)
    with console.status("writing the report"):
        path = write_report(folder, out)
    if as_json:
        print_json({"path": path})
    console.print(Text.assemble("report in ", (str(path), "bold")), soft_wrap=True)
