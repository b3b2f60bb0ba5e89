"""``numerate playground``: a local web page to move distributions and see what losses, labels and decisions make of them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from numerate.cli.app import app


@app.command()
def playground(
    port: Annotated[int, typer.Option(help="The port to listen on; 0 for any free one.")] = 7861,
    host: Annotated[str, typer.Option(help="The address to listen on; 127.0.0.1 is this machine alone.")] = "127.0.0.1",
    runs: Annotated[Path, typer.Option(help="The folder of trained models that the page can ask.")] = Path("runs"),
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page in a browser.")] = True,
) -> None:
    """Open a page to see what losses, labels and decisions make of distributions over numbers."""
    try:
        import pydantic  # noqa: F401
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise ModuleNotFoundError(f"the playground needs {error.name}: run pip install 'numerate[playground]'.") from error
    from numerate.playground.server import create_server, is_loopback, listening

    with listening(host, port) as (listener, address):
        typer.echo(f"playground at {address} (Ctrl-C stops it)")
        if not is_loopback(host):
            typer.echo(f"note: it listens on {host}, so that other machines can open it and ask the models in {runs}", err=True)
        if browser:
            import webbrowser

            webbrowser.open(address)
        try:
            create_server(host, runs).run(sockets=[listener])
        except KeyboardInterrupt:
            typer.echo("stopped")
