"""scripts/endurance.py in short: memory does not grow, and it would be seen if it did."""

from __future__ import annotations

import pytest

from numerate import losses


@pytest.fixture(autouse=True)
def short(script, monkeypatch):
    monkeypatch.setattr(script, "PARTS", 4)


@pytest.mark.parametrize(("what", "times"), [("steps", 120), ("attach", 200), ("losses", 160)])
def test_memory_does_not_grow(what, times, script):
    found = script.PLANS[what](times)
    assert [memory.times for memory in found.memory] == [times // 2, times * 3 // 4, times]
    assert not found.grows, found.memory


@pytest.mark.parametrize("kept", ["tensors", "objects"])
def test_a_leak_is_seen(kept, script, monkeypatch):
    left = []

    class Leaking(losses.SMMDLoss):
        def forward(self, *arguments, **options):
            value = super().forward(*arguments, **options)
            left.append(value.detach() if kept == "tensors" else [{}])
            return value

    monkeypatch.setattr(losses, "LOSSES", {"leaking": Leaking})
    assert script.losses(80).grows


def test_the_table(script, capsys):
    assert script.main(["losses", "--times", "40"]) == 0
    row = capsys.readouterr().out.splitlines()[-1]
    assert row.startswith("| losses built, computed and dropped | 40 | ")
    assert row.endswith(" | no |")
