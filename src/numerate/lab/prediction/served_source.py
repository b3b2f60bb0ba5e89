"""Models of servers to predict with: of ``numerate serve``, or any other with OpenAI's API.

``numerate serve`` says how its model is asked and how its intervals are calibrated, and returns distributions: the predictions
are then those of the model on the server's machine. With other servers, the distribution is searched by requests for the next
token (:func:`numerate.decode.served_distribution`).
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, NamedTuple

from numerate.checks import one_line
from numerate.decode.connection import RejectedError, each
from numerate.decode.grammar import ANY_NUMBER, Grammar
from numerate.decode.members import NoNumberError
from numerate.decode.server import CompletionServer
from numerate.distribution import NumberDistribution
from numerate.distribution.shares import SHARES
from numerate.lab.data.columns import shown_value
from numerate.lab.data.regression import Regression, Row
from numerate.lab.evaluation.decisions import GREEDY
from numerate.lab.models.questions import ANY_PROMPT, Questions
from numerate.lab.prediction.answering import Deciding, Interval, Searched, Source, draw_seed, in_format

OWNER = "numerate"
"""Who owns the models of ``numerate serve``."""


@dataclass(frozen=True, kw_only=True)
class ServedSource(Source):
    """A model of a server, and how it is asked."""

    server: CompletionServer  # that has the model
    tokenizer: Any = None  # of the model, for an exact search; None: texts are sent
    card: Mapping[str, Any] | None = None  # what ``numerate serve`` says about the model; None: another server

    @property
    def trained(self) -> bool:
        """Whether it was trained by ``numerate train``."""
        return False

    @property
    def weights(self) -> str | None:
        """A mark that changes when the weights of the model change; None if the server does not say."""
        return None if self.card is None else self.card.get("weights")

    @property
    def calibration(self) -> Mapping[str, Any] | None:
        """How the server calibrates intervals; None if it does not."""
        return None if self.card is None else self.card.get("calibration")

    @property
    def words_rows(self) -> bool:
        """Whether the server words questions about rows itself, in the words of ``questions``."""
        return self.card is not None and self.card["questions"]["target"] is not None

    def answering(self, decide: str, interval: Interval, width: int | None, batch_size: int) -> Deciding:
        """Return the model, ready to be asked."""
        kind = ReturnedAnswering if self.card is not None else SearchedAnswering
        return kind(self, decide, interval, width, batch_size)


def find_served(
    server: CompletionServer,
    target: str | None = None,
    prompt: str | None = None,
    format: str | None = None,
    *,
    tokenizer: str | None = None,
) -> ServedSource:
    """Return the model of a server, which is asked what it says about it; ``tokenizer`` is a name or a folder."""
    questions, card = Questions(Regression(target=target), template=prompt), _card(server)
    if card is None:
        return searched_source(server, questions, format, tokenizer)
    for name, value in (("format", format), ("tokenizer", tokenizer), ("chat", server.chat or None)):
        if value is not None:
            raise ValueError(f"{name}={value!r} has no effect on {server.base_url}, which is numerate serve: leave it out.")
    try:
        asked, members = Questions.from_dict(card["questions"]), int(card["members"])
    except (LookupError, TypeError, ValueError) as error:
        raise ValueError(
            f"{server.base_url} does not say how model={server.model!r} is asked ({one_line(error)}): expected numerate serve of "
            "the same version."
        ) from None
    if asked.task.target is not None or asked.template not in (None, ANY_PROMPT):
        for name, value, own in (("target", target, asked.task.target), ("prompt", prompt, asked.template)):
            if value not in (None, own):
                raise ValueError(
                    f"{name}={value!r} does not belong to model={server.model!r}, which {server.base_url} asks with "
                    f"{name}={own!r}: leave it out."
                )
        questions = asked
    elif asked.template is not None and prompt is None:
        raise ValueError(
            f"prompt is not given, and {server.base_url} does not word questions for model={server.model!r}: write the question "
            "(--prompt 'A flat of {area} m2 costs'), or start the server with --target."
        )
    return ServedSource(server.model, replace(questions, members=members), server=server, card=card)


def searched_source(server: CompletionServer, questions: Questions, format: str | None, tokenizer: str | None) -> ServedSource:
    """Return the model of a server that is not ``numerate serve``; it is not asked yet."""
    loaded = None
    if tokenizer is not None:
        from numerate.tokenizers import load_tokenizer

        loaded = load_tokenizer(tokenizer)
    return ServedSource(server.model, in_format(questions, server.model, format), server=server, tokenizer=loaded)


def _card(server: CompletionServer) -> Mapping[str, Any] | None:
    """Return what ``numerate serve`` says about the model; None if another server has it."""
    try:
        listed = json.loads(server.request(f"{server.base_url.rstrip('/')}/models", None, threading.Event()))["data"]
        cards = {one["id"]: one["numerate"] for one in listed if one["owned_by"] == OWNER}
    except (RejectedError, ValueError, LookupError, TypeError, RecursionError):  # the next request reports a server that fails
        return None
    if cards and server.model not in cards:
        raise ValueError(f"model={server.model!r} is not served at {server.base_url}: expected {', '.join(map(repr, cards))}.")
    return cards.get(server.model)


class AskedText(NamedTuple):
    """What a server is asked, and the seed of what is drawn."""

    text: str
    seed: int
    cells: Mapping[str, str] = {}  # of a row that the server words; none: the text is asked


@dataclass
class ServedAnswering(Deciding):
    """A model of a server that answers questions."""

    source: ServedSource

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.metric == GREEDY:
            raise ValueError(
                f"decide={self.decide!r} needs no distribution: ask {self.source.server.base_url} itself, or choose another "
                "rule, such as median."
            )

    def search_members(self, rows: Sequence[Row | str], seeds: Sequence[int] = (), **options: Any) -> list[Searched]:
        """Return the distributions over the answers to each question, or why there are none."""
        found = {index: Searched(row) for index, row in enumerate(rows) if isinstance(row, str)}
        asked: dict[int, AskedText] = {}
        for index, row in enumerate(rows):
            if isinstance(row, str):
                continue
            if row.image is not None:
                raise ValueError(
                    f"model={self.source.name!r} of {self.source.server.base_url} cannot be asked about pictures, which the "
                    "column image has: predict with the model itself; rename the column if it is not a picture."
                )
            one = self.asked(row, seeds[index] if seeds else 0)
            problem = self.problem(one.text)
            if problem is None:
                asked[index] = one
            else:
                found[index] = Searched(problem)
        found |= zip(asked, self.found([*asked.values()], **options), strict=True)
        return [found[index] for index in range(len(rows))]

    def is_cut(self, row: Row) -> bool:
        """Return whether long texts of a row are cut; the server does not say."""
        return False

    def asked(self, row: Row, seed: int) -> AskedText:
        """Return what the server is asked about a row."""
        raise NotImplementedError

    def problem(self, text: str) -> str | None:
        """Return why a text cannot be asked."""
        return None

    def found(self, asked: Sequence[AskedText], **options: Any) -> list[Searched]:
        """Ask, and return what was found for each text."""
        raise NotImplementedError

    def said(self, error: RejectedError) -> str:
        """Return why the server does not answer a question."""
        try:
            body = json.loads(error.body)["error"]
            message = body if isinstance(body, str) else str(body["message"])
        except (ValueError, LookupError, TypeError, RecursionError):
            message = str(error)
        return self.source.server.shown(message, most=500)


@dataclass
class ReturnedAnswering(ServedAnswering):
    """A model of ``numerate serve``, which returns distributions."""

    def asked(self, row: Row, seed: int) -> AskedText:
        """Return the question and the seed of a request, and the cells if the server words it: it cuts long ones."""
        cells = row.cells if self.source.words_rows else {}
        return AskedText(row.prompt, seed, {name: shown_value(cell) for name, cell in cells.items()})

    def found(self, asked: Sequence[AskedText], **options: Any) -> list[Searched]:
        """Send a request for each text, several at a time; the server asks its model about them together."""
        return each(self._returned, asked, self.source.server.concurrency)

    def _returned(self, asked: AskedText, stop: threading.Event) -> Searched:
        server = self.source.server
        url = f"{server.base_url.rstrip('/')}/completions"
        question = {"row": asked.cells} if asked.cells else {"prompt": asked.text}
        try:
            answer = server.request(url, {"model": server.model, **question, "seed": asked.seed, "numerate": True}, stop)
        except RejectedError as error:
            if not error.of_this_request:
                raise
            return Searched(self.said(error))
        try:
            (choice,) = json.loads(answer, parse_float=Decimal, parse_int=Decimal)["choices"]
            fields, listed = choice["numerate"], choice["numerate"]["distribution"]
            shares = {name: float(listed[name]) for name in SHARES}
            found = NumberDistribution(listed["values"], [*map(float, listed["probabilities"])], **shares)
            return Searched(found, (), float(fields["disagreement"]) if "disagreement" in fields else None)
        except (ValueError, LookupError, TypeError, ArithmeticError, RecursionError):
            raise ValueError(
                f"{url} returned {server.shown(answer.decode(errors='replace'))!r}: expected a choice with a distribution, as "
                "numerate serve returns it."
            ) from None


@dataclass
class SearchedAnswering(ServedAnswering):
    """A model of another server, which lists the most likely next tokens."""

    def asked(self, row: Row, seed: int) -> AskedText:
        """Return the question as a local model is asked: a template unchanged, others before a new line or in a chat."""
        questions, text = self.source.questions, row.prompt
        if questions.template is None:
            text = questions.format.question(text) + ("" if self.source.server.chat else "\n")
        return AskedText(text, draw_seed(row, seed))

    def problem(self, text: str) -> str | None:
        """Return why a text cannot be asked: it ends within a number."""
        from numerate.decode.served import contexts_of

        try:
            contexts_of([text], None, self._grammar, self.source.server.chat)
        except ValueError as error:
            return str(error).removeprefix("prompts[0] ")
        return None

    def found(self, asked: Sequence[AskedText], **options: Any) -> list[Searched]:
        """Search together; where the server refuses a question, in halves, so that it does not affect the others."""
        from numerate.decode.served import served_distribution

        if not asked:
            return []
        source, texts, seeds = self.source, [one.text for one in asked], [one.seed for one in asked]
        how = {"tokenizer": source.tokenizer, "grammar": self._grammar, "width": self.width, **options}
        try:
            return [*map(Searched, served_distribution(source.server, texts, seed=seeds, **how))]
        except NoNumberError as error:
            problems = {index: why.removeprefix(f"prompts[{index}]: ") for index, why in error.problems.items()}
            return [Searched(problems.get(index, one)) for index, one in enumerate(error.found)]
        except RejectedError as error:
            if not error.of_this_request:
                raise
            if len(asked) == 1:
                return [Searched(self.said(error))]
            half = len(asked) // 2
            return self.found(asked[:half], **options) + self.found(asked[half:], **options)

    @property
    def _grammar(self) -> Grammar:
        return self.source.questions.format.grammar(ANY_NUMBER)
