"""NumberFinder: searches the numbers that may follow rows of a model, a forward pass per token."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from numerate.checks import check_integer, check_number
from numerate.decode.format_grammar import check_grammar
from numerate.decode.grammar import Grammar, TextGrammar
from numerate.decode.rows import Rows
from numerate.decode.search import Answers, Branches, Node, Rest, Watch, check_limits, search
from numerate.decode.token_tree import Fork, TokenTree, token_texts
from numerate.distribution.exact import Floats
from numerate.formats import NumberFormat

_CPU_MEMORY = 2**30


class NumberFinder:
    """Searches the numbers that may follow rows of a model; the arguments are those of :func:`numerate.decode.distribution`."""

    def __init__(
        self,
        tokenizer: Any,
        grammar: Grammar | None = None,
        *,
        format: NumberFormat | str | None = None,
        width: int | None = 16,
        covered: float = 0.99,
        rest: Rest = "draw",
        temperature: float = 1.0,
        end_token_ids: Any = (),
        memory: int | None = None,
        watch: Watch = lambda nodes, branches: None,
    ) -> None:
        self.grammar = check_grammar(grammar, format)
        self.width, self.covered = check_limits(width, covered, rest), covered
        self.rest: Rest = rest
        self.temperature = check_number("temperature", temperature, above=0)
        expected = "an integer >= 0 of bytes, or None"
        self.memory = None if memory is None else check_integer("memory", memory, expected, least=0)
        self.watch = watch
        ids = end_token_ids.reshape(-1).tolist() if isinstance(end_token_ids, Tensor) else end_token_ids
        listed = [*ids] if isinstance(ids, Iterable) else [ids]
        ends = {check_integer("end_token_ids", i, "a token id, or several", least=0) for i in listed}
        self.texts = {token_id: text for text, token_id in token_texts(tokenizer)}
        self.tree = TokenTree([(text, i) for i, text in self.texts.items()], self.grammar, end_token_ids=ends)
        if not self.tree.fork("").pieces:
            raise ValueError(
                f"tokenizer={type(tokenizer).__name__} has no token with which a number of {self.grammar!r} begins: expected "
                "tokens for its characters; use the model's own tokenizer."
            )

    @cached_property
    def unspaced(self) -> Tensor:
        """The ids of the tokens that begin a number, or more, without white space before it."""
        fork = self.tree.fork("")
        ids = [*fork.ids, *fork.late_ids.tolist(), *fork.exceeding_ids.tolist()]
        return torch.tensor([i for i in ids if self.texts[i][0] not in self.tree.spaces], dtype=torch.long)

    def find(self, rows: Rows, indices: Sequence[int], seeds: Sequence[Sequence[int]]) -> list[Answers]:
        """Return the answers that may follow each row: ``indices`` and :func:`prompt_seeds` are those of the prompts."""
        self._check(rows, indices)
        memory = _default_memory(rows.scores.device) if self.memory is None else self.memory
        most = len(rows) if self.width is None else max(1, memory // max(1, rows.bytes_per_row * self.width))
        found: list[Answers] = []
        for first in range(0, len(rows), most):
            chosen = range(first, min(first + most, len(rows)))
            part = rows if most >= len(rows) else rows.select(torch.tensor(chosen))
            drawn = [seeds[row] for row in chosen]
            answers = self._search(part, drawn, self.width, self.covered)
            for index, answer in enumerate(answers):
                for wider in (1024,) if self.width is None else (8 * self.width, 64 * self.width):
                    if not answer.has_number(self.grammar.value):  # prefixes that led nowhere, such as a minus
                        answer = self._search(part.select(torch.tensor([index])), drawn[index : index + 1], wider, 1.0)[0]
                answers[index] = answer
            found += answers
        return found

    def _search(self, rows: Rows, seeds: Sequence[Sequence[int]], width: int | None, covered: float) -> list[Answers]:
        limits: dict[str, Any] = {"width": width, "covered": covered, "rest": self.rest}
        return search([""] * len(rows), _Expansion(rows, self), **limits, seeds=seeds, watch=self.watch)

    def _check(self, rows: Rows, indices: Sequence[int]) -> None:
        """Raise if a row ends within a number that may go on, or if there are fewer scores than tokens."""
        needed = 1 + max(self.tree.texts)
        if rows.scores.shape[1] < needed:
            raise ValueError(
                f"the model has {rows.scores.shape[1]} scores, but token id {needed - 1} is needed: expected the tokenizer that "
                "belongs to the model."
            )
        if rows.model.config.is_encoder_decoder:
            return
        last = rows.input_ids[:, -1].tolist() if rows.input_ids.shape[1] else []
        for row, (index, token_id) in enumerate(zip(indices, last, strict=False)):
            text = self.texts.get(token_id, "")
            if (
                text[-1:].isdigit()
                and not isinstance(self.grammar, TextGrammar)
                and bool((rows.scores[row, self.unspaced.to(rows.scores.device)] > -torch.inf).any())
            ):
                raise ValueError(
                    f"prompts[{index}] ends with {text!r}, within a number: expected a prompt that ends before the number; end "
                    "it with the text that comes before the answer, such as ' =' or a new line."
                )


SETTINGS = {*inspect.signature(NumberFinder).parameters} - {"tokenizer"}


def prompt_seeds(indices: Sequence[int], seed: int | Sequence[int]) -> list[tuple[int, ...]]:
    """Return what decides the draws for each prompt: one seed with the prompt's index, or a seed of its own."""
    return [(seed, index) for index in indices] if isinstance(seed, int) else [(own,) for own in seed]


def _default_memory(device: torch.device) -> int:
    """Return a quarter of what a GPU has free, or 1 GiB on a CPU."""
    if device.type != "cuda":
        return _CPU_MEMORY
    free, _ = torch.cuda.mem_get_info(device)
    return (free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)) // 4


class _Expansion:
    """The forward passes of one search: nodes in, branches out."""

    def __init__(self, rows: Rows, finder: NumberFinder) -> None:
        self.rows, self.finder = rows, finder
        self._forks: list[Fork] = []

    def __call__(self, nodes: list[Node]) -> list[Branches]:
        if self._forks:  # not at the roots
            tokens = torch.tensor([node.token_ids[-1] for node in nodes])
            self.rows = self.rows.select(torch.tensor([node.parent for node in nodes]))
            self.rows.feed(tokens)
            states = [self._forks[node.parent].states[node.branch] for node in nodes]
        else:
            states = [None] * len(nodes)
        self._forks = [self.finder.tree.fork(node.text, state) for node, state in zip(nodes, states, strict=True)]
        scores = self.rows.scores if self.finder.temperature == 1 else self.rows.scores / self.finder.temperature
        branches: list[Branches | None] = [None] * len(nodes)
        by_fork: dict[int, list[int]] = {}
        for index, fork in enumerate(self._forks):
            by_fork.setdefault(id(fork), []).append(index)
        for members in by_fork.values():
            texts = [nodes[index].text.lstrip(self.finder.tree.spaces) for index in members]
            shares, ends = _shares(scores, self._forks[members[0]], members, texts)
            for index, found in zip(members, _branches(self._forks[members[0]], texts, shares, ends), strict=True):
                branches[index] = found
        return branches  # type: ignore[return-value]


def _shares(scores: Tensor, fork: Fork, members: list[int], texts: list[str]) -> tuple[Floats, list[float]]:
    """Return the probabilities ``[M, C + L + X]`` of the tokens of a fork, and of all others together, for rows in its state."""
    columns = torch.cat([fork.token_ids, fork.late_ids, fork.exceeding_ids]).to(scores.device)
    others = scores[torch.tensor(members, device=scores.device)]  # [M, V]
    listed = others[:, columns]
    others[:, columns] = -torch.inf
    over = others.logsumexp(-1, keepdim=True)
    totals = torch.logaddexp(over, listed.logsumexp(-1, keepdim=True)) if len(columns) else over
    if not bool(totals.isfinite().all()):
        row = int((~totals.isfinite()).nonzero()[0, 0])
        raise ValueError(
            f"scores after {texts[row]!r} are {'NaN' if totals[row].isnan() else 'infinite'}: expected finite numbers; float16 "
            "may overflow (use bfloat16 or float32), and a row needs a token that is not masked."
        )
    shares = torch.cat([listed, over], dim=1).sub_(totals).double().exp().cpu().numpy()
    shares /= shares.sum(1, keepdims=True)
    return shares[:, :-1], shares[:, -1].tolist()


def _branches(fork: Fork, texts: list[str], shares: Floats, ends: list[float]) -> Iterator[Branches]:
    """Yield the branches of nodes in the state of ``fork``; ``ends`` are the probabilities that the text ends at once."""
    going, late = len(fork.token_ids), len(fork.late_ids)
    exceeding = shares[:, going + late :].sum(1).tolist()
    begun = shares[:, :going]
    # Thousands of tokens may have the same piece, such as those that begin with a point.
    firsts = [first for first, _, _ in fork.late_groups]
    endings = np.add.reduceat(shares[:, going : going + late], firsts, axis=1).tolist() if late else [()] * len(texts)
    for index, (text, end, beyond) in enumerate(zip(texts, ends, exceeding, strict=True)):
        answers, nothing = list[tuple[str, float]](), 0.0
        if fork.cut is None:
            nothing = end
        elif end > 0:
            answers.append((text[: len(text) - fork.cut], end))
        for (_, piece, cut), share in zip(fork.late_groups, endings[index], strict=True):
            if cut is None:
                nothing += share
            elif share > 0:
                answers.append(((text + piece)[: len(text) + len(piece) - cut], share))
        yield Branches(fork.pieces, begun[index], answers, nothing, beyond, 0.0, fork.ids)


def nothing_found(index: int, answer: Answers, finder: NumberFinder) -> str:
    """Return why a prompt has no distribution."""
    masses = f"no number {answer.no_number:.3g}, more digits {answer.more_digits:.3g}, not searched {answer.not_searched:.3g}"
    if finder.width is None and finder.covered == 1:
        return (
            f"prompts[{index}]: the model gives every number a probability of 0 ({masses}): expected some; widen "
            f"grammar={finder.grammar!r}, or check that the tokenizer belongs to the model."
        )
    return (
        f"prompts[{index}]: none of the {finder.width} prefixes searched led to a number ({masses}): expected one at least; "
        f"widen grammar={finder.grammar!r}, use a larger width, or check that the tokenizer belongs to the model."
    )
