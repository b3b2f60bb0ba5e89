"""Commands that are killed before a random operation on a file and started again: the same result, and nothing is left over."""

from __future__ import annotations

import json
import os
import random
import signal
import sys

import pytest
from tests import apart

pytestmark = [pytest.mark.slow, pytest.mark.launch]

QUICK = ("steps=6", "batch_size=8", "train_examples=48", "eval_examples=6", "log_every=1", "save_every=2", "validate_every=2")
SETTINGS = [part for setting in (*QUICK, "keep_best=true") for part in ("--set", setting)]
TASK = ["--task", "arithmetic", *SETTINGS]
MEMBERS = ["train", "--members", "2", "--resume", *TASK, "--set", "decide=median"]
COMMANDS = {
    "train": ["train", "--loss", "smmd", "--resume", *TASK],
    "members": MEMBERS,
    "members with adapters": [*MEMBERS, "--set", "adapter=lora", "--set", "rank=2"],
    "compare": ["compare", "--loss", "ce", "--loss", "smmd", "--seeds", "2", "--processes", "1", *TASK],
}
# Times, what follows from them, and what says how a run was started.
VARYING = {"seconds", "train_seconds", "eval_seconds", "ms_per_step", "tokens_per_second", "created", "environment", "command"}
VARYING |= {"costs", "figures", "stacked", "time_ratio"}
KILLS = 6


def numerate(arguments, folder, operation):
    """Run a command, and kill it before the n-th operation that changes a file in a folder; count the operations."""
    left = [operation]

    def watch(event, given):
        if event == "open":
            writes = given[2] & (os.O_WRONLY | os.O_RDWR) if isinstance(given[2], int) else set(str(given[1])) & set("wax+")
        else:
            writes = event in ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate")
        if writes and isinstance(given[0], str | os.PathLike) and str(folder) in os.path.abspath(given[0]):  # noqa: PTH100
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.argv = ["numerate", *arguments, "--out", str(folder)]
    sys.addaudithook(watch)
    from numerate.cli import app

    app(prog_name="numerate", standalone_mode=False)
    (folder.parent / "operations").write_text(str(operation - left[0]))


def content(folder):
    """Return what each file holds, without times and pages."""
    found = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file() and path.name != ".lock"):
        if path.suffix in (".json", ".jsonl"):
            texts = [path.read_text()] if path.suffix == ".json" else path.read_text().splitlines()
            value = [without_times(json.loads(text)) for text in texts] if path.name != "environment.json" else None
        else:
            value = path.read_bytes() if path.suffix == ".safetensors" else None
        found[str(path.relative_to(folder))] = value
    return found


def without_times(value):
    if isinstance(value, dict):
        return {name: without_times(item) for name, item in value.items() if name not in VARYING}
    return [without_times(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize("name", COMMANDS)
def test_a_killed_command_goes_on_to_the_same_result(name, tmp_path):
    rng, output = random.Random(f"0 {name}"), tmp_path / "output.txt"

    def run(folder, operation):
        return apart.finish(apart.start(numerate, COMMANDS[name], folder, operation, output=output, folder=tmp_path))

    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert run(whole, 10**9) == 0, output.read_text()
    operations = int((tmp_path / "operations").read_text())
    finished = set()
    for _ in range(KILLS):
        code = run(killed, rng.randint(1, operations))
        assert code in (0, -signal.SIGKILL), output.read_text()
        now = {path.parent for path in killed.rglob("result.json")}
        assert finished <= now, "what was finished still is"
        assert all((folder / "predictions.jsonl").is_file() for folder in now)
        finished = now
    assert run(killed, 10**9) == 0, output.read_text()
    assert content(killed) == content(whole)
