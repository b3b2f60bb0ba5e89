"""Let a model answer, and score its answers: one record per example.

Decoding is greedy, in batches of similar length. A second pass over the gold answer gives its likelihood, that of its numbers and
of the rest of its text (:mod:`numerate.lab.evaluation.likelihood`), and the probability of each of its numeric tokens.
``samples`` more answers are drawn for metrics of the distribution. ``decide`` names rules that decide further answers from the
model's distribution over numbers (:mod:`numerate.lab.evaluation.decisions`), which for worked solutions is that of the samples.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import torch

from numerate.answers.metrics import METRICS
from numerate.distribution import CircularDistribution, NumberDistribution
from numerate.lab.data import Example, Examples, Task
from numerate.lab.data.picture_store import PictureStore
from numerate.lab.evaluation.decisions import every_decision, number_finder, prompts, sampled_distribution, search_rows
from numerate.lab.evaluation.derailing import LabelDigits, mark_derailed
from numerate.lab.evaluation.likelihood import Likelihoods, has_text, likelihoods
from numerate.lab.evaluation.missing import FALLBACK
from numerate.lab.evaluation.pooled import AllAtOnce, OneByOne, pooled_record
from numerate.lab.files.progress import Progress
from numerate.lab.models.encoding import collate, encode
from numerate.lab.models.loading import LoadedModel
from numerate.spans import NumberSpans
from numerate.vocab import NumericVocab

Record = dict[str, Any]

_MOST_ROWS = 16_384  # rows that a stack of models continues at a time
_MOST_LOGITS = 1 << 29  # of gold answers at a time: one row of 512 tokens has 80 million with a vocabulary of 150,000


@torch.no_grad()
def evaluate(
    loaded: LoadedModel,
    task: Task,
    examples: Mapping[str, Examples],  # by split
    *,
    images: Path | None = None,  # folder under which pictures are saved
    label_digits: LabelDigits | None = None,  # of the training labels: with them, ``derailed`` is one of the metrics
    fallback: str | None = None,  # an answer, such as the median of the training labels, for means of errors where one is missing
    seed: int = 0,  # decides the ``samples``
    done: Sequence[Record] = (),  # records of an earlier call; their examples are not evaluated again
    keep: Callable[[Record], object] = lambda record: None,  # called with each new record
    **options: Any,
) -> list[Record]:
    """Return a record of each example, in order; ``options`` are those of :func:`evaluate_all`."""
    return evaluate_all(loaded, task, [Evaluation(examples, seed, images, label_digits, fallback, done, keep)], **options)[0]


@dataclass
class Evaluation:
    """What a model is evaluated on. The arguments are those of :func:`evaluate`."""

    examples: Mapping[str, Examples]
    seed: int = 0
    images: Path | None = None
    label_digits: LabelDigits | None = None
    fallback: str | None = None
    done: Sequence[Record] = ()
    keep: Callable[[Record], object] = lambda record: None
    records: dict[tuple[str, int], Record] = field(init=False)

    def __post_init__(self) -> None:
        self.records = {(record["split"], record["index"]): record for record in self.done}

    @property
    def order(self) -> list[tuple[str, int]]:
        """Split and index of each example."""
        return [(split, index) for split, rows in self.examples.items() for index in range(len(rows))]

    def batches(self, size: int) -> list[list[_Asked]]:
        """Return the examples that are not done, in batches of similar length."""
        todo = [(split, index, self.examples[split][index]) for split, index in self.order if (split, index) not in self.records]
        todo.sort(key=lambda row: len(row[2].prompt), reverse=True)
        return [todo[start : start + size] for start in range(0, len(todo), size)]


_Asked = tuple[str, int, Example]  # split, index


@torch.no_grad()
def evaluate_all(
    loaded: LoadedModel,  # with ``stacked``, several models, one for each evaluation (``numerate.lab.training.stacked``)
    task: Task,
    evaluations: Sequence[Evaluation],
    *,
    stacked: bool = False,  # answers are those of each model alone, but ``samples`` are drawn for all at once
    members: AllAtOnce | None = None,  # what decides, if models have stacked members; None: ``loaded``, with its pool
    batch_size: int = 128,  # examples per batch and model
    max_new_tokens: int | None = None,  # None: half as many again as the longest gold answer of the batch, plus 4
    samples: int = 0,  # answers to draw for each example
    decide: Sequence[str] = (),
    interval: float = 0.9,  # level of the interval whose coverage is recorded
    decide_width: int | None = 16,
    bf16: bool = False,
    progress: Progress = lambda *_: None,
) -> list[list[Record]]:
    """Return the records of each evaluation.

    With rules in ``decide``, a record also has what :func:`numerate.lab.evaluation.pooled.pooled_record` returns, and the
    ``seconds`` per example that greedy answers, samples and the search took. Where an answer is a worked solution, samples take
    the place of the search. The rest of a record is that of the first member.
    """
    loaded.model.eval()
    members = members or (AllAtOnce(loaded, [1] * len(evaluations)) if stacked else None)
    every: OneByOne | AllAtOnce = members or OneByOne(loaded)
    if members is not None:
        members.stacked.model.eval()
    vocab = loaded.vocab if loaded.format.has_places else NumericVocab.from_tokenizer(loaded.tokenizer)
    finder = number_finder(loaded, task, decide_width) if decide and not task.ends_in_number else None
    for evaluation in evaluations:
        for earlier in evaluation.records.values():
            if evaluation.label_digits is not None:  # an earlier release may have made it
                mark_derailed(earlier, task, evaluation.label_digits)
    total = sum(len(evaluation.order) for evaluation in evaluations)
    for parts in zip_longest(*(evaluation.batches(batch_size) for evaluation in evaluations), fillvalue=()):
        rows = [(run, *asked) for run, part in enumerate(parts) for asked in part]
        runs, batch = [run for run, *_ in rows], [example for *_, example in rows]
        owners = runs if stacked else None
        limits = [limit for part in parts for limit in _limits(loaded, part, max_new_tokens)]
        begin = time.perf_counter()
        outputs = _generate(loaded, batch, owners, limits, bf16=bf16, do_sample=False, num_beams=1)
        seconds = {"greedy": (time.perf_counter() - begin) / len(batch)}
        readings = list(_readings(loaded, vocab, batch, owners))
        begin = time.perf_counter()
        drawn: list[list[str]] | list[None] = [None] * len(batch)
        found: list[list[NumberDistribution | None]] = [[]] * len(batch)
        draw = partial(_samples, batch, limits, samples, bf16)
        if samples:
            torch.manual_seed(evaluations[0].seed)
        if samples and decide and finder is None:  # drawing the samples is what a decision costs
            texts = every.answers(runs, draw)
            found = [[sampled_distribution(task, each) for each in row] for row in texts]
            drawn = [row[0] for row in texts]
            seconds["search"] = (time.perf_counter() - begin) / len(batch)
        elif samples:
            drawn = draw(loaded, range(len(batch)), owners)
            seconds["samples"] = (time.perf_counter() - begin) / len(batch)
        if finder is not None:
            begin = time.perf_counter()
            seeds = [(evaluations[run].seed, index) for run, _, index, _ in rows]
            found = every.answers(runs, partial(search_rows, finder, batch, seeds, bf16))
            seconds["search"] = (time.perf_counter() - begin) / len(batch)
        for (run, split, index, example), output, (reading, likely), sampled, distributions in zip(
            rows, outputs, readings, drawn, found, strict=True
        ):
            record: Record = {"split": split, "index": index, "prompt": example.prompt, "gold": example.answer}
            measures = task.score(example, output) | (likely if has_text(task) else {})
            record |= {"output": output, "answer": shown(task.read(output)), "measures": measures, **reading}
            if sampled is not None:
                record["samples"] = sampled
                record["measures"] |= sample_measures(task, example, sampled)
            if decide:
                more = None if finder is None else sampled  # whose median is a decision beside those of the search
                record |= pooled_record(task, example, output, distributions, decide, interval, more)
                record["seconds"] = seconds
            enter(record, example, task, evaluations[run], loaded.pictures)
        progress("evaluate", sum(len(evaluation.records) for evaluation in evaluations), total, {})
    return [[evaluation.records[key] for key in evaluation.order] for evaluation in evaluations]


@torch.no_grad()
def greedy_answers(
    loaded: LoadedModel,
    questions: Sequence[Examples],
    *,
    stacked: bool = False,
    batch_size: int = 128,
    max_new_tokens: int | None = None,
    bf16: bool = False,
) -> list[list[str]]:
    """Return greedy answers to the questions of a model, or of each model of a stack; the options are those of `evaluate_all`."""
    loaded.model.eval()
    answers: list[list[str]] = [[] for _ in questions]
    most = max(map(len, questions))
    for start in range(0, most, batch_size):
        parts = [[("", 0, example) for example in own[start : start + batch_size]] for own in questions]
        members = [member for member, part in enumerate(parts) for _ in part]
        limits = [limit for part in parts for limit in _limits(loaded, part, max_new_tokens)]
        batch = [example for part in parts for *_, example in part]
        texts = _generate(loaded, batch, members if stacked else None, limits, bf16=bf16, do_sample=False, num_beams=1)
        for member, text in zip(members, texts, strict=True):
            answers[member].append(text)
    return answers


def enter(record: Record, example: Example, task: Task, evaluation: Evaluation, pictures: PictureStore) -> None:
    """Complete a record and keep it."""
    split, index = record["split"], record["index"]
    if evaluation.label_digits is not None:
        mark_derailed(record, task, evaluation.label_digits)
    answers = [record["answer"], *(decided["answer"] for decided in every_decision(record))]
    if None in answers and evaluation.fallback is not None:
        record[FALLBACK] = task.score(example, evaluation.fallback)
    if example.picture is not None and evaluation.images is not None:
        record["image"] = f"images/{split}_{index}.png"
        path = evaluation.images / record["image"]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(pictures.png(example.picture))
    evaluation.records[split, index] = record
    evaluation.keep(record)


def summarize(records: Sequence[Record]) -> dict[str, dict[str, float]]:
    """Return one value per split and metric: the mean, or the median where a score can be infinite."""
    figures: dict[str, dict[str, float]] = {}
    for split in dict.fromkeys(record["split"] for record in records):
        rows = [record["measures"] for record in records if record["split"] == split]
        figures[split] = {}
        for name in rows[0]:
            metric = METRICS.get(name)
            missing = math.inf if metric is None else metric.no_answer  # JSON has no infinity: it is written as null
            scores = [missing if row[name] is None else row[name] for row in rows]
            figures[split][name] = float(np.mean(scores)) if metric is None else metric.summarize(scores)
    return figures


def sample_measures(task: Task, example: Example, samples: list[str]) -> dict[str, float]:
    """Return the share of sampled answers that hold a number, and their CRPS, infinite where one holds none."""
    numbers = np.array([_float(task.read(sample)) for sample in samples])
    measures = {"sample_parsed": float(np.isfinite(numbers).mean())}
    if not math.isfinite(gold := _float(task.read(example.answer))):
        return measures
    if measures["sample_parsed"] < 1:
        return measures | {"sample_crps": math.inf}
    found = NumberDistribution.from_samples(numbers.tolist())
    return measures | {"sample_crps": (found if task.period is None else CircularDistribution(found, task.period)).crps(gold)}


def _float(value: object) -> float:
    """Return NaN for a value that is not a number, and the largest float for one that exceeds it."""
    try:
        return float(value)  # type: ignore[arg-type]
    except OverflowError:
        return math.copysign(sys.float_info.max, -1 if value < 0 else 1)  # type: ignore[operator]
    except (TypeError, ValueError):
        return math.nan


def shown(value: object) -> str | None:
    """Return an answer as text; a number with more digits than Python prints is rounded."""
    if value is None:
        return None
    try:
        return str(value)
    except ValueError:
        return f"{_float(value):g}"


# The model


def _limits(loaded: LoadedModel, part: Sequence[_Asked], most: int | None) -> list[int]:
    """Return the most tokens of each answer in a batch."""
    if most is None and part:
        longest = max(map(len, loaded.answer_tokens([example.answer for *_, example in part])))
        most = longest + longest // 2 + 4  # room for an answer that is too long to be seen as such
    return [] if most is None else [most] * len(part)


def _samples(
    examples: Sequence[Example],
    limits: Sequence[int],
    count: int,
    bf16: bool,
    loaded: LoadedModel,
    rows: Sequence[int],
    members: Sequence[int] | None,
) -> list[list[str]]:
    """Return ``count`` sampled answers to each of these rows."""
    batch, most = [examples[row] for row in rows], [limits[row] for row in rows]
    texts = _generate(
        loaded, batch, members, most, bf16=bf16, do_sample=True, temperature=1.0, top_k=0, top_p=1.0, num_return_sequences=count
    )
    return [texts[first : first + count] for first in range(0, len(texts), count)]


def _generate(
    loaded: LoadedModel,
    examples: Sequence[Example],
    members: Sequence[int] | None,
    limits: Sequence[int],
    *,
    bf16: bool,
    num_return_sequences: int = 1,
    **options: Any,
) -> list[str]:
    """Return the answers to a batch of questions, each up to its end token; a stack of models answers some rows at a time."""
    texts: list[str] = []
    size = len(examples) if members is None else max(1, _MOST_ROWS // num_return_sequences)
    for first in range(0, len(examples), size):
        part = slice(first, first + size)
        batch = prompts(loaded, examples[part], None if members is None else members[part])
        own = [limit for limit in limits[part] for _ in range(num_return_sequences)]
        with torch.autocast(loaded.model.device.type, torch.bfloat16, enabled=bf16):
            texts += loaded.answers(
                **batch, limits=own, max_new_tokens=max(own), num_return_sequences=num_return_sequences, **options
            )
    return texts


def _readings(
    loaded: LoadedModel, vocab: NumericVocab, examples: Sequence[Example], members: Sequence[int] | None
) -> Iterator[tuple[Record, Likelihoods]]:
    """Yield of each gold answer its likelihood and, per numeric token, place, probability, largest probability and mass.

    The second part are the likelihoods of its numbers and of the rest of its text.
    """
    rows = encode(loaded, examples)
    longest = max(len(row["input_ids"]) for row in rows)
    size = max(1, _MOST_LOGITS // (longest * len(loaded.tokenizer)))
    for first in range(0, len(rows), size):
        part = slice(first, first + size)
        yield from _read_part(loaded, vocab, rows[part], None if members is None else members[part])


def _read_part(
    loaded: LoadedModel, vocab: NumericVocab, rows: Sequence[dict[str, Any]], members: Sequence[int] | None
) -> Iterator[tuple[Record, Likelihoods]]:
    batch = collate(rows, pad=loaded.pad)
    batch |= {} if members is None else {"members": torch.tensor(members)}
    labels = batch.pop("labels")[:, 1:]
    inputs = {name: value.to(loaded.model.device) for name, value in batch.items()}
    logits = loaded.model(**inputs).logits[:, :-1]
    spans = NumberSpans.from_labels(labels, vocab)
    answer = labels >= 0
    # Answers are a small part of the positions, and numbers of the vocabulary: the rest stays on the device.
    log_p = logits[answer.to(logits.device)].float().log_softmax(-1)  # [answer tokens, V]
    nll = -log_p.gather(-1, labels[answer].to(log_p.device)[:, None])[:, 0].cpu()
    numeric = log_p[:, vocab.token_ids.to(log_p.device)].exp().cpu()  # [answer tokens, N]
    sizes = answer.sum(-1).tolist()
    for row, own, own_numeric in zip(range(len(rows)), nll.split(sizes), numeric.split(sizes), strict=True):
        mine = answer[row]
        exponent, right = spans.exponent[row, mine], vocab.token_ids[own_numeric.argmax(-1)] == labels[row, mine]
        digits = [
            {
                "place": int(exponent[at]),
                "p": round(float((-own[at]).exp()), 6),
                "top": round(float(own_numeric[at].max()), 6),
                "right": bool(right[at]),
                "mass": round(float(own_numeric[at].sum().clamp_max(1)), 6),
            }
            for at in (spans.has_place[row, mine].nonzero()[:, 0].tolist() if loaded.format.has_places else ())
        ]
        yield {"nll": float(own.sum()), "digits": digits}, likelihoods(own, spans.index[row, mine] >= 0)
