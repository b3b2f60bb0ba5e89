"""Whether a comparison agrees with what is recommended: verdicts, sentences and p-values on errors that are known."""

from __future__ import annotations

import html
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.lab.report.simulated import headline_of, reconfigure, setup_in_memory
from tests.lab.report.test_report_decisions import make_run

from numerate.distribution.exact import Floats
from numerate.lab import stats
from numerate.lab.evaluation.decisions import GREEDY
from numerate.lab.report import write_report
from numerate.lab.report.analysis import Setup
from numerate.lab.report.recommended import RecommendationCheck, check_recommendation

Errors = Mapping[tuple[str, str], float | tuple[float, float]]  # (loss, decision) -> typical error, or that of each split

EXAMPLES = 20
RECOMMENDED = ("soft", "median")
GOOD = {("ce", GREEDY): 8.0, ("ce", "median"): 5.0, ("soft", GREEDY): 4.0, RECOMMENDED: 2.0}


def column(error: float, seed: int, split: int) -> Floats:
    """Errors of a run, up to 0.4 above the typical one: runs whose typical errors differ by 1 differ on every example."""
    return error + 0.4 * np.random.default_rng([seed, split]).random(EXAMPLES)


def setup_of(
    errors: Errors,
    *,
    task: str = "regression",
    headline: str = "relative_error",
    configs: Mapping[str, Mapping[str, Any]] | None = None,
    seeds: int = 4,
    **config: Any,
) -> Setup:
    def measures(label: str, rule: str, seed: int, split: int) -> dict[str, Floats]:
        error = errors[label, rule]
        return {headline: column(error[split] if isinstance(error, tuple) else error, seed, split)}

    def settings(label: str) -> dict[str, Any]:
        return {"task": task, "loss": label, **config, **(configs or {}).get(label, {})}

    splits = ("interpolate", "extrapolate") if any(isinstance(error, tuple) for error in errors.values()) else ("interpolate",)
    how: dict[str, Any] = {"headline": headline, "seeds": seeds, "splits": splits, "task": task, "config": settings}
    return setup_in_memory([*errors], measures, ("",) * EXAMPLES, **how)


def found_in(setup: Setup) -> RecommendationCheck:
    check = check_recommendation(setup, headline_of(setup))
    assert check is not None
    return check


class TestVerdicts:
    def test_agreement(self):
        found = found_in(setup_of(GOOD))
        assert found.agreement == "agrees"
        assert found.sentence == (
            "This agrees with what numerate recommends for tables of noisy numbers: soft decided by median is significantly "
            "better than ce with greedy answers (p < 0.001, 4 seeds)."
        )

    def test_another_pair_is_better(self):
        found = found_in(setup_of({**GOOD, ("ce", "mean"): 1.0, ("soft", "mean"): 6.0}))
        assert found.agreement == "contradicts"
        assert found.sentence.startswith(
            "numerate recommends soft decided by median for tables of noisy numbers; here ce decided by mean is significantly "
            "better: share of examples closer minus share farther +100.0 points (95 % interval "
        )
        assert found.sentence.endswith("; p < 0.001 after Holm's correction, 4 seeds). Trust this result for your data.")

    def test_cross_entropy_with_greedy_answers_is_named_beside_a_better_pair(self):
        """smmd wins on all examples, ce on all but two of one seed."""
        setup = setup_of({**GOOD, ("ce", GREEDY): 1.0, ("smmd", GREEDY): 1.0, ("smmd", "median"): 1.0})
        setup.cells["ce"][0].splits["interpolate"].measures["relative_error"][:2] = 9.0
        assert "Also significantly better: ce with greedy answers and smmd decided by median." in found_in(setup).sentence

    def test_three_pairs_are_named_and_the_others_counted(self):
        errors = {**GOOD, RECOMMENDED: 9.0} | {(loss, rule): 3.0 for loss in ("emd", "smmd") for rule in (GREEDY, "median")}
        also = found_in(setup_of(errors)).sentence.partition("Also significantly better: ")[2]
        assert also.endswith(" and 3 more. Trust this result for your data.")

    @pytest.mark.parametrize("error", [1.0, 9.0])
    def test_noise(self, error: float):
        """ce is closer, or farther, on one example of one seed."""
        setup = setup_of(dict.fromkeys(GOOD, 3.0))
        setup.cells["ce"][0].splits["interpolate"].measures["relative_error"][0] = error
        found = found_in(setup)
        assert any(score.ahead for score in found.scores) == (error == 1.0)
        assert (found.agreement, found.sentence) == ("open", "")

    @pytest.mark.parametrize("seeds", [1, 2])
    @pytest.mark.parametrize("errors", [GOOD, {**GOOD, ("ce", GREEDY): 1.0}], ids=["good", "bad"])
    def test_too_few_seeds(self, errors: Errors, seeds: int):
        found = found_in(setup_of(errors, seeds=seeds))
        assert (found.agreement, found.sentence) == ("untested", "")

    @pytest.mark.parametrize(
        "left_out", [[("soft", GREEDY), RECOMMENDED], [("ce", "median"), RECOMMENDED], [("ce", "median")]], ids=str
    )
    def test_not_run(self, left_out: Sequence[tuple[str, str]]):
        """Without the loss, without the decision, or without the decision of one loss."""
        found = found_in(setup_of({pair: error for pair, error in GOOD.items() if pair not in left_out}))
        assert found.agreement == "not run"
        assert found.scores == ()
        assert found.sentence == (
            "numerate recommends soft decided by median for tables of noisy numbers, which this comparison does not include: "
            "run it with --loss soft --set decide=median."
        )

    def test_out_of_range(self):
        """What is gained out of range alone is told, and does not contradict."""
        found = found_in(setup_of({**GOOD, ("ce", "median"): (5.0, 1.0)}))
        agrees, _, gained = found.sentence.partition(". Out of range, ")
        assert found.agreement == "agrees"
        assert agrees.startswith("This agrees with what numerate recommends for tables of noisy numbers: ")
        assert gained.startswith(
            "ce decided by median is significantly better than soft decided by median, which numerate recommends for tables of "
            "noisy numbers: "
        )
        assert "Trust" not in gained

    def test_agreement_is_in_range(self):
        found = found_in(setup_of(dict.fromkeys(GOOD, 3.0) | {("ce", "median"): (3.0, 1.0)}))
        assert found.agreement == "open"
        assert found.sentence.startswith("Out of range, ce decided by median is significantly better than soft decided by median")
        found = found_in(setup_of({**GOOD, ("ce", GREEDY): (8.0, 2.0)}))
        assert found.agreement == "agrees"
        assert "than ce with greedy answers, in range (p " in found.sentence

    @settings(max_examples=40)
    @given(st.permutations(range(1, 7)))
    def test_only_the_best_pair_agrees(self, order: list[int]):
        """Exchanging the answers of the recommended pair and of the best one turns a contradiction into agreement."""
        pairs = [(loss, rule) for loss in ("ce", "soft") for rule in (GREEDY, "median", "mean")]
        errors = {pair: float(error) for pair, error in zip(pairs, order, strict=True)}
        best = min(errors, key=lambda pair: errors[pair])
        expected = "agrees" if best == RECOMMENDED else "contradicts"
        assert found_in(setup_of(errors)).agreement == expected
        exchanged = {**errors, RECOMMENDED: errors[best], best: errors[RECOMMENDED]}
        assert found_in(setup_of(exchanged)).agreement == "agrees"


class TestNumbers:
    def test_p_values_are_those_of_stats_after_holm_over_all_pairs_and_splits(self):
        setup = setup_of({**GOOD, ("ce", "median"): (2.1, 2.0), ("soft", GREEDY): (2.3, 1.9)})
        found = found_in(setup)
        plain = {}
        for split in setup.splits:
            base = setup.values("soft", split, "relative_error", decision="median")
            for label, rule in GOOD:
                if (label, rule) != RECOMMENDED and (label, rule, split) != ("ce", "median", "extrapolate"):  # alike
                    mine = setup.values(label, split, "relative_error", decision=rule)
                    plain[label, rule, split] = stats.compare(mine, base, "sign").p_value
        expected = stats.holm(plain)
        assert len(expected) == 5
        by_pair = {(score.label, score.decision, score.split): score.comparison for score in found.scores}
        assert by_pair.pop(("ce", "median", "extrapolate")).corrected_p == 1.0
        assert {key: comparison.corrected_p for key, comparison in by_pair.items()} == pytest.approx(expected)

    def test_seeds_of_both_are_compared(self):
        setup = setup_of(GOOD)
        del setup.cells["ce"][0]
        assert {score.comparison.seeds for score in found_in(setup).scores if score.label == "ce"} == {3}


class TestWhatIsRecommended:
    def test_soft_labels_are_known_by_their_path_whatever_the_label(self):
        configs = {"wide": {"loss": "ce", "soft": {"path": "drawn"}}, "other": {"loss": "ce", "soft": {"path": "fixed"}}}
        errors = {("ce", GREEDY): 8.0, ("ce", "median"): 8.0, ("wide", GREEDY): 6.0, ("wide", "median"): 6.0}
        assert found_in(setup_of(errors, configs=configs)).agreement == "agrees"
        found = found_in(setup_of({**errors, ("other", GREEDY): 9.0, ("other", "median"): 1.0}, configs=configs))
        assert found.sentence.startswith(
            "numerate recommends soft (wide) decided by median for tables of noisy numbers; here other"
        )

    def test_of_several_settings_the_best_counts(self):
        """A wrong width does not contradict soft labels, and a right one does not contradict the wrong one."""
        errors = GOOD | {("wide", GREEDY): 3.0, ("wide", "median"): 9.0}
        found = found_in(setup_of(errors, configs={"wide": {"loss": "ce", "soft": {"path": "drawn"}}}))
        assert found.agreement == "agrees"
        assert {(score.label, score.decision) for score in found.scores} == {*errors} - {RECOMMENDED, ("wide", "median")}
        assert {score.family for score in found.scores} == {2 * len(found.scores)}

    def test_a_rule_has_several_names(self):
        errors = {(loss, "absolute" if rule == "median" else rule): error for (loss, rule), error in GOOD.items()}
        assert found_in(setup_of(errors)).agreement == "agrees"

    @pytest.mark.parametrize(
        ("task", "config", "pair"),
        [
            ("regression", {}, ("soft", "median")),
            ("regression", {"task_settings": {"target": "x", "raters": ["a", "b"]}}, ("ce", "median")),
            ("arithmetic", {}, ("ce", "greedy")),
        ],
    )
    def test_by_task_and_its_settings(self, task: str, config: dict[str, Any], pair: tuple[str, str]):
        found = found_in(setup_of(GOOD, task=task, **config))
        assert (found.recommendation.loss, found.recommendation.decision) == pair
        assert pair not in {(score.label, score.decision) for score in found.scores}

    def test_exact_answers(self):
        """Where cross-entropy with greedy answers is recommended, there is nothing that could be shown to agree."""
        chosen = {"task": "arithmetic", "headline": "exact"}
        assert found_in(setup_of({("ce", GREEDY): 0.5, ("smmd", GREEDY): 0.1}, **chosen)).agreement == "open"
        found = found_in(setup_of({("ce", GREEDY): 0.1, ("smmd", GREEDY): 0.6}, **chosen))
        assert found.agreement == "contradicts"
        assert found.sentence.startswith(
            "numerate recommends ce with greedy answers for exact answers; here smmd with greedy answers is significantly "
            "better: +50.0 points (95 % interval "
        )

    @pytest.mark.parametrize("config", [{"task": "origami"}, {"task_settings": {"folds": 3}}], ids=["task", "setting"])
    def test_records_of_another_release_have_no_recommendation(self, config: dict[str, Any]):
        setup = setup_of(GOOD, **config)
        assert check_recommendation(setup, headline_of(setup)) is None


class TestFiles:
    def test_the_sentence_and_the_figures(self, tmp_path: Path):
        page = write_report(make_run(tmp_path, ("ce", "soft")))
        data = json.loads(page.with_suffix(".json").read_text(encoding="utf-8"))
        (told,) = data["recommendations"]
        named = [told[name] for name in ("kind", "loss", "format", "decision", "agreement")]
        assert named == ["table", "soft", "plain", "median", "agrees"]
        assert told["sentence"] == data["answers"][0]["sentences"][-1]
        assert f"<p>{told['sentence']}</p>" in html.unescape(page.read_text(encoding="utf-8"))
        assert len(told["others"]) == (2 * 3 - 1) * 2  # pairs and splits
        (plain,) = [
            row for row in told["others"] if (row["label"], row["decision"], row["split"]) == ("ce", GREEDY, "interpolate")
        ]
        assert (plain["better"], plain["difference"], plain["seeds"]) == (False, -1.0, 3)
        assert plain["p"] < plain["p_holm"] < 0.05
        (alike,) = [
            row for row in told["others"] if (row["label"], row["decision"], row["split"]) == ("ce", "median", "interpolate")
        ]
        assert (alike["better"], alike["difference"], alike["p_holm"]) == (None, 0.0, 1.0)

    def test_what_was_not_run_is_said_once(self, tmp_path: Path):
        make_run(tmp_path)
        for cell in [*(tmp_path / "cells").iterdir()]:
            copy = shutil.copytree(cell, cell.with_name(f"small-{cell.name}"))
            reconfigure(tmp_path, cells=copy.name, model="small")
        page = write_report(tmp_path)
        data = json.loads(page.with_suffix(".json").read_text(encoding="utf-8"))
        assert [row["agreement"] for row in data["recommendations"]] == ["not run", "not run"]
        assert page.read_text(encoding="utf-8").count("run it with --loss soft --set decide=median.") == 1
