"""Memory does not grow with training steps: neither tensors nor other Python objects are left over."""

from __future__ import annotations

import gc

import torch

from numerate.lab.training.config import RunConfig
from numerate.lab.training.run import run

OBJECTS = 0.2  # left over by a repetition: the Trainer keeps what it logs


def test_training_steps(tmp_path):
    counts = {}

    def measure(stage: str, done: int, *_: object) -> None:
        if stage == "train" and done in (60, 120):
            gc.collect()
            alive = gc.get_objects()
            counts[done] = sum(issubclass(type(one), torch.Tensor) for one in alive), len(alive)

    shape = {"steps": 120, "batch_size": 8, "train_examples": 512, "eval_examples": 2, "log_every": 2}
    config = RunConfig(task="arithmetic", loss="smmd", task_settings={"difficulty": 1, "wording": "bare"}, **shape)
    run(config, tmp_path, progress=measure)
    assert counts[120][0] <= counts[60][0]
    assert counts[120][1] - counts[60][1] < OBJECTS * 60
