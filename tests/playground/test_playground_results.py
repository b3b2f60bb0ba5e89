"""The tab "your results": the list of comparisons, and reports that cannot leave their folder or their sandbox."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="the extra playground is not installed")

from starlette.testclient import TestClient

from numerate.playground.results import ResultsRequest, compute, list_runs, run_file
from numerate.playground.server import create_app

PAGE = "<!doctype html><title>r</title><p>the report</p>"


def _run(folder: Path, *, answer: str | None = "soft is better.\nMore.", created: str = "2026-01-02T03:04:05+00:00") -> None:
    folder.mkdir(parents=True)
    (folder / "experiment.json").write_text(json.dumps({"name": folder.name, "created": created}))
    if answer is not None:
        (folder / "report.html").write_text(PAGE)
        (folder / "report.json").write_text(json.dumps({"answer": answer, "experiment": {"created": created}}))


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    folder = tmp_path / "runs"
    _run(folder / "old")
    _run(folder / "new one", created="2026-05-06T07:08:09+00:00", answer="x" * 1000)
    _run(folder / "unfinished", answer=None, created="2027-01-01T00:00:00+00:00")
    (folder / "other").mkdir()
    (folder / "file.txt").write_text("no run")
    (tmp_path / "report.html").write_text("secret")
    return folder


@pytest.fixture
def client(runs: Path) -> TestClient:
    return TestClient(create_app(runs), base_url="http://127.0.0.1")


def test_runs_are_listed_newest_first(runs):
    shown = compute(ResultsRequest(), runs)
    assert [run["name"] for run in shown["runs"]] == ["unfinished", "new one", "old"]
    assert shown["open"] == "new one"  # the newest with a report
    unfinished, new, old = shown["runs"]
    assert (old["date"], old["answer"], old["report"]) == ("2026-01-02T03:04:05+00:00", "soft is better.", "/report/old")
    assert (unfinished["answer"], unfinished["report"]) == ("", None)
    assert new["report"] == "/report/new%20one"
    assert len(new["answer"]) < 410


def test_a_run_is_opened_by_name(runs):
    assert compute(ResultsRequest(name="old"), runs)["open"] == "old"
    with pytest.raises(ValueError, match="is not a run"):
        compute(ResultsRequest(name="other"), runs)


def test_a_missing_folder_has_no_runs(tmp_path):
    assert compute(ResultsRequest(), tmp_path / "nowhere")["runs"] == []


@pytest.mark.parametrize("content", ["{", "[]", '{"answer": 3, "experiment": []}', '{"answer": ""}', '{"a":' * 100_000])
def test_a_broken_report_is_still_listed(runs, content):
    (runs / "old" / "report.json").write_text(content)
    (runs / "old" / "experiment.json").write_text(content)
    (old,) = [run for run in list_runs(runs) if run.name == "old"]
    assert old.answer == ""
    assert old.date[:2] == "20"


def test_a_report_is_served_in_a_sandbox(client):
    answer = client.get("/report/old")
    assert answer.status_code == 200
    assert answer.text == PAGE
    assert answer.headers["content-type"].startswith("text/html")
    policy = answer.headers["content-security-policy"]
    assert "sandbox allow-scripts" in policy
    assert "allow-same-origin" not in policy
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'self'" in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert client.get("/report/new%20one").status_code == 200


@pytest.mark.parametrize(
    "path",
    [
        *("/report/other", "/report/nowhere", "/report/", "/report/unfinished", "/report/file.txt"),
        *("/report/%2e%2e", "/report/..%2f", "/report/%2e%2e%2f", "/report/..%5c", "/report/%2e"),  # a client resolves plain dots
        *("/report/%2e%2e%2freport.html", "/report/old%2f..%2f.."),
        *("/report/%2fetc", "/report//etc", "/report/old%00", "/report/old%2freport.html", "/report/" + "x" * 5000),
    ],
)
def test_no_name_leaves_the_folder(client, path):
    answer = client.get(path, follow_redirects=False)
    assert answer.status_code in (307, 404)  # a slash at the end is left out
    assert "secret" not in answer.text
    assert "sandbox" not in answer.headers["content-security-policy"]


@pytest.mark.parametrize("name", ["", ".", "..", "../runs/old", "old/../old", "/etc", "old\0", "a\\b"])
def test_only_plain_names_are_files(runs, name):
    assert run_file(runs, name, "report.html") is None


def test_absolute_names_are_refused(runs):
    assert run_file(runs, str(runs / "old"), "report.html") is None


def test_links_out_of_the_folder_are_refused(runs, client, tmp_path):
    _run(tmp_path / "elsewhere")
    (runs / "linked").symlink_to(tmp_path / "elsewhere")
    (runs / "other" / "report.html").symlink_to(tmp_path / "report.html")
    (runs / "circle").symlink_to(runs / "circle")
    _run(runs / "half")
    (runs / "half" / "report.json").unlink()
    (runs / "half" / "report.json").symlink_to(tmp_path / "elsewhere" / "report.json")
    assert [client.get(f"/report/{name}").status_code for name in ("linked", "other", "circle")] == [404, 404, 404]
    listed = {run.name: run for run in list_runs(runs)}
    assert "linked" not in listed
    assert "other" not in listed
    assert listed["half"].answer == ""


def test_a_link_within_the_folder_is_followed(runs, client):
    (runs / "latest").symlink_to(runs / "old")
    assert client.get("/report/latest").text == PAGE


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no pipes with names")
def test_only_plain_files_are_read(runs):
    os.mkfifo(runs / "other" / "report.html")
    assert run_file(runs, "other", "report.html") is None


def test_the_folder_may_be_a_link(runs, tmp_path):
    (tmp_path / "link").symlink_to(runs)
    assert len(list_runs(tmp_path / "link")) == 3


def test_reports_are_read_only(client):
    assert client.post("/report/old").status_code == 405
    assert client.get("/report/old", headers={"host": "evil.example"}).status_code == 400
