"""scripts/kill_runs.py: a few kills, and that it sees what is wrong."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

import pytest
from tests import apart

SCRIPT = Path(__file__).parents[1] / "scripts" / "kill_runs.py"


def kill(arguments):
    sys.argv = [str(SCRIPT), *arguments]
    runpy.run_path(str(SCRIPT), run_name="__main__")


@pytest.mark.launch
def test_a_killed_training_goes_on_to_the_same_result(tmp_path):
    output = tmp_path / "output.txt"
    arguments = ["--kills", "3", "--only", "train", "--seed", "1"]
    assert apart.finish(apart.start(kill, arguments, output=output)) == 0, output.read_text()
    *_, row = output.read_text().splitlines()
    name, after, before, results, wrong, _ = row.strip("| ").split(" | ")
    assert (name, wrong) == ("train", "0")
    assert int(after) + int(before) == 3
    assert int(results) >= 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda out: (out / "curve.jsonl").unlink(), "curve.jsonl is missing"),
        (lambda out: (out / ".result.json.part").touch(), ".result.json.part is left over"),
        (lambda out: (out / "weights").write_bytes(b"12"), "weights: b'123' became b'12'"),
        (lambda out: (out / "curve.jsonl").write_text('{"loss": 1.0000001, "seconds": 1}\n'), "1.0 became 1.0000001"),
    ],
)
def test_differences_are_seen_and_times_are_not(change, message, script, tmp_path):
    (tmp_path / "weights").write_bytes(b"123")
    (tmp_path / "curve.jsonl").write_text('{"loss": 1.0, "seconds": 7}\n')
    (tmp_path / "result.json").write_text('{"cost": {"train_seconds": 1}}')
    expected = script.content(tmp_path)
    (tmp_path / "result.json").write_text('{"cost": {"train_seconds": 2}}')
    (tmp_path / "curve.jsonl").write_text('{"loss": 1.0, "seconds": 8}\n')
    assert list(script.differences(expected, script.content(tmp_path), 0.0)) == []
    change(tmp_path)
    (found,) = script.differences(expected, script.content(tmp_path), 0.0)
    assert found.endswith(message)


def test_what_looks_finished_is_compared(script, tmp_path):
    (scenario,) = (one for one in script.SCENARIOS if one.name == "compare")
    cell = tmp_path / "out" / "cells" / "ab"
    cell.mkdir(parents=True)
    for name in ("predictions.jsonl", "curve.jsonl", "config.json", "result.json"):
        (cell / name).write_text(json.dumps({"a": 1}) + "\n")
    whole = script.content(tmp_path)
    assert script.finished(scenario, tmp_path, whole) == ({"out/cells/ab"}, [])
    (cell / "predictions.jsonl").write_text("")
    assert len(script.finished(scenario, tmp_path, whole)[1]) == 1
    (cell / "curve.jsonl").unlink()
    assert "out/cells/ab has result.json and no curve.jsonl" in script.finished(scenario, tmp_path, whole)[1]
