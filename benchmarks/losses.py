"""Time and memory of cross-entropy plus each loss, relative to cross-entropy alone; speed of NTIL against looped code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

import torch
import torch.nn.functional as F
from tests.reference import ntil_reference
from torch import Tensor

from benchmarks.measure import Work, compare_ms, median_ratio, peak_mib, runtime_ms
from numerate.checks import check_choice
from numerate.losses import LOSSES
from numerate.objective import NumericObjective
from numerate.targets.soft_targets import SoftTargets
from numerate.vocab import NumericVocab

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "float64": torch.float64}
LOOPED_TOKENS = 256  # the looped reference takes seconds for them


@dataclass(frozen=True)
class LossCost:
    """Cross-entropy plus one loss, forward and backward; ratios to cross-entropy alone on the same logits."""

    loss: str
    runtime_ms: float
    runtime_ratio: float
    peak_mib: float
    peak_ratio: float


@dataclass(frozen=True)
class LossesBench:
    """Results of ``python -m benchmarks losses``."""

    device: str
    dtype: str
    tokens: int
    vocab_size: int
    numeric_tokens: int
    repeats: int
    ce_runtime_ms: float
    ce_peak_mib: float
    costs: tuple[LossCost, ...]
    ntil_speedup: float  # time of the looped reference / time of NTILLoss, same inputs
    ntil_disagreement: float  # relative difference of the two


def bench_vocab(numeric_tokens: int, vocab_size: int) -> NumericVocab:
    """Return a vocabulary of all tokens of up to 1 (10), 2 (110), 3 (1110) or 4 digits, and point, minus and comma."""
    check_choice("numeric_tokens", numeric_tokens, (10, 110, 1110, 11110))
    widths = range(1, len(str(numeric_tokens)))
    texts = [f"{value:0{width}d}" for width in widths for value in range(10**width)]
    return NumericVocab.from_texts({text: i for i, text in enumerate([*texts, ".", "-", ","])}, vocab_size=vocab_size)


def bench_labels(vocab: NumericVocab, tokens: int, seed: int = 0) -> Tensor:
    """Return labels ``[1, tokens]`` of text with numbers of three tokens; a quarter of the labels are numeric."""
    generator = torch.Generator().manual_seed(seed)
    first_text = int(vocab.token_ids.max()) + 4
    labels = torch.randint(first_text, vocab.vocab_size, (tokens,), generator=generator)
    numbers = torch.randint(0, vocab.size, (tokens,), generator=generator)
    in_number = (torch.arange(tokens) % 12) < 3
    return torch.where(in_number, vocab.token_ids[numbers], labels)[None]


def bench_soft_targets(labels: Tensor, vocab: NumericVocab, size: int = 10) -> SoftTargets:
    """Return a distribution over ``size`` numeric tokens at each numeric position of ``labels [B, T]``.

    All rows have the same number of such positions.
    """
    token_ids = vocab.token_ids[:size]
    positions = torch.isin(labels.cpu(), vocab.token_ids).nonzero()[:, 1].repeat_interleave(size)
    p = torch.rand((positions.shape[0] // size, size), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    entries = positions, token_ids.repeat(p.shape[0]), (p / p.sum(1, keepdim=True)).reshape(-1)
    return SoftTargets(*(entry.reshape(len(labels), -1) for entry in entries)).to(labels.device)


def bench_losses(
    names: Sequence[str] = tuple(LOSSES),
    *,
    tokens: int = 1024,
    vocab_size: int = 49152,
    numeric_tokens: int = 10,
    dtype: str = "float32",
    device: str = "cpu",
    repeats: int = 7,
) -> LossesBench:
    """Measure all losses."""
    for name in names:
        check_choice("loss", name, tuple(LOSSES))
    check_choice("dtype", dtype, tuple(DTYPES))
    where = torch.device(device)
    vocab = bench_vocab(numeric_tokens, vocab_size)
    labels = bench_labels(vocab, tokens).to(where)
    generator = torch.Generator(device=where).manual_seed(0)
    logits = torch.randn(1, tokens, vocab_size, generator=generator, device=where, dtype=DTYPES[dtype]).requires_grad_()

    def backward(compute: Callable[[], Tensor]) -> None:
        logits.grad = None
        compute().backward()

    works: dict[str, Work] = {
        "cross_entropy": lambda: backward(lambda: F.cross_entropy(logits.view(-1, vocab_size), labels.view(-1)))
    }
    for name in names:
        objective = NumericObjective(LOSSES[name](vocab)).to(where)
        works[name] = lambda objective=objective: backward(lambda: objective(logits, labels).loss)  # type: ignore[misc]
    times = compare_ms(works, where, repeats=repeats)
    peaks = {}
    for name, work in works.items():
        logits.grad = None
        peaks[name] = peak_mib(work, where)
    logits.grad = None
    ce_times, ce_peak = times.pop("cross_entropy"), peaks.pop("cross_entropy")
    costs = tuple(
        LossCost(name, median(times[name]), median_ratio(times[name], ce_times), peak, peak / ce_peak)
        for name, peak in peaks.items()
    )
    ntil = _compare_ntil(logits.detach()[:, :LOOPED_TOKENS], labels[:, :LOOPED_TOKENS], vocab)
    settings = (device_name(where), dtype, tokens, vocab_size, vocab.size, repeats)
    return LossesBench(*settings, median(ce_times), ce_peak, costs, *ntil)


def device_name(device: torch.device) -> str:
    """Return the name of a GPU, or ``"cpu"``."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def _compare_ntil(logits: Tensor, labels: Tensor, vocab: NumericVocab) -> tuple[float, float]:
    """Return how many times faster NTILLoss is than the looped reference, and their relative difference."""
    loss = LOSSES["ntil"](vocab).to(logits.device)
    fast_input, slow_input = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    results: dict[str, Tensor] = {}

    def fast() -> None:
        results["fast"] = loss(fast_input, labels)
        results["fast"].backward()

    def slow() -> None:
        results["slow"] = ntil_reference(slow_input, labels, vocab).mean
        results["slow"].backward()

    fast()
    fast_ms = median(runtime_ms(fast, logits.device) for _ in range(7))
    slow_ms = runtime_ms(slow, logits.device)
    gap = abs(float(results["fast"].detach()) / float(results["slow"].detach()) - 1)
    return slow_ms / fast_ms, gap
