"""Runs that predict a number from the hidden state of a question's last token, instead of writing it.

    scalar_head      one output; squared error
    hl_gauss_head    a histogram; cross-entropy with a Gaussian around the number, integrated over each bin (Imani & White 2018,
                     "Improving Regression Performance with Distributional Losses"; Farebrother et al. 2024, "Stop Regressing")
    quantile_head    quantiles at the middles of equal shares; pinball loss (Dabney et al. 2018, "Distributional Reinforcement
                     Learning with Quantile Regression")

They are losses of a run like any other: rows, their order, steps, optimizer, adapter, tuning and test are the same. Outputs are
on a scale, logarithmic where the training labels are positive and spread widely. An answer is a distribution, from which the
rules of ``decide`` decide, and the answer beside them is its median; numbers have as many decimals as the labels.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from numerate.answers.numerals import number_of
from numerate.distribution import NumberDistribution
from numerate.distribution.exact import Floats, exact_number
from numerate.lab.data import Example, Task
from numerate.lab.data.numbers import Scale, gold_numbers
from numerate.lab.evaluation.decisions import decision_record
from numerate.lab.evaluation.evaluate import Evaluation, Record, enter, shown
from numerate.lab.evaluation.settings import DecisionSettings
from numerate.lab.files.progress import Progress
from numerate.lab.models.encoding import collate
from numerate.lab.models.loading import LoadedModel
from numerate.labels import IGNORE_INDEX

BINS = 100
SIGMA = 0.75  # of the Gaussian, in bins
QUANTILES = 32
_BEYOND = 3 * SIGMA  # bins on either side of the training range
_PARTS = 4  # of a bin, within which mass is even
_LEAST = 1e-4  # share of the largest mass below which a value is left out
_WIDE = 10  # quotient of the 95 % and the 5 % quantile of labels above which the scale is logarithmic


class NumberHead(nn.Module):
    """Outputs for a number on its scale, from a hidden state; ``numbers`` are the training labels on that scale."""

    outputs: ClassVar[int] = 1

    def __init__(self, size: int, numbers: Tensor) -> None:
        super().__init__()
        self.linear = nn.Linear(size, self.outputs)

    def loss(self, out: Tensor, numbers: Tensor) -> Tensor:
        """Return the mean loss from outputs ``[B, outputs]`` and numbers ``[B]``."""
        raise NotImplementedError

    def masses(self, out: Tensor) -> tuple[Tensor, Tensor]:
        """Return values on the scale and their probabilities, ``[B, K]`` each, from outputs ``[B, outputs]``."""
        raise NotImplementedError


class ScalarHead(NumberHead):
    """One output, the number itself."""

    def loss(self, out: Tensor, numbers: Tensor) -> Tensor:
        """Return the mean squared error."""
        return (out[:, 0] - numbers).square().mean()

    def masses(self, out: Tensor) -> tuple[Tensor, Tensor]:
        """Return the number, with all of the mass."""
        return out, torch.ones_like(out)


class HLGaussHead(NumberHead):
    """Logits of the bins of a histogram from the lowest to the highest training label, and three deviations beyond."""

    outputs: ClassVar[int] = BINS

    def __init__(self, size: int, numbers: Tensor) -> None:
        super().__init__(size, numbers)
        self.edges: Tensor
        self.register_buffer("edges", bin_edges(numbers), persistent=False)  # [bins + 1]

    def loss(self, out: Tensor, numbers: Tensor) -> Tensor:
        """Return the mean cross-entropy."""
        return -(hl_gauss_targets(numbers, self.edges) * out.log_softmax(-1)).sum(-1).mean()

    def masses(self, out: Tensor) -> tuple[Tensor, Tensor]:
        """Return the middles of equal parts of the bins, and their mass."""
        within = (torch.arange(_PARTS, device=out.device) + 0.5) / _PARTS
        values = (self.edges[:-1, None] + self.edges.diff()[:, None] * within).flatten()
        return values.expand(len(out), -1), (out.softmax(-1) / _PARTS).repeat_interleave(_PARTS, -1)


class QuantileHead(NumberHead):
    """Quantiles at the middles of equal shares, each of which stands for its share."""

    outputs: ClassVar[int] = QUANTILES

    def loss(self, out: Tensor, numbers: Tensor) -> Tensor:
        """Return the mean pinball loss of all quantiles."""
        levels = (torch.arange(QUANTILES, device=out.device) + 0.5) / QUANTILES
        off = numbers[:, None] - out
        return torch.maximum(levels * off, (levels - 1) * off).mean()

    def masses(self, out: Tensor) -> tuple[Tensor, Tensor]:
        """Return the quantiles in order, with equal mass: those of a network may cross."""
        return out.sort(-1).values, torch.full_like(out, 1 / QUANTILES)


KINDS: dict[str, type[NumberHead]] = {"scalar_head": ScalarHead, "hl_gauss_head": HLGaussHead, "quantile_head": QuantileHead}


def bin_edges(numbers: Tensor) -> Tensor:
    """Return the edges ``[BINS + 1]`` of a histogram over these numbers."""
    lowest, highest = float(numbers.min()), float(numbers.max())
    width = ((highest - lowest) or 1.0) / (BINS - 2 * _BEYOND)
    return torch.linspace(lowest - _BEYOND * width, highest + _BEYOND * width, BINS + 1)


def hl_gauss_targets(numbers: Tensor, edges: Tensor) -> Tensor:
    """Return the mass of a Gaussian around each number ``[..]`` in each bin of one width, which sums to one.

    Examples:
        >>> hl_gauss_targets(torch.tensor(0.5), torch.linspace(-1, 2, 4)).round(decimals=3)  # in the middle of three bins
        tensor([0.2410, 0.5190, 0.2410])
    """
    sigma = SIGMA * (edges[1] - edges[0])
    below = torch.special.ndtr((edges - numbers[..., None]) / sigma)
    mass: Tensor = below.diff(dim=-1)
    return mass / mass.sum(-1, keepdim=True)


class HeadedModel(nn.Module):
    """A backbone without the layer that writes tokens, and a head for numbers.

    Args:
        model: a language model or a vision-language model, with an adapter or without.
        kind: a key of ``KINDS``.
        numbers: the training labels.
        decimals: of the labels.
        log: whether the scale is logarithmic. None: if the labels are positive and spread over more than a decade.
    """

    def __init__(self, model: Any, kind: str, numbers: Floats, decimals: int, *, log: bool | None = None) -> None:
        super().__init__()
        inner = model.get_base_model() if hasattr(model, "get_base_model") else model  # peft's puts its layers into it
        low, high = np.quantile(numbers, [0.05, 0.95])
        positive = bool((numbers > 0).all())
        if log and not positive:
            raise ValueError("loss_settings.log=True needs positive labels: expected log=False, or other labels.")
        self.scale = Scale.of(numbers, log=positive and high > _WIDE * low if log is None else log)
        self.decimals = decimals
        self.backbone, self.generation_config = inner.base_model, inner.generation_config
        size = inner.config.get_text_config().hidden_size
        self.head = KINDS[kind](size, torch.from_numpy(self.scale.standardised(numbers)).float())

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.head.linear.weight.device

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, number: Tensor | None = None, pixel_values: Tensor | None = None
    ) -> dict[str, Tensor]:
        """Return the outputs of questions ``[B, T]``, padded on the right, and with their numbers ``[B]`` the loss."""
        seen = {} if pixel_values is None else {"pixel_values": pixel_values}
        hidden = self.backbone(input_ids=input_ids, attention_mask=attention_mask, use_cache=False, **seen).last_hidden_state
        last = attention_mask.sum(-1) - 1
        out = self.head.linear(hidden[torch.arange(len(last), device=last.device), last].float())
        return {"out": out} if number is None else {"loss": self.head.loss(out, number.float()), "out": out}

    def gradient_checkpointing_enable(self, **options: Any) -> None:
        """Compute activations again in the backward pass."""
        self.backbone.gradient_checkpointing_enable(**options)

    @torch.no_grad()
    def distributions(self, batch: Mapping[str, Tensor], *, bf16: bool = False) -> list[NumberDistribution]:
        """Return the distribution over the answers to each question."""
        with torch.autocast(self.device.type, torch.bfloat16, enabled=bf16):
            out = self(**batch)["out"]
        values, p = (part.double().cpu().numpy() for part in self.head.masses(out.float().nan_to_num()))  # of a run that diverged
        return [self._distribution(*row) for row in zip(self.scale.restored(values), p, strict=True)]

    def _distribution(self, values: Floats, p: Floats) -> NumberDistribution:
        kept = p > _LEAST * p.max()
        exact = [Decimal(f"{value:.{self.decimals}f}") for value in np.nan_to_num(values[kept]).tolist()]
        return NumberDistribution(exact, (p[kept] / p[kept].sum()).tolist())


def with_head(loaded: LoadedModel, kind: str, task: Task, training: Sequence[Example], seed: int, **settings: Any) -> LoadedModel:
    """Return a model with a head in place of the layer that writes tokens; its weights depend on the seed."""
    numbers = gold_numbers(task, training)
    exact = [exact_number("label", number_of(task.read(example.answer)) or 0) for example in training]
    decimals = max(len(f"{number:f}".partition(".")[2]) for number in exact)
    torch.manual_seed(seed)
    return replace(loaded, model=HeadedModel(loaded.model, kind, numbers, decimals, **settings))


class HeadRows:
    """Make rows of a head from rows with an answer: the question alone, and its number on the scale."""

    def __init__(self, task: Task, scale: Scale) -> None:
        self.task, self.scale = task, scale

    def row(self, row: dict[str, Any], example: Example, position: int) -> dict[str, Any]:
        """Return the question of a row with its number."""
        number = self.scale.standardised(gold_numbers(self.task, [example]))[0]
        ids = row["input_ids"][: row["labels"].count(IGNORE_INDEX)]
        return {**{name: value for name, value in row.items() if name != "labels"}, "input_ids": ids, "number": float(number)}


def head_records(
    loaded: LoadedModel, task: Task, evaluation: Evaluation, settings: DecisionSettings, *, bf16: bool, progress: Progress
) -> list[Record]:
    """Return a record of each example, as :func:`numerate.lab.evaluation.evaluate.evaluate` does of a model that writes."""
    model: Any = loaded.model.eval()
    for batch in evaluation.batches(settings.eval_batch_size):
        examples, begin = [example for *_, example in batch], time.perf_counter()
        rows = loaded.encode([(example.prompt, example.picture) for example in examples])
        asked = {name: value.to(model.device) for name, value in collate(rows, pad=loaded.pad).items()}
        found = model.distributions(asked, bf16=bf16)
        seconds = (time.perf_counter() - begin) / len(batch)
        for (split, index, example), distribution in zip(batch, found, strict=True):
            output = task.written(distribution.median)
            record: Record = {"split": split, "index": index, "prompt": example.prompt, "gold": example.answer, "output": output}
            record |= {"answer": shown(task.read(output)), "measures": task.score(example, output)}
            if settings.decide:
                record |= decision_record(task, example, output, distribution, settings.decide, settings.interval)
                record["seconds"] = {"greedy": seconds, "search": 0.0}
            enter(record, example, task, evaluation, loaded.pictures)
        progress("evaluate", len(evaluation.records), len(evaluation.order), {})
    return [evaluation.records[key] for key in evaluation.order]
