"""Every loss as its formula, in plain loops and float64: the ground truth of tests and benchmarks.

Nothing is shared with the fast code but the vocabulary. Slow and obvious on purpose: read this file to learn what a loss
is, and use it to check code that is fast. Autograd through the loops gives the exact gradient as well.

Every function takes ``logits [.., T, V]``, ``labels [.., T]`` aligned with them, the vocabulary, the settings of the
class of the same name with the same defaults, and what all share:

    outside, places, place_sigma, thousands, position_weights, position_ids, ignore_index     as in :class:`numerate.NumericLoss`
    dtype       of the arithmetic; a narrow one gives the naive computation that fast code has to beat

Notation: p softmax over the N numeric tokens, v their values, t index and y value of the label, r = p - e_t.

Example:
    >>> vocab = NumericVocab.from_texts({str(d): d for d in range(10)}, vocab_size=10)
    >>> cost = emd_reference(torch.zeros(2, 10), torch.tensor([0, 5]), vocab)  # uniform: mean distance 4.5 and 2.5
    >>> float(cost.sum), cost.count, float(cost.mean)
    (7.0, 2.0, 3.5)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from numerate.reference.numbers import Number, numbers_reference
from numerate.vocab import NumericVocab

MARGIN = 1.01  # text where a number belongs costs this much more than the worst number


@dataclass(frozen=True)
class Cost:
    """What a reference finds: the cost at each position ``[.., T]``, and what ``"mean"`` divides their sum by."""

    at: Tensor
    count: float

    @property
    def sum(self) -> Tensor:
        """Total cost."""
        return self.at.sum()

    @property
    def mean(self) -> Tensor:
        """Total cost by count, zero where there is nothing to count."""
        return self.at.sum() / (self.count if self.count > 0 else 1)


# What all losses share


class _Batch:
    """Logits and labels as sequences, the numbers in each, and the costs as they are found."""

    def __init__(
        self,
        logits: Tensor,
        labels: Tensor,
        vocab: NumericVocab,
        *,
        numbers: str = "values",
        thousands: bool = False,
        position_weights: Tensor | None = None,
        position_ids: Tensor | None = None,
        ignore_index: int = -100,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        length = labels.shape[-1]
        self.shape, self.ids = labels.shape, vocab.token_ids
        self.minus_ids = torch.tensor(vocab.minus_ids, dtype=torch.long)
        self.logits = logits.to(dtype).reshape(-1, length, logits.shape[-1])
        self.position_weights = None if position_weights is None else position_weights.reshape(-1, length).tolist()
        rows = labels.reshape(-1, length).tolist()
        positions = [None] * len(rows) if position_ids is None else position_ids.reshape(-1, length).tolist()
        self.sequences = [
            numbers_reference(row, vocab, position_ids=ids, numbers=numbers, thousands=thousands, ignore_index=ignore_index)
            for row, ids in zip(rows, positions, strict=True)
        ]
        # A sum over nothing is a zero that autograd knows.
        self.costs = [[self.logits.flatten()[:0].sum() for _ in range(length)] for _ in rows]
        self.count = 0.0

    def weight(self, row: int, at: int) -> float:
        return 1.0 if self.position_weights is None else float(self.position_weights[row][at])

    def p(self, row: int, at: int) -> Tensor:
        """Probability of each numeric token against the others: ``[N]``."""
        return self.logits[row, at][self.ids].softmax(-1)

    def mass(self, row: int, at: int) -> Tensor:
        """Probability of all numeric tokens under the whole vocabulary."""
        return self.logits[row, at].softmax(-1)[self.ids].sum()

    def done(self) -> Cost:
        return Cost(torch.stack([torch.stack(row) for row in self.costs]).reshape(self.shape), self.count)


def _charged(cost: Tensor, mass: Tensor, worst: float) -> Tensor:
    """The cost where mass lies on numbers, a little more than the worst cost where it does not."""
    return mass * cost + MARGIN * worst * (1 - mass)


def _place_weights(number: Number, places: str, sigma: float, numbers: str) -> list[float]:
    right = [number.right(j) for j in range(len(number.tokens))]  # digits to each token's right
    if places == "exponential":
        return [(1 + sigma) ** (min(k, 15) if numbers == "values" else k) for k in right]
    if places == "linear":
        mean = sum(k + 1 for k in right) / len(right)
        return [(k + 1) / mean for k in right]
    return [1.0] * len(right)


def _each_token(
    logits: Tensor,
    labels: Tensor,
    vocab: NumericVocab,
    cost: Callable[[_Batch, int, int, int], Tensor],  # batch, sequence, position, target index -> scalar
    *,
    places: str = "uniform",
    place_sigma: float = 0.2,
    numbers: str = "values",
    **shared: Any,
) -> Cost:
    """A cost for every position whose label is a numeric token."""
    batch = _Batch(logits, labels, vocab, numbers=numbers, **shared)
    for row, found in enumerate(batch.sequences):
        for number in found:
            place = _place_weights(number, places, place_sigma, numbers)
            for at, token, share in zip(number.positions, number.tokens, place, strict=True):
                weight = batch.weight(row, at)
                batch.costs[row][at] = cost(batch, row, at, vocab.tokens.index(token)) * share * weight
                batch.count += weight
    return batch.done()


def _by_distribution(
    logits: Tensor,
    labels: Tensor,
    vocab: NumericVocab,
    cost: Callable[[Tensor, int], Tensor],  # p [N], target index -> scalar
    *,
    outside: str | None = None,
    **shared: Any,
) -> Cost:
    """A cost that sees p alone; the worst of all certain answers sets the price of text."""
    worst = 0.0
    if outside == "penalize":
        certain = torch.eye(vocab.size, dtype=torch.float64)
        worst = max(float(cost(p, t)) for p in certain for t in range(vocab.size))

    def row_cost(batch: _Batch, row: int, at: int, target: int) -> Tensor:
        inside = cost(batch.p(row, at), target)
        return _charged(inside, batch.mass(row, at), worst) if outside == "penalize" else inside

    return _each_token(logits, labels, vocab, row_cost, **shared)


def _by_target(
    logits: Tensor,
    labels: Tensor,
    vocab: NumericVocab,
    soft: list[Tensor],
    floor: list[float],
    outside: str,
    **shared: Any,
) -> Cost:
    """Cross-entropy with the target distribution ``soft[t]``, less ``floor[t]``."""

    def row_cost(batch: _Batch, row: int, at: int, target: int) -> Tensor:
        z = batch.logits[row, at]
        log_p = z.log_softmax(-1)[batch.ids] if outside == "penalize" else z[batch.ids].log_softmax(-1)
        return -(soft[target].to(z.dtype) * log_p).sum() - floor[target]

    return _each_token(logits, labels, vocab, row_cost, **shared)


def _distances(values: Tensor, squash: float | None) -> list[Tensor]:
    """``|v_i - v_j|``, rescaled so that the least above zero is 1 and the largest ``squash``; zero stays zero."""
    rows = [(value - values).abs() for value in values]
    if squash is None:
        return rows
    apart = [d for row in rows for d in row.tolist() if d > 0]
    if not apart or min(apart) == max(apart):
        return rows
    low, high = min(apart), max(apart)
    return [torch.where(row > 0, 1 + (row - low) * (squash - 1) / (high - low), 0.0) for row in rows]


# Losses of single tokens


def smmd_reference(
    logits: Tensor,
    labels: Tensor,
    vocab: NumericVocab,
    sigma: float | Sequence[float] | None = None,
    alpha: float | None = None,
    terms: str = "smmd",
    gram: str | Tensor = "gaussian",
    squash: float | str | None = "auto",
    form: str = "published",
    ablation: str | None = None,
    seed: int = 42,
    **shared: Any,
) -> Cost:
    """SMMD: mmd + alpha · smooth, with mmd = Σ_ij r_i K_ij r_j and smooth = ½ Σ_ij K_ij (r_i - r_j)².

    ``form="repaired"`` gives every token the mean degree: smooth = Σ_i mean degree · r_i² - mmd.
    """
    size, random = vocab.size, torch.Generator().manual_seed(seed)
    values = vocab.values[torch.randperm(size, generator=random)] if ablation == "shuffled" else vocab.values
    if isinstance(squash, str):
        squash = 9.0 if form == "published" else None
    distance = _distances(values, squash)
    widest = max(float(row.max()) for row in distance)
    if sigma is None:  # 2, or 2, 20, 200, .. up to the widest distance
        sigma = [2.0]
        while form == "repaired" and sigma[-1] * 10 <= widest:
            sigma.append(sigma[-1] * 10)
    sigmas = list(sigma) if isinstance(sigma, Sequence) else [sigma]
    kernels: dict[str, Callable[[Tensor, float], Tensor]] = {
        "gaussian": lambda d, s: torch.exp(-d * d / (2 * s * s)),
        "laplacian": lambda d, s: torch.exp(-d / s),
        "energy": lambda d, s: 1 - d / widest if widest > 0 else torch.ones_like(d),
    }
    if isinstance(gram, Tensor):
        matrix = list(gram.double())
    elif ablation == "random":  # products of random sign vectors of length one, to the fifth power
        signs = torch.randint(0, 2, (size, 4), generator=random, dtype=torch.float32).double() - 0.5
        matrix = [torch.stack([(a @ b) ** 5 for b in signs]) for a in signs]
    else:
        matrix = [torch.stack([kernels[gram](row, s) for s in sigmas]).mean(0) for row in distance]
    degree = [float(row.sum()) for row in matrix]
    mean_degree = sum(degree) / size
    weight = 1 / (2 * max(mean_degree, 1e-12)) if alpha is None else alpha

    def cost(p: Tensor, target: int) -> Tensor:
        r = p - torch.eye(size, dtype=p.dtype)[target]
        mmd = sum(((r[i] * matrix[i].to(p.dtype) * r).sum() for i in range(size)), p.new_zeros(()))
        if form == "repaired":
            smooth = (mean_degree * r.square()).sum() - mmd
        else:
            smooth = sum((0.5 * (matrix[i].to(p.dtype) * (r[i] - r).square()).sum() for i in range(size)), p.new_zeros(()))
        return {"smmd": mmd + weight * smooth, "mmd": mmd, "smooth": weight * smooth}[terms]

    return _by_distribution(logits, labels, vocab, cost, **shared)


def emd_reference(logits: Tensor, labels: Tensor, vocab: NumericVocab, squash: float | None = None, **shared: Any) -> Cost:
    """EMD: Σ_i p_i |v_i - y|."""
    distance = _distances(vocab.values, squash)
    return _by_distribution(logits, labels, vocab, lambda p, t: (p * distance[t].to(p.dtype)).sum(), **shared)


def squared_emd_reference(logits: Tensor, labels: Tensor, vocab: NumericVocab, **shared: Any) -> Cost:
    """Squared EMD: Σ over the distinct values x of (P[X <= x] - 1[y <= x])²."""
    values = vocab.values

    def cost(p: Tensor, target: int) -> Tensor:
        gaps = [p[values <= x].sum() - float(values[target] <= x) for x in values.unique()]
        return torch.stack(gaps).square().sum()

    return _by_distribution(logits, labels, vocab, cost, **shared)


def crps_reference(logits: Tensor, labels: Tensor, vocab: NumericVocab, **shared: Any) -> Cost:
    """CRPS: E|X - y| - ½ E|X - X'|, with X and X' drawn from p."""
    distance = _distances(vocab.values, None)

    def cost(p: Tensor, target: int) -> Tensor:
        spread = sum((p[i] * (p * distance[i].to(p.dtype)).sum() for i in range(vocab.size)), p.new_zeros(()))
        return (p * distance[target].to(p.dtype)).sum() - spread / 2

    return _by_distribution(logits, labels, vocab, cost, **shared)


def gaussian_ce_reference(
    logits: Tensor, labels: Tensor, vocab: NumericVocab, sigma: float = 1.0, outside: str | None = None, **shared: Any
) -> Cost:
    """Gaussian cross-entropy: -Σ_i q_i log p_i, q_i ∝ exp(-(v_i - y)² / 2σ²)."""
    soft = [torch.exp(-d * d / (2 * sigma * sigma)) for d in _distances(vocab.values, None)]
    soft = [bell / bell.sum() for bell in soft]
    return _by_target(logits, labels, vocab, soft, [0.0] * vocab.size, outside or "penalize", **shared)


def dist2_reference(
    logits: Tensor, labels: Tensor, vocab: NumericVocab, tau: float = 1.0, outside: str | None = None, **shared: Any
) -> Cost:
    """DIST2: KL(q ‖ p), q_i ∝ exp(-(v_i - y)² / τ)."""
    soft = [torch.exp(-d * d / tau) for d in _distances(vocab.values, None)]
    soft = [bell / bell.sum() for bell in soft]
    entropy = [-sum(float(q) * math.log(q) for q in bell if q > 0) for bell in soft]
    return _by_target(logits, labels, vocab, soft, entropy, outside or "ignore", **shared)


def soft_label_reference(
    logits: Tensor,
    labels: Tensor,
    vocab: NumericVocab,
    spread: str = "triangular",
    eta: float | None = None,
    outside: str | None = None,
    **shared: Any,
) -> Cost:
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
    return _by_target(logits, labels, vocab, soft, [0.0] * size, outside or "penalize", **shared)


# Losses of whole numbers, or of either


def ntl_reference(
    logits: Tensor,
    labels: Tensor,
    vocab: NumericVocab,
    kind: str = "was",
    reweigh: bool | None = None,
    squash: float | None = None,
    numbers: str = "values",
    *,
    outside: str | None = None,
    mass_at_start: bool = False,
    **shared: Any,
) -> Cost:
    """NTL: Σ_i p_i |v_i - y|, or a difference between ŷ = Σ_i p_i v_i and y, or for whole numbers |Ŷ - Y| / (|Ŷ| + |Y| + ε).

    ``mass_at_start``: charge mass outside at a number's first digit alone, as ``ntloss`` does, not at all of them.
    """
    if reweigh is not None:
        outside = "penalize" if reweigh else "ignore"
    if kind == "was":
        return emd_reference(logits, labels, vocab, squash, outside=outside, numbers=numbers, **shared)
    if kind != "number":
        differences: dict[str, Callable[[Tensor], Tensor]] = {
            "mse": lambda error: error * error,
            "mae": lambda error: error.abs(),
            "huber": lambda error: 0.5 * error * error if abs(error) < 1 else error.abs() - 0.5,
        }

        def cost(p: Tensor, target: int) -> Tensor:
            return differences[kind]((p * vocab.values.to(p.dtype)).sum() - float(vocab.values[target]))

        return _by_distribution(logits, labels, vocab, cost, outside=outside, numbers=numbers, **shared)

    batch = _Batch(logits, labels, vocab, numbers=numbers, **shared)
    for row, found in enumerate(batch.sequences):
        for number in found:
            guess, value = batch.logits.new_zeros(()), 0.0
            for j, at in enumerate(number.positions):
                p = batch.p(row, at)
                guess = guess + (p * p.new_tensor([number.worth(j, token) for token in vocab.tokens])).sum()
                value += number.worth(j, number.tokens[j])
            # ε is float32's, as published, in units of the leading place.
            error = (guess - value).abs() / (guess.abs() + abs(value) + 2.0**-23)
            first = number.positions[0]
            weight = batch.weight(row, first)
            if outside == "penalize":
                looked_at = number.positions[:1] if mass_at_start else number.positions
                error = _charged(error, torch.stack([batch.mass(row, at) for at in looked_at]).log().mean().exp(), 1.0)
            batch.costs[row][first] = error * weight
            batch.count += weight
    return batch.done()


ntl_was_reference = partial(ntl_reference, kind="was")
ntl_mse_reference = partial(ntl_reference, kind="mse")
ntl_mae_reference = partial(ntl_reference, kind="mae")
ntl_huber_reference = partial(ntl_reference, kind="huber")
ntl_number_reference = partial(ntl_reference, kind="number")


def ntil_reference(
    logits: Tensor,
    labels: Tensor,
    vocab: NumericVocab,
    alpha: float = 0.2,
    beta: float = 0.2,
    sigma: float = 0.2,
    emd_weight: float = 1.0,
    tau: float = 0.1,
    noise: float = 0.0,
    numbers: str = "values",
    average: str = "number",
    *,
    outside: str | None = None,
    **shared: Any,
) -> Cost:
    """NTIL: emd_weight · emd + alpha · relative + beta · magnitude, for each number with X as predicted and Y as labelled.

        emd         mean over its tokens of (1 + sigma)^k Σ_i p_i |v_i - v_t| / 10^(width_t - 1), k digits to the right
                    (15 at most, unless numbers="runs")
        relative    |X - Y| / (max(X, Y) + ε)
        magnitude   log (max(X, Y) + ε) / (min(X, Y) + ε)

    X has the value of the likeliest tokens and the gradient of the softmax at temperature tau. ε is one unit of the
    last place, but no less than 1e-15 of the leading one. ``average="sequence"`` takes both means over a sequence, then
    over all sequences. The worst a number can cost, for ``outside="penalize"``, is the farthest token at every place, a
    relative error of 1, and a magnitude error of log 10 for each digit but the last and of the largest token there.
    """
    if noise:
        raise ValueError(f"noise={noise!r} is random: expected 0 in a reference.")
    batch = _Batch(logits, labels, vocab, numbers=numbers, **shared)
    unit = [10.0 ** (token.width - 1) for token in vocab.tokens]
    distance = [row / u for row, u in zip(_distances(vocab.values, None), unit, strict=True)]
    farthest = max(float(row.max()) for row in distance)
    for row, found in enumerate(batch.sequences):
        for number in found:
            tokens = len(number.tokens) if average == "number" else sum(len(other.tokens) for other in found)
            count = 1 if average == "number" else len(found)
            places = _place_weights(number, "exponential", sigma, numbers)
            weight = batch.weight(row, number.positions[0])
            guess = value = batch.logits.new_zeros(())
            for j, (at, token) in enumerate(zip(number.positions, number.tokens, strict=True)):
                p, z = batch.p(row, at), batch.logits[row, at][batch.ids]
                emd = places[j] * (p * distance[vocab.tokens.index(token)].to(p.dtype)).sum()
                batch.costs[row][at] = emd_weight * emd / tokens
                worths = p.new_tensor([number.worth(j, other) for other in vocab.tokens])
                soft = ((z / tau).softmax(-1) * worths).sum()
                guess = guess + worths[int(z.argmax())] + (soft - soft.detach())
                value = value + number.worth(j, token)
            eps = 10.0 ** max(number.last - number.leading, -15)
            high, low = torch.maximum(guess, value), torch.minimum(guess, value)
            relative = (guess - value).abs() / (high + eps)
            magnitude = torch.log((high + eps) / (low + eps))
            first = number.positions[0]
            batch.costs[row][first] = batch.costs[row][first] + (alpha * relative + beta * magnitude) / count
            for at, place in zip(number.positions, places, strict=True):
                if outside == "penalize":
                    worst = emd_weight * farthest * place / tokens
                    if at == first:
                        most = math.log(10) * (number.leading - number.last) + math.log1p(
                            max(token.value for token in vocab.tokens)
                        )
                        worst += (alpha + beta * most) / count
                    batch.costs[row][at] = _charged(batch.costs[row][at], batch.mass(row, at), worst)
                batch.costs[row][at] = batch.costs[row][at] * weight
            batch.count += weight
    if average == "sequence":
        batch.count = float(len(batch.sequences))
    return batch.done()


def number_reference(
    logits: Tensor,
    labels: Tensor,
    vocab: NumericVocab,
    beta: float = 1.0,
    lowest: float = 0.02,
    frequencies: int = 44,
    *,
    outside: str | None = None,
    **shared: Any,
) -> Cost:
    """number: Σ_k a_k |φ(ω_k) - exp(iω_k Y)|², φ(ω) = Π_j Σ_i p_ji exp(iω u_ji), u_ji what token i is worth in place j.

    With s the chance of a minus against a digit where the sign is decided, φ becomes (1 - s) φ + s φ*: its imaginary
    part shrinks by 1 - 2s.
    """
    omega = [lowest * 10 ** (k / 10) for k in range(frequencies)]
    spectrum = [float(w**-beta) for w in omega]
    spectrum[0] /= 2

    def off_by(error: float) -> float:
        """What a certain error costs, in units of the leading place."""
        return sum(a * (2 - 2 * math.cos(w * error)) for a, w in zip(spectrum, omega, strict=True))

    one = off_by(1.0)
    spectrum = [a / one for a in spectrum]  # an error of one leading place costs 1
    top = max(abs(token.value) for token in vocab.tokens)
    unit = 1.0 if vocab.composes or top == 0 else 10.0 ** math.floor(math.log10(top))

    def damped(worth: float) -> float:
        """Beyond ten leading places, ten more for each further digit."""
        return worth if worth <= 10 else 10 + 10 * math.log10(worth / 10)

    worst = 4 * sum(spectrum)  # |φ| is at most 1, and so is the other

    batch = _Batch(logits, labels, vocab, **shared)
    for row, found in enumerate(batch.sequences):
        for number in found:
            first = number.positions[0]
            chance = batch.logits.new_tensor(float(number.negative))
            at = number.sign_at if number.negative else first
            if batch.minus_ids.numel() and vocab.composes and at is not None:
                z = batch.logits[row, at]
                minus, digit = z[batch.minus_ids].logsumexp(-1), z[batch.ids].logsumexp(-1)
                chance = torch.sigmoid(minus - digit)
            worths = [[number.worth(j, token) / unit for token in vocab.tokens] for j in range(len(number.tokens))]
            worths[0] = [damped(worth) for worth in worths[0]]
            label = sum(number.worth(j, token) for j, token in enumerate(number.tokens)) / unit
            label = -label if number.negative else label
            ps = [batch.p(row, at) for at in number.positions]
            cost = batch.logits.new_zeros(())
            for w, a in zip(omega, spectrum, strict=True):
                real, imaginary = batch.logits.new_ones(()), batch.logits.new_zeros(())
                for p, worth in zip(ps, worths, strict=True):
                    c = (p * p.new_tensor([math.cos(w * u) for u in worth])).sum()
                    s = (p * p.new_tensor([math.sin(w * u) for u in worth])).sum()
                    real, imaginary = real * c - imaginary * s, real * s + imaginary * c
                imaginary = imaginary * (1 - 2 * chance)
                cost = cost + a * ((real - math.cos(w * label)).square() + (imaginary - math.sin(w * label)).square())
            if outside == "penalize":
                mass = torch.stack([batch.mass(row, at) for at in number.positions]).log().mean().exp()
                cost = _charged(cost, mass, worst)
            weight = batch.weight(row, first)
            batch.costs[row][first] = cost * weight
            batch.count += weight
    return batch.done()


REFERENCES: dict[str, Callable[..., Cost]] = {
    "smmd": smmd_reference,
    "emd": emd_reference,
    "squared_emd": squared_emd_reference,
    "crps": crps_reference,
    "ntil": ntil_reference,
    "ntl_was": ntl_was_reference,
    "ntl_mse": ntl_mse_reference,
    "ntl_mae": ntl_mae_reference,
    "ntl_huber": ntl_huber_reference,
    "ntl_number": ntl_number_reference,
    "gaussian_ce": gaussian_ce_reference,
    "dist2": dist2_reference,
    "soft_label": soft_label_reference,
    "number": number_reference,
}
