"""The fuzzer of the losses: ten thousand of its cases hold, it tries everything there is, and it finds faults that are planted."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

import numerate as nm

CASES, PARTS = 10_000, 10


@pytest.mark.parametrize("part", range(PARTS))
def test_ten_thousand_cases(script: ModuleType, part: int) -> None:
    size = CASES // PARTS
    outcomes, faults = script.attempts((0, part * size, (part + 1) * size, "cpu"))
    assert not faults, "\n".join(faults[:5])
    assert sum(outcomes.values()) == size
    assert all(outcomes[kind] > size / 20 for kind in ("finite", "nan", "refused"))


def test_everything_is_tried(script: ModuleType) -> None:
    """Every loss by every implementation, in every dtype, and every kind of logits with each of them."""
    cases = [script.draw(0, index) for index in range(3000)]
    for one, other in (
        ({case.name for case in cases}, set(nm.LOSSES)),
        ({(case.name, case.path) for case in cases}, {(name, path) for name in nm.LOSSES for path in script.PATHS}),
        ({case.dtype for case in cases}, set(script.DTYPES.values())),
    ):
        assert one == other
    assert len({(case.path, case.kinds["logits"]) for case in cases}) == len(script.PATHS) * 11
    assert {case.vocab.size for case in cases} >= {1, 2, 10, 300}
    assert {case.settings["outside"] for case in cases if case.name == "raft"} == set(nm.RAFTLoss.outsides)


def test_the_largest_vocabulary_is_tried(script: ModuleType) -> None:
    _, vocab = script.drawn_vocab("any", True)
    assert vocab.size == 5000
    large = [index for index in range(40_000) if script.random.Random(f"0:{index}").random() < 1 / 4000]
    assert 3 <= len(large) <= 25
    assert script.draw(0, large[0]).vocab.size == 5000


def test_a_case_is_the_same_again(script: ModuleType) -> None:
    for index in range(50):
        one, other = script.draw(7, index), script.draw(7, index)
        assert str(one) == str(other)
        assert torch.equal(one.logits, other.logits) or bool(one.logits.isnan().any())
        assert torch.equal(one.labels, other.labels)


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
def test_a_planted_fault_is_found(script: ModuleType, monkeypatch: pytest.MonkeyPatch, fault: Any, message: str) -> None:
    """The new loss is tried because it is in the registry."""
    for name in [*nm.LOSSES]:
        monkeypatch.delitem(nm.LOSSES, name)
    monkeypatch.setitem(nm.LOSSES, "broken", type("Broken", (_Broken,), {"fault": staticmethod(fault)}))
    _, faults = script.attempts((3, 0, 250, "cpu"))
    script._kept.cache_clear()
    assert any(message in text for text in faults), faults[:3]
    assert faults[0].startswith("3:")


def test_a_hang_is_found(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    def never_ends(case: Any) -> str:
        while True:
            pass

    monkeypatch.setattr(script, "HANG_S", 0.2)
    monkeypatch.setattr(script, "check", never_ends)
    outcome, text = script.attempt(0, 0)
    assert outcome == "fault"
    assert text.startswith("0:0 hangs")


def test_the_command(script: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert script.main(["--cases", "30", "--seed", "2"]) == 0
    shown = capsys.readouterr()
    assert "30 of 30, 0 faults" in shown.err
    assert shown.out.splitlines()[-1].startswith("| 30 | 2 | 1 | cpu |")
    assert script.main(["--case", "2:7"]) == 0
    assert str(script.draw(2, 7)) in capsys.readouterr().out

    def wrong(case: Any) -> str:
        raise script.Fault("wrong")

    monkeypatch.setattr(script, "check", wrong)
    assert script.main(["--cases", "2", "--seed", "5"]) == 1
    assert "scripts/fuzz.py --case 5:1 wrong" in capsys.readouterr().out
