"""What each loss costs on top of cross-entropy, and what vectorising NTIL gains over its loops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from numerate.bench.measure import compare_ms, median_ratio, peak_mib, runtime_ms
from numerate.checks import check_choice
from numerate.losses import LOSSES
from numerate.objective import NumericObjective
from numerate.reference import ntil_reference
from numerate.vocab import NumericVocab

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "float64": torch.float64}
LOOPED_TOKENS = 256  # the looped reference takes seconds for these


@dataclass(frozen=True)
class LossCost:
    """Cross-entropy plus one loss, forward and backward, against cross-entropy alone on the same logits."""

    loss: str
    runtime_ms: float
    runtime_ratio: float
    peak_mib: float
    peak_ratio: float


@dataclass(frozen=True)
class LossesBench:
    """A run of ``numerate bench losses``."""

    device: str
    dtype: str
    tokens: int
    vocab_size: int
    numeric_tokens: int
    repeats: int
    ce_runtime_ms: float
    ce_peak_mib: float
    costs: tuple[LossCost, ...]
    ntil_speedup: float  # looped reference over NTILLoss, same inputs
    ntil_disagreement: float  # relative, between the two

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def bench_vocab(numeric_tokens: int, vocab_size: int) -> NumericVocab:
    """All tokens of up to one (10), two (110), three (1110) or four digits, leading zeros too, with point, minus and comma."""
    check_choice("numeric_tokens", numeric_tokens, (10, 110, 1110, 11110))
    widths = range(1, len(str(numeric_tokens)))
    texts = [f"{value:0{width}d}" for width in widths for value in range(10**width)]
    return NumericVocab.from_texts({text: i for i, text in enumerate([*texts, ".", "-", ","])}, vocab_size=vocab_size)


def bench_labels(vocab: NumericVocab, tokens: int, seed: int = 0) -> Tensor:
    """Labels ``[1, tokens]``, a quarter of them numeric: text with numbers of three tokens in it."""
    generator = torch.Generator().manual_seed(seed)
    first_text = int(vocab.token_ids.max()) + 4
    labels = torch.randint(first_text, vocab.vocab_size, (tokens,), generator=generator)
    numbers = torch.randint(0, vocab.size, (tokens,), generator=generator)
    in_number = (torch.arange(tokens) % 12) < 3
    return torch.where(in_number, vocab.token_ids[numbers], labels)[None]


def bench_losses(
    names: Sequence[str] = tuple(LOSSES),
    *,
    tokens: int = 1024,
    vocab_size: int = 49152,
    numeric_tokens: int = 10,
    dtype: str = "float32",
    device: str = "cpu",
    repeats: int = 7,
    progress: Callable[[int], Callable[[], object]] | None = None,
) -> LossesBench:
    """Measure. ``progress(total)`` may give a function to call after each of ``total`` measurements."""
    for name in names:
        check_choice("loss", name, tuple(LOSSES))
    check_choice("dtype", dtype, tuple(DTYPES))
    where = torch.device(device)
    vocab = bench_vocab(numeric_tokens, vocab_size)
    labels = bench_labels(vocab, tokens).to(where)
    generator = torch.Generator(device=where).manual_seed(0)
    logits = torch.randn(1, tokens, vocab_size, generator=generator, device=where, dtype=DTYPES[dtype]).requires_grad_()

    def cross_entropy() -> None:
        logits.grad = None
        F.cross_entropy(logits.view(-1, vocab_size), labels.view(-1)).backward()

    def with_loss(name: str) -> Callable[[], None]:
        objective = NumericObjective(LOSSES[name](vocab)).to(where)

        def work() -> None:
            logits.grad = None
            objective(logits, labels).loss.backward()

        return work

    works = {"cross_entropy": cross_entropy, **{name: with_loss(name) for name in names}}
    tick = progress(len(works) * (repeats + 1)) if progress else lambda: None
    times = compare_ms(works, where, repeats=repeats, tick=tick)
    peaks = {}
    for name, work in works.items():
        logits.grad = None
        peaks[name] = peak_mib(work, where)
        tick()
    logits.grad = None
    speedup, disagreement = _ntil_against_loops(logits.detach()[:, :LOOPED_TOKENS], labels[:, :LOOPED_TOKENS], vocab)
    return LossesBench(
        device=torch.cuda.get_device_name(where) if where.type == "cuda" else where.type,
        dtype=dtype,
        tokens=tokens,
        vocab_size=vocab_size,
        numeric_tokens=vocab.size,
        repeats=repeats,
        ce_runtime_ms=median(times["cross_entropy"]),
        ce_peak_mib=peaks["cross_entropy"],
        costs=tuple(
            LossCost(
                loss=name,
                runtime_ms=median(times[name]),
                runtime_ratio=median_ratio(times[name], times["cross_entropy"]),
                peak_mib=peaks[name],
                peak_ratio=peaks[name] / peaks["cross_entropy"],
            )
            for name in names
        ),
        ntil_speedup=speedup,
        ntil_disagreement=disagreement,
    )


def _ntil_against_loops(logits: Tensor, labels: Tensor, vocab: NumericVocab) -> tuple[float, float]:
    """How many times faster NTILLoss is than its loops, forward and backward, and how far they disagree."""
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
