r"""Cost and quality of a model's distribution over numbers, relative to greedy answers and to samples of the same prompts.

Quality is measured with R fresh samples y of each prompt, drawn once and not timed; F is the model's distribution, D the one to
evaluate (from the search or from samples):

    covers        share of the y between the 0.5 % and the 99.5 % quantile of D
    excess CRPS   mean CRPS(D, y) - E|Y - Y'| / 2 = integral of (D(x) - F(x))^2 dx, relative to E|Y - Y'| / 2

The first checks for missing mass, the second for correct weights. Both estimates are unbiased. D = F has an excess of 0, and n
samples one of 1/n: an excess of 0.01 equals 100 samples. Greedy answers have no distribution. Samples without a number in the
grammar's format are left out of both, since D is conditional on a number.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.losses import device_name
from benchmarks.measure import compare_ms, median_ratio, peak_mib, runtime_ms
from numerate.distribution import NumberDistribution

if TYPE_CHECKING:
    from numerate.decode import NumberGrammar
    from numerate.decode.finder import NumberFinder

WIDTHS = (4, 8, 16, 32)
_NUMBER = re.compile(r"\s{0,2}(-?[0-9][0-9,]*(?:\.[0-9]+)?)")


@dataclass(frozen=True)
class DecodeWorkload:
    """A model and its prompts.

    Attributes:
        name: of the model.
        model: with ``generate``.
        tokenizer: of the model.
        batch: the model's inputs, padded on the left, for the prompts of these indices.
        prompts: number of prompts.
        grammar: of the answers.
        max_new_tokens: of ``generate``.
        end_token_ids: tokens that end an answer.
        pad_token_id: padding of finished answers.
        truths: the correct answers, if known.
        trained: whether the model is trained; if not, only costs are measured.
    """

    name: str
    model: Any
    tokenizer: Any
    batch: Callable[[Sequence[int]], Mapping[str, Tensor]]
    prompts: int
    grammar: NumberGrammar
    max_new_tokens: int
    end_token_ids: Sequence[int]
    pad_token_id: int
    truths: Sequence[Decimal] | None = None
    trained: bool = True


@dataclass(frozen=True)
class DecodeCost:
    """Cost and quality of a decoding method on all prompts.

    Attributes:
        name: ``greedy``, ``32 samples``, ``width 8``.
        runtime_ms: for all prompts.
        to_greedy: the time relative to greedy answers; median over rounds.
        to_samples: the time relative to samples.
        passes: forward passes of the model.
        sequences: total number of sequences in these passes.
        peak_mib: memory beyond the model's.
        covered: share of the model's probability in the distribution; mean over prompts.
        covers: see above; mean over prompts.
        excess_crps: see above.
        absolute_error: mean absolute error of the answer: the greedy one, or the distribution's median.
    """

    name: str
    runtime_ms: float
    to_greedy: float
    to_samples: float
    passes: int
    sequences: int
    peak_mib: float
    covered: float | None = None
    covers: float | None = None
    excess_crps: float | None = None
    absolute_error: float | None = None


@dataclass(frozen=True)
class DecodeBench:
    """Results of ``python -m benchmarks decode``."""

    model: str
    parameters: int
    trained: bool
    device: str
    dtype: str
    prompts: int
    batch_size: int
    samples: int
    reference: int
    repeats: int
    finder_ms: float  # reading the tokenizer, once for all prompts
    costs: tuple[DecodeCost, ...]
    many_prompts: int
    many_ms: float
    many_peak_mib: float


def bench_decode(
    workload: DecodeWorkload,
    *,
    widths: Sequence[int] = WIDTHS,
    samples: int = 32,
    reference: int = 256,
    batch_size: int = 64,
    repeats: int = 5,
    many: int = 1000,
    progress: Callable[[str], object] = lambda stage: None,
) -> DecodeBench:
    """Measure a workload. Also search ``many`` prompts with the default width, for time and memory."""
    device = workload.model.device
    run = _Runs(workload, batch_size)
    progress("reading the tokenizer")
    finder_ms = runtime_ms(lambda: run.finder(widths[0]), device)
    finders = {f"width {width}": run.finder(width) for width in widths}
    works: dict[str, Callable[[], Any]] = {
        "greedy": run.greedy,
        f"{samples} samples": lambda: run.samples(samples),
        **{name: lambda finder=finder: run.search(finder) for name, finder in finders.items()},  # type: ignore[misc]
    }
    progress("measuring time")
    times = compare_ms(works, device, repeats=repeats, tick=lambda: progress("measuring time"))
    drawn = [list[Decimal]()] * workload.prompts
    if workload.trained:
        progress("drawing the reference")
        torch.manual_seed(1)
        drawn = [[number for number in row if number is not None] for row in run.samples(reference)]
    costs = []
    for name, work in works.items():
        progress(f"measuring memory: {name}")
        torch.manual_seed(0)
        with counted(workload.model) as count:
            result = work()
        costs.append(
            DecodeCost(
                name,
                median(times[name]),
                median_ratio(times[name], times["greedy"]),
                median_ratio(times[name], times[f"{samples} samples"]),
                count.passes,
                count.sequences,
                peak_mib(work, device),
                **(_quality(name, result, drawn, workload.truths) if workload.trained else {}),
            )
        )
    progress(f"searching {many} prompts")
    wide = run.finder(16)
    many_ms = runtime_ms(lambda: run.search(wide, many), device)
    many_peak = peak_mib(lambda: run.search(wide, many), device)
    parameters = [*workload.model.parameters()]
    return DecodeBench(
        workload.name,
        sum(parameter.numel() for parameter in parameters),
        workload.trained,
        device_name(device),
        str(parameters[0].dtype).removeprefix("torch."),
        workload.prompts,
        batch_size,
        samples,
        reference,
        repeats,
        finder_ms,
        tuple(costs),
        many,
        many_ms,
        many_peak,
    )


@dataclass
class _Runs:
    """Decoding methods for all prompts of a workload, in batches."""

    workload: DecodeWorkload
    batch_size: int

    def finder(self, width: int) -> NumberFinder:
        from numerate.decode.finder import NumberFinder

        work = self.workload
        return NumberFinder(work.tokenizer, work.grammar, width=width, end_token_ids=work.end_token_ids)

    def greedy(self) -> list[Decimal | None]:
        return [answers[0] for answers in self._written(1, do_sample=False)]

    def samples(self, count: int) -> list[list[Decimal | None]]:
        """Return the numbers of ``count`` samples of each prompt; None for an answer without one."""
        return self._written(count, do_sample=True, temperature=1.0, top_k=0, top_p=1.0, num_return_sequences=count)

    def search(self, finder: NumberFinder, prompts: int | None = None) -> list[NumberDistribution | None]:
        """Return the distribution of each prompt; the prompts are repeated if there are more to search."""
        from numerate.decode.finder import prompt_seeds
        from numerate.decode.model import generate

        found: list[NumberDistribution | None] = []
        for indices in self._batches(self.workload.prompts if prompts is None else prompts):

            def use(rows: Any, indices: list[int] = indices) -> None:
                answers = finder.find(rows, indices, prompt_seeds(indices, 0))
                found.extend(answer.distribution(finder.grammar.value) for answer in answers)

            with torch.no_grad():
                generate(self.workload.model, self._inputs(indices), use, {"pad_token_id": self.workload.pad_token_id})
        return found

    def _inputs(self, indices: list[int]) -> Mapping[str, Tensor]:
        return self.workload.batch([index % self.workload.prompts for index in indices])

    def _batches(self, count: int) -> Iterator[list[int]]:
        for first in range(0, count, self.batch_size):
            yield [*range(first, min(first + self.batch_size, count))]

    def _written(self, count: int, **options: Any) -> list[list[Decimal | None]]:
        work, written = self.workload, list[list[Decimal | None]]()
        ends = {*work.end_token_ids}
        for indices in self._batches(work.prompts):
            inputs = self._inputs(indices)
            ids = work.model.generate(
                **inputs,
                max_new_tokens=work.max_new_tokens,
                eos_token_id=[*ends] or None,
                pad_token_id=work.pad_token_id,
                num_beams=1,
                **options,
            )
            length = 1 if work.model.config.is_encoder_decoder else inputs["input_ids"].shape[1]
            rows = ids[:, length:].tolist()
            kept = [row[: next((i for i, token in enumerate(row) if token in ends), len(row))] for row in rows]
            numbers = [self._number(text) for text in work.tokenizer.batch_decode(kept, skip_special_tokens=True)]
            written += [numbers[first : first + count] for first in range(0, len(numbers), count)]
        return written

    def _number(self, text: str) -> Decimal | None:
        match = _NUMBER.match(text)
        return None if match is None else self.workload.grammar.value(match[1])


@dataclass
class Count:
    """Forward passes of a model, and the sequences in them."""

    passes: int = 0
    sequences: int = 0


@contextmanager
def counted(model: Any) -> Iterator[Count]:
    """Count the forward passes of a model."""
    count = Count()

    def hook(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given = [*args, *(kwargs.get(name) for name in ("decoder_input_ids", "input_ids", "inputs_embeds"))]
        count.passes += 1
        count.sequences += next((value.shape[0] for value in given if isinstance(value, Tensor)), 0)

    handle = model.register_forward_pre_hook(hook, with_kwargs=True)
    try:
        yield count
    finally:
        handle.remove()


def _quality(name: str, result: Any, drawn: list[list[Decimal]], truths: Sequence[Decimal] | None) -> dict[str, float | None]:
    """Return the quality metrics of a :class:`DecodeCost`."""
    if name == "greedy":
        return {"absolute_error": _absolute_error(result, truths)}
    found = [
        one if isinstance(one, NumberDistribution) or one is None else _of_samples(one)  # samples of a prompt
        for one in result
    ]
    pairs = [(one, row) for one, row in zip(found, drawn, strict=True) if one is not None and len(row) > 1]
    if not pairs:
        return {}
    spreads = [half_gini(row) for _, row in pairs]
    excess = sum(mean_crps(one, row) for one, row in pairs) - sum(spreads)
    return {
        "covered": fmean(0.0 if one is None else one.covered for one in found),
        "covers": fmean(covers(one, row) for one, row in pairs),
        "excess_crps": excess / sum(spreads) if sum(spreads) > 0 else None,
        "absolute_error": _absolute_error([None if one is None else one.median for one in found], truths),
    }


def _of_samples(numbers: list[Decimal | None]) -> NumberDistribution | None:
    return NumberDistribution.from_samples(numbers) if any(number is not None for number in numbers) else None


def _absolute_error(answers: Sequence[Decimal | None], truths: Sequence[Decimal] | None) -> float | None:
    """Return the mean absolute error; None if a truth or an answer is missing."""
    if truths is None or any(answer is None for answer in answers):
        return None
    return fmean(abs(float(answer - truth)) for answer, truth in zip(answers, truths, strict=True) if answer is not None)


def covers(found: NumberDistribution, drawn: Sequence[Decimal]) -> float:
    """Return the share of the drawn numbers between the 0.5 % and the 99.5 % quantile.

    Examples:
        >>> covers(NumberDistribution([1, 2, 3], [0.2, 0.3, 0.5]), [Decimal(2), Decimal(3), Decimal(4), Decimal(1)])
        0.75
    """
    low, high = found.quantile(0.005), found.quantile(0.995)
    return fmean(low <= number <= high for number in drawn)


def mean_crps(found: NumberDistribution, drawn: Sequence[Decimal]) -> float:
    """Return the mean CRPS of a distribution for the drawn numbers."""
    values, weights = found.floats, found.probabilities
    numbers = np.array([float(number) for number in drawn])
    spread = half_gini_of(values, weights)
    return float((np.abs(values[:, None] - numbers) * weights[:, None]).sum(0).mean()) - spread


def half_gini(drawn: Sequence[Decimal]) -> float:
    """Return an unbiased estimate of E|Y - Y'| / 2 from independent draws.

    Examples:
        >>> round(half_gini([Decimal(1), Decimal(3), Decimal(3)]), 6)  # two of three pairs are 2 apart
        0.666667
    """
    numbers = np.array([float(number) for number in drawn])
    count = len(numbers)
    return half_gini_of(numbers, np.full(count, 1 / count)) * count / (count - 1)


def half_gini_of(values: Any, weights: Any) -> float:
    """Return E|X - X'| / 2 of a distribution: the integral of F(x) (1 - F(x)) dx."""
    order = np.argsort(values)
    below = np.cumsum(weights[order])[:-1]
    return float((np.diff(values[order]) * below * (1 - below)).sum())
