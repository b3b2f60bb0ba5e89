"""Let a model answer, and score what it says: one record for each example.

Greedy decoding, in batches of similar length. The gold answer is also read back with the model's own probabilities, which
gives its likelihood and, for each of its numeric tokens, how sure the model was. ``samples`` more answers are drawn where
measures of the distribution are wanted.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from numerate.answers.distributions import sample_crps
from numerate.lab.config import RunConfig
from numerate.lab.data import Collator, encoded, held_out
from numerate.lab.models import LoadedModel
from numerate.lab.tasks import Example, Task
from numerate.spans import NumberSpans
from numerate.vocab import NumericVocab

Progress = Callable[[str, int, int, dict[str, float]], object]  # what is done, how much, of how much, the last figures
Record = dict[str, Any]


@torch.no_grad()
def evaluate(
    config: RunConfig,
    task: Task,
    loaded: LoadedModel,
    *,
    progress: Progress = lambda *_: None,
    images: Path | None = None,
    done: Sequence[Record] = (),
    keep: Callable[[Record], object] = lambda record: None,
) -> list[Record]:
    """A record of each test example, in order; ``keep`` is given each as soon as it is made.

    Those in ``done`` are taken as they are. Pictures are saved under ``images``.
    """
    model = loaded.model.eval()
    known = {(record["split"], record["index"]): record for record in done}
    examples_of = held_out(config, task)
    order = [(split, index) for split, examples in examples_of.items() for index in range(len(examples))]
    wanted = [(split, index, examples_of[split][index]) for split, index in order if (split, index) not in known]
    total, finished = len(wanted) + len(known), len(known)
    longest_first = sorted(range(len(wanted)), key=lambda at: len(wanted[at][2].prompt), reverse=True)
    for start in range(0, len(wanted), config.eval_batch_size):
        chosen = [wanted[at] for at in longest_first[start : start + config.eval_batch_size]]
        examples = [example for _, _, example in chosen]
        outputs = _answers(config, loaded, model, examples)
        readings = _readings(loaded, model, examples)
        drawn = _samples(config, loaded, model, examples) if config.samples else [None] * len(examples)
        for (split, index, example), output, reading, samples in zip(chosen, outputs, readings, drawn, strict=True):
            record = _record(task, split, index, example, output, reading, samples)
            if example.image is not None and images is not None:
                record["image"] = f"images/{split}_{index}.png"
                path = images / record["image"]
                path.parent.mkdir(parents=True, exist_ok=True)
                example.image.save(path)
            known[split, index] = record
            keep(record)
        finished += len(chosen)
        progress("evaluate", finished, total, {})
    return [known[at] for at in order]


def _record(
    task: Task, split: str, index: int, example: Example, output: str, reading: Record, samples: list[str] | None
) -> Record:
    answer = task.read(output)
    record: Record = {
        "split": split,
        "index": index,
        "prompt": example.prompt,
        "gold": example.answer,
        "output": output,
        "answer": _shown(answer),
        "measures": task.score(example, output),
        **reading,
    }
    if samples is not None:
        record["samples"] = samples
        record["measures"] |= _spread(task, example, samples)
    return record


def _spread(task: Task, example: Example, samples: list[str]) -> dict[str, float]:
    """CRPS of the sampled answers, infinite where one of them is none, and how many had one."""
    gold, read = task.read(example.answer), [task.read(sample) for sample in samples]
    numbers = np.array([[_float(number) for number in read]])
    measured = {"sample_parsed": float(np.isfinite(numbers).mean())}
    if math.isfinite(truth := _float(gold)):
        measured["sample_crps"] = float(sample_crps(numbers, np.array([truth]))[0])
    return measured


def _float(value: object) -> float:
    """NaN where there is no number; the largest there is for one that no float holds."""
    try:
        return float(value)  # type: ignore[arg-type]
    except OverflowError:
        return math.copysign(sys.float_info.max, -1 if value < 0 else 1)  # type: ignore[operator]
    except (TypeError, ValueError):
        return math.nan


def _shown(value: object) -> str | None:
    """An answer as text; a number too long for that by its first digits."""
    if value is None:
        return None
    try:
        return str(value)
    except ValueError:  # more digits than Python writes
        return f"{_float(value):g}"


# The model's side


def _questions(loaded: LoadedModel, examples: Sequence[Example]) -> dict[str, Tensor]:
    """A batch of questions, padded on the left."""
    rows = loaded.encode([(example.prompt, example.image) for example in examples])
    longest = max(len(row["input_ids"]) for row in rows)
    pad = loaded.tokenizer.pad_token_id
    ids = [[pad] * (longest - len(row["input_ids"])) + row["input_ids"] for row in rows]
    mask = [[0] * (longest - len(row["input_ids"])) + [1] * len(row["input_ids"]) for row in rows]
    batch = {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask)}
    for name, value in rows[0].items():
        if isinstance(value, Tensor):
            batch[name] = torch.cat([row[name] for row in rows])
    return {name: value.to(loaded.model.device) for name, value in batch.items()}


def _budget(config: RunConfig, loaded: LoadedModel, examples: Sequence[Example]) -> int:
    """Room for the longest gold answer and half as much again, so that one that is too long can be seen to be."""
    if config.max_new_tokens is not None:
        return config.max_new_tokens
    longest = max(map(len, loaded.tokens([example.answer for example in examples])))
    return longest + longest // 2 + 4


def _generate(config: RunConfig, loaded: LoadedModel, model: Any, examples: Sequence[Example], **how: Any) -> Tensor:
    batch = _questions(loaded, examples)
    with torch.autocast(model.device.type, torch.bfloat16, enabled=config.bf16):
        ids = model.generate(
            **batch,
            max_new_tokens=_budget(config, loaded, examples),
            pad_token_id=loaded.tokenizer.pad_token_id,
            eos_token_id=loaded.end,
            **how,
        )
    return ids[:, batch["input_ids"].shape[1] :]  # type: ignore[no-any-return]


def _text(loaded: LoadedModel, ids: Tensor) -> str:
    """Up to the end of the answer."""
    tokens = ids.tolist()
    if loaded.end in tokens:
        tokens = tokens[: tokens.index(loaded.end)]
    return str(loaded.tokenizer.decode(tokens, skip_special_tokens=True))


def _answers(config: RunConfig, loaded: LoadedModel, model: Any, examples: Sequence[Example]) -> list[str]:
    return [_text(loaded, ids) for ids in _generate(config, loaded, model, examples, do_sample=False, num_beams=1)]


def _samples(config: RunConfig, loaded: LoadedModel, model: Any, examples: Sequence[Example]) -> list[list[str]]:
    torch.manual_seed(config.seed)
    how = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "num_return_sequences": config.samples}
    texts = [_text(loaded, ids) for ids in _generate(config, loaded, model, examples, **how)]
    return [texts[at : at + config.samples] for at in range(0, len(texts), config.samples)]


def _readings(loaded: LoadedModel, model: Any, examples: Sequence[Example]) -> Iterator[Record]:
    """Likelihood of each gold answer, and of its numeric tokens: probability, largest rival, mass on numbers, place."""
    vocab = NumericVocab.from_tokenizer(loaded.tokenizer)
    batch = Collator(int(loaded.tokenizer.pad_token_id or 0))(encoded(loaded, examples))
    labels = batch.pop("labels")[:, 1:]
    inputs = {name: value.to(model.device) for name, value in batch.items()}
    logits = model(**inputs).logits[:, :-1].float().cpu()
    spans = NumberSpans.from_labels(labels, vocab)
    log_p = logits.log_softmax(-1)
    nll = -log_p.gather(-1, labels.clamp_min(0)[..., None])[..., 0].masked_fill(labels < 0, 0.0)
    for row in range(len(examples)):
        at = spans.has_place[row].nonzero()[:, 0]
        numeric = log_p[row, at][:, vocab.token_ids].exp()  # [digits, N]
        best = vocab.token_ids[numeric.argmax(-1)] if len(at) else at
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
                for k, position in enumerate(at.tolist())
            ],
        }
