"""The tabs of the playground, in the order shown.

A tab is a module here with the state that the browser sends, a :class:`~numerate.playground.request.TabRequest` of its own name
(``DigitRequest``), and ``compute``, which turns it into JSON; and ``page/tabs/NAME.js``, which draws the answer and is imported
by ``page/shell.js``. A ``ValueError`` of ``compute`` is shown to the user as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel
from starlette.routing import BaseRoute

from numerate.playground import answer, digit, label, landscape, number, results, tokenizer

Answer = dict[str, object]
MEBIBYTE = 1 << 20


def _no_routes(runs: Path) -> Sequence[BaseRoute]:
    return ()


@dataclass(frozen=True)
class Tab:
    """A tab's state, what computes its answer, and what it needs of the server.

    ``compute`` gets the request, and the folder of runs as well if ``reads_runs``. ``body_limit`` is the most bytes that a
    request may have. ``routes`` adds addresses of the tab's own, such as a page to show in a frame.
    """

    request: type[BaseModel]
    compute: Callable[..., Answer]
    reads_runs: bool = False
    body_limit: int = MEBIBYTE
    routes: Callable[[Path], Sequence[BaseRoute]] = _no_routes


TABS: dict[str, Tab] = {
    "digit": Tab(digit.DigitRequest, digit.compute),
    "number": Tab(number.NumberRequest, number.compute),
    "label": Tab(label.LabelRequest, label.compute),
    "answer": Tab(answer.AnswerRequest, answer.compute, reads_runs=True),
    "landscape": Tab(landscape.LandscapeRequest, landscape.compute),
    "tokenizer": Tab(tokenizer.TokenizerRequest, tokenizer.compute, routes=tokenizer.routes),
    "results": Tab(results.ResultsRequest, results.compute, reads_runs=True, routes=results.routes),
}
