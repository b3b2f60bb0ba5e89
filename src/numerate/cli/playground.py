"""``numerate playground``: a local web page on which losses, labels and decisions respond to distributions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from numerate.cli.app import command


@command("playground", "playground --port 8000 --no-browser")
def playground(
    port: Annotated[int, typer.Option(metavar="N", help="Port to listen on; 0 for any free port.")] = 7861,
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Address to listen on; 127.0.0.1 accepts this machine only.")
    ] = "127.0.0.1",
    runs: Annotated[Path, typer.Option(metavar="FOLDER", help="Folder of trained models to query.")] = Path("runs"),
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page in a browser.")] = True,
) -> None:
    """Open a web page: drag a distribution and watch every loss and decision respond."""
    try:
        import pydantic  # noqa: F401
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise ModuleNotFoundError(f"the playground needs {error.name}: run pip install 'numerate[playground]'.") from error
    from numerate.playground.server import create_server
    from numerate.web import is_loopback, listening

    with listening(host, port) as (listener, address):
        typer.echo(f"playground at {address} (Ctrl-C stops it)")
        if not is_loopback(host):
            typer.echo(f"note: other machines can reach {host}, open this page and query the models in {runs}", err=True)
        if browser:
            import webbrowser

            webbrowser.open(address)
        try:
            create_server(host, runs).run(sockets=[listener])
        except KeyboardInterrupt:
            typer.echo("stopped")
