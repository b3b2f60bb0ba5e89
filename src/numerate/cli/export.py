"""``numerate export soft``: rows with soft labels for another framework."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from numerate.checks import check_choice
from numerate.cli.app import AsJson, Quiet, command, options, print_json
from numerate.cli.settings import (
    FORMAT_HELP,
    MODELS,
    SOFT_LOSSES,
    Columns,
    Encoding,
    Sheet,
    SkipBad,
    Target,
    TrustRemoteCode,
    Without,
    column_names,
    parse_settings,
    run_types,
)
from numerate.lab.comparison.presets import merged
from numerate.lab.export.frameworks import check_framework

_SET_HELP = "Setting of the data or of the soft labels, such as average=mean or soft.relative=0.05; repeatable."
_data, _rows, _output = map(options, ("Data", "Rows", "Output"))


@command(
    "export soft my.csv --target price --model smollm2 --for axolotl",
    "export soft chats.jsonl --model smollm2 --for tinker --epochs 3",
)
def export(
    what: Annotated[str, typer.Argument(metavar="soft", help="The word soft: what is exported, training rows with soft labels.")],
    data: Annotated[str, typer.Argument(metavar="DATA", help="Table, chats or folder, as --data of numerate train.")],
    framework: Annotated[str, _rows("NAME", "Framework that reads the file: axolotl, distillkit, tinker or generic.", "--for")],
    model: Annotated[str, _rows("NAME", f"Model whose tokenizer is used: {MODELS}.")],
    target: Target = None,
    columns: Columns = None,
    without: Without = None,
    encoding: Encoding = None,
    sheet: Sheet = None,
    skip_bad: SkipBad = False,
    task: Annotated[str | None, _data("NAME", "Task, see numerate task --help. Default: inferred from the data.")] = None,
    loss: Annotated[str, _rows("NAME", f"{SOFT_LOSSES[0].upper()}{SOFT_LOSSES[1:]}.")] = "soft",
    format: Annotated[str | None, _rows("NAME", f"{FORMAT_HELP} Default: plain.")] = None,
    epochs: Annotated[int, _rows("N", "How often each row is drawn; every epoch draws anew.", min=1)] = 1,
    seed: Annotated[int, _rows("N", "Seed of the draws.", min=0)] = 0,
    setting: Annotated[list[str] | None, _rows("NAME=VALUE", _SET_HELP, "--set")] = None,
    trust_remote_code: TrustRemoteCode = False,
    out: Annotated[Path, _output("FILE", "Output file, .jsonl.")] = Path("soft.jsonl"),
    overwrite: Annotated[bool, _output(None, "Overwrite an existing output file.", "--overwrite")] = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Write training rows with soft labels for frameworks that train on distributions over tokens from a file."""
    from rich.console import Console
    from rich.text import Text

    from numerate.lab.export.soft_rows import export_soft
    from numerate.lab.files.progress import RunProgress
    from numerate.lab.prediction.train import run_settings
    from numerate.lab.wording.text import counted

    check_choice("what", what, ("soft",))
    check_framework(framework)
    flags = {"task": task, "loss": loss, "format": format, "seed": seed}
    settings: dict[str, Any] = {name: value for name, value in flags.items() if value is not None}
    settings |= {name: True for name, on in (("skip_bad", skip_bad), ("trust_remote_code", trust_remote_code)) if on}
    read = {name: value for name, value in (("encoding", encoding), ("sheet", sheet)) if value is not None}
    settings |= {"task_settings": read} if read else {}
    shown, hidden = column_names(columns), column_names(without)
    kind = run_settings(None, target, shown, hidden, settings | {"data": data}).get("task", "arithmetic")
    settings = merged(settings, parse_settings(setting or [], run_types(kind)))
    console = Console(highlight=False, quiet=quiet or as_json)
    with RunProgress(console) as bars:
        named: dict[str, Any] = {"target": target, "columns": shown, "without": hidden, "overwrite": overwrite}
        result = export_soft(data, framework, model=model, out=out, epochs=epochs, progress=bars, **{**named, **settings})
    if as_json:
        names = ("path", "rows", "top_k", "length", "seed", "too_long", "notes")
        print_json({name: getattr(result, name) for name in names})
        return
    for note in result.notes:
        console.print(Text(note), style="yellow", soft_wrap=True)
    if result.too_long:
        console.print(Text(f"{counted(result.too_long, 'row')} left out: longer than max_length tokens"), style="yellow")
    figures = f"{counted(epochs, 'epoch')}, up to {counted(result.top_k, 'token')} per target, seed {result.seed}"
    console.print(Text.assemble(f"{counted(result.rows, 'row')} in ", (str(result.path), "bold"), f": {figures}"), soft_wrap=True)
