"""scripts/run_twice.py: on a CPU nothing differs, and what differs would be seen."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.launch


def test_nothing_differs_on_a_cpu(script, capsys):
    script.main(["--loss", "ce", "--loss", "soft", "--steps", "2"])
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| `")]
    assert rows == ["| `ce` | nothing | nothing |", "| `soft` | nothing | nothing |", "| `stack` | nothing | nothing |"]


def test_a_difference_is_seen(script, monkeypatch):
    original, calls = script.config, []

    def other_seed(kind, steps):
        calls.append(kind)
        return original(kind, steps).model_copy(update={"seed": len(calls) % 2})

    monkeypatch.setattr(script, "config", other_seed)
    *_, row, _ = script.table(["ce"], 1)
    assert row == "| `ce` | weights, predictions, curve | weights, predictions, curve |"


def test_an_unknown_loss(script):
    with pytest.raises(ValueError, match="--loss='emc' is not known"):
        script.main(["--loss", "emc"])
