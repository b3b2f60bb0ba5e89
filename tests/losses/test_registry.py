"""The registry: how a loss enters it, and what is refused."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
from tests.samples import VOCABS, refused

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
    refused(ValueError, ["SecondLoss", "'smmd'", "already the name of SMMDLoss"], lambda: register(SecondLoss))
    assert before == nm.LOSSES


def test_names_are_known_without_importing_the_losses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong name is refused before torch is loaded."""
    known = {*nm.LOSSES}
    monkeypatch.delitem(sys.modules, "numerate.losses")
    names = loss_names()
    assert "numerate.losses" not in sys.modules
    assert {*names} == known
    assert len(names) == len(known)
