"""Levels of a table: figures by hand, the verdict against a constant and boosting both ways, and where they are shown."""

from __future__ import annotations

import csv
import html
import io
import json
import math
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from tests.lab.report.simulated import headline_of, reconfigure, setup_in_memory, write_cell, write_experiment

from numerate.answers.metrics import METRICS
from numerate.cli.compare import show_levels
from numerate.distribution.exact import Floats
from numerate.lab.baselines import KeptBaselines
from numerate.lab.data import Regression
from numerate.lab.evaluation.decisions import GREEDY
from numerate.lab.report import write_report
from numerate.lab.report.analysis import Setup, costs, scores
from numerate.lab.report.answer import answer
from numerate.lab.report.decisions import decisions
from numerate.lab.report.levels import FEW, FIGURES, MOST_MISSING, Level, Levels, found_levels, levels_rows
from numerate.lab.report.records import RunRecord

REMEDY = "train longer or use a pre-trained model"
EXAMPLES = 40
GOLDS = np.arange(100.0, 100 + EXAMPLES)
SPLIT = "interpolate"
MEASURES = ("relative_error", "absolute_error", "parsed")
Said = Mapping[tuple[str, str], Any]  # (loss, decision) -> error [E], one for all, or a function of the seed


def measures(errors: Floats) -> dict[str, Floats]:
    """Return what records have for errors; NaN is an answer without a number."""
    missing = np.isnan(errors)
    off = np.where(missing, np.inf, np.abs(errors))
    return {"relative_error": off / GOLDS, "absolute_error": off, "parsed": 1.0 - missing}


def errors_of(said: Any, seed: int) -> Floats:
    found = said(seed) if callable(said) else said
    return np.broadcast_to(np.asarray(found, float), EXAMPLES)


def setup_of(
    said: Said,
    *,
    seeds: int = 4,
    model: str = "tiny",
    fallback: float | None = 20.0,
    covers: float = 0.75,
    headline: str = MEASURES[0],
) -> Setup:
    return setup_in_memory(
        [*said],
        lambda label, rule, seed, _: measures(errors_of(said[label, rule], seed)),
        [f"{gold:g}" for gold in GOLDS],
        headline=headline,
        seeds=seeds,
        model=model,
        config=lambda label: {"data": "flats.csv"},
        fallback={} if fallback is None else {name: np.full(EXAMPLES, fallback) for name in MEASURES},
        covers=(np.arange(EXAMPLES) < covers * EXAMPLES).astype(float),
    )


def baselines(*, seeds: int = 4, notes: tuple[str, ...] = (), **off: float) -> KeptBaselines:
    """Answers that are off by this much, a little less with even examples; the sign alternates."""
    signs = np.where(np.arange(EXAMPLES) % 2, 1, -0.9)
    return KeptBaselines({name: {seed: {SPLIT: GOLDS + by * signs} for seed in range(seeds)} for name, by in off.items()}, notes)


def levels_of(said: Said, kept: KeptBaselines | None = None, **options: Any) -> Levels:
    kept = baselines(constant=10.0, boosting=5.0, seeds=options.get("seeds", 4)) if kept is None else kept
    return found_levels(setup_of(said, **options), {SPLIT: GOLDS}, kept)


def replace_answers(cell: RunRecord, answers: tuple[str | None, ...]) -> RunRecord:
    return replace(cell, splits={SPLIT: replace(cell.splits[SPLIT], answers=answers)})


def row(found: Levels, name: str, decision: str = "") -> Level:
    return next(row for row in found.rows if (row.name, row.decision) == (name, decision))


def noisy(size: float) -> Any:
    """Errors of about this size, other ones with every seed."""
    return lambda seed: size * (1 + 0.2 * np.random.default_rng(seed).uniform(-1, 1, EXAMPLES))


class TestFigures:
    def test_by_hand(self):
        """Errors of 3 and 4 in turn: the MAE is 3.5, the RMSE the root of 12.5."""
        found = levels_of({("ce", GREEDY): np.where(np.arange(EXAMPLES) % 2, 3.0, -4.0), ("ce", "median"): 0.0})
        greedy, median = row(found, "ce", GREEDY), row(found, "ce", "median")
        variance = (EXAMPLES**2 - 1) / 12  # of integers in a row
        assert greedy.mae == 3.5
        assert greedy.figures["rmse"].typical == pytest.approx(math.sqrt(12.5))
        assert greedy.figures["r2"].typical == pytest.approx(1 - 12.5 / variance)
        assert median.figures["r2"].typical == 1
        assert median.figures["coverage"].typical == 0.75
        assert "coverage" not in greedy.figures
        assert greedy.figures["median_relative_error"].typical == pytest.approx(np.median(np.tile([4, 3], 20) / GOLDS))

    def test_a_typical_run_is_the_median_of_the_runs(self):
        found = row(
            levels_of({("ce", GREEDY): lambda seed: [1.0, 2, 50, 3, 1e7][seed]}, baselines(seeds=5), seeds=5), "ce", GREEDY
        )
        assert [found.shown(name) for name in ("mae", "rmse")] == ["3.00", "3.00"]
        assert [found.spread(name) for name in ("mae", "rmse")] == ["1.00 to 1.00e+07"] * 2
        assert found.spread("r2").startswith("−")

    def test_derailed_answers_are_shown_and_readable(self):
        derailed = np.where(np.arange(EXAMPLES) == 7, 1e8, 1.0)
        found = levels_of({("ce", GREEDY): derailed, ("ce", "median"): 1.0})
        mine = row(found, "ce", GREEDY)
        assert (mine.shown("mae"), mine.shown("rmse"), mine.shown("r2")) == ("2.50e+06", "1.58e+07", "−1.88e+12")
        assert mine.shown("median_relative_error") == row(found, "ce", "median").shown("median_relative_error")
        assert mine.note == FEW  # by rows it is closer than the constant
        assert mine.gaps["constant"].verdict is None

    def test_missing_answers_count_as_the_fallback_in_means(self):
        few = np.where(np.arange(EXAMPLES) < 4, np.nan, 1.0)
        mine = row(levels_of({("ce", GREEDY): few}, fallback=21.0), "ce", GREEDY)
        assert mine.mae == pytest.approx((4 * 21 + 36) / 40)
        assert mine.no_number == pytest.approx(0.1)
        assert mine.note != MOST_MISSING
        without = row(levels_of({("ce", GREEDY): few}, fallback=None), "ce", GREEDY)
        assert (without.shown("mae"), without.shown("rmse"), without.shown("r2")) == ("∞", "∞", "−∞")

    def test_correlations(self):
        """Those of the answers themselves; a missing one counts as the median label."""
        setup = setup_of({("ce", GREEDY): 1.0})
        answers = [("7" if at == 3 else None if at == 5 else f"{1000 - gold:g}") for at, gold in enumerate(GOLDS)]
        cells = {seed: replace_answers(cell, tuple(answers)) for seed, cell in setup.cells["ce"].items()}
        found = row(found_levels(replace(setup, cells={"ce": cells}), {SPLIT: GOLDS}, baselines(constant=0.0)), "ce", GREEDY)
        numbers = [np.median(GOLDS) if text is None else float(text) for text in answers]
        assert found.figures["pearson"].typical == pytest.approx(scipy.stats.pearsonr(GOLDS, numbers).statistic)
        assert found.figures["spearman"].typical == pytest.approx(scipy.stats.spearmanr(GOLDS, numbers).statistic)
        assert row(levels_of({("ce", GREEDY): 1.0}, baselines(boosting=0.0)), "gradient boosting").shown("pearson") == "1.000"

    def test_equal_gold_numbers_have_no_r2(self):
        setup = setup_of({("ce", GREEDY): 1.0})
        found = found_levels(setup, {SPLIT: np.full(EXAMPLES, 5.0)}, baselines())
        assert "r2" not in row(found, "ce", GREEDY).figures
        assert "R²" not in dict(found.columns()).values()

    @given(st.lists(st.floats(-1e3, 1e3), min_size=EXAMPLES, max_size=EXAMPLES))
    @settings(max_examples=30, deadline=None)
    def test_baselines_and_losses_have_the_same_figures(self, off):
        """The same answers, once as records of a loss and once as those of a baseline."""
        errors = np.array(off)
        same = KeptBaselines({"constant": {seed: {SPLIT: GOLDS + errors} for seed in range(2)}}, ())
        found = levels_of({("ce", GREEDY): (GOLDS + errors) - GOLDS}, same, seeds=2)
        mine, theirs = row(found, "ce", GREEDY), row(found, "constant")
        for name in ("mae", "rmse", "r2", "median_relative_error"):
            assert mine.figures[name].typical == pytest.approx(theirs.figures[name].typical)
        assert mine.gaps["constant"].verdict is None


class TestConstant:
    def test_worse(self):
        found = levels_of({("ce", GREEDY): noisy(30), ("ce", "median"): noisy(2)})
        assert row(found, "ce", GREEDY).note == f"worse than a constant: {REMEDY}"
        assert row(found, "ce", "median").note == ""
        assert row(found, "ce", "median").gaps["constant"].verdict == "better"
        told = f"ce with greedy answers (MAE {row(found, 'ce', GREEDY).shown('mae')}) is worse than a constant: {REMEDY}. "
        assert found.sentences[0] == told + "The constant, the median of the training rows, has an MAE of 9.50."

    def test_all_worse(self):
        said = {("ce", GREEDY): noisy(30), ("smmd", GREEDY): noisy(25)}
        for model, remedy in (("tiny", REMEDY), ("smollm2", "train longer")):  # one is pre-trained
            found = levels_of(said, model=model)
            best = row(found, "smmd", GREEDY)
            assert found.sentences[0].startswith(f"All models are worse than a constant: {remedy}.")
            assert found.sentences[0].endswith(f"The best, smmd with greedy answers, has {best.shown('mae')}.")

    @pytest.mark.parametrize(
        ("said", "learned"),
        [
            ({("ce", GREEDY): noisy(30), ("soft", GREEDY): noisy(25)}, False),
            ({("ce", GREEDY): noisy(30), ("soft", GREEDY): noisy(9)}, True),
            ({("ce", GREEDY): np.full(EXAMPLES, np.nan)}, False),
            ({("ce", GREEDY): lambda seed: np.where(np.arange(EXAMPLES) == seed, 1e7, noisy(2)(seed))}, True),
        ],
        ids=["worse", "one is better", "no number", "better but for a derailed answer"],
    )
    def test_whether_anything_was_learned(self, said, learned):
        assert levels_of(said, baselines(constant=10.0)).learned is learned
        assert levels_of(said, baselines()).learned

    def test_better(self):
        found = levels_of({("ce", GREEDY): noisy(2), ("ce", "median"): noisy(1)})
        assert not any("a constant" in text for text in found.sentences)
        assert {mine.note for mine in found.rows} == {""}

    @pytest.mark.parametrize("seeds", [1, 2, 4])
    def test_neither(self, seeds):
        """As good as the constant in the mean, above it in half of the rows."""
        found = levels_of({("ce", GREEDY): lambda seed: noisy(9.5)(seed + 7)}, seeds=seeds)
        assert row(found, "ce", GREEDY).gaps["constant"].verdict is None
        assert found.sentences[0].startswith(f"No model is significantly better than a constant: {REMEDY}.")

    @pytest.mark.parametrize("seeds", [1, 2, 3])
    @pytest.mark.parametrize(("size", "verdict"), [(30, "worse"), (2, "better")])
    def test_few_seeds(self, seeds, size, verdict):
        found = levels_of({("ce", GREEDY): noisy(size)}, seeds=seeds)
        assert row(found, "ce", GREEDY).gaps["constant"].verdict == verdict

    def test_two_runs_that_disagree(self):
        found = levels_of({("ce", GREEDY): lambda seed: noisy([2, 90][seed])(seed)}, seeds=2)
        assert row(found, "ce", GREEDY).gaps["constant"].verdict is None

    def test_most_outputs_without_a_number(self):
        """Their errors are those of a constant: what is said is that there are no numbers, not a percentage."""
        silent = np.where(np.arange(EXAMPLES) < 30, np.nan, 1.0)
        found = levels_of({("ce", GREEDY): silent, ("ce", "median"): noisy(2)})
        mine = row(found, "ce", GREEDY)
        assert (mine.shown("median_relative_error"), mine.note) == ("no number", MOST_MISSING)
        assert found.sentences[0].startswith(f"Of ce with greedy answers, {MOST_MISSING};")
        assert not any("worse than a constant" in text for text in found.sentences)

    def test_an_infinite_relative_error_of_answers_with_numbers(self):
        """Where most gold numbers are 0, it does not say that there was no number."""
        setup = setup_of({("ce", GREEDY): 1.0})
        for cell in setup.cells["ce"].values():
            cell.splits[SPLIT].measures["relative_error"][:30] = np.inf
        found = found_levels(setup, {SPLIT: np.r_[np.zeros(30), np.ones(10)]}, baselines(seeds=4))
        assert {one.shown("median_relative_error") for one in found.rows} == {"labels are 0"}  # of the constant as well
        assert row(found, "ce", GREEDY).note != MOST_MISSING
        assert "At least half of the labels are 0, where an answer has no relative error." in found.notes
        assert "labels are 0" not in str([levels_rows(setup, levels_of({("ce", GREEDY): 1.0}))])


@pytest.mark.parametrize("zeros", [0, EXAMPLES // 2])
def test_the_tables_say_that_labels_are_0(zeros):
    """Rather than that there was no number, with every decision and for losses that are judged by another measure too."""
    setup = setup_of({("ce", GREEDY): 1.0, ("ce", "median"): 1.0}, fallback=math.inf)
    for cell in setup.cells["ce"].values():
        part = cell.splits[SPLIT]
        object.__setattr__(part, "golds", (*["0.0"] * zeros, *part.golds[zeros:]))
        for own in (part.measures, part.by("median")):
            own["relative_error"][: EXAMPLES // 2 + 1] = np.inf
    mine = [score for score in scores(setup) if score.measure.name == "relative_error"]
    assert {score.decision for score in mine} == {GREEDY, "median"}
    said = {score.measure.value(score.interval.estimate) for score in mine}
    said |= {score.measure.value(score.median) for score in decisions(setup).scores if score.measure.name == "relative_error"}
    assert said == {"labels are 0" if zeros else "no number"}


@pytest.mark.parametrize("numbers", [True, False])
def test_an_infinite_headline_is_explained(numbers):
    """Where the gold numbers are 0 there were numbers; else most outputs held none."""
    setup = setup_of({("ce", GREEDY): 1.0 if numbers else np.nan, ("smmd", GREEDY): 1.0}, seeds=1)
    setup.cells["ce"][0].splits[SPLIT].measures["relative_error"][:] = np.inf
    (said,) = answer(setup, headline_of(setup), costs(setup), "flats").more
    assert ("That of ce is infinite: where the gold number is 0, any error is." in said) is numbers
    assert ("At least half of the outputs of ce held no number." in said) is not numbers


class TestBestBaseline:
    def test_better_than_the_models(self):
        found = levels_of({("ce", GREEDY): noisy(9), ("ce", "median"): noisy(8)})
        best, other = row(found, "ce", "median"), row(found, "gradient boosting")
        less = 100 * (1 - other.mae / best.mae)
        assert found.sentences[-1] == (
            f"The best baseline, gradient boosting on the same rows, has an MAE of {other.shown('mae')}, {less:.1f} % lower than "
            f"that of the best model here (ce decided by median, {best.shown('mae')}; p < 0.001)."
        )

    def test_worse_than_the_best_model(self):
        found = levels_of({("ce", GREEDY): noisy(2)})
        best, other = row(found, "ce", GREEDY), row(found, "gradient boosting")
        more = 100 * (other.mae / best.mae - 1)
        assert f"an MAE of {other.shown('mae')}, {more:.1f} % higher than that of the best model here" in found.sentences[-1]

    def test_neither(self):
        found = levels_of({("ce", GREEDY): lambda seed: noisy(4.75)(seed + 7)})
        assert ", not significantly different from the best model here" in found.sentences[-1]

    @pytest.mark.parametrize(("boosting", "named"), [(10.5, "the constant"), (9.0, "gradient boosting")])
    def test_is_named(self, boosting: float, named: str):
        """Of free text, boosting is no better than the constant, and is then not what models are compared with."""
        found = levels_of({("ce", GREEDY): noisy(2)}, baselines(constant=10.0, boosting=boosting))
        assert found.sentences[-1].startswith(f"The best baseline, {named} on the same rows, has an MAE of ")

    def test_without(self):
        note = "Without gradient boosting: boosting needs the package scikit-learn: run pip install scikit-learn."
        found = levels_of({("ce", GREEDY): noisy(2)}, baselines(constant=10.0, notes=(note,)))
        assert found.notes == (note,)
        assert not any("boosting" in text for text in found.sentences)


def comparison(folder: Path, off: Mapping[tuple[str, str], float]) -> Path:
    """Write a table and made-up records of a comparison on it: every answer is off by this much."""
    data = folder / "flats.csv"
    lines = [f"{area},{town},{area * (1 + len(town))}" for area in range(20, 95) for town in ("Ulm", "Bern")]
    data.write_text("\n".join(["area,town,price", *lines]), encoding="utf-8")
    task = Regression.from_files(data, target="price")
    asked = task.examples("interpolate", min(task.count("interpolate") or 0, 20), seed=0)
    run = folder / "run"
    write_experiment(run, name="flats")
    for label in dict.fromkeys(label for label, _ in off):
        rules = {rule: by for (name, rule), by in off.items() if name == label}
        for seed in range(3):
            cell = run / "cells" / f"{label}-{seed}"
            config = {"model": "tiny", "task": "regression", "task_settings": {"target": "price"}, "data": str(data)}
            config |= {"loss": label, "label": label, "seed": seed, "eval_examples": 20, "train_examples": 50}
            config |= {"eval_splits": ["interpolate", "extrapolate"]}
            write_cell(cell, config, [record(i, example, rules, seed) for i, example in enumerate(asked)], "relative_error")
    return run


def record(index: int, example: Any, rules: Mapping[str, float], seed: int) -> dict[str, Any]:
    def scored(by: float) -> dict[str, Any]:
        answer = str(round(float(example.answer) + by * (1 + 0.1 * ((index + seed) % 3)), 2))
        return {"answer": answer, "measures": {name: METRICS[name](example.answer, answer) for name in MEASURES}}

    greedy = scored(rules[GREEDY])
    row = {"split": SPLIT, "index": index, "prompt": example.prompt, "gold": example.answer, "output": greedy["answer"], **greedy}
    others = {rule: scored(by) for rule, by in rules.items() if rule != GREEDY}
    if others:
        row |= {"decisions": others, "distribution": None, "truth": example.answer, "median": None, "interval": None}
        row |= {"level": 0.9, "covers": index % 2 == 0, "crps": 1.0, "expected": {}, "seconds": {"greedy": 0.1, "search": 0.2}}
    return row


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    off = {("ce", GREEDY): 500.0, ("ce", "median"): 5.0, ("soft", GREEDY): 4.0, ("soft", "median"): 2.0}
    return write_report(comparison(tmp_path_factory.mktemp("levels"), off))


class TestReport:
    def test_page(self, page: Path):
        text = html.unescape(page.read_text(encoding="utf-8"))
        assert "How good are these models?" in text
        assert f"worse than a constant: {REMEDY}" in text
        for heading in ("MAE", "RMSE", "R²", "Median relative error", "Gold in 90 % interval"):
            assert f'<th scope="col">{heading}</th>' in text

    def test_json(self, page: Path):
        data = json.loads(page.with_suffix(".json").read_text(encoding="utf-8"))
        rows = {(one["name"], one["decision"]): one for one in data["levels"]}
        assert [*rows][-2][0] == "constant"
        greedy = rows["ce", "greedy"]
        assert greedy["mae"] == pytest.approx(550, rel=0.01)
        assert (greedy["constant_verdict"], greedy["note"]) == ("worse", f"worse than a constant: {REMEDY}")
        assert rows["soft", "median"]["coverage"] == 0.5
        assert rows["soft", "median"]["shown"]["Gold in 90 % interval"] == "50.0 %"
        assert any(f"is worse than a constant: {REMEDY}" in text for text in data["answers"][0]["sentences"])

    def test_csv(self, page: Path):
        rows = list(csv.DictReader(io.StringIO(page.with_suffix(".csv").read_text(encoding="utf-8"))))
        mine = [row for row in rows if row["summary"] == "typical run"]
        assert {(row["label"], row["decision"]) for row in mine} >= {("ce", "greedy"), ("soft", "median"), ("constant", "")}
        assert {row["measure"] for row in mine} == {*FIGURES}
        assert {row["headline"] for row in mine} == {"false"}

    def test_terminal(self, page: Path):
        data = json.loads(page.with_suffix(".json").read_text(encoding="utf-8"))
        console = Console(file=io.StringIO(), width=160, highlight=False)
        show_levels(console, data["levels"], ["Without gradient boosting: no."])
        said = console.file.getvalue()  # type: ignore[attr-defined]
        for text in (
            "constant",
            "RMSE",
            "R²",
            "50.0 %",
            f"ce (greedy): worse than a constant: {REMEDY}",
            "Without gradient boosting",
        ):
            assert text in said

    def test_models_that_learned_nothing_say_nothing_about_losses(self, tmp_path: Path):
        off = {("ce", GREEDY): 500.0, ("ce", "median"): 400.0, ("soft", GREEDY): 900.0, ("soft", "median"): 800.0}
        page = write_report(comparison(tmp_path, off))
        data = json.loads(page.with_suffix(".json").read_text(encoding="utf-8"))
        (answer,) = data["answers"]
        lead, *more = answer["sentences"]
        assert lead.startswith("There is no verdict on losses on price in flats.csv")
        assert any("All models are worse than a constant" in text for text in more)
        assert answer["verdict"] == "untested"
        said = " ".join(answer["sentences"]).replace("significantly better than a constant", "")
        assert not re.search("recommends|significantly", said)
        assert data["answer"] == "Every model is worse than a constant on price: train longer or use a pre-trained model."
        assert [one["agreement"] for one in data["recommendations"]] == ["untested"]

    def test_a_report_needs_the_data_once(self, tmp_path: Path):
        run = comparison(tmp_path, {("ce", GREEDY): 5.0})
        first = json.loads(write_report(run).with_suffix(".json").read_text(encoding="utf-8"))
        (tmp_path / "flats.csv").unlink()
        again = json.loads(write_report(run).with_suffix(".json").read_text(encoding="utf-8"))
        assert again["levels"] == first["levels"]
        assert "constant" in [one["name"] for one in again["levels"]]
        assert again["level_notes"] == first["level_notes"]

    def test_without_the_data(self, tmp_path: Path):
        run = comparison(tmp_path, {("ce", GREEDY): 5.0})
        (tmp_path / "flats.csv").unlink()
        page = write_report(run)
        data = json.loads(page.with_suffix(".json").read_text(encoding="utf-8"))
        assert [one["name"] for one in data["levels"]] == ["ce"]
        (note,) = data["level_notes"]
        assert note.startswith("Without constant and gradient boosting: ")
        assert "flats.csv" in note
        assert "flats.csv" in page.read_text(encoding="utf-8")

    def test_other_tasks_have_none(self, tmp_path: Path):
        run = comparison(tmp_path, {("ce", GREEDY): 5.0})
        reconfigure(run, data=None)
        data = json.loads(write_report(run).with_suffix(".json").read_text(encoding="utf-8"))
        assert (data["levels"], data["level_notes"]) == ([], [])
