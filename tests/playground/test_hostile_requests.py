"""Requests that no page of the playground sends: other hosts and origins, endless bodies, broken HTTP, paths that lead out."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from urllib.parse import urlsplit

import pytest

pytest.importorskip("starlette", reason="the extra playground is not installed")

from starlette.testclient import TestClient

from numerate.playground import server
from numerate.playground.models import SHIPPED_NAME, find_models
from numerate.playground.server import create_app
from numerate.playground.tabs import TABS
from numerate.web import CONNECTIONS, Guard

JSON = {"content-type": "application/json"}
PATHS = [f"/api/{name}" for name in TABS]


@pytest.fixture
def client(tmp_path: Path) -> TestClient:
    return TestClient(create_app(tmp_path), base_url="http://127.0.0.1:7861", raise_server_exceptions=False)


def exchange(address: str, sent: bytes, seconds: float = 10) -> bytes:
    """Send bytes as they are; return all that comes back until the server hangs up or is silent."""
    where = urlsplit(address)
    received = b""
    with socket.create_connection((where.hostname, where.port), seconds) as connection:
        connection.settimeout(seconds)
        try:
            connection.sendall(sent)
            while part := connection.recv(65536):
                received += part
                connection.settimeout(0.5)
        except (TimeoutError, ConnectionResetError, BrokenPipeError):
            pass
    return received


class TestHosts:
    @pytest.mark.parametrize("host", ["8.8.8.8", "0.0.0.0", "192.168.1.7:7861", "[2001:db8::1]:80", "evil.example", "localhost.evil.example", "127.0.0.1@evil.example", "127.1", ""])  # fmt: skip # noqa: E501
    def test_only_this_machine(self, client, host):
        for method, path in (("GET", "/"), ("POST", PATHS[0])):
            assert client.request(method, path, headers={"host": host, **JSON}).status_code == 400

    @pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2:7861", "[::1]", "[::1]:7861", "localhost:1"])
    def test_this_machine(self, client, host):
        assert client.get("/", headers={"host": host}).status_code == 200

    def test_where_it_listens_for_others_it_may_be_asked_for_by_address(self):
        guard = Guard(create_app(), ["box"], everywhere=True)
        assert guard.knows("192.168.1.7:7861")
        assert not guard.knows("evil.example")
        app = server.create_server("0.0.0.0").config.app
        assert TestClient(app, base_url="http://192.168.1.7").get("/").status_code == 200
        alone = server.create_server("127.0.0.1").config.app
        assert TestClient(alone, base_url="http://192.168.1.7").get("/").status_code == 400

    def test_two_hosts(self, address):
        asked = b"GET / HTTP/1.1\r\nhost: localhost\r\nhost: evil.example\r\nconnection: close\r\n\r\n"
        assert b" 400 " in exchange(address, asked).split(b"\r\n")[0]


class TestOrigins:
    @pytest.mark.parametrize("path", PATHS)
    @pytest.mark.parametrize(
        "origin", ["http://evil.example", "null", "http://127.0.0.1:1", "https://127.0.0.1:7861", "http://localhost:7861", ""]
    )
    def test_another_page_may_send_nothing(self, client, path, origin):
        answer = client.post(path, content=b"{}", headers={**JSON, "origin": origin})
        assert answer.status_code == 403
        assert "access-control-allow-origin" not in answer.headers

    @pytest.mark.parametrize("path", PATHS)
    def test_not_after_a_question(self, client, path):
        asks = {"origin": "http://evil.example", "access-control-request-method": "POST"}
        answer = client.options(path, headers={**asks, "access-control-request-headers": "content-type"})
        assert answer.status_code in (403, 405)
        assert not [name for name in answer.headers if name.startswith("access-control")]

    def test_its_own_page_may(self, client):
        answer = client.post("/api/digit", json={}, headers={"origin": "http://127.0.0.1:7861"})
        assert answer.status_code == 200

    @pytest.mark.parametrize("kind", ["text/plain", "multipart/form-data", "application/x-www-form-urlencoded", ""])
    @pytest.mark.parametrize("path", PATHS)
    def test_what_a_form_can_send_is_refused(self, client, path, kind):
        assert client.post(path, content=b"{}", headers={"content-type": kind}).status_code == 415


class TestBodies:
    def test_a_body_without_a_length_is_cut_off(self, address):
        """The limit is on what comes, not on what the request says."""
        chunk = b"100000\r\n" + b" " * (1 << 20) + b"\r\n"
        head = (
            b"POST /api/digit HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        answer = exchange(address, head + 2 * chunk)
        assert answer.startswith(b"HTTP/1.1 413 ")
        assert b"too large: expected at most 256 KiB" in answer

    def test_a_slow_body_is_given_up(self, address, monkeypatch):
        monkeypatch.setattr(server, "BODY_SECONDS", 0.3)
        head = b"POST /api/digit HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{"
        assert exchange(address, head).startswith(b"HTTP/1.1 408 ")
        assert server.create_server("127.0.0.1").config.limit_concurrency == CONNECTIONS


class TestPaths:
    @pytest.mark.parametrize("name", ["..", "../secret", "/etc", "folder", "a\0b", "x" * 255, "\ud800"])
    def test_names_in_a_state(self, tmp_path, name):
        (tmp_path / "secret").mkdir()
        (tmp_path / "secret" / "config.json").write_text("{}")
        (tmp_path / "runs").mkdir()
        (tmp_path / "runs" / "folder").symlink_to(tmp_path / "secret")
        client = TestClient(create_app(tmp_path / "runs"), base_url="http://127.0.0.1")
        answer = client.post("/api/answer", content=json.dumps({"model": name}), headers=JSON)
        assert answer.status_code == 400
        assert len(answer.json()["error"]) < 500

    @pytest.mark.parametrize("linked", ["cells", "cell", "model", "model/model.safetensors", "model/README.md", "config.json"])
    def test_models_that_lead_out(self, tmp_path, linked):
        """A folder that was unpacked from an archive may hold links."""
        away, runs = tmp_path / "away", tmp_path / "runs"
        for root in (away, runs):
            folder = root / "mine" / "cells" / "a"
            (folder / "model").mkdir(parents=True)
            (folder / "config.json").write_text("{}")
            (folder / "model" / "model.safetensors").write_bytes(b"")
            (folder / "model" / "README.md").write_text("card")
        assert list(find_models(runs)) == [SHIPPED_NAME, "mine/cells/a"]
        part = {"cells": "mine/cells", "cell": "mine/cells/a"}.get(linked, f"mine/cells/a/{linked}")
        kept = runs / part
        kept.rename(tmp_path / "moved")
        kept.symlink_to(away / part)
        assert list(find_models(runs)) == [SHIPPED_NAME]
