"""``numerate serve``: it answers, says where, warns when others can reach it, and ends with the requests in flight answered."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
from typer.testing import CliRunner

pytest.importorskip("uvicorn", reason="the extra playground is not installed")

import numerate
from numerate.cli import app
from numerate.serve import server


class Quiet:
    """A server that ends at once, as by Ctrl-C."""

    def __init__(self, api: server.NumberApi, host: str) -> None:
        self.api = api

    def run(self, sockets: list[object]) -> None:
        SEEN.append(self.api)
        raise KeyboardInterrupt


SEEN: list[server.NumberApi] = []


def test_options_reach_the_server(monkeypatch):
    monkeypatch.setattr(server, "NumberServer", Quiet)
    more = "--name mine --queue 7 --batch-size 3 --max-prompt 99 --max-body 2 --timeout 4.5 --interval 0.8 --decide mean"
    done = CliRunner().invoke(app, ["serve", "tiny", "--port", "0", "--host", "0.0.0.0", *more.split()])
    assert done.exit_code == 0, done.output
    first, second, last = done.stdout.splitlines()
    assert first.startswith("intervals are the model's own")
    assert second.startswith("mine at http://127.0.0.1:")
    assert second.endswith("/v1 (Ctrl-C stops it)")
    assert last == "stopped"
    assert done.stderr.startswith("note: other machines can reach 0.0.0.0")
    api = SEEN.pop()
    assert api.limits == server.Limits(batch_size=3, queue=7, prompt=99, body=2048, seconds=4.5)
    assert (api.batcher.size, api.batcher.room) == (3, 7)
    assert (api.model.name, api.model.decide, api.model.level) == ("mine", "mean", 0.8)


@pytest.mark.parametrize("package", ["starlette", "uvicorn", "transformers"])
def test_without_the_extras(package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    done = CliRunner().invoke(app, ["serve", "tiny"])
    assert done.exit_code == 1
    assert done.stderr == f"error: a server needs {package}: run pip install 'numerate[lab,playground]'.\n"


@pytest.mark.launch
def test_it_answers_until_it_is_interrupted():
    environment = {**os.environ, "PYTHONPATH": str(Path(numerate.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-u", "-m", "numerate", "serve", "tiny", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as process:
        process.stdout.readline()
        address = process.stdout.readline().split()[2]
        body = json.dumps({"model": "tiny", "prompt": "6 * 7 ="}).encode()
        asked = Request(f"{address}/completions", body, {"content-type": "application/json"})
        with urlopen(asked, timeout=60) as answer:
            assert float(json.load(answer)["choices"][0]["text"]) is not None
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (0, "stopped\n", "")
