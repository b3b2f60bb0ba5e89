"""The command-line app: its help and its errors."""

from __future__ import annotations

import json
import re
import shlex
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pickle import UnpicklingError
from typing import Annotated, Any, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

from numerate.checks import one_line
from numerate.lab.files.records import is_first_process, jsonable

Quiet = Annotated[bool, typer.Option("--quiet", help="Print only errors.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print only the result, as a JSON object.")]


def options(section: str) -> Callable[..., Any]:
    """Return what makes the options of a section of the help: from the name of the value, the help, and what typer takes."""
    return lambda value, help, *names, **more: typer.Option(*names, metavar=value, help=help, rich_help_panel=section, **more)


_Command = TypeVar("_Command", bound=Callable[..., Any])
_COMMANDS = (
    "compare",
    "train",
    "predict",
    "serve",
    "eval",
    "report",
    "export",
    "inspect",
    "task",
    "playground",
)  # order of the help
_EXTRAS = ("lab", "tasks", "report", "playground", "excel", "ray", "trl")  # in order of preference
_PACKAGES = {"yaml": "pyyaml", "PIL": "pillow", "google": "protobuf"}  # modules whose package has another name


def what_brings(module: str) -> str:
    """Return what to install for a missing module: an extra of this package, ``'numerate[lab]'``, or its own package."""
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

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the commands in the order in which a new user needs them."""
        return sorted(super().list_commands(ctx), key=_COMMANDS.index)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List the commands with their full help; the default truncates it at the end of the line."""
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
            if isinstance(error, ModuleNotFoundError) and error.name:  # raised by Python, lacks a remedy
                message = f"this needs the package {error.name}: run pip install {what_brings(error.name)}."
            Console(stderr=True).print(Text.assemble(("error: ", "bold red"), message), soft_wrap=True)
            raise typer.Exit(1) from error


class Sections(TyperCommand):
    """Show options under their ``rich_help_panel`` in plain text, and "Options" last."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write one section per panel."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            title = "Arguments" if param.param_type_name == "argument" else getattr(param, "rich_help_panel", None) or "Options"
            if (record := param.get_help_record(ctx)) is not None:
                sections.setdefault(title, []).append(record)
        for title in sorted(sections, key="Options".__eq__):
            with formatter.section(title):
                formatter.write_dl(sections[title])


# Rich's own panels would take longer to import than everything else.
app = typer.Typer(
    cls=PlainErrors,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"max_content_width": 120},
    epilog="Run numerate COMMAND --help for options and examples of a command.",
)


def command(*examples: str, name: str | None = None) -> Callable[[_Command], _Command]:
    """Register a command whose help is in sections and ends with ``examples``."""
    return app.command(name, cls=Sections, epilog="\n".join(("\b", "Examples:", *(f"  numerate {one}" for one in examples))))


def print_json(value: Any) -> None:
    """Print a result as strict JSON; infinite numbers become null."""
    typer.echo(json.dumps(jsonable(value), allow_nan=False, default=str))


@contextmanager
def interruptible(nothing: str, *more: str, without: str = "") -> Iterator[None]:
    """After Ctrl-C or SIGTERM, print what was saved and how to continue, and exit with 128 plus the number of the signal.

    ``nothing`` is the message if nothing was saved. The command to continue is this one with the options ``more``, and without
    the option ``without``.
    """
    try:
        yield
    except KeyboardInterrupt as stop:
        words = [word for word in sys.argv[1:] if word != without]
        words += [word for word in more if word not in words]
        if is_first_process():
            typer.echo(f"{str(stop) or nothing} Continue with:", err=True)
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
    """Teach language models that 5.1 is closer to 5.0 than to 100: compare losses on your data, train, and predict."""
