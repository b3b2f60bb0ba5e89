"""``numerate serve``: a model that says how sure it is, behind OpenAI's API."""

from __future__ import annotations

from typing import Annotated

import typer

from numerate.cli.app import command, options
from numerate.cli.settings import AskedFormat, AskedModel, AskedTarget, Calibrate, Decide, Interval, PromptTemplate, Width

_server, _limits = map(options, ("Server", "Limits"))


@command("serve runs/my-price-soft-0 --port 8000", "serve smollm2 --decide mean")
def serve(
    model: AskedModel,
    port: Annotated[int, _server("N", "Port to listen on; 0 for any free port.")] = 8000,
    host: Annotated[str, _server("ADDRESS", "Address to listen on; 127.0.0.1 accepts this machine only.")] = "127.0.0.1",
    name: Annotated[str | None, _server("NAME", "Name of the model in requests. Default: that of its folder.")] = None,
    target: AskedTarget = None,
    prompt: PromptTemplate = None,
    format: AskedFormat = None,
    decide: Decide = "median",
    interval: Interval = 0.9,
    calibrate: Calibrate = "auto",
    width: Width = 16,
    batch_size: Annotated[int, _limits("N", "Questions that are asked together.", min=1)] = 64,
    queue: Annotated[int, _limits("N", "Questions that wait; further ones get status 429.", min=1)] = 256,
    max_prompt: Annotated[int, _limits("N", "Characters of a question; longer ones get status 413.", min=1)] = 20_000,
    max_body: Annotated[int, _limits("KIB", "Size of a request; larger ones get status 413.", min=1)] = 256,
    timeout: Annotated[float, _limits("SECONDS", "Time for an answer; then the status is 504.", min=0.001)] = 300,
) -> None:
    """Serve a model in OpenAI's format: the decided number as text, its distribution and interval on request."""
    try:
        import pydantic  # noqa: F401
        import starlette  # noqa: F401
        import transformers  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise ModuleNotFoundError(f"a server needs {error.name}: run pip install 'numerate[lab,playground]'.") from error
    from numerate.serve.local_model import local_model
    from numerate.serve.server import Limits, NumberApi, NumberServer
    from numerate.web import is_loopback, listening

    with listening(host, port) as (listener, address):
        served = local_model(
            model,
            name=name,
            target=target,
            prompt=prompt,
            format=format,
            decide=decide,
            interval=interval,
            calibrate=calibrate,
            width=width,
            batch_size=batch_size,
            say=typer.echo,
        )
        typer.echo(f"{served.name} at {address}v1 (Ctrl-C stops it)")
        if not is_loopback(host):
            typer.echo(f"note: other machines can reach {host} and ask the model", err=True)
        limits = Limits(batch_size=batch_size, queue=queue, prompt=max_prompt, body=max_body << 10, seconds=timeout)
        try:
            NumberServer(NumberApi(served, limits), host).run(sockets=[listener])
        except KeyboardInterrupt:
            typer.echo("stopped")
