"""The tabs of the playground, in the order shown.

A tab is a module here with a subclass of :class:`~numerate.playground.request.TabRequest` (``DigitRequest``), the state that the
browser sends, and ``compute``, which returns JSON; and ``page/tabs/NAME.js``, which ``page/shell.js`` imports and which draws the
result. The message of a ``ValueError`` in ``compute`` is shown to the user.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pydantic import BaseModel

from numerate.playground import answer, digit, label, landscape, number

Answer = dict[str, object]


@dataclass(frozen=True)
class Tab:
    """The request of a tab and its ``compute``, which also takes the runs folder if ``reads_runs``."""

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
