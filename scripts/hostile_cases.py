"""Hostile cases for ``scripts/fuzz.py``, drawn from a seed: logits, labels, soft targets, vocabularies and settings of losses."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

import numerate as nm

IGNORED = -100
TOGETHER = 8  # cases in a call
LONGEST, LARGEST = 5000, 1e-3  # tokens of the largest vocabulary, and the share of calls that have it
DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
}
TEXTS = (*"0123456789.-, (xe", "10", "12", "05", "00", "99", "123", "007", "000", "(-", " 5", " -")
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
WRONG = ("outside", "negative", "nan", "sum", "token", "position")  # labels, weights and soft targets that must be rejected


def pick(rng: random.Random, **weights: float) -> str:
    """Return one of the names, with a probability proportional to its weight."""
    return rng.choices(list(weights), list(weights.values()))[0]


def drawn_values(rng: random.Random, size: int) -> tuple[str, list[float]]:
    """Return a description of the values of a vocabulary, and the values."""
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
        texts = [*rng.sample(TEXTS, rng.randint(1, len(TEXTS))), rng.choice("0123456789")]
        ids = rng.sample(range(len(texts) + 3), len(texts))
        return "texts", nm.NumericVocab.from_texts(dict(zip(texts, ids, strict=True)), vocab_size=len(texts) + 3)
    size = LONGEST if largest else rng.choice((1, 1, 2, 3, 5, 10, 10, 10, 11, 20, 60, 300))
    kind, values = drawn_values(rng, size)
    spare = rng.choice((0, 1, 5))
    ids = rng.sample(range(size + spare), size)
    return kind, nm.NumericVocab.from_values(dict(zip(ids, values, strict=True)), vocab_size=size + spare)


def drawn_settings(rng: random.Random, loss: type[nm.NumericLoss]) -> tuple[dict[str, Any], bool]:
    """Return settings of a loss, and whether it may reject them."""
    known, chosen, may_refuse = loss.settings(), {"outside": rng.choice(loss.outsides)}, False
    for name, default in known.items():
        if name in CHOICES and rng.random() < 0.3:
            chosen[name] = rng.choice(CHOICES[name])
            may_refuse |= name in ("variant", "ablation", "numbers")  # not every loss has every one
        elif (name == "squash" or isinstance(default, float)) and rng.random() < 0.04:
            chosen[name] = rng.choice(HOSTILE)
            may_refuse = True
    return chosen, may_refuse


def drawn_logits(rng: random.Random, labels: Tensor, columns: int, dtype: torch.dtype) -> tuple[str, Tensor]:
    """Return a description of the logits of a sequence of labels ``[T]``, and the logits ``[T, V]``."""
    generator = torch.Generator().manual_seed(rng.getrandbits(40))
    kind = pick(rng, ordinary=5, big=2, equal=1, denormal=1, limit=1, lowest=1, dead=2, row=0.5, nan=0.5, inf=0.5, mixed=0.5)
    shape, info = (len(labels), columns), torch.finfo(dtype)
    x = 3 * torch.randn(shape, generator=generator, dtype=torch.float64)
    own = torch.nn.functional.one_hot(labels.clamp(0, columns - 1), columns).bool()
    if kind in ("lowest", "dead", "row", "nan", "inf", "mixed"):
        some = torch.rand(shape, generator=generator) < rng.choice((0.02, 0.3, 0.9))
    match kind:
        case "big":
            x = 1e4 * x.sign()
        case "equal":
            x = torch.full_like(x, rng.choice((0.0, 1e4, -1e4, 65504.0, -0.0)))
        case "denormal":
            x = x * info.smallest_normal / 8
        case "limit":  # one token at the dtype's limit, the label or another
            other = torch.nn.functional.one_hot(torch.randint(columns, labels.shape, generator=generator), columns).bool()
            x = torch.zeros_like(x).masked_fill(own if rng.random() < 0.5 else other, info.max)
        case "lowest":
            x = torch.where(some & ~own, info.min, x)
        case "dead":
            x = x.masked_fill(some & ~own, -math.inf)
        case "row":
            x = x.masked_fill(some[:, :1], -math.inf)
        case "nan" | "inf":
            x = x.masked_fill(some, float(kind))
        case "mixed":
            odd = torch.tensor([1e4, -1e4, math.inf, -math.inf, math.nan, info.max, info.min, info.tiny, 0.0])
            x = torch.where(some, odd[torch.randint(len(odd), shape, generator=generator)], x)
    return kind, x.to(dtype)


def drawn_labels(rng: random.Random, vocab: nm.NumericVocab, length: int, columns: int) -> tuple[str, Tensor]:
    """Return a description of a sequence of labels, and the labels ``[T]``."""
    kind = pick(rng, mixed=6, numbers=6, ignored=1, text=1, outside=0.04, negative=0.04)
    numeric = vocab.token_ids.tolist()
    text = sorted(set(range(columns)) - set(numeric)) or [IGNORED]
    if kind == "numbers":
        ids = rng.choices(numeric, k=length)
    elif kind == "text":
        ids = rng.choices(text, k=length)
    elif kind == "ignored":
        ids = [IGNORED] * length
    else:
        ids = [rng.choice((IGNORED, rng.choice(text), rng.choice(numeric), rng.choice(numeric))) for _ in range(length)]
        if kind in WRONG:
            ids[rng.randrange(length)] = rng.choice((columns, columns + 10**9) if kind == "outside" else (-1, -99, -(10**12)))
    return kind, torch.tensor(ids)


def drawn_soft(rng: random.Random, labels: Tensor, columns: int) -> tuple[str, nm.targets.SoftTargets]:
    """Return a description of soft targets ``[.., E]``, and the targets."""
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
    return kind, nm.targets.SoftTargets(filled[..., 0].long(), filled[..., 1].long(), filled[..., 2])


@dataclass
class Call:
    """A call of a loss with several cases, and its known properties."""

    name: str
    settings: dict[str, Any]
    vocab: nm.NumericVocab
    kinds: dict[str, str]  # of the vocabulary, weights and soft targets
    cases: list[tuple[str, str]]  # kinds of the labels and logits of each case
    path: str
    dtype: torch.dtype
    logits: Tensor  # [.., T, V], cases first
    labels: Tensor  # [.., T]
    weights: Tensor | None
    soft: nm.targets.SoftTargets | None
    options: dict[str, Any]  # of the objective, or of the call of the loss
    law: str  # that is tried
    logs: bool  # whether the objective also computes the figures of logs
    may_refuse: bool
    must_refuse: bool

    @property
    def given(self) -> dict[str, Any]:
        """Arguments of the objective other than logits and labels."""
        return {"position_weights": self.weights, "soft": self.soft, "with_mass": self.logs, "with_overrun": self.logs}

    @property
    def each(self) -> bool:
        """Whether there is a value per case instead of one for all."""
        return self.options.get("reduction") == "none"

    def __str__(self) -> str:
        kinds = ", ".join(f"{part} {kind}" for part, kind in self.kinds.items())
        return (
            f"{self.name} {self.settings} by {self.path} {self.options}, {str(self.dtype).removeprefix('torch.')}, "
            f"logits {tuple(self.logits.shape)}, N={self.vocab.size}, {kinds}, "
            f"labels and logits {' '.join(f'{k}:{labels}/{logits}' for k, (labels, logits) in enumerate(self.cases))}"
        )


def draw(seed: int, number: int, device: str = "cpu") -> Call:
    """Return call ``number`` of a seed: cases ``8 * number`` and the next seven."""
    rng = random.Random(f"{seed}:{number}")
    largest = rng.random() < LARGEST
    vocab_kind, vocab = drawn_vocab(f"{seed}:vocabulary {rng.randrange(300)}", largest)
    name = rng.choice(list(nm.LOSSES))
    settings, may_refuse = drawn_settings(rng, nm.LOSSES[name])
    path = pick(rng, loss=4, masked=2, objective=4, unread=2, fused=4, traced=2)
    dtype = DTYPES[pick(rng, float32=4, bfloat16=2, float16=2, float64=2)]
    if largest and path == "fused":
        dtype = torch.float32  # products in others take minutes on a CPU that has none
    length, columns = rng.choice((1, 1, 2, 3, 4, 8, 30)), vocab.vocab_size + rng.choice((0, 0, 2))
    label_kinds, rows = zip(*(drawn_labels(rng, vocab, length, columns) for _ in range(TOGETHER)), strict=True)
    logit_kinds, logits = zip(*(drawn_logits(rng, row, columns, dtype) for row in rows), strict=True)
    shape = rng.choice(((TOGETHER, length), (TOGETHER, length), (2, TOGETHER // 2, length)))
    labels = torch.stack(rows).reshape(shape)
    kinds, weights, soft = {"vocabulary": vocab_kind}, None, None
    if rng.random() < 0.2:
        kinds["weights"] = pick(rng, some=6, zero=1, large=1, negative=0.3, nan=0.3)
        factor = {"zero": 0.0, "large": 1e4, "negative": -1.0, "nan": math.nan}.get(kinds["weights"], 1.0)
        weights = torch.tensor([rng.random() for _ in range(labels.numel())]).reshape(shape) * factor
    if path in ("loss", "masked"):
        options: dict[str, Any] = {"reduction": rng.choice(("mean", "sum", "none", "none")) if path == "loss" else "none"}
    else:
        options = {"weight": rng.choice((0.3, 0.3, 0.0, 1e3)), "normalize": rng.choice(("numeric", "tokens"))}
        options |= {"label_smoothing": rng.choice((0.0, 0.0, 0.1)), "scale": rng.choice(("fixed", "fixed", "fixed", "match_ce"))}
        if rng.random() < 0.3:
            kinds["soft"], soft = drawn_soft(rng, labels, columns)
    wrong = any(kind in WRONG for kind in (*label_kinds, kinds.get("weights"), kinds.get("soft")))
    if wrong and device != "cpu":  # a device checks without a sync, by an assertion that ends the process
        return draw(seed, number + 10**9, device)
    if wrong and path == "traced":  # compiled code does not check its arguments
        path = "objective"
    extreme = vocab_kind in ("wide", "small", "large", "denormal") or bool((vocab.values < 0).any())
    return Call(
        name=name,
        settings=settings,
        vocab=vocab,
        kinds=kinds,
        cases=list(zip(label_kinds, logit_kinds, strict=True)),
        path=path,
        dtype=dtype,
        logits=torch.stack(logits).reshape(*shape, columns).to(device),
        labels=labels.to(device),
        weights=None if weights is None else weights.to(device),
        soft=None if soft is None else soft.to(device),
        options=options,
        law=pick(rng, implementations=3, ignored=1, shifted=1, wider=1, none=2),
        logs=rng.random() < 0.15,
        may_refuse=may_refuse or extreme,
        must_refuse=wrong,
    )
