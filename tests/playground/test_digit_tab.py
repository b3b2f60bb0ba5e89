"""One digit: the values and gradients of the library, for every loss of the registry."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("pydantic", reason="the extra playground is not installed")

from numerate import LOSSES, NumericVocab
from numerate.losses import EMDLoss
from numerate.playground.digit import DigitRequest, compute, probabilities

VOCAB = NumericVocab.from_texts({str(digit): digit for digit in range(10)}, vocab_size=10)


def rows(**state: object) -> dict[str, dict]:
    return {row["name"]: row for row in compute(DigitRequest(**state))["losses"]}


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("target", [0, 5])
def test_values_are_those_of_the_library(name, target):
    bars = [0.05, 0, 0.3, 0, 0.1, 0.2, 0, 0, 0.35, 0]
    row = rows(target=target, right=bars)[name]
    logits = probabilities(bars).log()[None].requires_grad_()
    value = LOSSES[name](VOCAB)(logits, torch.tensor([target]))
    assert row["right"]["value"] == pytest.approx(value.item(), rel=1e-12)
    assert row["right"]["gradient"] == pytest.approx(torch.autograd.grad(value, logits)[0][0].tolist(), rel=1e-9, abs=1e-15)


def test_the_first_view_is_the_figure_of_the_papers():
    """Equal cross-entropy; every loss that knows distances charges the far one more."""
    found = rows()
    ce = found.pop("cross-entropy")
    assert ce["left"]["value"] == pytest.approx(ce["right"]["value"], rel=1e-12)
    assert ce["left"]["value"] == pytest.approx(
        F.nll_loss(probabilities(DigitRequest().left).log()[None], torch.tensor([5])).item()
    )
    equal = {name for name, row in found.items() if row["left"]["value"] == pytest.approx(row["right"]["value"], rel=1e-9)}
    assert equal == {"digit_entropy"}
    assert all(row["right"]["value"] > row["left"]["value"] for name, row in found.items() if name not in equal)
    assert compute(DigitRequest())["sentence"] == (
        f"A and B have the same cross-entropy and digit_entropy; the other {len(LOSSES) - 1} losses distinguish them."
    )


def test_equal_sides_cannot_be_told_apart():
    same = DigitRequest().left
    assert compute(DigitRequest(left=same, right=same))["sentence"] == "No loss distinguishes A and B."


def test_states_that_are_refused():
    bars = ([0.0] * 10, [0.1] * 9, [float("nan")] + [0.1] * 9, [-0.1] + [0.1] * 9)
    for state in (*({"left": own} for own in bars), {"target": 10}, {"target": -1}, {"target": 2.5}):
        with pytest.raises(ValueError, match="left|target"):
            DigitRequest(**state)


def test_a_loss_that_cannot_be_built_gives_its_reason(monkeypatch):
    class DemandingLoss(EMDLoss):
        """Needs a thousand tokens."""

        name = "demanding"

        def __init__(self, vocab):
            raise ValueError("vocab has 10 tokens: expected a thousand.")

    monkeypatch.setitem(LOSSES, "demanding", DemandingLoss)
    assert rows()["demanding"]["reason"] == "vocab has 10 tokens: expected a thousand."
