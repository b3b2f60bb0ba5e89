"""The model that comes with the playground is the one that its script trains."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pydantic", reason="the extra lab is not installed")

from numerate.lab.data.regression import Regression
from numerate.lab.data.tables import table_file
from numerate.playground.models import open_model


def test_the_shipped_model_has_the_settings_of_the_script(script):
    card = (script.SHIPPED / "README.md").read_text(encoding="utf-8")
    settings = dict(line[2:].split(": ", 1) for line in card.partition("## Settings")[2].splitlines() if line.startswith("- "))
    for name in ("model", "data", "batch_size", "learning_rate", "weight_decay", "seed", "eval_examples"):
        assert settings[name] == f"`{script.SETTINGS[name]}`"
    assert settings["steps"] == "`3000`"
    assert "'relative': 0.05" in settings["soft"]


def test_examples_are_rows_that_the_model_has_not_seen(script, tmp_path):
    table = Regression.from_files(table_file(Path(script.SETTINGS["data"])), **script.SETTINGS["task_settings"])
    tested = {(row.prompt, row.answer) for row in table.rows["interpolate"]}
    model = open_model("", tmp_path)
    assert len(model.examples) == 6
    assert {(model.ask(example.cells).prompt, example.truth) for example in model.examples} <= tested
    assert not tested & {(row.prompt, row.answer) for row in table.rows["train"]}
