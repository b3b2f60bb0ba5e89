"""What the fused operator costs, against the matrix products it cannot do without, plain cross-entropy, and its rivals.

A case is one shape of head and one number of tokens; all its measurements are taken in turns. Before any of them the
operator's loss and gradients are compared with float64, and a case that is less exact than the plain path is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from numerate.bench.losses import DTYPES, bench_labels, bench_vocab
from numerate.bench.measure import compare_ms, median_ratio, peak_mib
from numerate.checks import check_choice
from numerate.losses import LOSSES
from numerate.objective import NumericObjective

SHAPES = {"49152x576": (49152, 576), "128256x4096": (128256, 4096), "152064x3584": (152064, 3584), "262144x2304": (262144, 2304)}
LOW_MEMORY_MIB = 256.0  # of logits at a time, with the head's gradient summed in its own dtype
FROZEN_MIB = 512.0  # of logits at a time, where the head has no gradient
CHECK_TOKENS = 264
SLACK = 1.02  # how much larger than the plain path's an error may be by chance
FLOOR = 4e-6  # relative, below which float32 sums of this length differ by their order alone


@dataclass(frozen=True)
class FusedCost:
    """One way to the gradients."""

    name: str
    runtime_ms: float
    ratio: float  # to the three products (two for a frozen head), round by round
    peak_mib: float
    loss: str | None = None  # where it is the operator's default, with this loss
    numeric_tokens: int | None = None


@dataclass(frozen=True)
class FusedCase:
    """One head and one number of tokens."""

    vocab_size: int
    hidden_size: int
    tokens: int
    costs: tuple[FusedCost, ...]
    error: float  # largest relative error of a gradient against float64
    plain_error: float  # the plain path's
    did_not_fit: tuple[str, ...]  # in the device's memory


@dataclass(frozen=True)
class FusedBench:
    """A run of ``numerate bench fused``."""

    device: str
    dtype: str
    repeats: int
    cases: tuple[FusedCase, ...]

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def bench_fused(
    shapes: Sequence[str] = ("128256x4096",),
    tokens: Sequence[int] = (8192,),
    numeric_tokens: Sequence[int] = (10, 1110),
    losses: Sequence[str] = ("smmd", "ntil", "number"),
    *,
    dtype: str = "bfloat16",
    device: str = "cuda",
    repeats: int = 7,
    rivals: bool = True,
    progress: Callable[[str], object] = lambda case: None,
) -> FusedBench:
    """Measure every shape with every number of tokens. ``progress`` is told of each case before it begins."""
    for name in losses:
        check_choice("loss", name, tuple(LOSSES))
    check_choice("dtype", dtype, tuple(DTYPES))
    where = torch.device(device)
    cases = []
    for shape in shapes:
        for count in tokens:
            progress(f"{shape}, {count} tokens")
            cases.append(_case(parse_shape(shape), count, numeric_tokens, losses, DTYPES[dtype], where, repeats, rivals))
    name = torch.cuda.get_device_name(where) if where.type == "cuda" else where.type
    return FusedBench(device=name, dtype=dtype, repeats=repeats, cases=tuple(cases))


def parse_shape(shape: str) -> tuple[int, int]:
    """``"128256x4096"`` to V and H."""
    vocab_size, _, hidden_size = shape.partition("x")
    if not (vocab_size.isdigit() and hidden_size.isdigit() and int(vocab_size) > 1200 and int(hidden_size) > 0):
        raise ValueError(f"shape={shape!r} is not known: expected VxH with V > 1200, such as {', '.join(SHAPES)}.")
    return int(vocab_size), int(hidden_size)


class _Step:
    """Hidden states, head and labels, and the ways to their gradients."""

    def __init__(self, shape: tuple[int, int], tokens: int, dtype: torch.dtype, device: torch.device) -> None:
        vocab_size, hidden_size = shape
        generator = torch.Generator(device=device).manual_seed(0)
        hidden = torch.randn(1, tokens, hidden_size, generator=generator, device=device)
        weight = torch.randn(vocab_size, hidden_size, generator=generator, device=device) / hidden_size**0.5
        self.hidden, self.weight = hidden.to(dtype).requires_grad_(), weight.to(dtype).requires_grad_()
        self.vocab_size, self.tokens, self.device = vocab_size, tokens, device

    def labels(self, numeric_tokens: int) -> Tensor:
        return bench_labels(bench_vocab(numeric_tokens, self.vocab_size), self.tokens).to(self.device)

    def objective(self, loss: str, numeric_tokens: int) -> NumericObjective:
        return NumericObjective(LOSSES[loss](bench_vocab(numeric_tokens, self.vocab_size))).to(self.device)

    def clear(self) -> None:
        self.hidden.grad = self.weight.grad = None

    @torch.no_grad()
    def products(self, count: int = 3) -> tuple[Tensor, ...]:
        """What no way can do without: logits, and the gradients of hidden states and head."""
        h = self.hidden[0]
        logits = h @ self.weight.T
        return (logits, logits @ self.weight) if count == 2 else (logits, logits @ self.weight, logits.T @ h)

    def plain_ce(self, labels: Tensor) -> None:
        """Cross-entropy as training scripts write it, on float32 logits."""
        self.clear()
        logits = (self.hidden @ self.weight.T).float()
        F.cross_entropy(logits.view(-1, self.vocab_size), labels.view(-1)).backward()

    def fused(self, objective: NumericObjective, labels: Tensor, *, frozen: bool = False, **options: Any) -> None:
        self.clear()
        weight = self.weight.detach() if frozen else self.weight
        objective.fused(self.hidden, weight, labels, **options).loss.backward()


def _case(
    shape: tuple[int, int],
    tokens: int,
    numeric_tokens: Sequence[int],
    losses: Sequence[str],
    dtype: torch.dtype,
    device: torch.device,
    repeats: int,
    rivals: bool,
) -> FusedCase:
    exactness = [_errors(shape, name, n, dtype, device) for n in numeric_tokens for name in losses]
    for (name, n), (error, plain) in zip([(m, n) for n in numeric_tokens for m in losses], exactness, strict=True):
        if not error <= plain * SLACK + FLOOR:
            raise ArithmeticError(
                f"{name} with {n} numeric tokens is off by {error:.2e} where the plain path is off by {plain:.2e}, against "
                "float64: no speed is shown for a wrong result."
            )
    step = _Step(shape, tokens, dtype, device)
    digits = step.labels(numeric_tokens[0])
    works: dict[str, Callable[[], object]] = {
        "three products": step.products,
        "two products": lambda: step.products(2),
        "plain CE": lambda: step.plain_ce(digits),
    }
    for n in numeric_tokens:
        labels = step.labels(n)
        for name in losses:
            objective = step.objective(name, n)
            works[f"CE + {name}, N={n}"] = lambda o=objective, y=labels: step.fused(o, y)  # type: ignore[misc]
    objective = step.objective(losses[0], numeric_tokens[0])
    works[f"CE + {losses[0]}, low memory"] = lambda: step.fused(
        objective, digits, head_grad_dtype="weight", max_logits_mib=LOW_MEMORY_MIB
    )
    works[f"CE + {losses[0]}, frozen head"] = lambda: step.fused(objective, digits, frozen=True, max_logits_mib=FROZEN_MIB)
    if rivals and device.type == "cuda":
        works |= _rivals(step, digits)
    did_not_fit = tuple(name for name, work in works.items() if not _fits(work, step))
    works = {name: work for name, work in works.items() if name not in did_not_fit}
    times = compare_ms(works, device, repeats=repeats, lead=3 if device.type == "cuda" else 0)
    ours = {f"CE + {name}, N={n}": (name, n) for n in numeric_tokens for name in losses}
    costs = tuple(_cost(name, work, times, step, *ours.get(name, (None, None))) for name, work in works.items())
    return FusedCase(*shape, tokens, costs, max(e for e, _ in exactness), max(p for _, p in exactness), did_not_fit)


def _fits(work: Callable[[], object], step: _Step) -> bool:
    """Whether the device has memory for it."""
    try:
        work()
    except torch.OutOfMemoryError:
        return False
    finally:
        step.clear()
        if step.device.type == "cuda":
            torch.cuda.empty_cache()
    return True


def _cost(
    name: str,
    work: Callable[[], object],
    times: Mapping[str, list[float]],
    step: _Step,
    loss: str | None,
    numeric_tokens: int | None,
) -> FusedCost:
    base = times["two products" if "frozen" in name else "three products"]
    step.clear()
    if step.device.type == "cuda":
        torch.cuda.empty_cache()
    peak = peak_mib(work, step.device)
    step.clear()
    return FusedCost(name, median(times[name]), median_ratio(times[name], base), peak, loss, numeric_tokens)


def _rivals(step: _Step, labels: Tensor) -> dict[str, Callable[[], object]]:
    """Other fused cross-entropies, where they are installed; they know no numeric term."""
    found: dict[str, Callable[[], object]] = {}
    if find_spec("cut_cross_entropy"):
        from cut_cross_entropy import linear_cross_entropy

        def cce() -> None:
            step.clear()
            linear_cross_entropy(step.hidden, step.weight, labels).backward()

        found["Apple CCE, CE alone"] = cce
    if find_spec("liger_kernel"):
        from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss

        def liger() -> None:
            step.clear()
            LigerFusedLinearCrossEntropyLoss()(step.weight, step.hidden[0], labels[0]).backward()

        found["Liger, CE alone"] = liger
    return found


def _errors(
    shape: tuple[int, int], loss: str, numeric_tokens: int, dtype: torch.dtype, device: torch.device
) -> tuple[float, float]:
    """Largest relative error of the two gradients and the loss, of the operator and of the plain path, against float64."""
    vocab_size = min(shape[0], 4096)
    step = _Step((vocab_size, min(shape[1], 512)), CHECK_TOKENS, dtype, device)
    objective, labels = step.objective(loss, numeric_tokens), step.labels(numeric_tokens)
    out = objective.fused(step.hidden, step.weight, labels, max_logits_mib=CHECK_TOKENS * vocab_size / 2**20)
    ours = (out.loss, *torch.autograd.grad(out.loss, (step.hidden, step.weight)))

    def by_logits(to: torch.dtype) -> tuple[Tensor, ...]:
        hidden, weight = (tensor.detach().to(to).requires_grad_() for tensor in (step.hidden, step.weight))
        logits = hidden @ weight.T
        logits = logits if to == torch.float64 else logits.float()
        ce = F.cross_entropy(logits.view(-1, vocab_size), labels.view(-1))
        value = ce + objective.weight * objective.numeric_loss(logits, labels)
        return (value, *torch.autograd.grad(value, (hidden, weight)))

    truth, plain = by_logits(torch.float64), by_logits(dtype)

    def worst(results: Sequence[Tensor]) -> float:
        pairs = ((a.detach().double(), b.detach()) for a, b in zip(results, truth, strict=True))
        return max(float((a - b).norm() / b.norm()) for a, b in pairs)

    return worst(ours), worst(plain)
