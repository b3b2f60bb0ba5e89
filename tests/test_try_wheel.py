"""The wheel of this checkout, alone in a fresh environment."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def test_what_torch_needs_and_no_more(script):
    found = script.closure(["torch", "numpy"])
    assert {"torch", "numpy", "sympy", "filelock"} <= set(found)
    assert not {"transformers", "scipy", "typer"} & set(found)
    assert {path.name for path in script.top_level("numpy")} >= {"numpy"}


@pytest.mark.launch
def test_the_wheel_works_alone(script, tmp_path, capfd):
    pytest.importorskip("hatchling", reason="hatchling, which builds the wheel, is not installed")
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-d", tmp_path, "-t", "wheel"], cwd=ROOT, check=True)
    script.main(next(tmp_path.glob("*.whl")), tmp_path / "venv", linked=True)
    said = capfd.readouterr().out
    assert "losses, an objective and a distribution with torch and numpy alone" in said
    assert said.count("pip install 'numerate[") == len(script.NEEDS)
    with pytest.raises(SystemExit, match="does not say 'compare'"):
        script._expect("numerate --help", "nothing", "compare")
