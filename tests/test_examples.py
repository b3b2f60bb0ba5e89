"""Every program in `examples/` runs as it is, its model improves, and its numeric term takes part in the training.

Each program runs three times in one process: as it is, then twice with every objective's weight set to 0. The last two must
agree (the runs are deterministic) and the first must differ from them. So the test fails for a program whose term is dead:
set `weight=0` in it, or leave out `attach`, and all three agree.
"""

from __future__ import annotations

import gc
import re
import runpy
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.apart import finish, start

from numerate import NumericObjective

ROOT = Path(__file__).parents[1]
NEEDS = {
    "accelerate_loop": "accelerate",
    "lightning_module": "lightning",
    "transformers_peft": "peft",
    "transformers_trainer": "accelerate",
    "trl_sft": "trl",
}


def run_thrice(program: Path) -> None:
    sys.path.insert(0, str(program.parent))
    runpy.run_path(str(program))
    gc.freeze()  # a training begins with a garbage collection, which takes longer than the training itself
    init = NumericObjective.__init__
    NumericObjective.__init__ = lambda self, loss, weight=0.3, **settings: init(self, loss, weight=0.0, **settings)
    for _ in range(2):
        sys.stdout.write("=====\n")
        runpy.run_path(str(program))


def runs(program: Path, folder: Path) -> list[dict[str, tuple[float, float]]]:
    """Return each run's printed parts, before and after training."""
    output = folder / "output.txt"
    code = finish(start(run_thrice, program, output=output, folder=folder))
    printed = output.read_text(encoding="utf-8")
    assert code == 0, printed
    lines = [re.findall(r"^\S*?(cross_entropy|numeric): ([\d.]+) -> ([\d.]+)$", run, re.M) for run in printed.split("=====")]
    return [{part: (float(before), float(after)) for part, before, after in line} for line in lines]


def test_every_example_is_known():
    assert {path.stem for path in (ROOT / "examples").glob("*.py")} == {*NEEDS, "tiny"}


@pytest.mark.launch
@pytest.mark.parametrize("name", NEEDS)
def test_it_trains_with_its_numeric_term(name: str, tmp_path: Path):
    pytest.importorskip("transformers")
    if find_spec(NEEDS[name]) is None:
        pytest.skip(f"needs {NEEDS[name]}")
    as_it_is, dead, again = runs(ROOT / "examples" / f"{name}.py", tmp_path)
    for before, after in (as_it_is["cross_entropy"], as_it_is["numeric"]):
        assert 0 < after < before
    assert dead == again, "two equal runs differ, so that a dead term could not be told"
    assert as_it_is != dead, "the numeric term changes nothing"


def test_the_tiny_model(capsys: pytest.CaptureFixture[str]):
    pytest.importorskip("transformers")
    runpy.run_path(str(ROOT / "examples" / "tiny.py"), run_name="__main__")
    assert "parameters" in capsys.readouterr().out
