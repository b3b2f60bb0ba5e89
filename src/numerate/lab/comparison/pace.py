"""Measure how fast a machine trains and evaluates: a few steps and a few answers of a real run."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from statistics import median

from numerate.lab.comparison.budget import Pace
from numerate.lab.data import Task
from numerate.lab.models.loading import load_encoder
from numerate.lab.models.names import BUILT
from numerate.lab.training.config import RunConfig
from numerate.lab.training.run import draw_ahead, load_run_model, run
from numerate.lab.training.validation import MOST

_STEPS, _TESTS = 8, 64  # of a model that is built here
_FEW_STEPS, _FEW_TESTS = 3, 8  # of larger ones


class _Enough(BaseException):
    """Raised within a short run that has been measured for long enough."""


def measured(config: RunConfig, pictures: Path, limit: float = math.inf) -> Pace:
    """Train and evaluate a short run like ``config``, in a folder that is deleted; ``pictures`` are kept.

    After ``limit`` seconds it ends at the next step or answer. An answer that was not seen is taken to be as slow as a step.
    """
    called = time.perf_counter()
    small = config.model in BUILT
    short = shortened(config)
    encoder = load_encoder(config.model, trust_remote_code=config.trust_remote_code)
    if small:  # what is imported and loaded once is no part of a run
        load_run_model(short, encoder)
        from transformers import trainer  # noqa: F401
    events: list[tuple[str, int, float]] = []

    def watched(stage: str, done: int, *_: object) -> None:
        events.append((stage, done, time.perf_counter()))
        steps = sum(name == "train" for name, _, _ in events)
        if events[-1][2] - called > limit and (steps > 1 or stage == "evaluate"):
            raise _Enough

    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, suppress(_Enough):
        run(short, Path(folder), pictures=pictures, progress=watched)
    end = time.perf_counter()
    steps = [seconds for stage, _, seconds in events if stage == "train"]
    gaps = [after - before for before, after in pairwise(steps)]
    step = median(gaps[1:] or gaps)
    tests, answered = next(((done, at) for stage, done, at in reversed(events) if stage == "evaluate" and done), (0, end))
    answer = (answered - steps[-1]) / tests if tests else step
    if config.validate_every is not None:
        step += answer * min(MOST, config.eval_examples) / config.validate_every
    return Pace(max(0.0, steps[0] - begin - step) + end - answered, step, answer)


def shortened(config: RunConfig) -> RunConfig:
    """Return a run of a few steps and test rows."""
    steps, tests = (_STEPS, _TESTS) if config.model in BUILT else (_FEW_STEPS, _FEW_TESTS)
    changed = {"steps": steps, "eval_examples": min(tests, config.eval_examples), "validate_every": None, "keep_best": False}
    return config.model_copy(update={**changed, "save_every": None, "keep_model": False, "tensorboard": False})


def drawing_seconds(configs: Sequence[RunConfig], task: Task, pictures: Path) -> float:
    """Return the seconds to draw the training pictures of a step on all cores; 0 for tasks and models without pictures.

    The pictures of the short runs of :func:`measured` are drawn and kept.
    """
    first = configs[0]
    encoder = load_encoder(first.model, trust_remote_code=first.trust_remote_code)
    if not encoder.sees or task.examples("train", 1)[0].picture is None:
        return 0.0
    encoder.keep_pictures(pictures)
    short = shortened(first)
    begin = time.perf_counter()
    draw_ahead([short], task, encoder, lambda *_: None)
    rows = short.steps * first.batch_size * first.accumulation
    tests = short.eval_examples * len(first.eval_splits)
    return (time.perf_counter() - begin) * first.batch_size * first.accumulation / (rows + tests)
