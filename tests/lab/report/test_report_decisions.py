"""Losses x decisions in the report: differences by hand, files, sentences, and incomplete records."""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tests.lab.report.simulated import rewrite, setup_of, write_cell, write_experiment

from numerate.answers.metrics import METRICS
from numerate.cli.compare import _show, _show_decisions
from numerate.lab import stats
from numerate.lab.comparison.compare import _result
from numerate.lab.report import write_report
from numerate.lab.report.analysis import Setup, scores
from numerate.lab.report.answer import decision_sentence, derailed_sentence
from numerate.lab.report.decisions import Decisions, decisions, fitting_rule
from numerate.lab.report.records import read_run
from numerate.losses import LOSSES

MEASURES = ("relative_error", "exact", "absolute_error")
EXAMPLES = 24

# How far answers are off the gold number 100 + i, by example and seed.
OFF = {
    "greedy": lambda seed, i: 10 + (i + seed) % 3,
    "median": lambda seed, i: 4 + (i + seed) % 3,
    "mean": lambda seed, i: 20,
    "mode": lambda seed, i: (i + seed) % 3,
}


def record(split: str, seed: int, i: int, missing: Sequence[int], rules: Sequence[str]) -> dict[str, Any]:
    gold = 100 + i

    def scores(decision: str) -> dict[str, Any]:
        said = None if i in missing and decision == "greedy" else gold + OFF[decision](seed, i)
        found = {name: METRICS[name](gold, said) for name in MEASURES}
        found["derailed"] = float(decision == "greedy" and i == 0)
        return {name: None if math.isinf(value) else value for name, value in found.items()}

    row: dict[str, Any] = {"split": split, "index": i, "prompt": "?", "gold": str(gold), "output": "1", "answer": "1"}
    row |= {"measures": scores("greedy"), "nll": 1.0, "digits": []}
    if rules:
        row |= {"decisions": {rule: {"answer": "1", "measures": scores(rule)} for rule in rules}}
        row |= {"level": 0.9, "covers": i % 4 != 0, "crps": 3.0, "median": "1", "interval": ["1", "2"]}
        row |= {"distribution": {"values": ["1"], "probabilities": [1.0], "covered": 0.95}}
        row |= {"seconds": {"greedy": 0.002, "search": 0.006 + 0.001 * (i == 0)}}
        row["expected"] = {"absolute_error": {"greedy": 9.0, "decided": 3.0, "cost": 4 + (i + seed) % 3}}
    return row


def make_run(
    folder: Path,
    losses: Sequence[str] = ("ce", "smmd"),
    seeds: Sequence[int] = (0, 1, 2),
    *,
    rules: Mapping[str, Sequence[str]] | None = None,
    missing: Sequence[int] = (),
    splits: Sequence[str] = ("interpolate", "extrapolate"),
    headline: str = "relative_error",
) -> Path:
    """Write a run directory with decisions; ``missing`` are examples without a greedy answer."""
    write_experiment(folder)
    for label in losses:
        for seed in seeds:
            mine = (rules or {}).get(label, ("median", "mean"))
            rows = [record(split, seed, i, missing, mine) for split in splits for i in range(EXAMPLES)]
            write_cell(folder / "cells" / f"{label}-{seed}", {"task": "regression", "loss": label, "seed": seed}, rows, headline)
    return folder


def found_in(folder: Path) -> tuple[Setup, Decisions]:
    setup = setup_of(folder)
    found = decisions(setup)
    assert found is not None
    return setup, found


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def page(run: Path) -> Path:
    return write_report(run)


class TestNumbers:
    def test_differences_are_paired_with_greedy_answers_of_the_same_weights(self, run: Path):
        _, found = found_in(run)
        assert found.decisions == ("greedy", "median", "mean")
        assert [m.name for m in found.measures] == ["absolute_error", "relative_error", "derailed"]
        error = found.measures[0]
        greedy, median, mean = (found.cell("smmd", "interpolate", error, rule) for rule in found.decisions)
        assert (greedy.interval.estimate, median.interval.estimate, mean.interval.estimate) == (11, 5, 20)
        assert greedy.comparison is None
        assert median.comparison.difference.estimate == pytest.approx(-6)
        assert median.change == pytest.approx(-6 / 11)
        assert (median.better, greedy.better) == (True, None)
        assert mean.better is False
        assert (median.seeds, median.examples, median.left_out, median.median) == (3, EXAMPLES, 0, 5)

    def test_p_values_are_corrected_over_losses_and_splits_of_a_rule(self, run: Path):
        _, found = found_in(run)
        mine, base = ([[OFF[rule](seed, i) for i in range(EXAMPLES)] for seed in range(3)] for rule in ("mean", "greedy"))
        plain = stats.compare(mine, base, bounds=(0.0, math.inf)).p_value
        score = found.cell("ce", "interpolate", found.measures[0], "mean")
        assert score.comparison.p_value == pytest.approx(plain)
        assert score.comparison.corrected_p == pytest.approx(min(1, 4 * plain))

    def test_medians_are_those_of_the_first_table(self, tmp_path: Path):
        """A missing answer is infinite in both, and counts as the fallback in the mean beside the median."""

        def change(label: str, row: dict[str, Any]) -> None:
            row["fallback"] = dict.fromkeys(MEASURES, 1.0)
            if row["index"] == 1:
                row["measures"] |= {"absolute_error": 1e9, "relative_error": 1e7}

        rewrite(make_run(tmp_path, missing=(3, 5)), change)
        setup, found = found_in(tmp_path)
        for score in (score for score in scores(setup) if score.measure == setup.headline):
            same = found.cell(score.label, score.split, setup.headline, score.decision)
            assert same is not None
            assert same.interval == score.interval
            assert (same.examples, same.left_out) == (EXAMPLES, 0)
        errors = [1.0 if i in (3, 5) else 1e9 if i == 1 else OFF["greedy"](seed, i) for seed in range(3) for i in range(EXAMPLES)]
        greedy = found.cell("ce", "interpolate", found.measures[0], "greedy")
        assert greedy.mean == pytest.approx(sum(errors) / len(errors))

    def test_examples_without_a_finite_error_are_left_out_of_means(self, tmp_path: Path):
        _, found = found_in(make_run(tmp_path, missing=(3, 5)))
        score = found.cell("ce", "interpolate", found.measures[0], "median")
        assert (score.examples, score.left_out) == (EXAMPLES - 2, 2)
        assert found.left_out(found.measures[0])
        sources = found.cost("ce", "interpolate").sources["absolute_error"]
        assert (sources.examples, sources.left_out) == (3 * (EXAMPLES - 2), 6)

    def test_no_greedy_answer_at_all(self, tmp_path: Path):
        """The other decisions keep their means, over all examples; nothing is compared with greedy answers."""
        _, found = found_in(make_run(tmp_path, missing=range(EXAMPLES)))
        scores = [found.cell("ce", "interpolate", found.measures[0], rule) for rule in found.decisions]
        assert [score.interval.estimate for score in scores if score is not None] == [math.inf, 5, 20]
        assert [score.comparison for score in scores if score is not None] == [None] * 3
        assert "An arrow is an infinite score" in write_report(tmp_path).read_text()

    def test_what_a_distribution_is_worth(self, run: Path):
        _, found = found_in(run)
        cost = found.cost("ce", "extrapolate")
        worth, sources = cost.worth, cost.sources["absolute_error"]
        assert (worth.level, worth.coverage, worth.crps, worth.searched) == (0.9, 0.75, 3.0, pytest.approx(0.95))
        assert (worth.greedy_ms, worth.search_ms, worth.ratio) == pytest.approx((2.0, 6.0, 3.0))
        assert (sources.greedy, sources.decision, sources.spread, sources.surprise) == (11, 6, 3, 2)

    def test_losses_with_other_rules_and_without_any(self, tmp_path: Path):
        _, found = found_in(make_run(tmp_path, ("ce", "smmd", "emd"), rules={"smmd": ("median",), "emd": ()}))
        assert found.labels("interpolate", found.measures[0]) == ["ce", "smmd"]
        assert found.cell("smmd", "interpolate", found.measures[0], "mean") is None
        assert "Losses and decisions" in write_report(tmp_path).read_text()

    def test_most_greedy_answers_hold_no_number(self, tmp_path: Path):
        """One answer is so far off that medians are given, and most have no number: the median is infinite."""

        def change(label: str, row: dict[str, Any]) -> None:
            if row["index"] == EXAMPLES - 1:
                row["decisions"]["median"]["measures"]["absolute_error"] = 1e9

        rewrite(make_run(tmp_path, missing=range(EXAMPLES * 3 // 4)), change)
        _, found = found_in(tmp_path)
        scores = {score.decision: score.interval.estimate for score in found.scores if score.measure == found.measures[0]}
        assert math.isinf(scores["greedy"])
        assert scores["median"] < 100
        page = write_report(tmp_path).read_text()
        assert "Losses and decisions" in page
        assert "An arrow is an infinite score" in page
        assert "nan" not in re.findall(r"[a-z]+", page.partition("<body")[2].partition("<script")[0])

    def test_a_sentence_names_six_losses_and_counts_the_others(self, tmp_path: Path):
        losses = ("ce", *LOSSES)[:9]
        setup, found = found_in(make_run(tmp_path, losses, splits=("interpolate",)))
        decided, derailed = decision_sentence(setup, found), derailed_sentence(setup, scores(setup))
        for text in (decided, derailed):
            assert sum(f" {label} " in text for label in losses) == 6
            assert text.endswith(" and 3 more.")

    def test_one_seed_has_no_verdict(self, tmp_path: Path):
        setup, found = found_in(make_run(tmp_path, seeds=(0,)))
        assert not found.tested
        assert all(score.better is None for score in found.scores)
        assert "p =" not in decision_sentence(setup, found)


@pytest.fixture(scope="module")
def closer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """smmd is as good as ce with greedy answers, and closer by 2 with the median."""
    folder = make_run(tmp_path_factory.mktemp("closer"), rules={"ce": ("median",), "smmd": ("median",)})

    def change(label: str, row: dict[str, Any]) -> None:
        measures = row["decisions"]["median"]["measures"]
        measures["absolute_error"] -= 2
        measures["relative_error"] = measures["absolute_error"] / int(row["gold"])

    return rewrite(folder, change, "smmd-*")


class TestAgainstTheBaseline:
    def test_means(self, closer: Path):
        _, found = found_in(closer)
        error = found.measures[0]
        compared = {(score.label, score.split) for score in found.scores if score.contrast is not None}
        assert compared == {("smmd", "interpolate"), ("smmd", "extrapolate")}
        greedy, median = (found.cell("smmd", "interpolate", error, rule).contrast for rule in ("greedy", "median"))
        assert (greedy.alike, greedy.comparison.corrected_p, greedy.better) == (True, 1.0, None)
        assert (median.alike, median.better, median.base) == (False, True, 5)
        assert median.comparison.difference.estimate == pytest.approx(-2)
        assert median.change == pytest.approx(-0.4)
        assert median.comparison.corrected_p == pytest.approx(2 * median.comparison.p_value)  # two splits

    def test_the_headline_by_decision(self, closer: Path):
        setup = setup_of(closer)
        assert setup.decisions() == ("greedy", "median")
        mine = {(s.label, s.split, s.decision): s for s in scores(setup) if s.measure == setup.headline}
        assert len(mine) == 2 * 2 * 2
        greedy, median = (mine["smmd", "interpolate", rule] for rule in setup.decisions())
        assert (greedy.better, median.better) == (None, True)
        assert (median.gain.estimate, median.family) == (1.0, 2)
        assert median.interval.estimate < greedy.interval.estimate
        assert {s.decision for s in scores(setup) if s.measure != setup.headline} == {"greedy"}

    def test_the_page_and_its_files(self, closer: Path):
        page = write_report(closer)
        data = json.loads(page.with_suffix(".json").read_text())
        assert data["answer"] == "smmd with the median cut the error on regression by 73 %."
        assert data["answers"][0]["sentences"][0].startswith(
            "smmd is significantly better than ce on regression (tiny, not pre-trained), in range with answers decided by "
            "median: median relative error"
        )
        assert (
            "No loss is significantly better in range with greedy answers and out of range with greedy answers."
            in data["answers"][0]["sentences"]
        )
        rows = [row for row in data["scores"] if row["headline"] and row["label"] == "smmd" and row["split"] == "interpolate"]
        assert [(row["decision"], row["better"]) for row in rows] == [("greedy", None), ("median", True)]
        row = next(row for row in data["decisions"] if (row["label"], row["decision"]) == ("smmd", "median"))
        assert (row["baseline"], row["against"], row["helps"]) == ("ce", pytest.approx(-2), True)
        assert row["against_change"] == pytest.approx(-0.4)
        base = next(row for row in data["decisions"] if row["label"] == "ce")
        assert (base["against"], base["helps"]) == (None, None)
        text = page.read_text()
        assert "In range <span" in text
        for decision in ("greedy answers", "answers decided by median"):
            assert text.count(f"3 seeds, {decision}</th>") == 2  # in and out of range
        assert "vs ce: −2.00 (−40.0 %), p " in text

    def test_a_loss_without_decisions_is_compared_greedily(self, tmp_path: Path):
        setup, found = found_in(make_run(tmp_path, ("ce", "smmd", "emd"), rules={"emd": ()}))
        assert setup.decisions() == ("greedy",)
        assert {score.label for score in found.scores if score.contrast is not None} == {"smmd"}
        assert "greedy answers</th>" not in write_report(tmp_path).read_text()


class TestWords:
    def test_the_sentence(self, run: Path, page: Path):
        setup, found = found_in(run)
        text = decision_sentence(setup, found)
        assert text.startswith("Deciding by median instead of greedily changes the mean absolute error, in range: ")
        assert "ce from 11.0 to 5.00 (−54.5 %, p " in text
        assert text in json.loads(page.with_suffix(".json").read_text())["answers"][0]["sentences"]

    def test_an_accuracy_comes_first_where_it_is_the_headline(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
        folder = make_run(tmp_path, rules=dict.fromkeys(("ce", "smmd"), ("mode",)), splits=("interpolate",), headline="exact")
        setup, found = found_in(folder)
        assert [m.name for m in found.measures[:3]] == ["exact", "absolute_error", "relative_error"]
        assert found.parted.name == "absolute_error"  # the records have no sources of the other
        told = "Deciding by mode instead of greedily changes the exact answers: ce from 0.0 % to 33.3 % (+33.3 points, p "
        assert decision_sentence(setup, found).startswith(told)
        page = write_report(folder)
        assert decision_sentence(setup, found) in json.loads(page.with_suffix(".json").read_text())["answers"][0]["sentences"]
        assert "comes from</strong> (mean absolute error)" in page.read_text()
        _show_decisions(Console(highlight=False, width=160), json.loads(page.with_suffix(".json").read_text())["decisions"])
        assert "33.3 % (+33.3 points, " in capsys.readouterr().out

    @pytest.mark.parametrize(
        ("rules", "name", "rule"),
        [
            (("greedy", "mean", "median"), "absolute_error", "median"),
            (("greedy", "mean", "absolute"), "absolute_error", "absolute"),
            (("greedy", "mean"), "absolute_error", "mean"),
            (("greedy", "relative_error"), "relative_error", "relative_error"),
            (("greedy", "median", "exact"), "exact", "exact"),
            (("greedy",), "exact", None),
        ],
    )
    def test_the_rule_that_fits(self, rules: tuple[str, ...], name: str, rule: str | None):
        assert fitting_rule(rules, name) == rule

    def test_in_the_terminal(self, page: Path, capsys: pytest.CaptureFixture[str]):
        data = json.loads(page.with_suffix(".json").read_text())
        _show_decisions(Console(highlight=False, width=160), data["decisions"])
        text = capsys.readouterr().out
        assert "regression (tiny), in range: mean absolute error by decision" in text
        assert "5.00 (−54.5 %, " in text
        assert "75.0 %" in text
        assert "2 ms, 6 ms" in text

    def test_no_p_values_of_one_or_two_seeds_in_the_terminal(self, page: Path, capsys: pytest.CaptureFixture[str]):
        data = json.loads(page.with_suffix(".json").read_text())
        for seeds in (1, 2, 3):
            title = f"{seeds} seed{'s' * (seeds > 1)}"
            _show(Console(highlight=False, width=200), [row | {"seeds": seeds} for row in _result(page, []).table])
            assert (" p " in (text := capsys.readouterr().out)) == (seeds == 3)
            assert f", {title}" in text
            _show_decisions(Console(highlight=False, width=160), [row | {"seeds": seeds} for row in data["decisions"]])
            assert ("greedy and p" in (text := capsys.readouterr().out)) == (seeds == 3)
            assert ("5.00 (−54.5 %)" in text) == (seeds < 3)


class TestFewAnswersDecideTheMean:
    """One greedy answer of ten digits: errors are summarised by medians, and compared by examples closer and farther."""

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        folder = make_run(tmp_path, splits=["interpolate"])

        def change(label: str, row: dict[str, Any]) -> None:
            if row["index"] == 0:
                row["measures"] |= {"absolute_error": 1e10, "relative_error": 1e8}

        return rewrite(folder, change, "smmd-1")

    def test_medians(self, folder: Path):
        _, found = found_in(folder)
        assert [measure.median for measure in found.measures] == [True, True, False]  # derailed answers have no tail
        greedy, median = (found.cell("smmd", "interpolate", found.measures[0], rule) for rule in ("greedy", "median"))
        assert greedy.mean == 11  # that of a typical run: one of three is ruined
        assert (greedy.interval.estimate, median.interval.estimate, median.mean) == (11, 5, 5)
        assert median.comparison.difference.estimate == -1  # every example is closer
        assert (median.better, median.change) == (True, pytest.approx(-6 / 11))
        contrast = greedy.contrast
        assert (contrast.interval.estimate, contrast.base, contrast.better) == (11, 11, None)

    def test_words_and_files(self, folder: Path, capsys: pytest.CaptureFixture[str]):
        page = write_report(folder)
        data = json.loads(page.with_suffix(".json").read_text())
        told = decision_sentence(*found_in(folder))
        assert told.startswith("Deciding by median instead of greedily changes the median absolute error: ")
        assert "smmd from 11.0 to 5.00 (−54.5 %, p " in told
        row = next(row for row in data["decisions"] if (row["label"], row["decision"]) == ("smmd", "greedy"))
        assert (row["summary"], row["median"]) == ("median", 11)
        assert row["mean"] == 11
        (beware,) = (text for text in data["answers"][0]["sentences"] if "very large errors" in text)
        assert "mean absolute error of smmd with greedy answers (11.0 in a typical run, 4.17e+08 in the worst)." in beware
        text = page.read_text()
        assert "closer − farther +100.0 points, p " in text
        assert "mean of a typical run, which a few answers dominate in some run" in text
        assert "Where the error of greedy answers comes from" not in text
        _show_decisions(Console(highlight=False, width=160), data["decisions"])
        assert "median absolute error by decision" in capsys.readouterr().out


class TestDerailed:
    def test_by_decision(self, run: Path):
        _, found = found_in(run)
        shares = {name: found.cell("ce", "interpolate", found.measures[2], name) for name in found.decisions}
        assert {name: score.interval.estimate for name, score in shares.items() if score} == {
            "greedy": pytest.approx(1 / EXAMPLES),
            "median": 0.0,
            "mean": 0.0,
        }

    def test_means_of_errors_have_their_median_beside_them(self, page: Path):
        _, found = found_in(page.parent)
        score = found.cell("ce", "interpolate", found.measures[0], "greedy")
        assert score.measure.unbounded
        assert f"<small>median {found.measures[0].number(score.median)}</small>" in page.read_text(encoding="utf-8")
        assert not any(score.measure.unbounded for score in found.scores if score.measure.name == "derailed")

    def test_no_table_without_a_derailed_answer(self, tmp_path: Path):
        folder = make_run(tmp_path)
        rewrite(folder, lambda label, row: row["measures"].update(derailed=0.0))
        assert [measure.name for measure in found_in(folder)[1].measures] == ["absolute_error", "relative_error"]


class TestFiles:
    def test_json_csv_and_page(self, page: Path):
        data = json.loads(page.with_suffix(".json").read_text())
        with page.with_name("report_decisions.csv").open() as file:
            rows = list(csv.DictReader(file))
        assert len(rows) == len(data["decisions"]) == 2 * 2 * 3 * 3  # losses, splits, measures, decisions
        row = next(row for row in data["decisions"] if (row["label"], row["decision"]) == ("ce", "median"))
        assert (row["mean"], row["difference"], row["seconds"], row["coverage"]) == (5, pytest.approx(-6), 0.006, 0.75)
        greedy = next(row for row in data["decisions"] if row["decision"] == "greedy")
        assert (greedy["difference"], greedy["p"], greedy["seconds"]) == (None, None, 0.002)
        sources = data["error_sources"][0]
        assert sources["decision"] + sources["spread"] + sources["surprise"] == sources["greedy"]
        assert any(figure["figure"] == "decisions" for figure in data["figures"])
        text = page.read_text()
        assert "Losses and decisions" in text
        assert "Gold in 90 % interval" in text
        assert "▲" in text

    def test_without_decisions_there_is_no_such_section(self, tmp_path: Path):
        page = write_report(make_run(tmp_path, rules={"ce": (), "smmd": ()}))
        assert "Losses and decisions" not in page.read_text()
        assert not page.with_name("report_decisions.csv").exists()
        assert json.loads(page.with_suffix(".json").read_text())["decisions"] == []

    def test_incomplete_records_are_named(self, tmp_path: Path):
        folder = make_run(tmp_path)
        rewrite(folder, lambda label, row: row["decisions"].pop("mean") if row["index"] == 1 else None, "ce-0")
        with pytest.raises(ValueError, match=r"predictions.jsonl: the decisions of a line are not complete \('mean'\)"):
            read_run(folder)
