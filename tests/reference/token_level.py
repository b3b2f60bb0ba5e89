"""References of the token-level losses."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

import torch
import torch.nn.functional as F
from tests.reference.batch import Batch, ReferenceCost, charged, distances, place_weights
from torch import Tensor

from numerate.vocab import NumericVocab


def each_token(
    logits: Tensor,
    labels: Tensor,
    vocab: NumericVocab,
    cost: Callable[[Batch, int, int, int], Tensor],  # batch, sequence, position, target index -> scalar
    *,
    places: str = "uniform",
    place_sigma: float = 0.2,
    numbers: str = "values",
    **shared: Any,
) -> ReferenceCost:
    """Compute a cost at every position whose label is a numeric token."""
    batch = Batch(logits, labels, vocab, numbers=numbers, **shared)
    for row, number in batch.numbers():
        weights = place_weights(number, places, place_sigma, numbers)
        for position, token, weight in zip(number.positions, number.tokens, weights, strict=True):
            batch.charge(row, position, cost(batch, row, position, vocab.tokens.index(token)) * weight)
    return batch.result()


def by_distribution(
    logits: Tensor,
    labels: Tensor,
    vocab: NumericVocab,
    cost: Callable[[Tensor, int], Tensor],  # p [N], target index -> scalar
    *,
    outside: str | None = None,
    **shared: Any,
) -> ReferenceCost:
    """Compute a cost from p alone; the worst of all certain answers is the cost of text."""
    worst = 0.0
    if outside == "penalize":
        certain = torch.eye(vocab.size, dtype=torch.float64)
        worst = max(float(cost(p, t)) for p in certain for t in range(vocab.size))

    def token_cost(batch: Batch, row: int, position: int, target: int) -> Tensor:
        inside = cost(batch.p(row, position), target)
        return charged(inside, batch.mass(row, position), worst) if outside == "penalize" else inside

    return each_token(logits, labels, vocab, token_cost, **shared)


def from_formula(formula: Callable[..., Tensor]) -> Callable[..., ReferenceCost]:
    """Return the reference of a token-level loss from the cost of one row.

    Args:
        formula: takes ``p [N]``, the index of the target, the values ``[N]`` and the settings of the loss with their defaults;
            returns a scalar.

    Returns:
        A function like :func:`emd_reference`, with the settings of the formula.
    """
    own = [*inspect.signature(formula).parameters.values()][3:]

    def reference(logits: Tensor, labels: Tensor, vocab: NumericVocab, **settings: Any) -> ReferenceCost:
        given = {setting.name: settings.pop(setting.name, setting.default) for setting in own}
        return by_distribution(
            logits, labels, vocab, lambda p, target: formula(p, target, vocab.values.to(p.dtype), **given), **settings
        )

    first = [*inspect.signature(reference).parameters.values()][:3]
    shared = inspect.Parameter("shared", inspect.Parameter.VAR_KEYWORD)
    named = [setting.replace(kind=inspect.Parameter.KEYWORD_ONLY) for setting in own]
    reference.__signature__ = inspect.Signature([*first, *named, shared])  # type: ignore[attr-defined]
    return reference


def by_target(
    logits: Tensor,
    labels: Tensor,
    vocab: NumericVocab,
    soft: list[Tensor],
    floor: list[float],
    outside: str,
    **shared: Any,
) -> ReferenceCost:
    """Compute the cross-entropy with the target distribution ``soft[t]``, minus ``floor[t]``."""

    def token_cost(batch: Batch, row: int, position: int, target: int) -> Tensor:
        z = batch.logits[row, position]
        log_p = z.log_softmax(-1)[batch.ids] if outside == "penalize" else z[batch.ids].log_softmax(-1)
        return -(soft[target].to(z.dtype) * log_p).sum() - floor[target]

    return each_token(logits, labels, vocab, token_cost, **shared)


def smmd_reference(
    logits: Tensor,
    labels: Tensor,
    vocab: NumericVocab,
    sigma: float | Sequence[float] | None = None,
    alpha: float | None = None,
    terms: str = "smmd",
    kernel: str | Tensor = "gaussian",
    squash: float | str | None = "auto",
    variant: str = "paper",
    ablation: str | None = None,
    seed: int = 42,
    max_value: int | None = None,
    **shared: Any,
) -> ReferenceCost:
    """SMMD: mmd + alpha · smooth, with mmd = Σ_ij r_i K_ij r_j and smooth = ½ Σ_ij K_ij (r_i - r_j)².

    ``variant="repaired"`` gives every token the mean degree: smooth = Σ_i mean degree · r_i² - mmd. ``variant="released"`` keeps
    the tokens 0 .. 999 without leading zero or space, and no cost below 0.
    """
    if variant == "released" or max_value is not None:
        vocab = vocab.restrict(canonical_only=variant == "released", max_value=max_value)
    if isinstance(squash, str):
        squash = None if variant == "repaired" else 9.0
    size, generator = vocab.size, torch.Generator().manual_seed(seed)
    if isinstance(kernel, Tensor):
        gram = list(kernel.double())
    elif ablation == "random":  # products of random sign vectors of length one, to the fifth power
        signs = torch.randint(0, 2, (size, 4), generator=generator, dtype=torch.float32).double() - 0.5
        gram = [torch.stack([(a @ b) ** 5 for b in signs]) for a in signs]
    else:
        values = vocab.values[torch.randperm(size, generator=generator)] if ablation == "shuffled" else vocab.values
        gram = _gram(distances(values, squash), kernel, sigma, variant)
    mean_degree = sum(float(row.sum()) for row in gram) / size
    weight = 1 / (2 * max(mean_degree, 1e-12)) if alpha is None else alpha

    def cost(p: Tensor, target: int) -> Tensor:
        r = p - torch.eye(size, dtype=p.dtype)[target]
        mmd = sum(((r[i] * gram[i].to(p.dtype) * r).sum() for i in range(size)), p.new_zeros(()))
        if variant == "repaired":
            smooth = (mean_degree * r.square()).sum() - mmd
        else:
            smooth = sum((0.5 * (gram[i].to(p.dtype) * (r[i] - r).square()).sum() for i in range(size)), p.new_zeros(()))
        total = {"smmd": mmd + weight * smooth, "mmd": mmd, "smooth": weight * smooth}[terms]
        return total.relu() if variant == "released" else total

    return by_distribution(logits, labels, vocab, cost, **shared)


def _gram(distance: list[Tensor], kernel: str, sigma: float | Sequence[float] | None, variant: str) -> list[Tensor]:
    """Return the rows of K, averaged over all sigmas: 2 by default, or 2, 20, 200, .. up to the widest distance."""
    widest = max(float(row.max()) for row in distance)
    if sigma is None:
        sigma = [2.0]
        while variant == "repaired" and sigma[-1] * 10 <= widest:
            sigma.append(sigma[-1] * 10)
    sigmas = list(sigma) if isinstance(sigma, Sequence) else [sigma]
    kernels: dict[str, Callable[[Tensor, float], Tensor]] = {
        "gaussian": lambda d, s: torch.exp(-d * d / (2 * s * s)),
        "laplacian": lambda d, s: torch.exp(-d / s),
        "energy": lambda d, s: 1 - d / widest if widest > 0 else torch.ones_like(d),
    }
    return [torch.stack([kernels[kernel](row, s) for s in sigmas]).mean(0) for row in distance]


def emd_reference(
    logits: Tensor,
    labels: Tensor,
    vocab: NumericVocab,
    squash: float | None = None,
    ablation: str | None = None,
    seed: int = 42,
    **shared: Any,
) -> ReferenceCost:
    """EMD: Σ_i p_i |v_i - y|. With ``ablation="equal"`` the mean distance of two tokens, times 1 - p(y)."""
    size, values = vocab.size, vocab.values
    if ablation == "shuffled":
        values = values[torch.randperm(size, generator=torch.Generator().manual_seed(seed))]
    distance = distances(values, squash)
    if ablation == "equal":
        mean = sum(float(row.sum()) for row in distance) / (size * (size - 1))
        return by_distribution(logits, labels, vocab, lambda p, t: mean * (p.sum() - p[t]), **shared)
    return by_distribution(logits, labels, vocab, lambda p, t: (p * distance[t].to(p.dtype)).sum(), **shared)


def squared_emd_reference(logits: Tensor, labels: Tensor, vocab: NumericVocab, **shared: Any) -> ReferenceCost:
    """Squared EMD: Σ over the distinct values x of (P[X <= x] - 1[y <= x])²."""
    values = vocab.values

    def cost(p: Tensor, target: int) -> Tensor:
        gaps = [p[values <= x].sum() - float(values[target] <= x) for x in values.unique()]
        return torch.stack(gaps).square().sum()

    return by_distribution(logits, labels, vocab, cost, **shared)


def crps_reference(logits: Tensor, labels: Tensor, vocab: NumericVocab, **shared: Any) -> ReferenceCost:
    """CRPS: E|X - y| - ½ E|X - X'|, with X and X' drawn from p."""
    distance = distances(vocab.values)

    def cost(p: Tensor, target: int) -> Tensor:
        spread = sum((p[i] * (p * distance[i].to(p.dtype)).sum() for i in range(vocab.size)), p.new_zeros(()))
        return (p * distance[target].to(p.dtype)).sum() - spread / 2

    return by_distribution(logits, labels, vocab, cost, **shared)


def gaussian_ce_reference(
    logits: Tensor, labels: Tensor, vocab: NumericVocab, sigma: float = 1.0, outside: str | None = None, **shared: Any
) -> ReferenceCost:
    """Gaussian cross-entropy: -Σ_i q_i log p_i, q_i ∝ exp(-(v_i - y)² / 2σ²)."""
    soft = [torch.exp(-d * d / (2 * sigma * sigma)) for d in distances(vocab.values)]
    soft = [bell / bell.sum() for bell in soft]
    return by_target(logits, labels, vocab, soft, [0.0] * vocab.size, outside or "penalize", **shared)


def dist2_reference(
    logits: Tensor, labels: Tensor, vocab: NumericVocab, tau: float = 1.0, outside: str | None = None, **shared: Any
) -> ReferenceCost:
    """DIST2: KL(q ‖ p), q_i ∝ exp(-(v_i - y)² / τ)."""
    soft = [torch.exp(-d * d / tau) for d in distances(vocab.values)]
    soft = [bell / bell.sum() for bell in soft]
    entropy = [-sum(float(q) * math.log(q) for q in bell if q > 0) for bell in soft]
    return by_target(logits, labels, vocab, soft, entropy, outside or "ignore", **shared)


def raft_reference(
    logits: Tensor, labels: Tensor, vocab: NumericVocab, outside: str | None = None, **shared: Any
) -> ReferenceCost:
    """RAFT: (y - Σ_i p_i v_i)², p over the whole vocabulary for ``outside="zero"``, else over the numeric tokens."""
    values = vocab.values
    if (outside or "zero") != "zero":
        return by_distribution(
            logits, labels, vocab, lambda p, t: ((p * values.to(p.dtype)).sum() - values[t]).square(), outside=outside, **shared
        )

    def token_cost(batch: Batch, row: int, position: int, target: int) -> Tensor:
        p = batch.logits[row, position].softmax(-1)[batch.ids]
        return ((p * values.to(p.dtype)).sum() - values[target]).square()

    return each_token(logits, labels, vocab, token_cost, **shared)


def digit_entropy_reference(
    logits: Tensor,
    labels: Tensor,
    vocab: NumericVocab,
    places: str = "del",
    variant: str = "paper",
    outside: str | None = None,
    **shared: Any,
) -> ReferenceCost:
    """DEL: 1/10 Σ_k p_k BCE(σ(z_k), 1[k = t]). With ``outside="penalize"`` all other tokens are one more wrong class."""
    if variant == "released":
        vocab = vocab.restrict(digits_only=True)

    def token_cost(batch: Batch, row: int, position: int, target: int) -> Tensor:
        z = batch.logits[row, position]
        digits = z[batch.ids]
        if outside == "penalize":
            others = [i for i in range(z.shape[0]) if i not in batch.ids.tolist()]
            digits = torch.cat([digits, z[others].logsumexp(0, keepdim=True)])
        right = torch.eye(digits.shape[0], dtype=z.dtype)[target]
        entropy = F.binary_cross_entropy_with_logits(digits, right, reduction="none")
        return (digits.softmax(0) * entropy).sum() / 10

    if variant == "paper" or places != "del":
        return each_token(logits, labels, vocab, token_cost, places=places, **shared)
    shared.pop("place_sigma", None)
    batch = Batch(logits, labels, vocab, **shared)
    for (row, position), weight in _published_weights(labels, vocab, shared.get("ignore_index", -100)).items():
        target = batch.ids.tolist().index(int(labels.reshape(-1, labels.shape[-1])[row, position]))
        batch.charge(row, position, token_cost(batch, row, position, target) * weight)
    return batch.result()


def _published_weights(labels: Tensor, vocab: NumericVocab, ignore_index: int) -> dict[tuple[int, int], float]:
    """Return DEL's published weight of each digit by sequence and position: runs of digits and points in one long sequence."""
    points = [token_id for token_id, text in vocab.marks if text == "."]
    kinds = dict.fromkeys(vocab.token_ids.tolist(), "digit") | dict.fromkeys(points, "point")
    rows = labels.reshape(-1, labels.shape[-1]).tolist()
    tokens = [((r, t), kinds.get(token)) for r, row in enumerate(rows) for t, token in enumerate(row) if token != ignore_index]
    weights: dict[tuple[int, int], float] = {}
    for part_of_number, run in groupby(tokens, key=lambda token: token[1] is not None):
        if not part_of_number:
            continue
        members = list(run)
        first_point = next((i for i, (_, kind) in enumerate(members) if kind == "point"), 0)
        end = first_point or len(members)  # a point that begins the run is not seen as one
        for i, (place, kind) in enumerate(members):
            if kind == "digit":
                weights[place] = 2.0 * (end - i) if i < end else 1.02 ** (end - 1 - i)
    return weights


def neighbour_smoothing_reference(
    logits: Tensor,
    labels: Tensor,
    vocab: NumericVocab,
    spread: str = "triangular",
    eta: float | None = None,
    outside: str | None = None,
    **shared: Any,
) -> ReferenceCost:
    """Soft labels: -Σ_i q_i log p_i, q = (1 - η) e_t + η ψ(· | t)."""
    size, trials = vocab.size, max(1, vocab.size - 1)
    widest = float(vocab.values.max() - vocab.values.min()) or 1.0
    shapes: dict[str, tuple[float, Callable[[int, int], float]]] = {
        "triangular": (0.08, lambda i, t: 1 - abs(float(vocab.values[i] - vocab.values[t])) / widest),
        "binomial": (0.05, lambda i, t: math.comb(trials, i) * (t / trials) ** i * (1 - t / trials) ** (trials - i)),
        "poisson": (0.02, lambda i, t: t**i * math.exp(-t) / math.factorial(i)),
        "uniform": (0.05, lambda i, t: 1.0),
    }
    default, shape = shapes[spread]
    share = default if eta is None else eta
    soft = []
    for t in range(size):
        psi = torch.tensor([shape(i, t) for i in range(size)], dtype=torch.float64)
        soft.append((1 - share) * torch.eye(size, dtype=torch.float64)[t] + share * psi / psi.sum())
    return by_target(logits, labels, vocab, soft, [0.0] * size, outside or "penalize", **shared)
