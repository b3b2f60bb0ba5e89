"""The tab "your results": comparisons in the folder of runs, and the report of each inside the page.

A report is served on an address of its own with a policy of its own: its script runs in a sandbox without an origin, which can
reach neither the playground nor the network. Only files of the folder of runs are read: a name is one of those listed, and links
that lead out of the folder are not followed.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

from pydantic import Field

from numerate.playground.request import TabRequest

if TYPE_CHECKING:
    from starlette.routing import BaseRoute

REPORT, DATA, EXPERIMENT = "report.html", "report.json", "experiment.json"
REPORT_HEADERS = {
    "content-security-policy": (
        "sandbox allow-scripts allow-downloads; default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
    ),
    "cross-origin-opener-policy": "unsafe-none",  # a page in a sandbox may have no other
}
"""The report forbids itself all scripts but its own; this is for a page that does not."""

_MOST_RUNS = 200
_MOST_PAGE, _MOST_DATA = 64 << 20, 32 << 20  # bytes
_MOST_ANSWER = 300  # characters


class ResultsRequest(TabRequest):
    """The run whose report is open; empty for the newest."""

    name: Annotated[str, Field(max_length=255)] = ""


@dataclass(frozen=True)
class RunSummary:
    """A comparison in the folder of runs.

    Attributes:
        name: of its folder.
        date: when it was begun, or its report written; ISO 8601.
        answer: the first sentence of the result; empty if there is no report.
        report: the address of the report; None if there is none.
    """

    name: str
    date: str
    answer: str
    report: str | None


def compute(request: ResultsRequest, runs: Path) -> dict[str, object]:
    """Return the runs, the newest first, and which one is open."""
    found = list_runs(runs)
    names = [run.name for run in found]
    if request.name and request.name not in names:
        raise ValueError(f"name={request.name!r:.80} is not a run in {runs}: expected one of {', '.join(names[:9]) or 'none'}.")
    newest = next((run.name for run in found if run.report is not None), "")
    return {"folder": str(runs), "runs": [asdict(run) for run in found], "open": request.name or newest}


def list_runs(runs: Path) -> list[RunSummary]:
    """Return the comparisons in a folder, the newest first."""
    if not runs.is_dir():
        return []
    found = [summary for path in runs.iterdir() if (summary := _summary(runs, path.name)) is not None]
    return sorted(found, key=lambda run: (run.date, run.name), reverse=True)[:_MOST_RUNS]


def run_file(runs: Path, name: str, file: str) -> Path | None:
    """Return a file of a run; None if there is none, or if it lies outside of the folder of runs.

    Example:
        >>> run_file(Path("."), "..", "passwd") is None
        True
    """
    if name in ("", ".", "..") or any(character in name for character in "/\\\0"):
        return None
    root = runs.resolve()
    try:
        path = (root / name / file).resolve(strict=True)
    except (OSError, RuntimeError):  # missing, or links in a circle
        return None
    return path if path.is_relative_to(root) and path.is_file() else None


def routes(runs: Path) -> Sequence[BaseRoute]:
    """Return the address of reports."""
    from starlette.requests import Request
    from starlette.responses import FileResponse, PlainTextResponse, Response
    from starlette.routing import Route

    def report(request: Request) -> Response:
        path = run_file(runs, request.path_params["name"], REPORT)
        if path is None:
            return PlainTextResponse("There is no such report.", 404)
        if path.stat().st_size > _MOST_PAGE:
            return PlainTextResponse(f"The report is larger than {_MOST_PAGE >> 20} MiB: open its file in a browser.", 413)
        return FileResponse(path, headers=REPORT_HEADERS, media_type="text/html")

    return [Route("/report/{name}", report, methods=["GET"])]


def _summary(runs: Path, name: str) -> RunSummary | None:
    """Return what is known about a folder; None if it is no comparison."""
    page, experiment = run_file(runs, name, REPORT), run_file(runs, name, EXPERIMENT)
    if page is None and experiment is None:
        return None
    data = _read(run_file(runs, name, DATA)) if page is not None else {}
    described = data.get("experiment") if isinstance(data.get("experiment"), dict) else _read(experiment)
    written = datetime.fromtimestamp((page or experiment or runs).stat().st_mtime, UTC).isoformat(timespec="seconds")
    date = described.get("created") if isinstance(described, dict) else None
    answer = data.get("answer")
    lines = answer.strip().splitlines() if isinstance(answer, str) else []
    return RunSummary(
        name=name,
        date=date if isinstance(date, str) and _is_date(date) else written,
        answer=_clipped(lines[0]) if lines else "",
        report=None if page is None else f"/report/{quote(name, safe='')}",
    )


def _read(path: Path | None) -> dict[str, Any]:
    """Return the object in a JSON file; empty if there is none."""
    if path is None or path.stat().st_size > _MOST_DATA:
        return {}
    try:
        read = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError, RecursionError):
        return {}
    return read if isinstance(read, dict) else {}


def _is_date(text: str) -> bool:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True


def _clipped(line: str) -> str:
    return line if len(line) <= _MOST_ANSWER else f"{line[:_MOST_ANSWER].rpartition(' ')[0]} .."
