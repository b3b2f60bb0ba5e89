"""Baselines: a constant, gradient boosting on columns, and ridge regression on text, on the rows of the runs."""

import json
import math
import random
import sys

import numpy as np
import pytest

from numerate.lab.baselines import (
    BaselineAnswers,
    BoostingSettings,
    RidgeSettings,
    boosting,
    choose_boosting,
    choose_ridge,
    constant,
    ridge,
)
from numerate.lab.baselines.tables import _Table, mean_absolute_error
from numerate.lab.data import TASKS, Regression
from numerate.lab.data.numbers import NotApplicable, Scale, gold_numbers


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


def mae(task, baseline):
    return np.abs(gold_numbers(task, split(task)[1]) - baseline.answers).mean()


def notes(folder, rows=240):
    """A table of notes whose words decide the price, each note different."""
    rng = random.Random(0)
    lines = []
    for _ in range(rows):
        words = rng.choices(["lamp", "door", "garden", "kitchen", "window", "roof"], k=rng.randint(4, 9))
        lines.append(f"{' '.join(words)} {rng.randint(100, 999)},{sum(map(len, words)) + 0.1 * rng.random():.2f}")
    path = folder / "notes.csv"
    path.write_text("\n".join(["note,price", *lines]), encoding="utf-8")
    return path


# Tables


def test_constant_is_the_median():
    task = Regression()
    training = task.examples("train", 5)
    found = constant(task, training, task.examples("interpolate", 3))
    assert found.answers.tolist() == [sorted(float(example.answer) for example in training)[2]] * 3


def test_boosting_beats_the_constant(tmp_path):
    """Also with blank cells, units, thousands marks and categories."""
    needs_sklearn()
    task = Regression.from_files(table(tmp_path), target="price")
    training, test = split(task)
    found = boosting(task, training, test, choose_boosting(task, training[:-20], training[-20:]))
    assert mae(task, found) < 0.5 * mae(task, constant(task, *split(task)))
    assert found.settings["loss"] in ("absolute_error", "squared_error")
    assert len(found.answers) == task.count("interpolate")


def test_boosting_takes_the_scale_and_loss_that_it_is_given(tmp_path):
    needs_sklearn()
    task = Regression.from_files(table(tmp_path), target="price")
    answers = []
    for settings in (BoostingSettings("squared_error", log=True, trees=9), BoostingSettings("absolute_error", trees=9)):
        found = boosting(task, *split(task), settings)
        assert found.settings == {"loss": settings.loss, "scale": "log" if settings.log else "linear", "trees": 9}
        answers.append(found.answers)
    assert not np.allclose(*answers)


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


def test_boosting_needs_columns(tmp_path):
    path = tmp_path / "pairs.csv"
    path.write_text("prompt,answer\n" + "".join(f"{k}+1=,{k + 1}\n" for k in range(50)), encoding="utf-8")
    task = Regression.from_files(path)
    with pytest.raises(NotApplicable, match="boosting does not apply: the examples have prompts and no columns"):
        boosting(task, *split(task), BoostingSettings())
    assert mae(task, constant(task, *split(task))) > 0


def test_boosting_without_sklearn(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.ensemble", None)
    task = Regression()
    with pytest.raises(ModuleNotFoundError, match="boosting needs the package scikit-learn: run pip install scikit-learn"):
        boosting(task, task.examples("train", 20), task.examples("interpolate", 2), BoostingSettings())


def test_an_answer_must_be_one_number():
    with pytest.raises(NotApplicable, match="an answer of the task 'grounding' is"):
        constant(TASKS["grounding"](), [], [])


# Numbers


def test_the_measure_that_settings_are_chosen_by():
    golds, answers = np.array([100.0, 10.0, 1.0]), np.array([110.0, 10.0, 4.0])
    assert mean_absolute_error(golds, answers) == pytest.approx(13 / 3)
    assert mean_absolute_error(golds, np.full(3, np.nan)) == math.inf


def test_settings_of_boosting_are_those_that_are_best_on_validation_rows(monkeypatch):
    """The loss and the scale first, then the number of trees."""
    task, best = Regression(), BoostingSettings("squared_error", log=True, trees=200)
    test = task.examples("interpolate", 5)
    golds = gold_numbers(task, test)

    def answered(task, training, test, settings, seed=0):
        wrong = sum(getattr(settings, name) != getattr(best, name) for name in ("loss", "log", "trees"))
        return BaselineAnswers(golds * (1 + wrong), {}, 0.0)

    monkeypatch.setattr("numerate.lab.baselines.tables.boosting", answered)
    assert choose_boosting(task, task.examples("train", 5), test) == best


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("size", [1.0, 1e-300, 1e300, 4e-321, 4e303])
def test_a_scale_restores_numbers(log, size):
    """Of any size: squares of 1e200 overflow, and those of 1e-200 are 0."""
    numbers = np.array([0.5, 3.0, 4000.0]) * size
    scale = Scale.of(numbers, log=log)
    shown = scale.standardised(numbers)
    assert (shown.mean(), shown.std()) == pytest.approx((0, 1))
    np.testing.assert_allclose(scale.restored(shown), numbers, atol=numbers.max() * 1e-7)


# Text


def test_ridge_reads_what_boosting_cannot(tmp_path):
    needs_sklearn()
    task = Regression.from_files(notes(tmp_path), target="price")
    training, test = split(task)
    found = ridge(task, training, test, choose_ridge(task, training[:-40], training[-40:]))
    assert mae(task, found) < 0.5 * mae(task, constant(task, training, test))
    assert found.settings.keys() == {"ngrams", "alpha", "norm", "scale"}
    with pytest.raises(NotApplicable, match=r"boosting does not apply: note is free text.*Expected a column of numbers or categ"):
        boosting(task, training, test, BoostingSettings())


def test_ridge_takes_the_settings_that_validate_best(tmp_path):
    needs_sklearn()
    task = Regression.from_files(notes(tmp_path), target="price")
    training, test = split(task)[0][:-40], split(task)[0][-40:]
    chosen = choose_ridge(task, training, test)
    golds = gold_numbers(task, test)
    error = np.abs(golds - ridge(task, training, test, chosen).answers).mean()
    for other in (RidgeSettings(), RidgeSettings(norm=None, alpha=100.0), RidgeSettings(norm=None, alpha=10.0)):
        assert error <= np.abs(golds - ridge(task, training, test, other).answers).mean()


def test_ridge_of_prompts(tmp_path):
    needs_sklearn()
    lines = [json.dumps({"prompt": f"{'very ' * (i % 7)}good, number {i}", "answer": str(i % 7)}) for i in range(60)]
    (tmp_path / "prompts.jsonl").write_text("\n".join(lines), encoding="utf-8")
    task = Regression.from_files(tmp_path / "prompts.jsonl")
    training, test = split(task)
    found = ridge(task, training, test, RidgeSettings(alpha=0.1, norm=None))
    assert mae(task, found) < 0.3 * mae(task, constant(task, training, test))


def test_ridge_does_not_apply_to_a_table_without_text(tmp_path):
    needs_sklearn()
    task = Regression.from_files(table(tmp_path), target="price")
    with pytest.raises(NotApplicable, match="ridge does not apply: no column of the table is free text"):
        ridge(task, *split(task), RidgeSettings())


def test_boosting_takes_the_other_columns_of_a_table_with_text(tmp_path):
    """Free text is never a category: the answers are those of the table without the column."""
    needs_sklearn()
    lines = notes(tmp_path).read_text(encoding="utf-8").splitlines()
    wider = [f"{len(line) // 4},{line}" for line in lines[1:]]
    (tmp_path / "wider.csv").write_text("\n".join([f"size,{lines[0]}", *wider]), encoding="utf-8")
    task = Regression.from_files(tmp_path / "wider.csv", target="price")
    training, test = split(task)
    assert _Table(training).is_category == [False]
    assert mae(task, boosting(task, training, test, BoostingSettings())) < mae(task, constant(task, training, test))
