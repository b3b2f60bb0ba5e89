"""Ctrl-C: what is finished is said, what goes on is said, and no process is left."""

from __future__ import annotations

import json
import logging
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from unittest.mock import patch

import pytest
from safetensors.torch import load_file, save_file
from tests import apart
from tests.apart import alive, children_of, wait_until

import numerate
from numerate.cli import app
from numerate.lab.files.progress import RunProgress
from numerate.lab.files.records import read_jsonl
from numerate.lab.prediction.train import InterruptedTraining, train
from numerate.lab.training.config import RunConfig, checked
from numerate.lab.training.run import run

SOURCE = Path(numerate.__file__).parents[1]

SHORT = ["compare", "--task", "arithmetic", "--loss", "smmd", "--seeds", "2", "--set", "batch_size=8", "--set", "eval_examples=6"]
SHORT += ["--set", "train_examples=64", "--set", "log_every=1"]


def command(arguments):
    sys.argv = ["numerate", *arguments]
    app(prog_name="numerate")


@pytest.mark.launch
@pytest.mark.parametrize("processes", [1, 2])
def test_ctrl_c_says_what_is_finished_and_how_to_go_on(processes, tmp_path):
    """The signal goes to all processes, as that of a terminal does."""
    grid = tmp_path / "my grid"
    first = [*SHORT, "--processes", str(processes), "--out", str(grid), "--set", "steps=2"]
    if processes == 1:  # so that some runs are finished: the same ones are part of the longer comparison
        assert apart.finish(apart.start(command, [*first, "--seeds", "1"], output=tmp_path / "first.txt")) == 0
    steps = "2" if processes == 1 else "100000"
    arguments = [*first[:-1], f"steps={steps}"]
    if processes == 1:
        arguments += ["--seeds", "400"]
    process = apart.start(command, arguments, output=tmp_path / "output.txt")
    wait_until(lambda: len(list(grid.glob("cells/*/curve.jsonl"))) >= (4 if processes == 1 else 2))
    children = [child for child in children_of(process.pid) if alive(child)]
    assert len(children) >= (0 if processes == 1 else 2)
    for pid in (process.pid, *children):
        os.kill(pid, signal.SIGINT)
    assert apart.finish(process) == 130
    wait_until(lambda: not any(map(alive, children)))
    printed = (tmp_path / "output.txt").read_text()
    assert "Traceback" not in printed
    finished = len(list(grid.glob("cells/*/result.json")))
    total = 800 if processes == 1 else 4
    assert f"Interrupted: {finished} of {total} runs are finished and kept in {grid}; others begin again." in printed
    assert (finished >= 2) == (processes == 1)
    assert printed.rstrip().endswith(f"--out '{grid}' --set steps={steps}" + (" --seeds 400" if processes == 1 else ""))


# numerate train


EASY = {"difficulty": 1, "operations": "+-", "wording": "bare"}
QUICK = {"task_settings": EASY, "steps": 4, "batch_size": 8, "train_examples": 64, "eval_examples": 4, "log_every": 2}
QUICK |= {"eval_batch_size": 4}
KINDS = {
    "plain": {},
    "every loss has a state": {"loss": "smmd", "accumulation": 2},
    "soft": {"loss": "soft", "soft": {"width": 2}},
    "best weights": {"validate_every": 2, "keep_best": True, "choose_by": "absolute_error"},
    "own checkpoints": {"save_every": 2},
    "adapter": {"adapter": "lora", "rank": 2},
}


def interrupt(stage, at, number):
    """Progress that sends a signal to this process at a step of a stage."""

    def progress(what, done, *_):
        if (what, done) == (stage, at):
            os.kill(os.getpid(), number)

    return progress


def contents(folder):
    """Weights and predictions of a finished run."""
    files = [folder / "predictions.jsonl", *folder.glob("model/*.safetensors")]
    assert len(files) == 2
    return [file.read_bytes() for file in files]


@pytest.fixture
def logged(monkeypatch):
    """The warnings of transformers' Trainer."""
    messages = []
    monkeypatch.setattr(logging.getLogger("transformers.trainer"), "warning", lambda text, *_: messages.append(text))
    return messages


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_is_interrupted_after_every_step_ends_like_one_that_is_not(kind, tmp_path, logged):
    if kind == "adapter":
        pytest.importorskip("peft")
    settings = {**QUICK, **KINDS[kind], "task": "arithmetic"}
    whole, part = tmp_path / "whole", tmp_path / "part"
    train(out=whole, **settings)
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    for step in range(1, settings["steps"]):
        number = (signal.SIGINT, signal.SIGTERM)[step % 2]
        with pytest.raises(InterruptedTraining, match=f"^Interrupted: step {step} of 4 is saved in {part}.$") as stop:
            train(out=part, resume=step > 1, progress=interrupt("train", step, number), **settings)
        assert (stop.value.step, stop.value.steps, stop.value.signal) == (step, 4, number)
        assert not (part / "result.json").exists()
    for stage, done in (("train", 4), ("evaluate", 4)):  # the last step, and the first answers
        with pytest.raises(InterruptedTraining, match="is trained; its evaluation is left"):
            train(out=part, resume=True, progress=interrupt(stage, done, signal.SIGINT), **settings)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers
    seen = []
    train(out=part, resume=True, progress=lambda what, *_: seen.append(what), **settings)
    assert "train" not in seen
    assert contents(part) == contents(whole)
    assert {point["step"] for point in read_jsonl(part / "curve.jsonl")} == {1, 2, 3, 4}
    left = {path.name for path in part.iterdir()} - {path.name for path in whole.iterdir()}
    assert not left
    assert not logged  # not that the head, which is tied to the embedding, is missing from the checkpoint


def test_a_weight_that_a_checkpoint_does_not_have_is_named(tmp_path, logged):
    with pytest.raises(InterruptedTraining):
        train(out=tmp_path, progress=interrupt("train", 2, signal.SIGINT), task="arithmetic", **QUICK)
    file = tmp_path / "checkpoints" / "checkpoint-2" / "model.safetensors"
    weights = load_file(file)
    assert "lm_head.weight" not in weights
    del weights["model.norm.weight"]
    save_file(weights, file, metadata={"format": "pt"})
    train(out=tmp_path, resume=True, task="arithmetic", **QUICK)
    assert logged == ["There were missing keys in the checkpoint model loaded: ['model.norm.weight']."]


def test_before_the_first_step_nothing_is_kept_and_a_second_signal_does_not_wait(tmp_path):
    def twice(what, done, *_):
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)
            signal.getsignal(signal.SIGINT)  # a call, before which Python handles the signal

    with pytest.raises(InterruptedTraining, match=r"^Interrupted: before the first step was saved\.$"):
        train(out=tmp_path / "a", progress=twice, task="arithmetic", **QUICK)
    result = train(out=tmp_path / "a", resume=True, task="arithmetic", **QUICK)
    assert result.new


def test_a_comparison_is_interrupted_at_once(tmp_path):
    """Its runs begin again; only the signals of a run by itself wait."""
    seen = []

    def progress(what, done, *_):
        seen.append(done)
        if what == "train":
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        run(checked(RunConfig, QUICK), tmp_path, progress=progress)
    assert seen == [1]
    assert not list(tmp_path.glob("checkpoints/*"))


def command_interrupted(number, *arguments):
    called = RunProgress.__call__

    def progress(self, stage, done, total, figures):
        called(self, stage, done, total, figures)
        if (stage, done) == ("train", 2):
            os.kill(os.getpid(), number)

    with patch.object(RunProgress, "__call__", progress):
        command(arguments)


@pytest.mark.launch
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_train_says_what_is_kept_and_how_to_go_on(number, tmp_path):
    folder = tmp_path / "my run"
    arguments = ["train", "--task", "arithmetic", *(f"--set={name}={json.dumps(value)}" for name, value in QUICK.items())]
    arguments += ["--out", str(folder), "--overwrite"]
    process = apart.start(command_interrupted, number, *arguments, output=tmp_path / "output.txt")
    assert apart.finish(process) == 128 + number
    *_, said, go_on = (tmp_path / "output.txt").read_text().splitlines()
    assert said == f"Interrupted: step 2 of 4 is saved in {folder}. Continue with:"
    assert go_on.strip() == shlex.join(["numerate", *arguments[:-1], "--resume"])
    assert apart.finish(apart.start(command, shlex.split(go_on)[1:], output=tmp_path / "again.txt")) == 0
    train(out=tmp_path / "whole", task="arithmetic", **QUICK)
    assert contents(folder) == contents(tmp_path / "whole")


@pytest.mark.launch
def test_processes_that_train_together_stop_at_the_same_step(tmp_path):
    """A signal reaches them at different steps, or only one of them."""
    script = tmp_path / "two.py"
    script.write_text(f"""
import os, signal
from numerate.lab.prediction.train import train

def progress(what, done, *_):
    if (what, done, os.environ["RANK"]) == ("train", 2, "1"):
        os.kill(os.getpid(), signal.SIGTERM)

try:
    train(out={str(tmp_path / "run")!r}, progress=progress, task="arithmetic", **{QUICK!r})
except KeyboardInterrupt as stop:
    print(stop, flush=True)
""")
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2"]
    launch += ["--main_process_port", "0"]  # any that is free
    environment = {**os.environ, "PYTHONPATH": f"{SOURCE}:{os.environ.get('PYTHONPATH', '')}", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*launch, str(script)], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(f"Interrupted: step 2 of 4 is saved in {tmp_path / 'run'}.") == 2
    assert [path.name for path in tmp_path.glob("run/checkpoints/*")] == ["checkpoint-2"]
