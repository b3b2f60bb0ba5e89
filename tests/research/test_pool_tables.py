"""research/pool_tables.py on scores that are known."""

from __future__ import annotations

import pandas as pd
import pytest

SIZES = {1: 100.0, 2: 90.0, 4: 85.0, 8: 80.0}


def rows_of(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]


@pytest.fixture
def scores(tmp_path):
    """Eight draws of a table: errors of pools of soft labels fall, those of cross-entropy do not."""
    lines = []
    for seed in range(8):
        for label in ("ce", "soft"):
            for size, error in SIZES.items():
                error = (100.0 if label == "ce" else error) + seed + 0.1 * (-1) ** (seed + size // 2)
                about = {"model": "small", "label": label, "seed": seed, "split": "interpolate", "members": size}
                lines.append(about | {"decision": "median", "absolute_error": error})
            lines.append(about | {"members": 1, "decision": "greedy", "absolute_error": 500.0})
    write(tmp_path, "pools_births", lines)
    return tmp_path


def write(folder, name, lines):
    pd.DataFrame(lines).to_csv(folder / f"{name}_pools.csv", index=False)


def table(script, capsys, *command, scores):
    script.main([*command, "--scores", str(scores), "--title", "Title"])
    return capsys.readouterr().out


def test_nothing_is_shown_without_scores(script, capsys, tmp_path):
    for command in (*(("sizes", part) for part in script.PARTS), *((name,) for name in script._TABLES)):
        assert table(script, capsys, *command, scores=tmp_path).strip() == ""


def test_pools_by_size(script, capsys, scores):
    text = table(script, capsys, "sizes", "tables", scores=scores)
    assert text.startswith("## Title\n\n| ")
    head, _, ce, soft = rows_of(text)
    assert head[4:] == ["draws", "1 member", "2 members", "4 members", "8 members", "the most against one"]
    assert soft[:5] == ["births", "small", "`soft`", "median", "8"]
    assert soft[5:9] == ["104", "93.5", "88.5", "83.5"]
    assert soft[9] == "−19.3 % (< 0.001)"
    assert ce[9].startswith("0.0 % (")


def test_other_models_against_the_pool(script, capsys, scores):
    lines = [
        {"comparison": "births", "model": "small", "label": "gradient boosting", "seed": seed, "members": size}
        | {"absolute_error": 80.0 + seed + (0 if size == 1 else 5 + 0.1 * seed)}
        for seed in range(8)
        for size in (1, 8)
    ]
    write(scores, "boosting", lines)
    rivals = "\n".join(["baseline,seed,mae", *(f"hl_gauss_median,{seed},{90 + seed + 0.1 * seed}" for seed in range(8))])
    (scores / "tables_births_rivals.csv").write_text(rivals)
    head, _, row = rows_of(table(script, capsys, "baselines", scores=scores))
    assert head[2:] == ["gradient boosting", "gradient boosting, mean of 8", "HL-Gauss bins, median"]
    assert row[1] == "83.5"
    assert row[2].startswith("83.5, ")
    assert float(row[2].split("(")[1].strip(")")) > 0.05
    assert row[3] == "88.9, +6.4 % (< 0.001)"
    assert row[4].endswith("% (< 0.001)")


def test_ways_to_weigh(script, capsys, tmp_path):
    same = {
        "comparison": "births",
        "members": 8,
        "covers": 0.8,
        "interval": 50,
        "conformal_covers": 0.9,
        "conformal_interval": 70,
    }
    lines = [
        same | {"seed": seed, "label": label, "absolute_error": error + seed, "crps": error / 2 + seed}
        for seed in range(4)
        for label, error in (("equal weights", 10.0), ("mean quantiles", 9.0 + 0.1 * seed))
    ]
    write(tmp_path, "weights", lines)
    _, _, equal, quantiles = rows_of(table(script, capsys, "weights", scores=tmp_path))
    assert equal[:5] == ["births", "8", "equal weights", "11.5", "6.5"]
    assert equal[5:] == ["80.0 %", "50", "90.0 %", "70"]
    assert quantiles[3].startswith("10.7, −7.4 % (")


@pytest.mark.parametrize("most", [4, 8])
def test_cheaper_members_keep_a_share_of_the_gain(script, capsys, tmp_path, most):
    ways = {("members", 1): 100.0, ("members", most): 80.0, ("snapshots", 8): 95.0, ("student, 0 rows without labels", 1): 110.0}
    lines = [
        {"comparison": "births", "label": label, "members": size, "seed": seed, "crps": 50, "covers": 0.9}
        | {"absolute_error": error + seed + 0.1 * (-1) ** (seed * size)}
        for (label, size), error in ways.items()
        for seed in range(4)
    ]
    write(tmp_path, "cheaper", lines)
    _, _, one, pool, snapshots, student = rows_of(table(script, capsys, "cheaper", scores=tmp_path))
    assert one[3:5] == ["", ""]
    assert (pool[0], pool[4], snapshots[4], student[4]) == ("members", "100 %", "25 %", "−50 %")


def test_scores_that_tell_strange_rows(script, capsys, tmp_path):
    lines = [
        {"comparison": "births", "label": f"range: {score}", "seed": seed, "members": 8, "auroc": area - 0.1 * seed}
        for score, area in (("between", 0.9), ("share", 0.8), ("interval", 0.7))
        for seed in range(2)
    ]
    write(tmp_path, "disagreement", lines)
    text = table(script, capsys, "disagreement", scores=tmp_path)
    assert "| births | range | 0.85, least 0.80 | 0.75, least 0.70 | 0.65, least 0.60 |" in text
