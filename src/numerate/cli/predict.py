"""``numerate predict``: numbers for the rows of a table."""

from __future__ import annotations

import math
import textwrap
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from numerate.cli.app import AsJson, Quiet, app, print_json
from numerate.cli.settings import ENCODING_HELP, SHEET_HELP

if TYPE_CHECKING:
    from rich.console import Console

    from numerate.lab.prediction.predict import Explained, Predicted

_MOST_PROBLEMS, _BARS = 5, 8
_SCORES = {
    "mae": "mean absolute error",
    "rmse": "root mean squared error",
    "median_relative_error": "median relative error",
    "r2": "R²",
}


@app.command()
def predict(
    model: Annotated[
        str, typer.Argument(help="Folder of a run of numerate train; or smollm2, another model's folder, a Hub id.")
    ],
    data: Annotated[Path, typer.Option(help="Rows to predict: .csv, .tsv, .jsonl, .json, .parquet or .xlsx; a table or chats.")],
    out: Annotated[Path, typer.Option(help="File to write: .csv, .tsv or .jsonl.")] = Path("predictions.csv"),
    target: Annotated[str | None, typer.Option(help="What to ask for, if MODEL is not a run: a column's name.")] = None,
    prompt: Annotated[
        str | None, typer.Option(help="The question, if MODEL is not a run: 'A flat of {area} m2 costs', with columns in braces.")
    ] = None,
    decide: Annotated[
        str, typer.Option(help="median, mean, mode, relative, within:2, within:5%, or greedy; see docs/predict.md.")
    ] = "median",
    interval: Annotated[float, typer.Option(min=0, max=1, help="Level of the interval from low to high.")] = 0.9,
    calibrate: Annotated[
        str,
        typer.Option(
            help="Rows that make intervals hold their level: a file with known answers, held-out for the run's test rows, none, "
            "or auto: held-out if they are at hand."
        ),
    ] = "auto",
    explain: Annotated[int, typer.Option(min=0, help="Show the distributions of this many rows, from the first.")] = 0,
    limit: Annotated[int | None, typer.Option(min=1, help="Predict only this many rows, from the first.")] = None,
    width: Annotated[int, typer.Option(min=1, help="Beam width: prefixes kept per step; more are slower.")] = 16,
    batch_size: Annotated[int, typer.Option(min=1, help="Rows at a time.")] = 64,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Leave out rows of the data that cannot be read.")] = False,
    encoding: Annotated[str | None, typer.Option(help=ENCODING_HELP)] = None,
    sheet: Annotated[str | None, typer.Option(help=SHEET_HELP)] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the output file if it is there.")] = False,
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Run Python code that comes with the model.")
    ] = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Predict a number for each row of a table, with an interval. Call again to continue after an interruption."""
    from rich.console import Console
    from rich.text import Text

    from numerate.lab.files.progress import RunProgress
    from numerate.lab.prediction.predict import predict

    console = Console(highlight=False, quiet=quiet or as_json)
    bars, done = RunProgress(console), [0, 0]
    try:
        with ExitStack() as shown:

            def show(stage: str, rows: int, total: int, figures: dict[str, float]) -> None:
                if not bars.stages:
                    shown.enter_context(bars)
                bars(stage, rows, total, figures)
                done[:] = (rows, total) if stage == "predict" else done

            result = predict(
                model,
                data,
                out,
                target=target,
                prompt=prompt,
                decide=decide,
                interval=interval,
                calibrate=calibrate,
                width=width,
                batch_size=batch_size,
                limit=limit,
                explain=explain,
                skip_bad=skip_bad,
                encoding=encoding,
                sheet=sheet,
                overwrite=overwrite,
                trust_remote_code=trust_remote_code,
                progress=show,
                say=lambda text: console.print(Text(text), soft_wrap=True),
            )
    except KeyboardInterrupt:
        console.print(f"stopped: {done[0]:,} of {done[1]:,} rows are done; the same command continues" if done[1] else "stopped")
        raise
    if as_json:
        print_json(
            {name: getattr(result, name) for name in ("path", "rows", "new_rows", "seconds", "problems", "figures", "notes")}
        )
    for one in result.explained:
        _show_row(console, one, decide, interval)
    if result.figures:
        _show_figures(console, result, interval)
    for note in result.notes:
        console.print(Text(note), style="yellow", soft_wrap=True)
    _show_problems(console, result)
    work = f"{result.new_rows:,} rows in {result.seconds:,.1f} s, " if result.new_rows else ""
    console.print(Text.assemble(f"{work}predictions in ", (str(result.path), "bold")), soft_wrap=True)
    if result.rows == sum(result.problems.values()):
        raise ValueError("no row has a prediction; the column problem tells why.")


def _show_row(console: Console, one: Explained, decide: str, level: float) -> None:
    """Print the question, bars of the distribution, the decision and the interval."""
    from rich.text import Text

    from numerate.distribution.exact import exact_number

    console.print(Text(f"row {one.row + 1}", style="bold"))
    for line in one.prompt.splitlines():
        console.print(Text(textwrap.fill(line, console.width - 1, initial_indent="  ", subsequent_indent="  "), style="dim"))
    value, low, high, _, _, problem = one.prediction.texts
    if one.distribution is not None:
        narrow = one.distribution.to_text(_BARS, 1).splitlines()[: -1 if one.distribution.covered < 1 else None]
        room = min(console.width, 100) - max(map(len, narrow)) - 2
        lines = one.distribution.to_text(_BARS, max(min(room, 40), 4)).splitlines()
        lines[len(narrow) :] = textwrap.wrap(" ".join(lines[len(narrow) :]), console.width - 3)  # where the mass is
        console.print(Text(textwrap.indent("\n".join(lines), "  ")), soft_wrap=True)
        held = f"{100 * level:g} % in {low} to {high}" + (
            "" if one.truth is None else f", truth {exact_number('truth', one.truth):f}"
        )
        console.print(Text.assemble("  prediction ", (value or "none", "bold"), f" ({decide}), {held}"), soft_wrap=True)
    if problem:
        console.print(Text(f"  {problem}", style="yellow"), soft_wrap=True)
    console.print()


def _show_figures(console: Console, result: Predicted, level: float) -> None:
    from rich.table import Table

    figures = result.figures
    known = f"{figures['rows']:,} rows with a known answer"
    table = Table(title=known, title_justify="left", show_header=False)
    for name, title in _SCORES.items():
        if name in figures:
            table.add_row(title, _share(figures[name]) if name == "median_relative_error" else _number(figures[name]))
    table.add_row(f"truth within the {100 * level:g} % interval", f"{100 * figures['coverage']:.1f} %")
    if figures["missing"]:
        table.add_row("without a prediction, not in the errors", f"{figures['missing']:,}")
    console.print(table)


def _show_problems(console: Console, result: Predicted) -> None:
    from rich.text import Text

    for problem, count in result.problems.most_common(_MOST_PROBLEMS):
        console.print(Text(f"{count:,} rows without a prediction: {problem}"), style="yellow", soft_wrap=True)
    if len(result.problems) > _MOST_PROBLEMS:
        rest = sum(result.problems.values()) - sum(count for _, count in result.problems.most_common(_MOST_PROBLEMS))
        console.print(Text(f"{rest:,} more for other reasons: see the column problem"), style="yellow", soft_wrap=True)


def _share(value: float) -> str:
    return "none, as most known answers are 0" if math.isinf(value) else f"{100 * value:.1f} %"


def _number(value: float) -> str:
    if math.isinf(value):
        return "too large to tell"
    return f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}" if abs(value) < 1e12 else f"{value:.4g}"
