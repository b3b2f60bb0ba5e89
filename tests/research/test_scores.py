"""research/scores.py on records whose scores are known."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest
from tests.research.runs import run_of, write

from numerate.lab.evaluation.likelihood import NUMBER_NLL, TEXT_NLL

EXAMPLES = 30
KNOWN = {"ce": (0.975, 0.5, 10), "ntil": (0.8, 0.502, 11), "ntil results": (0.8, 0.55, 20)}  # numbers, text, exact answers
WORDS = ["--metrics", f"exact,{NUMBER_NLL},{TEXT_NLL}", "--no-worse", TEXT_NLL]


@pytest.fixture
def words(script, tmp_path: Path) -> Path:
    folder = tmp_path / "words"
    write(folder / "experiment.json", {})
    for label, (numbers, text, right) in KNOWN.items():
        for seed in range(3):
            shift = 0.0001 * (seed - 1)
            likelihoods = [{NUMBER_NLL: numbers + shift + 0.01 * index, TEXT_NLL: text + shift} for index in range(EXAMPLES)]
            measures = [{"exact": float(index < right)} | likelihoods[index] for index in range(EXAMPLES)]
            rows = [{"split": "interpolate", "index": index, "measures": each} for index, each in enumerate(measures)]
            run_of(folder, label, seed, rows)
    run_of(folder, "ce", 1000, [], validation=True)  # a trial
    import_module("keep").keep_scores(folder, tmp_path)
    return tmp_path / "words_scores.csv.xz"


def rows_of(text: str) -> dict[str, list[str]]:
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("| ")]
    return {first: others for first, *others in cells[2:]}


def test_numbers_that_get_better_and_text_that_does_not_get_worse(script, words, capsys):
    script.main(["losses", str(words), *WORDS])
    printed = capsys.readouterr().out
    assert "**words, interpolate**: `smollm2`, 3 seeds, 30 examples\n" in printed
    rows = rows_of(printed)
    assert rows.keys() == {f"`{label}`" for label in KNOWN}
    assert rows["`ce`"] == ["33.3", "", "1.12", "", "0.500", "", ""]
    exact, gained, numbers, fewer, text, more, no_worse = rows["`ntil`"]
    assert (exact, numbers, text, no_worse) == ("36.7", "0.945", "0.502", "yes")  # 0.4 % more, with every seed
    assert gained.startswith("+3.3 (")
    assert fewer.startswith("−0.175 (−0.1")
    assert fewer.endswith("), p\u00a0<\u00a00.001")  # does not break in a narrow table
    assert more.startswith("+0.00200 (")
    assert rows["`ntil results`"][-1] == "not shown"  # 10 % more


def test_another_contrast(script, words, capsys):
    script.main(["losses", str(words), *WORDS, "--baseline", "ntil", "--losses", "ntil results"])
    rows = rows_of(capsys.readouterr().out)
    assert rows.keys() == {"`ntil`", "`ntil results`"}
    assert rows["`ntil results`"][1].startswith("+30.0 (")
    assert rows["`ntil results`"][5].startswith("+0.0480 (")


def test_unknown_losses_are_named(script, words):
    with pytest.raises(ValueError, match="words has no runs of emd: expected some of ce, ntil, ntil results"):
        script.main(["losses", str(words), "--metrics", "exact", "--losses", "emd"])
    with pytest.raises(ValueError, match="has no runs of smmd"):
        script.main(["against", str(words), "--metrics", "exact", "--way", "smmd,greedy"])


@pytest.fixture
def times(script, tmp_path: Path) -> Path:
    """Two splits and two decisions: ``soft`` is better by its mode alone, and one answer of ``emd`` has no number."""
    folder = tmp_path / "times"
    write(folder / "experiment.json", {})
    right = {"ce": (12, 14), "emd": (12, 12), "soft": (12, 24)}  # exact, greedy and by the mode
    for label, (greedy, mode) in right.items():
        for seed in range(4):
            rows = []
            for split in ("interpolate", "between"):
                for index in range(EXAMPLES):
                    gap = 3.0 + 0.1 * index if label != "soft" else 1.0
                    missing = (label, split, index) == ("emd", "between", 0)
                    exact, decided = ({"exact": float((index + seed) % EXAMPLES < count)} for count in (greedy, mode))
                    error = {"absolute_error": None if missing else gap}
                    rules = {rule: {"answer": "1", "measures": decided | error} for rule in ("mode", "sampled median")}
                    measured = {"measures": exact | error | {NUMBER_NLL: 0.5}, "decisions": rules}
                    rows.append({"split": split, "index": index} | measured)
            run_of(folder, label, seed, rows, model="tiny-vlm", soft={"relative": 0.05} if label == "soft" else None)
    import_module("keep").keep_scores(folder, tmp_path)
    return tmp_path / "times_scores.csv.xz"


def test_every_decision_of_every_split(script, times, capsys):
    script.main(["losses", str(times), "--metrics", "exact,absolute_error", "--decisions", "greedy,mode"])
    tables = [lines.splitlines() for lines in capsys.readouterr().out.split("\n**")[1:]]
    assert [lines[0].split(":")[0] for lines in tables] == ["times, interpolate**", "times, between**"]
    for lines in tables:
        cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines[4:]]
        assert [tuple(line[:3]) for line in cells] == [
            ("`ce`", "greedy", "40.0"), ("`emd`", "greedy", "40.0"), ("`soft`", "greedy", "40.0"),
            ("`ce`", "mode", "46.7"), ("`emd`", "mode", "40.0"), ("`soft`", "mode", "80.0"),
        ]  # fmt: skip
        assert cells[1][3].endswith("p\u00a0=\u00a01.00")  # nothing differs
        assert cells[-1][3].startswith("+33.3 (")
        assert (cells[0][4], cells[-1][4]) == ("4.45", "1.00")
        assert cells[-1][5].startswith("+100.0 (")  # closer on every example


def test_a_measure_that_decisions_do_not_have(script, times, capsys):
    script.main(["losses", str(times), "--metrics", f"exact,{NUMBER_NLL}", "--splits", "between", "--no-worse", NUMBER_NLL])
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in capsys.readouterr().out.splitlines()[5:]]
    assert [line[1] for line in cells] == [rule for rule in ("greedy", "mode", "sampled median") for _ in range(3)]
    assert [line[4] for line in cells] == ["0.500"] * 3 + [""] * 6
    assert [line[-1] for line in cells] == ["", "yes", "yes"] + [""] * 6
    with pytest.raises(ValueError, match=f"times has no iou: expected some of exact, absolute_error, {NUMBER_NLL}"):
        script.main(["losses", str(times), "--metrics", "exact,iou"])


def test_one_way_against_the_others_at_their_best(script, times, capsys):
    script.main(["against", str(times), "--metrics", "exact", "--splits", "between", "--way", "soft,mode"])
    rows = rows_of(capsys.readouterr().out)
    ways = {"`ce`, greedy": "40.0", "`ce`, mode": "46.7", "`ce`, sampled median": "46.7", "`emd`, greedy": "40.0"}
    assert [*rows] == [*ways]  # the first of several that are equally good
    assert [cells[:2] for cells in rows.values()] == [[exact, "80.0"] for exact in ways.values()]
    assert rows["`ce`, mode"][2].startswith("+33.3 (")
    script.main(["against", str(times), "--metrics", "absolute_error", "--way", "soft,greedy"])
    assert "closer - farther, points" in capsys.readouterr().out


def test_decisions_against_greedy_answers(script, times, capsys):
    script.main(["decisions", str(times), "--metrics", "exact", "--splits", "between"])
    printed = capsys.readouterr().out
    assert "| loss | decision | exact answers, % | greedy | difference, points |" in printed
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in printed.splitlines()[5:]]
    ways = [(label, rule) for label in ("`ce`", "`emd`", "`soft`") for rule in ("mode", "sampled median")]
    assert [tuple(line[:2]) for line in cells] == ways
    assert [line[2:4] for line in cells[::2]] == [["46.7", "40.0"], ["40.0", "40.0"], ["80.0", "40.0"]]
    assert cells[0][4].startswith("+6.7 (")
    assert cells[2][4].endswith("p\u00a0=\u00a01.00")  # nothing differs
    assert cells[4][4].startswith("+40.0 (")


def test_settings(script, times, capsys):
    script.main(["settings", str(times)])
    rows = capsys.readouterr().out.splitlines()
    assert rows[2] == "| times | `tiny-vlm` | `ce` | 80 | 5 | 0.001 | 0.3 |  |"
    assert rows[-1] == "| times | `tiny-vlm` | `soft` | 80 | 5 | 0.001 | 0.3 | relative 0.05 |"
