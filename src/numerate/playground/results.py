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
from functools import lru_cache
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
        "sandbox allow-scripts allow-downloads; default-src 'none'; img-src data:; style-src 'unsafe-inline'; "
        "script-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
    ),
    "cross-origin-opener-policy": "unsafe-none",  # a page in a sandbox may have no other
}
"""The report forbids itself all scripts but its own; this is for a page that does not."""

_MOST_RUNS = 200
_MOST_PAGE, _MOST_DATA = 64 << 20, 32 << 20  # bytes
_MOST_ANSWER = 400  # characters


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

    Examples:
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
    answer, begun = _read(run_file(runs, name, DATA)) if page is not None else ("", "")
    written = datetime.fromtimestamp((page or experiment or runs).stat().st_mtime, UTC).isoformat(timespec="seconds")
    return RunSummary(
        name=name,
        date=begun or _read(experiment)[1] or written,
        answer=answer,
        report=None if page is None else f"/report/{quote(name, safe='')}",
    )


def _read(path: Path | None) -> tuple[str, str]:
    """Return the first line of the answer and the date in a report's data, or in an experiment; empty where there is none."""
    if path is None:
        return "", ""
    state = path.stat()
    return _facts(path, state.st_mtime_ns, state.st_size)


@lru_cache(maxsize=2 * _MOST_RUNS)
def _facts(path: Path, changed: int, size: int) -> tuple[str, str]:
    if size > _MOST_DATA:
        return "", ""
    try:
        data: Any = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError, RecursionError):
        return "", ""
    data = data if isinstance(data, dict) else {}
    described = data["experiment"] if isinstance(data.get("experiment"), dict) else data
    answer, date = data.get("answer"), described.get("created")
    lines = answer.strip().splitlines() if isinstance(answer, str) else []
    return _clipped(lines[0]) if lines else "", date if isinstance(date, str) and _is_date(date) else ""


def _is_date(text: str) -> bool:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True


def _clipped(line: str) -> str:
    return line if len(line) <= _MOST_ANSWER else f"{line[:_MOST_ANSWER].rpartition(' ')[0]} .."
