"""research/after_training.py on a comparison of tiny models, and its table on figures that are known."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from numerate.lab.comparison.cells import run_cells, tuned_cells, tuning_trials, write_plan
from numerate.lab.comparison.plan import read_experiment

pytest.importorskip("trl")

@pytest.fixture(scope="module")
def comparison(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "prices"
    table = folder.parent / "prices.csv"
    table.write_text("carat,price\n" + "".join(f"0.{k},{7 * k + k % 5}\n" for k in range(10, 70)), encoding="utf-8")
    values = {
        "losses": ["ce", "soft"], "task": "regression", "data": str(table), "soft": {"relative": 0.1}, "seeds": 1, "steps": 3,
        "task_settings": {"target": "price", "columns": ["carat"], "wording": "bare"}, "batch_size": 4, "train_examples": 12,
        "eval_examples": 3, "decide": ["median"], "decide_width": 2, "keep_model": True, "choose_by": "absolute_error",
    }  # fmt: skip
    experiment = read_experiment(values)
    trials = tuning_trials(experiment, 1)
    run_cells([trial for own in trials.values() for trial in own], folder)
    cells = tuned_cells(experiment, folder, trials)
    run_cells(cells, folder)
    write_plan(experiment, cells, folder)
    return folder


@pytest.mark.filterwarnings("ignore")
def test_a_run_is_continued_in_every_way(script, comparison, monkeypatch):
    monkeypatch.setattr(script, "PILOT", 2)
    weights, rows_of = [], []
    evaluated, subset = script.evaluated, script.torch.utils.data.Subset

    def recorded(config, task, loaded, labels):
        weights.append([parameter.detach().clone() for parameter in loaded.model.parameters()])
        return evaluated(config, task, loaded, labels)

    def taken(data, rows):
        rows_of.append(rows)
        return subset(data, rows)

    monkeypatch.setattr(script, "evaluated", recorded)
    monkeypatch.setattr(script.torch.utils.data, "Subset", taken)
    (start,), _ = script.find_starts(comparison, ["soft"])
    settings = script.Settings(2, 2, 4, temperature=3.0)
    rows = script.continued(start, {"supervised": 1.0, "crps:form=fair": 1.0, "log_error": 1.0}, settings)

    assert [row["way"] for row in rows] == ["crps:form=fair", "log_error", "supervised"]
    first = script.load_run(start.folder, start.config).model
    assert all(any((old != new).any() for old, new in zip(first.parameters(), own, strict=True)) for own in weights)
    crps, log_error, supervised = rows
    assert (crps["steps"], crps["samples"]) == (log_error["steps"], log_error["samples"]) == (2, 16)
    assert supervised["samples"] == 4 * supervised["steps"]
    assert rows_of == [range(12, 12 + 4 * steps) for steps in (5, 2, supervised["steps"])]  # after three steps of four rows
    assert min(row["seconds"] for row in rows) > 0
    for row in rows:
        assert row.keys() == set(script.COLUMNS)
        assert (row["comparison"], row["start"], row["seed"], row["validation"]) == ("prices", "soft", 0, 0)
        assert row["before_crps"] == crps["before_crps"]
    written = script.read_jsonl(start.folder / "predictions.jsonl")
    assert crps["before_greedy"] == pytest.approx(
        sum(script.with_fallback(one, one["measures"])["absolute_error"] for one in written) / len(written)
    )


def row(start, seed, way, before, after, validation=0):
    figures = {
        f"{when}_{name}": value
        for when, value in (("before", before), ("after", after))
        for name in ("greedy", "typical", "median", "crps")
    }
    about = {"comparison": "births", "model": "small", "start": start, "seed": seed, "validation": validation, "way": way}
    return {**about, "factor": 0.1, "steps": 300, "samples": 38400, "seconds": 60.0, **figures}


def test_a_way_that_helps(script, tmp_path):
    rows = [row("ce", 1000, "crps", 99.0, 1.0, validation=1)]
    for seed in range(8):
        before = 20 + 0.1 * seed
        rows.append(row("ce", seed, "crps", before, before - 2 - 0.01 * (seed % 3)))
        rows.append(row("ce", seed, "log_error", before, before + 0.3 * (-1) ** seed))
        rows.append(row("ce", seed, "supervised", before, before + 0.2 * (-1) ** (seed // 2)))
    script.write(tmp_path / "a.csv", rows)
    assert script.read(tmp_path / "a.csv") == rows
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in script.table(rows) if line.startswith("| ")]
    head, start, crps, log_error, supervised = lines
    assert head[4:8] == ["MAE, greedy", "median error, greedy", "MAE, median", "CRPS"]
    assert len(start) == len(crps) == len(supervised) == 8
    assert start[:5] == ["`ce`", "", "", "", "20.35"]
    assert crps[:5] == ["+ `crps`", "300", "38,400", "60.0", "18.34 (< 0.001; < 0.001)"]
    p_start, p_control = re.fullmatch(r"[\d.]+ \(([\d.]+); ([\d.]+)\)", log_error[4]).groups()
    assert min(float(p_start), float(p_control)) > 0.05
    assert float(re.fullmatch(r"[\d.]+ \(([\d.]+)\)", supervised[4]).group(1)) > 0.05
