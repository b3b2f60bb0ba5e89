"""A constant and boosting that a report keeps: of the rows of each run, computed once, and never a reason to fail."""

import json
import sys

import pytest

from numerate.lab.baselines import constant, kept, kept_baselines
from numerate.lab.data import Regression
from numerate.lab.data.settings import tested as asked_of
from numerate.lab.training.config import RunConfig
from numerate.lab.training.prepare import run_examples


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "flats.csv"
    lines = [f"{area},{town},{area * (1 + len(town))}" for area in range(20, 95) for town in ("Ulm", "Bern")]
    path.write_text("\n".join(["area,town,price", *lines]), encoding="utf-8")
    return path


def runs(table, seeds=(0, 1)):
    """Settings as config.json has them."""
    config = {"task": "regression", "task_settings": {"target": "price"}, "data": str(table), "train_examples": 50}
    return [RunConfig(**config, eval_examples=20, seed=seed).used for seed in seeds]


def golds(table):
    task = Regression.from_files(table, target="price")
    return {split: [example.answer for example in rows] for split, rows in asked_of(RunConfig(eval_examples=20), task).items()}


def test_answers_are_those_of_the_rows_of_each_run(table, tmp_path):
    found = kept_baselines(tmp_path, runs(table), golds(table))
    task = Regression.from_files(table, target="price")
    for run in runs(table):
        config = RunConfig(**run)
        expected = constant(task, run_examples(config, task), list(asked_of(config, task)["interpolate"])).answers
        assert found.answers["constant"][run["seed"]]["interpolate"].tolist() == expected.tolist()
    assert len(found.answers["constant"][0]["interpolate"]) == 20


def test_computed_once(table, tmp_path, monkeypatch):
    first = kept_baselines(tmp_path, runs(table), golds(table))

    def refuse(*_):
        raise AssertionError("computed again")

    with monkeypatch.context() as patched:
        patched.setattr(kept, "make_task", refuse)
        again = kept_baselines(tmp_path, runs(table), golds(table))
    for baseline, by_seed in first.answers.items():
        for seed, by_split in by_seed.items():
            assert again.answers[baseline][seed]["interpolate"].tolist() == by_split["interpolate"].tolist()
    more = kept_baselines(tmp_path, runs(table, (0, 1, 2)), golds(table))
    assert sorted(more.answers["constant"]) == [0, 1, 2]


def test_of_a_column_of_text_alone(tmp_path):
    """Ridge regression answers, and boosting does not, which a note says."""
    pytest.importorskip("sklearn")
    path = tmp_path / "molecules.csv"
    smiles = ["C" * (7 + i % 11) + "(O)N" * (1 + i % 7) + "c1ccccc1" * (i % 2) for i in range(150)]
    lines = [f"{text},{len(text)}" for text in dict.fromkeys(smiles)]
    path.write_text("\n".join(["smiles,price", *lines]), encoding="utf-8")
    config = RunConfig(task="regression", task_settings={"target": "price"}, data=str(path), train_examples=100, eval_examples=9)
    task = Regression.from_files(path, target="price")
    asked = {name: [example.answer for example in rows] for name, rows in asked_of(config, task).items()}
    found = kept_baselines(tmp_path, [config.used], asked)
    assert [*found.answers] == ["constant", "ridge"]
    assert len(found.notes) == 1
    assert found.notes[0].startswith("Without gradient boosting: boosting does not apply: smiles is free text")


def test_ridge_is_silent_on_a_table_without_text(table, tmp_path, monkeypatch):
    """That it does not apply is kept too, so that a report asks for the data once."""
    pytest.importorskip("sklearn")
    assert kept_baselines(tmp_path, runs(table), golds(table)).notes == ()
    monkeypatch.setattr(kept, "make_task", None)
    again = kept_baselines(tmp_path, runs(table), golds(table))
    assert ([*again.answers], again.notes) == (["constant", "boosting"], ())


def test_an_older_folder_whose_data_are_gone(table, tmp_path):
    """It has no ridge regression, and whether that applies is not known: no note."""
    pytest.importorskip("sklearn")
    asked = golds(table)
    kept_baselines(tmp_path, runs(table), asked)
    file = tmp_path / kept.FILE
    file.write_text(json.dumps({name: own for name, own in json.loads(file.read_text()).items() if name != "ridge"}))
    table.unlink()
    found = kept_baselines(tmp_path, runs(table), asked)
    assert ([*found.answers], found.notes) == (["constant", "boosting"], ())


def test_without_scikit_learn(table, tmp_path, monkeypatch):
    """The constant stays, and a line says how to install the rest; once installed, it is computed."""
    with monkeypatch.context() as patched:
        patched.setitem(sys.modules, "sklearn.ensemble", None)
        found = kept_baselines(tmp_path, runs(table), golds(table))
    assert [*found.answers] == ["constant"]
    assert found.notes == ("Without gradient boosting: boosting needs the package scikit-learn: run pip install scikit-learn.",)
    if pytest.importorskip("sklearn"):
        assert [*kept_baselines(tmp_path, runs(table), golds(table)).answers] == ["constant", "boosting"]


def test_other_data_than_those_of_the_runs(table, tmp_path):
    asked = golds(table)
    table.write_text(table.read_text(encoding="utf-8").replace("Ulm", "Oslo"), encoding="utf-8")
    found = kept_baselines(tmp_path, runs(table), asked)
    assert found.answers == {}
    assert "has other test rows than the runs" in found.notes[0]
    assert not (tmp_path / kept.FILE).exists()


def test_what_is_kept_is_of_the_same_rows(table, tmp_path):
    """A folder that is used again, with another version of the table."""
    kept_baselines(tmp_path, runs(table), golds(table))
    table.write_text(table.read_text(encoding="utf-8").replace("Ulm", "Oslo"), encoding="utf-8")
    found = kept_baselines(tmp_path, runs(table), golds(table))
    assert len(found.answers["constant"][0]["interpolate"]) == len(golds(table)["interpolate"])
    assert len(json.loads((tmp_path / kept.FILE).read_text(encoding="utf-8"))["constant"]) == 4


@pytest.mark.parametrize("content", ["", "[]", "{", '{"constant": 3}'])
def test_a_broken_file_is_computed_again(content, table, tmp_path):
    (tmp_path / kept.FILE).write_text(content, encoding="utf-8")
    assert "constant" in kept_baselines(tmp_path, runs(table), golds(table)).answers
