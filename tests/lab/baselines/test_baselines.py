"""What else could predict a number: constants, boosting and heads see the rows of the runs, and learn from them."""

import csv
import json
import math
import random
import runpy
from pathlib import Path

import numpy as np
import pytest
import torch

from numerate.lab.baselines import (
    BaselineAnswers,
    HeadRun,
    NotApplicable,
    baseline_rows,
    boosting,
    choose_boosting,
    constant,
    train_heads,
)
from numerate.lab.baselines.fit import TrainingRows, asked_examples
from numerate.lab.baselines.heads import SIGMA, bin_edges, hl_gauss_targets
from numerate.lab.baselines.numbers import errors, gold_numbers, validation_score
from numerate.lab.baselines.tables import _Table
from numerate.lab.data import TASKS, Regression
from numerate.lab.data.settings import make_task
from numerate.lab.models.loading import load_model
from numerate.lab.training.config import RunConfig
from numerate.lab.training.run import run_data, run_examples
from numerate.labels import IGNORE_INDEX

SCRIPT = Path(__file__).parents[3] / "research" / "baselines.py"
FEW = {
    "task": "regression",
    "steps": 4,
    "batch_size": 4,
    "train_examples": 40,
    "eval_examples": 6,
    "eval_splits": ("interpolate",),
}


def needs_sklearn():
    return pytest.importorskip("sklearn", reason="boosting needs scikit-learn")


def table(folder, rows=300):
    """A table with numbers and a category that decide the price, and gaps; the prices are noisy."""
    rng = random.Random(0)
    lines = []
    for _ in range(rows):
        area, town = rng.randint(20, 120), rng.choice(["Ulm", "Bern", "Paris"])
        price = (5 + 10 * len(town)) * area * rng.gauss(1, 0.02)
        shown = "n/a" if rng.random() < 0.05 else f"{area} m2"
        lines.append(f'{shown},{"" if rng.random() < 0.05 else town},"{round(price):,}"')
    path = folder / "flats.csv"
    path.write_text("\n".join(["area,town,price", *lines]), encoding="utf-8")
    return path


def split(task):
    return task.examples("train"), task.examples("interpolate")


def figures(task, baseline):
    return errors(gold_numbers(task, split(task)[1]), baseline.answers)


# Tables


def test_boosting_beats_the_constant(tmp_path):
    """Also with blank cells, units, thousands marks and categories."""
    needs_sklearn()
    task = Regression.from_files(table(tmp_path), target="price")
    training, test = split(task)
    found = boosting(task, training, test, choose_boosting(task, training[:-20], training[-20:]))
    assert figures(task, found)["mae"] < 0.5 * figures(task, constant(task, *split(task)))["mae"]
    assert found.settings["loss"] in ("absolute_error", "squared_error")
    assert len(found.answers) == task.count("interpolate")


def test_cells_become_numbers_and_categories(tmp_path):
    """By the training rows: a word among numbers, an unknown or a rare category and another unit are missing values."""
    lines = [{"size": f"{k},5 m2", "kind": f"k{k % 300}", "empty": "", "flag": k % 2 == 0, "y": k} for k in range(1, 601)]
    lines += [{"size": text, "kind": "new", "flag": True, "y": 1} for text in ("7,5 m2", "large", "7,5 km", None)]
    lines += [{"size": "8,5 m2", "kind": f"k{299 - k}", "y": 2} for k in range(2)]  # which makes these two frequent
    path = tmp_path / "t.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    task = Regression.from_files(path, target="y", columns=("size", "kind"))
    rows = [example for name in ("train", "interpolate") for example in task.examples(name)]
    by_prompt = {example.prompt: example for example in rows}
    training = [example for example in rows if example.meta["cells"]["kind"] != "new"]
    columns = _Table(training)
    assert columns.is_category == [False, True]

    def read(size, kind):
        return columns.matrix([by_prompt[f"size: {size}, kind: {kind}. y?"]])[0].tolist()

    assert read("7,5 m2", "k7")[0] == 7.5
    assert read("8,5 m2", "k299")[1] in (0, 1)
    for size in ("large", "7,5 km", ""):  # a null cell is shown as nothing
        assert all(map(math.isnan, read(size, "new")))
    codes = columns.matrix(training)[:, 1]
    assert np.nanmax(codes) == 254
    assert len(np.unique(codes[~np.isnan(codes)])) == 255
    assert np.isnan(codes).sum() == 2 * 45


def test_an_answer_must_be_one_number():
    with pytest.raises(NotApplicable, match="an answer of the task 'grounding' is"):
        constant(TASKS["grounding"](), [], [])


# Numbers


def test_errors_and_the_measure_that_settings_are_chosen_by():
    golds, answers = np.array([100.0, 10.0, 1.0]), np.array([110.0, 10.0, 4.0])
    assert errors(golds, answers) == pytest.approx(
        {"mae": 13 / 3, "mean_relative_error": 3.1 / 3, "median_relative_error": 0.1, "rmse": math.sqrt(109 / 3)}
    )
    assert errors(np.zeros(2), np.array([0.0, 1.0]))["mean_relative_error"] == math.inf
    assert validation_score(Regression(), None, golds, answers) == pytest.approx(-0.1)
    assert validation_score(Regression(target="y", average="mean"), None, golds, answers) == pytest.approx(-3)
    assert validation_score(Regression(), "absolute_error", golds, answers) == pytest.approx(-13 / 3)
    assert validation_score(Regression(), None, golds, np.full(3, np.nan)) == -math.inf


# Heads


def test_targets_of_a_histogram():
    """They sum to one, and their mean is the label, within the training range and at its ends."""
    numbers = torch.linspace(-3, 5, 201)
    edges = bin_edges(numbers)
    targets = hl_gauss_targets(numbers, edges)
    width = float(edges[1] - edges[0])
    torch.testing.assert_close(targets.sum(-1), torch.ones(201))
    means = targets @ ((edges[1:] + edges[:-1]) / 2)
    assert float((means - numbers).abs().max()) < 0.05 * width
    spread = (targets @ ((edges[1:] + edges[:-1]) / 2).square() - means.square()).sqrt()
    # A bin adds the variance of an even distribution to that of the Gaussian.
    torch.testing.assert_close(spread[100], torch.tensor(width * math.sqrt(SIGMA**2 + 1 / 12)), rtol=0.01, atol=0)


def runs(log=True, **settings):
    return [HeadRun(RunConfig(**FEW | {"seed": seed} | settings), log) for seed in (1, 2, 3)]


@pytest.mark.parametrize("kind", ["scalar", "hl_gauss"])
def test_heads_of_a_stack_are_heads_alone(kind):
    """Each with its own seed, rows, learning rate and scale."""
    several = [
        HeadRun(run.config.model_copy(update={"learning_rate": rate}), log)
        for run, rate, log in zip(runs(), (4e-3, 1e-3, 9e-3), (True, False, True), strict=True)
    ]
    together = train_heads(kind, Regression(), several)
    for run, found in zip(several, together, strict=True):
        (alone,) = train_heads(kind, Regression(), [run])
        assert alone.keys() == found.keys()
        for name, expected in alone.items():
            np.testing.assert_allclose(found[name].answers, expected.answers, rtol=2e-4)
            assert found[name].settings == expected.settings
    assert not np.allclose(*(next(iter(found.values())).answers for found in together[:2]))


@pytest.mark.parametrize("kind", ["scalar", "hl_gauss"])
def test_accumulation_is_a_larger_batch(kind, monkeypatch):
    monkeypatch.setattr("numerate.lab.baselines.fit.training_order", lambda lengths, size, batches, seed: range(size * batches))
    sizes = {"batch_size": 8}, {"batch_size": 4, "accumulation": 2}
    (whole,), (parts,) = (train_heads(kind, Regression(), runs(**size)[:1]) for size in sizes)
    for name, expected in whole.items():
        np.testing.assert_allclose(parts[name].answers, expected.answers, rtol=2e-4)


@pytest.mark.parametrize("kind", ["scalar", "hl_gauss"])
def test_heads_learn(kind, tmp_path):
    """A hundred steps are enough to be much better than the constant."""
    path = tmp_path / "lines.csv"
    path.write_text("x,y\n" + "".join(f"{x},{7 * x + x * x % 31}\n" for x in range(10, 400)), encoding="utf-8")
    settings = {"data": str(path), "task_settings": {"target": "y"}, "steps": 100, "batch_size": 32, "train_examples": 300}
    run = runs(**settings, eval_examples=60, learning_rate=4e-3)[0]
    task = make_task(run.config)
    test = asked_examples(run.config, task)
    golds = gold_numbers(task, test)
    median = errors(golds, constant(task, run_examples(run.config, task), test).answers)["mae"]
    for found in train_heads(kind, task, [run])[0].values():
        assert errors(golds, found.answers)["mae"] < 0.5 * median


@pytest.mark.parametrize(
    "settings", [{}, {"max_length": 55}, {"validation": True}, {"validate_every": 2}, {"accumulation": 2}], ids=str
)
def test_heads_see_the_batches_of_the_run(settings):
    """The questions of a run of cross-entropy, in its order; rows that are too long are left out."""
    run = runs(**settings)[0]
    task, loaded = make_task(run.config), load_model("tiny")
    rows = TrainingRows.of(run, task, loaded)
    expected, _ = run_data(run.config, task, loaded)
    assert len(rows.order) == len(expected)
    assert (len(rows.numbers) < 40) == ("max_length" in settings)
    ids, lengths = rows.questions
    for at, row in zip(rows.order.tolist(), (expected[k] for k in range(len(expected))), strict=True):
        answers = row["labels"].count(IGNORE_INDEX)
        assert ids[at, : lengths[at]].tolist() == row["input_ids"][:answers]
        number = loaded.tokenizer.decode(row["labels"][answers:-1])
        assert rows.scale.restored(rows.numbers[[at]].double().numpy()) == pytest.approx(float(number), rel=1e-4)


def test_what_has_no_heads():
    picture = HeadRun(RunConfig(task="clock", model="tiny-vlm", train_examples=2), False)
    with pytest.raises(NotApplicable, match="task='clock' has pictures"):
        train_heads("scalar", make_task(picture.config), [picture])
    with pytest.raises(NotApplicable, match="keep_best=True is not supported for heads"):
        train_heads("scalar", Regression(), runs(keep_best=True, validate_every=2))
    with pytest.raises(NotApplicable, match="adapter='lora' is not supported for heads"):
        train_heads("scalar", Regression(), runs(adapter="lora"))


# The table


def test_a_row_for_each_baseline_and_seed(tmp_path, capsys):
    needs_sklearn()
    config = tmp_path / "mine.yaml"
    settings = FEW | {"losses": ["ce", "soft"], "soft": {"relative": 0.1}, "decide": ["median"], "data": str(table(tmp_path))}
    settings |= {"task_settings": {"target": "price"}, "seeds": 5}
    config.write_text(json.dumps(settings | {"eval_splits": ["interpolate"]}), encoding="utf-8")
    out = tmp_path / "rivals.csv"
    script = runpy.run_path(str(SCRIPT))
    script["main"]([str(config), "--out", str(out), "--seeds", "2", "--tune", "2", "--set", "steps=2"])
    with out.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    names = ["constant", "boosting", "scalar", "hl_gauss_mean", "hl_gauss_median"]
    assert sorted((row["baseline"], row["seed"]) for row in rows) == sorted((name, seed) for name in names for seed in "01")
    for row in rows:
        assert float(row["mae"]) > 0
        assert float(row["rmse"]) >= float(row["mae"])
        assert float(row["mean_relative_error"]) > 0
        assert float(row["seconds"]) >= 0
        assert row["rows"] == "6"
        assert json.loads(row["settings"])
    assert "hl_gauss_median" in capsys.readouterr().out


@pytest.mark.parametrize("choose_by", [None, "absolute_error", "within_5"])
def test_settings_are_those_that_are_best_on_validation_rows(choose_by, monkeypatch):
    """Of the rates and scales that were tried with the tuning seed; the runs keep their own seeds."""
    task, seen = Regression(), []

    def trained(kind, task, several):
        seen.append(several)
        right = [run.config.learning_rate == 2e-3 and not run.log for run in several]
        golds = [gold_numbers(task, asked_examples(run.config, task)) for run in several]
        answers = [own if good else 2 * own for own, good in zip(golds, right, strict=True)]
        return [{"scalar": BaselineAnswers(own, {}, 0.0)} for own in answers]

    monkeypatch.setattr("numerate.lab.baselines.run.train_heads", trained)
    tests = [RunConfig(**FEW | {"seed": seed}) for seed in (0, 1)]
    common = FEW | {"seed": 1000, "validation": True, "choose_by": choose_by}
    trials = [RunConfig(**common | {"learning_rate": rate}) for rate in (4e-3, 2e-3, 8e-3, 1e-3)]
    rows = baseline_rows("scalar", task, tests, trials)
    tried = [(run.config.learning_rate, run.log) for run in seen[0]]
    assert tried == [(4e-3, True), (4e-3, False), (2e-3, True), (2e-3, False)]
    assert [(run.config.learning_rate, run.log, run.config.seed) for run in seen[1]] == [(2e-3, False, 0), (2e-3, False, 1)]
    assert [row["mae"] for row in rows] == [0, 0]
