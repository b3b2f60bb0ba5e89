"""research/after_training.py on a comparison of tiny models, and its table on figures that are known."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("trl")


def row(start, seed, way, before, after, validation=0):
    figures = {
        f"{when}_{name}": value
        for when, value in (("before", before), ("after", after))
        for name in ("greedy", "typical", "median", "crps")
    }
    about = {"comparison": "births", "model": "small", "start": start, "seed": seed, "validation": validation, "way": way}
    return {**about, "factor": 0.1, "steps": 300, "samples": 38400, "seconds": 60.0, **figures}


def test_a_way_that_helps(script, tmp_path):
    rows = [row("ce", 1000, "crps", 99.0, 1.0, validation=1)]
    for seed in range(8):
        before = 20 + 0.1 * seed
        rows.append(row("ce", seed, "crps", before, before - 2 - 0.01 * (seed % 3)))
        rows.append(row("ce", seed, "log_error", before, before + 0.3 * (-1) ** seed))
        rows.append(row("ce", seed, "supervised", before, before + 0.2 * (-1) ** (seed // 2)))
    script.write(tmp_path / "a.csv", rows)
    assert script.read(tmp_path / "a.csv") == rows
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in script.table(rows) if line.startswith("| ")]
    head, start, crps, log_error, supervised = lines
    assert head[4:8] == ["MAE, greedy", "median error, greedy", "MAE, median", "CRPS"]
    assert len(start) == len(crps) == len(supervised) == 8
    assert start[:5] == ["`ce`", "", "", "", "20.35"]
    assert crps[:5] == ["+ `crps`", "300", "38,400", "60.0", "18.34 (< 0.001; < 0.001)"]
    p_start, p_control = re.fullmatch(r"[\d.]+ \(([\d.]+); ([\d.]+)\)", log_error[4]).groups()
    assert min(float(p_start), float(p_control)) > 0.05
    assert float(re.fullmatch(r"[\d.]+ \(([\d.]+)\)", supervised[4]).group(1)) > 0.05
