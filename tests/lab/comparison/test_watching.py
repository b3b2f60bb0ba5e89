"""How far runs in any process are, and how long the rest takes, from the files that they write."""

from __future__ import annotations

import io
import os
import threading
import time

import pytest
from rich.console import Console
from tests.apart import wait_until

from numerate.lab.comparison.cells import cell_folder
from numerate.lab.comparison.watching import Watch, steps_shown
from numerate.lab.files.progress import NOTE, GridProgress, NotedProgress
from numerate.lab.files.records import write_json, write_text
from numerate.lab.training.config import RunConfig


@pytest.fixture(autouse=True)
def quickly(monkeypatch):
    monkeypatch.setattr("numerate.lab.comparison.watching._WATCH_SECONDS", 0.01)
    monkeypatch.setattr("numerate.lab.comparison.watching._LINE_SECONDS", (0.0, 0.1))


def file(folder, cell, name):
    return cell_folder(folder, cell) / name


def finish(folder, cell, **cost):
    write_json(file(folder, cell, "result.json"), {"cost": cost})


def test_the_steps_of_runs_in_other_processes_are_shown(tmp_path):
    finished, running, waiting = (RunConfig(seed=seed, steps=100) for seed in range(3))
    finish(tmp_path, finished)
    with GridProgress(Console(file=io.StringIO(), force_terminal=True)) as display:
        with steps_shown([finished, running, waiting], tmp_path, display):
            (bar,) = display.bars.tasks
            assert (bar.total, bar.completed) == (200, 0)
            for text, steps in (('{"step": 20}\n', 20), ('{"step": 20}\n{"step": 40}\n', 40)):
                write_text(file(tmp_path, running, "curve.jsonl"), text)
                wait_until(lambda steps=steps: bar.completed == steps)
            write_text(file(tmp_path, running, NOTE), '["train", 47, 100]')  # between two points of the curve
            wait_until(lambda: bar.completed == 47)
            write_text(file(tmp_path, running, NOTE), '["evaluate", 3, 10]')
            wait_until(lambda: bar.completed == 100)
            finish(tmp_path, waiting)
            wait_until(lambda: bar.completed == 200)
        assert display.bars.tasks == []


def test_a_line_that_is_being_written_is_not_read(tmp_path):
    cell = RunConfig(steps=100)
    watch = Watch([cell], tmp_path)
    write_text(file(tmp_path, cell, "curve.jsonl"), '{"step": 20}\n{"ste')
    watch.look()
    assert watch.done == 20


def test_what_an_interrupted_run_left_does_not_count(tmp_path):
    cell = RunConfig(steps=100)
    for name, text in (("curve.jsonl", '{"step": 20}\n'), (NOTE, '["train", 47, 100]')):
        write_text(file(tmp_path, cell, name), text)
        os.utime(file(tmp_path, cell, name), (0, time.time() - 60))
    watch = Watch([cell], tmp_path)
    watch.look()
    assert watch.done == 0


def test_without_a_terminal_steps_and_time_left_are_printed(tmp_path, monkeypatch):
    monkeypatch.setattr("numerate.lab.comparison.watching._MEASURED_SECONDS", 0.05)
    running, text = RunConfig(steps=1200), io.StringIO()
    with GridProgress(Console(file=text)) as display, steps_shown([running], tmp_path, display):
        write_text(file(tmp_path, running, NOTE), '["train", 20, 1200]')
        wait_until(lambda: "20 of 1,200 steps\n" in text.getvalue())
        write_text(file(tmp_path, running, NOTE), '["train", 30, 1200]')
        wait_until(lambda: "30 of 1,200 steps, about " in text.getvalue())
        time.sleep(0.5)
    lines = text.getvalue().rstrip().splitlines()  # older versions of rich end with an empty line
    assert lines[-1].endswith(" left")
    assert len(lines) < 30  # one per 0.1 s; looks are 0.01 s apart


def test_a_slow_look_ends_before_its_bar(tmp_path, monkeypatch):
    """A look may take longer than the runs do: files on a network."""
    monkeypatch.setattr("numerate.lab.comparison.watching._WATCH_SECONDS", 0.0)
    looking, ended = threading.Event(), threading.Event()

    def look(self):
        looking.set()
        ended.wait(0.2)

    monkeypatch.setattr(Watch, "look", look)
    failed = []
    monkeypatch.setattr(threading, "excepthook", failed.append)
    before = threading.active_count()
    with GridProgress(Console(file=io.StringIO())) as display, steps_shown([RunConfig(steps=9)], tmp_path, display):
        looking.wait()
    wait_until(lambda: threading.active_count() <= before)
    assert not failed


def test_the_time_left_is_by_the_speed_since_the_first_step_with_evaluation_once_it_is_measured(tmp_path):
    first, second = (RunConfig(seed=seed, steps=100) for seed in range(2))
    watch = Watch([first, second], tmp_path)
    watch.look(now=100.0)  # processes start
    assert watch.left is None
    write_text(file(tmp_path, first, NOTE), '["train", 10, 100]')
    watch.look(now=130.0)
    assert watch.left is None  # one look has no speed
    write_text(file(tmp_path, first, NOTE), '["train", 30, 100]')
    watch.look(now=140.0)
    assert watch.left == pytest.approx(85.0)  # 20 steps in 10 s, 170 to go
    finish(tmp_path, first, train_seconds=50.0, eval_seconds=25.0)  # evaluation is worth 50 steps
    watch.look(now=205.0)
    assert watch.left == pytest.approx(150 * 75 / 140)


def test_runs_note_their_progress_and_leave_no_note(tmp_path):
    seen = []
    with NotedProgress([tmp_path, tmp_path / "absent"], lambda *event: seen.append(event)) as progress:
        progress("train", 1, 9, {"loss": 2.0})
        assert (tmp_path / NOTE).read_text() == '["train", 1, 9]'
        progress("train", 2, 9, {})  # within a second: not noted, but passed on
        assert (tmp_path / NOTE).read_text() == '["train", 1, 9]'
    assert seen == [("train", 1, 9, {"loss": 2.0}), ("train", 2, 9, {})]
    assert list(tmp_path.iterdir()) == []
