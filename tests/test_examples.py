"""Every program of `examples/` runs as it stands, and what it trains gets better."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROGRAMS = sorted((ROOT / "examples").glob("*.py"))
NEEDS = {"accelerate_loop": "accelerate", "lightning_module": "lightning", "transformers_peft": "peft", "trl_sft": "trl"}


def run(program: Path, folder: Path) -> str:
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "HF_HUB_OFFLINE": "1"}
    environment.pop("PYTHONWARNINGS", None)
    done = subprocess.run([sys.executable, program], cwd=folder, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("program", PROGRAMS, ids=[program.stem for program in PROGRAMS])
def test_it_runs(program: Path, tmp_path: Path):
    pytest.importorskip("transformers")
    if program.stem in NEEDS and find_spec(NEEDS[program.stem]) is None:
        pytest.skip(f"needs {NEEDS[program.stem]}")
    output = run(program, tmp_path)
    if program.stem == "tiny":
        assert "parameters" in output
        return
    (before, after), *_ = re.findall(r"cross_entropy: ([\d.]+) -> ([\d.]+)", output)
    assert float(after) < float(before)
