"""``numerate serve``: a model that says how sure it is, behind OpenAI's API."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Annotated, Any

import typer

from numerate.cli.app import command, options
from numerate.cli.settings import (
    ApiKeyVariable,
    AskedFormat,
    AskedModel,
    AskedTarget,
    Calibrate,
    Chat,
    Decide,
    Interval,
    PromptTemplate,
    ServedTokenizer,
    Width,
    check_without_url,
)

_server, _limits, _other = map(options, ("Server", "Limits", "Model of another server"))


@command("serve runs/my-price-soft-0", "serve smollm2 --decide mean", "serve Qwen/Qwen2.5-7B --url http://localhost:9000/v1")
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
    url: Annotated[
        str | None, _other("URL", "Serve MODEL of another OpenAI-compatible server, such as http://localhost:9000/v1.")
    ] = None,
    chat: Chat = False,
    tokenizer: ServedTokenizer = None,
    api_key_variable: ApiKeyVariable = None,
    timeout: Annotated[float, _limits("SECONDS", "Time for an answer; then the status is 504.", min=0.001)] = 300,
) -> None:
    """Serve a model in OpenAI's format: the decided number as text, its distribution and interval on request."""
    for package in ("pydantic", "starlette", "transformers", "uvicorn"):
        if find_spec(package) is None:
            raise ModuleNotFoundError(f"a server needs {package}: run pip install 'numerate[lab,playground]'.")
    if url is None:
        check_without_url({"--chat": chat, "--tokenizer": tokenizer, "--api-key-variable": api_key_variable})
    if url is not None and calibrate not in ("auto", "none"):
        raise ValueError(f"calibrate={calibrate!r} needs a model of this machine, not of --url: leave out one of them.")
    from numerate.serve.models import local_model, upstream_model
    from numerate.serve.server import Limits, NumberApi, NumberServer
    from numerate.web import is_loopback, listening

    with listening(host, port) as (listener, address):
        how: dict[str, Any] = {"name": name, "target": target, "prompt": prompt, "format": format}
        how |= {"decide": decide, "interval": interval, "width": width}
        if url is None:
            served = local_model(model, **how, calibrate=calibrate, batch_size=batch_size, say=typer.echo)
        else:
            how |= {"chat": chat, "tokenizer": tokenizer, "api_key_variable": api_key_variable, "timeout": timeout}
            served = upstream_model(model, url, **how)
        typer.echo(f"{served.name} at {address}v1 (Ctrl-C stops it)")
        if not is_loopback(host):
            typer.echo(f"note: other machines can reach {host} and ask the model", err=True)
        limits = Limits(batch_size=batch_size, queue=queue, prompt=max_prompt, body=max_body << 10, seconds=timeout)
        try:
            NumberServer(NumberApi(served, limits), host).run(sockets=[listener])
        except KeyboardInterrupt:
            typer.echo("stopped")
