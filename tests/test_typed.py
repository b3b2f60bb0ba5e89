"""Types for users: a script with the whole public API passes ``mypy --strict``, and wrong calls do not."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import numerate

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "tests" / "data" / "typed_user_script.py"
WRONG = """
import numerate as nm

vocab = nm.NumericVocab.from_values({1: 1.0}, vocab_size="12")
nm.NumericObjective(nm.SMMDLoss(vocab, kernel="round"), weight="much")
nm.EMDLoss(vocab, places="many")
nm.recommended("prices")
nm.SMDLoss
"""


def mypy(path: Path) -> subprocess.CompletedProcess[str]:
    """Check a file with the settings and the cache of ``make lint``, which leave large packages of others out."""
    pytest.importorskip("mypy", reason="mypy is not installed")
    command = [sys.executable, "-m", "mypy", "--strict", str(path)]
    return subprocess.run(
        command, cwd=ROOT, env=os.environ | {"MYPYPATH": "src"}, capture_output=True, text=True, timeout=600, check=False
    )


def test_the_script_uses_every_public_name():
    used = set(re.findall(r"\bnm\.(\w+)", SCRIPT.read_text(encoding="utf-8")))
    assert used == set(numerate.__all__)


def test_the_script_runs():
    assert runpy.run_path(str(SCRIPT))["main"]() == numerate.__version__


@pytest.mark.launch
def test_the_script_passes_mypy():
    done = mypy(SCRIPT)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.launch
def test_wrong_calls_do_not_pass(tmp_path):
    (tmp_path / "wrong.py").write_text(WRONG, encoding="utf-8")
    done = mypy(tmp_path / "wrong.py")
    assert done.returncode == 1, done.stdout + done.stderr
    lines = re.findall(r"wrong\.py:(\d+): error: ", done.stdout)
    assert sorted(set(map(int, lines))) == [4, 5, 6, 7, 8], done.stdout
