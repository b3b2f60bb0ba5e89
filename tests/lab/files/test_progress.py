"""How far runs in any process are, and how long the rest takes, from the notes that they write."""

from __future__ import annotations

import io
import threading
import time

import pytest
from rich.console import Console
from tests.apart import wait_until

from numerate.lab.files.progress import NOTE, GridProgress, NotedProgress, _time_left
from numerate.lab.files.records import write_json, write_text


@pytest.fixture(autouse=True)
def quickly(monkeypatch):
    for name, seconds in (("_LOOK_SECONDS", 0.01), ("_FIRST_LINE_SECONDS", 0.0), ("LINE_SECONDS", 0.1)):
        monkeypatch.setattr(f"numerate.lab.files.progress.{name}", seconds)


def test_the_steps_of_runs_in_other_processes_are_shown(tmp_path):
    running, waiting = tmp_path / "a", tmp_path / "b"
    write_text(running / NOTE, '["train", 99, 100]')  # of a run that was killed
    with GridProgress(Console(file=io.StringIO(), force_terminal=True)) as display:
        with display.watching({running: 100, waiting: 100}):
            (bar,) = display.bars.tasks
            assert (bar.total, bar.completed) == (200, 0)
            for note, steps in (('["pictures", 9, 9]', 0), ('["train", 47, 100]', 47), ('["evaluate", 3, 10]', 100)):
                write_text(running / NOTE, note)
                wait_until(lambda steps=steps: bar.completed == steps)
            write_json(waiting / "result.json", {})
            wait_until(lambda: bar.completed == 200)
        assert display.bars.tasks == []


def test_without_a_terminal_steps_and_time_left_are_printed(tmp_path, monkeypatch):
    monkeypatch.setattr("numerate.lab.files.progress._MEASURED_SECONDS", 0.05)
    text, begun = io.StringIO(), time.monotonic()
    with GridProgress(Console(file=text)) as display, display.watching({tmp_path: 1200}):
        write_text(tmp_path / NOTE, '["train", 20, 1200]')
        wait_until(lambda: "20 of 1,200 steps\n" in text.getvalue())
        write_text(tmp_path / NOTE, '["train", 30, 1200]')
        wait_until(lambda: "30 of 1,200 steps, about " in text.getvalue())
        time.sleep(0.5)
    lines = text.getvalue().rstrip().splitlines()  # older versions of rich end with an empty line
    assert lines[-1].endswith(" left")
    assert len(lines) < 2 + 10 * (time.monotonic() - begun)  # one per 0.1 s; looks are 0.01 s apart


def test_a_slow_look_ends_before_its_bar(tmp_path, monkeypatch):
    """A look may take longer than the runs do: files on a network."""
    looking, ended = threading.Event(), threading.Event()

    def slowly(folder, steps):
        looking.set()
        ended.wait(0.2)
        return 1

    monkeypatch.setattr("numerate.lab.files.progress._steps_done", slowly)
    failed = []
    monkeypatch.setattr(threading, "excepthook", failed.append)
    before = threading.active_count()
    with GridProgress(Console(file=io.StringIO())) as display, display.watching({tmp_path: 9}):
        looking.wait()
    wait_until(lambda: threading.active_count() <= before)
    assert not failed


def test_the_time_left_is_by_the_speed_since_the_first_step(monkeypatch):
    monkeypatch.setattr("numerate.lab.files.progress.time.monotonic", lambda: 140.0)
    assert _time_left((130.0, 10), 30, 200) == "about 1 min 20 s left"  # 20 steps in 10 s, 170 to go
    assert _time_left((130.0, 10), 10, 200) == ""  # one look has no speed
    assert _time_left((139.0, 10), 30, 200) == ""  # nor has a second
    assert _time_left((130.0, 10), 200, 200) == ""  # runs are evaluated


def test_runs_note_their_progress_and_leave_no_note(tmp_path):
    seen = []
    with NotedProgress([tmp_path, tmp_path / "absent"], lambda *event: seen.append(event)) as progress:
        progress("train", 1, 9, {"loss": 2.0})
        assert (tmp_path / NOTE).read_text() == '["train", 1, 9]'
        progress("train", 2, 9, {})  # within a second: not noted, but passed on
        assert (tmp_path / NOTE).read_text() == '["train", 1, 9]'
    assert seen == [("train", 1, 9, {"loss": 2.0}), ("train", 2, 9, {})]
    assert list(tmp_path.iterdir()) == []
