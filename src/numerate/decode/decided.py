"""DecideNumbers: a ``custom_generate`` for transformers that writes text greedily and decides each number by a metric."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Decimal
from functools import cache
from typing import Any

import torch
from torch import Tensor
from transformers.generation.utils import GenerateDecoderOnlyOutput

from numerate.checks import check_integer
from numerate.decode.finder import NumberFinder, prompt_seeds
from numerate.decode.grammar import Grammar
from numerate.decode.model import ends_of
from numerate.decode.rows import Rows
from numerate.decode.search import Answers, check_seed
from numerate.decode.token_tree import TokenTree
from numerate.distribution import NumberDistribution
from numerate.distribution.decision_rules import Cost
from numerate.formats import NumberFormat


@dataclass
class DecidedOutput(GenerateDecoderOnlyOutput):  # type: ignore[misc]
    """Output of ``generate`` with ``return_dict_in_generate=True``.

    Attributes:
        sequences: ``[B, T]``, prompts and answers; without the prompts for an encoder-decoder.
        distributions: for each row, the distributions of its numbers in order.
    """

    distributions: tuple[tuple[NumberDistribution, ...], ...] | None = None


_END = "\0"  # stands for a token that cannot be part of a number


@dataclass
class _Writing:
    """Rows of equal length that are generated together, and their indices in the batch.

    ``last`` has, for each row of the batch, its last decided number and the text since its start, while that text could still
    become a longer number: ``12`` and ``12.``.
    """

    rows: Rows
    members: list[int]
    last: dict[int, tuple[str, str]]

    def select(self, index: Sequence[int]) -> _Writing:
        return _Writing(self.rows.select(torch.tensor(index)), [self.members[i] for i in index], self.last)

    def keep_numbers(self, tree: TokenTree) -> None:
        """Forbid tokens that would change a decided number. A full stop or a comma may follow it."""
        for row, member in enumerate(self.members):
            number, text = self.last.get(member, ("", _END))
            if tree.state(text) is None:
                self.last.pop(member, None)
                continue
            fork = tree.fork(text)
            longer = [*zip(fork.ids, fork.pieces, strict=True), *zip(fork.late_ids.tolist(), fork.late_pieces, strict=True)]
            changing = [i for i, piece in longer if any(map(str.isdigit, piece)) or tree.answer(text + piece) != number]
            self.rows.scores[row, [*changing, *fork.exceeding_ids.tolist()]] = -torch.inf


class DecideNumbers:
    """A ``custom_generate`` for transformers whose numbers minimize the expected error under a metric.

    Text is generated greedily. If the most likely token starts a number, the distribution over the complete number is searched,
    the number with the smallest expected cost is written instead, and generation continues after it. A digit after a letter
    (``H2O``, ``v2``) is text, and so is a dash that greedy decoding does not follow with a digit. Later tokens cannot change the
    number: no digit follows ``12.``. Returns what ``generate`` returns: token ids, or with ``return_dict_in_generate=True`` a
    :class:`DecidedOutput` with ``sequences`` and ``distributions``.

    Args:
        tokenizer: the model's tokenizer or processor.
        metric: a rule of :meth:`NumberDistribution.decide`, or a cost function.
        grammar: the form of numbers, see :func:`numerate.decode.distribution`; for coordinates such as ``12,345`` use
            ``NumberGrammar(thousands=False)``.
        format: how numbers are written, see :func:`numerate.decode.distribution`.
        most_numbers: decide only this many numbers of an answer and generate the others greedily. None: all.
        rule: other arguments of :meth:`NumberDistribution.decide`, such as ``{"tolerance": 5}``.
        seed: seed of the search's draws.
        **search: ``width``, ``covered``, ``rest``, ``temperature`` and ``memory`` of :func:`numerate.decode.distribution`.

    Example::

        median = DecideNumbers(tokenizer, "median")
        model.generate(**inputs, custom_generate=median, max_new_tokens=32)
    """

    def __init__(
        self,
        tokenizer: Any,
        metric: str | Cost = "median",
        *,
        grammar: Grammar | None = None,
        format: NumberFormat | str | None = None,
        most_numbers: int | None = None,
        rule: Mapping[str, Any] | None = None,
        seed: int = 0,
        **search: Any,
    ) -> None:
        if most_numbers is not None:
            most_numbers = check_integer("most_numbers", most_numbers, "an integer >= 0, or None for all", least=0)
        self.metric, self.rule, self.seed, self.most_numbers = metric, dict(rule or {}), check_seed(seed), most_numbers
        NumberDistribution.point(1).decide(metric, **self.rule)  # raises now for a wrong rule
        self._finder: Callable[[tuple[int, ...]], NumberFinder] = cache(
            lambda ends: NumberFinder(tokenizer, grammar, format=format, end_token_ids=ends, **search)
        )
        self._finder(())  # raises now for a wrong setting

    @torch.no_grad()
    def __call__(
        self,
        model: Any,
        input_ids: Tensor,
        logits_processor: Any,
        stopping_criteria: Any,
        generation_config: Any,
        synced_gpus: bool = False,
        streamer: Any = None,
        **model_kwargs: Any,
    ) -> Tensor | DecidedOutput:
        """Generate the answers; called by ``generate``."""
        for name, value, wanted in (
            ("num_beams", generation_config.num_beams, (None, 1)),
            ("do_sample", generation_config.do_sample, (None, False)),
            ("streamer", streamer, (None,)),
        ):
            if value not in wanted:
                raise ValueError(f"{name}={value!r} is not supported by DecideNumbers: expected {wanted[-1]!r}; leave it out.")
        finder = self._finder(tuple(ends_of(generation_config)))
        length = input_ids.shape[1]
        written: dict[int, list[int]] = {}
        found: list[list[NumberDistribution]] = [[] for _ in range(input_ids.shape[0])]
        rows = Rows(model, input_ids, model_kwargs, logits_processor)
        waiting = [_Writing(rows, [*range(len(rows))], {})]
        while waiting:
            group = waiting.pop()
            over = stopping_criteria(group.rows.input_ids, None) if group.rows.input_ids.shape[1] > length else None
            if over is not None and bool(over.any()):
                for index in over.nonzero()[:, 0].tolist():
                    written[group.members[index]] = group.rows.input_ids[index, length:].tolist()
                going = (~over).nonzero()[:, 0].tolist()
                if not going:
                    continue
                group = group.select(going)
            waiting += self._go_on(group, finder, found)
        sequences = _padded(input_ids, [written[row] for row in range(len(found))], generation_config)
        if not generation_config.return_dict_in_generate:
            return sequences
        return DecidedOutput(sequences=sequences, distributions=tuple(map(tuple, found)))

    def _go_on(self, group: _Writing, finder: NumberFinder, found: list[list[NumberDistribution]]) -> list[_Writing]:
        """Generate the next token or number of each row; return groups of rows of equal length."""
        best = group.rows.scores.argmax(-1)
        decided: dict[int, tuple[tuple[int, ...], str]] = {}
        if numbers := self._beginning(group, best, finder, found):
            part = group.select(numbers)
            for row, last in enumerate(part.rows.input_ids[:, -1:].tolist()):
                if _in_word(finder, last):  # only a number after white space is not part of the word
                    part.rows.scores[row, finder.unspaced.to(best.device)] = -torch.inf
            seeds = prompt_seeds(part.members, self.seed)
            for index, answers in zip(numbers, finder.find(part.rows, part.members, seeds), strict=True):
                one = answers.distribution(finder.grammar.value)
                if one is not None:
                    found[group.members[index]].append(one)
                    decided[index] = self._tokens(finder, answers, one)
        texts = [index for index in range(len(group.members)) if index not in decided]
        groups = []
        if texts:
            plain = group.select(texts) if decided else group
            tokens = best[torch.tensor(texts, device=best.device)]
            plain.rows.feed(tokens)
            for member, token in zip(plain.members, tokens.tolist(), strict=True):
                if member in plain.last:
                    number, text = plain.last[member]
                    plain.last[member] = number, text + finder.texts.get(token, _END)
            groups.append(plain)
        for count in {len(token_ids) for token_ids, _ in decided.values()}:
            same = [index for index, (token_ids, _) in decided.items() if len(token_ids) == count]
            part = group.select(same)
            for column in torch.tensor([decided[index][0] for index in same]).T:
                part.rows.feed(column)
            part.last.update((group.members[index], (decided[index][1], decided[index][1])) for index in same)
            groups.append(part)
        for written in groups:
            written.keep_numbers(finder.tree)
        return groups

    def _beginning(self, group: _Writing, best: Tensor, finder: NumberFinder, found: list[list[NumberDistribution]]) -> list[int]:
        """Return the rows that continue with a number: not only white space, not inside a word, not a dash before text."""
        tree, begun, texts = finder.tree, list[int](), dict[int, str]()
        rows, order = group.rows, [*range(len(group.members))]
        for index, (last, token) in enumerate(zip(rows.input_ids[:, -1:].tolist(), best.tolist(), strict=True)):
            text = tree.texts.get(token, "")
            in_word = text[:1] not in tree.spaces and _in_word(finder, last)
            more = self.most_numbers is None or len(found[group.members[index]]) < self.most_numbers
            if text.strip(tree.spaces) and not in_word and more:
                texts[index] = text
        while texts:
            ahead: dict[int, str] = {}
            for index, text in texts.items():
                piece, effect = tree.split("", text)
                if tree.answer(piece) is not None:
                    begun += [index] * (effect != "exceeds")
                elif effect == "continues":  # a minus sign, or fewer digits than the grammar requires: look ahead
                    ahead[index] = text
            texts = {}
            if ahead:
                chosen = torch.tensor([order.index(index) for index in ahead])
                rows, order = rows.select(chosen), [*ahead]
                rows.feed(best[chosen.to(best.device)])
                best = rows.scores.argmax(-1)
                texts = {i: ahead[i] + tree.texts.get(token, _END) for i, token in zip(order, best.tolist(), strict=True)}
        return sorted(begun)

    def _tokens(self, finder: NumberFinder, answers: Answers, one: NumberDistribution) -> tuple[tuple[int, ...], str]:
        """Return the tokens of the decided number and its text."""
        number = one.decide(self.metric, **self.rule)
        same = {text: mass for text, mass in answers.leaves.items() if finder.grammar.value(text) == number}
        ways = [(mass, path, text) for text in same for path, mass in answers.written.get(text, {}).items()]
        if ways:
            _, path, text = max(ways)
            return path, text
        text = max(same, key=lambda text: same[text]) if same else _rounded(number, answers, finder.grammar)
        leading = _leading_space(finder, answers)
        return finder.tree.spelled(leading + text), text


def _in_word(finder: NumberFinder, last: list[int]) -> bool:
    """Whether a text ends with a letter or a digit; ``last`` is its last token, or empty."""
    return bool(last) and finder.texts.get(last[0], "")[-1:].isalnum()


def _rounded(number: Decimal, answers: Answers, grammar: Grammar) -> str:
    """Write a number that is not one of the answers, such as a mean, with the most frequent number of decimals."""
    decimals: dict[int, float] = {}
    for text, mass in answers.leaves.items():
        count = grammar.count_decimals(text)
        decimals[count] = decimals.get(count, 0.0) + mass
    usual = max(decimals, key=lambda count: decimals[count])
    return grammar.write(f"{number.quantize(Decimal((0, (1,), -usual)), ROUND_HALF_EVEN):f}")


def _leading_space(finder: NumberFinder, answers: Answers) -> str:
    """Return the white space before the most likely answer."""
    if not answers.written:
        return ""
    _, token_ids = max((mass, path) for ways in answers.written.values() for path, mass in ways.items())
    text = "".join(finder.texts[token_id] for token_id in token_ids)
    return text[: len(text) - len(text.lstrip(finder.tree.spaces))]


def _padded(input_ids: Tensor, written: list[list[int]], generation_config: Any) -> Tensor:
    """Return prompts and answers as one tensor, padded on the right."""
    pad = generation_config.pad_token_id
    pad = next((i for i in (pad, *ends_of(generation_config)) if i is not None), 0)
    longest = max(map(len, written), default=0)
    answers = torch.tensor([[*row, *[pad] * (longest - len(row))] for row in written], dtype=torch.long)
    return torch.cat([input_ids, answers.to(input_ids.device)], dim=1)
