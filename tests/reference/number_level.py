"""References of the losses of complete numbers, and of NTL, which has both levels."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from tests.reference.batch import Batch, ReferenceCost, charged, distances, place_weights
from tests.reference.numbers import Number
from tests.reference.token_level import by_distribution, emd_reference
from torch import Tensor

from numerate.vocab import NumericVocab


def ntl_reference(
    logits: Tensor,
    labels: Tensor,
    vocab: NumericVocab,
    kind: str = "was",
    reweigh: bool | None = None,
    squash: float | None = None,
    numbers: str | None = None,
    variant: str = "paper",
    digit_level: bool | None = None,
    *,
    outside: str | None = None,
    **shared: Any,
) -> ReferenceCost:
    """NTL: Σ_i p_i |v_i - y|, or a difference between ŷ = Σ_i p_i v_i and y, or for complete numbers |Ŷ - Y| / (|Ŷ| + |Y| + ε).

    ``variant="released"``: the ten digits (``digit_level=False``: all tokens without a leading space), mass outside charged, and
    runs of digits, as in ``ntloss``. Mass outside is that at a number's first digit, and not the mean over all digits.
    """
    released = variant == "released"
    if released:
        vocab = replace(vocab, tokens=tuple(token for token in vocab.tokens if not token.text.startswith(" ")))
    if released if digit_level is None else digit_level:
        vocab = vocab.restrict(digits_only=True)
    if outside is None and (released if reweigh is None else reweigh):
        outside = "penalize"
    numbers = numbers or ("runs" if released else "values")
    if kind == "number":
        return _number(logits, labels, vocab, numbers, outside, released, **shared)
    if kind == "was":
        return emd_reference(logits, labels, vocab, squash, outside=outside, numbers=numbers, **shared)
    differences: dict[str, Callable[[Tensor], Tensor]] = {
        "mse": lambda error: error * error,
        "mae": lambda error: error.abs(),
        "huber": lambda error: 0.5 * error * error if abs(error) < 1 else error.abs() - 0.5,
    }

    def cost(p: Tensor, target: int) -> Tensor:
        return differences[kind]((p * vocab.values.to(p.dtype)).sum() - float(vocab.values[target]))

    return by_distribution(logits, labels, vocab, cost, outside=outside, numbers=numbers, **shared)


def _number(
    logits: Tensor, labels: Tensor, vocab: NumericVocab, numbers: str, outside: str | None, released: bool, **shared: Any
) -> ReferenceCost:
    """NTL of complete numbers."""
    batch = Batch(logits, labels, vocab, numbers=numbers, **shared)
    for row, number in batch.numbers():
        guess, value = batch.logits.new_zeros(()), 0.0
        for j, position in enumerate(number.positions):
            p = batch.p(row, position)
            guess = guess + (p * p.new_tensor([number.amount(j, token) for token in vocab.tokens])).sum()
            value += number.amount(j, number.tokens[j])
        # ε is float32's, as published, in units of the leading place.
        error = (guess - value).abs() / (guess.abs() + abs(value) + 2.0**-23)
        if outside == "penalize":
            error = charged(error, batch.mean_mass(row, number.positions[:1] if released else number.positions), 1.0)
        batch.charge(row, number.positions[0], error)
    return batch.result()


ntl_was_reference = partial(ntl_reference, kind="was")
"""`ntl_reference` with ``kind="was"``."""
ntl_mse_reference = partial(ntl_reference, kind="mse")
"""`ntl_reference` with ``kind="mse"``."""
ntl_mae_reference = partial(ntl_reference, kind="mae")
"""`ntl_reference` with ``kind="mae"``."""
ntl_huber_reference = partial(ntl_reference, kind="huber")
"""`ntl_reference` with ``kind="huber"``."""
ntl_number_reference = partial(ntl_reference, kind="number")
"""`ntl_reference` with ``kind="number"``."""


def ntil_reference(
    logits: Tensor,
    labels: Tensor,
    vocab: NumericVocab,
    alpha: float = 0.2,
    beta: float = 0.2,
    sigma: float = 0.2,
    emd_weight: float = 1.0,
    tau: float = 0.1,
    noise: float | None = None,
    numbers: str | None = None,
    average: str | None = None,
    variant: str = "paper",
    *,
    outside: str | None = None,
    **shared: Any,
) -> ReferenceCost:
    """NTIL: emd_weight · emd + alpha · relative + beta · magnitude, for each number with X as predicted and Y as labelled.

        emd         mean over its tokens of (1 + sigma)^k Σ_i p_i |v_i - v_t| / 10^(width_t - 1), k digits to the right
                    (15 at most, unless numbers="runs")
        relative    |X - Y| / (max(X, Y) + ε)
        magnitude   log (max(X, Y) + ε) / (min(X, Y) + ε)

    X has the value of the likeliest tokens and the gradient of the softmax at temperature tau. ε is one unit of the last place,
    at least 1e-15 of the leading one. ``average="sequence"`` takes both means over a sequence, then over all sequences. The
    worst cost of a number, for ``outside="penalize"``, is the farthest token at every place, a relative error of 1, and a
    magnitude error of log 10 for each digit except the last and of the largest token there. ``variant="released"``: single
    digits, numbers="runs", average="sequence" and, unless given, a noise that no reference has.
    """
    released = variant == "released"
    noise = (0.01 if released else 0.0) if noise is None else noise
    if noise:
        raise ValueError(f"noise={noise!r} is random: expected noise=0 in a reference.")
    numbers, average = numbers or ("runs" if released else "values"), average or ("sequence" if released else "number")
    vocab = vocab.restrict(digits_only=True) if released else vocab
    batch = Batch(logits, labels, vocab, numbers=numbers, **shared)
    unit = [10.0 ** (token.width - 1) for token in vocab.tokens]
    distance = [row / u for row, u in zip(distances(vocab.values), unit, strict=True)]
    farthest, largest = max(float(row.max()) for row in distance), max(token.value for token in vocab.tokens)
    for row, number in batch.numbers():
        mates = [number] if average == "number" else batch.sequences[row]  # the numbers that share a mean
        tokens = sum(len(mate.tokens) for mate in mates)
        first, weight = number.positions[0], batch.weight(row, number.positions[0])
        for j, (position, place) in enumerate(
            zip(number.positions, place_weights(number, "exponential", sigma, numbers), strict=True)
        ):
            p = batch.p(row, position)
            emd = place * (p * distance[vocab.tokens.index(number.tokens[j])].to(p.dtype)).sum()
            cost, worst = emd_weight * emd / tokens, emd_weight * farthest * place / tokens
            if position == first:
                relative, magnitude = _errors(batch, row, number, vocab, tau)
                most = math.log(10) * (number.leading - number.last) + math.log1p(largest)
                cost, worst = (
                    cost + (alpha * relative + beta * magnitude) / len(mates),
                    worst + (alpha + beta * most) / len(mates),
                )
            if outside == "penalize":
                cost = charged(cost, batch.mass(row, position), worst)
            batch.costs[row][position] = cost * weight
        batch.num_units += weight
    if average == "sequence":
        batch.num_units = float(len(batch.sequences))
    return batch.result()


def _errors(batch: Batch, row: int, number: Number, vocab: NumericVocab, tau: float) -> tuple[Tensor, Tensor]:
    """Return the relative and the magnitude error of a number."""
    guess = value = batch.logits.new_zeros(())
    for j, (position, token) in enumerate(zip(number.positions, number.tokens, strict=True)):
        z = batch.logits[row, position][batch.ids]
        amounts = z.new_tensor([number.amount(j, other) for other in vocab.tokens])
        soft = ((z / tau).softmax(-1) * amounts).sum()
        guess = guess + amounts[int(z.argmax())] + (soft - soft.detach())
        value = value + number.amount(j, token)
    eps = 10.0 ** max(number.last - number.leading, -15)
    high, low = torch.maximum(guess, value), torch.minimum(guess, value)
    return (guess - value).abs() / (high + eps), torch.log((high + eps) / (low + eps))


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
) -> ReferenceCost:
    """number: Σ_k a_k |φ(ω_k) - exp(iω_k Y)|², φ(ω) = Π_j Σ_i p_ji exp(iω u_ji), u_ji the value of token i in place j.

    With s the probability of a minus against a digit where the sign is decided, φ becomes (1 - s) φ + s φ*: its imaginary
    part shrinks by 1 - 2s. a_k is such that an error of one leading place costs 1.
    """
    omega = [lowest * 10 ** (k / 10) for k in range(frequencies)]
    spectrum = [float(w**-beta) for w in omega]
    spectrum[0] /= 2
    one_place = sum(a * (2 - 2 * math.cos(w)) for a, w in zip(spectrum, omega, strict=True))
    spectrum = [a / one_place for a in spectrum]
    top = max(abs(token.value) for token in vocab.tokens)
    unit = 1.0 if vocab.composes or top == 0 else 10.0 ** math.floor(math.log10(top))
    worst = 4 * sum(spectrum)  # |φ| is at most 1, and so is the label's
    batch = Batch(logits, labels, vocab, **shared)
    for row, number in batch.numbers():
        amounts = [[number.amount(j, token) / unit for token in vocab.tokens] for j in range(len(number.tokens))]
        # Beyond ten leading places, ten more for each further digit.
        amounts[0] = [amount if amount <= 10 else 10 + 10 * math.log10(amount / 10) for amount in amounts[0]]
        label = sum(number.amount(j, token) for j, token in enumerate(number.tokens)) / unit
        label = -label if number.negative else label
        ps = [batch.p(row, position) for position in number.positions]
        minus = _minus_probability(batch, row, number, vocab)
        cost = batch.logits.new_zeros(())
        for w, a in zip(omega, spectrum, strict=True):
            real, imaginary = batch.logits.new_ones(()), batch.logits.new_zeros(())
            for p, amount in zip(ps, amounts, strict=True):
                c = (p * p.new_tensor([math.cos(w * u) for u in amount])).sum()
                s = (p * p.new_tensor([math.sin(w * u) for u in amount])).sum()
                real, imaginary = real * c - imaginary * s, real * s + imaginary * c
            imaginary = imaginary * (1 - 2 * minus)
            cost = cost + a * ((real - math.cos(w * label)).square() + (imaginary - math.sin(w * label)).square())
        if outside == "penalize":
            cost = charged(cost, batch.mean_mass(row, number.positions), worst)
        batch.charge(row, number.positions[0], cost)
    return batch.result()


def _minus_probability(batch: Batch, row: int, number: Number, vocab: NumericVocab) -> Tensor:
    """Return the probability of a minus against a digit where the sign is decided; the label's own where it is not."""
    position = number.sign_at if number.negative else number.positions[0]
    if batch.minus_ids.numel() == 0 or not vocab.composes or position is None:
        return batch.logits.new_tensor(float(number.negative))
    z = batch.logits[row, position]
    return torch.sigmoid(z[batch.minus_ids].logsumexp(-1) - z[batch.ids].logsumexp(-1))
