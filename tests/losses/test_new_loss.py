"""A number-level loss of a user's own passes the contract of the registry; tests/test_add_a_loss.py has a token-level one."""

from __future__ import annotations

import inspect
from typing import Any, Unpack

import pytest
import test_losses as contract
import torch
from tests.reference import REFERENCES, ReferenceCost
from tests.reference.batch import Batch, charged
from torch import Tensor

import numerate as nm
from numerate.losses import NumberLevelLoss, NumericLoss
from numerate.losses.base import SharedSettings
from numerate.losses.number_level import mean_amount, token_amounts, token_scale
from numerate.losses.target_tokens import NumberTargets


def toy_number_reference(
    logits: Tensor, labels: Tensor, vocab: nm.NumericVocab, scale: float = 2.0, *, outside: str = "ignore", **shared: Any
) -> ReferenceCost:
    """scale · (Ŷ - Y)², in units of the leading place."""
    batch = Batch(logits, labels, vocab, **shared)
    for row, number in batch.numbers():
        gap = batch.logits.new_zeros(())
        for j, position in enumerate(number.positions):
            p = batch.p(row, position)
            gap = gap + (p * p.new_tensor([number.amount(j, token) for token in vocab.tokens])).sum()
            gap = gap - number.amount(j, number.tokens[j])
        cost = scale * gap * gap
        if outside == "penalize":
            cost = charged(cost, batch.mean_mass(row, number.positions), 100 * scale)
        batch.charge(row, number.positions[0], cost)
    return batch.result()


class ToyNumberLoss(NumberLevelLoss):
    name = "toy_number"

    def __init__(self, vocab: nm.NumericVocab, scale: float = 2.0, **shared: Unpack[SharedSettings]) -> None:
        super().__init__(vocab, **shared)
        self.scale = scale
        self.keep_matrix("amounts", token_amounts(vocab))
        self.worst.fill_(100 * scale)

    def number_cost(self, z: Tensor, targets: NumberTargets) -> Tensor:
        spans = targets.spans
        mean = mean_amount(z.softmax(-1), self.matrix("amounts", z.dtype), spans)
        guess = targets.sum(mean * targets.blank(token_scale(spans, self.widths[targets.index])))
        return (self.scale * (guess - targets.sum(spans.relative_values)).square()).to(z.dtype)


@pytest.fixture(autouse=True)
def name(monkeypatch: pytest.MonkeyPatch) -> str:
    """A toy that is in the registry for one test."""
    monkeypatch.setitem(nm.LOSSES, "toy_number", ToyNumberLoss)
    monkeypatch.setitem(REFERENCES, "toy_number", toy_number_reference)
    monkeypatch.setattr(contract, "NUMBER_LEVEL", [*contract.NUMBER_LEVEL, "toy_number"])
    return "toy_number"


def contracts(*parameters: str) -> Any:
    """All tests of the contract with exactly these parameters."""
    tests = [test for key, test in vars(contract).items() if key.startswith("test_")]
    tests = [test for test in tests if set(inspect.signature(test).parameters) == set(parameters)]
    return pytest.mark.parametrize("check", tests, ids=[test.__name__ for test in tests])


@contracts("name")
def test_contract(check: Any, name: str) -> None:
    check(name)


@contract.outsides
@contracts("name", "outside")
def test_contract_with_mass_outside(check: Any, name: str, outside: str) -> None:
    check(name, outside)


@pytest.mark.parametrize("dtype", contract.TOLERANCE, ids=str)
def test_equals_its_reference(name: str, dtype: torch.dtype) -> None:
    contract.test_equals_its_reference(name, dtype)


@pytest.mark.parametrize("vocab", ["signs", "ratings"])
def test_settings_equal_the_reference(name: str, vocab: str) -> None:
    for settings in ({"scale": 0.5}, {"outside": "penalize"}):
        contract.test_every_setting_equals_its_reference(name, settings, vocab)


def test_gradient(name: str) -> None:
    contract.test_gradcheck(name, {"outside": "penalize"})
    contract.test_compiles_to_one_graph(name, {})


def test_unwritten_methods_and_foreign_targets(name: str) -> None:
    """Without its one method a loss raises; a number-level loss names the way out for targets that hold no numbers."""
    vocab, labels = contract.VOCABS["marks"], contract.BATCHES["marks"]
    logits = contract.random_logits(labels, vocab)
    for base in (NumericLoss, NumberLevelLoss):
        with pytest.raises(NotImplementedError):
            base(vocab)(logits, labels)
    targets = nm.EMDLoss(vocab).targets(labels)
    z, rest = nm.EMDLoss(vocab).select(logits, targets)
    with pytest.raises(TypeError, match=r"targets hold no numbers: expected .* loss.targets"):
        ToyNumberLoss(vocab).per_row(z, rest, targets)
