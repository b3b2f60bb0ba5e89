"""The first screen: which pair is shown, what the sentence says, three figures, and a picture, over simulated records."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.lab.report.simulated import ReportPage, headline_of
from tests.lab.report.simulated import setup_of as read
from tests.lab.report.test_report import ce, smmd
from tests.lab.report.test_report import make_run as make_exact
from tests.lab.report.test_report_levels import EXAMPLES, GOLDS, SPLIT, baselines, noisy, setup_of
from tests.lab.report.test_report_page import in_browser, needs_chromium
from tests.lab.report.test_report_recommended import GOOD, RECOMMENDED
from tests.lab.report.test_report_sizes import sized

from numerate.lab import stats
from numerate.lab.baselines import KeptBaselines
from numerate.lab.baselines.kept import TITLES
from numerate.lab.comparison.compare import _result
from numerate.lab.evaluation.decisions import GREEDY
from numerate.lab.report import write_report
from numerate.lab.report.analysis import Setup, costs
from numerate.lab.report.answer import decision_sentence
from numerate.lab.report.decisions import decisions
from numerate.lab.report.figures.drawing import drawing
from numerate.lab.report.figures.overview import overview
from numerate.lab.report.figures.svg import to_svg
from numerate.lab.report.levels import found_levels
from numerate.lab.report.recommended import check_recommendation
from numerate.lab.report.summary import Summary, summarise


def summary_of(setup: Setup, kept: KeptBaselines | None = None) -> Summary:
    levels = None if kept is None else found_levels(setup, {SPLIT: GOLDS}, kept)
    return summarise(setup, costs(setup), check_recommendation(setup, headline_of(setup)), levels)


def table(errors: Mapping[tuple[str, str], float], **options: Any) -> Setup:
    """Errors of about a size, other ones with every seed and pair."""
    return setup_of({pair: noisy(size) for pair, size in errors.items()}, **options)


def shown(found: Summary) -> tuple[str, str]:
    assert found.after is not None
    return found.after.label, found.after.decision


def _ends(found: Summary, arrow: str = " → ") -> str:
    assert found.before is not None
    assert found.after is not None
    return arrow.join(f"{score.interval.estimate:.2f}" for score in (found.before, found.after))


def harmed(size: float, *, count: int, by: float) -> Any:
    def errors(seed: int) -> Any:
        off = noisy(size)(seed)
        off[:count] = by
        return off

    return errors


class TestChoice:
    def test_the_recommended_pair_though_another_scores_better(self):
        found = summary_of(table({**GOOD, ("ce", "mean"): 1.0, ("soft", "mean"): 6.0}))
        assert shown(found) == RECOMMENDED
        assert found.sentence == "Soft labels with the median cut the error on regression by 75 %."
        assert found.note == (
            "Shown: soft decided by median, which numerate recommends for tables of noisy numbers; chosen before the test. "
            "On these rows, ce decided by mean is significantly better than that."
        )

    def test_the_best_of_all_where_the_recommended_one_was_not_run(self):
        errors = {("ce", GREEDY): 8.0, ("ce", "median"): 5.0, ("smmd", GREEDY): 7.0, ("smmd", "median"): 4.0}
        found = summary_of(table(errors))
        assert shown(found) == ("smmd", "median")
        assert found.sentence == "smmd with the median cut the error on regression by 50 %."
        assert (
            found.note
            == "Shown: smmd decided by median, the best of 3 pairs of loss and decision on these test rows; p is "
            + ("corrected for that.")
        )

    def test_a_better_score_that_is_not_significant_is_not_hidden(self):
        def by_seed(seed: int) -> Any:  # a typical run is better, and one is far worse
            return noisy(20 if seed == 0 else 0.5)(seed)

        errors = {("ce", GREEDY): noisy(8), ("ce", "median"): noisy(6), ("smmd", GREEDY): by_seed, ("smmd", "median"): by_seed}
        found = summary_of(setup_of(errors))
        assert shown(found) == ("ce", "median")
        assert "the best of the significantly better ones among 3 pairs of loss and decision" in found.note

    def test_the_best_of_all_where_the_recommended_one_does_not_help(self):
        found = summary_of(table({**GOOD, RECOMMENDED: 8.0}))
        assert shown(found) == ("soft", GREEDY)
        assert found.note.endswith("The recommended soft decided by median is not significantly better than the baseline.")

    def test_the_recommended_one_where_nothing_helps(self):
        found = summary_of(table({**GOOD, ("soft", GREEDY): 9.0, ("ce", "median"): 9.0, RECOMMENDED: 10.0}))
        assert (shown(found), found.verdict) == (RECOMMENDED, "worse")
        assert found.sentence == ("Soft labels with the median raised the error on regression by 25 %: keep cross-entropy.")

    def test_p_is_that_of_stats_after_holm_over_all_pairs_whichever_is_shown(self):
        setup = table({("ce", GREEDY): 8.0, ("ce", "median"): 7.9, ("soft", GREEDY): 7.95, RECOMMENDED: 7.8})
        found = summary_of(setup)
        plain = {}
        for pair in [("ce", "median"), ("soft", GREEDY), RECOMMENDED]:
            both = (setup.values(label, SPLIT, "absolute_error", rule) for label, rule in (pair, ("ce", GREEDY)))
            plain[pair] = stats.compare(*both, bounds=(0, np.inf)).p_value
        expected = stats.holm(plain)
        assert {(s.label, s.decision): s.comparison.final_p for s in found.pairs if s.comparison} == pytest.approx(expected)

    def test_one_loss_with_a_decision_is_a_pair_to_compare(self):
        found = summary_of(table({("ce", GREEDY): 8.0, ("ce", "median"): 6.0}))
        assert (found.verdict, found.note) == ("better", "")
        assert found.sentence == "The median cut the error on regression by 25 %."


class TestFewAnswersAndNone:
    def test_few_answers_that_decide_a_mean_turn_the_metric_into_the_headline(self):
        found = summary_of(setup_of({**{p: noisy(e) for p, e in GOOD.items()}, ("ce", GREEDY): harmed(8, count=2, by=3e7)}))
        assert found.measure.name == "relative_error"
        assert found.sentence == "Soft labels with the median cut the median relative error on regression by 75 %."

    def test_a_loss_that_explodes_is_not_better(self):
        exploding = harmed(2, count=2, by=3e7)
        found = summary_of(setup_of({("ce", GREEDY): noisy(8), ("smmd", GREEDY): exploding}))
        assert found.verdict == "noise"
        assert found.sentence == "smmd came closer on most rows of regression, but a few of its errors are very large."

    def test_most_outputs_without_a_number(self):
        silent = harmed(2, count=30, by=np.nan)
        every = summary_of(setup_of({("ce", GREEDY): silent, ("soft", GREEDY): silent}))
        assert every.verdict == "untested"
        assert every.sentence == "Most outputs on regression held no number: train longer or use a pre-trained model."
        errors = {("ce", GREEDY): noisy(90), ("ce", "median"): noisy(60), ("soft", GREEDY): noisy(60), RECOMMENDED: silent}
        found = summary_of(setup_of(errors, fallback=1.0))  # counted as better than all in a mean
        assert shown(found) != RECOMMENDED
        assert found.verdict == "better"
        assert found.note.endswith("The recommended soft decided by median gave few numbers.")


class TestSentence:
    @pytest.mark.parametrize(
        ("losses", "options", "verdict", "sentence"),
        [
            ({"ce": ce, "smmd": smmd}, {}, "better", "smmd raised exact answers on arithmetic from 50.0 % to 87.5 %."),
            (
                {"ce": smmd, "smmd": ce},
                {},
                "worse",
                "No loss beat cross-entropy on arithmetic; smmd is significantly worse.",
            ),
            (
                {"ce": smmd, "smmd": ce, "emd": ce},
                {},
                "worse",
                "No loss beat cross-entropy on arithmetic; all are significantly worse.",
            ),
            (
                {"ce": ce, "smmd": lambda seed, split, i: 0 if i < (16, 26, 20)[seed] else 1},
                {},
                "noise",
                "No loss was significantly better than cross-entropy on arithmetic.",
            ),
            (
                {"ce": ce, "smmd": smmd},
                {"seeds": [0]},
                "untested",
                "One seed is too few for a verdict on arithmetic: run five or more.",
            ),
            (
                {"ce": ce, "smmd": smmd},
                {"seeds": [0, 1]},
                "untested",
                "Two seeds are too few for a verdict on arithmetic: run five or more.",
            ),
            ({"ce": ce}, {}, "untested", "Only cross-entropy was run on arithmetic: there is nothing to compare it with."),
            ({"smmd": ce, "emd": smmd}, {}, "untested", "No verdict on arithmetic: the baseline has no finished run."),
            (
                {"ce": lambda *_: 1, "smmd": lambda *_: 1},
                {},
                "noise",
                "Every loss scored 0 % on arithmetic: train longer, or use an easier task.",
            ),
            (
                {"ce": lambda *_: 0, "smmd": lambda *_: 0},
                {},
                "noise",
                "Every loss scored 100 % on arithmetic: train less, or use a harder task.",
            ),
            ({"ce": ce, "smmd": ce}, {}, "noise", "All answers on arithmetic are the same: there is nothing to compare."),
        ],
    )
    def test_exact_answers(self, tmp_path: Path, losses: Any, options: Any, verdict: str, sentence: str):
        found = summary_of(read(make_exact(tmp_path, losses, **options)))
        assert (found.verdict, found.sentence) == (verdict, sentence)

    def test_no_seed_in_common(self, tmp_path: Path):
        make_exact(tmp_path, {"ce": ce}, seeds=[0])
        make_exact(tmp_path, {"smmd": smmd}, seeds=[1])
        told = json.loads(write_report(tmp_path).with_suffix(".json").read_text())
        assert told["answer"] == "No verdict on arithmetic: no loss shares a seed and two test examples with cross-entropy."

    def test_medians_that_are_equal_are_compared_by_rows(self):
        """By the relative error, of which the middle is the same."""

        def behind(seed: int) -> Any:
            return np.where(np.arange(EXAMPLES) < 10, noisy(9)(seed), np.where(np.arange(EXAMPLES) < 38, 5.0, 4e7))

        def ahead(seed: int) -> Any:
            return np.where(np.arange(EXAMPLES) < 10, 1.0, behind(seed))

        setup = setup_of({("ce", GREEDY): behind, ("smmd", GREEDY): ahead}, fallback=20.0)
        for cells in setup.cells.values():
            for cell in cells.values():
                cell.splits[SPLIT].measures["relative_error"][:] = cell.splits[SPLIT].measures["absolute_error"]
        assert summary_of(setup).sentence == (
            "smmd beat cross-entropy on regression: closer on 25.0 points more rows than farther."
        )


class TestFigures:
    def test_before_and_after_how_sure_and_the_best_baseline(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setitem(TITLES, "ridge", "ridge regression")
        found = summary_of(table(GOOD), baselines(constant=10.0, boosting=5.0, ridge=4.0))
        error, sure, baseline = found.figures
        assert (error.title, error.text) == ("Mean absolute error", _ends(found))
        assert error.note == "ce with greedy answers → soft decided by median"
        assert (sure.title, sure.text, sure.better) == ("How sure", "p < 0.001", True)
        assert sure.note.endswith("; 4 seeds, 40 test rows; Holm's correction for 3 pairs")
        assert (baseline.title, baseline.better) == ("Against the best baseline", True)
        assert baseline.note.startswith("ridge")
        assert baseline.note.endswith("; significant, p < 0.001")

    def test_baselines_are_compared_by_the_median_error_too(self):
        errors = {**{p: noisy(e) for p, e in GOOD.items()}, ("ce", GREEDY): harmed(8, count=2, by=3e7)}
        found = summary_of(setup_of(errors, headline="absolute_error"), baselines(constant=10.0, boosting=5.0))
        assert found.measure.title == "median absolute error"
        assert found.figures[2].title == "Against the best baseline"
        assert found.figures[2].note == "gradient boosting 4.75"  # half of the errors are 5, half are 4.5

    def test_a_baseline_that_is_no_better_than_the_constant_is_not_named(self):
        found = summary_of(table(GOOD), baselines(constant=10.0, boosting=10.0))
        assert found.baselines == {"constant": pytest.approx(9.5)}
        assert found.figures[2].note.startswith("the constant 9.50")

    def test_a_head_is_a_baseline_and_answers_with_its_median(self):
        """It has no row among the decisions that change nothing."""
        errors = {**GOOD, ("quantile_head", GREEDY): 1.0, ("quantile_head", "median"): 1.0}
        setup = table(errors)
        for cell in setup.cells["quantile_head"].values():
            assert isinstance(cell.config, dict)
            cell.config["loss"] = "quantile_head"
        found = summary_of(setup, baselines(constant=10.0, boosting=5.0))
        assert shown(found) == RECOMMENDED
        assert found.figures[2].note.startswith("quantile_head 1.00; significant")
        assert found.figures[2].better is False
        assert [s.decision for s in found.pairs if s.label == "quantile_head"] == [GREEDY]
        decided = decisions(setup)
        assert decided is not None
        told = decision_sentence(setup, decided)
        assert "ce from" in told
        assert "quantile_head" not in told

    def test_of_other_tasks_the_best_other_loss_then_the_time(self, tmp_path: Path):
        told = json.loads(write_report(make_exact(tmp_path / "a", {"ce": ce, "smmd": smmd})).with_suffix(".json").read_text())
        assert told["key_figures"][2] == {
            "title": "Time per step",
            "text": "1.10 ×",
            "note": "the time of ce",
            "better": None,
        }
        folder = make_exact(tmp_path / "b", {"ce": ce, "smmd": smmd, "emd": ce})
        told = json.loads(write_report(folder).with_suffix(".json").read_text())
        assert told["key_figures"][2]["title"] == "Against the best other loss"
        assert told["key_figures"][2]["text"] == "+37.5 points"


class TestSeveral:
    def test_tasks(self, tmp_path: Path):
        make_exact(tmp_path, {"ce": ce, "smmd": smmd})
        make_exact(tmp_path, {"ce": smmd, "smmd": ce}, config={"task": "regression"})
        make_exact(tmp_path, {"ce": smmd, "smmd": ce}, seeds=[0], config={"task": "clock"})
        page = write_report(tmp_path)
        told = json.loads(page.with_suffix(".json").read_text())
        assert told["answer"] == "A loss beat cross-entropy on 1 of 3 tasks: arithmetic."
        (better, changes) = told["key_figures"]
        assert (better["text"], better["note"]) == ("1 of 3", "1 significantly worse, 1 untested")
        assert changes["text"] == "−44.4 % to +75.0 %"
        assert [one["figure"] for one in told["figures"]].count("overview") == 3
        assert "arithmetic (tiny)</bdi>: smmd raised exact answers" in page.read_text(encoding="utf-8")

    def test_models(self, tmp_path: Path):
        told = json.loads(write_report(sized(tmp_path)).with_suffix(".json").read_text())
        assert told["answer"].startswith("A loss or decision beat cross-entropy on 3 of 3 models: ")

    def test_none(self, tmp_path: Path):
        make_exact(tmp_path, {"ce": ce, "smmd": ce})
        make_exact(tmp_path, {"ce": ce, "smmd": ce}, config={"task": "clock"})
        told = json.loads(write_report(tmp_path).with_suffix(".json").read_text())
        assert told["answer"] == "No loss was significantly better than cross-entropy on any of 2 tasks."


class TestPage:
    def test_the_answer_comes_first_and_the_paragraphs_below(self, tmp_path: Path):
        page = ReportPage(write_report(make_exact(tmp_path, {"ce": ce, "smmd": smmd})))
        first, _, rest = page.text.partition("</section>")
        assert '<p class="lead">smmd raised exact answers on arithmetic from 50.0\u00a0% to 87.5\u00a0%.</p>' in first
        assert first.count("<svg") == 2  # wide and narrow
        assert "after Holm's correction" not in first.replace("&#39;", "'")
        assert "smmd is significantly better than ce on arithmetic" in rest
        assert "s1_overview.csv" in page.downloads

    def test_the_console_says_the_same(self, tmp_path: Path):
        path = write_report(make_exact(tmp_path, {"ce": ce, "smmd": smmd}))
        sentence, *figures = _result(path, []).answer.splitlines()
        assert sentence == "smmd raised exact answers on arithmetic from 50.0 % to 87.5 %."
        assert [figure.partition(":")[0] for figure in figures] == ["Exact answers", "How sure", "Time per step"]

    def test_the_picture_has_every_pair_and_baseline(self):
        setup = table({**GOOD, ("smmd", GREEDY): 400.0, ("smmd", "median"): 3.0})
        summary = summary_of(setup, baselines(constant=100.0, boosting=5.0))
        plan = overview(setup, summary)
        roles = {(row["loss"], row["decision"]): row["role"] for row in plan.data.where()}
        assert roles["ce", GREEDY] == "before"
        assert roles[RECOMMENDED] == "after"
        assert roles["gradient boosting", None] == roles["constant", None] == "baseline"
        with drawing():
            texts = re.findall(r">([^<>]+)</text>", to_svg(plan.draw(plan.data), "x", plan.title))
        assert {*_ends(summary, " ").split(), "gradient boosting 4.75", "constant 95.0 →"} <= set(texts)

    @needs_chromium
    def test_first_screen_of_a_narrow_window(self, tmp_path: Path):
        """At 400 px no part of it is wider than the page, and one of the two drawings is seen."""
        script = """
            const answer = page.querySelector("#answer");
            found.width = Math.max(...[...answer.querySelectorAll("*")].map(each => each.getBoundingClientRect().right));
            found.drawings = [...answer.querySelectorAll("svg")].filter(shown).length;
            found.top = answer.getBoundingClientRect().top;
        """
        found = in_browser(write_report(make_exact(tmp_path, {"ce": ce, "smmd": smmd})), script)
        assert found["width"] <= 400
        assert found["drawings"] == 1
        assert found["top"] < 200
