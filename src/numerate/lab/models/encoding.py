"""Turn examples into model inputs: tokens and labels, soft labels, padded batches, and the order of training."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor

from numerate.lab.data import Example
from numerate.lab.models.built import scaled
from numerate.lab.models.loading import PIXELS, LoadedModel, PromptEncoder
from numerate.lab.models.settings import LabelPath
from numerate.labels import IGNORE_INDEX
from numerate.targets import AnswerDistribution, SoftNumbers, SoftPath, TokenTrie
from numerate.targets.soft_targets import SOFT_FIELDS, soft_fields
from numerate.targets.token_trie import entries

_WINDOW = 8  # batches whose examples are sorted by length together
_TRIES = 8192  # distributions that are kept as tokens, 20 to 80 kB each
_MOST_MADE = 32_768  # distributions that are made in advance, for all workers of a data loader
_RECENT = 1024  # rows with pictures, 40 kB each, that the runs of a stack share
_PADDING = 1 / 3  # share of padding in a batch above which examples are sorted


def collate(rows: Sequence[dict[str, Any]], *, pad: int, left: bool = False) -> dict[str, Tensor]:
    """Pad rows to one length, on the right or the left, and stack them. Pictures of a batch are concatenated.

    Soft labels are padded to the most entries of a row.
    """
    fills = {"input_ids": pad, "labels": IGNORE_INDEX, "position_weights": 0.0, "token_weights": 0.0}
    sizes = np.array([len(row["input_ids"]) for row in rows])
    longest = int(sizes.max())
    places = np.arange(longest)
    real = places >= longest - sizes[:, None] if left else places < sizes[:, None]  # [B, T]

    batch = {"attention_mask": torch.from_numpy(real.astype(np.int64))}
    for name, value in rows[0].items():
        if isinstance(value, Tensor):
            batch[name] = torch.cat([row[name] for row in rows])
        elif name in fills:
            padded = np.full(real.shape, fills[name])
            padded[real] = np.fromiter(chain.from_iterable(row[name] for row in rows), padded.dtype, sizes.sum())
            batch[name] = torch.from_numpy(padded)
        elif isinstance(value, float):
            batch[name] = torch.tensor([row[name] for row in rows])
    if PIXELS in batch:
        batch["pixel_values"] = scaled(batch.pop(PIXELS))
    if SOFT_FIELDS[0] not in rows[0]:
        return batch
    moved = longest - sizes if left else np.zeros_like(sizes)
    return batch | soft_fields(rows, [*enumerate(moved.tolist())], real.shape)


def encode(loaded: PromptEncoder, examples: Sequence[Example]) -> list[dict[str, Any]]:
    """Return ``input_ids`` and ``labels`` of each example, and its picture; only the answer and its end are labels."""
    examples = list(examples)  # each is built when it is accessed
    questions = loaded.encode([(example.prompt, example.picture) for example in examples])
    texts = [loaded.format.answer(example.answer) for example in examples]
    visual = any(example.picture is not None for example in examples)
    answers = [[*ids, loaded.end] for ids in (map(loaded.tokens_of, texts) if visual else loaded.tokens(texts))]
    return [
        {
            **question,
            "input_ids": [*question["input_ids"], *answer],
            "labels": [IGNORE_INDEX] * len(question["input_ids"]) + answer,
        }
        for question, answer in zip(questions, answers, strict=True)
    ]


_Label = tuple[str, Any]  # the answer, and several people's ratings or None


class AnswerTries:
    """The distributions over the answers of examples as tokens, kept for each distinct label; runs may share them.

    Args:
        encoder: the model whose tokens are used.
        target: from an example to the distribution over its answers; see :meth:`numerate.lab.data.Task.soft_target`.
        with_label: make sure that the label itself is among the answers.
    """

    def __init__(
        self, encoder: PromptEncoder, target: Callable[[Example], AnswerDistribution], *, with_label: bool = False
    ) -> None:
        self.encoder, self.target, self.with_label = encoder, target, with_label
        self._tokens: dict[str, list[int]] = {}  # of every text so far: the answers of similar labels are the same
        self._end = encoder.end
        self._expected: dict[_Label, None] = {}
        self._made: dict[_Label, TokenTrie] = {}
        self._kept = lru_cache(_TRIES)(self._make)

    def of(self, example: Example) -> TokenTrie:
        """Return the distribution of an example."""
        label = example.answer, example.meta.get("ratings")
        return self._made[label] if label in self._made else self._kept(*label)

    def answer(self, example: Example, label: Sequence[int], rng: np.random.Generator | None) -> SoftPath:
        """Return the tokens of an answer that is drawn, or of the ``label`` if there is no ``rng``, with their soft targets."""
        trie = self.of(example)
        return trie.path(label) if rng is None else trie.draw(rng)

    def expect(self, examples: Iterable[Example]) -> None:
        """Note examples whose distributions will be needed."""
        self._expected |= dict.fromkeys((example.answer, example.meta.get("ratings")) for example in examples)

    def make_expected(self, processes: int) -> None:
        """Make the expected distributions in forked processes. Processes that are forked later have them all."""
        labels = [label for label in self._expected if label not in self._made][:_MOST_MADE]
        if not labels:
            return
        loader: Iterable[list[TokenTrie]] = torch.utils.data.DataLoader(
            labels,  # type: ignore[arg-type]
            batch_size=64,
            collate_fn=lambda batch: [self._make(*label) for label in batch],
            num_workers=processes,
            multiprocessing_context="fork",
        )
        self._made |= zip(labels, (trie for batch in loader for trie in batch), strict=True)

    def _make(self, answer: str, ratings: Any) -> TokenTrie:
        answers = self.target(Example("", answer, meta={} if ratings is None else {"ratings": ratings}))
        answers = _with(answer, answers) if self.with_label else answers
        new = [text for text in answers.texts if text not in self._tokens]
        if new:
            self._tokens |= zip(new, self.encoder.answer_tokens(new), strict=True)
        return TokenTrie([[*self._tokens[text], self._end] for text in answers.texts], answers.probabilities)


class AnswerNumbers:
    """The distributions of the numbers in answers that hold several, each independent of the others; runs may share them.

    ``where`` matches each of the numbers (:attr:`numerate.lab.data.Task.soft_pattern`). The other arguments are those of
    :class:`AnswerTries`; ``target`` gets an example whose answer is one of the numbers.
    """

    def __init__(
        self,
        encoder: PromptEncoder,
        target: Callable[[Example], AnswerDistribution],
        where: re.Pattern[str],
        *,
        with_label: bool = False,
    ) -> None:

        def of_number(number: str) -> AnswerDistribution:
            answers = target(Example("", number))
            return _with(number, answers) if with_label else answers

        self.encoder, self.where = encoder, where
        self._soft = SoftNumbers(encoder.tokenizer, of_number, where=where, strict=True, format=encoder.format.format)

    def answer(self, example: Example, label: Sequence[int], rng: np.random.Generator | None) -> SoftPath:
        """Return the tokens of an answer that is drawn, or of the ``label`` if there is no ``rng``, with their soft targets."""
        row = self._soft({"input_ids": label}, rng=rng, path="fixed" if rng is None else "drawn")
        said = self.encoder.format.answer(example.answer)
        meant, drawn = self.where.findall(said), self.where.findall(self._soft.text(row))
        if len(drawn) != len(meant):
            raise ValueError(
                f"the tokens of the answer {example.answer!r:.80} show {len(drawn)} of its {len(meant)} numbers: expected tokens "
                "with the text of the answer for soft labels, not special ones; use hard labels, or another form of the answer."
            )
        text = self.where.sub(lambda _: drawn.pop(0), said)
        if self.encoder.tokens([text])[0] != row["input_ids"][:-1]:
            raise ValueError(
                f"{text!r:.80} has other tokens than its numbers one by one: a token holds digits of two numbers. "
                "Expected a tokenizer that splits digits from what is beside them for soft labels; use hard labels."
            )
        positions, token_ids, probabilities = (row[name] for name in SOFT_FIELDS)
        places = {place: positions == place for place in positions.tolist()}
        return SoftPath(row["input_ids"], {place: (token_ids[here], probabilities[here]) for place, here in places.items()})

    def expect(self, examples: Iterable[Example]) -> None:
        """Do nothing: the rows have the same few thousand numbers, and their distributions are made when they are met."""

    def make_expected(self, processes: int) -> None:
        """Do nothing, see :meth:`expect`."""


def _with(label: str, answers: AnswerDistribution) -> AnswerDistribution:
    """Return a distribution that has the label; bounds, and few of many values, may leave it out."""
    return answers if label in answers.texts else answers.with_hard(label, 1 / (len(answers) + 1))


class SoftAnswers:
    """Replace the answer of a row by one that is drawn from the distribution of its example, with soft targets along it.

    What is drawn depends on the seed and the row's position in the order of training alone: it is the same after resuming, and
    for any number of processes.

    Args:
        tries: the distributions; those of the path ``"fixed"`` need the label among the answers.
        path: ``"drawn"``; ``"fixed"`` keeps the answer, with soft targets along it; ``"jitter"`` draws, with hard targets.
        seed: of the run.
    """

    def __init__(self, tries: AnswerTries | AnswerNumbers, path: LabelPath, seed: int) -> None:
        self.tries, self.path, self.seed = tries, path, seed

    def row(self, row: dict[str, Any], example: Example, position: int) -> dict[str, Any]:
        """Return a row of :func:`encode` with the answer of this position, and its ``SOFT_FIELDS``."""
        begin = row["labels"].count(IGNORE_INDEX)
        rng = None if self.path == "fixed" else np.random.default_rng([self.seed, position])
        answer = self.tries.answer(example, row["labels"][begin:], rng)
        fields = {} if self.path == "jitter" else _soft_fields(answer, begin)
        ids = [*row["input_ids"][:begin], *answer.token_ids]
        return {**row, "input_ids": ids, "labels": [*row["labels"][:begin], *answer.token_ids], **fields}


def _soft_fields(answer: SoftPath, begin: int) -> dict[str, list[Any]]:
    """Return the entries of all positions that have a choice of tokens; the first token of the answer is at ``begin``."""
    fields = entries({begin + at: options for at, options in answer.forks.items()})
    return {name: value.tolist() for name, value in fields.items()}


class _Ordered(torch.utils.data.Dataset[dict[str, Any]]):
    """Rows in training order. Rows with pictures are built on access, because all of them would fill the memory."""

    def __init__(self, order: Sequence[int], row: Callable[[int, int], dict[str, Any]]) -> None:
        self.order, self.row = order, row  # the row of an index, at a position of the order

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, position: int) -> dict[str, Any]:
        return self.row(self.order[position], position)


def training_order(lengths: Sequence[int], batch_size: int, batches: int, seed: int) -> list[int]:
    """Return the index of the example at each position: random order, each example once before any repeats.

    Examples are grouped by length only where more than a third of a random batch would be padding. Long answers are large
    numbers, and a small model learns much worse from batches that hold nothing else.

    The order is the same for every loss of a seed and any number of processes.
    """
    rng = random.Random(f"order/{seed}")
    samples = [rng.choices(lengths, k=batch_size) for _ in range(100)]
    by_length = 1 - sum(map(sum, samples)) / sum(batch_size * max(batch) for batch in samples) > _PADDING
    order: list[int] = []
    pool: list[int] = []
    while len(order) < batches * batch_size:
        while len(pool) < _WINDOW * batch_size:
            pool += rng.sample(range(len(lengths)), len(lengths))
        window, pool = pool[: _WINDOW * batch_size], pool[_WINDOW * batch_size :]
        if by_length:
            window.sort(key=lambda index: lengths[index])
        pieces = [window[start : start + batch_size] for start in range(0, len(window), batch_size)]
        rng.shuffle(pieces)
        order += [index for piece in pieces for index in piece]
    return order[: batches * batch_size]


_Fitting = list[tuple[dict[str, Any], Example]]


@dataclass(frozen=True)
class SharedData:
    """What runs on the same rows with the same model have in common."""

    tries: dict[str, AnswerTries | AnswerNumbers] = field(default_factory=dict)  # by the settings of the soft labels
    fitting: dict[int, _Fitting] = field(default_factory=dict)  # by the seed
    recent: dict[tuple[int, int], tuple[dict[str, Any], Example]] = field(
        default_factory=dict
    )  # with pictures: by seed and index


def training_data(
    loaded: LoadedModel,
    examples: Sequence[Example],
    *,
    batch_size: int,
    batches: int,
    seed: int,
    max_length: int,
    drawn: int | None = None,
    soft: Callable[[dict[str, Any], Example, int], dict[str, Any]] | None = None,
    shared: SharedData | None = None,
) -> tuple[torch.utils.data.Dataset[dict[str, Any]], int]:
    """Return the rows to train on, in order, and how many examples were left out because they exceed ``max_length``.

    Order and length are those of the labels themselves, with ``soft`` labels too. Rows without pictures are taken from
    ``shared``, if it has them, and added to it. ``seed`` decides the order; ``drawn`` is the seed that chose the examples, if it
    is another.
    """
    drawn = seed if drawn is None else drawn

    def answered(row: dict[str, Any], example: Example, position: int) -> dict[str, Any]:
        return row if soft is None else soft(row, example, position)

    if examples[0].picture is not None:

        def built(index: int, position: int) -> dict[str, Any]:
            if shared is None:
                example = examples[index]
                return answered(encode(loaded, [example])[0], example, position)
            if (key := (drawn, index)) not in shared.recent:  # runs with one seed see the same rows in a step
                example = examples[index]
                shared.recent[key] = encode(loaded, [example])[0], example
                if len(shared.recent) > _RECENT:
                    shared.recent.pop(next(iter(shared.recent)))
            return answered(*shared.recent[key], position)

        return _Ordered(training_order([1] * len(examples), batch_size, batches, seed), built), 0
    known = {} if shared is None else shared.fitting
    if drawn not in known:
        known[drawn] = fitting_rows(loaded, examples, max_length)
    fitting = known[drawn]
    order = training_order([len(row["labels"]) for row, _ in fitting], batch_size, batches, seed)
    return _Ordered(order, lambda index, position: answered(*fitting[index], position)), len(examples) - len(fitting)


def cut_note(encoder: PromptEncoder, questions: Mapping[str, Sequence[str]]) -> str:
    """Return how many questions of each kind have texts that are cut, as a message; an empty one if there are none.

    Examples:
        >>> from numerate.lab.data.question import Question
        >>> from numerate.lab.models.loading import load_encoder
        >>> questions = [Question.of([("", "long " * 20)]), Question.of([("", "short")])]
        >>> print(cut_note(load_encoder("tiny").limit(80), {"training": questions}))
        Long texts are cut in 1 of 2 training questions, which have more than 48 tokens, for max_length=80.
    """
    cut = {kind: sum(encoder.fitted(text) != text for text in texts) for kind, texts in questions.items()}
    counted = [f"{count:,} of {len(questions[kind]):,} {kind} questions" for kind, count in cut.items() if count]
    if not counted:
        return ""
    return (
        f"Long texts are cut in {' and '.join(counted)}, which have more than {encoder.most:,} tokens, "
        f"for max_length={encoder.max_length:,}."
    )


def fitting_rows(loaded: PromptEncoder, examples: Sequence[Example], max_length: int) -> _Fitting:
    """Return the rows of :func:`encode` that do not exceed ``max_length``, with their examples."""
    examples = list(examples)
    rows = encode(loaded, examples)
    fitting = [(row, example) for row, example in zip(rows, examples, strict=True) if len(row["labels"]) <= max_length]
    if not fitting:
        least = min(len(row["labels"]) for row in rows)
        raise ValueError(f"max_length={max_length} is shorter than every example: expected at least {least}.")
    return fitting
