"""research/tables.py on answers and errors that are known."""

from __future__ import annotations

import lzma
from pathlib import Path

import numpy as np
import pytest

from numerate.lab.stats import compare, holm
from numerate.lab.wording.text import p_text

ANSWERS = """label,seed,row,gold,fallback,greedy,median
ce,0,0,10,50,17,14
ce,0,1,20,50,,26
ce,1,0,10,50,66/2,31
ce,1,1,20,50,11,20
soft,0,0,10,50,10,10
soft,0,1,20,50,22,20.25
soft,1,0,10,50,13,10
soft,1,1,20,50,22,20
"""


def test_answers_are_read(script, tmp_path):
    (tmp_path / "tables_stones.csv.xz").write_bytes(lzma.compress(ANSWERS.encode()))
    (tmp_path / "tables_stones_rivals.csv").write_text("baseline,seed,mae\nboosting,0,4\nboosting,1,2\n")
    found = script.read(tmp_path / "tables_stones.csv.xz")
    assert found.title == "stones, 1,000 rows"
    assert [*found.errors] == [(label, rule) for rule in ("greedy", "median") for label in ("ce", "soft")]
    assert found.errors["ce", "greedy"].tolist() == [[7, 30], [23, 9]]  # no answer counts as the median label, 50
    assert found.errors["soft", "median"].tolist() == [[0, 0.25], [0, 0]]
    assert found.typical(("soft", "greedy")) == pytest.approx(1.75)
    assert found.baselines["boosting"].tolist() == [4, 2]
    assert found.asked == ((0, 0, 10), (0, 1, 20), (1, 0, 10), (1, 1, 20))


@pytest.mark.parametrize(
    ("name", "title"),
    [
        ("tables_births_best", "births, 1,000 rows, best weights"),
        ("tables_births_10000_best", "births, 10,000 rows, best weights"),
        ("diamonds_soft_10000", "diamonds, 10,000 rows"),
        ("registry_diamonds", "diamonds, 1,000 rows"),
        ("widths", "widths, 1,000 rows"),
    ],
)
def test_titles(script, name, title):
    assert script.Kept(name, {}, {}).title == title


def noisy(rng, sizes, seeds=8, rows=300):
    """Errors of losses that answer the same rows: a size each, times what is hard about a row."""
    hard = rng.exponential(1, rows)
    return {way: size * hard * rng.exponential(1, (seeds, rows)) for way, size in sizes.items()}


@pytest.fixture
def comparison(script):
    ways = [(label, rule) for label in ("ce", "ntil", "soft", "soft_jitter") for rule in ("greedy", "median")]
    sizes = dict.fromkeys(ways, 1.0) | {("ntil", "median"): 0.9, ("soft", "median"): 0.4}
    return script.Kept("tables_stones_10000", noisy(np.random.default_rng(0), sizes), {"boosting": np.full(8, 0.3)})


def test_the_best_decision_of_each_published_loss(comparison):
    assert comparison.published == [("ntil", "median")]
    assert comparison.title == "stones, 10,000 rows"


def test_tests_tell_a_difference_from_none(script, comparison):
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in script.tests_table([comparison])]
    assert [row[2] for row in lines[2:]] == ["`ce`, greedy", "`ce`, median", "`ntil`, median"]
    assert all(row[-1] == "< 0.001" and row[-3] == "< 0.001" and row[5].startswith("−") for row in lines[2:])
    paths = [[cell.strip() for cell in line.split("|")[1:-1]] for line in script.paths_table([comparison])]
    by_way = {row[2]: row for row in paths[2:]}
    assert by_way["`soft_jitter`, median"][-1] == "< 0.001"
    assert float(by_way["`soft_jitter`, greedy"][-1]) > 0.01
    losses = [*script.losses_table([comparison])]
    assert losses[0].split("|")[3:6] == [" `ntil` ", " `soft` ", " `soft_jitter` "]
    assert "(< 0.001)" in losses[3].split("|")[4]
    decided = [*script.decisions_table([comparison])][2].split("|")
    assert ["(< 0.001)" in cell for cell in decided[2:6]] == [False, False, True, False]


def test_errors_have_a_line_for_each_loss_and_baseline(script, comparison):
    lines = [*script.errors_tables([comparison])]
    first = [line.split("|")[1].strip() for line in lines[3:]]
    assert first[0] == "`soft`"
    assert sorted(first) == ["`ce`", "`ntil`", "`soft_jitter`", "`soft`", "gradient boosting"]
    assert sum(line.count("**") for line in lines) == 2  # the best one
    assert len({line.count("|") for line in lines[1:]}) == 1


def test_derailed_answers_have_more_digits_than_any_label(script, tmp_path):
    lines = "label,seed,row,gold,fallback,greedy,median,mean\n"
    for seed, greedy in enumerate(("999", "1000", "")):  # as long as the longest label, one digit longer, no number
        lines += f"ce,{seed},0,100,50,{greedy},7,2000.5\nce,{seed},1,9,50,-12345,7,999.9\n"
    files = [tmp_path / f"tables_stones{size}.csv.xz" for size in ("_10000", "")]
    for file in files:
        file.write_bytes(lzma.compress(lines.encode()))
    table = rows_of("\n".join(script.derailed_table([script.read(file) for file in files])))
    counts = ["4, in 3 of 3 runs", "0", "3, in 3 of 3 runs"]
    assert table[2:] == [["1,000", "`ce`", *counts], ["10,000", "`ce`", *counts]]


def test_other_models_are_tested_over_runs(script, comparison):
    typical = script.number(comparison.typical(("soft", "median")))
    level = comparison.of_runs(("soft", "median")) * np.linspace(0.9, 1.1, 8)
    some = script.Kept("tables_more", comparison.errors, {"scalar": level})
    header, _, first, second = script.baselines_table([comparison, some])
    assert header == "| table | `soft`, median | a scalar head | gradient boosting |"
    assert first.split("|")[2:4] == [f" {typical} ", "  "]
    assert first.endswith("% (< 0.001) |")
    assert second.startswith(f"| more, 1,000 rows | {typical} | ")
    assert float(second.split("(")[1].split(")")[0]) > 0.05


ROWS = 200
CHANGES = {"ce": (0.5, 0.5), "ntil": (2, 2), "soft": (1, 0.75)}  # of greedy answers and medians, by the choice of weights


def write_kept(folder: Path, name: str, errors: dict, seeds=range(8), gold=1000) -> Path:
    """Write a kept file whose answers, greedy and median, have these errors ``[2, S, E]``."""
    lines = ["label,seed,row,gold,fallback,greedy,median"]
    lines += [
        f"{label},{seed},{row},{gold},50,{gold + greedy!r},{gold - decided!r}"
        for label, both in errors.items()
        for seed, *runs in zip(seeds, *both.tolist(), strict=True)
        for row, (greedy, decided) in enumerate(zip(*runs, strict=True))
    ]
    file = folder / f"{name}.csv.xz"
    file.write_bytes(lzma.compress("\n".join(lines).encode()))
    return file


@pytest.fixture
def last_and_best(tmp_path):
    """Errors of the last weights, in whole eighths, and those that the best weights make of them: half, twice, the same."""
    hard = np.random.default_rng(0).integers(1, 80, (len(CHANGES), 2, 8, ROWS)) / 8
    last = dict(zip(CHANGES, hard, strict=True))
    best = {label: last[label] * np.array(change)[:, None, None] for label, change in CHANGES.items()}
    files = [
        write_kept(tmp_path, "registry_stones", last | {"dist2": last["ce"]}),
        write_kept(tmp_path, "tables_stones_best", best),
    ]
    return [
        *files,
        write_kept(tmp_path, "tables_births", last),
        write_kept(tmp_path, "tables_births_best", last | {"ce": best["ce"]}),
    ]


def rows_of(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()]


def test_best_weights_against_the_last(script, last_and_best, capsys):
    script.main(["best", *map(str, last_and_best)])
    head, _, *rows = rows_of(capsys.readouterr().out)
    assert head == ["loss", "decision", "stones, 1,000 rows", "births, 1,000 rows"]
    assert rows == [
        ["`ce`", "greedy", "−50 %, +100.0 (< 0.001)", "−50 %, +100.0 (< 0.001)"],
        ["", "median", "−50 %, +100.0 (< 0.001)", "−50 %, +100.0 (< 0.001)"],
        ["`ntil`", "greedy", "+100 %, −100.0 (< 0.001)", "0 %, 0.0 (1.00)"],
        ["", "median", "+100 %, −100.0 (< 0.001)", "0 %, 0.0 (1.00)"],
        ["`soft`", "greedy", "0 %, 0.0 (1.00)", "0 %, 0.0 (1.00)"],
        ["", "median", "−25 %, +100.0 (< 0.001)", "0 %, 0.0 (1.00)"],
    ]


def test_best_weights_are_corrected_over_losses_and_decisions(script):
    rng = np.random.default_rng(1)
    ways = [(label, rule) for label in ("ce", "emd", "soft") for rule in ("greedy", "median")]
    last = {way: rng.exponential(1, (8, ROWS)) for way in ways}
    best = {way: errors * rng.lognormal(0, 1, errors.shape) for way, errors in last.items()}
    best["ce", "greedy"] = last["ce", "greedy"] * rng.lognormal(-0.1, 1, (8, ROWS))
    p = holm({way: compare(best[way], last[way], "sign").p_value for way in ways})
    assert 0.001 < min(p.values()) < 0.05  # so that the correction shows in the table
    _, _, *rows = rows_of("\n".join(script.best_table([script.Kept("stones", last, {}), script.Kept("stones_best", best, {})])))
    assert [row[2].split("(")[1] for row in rows] == [f"{p_text(p[way])})" for way in ways]


def test_cross_entropy_and_soft_labels_with_best_weights(script, last_and_best, capsys):
    _, best, *_ = map(str, last_and_best)
    known = script.read(Path(best))
    script.main(["tests", best])
    _, _, *rows = rows_of(capsys.readouterr().out)
    assert [row[0] for row in rows] == ["stones, 1,000 rows, best weights", "", ""]
    assert [row[2].split(",")[0] for row in rows] == ["`ce`", "`ce`", "`ntil`"]
    change = 100 * (known.typical(("soft", "median")) / known.typical(("ce", "greedy")) - 1)
    assert rows[0][5] == f"{change:+.0f} %"
    for command, width in (("losses", 4), ("decisions", 4), ("baselines", 2)):
        script.main([command, best])
        _, _, first, *_ = rows_of(capsys.readouterr().out)
        assert first[0] == "stones, 1,000 rows, best weights"
        assert len(first) == width
    script.main(["errors", best])
    assert "### stones, 1,000 rows, best weights\n" in capsys.readouterr().out


def test_best_weights_need_the_last_ones_of_the_same_rows(script, last_and_best, tmp_path):
    last, best, *_ = last_and_best
    with pytest.raises(ValueError, match="expected some files whose names end in _best"):
        script.main(["best", str(last)])
    with pytest.raises(
        ValueError, match="tables_stones_best needs one file of stones, 1,000 rows with the last weights, .* given none"
    ):
        script.main(["best", str(best)])
    errors = dict.fromkeys(CHANGES, np.ones((2, 8, ROWS)))
    again = write_kept(tmp_path, "tables_stones", errors)
    with pytest.raises(ValueError, match="given registry_stones, tables_stones"):
        script.main(["best", str(last), str(again), str(best)])
    for name, other in (("labels", {"gold": 999}), ("seeds", {"seeds": range(1, 9)})):
        (tmp_path / name).mkdir()
        wrong = write_kept(tmp_path / name, "tables_stones", errors, **other)
        with pytest.raises(ValueError, match="tables_stones_best and tables_stones cannot be paired"):
            script.main(["best", str(wrong), str(best)])
