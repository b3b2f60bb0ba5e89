"""``numerate compare`` and ``numerate report``: does a numeric loss help, by how much, and at what cost?"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from numerate.cli.app import AsJson, Quiet, command, interruptible, options, print_json
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
    experiment_types,
    parse_settings,
)
from numerate.lab.comparison.budget import Budget
from numerate.lab.comparison.presets import PRESETS, merged

if TYPE_CHECKING:
    from rich.console import Console

    from numerate.lab.wording.measures import Measure

_data, _runs, _execution = map(options, ("Data", "Runs", "Execution"))


@command(
    "compare",
    "compare --data my.csv --target price --budget 5m",
    "compare --data diamonds --target price --loss smmd --loss soft",
)
def compare(
    config: Annotated[Path | None, typer.Argument(metavar="CONFIG", help="YAML file with settings; options override it.")] = None,
    data: Data = None,
    target: Target = None,
    columns: Columns = None,
    without: Without = None,
    encoding: Encoding = None,
    sheet: Sheet = None,
    skip_bad: SkipBad = False,
    task: Annotated[list[str] | None, _data("NAME", "Task, see numerate task --help; repeatable.")] = None,
    preset: Annotated[
        str | None, _runs("NAME", f"One of {', '.join(PRESETS)}. Default: demo, if there is no task and no data.")
    ] = None,
    loss: Annotated[
        list[str] | None, _runs("NAME", f"Loss to compare, including {SOFT_LOSSES}; repeatable. The baseline is always included.")
    ] = None,
    format: Annotated[
        list[str] | None,
        _runs("NAME", f"{FORMAT_HELP} Repeatable; the baseline in plain text is always included. Default: plain."),
    ] = None,
    members: Annotated[
        list[int] | None,
        _runs("N", "Models of each run that decide together: compared with one of them; repeatable. Default: 1.", min=1),
    ] = None,
    baseline: Annotated[str | None, _runs("NAME", "Loss that the others are compared with. Default: ce.")] = None,
    model: Annotated[
        list[str] | None, _runs("NAME", f"{MODELS}; repeatable. Default: smollm2 for a table on a GPU, else tiny.")
    ] = None,
    seeds: Annotated[int | None, _runs("N", "Number of seeds. Default: 3; demo: 4.", min=1)] = None,
    setting: Annotated[list[str] | None, _runs("NAME=VALUE", SET_HELP, "--set")] = None,
    tune: Annotated[
        int, _runs("N", "Tuning trials per loss on a validation split: learning rate, weight, soft width.", min=0, max=9)
    ] = 0,
    tune_seeds: Annotated[
        int, _runs("N", "Seeds per tuning trial; the trial with the best mean wins. Use more for noisy tasks.", min=1)
    ] = 1,
    budget: Annotated[
        str | None, _runs("TIME", f"{BUDGET_HELP} losses, seeds, steps and test rows, except those given as options.")
    ] = None,
    executor: Annotated[
        str | None,
        _execution(
            "NAME",
            "local, stacked (small models trained as one), or ray. Default: stacked on a GPU and for the demo, else local.",
        ),
    ] = None,
    processes: Annotated[int | None, _execution("N", "Parallel runs. Default: one per core, or one on a GPU.", min=1)] = None,
    address: Annotated[str | None, _execution("URL", "Address of the Ray cluster.")] = None,
    out: Annotated[Path | None, _execution("FOLDER", "Output folder. Default: runs/NAME.")] = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Compare losses: train with each loss and several seeds, and write a report. Rerun to continue after an interruption."""
    time = None if budget is None else Budget.of(budget)
    with interruptible("Interrupted before the first run."):
        from numerate.lab.comparison.plan import comparison_settings, planned

        named: dict[str, Any] = {"losses": loss, "formats": format, "tasks": task, "models": model, "seeds": seeds}
        named |= {"members": members, "baseline": baseline, "skip_bad": skip_bad}
        settings: dict[str, Any] = {name: value for name, value in named.items() if value}
        known = comparison_settings(config, preset, data, target, settings, gpu=lambda: False)
        settings |= parse_settings(setting or [], experiment_types(known.get("tasks", ("arithmetic",))))
        of_table = {"columns": column_names(columns), "without": column_names(without), "encoding": encoding, "sheet": sheet}
        if chosen := {name: value for name, value in of_table.items() if value is not None}:
            settings = merged(settings, {"task_settings": chosen})
        how: dict[str, Any] = {"processes": processes, "executor": executor, "address": address, "out": out, "budget": time}
        how |= {"tune": tune, "tune_seeds": tune_seeds}
        planned(config, preset, data, target, settings, gpu=lambda: False, **how)
        from numerate.lab.comparison.compare import compare  # loads torch, after the arguments are checked

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
    """Print the headline metric of each loss, in and out of range, by decision."""
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
            for row in (mine.get((loss, place)) for place in places):
                if row is None:  # of a loss with fewer members
                    cells += [""] * (1 + tested)
                    continue
                interval = f" ({shown.range(row['low'], row['high'])})" if math.isfinite(row["score"]) else ""
                cells.append(f"{shown.value(row['score'])}{interval}")
                cells += ["" if row["p"] is None else p_text(row["p"])] if tested else []
            table.add_row(Text(loss), *cells)
        console.print(table)


def _show_decisions(console: Console, rows: list[dict[str, Any]]) -> None:
    """Print the first metric by loss and decision, with the change from greedy answers and its p-value."""
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
    """Print the errors of each loss and decision on a table, next to those of a constant and of gradient boosting."""
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
    """Format the mean or median of a row; null means infinite, which JSON cannot represent."""
    value = row[row["summary"]]
    return shown.value(math.inf if value is None else value)


@command("report runs/demo", "report runs/demo --out demo.html")
def report(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder of a comparison, such as runs/demo.")],
    out: Annotated[
        Path | None, typer.Option(metavar="PATH", help="Folder or .html file to write. Default: the same folder.")
    ] = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Rewrite the report of a comparison from its records."""
    from rich.console import Console
    from rich.text import Text

    from numerate.lab.report import write_report

    console = Console(highlight=False, quiet=quiet or as_json)
    with console.status("writing the report"):
        path = write_report(folder, out)
    if as_json:
        print_json({"path": path})
    console.print(Text.assemble("report in ", (str(path), "bold")), soft_wrap=True)
