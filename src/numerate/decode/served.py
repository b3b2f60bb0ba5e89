r"""served_distribution: a model's distribution over numbers from a server that lists the most likely next tokens.

The search is that of :func:`numerate.decode.distribution`, but instead of a forward pass, the prompt with each prefix of a number
is sent to the server, which returns the most likely next tokens. The probability of all others is unknown and counts as
``not_searched``. With ``tokenizer`` less is unknown: an unlisted token is at most as likely as the listed ones, which bounds the
tokens that could continue the number; the remaining probability ends the number.

A prefix sent as text is tokenised by the server, regardless of the tokens that led to it. The search then works on texts:

    P(s) = sum over ways to split the text s into pieces t_1 .. t_n of  q(t_1 | "") · q(t_2 | t_1) · ... · q(t_n | t_1 .. t_{n-1})

where q(t | s) is the probability of the token t after the server's tokenization of the prompt and s. The ways to a text are
mutually exclusive, so no probability is counted twice, and all masses sum to 1. Each text is sent once. The result is exact if
the tokenization of a text is unique, as with one token per digit. Otherwise the continuation of "1" + "2" is approximated by that
of the token "12". With ``tokenizer``, the token ids themselves are sent, and the result is exact.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from heapq import nsmallest
from numbers import Integral, Real
from typing import Any

import numpy as np
import numpy.typing as npt

from numerate.checks import check_integer
from numerate.decode.connection import each
from numerate.decode.format_grammar import check_grammar
from numerate.decode.grammar import Grammar, TextGrammar
from numerate.decode.members import Member, all_pooled, members_of
from numerate.decode.search import Branches, Node, Rest, check_limits, check_seed, search
from numerate.decode.server import CompletionServer, Prompt, Token
from numerate.decode.token_tree import Effect, Fork, TokenTree, token_texts
from numerate.distribution import NumberDistribution
from numerate.formats import NumberFormat

Complete = Callable[[list[Any]], Sequence[Iterable[tuple[Token, float]]]]
"""From texts, or lists of token ids, to the most likely next tokens of each: texts, or ids, with log-probabilities."""

Ask = Callable[[list[Any], list[Any], Sequence[Sequence[int]] | None], Sequence[Iterable[tuple[Token, float]]]]
"""From contexts, prefixes of answers, and the ids that are wanted after each, to the next tokens."""

PROMPTS = 64  # that are searched together
ROUNDING = 0.02  # tolerance for probabilities of a server that sum to more than 1


def served_distribution(
    complete: CompletionServer | Complete | Sequence[CompletionServer | Complete],
    prompts: Sequence[Prompt],
    *,
    tokenizer: Any = None,
    weights: npt.ArrayLike | None = None,
    grammar: Grammar | None = None,
    format: NumberFormat | str | None = None,
    width: int | None = 16,
    covered: float = 0.99,
    rest: Rest = "draw",
    seed: int | Sequence[int] = 0,
    end_tokens: Token | Iterable[Token] = (),
    batch_size: int | None = None,
    progress: Callable[[int, int], object] = lambda done, total: None,
) -> list[NumberDistribution]:
    r"""Return the distribution over the number that a served model would write after each prompt.

    Args:
        complete: a :class:`CompletionServer`, or a function from a list of texts to pairs, for each text, of the most likely
            next tokens and their natural log-probabilities at temperature 1. Or a list of them: the result is their pool
            (:func:`numerate.distribution.pool`). Several servers are asked at the same time; an error of one ends the call.
        prompts: texts that end before the number. For a server with ``chat=True``: the user's messages, or lists of messages.
        tokenizer: the model's tokenizer. Prefixes are then sent and tokens returned as ids, which is exact for every tokenizer
            and leaves less unknown. The server must support token ids (vLLM and llama.cpp do); a function takes tuples of ids and
            returns ids. Prompts may be lists of ids. For several servers also a list.
        weights: of the servers in the pool; equal by default. The weight of a server after whose prompt no number is found counts
            as ``no_number``.
        grammar: as in :func:`distribution`.
        format: as in :func:`distribution`.
        width: beam width: prefixes kept per prompt and step, and thus the maximum number of requests; None for no limit.
        covered: as in :func:`distribution`.
        rest: as in :func:`distribution`.
        seed: as in :func:`distribution`.
        end_tokens: tokens that end a number regardless of their text: texts, or ids with ``tokenizer``.
        batch_size: prompts that are searched together; None: 64, or 1 for llama.cpp, which computes a prompt again if it has
            computed another one in between.
        progress: called with the number of finished prompts and the total.

    Raises:
        ConnectionError: if a server rejects a request or cannot be reached.
        TimeoutError: if it does not respond in time.
        ValueError: if a response has no log-probabilities, a prompt ends inside a number, or no number was found after a prompt;
            the last error has the distributions of the other prompts in ``found``.
            Errors name the URL, and in a list also the place and the model of the server.

    Examples:
        >>> from math import log
        >>> table = {"": {" 1": 0.6, " It": 0.3}, " 1": {"2": 0.5, "\n": 0.4}, " 12": {"\n": 1.0}}
        >>> def complete(texts):
        ...     rows = [table[text.removeprefix("How many?")] for text in texts]
        ...     return [[(token, log(p)) for token, p in row.items()] for row in rows]
        >>> served_distribution(complete, ["How many?"])[0]
        NumberDistribution(2 values 1..12: median 12, 90 % in 1..12, covered 0.54)
        >>> other = lambda texts: [[("." if text.endswith("7") else " 7", 0.0)] for text in texts]
        >>> served_distribution([complete, other], ["How many?"])[0]
        NumberDistribution(3 values 1..12: median 7, 90 % in 1..12, covered 0.77)
    """
    grammar = check_grammar(grammar, format)
    width, seeds = check_limits(width, covered, rest), check_seed(seed)
    if batch_size is not None:
        batch_size = check_integer("batch_size", batch_size, "an integer >= 1 of prompts, or None", least=1)
    ends: set[Any] = {*end_tokens} if isinstance(end_tokens, Iterable) and not isinstance(end_tokens, str) else {end_tokens}
    limits: dict[str, Any] = {"width": width, "covered": covered, "rest": rest}
    members = members_of(complete, tokenizer, weights=weights)
    servers = [_Served(member, prompts, grammar, ends) for member in members]  # raises before the first request
    done, counting, several = 0, threading.Lock(), len(servers) > 1

    def find(place: int, stop: threading.Event) -> list[NumberDistribution | str]:
        nonlocal done
        server, found = servers[place], list[NumberDistribution | str]()
        with _naming(place, members[place].model) if several else nullcontext():
            size = batch_size or server.batch_size
            for first in range(0, len(server.contexts), size):
                indices = range(first, min(first + size, len(server.contexts)))
                drawn = [(seeds, index) if isinstance(seeds, int) else (seeds[index],) for index in indices]
                found += server.find(indices, limits, drawn, stop)
                with counting:
                    done += len(indices)
                    progress(done, len(servers) * len(server.contexts))
        return found

    if several and all(isinstance(member.model, CompletionServer) for member in members):
        answers = each(find, range(len(servers)), len(servers))
    else:  # a function may not expect several threads
        answers = [find(place, threading.Event()) for place in range(len(servers))]
    return all_pooled(members, [*zip(*answers, strict=True)])


@contextmanager
def _naming(place: int, complete: CompletionServer | Complete) -> Iterator[None]:
    """Put the member of a pool before the message of an error."""
    try:
        yield
    except (ConnectionError, TimeoutError, TypeError, ValueError) as error:
        named = f" (model={complete.model!r})" if isinstance(complete, CompletionServer) else ""
        kind = next(kind for kind in (ConnectionError, TimeoutError, TypeError, ValueError) if isinstance(error, kind))
        raise kind(f"complete[{place}]{named}: {error}") from error


class _StoppedError(Exception):
    """Another member of the pool has failed."""


class _Served:
    """A served model with the contexts of its answers: prompts as it takes them."""

    def __init__(self, member: Member, prompts: Sequence[Prompt], grammar: Grammar, ends: set[Any]) -> None:
        complete, self.grammar, self.ends = member.model, grammar, ends
        self.as_ids = member.tokenizer is not None
        self.server = complete if isinstance(complete, CompletionServer) else None
        chat = self.server is not None and self.server.chat
        self.contexts = contexts_of(prompts, member.tokenizer, grammar, chat)
        self.tree = TokenTree(token_texts(member.tokenizer) if self.as_ids else (), grammar, end_token_ids=ends)
        self.ask: Ask = complete.next_tokens if isinstance(complete, CompletionServer) else _joined(complete)

    @property
    def batch_size(self) -> int:
        """How many prompts are searched together; the server is asked what it is if there are several."""
        if self.server is None or len(self.contexts) == 1:
            return PROMPTS
        return 1 if self.server.found_kind == "llama.cpp" else PROMPTS

    def find(
        self, indices: Sequence[int], limits: Mapping[str, Any], seeds: Sequence[Sequence[int]], stop: threading.Event
    ) -> list[NumberDistribution | str]:
        """Return the distributions after these prompts, or why there is none."""

        def ask(
            contexts: list[Any], paths: list[Any], wanted: Sequence[Sequence[int]] | None
        ) -> Sequence[Iterable[tuple[Token, float]]]:
            if stop.is_set():
                raise _StoppedError
            return self.ask(contexts, paths, wanted)

        part = [self.contexts[index] for index in indices]
        expand = _ServedExpansion(ask, part, indices[0], self.tree, self.ends, as_ids=self.as_ids)
        answers = search([""] * len(part), expand, **limits, seeds=seeds)
        return [
            answer.distribution(self.grammar.value)
            or f"prompts[{index}]: no number was found (no number {answer.no_number:.3g}, more digits {answer.more_digits:.3g}, "
            f"not searched or not listed {answer.not_searched:.3g}): expected a number; end the prompt right before it, ask for "
            f"more tokens (top=), raise width={limits['width']}, or widen grammar={self.grammar!r}."
            for index, answer in zip(indices, answers, strict=True)
        ]


class _ServedExpansion:
    """The requests of one search: from nodes to branches. Each prefix of a prompt's answer is sent once."""

    def __init__(self, ask: Ask, contexts: Sequence[Any], first: int, tree: TokenTree, ends: set[Token], *, as_ids: bool) -> None:
        self.ask, self.contexts, self.first, self.tree, self.ends, self.as_ids = ask, contexts, first, tree, ends, as_ids
        self._known: dict[tuple[int, Any], dict[Token, float]] = {}
        self._not_ending: dict[int, tuple[int, ...]] = {}  # by the id of the fork

    def __call__(self, nodes: list[Node]) -> list[Branches]:
        keys = [(node.prompt, node.token_ids if self.as_ids else node.text) for node in nodes]
        new = {key: node.text for key, node in zip(keys, nodes, strict=True) if key not in self._known}
        wanted = [self._needed(text) for text in new.values()] if self.as_ids else None
        answers = self.ask([self.contexts[prompt] for prompt, _ in new], [path for _, path in new], wanted) if new else []
        if len(answers) != len(new):
            raise ValueError(f"complete returned {len(answers)} lists for {len(new)} texts: expected one per text.")
        for (prompt, path), tokens in zip(new, answers, strict=True):
            where = f"after prompts[{self.first + prompt}] and {path!r}"
            self._known[prompt, path] = _shares(tokens, where, Integral if self.as_ids else str)
        return [self._branches(node.text, self._known[key]) for node, key in zip(nodes, keys, strict=True)]

    def _branches(self, text: str, shares: Mapping[Token, float]) -> Branches:
        """Return how the probability of ``text`` is split."""
        going: list[tuple[str, Token, float]] = []
        answers: dict[str, float] = {}
        nothing, exceeding = 0.0, 0.0
        left = max(1 - math.fsum(shares.values()), 0.0)
        unknown = self._unknown(text, shares, left)
        effects = [(*self._split(text, token), token, share) for token, share in shares.items() if share > 0]
        if left > unknown:
            effects.append(("", "ends", "", left - unknown))
        for piece, effect, token, share in effects:
            if effect == "continues":
                going.append((piece, token, share))
            elif effect == "exceeds":
                exceeding += share
            elif (answer := self.tree.answer(text + piece)) is None:
                nothing += share
            else:
                answers[answer] = answers.get(answer, 0.0) + share
        going.sort(key=lambda found: found[0])
        pieces, masses = [piece for piece, _, _ in going], np.array([share for _, _, share in going], dtype=np.float64)
        token_ids = [int(token) for _, token, _ in going] if self.as_ids else ()
        return Branches(pieces, masses, [*answers.items()], nothing, exceeding, unknown, token_ids)

    def _split(self, text: str, token: Token) -> tuple[str, Effect]:
        if token in self.ends:
            return "", "ends"
        return self.tree.split(text, token if isinstance(token, str) else self.tree.texts.get(token, ""))

    def _unknown(self, text: str, shares: Mapping[Token, float], left: float) -> float:
        """Return how much of the probability ``left`` to unlisted tokens may not end the number."""
        if not self.as_ids or len(shares) < 2:
            return left
        # The least likely listed token may be the sampled one, in addition to the most likely ones: take the next.
        most = nsmallest(2, shares.values())[1]
        missing = sum(token not in shares for token in self._needed(text))
        return min(missing * most, left)

    def _needed(self, text: str) -> tuple[int, ...]:
        """Return the tokens after ``text`` whose probability the search needs: all that do not end the number."""
        fork = self.tree.fork(text)
        if id(fork) not in self._not_ending:
            self._not_ending[id(fork)] = _not_ending(fork)
        return self._not_ending[id(fork)]


def _not_ending(fork: Fork) -> tuple[int, ...]:
    """Return the tokens that do not end the number: they continue it, make it too long, or change it."""
    here = None if fork.cut is None else -fork.cut
    late = zip(fork.late_ids.tolist(), fork.late_pieces, fork.late_cuts, strict=True)
    changing = [token_id for token_id, piece, cut in late if (None if cut is None else len(piece) - cut) != here]
    return (*fork.token_ids.tolist(), *fork.exceeding_ids.tolist(), *changing)


def _shares(tokens: Iterable[Any], where: str, kind: type) -> dict[Token, float]:
    """Return the probabilities of the tokens that a server or a function lists."""
    found: dict[Any, float] = {}
    for pair in tokens:
        token, logprob = pair if isinstance(pair, tuple | list) and len(pair) == 2 else (None, None)
        if not isinstance(token, kind) or not isinstance(logprob, Real) or not float(logprob) <= ROUNDING:
            named = "text" if kind is str else "id"
            raise ValueError(
                f"complete returned {pair!r} {where}: expected pairs of a token's {named} and its log-probability, a number <= 0."
            )
        found[token] = found.get(token, 0.0) + math.exp(float(logprob))
    total = math.fsum(found.values())
    if total > 1 + ROUNDING:
        raise ValueError(
            f"complete returned probabilities {where} that sum to {total:.4g}: expected at most 1; return natural logarithms of "
            "the probabilities of single tokens, without duplicates."
        )
    return {token: share / max(total, 1.0) for token, share in found.items()}


def _joined(complete: Complete) -> Ask:
    if not callable(complete):
        raise TypeError(
            f"complete is a {type(complete).__name__}: expected a CompletionServer, or a function from texts to the most likely "
            "next tokens of each."
        )

    def ask(
        contexts: list[Any], paths: list[Any], wanted: Sequence[Sequence[int]] | None
    ) -> Sequence[Iterable[tuple[Token, float]]]:
        return complete([context + path for context, path in zip(contexts, paths, strict=True)])

    return ask


def _is_id(part: Any) -> bool:
    return isinstance(part, Integral) and not isinstance(part, bool)


def contexts_of(prompts: Any, tokenizer: Any, grammar: Grammar, chat: bool) -> list[Any]:
    """Return the context of each answer: texts, chat messages, or token ids."""
    if isinstance(prompts, str | Mapping) or not isinstance(prompts, Sequence):
        raise TypeError(f"prompts is a {type(prompts).__name__}: expected a list of prompts.")
    if chat and tokenizer is not None:
        raise ValueError(
            "tokenizer is given for a server with chat=True: expected chat=False; apply the tokenizer's chat template yourself, "
            "and pass prompts as lists of token ids."
        )
    contexts: list[Any] = []
    for index, prompt in enumerate(prompts):
        if isinstance(prompt, str):
            if not chat and prompt[-1:].isdigit() and not isinstance(grammar, TextGrammar):
                raise ValueError(
                    f"prompts[{index}] ends with {prompt[-12:]!r}, within a number: expected a prompt that ends before the "
                    "number; end it with the text right before the answer, such as ' =' or a new line."
                )
            contexts.append(prompt if tokenizer is None else tuple(tokenizer(prompt)["input_ids"]))
        elif isinstance(prompt, Sequence) and prompt and all(isinstance(part, Mapping) for part in prompt) and chat:
            contexts.append(prompt)
        elif isinstance(prompt, Sequence) and all(_is_id(part) for part in prompt) and tokenizer is not None:
            contexts.append(tuple(map(int, prompt)))
        else:
            raise TypeError(
                f"prompts[{index}] is a {type(prompt).__name__}: expected a text, a list of token ids with tokenizer=, or a list "
                "of messages for a server with chat=True."
            )
    return contexts
