"""The model that comes with the playground is the one that its script trains."""

from __future__ import annotations

import pytest

pytest.importorskip("pydantic", reason="the extra train is not installed")


def test_the_shipped_model_has_the_settings_of_the_script(script):
    card = (script.SHIPPED / "README.md").read_text(encoding="utf-8")
    settings = dict(line[2:].split(": ", 1) for line in card.partition("## Settings")[2].splitlines() if line.startswith("- "))
    for name in ("model", "data", "batch_size", "learning_rate", "weight_decay", "seed", "eval_examples"):
        assert settings[name] == f"`{script.SETTINGS[name]}`"
    assert settings["steps"] == "`3000`"
    assert "'relative': 0.05" in settings["soft"]
