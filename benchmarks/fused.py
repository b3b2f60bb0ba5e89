"""Time and memory of the fused operator, relative to its matrix products, next to plain and other fused cross-entropies.

A case is one head shape and one number of tokens; its measurements are interleaved. First, the operator's loss and gradients are
compared with float64; if they are less accurate than the plain path, the case raises an error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from itertools import product
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.losses import DTYPES, bench_labels, bench_soft_targets, bench_vocab, device_name
from benchmarks.measure import Work, compare_ms, median_ratio, peak_mib
from numerate.checks import check_choice
from numerate.losses import LOSSES
from numerate.objective import NumericObjective
from numerate.targets.soft_targets import SoftTargets

SHAPES = ("49152x576", "128256x4096", "152064x3584", "262144x2304")  # of well-known models
LOW_MIB = 256.0  # of logits per chunk, with the head's gradient accumulated in its dtype
FROZEN_MIB = 512.0  # of logits per chunk, for a head without a gradient
CHECK_TOKENS = 264
SLACK = 1.02  # tolerated ratio of the error to that of the plain path
SOFT = "CE, soft targets"
FLOOR = 4e-6  # relative errors below this are due to the order of float32 sums


@dataclass(frozen=True)
class FusedCost:
    """Time and memory of one way to compute the gradients."""

    name: str
    runtime_ms: float
    ratio: float  # to the three products (two for a frozen head), per round
    peak_mib: float
    loss: str | None = None  # the loss, for the operator with default settings
    numeric_tokens: int | None = None


@dataclass(frozen=True)
class FusedCase:
    """Results for one head and one number of tokens."""

    vocab_size: int
    hidden_size: int
    tokens: int
    costs: tuple[FusedCost, ...]
    error: float  # largest relative error of loss and gradients against float64
    plain_error: float  # the same for the plain path
    did_not_fit: tuple[str, ...]  # ran out of device memory


@dataclass(frozen=True)
class FusedBench:
    """Results of ``python -m benchmarks fused``."""

    device: str
    dtype: str
    repeats: int
    cases: tuple[FusedCase, ...]


def bench_fused(
    shapes: Sequence[str] = ("128256x4096",),
    tokens: Sequence[int] = (8192,),
    numeric_tokens: Sequence[int] = (10, 1110),
    losses: Sequence[str] = ("smmd", "ntil", "number"),
    *,
    dtype: str = "bfloat16",
    device: str = "cuda",
    repeats: int = 7,
    progress: Callable[[str], object] = lambda case: None,
) -> FusedBench:
    """Measure every shape with every number of tokens. ``progress`` is called with the name of each case before it starts."""
    for name in losses:
        check_choice("loss", name, tuple(LOSSES))
    check_choice("dtype", dtype, tuple(DTYPES))
    variants = {f"CE + {loss}, N={n}": (loss, n) for n, loss in product(numeric_tokens, losses)}
    cases = []
    for shape, num_tokens in product(shapes, tokens):
        progress(f"{shape}, {num_tokens} tokens")
        workload = Workload(parse_shape(shape), num_tokens, DTYPES[dtype], torch.device(device))
        cases.append(_measure(workload, variants, repeats))
    return FusedBench(device_name(torch.device(device)), dtype, repeats, tuple(cases))


def parse_shape(shape: str) -> tuple[int, int]:
    """Return V and H of a shape such as ``"128256x4096"``."""
    vocab_size, _, hidden_size = shape.partition("x")
    if not (vocab_size.isdigit() and hidden_size.isdigit() and int(vocab_size) > 1200 and int(hidden_size) > 0):
        raise ValueError(f"shape={shape!r} is not known: expected VxH with V > 1200, such as {', '.join(SHAPES)}.")
    return int(vocab_size), int(hidden_size)


class Workload:
    """Hidden states, head and labels, and the functions to compute their gradients."""

    def __init__(self, shape: tuple[int, int], tokens: int, dtype: torch.dtype, device: torch.device) -> None:
        vocab_size, hidden_size = shape
        generator = torch.Generator(device=device).manual_seed(0)
        hidden = torch.randn(1, tokens, hidden_size, generator=generator, device=device)
        weight = torch.randn(vocab_size, hidden_size, generator=generator, device=device) / hidden_size**0.5
        self.hidden, self.weight = hidden.to(dtype).requires_grad_(), weight.to(dtype).requires_grad_()
        self.shape, self.vocab_size, self.tokens, self.device = shape, vocab_size, tokens, device

    def labels(self, numeric_tokens: int) -> Tensor:
        """Return labels, a quarter of them numeric."""
        return bench_labels(bench_vocab(numeric_tokens, self.vocab_size), self.tokens).to(self.device)

    def objective(self, loss: str | None, numeric_tokens: int) -> NumericObjective:
        """Return the objective with default settings; None: cross-entropy alone."""
        vocab = bench_vocab(numeric_tokens, self.vocab_size)
        return NumericObjective(None if loss is None else LOSSES[loss](vocab)).to(self.device)

    def soft_targets(self, labels: Tensor) -> SoftTargets:
        """Return a distribution over ten numeric tokens at each numeric position of ``labels [1, T]``."""
        return bench_soft_targets(labels, bench_vocab(10, self.vocab_size))

    def clear(self, *, cache: bool = False) -> None:
        """Delete the gradients and, with ``cache``, free cached device memory."""
        self.hidden.grad = self.weight.grad = None
        if cache and self.device.type == "cuda":
            torch.cuda.empty_cache()

    @torch.no_grad()
    def products(self, count: int = 3) -> tuple[Tensor, ...]:
        """Compute the required products: logits, and the gradients of hidden states and head."""
        h = self.hidden[0]
        logits = h @ self.weight.T
        return (logits, logits @ self.weight) if count == 2 else (logits, logits @ self.weight, logits.T @ h)

    def plain_ce(self, labels: Tensor) -> None:
        """Compute cross-entropy on float32 logits, as training scripts do."""
        self.clear()
        logits = (self.hidden @ self.weight.T).float()
        F.cross_entropy(logits.view(-1, self.vocab_size), labels.view(-1)).backward()

    def fused(self, objective: NumericObjective, labels: Tensor, *, frozen: bool = False, **options: Any) -> None:
        """Compute the objective with the fused operator."""
        weight = self.weight.detach() if frozen else self.weight
        self.backward(lambda: objective.fused(self.hidden, weight, labels, **options).loss)

    def backward(self, loss: Callable[[], Tensor]) -> None:
        """Compute the gradients of ``loss()``."""
        self.clear()
        loss().backward()


def _measure(workload: Workload, variants: dict[str, tuple[str, int]], repeats: int) -> FusedCase:
    """Measure all works; ``variants`` are the names, losses and numeric tokens of the operator with default settings."""
    device = workload.device
    errors = {name: _errors(workload, *variant) for name, variant in variants.items()}
    errors[SOFT] = _errors(workload, None, 10, soft_targets=True)
    for name, (error, plain) in errors.items():
        if not error <= plain * SLACK + FLOOR:
            raise ArithmeticError(
                f"{name} has an error of {error:.2e} against float64, the plain path {plain:.2e}: no speed is reported for a "
                "wrong result."
            )
    works = _works(workload, variants)
    did_not_fit = tuple(name for name, work in works.items() if not _fits(work, workload))
    works = {name: work for name, work in works.items() if name not in did_not_fit}
    times = compare_ms(works, device, repeats=repeats, lead=3 if device.type == "cuda" else 0)
    costs = []
    for name, work in works.items():
        baseline = times["two products" if "frozen" in name else "three products"]
        workload.clear(cache=True)
        measured = median(times[name]), median_ratio(times[name], baseline), peak_mib(work, device)
        costs.append(FusedCost(name, *measured, *variants.get(name, ())))
    workload.clear()
    largest, largest_plain = (max(column) for column in zip(*errors.values(), strict=True))
    return FusedCase(*workload.shape, workload.tokens, tuple(costs), largest, largest_plain, did_not_fit)


def _works(workload: Workload, variants: dict[str, tuple[str, int]]) -> dict[str, Work]:
    first, first_n = next(iter(variants.values()))
    objective, labels, fused = workload.objective(first, first_n), workload.labels(first_n), workload.fused
    works: dict[str, Work] = {
        "three products": workload.products,
        "two products": lambda: workload.products(2),
        "plain CE": lambda: workload.plain_ce(labels),
    }
    alone, ten = workload.objective(None, 10), workload.labels(10)
    works["CE alone"] = partial(fused, alone, ten)
    works[SOFT] = partial(fused, alone, ten, soft=workload.soft_targets(ten))
    for name, (loss, n) in variants.items():
        works[name] = partial(fused, workload.objective(loss, n), workload.labels(n))
    works[f"CE + {first}, low memory"] = partial(fused, objective, labels, head_grad_dtype="weight", max_logits_mib=LOW_MIB)
    works[f"CE + {first}, frozen head"] = partial(fused, objective, labels, frozen=True, max_logits_mib=FROZEN_MIB)
    if workload.device.type == "cuda":
        works |= _other_operators(workload, labels)
    return works


def _fits(work: Work, workload: Workload) -> bool:
    """Whether the device has enough memory for ``work``."""
    try:
        work()
    except torch.OutOfMemoryError:
        return False
    finally:
        workload.clear(cache=True)
    return True


def _other_operators(workload: Workload, labels: Tensor) -> dict[str, Work]:
    """Return other fused cross-entropies, if they are installed. They have no numeric term."""
    works: dict[str, Work] = {}
    if find_spec("cut_cross_entropy"):
        from cut_cross_entropy import linear_cross_entropy

        cce = partial(linear_cross_entropy, workload.hidden, workload.weight, labels)
        works["Apple CCE, CE alone"] = lambda: workload.backward(cce)
    if find_spec("liger_kernel"):
        from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss

        liger = LigerFusedLinearCrossEntropyLoss()
        works["Liger, CE alone"] = lambda: workload.backward(lambda: liger(workload.weight, workload.hidden[0], labels[0]))
    return works


def _errors(workload: Workload, loss: str | None, numeric_tokens: int, *, soft_targets: bool = False) -> tuple[float, float]:
    """Return the largest relative error of loss and gradients against float64: the operator's, and the plain path's."""
    vocab_size, hidden_size = min(workload.shape[0], 4096), min(workload.shape[1], 512)
    dtype = workload.hidden.dtype
    small = Workload((vocab_size, hidden_size), CHECK_TOKENS, dtype, workload.device)
    objective, labels = small.objective(loss, numeric_tokens), small.labels(numeric_tokens)
    soft = small.soft_targets(labels) if soft_targets else None
    out = objective.fused(small.hidden, small.weight, labels, soft=soft, max_logits_mib=CHECK_TOKENS * vocab_size / 2**20)
    ours = (out.loss, *torch.autograd.grad(out.loss, (small.hidden, small.weight)))

    def from_logits(to: torch.dtype) -> tuple[Tensor, ...]:
        hidden, weight = (tensor.detach().to(to).requires_grad_() for tensor in (small.hidden, small.weight))
        logits = hidden @ weight.T
        logits = logits if to == torch.float64 else logits.float()
        target = F.one_hot(labels[0], vocab_size).to(logits.dtype)
        if soft is not None:
            target[soft.positions[0]] = 0.0
            target[soft.positions[0], soft.token_ids[0]] = soft.probabilities[0].to(logits.dtype)
        value = F.cross_entropy(logits.view(-1, vocab_size), target if soft is not None else labels.view(-1))
        if loss is not None:
            value = value + objective.weight * objective.numeric_loss(logits, labels)
        return (value, *torch.autograd.grad(value, (hidden, weight)))

    truth, plain = from_logits(torch.float64), from_logits(dtype)

    def largest(results: Sequence[Tensor]) -> float:
        pairs = ((a.detach().double(), b.detach()) for a, b in zip(results, truth, strict=True))
        return max(float((a - b).norm() / b.norm()) for a, b in pairs)

    return largest(ours), largest(plain)
