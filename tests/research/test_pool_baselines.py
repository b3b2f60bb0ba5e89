"""research/pool_baselines.py on tiny models and few rows of a table."""

from __future__ import annotations

import numpy as np
import pytest
from tests.research.test_pool_members import config  # noqa: F401 - a fixture

from numerate.lab.data.numbers import gold_numbers
from numerate.lab.data.settings import make_task
from numerate.lab.data.splits import held_out

pytest.importorskip("sklearn")


def test_scalar_heads_learn_as_one_stack(script, config, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.setattr(script, "KNOWN", 12)
    monkeypatch.setattr(script, "ROWS", 30)
    config = config.model_copy(update={"steps": 60, "train_examples": 80, "batch_size": 16})
    one, several = script.heads("diamonds", config, tmp_path)
    task = make_task(config)
    middle = np.median(gold_numbers(task, task.examples("train", 80, seed=0)))
    constant = np.abs(gold_numbers(task, held_out(task, ("interpolate",), 30)["interpolate"]) - middle).mean()
    assert (one["members"], several["members"]) == (1, 2)
    assert one["absolute_error"] != several["absolute_error"]
    assert several["absolute_error"] < constant


def test_boosting_alone_and_bagged(script, config, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.setattr(script, "KNOWN", 50)
    monkeypatch.setattr(script, "ROWS", 50)
    one, several = script.boosted("diamonds", config.model_copy(update={"train_examples": 100, "members": 3}), tmp_path)
    assert (one["members"], several["members"]) == (1, 3)
    assert one["absolute_error"] != several["absolute_error"]
