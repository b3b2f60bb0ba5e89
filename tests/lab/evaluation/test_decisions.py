"""Decisions in evaluation: known distributions through record and summary, every task's answers, and settings."""

from __future__ import annotations

import json
import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from numerate.answers.metrics import FACE, METRICS
from numerate.cli import app
from numerate.distribution import CircularDistribution, NumberDistribution
from numerate.distribution.decision_rules import CIRCLE_RULE_NAMES, RULE_NAMES
from numerate.lab.comparison.cells import tuning_trials
from numerate.lab.comparison.plan import read_experiment
from numerate.lab.data import TASKS, Arithmetic, Clock, Regression, WordProblems
from numerate.lab.data.base import Example
from numerate.lab.evaluation import decisions
from numerate.lab.evaluation.decisions import (
    FITTING,
    SAMPLED,
    check_decisions,
    cost,
    decision_record,
    expected_cost,
    find_distributions,
    number_finder,
    prompts,
    recorded_distribution,
)
from numerate.lab.evaluation.error_sources import ErrorSources, error_sources, read_decisions
from numerate.lab.evaluation.evaluate import sample_measures
from numerate.lab.files.records import jsonable, read_jsonl
from numerate.lab.models.loading import load_model
from numerate.lab.training.config import RULES, RunConfig, checked
from numerate.lab.training.kept_runs import evaluate
from numerate.lab.training.run import run
from numerate.lab.wording.decisions import evaluation_sentences, source_sentence, summary_rows

EASY = {"difficulty": 1, "operations": "+-", "wording": "bare"}
QUICK = {"task_settings": EASY, "steps": 2, "batch_size": 4, "train_examples": 16, "eval_examples": 3, "log_every": 2}
ONE_NUMBER = {"arithmetic", "charts", "clock", "math_vision", "number_skills", "regression", "times"}
TODAY = {"split", "index", "prompt", "gold", "output", "answer", "measures", "nll", "digits"}
DECIDED = {"decisions", "distribution", "truth", "median", "interval", "level", "covers", "crps", "expected", "seconds"}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A finished run with its weights, without decisions; shared, so tests write elsewhere."""
    folder = tmp_path_factory.mktemp("trained")
    run(checked(RunConfig, {**QUICK, "keep_model": True}), folder)
    return folder


def near_the_truth(loaded, finder, examples, *, indices, **_):
    """The stand-in for a search: the gold number with 1/2, and 1 and 10 more with 1/4 each; nothing for index 2."""
    found = []
    for example, index in zip(examples, indices, strict=True):
        gold = Decimal(example.answer)
        parts = {"covered": 0.8, "drawn": 0.1, "no_number": 0.2}
        found.append(None if index == 2 else NumberDistribution([gold, gold + 1, gold + 10], [0.5, 0.25, 0.25], **parts))
    return found


# Tasks


@pytest.mark.parametrize("name", TASKS)
def test_every_task_says_what_its_answers_are(name):
    task = TASKS[name]()
    assert (task.answer_is == "one number") == (name in ONE_NUMBER)
    check_decisions((), task)
    if task.ends_in_number:
        check_decisions(("median",), task, samples=2)
        for example in task.examples("train", 9):
            number = NumberDistribution.point(task.read(example.answer)).median
            assert task.score(example, task.written(number)) == task.score(example, example.answer)
        return
    if name not in ONE_NUMBER:
        with pytest.raises(ValueError, match=rf"decide=median does not fit: .*{name}.* is {task.answer_is}.*Leave decide out"):
            check_decisions(("median",), task, samples=16)
        return
    check_decisions(("median",), task)
    grammar = task.answer_grammar()
    for split in task.splits:
        for example in task.examples(split, 1 if task.visual else 9):
            value = NumberDistribution.point(grammar.value(example.answer)).median
            assert grammar.state(example.answer) is not None
            assert task.read(task.written(value)) == task.read(example.answer)
            assert task.score(example, task.written(value)) == task.score(example, example.answer)


@pytest.mark.parametrize(
    ("operands", "difficulty"), [("integers", 5), ("decimals", 5), ("rationals", 1), ("rationals", 3), ("mixed", 3)]
)
def test_every_answer_of_arithmetic_fits_its_form(operands, difficulty):
    """A third is kept to 28 digits; the fraction is found again."""
    task = Arithmetic(operands=operands, difficulty=difficulty)
    grammar = task.answer_grammar()
    for split in task.splits:
        for example in task.examples(split, 60):
            value = grammar.value(example.answer)
            assert value is not None
            assert grammar.state(example.answer) is not None
            assert Fraction(value) == task.read(example.answer)
            assert task.score(example, task.written(NumberDistribution.point(value).median))["exact"] == 1


@given(st.integers(0, 719), st.floats(-0.49, 0.49))
def test_times_are_written_on_the_face(minutes, off):
    task = Clock()
    text = task.written(Decimal(minutes) + Decimal(off))
    assert task.read(text) == minutes
    assert task.answer_grammar().value(text) == minutes
    hour, minute = map(int, text.split("_"))
    assert 1 <= hour <= 12
    assert 0 <= minute < 60


@pytest.mark.parametrize(
    ("answers", "digits", "decimals", "thousands"),
    [(["5", "-12.50"], (1, 5), (0, 4), False), (["1,200", "7"], (1, 7), (0, 2), None)],
)
def test_the_form_follows_the_training_rows(answers, digits, decimals, thousands, tmp_path):
    path = tmp_path / "rows.jsonl"
    rows = [{"prompt": f"{i}?", "answer": answer, "split": "train"} for i, answer in enumerate(answers)]
    path.write_text("".join(json.dumps(row) + "\n" for row in [*rows, {"prompt": "x?", "answer": "123456789", "split": "test"}]))
    grammar = Regression.from_files(path).answer_grammar()
    assert (grammar.digits, grammar.decimals, grammar.thousands) == (digits, decimals, thousands)
    assert all(grammar.accepts(answer) for answer in answers)


@pytest.mark.parametrize("answer", ["It is 12.", "$12", "12 %", "about 3, no 4"])
def test_answers_in_files_that_are_not_plain_numbers(answer, tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"{i}?", "answer": answer}) + "\n" for i in range(12)))
    with pytest.raises(ValueError, match="the answer .* in the data of the task 'regression' is not a plain number.*--target"):
        check_decisions(("median",), Regression.from_files(path))


# Settings


def test_rules_are_checked_before_anything_is_loaded():
    assert checked(RunConfig, {"decide": "median, mean,median"}).decide == ("median", "mean")
    assert checked(RunConfig, {"decide": ["within_5"]}).decide == ("within_5",)
    assert checked(RunConfig, {"eval_splits": "interpolate"}).eval_splits == ("interpolate",)
    assert {*RULES} == {*RULE_NAMES} - {"within"}
    for rule in RULES:
        NumberDistribution.point(1).decide(rule)
    with pytest.raises(ValueError, match="decide='medain' is not known: .*Did you mean 'median'"):
        checked(RunConfig, {"decide": ("mean", "medain")})
    with pytest.raises(ValueError, match="decide='within' is not known: .*'within_5'"):
        checked(RunConfig, {"decide": "within"})
    for name in ("decide", "eval_splits"):
        for wrong in (3, [3], [["mode"]], {"mode": 1}):
            with pytest.raises(ValueError, match=name):
                checked(RunConfig, {name: wrong})


def test_only_used_settings_decide_the_hash():
    assert RunConfig(interval=0.8, decide_width=4).hash == RunConfig().hash
    some = RunConfig(decide=("median",))
    others = [RunConfig(), RunConfig(decide=("mean",)), RunConfig(decide=("median",), interval=0.8)]
    assert some.hash not in {other.hash for other in others}
    assert {"decide", "interval", "decide_width"} <= some.used.keys()
    assert not {"decide", "interval", "decide_width"} & RunConfig().used.keys()


def test_a_task_without_one_number_is_refused_before_training(tmp_path, monkeypatch):
    monkeypatch.setattr("numerate.lab.training.prepare.load_model", lambda *_, **__: pytest.fail("a model was loaded"))
    config = checked(RunConfig, {"task": "grounding", "model": "tiny-vlm", "decide": "median", "samples": 4})
    with pytest.raises(ValueError, match="an answer of the task 'grounding' is a box of four numbers"):
        run(config, tmp_path)
    config = checked(RunConfig, {"task": "word_problems", "decide": "median"})
    with pytest.raises(ValueError, match=r"'word_problems' is a worked solution.* but samples=0\. Add --set samples=16"):
        run(config, tmp_path)


def test_tuning_does_not_search():
    experiment = read_experiment({"losses": ["ce"], "decide": ["median"], "seeds": 1})
    assert all(cell.decide == ("median",) for cell in experiment.cells())
    assert all(trial.decide == () for trials in tuning_trials(experiment, 2).values() for trial in trials)


# Records


def test_a_record_of_a_known_distribution():
    task = Regression()
    shares = {"covered": 0.8, "drawn": 0.2, "more_digits": 0.05, "no_number": 0.1, "not_searched": 0.05}
    found = NumberDistribution([10, 12, 30], [0.3, 0.4, 0.3], **shares)
    record = decision_record(task, Example("?", "11"), "30", found, ("median", "mean", "mode"), 0.9)
    decided = {rule: one["answer"] for rule, one in record["decisions"].items()}
    assert decided == {"median": "12", "mean": "16.8", "mode": "12"}
    assert record["decisions"]["mean"]["measures"] == task.score(Example("?", "11"), "16.8")
    assert (record["median"], record["interval"], record["level"], record["covers"]) == ("12", ["10", "30"], 0.9, True)
    assert record["crps"] == pytest.approx(found.crps(11))
    assert recorded_distribution(json.loads(json.dumps(record))) == found
    expected = record["expected"]["absolute_error"]
    assert expected["greedy"] == pytest.approx(0.3 * 20 + 0.4 * 18)
    assert expected["decided"] == pytest.approx(0.3 * 2 + 0.3 * 18)
    assert expected["cost"] == 1
    assert record["expected"]["exact"] == {"greedy": pytest.approx(0.7), "decided": pytest.approx(0.6), "cost": 1}
    outside = decision_record(task, Example("?", "31"), "no idea", found, ("median",), 0.9)
    assert outside["covers"] is False
    assert outside["expected"]["absolute_error"]["greedy"] is None


@pytest.mark.parametrize("found", [None, NumberDistribution.point(4)])
def test_the_median_of_samples_is_a_decision(found):
    task, example = Regression(), Example("?", "11")
    record = decision_record(task, example, "30", found, ("mean",), 0.9, ["10", "about 12", "nothing", "30"])
    assert [*record["decisions"]] == [SAMPLED, "mean"]
    assert record["decisions"][SAMPLED] == {"answer": "12", "measures": task.score(example, "12")}
    nothing = decision_record(task, example, "30", found, ("mean",), 0.9, ["x", "y"])
    assert nothing["decisions"][SAMPLED] == {"answer": None, "measures": task.score(example, "")}


def test_worked_solutions_are_decided_from_samples(tmp_path, monkeypatch):
    drawn = ["2 + 3 = 5\n#### 5", "2 + 30 = 32\n#### 32", "2 * 3 = 6\n#### 6", "3 + 2 = 5\n#### 5", "no idea"]

    def stand_in(loaded, batch, members, limits, *, bf16, do_sample, num_return_sequences=1, **_):
        assert num_return_sequences == (len(drawn) if do_sample else 1)
        return [text for _ in batch for text in (drawn if do_sample else ["9 - 1 = 8\n#### 8"])]

    monkeypatch.setattr("numerate.lab.evaluation.evaluate._generate", stand_in)
    monkeypatch.setattr("numerate.lab.evaluation.evaluate.number_finder", lambda *_: pytest.fail("a solution was searched"))
    settings = {"task": "word_problems", "task_settings": {}, "decide": "mode,median", "samples": len(drawn)}
    settings["eval_splits"] = "interpolate"
    run(checked(RunConfig, QUICK | settings), tmp_path)
    records = [*read_jsonl(tmp_path / "predictions.jsonl")]
    assert len(records) == QUICK["eval_examples"]
    for record in records:
        gold = Example(record["prompt"], record["gold"])
        scores = {answer: jsonable(WordProblems().score(gold, answer)) for answer in ("#### 5", "#### 8")}
        assert record["answer"] == "8"
        assert [(rule, one["answer"]) for rule, one in record["decisions"].items()] == [("mode", "#### 5"), ("median", "#### 5")]
        assert record["decisions"]["mode"]["measures"].items() >= scores["#### 5"].items()
        assert record["measures"].items() >= scores["#### 8"].items()
        assert recorded_distribution(record) == NumberDistribution([5, 6, 32], [2, 1, 1], covered=0.8, drawn=0.8, no_number=0.2)
        assert record["expected"]["exact"]["decided"] == 0.5
        assert record["samples"] == drawn
    part = read_decisions(records)
    assert part.rules == ("mode", "median")
    assert part.seconds.keys() == {"greedy", "search"}


def test_the_interval_holds_a_fraction_that_is_its_end():
    task = Arithmetic(operands="rationals")
    record = decision_record(task, Example("?", "17/18"), "1", NumberDistribution.point(Fraction(17, 18)), ("mode",), 0.9)
    assert record["covers"] is True
    assert record["decisions"]["mode"] == {"answer": "17/18", "measures": task.score(Example("?", "17/18"), "17/18")}


def test_a_model_without_any_number():
    record = decision_record(Regression(), Example("?", "11"), "", None, ("median",), 0.9)
    assert record["decisions"]["median"]["answer"] is None
    assert record["decisions"]["median"]["measures"]["absolute_error"] == math.inf
    assert record["distribution"] is record["crps"] is record["covers"] is None
    assert recorded_distribution(record) is None


@given(
    st.lists(st.tuples(st.decimals(-99, 99, places=1), st.integers(1, 9)), min_size=1, max_size=6),
    st.decimals(-99, 99, places=1),
    st.sampled_from(sorted(FITTING.keys() - set(Clock.measures))),
)
def test_expected_costs_are_those_of_the_metric(pairs, said, measure):
    """The mean of the metric over the values; the fitting rule has the least of all values."""
    found = NumberDistribution.from_pairs(pairs)
    assert expected_cost(found, "absolute_error", Fraction(10) ** 400) == math.inf
    values = [(value, p) for value, p in zip(found.values, found.probabilities, strict=True)]
    if measure == "relative_error":
        values = [(value, p) for value, p in values if value != 0] or values
    total = sum(p for _, p in values)
    brute = sum(cost(measure, METRICS[measure](value, said)) * p for value, p in values) / total
    assert expected_cost(found, measure, Fraction(said)) == pytest.approx(brute, abs=1e-9)
    if measure != "relative_error" or found.cdf(0) == 0:
        best = expected_cost(found, measure, Fraction(found.decide(FITTING[measure])))
        assert best <= min(expected_cost(found, measure, Fraction(value)) for value in found.values) + 1e-9


# Evaluation


def test_a_run_without_decisions_is_as_before(trained):
    assert all(record.keys() - {"fallback"} == TODAY for record in read_jsonl(trained / "predictions.jsonl"))
    assert not {"decide", "interval", "decide_width"} & json.loads((trained / "config.json").read_text()).keys()


def test_decisions_without_training_again(trained, tmp_path, monkeypatch):
    """Known distributions through evaluation, files and summary; the greedy part of a record does not change."""
    monkeypatch.setattr("numerate.lab.evaluation.decisions.find_distributions", near_the_truth)
    evaluate(trained, {"decide": ("median", "mode", "mean"), "interval": 0.5}, tmp_path)
    records = read_jsonl(tmp_path / "predictions.jsonl")
    for record, before in zip(records, read_jsonl(trained / "predictions.jsonl"), strict=True):
        assert record.keys() - {"fallback"} == TODAY | DECIDED
        assert {name: record[name] for name in TODAY} == {name: before[name] for name in TODAY}
        assert record["seconds"].keys() == {"greedy", "search"}
        if record["index"] == 2:
            assert record["distribution"] is None
            continue
        gold = Decimal(record["gold"])
        off = {rule: Decimal(decided["answer"]) - gold for rule, decided in record["decisions"].items()}
        assert off == {"median": 0, "mode": 0, "mean": Decimal("2.75")}
        assert [Decimal(end) - gold for end in record["interval"]] == [0, 1]
        assert record["covers"] is True
        assert record["distribution"]["drawn"] == 0.1
    part = read_decisions([record for record in records if record["split"] == "interpolate"])
    assert part.rules == ("median", "mode", "mean")
    assert part.level == 0.5
    assert part.covered.tolist() == [0.8, 0.8, 0.0]
    rows = {(name, summary): dict(zip(part.measures, values, strict=True)) for name, summary, values in summary_rows(part)}
    assert rows["exact", "mean"]["median"] == pytest.approx(2 / 3)
    (fallback,) = (
        record["fallback"]["absolute_error"] for record in records if (record["split"], record["index"]) == ("interpolate", 2)
    )
    means = rows["absolute_error", "mean"]
    assert means["median"] == pytest.approx(fallback / 3)
    assert means["mean"] == pytest.approx((2 * 2.75 + fallback) / 3)
    assert rows["squared_error", "root mean"]["mean"] == pytest.approx(((2 * 2.75**2 + fallback**2) / 3) ** 0.5)


def test_the_search_is_that_of_the_library():
    from numerate.decode import distribution

    loaded, task = load_model("tiny"), Arithmetic(**EASY)
    loaded.model.eval()
    examples = list(task.examples("train", 3))
    finder = number_finder(loaded, task, 4)
    with torch.no_grad():
        found = find_distributions(loaded, finder, examples, indices=[0, 1, 2], seed=7, bf16=False)
    settings = {"grammar": task.answer_grammar(), "width": 4, "seed": 7, "end_token_ids": [loaded.end]}
    expected = distribution(loaded.model, prompts(loaded, examples), loaded.tokenizer, **settings)
    for mine, theirs in zip(found, expected, strict=True):
        assert mine.values == theirs.values
        assert mine.probabilities == pytest.approx(theirs.probabilities)
        assert mine.covered == pytest.approx(theirs.covered)


@pytest.mark.parametrize("rules", ["median,mean", "medain"])
def test_the_command(rules, trained, tmp_path):
    found = CliRunner().invoke(app, ["eval", str(trained), "--set", f"decide={rules}", "--out", str(tmp_path / "out")])
    if rules == "medain":
        assert found.exit_code != 0
        assert not (tmp_path / "out").exists()
        return
    assert found.exit_code == 0, found.output
    text = " ".join(found.output.split())
    assert "test rows: 3 examples" in text
    assert "Share of wrong answers" in text
    assert "The 90 % interval contains the gold number in" in text
    assert {"median", "mean"} <= read_jsonl(tmp_path / "out" / "predictions.jsonl")[0]["decisions"].keys()


# Where the error comes from


def records_of(rows):
    """Records with an absolute error: of greedy and decided answers, and what the model expects of both."""
    return [
        {
            "measures": {"absolute_error": greedy},
            "decisions": {"median": {"answer": "1", "measures": {"absolute_error": decided}}},
            "expected": {"absolute_error": {"greedy": own, "decided": best, "cost": decided}},
            "distribution": {"covered": 0.9},
            "level": 0.9,
            "covers": covers,
            "crps": 1.0,
            "seconds": {"greedy": 0.001, "search": 0.004},
        }
        for greedy, decided, own, best, covers in rows
    ]


def test_the_sources_of_an_error_add_up():
    part = read_decisions(
        records_of([(400.0, 300.0, 330.0, 290.0, True), (314.0, 340.0, 330.0, 300.0, False), (None, 1, 1, 1, True)])
    )
    sources = error_sources("absolute_error", [part])
    assert (sources.examples, sources.left_out) == (2, 1)
    assert (sources.greedy, sources.decided, sources.expected_greedy) == (357, 320, 330)
    assert (sources.decision, sources.spread, sources.surprise) == (37, 295, 25)
    assert sources.decision + sources.spread + sources.surprise == sources.greedy
    told = list(evaluation_sentences(part))
    assert told[0].startswith(
        "Mean absolute error 357 with greedy answers, 320 with the median: 10 % of it is the decision (95 %"
    )
    assert "it is overconfident by 25.0. (1 of 3 examples without a finite error left out.)" in told[0]
    assert "contains the gold number in 66.7 % of the examples; the distributions cover 90.0 %" in told[1]
    assert told[1].endswith("per example they take 4.00 ms, 4 × the time of a greedy answer.")
    nothing = read_decisions(records_of([(None, None, None, 1.0, None)]))
    assert np.isinf(nothing.measures["greedy"]["absolute_error"]).all()
    assert np.isinf(nothing.covers).all()
    assert error_sources("absolute_error", [nothing]) is None
    assert not any("absolute" in text for text in evaluation_sentences(nothing))


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ((300.0, 330.0, 300.0, 280.0), "330 with the median: greedy answers are better, by 10 %."),
        ((300.0, 300.0, 300.0, 300.0), "the decision changes nothing. With the median the model expects an error of 300: as it "),
        ((300.0, 200.0, 300.0, 250.0), "33 % of it is the decision, 67 % the model."),
        ((300.0, 200.0, 300.0, 250.0), "the model expects an error of 250: it is underconfident by 50.0."),
        ((0.0, 0.0, 0.0, 0.0), "Mean absolute error 0 with greedy answers"),
    ],
)
def test_sentences(values, said):
    assert said in source_sentence(ErrorSources("absolute_error", "median", 9, 0, *values))


def test_sentences_about_accuracies_count_wrong_answers():
    text = source_sentence(ErrorSources("exact", "mode", 9, 0, 0.4, 0.3, 0.35, 0.2), 0.04, 0.16)
    assert text == (
        "Share of wrong answers 40.0 % with greedy answers, 30.0 % with the mode: 25 % of it is the decision (95 % interval 10 "
        "to 40 %), 75 % the model. With the mode the model expects an error of 20.0 %: it is overconfident by 10.0 points."
    )


def test_records_without_decisions():
    assert read_decisions([{"measures": {"exact": 1.0}}]) is None
    with pytest.raises(KeyError):
        read_decisions([*records_of([(1.0, 1.0, 1.0, 1.0, True)]), {"measures": {"absolute_error": 1.0}}])


def test_the_documented_keys():
    assert DECIDED - {"seconds"} == decision_record(Regression(), Example("?", "1"), "1", None, ("median",), 0.9).keys()
    assert decisions.GREEDY not in RULES


# Clock times, on the face

CIRCULAR = [name for name, task in TASKS.items() if task.period is not None]
AROUND_TWELVE = NumberDistribution([717, 719, 1, 4, 300], [0.2, 0.2, 0.25, 0.25, 0.1], covered=0.9, no_number=0.1)


def record_of(gold, output, found=AROUND_TWELVE, rules=("median", "mean", "mode"), level=0.7, samples=None):
    return decision_record(Clock(), Example("?", gold), output, found, rules, level, samples)


def test_samples_are_scored_around_twelve():
    example = Example("?", "12_01")
    near = sample_measures(Clock(), example, ["11_59", "12_03"])
    assert near == {"sample_parsed": 1.0, "sample_crps": pytest.approx(1.0)}  # both are 2 off, and 4 apart
    assert sample_measures(Clock(), example, ["11_59", "noon"]) == {"sample_parsed": 0.5, "sample_crps": math.inf}


def test_a_record_around_twelve():
    """On a line, the median is 4, the mean twenty past five, and the interval nearly the whole face."""
    record = record_of("11_58", "12_04")
    decided = {rule: one["answer"] for rule, one in record["decisions"].items()}
    assert decided == {"median": "12_01", "mean": "12_30", "mode": "12_01"}
    assert record["decisions"]["median"]["measures"]["time_gap_circular"] == 3
    assert (record["truth"], record["median"], record["interval"]) == ("718", "1", ["717", "4"])
    assert record["covers"] is True
    assert record["crps"] == pytest.approx(CircularDistribution(AROUND_TWELVE, FACE).crps(718))
    assert record["crps"] < 5 < AROUND_TWELVE.crps(718)
    assert record["expected"]["time_gap_circular"] == {
        "greedy": pytest.approx(0.2 * 7 + 0.2 * 5 + 0.25 * 3 + 0.1 * 296),
        "decided": pytest.approx(0.2 * 4 + 0.2 * 2 + 0.25 * 3 + 0.1 * 299),
        "cost": 3,
    }
    assert record["expected"]["clock_accuracy"] == {"greedy": pytest.approx(0.75), "decided": pytest.approx(0.75), "cost": 1}
    saved = json.loads(json.dumps(record))
    assert recorded_distribution(saved) == AROUND_TWELVE
    assert saved["distribution"]["period"] == FACE


@pytest.mark.parametrize(
    ("gold", "covers"), [("11_57", True), ("12_00", True), ("12_04", True), ("12_05", False), ("6_00", False)]
)
def test_an_interval_that_wraps_around(gold, covers):
    record = record_of(gold, "12_00")
    assert record["interval"] == ["717", "4"]
    assert record["covers"] is covers


@given(
    st.lists(st.tuples(st.integers(0, 719), st.integers(1, 9)), min_size=1, max_size=6),
    st.integers(0, 719),
    st.sampled_from([measure for measure in Clock.measures if measure in FITTING]),
)
def test_expected_costs_on_the_face_are_those_of_the_metric(pairs, said, measure):
    found = CircularDistribution(NumberDistribution.from_pairs(pairs), FACE)
    weighted = [*zip(found.values, found.probabilities, strict=True)]
    brute = [sum(cost(measure, METRICS[measure](value, x)) * p for value, p in weighted) for x in (said, *range(FACE))]
    assert expected_cost(found, measure, Fraction(said)) == pytest.approx(brute[0], abs=1e-9)
    assert expected_cost(found, measure, Fraction(found.decide(FITTING[measure]))) == pytest.approx(min(brute), abs=1e-9)


def test_the_time_gap_has_a_fitting_rule():
    assert {measure for measure in Clock.measures if measure in FITTING} == {"clock_accuracy", "time_gap_circular"}


def test_the_median_of_samples_goes_around():
    record = record_of("12_00", "12_00", samples=["11_58", "11_59", "12_01", "no idea", "12_05", "12_02"])
    assert record["decisions"][SAMPLED]["answer"] == "12_01"


@pytest.mark.parametrize("name", CIRCULAR)
@pytest.mark.parametrize("rule", RULES)
def test_rules_without_a_meaning_are_refused_before_training(name, rule):
    task = TASKS[name]()
    if rule in CIRCLE_RULE_NAMES:
        check_decisions((rule,), task)
        assert task.written(CircularDistribution(AROUND_TWELVE, task.period).decide(rule))
    else:
        with pytest.raises(ValueError, match=rf"decide={rule} does not fit: .*{name}.* circle.*Expected one of .*median"):
            check_decisions(("median", rule), task)


def test_coverage_and_calibration_across_twelve():
    """The times are within an hour of twelve, on both sides."""
    task, rng = Clock(), np.random.default_rng(0)
    records = []
    for center, off in zip(rng.integers(-60, 60, 400).tolist(), rng.normal(0, 12, 400).round().astype(int).tolist(), strict=True):
        bell = NumberDistribution.bell(center, width=4)
        found = CircularDistribution(bell, FACE).distribution  # as a search finds it: minutes after twelve
        gold = task.written(Decimal(center + off))
        record = decision_record(task, Example("?", gold), gold, found, ("median",), 0.8)
        records.append(
            record | {"measures": record["decisions"]["median"]["measures"], "seconds": {"greedy": 1.0, "search": 2.0}}
        )
        assert record["decisions"]["median"]["measures"]["time_gap_circular"] == abs(off)
    part = read_decisions(records)
    assert part.covers.mean() < 0.5
    assert part.calibrated_covers.mean() == pytest.approx(0.8, abs=0.06)
    assert np.isinf(read_decisions(records[:7]).calibrated_covers).all()  # 0.8 needs four rows of each half
    sources = error_sources("time_gap_circular", [part])
    assert (sources.rule, sources.left_out) == ("median", 0)
    assert sources.decided == pytest.approx(np.mean([record["expected"]["time_gap_circular"]["cost"] for record in records]))
    assert sources.spread == pytest.approx(3.2, abs=0.1)  # the mean distance of the model's bell
    told = [*evaluation_sentences(part)]
    assert told[0].startswith("Mean time gap on the clock face")
    assert "overconfident" in told[0]
