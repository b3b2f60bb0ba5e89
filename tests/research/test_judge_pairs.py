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
    script.main([str(tmp_path), "--model", "tiny", "--labelled", "10", "--draws", "2", "--pairs", "12"])
    said = capsys.readouterr().out
    assert re.findall(r"^(as it is|calibrated on 10 pairs), (\w+)$", said, re.MULTILINE) == [
        (name, decision) for name in ("as it is", "calibrated on 10 pairs") for decision in ("mode", "mean", "median")
    ]
    covered = dict(re.findall(r"^90% interval, (.+): covers (\S+) ", said, re.MULTILINE))
    assert [*covered] == ["as it is", "calibrated"]
    assert all(0 <= float(share) <= 1 for share in covered.values())
    assert said.count("items     8, left out 0") == 6
