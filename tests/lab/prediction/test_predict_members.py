"""Predictions of a run with several members: the pool's, how far they disagree, and which rows are unusual."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.lab.prediction.members import gathered
from tests.lab.prediction.test_predict import QUICK, Interrupted, interrupt_at, read, write_csv, write_jsonl
from typer.testing import CliRunner

from numerate.cli import app
from numerate.decode import NumberGrammar
from numerate.distribution import pool, spread
from numerate.lab.prediction.answering import Answering, find_source
from numerate.lab.prediction.calibration import CALIBRATION, _held_out_rows, keep_calibration, usual
from numerate.lab.prediction.predict import FIRST_WRITES, NOT_FLAGGED, OWN_INTERVALS, predict
from numerate.lab.prediction.prediction_file import DISAGREEMENT, NAMES, UNUSUAL, PredictionFile
from numerate.lab.training.config import RunConfig, checked
from numerate.lab.training.run import run

ROWS = [{"area": 20 + i, "rooms": i % 4, "rent": 30 + i % 7} for i in range(100)]
COLUMNS = [*NAMES[:-1], DISAGREEMENT, UNUSUAL, "problem"]
ADAPTERS = ["none", "lora"]
MEMBERS = 3


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[list[Path], Path]]:
    """By adapter: the runs of single members, and that of all of them with its calibration."""
    folder = tmp_path_factory.mktemp("members")
    data = write_csv(folder / "flats.csv", ROWS)
    found = {}
    for adapter in ADAPTERS:
        single = []
        for seed in range(MEMBERS):
            settings: dict[str, Any] = {"data": str(data), "task_settings": {"target": "rent"}, "adapter": adapter, "steps": 10}
            # Adapters have one base; they differ in what they learned.
            settings |= {"seed": seed} if adapter == "none" else {"learning_rate": 0.003 * (seed + 1)}
            run(checked(RunConfig, {**QUICK, **settings}), folder / f"{adapter}-{seed}")
            single.append(folder / f"{adapter}-{seed}")
        both = gathered(single, folder / f"{adapter}-all")
        keep_calibration(both)
        found[adapter] = single, both
    return found


@pytest.fixture
def new(tmp_path: Path) -> Path:
    return write_csv(tmp_path / "new.csv", [{"area": 25 + 3 * i, "rooms": i % 5} for i in range(12)])


def found_by(folder: Path, new: Path) -> Any:
    """The distributions of one model, searched without a pool."""
    answering = Answering(find_source(str(folder)), "median", lambda found: found.interval(0.9))
    rows = [answering.source.questions.ask(row, new.parent) for row in read(new)]
    return answering, answering.search(rows)


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_predictions_are_those_of_the_pool(runs, new, tmp_path, adapter):
    single, both = runs[adapter]
    said: list[str] = []
    result = predict(both, new, tmp_path / "out.csv", batch_size=5, calibrate="none", say=said.append, explain=2)
    rows, members = read(result.path), [*zip(*(found_by(one, new)[1] for one in single), strict=True)]
    assert [*rows[0]] == ["area", "rooms", *(name for name in COLUMNS if name != UNUSUAL)]
    assert said == [OWN_INTERVALS, f"the {MEMBERS} members of the model are pooled", NOT_FLAGGED]
    assert result.unusual is None
    for row, own in zip(rows, members, strict=True):
        pooled = pool(own)
        assert float(row["prediction"]) == pooled.median
        assert (float(row["low"]), float(row["high"])) == pooled.interval(0.9)
        assert float(row[DISAGREEMENT]) == pytest.approx(spread(own).between, abs=1e-3)
        assert float(row["covered"]) == pytest.approx(pooled.covered, abs=1e-3)
    assert len({row[DISAGREEMENT] for row in rows}) == len(rows)
    explained = result.explained[1]
    assert [one.median for one in explained.members] == [one.median for one in members[1]]


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_a_moved_folder_flags_by_itself(runs, new, tmp_path, adapter):
    """Without the table, and the same as with it."""
    _, both = runs[adapter]
    moved = shutil.copytree(both / "model", tmp_path / "elsewhere" / "moved")
    at_hand = shutil.copytree(both, tmp_path / "at_hand")
    (at_hand / "model" / CALIBRATION).unlink()
    results = [predict(folder, new, tmp_path / f"{number}.csv") for number, folder in enumerate((both, moved, at_hand))]
    first = read(results[0].path)
    assert [*first[0]] == ["area", "rooms", *COLUMNS]
    assert all(read(result.path) == first for result in results)
    assert {result.unusual for result in results} == {sum(row[UNUSUAL] == "true" for row in first)}
    answering, limit = found_by(both, new)[0], json.loads((both / "model" / CALIBRATION).read_text())["disagreement"]
    assert {row[UNUSUAL] for row in first} <= {"true", "false"}
    for row in first:
        assert (row[UNUSUAL] == "true") == (float(row[DISAGREEMENT]) > limit)
    known = _held_out_rows(answering.source, 0.9)
    apart = [answering.disagreement(one.members) for one in answering.search_members(known.rows)]
    assert limit == pytest.approx(usual([one for one in apart if one is not None]))
    assert sum(one > 1.0001 * limit for one in apart) <= 0.05 * len(apart)  # other batches round differently


def test_adapters_of_few_rows_share_batches(runs, new):
    """Two rows take as many forward passes with all adapters as with one."""
    answering, _ = found_by(runs["lora"][1], new)
    rows = [answering.source.questions.ask(row, new.parent) for row in read(new)[:2]]
    calls: list[int] = []
    answering.loaded.model.get_base_model().register_forward_pre_hook(lambda *_: calls.append(1))
    found = answering.search_members(rows, width=2, grammar=NumberGrammar(digits=(2, 2), decimals=0))
    together = len(calls)
    answering.first_member().search(rows, width=2, grammar=NumberGrammar(digits=(2, 2), decimals=0))
    assert len(calls) == 2 * together
    assert [len(one.members) for one in found] == [MEMBERS, MEMBERS]


def test_usual_is_what_is_not_exceeded_on_95_percent():
    for count in (1, 2, 19, 20, 21, 40, 100, 200):
        values = np.random.default_rng(count).permutation(count).tolist()
        limit = usual(values)
        assert sum(value > limit for value in values) <= 0.05 * count
        assert sum(value >= limit for value in values) > 0.05 * count


def test_a_file_with_known_answers_flags_too(runs, new, tmp_path):
    known = write_csv(tmp_path / "known.csv", ROWS[:25])
    _, both = runs["none"]
    rows = read(predict(both, new, tmp_path / "out.csv", calibrate=str(known)).path)
    answering, _ = found_by(both, new)
    asked = [answering.source.questions.ask(row, tmp_path) for row in read(known)]
    limit = usual([answering.disagreement(one.members) for one in answering.search_members(asked)])
    assert [row[UNUSUAL] for row in rows] == [str(float(row[DISAGREEMENT]) > limit).lower() for row in rows]


def test_jsonl_has_numbers_and_booleans(runs, tmp_path):
    data = write_jsonl(tmp_path / "new.jsonl", [{"area": 30, "rooms": 1, "unusual": "?"}, {"area": 31, "rooms": 1}, {"area": 4}])
    rows = read(predict(runs["none"][1], data, tmp_path / "out.jsonl").path)
    names = [f"{name}_2" for name in COLUMNS]
    assert [*rows[0]] == ["area", "rooms", "unusual", *names]
    assert isinstance(rows[0]["disagreement_2"], float)
    assert isinstance(rows[0]["unusual_2"], bool)
    assert rows[2]["unusual_2"] is rows[2]["disagreement_2"] is None
    assert "rooms" in rows[2]["problem_2"]


def test_flags_survive_an_interruption(runs, new, tmp_path, monkeypatch):
    """The first rows are flagged by one call, and the others by the next; both count."""
    _, both = runs["none"]
    monkeypatch.setattr(Answering, "disagreement", lambda self, members: None if members[0] is None else 1e9)
    with pytest.raises(Interrupted):
        predict(both, new, tmp_path / "out.csv", batch_size=5, progress=interrupt_at(5))
    result = predict(both, new, tmp_path / "out.csv", batch_size=5)
    assert (result.new_rows, result.unusual, result.rows) == (7, 12, 12)
    assert {row[UNUSUAL] for row in read(result.path)} == {"true"}
    assert predict(both, new, tmp_path / "out.csv").unusual == 12


def test_weights_of_a_member_that_changed(runs, new, tmp_path):
    copied = shutil.copytree(runs["none"][1], tmp_path / "run")
    predict(copied, new, tmp_path / "out.csv", limit=1)
    shutil.copy(copied / "model" / "model.safetensors", copied / "model" / "members" / "2" / "model.safetensors")
    with pytest.raises(ValueError, match="weights is"):
        predict(copied, new, tmp_path / "out.csv")


def test_a_row_that_one_member_cannot_answer(runs, new, tmp_path, monkeypatch):
    """It counts as no number; where a single member is left, there is nothing to disagree with."""
    from numerate.decode.members import NoNumberError
    from numerate.decode.model import member_distributions

    def silent(*arguments: Any, **options: Any) -> Any:
        rows = member_distributions(*arguments, **options)
        raise NoNumberError("silent", [[None, *rows[0][1:]], [None, None, rows[1][2]], [None] * 3, *rows[3:]])

    monkeypatch.setattr("numerate.decode.model.member_distributions", silent)
    result = predict(runs["none"][1], new, tmp_path / "out.csv", calibrate="none", explain=3)
    rows = read(result.path)
    assert float(rows[0]["no_number"]) > 1 / 3 - 1e-6
    assert [bool(row[DISAGREEMENT]) for row in rows[:4]] == [True, False, False, True]
    assert rows[2]["problem"] == "no member gives any number a probability"
    assert result.explained[1].members[:2] == [None, None]


def test_greedy_answers_are_those_of_the_first_member(runs, new, tmp_path):
    single, both = runs["none"]
    said: list[str] = []
    rows = read(predict(both, new, tmp_path / "a.csv", decide="greedy", say=said.append).path)
    alone = read(predict(single[0], new, tmp_path / "b.csv", decide="greedy", calibrate="none").path)
    assert [row["prediction"] for row in rows] == [row["prediction"] for row in alone]
    assert FIRST_WRITES in said


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_the_command_says_how_many_rows_are_flagged(runs, new, tmp_path, monkeypatch, adapter):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(Answering, "disagreement", lambda self, members: None if members[0] is None else 7.25)
    call = ["predict", str(runs[adapter][1]), "--data", "new.csv", "--explain", "2"]
    done = CliRunner().invoke(app, call)
    assert done.exit_code == 0, done.output
    lines = done.output.splitlines()
    assert lines[-1].endswith("predictions in predictions.csv, 12 of 12 rows flagged as unusual")
    assert done.output.count("members of the model are pooled") == 1
    assert len([line for line in lines if line.startswith("  member ")]) == 2 * MEMBERS
    assert any(line.startswith("  member 2: ") and ", 90 % in " in line for line in lines)
    assert lines.count("  members disagree by 7.25, unusually far") == 2
    done = CliRunner().invoke(app, [*call, "--json", "--out", "other.csv"])
    assert json.loads(done.stdout)["unusual"] == 12
    done = CliRunner().invoke(app, [*call, "--calibrate", "none", "--out", "own.csv"])
    assert "rows flagged" not in done.output
    assert "no row is flagged as unusual" in " ".join(done.output.split())


def test_names_of_columns_are_new_together(tmp_path):
    file = PredictionFile(tmp_path / "a.csv", ["unusual", "disagreement_2"], added=COLUMNS)
    assert file.names == tuple(f"{name}_3" for name in COLUMNS)


def flats(random: np.random.Generator, count: int) -> list[dict[str, Any]]:
    """Rents that a small model can learn, with noise of 10 %."""
    rows = [
        {"area": int(random.integers(20, 100)), "rooms": int(random.integers(1, 6)), "city": "XYZ"[random.integers(3)]}
        for _ in range(count)
    ]
    factors = {"X": 1, "Y": 1.5, "Z": 2}
    return [
        {**row, "rent": round((3 * row["area"] + 20 * row["rooms"]) * factors[row["city"]] * random.uniform(0.9, 1.1))}
        for row in rows
    ]


@pytest.mark.slow
def test_rows_unlike_those_of_the_training_are_flagged(tmp_path):
    """Out of range, with a category that was never seen, or of another table: more of them than of ordinary rows."""
    random = np.random.default_rng(0)
    data, singles = write_csv(tmp_path / "flats.csv", flats(random, 400)), []
    for seed in range(4):
        settings = {"data": str(data), "task_settings": {"target": "rent", "wording": "bare"}, "steps": 150, "batch_size": 32}
        run(checked(RunConfig, {**QUICK, **settings, "seed": seed, "learning_rate": 0.004}), tmp_path / f"{seed}")
        singles.append(tmp_path / f"{seed}")
    keep_calibration(model := gathered(singles, tmp_path / "all"))
    ordinary = flats(random, 60)
    tables: dict[str, list[dict[str, Any]]] = {
        "ordinary": ordinary,
        "out of range": [{**row, "area": 10 * row["area"]} for row in ordinary],
        "never seen": [{**row, "city": "Q"} for row in ordinary],
        "another table": [
            {"area": ["red", "green", "blue"][i % 3], "rooms": 7 * i + 1000, "city": round(i / 60, 3)} for i in range(60)
        ],
    }
    flagged = {}
    for name, rows in tables.items():
        new = write_csv(tmp_path / f"{name}.csv", rows, ("area", "rooms", "city"))
        flagged[name] = predict(model, new, tmp_path / f"{name}_out.csv").unusual
    assert flagged["ordinary"] <= 0.2 * len(ordinary), flagged
    assert min(flagged["out of range"], flagged["never seen"]) > 2 * flagged["ordinary"], flagged
    assert flagged["another table"] > flagged["ordinary"], flagged
