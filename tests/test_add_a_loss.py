"""docs/add_a_loss.md, followed literally: its file in a copy of the package, and no other file touched."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("transformers", reason="the extra lab is not installed")
pytest.importorskip("starlette", reason="the extra playground is not installed")

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "add_a_loss.md").read_text(encoding="utf-8")
[(FILE, CODE)] = re.findall(r'^```python title="src/numerate/(\S+)"\n(.*?)^```', PAGE, re.MULTILINE | re.DOTALL)

USE = """
import json
import torch
import numerate as nm
from numerate.inspection import loss_advice
from numerate.playground import digit, landscape

vocab = nm.NumericVocab.from_texts({str(digit): digit for digit in range(10)}, vocab_size=10)
certain = torch.full((1, 10), -60.0)
certain[0, 8] = 60.0
loss = nm.LOSSES["power"](vocab, power=3.0)
seen = {
    "file": nm.__file__,
    "last": list(nm.LOSSES)[-1],
    "costs": [float(nm.LOSSES["power"](vocab)(certain, torch.tensor([5]))), float(loss(certain, torch.tensor([5])))],
    "objective": float(nm.NumericObjective(loss, weight=0.5)(certain, torch.tensor([8])).loss),
    "advice": [advice.loss for advice in loss_advice(vocab)],
    "digit": {row["name"]: row["sees"] for row in digit.compute(digit.DigitRequest())["losses"]},
    "landscape": landscape.compute(landscape.LandscapeRequest(losses=["power"])),
}
print(json.dumps(seen))
"""


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package with the new file."""
    copy = tmp_path_factory.mktemp("with_power") / "numerate"
    shutil.copytree(ROOT / "src" / "numerate", copy, ignore=shutil.ignore_patterns("__pycache__"))
    (copy / FILE).write_text(CODE, encoding="utf-8")
    return copy


def run(package: Path, *arguments: object) -> str:
    """Run Python with the copy; return what it prints."""
    environment = os.environ | {"PYTHONPATH": str(package.parent)}
    command = [sys.executable, *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.launch
def test_registry_objective_advice_and_playground_have_it(package):
    seen = json.loads(run(package, "-c", USE))
    assert Path(seen["file"]).parent == package
    assert seen["last"] == "power"
    assert seen["costs"] == pytest.approx([9.0, 27.0])
    assert seen["objective"] == pytest.approx(0.0, abs=1e-6)
    assert "power" in seen["advice"]
    assert seen["digit"]["power"] == re.search(r'sees = "(.*)"', CODE)[1]  # type: ignore[index]
    assert seen["landscape"]["names"][-1] == "power"
    assert seen["landscape"]["series"][0]["values"] == pytest.approx(
        [float(answer**2) for answer in range(10)],
        abs=1e-4,  # the landscape's certain answers leave 1e-6 to the others
    )
    assert list(seen["landscape"]["controls"]["power"]) == ["power"]


@pytest.mark.launch
def test_the_contract_holds_for_it(package):
    few = "power and (float32 or certain or gradient or half) or reference_and_loss_have"
    printed = run(package, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/losses/test_losses.py", "-k", few)
    passed = int(re.search(r"(\d+) passed", printed)[1])  # type: ignore[index]
    assert passed >= 6  # one test holds all reductions to the reference
    assert "skipped" not in printed
