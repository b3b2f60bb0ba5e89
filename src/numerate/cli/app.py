"""The command-line app, and how it shows errors."""

from __future__ import annotations

import json
import re
import shlex
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pickle import UnpicklingError
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from numerate.checks import one_line
from numerate.lab.files.records import is_first_process, jsonable

Quiet = Annotated[bool, typer.Option("--quiet", help="Print nothing but errors.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as one JSON object, and nothing else.")]

_EXTRAS = ("train", "tasks", "report", "playground", "excel", "ray")  # the first that has a package is named
_PACKAGES = {"yaml": "pyyaml", "PIL": "pillow", "google": "protobuf"}  # modules that are not called like their package


def what_brings(module: str) -> str:
    """Return what to install for a missing module: an extra of this package, ``'numerate[train]'``, or the package itself."""
    from importlib.metadata import PackageNotFoundError, requires

    top = module.partition(".")[0]
    package = _PACKAGES.get(top, top)
    try:
        asked = [line.replace('"', "'") for line in requires("numerate") or []]
    except PackageNotFoundError:  # run from source
        return f"'numerate[{','.join(_EXTRAS[:3])}]'"
    for extra in _EXTRAS:
        if any(re.match(rf"{package}\b(?!-)", line, re.IGNORECASE) and f"extra == '{extra}'" in line for line in asked):
            return f"'numerate[{extra}]'"
    return package


class PlainErrors(TyperGroup):
    """Show an error as one line and exit with 1; ``--traceback`` raises it."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List the commands with all that they say about themselves: others cut it where a line ends."""
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.get_short_help_str(1000)) for name, command in commands if command is not None])

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except (typer.Exit, typer.Abort, BrokenPipeError):  # --help, Ctrl-C at a prompt, `numerate .. | head`
            raise
        except (ValueError, TypeError, OSError, ImportError, ArithmeticError, RuntimeError, UnpicklingError) as error:
            if ctx.params.get("traceback"):
                raise
            from rich.console import Console
            from rich.text import Text

            message = one_line(error)
            if isinstance(error, ModuleNotFoundError) and error.name:  # raised by Python, without a remedy
                message = f"this needs the package {error.name}: run pip install {what_brings(error.name)}."
            Console(stderr=True).print(Text.assemble(("error: ", "bold red"), message), soft_wrap=True)
            raise typer.Exit(1) from error


# Rich panels for help and errors would take longer to import than everything else.
app = typer.Typer(cls=PlainErrors, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None)


def print_json(value: Any) -> None:
    """Print a result for other programs: strict JSON, in which infinite figures are null."""
    typer.echo(json.dumps(jsonable(value), allow_nan=False, default=str))


@contextmanager
def interruptible(nothing: str, *more: str, without: str = "") -> Iterator[None]:
    """After Ctrl-C or SIGTERM, say what is kept and how to go on, and exit as a shell expects: with 128 and the signal's number.

    ``nothing`` is what to say if that came before anything began. The command to go on is this one with the options ``more``,
    and without another.
    """
    try:
        yield
    except KeyboardInterrupt as stop:
        words = [word for word in sys.argv[1:] if word != without]
        words += [word for word in more if word not in words]
        if is_first_process():
            typer.echo(f"{str(stop) or nothing} Go on with:", err=True)
            typer.echo(f"  {shlex.join(['numerate', *words])}", err=True)
        raise typer.Exit(128 + getattr(stop, "signal", signal.SIGINT)) from None


def _show_version(asked: bool) -> None:
    if asked:
        import numerate

        typer.echo(f"numerate {numerate.__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
    traceback: Annotated[bool, typer.Option("--traceback", help="Show the traceback of an error.")] = False,
) -> None:
    """Training losses for language models that know that 5.1 is nearer to 5.0 than to 100."""
