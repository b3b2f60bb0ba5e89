"""Models with prompts for ``python -m benchmarks decode``: a tiny one that is trained first, pre-trained ones, a trained run."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from math import log
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.decode import DecodeWorkload
from numerate.decode.grammar import NumberGrammar
from numerate.decode.token_tree import token_texts
from numerate.distribution.exact import exact_number
from numerate.lab.data import Example, Task
from numerate.lab.data.regression import Regression
from numerate.lab.data.settings import make_task
from numerate.lab.data.splits import held_out
from numerate.lab.evaluation.decisions import prompts as questions_of
from numerate.lab.files.progress import Progress
from numerate.lab.models.encoding import collate
from numerate.lab.models.loading import LoadedModel, load_model
from numerate.lab.models.pretrained import quietly
from numerate.lab.training.config import RunConfig, checked
from numerate.lab.training.kept_runs import load_run, trained_config
from numerate.lab.training.prepare import check_run, train
from numerate.tokenizers import load_tokenizer

WORKLOADS = ("tiny", "smollm2", "llama-1b")
"""Models that need nothing but a name: see :func:`decode_workload`."""

_SHOWN = 3  # solved examples before the question to smollm2
_LLAMA = {  # the shape of Llama 3.2 1B
    "vocab_size": 128256,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "tie_word_embeddings": True,
    "max_position_embeddings": 2048,
}


def decode_workload(
    name: str,
    *,
    prompts: int = 128,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
    steps: int = 300,
    progress: Progress = lambda *_: None,
) -> DecodeWorkload:
    """Return a model and prompts.

    Args:
        name: ``tiny`` (trained here on the rents of flats), ``smollm2`` (pre-trained; three solved examples are part of the
            prompt), ``llama-1b`` (the shape of Llama 3.2 1B with random weights: for costs alone), or the folder of a run of
            ``numerate train`` whose weights were kept, which is asked its test questions.
        prompts: how many.
        device: of the model.
        dtype: of its weights.
        steps: of training ``tiny``.
        progress: of this training.
    """
    if name == "llama-1b":
        return _random(device, dtype, prompts)
    if name == "smollm2":
        with quietly():
            loaded = load_model(name, dtype=dtype)
        return _few_shot(name, loaded, device, prompts)
    if name == "tiny":
        config = checked(RunConfig, {"task": "regression", "steps": steps, "eval_splits": ["interpolate"]})
        task = make_task(config)
        loaded = load_model(config.model, seed=config.seed)
        with tempfile.TemporaryDirectory() as folder, quietly():
            train(config, task, loaded, check_run(config, task, loaded), Path(folder), progress=progress)
    elif Path(name).is_dir():
        config = trained_config(Path(name))
        task = make_task(config)
        loaded = load_run(Path(name), config)
    else:
        raise ValueError(f"model={name!r}: expected {', '.join(WORKLOADS)}, or the folder of a run of `numerate train`.")
    examples = _test_examples(task, config, prompts)
    loaded.model.to(device=device, dtype=dtype)
    return _asked(name, loaded, task, examples)


def _test_examples(task: Task, config: RunConfig, prompts: int) -> Sequence[Example]:
    splits = held_out(task, config.eval_splits, prompts)
    if not splits:
        raise ValueError(f"task={task.name!r} has none of the splits {', '.join(config.eval_splits)}: expected test examples.")
    return next(iter(splits.values()))


def _asked(name: str, loaded: LoadedModel, task: Task, examples: Sequence[Example]) -> DecodeWorkload:
    """Return the test questions of a task."""
    grammar = task.answer_grammar()
    if not isinstance(grammar, NumberGrammar):
        raise ValueError(f"task={task.name!r} has answers of another form: expected plain numbers, as of regression.")
    answers = [task.read(example.answer) for example in examples]
    return DecodeWorkload(
        name,
        loaded.model.eval(),
        loaded.tokenizer,
        lambda indices: questions_of(loaded, [examples[index] for index in indices]),
        len(examples),
        grammar,
        max(map(len, loaded.tokens([example.answer for example in examples]))) + 4,
        [loaded.end],
        loaded.pad,
        None if None in answers else [exact_number("answer", answer) for answer in answers],
    )


def _few_shot(name: str, loaded: LoadedModel, device: str, prompts: int) -> DecodeWorkload:
    """Return questions with solved examples before them; an answer ends with its line."""
    task = Regression()
    examples = task.examples("train", prompts + _SHOWN, seed=0)
    shown = "".join(f"{example.prompt} {example.answer}\n" for example in examples[:_SHOWN])
    asked = examples[_SHOWN:]
    rows = [{"input_ids": ids} for ids in loaded.tokens([f"{shown}{example.prompt}" for example in asked])]
    loaded.model.to(device)
    newline = loaded.tokens(["7\n"])[0][-1]
    return DecodeWorkload(
        name,
        loaded.model.eval(),
        loaded.tokenizer,
        _batch(rows, loaded.pad, device),
        prompts,
        NumberGrammar(sign=False, decimals=0),
        max(map(len, loaded.tokens([f" {example.answer}" for example in asked]))) + 4,
        [loaded.end, newline],
        loaded.pad,
        [Decimal(example.answer) for example in asked],
    )


def llama_1b(device: str, dtype: torch.dtype) -> Any:
    """Return a model with the shape of Llama 3.2 1B and random weights, for costs alone."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    with torch.device(device):
        return LlamaForCausalLM(LlamaConfig(**_LLAMA, pad_token_id=0)).to(dtype)


def _random(device: str, dtype: torch.dtype, prompts: int) -> DecodeWorkload:
    """Return a model of a billion random parameters that writes a digit, or anything else, with equal chances."""
    tokenizer = load_tokenizer("mistral")
    model = llama_1b(device, dtype).eval()
    model.generation_config.eos_token_id = None
    digits = [token_id for text, token_id in token_texts(tokenizer) if text in "0123456789"]
    bias = log(_LLAMA["vocab_size"] / len(digits))
    model.generation_config.sequence_bias = [[[token_id], bias] for token_id in digits]
    asked = Regression().examples("train", prompts, seed=0)
    rows = [{"input_ids": ids} for ids in tokenizer([example.prompt for example in asked])["input_ids"]]
    return DecodeWorkload(
        "llama-1b",
        model,
        tokenizer,
        _batch(rows, 0, device),
        prompts,
        NumberGrammar(sign=False, digits=(1, 4), decimals=0),
        5,
        [],
        0,
        trained=False,
    )


def _batch(rows: list[dict[str, Any]], pad: int, device: str) -> Callable[[Sequence[int]], Mapping[str, Tensor]]:
    def batch(indices: Sequence[int]) -> Mapping[str, Tensor]:
        collated = collate([rows[index] for index in indices], pad=pad, left=True)
        return {name: value.to(device) for name, value in collated.items()}

    return batch
