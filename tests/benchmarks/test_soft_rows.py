"""The benchmark of soft rows: its rows have the numbers that it says, and its figures are of all of them."""

from __future__ import annotations

import pytest
from benchmarks.soft_rows import KINDS, row_speed
from tests.targets.small import tokenizer

from numerate.targets import Bell, SoftNumbers


@pytest.mark.parametrize("kind", KINDS)
def test_rows_and_speeds(kind: str):
    tokens = tokenizer("digits")
    make, where = KINDS[kind]
    soft = SoftNumbers(tokens, Bell(relative=0.05), where=where, strict=True)
    for row in make(tokens, 3):
        assert len(soft.numbers(row)) == {"table": 1, "text": 8}[kind]
        assert len(soft(row, path="fixed")["soft_positions"])
    speed = row_speed("digits", tokens, kind, count=3, epochs=1)
    assert speed.name == f"digits, {kind}"
    assert min(speed.first, speed.later, speed.plain) > 0
