"""Validation while training: the best weights are kept, also by a run or a stack that was interrupted."""

import pytest

from numerate.lab.files.records import read_jsonl
from numerate.lab.training.config import RunConfig
from numerate.lab.training.run import run
from numerate.lab.training.stacked import run_stack
from numerate.lab.training.validation import Validation

QUICK = {"task": "regression", "steps": 6, "batch_size": 4, "train_examples": 30, "eval_examples": 5, "log_every": 2}
WATCHED = {
    "validate_every": 1,
    "keep_best": True,
    "choose_by": "absolute_error",
    "save_every": 2,
    "eval_splits": ("interpolate",),
}


class StoppedError(Exception):
    """Ends a run in the middle."""


def stop_at(step):
    def progress(stage, done, total, figures):
        if (stage, done) == ("train", step):
            raise StoppedError

    return progress


def alone(config, folder, **options):
    run(config, folder, **options)


def stacked(config, folder, **options):
    run_stack([config, config.model_copy(update={"seed": 9})], [folder, folder.with_name(f"{folder.name}-other")], **options)


@pytest.mark.parametrize("train", [alone, stacked])
def test_an_interrupted_run_keeps_its_best_weights(train, tmp_path):
    config = RunConfig(**QUICK, **WATCHED)
    train(config, tmp_path / "whole")
    with pytest.raises(StoppedError):
        train(config, tmp_path / "parts", progress=stop_at(5))
    train(config, tmp_path / "parts")
    outputs = [[row["output"] for row in read_jsonl(tmp_path / name / "predictions.jsonl")] for name in ("whole", "parts")]
    assert outputs[0] == outputs[1]
    steps = [
        [point["step"] for point in read_jsonl(tmp_path / name / "curve.jsonl") if "validation/exact" in point]
        for name in ("whole", "parts")
    ]
    assert steps == [[1, 2, 3, 4, 5, 6]] * 2


@pytest.mark.parametrize("keep_best", [False, True])
def test_the_weights_at_the_end(keep_best, tmp_path, monkeypatch):
    """With ``keep_best`` those of the best step, else the last: here the second of six is best by decree."""
    kept = {}
    scores = iter([1.0, 5.0, 2.0, 2.0, 2.0, 2.0])
    monkeypatch.setattr("numerate.lab.training.validation.chosen_figure", lambda *_: next(scores))

    def remember(self, step):
        figures = original(self, step)
        kept[step] = [weight.detach().clone() for weight in self.loaded.model.parameters()]
        return figures

    original = Validation.after
    monkeypatch.setattr(Validation, "after", remember)
    ended = {}
    monkeypatch.setattr(
        "numerate.lab.training.finish.end_run", lambda config, task, loaded, *_: ended.update(model=loaded.model) or {}
    )
    run(RunConfig(**QUICK, **WATCHED | {"keep_best": keep_best, "save_every": None}), tmp_path)
    expected = kept[2 if keep_best else 6]
    assert all((own == other).all() for own, other in zip(ended["model"].parameters(), expected, strict=True))
