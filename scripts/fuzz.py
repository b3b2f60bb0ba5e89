"""Try every loss in every implementation on hostile logits, labels, soft targets, vocabularies and settings.

    python scripts/fuzz.py --cases 1000000 --seed 1 --processes 2      # the long run; the default tests run 10,000 cases
    python scripts/fuzz.py --case 1:4711                               # one case again, as a failure prints it

A case is one call of one loss with its gradient, compared with a second implementation. What must come out is in docs/reliability.md:
a finite value with finite gradients, a NaN that the logits hold already, or an error that says what was expected. Case INDEX of a
seed is always the same one. Needs torch and numerate alone: ``PYTHONPATH=src`` is enough.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import random
import signal
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any
from unittest import mock

import torch
from torch import Tensor

import numerate as nm
from numerate.losses.soft_target import SoftTargetLoss

IGNORED = -100
HANG_S = 60.0  # no case takes a tenth of it
LONGEST = 5000  # tokens of the largest vocabulary
FAR = 1e6  # a label so far below the likeliest token may cost more than a dtype holds
DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
}
CLOSE = {torch.float64: 1e-8, torch.float32: 1e-4, torch.bfloat16: 2.0**-6, torch.float16: 2.0**-8}  # of two implementations
TEXTS = [*"0123456789", ".", "-", ",", " ", "(", "x", "e", "10", "12", "05", "00", "99", "123", "007", "000", " 5", " -", "(-", "%"]
HOSTILE = (0.0, 1e-3, 1e3, 1e30, 1e-30, -1.0, math.nan, math.inf)  # numbers for settings that are numbers
CHOICES: dict[str, tuple[Any, ...]] = {
    "variant": ("paper", "released", "repaired"),
    "numbers": ("values", "runs"),
    "average": ("number", "sequence"),
    "places": ("uniform", "exponential", "linear", "del"),
    "thousands": (True, False),
    "terms": ("smmd", "mmd", "smooth"),
    "kernel": ("gaussian", "laplacian", "energy"),
    "spread": ("triangular", "binomial", "poisson", "uniform"),
    "ablation": ("shuffled", "random", "equal"),
}


class Fault(Exception):
    """What a case did that its contract does not allow."""


class Hang(BaseException):
    """A case took longer than HANG_S."""


# What a case is made of


def pick(rng: random.Random, **weights: float) -> str:
    """Return one of the names, with probability in proportion to its weight."""
    return rng.choices(list(weights), list(weights.values()))[0]


def drawn_values(rng: random.Random, size: int) -> tuple[str, list[float]]:
    """Return what the values of a vocabulary are like, and the values."""
    kind = pick(rng, ranks=4, duplicate=2, negative=2, decimals=2, offset=1, wide=2, small=1, large=1, denormal=0.5, equal=0.5)
    sign = rng.choice((-1.0, 1.0))
    values: dict[str, Callable[[int], float]] = {
        "ranks": float,
        "duplicate": lambda i: float(i // 3),
        "negative": lambda i: float(i - size // 2),
        "decimals": lambda i: rng.uniform(-5, 5),
        "offset": lambda i: sign * (1.7e9 + i),
        "wide": lambda i: rng.choice((-1, 1)) * 10.0 ** rng.uniform(-300, 300),
        "small": lambda i: sign * i * 10.0 ** rng.choice((-300, -45, -20, -8)),
        "large": lambda i: sign * i * 10.0 ** rng.choice((300, 160, 38, 25, 12)),
        "denormal": lambda i: i * 5e-324,
        "equal": lambda i: sign * 7.0,
    }
    return kind, [values[kind](i) for i in range(size)]


@lru_cache(maxsize=1000)
def drawn_vocab(key: str, largest: bool) -> tuple[str, nm.NumericVocab]:
    """Return the kind of a vocabulary and the vocabulary. ``key`` seeds it."""
    rng = random.Random(key)
    if not largest and rng.random() < 0.4:
        texts = rng.sample(TEXTS, rng.randint(1, len(TEXTS))) + [rng.choice("0123456789")]
        ids = rng.sample(range(len(texts) + 3), len(texts))
        return "texts", nm.NumericVocab.from_texts(dict(zip(texts, ids, strict=True)), vocab_size=len(texts) + 3)
    size = LONGEST if largest else rng.choice((1, 1, 2, 3, 5, 10, 10, 10, 11, 20, 60, 300))
    kind, values = drawn_values(rng, size)
    spare = rng.choice((0, 1, 5))
    ids = rng.sample(range(size + spare), size)
    return kind, nm.NumericVocab.from_values(dict(zip(ids, values, strict=True)), vocab_size=size + spare)


def drawn_settings(rng: random.Random, loss: type[nm.NumericLoss]) -> tuple[dict[str, Any], bool]:
    """Return settings of a loss, and whether it may refuse them."""
    known, chosen, may_refuse = loss.settings(), {"outside": rng.choice(loss.outsides)}, False
    for name, default in known.items():
        if name in CHOICES and rng.random() < 0.3:
            chosen[name] = rng.choice(CHOICES[name])
            may_refuse |= name in ("variant", "ablation", "numbers")  # not every loss has every one
        elif (name == "squash" or isinstance(default, float)) and rng.random() < 0.04:
            chosen[name] = rng.choice(HOSTILE)
            may_refuse = True
    return chosen, may_refuse


def drawn_logits(rng: random.Random, shape: tuple[int, ...], dtype: torch.dtype, labels: Tensor) -> tuple[str, Tensor]:
    """Return what the logits are like, and the logits ``[.., V]``."""
    generator = torch.Generator().manual_seed(rng.getrandbits(40))
    kind = pick(rng, ordinary=5, big=2, equal=1, denormal=1, limit=1, lowest=1, dead=2, row=1, nan=2, inf=2, mixed=2)
    x = 3 * torch.randn(shape, generator=generator, dtype=torch.float64)
    info, size = torch.finfo(dtype), shape[-1]
    some = torch.rand(shape, generator=generator) < rng.choice((0.02, 0.3, 0.9))
    own = torch.nn.functional.one_hot(labels.clamp(0, size - 1), size).bool()
    match kind:
        case "big":
            x = 1e4 * x.sign()
        case "equal":
            x = torch.full_like(x, rng.choice((0.0, 1e4, -1e4, 65504.0, -0.0)))
        case "denormal":
            x = x * info.smallest_normal / 8
        case "limit":  # one token at the dtype's limit, the label or another
            at = labels.clamp(0, size - 1) if rng.random() < 0.5 else torch.randint(size, labels.shape, generator=generator)
            x = torch.zeros_like(x).scatter(-1, at[..., None], info.max)
        case "lowest":
            x = torch.where(some & ~own, info.min, x)
        case "dead":
            x = x.masked_fill(some & ~own, -math.inf)
        case "row":
            x = x.masked_fill((some | own).any(-1, keepdim=True) & some[..., :1], -math.inf)
        case "nan" | "inf":
            x = x.masked_fill(some, float(kind))
        case "mixed":
            odd = torch.tensor([1e4, -1e4, math.inf, -math.inf, math.nan, info.max, info.min, info.tiny, 0.0])
            x = torch.where(some, odd[torch.randint(len(odd), shape, generator=generator)], x)
    return kind, x.to(dtype)


def drawn_labels(rng: random.Random, vocab: nm.NumericVocab, shape: tuple[int, ...], columns: int) -> tuple[str, Tensor]:
    """Return what the labels are like, and the labels."""
    kind = pick(rng, mixed=6, numbers=6, ignored=1, text=1, outside=0.2, negative=0.2)
    numeric = vocab.token_ids.tolist()
    text = sorted(set(range(columns)) - set(numeric)) or [IGNORED]
    length = math.prod(shape)
    if kind == "numbers":
        ids = rng.choices(numeric, k=length)
    elif kind == "text":
        ids = rng.choices(text, k=length)
    elif kind == "ignored":
        ids = [IGNORED] * length
    else:
        ids = [rng.choice((IGNORED, rng.choice(text), rng.choice(numeric), rng.choice(numeric))) for _ in range(length)]
        if kind in ("outside", "negative"):
            ids[rng.randrange(length)] = columns + rng.choice((0, 1, 10**9)) if kind == "outside" else rng.choice((-1, -99, -(10**12)))
    return kind, torch.tensor(ids).reshape(shape)


def drawn_soft(rng: random.Random, labels: Tensor, columns: int) -> tuple[str, nm.SoftTargets]:
    """Return what the soft targets ``[.., E]`` are like, and the targets."""
    kind = pick(rng, valid=12, twice=2, sum=0.5, negative=0.5, nan=0.5, token=0.5, position=0.5)
    entries: list[list[tuple[int, int, float]]] = []
    length = labels.shape[-1]
    for row in labels.reshape(-1, length).tolist():
        own: list[tuple[int, int, float]] = []
        for position in rng.sample(range(length), rng.randint(0, length)):
            count = rng.randint(1, 4)
            tokens = rng.choices(range(columns), k=count) if kind == "twice" else rng.sample(range(columns), min(count, columns))
            if rng.random() < 0.7 and row[position] >= 0:
                tokens = [*(token for token in tokens if token != row[position]), row[position]]
            weights = [rng.random() + 1e-3 for _ in tokens]
            own += [(position, token, weight / sum(weights)) for token, weight in zip(tokens, weights, strict=True)]
        if kind == "token" and own and row[own[-1][0]] == IGNORED:
            own = []  # nothing reads the tokens of an ignored position
        if own and kind not in ("valid", "twice"):
            position, token, p = own[-1]
            wrong = {"sum": p + 0.5, "negative": -p, "nan": rng.choice((math.nan, math.inf))}
            token = rng.choice((columns, -1)) if kind == "token" else token
            own[-1] = (length + rng.choice((0, 7)) if kind == "position" else position, token, wrong.get(kind, p))
        entries.append(own)
    widest = max(1, *map(len, entries))
    filled = torch.tensor([own + [(-1, 0, 0.0)] * (widest - len(own)) for own in entries], dtype=torch.float64)
    filled = filled.reshape(*labels.shape[:-1], widest, 3)
    kind = kind if any(entries) else "valid"
    return kind, nm.SoftTargets(filled[..., 0].long(), filled[..., 1].long(), filled[..., 2])


@dataclass
class Case:
    """A call of a loss, and what is known of it beforehand."""

    name: str
    settings: dict[str, Any]
    vocab: nm.NumericVocab
    kinds: dict[str, str]  # of the vocabulary, labels, logits, weights and soft targets
    path: str
    dtype: torch.dtype
    logits: Tensor
    labels: Tensor
    weights: Tensor | None
    soft: nm.SoftTargets | None
    options: dict[str, Any] = field(default_factory=dict)  # of the objective, or of the call of the loss
    law: str = ""  # that is tried where the value is finite
    logs: bool = False  # whether the objective also computes the figures of logs
    may_refuse: bool = False
    must_refuse: bool = False

    @property
    def given(self) -> dict[str, Any]:
        """Arguments of the objective beside logits and labels."""
        return {"position_weights": self.weights, "soft": self.soft, "with_mass": self.logs, "with_overrun": self.logs}

    def __str__(self) -> str:
        kinds = ", ".join(f"{part} {kind}" for part, kind in self.kinds.items())
        return (
            f"{self.name} {self.settings} by {self.path} {self.options}, {str(self.dtype).removeprefix('torch.')}, "
            f"logits {tuple(self.logits.shape)}, N={self.vocab.size}: {kinds}"
        )


def draw(seed: int, index: int, device: str = "cpu") -> Case:
    """Return case ``index`` of a seed."""
    rng = random.Random(f"{seed}:{index}")
    largest = rng.random() < 1 / 4000
    vocab_kind, vocab = drawn_vocab(f"{seed}:vocabulary {rng.randrange(300)}", largest)
    name = rng.choice(list(nm.LOSSES))
    settings, may_refuse = drawn_settings(rng, nm.LOSSES[name])
    path = pick(rng, loss=4, masked=2, objective=3, fused=3, traced=2)
    dtype = DTYPES[pick(rng, float32=4, bfloat16=2, float16=2, float64=2)]
    shape = rng.choice(((1,), (3,), (1, 1), (2, 4), (2, 4), (3, 8), (2, 1, 3), (1, 30)))
    columns = vocab.vocab_size + rng.choice((0, 0, 2))
    label_kind, labels = drawn_labels(rng, vocab, shape, columns)
    logit_kind, logits = drawn_logits(rng, (*shape, columns), dtype, labels)
    kinds = {"vocabulary": vocab_kind, "labels": label_kind, "logits": logit_kind}
    wrong = label_kind in ("outside", "negative")
    weights, soft, options = None, None, {}
    if rng.random() < 0.2:
        kinds["weights"] = pick(rng, some=6, zero=1, large=1, negative=0.3, nan=0.3)
        weights = torch.tensor([rng.random() for _ in range(labels.numel())]).reshape(shape)
        factor = {"zero": 0.0, "large": 1e4, "negative": -1.0, "nan": math.nan}.get(kinds["weights"], 1.0)
        weights, wrong = weights * factor, wrong or kinds["weights"] in ("negative", "nan")
    if path in ("loss", "masked"):
        options["reduction"] = rng.choice(("mean", "sum", "none")) if path == "loss" else "sum"
    else:
        options = {"weight": rng.choice((0.3, 0.3, 0.0, 1e3)), "normalize": rng.choice(("numeric", "tokens"))}
        options |= {"label_smoothing": rng.choice((0.0, 0.0, 0.1)), "scale": rng.choice(("fixed", "fixed", "match_ce"))}
        if rng.random() < 0.3:
            kinds["soft"], soft = drawn_soft(rng, labels, columns)
            wrong = wrong or kinds["soft"] not in ("valid", "twice")
    path = "objective" if wrong and path == "traced" else path  # compiled code does not check its arguments
    extreme = vocab_kind in ("wide", "small", "large", "denormal") or bool((vocab.values < 0).any())
    if device != "cpu" and wrong:  # a device checks without a sync, by an assertion that ends the process
        return draw(seed, index + 10**9, device)
    return Case(
        name, settings, vocab, kinds, path, dtype, logits.to(device), labels.to(device), weights, soft, options,
        pick(rng, implementations=3, ignored=1, shifted=1, wider=1, none=8), rng.random() < 0.15, may_refuse=may_refuse or extreme, must_refuse=wrong,
    )  # fmt: skip


# The implementations


@lru_cache(maxsize=3000)
def _kept(name: str, settings: tuple[tuple[str, Any], ...], vocab: nm.NumericVocab) -> nm.NumericLoss:
    return nm.LOSSES[name](vocab, **dict(settings))


def loss_of(case: Case) -> nm.NumericLoss:
    """Return the loss of a case; kept, unless it is large."""
    if case.vocab.size > 100:
        return nm.LOSSES[case.name](case.vocab, **case.settings).to(case.logits.device)
    return _kept(case.name, tuple(sorted(case.settings.items())), case.vocab).to(case.logits.device)


def by_loss(case: Case, loss: nm.NumericLoss, logits: Tensor) -> Tensor:
    """Call the loss; the sum of its parts for ``reduction="none"``."""
    value: Tensor = loss(logits, case.labels, position_weights=case.weights, **case.options)
    return value.sum()


def by_masked_rows(case: Case, loss: nm.NumericLoss, logits: Tensor) -> Tensor:
    """Compute the sum with a mask instead of the rows that count, as on a GPU."""
    loss(logits.detach(), case.labels, position_weights=case.weights)  # checks the labels
    targets = loss.targets(case.labels, position_weights=case.weights, compact=False)
    return loss.per_row(*loss.select(logits, targets), targets).sum()


def by_objective(case: Case, loss: nm.NumericLoss, logits: Tensor) -> Tensor:
    """Call the objective."""
    value: Tensor = nm.NumericObjective(loss, **case.options)(logits, case.labels, **case.given).loss
    return value


def by_fused(case: Case, loss: nm.NumericLoss, logits: Tensor) -> Tensor:
    """Call the fused objective with hidden states that are the logits, and a head that is the identity."""
    head = torch.eye(logits.shape[-1], dtype=logits.dtype, device=logits.device)
    rows = logits.shape[-1] * logits.dtype.itemsize * 5 / 2**20  # five rows at a time
    objective = nm.NumericObjective(loss, **case.options)
    return objective.fused(logits, head, case.labels, **case.given, max_logits_mib=rows).loss


def by_trace(case: Case, loss: nm.NumericLoss, logits: Tensor) -> Tensor:
    """Call the objective with the formulas that ``torch.compile`` traces, without compiling them."""
    with mock.patch.object(torch.compiler, "is_compiling", lambda: True):
        return by_objective(case, loss, logits)


PATHS: dict[str, Callable[[Case, nm.NumericLoss, Tensor], Tensor]] = {
    "loss": by_loss,
    "masked": by_masked_rows,
    "objective": by_objective,
    "fused": by_fused,
    "traced": by_trace,
}
OTHERS = {"loss": "masked", "masked": "loss", "objective": "traced", "fused": "objective", "traced": "objective"}


# The contract


@dataclass(frozen=True)
class Promise:
    """What the logits of a case allow."""

    finite: bool  # value and gradient must be finite
    nan: bool  # the value must not be finite: a number would hide the NaN or +inf that it was computed from


def promised(case: Case, loss: nm.NumericLoss, logits: Tensor) -> Promise:
    """Return what the documentation promises for these logits."""
    flat, labels = logits.detach().double().reshape(-1, logits.shape[-1]).cpu(), case.labels.reshape(-1).cpu()
    objective = case.path in ("objective", "fused", "traced")
    index = case.vocab.index_of(labels)
    kept = set(loss.vocab.token_ids.tolist())  # variants leave tokens out
    numeric = torch.tensor([label in kept for label in labels.tolist()], dtype=torch.bool) & (index >= 0)
    signs = torch.isin(labels, loss.columns.cpu()) & (labels >= 0)
    read = (labels != IGNORED) if objective else numeric | signs
    rows = flat[read]
    at_label = rows.gather(1, labels[read][:, None].clamp_min(0))[:, 0]
    seen = rows if objective or loss.uses_rest else rows[:, loss.columns.cpu()]
    soft = isinstance(loss, SoftTargetLoss) or case.soft is not None or bool(case.options.get("label_smoothing"))
    bad = seen.isnan().any() or (seen == math.inf).any()
    fully_read = flat[labels != IGNORED] if objective else flat[numeric][:, loss.vocab.token_ids.cpu()]
    hidden = bool(fully_read.isnan().any() or (fully_read == math.inf).any())
    if case.path == "fused" and bool((seen == -math.inf).any()):  # 0 · -inf is NaN in the product with the head
        return Promise(False, False)
    if soft:  # a token far below costs as much as -inf
        at_label = seen
    behind = (seen.amax(-1, keepdim=True) - at_label.reshape(len(rows), -1)) if seen.numel() else seen
    return Promise(not bad and bool((behind < FAR).all()), hidden)


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise Hang in the body after so many seconds."""

    def stop(*_: Any) -> None:
        raise Hang

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def value_and_grad(case: Case, loss: nm.NumericLoss, path: str, logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return value and gradient by one implementation."""
    leaf = logits.detach().clone().requires_grad_()
    value = PATHS[path](case, loss, leaf)
    if not value.requires_grad:
        raise Fault("the value is not connected to the logits")
    (grad,) = torch.autograd.grad(value, leaf)
    if value.device != leaf.device or grad.device != leaf.device:
        raise Fault(f"value on {value.device}, gradient on {grad.device}")
    wide = torch.float64 if leaf.dtype == torch.float64 else torch.float32
    if value.dtype != wide or grad.dtype != leaf.dtype or grad.shape != leaf.shape:
        raise Fault(f"value of {value.dtype}, gradient of {grad.dtype} {tuple(grad.shape)}")
    return value.detach(), grad


def check(case: Case) -> str:
    """Run a case and return what came out; raise Fault for what its contract does not allow."""
    try:
        loss = loss_of(case)
        value, grad = value_and_grad(case, loss, case.path, case.logits)
    except (ValueError, TypeError) as error:
        if not (case.may_refuse or case.must_refuse):
            raise Fault(f"refused: {error}") from error
        if "expected" not in str(error):
            raise Fault(f"unclear {type(error).__name__}: {error}") from error
        return "refused"
    if case.must_refuse:
        raise Fault(f"not refused: {value}")
    promise = promised(case, loss, case.logits)
    finite = bool(value.isfinite())
    if promise.nan and finite and not fades(case, loss):
        raise Fault(f"NaN or inf in the logits gives {float(value)}")
    if promise.finite:
        check_finite(case, loss, value, grad)
        check_same(case, loss, value, grad)
    return "finite" if finite else "nan"


def fades(case: Case, loss: nm.NumericLoss) -> bool:
    """Whether a row may have no influence: a weight of 0, a digit far below a number's leading place, a single token."""
    weighed = loss.vocab.size == 1 or case.weights is not None and bool((case.weights == 0).any())
    return weighed or (loss.level == "number" and case.labels.shape[-1] > 3)


def check_finite(case: Case, loss: nm.NumericLoss, value: Tensor, grad: Tensor) -> None:
    """Raise unless value and gradient are finite, as far as their dtype can hold them."""
    if not bool(value.isfinite()):
        raise Fault(f"value {float(value)}")
    if not bool(grad.isfinite().all()):
        if case.dtype == torch.float16:
            wide = value_and_grad(case, loss, case.path, case.logits.float())[1]
            sums = case.labels.numel() if case.path == "fused" else 1  # it is multiplied by the rows of a batch until the end
            if bool(wide.isfinite().all()) and float(wide.abs().max()) * sums > torch.finfo(torch.float16).max / 2:
                return
        raise Fault(f"{int((~grad.isfinite()).sum())} of {grad.numel()} gradients are NaN or inf, value {float(value)}")


def check_same(case: Case, loss: nm.NumericLoss, value: Tensor, grad: Tensor) -> None:
    """Raise if one of the laws that all losses obey does not hold; which one is tried depends on the case."""
    if getattr(loss, "noise", 0) or (case.options.get("scale") == "match_ce" and case.kinds["logits"] != "ordinary"):
        return  # drawn anew in each call; divided by a cost that may be rounding error alone
    if float(value) == 0 and case.kinds["logits"] == "ordinary" and case.path == "loss":
        if loss.vocab.values.unique().shape[0] > 1 and float(loss.count(case.labels, position_weights=case.weights)) > 0:
            raise Fault("a cost of exactly 0")
    match case.law:
        case "implementations":
            count = float(loss.count(case.labels, position_weights=case.weights))
            divisor = count if case.options.get("reduction") == "mean" and count > 0 else 1.0
            other, other_grad = value_and_grad(case, loss, OTHERS[case.path], case.logits)
            compare(case, loss, value, grad, other / divisor, other_grad.double() / divisor)
        case "ignored":
            ignored = (case.labels == IGNORED)[..., None]
            same, same_grad = value_and_grad(case, loss, case.path, torch.where(ignored, math.nan, case.logits))
            compare(case, loss, value, grad, same, same_grad)
            if bool((torch.where(ignored, same_grad, 0) != 0).any()):
                raise Fault("ignored rows have a gradient")
        case "shifted" if case.dtype == torch.float64 and loss.shift_invariant:
            compare(case, loss, value, grad, *value_and_grad(case, loss, case.path, case.logits + 3.0), slack=1e3)
        case "wider" if case.dtype != torch.float64:
            compare(case, loss, value, grad, *value_and_grad(case, loss, case.path, case.logits.double()))


def compare(
    case: Case, loss: nm.NumericLoss, value: Tensor, grad: Tensor, other: Tensor, other_grad: Tensor, slack: float = 1.0
) -> None:
    """Raise unless two values and gradients agree."""
    if bool(value.isfinite()) != bool(other.isfinite()):
        raise Fault(f"{case.law}: value {float(value)} against {float(other)}")
    close = slack * CLOSE[torch.float64 if case.dtype == torch.float64 else torch.float32]
    a, b = float(value), float(other)
    scale = max(abs(a), abs(b), 0.01 * float(loss.worst), 0.01)
    if abs(a - b) > close * scale:
        raise Fault(f"{case.law}: value {a!r} against {b!r}")
    g, h = grad.double(), other_grad.double()
    if not bool((g.isfinite() & h.isfinite()).all()):
        return
    scale = max(scale, float(g.abs().max()), float(h.abs().max()))
    if float((g - h).abs().max()) > slack * CLOSE[case.dtype] * scale:
        raise Fault(f"{case.law}: gradients differ by {float((g - h).abs().max()):.3g} of {scale:.3g}")


# Runs


def attempt(seed: int, index: int, device: str = "cpu") -> tuple[str, str]:
    """Run a case: what came out, and for a fault its description."""
    case: Case | None = None
    try:
        with time_limit(HANG_S):
            case = draw(seed, index, device)
            return check(case), ""
    except Hang:
        return "fault", f"{seed}:{index} hangs: {case}"
    except Exception as error:  # of any kind: each one is a fault
        kind = "" if isinstance(error, Fault) else f"{type(error).__name__}: "
        return "fault", f"{seed}:{index} {kind}{' '.join(str(error).split())} | {case}"


def attempts(job: tuple[int, int, int, str]) -> tuple[Counter[str], list[str]]:
    """Run cases ``start`` to ``stop`` of a seed on a device: how often each outcome came, and the faults."""
    seed, start, stop, device = job
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    outcomes: Counter[str] = Counter()
    faults: list[str] = []
    for index in range(start, stop):
        outcome, text = attempt(seed, index, device)
        outcomes[outcome] += 1
        faults += [text] if text else []
    return outcomes, faults


def main(arguments: list[str] | None = None) -> int:
    """Run the cases that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--case", metavar="SEED:INDEX", help="run this case alone, and raise what it raises")
    options = parser.parse_args(arguments)
    if options.case:
        seed, index = map(int, options.case.split(":"))
        case = draw(seed, index, options.device)
        print(case)
        print(check(case))
        return 0
    step = max(1, min(1000, options.cases // max(1, options.processes)))
    jobs = [
        (options.seed, start, min(start + step, options.cases), options.device) for start in range(0, options.cases, step)
    ]
    total: Counter[str] = Counter()
    faults: list[str] = []
    began = time.monotonic()
    with multiprocessing.get_context("spawn").Pool(options.processes) if options.processes > 1 else _Here() as pool:
        for outcomes, found in pool.imap(attempts, jobs):
            total += outcomes
            faults += found
            for text in found[:20]:
                print(f"scripts/fuzz.py --case {text}", flush=True)
            print(f"{sum(total.values()):,} of {options.cases:,}, {len(faults)} faults", file=sys.stderr, flush=True)
    print("| cases | seed | processes | device | finite | NaN or inf | refused | faults | seconds |")
    print("|---|---|---|---|---|---|---|---|---|")
    counts = " | ".join(f"{total[name]:,}" for name in ("finite", "nan", "refused", "fault"))
    seconds = time.monotonic() - began
    print(f"| {options.cases:,} | {options.seed} | {options.processes} | {options.device} | {counts} | {seconds:.0f} |")
    return 1 if faults else 0


class _Here:
    """A pool of the process itself."""

    imap = staticmethod(map)

    def __enter__(self) -> _Here:
        return self

    def __exit__(self, *_: object) -> None:
        return None


if __name__ == "__main__":
    sys.exit(main())
