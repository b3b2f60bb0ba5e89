"""``numerate inspect``: how a tokenizer splits numbers, plain and in each format, and which losses suit it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from numerate.checks import check_choice
from numerate.choices import FORMATS, loss_names
from numerate.cli.app import AsJson, command, print_json
from numerate.cli.settings import TrustRemoteCode
from numerate.tokenizers import PACKAGED, load_tokenizer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from numerate.inspection import Inspection, Reading

_COLOURS = {"good": "green", "fair": "yellow", "poor": "red"}
_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@command("inspect smollm2", 'inspect my-model --text "x = -0.5" --plot loss.png')
def inspect(
    tokenizer: Annotated[
        str,
        typer.Argument(
            metavar="TOKENIZER", help=f"Folder; tokenizer.json, GGUF or SentencePiece file; {', '.join(PACKAGED)}; or Hub id."
        ),
    ],
    text: Annotated[list[str] | None, typer.Option(metavar="TEXT", help="Text to split and read; repeatable.")] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Plot a loss on this tokenizer's numbers to a .png, .svg or .pdf file.")
    ] = None,
    loss: Annotated[str | None, typer.Option(metavar="NAME", help="Loss to plot. Default: smmd.")] = None,
    trust_remote_code: TrustRemoteCode = False,
    as_json: AsJson = False,
) -> None:
    """Show how a tokenizer splits numbers, plain and in each format, and which losses suit it."""
    if loss is not None:
        check_choice("loss", loss, loss_names())
        if plot is None:
            raise ValueError(
                f"--loss {loss} has no effect without --plot: expected a file for the plot, such as --plot loss.png."
            )
    if plot is not None:
        check_choice("path.suffix", plot.suffix, FORMATS)
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, quiet=as_json)
    with console.status("reading the tokenizer"):
        read = load_tokenizer(tokenizer, trust_remote_code=trust_remote_code)
        from numerate.inspection import EXAMPLES, inspect_tokenizer  # loads torch, after the tokenizer is found

        inspection = inspect_tokenizer(read, text or EXAMPLES)
    _print_inspection(console, tokenizer, inspection)
    if as_json:
        parts = {name: [asdict(one) for one in getattr(inspection, name)] for name in ("readings", "formats", "advice")}
        print_json({"tokenizer": tokenizer, "style": inspection.style, "facts": inspection.facts, **parts})
    if plot is not None:
        with console.status("plotting"):
            from numerate.plotting import plot_loss

            path = plot_loss(inspection.vocab, plot, loss or "smmd")
        console.print(Text.assemble("plot of ", (loss or "smmd", "bold"), " in ", (str(path), "bold")), soft_wrap=True)


def _print_inspection(console: Console, name: str, inspection: Inspection) -> None:
    from rich.table import Table
    from rich.text import Text

    console.print(Text.assemble((name, "bold"), ": ", inspection.style))
    facts = Table.grid(padding=(0, 2))
    for fact, value in inspection.facts.items():
        facts.add_row(Text(fact, "dim"), Text(value))
    console.print(facts)

    readings = Table(title="\nHow numbers are split", title_justify="left", show_lines=True)
    readings.add_column("text")
    readings.add_column("tokens, and the place of their last digit", no_wrap=True)
    readings.add_column("numbers read")
    for reading in inspection.readings:
        title = Text(reading.text).append("\nthousands=True" if reading.thousands else "", "dim")
        numbers = ", ".join(f"{number:.15g}" for number in reading.numbers)
        readings.add_row(title, _pieces(reading, console.width // 2), numbers or "none")
    console.print(readings)

    _print_formats(console, inspection)

    losses = Table("loss", "scores", "suits it", "note", title="\nWhich losses suit it", title_justify="left")
    for advice in inspection.advice:
        losses.add_row(
            advice.loss, f"each {advice.level}", Text(advice.suitability, _COLOURS[advice.suitability]), Text(advice.note)
        )
    console.print(losses)


def _print_formats(console: Console, inspection: Inspection) -> None:
    from rich.table import Table
    from rich.text import Text

    from numerate.formats import KINDS
    from numerate.inspection import EXAMPLE_NUMBER, PLACES

    formats = Table(title="\nWhat each format makes of numbers", title_justify="left")
    formats.add_column("format", no_wrap=True)
    formats.add_column(f"tokens of {EXAMPLE_NUMBER}", overflow="fold")
    for title in ("tokens per number", "digits per token"):
        formats.add_column(title, justify="right", max_width=10)
    formats.add_column("places", no_wrap=True)
    for one in inspection.formats:
        fewest, most = one.digits_per_token
        digits = f"{fewest}" if fewest == most else f"{fewest}-{most}"
        formats.add_row(one.kind, Text(" ".join(one.tokens), "cyan"), f"{one.tokens_per_number:.1f}", digits, one.places)
    console.print(formats)
    lost = {*KINDS} - {one.kind for one in inspection.formats}
    notes = [f"{name}: {meaning}" for name, meaning in PLACES.items()] + ["averages over integers of one to six digits"]
    notes += [f"no tokens for {', '.join(kind for kind in KINDS if kind in lost)}"] * bool(lost)
    for note in notes:
        console.print(Text(note, "dim"))


def _pieces(reading: Reading, width: int) -> Text:
    """Return a line of tokens with a line of their places below; longer texts wrap at ``width`` into more pairs of lines."""
    from rich.cells import cell_len
    from rich.text import Text

    pairs: list[tuple[Text, Text]] = []
    for token, power in zip(reading.tokens, reading.exponents, strict=True):
        place = "" if power is None else f"10{str(power).translate(_SUPERSCRIPTS)}"
        cell = 1 + max(cell_len(token), cell_len(place))
        if not pairs or pairs[-1][0].cell_len + cell > width:
            pairs.append((Text(), Text()))
        pairs[-1][0].append(token + " " * (cell - cell_len(token)), "cyan")
        pairs[-1][1].append(place + " " * (cell - cell_len(place)), "dim")
    return Text("\n").join(line for pair in pairs for line in pair if line.plain.strip())
