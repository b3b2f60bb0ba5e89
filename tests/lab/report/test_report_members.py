"""Losses x members in the report: pools against one member of the same runs, over seeds and never over members."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from tests.lab.report.simulated import headline_of, setup_in_memory, write_cell, write_experiment

from numerate.lab.evaluation.decisions import pool_sizes
from numerate.lab.evaluation.error_sources import Pool, pooled, read_decisions
from numerate.lab.report import write_report
from numerate.lab.report.analysis import costs, scores
from numerate.lab.report.answer import answer
from numerate.lab.report.decisions import decisions
from numerate.lab.report.figures.drawing import styles
from numerate.lab.report.figures.members import by_members
from numerate.lab.report.member_scores import disagreement_sentence, member_sentence, members, which_is_which
from numerate.lab.report.recommended import check_recommendation
from numerate.lab.report.summary import summarise
from numerate.lab.stats import compare

EXAMPLES = 60
GOLDS = tuple(map(str, range(EXAMPLES)))


def errors(label, seed, size, gain=0.7):
    """Return absolute errors of a pool: those of one member, less with more members; soft is better than ce."""
    rng = np.random.default_rng([seed, sum(map(ord, label))])
    own = (4.0 if label.startswith("ce") else 3.0) * (1 + rng.random(EXAMPLES))
    return own * gain ** np.log2(size) * (1 + 0.02 * np.random.default_rng([seed, size]).random(EXAMPLES))


def made(sizes, seeds=5, gain=0.7):
    """Return a setup; ``sizes`` are the members of each loss."""
    pairs = [(label, rule) for label, most in sizes.items() for rule in ("greedy", "median", pooled("median", most))]

    def measures(label, rule, seed, split):
        size = sizes[label] if " of " in rule else 1
        worse = 1.2 if rule == "greedy" else 1.0
        return {"absolute_error": worse * errors(label, seed, size, gain)}

    setup = setup_in_memory(
        dict.fromkeys(pairs), measures, GOLDS, headline="absolute_error", seeds=seeds, config=lambda label: {"loss": "ce"}
    )
    for label, cells in setup.cells.items():
        for seed, run in cells.items():
            part = run.splits["interpolate"]
            ones = np.ones(EXAMPLES)
            known = pool_sizes(sizes[label]) if sizes[label] > 1 else []
            pools = {size: {"median": {"absolute_error": errors(label, seed, size, gain)}} for size in known}
            decided = replace(
                part.decided,
                pools={size: Pool(own, ones * (size > 1), ones / size) for size, own in pools.items()},
                within=3 * ones,
                disagreement=ones,
            )
            cells[seed] = replace(
                run,
                splits={"interpolate": replace(part, decided=decided)},
                cost={"train_seconds": 8.0 * sizes[label], "parameters": 100.0, "trained_parameters": 10.0},
            )
    return setup


def pools_of(setup):
    return members(setup, decisions(setup))


def screen(setup):
    return summarise(setup, costs(setup), check_recommendation(setup, headline_of(setup)), None, pools_of(setup))


def test_each_pool_is_compared_with_one_member_of_the_same_runs():
    setup = made({"ce": 8, "soft": 4})
    found = pools_of(setup)
    assert [(pool.label, pool.members) for pool in found.pools] == [
        *(("ce", 1), ("ce", 2), ("ce", 4), ("ce", 8)),
        *(("soft", 1), ("soft", 2), ("soft", 4)),
    ]
    for pool in found.pools:
        score = pool.scores["median"]
        mine, one = (setup.values(pool.label, "interpolate", "absolute_error", pooled("median", k)) for k in (pool.members, 1))
        assert score.interval.estimate == pytest.approx(np.median(mine.mean(1)))
        if pool.members == 1:
            assert score.comparison is None
            continue
        assert score.family == 5
        assert score.comparison.seeds == 5
        assert score.comparison.p_value == pytest.approx(compare(mine, one, bounds=(0, np.inf)).p_value)  # paired by seed
        assert score.better is True


def test_members_are_never_observations():
    """One run of eight members is one observation: it has no verdict, however many members agree."""
    setup = made({"ce": 8, "soft": 8}, seeds=1)
    found = pools_of(setup)
    assert not found.tested
    every = [*scores(setup), *(score for pool in found.pools for score in pool.scores.values())]
    assert {score.seeds for score in every} == {1}
    assert {score.better for score in every} == {None}
    assert all(score.comparison is None or score.comparison.seeds == 1 for score in every)
    assert "p =" not in member_sentence(setup, found)
    assert "p <" not in member_sentence(setup, found)
    first = screen(setup)
    assert first.verdict == "untested"
    assert "One seed is too few" in first.sentence
    assert "pool" not in first.sentence
    assert answer(setup, headline_of(setup), costs(setup), "price").verdict == "untested"
    assert which_is_which(setup).startswith("Seeds are independent runs, over which intervals and p-values are computed (1 seed)")


def test_runs_with_one_and_with_eight_members_are_paired_by_seed():
    """Eight seeds of one member against eight seeds of eight: eight pairs, also when some seeds are missing."""
    setup = made({"ce": 1, "soft": 8}, seeds=8)
    best = next(score for score in screen(setup).pairs if (score.label, score.decision) == ("soft", "median of 8 members"))
    assert best.comparison.seeds == 8
    base, mine = setup.values("ce", "interpolate", "absolute_error"), errors_of(setup, "soft", 8)
    assert best.comparison.p_value == pytest.approx(compare(mine, base, bounds=(0, np.inf)).p_value)
    del setup.cells["ce"][3], setup.cells["soft"][5]
    best = next(score for score in screen(setup).pairs if (score.label, score.decision) == ("soft", "median of 8 members"))
    assert best.comparison.seeds == 6


def errors_of(setup, label, size):
    return setup.values(label, "interpolate", "absolute_error", pooled("median", size))


def test_losses_without_pools_are_compared_by_what_they_have():
    setup = made({"ce": 1, "soft": 4})
    assert setup.decisions() == ("greedy", "median", "median of 4 members")
    assert setup.decisions("ce") == ("greedy", "median")
    assert setup.sizes("ce") == ()
    of_pools = [score for score in headline_of(setup) if score.decision == "median of 4 members"]
    assert [(score.label, score.comparison) for score in of_pools] == [("soft", None)]  # ce has no such pool to compare it with


def test_the_first_screen_says_what_a_pool_gains_and_costs():
    first = screen(made({"ce": 8, "soft": 8}))
    assert first.verdict == "better"
    assert "A pool of 8 members cuts the mean absolute error by 66 % against one member (p < 0.001)." in first.sentence
    assert "64.0 s to train (one: 8.00)" in first.note
    nothing = screen(made({"ce": 8, "soft": 8}, gain=1.0))
    assert "pool of 8" not in nothing.sentence


def test_the_sentences():
    setup = made({"ce": 8, "soft": 4})
    found = pools_of(setup)
    told = member_sentence(setup, found)
    assert told.startswith(
        "Deciding by median from the pool of 8 members instead of from one changes the mean absolute error: ce from"
    )
    assert "soft with 4 from" in told
    assert "25 % for ce and 25 % for soft" in disagreement_sentence(setup, found)
    assert "the 4 to 8 members of a run share its training rows" in which_is_which(setup)
    assert which_is_which(made({"ce": 1})) == ""
    assert pools_of(made({"ce": 1, "soft": 1})) is None


def test_nothing_helps_and_the_answer_names_what_was_compared():
    def measures(label, rule, seed, split):
        return {"absolute_error": np.random.default_rng([seed, len(label), len(rule)]).random(EXAMPLES)}

    pairs = [(label, rule) for label in ("ce", "ce padded") for rule in ("greedy", "median", "median of 8 members")]
    config = lambda label: {"loss": "ce", "format": "padded"} if "padded" in label else {"loss": "ce"}  # noqa: E731
    setup = setup_in_memory(pairs, measures, GOLDS, headline="absolute_error", config=config)
    ones = np.ones(EXAMPLES)
    for cells in setup.cells.values():
        for seed, run in cells.items():
            part = run.splits["interpolate"]
            pools = {k: Pool({"median": part.decided.measures[pooled("median", k)]}, ones, ones) for k in (1, 8)}
            decided = replace(part.decided, pools=pools, within=ones, disagreement=ones)
            cells[seed] = replace(run, splits={"interpolate": replace(part, decided=decided)})
    assert setup.dimensions() == ["format", "decision", "number of members"]
    assert "No format, decision or number of members was significantly better than cross-entropy on regression." in (
        summarise(setup, costs(setup), None, None, pools_of(setup)).sentence
    )
    assert answer(setup, headline_of(setup), costs(setup), "price").lead.startswith("No format differs significantly from ce")


def records(seed, members):
    """Return records of a run whose pools are better with more members."""
    rows = []
    for i in range(30):
        rng = np.random.default_rng([seed, i])
        off = 4 + rng.random()

        def decided(size, off=off):
            error = off * 0.8 ** np.log2(size)
            return {
                "decisions": {"median": {"answer": f"{100 + error:.3f}", "measures": {"absolute_error": error, "parsed": 1.0}}},
                "median": "100",
                "interval": ["90", "110"],
                "level": 0.9,
                "covers": size > 1,
                "crps": error / 2,
            }

        row = {"split": "interpolate", "index": i, "prompt": f"question {i}", "gold": "100", "output": "105", "answer": "105"}
        row |= {"nll": 1.0, "digits": [], "measures": {"absolute_error": 5 + rng.random(), "parsed": 1.0}}
        row |= {
            **decided(members),
            "truth": "100",
            "distribution": {"values": ["99", "101"], "probabilities": [0.5, 0.5], "covered": 1},
        }
        row |= {"expected": {}, "seconds": {"greedy": 0.001, "search": 0.008}}
        if members > 1:
            row["pools"] = {str(size): decided(size) for size in pool_sizes(members)[:-1]}
            row["members"] = {"within": 3.0, "disagreement": 1.0}
        rows.append(row)
    return rows


def test_a_run_with_one_member_is_read_as_before():
    found = read_decisions(records(0, 1))
    assert found.rules == ("median",)
    assert not found.pools
    pools = read_decisions(records(0, 8), 8)
    assert pools.rules == ("median", "median of 8 members")
    assert [*pools.pools] == [1, 2, 4, 8]
    assert read_decisions(records(0, 8), 8, [2]).rules == ("median", "median of 2 members", "median of 8 members")
    assert pools.by("median of 4 members")["absolute_error"].mean() == pytest.approx(
        0.64 * pools.by("median")["absolute_error"].mean()
    )
    assert pools.covered_by("median").mean() == 0
    assert pools.covered_by("median of 8 members").mean() == 1
    assert read_decisions(records(0, 8)).rules == ("median",)  # for those who ask for the pool alone


def test_the_page_and_the_data_have_members(tmp_path):
    write_experiment(tmp_path, config={"members": [2, 8]})
    for label, most in (("ce", 8), ("soft", 8)):
        for seed in range(3):
            soft = {"soft": {"path": "drawn"}} if label == "soft" else {}
            config = {"task": "regression", "loss": "ce", "label": label, "seed": seed, "members": most, **soft}
            cost = {"train_seconds": 80.0, "parameters": 1000, "trained_parameters": 1000}
            write_cell(tmp_path / "cells" / f"{label}-{seed}", config, records(seed, most), "absolute_error", cost=cost)
    page = write_report(tmp_path)
    data, text = json.loads(page.with_suffix(".json").read_text()), page.read_text()
    rows = [row for row in data["members"] if row["loss"] == "soft"]
    assert [row["members"] for row in rows] == [1, 2, 4, 8]
    assert [row["train_seconds"] for row in rows] == [10, 20, 40, 80]
    assert [row["answer_ms"] for row in rows] == [1, 2, 4, 8]
    assert [row["parameters"] for row in rows] == [1000, 2000, 4000, 8000]
    assert [row["disagreement"] for row in rows] == [None, None, None, 0.25]
    assert rows[0]["p"] is None
    assert rows[3]["better"] is True
    decided = {row["decision"] for row in data["decisions"]}
    assert decided == {"greedy", "median", "median of 2 members", "median of 8 members"}
    assert "1 loss, up to 8 members and 3 seeds" not in text
    assert "2 losses, up to 8 members and 3 seeds" in text
    assert "does a numeric loss or a pool of members help?" in text
    assert "Losses and members" in text
    assert text.count("a run counts once, however many members it has") == 2
    assert "Score by number of members" in text


def test_baselines_of_the_figure():
    """One among the scores is a line; one far away is named, and does not flatten the lines of the losses."""
    found = pools_of(made({"ce": 8, "soft": 4}))
    plan = by_members(found, styles(["ce", "soft"], ["ce"]), {"gradient boosting": 3.0, "constant": 50.0})
    assert "Dashed: baselines, fitted to the same rows. Baselines beyond the axis: constant 50.0." in plan.caption
    axes = plan.draw(plan.data).axes[0]
    assert axes.get_ylim()[1] < 10
    assert [text.get_text() for text in axes.texts] == ["gradient boosting 3.00"]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1", "2", "4", "8"]
