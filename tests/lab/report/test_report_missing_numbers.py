"""Reports of models that answer few numbers or none: every task and measure, in every file, sentence, table and figure."""

from __future__ import annotations

import csv
import html
import math
import random
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import median as median_of
from typing import Any

import pytest
from matplotlib.figure import Figure
from rich.console import Console
from tests.lab.report.simulated import headline_of, lines, rewrite, setup_of, strict, write_cell, write_experiment

from numerate.answers.metrics import METRICS
from numerate.cli.compare import _show, _show_decisions
from numerate.lab.comparison.compare import _result
from numerate.lab.data import TASKS
from numerate.lab.evaluation.decisions import FITTING, GREEDY
from numerate.lab.evaluation.derailing import DERAILED, SAMPLE_DERAILED
from numerate.lab.evaluation.likelihood import LIKELIHOODS
from numerate.lab.report import write_report
from numerate.lab.report.decisions import decisions as decisions_of
from numerate.lab.report.examples import differing
from numerate.lab.report.figures.curves import learning_curves
from numerate.lab.report.figures.drawing import FigurePlan, Span, draw_spans
from numerate.lab.report.records import read_run
from numerate.lab.wording.decisions import evaluation_sentences, summary_rows
from numerate.lab.wording.measures import measure

EXAMPLES = 24
LABELS = ("ce", "emd", "smmd")
RULES = ("median", "mean")
MEASURES = (*METRICS, "sample_crps", DERAILED, SAMPLE_DERAILED, *LIKELIHOODS)

Outcome = str  # "number", "none": no answer, "large": squares are beyond floats, "beyond": an answer, but an infinite error
Case = Callable[[str, int, str, int], Outcome]  # (label, seed, decision, index)

CASES: dict[str, Case] = {
    "no number at all": lambda label, seed, rule, i: "none",
    "no number of the baseline": lambda label, seed, rule, i: "none" if label == "ce" else "number",
    "no number of a loss": lambda label, seed, rule, i: "none" if label == "smmd" else "number",
    "no number of a seed": lambda label, seed, rule, i: "none" if seed == 1 else "number",
    "no number of greedy answers": lambda label, seed, rule, i: "none" if rule == GREEDY else "number",
    "no number of a rule": lambda label, seed, rule, i: "none" if rule == "mean" else "number",
    "every second example, another one by rule": lambda label, seed, rule, i: "none" if (i + len(rule)) % 2 else "number",
    "few numbers": lambda label, seed, rule, i: "number" if i in (3, 20) else "none",
    "large means": lambda label, seed, rule, i: "large" if rule == "mean" and i % 3 else "number",
    "means beyond floats": lambda label, seed, rule, i: "beyond" if rule == "mean" else "number",
    "all large": lambda label, seed, rule, i: "large",
}
CAN_BE_MISSING = [name for name in MEASURES if measure(name).infinite == "no number"]


def score(name: str, outcome: Outcome, chance: random.Random) -> float | None:
    """Return a made-up score as records have it: null for infinity."""
    metric, shown = METRICS.get(name), measure(name)
    missing = math.inf if metric is None else metric.no_answer
    if name in (DERAILED, SAMPLE_DERAILED, "sample_parsed"):
        missing = 0.0
    if outcome == "none":
        return None if math.isinf(missing) else missing
    if math.isinf(missing) and outcome != "number":
        return None if outcome == "beyond" else 10.0 ** chance.uniform(100, 305)
    bounded = shown.higher_is_better or name in (DERAILED, SAMPLE_DERAILED)
    return float(chance.random() < 0.5) if bounded else chance.uniform(0.01, 2.0)


def make_run(
    folder: Path,
    task: str,
    measures: Sequence[str],
    case: Case,
    *,
    seeds: int = 3,
    fallback: bool = True,
    decided: bool = True,
    splits: Sequence[str] = ("interpolate", "extrapolate"),
    examples: int = EXAMPLES,
) -> Path:
    """Write the records of a comparison; the first measure is the headline."""
    write_experiment(folder)
    for label in LABELS:
        for seed in range(seeds):
            cell, chance = folder / "cells" / f"{label}-{seed}", random.Random(f"{label}/{seed}")
            rows = []
            for split, i in ((split, i) for split in splits for i in range(examples)):
                said = case(label, seed, GREEDY, i)
                row = record(split, i, None if said == "none" else "7", {name: score(name, said, chance) for name in measures})
                if decided:
                    by_rule = {
                        rule: {name: score(name, case(label, seed, rule, i), chance) for name in measures} for rule in RULES
                    }
                    row |= decisions(i, measures, by_rule, case(label, seed, "median", i) == "none")
                if fallback:
                    row["fallback"] = {name: score(name, "number", chance) for name in measures}
                rows.append(row)
            config, cost = {"task": task, "loss": label, "seed": seed}, {"ms_per_step": 20.0 + seed}
            write_cell(cell, config, rows, measures[0], cost=cost)
            greedy = [case(label, seed, GREEDY, i) for i in range(examples)]
            outcome = "none" if 2 * greedy.count("none") >= examples else "number"
            followed = [{f"validation/{name}": score(name, outcome, chance) for name in measures} for _ in range(2)]
            lines(cell / "curve.jsonl", [{"step": step, "loss": 1.0 / step, **own} for step, own in enumerate(followed, 1)])
    return folder


def record(split: str, i: int, answer: str | None, measures: dict[str, float | None]) -> dict[str, Any]:
    gold = str(10 ** (1 + i % 2) + i)  # of two and three digits
    row = {"split": split, "index": i, "prompt": "?", "gold": gold, "answer": answer, "output": answer or "I do not know."}
    digit = {"place": 0, "p": 0.1, "top": 0.2, "right": answer is not None, "mass": 0.0 if answer is None else 0.9}
    return {**row, "measures": measures, "nll": 1.0, "digits": [digit]}


def decisions(i: int, measures: Sequence[str], by_rule: dict[str, dict[str, float | None]], missing: bool) -> dict[str, Any]:
    row: dict[str, Any] = {
        "decisions": {rule: {"answer": None if missing else "7", "measures": scores} for rule, scores in by_rule.items()}
    }
    row |= {"level": 0.9, "seconds": {"greedy": 0.002, "search": 0.006}, "truth": str(7 + i)}
    if missing:
        return row | dict.fromkeys(("distribution", "median", "interval", "covers", "crps")) | {"truth": None, "expected": {}}
    own = {name: {"greedy": None, "decided": 0.5, "cost": by_rule["median"][name]} for name in measures if name in FITTING}
    found = {"values": ["7"], "probabilities": [1.0], "covered": 0.95}
    return row | {"distribution": found, "median": "7", "interval": ["1", "20"], "covers": i < 4, "crps": 3.0, "expected": own}


NO_WORD = re.compile(r"(?<![\w])(nan|inf|-inf|None|NaN|Infinity)(?![\w])")


def everything_said(folder: Path) -> tuple[str, str]:
    """Write the report; check all files, and return the text of the page and of the terminal."""
    page = write_report(folder)
    shown = re.sub(r'"data:[^"]*"|<script>.*?</script>', "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    text = html.unescape(shown).replace("\u00a0", " ")
    strict(page.with_suffix(".json").read_text(encoding="utf-8"))
    for file in folder.glob("*.csv"):
        with file.open(encoding="utf-8") as opened:
            rows = list(csv.reader(opened))
        assert len(rows) > 1
        assert not {"nan", "None"} & {field for row in rows for field in row}
    result = _result(page, [])
    console = Console(record=True, width=300, quiet=False, file=(folder / "terminal.txt").open("w"))
    _show(console, result.table)
    _show_decisions(console, result.data["decisions"])
    console.print(result.answer)
    console.file.close()
    shown = console.export_text()
    for cell in read_run(folder).cells:
        for part in (part for split in cell.splits.values() if (part := split.decided) is not None):
            said = " ".join(evaluation_sentences(part))
            assert NO_WORD.search(said) is None, said
            assert not any(math.isnan(value) for _, _, values in summary_rows(part) for value in values)
    for each in (text, shown):
        found = NO_WORD.search(each)
        assert found is None, each[max(0, found.start() - 200) : found.end() + 100]
    assert set(LABELS) <= {row["loss"] for row in result.table}
    return text, shown


def undrawn(figures: Iterable[FigurePlan], anchor: str) -> tuple[dict[str, FigurePlan], list[str]]:
    """Collect the data of the figures without drawing them, which takes most of the time."""
    return {plan.name: plan for plan in figures if plan.data.rows}, []


@pytest.mark.parametrize("case", ["no number at all", "no number of a loss", "means beyond floats"])
@pytest.mark.parametrize("task", TASKS)
def test_every_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task: str, case: str):
    monkeypatch.setattr("numerate.lab.report.chapters._draw", undrawn)
    kind = TASKS[task]
    page, shown = everything_said(make_run(tmp_path, task, kind.measures, CASES[case], fallback=not kind.visual))
    if measure(kind.measures[0]).infinite == "no number":
        assert "no number" in shown
    if any(name in CAN_BE_MISSING for name in kind.measures) and case != "means beyond floats":
        assert "no number</td>" in page


@pytest.mark.parametrize("name", MEASURES)
def test_every_measure_as_the_headline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str):
    monkeypatch.setattr("numerate.lab.report.chapters._draw", undrawn)
    settings = {"seeds": 2, "splits": ["interpolate"], "fallback": False}
    folder = make_run(tmp_path, "mine", (name, "parsed"), CASES["no number of a loss"], **settings)
    page, _ = everything_said(folder)
    assert ("no number</td>" in page) == (name in CAN_BE_MISSING)


@pytest.mark.parametrize(("examples", "fallback"), [(1, True), (EXAMPLES, True), (EXAMPLES, False)])
@pytest.mark.parametrize("case", CASES)
def test_every_case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str, fallback: bool, examples: int):
    monkeypatch.setattr("numerate.lab.report.chapters._draw", undrawn)
    names, seeds = TASKS["regression"].measures, 3 if examples == EXAMPLES else 1
    everything_said(make_run(tmp_path, "regression", names, CASES[case], fallback=fallback, seeds=seeds, examples=examples))


@pytest.mark.parametrize(
    "case", ["no number at all", "no number of a loss", "every second example, another one by rule", "all large"]
)
def test_figures(tmp_path: Path, case: str):
    """Every figure is drawn, with an arrow for each infinite score."""
    folder = make_run(tmp_path, "regression", TASKS["regression"].measures, CASES[case], examples=2 * EXAMPLES, seeds=1)
    page, _ = everything_said(folder)
    drawn = ["errors", "places", "lengths", *["calibration"] * (case != "no number at all"), "curves"]
    drawn = ["predictions"] * (case != "no number at all") + drawn
    assert re.findall(r'<h3 id="s1-(\w+)-title"', page) == drawn
    assert ("An arrow is an infinite score" in page) == (case != "all large")
    assert ("A line has a gap where" in page) == (case != "all large")


class TestSentences:
    def test_losses_without_numbers_are_named_apart_from_scores(self, tmp_path: Path):
        settings = {"seeds": 1, "splits": ["interpolate"], "decided": False}
        folder = make_run(tmp_path, "mine", ("absolute_error",), CASES["no number of a loss"], **settings)
        page, _ = everything_said(folder)
        assert re.search(
            r"\(median absolute error\): ce [\d.]+ and emd [\d.]+\. At least half of the outputs of smmd held no number\.", page
        )
        make_run(tmp_path, "mine", ("absolute_error",), CASES["no number at all"], **settings)
        page, shown = everything_said(folder)
        assert "(median absolute error): none. At least half of the outputs of ce, emd and smmd held no number." in page
        assert "Most outputs on" in shown

    def test_of_several_seeds_one_is_enough(self, tmp_path: Path):
        folder = make_run(tmp_path, "mine", ("absolute_error",), CASES["no number of a seed"], seeds=2, decided=False)
        page, _ = everything_said(folder)
        assert "At least half of the outputs of ce, emd and smmd held no number with some seed." in page

    def test_a_change_from_no_number_has_no_share(self, tmp_path: Path):
        folder = make_run(tmp_path, "mine", ("relative_error",), CASES["no number of greedy answers"], fallback=False)
        page, _ = everything_said(folder)
        assert re.search(r"changes the mean relative error, in range: ce from no number to [\d.]+ %, emd from", page)

    def test_an_answer_with_an_infinite_error_is_not_called_missing(self, tmp_path: Path):
        """The error relative to a gold answer of 0 is infinite, whatever the answer."""

        def case(label: str, seed: int, rule: str, i: int) -> Outcome:
            return "number" if label == "ce" else "none" if label == "emd" else "beyond"

        folder = make_run(tmp_path, "mine", ("relative_error",), case, decided=False)
        setup = setup_of(folder)
        found = differing(setup, headline_of(setup))
        told = {(answer.label, answer.score) for example in found.examples for answer in example.answers if answer.label != "ce"}
        assert told == {("emd", "no number"), ("smmd", "∞")}


class TestTables:
    def test_a_loss_without_numbers_stays_among_the_decisions(self, tmp_path: Path):
        folder = make_run(tmp_path, "mine", ("relative_error",), CASES["no number of a loss"], fallback=False)
        _, shown = everything_said(folder)
        heading = "mine (tiny), in range: mean relative error by decision, change from greedy and p"
        (row,) = re.findall(r"│ smmd .*", shown.split(heading)[1].split("by decision")[0])
        assert row.count("no number") == 3

    def test_the_mean_of_a_decision_with_all_its_numbers_is_finite(self, tmp_path: Path):
        """Greedy answers have none, so no example has a finite score under every decision."""
        folder = make_run(tmp_path, "mine", ("relative_error",), CASES["no number of greedy answers"], fallback=False)
        setup = setup_of(folder)
        found = decisions_of(setup)
        greedy, median = (found.cell("ce", "interpolate", found.measures[0], rule) for rule in (GREEDY, "median"))
        assert (greedy.interval.estimate, greedy.mean, median.comparison) == (math.inf, math.inf, None)
        expected = setup.values("ce", "interpolate", "relative_error", decision="median").mean(1)
        expected = median_of(expected)  # over seeds
        assert (median.interval.estimate, median.left_out) == (pytest.approx(expected), 0)

    def test_a_loss_may_lack_the_last_decision(self, tmp_path: Path):
        folder = make_run(tmp_path, "mine", ("absolute_error",), CASES["no number of a seed"])
        rewrite(folder, lambda label, row: row["decisions"].pop("mean"), "smmd-*")
        everything_said(folder)

    def test_the_interval_of_one_example_has_no_ends(self, tmp_path: Path):
        folder = make_run(tmp_path, "mine", ("absolute_error",), CASES["no number of a loss"], seeds=1, examples=1, decided=False)
        ends = {(row["loss"], row["low"], row["high"]) for row in _result(write_report(folder), []).table}
        assert ends == {(label, -math.inf, math.inf) for label in LABELS}


class TestFigures:
    def test_a_validation_score_of_a_seed_without_numbers_is_not_left_out_of_the_mean(self, tmp_path: Path):
        folder = make_run(tmp_path, "mine", ("absolute_error",), CASES["no number of a seed"], decided=False)
        data = learning_curves(setup_of(folder), {}).data
        assert {row["mean"] for row in data.where(curve="validation/absolute_error")} == {math.inf}
        assert all(math.isfinite(row["mean"]) for row in data.where(curve="cross-entropy"))

    def test_an_interval_without_end_goes_to_the_end_of_the_axis(self):
        axes = Figure().subplots()
        axes.set_xlim(0, 10)
        draw_spans([Span(axes, 1.0, 2.0, math.inf, {}), Span(axes, 2.0, -math.inf, math.inf, {}), Span(axes, 3.0, 4.0, 50.0, {})])
        found = {float(line.get_ydata()[0]): list(line.get_xdata()) for line in axes.lines}
        assert found == {1.0: [2.0, 10.0], 2.0: [0.0, 10.0], 3.0: [4.0, 50.0]}
        assert axes.get_xlim() == (0, 10)
