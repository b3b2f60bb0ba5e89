"""A model as a judge of sentence pairs: what it says before and after calibration is compared with people."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest


def test_a_judge_is_compared_with_people(script: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, count in (("dev", 12), ("test", 8)):
        lines = (f'{row % 6}.000\tA "man" walks {row}.\tA man sits {row}.' for row in range(count))
        (tmp_path / f"{name}.tsv").write_text("\n".join(lines), encoding="utf-8")
    script.main([str(tmp_path), "--model", "tiny", "--labelled", "12", "--pairs", "5"])
    said = capsys.readouterr().out
    assert re.findall(r"^(as it is|calibrated), (\w+)$", said, re.MULTILINE) == [
        (name, decision) for name in ("as it is", "calibrated") for decision in ("mode", "mean", "median")
    ]
    assert said.count("90% interval: covers") == 2
    assert said.count("items     5, left out 0") == 6
