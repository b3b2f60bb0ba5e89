"""Models to serve: one of this machine, or of another server, whose next tokens give its distribution."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from numerate.checks import check_number
from numerate.decode.server import CompletionServer, Prompt, Token
from numerate.lab.data.regression import Regression
from numerate.lab.models.questions import ANY_PROMPT, Questions
from numerate.lab.prediction.answering import find_source, parse_rule
from numerate.lab.prediction.calibration import AUTO, WIDTH, calibrated_answering, find_known
from numerate.lab.prediction.predict import intervals_note
from numerate.lab.prediction.served_source import SearchedAnswering, searched_source
from numerate.serve.server import Answer, AskedQuestion, ServedModel

AT_ONCE = 8  # questions to another server


def local_model(
    model: str | Path,
    *,
    name: str | None = None,
    target: str | None = None,
    prompt: str | None = None,
    format: str | None = None,
    decide: str = "median",
    interval: float = 0.9,
    calibrate: str | Path = AUTO,
    width: int | None = WIDTH,
    batch_size: int = 64,
    say: Callable[[str], object] = lambda text: None,
) -> ServedModel:
    """Load a model, or a run of ``numerate train``, and ask, decide and calibrate as ``numerate predict`` does.

    Code that comes with a model is never run.
    The arguments are those of :func:`numerate.lab.predict`, and the ``name`` by which requests call the model: by default, the
    last part of ``model``.
    """
    parse_rule(decide)
    level = check_number("interval", interval, above=0, most=0.9999, hint="0.9 is the central 90 %.")
    source = find_source(str(model), target, prompt, format)
    if not source.trained and target is None and prompt is None:
        source = find_source(str(model), None, ANY_PROMPT, format)
    known = find_known(source, str(calibrate), level, width)
    say(intervals_note(known))
    answering, fit = calibrated_answering(source, decide, level, known, width, batch_size)
    calibration = None if known is None or fit is None else {"table": known.content, **fit.to_dict()}

    def answer(questions: list[AskedQuestion]) -> Sequence[Answer]:
        return answering.predict([one.row for one in questions], [one.seed for one in questions])

    name = name or Path(model).resolve().name
    return ServedModel(name, source.questions, decide, level, answer, calibration=calibration, weights=source.weights)


@dataclass(frozen=True)
class PunctualServer(CompletionServer):
    """A server that is not asked after ``deadline``, a time of :func:`time.monotonic`: nobody waits for the answer then."""

    deadline: float = math.inf

    def next_tokens(
        self, prompts: Sequence[Prompt], beginnings: Sequence[Any], wanted: Sequence[Sequence[int]] | None = None
    ) -> list[list[tuple[Token, float]]]:
        """Return the most likely next tokens, as a :class:`CompletionServer` does; raise after the deadline."""
        if time.monotonic() > self.deadline:
            raise TimeoutError(f"{self.base_url} was too slow.")
        return super().next_tokens(prompts, beginnings, wanted)


def upstream_model(
    model: str,
    url: str,
    *,
    chat: bool = False,
    tokenizer: str | None = None,
    api_key_variable: str | None = None,
    timeout: float = 300.0,
    name: str | None = None,
    target: str | None = None,
    prompt: str | None = None,
    format: str | None = None,
    decide: str = "median",
    interval: float = 0.9,
    width: int | None = 16,
) -> ServedModel:
    """Return a model that another server has under the name ``model``; it is not asked yet.

    ``chat`` and ``api_key_variable`` are those of :class:`numerate.decode.CompletionServer`, ``tokenizer`` is loaded by
    :func:`numerate.tokenizers.load_tokenizer`, and ``timeout`` is the time for an answer; the other arguments are those of
    :func:`local_model`.
    """
    level = check_number("interval", interval, above=0, most=0.9999, hint="0.9 is the central 90 %.")
    own = Questions(Regression(target=target), template=ANY_PROMPT if target is None and prompt is None else prompt)
    server = PunctualServer(url, model, chat=chat, api_key_variable=api_key_variable, timeout=min(timeout, 60.0), retries=1)
    source = searched_source(server, own, format, tokenizer)
    answering = SearchedAnswering(source, decide, lambda found: found.interval(level), width)

    alone = threading.Lock()

    def answer(asked: list[AskedQuestion]) -> Sequence[Answer]:
        deadline, kind = time.monotonic() + timeout, server.found_kind
        punctual = replace(source, server=replace(server, deadline=deadline, kind=kind))
        try:
            # llama.cpp computes a prompt again if it has computed another one in between
            with alone if kind == "llama.cpp" else nullcontext():
                return replace(answering, source=punctual).predict([one.row for one in asked], [one.seed for one in asked])
        except ValueError as error:  # what the server returned is of no use
            raise ConnectionError(str(error)) from error

    return ServedModel(name or model, source.questions, decide, level, answer, AT_ONCE)
