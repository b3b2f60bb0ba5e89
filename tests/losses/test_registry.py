"""The registry: how a loss enters it, and what is refused; references that are made from a formula."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator

import pytest
import torch
from tests.reference import emd_reference, from_formula
from tests.samples import BATCHES, VOCABS, random_logits, refused

import numerate as nm
from numerate.choices import loss_names
from numerate.losses import register


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """Take what a test registers out again."""
    before = dict(nm.LOSSES)
    yield
    nm.LOSSES.clear()
    nm.LOSSES.update(before)


def test_a_class_enters_under_its_name():
    @register
    class HalfLoss(nm.EMDLoss):
        name = "half"

    assert list(nm.LOSSES)[-1] == "half"
    assert nm.LOSSES["half"] is HalfLoss
    assert register(HalfLoss) is HalfLoss
    assert [name for name, loss in nm.LOSSES.items() if loss.name != name] == []


def test_what_is_refused():
    class NamelessLoss(nm.EMDLoss):
        pass

    class SpacedLoss(nm.EMDLoss):
        name = "my loss"

    class SecondLoss(nm.EMDLoss):
        name = "smmd"

    before = dict(nm.LOSSES)
    refused(TypeError, ["EMDLoss(", "a subclass of NumericLoss"], lambda: register(nm.EMDLoss(VOCABS["digits"])))
    refused(TypeError, ["<class 'dict'>", "a subclass of NumericLoss"], lambda: register(dict))
    refused(ValueError, ["NamelessLoss", "None", "set name ="], lambda: register(NamelessLoss))
    refused(ValueError, ["SpacedLoss", "'my loss'", "an identifier"], lambda: register(SpacedLoss))
    refused(ValueError, ["SecondLoss", "'smmd'", "SMMDLoss does not have"], lambda: register(SecondLoss))
    assert before == nm.LOSSES


@pytest.mark.parametrize("settings", [{}, {"outside": "penalize"}, {"places": "linear"}])
def test_a_formula_becomes_a_reference(settings):
    def formula(p, target, values, scale=2.0):
        return scale * sum((p[i] * abs(values[i] - values[target]) for i in range(len(p))), p.new_zeros(()))

    reference = from_formula(formula)
    labels, vocab = BATCHES["marks"], VOCABS["marks"]
    logits = random_logits(labels, vocab, torch.float64)
    truth = emd_reference(logits, labels, vocab, **settings)
    for scale, given in ((2.0, settings), (3.0, {"scale": 3.0, **settings})):
        made = reference(logits, labels, vocab, **given)
        assert made.num_units == truth.num_units
        torch.testing.assert_close(made.per_position, scale * truth.per_position, rtol=1e-12, atol=0)
    parameters = inspect.signature(reference).parameters
    assert [*parameters] == ["logits", "labels", "vocab", "scale", "shared"]
    assert parameters["scale"].default == 2.0


def test_names_are_known_without_importing_the_losses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong name is refused before torch is loaded."""
    known = {*nm.LOSSES}
    monkeypatch.delitem(sys.modules, "numerate.losses")
    names = loss_names()
    assert "numerate.losses" not in sys.modules
    assert {*names} == known
    assert len(names) == len(known)
