"""The server: answers of the tabs, of fifty people at once too, bad requests, and what it lets in and out."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from urllib.request import Request, urlopen

import pytest

pytest.importorskip("starlette", reason="the extra playground is not installed")

from pathlib import Path

from starlette.testclient import TestClient

from numerate.playground import landscape, server
from numerate.playground.server import PAGE, create_app
from numerate.playground.tabs import TABS, Tab
from numerate.web import HEADERS, is_loopback


@pytest.fixture(scope="module")
def client() -> TestClient:
    return TestClient(create_app(), base_url="http://127.0.0.1", raise_server_exceptions=False)


@pytest.mark.parametrize("name", TABS)
def test_the_first_view_of_every_tab(client, name):
    defaults = client.get("/api").json()[name]
    answer = client.post(f"/api/{name}", json=defaults)
    assert answer.status_code == 200, answer.text
    assert answer.json() == client.post(f"/api/{name}", json={}).json()


@pytest.mark.parametrize("name", TABS)
@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"no_such_field": 1}', "no_such_field"),
        (b"{", "Invalid JSON"),
        (b"[]", "the request"),
        (b"\xff\xfe", "Invalid JSON"),
        (b'{"a":' * 5000, "Invalid JSON"),
    ],
)
def test_a_bad_request_is_a_sentence(client, name, body, message):
    answer = client.post(f"/api/{name}", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400
    assert message in answer.json()["error"]
    assert "\n" not in answer.json()["error"]
    assert len(answer.json()["error"]) < 300


@pytest.mark.parametrize("name", TABS)
def test_a_large_body_is_refused(client, name):
    body = b" " * (server.BODY_BYTES + 1)
    answer = client.post(f"/api/{name}", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 413
    assert answer.json()["error"].startswith("the request is too large")


def test_a_fault_of_a_tab_is_told_and_the_server_lives_on(monkeypatch):
    def fail(error: Exception) -> dict[str, object]:
        raise error

    faults = (lambda _: fail(KeyError("gone")), lambda _: fail(TimeoutError("late")), lambda _: {"value": float("inf")})
    for compute in faults:
        monkeypatch.setitem(TABS, "digit", Tab(TABS["digit"].request, compute))
        client = TestClient(create_app(), base_url="http://127.0.0.1")
        answer = client.post("/api/digit", json={})
        assert answer.status_code == 500
        assert "internal error of the playground" in answer.json()["error"]
        assert client.get("/").status_code == 200


@pytest.mark.parametrize("path", ["/", "/palette.css", "/page/shell.js", "/api", "/nowhere"])
def test_every_answer_has_the_headers(client, path):
    headers = client.get(path).headers
    assert {name: headers[name] for name in HEADERS} == HEADERS


@pytest.mark.parametrize("path", ["/page/../server.py", "/page/%2e%2e/server.py", "/page/..%2fserver.py", "/page//etc/passwd"])
def test_only_files_of_the_page_are_served(client, path):
    assert client.get(path).status_code == 404


def test_the_page_has_a_script_for_every_tab():
    shell = (PAGE / "shell.js").read_text(encoding="utf-8")
    (listed,) = re.findall(r"^const TABS = \[(.*)\];$", shell, re.MULTILINE)
    assert [name.strip() for name in listed.split(",")] == list(TABS)
    assert {file.stem for file in (PAGE / "tabs").glob("*.js")} == set(TABS)


@pytest.mark.parametrize("file", sorted(path for path in PAGE.rglob("*") if path.is_file()), ids=lambda path: path.name)
def test_the_page_sets_no_html_and_loads_nothing_from_elsewhere(file):
    text = file.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?://|innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|<script>| on\w+=", text)


@pytest.mark.parametrize(
    ("host", "alone"), [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("box", False)]
)
def test_who_can_reach_it(host, alone):
    assert is_loopback(host) is alone


def test_runs_reach_the_tabs_that_read_them(monkeypatch, tmp_path):
    monkeypatch.setitem(TABS, "digit", Tab(TABS["digit"].request, lambda _, runs: {"runs": str(runs)}, reads_runs=True))
    client = TestClient(server.create_app(tmp_path), base_url="http://127.0.0.1")
    assert Path(client.post("/api/digit", json={}).json()["runs"]) == tmp_path


SESSIONS = 50


def ask(address: str, tab: str, body: dict[str, object]) -> dict[str, object]:
    asked = Request(f"{address}api/{tab}", json.dumps(body).encode(), {"content-type": "application/json"})
    with urlopen(asked, timeout=120) as answer:
        return json.load(answer)


def test_settings_of_fifty_sessions_do_not_mix(address):
    """Losses are built once and shared by sessions with the same settings."""
    states = [{"losses": ["smmd"], "settings": {"smmd": {"sigma": round(0.5 + number / 10, 1)}}} for number in range(SESSIONS)]
    with ThreadPoolExecutor(SESSIONS) as pool:
        answers = list(pool.map(lambda sent: ask(address, "landscape", sent), states))
    for sent, answer in zip(states, answers, strict=True):
        assert answer == json.loads(json.dumps(landscape.compute(landscape.LandscapeRequest(**sent))))
    assert len({json.dumps(answer["series"]) for answer in answers}) == SESSIONS
