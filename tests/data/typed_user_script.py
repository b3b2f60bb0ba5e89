"""A user's script with every public name. tests/test_typed.py checks it with ``mypy --strict``, and runs it."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import assert_type

import numerate as nm

DIGITS = {str(digit): digit for digit in range(10)} | {".": 10, "-": 11}


def losses(vocab: nm.NumericVocab, logits: Tensor, labels: Tensor) -> dict[str, float]:
    """Every loss by its class, and by its name."""
    by_class: list[nm.NumericLoss] = [
        nm.losses.CRPSLoss(vocab),
        nm.losses.DIST2Loss(vocab, tau=2.0),
        nm.losses.DigitEntropyLoss(vocab),
        nm.EMDLoss(vocab, squash=9.0),
        nm.losses.GaussianCELoss(vocab, sigma=1.0),
        nm.NTILLoss.released(vocab, noise=0.0),
        nm.losses.NTLHuberLoss(vocab),
        nm.NTLLoss(vocab),
        nm.losses.NTLMAELoss(vocab),
        nm.losses.NTLMSELoss(vocab),
        nm.losses.NTLNumberLoss(vocab),
        nm.NumberLoss(vocab),
        nm.losses.RAFTLoss(vocab),
        nm.SMMDLoss(vocab, sigma=2.0, outside="penalize"),
        nm.losses.NeighbourSmoothingLoss(vocab),
        nm.losses.SquaredEMDLoss(vocab, places="linear"),
    ]
    assert_type(by_class[0](logits, labels, reduction="sum"), Tensor)
    registered: dict[str, type[nm.NumericLoss]] = nm.LOSSES
    assert {type(loss) for loss in by_class} <= set(registered.values())
    return {loss.name: float(loss(logits.detach(), labels)) for loss in by_class}


def objective(vocab: nm.NumericVocab, logits: Tensor, labels: Tensor) -> nm.objective.ObjectiveOutput:
    """The objective from logits, from hidden states, and with soft targets."""
    made = nm.NumericObjective(nm.SMMDLoss(vocab), weight=0.3, normalize="numeric", scale="fixed")
    head = nn.Linear(8, vocab.vocab_size, bias=False)
    hidden = torch.zeros(*labels.shape, 8, requires_grad=True)
    assert_type(made.fused(hidden, head.weight, labels), nm.objective.ObjectiveOutput)
    soft = nm.targets.SoftTargets(torch.tensor([[1, 1]]), torch.tensor([[2, 3]]), torch.tensor([[0.5, 0.5]]))
    out = made(logits, labels, soft=soft)
    assert_type(out, nm.objective.ObjectiveOutput)
    torch.autograd.backward(out.loss)
    assert_type(nm.NumberSpans.from_labels(labels, vocab).values, Tensor)
    return out


def distributions() -> Decimal:
    """Distributions as labels and as answers."""
    bell = nm.NumberDistribution.bell(84.5, width=0.05)
    assert_type(bell.median, Decimal)
    assert_type(bell.interval(0.9), tuple[Decimal, Decimal])
    assert_type(bell.decide("relative"), Decimal)
    clock = nm.distribution.CircularDistribution(nm.NumberDistribution([1, 719], [0.5, 0.5]), period=720)
    assert_type(clock.median, Decimal)
    fitted = nm.calibration.conformal([bell] * 20, [84 + row / 20 for row in range(20)], level=0.8)
    assert_type(fitted, nm.calibration.Conformal)
    assert_type(nm.calibration.fit_temperature([bell] * 3, [84, 84.5, 85]), float)
    assert_type(nm.distribution.pool([clock, clock]), nm.distribution.CircularDistribution)
    assert_type(nm.distribution.pool([bell, bell], nm.calibration.fit_pool_weights([[bell, bell]], [84])), nm.NumberDistribution)
    assert_type(nm.distribution.spread([bell, bell]).between, float)
    assert_type(nm.targets.Bell(width=0.5)("84.5"), nm.targets.AnswerDistribution)
    return bell.mean


def answers() -> list[float]:
    """Texts to scores and rewards."""
    guess: Any = nm.answers.EXTRACTORS["last_number"]("about 15.")
    assert_type(nm.answers.METRICS["absolute_error"](gold=12, guess=guess), float)
    reward: Callable[..., list[float]] = nm.rewards.with_settings(nm.rewards.relative_error, scale=0.1)
    return reward(["It is 15."], answer=["12"])


def measured(vocab: nm.NumericVocab, logits: Tensor, labels: Tensor) -> nm.recommendation.Recommendation:
    """What suits a vocabulary, what was measured best, and the slow truth."""
    assert_type(nm.inspection.loss_advice(vocab), tuple[nm.inspection.Advice, ...])
    assert_type(nm.plotting.certain_costs(nm.EMDLoss(vocab), 5), Tensor)
    return nm.recommended("table")


def with_models(model: Any, tokenizer_file: Path, trainer: Any, inputs: dict[str, Tensor]) -> list[nm.NumberDistribution]:
    """What needs transformers and a model; checked, not run."""
    tokenizer = nm.tokenizers.load_tokenizer(tokenizer_file)
    vocab = nm.NumericVocab.from_tokenizer(tokenizer)
    attachment = nm.attach(trainer, nm.NumericObjective(nm.NTILLoss(vocab)), soft=nm.Bell(width=3))
    assert_type(attachment.soft, nm.targets.SoftNumbers | None)
    attachment.detach()
    nm.integrations.transformers.attach(trainer, "smmd", soft=nm.Ratings("ratings"))
    assert_type(nm.decode.number(model, ["How tall?"], tokenizer, "median", format="spaced"), list[float | None])
    padded = nm.formats.NumberFormat.fit(["7", "12.5"], "padded")
    assert_type(nm.formats.FormatRows(padded)({"text": "It is 7."}), dict[str, Any])
    assert_type(nm.answers.in_format(padded)("It is 07.0."), Any)
    judge = nm.judge.Judge("How helpful is it?", scale="A to E", model=model, tokenizer=tokenizer)
    assert_type(judge.scores(["It is."]), nm.judge.Scores)
    nm.plotting.plot_loss(vocab, "loss.png")
    return nm.decode.distribution(model, inputs, vocab)


def main() -> str:
    """Run all that needs torch alone."""
    vocab = nm.NumericVocab.from_texts(DIGITS, vocab_size=12)
    logits = torch.zeros(1, 4, 12, requires_grad=True)
    labels = torch.tensor([[1, 2, 10, 5]])
    assert set(losses(vocab, logits, labels)) <= set(nm.LOSSES)
    assert float(objective(vocab, logits, labels).loss.detach()) > 0
    assert distributions() == Decimal("84.5")
    assert 0 < answers()[0] < 1
    assert measured(vocab, logits, labels).loss == "soft"
    return nm.__version__


if __name__ == "__main__":
    main()
