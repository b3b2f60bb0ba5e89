"""Rules for everything that the report and the terminal say, over simulated records."""

from __future__ import annotations

import io
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from tests.lab.report.test_report_levels import EXAMPLES, SPLIT, baselines, setup_of

from numerate.cli import compare as terminal
from numerate.lab.comparison.compare import _result
from numerate.lab.evaluation.decisions import GREEDY
from numerate.lab.files.records import write_json
from numerate.lab.report import chapters as made
from numerate.lab.report import levels as read_levels
from numerate.lab.report.data import to_data
from numerate.lab.report.page import to_html
from numerate.lab.report.records import ExperimentRecord
from numerate.lab.stats import LEAST_SEEDS

CONSTANT = 10.0
SIZES = {  # typical error of each loss and decision, where the constant is off by about 9.5
    "all better": {("ce", GREEDY): 8, ("ce", "median"): 5, ("soft", GREEDY): 4, ("soft", "median"): 2},
    "some better": {("ce", GREEDY): 30, ("ce", "median"): 25, ("soft", GREEDY): 20, ("soft", "median"): 3},
    "none better": {("ce", GREEDY): 30, ("ce", "median"): 25, ("soft", GREEDY): 14, ("soft", "median"): 12},
    "as good as a constant": {("ce", GREEDY): 30, ("ce", "median"): 25, ("soft", GREEDY): 14, ("soft", "median"): 9.4},
    "the recommended one lost": {("ce", GREEDY): 3, ("ce", "median"): 3, ("soft", GREEDY): 5, ("soft", "median"): 9},
    "identical": dict.fromkeys([("ce", GREEDY), ("ce", "median"), ("soft", GREEDY), ("soft", "median")], 3),
}
HARMS = {
    "none": (),
    "decision of one seed explodes": (("soft", "median"), 1, 3e4),
    "decision explodes": (("soft", "median"), None, 3e4),
    "greedy answers explode": (("ce", GREEDY), None, 3e7),
    "no numbers": (("soft", GREEDY), None, math.nan),
    "no numbers of the recommended one": (("soft", "median"), None, math.nan),
}
CASES = [
    *product(SIZES, HARMS, [5]),
    *product(["all better", "none better"], ["none", "decision of one seed explodes"], [1, 2, 3]),
]


@dataclass(frozen=True)
class Said:
    """What was said about a comparison, by programs, on the page and in the terminal."""

    data: dict[str, Any]
    sentences: list[str]
    page: str
    terminal: str

    def rows(self, key: str, name: str = "label") -> dict[tuple[str, str], dict[str, Any]]:
        return {(row[name], row["decision"]): row for row in self.data[key] if row["decision"]}


def errors_of(pair: tuple[str, str], size: float, harm: tuple[Any, ...]) -> Any:
    """Errors of about a size, other ones with every seed; the first answers harmed, or with NaN most of them."""

    def errors(seed: int) -> Any:
        off = size * (1 + 0.3 * np.random.default_rng([seed, 7]).uniform(-1, 1, EXAMPLES))
        if harm and harm[0] == pair and harm[1] in (None, seed):
            off[: 30 if math.isnan(harm[2]) else 2] = harm[2]
        return off

    return errors


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> Any:
    kept: dict[tuple[str, str, int], Said] = {}

    def of(sizes: str, harm: str, seeds: int) -> Said:
        if (sizes, harm, seeds) not in kept:
            errors = {pair: errors_of(pair, size, HARMS[harm]) for pair, size in SIZES[sizes].items()}
            kept[sizes, harm, seeds] = report(errors, seeds, tmp_path_factory.mktemp("said"))
        return kept[sizes, harm, seeds]

    return of


def report(errors: Mapping[tuple[str, str], Any], seeds: int, folder: Path) -> Said:
    setup = setup_of(errors, seeds=seeds, fallback=9.5)
    runs = [run for cells in setup.cells.values() for run in cells.values()]
    record = ExperimentRecord(folder, "flats", "", "", "ce", {}, {}, runs, [])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(made, "_draw", lambda *_: ({}, []))
        patch.setattr(read_levels, "kept_baselines", lambda *_: baselines(constant=CONSTANT, boosting=5.0, seeds=seeds))
        contents = made.chapters(record, [setup])
    write_json(folder / "report.json", to_data(record, contents))
    data = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    console = Console(file=io.StringIO(), width=250, highlight=False)
    result = _result(folder / "report.html", [])
    terminal._show(console, result.table)
    terminal._show_decisions(console, data["decisions"])
    terminal.show_levels(console, data["levels"], data["level_notes"])
    console.print(result.answer)
    written = console.file.getvalue()  # type: ignore[attr-defined]
    return Said(data, data["answers"][0]["sentences"], to_html(record, contents), written)


def close(one: float | None, other: float | None) -> bool:
    """Whether two figures are the same; None is infinite."""
    return one == other or (one is not None and other is not None and math.isclose(one, other))


@pytest.mark.parametrize(("sizes", "harm", "seeds"), CASES)
def test_no_verdict_where_no_model_beats_a_constant(said: Any, sizes: str, harm: str, seeds: int):
    found = said(sizes, harm, seeds)
    said_so = any("No model is significantly better" in text or "All models are worse" in text for text in found.sentences)
    if any(row["constant_verdict"] == "better" for row in found.data["levels"]):
        assert not said_so
    elif sizes in ("none better", "as good as a constant"):
        assert said_so
    if not said_so:
        return
    assert found.data["answers"][0]["verdict"] == "untested"
    assert {row["better"] for row in found.data["scores"]} == {None}
    assert {row[name] for row in found.data["decisions"] for name in ("better", "helps")} == {None}
    assert {row["agreement"] for row in found.data["recommendations"]} == {"untested"}
    told = " ".join(found.sentences).replace("significantly better than a constant", "")
    assert not re.search(r"significant|\bbetter|recommend", told)
    assert not re.search(r"significant|▲|▼|recommend", found.terminal)
    shown = found.page[found.page.index("<main>") : found.page.index('id="reading"')]
    other, _, rest = re.split(r'(<section class="levels">.*?</section>)', shown, maxsplit=1, flags=re.DOTALL)
    assert not re.search(r'class="(good|bad)"|title="(better|worse)"', other + rest)
    assert "not significant" not in shown
    if seeds >= LEAST_SEEDS:
        assert found.sentences[0].startswith("There is no verdict on losses on ")


@pytest.mark.parametrize(("sizes", "harm", "seeds"), [case for case in CASES if case[2] < LEAST_SEEDS])
def test_few_seeds_have_no_verdict(said: Any, sizes: str, harm: str, seeds: int):
    found = said(sizes, harm, seeds)
    assert "significant" not in " ".join(found.sentences) + found.terminal
    assert {row["agreement"] for row in found.data["recommendations"]} == {"untested"}


@pytest.mark.parametrize(("sizes", "harm", "seeds"), CASES)
def test_no_agreement_after_a_loss(said: Any, sizes: str, harm: str, seeds: int):
    found = said(sizes, harm, seeds)
    (check,) = found.data["recommendations"]
    told = " ".join(found.sentences)
    assert ("agrees" in told) == (check["agreement"] == "agrees")
    if check["agreement"] != "agrees":
        return
    levels = found.rows("levels", "name")
    ours = levels["soft", "median"]
    for other in (levels["ce", GREEDY], levels["soft", GREEDY]):
        assert ours["mae"] <= other["mae"]
        assert ours["mae_high"] <= other["mae_high"] or ours["note"] != read_levels.FEW
    assert not re.search(r"soft from [^()]* \(\+", told)


@pytest.mark.parametrize(("sizes", "harm", "seeds"), CASES)
def test_a_figure_is_the_same_everywhere(said: Any, sizes: str, harm: str, seeds: int):
    found = said(sizes, harm, seeds)
    levels = found.rows("levels", "name")
    scores = {
        (row["label"], row["decision"]): row
        for row in found.data["scores"]
        if row["measure"] == "relative_error" and row["summary"] == "median"
    }
    for row in found.data["decisions"]:
        pair = row["label"], row["decision"]
        if row["measure"] == "absolute_error":
            assert close(row["mean"], levels[pair]["mae"])
        if row["measure"] == "relative_error":
            assert close(row["median"], levels[pair]["median_relative_error"])
            assert close(row["median"], scores[pair]["value"])
        assert levels[pair]["coverage"] is None or close(row["coverage"], levels[pair]["coverage"])
    told = " ".join(found.sentences)
    shown = {pair: row["shown"]["MAE"] for pair, row in levels.items()}
    if "changes the mean absolute error" in told:
        changes = re.findall(r"(ce|soft) from (\S+) to (\S+)", told)
        assert changes == [(label, shown[label, GREEDY], shown[label, "median"]) for label in ("ce", "soft")]
    for title, mae in re.findall(r"((?:ce|soft) (?:with greedy answers|decided by median)) \(MAE ([\d,.e+]+)\)", told):
        label, decision = title.split()[0], "median" if "median" in title else GREEDY
        assert mae == shown[label, decision]


@pytest.mark.parametrize(("sizes", "harm", "seeds"), CASES)
def test_explosions_are_told(said: Any, sizes: str, harm: str, seeds: int):
    found = said(sizes, harm, seeds)
    told = [text for text in found.sentences if text.startswith("Warning: a few very large errors dominate")]
    if "explode" not in harm or (seeds == 1 and "one seed" in harm):  # seed 1 explodes
        assert told == []
        return
    (label, decision), _, _ = HARMS[harm]
    (text,) = told
    row = found.rows("levels", "name")[label, decision]
    assert f"{label} {'with greedy answers' if decision == GREEDY else 'decided by median'} ({row['shown']['MAE']}" in text
    assert "changes the median absolute error" in " ".join(found.sentences)


@pytest.mark.parametrize(("sizes", "harm", "seeds"), CASES)
def test_the_summary_is_short_and_at_one_with_the_rest(said: Any, sizes: str, harm: str, seeds: int):
    found = said(sizes, harm, seeds)
    (told,) = found.data["summaries"]
    assert found.data["answer"] == told["sentence"]
    assert len(told["sentence"]) <= 110
    assert len(told["figures"]) <= 3
    assert told["sentence"].replace(" %", "\u00a0%") in found.page
    assert told["sentence"] in found.terminal
    lost = {row["decision"] for row in found.data["levels"] if row["note"] == "most outputs held no number"}
    assert told["verdict"] != "better" or told["after"]["change"] < 0
    assert told["verdict"] != "better" or (told["after"]["label"], told["after"]["decision"]) not in {("soft", d) for d in lost}
    if found.data["answers"][0]["verdict"] == "untested":
        assert told["verdict"] == "untested"
        assert not any(figure["better"] is not None for figure in told["figures"])
    before = next(row for row in found.data["levels"] if (row["name"], row["decision"]) == ("ce", GREEDY))
    key = {"absolute_error": "mae", "relative_error": "median_relative_error"}[told["measure"]]
    assert told["before"]["value"] == pytest.approx(before[key])


def test_the_records_are_of_every_kind(said: Any):
    """Otherwise the rules above say nothing. Those of every size, without harm, are enough."""
    cases = [said(*case).data for case in CASES if case[1:] == ("none", 5)]
    assert {data["answers"][0]["verdict"] for data in cases} == {"better", "untested", "worse", "noise"}
    assert {data["recommendations"][0]["agreement"] for data in cases} == {"agrees", "contradicts", "open", "untested"}


def test_a_figure_of_means_is_that_of_a_typical_run(said: Any):
    """By hand, from the errors."""
    errors = [errors_of(("soft", "median"), 2, ())(seed) for seed in range(5)]
    found = said("all better", "none", 5)
    row = found.rows("levels", "name")["soft", "median"]
    assert row["mae"] == pytest.approx(median(float(np.abs(own).mean()) for own in errors))
    golds = np.arange(100.0, 100 + EXAMPLES)
    assert row["median_relative_error"] == pytest.approx(fmean(float(np.median(np.abs(own) / golds)) for own in errors))
    assert found.data["levels"][0]["split"] == SPLIT
