"""A model of another server to serve: its distribution is found from the next tokens that the other server lists."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from numerate.checks import check_number
from numerate.decode.format_grammar import check_grammar
from numerate.decode.members import NoNumberError
from numerate.decode.served import served_distribution
from numerate.decode.server import CompletionServer, Prompt, Token
from numerate.formats import NumberFormat
from numerate.lab.data.regression import Regression
from numerate.lab.data.task_format import format_of
from numerate.lab.evaluation.decisions import GREEDY
from numerate.lab.models.questions import Questions
from numerate.lab.prediction.answering import Searched, draw_seed, parse_rule
from numerate.lab.prediction.prediction_file import Prediction
from numerate.serve.local_model import ANY_PROMPT
from numerate.serve.server import Answer, AskedQuestion, ServedModel

AT_ONCE = 8  # questions


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
    :func:`numerate.serve.local_model.local_model`.
    """
    metric, tolerances = parse_rule(decide)
    if metric == GREEDY:
        raise ValueError(f"decide={decide!r} needs no distribution: ask {url} itself, or choose another rule, such as median.")
    level = check_number("interval", interval, above=0, most=0.9999, hint="0.9 is the central 90 %.")
    grammar = check_grammar(None, None if format is None else NumberFormat(*format_of(format)))
    questions = Questions(Regression(target=target), template=ANY_PROMPT if target is None and prompt is None else prompt)
    server = PunctualServer(url, model, chat=chat, api_key_variable=api_key_variable, timeout=min(timeout, 60.0), retries=1)
    loaded = None
    if tokenizer is not None:
        from numerate.tokenizers import load_tokenizer

        loaded = load_tokenizer(tokenizer)

    def answer(asked: list[AskedQuestion]) -> Sequence[Answer]:
        kind = server.kind if loaded is None else server.found_kind  # asked once
        punctual = replace(server, deadline=time.monotonic() + timeout, kind=kind)
        options: dict[str, Any] = {"tokenizer": loaded, "grammar": grammar, "width": width}
        return [_answer(punctual, one, options) for one in asked]

    def _answer(punctual: CompletionServer, asked: AskedQuestion, options: dict[str, Any]) -> Answer:
        try:
            (found,) = served_distribution(punctual, [asked.row.prompt], seed=[draw_seed(*asked)], **options)
        except NoNumberError as error:
            problem = str(error).removeprefix("prompts[0]: ")
            return Searched(problem), Prediction(problem=problem)
        except ValueError as error:  # what the server returned is of no use
            raise ConnectionError(str(error)) from error
        low, high = found.interval(level)
        value = found.decide(metric, **tolerances)
        return Searched(found), Prediction(value, low, high, found.covered, found.no_number)

    return ServedModel(name or model, questions, decide, level, answer, AT_ONCE)
