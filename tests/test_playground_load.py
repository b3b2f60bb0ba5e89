"""The script that loads the playground: seconds of it, and that it would see memory grow."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="the extra playground is not installed")

SCRIPT = runpy.run_path(str(Path(__file__).parents[1] / "scripts" / "playground_load.py"))


@pytest.mark.launch
@pytest.mark.skipif(sys.platform != "linux", reason="reads memory from /proc")
def test_a_few_seconds_of_everything():
    load = SCRIPT["drive"](3, workers=3)
    assert load.errors == []
    assert len(load.times) > 20
    assert len(load.kinds) >= 5
    assert min(load.memory) > 50


@pytest.mark.parametrize(
    ("memory", "grew"),
    [
        ([500.0] * 50, False),
        ([100.0] * 5 + [500.0] * 45, False),
        ([500 + 0.1 * i for i in range(100)], False),
        ([500 + 2.0 * i for i in range(100)], True),
        ([500.0] * 50 + [600.0] * 50, True),
    ],
)
def test_growth_is_seen(memory, grew):
    assert SCRIPT["Load"](memory=memory).grew is grew
