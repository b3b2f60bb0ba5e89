"""Try a wheel as a new user has it: in an empty folder, with torch and numpy alone, then with what the wheel asks for.

    python scripts/try_wheel.py WHEEL FOLDER [--linked]

FOLDER becomes a virtual environment. torch is installed first and by the exact version in $TORCH, as in the Makefile. With
--linked nothing is downloaded: what pip would install is linked from the Python that runs this.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

TORCH = os.environ.get("TORCH", "torch==2.13.0")
_NAME = re.compile(r"[A-Za-z0-9._-]+")

# Run in the new environment. Its arguments are packages that must not be there.
SMOKE = """
import sys
from importlib.metadata import version
from importlib.util import find_spec

present = [name for name in sys.argv[1:] if find_spec(name) is not None]
assert not present, f"not alone: {present}"

import torch
import numerate as nm

vocab = nm.NumericVocab.from_texts({str(digit): digit for digit in range(10)}, vocab_size=12)
logits = torch.zeros(1, 3, 12, requires_grad=True)
labels = torch.tensor([[1, 5, -100]])
for name, loss in nm.LOSSES.items():
    assert torch.isfinite(loss(vocab)(logits, labels)), name
out = nm.NumericObjective(nm.SMMDLoss(vocab), weight=0.3)(logits, labels)
out.loss.backward()
assert logits.grad is not None and logits.grad.abs().sum() > 0
assert nm.NumberDistribution.bell(84.5, width=0.05).median == 84.5
assert nm.answers.EXTRACTORS["last_number"]("about 15.") == 15
assert nm.__version__ == version("numerate")
print(f"numerate {nm.__version__}: {len(nm.LOSSES)} losses, an objective and a distribution with torch and numpy alone")
"""
# What needs an extra: the command, and the extra that it must name.
NEEDS = (
    ("train --task arithmetic --steps 1", "lab"),
    ("inspect deepseek", "lab"),
    ("task clock", "tasks"),
    ("report .", "report"),
    ("playground", "playground"),
    ("serve tiny", "lab,playground"),
)
FOREIGN = ("transformers", "trl", "scipy", "matplotlib", "pydantic", "starlette", "yaml", "PIL")


def main(wheel: Path, folder: Path, *, linked: bool = False) -> None:
    """Install the wheel in two stages and try each; raise if something is not as it should be."""
    begun = time.monotonic()
    wheel, empty = wheel.resolve(strict=True), folder / "empty"
    subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
    empty.mkdir()
    python, command = folder / "bin" / "python", folder / "bin" / "numerate"
    pip = [python, "-m", "pip", "--disable-pip-version-check", "-q", "install"]
    _provide(["torch", "numpy"], [TORCH, "numpy"], pip, linked)
    subprocess.run([*pip, "--no-deps", wheel], check=True)
    subprocess.run([python.absolute(), "-I", "-c", SMOKE, "typer", *FOREIGN], cwd=empty, check=True)
    _provide(["typer", "rich"], [str(wheel)], pip, linked)
    help_text = subprocess.run([command.absolute(), "--help"], cwd=empty, capture_output=True, text=True, check=True).stdout
    _expect("numerate --help", help_text, "compare")
    for arguments, extra in NEEDS:
        line = f"numerate {arguments}"
        done = subprocess.run([command.absolute(), *arguments.split()], cwd=empty, capture_output=True, text=True, check=False)
        said = " ".join((done.stdout + done.stderr).split())
        if done.returncode != 1:
            raise SystemExit(f"{line} ended with {done.returncode}: expected 1, since {extra} is not installed.\n{said}")
        _expect(line, said, f"pip install 'numerate[{extra}]'")
        print(f"{line}: {said}")
    print(f"{wheel.name} works alone ({time.monotonic() - begun:.0f} s)")


def _provide(names: Sequence[str], wanted: Sequence[str], pip: Sequence[str | Path], linked: bool) -> None:
    """Install packages, or link them and all that they ask for."""
    if not linked:
        subprocess.run([*pip, *wanted], check=True)
        return
    site = next(Path(pip[0]).parents[1].glob("lib/python*/site-packages"))
    for package in closure(names):
        for path in top_level(package):
            target = site / path.name
            if not target.exists():
                target.symlink_to(path)


def closure(names: Sequence[str]) -> list[str]:
    """Return these packages and those that they need, without extras, as far as they are installed."""
    found: list[str] = []
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        try:
            asked = distribution(name).requires or []
        except PackageNotFoundError:  # needed on other platforms
            continue
        if name not in found:
            found.append(name)
            waiting += [_NAME.match(one)[0].lower() for one in asked if "extra ==" not in one]  # type: ignore[index]
    return found


def top_level(package: str) -> Iterator[Path]:
    """Yield the folders and files that a package has in site-packages."""
    files = distribution(package).files or []
    site = Path(str(distribution(package).locate_file("")))
    for name in sorted({file.parts[0] for file in files} - {"..", "__pycache__"}):
        yield site / name


def _expect(line: str, said: str, wanted: str) -> None:
    if wanted not in said:
        raise SystemExit(f"{line} does not say {wanted!r}:\n{said}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Try a wheel in a fresh environment.")
    parser.add_argument("wheel", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--linked", action="store_true", help="link packages of this Python instead of installing them")
    given = parser.parse_args()
    main(given.wheel, given.folder, linked=given.linked)
