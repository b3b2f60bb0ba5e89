"""The same run twice: the same weights, records and learning curve, bit by bit, on a CPU."""

from __future__ import annotations

import pytest
import torch
import transformers.models.llama.modeling_llama
import transformers.trainer  # noqa: F401 -- before `short_collections`, which leaves out what is imported

from numerate.lab.files.records import read_jsonl
from numerate.lab.training.config import SOFT, RunConfig
from numerate.lab.training.run import run
from numerate.lab.training.stacked import run_stack
from numerate.losses import LOSSES

KINDS = ["ce", *LOSSES, *SOFT]
EASY = {"difficulty": 1, "longest": 2, "operations": "+-", "signed": False, "wording": "bare"}
FEW = {"task_settings": EASY, "steps": 3, "batch_size": 4, "train_examples": 12, "eval_examples": 2, "log_every": 1}
FEW |= {"eval_splits": ("interpolate",), "max_new_tokens": 4, "keep_model": True}


@pytest.fixture(autouse=True)
def quickly(monkeypatch):
    monkeypatch.setattr("numerate.lab.training.prepare.environment", dict)  # versions of all packages, which are read from files


def config(loss, **settings):
    soft = {"soft": {"width": 2.0, "path": SOFT[loss]}, "loss": "ce"} if loss in SOFT else {"loss": loss}
    return RunConfig(**FEW | soft | settings)


def files(folder):
    """Return what a run has written, without times."""
    curve = [{name: value for name, value in point.items() if name != "seconds"} for point in read_jsonl(folder / "curve.jsonl")]
    weights = {path.name: path.read_bytes() for path in (folder / "model").iterdir()}
    assert len(weights["model.safetensors"]) > 100_000
    return weights, (folder / "predictions.jsonl").read_bytes(), curve


@pytest.mark.parametrize("loss", KINDS)
def test_a_run(loss, tmp_path):
    for name in ("first", "second"):
        run(config(loss), tmp_path / name)
        torch.rand(3)  # what happens elsewhere in the process has no part in it
    assert files(tmp_path / "first") == files(tmp_path / "second")


def test_a_run_with_soft_labels_of_a_loss_samples_and_decisions(tmp_path):
    both = config("smmd", soft={"width": 2.0}, samples=2, decide=("median",), validate_every=1, keep_best=True)
    for name in ("first", "second"):
        run(both, tmp_path / name)
    records = [read_jsonl(tmp_path / name / "predictions.jsonl") for name in ("first", "second")]
    for record in (record for part in records for record in part):
        assert record.pop("seconds").keys() == {"greedy", "samples", "search"}
        assert len(record["samples"]) == 2
    assert records[0] == records[1]
    (first, _, curve), (second, _, other) = (files(tmp_path / name) for name in ("first", "second"))
    assert first == second
    assert curve == other


def test_a_stack_of_every_loss(tmp_path):
    configs = [config(loss, seed=seed % 2) for seed, loss in enumerate(KINDS)]
    for name in ("first", "second"):
        run_stack(configs, [tmp_path / name / str(k) for k in range(len(configs))])
    for k, loss in enumerate(KINDS):
        assert files(tmp_path / "first" / str(k)) == files(tmp_path / "second" / str(k)), loss
