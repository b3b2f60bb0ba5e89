"""What a wheel and a source distribution may hold."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NOTES = {"numerate-0.1.0.dist-info/licenses/LICENSE": 11_000, "numerate-0.1.0.dist-info/METADATA": 5_000}


@pytest.fixture
def good(script) -> dict[str, int]:
    """The sizes of the files of a wheel without problems."""
    return {**dict.fromkeys(script.sources(), 1_000), **NOTES}


def test_a_good_wheel(script, good):
    assert [*script.problems_of_wheel(good, script.sources())] == []
    assert [*script.problems_of_wheel(good | dict.fromkeys(script.MAY_BE_LARGE, 9_000_000), script.sources())] == []


@pytest.mark.parametrize(
    ("added", "problem"),
    [
        ({"tests/test_losses.py": 10}, "tests/test_losses.py is outside of the package"),
        ({"numerate/tests/test_losses.py": 10}, "numerate/tests/test_losses.py is not for users"),
        ({"numerate/vocab.py": 1_000_001}, "numerate/vocab.py has 1,000,001 bytes: expected at most 1,000,000"),
    ],
)
def test_what_does_not_belong_into_a_wheel(script, good, added, problem):
    assert problem in [*script.problems_of_wheel(good | added, script.sources())]


def test_what_a_wheel_needs(script, good):
    for name in script.NEEDED:
        assert name in script.sources(), f"{name} is not in the checkout"
        found = [*script.problems_of_wheel({file: size for file, size in good.items() if file != name}, script.sources())]
        assert found == [f"{name} is missing"]
    bare = {name: size for name, size in good.items() if name not in NOTES}
    assert [*script.problems_of_wheel(bare, script.sources())] == ["the licence is missing"]


@pytest.mark.launch
def test_what_hatchling_builds(script, tmp_path):
    """The wheel is built from the unpacked source distribution."""
    pytest.importorskip("hatchling", reason="hatchling, which builds the wheel, is not installed")
    build = [sys.executable, "-m", "hatchling", "build", "-d", tmp_path, "-t"]
    subprocess.run([*build, "sdist"], cwd=ROOT, check=True, capture_output=True)
    with tarfile.open(next(tmp_path.glob("*.tar.gz"))) as sdist:
        sdist.extractall(tmp_path / "unpacked", filter="data")
    subprocess.run([*build, "wheel"], cwd=next((tmp_path / "unpacked").iterdir()), check=True, capture_output=True)
    assert script.main(tmp_path) == 0
