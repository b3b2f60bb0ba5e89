"""``numerate predict``: numbers for the rows of a table."""

from __future__ import annotations

import math
import textwrap
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from numerate.cli.app import AsJson, Quiet, command, options, print_json
from numerate.cli.settings import (
    ApiKeyVariable,
    AskedFormat,
    AskedModel,
    AskedTarget,
    Calibrate,
    Chat,
    Decide,
    Encoding,
    Interval,
    PromptTemplate,
    ServedTokenizer,
    Sheet,
    SkipBad,
    TrustRemoteCode,
    Width,
    check_without_url,
)

if TYPE_CHECKING:
    from rich.console import Console

    from numerate.lab.prediction.predict import Explained, Predicted

_data, _answer, _other = map(options, ("Data", "Answer", "Model of another server"))
_MOST_PROBLEMS, _BARS = 5, 8
_TIMEOUT, _AT_ONCE = 300, 8  # of requests to a server
_SCORES = {
    "mae": "mean absolute error",
    "rmse": "root mean squared error",
    "median_relative_error": "median relative error",
    "r2": "R²",
}


@command(
    "predict runs/my-price-soft-0 --data new.csv --explain 5",
    "predict smollm2 --data new.csv --prompt 'A flat of {area} m2 costs'",
    "predict my-price --data new.csv --url http://localhost:8000/v1",
)
def predict(
    model: AskedModel,
    data: Annotated[Path, _data("FILE", "Rows to predict: a table or chats (.csv, .tsv, .jsonl, .json, .parquet, .xlsx).")],
    out: Annotated[Path, _data("FILE", "Output file: .csv, .tsv or .jsonl.")] = Path("predictions.csv"),
    overwrite: Annotated[bool, _data(None, "Overwrite an existing output file.", "--overwrite")] = False,
    limit: Annotated[int | None, _data("N", "Predict the first N rows only.", min=1)] = None,
    skip_bad: SkipBad = False,
    encoding: Encoding = None,
    sheet: Sheet = None,
    target: AskedTarget = None,
    prompt: PromptTemplate = None,
    format: AskedFormat = None,
    decide: Decide = "median",
    interval: Interval = 0.9,
    calibrate: Calibrate = "auto",
    explain: Annotated[int, _answer("N", "Print the distributions of the first N rows.", min=0)] = 0,
    width: Width = 16,
    batch_size: Annotated[int, _answer("N", "Rows per batch.", min=1)] = 64,
    url: Annotated[
        str | None,
        _other("URL", "Ask MODEL of a server, such as http://localhost:8000/v1: numerate serve, or any with OpenAI's API."),
    ] = None,
    chat: Chat = False,
    tokenizer: ServedTokenizer = None,
    api_key_variable: ApiKeyVariable = None,
    timeout: Annotated[float, _other("SECONDS", "Time for a response.", min=0.001)] = _TIMEOUT,
    concurrency: Annotated[int, _other("N", "Requests at a time.", min=1)] = _AT_ONCE,
    trust_remote_code: TrustRemoteCode = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Predict a number and an interval for each row of a table. Rerun to continue after an interruption."""
    if url is None:
        given = {"--chat": chat, "--tokenizer": tokenizer, "--api-key-variable": api_key_variable}
        check_without_url(given | {"--timeout": timeout != _TIMEOUT, "--concurrency": concurrency != _AT_ONCE})
    elif trust_remote_code:
        raise ValueError("--trust-remote-code has no effect with --url: the server loads the model; leave it out.")
    from rich.console import Console
    from rich.text import Text

    from numerate.lab.files.progress import RunProgress
    from numerate.lab.prediction.predict import predict
    from numerate.lab.wording.text import counted

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
                format=format,
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
                url=url,
                chat=chat,
                tokenizer=tokenizer,
                api_key_variable=api_key_variable,
                timeout=timeout,
                concurrency=concurrency,
                progress=show,
                say=lambda text: console.print(Text(text), soft_wrap=True),
            )
    except KeyboardInterrupt:
        console.print(f"stopped after {done[0]:,} of {done[1]:,} rows; rerun the command to continue" if done[1] else "stopped")
        raise
    if as_json:
        names = ("path", "rows", "new_rows", "seconds", "problems", "unusual", "figures", "notes")
        print_json({name: getattr(result, name) for name in names})
    for one in result.explained:
        _show_row(console, one, decide, interval)
    if result.figures:
        _show_figures(console, result, interval)
    for note in result.notes:
        console.print(Text(note), style="yellow", soft_wrap=True)
    _show_problems(console, result)
    work = f"{counted(result.new_rows, 'row')} in {result.seconds:,.1f} s, " if result.new_rows else ""
    flagged = "" if result.unusual is None else f", {result.unusual:,} of {counted(result.rows, 'row')} flagged as unusual"
    console.print(Text.assemble(f"{work}predictions in ", (str(result.path), "bold"), flagged), soft_wrap=True)
    if result.rows == sum(result.problems.values()):
        raise ValueError("no row has a prediction; the column problem has the reasons.")


def _show_row(console: Console, one: Explained, decide: str, level: float) -> None:
    """Print the prompt, a histogram, the decision and the interval."""
    from rich.text import Text

    from numerate.distribution.exact import exact_number

    console.print(Text(f"row {one.row + 1}", style="bold"))
    for line in one.prompt.splitlines():
        console.print(Text(textwrap.fill(line, console.width - 1, initial_indent="  ", subsequent_indent="  "), style="dim"))
    texts = one.prediction.texts
    value, low, high, problem = (texts[name] for name in ("prediction", "low", "high", "problem"))
    if one.distribution is not None:
        narrow = one.distribution.to_text(_BARS, 1).splitlines()[: -1 if one.distribution.covered < 1 else None]
        room = min(console.width, 100) - max(map(len, narrow)) - 2
        lines = one.distribution.to_text(_BARS, max(min(room, 40), 4)).splitlines()
        lines[len(narrow) :] = textwrap.wrap(" ".join(lines[len(narrow) :]), console.width - 3)  # the line about missing mass
        console.print(Text(textwrap.indent("\n".join(lines), "  ")), soft_wrap=True)
        held = f"{100 * level:g} % in {low} to {high}" + (
            "" if one.truth is None else f", truth {exact_number('truth', one.truth):f}"
        )
        _show_members(console, one, level)
        console.print(Text.assemble("  prediction ", (value or "none", "bold"), f" ({decide}), {held}"), soft_wrap=True)
    if problem:
        console.print(Text(f"  {problem}", style="yellow"), soft_wrap=True)
    console.print()


def _show_members(console: Console, one: Explained, level: float) -> None:
    """Print the median and the interval of each member of a pool, and how far they disagree."""
    from rich.text import Text

    for place, member in enumerate(one.members, 1):
        held = "no number" if member is None else f"{member.median:f}"
        if member is not None:
            low, high = member.interval(level)
            held += f", {100 * level:g} % in {low:f} to {high:f}"
        console.print(Text(f"  member {place}: {held}", style="dim"), soft_wrap=True)
    if one.prediction.disagreement is not None:
        more = ", unusually far" if one.prediction.unusual else ""
        console.print(Text(f"  members disagree by {one.prediction.disagreement:.3g}{more}"), soft_wrap=True)


def _show_figures(console: Console, result: Predicted, level: float) -> None:
    from rich.table import Table

    from numerate.lab.wording.text import counted

    figures = result.figures
    known = f"{counted(int(figures['rows']), 'row')} with a known answer"
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

    from numerate.lab.wording.text import counted

    for problem, count in result.problems.most_common(_MOST_PROBLEMS):
        console.print(Text(f"{counted(count, 'row')} without a prediction: {problem}"), style="yellow", soft_wrap=True)
    if len(result.problems) > _MOST_PROBLEMS:
        rest = sum(result.problems.values()) - sum(count for _, count in result.problems.most_common(_MOST_PROBLEMS))
        console.print(Text(f"{rest:,} more rows for other reasons: see the column problem"), style="yellow", soft_wrap=True)


def _share(value: float) -> str:
    return "undefined: most known answers are 0" if math.isinf(value) else f"{100 * value:.1f} %"


def _number(value: float) -> str:
    if math.isinf(value):
        return "infinite"
    return f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}" if abs(value) < 1e12 else f"{value:.4g}"
