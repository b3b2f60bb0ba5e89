"""``numerate playground``: it answers, says where, warns when others can reach it, and stops quietly."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen

import pytest
from typer.testing import CliRunner

pytest.importorskip("uvicorn", reason="the extra playground is not installed")

import numerate
from numerate.cli import app
from numerate.playground import server
from numerate.web import listening


class Quiet:
    """A server that ends at once, as by Ctrl-C."""

    def run(self, sockets: list[object]) -> None:
        raise KeyboardInterrupt


@pytest.fixture
def opened(monkeypatch) -> list[str]:
    """Addresses that were opened in a browser."""
    addresses: list[str] = []
    monkeypatch.setattr(server, "create_server", lambda host, runs: Quiet())
    monkeypatch.setattr("webbrowser.open", addresses.append)
    return addresses


def test_it_opens_the_page(opened):
    done = CliRunner().invoke(app, ["playground", "--port", "0"])
    assert done.exit_code == 0, done.output
    (address,) = opened
    assert address.startswith("http://127.0.0.1:")
    assert done.stdout == f"playground at {address} (Ctrl-C stops it)\nstopped\n"
    assert done.stderr == ""


def test_others_can_reach_it_only_if_told(opened):
    done = CliRunner().invoke(app, ["playground", "--port", "0", "--host", "0.0.0.0", "--no-browser"])
    assert done.exit_code == 0, done.output
    assert opened == []
    assert done.stderr.startswith("note: other machines can reach 0.0.0.0")


def test_a_port_that_is_taken(opened):
    with listening("127.0.0.1", 0) as (_, address):
        port = address.rstrip("/").rpartition(":")[2]
        done = CliRunner().invoke(app, ["playground", "--port", port])
    assert done.exit_code == 1
    assert done.stderr.startswith(f"error: port {port} of 127.0.0.1 cannot be used")
    assert "--port" in done.stderr


@pytest.mark.parametrize("package", ["starlette", "uvicorn"])  # typer itself needs pydantic
def test_without_the_extra(package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    done = CliRunner().invoke(app, ["playground", "--no-browser"])
    assert done.exit_code == 1
    assert done.stderr == f"error: the playground needs {package}: run pip install 'numerate[playground]'.\n"


@pytest.mark.launch
def test_it_answers_until_it_is_interrupted():
    environment = {**os.environ, "PYTHONPATH": str(Path(numerate.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "numerate", "playground", "--no-browser", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as process:
        address = process.stdout.readline().split()[2]
        with urlopen(address, timeout=60) as page:
            assert b"numerate playground" in page.read()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (0, "stopped\n", "")
