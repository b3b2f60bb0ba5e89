"""Ctrl-C: what is finished is said, what goes on is said, and no process is left."""

from __future__ import annotations

import os
import signal
import sys

import pytest
from tests import apart
from tests.apart import alive, children_of, wait_until

from numerate.cli import app

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


def test_python_gets_a_keyboard_interrupt_that_tells(tmp_path, monkeypatch):
    from numerate.lab import compare
    from numerate.lab.comparison import InterruptedComparison

    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("numerate.lab.comparison.run_local", interrupt)
    with pytest.raises(InterruptedComparison, match="Interrupted: 0 of 2 runs are finished") as stop:
        compare(task="arithmetic", losses=["ce", "smmd"], seeds=1, out=tmp_path, processes=1, progress=False)
    assert isinstance(stop.value, KeyboardInterrupt)
    assert (stop.value.finished, stop.value.total, stop.value.folder) == (0, 2, tmp_path)
