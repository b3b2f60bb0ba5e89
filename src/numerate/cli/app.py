"""The command itself, and how its errors look."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from numerate.messages import one_line


class PlainErrors(TyperGroup):
    """Shows an error of ours as one line and exits with 1; ``--traceback`` lets it through."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except (typer.Exit, typer.Abort, BrokenPipeError):  # the end of --help, of a question, of `numerate .. | head`
            raise
        except (ValueError, TypeError, OSError, ImportError, ArithmeticError, RuntimeError) as error:
            if ctx.params.get("traceback"):
                raise
            from rich.console import Console
            from rich.text import Text

            said = one_line(error)
            if isinstance(error, ModuleNotFoundError) and error.name:  # one that nobody foresaw, and so without a remedy
                said = f"this needs the package {error.name}: run pip install 'numerate[train,tasks,report]'."
            Console(stderr=True).print(Text.assemble(("error: ", "bold red"), said), soft_wrap=True)
            raise typer.Exit(1) from error


# Panels for help and errors would take longer to import than everything else.
app = typer.Typer(
    cls=PlainErrors, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None
)


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
    traceback: Annotated[bool, typer.Option("--traceback", help="Show where an error came from.")] = False,
) -> None:
    """Training losses for language models that know that 5.1 is nearer to 5.0 than to 100."""
