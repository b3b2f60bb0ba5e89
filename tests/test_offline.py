"""No telemetry, and no network unless it is asked for: all is used with the network cut off, and every attempt is noted."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("transformers")

from typer.testing import CliRunner

from numerate.cli import app
from numerate.lab.comparison.executors import run_ray
from numerate.lab.prediction.predict import predict
from numerate.lab.prediction.train import train

# Loopback and sockets of the file system stay: processes talk over them.
CUT = """
import os, socket

def note(what):
    with open(os.environ["NOTED"], "a") as file:
        file.write(f"{what}\\n")
    raise OSError(101, "Network is unreachable")

def local(host):
    return host in (None, "", "localhost", "127.0.0.1", "::1", b"localhost", b"127.0.0.1")

_connect, _connect_ex, _sendto, _find = socket.socket.connect, socket.socket.connect_ex, socket.socket.sendto, socket.getaddrinfo

def connect(self, address):
    return _connect(self, address) if self.family == socket.AF_UNIX or local(address[0]) else note(f"connect {address}")

def connect_ex(self, address):
    return _connect_ex(self, address) if self.family == socket.AF_UNIX or local(address[0]) else note(f"connect {address}")

def sendto(self, data, *rest):
    return _sendto(self, data, *rest) if self.family == socket.AF_UNIX or local(rest[-1][0]) else note(f"send {rest[-1]}")

def getaddrinfo(host, *args, **kwargs):
    return _find(host, *args, **kwargs) if local(host) else note(f"look up {host}")

socket.socket.connect, socket.socket.connect_ex, socket.socket.sendto = connect, connect_ex, sendto
socket.getaddrinfo = getaddrinfo
"""

HUB = """
from numerate.lab.models.loading import load_model
from numerate.tokenizers import load_tokenizer
for load, kind in ((load_model, ValueError), (load_tokenizer, OSError)):
    try:
        load("someone/some-model")
    except kind as error:
        assert "someone/some-model" in str(error) and "Hub" in str(error) and "\\n" not in str(error), error
    else:
        raise AssertionError("loaded")
"""


@pytest.fixture
def attempts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Cut off this process; return how to see what it tried."""
    (tmp_path / "noted").write_text("")
    monkeypatch.setenv("NOTED", str(tmp_path / "noted"))
    for name in ("connect", "connect_ex", "sendto"):
        monkeypatch.setattr(socket.socket, name, getattr(socket.socket, name))  # put back at the end
    monkeypatch.setattr(socket, "getaddrinfo", socket.getaddrinfo)
    exec(CUT, {})
    return lambda: (tmp_path / "noted").read_text().splitlines()


def test_a_model_is_trained_and_asked_without_a_network(attempts, tmp_path: Path):
    rows = [{"area": 20 + i, "city": "XY"[i % 2], "rent": 30 + i % 7} for i in range(40)]
    quick = {"eval_examples": 2, "batch_size": 4, "train_examples": 8, "steps": 2}
    train(data=rows, target="rent", out=tmp_path / "run", **quick)
    predict(tmp_path / "run", rows[:2], tmp_path / "out.csv", calibrate="none")
    assert CliRunner().invoke(app, ["inspect", str(tmp_path / "run" / "model")]).exit_code == 0
    assert attempts() == []


def test_the_hub_is_asked_for_its_models_alone_and_not_again_and_again(attempts):
    exec(HUB, {})
    assert 2 <= len(attempts()) <= 4
    assert {*attempts()} == {"look up huggingface.co"}


@pytest.mark.parametrize("wish", [None, "1"])
def test_ray_sends_no_statistics_unless_the_user_says_so(monkeypatch, tmp_path, wish: str | None):
    seen = []

    def init(**options):
        seen.append(os.environ["RAY_USAGE_STATS_ENABLED"])
        raise RuntimeError("enough")

    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: False, init=init))
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", wish or "0")
    if wish is None:
        monkeypatch.delenv("RAY_USAGE_STATS_ENABLED")
    with pytest.raises(RuntimeError, match="enough"):
        run_ray([], tmp_path, on_done=lambda *_: None)
    assert seen == [wish or "0"]
