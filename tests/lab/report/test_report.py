"""The report: numbers computed by hand, the sentences of the result, broken records, and hostile text."""

from __future__ import annotations

import base64
import csv
import hashlib
import html
import io
import json
import math
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.lab.report.simulated import (
    ReportPage,
    headline_of,
    lines,
    reconfigure,
    setup_of,
    strict,
    write_cell,
    write_experiment,
)

from numerate.answers.metrics import METRICS
from numerate.lab import stats
from numerate.lab.report import write_report
from numerate.lab.report.analysis import Score, Setup, costs, scores, setups
from numerate.lab.report.answer import Answer, answer, error_sizes
from numerate.lab.report.examples import differing
from numerate.lab.report.figures.curves import OVERRUN, POINTS, learning_curves
from numerate.lab.report.figures.drawing import FigurePlan, styles
from numerate.lab.report.figures.errors import error_sizes as error_figure
from numerate.lab.report.figures.scores import by_length
from numerate.lab.report.figures.svg import loss_key
from numerate.lab.report.figures.tokens import by_place as token_places
from numerate.lab.report.figures.tokens import calibration
from numerate.lab.report.records import read_run

MEASURES = ("exact", "parsed", "absolute_error", "relative_error")
EXAMPLES = 40
Said = Callable[[int, str, int], int | None]  # (seed, split, index) -> offset from the gold answer; None: no answer

# Of 40 examples, ce gets 20 right with every seed; smmd 36, 35 and 34 in range, and 30 with every seed out of range.
WRONG_BY_SEED = {0: (), 1: (0,), 2: (0, 1)}


def ce(seed: int, split: str, index: int) -> int | None:
    return 0 if index < 20 else None if index == 39 else 200


def smmd(seed: int, split: str, index: int) -> int | None:
    if split == "extrapolate":
        return 0 if index < 30 else 1
    return 1 if index >= 36 or index in WRONG_BY_SEED.get(seed, ()) else 0


def make_run(
    folder: Path,
    losses: Mapping[str, Said],
    seeds: Sequence[int] = (0, 1, 2),
    *,
    splits: Sequence[str] = ("interpolate", "extrapolate"),
    headline: str = "exact",
    config: Mapping[str, Any] | None = None,
    digits: bool = True,
    prompt: str = "What is it?",
    experiment: Mapping[str, Any] | None = None,
    change: Callable[[dict[str, Any]], None] = lambda row: None,
) -> Path:
    """Write a run directory. The gold answer of example i is 100 + i; a loss answers that plus its offset."""
    write_experiment(folder, **{"created": "2026-11-15T05:00:00+00:00", "command": "numerate compare", **(experiment or {})})
    for label, says in losses.items():
        for seed in seeds:
            settings = {"model": "tiny", "task": "arithmetic", "task_settings": {}, "data": None, "loss": label, "weight": 0.3}
            settings |= {"label": label, "loss_settings": {}, "seed": seed, "steps": 40, **(config or {})}
            name = "-".join(str(settings[key]) for key in ("model", "task", "label", "weight", "steps", "seed"))
            cell = folder / "cells" / re.sub(r"\W", "_", name)
            rows = [record(split, i, prompt, says(seed, split, i), digits) for split in splits for i in range(EXAMPLES)]
            for row in rows:
                change(row)
            time = 20.0 + seed if label == "ce" else 22.0 + 1.1 * seed
            cost = {"ms_per_step": time, "peak_mib": 500.0 if label == "ce" else 550.0, "train_seconds": 4.0, "steps": 40}
            write_cell(cell, settings, rows, headline, splits={s: {"n": EXAMPLES} for s in splits}, cost=cost)
            curve = [{"step": step, "loss": 3.0 / step, "learning_rate": 0.001} for step in (10, 20, 30, 40)]
            if label != "ce":
                curve = [{**point, "loss": 9.0, "loss/cross_entropy": point["loss"] / 2} for point in curve]
            lines(cell / "curve.jsonl", curve)
    return folder


def record(split: str, index: int, prompt: str, off: int | None, digits: bool) -> dict[str, Any]:
    gold = 100 + index
    said = None if off is None else gold + off
    scored = {name: METRICS[name](gold, said) for name in MEASURES}
    row = {"split": split, "index": index, "prompt": prompt, "gold": str(gold), "answer": None if said is None else str(said)}
    row |= {"output": "?" if said is None else f"It is {said}.", "nll": 1.0}
    row["measures"] = {name: None if math.isinf(value) else value for name, value in scored.items()}
    if digits:  # the ones are right if the answer is; 0.81 of 0.9 on the most likely token
        row["digits"] = [{"place": p, "p": 0.8, "top": 0.81, "right": p > 0 or off == 0, "mass": 0.9} for p in (2, 1, 0)]
    return row


def by_place(setup: Setup) -> dict[tuple[str, str], Score]:
    return {(score.label, score.split): score for score in headline_of(setup)}


def answer_of(folder: Path) -> Answer:
    setup = setup_of(folder)
    return answer(setup, headline_of(setup), costs(setup), setup.task)


def text_of(found: Answer) -> str:
    return " ".join([found.lead, *found.more])


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("run"), {"ce": ce, "smmd": smmd})


@pytest.fixture(scope="module")
def page(run: Path) -> Path:
    return write_report(run)


class TestNumbers:
    def test_means_and_differences(self, run: Path):
        found = by_place(setup_of(run))
        assert found["ce", "interpolate"].interval.estimate == pytest.approx(0.5)
        assert found["smmd", "interpolate"].interval.estimate == pytest.approx((36 + 35 + 34) / 120)
        assert found["smmd", "extrapolate"].interval.estimate == pytest.approx(30 / 40)
        assert found["smmd", "interpolate"].gain.estimate == pytest.approx(0.375)
        assert found["ce", "interpolate"].comparison is None
        # d_s = 0.4, 0.375, 0.35: their spread is 0.025, and Hedges' factor at 2 degrees of freedom 0.5642.
        assert found["smmd", "interpolate"].effect == pytest.approx(15 * 0.5642, rel=1e-3)

    def test_p_values_are_those_of_stats_after_holm_over_losses_and_splits(self, run: Path):
        found = by_place(setup_of(run))
        rows = {
            split: [[smmd(seed, split, i) == 0 for i in range(EXAMPLES)] for seed in range(3)]
            for split in ("interpolate", "extrapolate")
        }
        base = [[i < 20 for i in range(EXAMPLES)]] * 3
        plain = {split: stats.compare(values, base).p_value for split, values in rows.items()}
        small, large = sorted(plain, key=lambda split: plain[split])
        assert found["smmd", small].comparison.corrected_p == pytest.approx(min(1.0, 2 * plain[small]))
        assert found["smmd", large].comparison.corrected_p == pytest.approx(max(min(1.0, 2 * plain[small]), plain[large]))
        assert found["smmd", small].family == 2

    def test_what_is_alike_throughout_is_not_counted(self, tmp_path: Path):
        def in_range_only(seed: int, split: str, i: int) -> int | None:
            return smmd(seed, split, i) if split == "interpolate" else ce(seed, split, i)

        found = by_place(setup_of(make_run(tmp_path, {"ce": ce, "smmd": in_range_only})))
        assert found["smmd", "extrapolate"].comparison.corrected_p == 1.0
        assert found["smmd", "extrapolate"].better is None
        assert found["smmd", "interpolate"].comparison.corrected_p == found["smmd", "interpolate"].comparison.p_value
        assert found["smmd", "interpolate"].family == 1

    def test_error_sizes_are_reported_unless_the_headline_is_an_error(self, tmp_path: Path):
        setup = setup_of(make_run(tmp_path / "a", {"ce": ce, "smmd": smmd}, splits=["interpolate"]))
        assert error_sizes(setup, scores(setup)) == (
            "Absolute error (share of examples closer to the gold answer than ce minus share farther): significantly smaller "
            "with smmd (+47.5 points)."
        )
        same = setup_of(make_run(tmp_path / "b", {"ce": ce, "twin": ce}, splits=["interpolate"]))
        assert error_sizes(same, scores(same)) == ""
        error = setup_of(make_run(tmp_path / "c", {"ce": ce, "smmd": smmd}, headline="absolute_error", splits=["interpolate"]))
        assert error_sizes(error, scores(error)) == ""

    def test_a_median_is_compared_by_examples_won_and_lost(self, tmp_path: Path):
        setup = setup_of(make_run(tmp_path, {"ce": ce, "smmd": smmd}, headline="absolute_error", splits=["interpolate"]))
        score = by_place(setup)["smmd", "interpolate"]
        # Seed 0: nearer on 20 to 39 (one of which ce did not answer). Each other seed loses one more of the first ones.
        assert score.gain.estimate == pytest.approx((20 + 19 + 18) / 120)
        assert score.better
        assert score.effect > 0
        assert score.interval.estimate == 0
        assert by_place(setup)["ce", "interpolate"].interval.estimate == 100  # between 0 and 200

    def test_derailed_answers_are_a_share_and_a_sentence(self, tmp_path: Path):
        def mark(row: dict[str, Any]) -> None:
            row["measures"]["derailed"] = float(
                row["split"] == "interpolate" and row["index"] >= 38 and row["answer"] is not None
            )

        folder = make_run(tmp_path, {"ce": ce, "smmd": smmd}, change=mark)
        found = {(s.label, s.split): s for s in scores(setup_of(folder)) if s.measure.name == "derailed"}
        assert found["ce", "interpolate"].interval.estimate == 1 / 40
        assert found["smmd", "interpolate"].measure.value(found["smmd", "interpolate"].interval.estimate) == "5.0 %"
        assert 0 <= found["smmd", "interpolate"].interval.low <= found["smmd", "interpolate"].interval.high <= 1
        told = "Some answers derailed, with more digits than any training label, in range: ce 2.5 % and smmd 5.0 %."
        page = write_report(folder)
        assert told in html.unescape(page.read_text(encoding="utf-8")).replace("\u00a0", " ")
        data = json.loads(page.with_suffix(".json").read_text(encoding="utf-8"))
        assert told in data["answers"][0]["sentences"]
        rows = [row for row in data["scores"] if row["measure"] == "derailed"]
        assert {row["higher_is_better"] for row in rows} == {False}
        assert "derailed" in page.with_suffix(".csv").read_text(encoding="utf-8")

    def test_costs_and_their_ratio_by_seed(self, run: Path):
        base, ours = costs(setup_of(run))
        assert (base.ms_per_step, base.time_ratio, base.memory_ratio) == (21.0, 1.0, 1.0)
        assert ours.ms_per_step == pytest.approx(23.1)
        assert (ours.time_ratio_low, ours.time_ratio, ours.time_ratio_high) == pytest.approx((1.1, 1.1, 1.1))
        assert ours.memory_ratio == pytest.approx(1.1)

    def test_seeds_are_paired_where_both_have_them(self, tmp_path: Path):
        make_run(tmp_path, {"ce": ce}, seeds=(0, 1, 2))
        make_run(tmp_path, {"smmd": smmd}, seeds=(1, 2, 3))
        score = by_place(setup_of(tmp_path))["smmd", "interpolate"]
        assert (score.seeds, score.comparison.seeds) == (3, 2)
        assert score.gain.estimate == pytest.approx((0.375 + 0.35) / 2)
        assert score.interval.estimate == pytest.approx((35 + 34 + 36) / 120)


def plan_of(figure: Callable[..., FigurePlan], folder: Path) -> FigurePlan:
    setup = setup_of(folder)
    return figure(setup, styles(setup.labels, ["ce"]))


class TestFigures:
    def test_error_classes(self, run: Path):
        data = plan_of(error_figure, run).data
        shares = {row["relative_error"]: row["share"] for row in data.where(split="interpolate", loss="ce")}
        assert shares == pytest.approx(
            {"exact": 0.5, "≤ 1 %": 0, "≤ 10 %": 0, "≤ 100 %": 0, "> 100 %": 0.475, "no answer": 0.025}
        )
        shares = {row["relative_error"]: row["share"] for row in data.where(split="extrapolate", loss="smmd")}
        assert shares["≤ 1 %"] == pytest.approx(10 / 40)

    def test_tokens_by_place(self, run: Path):
        rows = plan_of(token_places, run).data.where(split="extrapolate")
        wrong = {(row["loss"], row["place"]): row["wrong"] for row in rows}
        assert wrong == pytest.approx(
            {("ce", 2): 0, ("ce", 1): 0, ("ce", 0): 0.5, ("smmd", 2): 0, ("smmd", 1): 0, ("smmd", 0): 10 / 40}
        )

    def test_calibration_gap(self, run: Path):
        """Every token is held for right with 0.81 / 0.9; ce is right on 100 of 120, smmd on 117 - seed, and on 110."""
        caption = plan_of(calibration, run).caption
        assert caption.endswith("in points: in range ce 6.7 and smmd 5.8; out of range ce 6.7 and smmd 1.7.")

    def test_curves_are_cross_entropy_without_the_numeric_term(self, run: Path):
        data = plan_of(learning_curves, run).data
        assert [row["mean"] for row in data.where(loss="ce")] == pytest.approx([0.3, 0.15, 0.1, 0.075])
        assert [row["mean"] for row in data.where(loss="smmd")] == pytest.approx([0.15, 0.075, 0.05, 0.0375])

    def test_of_a_step_that_was_run_twice_the_later_counts_and_long_curves_are_thinned(self, tmp_path: Path):
        make_run(tmp_path, {"ce": ce}, seeds=[0])
        (curve,) = tmp_path.glob("cells/*/curve.jsonl")
        lines(curve, [{"step": 10, "loss": 5.0}, {"step": 20, "loss": 4.0}, {"step": 20, "loss": 2.0}])
        assert [row["mean"] for row in plan_of(learning_curves, tmp_path).data.where()] == [5.0, 2.0]
        lines(curve, [{"step": step, "loss": 1.0} for step in range(1, 5001)])
        steps = [row["step"] for row in plan_of(learning_curves, tmp_path).data.where()]
        assert (steps[0], steps[-1], len(steps)) == (1, 5000, POINTS)

    def test_overrun_is_a_curve_of_its_own(self, tmp_path: Path, run: Path):
        make_run(tmp_path, {"ce": ce, "smmd": smmd}, seeds=[0, 1])
        for seed, curve in enumerate(sorted(tmp_path.glob("cells/*smmd*/curve.jsonl"))):
            lines(curve, [{"step": step, "loss": 20.0 / step, "numeric/overrun": 0.1 * step + seed} for step in (1, 4)])
        plan = plan_of(learning_curves, tmp_path)
        rows = plan.data.where(curve=OVERRUN)
        assert [(row["loss"], row["step"]) for row in rows] == [("smmd", 1), ("smmd", 4)]
        assert [row["mean"] for row in rows] == pytest.approx([0.6, 0.9])
        figure = plan.draw(plan.data)
        assert {axes.get_title(): axes.get_yscale() for axes in figure.axes} == {"cross-entropy": "log", "overrun": "linear"}
        assert "Overrun is the probability of more digits where" in plan.caption
        assert OVERRUN not in plan_of(learning_curves, run).data.distinct("curve")

    def test_lengths_need_plain_numbers_of_several(self, tmp_path: Path, run: Path):
        assert plan_of(by_length, run).data.rows == []  # all have three digits

        def longer(row: dict[str, Any]) -> None:
            row["gold"] = str(int(row["gold"]) * (10 if row["index"] >= 20 else 1))

        rows = plan_of(by_length, make_run(tmp_path, {"ce": ce}, change=longer)).data.where(split="interpolate")
        assert [(row["digits"], row["exact"], row["examples"]) for row in rows] == [(3, 1.0, 20), (4, 0.0, 20)]

    def test_nothing_without_digits(self, tmp_path: Path):
        make_run(tmp_path, {"ce": ce}, digits=False)
        assert [plan_of(figure, tmp_path).data.rows for figure in (token_places, calibration)] == [[], []]


class TestAnswer:
    def test_better(self, run: Path):
        found = answer_of(run)
        assert (found.verdict, found.winners) == ("better", ("smmd",))
        assert found.lead.startswith(
            "smmd is significantly better than ce on arithmetic, in range: exact answers 87.5 % vs 50.0 %, +37.5 points (95 % "
        )
        assert "after Holm's correction, 3 seeds)" in found.lead
        assert "at 1.10 × the time per step" in found.lead

    def test_every_winner_is_named_and_where_there_is_none(self, tmp_path: Path):
        def in_range_alone(seed: int, split: str, index: int) -> int | None:
            return smmd(seed, split, index) if split == "interpolate" else ce(seed, split, index)

        found = answer_of(make_run(tmp_path, {"ce": ce, "smmd": in_range_alone, "emd": in_range_alone}))
        assert found.winners == ("emd", "smmd")
        assert found.lead.startswith("emd is significantly better than ce on arithmetic, in range")
        assert found.more == (
            "Also significantly better in range: smmd (+37.5 points).",
            "No loss is significantly better out of range.",
        )

    def test_what_is_gained_out_of_range_alone_does_not_lead(self, tmp_path: Path):
        def out_of_range_alone(seed: int, split: str, index: int) -> int | None:
            return ce(seed, split, index) if split == "interpolate" else smmd(seed, split, index)

        found = answer_of(make_run(tmp_path, {"ce": ce, "smmd": out_of_range_alone}))
        assert (found.verdict, found.winners) == ("better", ("smmd",))
        assert found.lead == "No loss differs significantly from ce on arithmetic, in range, with 3 seeds and 40 test examples."
        (gained,) = found.more
        assert gained.startswith("smmd is significantly better than ce out of range: exact answers 75.0 % vs 50.0 %, ")

    def test_what_is_gained_out_of_range_and_lost_in_range(self, tmp_path: Path):
        def other_way(seed: int, split: str, index: int) -> int | None:
            return None if split == "interpolate" else smmd(seed, split, index)

        found = answer_of(make_run(tmp_path, {"ce": ce, "smmd": other_way}))
        assert (found.verdict, found.winners) == ("worse", ("smmd",))
        assert found.lead == (
            "No loss is significantly better than ce on arithmetic, in range, with 3 seeds and 40 test examples."
        )
        gained, lost = found.more
        assert gained.startswith("smmd is significantly better than ce out of range: ")
        assert lost == "Significantly worse than ce: smmd (−50.0 points in range)."

    def test_worse(self, tmp_path: Path):
        found = answer_of(make_run(tmp_path, {"ce": smmd, "smmd": ce}))
        assert found.verdict == "worse"
        assert found.lead.startswith("No loss is significantly better than ce on arithmetic, with 3 seeds and 40 test examples")
        assert "Significantly worse than ce: smmd (−37.5 points in range" in text_of(found)

    def test_noise_says_how_many_seeds_would_tell(self, tmp_path: Path):
        def luck(seed: int, split: str, index: int) -> int:
            return 0 if index < (16, 26, 20)[seed] else 1

        found = answer_of(make_run(tmp_path, {"ce": ce, "smmd": luck}, splits=["interpolate"]))
        assert found.verdict == "noise"
        assert found.lead == "No loss differs significantly from ce on arithmetic, with 3 seeds and 40 test examples."
        # d_s = -0.1, 0.15, 0: mean 1/60, spread 0.1258.
        needed = stats.seeds_needed(1 / 60, 0.125831)
        assert needed > 100
        assert "The largest gain is not significant: smmd, +1.7 points" in text_of(found)
        assert "More than 100 seeds would be needed" in text_of(found)

    @pytest.mark.parametrize("lucky", [(20, 24, 28), (20, 30, 40), (19, 30, 38)])
    def test_the_seeds_that_would_tell_allow_for_comparisons_and_examples(self, tmp_path: Path, lucky: tuple[int, ...]):
        def luck(seed: int, split: str, index: int) -> int:
            return 0 if index < lucky[seed] else 1

        found = answer_of(make_run(tmp_path, {"ce": ce, "smmd": luck, "emd": luck}))
        right = [[[float(answer(seed, "", index) == 0) for index in range(40)] for seed in range(3)] for answer in (luck, ce)]
        compared = stats.compare(*right)
        plan = {"example_error": compared.example_error, "examples": 40, "level": 1 - 0.05 / 4}  # two losses on two splits
        try:
            needed = stats.seeds_needed(compared.difference.estimate, compared.spread, **plan)
            assert needed > stats.seeds_needed(compared.difference.estimate, compared.spread)
            assert f"About {needed} seeds would be needed" in text_of(found)
        except ValueError:
            assert "More test examples would be needed" in text_of(found)

    @pytest.mark.parametrize(("seeds", "few"), [([0], "One seed is"), ([0, 1], "Two seeds are")])
    def test_one_or_two_seeds_allow_no_verdict(self, tmp_path: Path, seeds: list[int], few: str):
        folder = make_run(tmp_path, {"ce": ce, "smmd": smmd}, seeds=seeds)
        found = answer_of(folder)
        assert (found.verdict, found.winners) == ("untested", ())
        assert found.lead.startswith(f"{few} not enough to compare losses on arithmetic")
        assert found.lead.endswith("Run five or more seeds.")
        assert "significant" not in text_of(found)
        assert "smmd 90.0 %" in text_of(found) or len(seeds) == 2
        assert all(score.better is None for score in scores(setup_of(folder)))

    @pytest.mark.parametrize("seeds", [2, 3, 5])
    def test_every_interval_is_within_what_is_possible(self, tmp_path: Path, seeds: int):
        def luck(seed: int, split: str, index: int) -> int | None:
            return 0 if (seed + index) % (2 + seed) else None if index % 7 == 0 else 1

        def one_better(seed: int, split: str, index: int) -> int | None:
            return 0 if index == 20 else ce(seed, split, index)

        setup = setup_of(make_run(tmp_path, {"ce": ce, "luck": luck, "one": one_better}, seeds=range(seeds)))
        for score in scores(setup):
            if score.measure.percent and score.measure.higher_is_better:
                assert 0 <= score.interval.low <= score.interval.estimate <= score.interval.high <= 1
            if score.gain is not None and score.gain_measure.percent:
                assert -1 <= score.gain.low <= score.gain.estimate <= score.gain.high <= 1
            assert score.label != "one" or score.better is None

    def test_one_loss_and_no_baseline(self, tmp_path: Path):
        assert "Only ce was run" in answer_of(make_run(tmp_path / "a", {"ce": ce})).lead
        assert "The baseline has no finished run" in answer_of(make_run(tmp_path / "b", {"smmd": smmd, "emd": ce})).lead

    @pytest.mark.parametrize(("off", "at"), [(1, "0 %"), (0, "100 %")])
    def test_nothing_to_tell_apart(self, tmp_path: Path, off: int, at: str):
        found = answer_of(make_run(tmp_path, {"ce": lambda *_: off, "smmd": lambda *_: off}))
        assert f"every loss scores {at} (exact answers)" in text_of(found)

    def test_nothing_ahead(self, tmp_path: Path):
        def luck(seed: int, split: str, index: int) -> int:
            return 0 if index < (10, 20, 20)[seed] else 1

        found = answer_of(make_run(tmp_path, {"ce": ce, "smmd": luck}))
        assert "No loss scores better than ce, not even by an insignificant amount." in text_of(found)

    def test_more_examples_where_seeds_agree(self, tmp_path: Path):
        def steady(seed: int, split: str, index: int) -> int:
            return 0 if index < 22 else 1

        found = answer_of(make_run(tmp_path, {"ce": ce, "smmd": steady}))
        assert "More test examples would be needed" in text_of(found)

    def test_no_seed_in_common(self, tmp_path: Path):
        make_run(tmp_path, {"ce": ce}, seeds=[0])
        make_run(tmp_path, {"smmd": smmd}, seeds=[1])
        assert "No loss shares a seed and at least two test examples with ce" in answer_of(tmp_path).lead


class TestSetups:
    def test_models_and_tasks_apart(self, tmp_path: Path):
        for config in ({}, {"model": "smollm2"}, {"task": "regression"}, {"task_settings": {"difficulty": 3}, "steps": 41}):
            make_run(tmp_path, {"ce": ce, "smmd": smmd}, seeds=[0], config=config)
        titles = [setup.title for setup in setups(read_run(tmp_path))]
        assert titles == [
            "arithmetic (smollm2)",
            "arithmetic (tiny), default settings",
            "arithmetic (tiny), difficulty=3",
            "regression (tiny)",
        ]

    def test_losses_that_were_tuned_apart_stay_together(self, tmp_path: Path):
        make_run(tmp_path, {"ce": ce}, config={"learning_rate": 0.1})
        make_run(tmp_path, {"smmd": smmd}, config={"learning_rate": 0.2})
        assert setup_of(tmp_path).labels == ("ce", "smmd")

    @pytest.mark.parametrize(
        ("other", "message"),
        [
            ({"prompt": "Another question?"}, "other examples of split 'interpolate'"),
            ({"change": lambda row: row["measures"].pop("parsed")}, "other metrics of split 'interpolate'"),
        ],
    )
    def test_other_examples_or_measures(self, tmp_path: Path, other: dict[str, Any], message: str):
        """As where the data changed between two runs."""
        make_run(tmp_path, {"ce": ce})
        make_run(tmp_path, {"smmd": smmd}, **other)
        with pytest.raises(ValueError, match=rf"cannot be compared \({message}"):
            setups(read_run(tmp_path))

    def test_the_baseline_comes_first_then_the_best(self, tmp_path: Path):
        make_run(tmp_path, {"ce": ce, "bad": lambda *_: 1, "smmd": smmd, "good": lambda *_: 0})
        assert setup_of(tmp_path).labels == ("ce", "good", "smmd", "bad")


class TestRecords:
    def test_no_run(self, tmp_path: Path):
        with pytest.raises(ValueError, match="has no experiment.json: expected a folder written by `numerate compare`"):
            read_run(tmp_path)

    def test_nothing_finished(self, tmp_path: Path):
        make_run(tmp_path, {"ce": ce}, seeds=[0])
        next(tmp_path.glob("cells/*/result.json")).unlink()
        with pytest.raises(ValueError, match="has no finished run .1 unfinished.: nothing to report yet"):
            write_report(tmp_path)
        assert not list(tmp_path.glob("report*"))

    def test_a_half_written_cell_is_named_and_left_out(self, tmp_path: Path):
        make_run(tmp_path, {"ce": ce, "smmd": smmd}, seeds=[0])
        (cell,) = tmp_path.glob("cells/*smmd*")
        (cell / "result.json").unlink()
        with (cell / "predictions.jsonl").open("a") as file:
            file.write('{"split": "inter')
        with (cell / "curve.jsonl").open("a") as file:
            file.write('{"step": 50, "lo')
        run = read_run(tmp_path)
        assert [cell.label for cell in run.cells] == ["ce"]
        assert [(one.label, one.seed, one.steps) for one in run.unfinished] == [("smmd", 0, 40)]

    def test_cells_that_were_planned_but_not_begun(self, tmp_path: Path):
        make_run(tmp_path, {"ce": ce}, seeds=[0])
        (cell,) = (tmp_path / "cells").iterdir()
        make_run(tmp_path, {"tuning trial": smmd}, seeds=[1000], experiment={"cells": [cell.name, "0123abcd"]})
        run = read_run(tmp_path)
        assert [one.label for one in run.cells] == ["ce"]
        assert [one.folder.name for one in run.unfinished] == ["0123abcd"]

    def test_cells_cannot_lie_elsewhere(self, tmp_path: Path):
        make_run(tmp_path, {"ce": ce}, seeds=[0], experiment={"cells": ["../../secret"]})
        with pytest.raises(ValueError, match="is not a list of folders"):
            read_run(tmp_path)

    @pytest.mark.parametrize("file", ["predictions.jsonl", "curve.jsonl"])
    def test_a_truncated_line_of_a_finished_cell(self, tmp_path: Path, file: str):
        make_run(tmp_path, {"ce": ce}, seeds=[0])
        (path,) = tmp_path.glob(f"cells/*/{file}")
        last = len(path.read_text().splitlines())
        path.write_text(path.read_text()[:-9])
        with pytest.raises(ValueError, match=rf"{file}, line {last}: not JSON"):
            read_run(tmp_path)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (lambda row: row.pop("gold"), "line 1: 'gold' is missing"),
            (lambda row: row.update(output=7), "line 1: output=7 is not a string"),
            (lambda row: row["measures"].update(exact=math.nan), "line 1: exact is NaN"),
            (lambda row: row.update(measures=[1]), "line 1: .*keys"),
            (lambda row: row["index"] == 3 and row["measures"].pop("parsed"), "line 4: measures are exact, absolute_error"),
            (lambda row: row["measures"].pop("exact"), "headline='exact' is not a metric of split 'interpolate'"),
        ],
    )
    def test_broken_rows(self, tmp_path: Path, change: Callable[[dict[str, Any]], Any], message: str):
        make_run(tmp_path, {"ce": ce}, seeds=[0], change=change)
        with pytest.raises(ValueError, match=message):
            read_run(tmp_path)

    def test_fewer_lines_than_the_result_says(self, tmp_path: Path):
        make_run(tmp_path, {"ce": ce}, seeds=[0])
        (path,) = tmp_path.glob("cells/*/predictions.jsonl")
        path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
        with pytest.raises(ValueError, match="has 39 lines of split 'extrapolate', but result.json says 40"):
            read_run(tmp_path)

    @pytest.mark.parametrize(
        ("name", "text", "message"),
        [
            ("config.json", "{", "config.json is not JSON"),
            ("config.json", "[]", "config.json holds a list: expected an object"),
            ("config.json", '{"label": "ce"}', "seed=None is not an integer"),
            ("config.json", '{"seed": 1}', "label=None is not a string"),
            ("result.json", '{"splits": []}', "splits is a list"),
            ("predictions.jsonl", "", "is empty"),
            ("predictions.jsonl", "[]\n", "line 1: a list: expected an object"),
            ("predictions.jsonl", None, "has a result.json but no predictions.jsonl"),
        ],
    )
    def test_broken_files(self, tmp_path: Path, name: str, text: str | None, message: str):
        make_run(tmp_path, {"ce": ce}, seeds=[0])
        (path,) = tmp_path.glob(f"cells/*/{name}")
        path.unlink() if text is None else path.write_text(text)
        with pytest.raises(ValueError, match=message):
            read_run(tmp_path)


def table(address: str) -> list[dict[str, str]]:
    kind, data = address.split(",", 1)
    assert kind == "data:text/csv;charset=utf-8;base64"
    return list(csv.DictReader(io.StringIO(base64.b64decode(data).decode())))


class TestPage:
    def test_runs_its_own_script_alone(self, page: Path):
        text = page.read_text(encoding="utf-8")
        (script,) = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
        allowed = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        assert f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{allowed}'" in text

    def test_says_the_answer_and_the_numbers(self, page: Path):
        text = re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", page.read_text(encoding="utf-8")))
        what = "arithmetic (tiny, not pre-trained)"
        assert f"smmd is significantly better than ce on {what}, in range: exact answers 87.5 % vs 50.0 %" in text
        assert "+37.5" in text
        assert "Not shown: scores by length of the number (the gold answers are not plain numbers of different lengths)." in text

    def test_every_figure_has_a_caption_a_name_and_its_data(self, page: Path):
        text = page.read_text(encoding="utf-8")
        found = ReportPage(page)
        names = ["overview", "differences", "predictions", "errors", "places", "calibration", "curves", "examples"]
        assert [len(found.all(tag)) for tag in ("figure", "figcaption")] == [len(names) - 1] * 2
        drawn = len(names)  # the overview twice, for a narrow screen too
        assert len(found.all("svg")) == drawn
        assert len(re.findall(r'<svg [^>]*role="img" aria-label="[^"]{40,}"', text)) == drawn
        assert set(found.downloads) == {"report.csv", *(f"s1_{name}.csv" for name in names)}
        assert all(table(address) for address in found.downloads.values())
        (ours, *_) = [row for row in table(found.downloads["s1_differences.csv"]) if row["split"] == "interpolate"]
        assert (ours["loss"], float(ours["difference"]), ours["better"]) == ("smmd", 0.375, "true")

    def test_json_is_strict_and_whole(self, page: Path):
        told = strict(page.with_suffix(".json").read_text(encoding="utf-8"))
        assert told["answer"] == "smmd raised exact answers on arithmetic from 50.0 % to 87.5 %."
        assert told["answers"][0]["sentences"][0].startswith("smmd is significantly better than ce")
        assert any(line.startswith("Absolute error (share of") for line in told["answers"][0]["sentences"])
        (ours,) = [
            row for row in told["scores"] if (row["label"], row["split"], row["measure"]) == ("smmd", "interpolate", "exact")
        ]
        assert (ours["value"], ours["difference"], ours["better"], ours["headline"]) == (
            pytest.approx(0.875),
            pytest.approx(0.375),
            True,
            True,
        )
        assert told["costs"][1]["time_ratio"] == pytest.approx(1.1)
        assert {one["figure"] for one in told["figures"]} >= {"differences", "errors", "curves"}

    def test_csv_has_a_row_for_each_score(self, page: Path):
        rows = list(csv.DictReader(io.StringIO(page.with_suffix(".csv").read_text(encoding="utf-8"))))
        assert len(rows) == 2 * 2 * len(MEASURES)
        (base,) = [row for row in rows if (row["label"], row["split"], row["measure"]) == ("ce", "extrapolate", "exact")]
        assert (base["task"], base["model"], base["value"], base["p"], base["difference"]) == (
            "arithmetic",
            "tiny",
            "0.5",
            "",
            "",
        )

    def test_is_the_same_every_time(self, page: Path, run: Path, tmp_path: Path):
        again = write_report(run, tmp_path / "new" / "name.html")
        assert again == tmp_path / "new" / "name.html"
        assert again.read_bytes() == page.read_bytes()
        assert sorted(path.name for path in again.parent.iterdir()) == ["name.csv", "name.html", "name.json"]
        with pytest.raises(OSError, match="name.csv cannot be written to"):
            write_report(run, again.with_suffix(".csv"))

    @pytest.mark.skipif(shutil.which("chromium") is None, reason="needs Chromium")
    def test_opens_in_a_browser_without_complaints(self, page: Path, tmp_path: Path):
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", f"--user-data-dir={tmp_path}"]
        command = ["chromium", *flags, "--dump-dom", page.as_uri()]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
        assert "does a numeric loss help?" in done.stdout
        assert "</svg>" in done.stdout
        assert "CONSOLE" not in done.stderr

    def test_needs_its_packages(self, run: Path, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setitem(__import__("sys").modules, "jinja2", None)
        with pytest.raises(ModuleNotFoundError, match=r"a report needs jinja2: run pip install 'numerate\[report\]'"):
            write_report(run)


class TestStackedRuns:
    def test_no_column_for_a_time_that_was_not_measured(self, tmp_path: Path):
        folder = make_run(tmp_path, {"ce": ce, "smmd": smmd})
        assert '<th scope="col">Time per step</th>' in write_report(folder).read_text()
        reconfigure(folder, "result.json", cost={"train_seconds": 4.0, "stacked": 6})
        page = write_report(folder).read_text()
        assert "Time per step" not in page
        assert 'scope="rowgroup" colspan="6"' in page  # loss, score, difference, p, effect size, verdict

    def test_soft_labels_of_one_loss(self, tmp_path: Path):
        folder = make_run(tmp_path, {"ce": ce, "soft": smmd})
        reconfigure(folder, cells="*soft*", loss="ce", soft={"path": "drawn", "width": None, "relative": 0.1})
        page = write_report(folder).read_text()
        assert '<td class="left">soft path drawn, relative 0.1</td>' in page
        assert '<td class="left">soft</td>' not in page
        assert "stays above the entropy of the labels" in page
        assert "stays above" not in write_report(make_run(tmp_path / "hard", {"ce": ce, "smmd": smmd})).read_text()


class TestSeveral:
    """One page of two setups: boxes with one seed and no digits, and a task of which a run is not finished."""

    def test_page(self, tmp_path: Path):
        def boxes(row: dict[str, Any]) -> None:
            overlap = row["measures"]["exact"] * 0.8
            row["measures"] = {"acc_50": float(overlap >= 0.5), "iou": overlap}

        box = {"headline": "acc_50", "splits": ["interpolate"], "digits": False, "config": {"task": "grounding"}}
        make_run(tmp_path, {"ce": ce, "smmd": smmd}, seeds=[0], change=boxes, **box)
        make_run(tmp_path, {"ce": ce, "smmd": smmd}, splits=["interpolate"], digits=False)
        make_run(tmp_path, {"emd": ce}, seeds=[7])
        (cell,) = tmp_path.glob("cells/*emd*")
        (cell / "result.json").unlink()
        found = ReportPage(write_report(tmp_path))
        text = found.text
        assert "A loss beat cross-entropy on 1 of 2 tasks: arithmetic." in text
        assert '<dd class="note">1 untested</dd>' in text
        assert "One seed is not enough to compare losses on grounding (tiny)" in text
        assert "calibration (the records contain no digits)" in text
        assert "<li><bdi>emd</bdi>, seed 7, 40 steps" in text
        assert "≥ 0.75" in text
        ids = found.values("id")
        assert {"s1", "s2", "unfinished"} <= set(ids)
        assert len(ids) == len(set(ids))
        assert {"s1_errors.csv", "s2_errors.csv"} <= set(found.downloads)


NASTY = (
    "<script>alert(1)</script></script></svg><img src=http://x.example/ onerror=alert(2)> \"'&{{ 7 * 7 }} $a_b$ \u202e\x00\ud800"
)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from PIL import Image

    folder = tmp_path_factory.mktemp("hostile")

    def change(row: dict[str, Any]) -> None:
        row["output"] = f"=1+1{NASTY}" * (100 if row["index"] % 2 else 1)
        row["gold"] = NASTY
        row["measures"][NASTY] = 1.0
        row["image"] = ["images/a.png", "../../../outside.png", "broken.png", "missing.png"][row["index"] % 4]

    Image.new("RGB", (3000, 1000), "red").save(folder / "outside.png")
    run = folder / "run"
    texts = {
        "name": NASTY,
        "baseline": f"ce{NASTY}",
        "command": NASTY,
        "config": {NASTY: NASTY},
        "environment": {NASTY: NASTY, "device": NASTY},
    }
    config = {"model": NASTY, "task_settings": {NASTY: NASTY}}
    losses = {f"ce{NASTY}": lambda *_: None, f"_$a_b${NASTY}": smmd}
    make_run(run, losses, seeds=(0, 1), headline="relative_error", prompt=NASTY, config=config, experiment=texts, change=change)
    for cell in (run / "cells").iterdir():
        (cell / "images").mkdir()
        Image.new("RGB", (3000, 1000), "red").save(cell / "images" / "a.png")
        (cell / "broken.png").write_text("no picture")
    return write_report(run)


class TestPlacesInPictures:
    """Boxes that answers name are drawn into the pictures of the examples."""

    @pytest.fixture
    def page(self, tmp_path: Path) -> Path:
        from PIL import Image

        def change(row: dict[str, Any]) -> None:
            said = row["measures"]["exact"] == 1
            row["gold"], row["image"] = "[0.100, 0.200, 0.300, 0.400]", "a.png"
            row["output"] = row["gold"] if said else "I cannot tell." if row["index"] % 2 else f"[-7, 0.5, 0.8, 1{'0' * 400}]"

        config = {"task": "grounding", "task_settings": {"objects": [1, 1]}}
        make_run(tmp_path, {"ce": lambda *_: None, "smmd": smmd}, config=config, change=change, splits=["interpolate"])
        Image.new("RGB", (40, 20), "red").save(tmp_path / "a.png")
        return write_report(tmp_path)

    def test_of_every_loss_and_of_the_gold_answer_on_top(self, page: Path):
        setup = setup_of(page.parent)
        shown = differing(setup, headline_of(setup)).examples
        gold, far = "0.1,0.2 0.3,0.2 0.3,0.4 0.1,0.4", "-1,0.5 0.8,0.5 0.8,2 -1,2"
        for example in shown:
            said = [(answer.label, far if answer.mark == "wrong" else gold) for answer in example.answers]
            named = [each for each in said if each[1] == gold or example.index % 2 == 0]
            assert example.outlines == (*named, (None, gold))
        assert {label for example in shown for label, _ in example.outlines} == {"ce", "smmd", None}

    def test_in_the_page(self, page: Path):
        text = page.read_text(encoding="utf-8")
        drawn = re.findall(r'<polygon data-loss="(\w+)" style="stroke: var\(--\w+\)" points="[-\d., ]+"/>', text)
        assert set(drawn) == {loss_key("ce"), loss_key("smmd")}
        assert "In the pictures: the gold answer, dashed" in text

    def test_not_of_a_task_that_is_not_known(self, page: Path):
        for file in page.parent.glob("cells/*/config.json"):
            file.write_text(file.read_text().replace('"objects"', '"shapes"'))
        text = write_report(page.parent).read_text(encoding="utf-8")
        assert "<img" in text
        assert "<polygon" not in text
        assert "In the pictures" not in text


class TestHostileText:
    """One page with hostile text everywhere, images, two seeds, and infinite medians."""

    def test_two_seeds_give_no_column_of_verdicts(self, hostile: Path):
        text = hostile.read_text(encoding="utf-8")
        assert "Two seeds are not enough" in text
        assert ">2 seeds</span>" not in text
        assert ">Verdict</th>" not in text

    def test_no_tag_comes_from_data(self, hostile: Path):
        found = ReportPage(hostile)
        text = found.text
        assert len(found.all("script")) == text.count("<script") == 1  # the page's own
        assert not [name for _, given, _ in found.elements for name in given if name.startswith("on")]
        assert all(address.startswith(("data:", "#")) for address in found.values("href", "src", "xlink:href", "action", "data"))
        assert "{{ 7 * 7 }}" in text
        assert not set(text) & set("\x00\u202e")
        assert "⟨U+202E⟩⟨U+0000⟩⟨U+D800⟩" in text

    def test_figures_stay_well_formed(self, hostile: Path):
        from xml.etree import ElementTree

        drawings = re.findall(r"<svg .*?</svg>", hostile.read_text(encoding="utf-8"), re.DOTALL)
        assert len(drawings) >= 5
        assert any("_$a_b$&lt;script&gt;" in drawing for drawing in drawings)
        for drawing in drawings:
            tags = {element.tag for element in ElementTree.fromstring(drawing).iter()}
            assert tags <= {"svg", "g", "path", "text", "tspan", "use", "defs", "clipPath", "rect", "pattern", "title"}

    def test_pictures_are_small_and_from_the_run_alone(self, hostile: Path):
        images = [given["src"] for given in ReportPage(hostile).all("img")]
        assert images
        assert all(re.match(r"data:image/(png|jpeg);base64,", image) and len(image) < 4000 for image in images)
        setup = setup_of(hostile.parent)
        shown = differing(setup, headline_of(setup)).examples
        assert all((example.image is not None) == (example.index % 4 == 0) for example in shown)

    def test_tables_start_no_formula(self, hostile: Path):
        rows = table(ReportPage(hostile).downloads["s1_examples.csv"])
        assert all(row["output"].startswith("'=1+1") and len(row["output"]) <= 2001 for row in rows)

    def test_json_has_no_infinity(self, hostile: Path):
        told = strict(hostile.with_suffix(".json").read_text(encoding="utf-8"))
        base = next(row for row in told["scores"] if row["label"] == f"ce{NASTY}" and row["measure"] == "relative_error")
        assert base["value"] is None

    def test_stays_small(self, hostile: Path):
        assert hostile.stat().st_size < 1_000_000


class TestExamples:
    def test_both_ways_and_counted(self, run: Path):
        setup = setup_of(run)
        found = differing(setup, headline_of(setup))
        assert found.counts == (("interpolate", 40, 16, 16, 0), ("extrapolate", 40, 10, 10, 0))
        chosen = {example.index for example in found.examples if example.split == "extrapolate"}
        assert len(chosen) == 6
        assert chosen < set(range(20, 30))
        assert chosen != set(range(20, 26))  # not the first ones
        answers = found.examples[0].answers
        assert [(answer.label, answer.mark) for answer in answers] == [("ce", "wrong"), ("smmd", "right")]

    def test_the_few_that_are_lost_are_not_left_out(self, tmp_path: Path):
        def wins_but_once(seed: int, split: str, index: int) -> int:
            return 1 if index == 4 else 0

        make_run(tmp_path, {"ce": ce, "smmd": wins_but_once}, splits=["interpolate"])
        setup = setup_of(tmp_path)
        found = differing(setup, headline_of(setup), limit=4)
        assert len(found.examples) == 4
        assert 4 in {example.index for example in found.examples}
        assert found == differing(setup, headline_of(setup), limit=4)

    def test_none_where_all_agree(self, tmp_path: Path):
        setup = setup_of(make_run(tmp_path, {"ce": ce, "smmd": ce}))
        assert differing(setup, headline_of(setup)) is None
