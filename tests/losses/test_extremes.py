"""Extreme logits: every loss and every path stays finite as long as the label's own logit is, and exact besides."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from test_losses import NAMES, NUMBER_LEVEL
from tests.samples import MARKS, VOCABS, encode_batch, every_pair, grad_of, relative
from torch import Tensor

import numerate as nm
from numerate.losses.soft_target import SoftTargetLoss

VOCAB = VOCABS["marks"]
LABELS = encode_batch(["x -12.5", "(-7)3-5", "0.98 41"], MARKS)
TEXT = torch.ones(VOCAB.vocab_size, dtype=torch.bool).index_fill(0, VOCAB.token_ids, False)
LABEL = torch.nn.functional.one_hot(LABELS.clamp_min(0), VOCAB.vocab_size).bool()  # [B, T, V], the labels' own logits
DIGIT_LABEL = (VOCAB.index_of(LABELS) >= 0)[..., None]


def noise() -> Tensor:
    return torch.randn(LABEL.shape, generator=torch.Generator().manual_seed(11), dtype=torch.float64)


def without(gone: Tensor) -> Tensor:
    """-inf where ``gone``, but for the labels themselves."""
    return noise().masked_fill(gone & ~LABEL, -torch.inf)


EXTREMES: dict[str, Callable[[], Tensor]] = {
    **{f"text leads by {lead:g}": lambda lead=lead: noise() + lead * TEXT for lead in (1e2, 110.0, 1e3, 1e4)},
    **{f"digits lead by {lead:g}": lambda lead=lead: noise() - lead * TEXT for lead in (1e2, 110.0, 1e3, 1e4)},
    "all equal": lambda: torch.zeros_like(noise()),
    "all equal and high": lambda: torch.full_like(noise(), 1e4),
    "1e4 apart": lambda: 1e4 * noise().sign(),
    "label leads": lambda: 1e4 * LABEL.double(),
    "label trails": lambda: -1e4 * LABEL.double(),
    "one digit is -inf": lambda: without(torch.arange(VOCAB.vocab_size) == VOCAB.token_ids[4]),
    "other digits are -inf": lambda: without(~TEXT),
    "text is -inf": lambda: without(TEXT),
    "all others are -inf": lambda: without(torch.tensor(True)),
    "digits are -inf at a minus": lambda: noise().masked_fill(~TEXT & ~DIGIT_LABEL, -torch.inf),
}


def stacked(loss: nm.NumericLoss) -> tuple[list[str], Tensor, Tensor]:
    """Names of the extremes, their logits ``[E, B, T, V]`` and labels ``[E, B, T]``.

    Without those in which a token of probability zero has weight in a soft target: that costs infinitely much.
    """
    zero = ("one digit is -inf", "other digits are -inf", "all others are -inf")
    names = [name for name in EXTREMES if not (isinstance(loss, SoftTargetLoss) and name in zero)]
    return names, torch.stack([EXTREMES[name]() for name in names]), LABELS.expand(len(names), *LABELS.shape)


def from_loss(loss: nm.NumericLoss, logits: Tensor, labels: Tensor) -> Tensor:
    return loss(logits, labels)  # type: ignore[no-any-return]


def from_masked_rows(loss: nm.NumericLoss, logits: Tensor, labels: Tensor) -> Tensor:
    targets = loss.targets(labels, compact=False)
    return loss.per_row(*loss.select(logits, targets), targets).sum()


def from_objective(loss: nm.NumericLoss, logits: Tensor, labels: Tensor, weight: float = 0.3) -> Tensor:
    return nm.NumericObjective(loss, weight=weight)(logits, labels).loss  # type: ignore[no-any-return]


def from_fused(loss: nm.NumericLoss, logits: Tensor, labels: Tensor, weight: float = 0.3) -> Tensor:
    """Hidden states that are the logits, and a head that is the identity; 0 · -inf would be NaN in the product itself."""
    hidden, head = logits.clamp_min(-1e4), torch.eye(logits.shape[-1], dtype=logits.dtype)
    return nm.NumericObjective(loss, weight=weight).fused(hidden, head, labels, impl="torch").loss


PATHS: dict[str, Callable[[nm.NumericLoss, Tensor, Tensor], Tensor]] = {
    "loss": from_loss,
    "masked": from_masked_rows,
    "objective": from_objective,
    "objective, weight 0": partial(from_objective, weight=0.0),
    "fused": from_fused,
    "fused, weight 0": partial(from_fused, weight=0.0),
}


def settings_of(name: str) -> list[dict[str, Any]]:
    """Every treatment of mass outside, and of numbers and places where there is a choice."""
    more = [{}, {"numbers": "runs"}] if name in ("ntil", "ntl_number") else [{}]
    more += [] if name in NUMBER_LEVEL else [{"places": "exponential"}]
    return [{"outside": outside, **other} for outside in nm.LOSSES[name].outsides for other in more]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_finite_where_the_label_is(name: str, dtype: torch.dtype) -> None:
    bad = []
    for settings in settings_of(name):
        loss = nm.LOSSES[name](VOCAB, **settings)
        extremes, logits, labels = stacked(loss)
        logits = logits.to(dtype).requires_grad_()
        for path, value_of in PATHS.items():
            value = value_of(loss, logits, labels)
            grad = grad_of(value, logits)
            names = [name for name, part in zip(extremes, grad, strict=True) if not bool(part.isfinite().all())]
            if names or not bool(value.isfinite()):
                bad.append((settings, path, float(value), names))
    assert not bad, f"{len(bad)} cases, the first: {bad[:3]}"


@pytest.mark.parametrize("loss", [nm.losses.GaussianCELoss, nm.losses.DIST2Loss])
def test_a_logit_without_weight_may_be_minus_infinity(loss: type[nm.NumericLoss]) -> None:
    """Far from the label the target's weight is zero, and 0 · log 0 is 0."""
    vocab = nm.NumericVocab.from_values({i: float(i) for i in range(100)}, vocab_size=101)
    logits = torch.zeros(1, 101)
    logits[0, 90:100] = -torch.inf
    logits.requires_grad_()
    value = loss(vocab)(logits, torch.tensor([3]))
    assert bool(value.isfinite())
    grad = grad_of(value, logits)
    assert bool(grad.isfinite().all())
    assert bool((grad[0, 90:100] == 0).all())
    near = torch.zeros(1, 101).index_fill(1, torch.tensor([4]), -torch.inf)
    assert float(loss(vocab)(near, torch.tensor([3]))) == torch.inf  # a neighbour has weight


THOUSAND = nm.NumericVocab.from_texts({str(v): v for v in range(1000)} | {"x": 1000, ".": 1001}, vocab_size=1010)


@every_pair("name, lead, path", NAMES, [0.0, 25.0], ["loss", "match_ce"])
def test_the_price_of_text_is_exact(name: str, lead: float, path: str) -> None:
    """Wide logits and large distances: the mass outside is a small difference of rounded numbers, unless it is computed apart."""
    loss = nm.LOSSES[name](THOUSAND, outside="penalize")
    generator = torch.Generator().manual_seed(2)
    labels = torch.randint(0, 1000, (2, 6), generator=generator)
    logits = 10 * torch.randn(2, 6, 1010, generator=generator)
    logits[..., :1000] += lead
    # The label as likely as the likeliest: the gradient of a nearly certain answer would itself be a small difference.
    logits.scatter_(-1, labels[..., None], logits[..., :1000].amax(-1, keepdim=True))

    def found(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        given = logits.to(dtype).requires_grad_()
        if path == "loss":
            value = loss(given, labels)
        else:
            value = nm.NumericObjective(loss, weight=1.0, scale="match_ce")(given, labels).loss
        return value.detach().double(), grad_of(value, given).double()

    (value, grad), (true_value, true_grad) = found(torch.float32), found(torch.float64)
    assert relative(value - true_value, true_value) < 2e-6
    assert relative(grad - true_grad, true_grad) < 1e-5
    text = true_grad[..., 1000:]
    assert relative(grad[..., 1000:] - text, text) < 1e-5
