"""benchmarks/training_speed.py with a tiny model: what is measured is right, and nothing is left out."""

from __future__ import annotations

import pytest
import torch

from benchmarks import training_speed
from numerate.losses import LOSSES


def test_every_objective_on_both_paths(tmp_path, capsys):
    file = tmp_path / "speed.csv"
    training_speed.main(["tiny", "--batch", "2", "--length", "24", "--repeats", "1", "--device", "cpu", "--out", str(file)])
    printed = capsys.readouterr()
    costs = training_speed.read(file)
    own, *others = costs
    assert {(cost.path, cost.objective) for cost in others} == {
        (path, name) for path in ("attach", "logits") for name in ("ce", "soft", *LOSSES)
    }
    assert (own.objective, own.ratio, own.peak_ratio, own.model, own.batch, own.length) == ("own", 1.0, 1.0, "tiny", 2, 24)
    for cost in costs:
        assert cost.ratio == pytest.approx(cost.ms / own.ms, rel=1e-4)
        assert cost.tokens_per_second == pytest.approx(48_000 / cost.ms, rel=1e-4)
        assert cost.peak_mib > 0
    assert printed.err.count("round 1 of 1") == 1
    training_speed.main(["--table", str(file)])
    table = capsys.readouterr().out
    assert table == printed.out
    lines = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| `")]
    assert [line[0] for line in lines] == [f"`{name}`" for name in ("ce", "soft", *LOSSES)]
    assert all(len(line) == 7 for line in lines)


def test_steps_are_whole_and_leave_the_weights(tmp_path):
    workload = training_speed.Workload("tiny", 1, 24, torch.float32, torch.device("cpu"), tmp_path)
    before = [parameter.detach().clone() for parameter in workload.model.parameters()]
    works = workload.works(["emd"])
    stepped = []
    workload.optimizer.register_step_post_hook(lambda *_: stepped.append(1))
    losses = {key: float(work()) for key, work in works.items()}
    assert len(stepped) == len(works) == 7
    assert all((old == new).all() for old, new in zip(before, workload.model.parameters(), strict=True))
    assert losses["attach", "emd"] > losses["attach", "ce"] == pytest.approx(losses["", "own"], rel=1e-5)
    assert losses["attach", "soft"] == pytest.approx(losses["logits", "soft"], rel=1e-5)
    assert losses["attach", "soft"] != pytest.approx(losses["attach", "ce"], rel=1e-3)


def test_a_wrong_result_is_not_measured(monkeypatch):
    original = training_speed.FromLogits.compute_loss
    monkeypatch.setattr(training_speed.FromLogits, "compute_loss", lambda *given, **options: original(*given, **options) * 1.01)
    with pytest.raises(ValueError, match="attach soft is .* and logits soft .*: expected the same loss, so nothing"):
        training_speed.measure("tiny", 1, 24, "float32", "cpu", ["emd"], 1)
