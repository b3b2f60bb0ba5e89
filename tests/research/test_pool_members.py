"""research/pool_members.py and what asks its members, on tiny models: pools, cheaper members, students, disagreement, votes."""

from __future__ import annotations

from importlib import import_module

import pytest

from numerate.lab.data import Example
from numerate.lab.data.settings import make_task
from numerate.lab.training.config import RunConfig


@pytest.fixture
def config(tmp_path):
    """A run on a table of 200 stones."""
    rows = [f"{50 + at % 97},{('Fair', 'Good', 'Ideal')[at % 3]},{10 + at % 97 // 2}" for at in range(200)]
    (tmp_path / "stones.csv").write_text("\n".join(["carat,cut,price", *rows]))
    return RunConfig(
        model="tiny",
        task="regression",
        data=str(tmp_path / "stones.csv"),
        task_settings={"target": "price", "columns": ["carat", "cut"], "wording": "bare"},
        loss="soft",
        soft={"relative": 0.1, "lowest": 0},
        members=2,
        steps=16,
        batch_size=4,
        train_examples=20,
        decide=("median",),
    )


def test_three_ways_to_weigh_members_that_are_trained_once(script, config, tmp_path, monkeypatch):
    rows = script.weights("diamonds", config, tmp_path, rows=4, known=12)
    assert [(row["members"], row["label"]) for row in rows] == [
        *((1, "equal weights"), (2, "equal weights"), (2, "fitted weights"), (2, "mean quantiles"))
    ]
    assert all(0 <= row["covers"] <= 1 and row["crps"] <= row["absolute_error"] + 1e5 for row in rows)
    assert rows[0]["crps"] != rows[1]["crps"]
    monkeypatch.setattr("numerate.lab.training.stacked.train.fit", None)  # weights that are there are not trained again
    assert script.weights("diamonds", config, tmp_path, rows=4, known=12)[1]["crps"] == pytest.approx(rows[1]["crps"], rel=1e-6)


def test_cheaper_members_and_students(script, config, tmp_path):
    cheaper = import_module("cheaper_members")
    rows = cheaper.measured("diamonds", config, tmp_path, rows=3, unlabelled=4)
    found = {(row["label"], row["members"]): row["crps"] for row in rows}
    sizes = [(label, size) for label in ("snapshots", "dropout") for size in (1, 2, 4, 8)]
    students = [(f"student, {count} rows without labels", 1) for count in (0, 4)]
    assert [*found] == [("members", 1), ("members", 2), *sizes, *students]
    assert len({found["dropout", size] for size in (1, 2, 4, 8)}) == 4  # every pass is another
    assert found["snapshots", 1] != found["snapshots", 8]
    assert found[students[0]] != found[students[1]]


def test_rows_unlike_those_of_the_training(script, config):
    disagreement = import_module("disagreement")
    like = make_task(config).examples("interpolate", 3)
    cut = [row.prompt.split()[1:] for row in disagreement.unlike("range", "diamonds", config, like)]
    assert cut == [example.prompt.split()[1:] for example in like]
    carats = [float(row.prompt.split()[0]) for row in disagreement.unlike("range", "diamonds", config, like)]
    trained = [float(example.meta["cells"]["carat"]) for example in make_task(config).examples("train", 20, seed=0)]
    assert min(carats) > max(trained)
    assert {row.prompt.split()[1] for row in disagreement.unlike("category", "diamonds", config, like)} == {disagreement.NEW}
    assert disagreement.unlike("category", "storms", config, like) == []
    assert disagreement.auroc([3, 4], [1, 2]) == 1
    assert disagreement.auroc([1, 1], [1, 1]) == 0.5


def test_disagreement_is_scored_in_three_ways(script):
    disagreement, point = import_module("disagreement"), script.NumberDistribution.point
    found = disagreement.scores([[point(10), point(20)], [script.NumberDistribution([10, 20], [1, 1])] * 2])
    assert found["between"] == [2.5, 0]
    assert found["share"] == [1, 0]
    assert found["interval"] == [10, 10]


def test_votes(script):
    votes = import_module("votes")
    boxes, words = make_task(RunConfig(task="grounding")), make_task(RunConfig(task="word_problems"))
    middle = votes.middle_box(boxes, ["[0.1, 0.2, 0.5, 0.6]", "no box", "[0.2, 0.1, 0.6, 0.5]", "[0.9, 0.3, 0.7, 0.9]"])
    assert middle == "[0.2000, 0.2000, 0.6000, 0.6000]"
    assert boxes.score(Example("", "[0.2, 0.2, 0.6, 0.6]"), middle)["iou"] == pytest.approx(1)
    assert votes.most_frequent(words, ["it is 3\n#### 3", "#### 4", "so\n#### 4", "none"]) == "#### 4"
    assert votes.most_frequent(words, ["#### 3", "#### 4"]) == "#### 3"
    for what, labels in votes.CHOSEN.items():
        (first, *_) = votes.runs(what, [*labels], [5], 2)
        assert (first[1].seed, first[1].members, first[1].name) == (5, 2, "ce")


def test_another_call_does_the_draws_that_are_missing(script, config, tmp_path, capsys):
    asked, file = [], tmp_path / "a_pools.csv"

    def measure(table, run, folder):
        asked.append((table, run.seed))
        if run.seed == 1 and len(asked) < 3:
            raise MemoryError("full")
        return [script.about(table, run, "members", 2) | {"crps": 1 / 3}]

    todo = [(table, config.model_copy(update={"seed": seed})) for seed in (0, 1) for table in ("b", "a")]
    assert script.work(measure, file, todo[:3], processes=1, minutes=1) == []
    asked.clear()
    assert script.work(measure, file, todo, processes=1, minutes=1) == ["a draw 1: full"]
    assert asked == [("a", 1)]
    assert [(row["comparison"], row["seed"], row["crps"]) for row in script.read(file)] == [
        *(("a", "0", "0.333333"), ("b", "0", "0.333333"), ("b", "1", "0.333333"))
    ]
    assert script.work(measure, file, todo, processes=1, minutes=-1) == []
    assert "a draw 1: not begun, out of time" in capsys.readouterr().out


def test_the_draws_of_the_schedule(script):
    found = script.draws(["births", "births_10000"], range(2), 4, steps=7)
    assert [(table, run.seed, run.members, run.steps, run.train_examples) for table, run in found] == [
        *(
            ("births", 0, 4, 7, 1000),
            ("births_10000", 0, 4, 7, 10000),
            ("births", 1, 4, 7, 1000),
            ("births_10000", 1, 4, 7, 10000),
        )
    ]
    assert all(run.name == "soft" and run.soft for _, run in found)
