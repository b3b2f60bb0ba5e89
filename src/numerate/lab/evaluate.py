"""Let a model answer, and score its answers: one record per example.

Decoding is greedy, in batches of similar length. A second pass over the gold answer gives its likelihood and the probability
of each of its numeric tokens. ``samples`` more answers are drawn for measures of the distribution. ``decide`` names rules that
decide further answers from the model's distribution over numbers (:mod:`numerate.lab.decisions`).
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from numerate.answers.distributions import sample_crps
from numerate.answers.metrics import METRICS
from numerate.distribution import NumberDistribution
from numerate.lab.data import collate, encode
from numerate.lab.decisions import decision_record, find_distributions, number_finder, prompts
from numerate.lab.derailing import LabelDigits, mark_derailed
from numerate.lab.models import LoadedModel
from numerate.lab.progress import Progress
from numerate.lab.tasks import Example, Examples, Task
from numerate.spans import NumberSpans
from numerate.vocab import NumericVocab

Record = dict[str, Any]


@torch.no_grad()
def evaluate(
    loaded: LoadedModel,
    task: Task,
    examples: Mapping[str, Examples],
    *,
    batch_size: int = 128,
    max_new_tokens: int | None = None,
    samples: int = 0,
    decide: Sequence[str] = (),
    interval: float = 0.9,
    decide_width: int | None = 16,
    seed: int = 0,
    bf16: bool = False,
    images: Path | None = None,
    label_digits: LabelDigits | None = None,
    done: Sequence[Record] = (),
    keep: Callable[[Record], object] = lambda record: None,
    progress: Progress = lambda *_: None,
) -> list[Record]:
    """Return a record of each example, in order; ``examples`` are by split.

    Pictures are saved under ``images``. ``done`` are records of an earlier call; their examples are not evaluated again.
    ``keep`` is called with each new record. ``seed`` decides the ``samples``. With rules to ``decide``, a record also has what
    :func:`numerate.lab.decisions.decision_record` returns, and the ``seconds`` per example that greedy answers, samples and the
    search took. ``label_digits`` are those of the training labels: with them, ``derailed`` is one of the measures
    (:mod:`numerate.lab.derailing`).
    """
    loaded.model.eval()
    vocab = NumericVocab.from_tokenizer(loaded.tokenizer)
    finder = number_finder(loaded, task, decide_width) if decide else None
    generate = partial(_generate, loaded, max_new_tokens=max_new_tokens, bf16=bf16)
    records = {(record["split"], record["index"]): record for record in done}
    for earlier in records.values():
        if label_digits is not None:  # an earlier release may have made it
            mark_derailed(earlier, task, label_digits)
    order = [(split, index) for split, rows in examples.items() for index in range(len(rows))]
    todo = [(split, index, examples[split][index]) for split, index in order if (split, index) not in records]
    todo.sort(key=lambda row: len(row[2].prompt), reverse=True)
    for start in range(0, len(todo), batch_size):
        rows = todo[start : start + batch_size]
        batch = [example for _, _, example in rows]
        begin = time.perf_counter()
        outputs = generate(batch, do_sample=False, num_beams=1)
        seconds = {"greedy": (time.perf_counter() - begin) / len(batch)}
        readings = _readings(loaded, vocab, batch)
        begin = time.perf_counter()
        drawn: list[list[str]] | list[None] = [None] * len(batch)
        if samples:
            torch.manual_seed(seed)
            texts = generate(batch, do_sample=True, temperature=1.0, top_k=0, top_p=1.0, num_return_sequences=samples)
            drawn = [texts[first : first + samples] for first in range(0, len(texts), samples)]
            seconds["samples"] = (time.perf_counter() - begin) / len(batch)
        begin = time.perf_counter()
        found: list[NumberDistribution | None] = [None] * len(batch)
        if finder is not None:
            indices = [index for _, index, _ in rows]
            found = find_distributions(loaded, finder, batch, indices=indices, seed=seed, bf16=bf16)
        seconds["search"] = (time.perf_counter() - begin) / len(batch)
        for (split, index, example), output, reading, sampled, distribution in zip(
            rows, outputs, readings, drawn, found, strict=True
        ):
            record: Record = {"split": split, "index": index, "prompt": example.prompt, "gold": example.answer}
            record |= {"output": output, "answer": _shown(task.read(output)), "measures": task.score(example, output), **reading}
            if sampled is not None:
                record["samples"] = sampled
                record["measures"] |= _spread(task, example, sampled)
            if decide:
                record |= decision_record(task, example, output, distribution, decide, interval, sampled)
                record["seconds"] = seconds
            if label_digits is not None:
                mark_derailed(record, task, label_digits)
            if example.image is not None and images is not None:
                record["image"] = f"images/{split}_{index}.png"
                path = images / record["image"]
                path.parent.mkdir(parents=True, exist_ok=True)
                example.image.save(path)
            records[split, index] = record
            keep(record)
        progress("evaluate", len(records), len(order), {})
    return [records[key] for key in order]


def summarize(records: Sequence[Record]) -> dict[str, dict[str, float]]:
    """Return one figure per split and measure: the mean, or the median where a score can be infinite."""
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


def _spread(task: Task, example: Example, samples: list[str]) -> dict[str, float]:
    """Return the share of sampled answers that hold a number, and their CRPS, infinite where one holds none."""
    numbers = np.array([[_float(task.read(sample)) for sample in samples]])
    measures = {"sample_parsed": float(np.isfinite(numbers).mean())}
    if math.isfinite(gold := _float(task.read(example.answer))):
        measures["sample_crps"] = float(sample_crps(numbers, np.array([gold]))[0])
    return measures


def _float(value: object) -> float:
    """Return NaN for a value that is not a number, and the largest float for one that exceeds it."""
    try:
        return float(value)  # type: ignore[arg-type]
    except OverflowError:
        return math.copysign(sys.float_info.max, -1 if value < 0 else 1)  # type: ignore[operator]
    except (TypeError, ValueError):
        return math.nan


def _shown(value: object) -> str | None:
    """Return an answer as text; a number with more digits than Python prints is rounded."""
    if value is None:
        return None
    try:
        return str(value)
    except ValueError:
        return f"{_float(value):g}"


# The model


def _generate(
    loaded: LoadedModel, examples: Sequence[Example], *, max_new_tokens: int | None, bf16: bool, **options: Any
) -> list[str]:
    """Return the answers to a batch of questions, each up to its end token."""
    batch = prompts(loaded, examples)
    if max_new_tokens is None:
        longest = max(map(len, loaded.tokens([example.answer for example in examples])))
        max_new_tokens = longest + longest // 2 + 4  # room for an answer that is too long to be seen as such
    with torch.autocast(loaded.model.device.type, torch.bfloat16, enabled=bf16):
        return loaded.answers(**batch, max_new_tokens=max_new_tokens, **options)


def _readings(loaded: LoadedModel, vocab: NumericVocab, examples: Sequence[Example]) -> Iterator[Record]:
    """Yield the likelihood of each gold answer and, per numeric token: place, probability, largest probability, mass."""
    batch = collate(encode(loaded, examples), pad=loaded.pad)
    labels = batch.pop("labels")[:, 1:]
    inputs = {name: value.to(loaded.model.device) for name, value in batch.items()}
    logits = loaded.model(**inputs).logits[:, :-1].float().cpu()
    spans = NumberSpans.from_labels(labels, vocab)
    log_p = logits.log_softmax(-1)
    nll = -log_p.gather(-1, labels.clamp_min(0)[..., None])[..., 0].masked_fill(labels < 0, 0.0)
    for row in range(len(examples)):
        positions = spans.has_place[row].nonzero()[:, 0]
        numeric = log_p[row, positions][:, vocab.token_ids].exp()  # [digits, N]
        best = vocab.token_ids[numeric.argmax(-1)] if len(positions) else positions
        yield {
            "nll": float(nll[row].sum()),
            "digits": [
                {
                    "place": int(spans.exponent[row, position]),
                    "p": round(float(log_p[row, position, labels[row, position]].exp()), 6),
                    "top": round(float(numeric[k].max()), 6),
                    "right": bool(best[k] == labels[row, position]),
                    "mass": round(float(numeric[k].sum().clamp_max(1)), 6),
                }
                for k, position in enumerate(positions.tolist())
            ],
        }
