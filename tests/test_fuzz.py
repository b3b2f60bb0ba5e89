"""The fuzzer of the losses: ten thousand of its cases hold, it tries everything there is, and finds planted faults."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor

import numerate as nm

CASES, PARTS = 10_000, 10


@pytest.mark.parametrize("part", range(PARTS))
def test_ten_thousand_cases(script: ModuleType, part: int) -> None:
    calls = CASES // PARTS // script.TOGETHER
    outcomes, faults = script.attempts((0, part * calls, (part + 1) * calls, "cpu"))
    assert not faults, "\n".join(faults[:5])
    assert outcomes.total() == CASES // PARTS
    assert all(outcomes[kind] > CASES / PARTS / 20 for kind in ("finite", "nan", "refused"))


def test_everything_is_tried(script: ModuleType) -> None:
    """Every loss by every implementation, in every dtype, with every kind of logits."""
    cases = sys.modules[script.draw.__module__]
    calls = [script.draw(0, number) for number in range(1500)]
    paths = {(call.name, call.path) for call in calls}
    assert paths == {(name, path) for name in nm.LOSSES for path in script.PATHS}
    assert {call.dtype for call in calls} == set(cases.DTYPES.values())
    logits = {(call.name, logits) for call in calls for _, logits in call.cases}
    assert logits == {(name, kind) for name in nm.LOSSES for kind in {kind for _, kind in logits}}
    assert len(logits) == 11 * len(nm.LOSSES)
    assert {call.vocab.size for call in calls} >= {1, 2, 10, 300}
    large = next(number for number in range(10_000) if random.Random(f"0:{number}").random() < cases.LARGEST)
    assert script.draw(0, large).vocab.size == 5000
    assert {call.settings["outside"] for call in calls if call.name == "raft"} == set(nm.losses.RAFTLoss.outsides)
    assert {kind for call in calls for kind in (call.kinds.get("soft"), call.kinds.get("weights"))} >= {*cases.WRONG} - {
        "outside"
    }
    assert {call.law for call in calls} == {"implementations", "ignored", "shifted", "wider", "none"}


class _Broken(nm.EMDLoss):
    """A loss with a fault in it."""

    fault: Callable[[Tensor], Tensor]

    def cost(self, z: Tensor, rest: Tensor | None, target: Tensor) -> Tensor:
        return type(self).fault(super().cost(z, rest, target))


def _key_error(cost: Tensor) -> Tensor:
    raise KeyError("cost")


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (lambda cost: cost * 0, "a cost of exactly 0"),
        (lambda cost: cost * torch.nan, "value nan"),
        (lambda cost: cost + (cost - cost.detach()).abs().sqrt(), "gradients are NaN or inf"),
        (lambda cost: cost.detach(), "not connected"),
        (lambda cost: cost.nan_to_num(0.0), "NaN or inf in the logits gives"),
        (lambda cost: cost.double(), "value of torch.float64"),
        (lambda cost: cost * len(cost), "implementations: "),
        (lambda cost: cost + 1e-2 * torch.rand(()), "against"),
        (_key_error, "KeyError"),
    ],
)
def test_a_planted_fault_is_found(script: ModuleType, fault: Any, message: str) -> None:
    """The new loss is tried because it is in the registry."""
    broken = type("Broken", (_Broken,), {"fault": staticmethod(fault)})
    with mock.patch.dict(nm.LOSSES, {"broken": broken}, clear=True):
        _, faults = script.attempts((3, 0, 100, "cpu"))
    script._kept.cache_clear()
    assert any(message in text for text in faults), faults[:3]
    assert faults[0].startswith("3:")


def test_the_command(script: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert script.main(["--cases", "32", "--seed", "2"]) == 0
    shown = capsys.readouterr()
    assert "32 of 32 cases, 0 faults" in shown.err
    assert shown.out.splitlines()[-1].startswith("| 32 | 2 | 1 | cpu |")
    assert script.main(["--case", "2:17"]) == 0
    assert str(script.draw(2, 2)) in capsys.readouterr().out

    def wrong(call: Any) -> str:
        raise script.Fault("wrong")

    monkeypatch.setattr(script, "check", wrong)
    assert script.main(["--cases", "16", "--seed", "5"]) == 1
    assert "scripts/fuzz.py --case 5:8 wrong" in capsys.readouterr().out
