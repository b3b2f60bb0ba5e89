"""Train backbones with a head of their own, as the runs of a comparison are trained, and let them answer.

Questions, the order of batches, steps, optimizer, schedule and clipping are those of :mod:`numerate.lab.training.stacked.fit`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from numerate.lab.baselines.heads import HEADS, HLGaussHead, ScalarHead
from numerate.lab.baselines.numbers import NotApplicable, RivalAnswers, Scale, gold_numbers
from numerate.lab.data import Example, Task
from numerate.lab.data.settings import DataSettings, tested
from numerate.lab.models.encoding import fitting_rows, training_order
from numerate.lab.models.loading import LoadedModel, PromptEncoder, load_encoder
from numerate.lab.models.names import BUILT
from numerate.lab.training.config import RunConfig
from numerate.lab.training.run import load_run_model, run_examples, training_arguments
from numerate.lab.training.stacked.fit import Stepper
from numerate.lab.training.stacked.layers import StackedLinear
from numerate.lab.training.stacked.model import stack
from numerate.labels import IGNORE_INDEX

Head = ScalarHead | HLGaussHead


@dataclass(frozen=True)
class HeadRun:
    """A run with a head: rows, seed and learning rate are those of ``config``; ``log``: the number's logarithm is predicted."""

    config: RunConfig
    log: bool


def train_heads(kind: str, task: Task, runs: Sequence[HeadRun]) -> list[dict[str, RivalAnswers]]:
    """Train runs and return the answers of each to the examples that it is tested on, by decision.

    Models that are built are trained as one stack, others one at a time. The runs may differ in seed, learning rate and scale.

    Args:
        kind: a key of ``HEADS``.
        task: reads the answers.
        runs: the runs.
    """
    first = runs[0].config
    if first.adapter != "none":
        raise NotApplicable(f"adapter={first.adapter!r} is not supported for heads: expected adapter='none'.")
    if first.keep_best:
        raise NotApplicable("keep_best=True is not supported for heads: expected keep_best=False, which keeps the last weights.")
    encoder = load_encoder(first.model, trust_remote_code=first.trust_remote_code)
    if first.model in BUILT:
        return _train_stack(kind, task, runs, encoder)
    return [answers for run in runs for answers in _train_stack(kind, task, [run], encoder)]


def _train_stack(kind: str, task: Task, runs: Sequence[HeadRun], encoder: PromptEncoder) -> list[dict[str, RivalAnswers]]:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    config = runs[0].config
    single = [load_run_model(run.config, encoder) for run in runs]
    rows = [TrainingRows.of(run, task, loaded) for run, loaded in zip(runs, single, strict=True)]
    model = _headed(kind, single, [own.numbers for own in rows], [run.config.seed for run in runs]).to(device)
    begin = time.perf_counter()
    _fit(model, rows, [run.config for run in runs])
    asked = [encoder.encode([(example.prompt, None) for example in asked_examples(run.config, task)]) for run in runs]
    test = [_padded([question["input_ids"] for question in own]) for own in asked]
    out = _outputs(model, test, config.eval_batch_size, bf16=config.bf16)
    by_decision = model.head.answers(out, [own.scale for own in rows])
    seconds = (time.perf_counter() - begin) / len(runs)
    return [
        {
            name: RivalAnswers(name, answers[at], _settings(run, rows[at].scale, model.head), seconds)
            for name, answers in by_decision.items()
        }
        for at, run in enumerate(runs)
    ]


def _settings(run: HeadRun, scale: Scale, head: Head) -> dict[str, Any]:
    return {"learning_rate": run.config.learning_rate, "scale": scale.name, **head.settings}


def asked_examples(config: DataSettings, task: Task) -> list[Example]:
    """Return the examples of all splits that a run is tested on."""
    return [example for examples in tested(config, task).values() for example in examples]


class HeadedModel(nn.Module):
    """E backbones as one, without the heads that write tokens, and their heads for numbers."""

    def __init__(self, backbone: nn.Module, head: Head, size: int) -> None:
        super().__init__()
        self.backbone, self.head, self.size = backbone, head, size

    def forward(self, ids: Tensor, lengths: Tensor, *, bf16: bool) -> Tensor:
        """Return the outputs ``[E, B, outputs]`` of questions in E equal parts, padded on the right: ``[E * B, T]``."""
        mask = torch.arange(ids.shape[1], device=ids.device) < lengths[:, None]
        with torch.autocast(ids.device.type, torch.bfloat16, enabled=bf16):
            hidden = self.backbone(input_ids=ids, attention_mask=mask.long(), use_cache=False).last_hidden_state
        last = hidden[torch.arange(len(ids), device=ids.device), lengths - 1]
        return self.head.linear(last.float()).unflatten(0, (self.size, -1))  # type: ignore[no-any-return]


def _headed(kind: str, single: Sequence[LoadedModel], numbers: Sequence[Tensor], seeds: Sequence[int]) -> HeadedModel:
    """Return models as one stack, each with a new head that depends on its seed alone."""
    try:
        stacked: Any = stack(single).model
    except ValueError as error:
        reason = str(error).partition(":")[0]
        raise NotApplicable(
            f"model={single[0].name!r} can get no head ({reason}): expected a model with the layers of Llama, such as smollm2."
        ) from None
    layers = []
    for seed in seeds:
        torch.manual_seed(seed)
        layers.append(nn.Linear(stacked.config.hidden_size, HEADS[kind].outputs))
    weight, bias = (torch.stack([getattr(layer, name).detach() for layer in layers]) for name in ("weight", "bias"))
    return HeadedModel(stacked.base_model, HEADS[kind](StackedLinear(stacked.members, weight, bias), numbers), len(single))


@dataclass(frozen=True)
class TrainingRows:
    """The questions of a run and their numbers, and the order in which they are trained on."""

    questions: tuple[Tensor, Tensor]  # ids [n, T], lengths [n]
    numbers: Tensor  # [n], on the scale
    scale: Scale
    order: Tensor  # [steps * accumulation * batch_size]

    @classmethod
    def of(cls, run: HeadRun, task: Task, loaded: LoadedModel) -> TrainingRows:
        """Return the rows that :func:`numerate.lab.training.run.run_data` returns for the run, without their answers."""
        config, examples = run.config, run_examples(run.config, task)
        if examples[0].picture is not None:
            raise NotApplicable(f"task={config.task!r} has pictures: expected a task of text for heads.")
        fitting = fitting_rows(loaded, examples, config.max_length)
        prompts = [row["input_ids"][: row["labels"].count(IGNORE_INDEX)] for row, _ in fitting]
        numbers = gold_numbers(task, [example for _, example in fitting])
        scale = Scale.of(numbers, log=run.log)
        lengths = [len(row["labels"]) for row, _ in fitting]
        order = training_order(lengths, config.batch_size, config.steps * config.accumulation, config.seed)
        return cls(_padded(prompts), torch.from_numpy(scale.standardised(numbers)).float(), scale, torch.tensor(order))


def _padded(prompts: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Return prompts as one tensor ``[n, T]``, and their lengths ``[n]``. Padding is masked: any token will do."""
    lengths = torch.tensor([len(prompt) for prompt in prompts])
    longest = int(lengths.max())
    return torch.tensor([[*prompt, *[0] * (longest - len(prompt))] for prompt in prompts], dtype=torch.int32), lengths


def _joined(parts: Sequence[tuple[Tensor, Tensor]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the questions of several models as one batch, no wider than the longest."""
    lengths = torch.cat([own for _, own in parts])
    longest = int(lengths.max())
    ids = torch.cat([F.pad(own[:, :longest], (0, max(0, longest - own.shape[1]))) for own, _ in parts])
    return ids.long().to(device, non_blocking=True), lengths.to(device, non_blocking=True)


def _fit(model: HeadedModel, rows: Sequence[TrainingRows], configs: Sequence[RunConfig]) -> None:
    """Train in place."""
    device, first = next(model.parameters()).device, configs[0]
    stepper = Stepper(
        model.train(), training_arguments(first, bf16=first.bf16), [float(config.learning_rate or 0) for config in configs]
    )
    for batch in range(first.steps * first.accumulation):
        part = slice(batch * first.batch_size, (batch + 1) * first.batch_size)
        asked = [(own.questions[0][own.order[part]], own.questions[1][own.order[part]]) for own in rows]
        numbers = torch.stack([own.numbers[own.order[part]] for own in rows]).to(device, non_blocking=True)
        out = model(*_joined(asked, device), bf16=first.bf16)
        (model.head.loss(out, numbers).sum() / first.accumulation).backward()
        if (batch + 1) % first.accumulation == 0:
            stepper.step()


@torch.no_grad()
def _outputs(model: HeadedModel, test: Sequence[tuple[Tensor, Tensor]], size: int, *, bf16: bool) -> Tensor:
    """Return the outputs ``[E, n, outputs]`` for the test questions of each model."""
    model.eval()
    device = next(model.parameters()).device

    def batches() -> Iterator[Tensor]:
        for start in range(0, len(test[0][1]), size):
            part = slice(start, start + size)
            yield model(*_joined([(ids[part], lengths[part]) for ids, lengths in test], device), bf16=bf16).cpu()

    return torch.cat([*batches()], 1)
