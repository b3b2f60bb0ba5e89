"""scripts/after_training.py on a comparison of tiny models, and its table on figures that are known."""

from __future__ import annotations

import sys

import pytest

from numerate.lab.experiment import read_experiment, run_cells, tuned_cells, tuning_trials, write_plan

pytest.importorskip("trl")


@pytest.fixture(scope="module")
def comparison(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "prices"
    values = {
        "losses": ["ce", "soft"], "task": "regression", "data": "diamonds", "soft": {"relative": 0.1}, "seeds": 2, "steps": 3,
        "task_settings": {"target": "price", "columns": ["carat"], "wording": "bare"}, "batch_size": 4, "train_examples": 12,
        "eval_examples": 4, "decide": ["median"], "keep_model": True, "choose_by": "absolute_error",
    }  # fmt: skip
    experiment = read_experiment(values)
    trials = tuning_trials(experiment, 1)
    run_cells([trial for own in trials.values() for trial in own], folder)
    cells = tuned_cells(experiment, folder, trials)
    run_cells(cells, folder)
    write_plan(experiment, cells, folder)
    return folder


def calls(script, monkeypatch):
    """Record which runs are continued, and how."""
    made = []
    original = script.continued

    def continued(start, factors, settings):
        made.append((start.config.name, start.config.seed, factors))
        return original(start, factors, settings)

    monkeypatch.setattr(script, "continued", continued)
    monkeypatch.setattr(script, "PILOT", 2)
    return made


@pytest.mark.filterwarnings("ignore")
def test_a_comparison_is_continued(script, comparison, tmp_path, monkeypatch, capsys):
    made = calls(script, monkeypatch)
    out = tmp_path / "after.csv"
    command = ["run", str(comparison), str(out), "--steps", "2", "--prompts", "2", "--group", "4", "--starts", "ce"]
    script.main([*command, "--tune", "1"])
    rows = script.read(out)
    ways = ["crps:form=fair", "log_error", "supervised"]
    assert [(row["start"], row["seed"], row["validation"], row["way"]) for row in rows] == [
        ("ce", seed, int(seed == 1000), way) for seed in (1000, 0, 1) for way in ways
    ]
    for row in rows:
        assert row["factor"] == script.FACTORS[0]
        if row["way"] != "supervised":
            assert (row["steps"], row["samples"]) == (2, 16)
        assert row["seconds"] > 0
        assert {"before_greedy", "after_greedy", "after_median", "after_crps"} <= row.keys()
        assert row["validation"] or {"before_median", "before_crps"} <= row.keys()
    by_seed = {row["seed"]: row["before_crps"] for row in rows if not row["validation"]}
    assert len(set(by_seed.values())) == 2

    script.main(command)  # all of it is there
    assert len(made) == 3
    script.write(out, [row for row in rows if (row["seed"], row["way"]) != (1, "log_error")])
    script.main(command)
    assert made[3:] == [("ce", 1, dict.fromkeys(ways, 0.1))]
    assert len(script.read(out)) == len(rows)
    capsys.readouterr()
    script.main(["table", str(out)])
    assert "`prices`, model `tiny`, 2 seeds" in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore")
def test_weights_change_and_the_rows_of_the_control_are_new(script, comparison):
    (start, *_), _ = script.find_starts(comparison, ["soft"])
    config = start.config.model_copy(update={"learning_rate": 1e-2})
    task, before, loaded = script.make_task(config), script.load_run(start.folder, config), script.load_run(start.folder, config)
    script.reinforce(config, script.run_examples(config, task), loaded, "log_error", script.Settings(2, 2, 4, temperature=2.0))
    pairs = [*zip(before.model.parameters(), loaded.model.parameters(), strict=True)]
    assert any((old != new.cpu()).any() for old, new in pairs)

    seen = []
    original = torch_subset = script.torch.utils.data.Subset
    try:
        script.torch.utils.data.Subset = lambda data, rows: seen.append(rows) or original(data, rows)
        script._more_steps(config, task, loaded, 2)
    finally:
        script.torch.utils.data.Subset = torch_subset
    assert seen == [range(12, 20)]  # after three steps of four rows


@pytest.mark.filterwarnings("ignore")
def test_a_list_stands_in_for_the_package_datasets(script, monkeypatch):
    monkeypatch.delitem(sys.modules, "datasets", raising=False)
    monkeypatch.setattr(script, "find_spec", lambda name: None)
    make = script.as_dataset()
    stand_in = sys.modules["datasets"]
    monkeypatch.delitem(sys.modules, "datasets")
    rows = make([{"prompt": "1", "answer": "2"}])
    assert isinstance(rows, stand_in.Dataset)
    assert (len(rows), rows[0]["answer"]) == (1, "2")


def test_losses_and_trials_that_are_missing_are_named(script, comparison, tmp_path):
    with pytest.raises(SystemExit, match="no finished run of emd: expected one of ce, soft"):
        script.main(["run", str(comparison), str(tmp_path / "a.csv"), "--starts", "emd"])
    with pytest.raises(ValueError, match="--rewards='cprs' is not known"):
        script.main(["run", str(comparison), str(tmp_path / "a.csv"), "--rewards", "cprs"])


def row(start, seed, way, before, after, validation=0):
    figures = {f"{when}_{name}": value for when, value in (("before", before), ("after", after)) for name in ("greedy", "median", "crps")}
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
    assert head[5:8] == ["MAE, greedy", "p, start", "p, supervised"]
    assert start[:6] == ["`ce`", "", "", "", "", "20.35"]
    assert crps[1:8] == ["`crps`", "300", "38,400", "60.0", "18.34", "< 0.001", "< 0.001"]
    assert float(log_error[6]) > 0.05
    assert float(log_error[7]) > 0.05
    assert (float(supervised[6]) > 0.05, supervised[7]) == (True, "")
