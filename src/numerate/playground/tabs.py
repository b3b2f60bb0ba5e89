"""The tabs of the playground, in the order shown.

A tab is a module here with the state that the browser sends, a :class:`~numerate.playground.request.TabRequest` of its own name
(``DigitRequest``), and ``compute``, which turns it into JSON; and ``page/tabs/NAME.js``, which draws the answer and is imported
by ``page/shell.js``. A ``ValueError`` of ``compute`` is shown to the user as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pydantic import BaseModel

from numerate.playground import answer, digit, label, landscape, number

Answer = dict[str, object]


@dataclass(frozen=True)
class Tab:
    """A tab's state, and what computes its answer from the request, and from the folder of runs as well if ``reads_runs``."""

    request: type[BaseModel]
    compute: Callable[..., Answer]
    reads_runs: bool = False


TABS: dict[str, Tab] = {
    "answer": Tab(answer.AnswerRequest, answer.compute, reads_runs=True),
    "digit": Tab(digit.DigitRequest, digit.compute),
    "number": Tab(number.NumberRequest, number.compute),
    "label": Tab(label.LabelRequest, label.compute),
    "landscape": Tab(landscape.LandscapeRequest, landscape.compute),
}
