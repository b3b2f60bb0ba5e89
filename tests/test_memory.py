"""Memory does not grow with training steps, attachments and losses: neither tensors nor other Python objects are left over."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from itertools import cycle

import pytest
import torch
from transformers import Trainer, TrainingArguments

from numerate import LOSSES, NumericObjective, NumericVocab, SMMDLoss
from numerate.integrations.transformers import attach
from numerate.lab.models.loading import load_model
from numerate.lab.training.config import RunConfig
from numerate.lab.training.run import run

OBJECTS = 0.2  # left over by a repetition: the Trainer keeps what it logs


def left_over(times: int, repeat: Callable[[], Iterator[None]]) -> tuple[int, float]:
    """Return the tensors, and the objects of each repetition, that the second half of the repetitions adds."""
    counts = []
    for done, _ in enumerate(repeat(), 1):
        if done in (times // 2, times):
            gc.collect()
            alive = gc.get_objects()
            counts.append((sum(issubclass(type(one), torch.Tensor) for one in alive), len(alive)))
    (tensors, objects), (more_tensors, more_objects) = counts
    return more_tensors - tensors, (more_objects - objects) / (times - times // 2)


def losses_of(kinds: list[Callable[..., torch.nn.Module]], times: int) -> Iterator[None]:
    vocab = NumericVocab.from_texts({str(digit): digit for digit in range(10)} | {".": 10, "-": 11}, vocab_size=16)
    labels = torch.tensor([[1, 2, 10, 3, 12, 11, 4, 5]])
    for _, kind in zip(range(times), cycle(kinds), strict=False):
        kind(vocab)(torch.zeros(1, 8, 16, requires_grad=True), labels).backward()
        yield


def test_losses_that_are_built_and_dropped():
    tensors, objects = left_over(160, lambda: losses_of([*LOSSES.values()], 160))
    assert tensors <= 0
    assert objects < OBJECTS


@pytest.mark.parametrize("kept", ["tensors", "objects"])
def test_a_leak_is_seen(kept):
    left = []

    class Leaking(SMMDLoss):
        def forward(self, *arguments, **options):
            value = super().forward(*arguments, **options)
            left.append(value.detach() if kept == "tensors" else [{}])
            return value

    tensors, objects = left_over(80, lambda: losses_of([Leaking], 80))
    assert tensors >= 40 if kept == "tensors" else objects >= 1


def test_attach_and_detach(tmp_path):
    loaded = load_model("tiny")
    objective = NumericObjective(SMMDLoss(NumericVocab.from_tokenizer(loaded.tokenizer)))
    arguments = TrainingArguments(str(tmp_path), use_cpu=True, report_to="none", disable_tqdm=True)
    trainer = Trainer(loaded.model, arguments, train_dataset=[])

    def attachments() -> Iterator[None]:
        for _ in range(200):
            attach(trainer, objective).detach()
            yield

    tensors, objects = left_over(200, attachments)
    assert tensors <= 0
    assert objects < OBJECTS


def test_training_steps(tmp_path):
    counts = {}

    def measure(stage: str, done: int, *_: object) -> None:
        if stage == "train" and done in (60, 120):
            gc.collect()
            alive = gc.get_objects()
            counts[done] = sum(issubclass(type(one), torch.Tensor) for one in alive), len(alive)

    shape = {"steps": 120, "batch_size": 8, "train_examples": 512, "eval_examples": 2, "log_every": 2}
    config = RunConfig(task="arithmetic", loss="smmd", task_settings={"difficulty": 1, "wording": "bare"}, **shape)
    run(config, tmp_path, progress=measure)
    assert counts[120][0] <= counts[60][0]
    assert counts[120][1] - counts[60][1] < OBJECTS * 60
